//! Each way to forge or confuse a token (docs/threats.md) as one named test, against real keys.

mod fetching;
mod proofs;
mod vectors;

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use serde_json::{Value, json};

use super::testing::{TestIssuer, TestKey, unix_seconds, verifier};
use super::*;

const URL: &str = "https://issuer.test/x";
const AUD: &str =
    "towline:cluster:/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/a";

struct Site {
    issuer: TestIssuer,
    verifier: Verifier,
    now: SystemTime,
}

fn site() -> Site {
    with(|_| {})
}

fn with(change: impl FnOnce(&mut RawIssuer)) -> Site {
    of(TestIssuer::new(URL), change)
}

fn rsa_site() -> Site {
    of(TestIssuer { url: URL.into(), keys: vec![TestKey::rs256("k1", 0)] }, |_| {})
}

fn of(issuer: TestIssuer, change: impl FnOnce(&mut RawIssuer)) -> Site {
    let mut raw = RawIssuer::new("test", &issuer.url);
    change(&mut raw);
    let verifier = verifier(vec![issuer.fixed(raw)]);
    // Whole seconds, so that bounds are exact.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds(SystemTime::now()));
    Site { issuer, verifier, now }
}

impl Site {
    fn claims(&self) -> Value {
        self.issuer.claims("ann", AUD, self.now)
    }

    fn changed(&self, change: impl FnOnce(&mut Value)) -> Value {
        let mut claims = self.claims();
        change(&mut claims);
        claims
    }

    async fn try_token(&self, token: &str) -> Result<Arc<Identity>, TokenError> {
        self.verifier.verify(token, AUD, self.now).await
    }

    async fn try_claims(&self, change: impl FnOnce(&mut Value)) -> Result<Arc<Identity>, TokenError> {
        self.try_token(&self.issuer.mint(&self.changed(change))).await
    }

    async fn refused(&self, change: impl FnOnce(&mut Value)) -> TokenError {
        self.try_claims(change).await.unwrap_err()
    }

    async fn refused_header(&self, header: Value) -> TokenError {
        self.try_token(&self.issuer.mint_with(&header, &self.claims())).await.unwrap_err()
    }

    fn header(&self) -> Value {
        json!({"alg": self.issuer.key().algorithm(), "kid": "k1", "typ": "JWT"})
    }
}

fn bad(claim: &str) -> impl Fn(&TokenError) -> bool {
    let claim = claim.to_owned();
    move |e| matches!(e, TokenError::BadClaim { claim: c, .. } if *c == claim)
}

#[tokio::test]
async fn a_good_token_gives_its_identity() {
    for site in [site(), rsa_site()] {
        let identity = site.try_claims(|c| c["groups"] = json!(["dev", "ops"])).await.unwrap();
        assert_eq!((identity.username.as_str(), identity.subject.as_str()), ("ann", "ann"));
        assert_eq!(identity.groups, ["dev", "ops"]);
        assert_eq!((identity.issuer.as_str(), identity.expires), ("test", site.now + Duration::from_secs(3600)));
    }
}

#[tokio::test]
async fn alg_none_is_refused_in_every_spelling() {
    let site = site();
    for alg in ["none", "None", "nOnE", "NONE"] {
        let head = B64.encode(json!({"alg": alg, "kid": "k1"}).to_string());
        let token = format!("{head}.{}.", B64.encode(site.claims().to_string()));
        assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::Algorithm("none"));
        assert_eq!(site.refused_header(json!({"alg": alg, "kid": "k1"})).await, TokenError::Algorithm("none"));
    }
}

#[tokio::test]
async fn hs256_with_the_public_key_as_secret_is_refused() {
    let site = rsa_site();
    let head = B64.encode(json!({"alg": "HS256", "kid": "k1"}).to_string());
    let signed = format!("{head}.{}", B64.encode(site.claims().to_string()));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &site.issuer.key().public_der());
    let token = format!("{signed}.{}", B64.encode(aws_lc_rs::hmac::sign(&key, signed.as_bytes())));
    assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::Algorithm("HS*"));
}

#[tokio::test]
async fn an_algorithm_outside_the_issuers_list_is_refused() {
    let site = of(TestIssuer { url: URL.into(), keys: vec![TestKey::rs256("k1", 0)] }, |raw| {
        raw.algorithms = vec!["ES256".into()];
    });
    assert_eq!(site.refused(|_| {}).await, TokenError::Algorithm("RS256"));
    for odd in ["rs256", "RS256 ", "", "ES256K", "RS1", "dir"] {
        assert_eq!(
            rsa_site().refused_header(json!({"alg": odd, "kid": "k1"})).await,
            TokenError::Algorithm("(unknown)")
        );
    }
}

