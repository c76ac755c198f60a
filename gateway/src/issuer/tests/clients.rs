//! Service principals at the token endpoint, and the paths of the Microsoft identity platform.

use std::sync::Arc;

use auth::token::{Fetch, Issuer as Trusted, RawIssuer, Verifier, testing::MemoryFetch};
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret;

use futures_util::StreamExt;

use super::*;

const API: &str = "https://gw.example";
const DAY: Duration = Duration::from_secs(86_400);

struct Client {
    made: Principal,
    secret: String,
}

impl Fixture {
    async fn client(&self, name: &'static str, life: Duration) -> Client {
        let create = move |all: &mut Principals| all.create(name, life, SystemTime::now());
        let (made, new) = self.issuer.edit_principals(create).await.unwrap();
        Client { made, secret: new.secret.expose_secret().to_owned() }
    }

    async fn edit(&self, change: impl FnOnce(&mut Principals) -> Result<(), PrincipalsError> + Send + 'static) {
        self.issuer.edit_principals(change).await.unwrap();
    }
}

fn form(client: &Client, secret: &str, audience: &str) -> String {
    let id = &client.made.client_id;
    format!(
        "grant_type=client_credentials&client_id={id}&client_secret={secret}&scope={audience}/.default&client_info=1"
    )
}

fn place() -> String {
    format!("/{TENANT}/oauth2/v2.0/token")
}

async fn ask(f: &Fixture, client: &Client, secret: &str) -> (StatusCode, Value) {
    send(&f.issuer, Method::POST, &place(), &form(client, secret, API)).await
}

#[tokio::test]
async fn a_service_principal_gets_a_token_of_the_shape_that_msal_reads() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    for (path, audience) in [(place(), API), (place(), "https://GW.example/"), ("/token".to_owned(), API)] {
        let (status, answer) = send(&f.issuer, Method::POST, &path, &form(&ci, &ci.secret, audience)).await;
        assert_eq!(status, 200, "{path} {audience}: {answer}");
        assert_eq!(answer["token_type"], "Bearer");
        assert_eq!((&answer["expires_in"], &answer["ext_expires_in"]), (&3600.into(), &3600.into()));
        assert!(answer.get("id_token").is_none() && answer.get("refresh_token").is_none());
        let claims = claims(&answer);
        for (claim, value) in [
            ("iss", "https://gw.example/.towline/issuer"),
            ("aud", API),
            ("sub", &ci.made.object_id),
            ("oid", &ci.made.object_id),
            ("preferred_username", &ci.made.object_id),
            ("appid", &ci.made.client_id),
            ("azp", &ci.made.client_id),
            ("tid", TENANT),
            ("idtyp", "app"),
        ] {
            assert_eq!(claims[claim], value, "{claim}");
        }
        assert!(claims.get("groups").is_none() && claims["jti"].is_string() && claims["nbf"].is_u64());
    }
    let cluster = format!("towline:cluster:{CLUSTER}");
    let (_, answer) = send(&f.issuer, Method::POST, &place(), &form(&ci, &ci.secret, &cluster)).await;
    assert_eq!(claims(&answer)["aud"], CLUSTER.parse::<ClusterId>().unwrap().audience());
}

/// `az logout` asks for a tenant that has no name yet, and failed.
#[tokio::test]
async fn who_knows_no_tenant_yet_finds_this_one() {
    let f = fixture().await;
    let place = |tenant: &str| format!("/{tenant}/v2.0/.well-known/openid-configuration");
    let named = send(&f.issuer, Method::GET, &place(TENANT), "").await;
    assert_eq!(named.0, 200);
    for unnamed in ["organizations", "common"] {
        assert!(Issuer::serves(&place(unnamed)));
        assert_eq!(send(&f.issuer, Method::GET, &place(unnamed), "").await, named, "{unnamed}");
    }
    assert!(!Issuer::serves(&place("organization")) && !Issuer::serves("/commons"));
}

/// A connection whose request was not read to its end is closed, and the client's next request met that.
#[tokio::test]
async fn a_refused_form_is_taken_in_to_its_end() {
    let f = fixture().await;
    for (path, status) in [
        ("/00000000-0000-4000-8000-000000000000/oauth2/v2.0/token", 400),
        ("/.towline/issuer/nothing", 404),
        ("/.towline/issuer/keys", 405),
        ("/.towline/issuer/token", 400),
    ] {
        let left = std::sync::atomic::AtomicUsize::new(3);
        let frames = futures_util::stream::iter(0..3).map(|_| {
            left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(b"a=b&")))
        });
        let request = Request::post(path).body(http_body_util::StreamBody::new(frames)).unwrap();
        assert_eq!(f.issuer.handle(HERE, request).await.status(), status, "{path}");
        assert_eq!(left.into_inner(), 0, "{path}");
    }
}

