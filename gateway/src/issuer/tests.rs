use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use http_body_util::BodyExt;
use serde_json::Value;

use super::*;
use crate::store::Store;

#[path = "tests/clients.rs"]
mod clients;
#[path = "tests/pages.rs"]
mod pages;

const CLUSTER: &str = "/subscriptions/s/resourceGroups/G/providers/Microsoft.Kubernetes/connectedClusters/Edge";
const TENANT: &str = "a0000000-0000-4000-8000-00000000000a";
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

struct Fixture {
    issuer: Issuer,
    dir: tempfile::TempDir,
}

/// The same tests run over a folder and over a store that several gateways share.
fn is_shared() -> bool {
    module_path!().contains("on_a_store")
}

/// Another issuer on what `dir` has, as another gateway opens it.
async fn open(dir: &Path) -> Issuer {
    let settings = settings(dir);
    if !is_shared() {
        return Issuer::open(settings).unwrap();
    }
    let store = Store::open_file(&dir.join("towline.db")).await.unwrap();
    let protector = Protector::open_or_create(&dir.join("store.key")).unwrap();
    Issuer::open_shared(settings, Vault::new(store, Arc::new(protector)), false, TTL_DEFAULT).await.unwrap()
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture { issuer: open(dir.path()).await, dir };
    f.edit_users(|users| users.put("ann", &["ops".to_owned()], "secret").map(|_| ())).await.unwrap();
    f
}

impl Fixture {
    async fn edit_users<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Users) -> Result<T, UsersError> + Send + 'static,
    ) -> Result<T, UsersError> {
        let done = self.issuer.documents.edit_users(change).await;
        self.issuer.state.follow().await.unwrap();
        done
    }

    async fn rotate_key(&self) -> Keys {
        let keys = self.issuer.documents.rotate_key().await.unwrap();
        self.issuer.state.follow().await.unwrap();
        keys
    }
}

fn settings(dir: &Path) -> IssuerSettings {
    IssuerSettings {
        url: "https://gw.example/.towline/issuer".to_owned(),
        state: dir.to_owned(),
        ttl: TTL_DEFAULT,
        tenant: TENANT.to_owned(),
        api_audience: "https://gw.example/".to_owned(),
        audiences: vec![],
        clients: vec![],
    }
}