#[tokio::test]
async fn pss_is_taken_where_it_is_allowed_and_the_key_does_not_say_otherwise() {
    let issuer = TestIssuer { url: URL.into(), keys: vec![TestKey::rs256("k1", 0)] };
    let site = of(issuer.clone(), |raw| raw.algorithms = vec!["PS256".into()]);
    let token = issuer.key().jws_pss(&json!({"alg": "PS256", "kid": "k1"}), site.claims().to_string().as_bytes());
    assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::KeyAlgorithm, "the key says RS256");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let mut set = issuer.jwks();
    set["keys"][0].as_object_mut().unwrap().remove("alg");
    std::fs::write(&file, set.to_string()).unwrap();
    let raw = RawIssuer { algorithms: vec!["PS256".into()], keys_file: Some(file), ..RawIssuer::new("test", URL) };
    let verifier = verifier(vec![Issuer::try_from(raw).unwrap()]);
    verifier.verify(&token, AUD, site.now).await.unwrap();
    let pkcs1 = issuer.mint(&site.claims());
    assert_eq!(verifier.verify(&pkcs1, AUD, site.now).await.unwrap_err(), TokenError::Algorithm("RS256"));
}

#[tokio::test]
async fn one_token_shown_by_many_at_once_is_verified_once() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    let all = futures_util::future::join_all((0..100).map(|_| site.try_token(&token))).await;
    let first = all[0].clone().unwrap();
    assert!(all.iter().all(|identity| Arc::ptr_eq(identity.as_ref().unwrap(), &first)));
    assert_eq!(site.verifier.decisions.waiting(), 0);
}

proptest::proptest! {
    #[test]
    fn no_text_panics_or_verifies(token in "[ -~]{0,200}|([A-Za-z0-9_-]{0,80}\\.){0,5}[A-Za-z0-9_-]{0,80}") {
        let site = site();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        proptest::prop_assert!(runtime.block_on(site.try_token(&token)).is_err());
        let _ = TokenKind::of(&site.verifier, &token);
    }

    #[test]
    fn a_token_with_one_byte_changed_never_gives_another_identity(at in 0usize..400, to in "[A-Za-z0-9_.-]") {
        let site = site();
        let mut token = site.issuer.mint(&site.claims());
        let at = at % token.len();
        let same = &token[at..=at] == to.as_str();
        token.replace_range(at..=at, &to);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        proptest::prop_assert_eq!(runtime.block_on(site.try_token(&token)).is_ok(), same);
    }
}

#[tokio::test]
async fn a_key_of_another_type_than_the_algorithm_is_refused() {
    assert_eq!(site().refused_header(json!({"alg": "RS256", "kid": "k1"})).await, TokenError::KeyAlgorithm);
    assert_eq!(rsa_site().refused_header(json!({"alg": "ES256", "kid": "k1"})).await, TokenError::KeyAlgorithm);
}

#[tokio::test]
async fn a_zero_or_misshapen_es256_signature_is_refused() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    let signed = token.rsplit_once('.').unwrap().0;
    let good = B64.decode(token.rsplit_once('.').unwrap().1).unwrap();
    let order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
    let order: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&order[2 * i..2 * i + 2], 16).unwrap()).collect();
    for signature in [
        vec![0; 64],
        vec![],
        vec![0; 63],
        vec![0xff; 64],
        order.repeat(2),
        good[..63].to_vec(),
        [&good[..], &[0]].concat(),
    ] {
        let token = format!("{signed}.{}", B64.encode(signature));
        assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::Signature);
    }
}

#[tokio::test]
async fn a_changed_payload_or_another_key_is_refused() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    let parts: Vec<&str> = token.split('.').collect();
    let other = B64.encode(site.changed(|c| c["sub"] = json!("root")).to_string());
    let forged = format!("{}.{other}.{}", parts[0], parts[2]);
    assert_eq!(site.try_token(&forged).await.unwrap_err(), TokenError::Signature);
    let token = TestIssuer::new(URL).mint(&site.claims());
    assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::Signature);
}

#[tokio::test]
async fn a_kid_that_is_a_path_a_query_or_an_address_finds_no_key() {
    let site = site();
    for kid in ["../../dev/null", "k1'OR'1'='1", "https://evil.test/keys", "k1/", "K1", "/dev/null"] {
        assert_eq!(site.refused_header(json!({"alg": "ES256", "kid": kid})).await, TokenError::UnknownKey, "{kid}");
    }
    for kid in [
        json!("k1\0"),
        json!("k1\n"),
        json!("a b"),
        json!("ü"),
        json!(""),
        json!("k".repeat(300)),
        json!(1),
        json!(null),
        json!(["k1"]),
    ] {
        assert_eq!(site.refused_header(json!({"alg": "ES256", "kid": kid})).await, TokenError::BadKeyId, "{kid}");
    }
}

#[tokio::test]
async fn without_a_kid_the_only_fitting_key_is_taken_and_several_are_none() {
    let mut issuer = TestIssuer::new(URL);
    let header = json!({"alg": "ES256"});
    let one = of(issuer.clone(), |_| {});
    one.try_token(&issuer.mint_with(&header, &one.claims())).await.unwrap();
    issuer.keys.push(TestKey::es256("k2"));
    assert_eq!(of(issuer, |_| {}).refused_header(header).await, TokenError::NoKeyId);
}

