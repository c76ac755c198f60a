//! Keys over time: discovery, rotation, floods, outages, pinning; and a real HTTPS issuer on loopback.

use certs::{Authority, ServerCertificate, Validity};
use testing::MemoryFetch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const DISCOVERY: &str = "https://issuer.test/x/.well-known/openid-configuration";
const KEYS: &str = "https://issuer.test/x/keys";

struct Fetched {
    issuer: TestIssuer,
    fetch: Arc<MemoryFetch>,
    verifier: Verifier,
}

fn fetched(change: impl FnOnce(&mut RawIssuer)) -> Fetched {
    let issuer = TestIssuer::new(URL);
    let fetch = MemoryFetch::new();
    fetch.publish(&issuer);
    let mut raw = RawIssuer::new("test", URL);
    change(&mut raw);
    let dynamic: Arc<dyn Fetch> = fetch.clone();
    let verifier = Verifier::with_fetch(vec![Issuer::try_from(raw).unwrap()], &dynamic);
    Fetched { issuer, fetch, verifier }
}

impl Fetched {
    async fn verify(&self, subject: &str) -> Result<Arc<Identity>, TokenError> {
        self.verify_by(&self.issuer, subject).await
    }

    async fn verify_by(&self, issuer: &TestIssuer, subject: &str) -> Result<Arc<Identity>, TokenError> {
        let now = SystemTime::now();
        self.verifier.verify(&issuer.token(subject, &[], AUD, now), AUD, now).await
    }
}

fn next(issuer: &TestIssuer, kid: &str) -> TestIssuer {
    let mut next = issuer.clone();
    next.keys.insert(0, TestKey::es256(kid));
    next
}