#[tokio::test]
async fn a_client_may_authenticate_by_the_header_of_http() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    let ask = |secret: &str| {
        let basic = STANDARD.encode(format!("{}:{secret}", ci.made.client_id));
        let request = Request::post(place())
            .header("content-type", "application/x-www-form-urlencoded")
            .header("authorization", format!("Basic {basic}"))
            .body(Full::new(Bytes::from(format!("grant_type=client_credentials&scope={API}/.default"))))
            .unwrap();
        f.issuer.handle(HERE, request)
    };
    assert_eq!(ask(&ci.secret).await.status(), 200);
    let refused = ask("x").await;
    assert_eq!(refused.status(), 401);
    assert!(refused.headers()["www-authenticate"].to_str().unwrap().starts_with("Basic "));
}

/// A token that somebody had by a secret or password went on for its hour when that was replaced, and could give itself
/// what was taken away.
#[tokio::test]
async fn what_was_signed_in_with_must_still_hold() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    let with = |answer: &Value| claims(answer)["credential"].as_str().unwrap().to_owned();
    let old = with(&ask(&f, &ci, &ci.secret).await.1);
    let holds = |of: &str, with: &str| f.issuer.is_in_force(of, Some(with));
    assert!(holds(&ci.made.object_id, &old) && !holds(&ci.made.object_id, "another"));
    let made = f.issuer.edit_principals(|all| all.add_secret("ci", DAY, SystemTime::now())).await.unwrap();
    let new = with(&ask(&f, &ci, made.secret.expose_secret()).await.1);
    assert!(holds(&ci.made.object_id, &old) && holds(&ci.made.object_id, &new), "of two secrets each holds");
    let gone = old.clone();
    f.edit(move |all| all.remove_secret("ci", &gone).map(|_| ())).await;
    assert!(!holds(&ci.made.object_id, &old) && holds(&ci.made.object_id, &new));
    // Of a token of before, which does not say, the account alone counts.
    assert!(f.issuer.is_in_force(&ci.made.object_id, None));

    let password = async |password: &str| token(&f.issuer, "ann", password, "").await.1;
    let token = password("secret").await;
    let (ann, before) = (claims(&token)["sub"].as_str().unwrap().to_owned(), with(&token));
    assert!(holds(&ann, &before));
    f.edit_users(|users| users.put("ann", &[], "another").map(|_| ())).await.unwrap();
    assert!(!holds(&ann, &before), "another password and other groups");
    assert!(holds(&ann, &with(&password("another").await)));
}

#[tokio::test]
async fn refusals_of_clients_do_not_tell_which_exist() {
    let f = fixture().await;
    let (ci, other) = (f.client("ci", DAY).await, f.client("other", DAY).await);
    let wrong = ask(&f, &ci, "x").await;
    assert_eq!((wrong.0.as_u16(), &wrong.1["error"]), (401, &Value::from("invalid_client")));
    assert_eq!(ask(&f, &ci, &other.secret).await, wrong, "another one's secret");
    let nobody = Client {
        made: Principal { client_id: guid::random().unwrap(), ..ci.made.clone() },
        ..f.client("x", DAY).await
    };
    assert_eq!(ask(&f, &nobody, &ci.secret).await, wrong);
    f.edit(|all| all.set_disabled("ci", true)).await;
    assert_eq!(ask(&f, &ci, &ci.secret).await, wrong, "disabled ones look the same");
    f.edit(|all| all.delete("other").map(|_| ())).await;
    assert_eq!(ask(&f, &other, &other.secret).await, wrong, "and deleted ones");
    assert!(!f.issuer.is_in_force(&ci.made.object_id, None) && !f.issuer.is_in_force(&other.made.object_id, None));
    assert!(f.issuer.is_in_force(&f.client("y", DAY).await.made.object_id, None));
    let id = &ci.made.client_id;
    for (form, error) in [
        (format!("grant_type=client_credentials&client_id={id}&scope={API}/.default"), "invalid_client"),
        (format!("grant_type=client_credentials&client_id={id}&client_secret=x"), "invalid_request"),
        (format!("grant_type=client_credentials&client_id={id}&client_secret=x&scope={API}"), "invalid_scope"),
        (
            format!("grant_type=client_credentials&client_id={id}&client_secret=x&scope=https://x/.default"),
            "invalid_target",
        ),
        (format!("grant_type=authorization&client_id={id}"), "unsupported_grant_type"),
    ] {
        assert_eq!(send(&f.issuer, Method::POST, &place(), &form).await.1["error"], error, "{form}");
    }
}