#[tokio::test]
async fn keys_and_addresses_in_the_header_are_ignored() {
    let site = site();
    let evil = TestIssuer::new(URL);
    let mut header = site.header();
    header["jwk"] = evil.key().jwk();
    header["jku"] = json!("https://evil.test/keys");
    header["x5u"] = json!("https://evil.test/cert");
    header["x5c"] = json!(["AAAA"]);
    assert_eq!(site.try_token(&evil.mint_with(&header, &site.claims())).await.unwrap_err(), TokenError::Signature);
    site.try_token(&site.issuer.mint_with(&header, &site.claims())).await.unwrap();
}

#[tokio::test]
async fn the_issuer_is_compared_byte_for_byte() {
    let site = site();
    for iss in [
        "https://issuer.test/x/",
        "https://ISSUER.test/x",
        "http://issuer.test/x",
        " https://issuer.test/x",
        "https://issuer.test:443/x",
        "",
    ] {
        assert_eq!(site.refused(|c| c["iss"] = json!(iss)).await, TokenError::UnknownIssuer, "{iss}");
    }
    for iss in [json!(null), json!([URL]), json!(1)] {
        assert_eq!(site.refused(|c| c["iss"] = iss.clone()).await, TokenError::UnknownIssuer);
    }
}

#[tokio::test]
async fn a_key_of_one_issuer_does_not_sign_for_another() {
    let (a, b) = (TestIssuer::new("https://a.test"), TestIssuer::new("https://b.test"));
    let raw = |issuer: &TestIssuer, name: &str| RawIssuer {
        username_prefix: Some(format!("{name}:")),
        ..RawIssuer::new(name, &issuer.url)
    };
    let verifier = verifier(vec![a.fixed(raw(&a, "a")), b.fixed(raw(&b, "b"))]);
    let now = SystemTime::now();
    let token = a.mint(&b.claims("ann", AUD, now));
    assert_eq!(verifier.verify(&token, AUD, now).await.unwrap_err(), TokenError::Signature);
    let token = b.mint(&b.claims("ann", AUD, now));
    assert_eq!(verifier.verify(&token, AUD, now).await.unwrap().username, "b:ann");
}

#[tokio::test]
async fn another_audience_is_refused() {
    let site = site();
    let other = format!("{AUD}2");
    for aud in [json!(other), json!([other]), json!(""), json!(AUD.to_uppercase()), json!([other, "x"])] {
        assert_eq!(site.refused(|c| c["aud"] = aud.clone()).await, TokenError::Audience, "{aud}");
    }
    assert_eq!(
        site.refused(|c| drop(c.as_object_mut().unwrap().remove("aud"))).await,
        TokenError::MissingClaim("aud".into())
    );
    for aud in [json!(1), json!(null), json!({"a": AUD}), json!([AUD, 1]), json!([]), json!(vec![AUD; 65])] {
        assert!(bad("aud")(&site.refused(|c| c["aud"] = aud.clone()).await), "{aud}");
    }
    let configured = with(|raw| raw.audiences = vec!["shared".into()]);
    configured.try_claims(|c| c["aud"] = json!("shared")).await.unwrap();
}

#[tokio::test]
async fn a_token_for_one_cluster_is_nothing_at_another_even_after_it_was_kept() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    site.try_token(&token).await.unwrap();
    let other = site.verifier.verify(&token, &format!("{AUD}2"), site.now).await;
    assert_eq!(other.unwrap_err(), TokenError::Audience);
}

/// What the API takes beside its URL is nothing at clusters, and what clusters share is nothing at the API.
#[tokio::test]
async fn a1_audiences_of_the_api_and_of_clusters_are_apart() {
    let site = with(|raw| {
        raw.audiences = vec!["clusters".into()];
        raw.api_audiences = vec!["api".into()];
    });
    for (aud, at, ok) in [
        ("clusters", AUD, true),
        ("api", AUD, false),
        ("api", "https://gateway.test", true),
        ("clusters", "https://gateway.test", false),
        ("https://gateway.test", "https://gateway.test", true),
        ("https://gateway.test", AUD, false),
    ] {
        let mut claims = site.claims();
        claims["aud"] = json!(aud);
        let result = site.verifier.verify(&site.issuer.mint(&claims), at, site.now).await;
        assert_eq!(result.is_ok(), ok, "{aud} at {at}");
    }
}

#[tokio::test]
async fn with_other_audiences_beside_ours_the_party_decides() {
    let site = with(|raw| raw.audiences = vec!["client".into()]);
    let two = json!([AUD, "other"]);
    assert_eq!(site.refused(|c| c["aud"] = two.clone()).await, TokenError::AuthorizedParty);
    for (azp, ok) in [("other", false), ("evil", false), ("", false), ("client", true)] {
        let result = site.try_claims(|c| {
            c["aud"] = two.clone();
            c["azp"] = json!(azp);
        });
        assert_eq!(result.await.is_ok(), ok, "{azp}");
    }
    site.try_claims(|c| c["aud"] = json!([AUD, "client"])).await.unwrap();
    let strict = with(|raw| raw.authorized_parties = vec!["kubectl".into()]);
    assert_eq!(strict.refused(|_| {}).await, TokenError::AuthorizedParty);
    assert_eq!(strict.refused(|c| c["azp"] = json!("other")).await, TokenError::AuthorizedParty);
    strict.try_claims(|c| c["azp"] = json!("kubectl")).await.unwrap();
    assert!(bad("azp")(&strict.refused(|c| c["azp"] = json!(["kubectl"])).await));
}