#[tokio::test(start_paused = true)]
async fn keys_are_read_once_for_many() {
    let site = fetched(|_| {});
    let hold = site.fetch.hold();
    let all = futures_util::future::join_all((0..50).map(|i| {
        let name = format!("user{i}");
        let site = &site;
        async move { site.verify(&name).await }
    }));
    let release = async {
        tokio::task::yield_now().await;
        hold.notify_one();
        tokio::task::yield_now().await;
        hold.notify_one();
    };
    let (all, ()) = tokio::join!(all, release);
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(site.fetch.fetches(), 2, "discovery and keys");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_many_show_before_it_is_verified_is_verified_once() {
    let site = fetched(|_| {});
    let (hold, now) = (site.fetch.hold(), SystemTime::now());
    let token = site.issuer.token("ann", &[], AUD, now);
    let all = futures_util::future::join_all((0..100).map(|_| site.verifier.verify(&token, AUD, now)));
    let release = async {
        for _ in 0..2 {
            tokio::task::yield_now().await;
            assert_eq!(site.verifier.decisions.waiting(), 1, "all wait for one");
            hold.notify_one();
        }
    };
    let (all, ()) = tokio::join!(all, release);
    // Each verification makes an identity of its own.
    let first = all[0].clone().unwrap();
    assert!(all.iter().all(|identity| Arc::ptr_eq(identity.as_ref().unwrap(), &first)));
    assert_eq!(site.verifier.decisions.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_key_is_found_in_the_middle_of_the_run() {
    let site = fetched(|_| {});
    site.verify("ann").await.unwrap();
    let rotated = next(&site.issuer, "k2");
    site.fetch.publish(&rotated);
    tokio::time::advance(REFETCH).await;
    site.verify_by(&rotated, "ann").await.unwrap();
    site.verify("bob").await.unwrap();
    assert_eq!(site.fetch.fetches(), 4);
}

#[tokio::test(start_paused = true)]
async fn of_keys_that_are_replaced_in_a_row_each_is_found_at_once() {
    let site = fetched(|_| {});
    site.verify("ann").await.unwrap();
    tokio::time::advance(REFETCH).await;
    let mut newest = site.issuer.clone();
    for kid in ["k2", "k3", "k4"] {
        newest = next(&newest, kid);
        site.fetch.publish(&newest);
        site.verify_by(&newest, "ann").await.unwrap();
    }
    assert_eq!(site.fetch.fetches(), 2 + 2 * 3);
    // What nobody published is asked for once more, and then not before the interval is over.
    for i in 0..200 {
        let evil = TestIssuer { url: URL.into(), keys: vec![site.issuer.key().named(&format!("x{i}"))] };
        assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
    assert_eq!(site.fetch.fetches(), 2 + 2 * 4);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_answers_differently_each_time_is_not_asked_without_end() {
    let site = fetched(|_| {});
    site.verify("ann").await.unwrap();
    let all = next(&next(&site.issuer, "k2"), "k3");
    for round in 0..100 {
        tokio::time::advance(Duration::from_millis(10)).await;
        let mut some = all.clone();
        some.keys.remove(round % 2);
        site.fetch.publish(&some);
        let evil = TestIssuer { url: URL.into(), keys: vec![site.issuer.key().named(&format!("x{round}"))] };
        assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
    assert!(site.fetch.fetches() <= 2 + 2 * 4, "{}", site.fetch.fetches());
}

#[tokio::test(start_paused = true)]
async fn keys_in_another_order_are_the_same_keys() {
    let site = fetched(|_| {});
    let rotated = next(&site.issuer, "k2");
    site.fetch.publish(&rotated);
    site.verify("ann").await.unwrap();
    let mut turned = rotated.clone();
    turned.keys.reverse();
    site.fetch.publish(&turned);
    for i in 0..20 {
        tokio::time::advance(REFETCH / 4).await;
        let evil = TestIssuer { url: URL.into(), keys: vec![site.issuer.key().named(&format!("x{i}"))] };
        assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
    assert_eq!(site.fetch.fetches(), 2 + 2 * 5);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_key_ends_kept_decisions_once_it_is_known() {
    let site = fetched(|_| {});
    let now = SystemTime::now();
    let token = site.issuer.token("ann", &[], AUD, now);
    site.verifier.verify(&token, AUD, now).await.unwrap();
    let other = TestIssuer { url: URL.into(), keys: vec![TestKey::es256("k2")] };
    site.fetch.publish(&other);
    tokio::time::advance(REFETCH).await;
    site.verify_by(&other, "bob").await.unwrap();
    assert_eq!(site.verifier.verify(&token, AUD, now).await.unwrap_err(), TokenError::UnknownKey);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_kids_is_one_fetch_per_interval() {
    let site = fetched(|_| {});
    site.verify("ann").await.unwrap();
    for round in 1..=3 {
        tokio::time::advance(REFETCH).await;
        for i in 0..200 {
            let evil = TestIssuer { url: URL.into(), keys: vec![site.issuer.key().named(&format!("x{round}-{i}"))] };
            assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
        }
        assert_eq!(site.fetch.fetches(), 2 + 2 * round);
        site.verify(&format!("ann{round}")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_away_does_not_waste_the_fetch() {
    let site = fetched(|_| {});
    let hold = site.fetch.hold();
    let gone = tokio::time::timeout(Duration::from_secs(1), site.verify("ann")).await;
    assert!(gone.is_err());
    hold.notify_one();
    let (result, ()) = tokio::join!(site.verify("bob"), async {
        tokio::task::yield_now().await;
        hold.notify_one();
    });
    result.unwrap();
    assert_eq!(site.fetch.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_hangs_is_given_up_after_the_deadline() {
    let site = fetched(|_| {});
    let _hold = site.fetch.hold();
    assert_eq!(site.verify("ann").await.unwrap_err(), TokenError::KeysUnavailable(FetchError::Timeout));
}

#[tokio::test(start_paused = true)]
async fn while_the_issuer_is_down_the_keys_serve_until_they_are_too_old() {
    let site = fetched(|raw| raw.keys_max_age = Some("1h".into()));
    site.verify("ann").await.unwrap();
    site.fetch.down();
    for minutes in 1..6 {
        tokio::time::advance(Duration::from_secs(660)).await;
        let result = site.verify(&format!("ann{minutes}")).await;
        assert_eq!(result.is_ok(), minutes < 6, "{minutes}: {result:?}");
    }
    tokio::time::advance(Duration::from_secs(660)).await;
    assert_eq!(site.verify("late").await.unwrap_err(), TokenError::KeysUnavailable(FetchError::Status(503)));
    site.fetch.publish(&site.issuer);
    tokio::time::advance(BACKOFF_MAX).await;
    site.verify("again").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_never_answered_is_not_asked_by_every_request() {
    let site = fetched(|_| {});
    site.fetch.down();
    for i in 0..100 {
        assert!(site.verify(&i.to_string()).await.unwrap_err().is_unavailable());
    }
    assert_eq!(site.fetch.fetches(), 2, "the second request waits for the second attempt, nobody for a third");
    for _ in 0..10 {
        tokio::time::advance(BACKOFF_MAX).await;
        let _ = site.verify("ann").await;
    }
    assert_eq!(site.fetch.fetches(), 12);
}

#[tokio::test(start_paused = true)]
async fn the_first_users_of_an_issuer_that_is_just_starting_are_served() {
    let site = fetched(|_| {});
    site.fetch.down();
    site.verify("ann").await.unwrap_err();
    site.fetch.publish(&site.issuer);
    site.verify("ann").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keep_fresh_reads_beside_the_requests() {
    let site = fetched(|_| {});
    let beside = tokio::time::timeout(Duration::from_secs(1000), site.verifier.keep_fresh());
    assert!(beside.await.is_err());
    let fetches = site.fetch.fetches();
    assert!((6..=8).contains(&fetches), "{fetches}");
    site.verify("ann").await.unwrap();
    assert_eq!(site.fetch.fetches(), fetches);
}

#[tokio::test(start_paused = true)]
async fn a_discovery_document_of_another_issuer_or_with_other_addresses_is_refused() {
    for document in [
        json!({"issuer": format!("{URL}/"), "jwks_uri": KEYS}),
        json!({"jwks_uri": KEYS}),
        json!({"issuer": URL}),
        json!({"issuer": URL, "jwks_uri": "http://issuer.test/x/keys"}),
        json!({"issuer": URL, "jwks_uri": "http://127.0.0.1/keys"}),
        json!({"issuer": URL, "jwks_uri": "file:///etc/passwd"}),
        json!({"issuer": URL, "jwks_uri": 1}),
        json!([]),
    ] {
        let site = fetched(|_| {});
        site.fetch.put(DISCOVERY, Ok(document.to_string().as_bytes()));
        let error = site.verify("ann").await.unwrap_err();
        assert!(matches!(error, TokenError::KeysUnavailable(FetchError::Discovery(_))), "{document} {error}");
        assert_eq!(site.fetch.fetches(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn unusable_keys_are_left_out_and_the_others_serve() {
    let issuer = TestIssuer::new(URL);
    let tiny = json!({"kty": "RSA", "kid": "tiny", "e": "AQAB", "n": B64.encode([0xff; 64])});
    let mut encryption = TestKey::es256("enc").jwk();
    encryption["use"] = json!("enc");
    let mut private = TestKey::es256("private").jwk();
    private["d"] = json!("AAAA");
    let mut off_curve = TestKey::es256("off").jwk();
    off_curve["x"] = off_curve["y"].clone();
    let secret = json!({"kty": "oct", "kid": "oct", "k": "AAAA", "alg": "HS256"});
    let (twin, other) = (TestKey::es256("twin"), TestKey::es256("twin"));
    let set = json!({"keys": [tiny, encryption, private, off_curve, secret, twin.jwk(), other.jwk(), issuer.key().jwk(), issuer.key().jwk()]});
    let site = Fetched { issuer, ..fetched(|_| {}) };
    site.fetch.put(KEYS, Ok(set.to_string().as_bytes()));
    site.verify("ann").await.unwrap();
    for key in [twin, other] {
        let evil = TestIssuer { url: URL.into(), keys: vec![key] };
        assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
    for kid in ["tiny", "enc", "private", "off", "oct"] {
        let evil = TestIssuer { url: URL.into(), keys: vec![site.issuer.key().named(kid)] };
        assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
}

#[tokio::test(start_paused = true)]
async fn key_sets_that_are_too_many_or_misshapen_are_refused() {
    let key = TestKey::es256("k1").jwk();
    for set in [
        json!({"keys": vec![key.clone(); 101]}).to_string(),
        "{}".into(),
        "[]".into(),
        json!({"keys": [1]}).to_string(),
        r#"{"keys":[],"keys":[]}"#.into(),
    ] {
        let site = fetched(|_| {});
        site.fetch.put(KEYS, Ok(set.as_bytes()));
        assert!(matches!(site.verify("ann").await.unwrap_err(), TokenError::KeysUnavailable(FetchError::KeySet(_))));
    }
}

fn pinned(issuer: &TestIssuer) -> Fetched {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pinned.json");
    std::fs::write(&file, issuer.jwks().to_string()).unwrap();
    let site = fetched(|raw| raw.pinned_keys_file = Some(file));
    Fetched { issuer: issuer.clone(), ..site }
}

fn attested(issuer: &TestIssuer) -> Value {
    let mut set = issuer.jwks();
    for (at, pair) in issuer.keys.windows(2).enumerate() {
        set["keys"][at]["towline_attestation"] = json!(pair[1].attest(&pair[0]));
    }
    set
}

#[tokio::test(start_paused = true)]
async fn a_pinned_key_serves_without_the_issuer() {
    let issuer = TestIssuer::new(URL);
    let site = pinned(&issuer);
    site.fetch.down();
    site.verify("ann").await.unwrap();
    tokio::time::advance(Duration::from_secs(10 * 86_400)).await;
    site.verify("bob").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_attestations_from_a_pinned_key_is_followed() {
    let first = TestIssuer::new(URL);
    let site = pinned(&first);
    let third = next(&next(&first, "k2"), "k3");
    site.fetch.publish(&third);
    site.fetch.put(KEYS, Ok(attested(&third).to_string().as_bytes()));
    site.verify_by(&third, "ann").await.unwrap();
    // The chain goes on from a key that was accepted here, also when the pinned one is no longer published.
    let mut fourth = next(&third, "k4");
    fourth.keys.truncate(2);
    site.fetch.put(KEYS, Ok(attested(&fourth).to_string().as_bytes()));
    tokio::time::advance(REFETCH).await;
    site.verify_by(&fourth, "ann").await.unwrap();
    assert_eq!(site.verify("bob").await.unwrap_err(), TokenError::UnknownKey);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_no_accepted_one_vouches_for_is_refused() {
    let first = TestIssuer::new(URL);
    let rotated = next(&first, "k2");
    let (own, stranger) = (&rotated.keys[0], TestKey::es256("k1"));
    let other_key = first.key().attest(&stranger);
    let as_token = first.key().jws(&json!({"alg": "ES256", "kid": "k1", "typ": "JWT"}), own.thumbprint().as_bytes());
    let genuine = first.key().attest(own);
    let cut = genuine.rsplit_once('.').unwrap().0.to_owned() + ".";
    for attestation in [
        json!(null),
        json!(""),
        json!(own.attest(own)),
        json!(stranger.attest(own)),
        json!(other_key),
        json!(as_token),
        json!(cut),
        json!([genuine]),
    ] {
        let site = pinned(&first);
        let mut set = rotated.jwks();
        set["keys"][0]["towline_attestation"] = attestation.clone();
        site.fetch.put(KEYS, Ok(set.to_string().as_bytes()));
        assert_eq!(site.verify_by(&rotated, "ann").await.unwrap_err(), TokenError::UnknownKey, "{attestation}");
        site.verify("bob").await.unwrap();
    }
}

/// Publishes keys, each vouched for by the next one, with more of them (who vouches, and for which) and with
/// statements; has them read at once.
async fn publish(site: &Fetched, line: &TestIssuer, more: &[(&TestKey, &TestKey)], ended: &[String]) {
    let mut set = attested(line);
    for (by, key) in more {
        let mut jwk = key.jwk();
        jwk["towline_attestation"] = json!(by.attest(key));
        set["keys"].as_array_mut().unwrap().push(jwk);
    }
    set["towline_ended"] = json!(ended);
    site.fetch.put(KEYS, Ok(set.to_string().as_bytes()));
    tokio::time::advance(REFETCH).await;
    site.verifier.probe().await;
}

fn of_key(kid: &str) -> TestIssuer {
    TestIssuer { url: URL.into(), keys: vec![TestKey::es256(kid)] }
}

#[tokio::test(start_paused = true)]
async fn token_of_a_replaced_key_verifies_until_the_keys_end_alone() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    for site in [pinned(&first), fetched(|_| {})] {
        let end = unix_seconds(SystemTime::now()) + 7200;
        publish(&site, &second, &[], &[second.key().end(first.key(), end)]).await;
        site.verify_by(&second, "ann").await.unwrap();
        site.verify_by(&first, "ann").await.unwrap();
        // Made by somebody who kept the key: the issuer itself signed nothing that expires after the end.
        let mut claims = first.claims("bob", AUD, SystemTime::now());
        for (expires, result) in [(end, Ok(())), (end + 1, Err(TokenError::RetiredKey))] {
            claims["exp"] = json!(expires);
            let verified = site.verifier.verify(&first.mint(&claims), AUD, SystemTime::now()).await;
            assert_eq!(verified.map(|_| ()), result);
        }
        let last = SystemTime::UNIX_EPOCH + Duration::from_secs(end + 60);
        claims["exp"] = json!(end);
        let late = site.verifier.verify(&first.mint(&claims), AUD, last).await.unwrap_err();
        assert!(matches!(late, TokenError::Expired { .. }), "{late:?}");
        site.verifier.verify(&second.token("ann", &[], AUD, last), AUD, last).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn token_that_was_verified_before_is_refused_once_its_key_is_revoked() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let now = SystemTime::now();
    let token = first.token("ann", &[], AUD, now);
    for site in [pinned(&first), Fetched { issuer: first.clone(), ..fetched(|_| {}) }] {
        site.fetch.publish(&first);
        site.verifier.verify(&token, AUD, now).await.unwrap();
        publish(&site, &second, &[], &[second.key().end(first.key(), 0)]).await;
        assert_eq!(site.verifier.verify(&token, AUD, now).await.unwrap_err(), TokenError::UnknownKey);
        site.verify_by(&second, "ann").await.unwrap();
    }
}

/// A gateway verified tokens of a revoked key until it asked for the keys, though its own issuer had the new ones.
#[tokio::test(start_paused = true)]
async fn keys_that_the_issuer_gives_count_at_once_and_an_older_set_takes_nothing_back() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let now = SystemTime::now();
    let token = first.token("ann", &[], AUD, now);
    let mut listed = attested(&second);
    listed["towline_ended"] = json!([second.key().end(first.key(), 0)]);
    let mut apart = listed.clone();
    let revoked = apart["keys"].as_array_mut().unwrap().remove(1);
    apart["towline_former"] = json!([revoked]);
    let sites = || [pinned(&first), Fetched { issuer: first.clone(), ..fetched(|_| {}) }];
    for (given, site) in [&listed, &apart].into_iter().flat_map(|given| sites().map(|site| (given, site))) {
        site.fetch.publish(&first);
        site.verifier.verify(&token, AUD, now).await.unwrap();
        let asked = site.fetch.fetches();
        site.verifier.take_keys("https://other.test", given).unwrap();
        site.verifier.verify(&token, AUD, now).await.unwrap();
        site.verifier.take_keys(URL, given).unwrap();
        site.verify_by(&second, "ann").await.unwrap();
        assert_eq!(site.fetch.fetches(), asked, "nobody is asked");
        for _ in 0..2 {
            assert_eq!(site.verifier.verify(&token, AUD, now).await.unwrap_err(), TokenError::UnknownKey);
            site.verify_by(&second, "ann").await.unwrap();
            // Whoever answers at the address does not have them yet.
            tokio::time::advance(REFETCH).await;
            assert!(site.verifier.probe().await.iter().all(|probe| probe.keys.is_ok()));
        }
        assert!(site.fetch.fetches() > asked);
        assert!(site.verifier.take_keys(URL, &json!({})).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn older_key_set_or_a_withheld_statement_revokes_nothing_back() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let site = pinned(&first);
    let end = second.key().end(first.key(), 0);
    publish(&site, &second, &[], std::slice::from_ref(&end)).await;
    let later = second.key().end(first.key(), unix_seconds(SystemTime::now()) + 86_400);
    for statements in [vec![], vec![later], vec![first.key().end(first.key(), u64::MAX)]] {
        publish(&site, &second, &[], &statements).await;
        assert_eq!(site.verify_by(&first, "ann").await.unwrap_err(), TokenError::UnknownKey);
        site.verify_by(&second, "ann").await.unwrap();
    }
    publish(&site, &first, &[], &[]).await;
    assert_eq!(site.verify_by(&first, "ann").await.unwrap_err(), TokenError::UnknownKey);
}

#[tokio::test(start_paused = true)]
async fn key_is_ended_only_by_a_key_that_follows_it() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let (old, new, stranger) = (first.key(), second.key(), TestKey::es256("k2"));
    let payload = json!({"key": old.thumbprint(), "until": 0}).to_string();
    let header = |kind: &str| json!({"alg": "ES256", "kid": "k2", "typ": kind});
    for statement in [
        old.end(new, 0),
        old.end(old, 0),
        new.end(new, 0),
        stranger.end(old, 0),
        new.jws(&header("towline-key+jws"), payload.as_bytes()),
        new.jws(&header("JWT"), payload.as_bytes()),
        new.jws(&header("towline-key-ended+jws"), old.thumbprint().as_bytes()),
        new.end(old, 0).rsplit_once('.').unwrap().0.to_owned() + ".",
        String::new(),
    ] {
        let site = pinned(&first);
        publish(&site, &second, &[], std::slice::from_ref(&statement)).await;
        for issuer in [&first, &second] {
            site.verify_by(issuer, "ann").await.unwrap_or_else(|why| panic!("{statement}: {why}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn thief_of_a_replaced_key_cannot_have_another_key_follow_it() {
    let first = TestIssuer::new(URL);
    let (second, evil) = (next(&first, "k2"), of_key("evil"));
    let site = pinned(&first);
    publish(&site, &second, &[], &[]).await;
    // All that the old key can sign, in a key set without the true successor.
    let ended = [evil.key().end(second.key(), 0), first.key().end(second.key(), 0), evil.key().end(first.key(), 0)];
    publish(&site, &first, &[(first.key(), evil.key())], &ended).await;
    assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    let third = next(&second, "k3");
    publish(&site, &third, &[(first.key(), evil.key())], &ended).await;
    assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    for issuer in [&first, &second, &third] {
        site.verify_by(issuer, "ann").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn revoked_keys_that_are_published_apart_link_and_do_not_verify() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let third = next(&second, "k3");
    let mut set = attested(&third);
    let revoked = set["keys"].as_array_mut().unwrap().remove(1);
    set["towline_former"] = json!([revoked]);
    let site = pinned(&first);
    // The statement itself is withheld.
    site.fetch.put(KEYS, Ok(set.to_string().as_bytes()));
    site.verify_by(&third, "ann").await.unwrap();
    site.verify_by(&first, "ann").await.unwrap();
    assert_eq!(site.verify_by(&second, "ann").await.unwrap_err(), TokenError::UnknownKey);
}

#[tokio::test(start_paused = true)]
async fn restarted_verifier_knows_successors_and_revocations_that_were_kept() {
    let first = TestIssuer::new(URL);
    let (second, evil) = (next(&first, "k2"), of_key("evil"));
    let site = pinned(&first);
    assert_eq!(site.verifier.learned(), None);
    let mut learning = site.verifier.learning();
    publish(&site, &second, &[], &[second.key().end(first.key(), 0)]).await;
    assert!(learning.has_changed().unwrap());
    learning.mark_unchanged();
    let kept = site.verifier.learned().unwrap();
    assert!(site.verifier.is_kept(&kept) && !site.verifier.is_kept(""));

    let again = pinned(&first);
    again.verifier.learn(&kept).unwrap();
    assert!(again.verifier.is_kept(&kept));
    again.fetch.down();
    again.verify_by(&second, "ann").await.unwrap();
    assert_eq!(again.verify_by(&first, "ann").await.unwrap_err().code(), "keys_unavailable");
    again.fetch.publish(&first);
    publish(&again, &first, &[(first.key(), evil.key())], &[]).await;
    for issuer in [&first, &evil] {
        assert_eq!(again.verify_by(issuer, "ann").await.unwrap_err(), TokenError::UnknownKey);
    }
    // The same facts signed once more, as a restarted gateway does, are nothing new to keep.
    publish(&site, &second, &[], &[second.key().end(first.key(), 0)]).await;
    assert!(!learning.has_changed().unwrap());
    // Another process's text has the same facts in other words.
    assert!(site.verifier.is_kept(&again.verifier.learned().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn kept_keys_count_only_as_far_as_they_follow_from_the_pinned_ones() {
    let first = TestIssuer::new(URL);
    let (second, evil) = (next(&first, "k2"), of_key("evil"));
    let site = pinned(&first);
    publish(&site, &second, &[], &[second.key().end(first.key(), 0)]).await;
    let kept = site.verifier.learned().unwrap();
    // A new agent has pinned the newest key alone: it takes nothing of what led there.
    let newest = TestIssuer { url: URL.into(), keys: vec![second.key().clone()] };
    let fresh = pinned(&newest);
    fresh.verifier.learn(&kept).unwrap();
    assert_eq!(fresh.verifier.learned(), None);
    fresh.verify_by(&newest, "ann").await.unwrap();
    assert!(fresh.verify_by(&first, "ann").await.is_err());
    // What somebody wrote there who has none of the keys.
    let mut forged = evil.jwks();
    forged["towline_ended"] = json!([evil.key().end(first.key(), 0)]);
    let forged = json!({URL: forged}).to_string();
    let site = pinned(&first);
    site.fetch.publish(&first);
    site.verifier.learn(&forged).unwrap();
    site.verify_by(&first, "ann").await.unwrap();
    assert_eq!(site.verify_by(&evil, "ann").await.unwrap_err(), TokenError::UnknownKey);
    for broken in ["", "[]", "{", &json!({URL: 1}).to_string(), &json!({URL: {}}).to_string()] {
        assert!(site.verifier.learn(broken).is_err(), "{broken}");
    }
    site.verify_by(&first, "ann").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_that_follow_a_pinned_one_are_bounded() {
    let mut line = TestIssuer::new(URL);
    let site = pinned(&line);
    for n in 0..jwk::CHAIN + 1 {
        line = next(&line, &format!("n{n}"));
        line.keys.truncate(2);
        publish(&site, &line, &[], &[]).await;
        assert_eq!(site.verify_by(&line, "ann").await.is_ok(), n < jwk::CHAIN - 1, "{n}");
    }
    // All that can be learned can be kept.
    assert!(site.verifier.is_kept(&site.verifier.learned().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn pinned_set_of_several_keys_is_one_line() {
    let first = TestIssuer::new(URL);
    let second = next(&first, "k2");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pinned.json");
    // As agents of before pinned it.
    std::fs::write(&file, attested(&second).to_string()).unwrap();
    let site = fetched(|raw| raw.pinned_keys_file = Some(file));
    let third = next(&second, "k3");
    publish(&site, &third, &[], &[third.key().end(first.key(), 0)]).await;
    for issuer in [&second, &third] {
        site.verify_by(issuer, "ann").await.unwrap();
    }
    assert_eq!(site.verify_by(&first, "ann").await.unwrap_err(), TokenError::UnknownKey);
}

#[tokio::test(start_paused = true)]
async fn an_attestation_is_no_token() {
    let issuer = TestIssuer::new(URL);
    let site = of(issuer.clone(), |_| {});
    let header = json!({"alg": "ES256", "kid": "k1", "typ": "towline-key+jws"});
    let token = issuer.mint_with(&header, &site.claims());
    assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::Kind);
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn against(
    answers: impl FnOnce(&TestIssuer) -> Vec<Vec<u8>>,
    names: &[&str],
    trusted: bool,
) -> Result<Arc<Identity>, TokenError> {
    let (address, authority, serving) = listen(names).await;
    let issuer = TestIssuer::new(&format!("https://{address}"));
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.crt");
    let other = Authority::create("other", Validity::days(1)).unwrap();
    std::fs::write(&ca, if trusted { authority.certificate_pem() } else { other.certificate_pem() }).unwrap();
    let raw = RawIssuer { ca_file: Some(ca), ..RawIssuer::new("test", &issuer.url) };
    let verifier = Verifier::new(Issuer::all(vec![raw]).unwrap(), Arc::new(Direct)).unwrap();
    let now = SystemTime::now();
    let token = issuer.token("ann", &["dev"], AUD, now);
    let serving = serving(answers(&issuer));
    tokio::select! {
        biased;
        result = verifier.verify(&token, AUD, now) => result,
        () = async { serving.await; std::future::pending().await } => unreachable!(),
    }
}

type Serving = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// A TLS listener, and what gives each of its connections one answer: the answers need the port.
async fn listen(names: &[&str]) -> (std::net::SocketAddr, Authority, impl FnOnce(Vec<Vec<u8>>) -> Serving) {
    let authority = Authority::create("ca", Validity::days(1)).unwrap();
    let own = authority.issue_server(names, Validity::days(1)).unwrap();
    let tls = certs::tls::server_public(ServerCertificate::new(own.credentials()), None).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = move |answers: Vec<Vec<u8>>| -> Serving {
        Box::pin(async move {
            for answer in answers {
                let (socket, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
            }
        })
    };
    (address, authority, serving)
}

#[tokio::test]
async fn a_real_https_issuer_on_loopback() {
    let answers = |issuer: &TestIssuer| vec![ok(&issuer.discovery().to_string()), ok(&issuer.jwks().to_string())];
    let identity = against(answers, &["127.0.0.1"], true).await.unwrap();
    assert_eq!((identity.username.as_str(), &identity.groups[..]), ("ann", &["dev".to_owned()][..]));
}

#[tokio::test]
async fn an_issuer_with_an_untrusted_certificate_or_another_name_is_refused() {
    let answers = |issuer: &TestIssuer| vec![ok(&issuer.discovery().to_string())];
    for (names, trusted) in [(["127.0.0.1"], false), (["issuer.test"], true)] {
        let error = against(answers, &names, trusted).await.unwrap_err();
        assert!(matches!(error, TokenError::KeysUnavailable(FetchError::Tls(_))), "{error}");
    }
}

#[tokio::test]
async fn redirects_errors_floods_and_broken_answers_are_refused() {
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: https://evil.test/\r\nContent-Length: 0\r\n\r\n".to_vec();
    let error = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec();
    let long = ok(&"x".repeat(DOCUMENT_BYTES + 1));
    let mut endless = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    endless.extend(std::iter::repeat_n(b' ', 10 << 20));
    let short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_vec();
    for (answer, expected) in [
        (redirect, FetchError::Redirect),
        (error, FetchError::Status(500)),
        (long, FetchError::TooLarge),
        (endless, FetchError::TooLarge),
        (short, FetchError::Http),
        (b"SSH-2.0-x\r\n".to_vec(), FetchError::Http),
    ] {
        let result = against(|_| vec![answer], &["127.0.0.1"], true).await;
        assert_eq!(result.unwrap_err(), TokenError::KeysUnavailable(expected));
    }
}