#[tokio::test]
async fn an_expired_secret_is_no_secret_and_its_holder_is_told() {
    let mut f = fixture().await;
    let ci = f.client("ci", DAY).await;
    assert_eq!(ask(&f, &ci, &ci.secret).await.0, 200);
    f.issuer.clock = || SystemTime::now() + 2 * DAY;
    let (status, answer) = ask(&f, &ci, &ci.secret).await;
    assert_eq!((status.as_u16(), &answer["error"]), (401, &Value::from("invalid_client")));
    assert_eq!(answer["error_description"], "the client secret has expired");
    assert_ne!(ask(&f, &ci, "x").await.1["error_description"], "the client secret has expired");
}

#[tokio::test]
async fn guessing_a_client_secret_is_slowed_down_and_a_hundred_sign_ins_at_once_are_not() {
    let f = fixture().await;
    let (ci, other) = (f.client("ci", DAY).await, f.client("other", DAY).await);
    let all = futures_util::future::join_all((0..100).map(|_| ask(&f, &ci, &ci.secret))).await;
    assert!(all.iter().all(|(status, _)| *status == 200), "{:?}", all.iter().find(|(status, _)| *status != 200));
    for _ in 0..10 {
        assert_eq!(ask(&f, &ci, "x").await.0, 401);
    }
    let (status, answer) = ask(&f, &ci, &ci.secret).await;
    assert_eq!((status.as_u16(), &answer["error"]), (429, &Value::from("temporarily_unavailable")));
    assert_eq!(ask(&f, &other, &other.secret).await.0, 200, "others are not locked out");
}

#[tokio::test]
async fn another_tenant_is_refused_as_entra_refuses_it() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    let other = guid::random().unwrap();
    for (method, path) in [
        (Method::GET, format!("/{other}/v2.0/.well-known/openid-configuration")),
        (Method::POST, format!("/{other}/oauth2/v2.0/token")),
        (Method::GET, format!("/{other}")),
    ] {
        let (status, answer) = send(&f.issuer, method, &path, &form(&ci, &ci.secret, API)).await;
        assert_eq!((status.as_u16(), &answer["error"]), (400, &Value::from("invalid_tenant")), "{path}");
        assert!(answer["error_description"].as_str().unwrap().contains(&other));
    }
    let upper = format!("/{}/oauth2/v2.0/token", TENANT.to_uppercase());
    assert_eq!(send(&f.issuer, Method::POST, &upper, &form(&ci, &ci.secret, API)).await.0, 200);
    assert_eq!(send(&f.issuer, Method::POST, &format!("/{TENANT}/token"), "").await.0, 404);
}

#[tokio::test]
async fn discovery_of_the_tenant_names_its_own_endpoints_and_the_same_keys() {
    let f = fixture().await;
    let path = format!("/{TENANT}/v2.0/.well-known/openid-configuration");
    let (status, document) = send(&f.issuer, Method::GET, &path, "").await;
    assert_eq!(status, 200);
    assert_eq!(document["issuer"], "https://gw.example/.towline/issuer", "iss of its tokens");
    let place = format!("https://gw.example/{TENANT}");
    for (member, end) in [
        ("token_endpoint", "/oauth2/v2.0/token"),
        ("authorization_endpoint", "/oauth2/v2.0/authorize"),
        ("device_authorization_endpoint", "/oauth2/v2.0/devicecode"),
        ("jwks_uri", "/discovery/v2.0/keys"),
    ] {
        assert_eq!(document[member], format!("{place}{end}"));
    }
    let keys = send(&f.issuer, Method::GET, &format!("/{TENANT}/discovery/v2.0/keys"), "").await;
    assert_eq!(keys, (StatusCode::OK, f.issuer.key_set()));
    assert_eq!(send(&f.issuer, Method::GET, &format!("/{TENANT}/oauth2/v2.0/token"), "").await.0, 405);
}

#[test]
fn paths_of_the_issuer_are_told_from_others() {
    for path in
        ["/.towline/issuer", "/.towline/issuer/token", &format!("/{TENANT}"), &format!("/{TENANT}/x").to_uppercase()]
    {
        assert!(Issuer::serves(path), "{path}");
    }
    let key = CLUSTER.parse::<ClusterId>().unwrap().key().hex();
    for path in [
        "/",
        "",
        "/.towline/issuers",
        "/.towline/tunnel",
        "/subscriptions",
        &format!("/subscriptions/{TENANT}"),
        &format!("/{TENANT}x"),
        &format!("//{TENANT}/"),
        &format!("/{key}/x"),
    ] {
        assert!(!Issuer::serves(path), "{path}");
    }
}