#[tokio::test]
async fn times_hold_to_the_second_with_skew() {
    let site = site();
    let now = unix_seconds(site.now);
    for (claim, value, ok) in [
        ("exp", now - 29, true),
        ("exp", now - 30, false),
        ("exp", now - 3600, false),
        ("exp", 0, false),
        ("nbf", now + 30, true),
        ("nbf", now + 31, false),
        ("iat", now + 30, true),
        ("iat", now + 31, false),
    ] {
        let result = site.try_claims(|c| c[claim] = json!(value)).await;
        assert_eq!(result.is_ok(), ok, "{claim} {value}");
    }
    let strict = with(|raw| raw.clock_skew = Some("0s".into()));
    assert_eq!(
        strict.refused(|c| c["exp"] = json!(unix_seconds(strict.now))).await,
        TokenError::Expired { seconds: 0 }
    );
    let lenient = strict.try_claims(|c| c["exp"] = json!(unix_seconds(strict.now) + 1)).await;
    lenient.unwrap();
}

#[tokio::test]
async fn exp_must_be_a_number_in_range() {
    let site = site();
    assert_eq!(
        site.refused(|c| drop(c.as_object_mut().unwrap().remove("exp"))).await,
        TokenError::MissingClaim("exp".into())
    );
    let future = unix_seconds(site.now) + 60;
    site.try_claims(|c| c["exp"] = json!(future as f64 + 0.5)).await.unwrap();
    for claim in ["exp", "nbf", "iat"] {
        for value in [
            json!("9999999999"),
            json!(null),
            json!([future]),
            json!(true),
            json!(-1),
            json!(1e300),
            json!(u64::MAX),
            json!(253_402_300_800u64),
        ] {
            assert!(bad(claim)(&site.refused(|c| c[claim] = value.clone()).await), "{claim} {value}");
        }
    }
}

#[tokio::test]
async fn crit_and_b64_are_refused() {
    let site = site();
    let mut header = site.header();
    header["crit"] = json!(["exp"]);
    assert_eq!(site.refused_header(header).await, TokenError::Critical);
    for b64 in [false, true] {
        let mut header = site.header();
        header["b64"] = json!(b64);
        assert_eq!(site.refused_header(header).await, TokenError::Unencoded);
    }
}

#[tokio::test]
async fn encrypted_compressed_and_nested_tokens_are_refused() {
    let site = site();
    let jwe = json!({"alg": "RSA-OAEP", "enc": "A256GCM"});
    assert_eq!(site.refused_header(jwe.clone()).await, TokenError::Encrypted);
    let five = format!("{}.AA.AA.AA.AA", B64.encode(jwe.to_string()));
    assert_eq!(site.try_token(&five).await.unwrap_err(), TokenError::Encrypted);
    let mut header = site.header();
    header["zip"] = json!("DEF");
    assert_eq!(site.refused_header(header).await, TokenError::Encrypted);
    let mut header = site.header();
    header["cty"] = json!("JWT");
    assert_eq!(site.refused_header(header).await, TokenError::Nested);
    let inner = site.issuer.mint(&site.claims());
    let nested = site.issuer.key().jws(&site.header(), inner.as_bytes());
    assert!(matches!(site.try_token(&nested).await.unwrap_err(), TokenError::Malformed(_)));
}

#[tokio::test]
async fn duplicate_keys_are_refused_in_header_and_payload() {
    let site = site();
    let claims = site.claims().to_string();
    for twice in [r#"{"sub":"root","#.to_owned() + &claims[1..], claims.replacen('{', r#"{"x":{"a":1,"a":2},"#, 1)] {
        let token = site.issuer.key().jws(&site.header(), twice.as_bytes());
        assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::DuplicateKey("payload"));
    }
    let header = r#"{"alg":"none","alg":"ES256","kid":"k1"}"#;
    let signed = format!("{}.{}", B64.encode(header), B64.encode(&claims));
    let token = format!("{signed}.{}", B64.encode(site.issuer.key().sign(signed.as_bytes())));
    assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::DuplicateKey("header"));
}

#[tokio::test]
async fn a_token_over_the_size_limit_is_refused_and_the_limit_named() {
    let site = site();
    let error = site.refused(|c| c["x"] = json!("x".repeat(1 << 20))).await;
    assert!(matches!(error, TokenError::TooLarge { .. }) && error.to_string().contains("limit: token bytes"));
}

#[tokio::test]
async fn a_user_with_300_groups_works() {
    let site = site();
    let groups: Vec<String> = (0..300).map(|i| format!("{i:0100}")).collect();
    assert_eq!(site.try_claims(|c| c["groups"] = json!(groups)).await.unwrap().groups, groups);
    let error = site.refused(|c| c["groups"] = json!((0..2000).map(|i| i.to_string()).collect::<Vec<_>>())).await;
    assert_eq!(error, TokenError::TooManyGroups { count: 2000, limit: types::limits::GROUPS });
}