async fn send(issuer: &Issuer, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let response = issuer.handle(HERE, request).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn token(issuer: &Issuer, user: &str, password: &str, more: &str) -> (StatusCode, Value) {
    let audience = format!("towline:cluster:{CLUSTER}");
    let form = format!("grant_type=password&username={user}&password={password}&audience={audience}{more}");
    send(issuer, Method::POST, "/.towline/issuer/token", &form).await
}

fn claims(answer: &Value) -> Value {
    let token = answer["access_token"].as_str().unwrap();
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

#[tokio::test]
async fn discovery_names_the_issuer_and_its_keys() {
    let f = fixture().await;
    let (status, document) =
        send(&f.issuer, Method::GET, "/.towline/issuer/.well-known/openid-configuration", "").await;
    assert_eq!(status, 200);
    assert_eq!(document["issuer"], "https://gw.example/.towline/issuer");
    assert_eq!(document["jwks_uri"], "https://gw.example/.towline/issuer/keys");
    let (status, keys) = send(&f.issuer, Method::GET, "/keys", "").await;
    assert_eq!((status.as_u16(), &keys), (200, &f.issuer.key_set()));
    assert_eq!(send(&f.issuer, Method::POST, "/keys", "").await.0, 405);
    assert_eq!(send(&f.issuer, Method::GET, "/token", "").await.0, 405);
    assert_eq!(send(&f.issuer, Method::GET, "/nothing", "").await.0, 404);
}

#[tokio::test]
async fn a_token_is_for_one_cluster_and_one_user() {
    let f = fixture().await;
    let (status, answer) = token(&f.issuer, "ann", "secret", "").await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["token_type"], "Bearer");
    assert_eq!(answer["expires_in"], 3600);
    let first = claims(&answer);
    assert_eq!(first["iss"], "https://gw.example/.towline/issuer");
    assert_eq!(first["aud"], CLUSTER.parse::<ClusterId>().unwrap().audience());
    assert_eq!(first["groups"], serde_json::json!(["ops"]));
    assert_eq!(first["preferred_username"], "ann");
    assert_eq!(first["exp"].as_u64().unwrap() - first["iat"].as_u64().unwrap(), 3600);
    let second = claims(&token(&f.issuer, "ann", "secret", "&expires_in=5").await.1);
    assert_eq!(second["exp"].as_u64().unwrap() - second["iat"].as_u64().unwrap(), 5);
    assert_eq!(first["sub"], second["sub"]);
    assert_ne!(first["jti"], second["jti"]);
    let long = claims(&token(&f.issuer, "ann", "secret", "&expires_in=999999999").await.1);
    assert_eq!(long["exp"].as_u64().unwrap() - long["iat"].as_u64().unwrap(), 3600, "never longer than configured");
}

/// It was the access token itself, so that who passed it on as a proof of a sign-in passed the access on.
#[tokio::test]
async fn an_id_token_of_a_password_is_for_its_client_alone() {
    let f = fixture().await;
    for more in ["", "&scope=openid", "&client_id=app", "&client_id=app&scope=profile"] {
        let (status, answer) = token(&f.issuer, "ann", "secret", more).await;
        assert!(status == 200 && answer.get("id_token").is_none_or(Value::is_null), "{more}: {answer}");
    }
    let (_, answer) = token(&f.issuer, "ann", "secret", "&client_id=app&scope=openid&nonce=n").await;
    let id = claims(&serde_json::json!({ "access_token": answer["id_token"] }));
    let access = claims(&answer);
    assert_eq!((&id["aud"], &id["nonce"], &id["sub"]), (&"app".into(), &"n".into(), &access["sub"]));
    assert!(id["auth_time"].is_u64() && id.get("groups").is_none());
    assert_eq!(access["aud"], CLUSTER.parse::<ClusterId>().unwrap().audience());
}

#[tokio::test]
async fn refusals_are_those_of_rfc_6749_and_do_not_tell_who_exists() {
    let f = fixture().await;
    let wrong = token(&f.issuer, "ann", "x", "").await;
    assert_eq!((wrong.0.as_u16(), &wrong.1["error"]), (400, &Value::from("invalid_grant")));
    assert_eq!(token(&f.issuer, "bob", "x", "").await, wrong);
    f.edit_users(|users| users.set_disabled("ann", true)).await.unwrap();
    assert_eq!(token(&f.issuer, "ann", "secret", "").await, wrong, "disabled users look the same");
    for (form, error) in [
        ("", "invalid_request"),
        ("grant_type=magic", "unsupported_grant_type"),
        ("grant_type=password&username=ann&password=secret", "invalid_request"),
        ("grant_type=password&username=ann&username=bob&password=secret&audience=x", "invalid_request"),
        ("grant_type=password&username=ann&password=secret&audience=x", "invalid_target"),
        ("grant_type=password&username=ann&password=secret&audience=towline:cluster:/x", "invalid_target"),
        ("grant_type=password&username=ann&password=secret&audience=x&expires_in=-1", "invalid_request"),
    ] {
        let (status, answer) = send(&f.issuer, Method::POST, "/token", form).await;
        assert_eq!((status.as_u16(), &answer["error"]), (400, &Value::from(error)), "{form}");
    }
    let long = "x".repeat(20_000);
    assert_eq!(send(&f.issuer, Method::POST, "/token", &long).await.1["error"], "invalid_request");
}

#[tokio::test]
async fn guessing_a_password_is_slowed_down() {
    let f = fixture().await;
    for _ in 0..10 {
        assert_eq!(token(&f.issuer, "ann", "x", "").await.0, 400);
    }
    let (status, answer) = token(&f.issuer, "ann", "secret", "").await;
    assert_eq!((status.as_u16(), &answer["error"]), (429, &Value::from("temporarily_unavailable")));
}

/// All places for waiting were one address's: nobody else could sign in while it guessed.
#[tokio::test]
async fn who_guesses_passwords_keeps_nobody_else_from_signing_in() {
    let f = fixture().await;
    let guesser = IpAddr::from([192, 0, 2, 1]);
    let guesses = (0..300).map(|n| f.issuer.sign_in(guesser, format!("user{n}"), "x".to_owned().into()));
    let guesses = futures_util::future::join_all(guesses);
    let (guessed, ann) = tokio::join!(guesses, f.issuer.sign_in(HERE, "ann".to_owned(), "secret".to_owned().into()));
    assert!(guessed.iter().all(Result::is_err));
    assert_eq!(ann.unwrap().name, "ann");
}

#[tokio::test]
async fn a_rotated_key_signs_the_next_token_and_the_old_one_stays_published() {
    let f = fixture().await;
    let kid = |answer: &Value| {
        let header = answer["access_token"].as_str().unwrap().split('.').next().unwrap().to_owned();
        let header: Value = serde_json::from_slice(&BASE64.decode(header).unwrap()).unwrap();
        header["kid"].as_str().unwrap().to_owned()
    };
    let before = kid(&token(&f.issuer, "ann", "secret", "").await.1);
    let rotated = f.rotate_key().await;
    let after = kid(&token(&f.issuer, "ann", "secret", "").await.1);
    assert_ne!(before, after);
    assert_eq!(after, rotated.newest());
    let kids: Vec<_> = f.issuer.key_set()["keys"].as_array().unwrap().iter().map(|k| k["kid"].clone()).collect();
    assert_eq!(kids, [Value::from(after), Value::from(before)]);
}

/// What it publishes of replaced and revoked keys is what verifiers obey.
#[tokio::test]
async fn its_replaced_and_revoked_keys_end_at_verifiers() {
    use auth::token::{Fetch, Issuer as Trusted, RawIssuer, TokenError, Verifier, testing::MemoryFetch};
    let f = fixture().await;
    let url = f.issuer.settings().url.clone();
    let pinned = f.dir.path().join("pinned.json");
    std::fs::write(&pinned, f.issuer.pinned_keys().to_string()).unwrap();
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let mint = async || token(&f.issuer, "ann", "secret", "").await.1["access_token"].as_str().unwrap().to_owned();
    let read = || {
        let raw = RawIssuer {
            pinned_keys_file: Some(pinned.clone()),
            jwks_url: Some(format!("{url}/keys")),
            ..RawIssuer::new("built-in", &url)
        };
        let fetch = MemoryFetch::new();
        fetch.put(&format!("{url}/keys"), Ok(f.issuer.key_set().to_string().as_bytes()));
        let dynamic: std::sync::Arc<dyn Fetch> = fetch;
        Verifier::with_fetch(vec![Trusted::try_from(raw).unwrap()], &dynamic)
    };
    let first = mint().await;
    let old = f.issuer.documents.keys().await.unwrap();
    f.rotate_key().await;
    let verifier = read();
    let now = std::time::SystemTime::now();
    verifier.probe().await;
    for token in [&first, &mint().await] {
        verifier.verify(token, &audience, now).await.unwrap();
    }
    // Signed by the old key, which somebody has kept, for longer than the issuer's tokens live.
    let mut long = claims(&serde_json::json!({"access_token": first}));
    long["exp"] = (long["iat"].as_u64().unwrap() + TTL_LONGEST.as_secs() + 3600).into();
    let long = old.sign("JWT", long.to_string().as_bytes()).unwrap();
    assert_eq!(verifier.verify(&long, &audience, now).await.unwrap_err(), TokenError::RetiredKey);
    f.issuer.documents.revoke_key(old.newest()).await.unwrap();
    f.issuer.state.follow().await.unwrap();
    let verifier = read();
    verifier.probe().await;
    assert_eq!(verifier.verify(&first, &audience, now).await.unwrap_err(), TokenError::UnknownKey);
    verifier.verify(&mint().await, &audience, now).await.unwrap();
}

/// The gateway's own verifier goes by the keys that the issuer has, also one that is made anew, and asks nobody.
#[tokio::test]
async fn revoked_key_verifies_nothing_at_its_own_gateway_once_the_issuer_knows() {
    use auth::token::{Fetch, Issuer as Trusted, RawIssuer, TokenError, Verifier, testing::MemoryFetch};

    use crate::{
        accounts::Accounts,
        config::Dynamic,
        snapshot::{Snapshot, Snapshots, follow_accounts},
    };
    let f = fixture().await;
    let url = f.issuer.settings().url.clone();
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    // It answers nothing.
    let fetch = MemoryFetch::new();
    let dynamic: Arc<dyn Fetch> = fetch.clone();
    let verifier = || {
        let trusted = Trusted::try_from(RawIssuer::new("built-in", &url)).unwrap();
        Arc::new(Verifier::with_fetch(vec![trusted], &dynamic))
    };
    let first = token(&f.issuer, "ann", "secret", "").await.1["access_token"].as_str().unwrap().to_owned();
    let old = f.issuer.documents.keys().await.unwrap();
    let Fixture { issuer, dir: _dir } = f;
    let issuer = Arc::new(issuer);
    let snapshots = Arc::new(Snapshots::new(Snapshot::new(&Dynamic::default(), verifier())));
    snapshots.set_accounts(Arc::new(Accounts::of(Arc::clone(&issuer))));
    let verify = async || snapshots.load().verifier.verify(&first, &audience, SystemTime::now()).await.map(drop);
    verify().await.unwrap();
    let signed_by = snapshots.load().verifier.verify(&first, &audience, SystemTime::now()).await.unwrap().key.clone();
    let has_revoked = || snapshots.load().verifier.has_revoked("built-in", &signed_by);
    assert!(!has_revoked());
    let shutdown = Shutdown::new();
    let following = tokio::spawn(follow_accounts(Arc::clone(&snapshots), shutdown.clone()));
    let mut changes = snapshots.watch();
    changes.mark_unchanged();
    issuer.documents.revoke_key(old.newest()).await.unwrap();
    issuer.catch_up().await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), changes.changed()).await.unwrap().unwrap();
    assert!(has_revoked() && !snapshots.load().verifier.has_revoked("another", &signed_by));
    // Nobody answers who could say more of its key.
    assert!(matches!(verify().await.unwrap_err(), TokenError::UnknownKey | TokenError::KeysUnavailable(_)));
    shutdown.close();
    following.await.unwrap();
    snapshots.replace(Snapshot::new(&Dynamic::default(), verifier()));
    verify().await.unwrap_err();
    assert!(has_revoked(), "a verifier that is made anew knows it too");
    let second = token(&issuer, "ann", "secret", "").await.1["access_token"].as_str().unwrap().to_owned();
    let second = snapshots.load().verifier.verify(&second, &audience, SystemTime::now()).await.unwrap();
    assert!(!snapshots.load().verifier.has_revoked("built-in", &second.key));
}