/// What gateway and agent make of tokens.
async fn verifier(f: &Fixture) -> Verifier {
    let url = f.issuer.settings().url.clone();
    let raw = RawIssuer { username_claim: Some("preferred_username".to_owned()), ..RawIssuer::new("built-in", &url) };
    let fetch = MemoryFetch::new();
    for path in ["/.well-known/openid-configuration", "/keys"] {
        let (_, document) = send(&f.issuer, Method::GET, path, "").await;
        fetch.put(&format!("{url}{path}"), Ok(document.to_string().as_bytes()));
    }
    let dynamic: Arc<dyn Fetch> = fetch.clone();
    Verifier::with_fetch(vec![Trusted::try_from(raw).unwrap()], &dynamic)
}

#[tokio::test]
async fn a_token_for_the_api_is_nothing_at_a_cluster_and_the_other_way_round() {
    let f = fixture().await;
    let (ci, verifier, now) = (f.client("ci", DAY).await, verifier(&f).await, SystemTime::now());
    let cluster = format!("towline:cluster:{CLUSTER}");
    let at_cluster = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let user = |audience: &str| format!("grant_type=password&username=ann&password=secret&audience={audience}");
    for (api, of_cluster, name) in [
        (form(&ci, &ci.secret, API), form(&ci, &ci.secret, &cluster), ci.made.object_id.as_str()),
        (user(API), user(&cluster), "ann"),
    ] {
        for (form, good, bad) in [(api, API, at_cluster.as_str()), (of_cluster, &at_cluster, API)] {
            let (_, answer) = send(&f.issuer, Method::POST, "/token", &form).await;
            let token = answer["access_token"].as_str().unwrap();
            let identity = verifier.verify(token, good, now).await.unwrap();
            assert_eq!(identity.username, name, "a service principal is its object id");
            assert!(verifier.verify(token, bad, now).await.is_err());
        }
    }
    let (_, answer) = send(&f.issuer, Method::POST, "/token", &user(API)).await;
    let claims = claims(&answer);
    assert!(guid::is_guid(claims["oid"].as_str().unwrap()) && claims["tid"] == TENANT);
    assert_eq!(claims["oid"], claims["sub"], "roles are assigned to one spelling");
}

/// A user of that name would be the service principal, as far as a cluster can tell.
#[tokio::test]
async fn no_local_user_is_called_like_a_service_principal() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    for name in [ci.made.object_id.clone(), ci.made.object_id.to_uppercase()] {
        let called = name.clone();
        let put = f.edit_users(move |users| users.put(&called, &[], "secret").map(|_| ())).await;
        assert!(matches!(put, Err(UsersError::Name(_))), "{name}");
    }
    // As a file from before that rule may have it.
    let id = ci.made.object_id.clone();
    let rename = move |users: &mut Users| {
        let text = serde_json::to_string(users).unwrap().replace("\"ann\"", &format!("{id:?}"));
        *users = Users::parse(Path::new("users"), text.as_bytes())?;
        Ok(())
    };
    f.edit_users(rename).await.unwrap();
    let (status, answer) = token(&f.issuer, &ci.made.object_id, "secret", "").await;
    assert_eq!((status.as_u16(), &answer["error"]), (400, &Value::from("invalid_grant")));
}

#[tokio::test]
async fn a_secret_is_never_printed() {
    let f = fixture().await;
    let ci = f.client("ci", DAY).await;
    let (_, refused) = ask(&f, &ci, &format!("{}x", ci.secret)).await;
    assert!(!refused.to_string().contains(&ci.secret));
    let (_, twice) = send(&f.issuer, Method::POST, &place(), &format!("{0}&client_secret={0}", ci.secret)).await;
    assert!(!twice.to_string().contains(&ci.secret));
    let new = Principals::default().create("x", DAY, SystemTime::now()).unwrap().1;
    assert!(!format!("{:?}", new.secret).contains(new.secret.expose_secret()));
    std::fs::write(f.dir.path().join(PRINCIPALS_FILE), format!("{{\"secret\": {:?}", ci.secret)).unwrap();
    let Err(error) = Principals::edit(&f.dir.path().join(PRINCIPALS_FILE), |_| Ok(())) else { panic!("it is broken") };
    assert!(!format!("{error:?} {error}").contains(&ci.secret));
}