#[tokio::test]
async fn spaces_line_breaks_and_other_characters_are_refused() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    for bad in [
        format!(" {token}"),
        format!("{token} "),
        format!("{token}\r\nX: y"),
        format!("{token},{token}"),
        token.replacen('.', ".\t", 1),
        format!("{token}\0"),
        format!("{token}ä"),
    ] {
        assert_eq!(site.try_token(&bad).await.unwrap_err(), TokenError::BadCharacter);
    }
}

#[tokio::test]
async fn exactly_three_parts_of_base64url_without_padding() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    let parts: Vec<&str> = token.split('.').collect();
    for foreign in ["", "a", "abcdef.0123456789abcdef", "..", "a.b.c", "====", parts[0], &token[..token.len() / 4]] {
        assert_eq!(site.try_token(foreign).await.unwrap_err(), TokenError::Opaque, "{foreign}");
    }
    let last = parts[2];
    // The last character of 64 bytes has four bits too many: only one spelling is taken.
    let respelled = format!(
        "{}{}",
        &last[..last.len() - 1],
        if last.ends_with('A') { 'B' } else { char::from(last.as_bytes()[last.len() - 1] + 1) }
    );
    for broken in [
        format!("{}.{}=.{last}", parts[0], parts[1]),
        format!("{}.{}.{last}=", parts[0], parts[1]),
        format!("{token}."),
        format!("{token}.{last}"),
        format!("{}.{}.{respelled}", parts[0], parts[1]),
        format!("{}.+/.{last}", parts[0]),
    ] {
        assert!(matches!(site.try_token(&broken).await.unwrap_err(), TokenError::Malformed(_)), "{broken}");
    }
}

#[tokio::test]
async fn other_kinds_of_tokens_are_refused() {
    let site = site();
    for typ in ["logout+jwt", "dpop+jwt", "secevent+jwt", "towline-key+jws", "JOSE", ""] {
        let mut header = site.header();
        header["typ"] = json!(typ);
        assert_eq!(site.refused_header(header).await, TokenError::Kind, "{typ}");
    }
    for typ in ["jwt", "at+jwt", "application/at+JWT"] {
        let mut header = site.header();
        header["typ"] = json!(typ);
        site.try_token(&site.issuer.mint_with(&header, &site.claims())).await.unwrap();
    }
    for typ in [json!("Refresh"), json!("Offline"), json!("Logout"), json!(1)] {
        assert_eq!(site.refused(|c| c["typ"] = typ.clone()).await, TokenError::Kind);
    }
    assert_eq!(site.refused(|c| c["events"] = json!({})).await, TokenError::Kind);
}

#[tokio::test]
async fn id_and_access_tokens_are_told_apart_where_configured() {
    let access = with(|raw| raw.tokens = Some(Tokens::Access));
    assert!(matches!(access.refused(|c| c["nonce"] = json!("n")).await, TokenError::Use { .. }));
    assert!(matches!(access.refused(|c| c["typ"] = json!("ID")).await, TokenError::Use { .. }));
    access.try_claims(|c| c["scp"] = json!("user")).await.unwrap();
    let id = with(|raw| raw.tokens = Some(Tokens::Id));
    assert!(matches!(id.refused(|c| c["scope"] = json!("user")).await, TokenError::Use { .. }));
    let mut header = id.header();
    header["typ"] = json!("at+jwt");
    assert!(matches!(id.refused_header(header).await, TokenError::Use { .. }));
    id.try_claims(|c| c["nonce"] = json!("n")).await.unwrap();
}

#[tokio::test]
async fn a4_groups_overage_is_refused_and_never_no_groups() {
    let site = site();
    let user = TokenError::GroupsOverage { service_principal: false };
    assert_eq!(site.refused(|c| c["_claim_names"] = json!({"groups": "src1"})).await, user);
    for yes in [json!(true), json!("true"), json!(1)] {
        assert_eq!(site.refused(|c| c["hasgroups"] = yes.clone()).await, user);
    }
    assert_eq!(site.refused(|c| c["groups:src1"] = json!("https://graph.test")).await, user);
    // Also where some groups are listed beside.
    let both = |c: &mut Value| {
        c["groups"] = json!(["dev"]);
        c["hasgroups"] = json!(true);
    };
    assert_eq!(site.refused(both).await, user);
    let principal = |c: &mut Value| {
        c["hasgroups"] = json!(true);
        c["idtyp"] = json!("app");
    };
    let error = site.refused(principal).await;
    assert!(error.to_string().starts_with("Overage claim (users with more than 200 group membership) for SPN"));
    assert!(bad("_claim_names")(&site.refused(|c| c["_claim_names"] = json!("groups")).await));
    site.try_claims(|c| c["_claim_names"] = json!({"photo": "src1"})).await.unwrap();
}

#[tokio::test]
async fn a4_a_groups_resolver_is_asked_and_its_failure_refuses() {
    struct Resolver(Option<Vec<String>>);
    impl GroupsResolver for Resolver {
        fn resolve(&self, overage: Overage) -> Boxed<Option<Vec<String>>> {
            assert_eq!((overage.subject.as_str(), overage.issuer.as_str()), ("ann", "test"));
            let groups = self.0.clone();
            Box::pin(async move { groups })
        }
    }
    for (groups, ok) in
        [(Some(vec!["a".to_owned()]), true), (Some(vec!["system:masters".to_owned()]), false), (None, false)]
    {
        let mut site = site();
        site.verifier = site.verifier.with_groups_resolver(Arc::new(Resolver(groups)));
        let result = site.try_claims(|c| c["hasgroups"] = json!(true)).await;
        assert_eq!(result.is_ok(), ok);
    }
}