#[tokio::test]
async fn its_tokens_verify_against_pinned_keys_and_through_rotations() {
    use auth::token::{Fetch, Issuer as Trusted, RawIssuer, Verifier, testing::MemoryFetch};
    let f = fixture().await;
    let url = f.issuer.settings().url.clone();
    let pinned = f.dir.path().join("pinned.json");
    std::fs::write(&pinned, f.issuer.key_set().to_string()).unwrap();
    let raw = RawIssuer {
        pinned_keys_file: Some(pinned),
        username_claim: Some("preferred_username".to_owned()),
        ..RawIssuer::new("built-in", &url)
    };
    let fetch = MemoryFetch::new();
    let dynamic: std::sync::Arc<dyn Fetch> = fetch.clone();
    let verifier = Verifier::with_fetch(vec![Trusted::try_from(raw).unwrap()], &dynamic);
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let now = std::time::SystemTime::now();
    for rotations in [0, 2] {
        for _ in 0..rotations {
            f.rotate_key().await;
        }
        // Opened anew: when a running one looks at its files is another test's matter.
        let issuer = open(f.dir.path()).await;
        for path in ["/.well-known/openid-configuration", "/keys"] {
            let (_, document) = send(&issuer, Method::GET, path, "").await;
            fetch.put(&format!("{url}{path}"), Ok(document.to_string().as_bytes()));
        }
        let (_, answer) = token(&issuer, "ann", "secret", "").await;
        let identity = verifier.verify(answer["access_token"].as_str().unwrap(), &audience, now).await.unwrap();
        assert_eq!((identity.username.as_str(), &identity.groups[..]), ("ann", &["ops".to_owned()][..]));
    }
    let stranger = fixture().await;
    let (_, answer) = token(&stranger.issuer, "ann", "secret", "").await;
    assert!(verifier.verify(answer["access_token"].as_str().unwrap(), &audience, now).await.is_err());
}