#[tokio::test]
async fn groups_that_are_no_texts_are_refused() {
    let site = site();
    for groups in [json!(["a", 1]), json!([["a"]]), json!({"a": 1}), json!(1), json!(null), json!([null])] {
        assert!(bad("groups")(&site.refused(|c| c["groups"] = groups.clone()).await), "{groups}");
    }
    assert_eq!(site.try_claims(|c| c["groups"] = json!("one")).await.unwrap().groups, ["one"]);
    assert!(site.try_claims(|_| {}).await.unwrap().groups.is_empty());
}

#[tokio::test]
async fn a_missing_or_misshapen_user_name_is_refused() {
    let site = with(|raw| raw.username_claim = Some("name".into()));
    assert_eq!(site.refused(|_| {}).await, TokenError::MissingClaim("name".into()));
    for name in [json!(null), json!(1), json!(["a"]), json!({})] {
        assert!(bad("name")(&site.refused(|c| c["name"] = name.clone()).await));
    }
    assert_eq!(
        site.refused(|c| {
            c["name"] = json!("a");
            c.as_object_mut().unwrap().remove("sub");
        })
        .await,
        TokenError::MissingClaim("sub".into())
    );
    let email = with(|raw| raw.username_claim = Some("email".into()));
    assert!(bad("email_verified")(
        &email
            .refused(|c| {
                c["email"] = json!("a@b");
                c["email_verified"] = json!(false);
            })
            .await
    ));
}

#[tokio::test]
async fn names_that_change_their_meaning_on_the_way_are_refused() {
    let site = site();
    for name in [
        "",
        " ",
        " a",
        "a ",
        "a\nb",
        "a\r\nImpersonate-Group: x",
        "a\0",
        "a\t",
        "\u{7f}",
        "a\u{202e}b",
        "\u{feff}a",
        "a\u{2028}b",
        "\u{a0}a",
    ] {
        assert!(matches!(site.refused(|c| c["sub"] = json!(name)).await, TokenError::BadName(_)), "{name:?}");
        assert_eq!(
            site.refused(|c| c["groups"] = json!(["dev", name])).await,
            TokenError::BadName("group name"),
            "{name:?}"
        );
    }
    assert!(matches!(site.refused(|c| c["sub"] = json!("x".repeat(64 * 1024))).await, TokenError::BadName(_)));
    for name in ["-", "a,b", "a b", "Zoë", "用户", "a@b.test"] {
        assert_eq!(site.try_claims(|c| c["sub"] = json!(name)).await.unwrap().username, name);
    }
}

#[tokio::test]
async fn reserved_names_are_refused_unless_allowed() {
    let site = site();
    for name in ["system:admin", "system:serviceaccount:kube-system:x", "system:", "System:Masters", "system:node:a"] {
        assert_eq!(site.refused(|c| c["sub"] = json!(name)).await, TokenError::Reserved("user name"));
        assert_eq!(site.refused(|c| c["groups"] = json!([name])).await, TokenError::Reserved("group name"));
    }
    // What the prefix and the claim make together counts.
    let halves = with(|raw| raw.username_prefix = Some("sys".into()));
    assert_eq!(halves.refused(|c| c["sub"] = json!("tem:masters")).await, TokenError::Reserved("user name"));
    let prefixed = with(|raw| raw.username_prefix = Some("oidc:".into()));
    assert_eq!(prefixed.try_claims(|c| c["sub"] = json!("system:admin")).await.unwrap().username, "oidc:system:admin");
    let allowed = with(|raw| raw.allow_reserved = vec!["system:ops".into()]);
    assert_eq!(allowed.try_claims(|c| c["groups"] = json!(["system:ops"])).await.unwrap().groups, ["system:ops"]);
    assert_eq!(allowed.refused(|c| c["groups"] = json!(["system:ops2"])).await, TokenError::Reserved("group name"));
}

/// A gateway's own issuer needs no prefix beside others, and so may give whatever name does not begin with theirs.
#[tokio::test]
async fn an_issuer_without_prefix_gives_no_names_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let own = TestIssuer::new(&format!("https://gateway.test{OWN_ISSUER_PATH}"));
    let corp = TestIssuer::new("https://corp.test");
    let raws = vec![
        own.raw("own", dir.path()).unwrap(),
        RawIssuer {
            username_prefix: Some("corp:".to_owned()),
            groups_prefix: Some("corp-".to_owned()),
            ..corp.raw("corp", dir.path()).unwrap()
        },
    ];
    let verifier = verifier(Issuer::all(raws).unwrap());
    let now = SystemTime::now();
    let verified = async |issuer: &TestIssuer, change: fn(&mut Value)| {
        let mut claims = issuer.claims("ann", AUD, now);
        claims["groups"] = json!(["ops"]);
        change(&mut claims);
        verifier.verify(&issuer.mint(&claims), AUD, now).await
    };
    let theirs = verified(&corp, |_| {}).await.unwrap();
    assert_eq!((theirs.username.as_str(), theirs.groups.as_slice()), ("corp:ann", &["corp-ops".to_owned()][..]));
    assert_eq!(verified(&own, |_| {}).await.unwrap().username, "ann");
    for (change, what) in [
        ((|c| c["sub"] = json!("corp:ann")) as fn(&mut Value), "object id"),
        (|c| c["groups"] = json!(["ops", "corp-ops"]), "group name"),
    ] {
        assert_eq!(verified(&own, change).await.unwrap_err(), TokenError::OthersName(what));
    }
    // What begins otherwise is its own.
    assert_eq!(verified(&own, |c| c["sub"] = json!("corp-ann")).await.unwrap().username, "corp-ann");
}

#[tokio::test]
async fn entra_maps_users_to_upn_and_others_to_their_object_id() {
    let tenant = "00000000-0000-0000-0000-000000000007";
    let issuer = TestIssuer::new(&format!("https://login.microsoftonline.com/{tenant}/v2.0"));
    let site = of(issuer, |raw| raw.kind = Some(IssuerKind::Entra));
    let base = |c: &mut Value| {
        c["tid"] = json!(tenant);
        c["oid"] = json!("0-1-2");
    };
    let user = site
        .try_claims(|c| {
            base(c);
            c["upn"] = json!("ann@example.org");
        })
        .await
        .unwrap();
    assert_eq!((user.username.as_str(), &user.extra["oid"][..]), ("ann@example.org", &["0-1-2".to_owned()][..]));
    assert_eq!(site.try_claims(base).await.unwrap().username, "0-1-2");
    let app = site
        .try_claims(|c| {
            base(c);
            c["upn"] = json!("ann@example.org");
            c["idtyp"] = json!("app");
        })
        .await
        .unwrap();
    assert_eq!(app.username, "0-1-2");
    assert_eq!(site.refused(|c| c["tid"] = json!(tenant)).await, TokenError::MissingClaim("oid".into()));
    assert_eq!(
        site.refused(|c| {
            base(c);
            c["tid"] = json!("other");
        })
        .await,
        TokenError::RequiredClaim("tid".into())
    );
    assert_eq!(site.refused(|c| c["oid"] = json!("0")).await, TokenError::MissingClaim("tid".into()));
}

#[tokio::test]
async fn required_claims_and_extras_and_uid() {
    let site = with(|raw| {
        raw.required_claims.insert("hd".into(), OneOrMore::More(vec!["a.test".into(), "b.test".into()]));
        raw.uid_claim = Some("uid".into());
        raw.extra.insert("example.org/team".into(), "team".into());
    });
    assert_eq!(site.refused(|_| {}).await, TokenError::MissingClaim("hd".into()));
    assert_eq!(site.refused(|c| c["hd"] = json!("c.test")).await, TokenError::RequiredClaim("hd".into()));
    assert_eq!(site.refused(|c| c["hd"] = json!("b.test")).await, TokenError::MissingClaim("uid".into()));
    let identity = site
        .try_claims(|c| {
            c["hd"] = json!(["x", "b.test"]);
            c["uid"] = json!("u-1");
            c["team"] = json!(["x", "y"]);
        })
        .await
        .unwrap();
    assert_eq!(
        (identity.uid.as_deref(), &identity.extra["example.org/team"][..]),
        (Some("u-1"), &["x".to_owned(), "y".to_owned()][..])
    );
    assert!(bad("team")(
        &site
            .refused(|c| {
                c["hd"] = json!("a.test");
                c["uid"] = json!("u");
                c["team"] = json!([1]);
            })
            .await
    ));
}

#[tokio::test]
async fn kinds_are_told_apart_by_issuer() {
    let site = site();
    let kind = |token: &str| TokenKind::of(&site.verifier, token);
    assert_eq!(kind(&site.issuer.mint(&site.claims())), Ok(TokenKind::Issuer("test".into())));
    let account = TestIssuer::new("https://kubernetes.default.svc.cluster.local");
    let token = account.mint(&account.claims("system:serviceaccount:default:x", AUD, site.now));
    assert_eq!(kind(&token), Ok(TokenKind::Foreign));
    assert!(site.try_token(&token).await.unwrap_err().is_foreign());
    assert_eq!(kind("abcdef.0123456789abcdef"), Ok(TokenKind::Foreign));
    // Broken or hostile tokens are not passed on as somebody else's.
    let twice = format!(r#"{{"iss":"x",{}"#, &site.claims().to_string()[1..]);
    assert!(kind(&site.issuer.key().jws(&site.header(), twice.as_bytes())).is_err());
    assert!(!site.refused(|c| c["aud"] = json!("x")).await.is_foreign());
}

#[tokio::test]
async fn kept_decisions_end_with_the_token_and_after_a_short_while() {
    let site = site();
    let token = site.issuer.mint(&site.changed(|c| c["exp"] = json!(unix_seconds(site.now) + 60)));
    let at = |seconds: u64| site.verifier.verify(&token, AUD, site.now + Duration::from_secs(seconds));
    let first = at(0).await.unwrap();
    assert!(Arc::ptr_eq(&first, &at(59).await.unwrap()), "kept");
    assert!(!Arc::ptr_eq(&first, &at(61).await.unwrap()), "within the skew it is verified anew");
    assert_eq!(at(90).await.unwrap_err(), TokenError::Expired { seconds: 30 });
    let long = site.issuer.mint(&site.claims());
    let at = |seconds: u64| site.verifier.verify(&long, AUD, site.now + Duration::from_secs(seconds));
    let first = at(0).await.unwrap();
    assert!(Arc::ptr_eq(&first, &at(KEEP.as_secs() - 1).await.unwrap()));
    assert!(!Arc::ptr_eq(&first, &at(KEEP.as_secs() + 1).await.unwrap()));
}

#[tokio::test]
async fn decisions_that_have_ended_are_forgotten() {
    let site = site();
    let token = site.issuer.mint(&site.claims());
    let verify = || site.verifier.verify(&token, AUD, site.now);
    let first = verify().await.unwrap();
    site.verifier.decisions.sweep(site.now + KEEP - Duration::from_secs(1));
    assert!(Arc::ptr_eq(&first, &verify().await.unwrap()));
    site.verifier.decisions.sweep(site.now + KEEP);
    assert_eq!(site.verifier.decisions.bytes(), 0);
    assert!(!Arc::ptr_eq(&first, &verify().await.unwrap()));
}

/// The largest identity is kept, and any number of them is bounded.
#[tokio::test]
async fn kept_decisions_are_bounded_in_bytes() {
    let site = site();
    let groups: Vec<String> = (0..600).map(|n| format!("{n:0100}")).collect();
    for n in 0..400 {
        let token = site.issuer.mint(&site.changed(|c| {
            c["groups"] = json!(groups);
            c["sub"] = json!(n.to_string());
        }));
        let first = site.try_token(&token).await.unwrap();
        assert!(n > 0 || Arc::ptr_eq(&first, &site.try_token(&token).await.unwrap()), "alone it is kept");
        let bytes = site.verifier.decisions.bytes();
        assert!((1 << 16..=decisions::BYTES).contains(&bytes), "{bytes} with {n} more");
    }
}

#[tokio::test]
async fn errors_never_hold_the_token_or_its_words() {
    let site = site();
    let marker = "s3cr3tm4rk3r";
    let tokens = [
        site.issuer.mint(&site.changed(|c| c["aud"] = json!(marker))),
        site.issuer.mint(&site.changed(|c| c["iss"] = json!(marker))),
        site.issuer.mint(&site.changed(|c| c["sub"] = json!(format!("system:{marker}")))),
        site.issuer.mint(&site.changed(|c| c["exp"] = json!(marker))),
        site.issuer.mint_with(&json!({"alg": marker, "kid": "k1"}), &site.claims()),
        site.issuer.mint_with(&json!({"alg": "ES256", "kid": marker}), &site.claims()),
        marker.to_owned(),
    ];
    for token in tokens {
        let error = site.try_token(&token).await.unwrap_err();
        let shown = format!("{error} {error:?} {:?}", site.verifier);
        assert!(!shown.contains(marker) && !error.code().is_empty(), "{shown}");
    }
}

/// Z9: what an issuer states beside its tokens is no token, and a token is no statement.
#[tokio::test]
async fn statements_and_tokens_do_not_pass_for_each_other() {
    const KIND: &str = "towline-policy+jws";
    let site = site();
    let header = |kind: &str| json!({"alg": "ES256", "kid": site.issuer.key().kid, "typ": kind});
    let statement =
        site.issuer.mint_with(&header(KIND), &site.changed(|claims| claims["aud"] = json!("towline:policy:x")));
    let check = |statement: String, issuer: &'static str, audience: &'static str, later: u64| {
        let (verifier, now) = (&site.verifier, site.now + Duration::from_secs(later));
        async move { verifier.verify_statement(&statement, issuer, KIND, audience, now).await }
    };
    assert_eq!(check(statement.clone(), "test", "towline:policy:x", 0).await.unwrap().claims["sub"], "ann");
    assert_eq!(check(statement.clone(), "test", "towline:policy:y", 0).await, Err(TokenError::Audience));
    assert_eq!(check(statement.clone(), "other", "towline:policy:x", 0).await, Err(TokenError::UnknownIssuer));
    let late = check(statement.clone(), "test", "towline:policy:x", 90_000).await;
    assert!(matches!(late, Err(TokenError::Expired { .. })), "{late:?}");
    let token = site.issuer.mint(&site.changed(|claims| claims["aud"] = json!("towline:policy:x")));
    assert_eq!(check(token, "test", "towline:policy:x", 0).await, Err(TokenError::Kind));
    let as_token = site.issuer.mint_with(&header(KIND), &site.claims());
    assert_eq!(site.try_token(&as_token).await, Err(TokenError::Kind));
    let foreign = TestIssuer::new(URL)
        .mint_with(&header(KIND), &site.changed(|claims| claims["aud"] = json!("towline:policy:x")));
    assert!(check(foreign, "test", "towline:policy:x", 0).await.is_err(), "signed by another key");
}
