//! The built-in issuers of two gateways on one store: what begins at one goes on at the other, once.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use gateway::{
    issuer::{
        Documents, Issuer, IssuerError, IssuerSettings, KEYS_FILE, Keys, KeysError, Principals, TTL_DEFAULT,
        USERS_FILE, Users, Vault, clients::COMMAND_CLIENT,
    },
    store::{Store, protect::Protector},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::place::{Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        a_code_that_one_gateway_gave_is_redeemed_at_the_other_and_once,
        a_code_shown_at_two_gateways_at_once_is_worth_tokens_at_one,
        a_device_begins_at_one_gateway_is_allowed_at_the_other_and_asks_either,
        a_refresh_token_is_used_at_either_gateway_and_a_stolen_one_ends_both,
        one_refresh_token_shown_at_two_gateways_at_once_is_rotated_once,
        a_key_rotated_by_a_command_signs_at_both_and_a_revoked_one_at_none,
        a_user_added_by_a_command_signs_in_at_both_and_disabled_at_neither,
        two_who_change_accounts_at_once_lose_no_change,
        guesses_are_counted_for_both_gateways_together,
        many_guesses_at_once_are_no_more_than_one_after_the_other,
        many_who_begin_at_once_pass_no_bound,
        the_files_of_a_folder_are_taken_over_once_and_never_read_again,
        a_folder_whose_files_another_store_has_is_no_authority,
        no_key_is_made_beside_clusters_that_have_pinned_one,
        a_service_principal_signs_in_at_both_as_soon_as_it_is_made_and_at_neither_once_it_is_gone,
        an_issuer_that_cannot_ask_its_store_goes_on_for_as_long_as_it_may,
        what_is_kept_of_an_issuer_is_sealed,
        a_lost_signing_key_is_replaced_when_told_and_only_then,
        many_who_start_at_once_have_one_key,
    ]
}

pub fn server_tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![without_the_server_nobody_signs_in_and_later_they_do]
}

const AUDIENCE: &str = "https://gw.example";
const REDIRECT: &str = "http://127.0.0.1:5000/back";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
/// RFC 7636 appendix B.
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

fn settings(state: &Path) -> IssuerSettings {
    IssuerSettings {
        url: "https://gw.example/.towline/issuer".to_owned(),
        state: state.to_owned(),
        ttl: TTL_DEFAULT,
        tenant: "a0000000-0000-4000-8000-00000000000a".to_owned(),
        api_audience: AUDIENCE.to_owned(),
        audiences: vec![],
        clients: vec![],
    }
}

async fn vault(place: &Place) -> Vault {
    let store = Store::open(&place.url).await.unwrap();
    Vault::new(store, Arc::new(Protector::open_or_create(&place.folder.path().join("store.key")).unwrap()))
}

/// The issuer of a gateway whose folder is `name`.
async fn try_to_open(place: &Place, name: &str, used: bool) -> Result<Issuer, IssuerError> {
    let settings = settings(&place.folder.path().join(name));
    Issuer::open_shared(settings, vault(place).await, used, Duration::from_secs(60)).await
}

struct Pair {
    a: Issuer,
    b: Issuer,
    documents: Documents,
}

/// Two gateways, and a command that has made the user ann.
async fn pair(place: &Place) -> Pair {
    let (a, b) = (try_to_open(place, "a", false).await.unwrap(), try_to_open(place, "b", false).await.unwrap());
    let pair = Pair { a, b, documents: Documents::Store(vault(place).await) };
    pair.documents.edit_users(|users| users.put("ann", &[], "secret").map(|_| ())).await.unwrap();
    pair.follow().await;
    pair
}

impl Pair {
    /// What each gateway does every second.
    async fn follow(&self) {
        self.a.catch_up().await.unwrap();
        self.b.catch_up().await.unwrap();
    }
}

struct Answered {
    status: StatusCode,
    cookie: Option<String>,
    location: Option<String>,
    retry_after: Option<String>,
    text: String,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{}", self.text))
    }

    fn flow(&self) -> String {
        let (_, rest) = self.text.split_once("name=\"flow\" value=\"").unwrap_or_else(|| panic!("{}", self.text));
        rest.split('"').next().unwrap().to_owned()
    }
}

async fn send(issuer: &Issuer, method: Method, path: &str, cookie: Option<&str>, fields: &[(&str, &str)]) -> Answered {
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request =
        Request::builder().method(method).uri(path).header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("cookie", cookie.unwrap_or("a=b"));
    let answer = issuer.handle([127, 0, 0, 1].into(), request.body(Full::new(Bytes::from(body))).unwrap()).await;
    let text = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let cookie = text(header::SET_COOKIE).map(|cookie| cookie.split(';').next().unwrap().to_owned());
    let (status, location, retry_after) = (answer.status(), text(header::LOCATION), text(header::RETRY_AFTER));
    let text = String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answered { status, cookie, location, retry_after, text }
}

async fn post(issuer: &Issuer, path: &str, fields: &[(&str, &str)]) -> Answered {
    send(issuer, Method::POST, path, None, fields).await
}

async fn password(issuer: &Issuer, user: &str, password: &str) -> Answered {
    let fields = [("grant_type", "password"), ("username", user), ("password", password), ("audience", AUDIENCE)];
    post(issuer, "/token", &fields).await
}

/// A code for ann, whose page came from one gateway and whose form went to the other.
async fn code(page_of: &Issuer, form_to: &Issuer) -> String {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([
            ("client_id", COMMAND_CLIENT),
            ("response_type", "code"),
            ("redirect_uri", REDIRECT),
            ("scope", "openid offline_access https://gw.example/.default"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
        ])
        .finish();
    let page = send(page_of, Method::GET, &format!("/authorize?{query}"), None, &[]).await;
    let fields = [("flow", page.flow()), ("username", "ann".into()), ("password", "secret".into())];
    let mut fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    fields.push(("decision", "allow"));
    let done = send(form_to, Method::POST, "/authorize", page.cookie.as_deref(), &fields).await;
    let to = url::Url::parse(&done.location.unwrap_or_else(|| panic!("{} {}", done.status, done.text))).unwrap();
    to.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned()
}

async fn redeem(issuer: &Issuer, code: &str) -> Value {
    let fields = [
        ("grant_type", "authorization_code"),
        ("client_id", COMMAND_CLIENT),
        ("redirect_uri", REDIRECT),
        ("code_verifier", VERIFIER),
        ("code", code),
    ];
    post(issuer, "/token", &fields).await.json()
}

async fn refresh(issuer: &Issuer, token: &Value) -> Value {
    let token = token.as_str().unwrap();
    let fields = [("grant_type", "refresh_token"), ("client_id", COMMAND_CLIENT), ("refresh_token", token)];
    post(issuer, "/token", &fields).await.json()
}

fn kid(answer: &Value) -> String {
    let header = answer["access_token"].as_str().unwrap_or_else(|| panic!("{answer}")).split('.').next().unwrap();
    let header: Value = serde_json::from_slice(&BASE64.decode(header).unwrap()).unwrap();
    header["kid"].as_str().unwrap().to_owned()
}

/// The keys of a set. Statements about ended ones are signed anew by each gateway, so they differ in their signatures.
fn kids(set: &Value) -> Vec<String> {
    set["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

async fn a_code_that_one_gateway_gave_is_redeemed_at_the_other_and_once(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    let given = code(&a, &b).await;
    let tokens = redeem(&a, &given).await;
    assert!(tokens["refresh_token"].is_string(), "{tokens}");
    assert_eq!(redeem(&b, &given).await["error"], "invalid_grant");
    assert_eq!(refresh(&a, &tokens["refresh_token"]).await["error"], "invalid_grant", "what came of it has ended");
}

async fn a_code_shown_at_two_gateways_at_once_is_worth_tokens_at_one(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    for _ in 0..5 {
        let given = code(&b, &a).await;
        let (one, two) = tokio::join!(redeem(&a, &given), redeem(&b, &given));
        let good = [&one, &two].into_iter().filter(|answer| answer["access_token"].is_string()).count();
        assert!(good <= 1, "{one} {two}");
        for answer in [one, two] {
            if answer["refresh_token"].is_string() {
                assert_eq!(refresh(&b, &answer["refresh_token"]).await["error"], "invalid_grant", "it was replayed");
            }
        }
    }
}

async fn a_device_begins_at_one_gateway_is_allowed_at_the_other_and_asks_either(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    let scope = ("scope", "openid offline_access https://gw.example/.default");
    let begun = post(&a, "/devicecode", &[("client_id", COMMAND_CLIENT), scope]).await.json();
    let (device, user_code) = (begun["device_code"].as_str().unwrap(), begun["user_code"].as_str().unwrap());
    let grant = "urn:ietf:params:oauth:grant-type:device_code";
    let poll = [("grant_type", grant), ("client_id", COMMAND_CLIENT), ("device_code", device)];
    let page = send(&b, Method::GET, "/device", None, &[]).await;
    let cookie = page.cookie.clone();
    let fields = [("flow", page.flow()), ("user_code", user_code.to_owned())];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let asked = send(&a, Method::POST, "/device", cookie.as_deref(), &fields).await;
    let flow = asked.flow();
    let fields = [("flow", flow.as_str()), ("username", "ann"), ("password", "secret"), ("decision", "allow")];
    let done = send(&b, Method::POST, "/device", cookie.as_deref(), &fields).await;
    assert!(done.text.contains("Signed in"), "{}", done.text);
    let again = send(&a, Method::POST, "/device", cookie.as_deref(), &fields).await;
    assert_eq!(again.status, 400, "a decision is made once");
    let (one, two) = tokio::join!(post(&a, "/token", &poll), post(&b, "/token", &poll));
    let answers = [one.json(), two.json()];
    assert_eq!(answers.iter().filter(|said| said["access_token"].is_string()).count(), 1, "{answers:?}");
}

async fn a_refresh_token_is_used_at_either_gateway_and_a_stolen_one_ends_both(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    let first = redeem(&a, &code(&a, &a).await).await["refresh_token"].clone();
    let second = refresh(&b, &first).await["refresh_token"].clone();
    let again = refresh(&a, &first).await;
    assert!(
        again["access_token"].is_string() && again.get("refresh_token").is_none(),
        "an answer that was lost: {again}"
    );
    let third = refresh(&a, &second).await["refresh_token"].clone();
    assert!(third.is_string());
    assert_eq!(refresh(&b, &first).await["error"], "invalid_grant", "used twice before: stolen");
    assert_eq!(refresh(&a, &third).await["error"], "invalid_grant", "and the other gateway knows");
}

async fn one_refresh_token_shown_at_two_gateways_at_once_is_rotated_once(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    let mut token = redeem(&a, &code(&a, &b).await).await["refresh_token"].clone();
    for _ in 0..10 {
        let (one, two) = tokio::join!(refresh(&a, &token), refresh(&b, &token));
        assert!(one["access_token"].is_string() && two["access_token"].is_string(), "{one} {two}");
        let next: Vec<&Value> = [&one, &two].into_iter().filter_map(|said| said.get("refresh_token")).collect();
        assert_eq!(next.len(), 1, "{one} {two}");
        token = next[0].clone();
    }
}

async fn a_key_rotated_by_a_command_signs_at_both_and_a_revoked_one_at_none(place: Place) {
    let pair = pair(&place).await;
    let first = kid(&password(&pair.a, "ann", "secret").await.json());
    assert_eq!(kid(&password(&pair.b, "ann", "secret").await.json()), first);
    let rotated = pair.documents.rotate_key().await.unwrap();
    pair.follow().await;
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(kid(&password(gateway, "ann", "secret").await.json()), rotated.newest());
    }
    assert_eq!(kids(&pair.a.key_set()), kids(&pair.b.key_set()));
    let revoked = pair.documents.revoke_key(rotated.newest()).await.unwrap();
    assert!(matches!(pair.documents.revoke_key("none").await, Err(KeysError::Unknown { .. })));
    pair.follow().await;
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(kid(&password(gateway, "ann", "secret").await.json()), revoked.newest());
        assert_eq!(gateway.key_set()["towline_former"][0]["kid"], rotated.newest());
    }
}

async fn a_user_added_by_a_command_signs_in_at_both_and_disabled_at_neither(place: Place) {
    let pair = pair(&place).await;
    let tokens = redeem(&pair.a, &code(&pair.a, &pair.b).await).await;
    let id = pair.documents.edit_users(|users| Ok(users.put("bob", &[], "other")?.id.clone())).await.unwrap();
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(password(gateway, "bob", "other").await.status, 200);
        assert!(gateway.is_in_force(&id, None));
    }
    pair.documents.edit_users(|users| users.set_disabled("ann", true)).await.unwrap();
    pair.documents.edit_users(|users| users.remove("bob").map(|_| ())).await.unwrap();
    assert_eq!(refresh(&pair.b, &tokens["refresh_token"]).await["error"], "invalid_grant");
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(password(gateway, "ann", "secret").await.json()["error"], "invalid_grant");
        assert!(!gateway.is_in_force(&id, None));
    }
}

async fn robot(issuer: &Issuer, id: &str, secret: &str) -> u16 {
    let fields = [
        ("grant_type", "client_credentials"),
        ("client_id", id),
        ("client_secret", secret),
        ("scope", "https://gw.example/.default"),
    ];
    post(issuer, "/token", &fields).await.status.as_u16()
}

/// Neither gateway looks by itself here: they are asked at once.
async fn a_service_principal_signs_in_at_both_as_soon_as_it_is_made_and_at_neither_once_it_is_gone(place: Place) {
    let pair = pair(&place).await;
    let make = |all: &mut Principals| all.create("robot", Duration::from_secs(3600), SystemTime::now());
    let (made, secret) = pair.a.edit_principals(make).await.unwrap();
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(robot(gateway, &made.client_id, secret.secret.expose_secret()).await, 200);
    }
    let id = made.object_id.clone();
    pair.b.edit_principals(move |all| all.delete(&id).map(drop)).await.unwrap();
    for gateway in [&pair.a, &pair.b] {
        assert_eq!(robot(gateway, &made.client_id, secret.secret.expose_secret()).await, 401);
    }
}

async fn an_issuer_that_cannot_ask_its_store_goes_on_for_as_long_as_it_may(place: Place) {
    let (folder, stores) = (place.folder.path().join("a"), [place.open().await, place.open().await]);
    let protector = Arc::new(Protector::open_or_create(&place.folder.path().join("store.key")).unwrap());
    let mut issuers = Vec::new();
    for (store, stale_for) in stores.iter().zip([Duration::ZERO, Duration::from_secs(300)]) {
        let vault = Vault::new(store.clone(), Arc::clone(&protector));
        issuers.push(Issuer::open_shared(settings(&folder), vault, false, stale_for).await.unwrap());
    }
    let make = |all: &mut Principals| all.create("robot", Duration::from_secs(3600), SystemTime::now());
    let (made, secret) = issuers[0].edit_principals(make).await.unwrap();
    let secret = secret.secret.expose_secret();
    for issuer in &issuers {
        assert_eq!(robot(issuer, &made.client_id, secret).await, 200);
    }
    for store in &stores {
        store.close().await;
    }
    assert_eq!(robot(&issuers[0], &made.client_id, secret).await, 503, "it may have been withdrawn");
    assert_eq!(robot(&issuers[1], &made.client_id, secret).await, 200);
}

async fn two_who_change_accounts_at_once_lose_no_change(place: Place) {
    let pair = pair(&place).await;
    let life = Duration::from_secs(3600);
    let create = |gateway, from: u32| async move {
        for n in from..from + 10 {
            let make = move |all: &mut Principals| all.create(&format!("p{n}"), life, SystemTime::now());
            Issuer::edit_principals(gateway, make).await.unwrap();
        }
    };
    tokio::join!(create(&pair.a, 0), create(&pair.b, 10));
    assert_eq!(pair.documents.principals().await.unwrap().iter().count(), 20);
    pair.follow().await;
    assert_eq!((pair.a.known().1.iter().count(), pair.b.known().1.iter().count()), (20, 20));
}

async fn guesses_are_counted_for_both_gateways_together(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    for n in 0..10 {
        let said = password(if n % 2 == 0 { &a } else { &b }, "ann", "x").await;
        assert_eq!(said.status, 400, "{n}");
    }
    for gateway in [&a, &b] {
        let said = password(gateway, "ann", "secret").await;
        assert_eq!((said.status.as_u16(), &said.json()["error"]), (429, &"temporarily_unavailable".into()));
    }
}

/// Codes that were typed at the same moment were all looked up before one of them was counted.
async fn many_guesses_at_once_are_no_more_than_one_after_the_other(place: Place) {
    let Pair { a, b, .. } = pair(&place).await;
    let begun = post(&a, "/devicecode", &[("client_id", COMMAND_CLIENT)]).await.json();
    let page = send(&a, Method::GET, "/device", None, &[]).await;
    let (cookie, flow) = (page.cookie.clone(), page.flow());
    let typed = async |issuer: &Issuer, code: &str| {
        let fields = [("flow", flow.as_str()), ("user_code", code)];
        send(issuer, Method::POST, "/device", cookie.as_deref(), &fields).await.status.as_u16()
    };
    // A right one is counted as none, and forgives no wrong one.
    assert_eq!(typed(&a, "BBBB-BBBB").await, 400);
    let right = begun["user_code"].as_str().unwrap();
    for _ in 0..20 {
        assert_eq!(typed(&b, right).await, 200);
    }
    let wrong = (0..40).map(|n| typed(if n % 2 == 0 { &a } else { &b }, "BBBB-BBBB"));
    let said = futures_util::future::join_all(wrong).await;
    let count = |status| said.iter().filter(|said| **said == status).count();
    assert_eq!((count(400), count(429)), (9, 31), "{said:?}");
    assert_eq!(typed(&a, right).await, 429);
    // As many passwords, of which each takes its time.
    let guesses = (0..30).map(|n| password(if n % 2 == 0 { &a } else { &b }, "ann", "x"));
    let said = futures_util::future::join_all(guesses).await;
    let wrong = said.iter().filter(|said| said.json()["error"] == "invalid_grant").count();
    assert!(wrong <= 10, "{wrong}");
}

/// Each of those who added a ticket at the same moment found room for it.
async fn many_who_begin_at_once_pass_no_bound(place: Place) {
    const OF_ONE_ADDRESS: usize = 128;
    let Pair { a, b, .. } = pair(&place).await;
    let begin = async |issuer: &Issuer| post(issuer, "/devicecode", &[("client_id", COMMAND_CLIENT)]).await;
    for _ in 0..OF_ONE_ADDRESS - 8 {
        assert_eq!(begin(&a).await.status, StatusCode::OK);
    }
    let begun = (0..30).map(|n| begin(if n % 2 == 0 { &a } else { &b }));
    let said = futures_util::future::join_all(begun).await;
    let begun = said.iter().filter(|said| said.status == StatusCode::OK).count();
    assert_eq!(begun, 8, "{:?}", said.iter().map(|said| said.status.as_u16()).collect::<Vec<_>>());
}

async fn the_files_of_a_folder_are_taken_over_once_and_never_read_again(place: Place) {
    let folder = place.folder.path().join("a");
    let users = folder.join(USERS_FILE);
    // What a gateway with SQLite has left: accounts, keys, and somebody who is signed in.
    let (token, keys) = {
        let before = Issuer::open(settings(&folder)).unwrap();
        Users::edit(&users, |users| users.put("ann", &["ops".to_owned()], "secret").map(|_| ())).unwrap();
        Keys::rotate(&folder.join(KEYS_FILE)).unwrap();
        let tokens = redeem(&before, &code(&before, &before).await).await;
        (tokens["refresh_token"].clone(), kids(&before.key_set()))
    };
    let a = try_to_open(&place, "a", true).await.unwrap();
    assert_eq!(kids(&a.key_set()), keys);
    let tokens = refresh(&a, &token).await;
    assert!(tokens["access_token"].is_string(), "nobody is signed out: {tokens}");
    let note = std::fs::read_to_string(folder.join("MOVED.txt")).unwrap();
    assert!(note.contains("not read any more"), "{note}");
    // Another gateway with a copy of the files of before, which has changed since.
    let copy = place.folder.path().join("b");
    Issuer::open(settings(&copy)).unwrap();
    Users::edit(&copy.join(USERS_FILE), |users| users.put("mallory", &[], "m").map(|_| ())).unwrap();
    Users::edit(&users, |users| users.put("mallory", &[], "m").map(|_| ())).unwrap();
    let b = try_to_open(&place, "b", true).await.unwrap();
    let again = try_to_open(&place, "a", true).await.unwrap();
    for gateway in [&a, &b, &again] {
        assert_eq!(kids(&gateway.key_set()), keys);
        assert_eq!(password(gateway, "mallory", "m").await.status, 400);
        assert_eq!(password(gateway, "ann", "secret").await.status, 200);
    }
    assert!(copy.join("MOVED.txt").exists());
    // Nor does a gateway with SQLite take them for its own again.
    assert!(matches!(Issuer::open(settings(&folder)), Err(IssuerError::Elsewhere { .. })));
    assert!(matches!(Issuer::look(&folder), Err(IssuerError::Elsewhere { .. })));
}

async fn a_folder_whose_files_another_store_has_is_no_authority(place: Place) {
    let folder = place.folder.path().join("a");
    Issuer::open(settings(&folder)).unwrap();
    std::fs::write(folder.join("MOVED.txt"), "").unwrap();
    let error = try_to_open(&place, "a", false).await.err().unwrap();
    assert!(matches!(error, IssuerError::Moved { .. }) && error.to_string().contains("restore"), "{error}");
    assert!(vault(&place).await.begin(&folder, false).await.is_err());
    let documents = Store::documents_at(&place.url).await.unwrap();
    assert!(documents.is_empty(), "nothing was made");
}

async fn no_key_is_made_beside_clusters_that_have_pinned_one(place: Place) {
    let store = place.with_group().await;
    let agent = gateway::store::batch::Expect::Absent;
    store.put(&cluster("edge"), agent).await.unwrap().unwrap();
    let error = try_to_open(&place, "a", true).await.err().unwrap();
    assert!(matches!(error, IssuerError::NoKey { .. }), "{error}");
    // Users without keys: they were lost.
    let folder = place.folder.path().join("b");
    Issuer::open(settings(&folder)).unwrap();
    std::fs::remove_file(folder.join(KEYS_FILE)).unwrap();
    assert!(matches!(try_to_open(&place, "b", false).await, Err(IssuerError::Lost { .. })));
    assert!(Store::documents_at(&place.url).await.unwrap().is_empty());
    let made = Documents::Store(vault(&place).await).replace_lost_key().await.unwrap().unwrap();
    let a = try_to_open(&place, "a", true).await.unwrap();
    assert_eq!(a.pinned_keys()["keys"][0]["kid"], made.newest());
}

async fn what_is_kept_of_an_issuer_is_sealed(place: Place) {
    let pair = pair(&place).await;
    redeem(&pair.a, &code(&pair.a, &pair.a).await).await;
    let documents = Store::documents_at(&place.url).await.unwrap();
    assert_eq!(documents.len(), 4);
    for document in &documents {
        for word in ["private", "ann", "users", "keys\""] {
            let found = document.sealed.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!found, "{}: {word}", document.name);
        }
    }
    let rows = place.texts("SELECT kind || ticket_key || owner || place || COALESCE(alias, '') FROM tickets").await;
    assert!(rows.len() >= 2 && rows.iter().all(|row| !row.contains("127.0.0.1") && !row.contains("ann")), "{rows:?}");
    // The key file is the one of this store, and no other one is taken.
    let other = Protector::open_or_create(&place.folder.path().join("other.key")).unwrap();
    let path = place.folder.path().join("other.key");
    assert!(Store::exchanged(&place.url, &other, &path).await.unwrap().is_some());
    assert!(Documents::look(&place.url, &other).await.is_err());
    let own = Protector::open(&place.folder.path().join("store.key")).unwrap();
    assert!(Documents::look(&place.url, &own).await.unwrap());
    // One that is put into the place of another does not open.
    place.sql("UPDATE documents SET sealed = (SELECT sealed FROM documents WHERE name = 'issuer/users') WHERE name = 'issuer/principals'").await;
    assert!(Documents::look(&place.url, &own).await.is_err());
}

async fn a_lost_signing_key_is_replaced_when_told_and_only_then(place: Place) {
    let pair = pair(&place).await;
    assert!(pair.documents.replace_lost_key().await.unwrap().is_none(), "nothing is lost");
    let before = pair.documents.keys().await.unwrap().newest().to_owned();
    place.sql("DELETE FROM documents WHERE name = 'issuer/keys'").await;
    let error = try_to_open(&place, "a", true).await.err().unwrap();
    assert!(error.to_string().contains("replace-lost issuer-key"), "{error}");
    let made = pair.documents.replace_lost_key().await.unwrap().unwrap();
    assert_ne!(made.newest(), before);
    let opened = try_to_open(&place, "a", true).await.unwrap();
    assert_eq!(kid(&password(&opened, "ann", "secret").await.json()), made.newest(), "the users are as they were");
}

async fn many_who_start_at_once_have_one_key(place: Place) {
    vault(&place).await;
    let names = ["a", "b", "c", "d"];
    let opened = futures_util::future::join_all(names.map(|name| try_to_open(&place, name, false))).await;
    let sets: Vec<Value> = opened.into_iter().map(|issuer| issuer.unwrap().key_set()).collect();
    assert!(sets.iter().all(|set| *set == sets[0]), "{sets:?}");
}

async fn without_the_server_nobody_signs_in_and_later_they_do(place: Place) {
    let pair = pair(&place).await;
    let tokens = redeem(&pair.a, &code(&pair.a, &pair.a).await).await;
    place.sql("ALTER TABLE counts RENAME TO gone; ALTER TABLE tickets RENAME TO gone_too").await;
    let said = password(&pair.a, "ann", "secret").await;
    assert_eq!((said.status.as_u16(), &said.json()["error"]), (503, &"temporarily_unavailable".into()));
    assert!(said.retry_after.is_some());
    let fields = [("grant_type", "refresh_token"), ("client_id", COMMAND_CLIENT)];
    let token = tokens["refresh_token"].as_str().unwrap();
    let said = post(&pair.b, "/token", &[fields[0], fields[1], ("refresh_token", token)]).await;
    assert_eq!(said.status, 503, "{}", said.text);
    assert!(pair.a.is_in_force(&pair.documents.users().await.unwrap().find("ann").unwrap().id, None), "tokens go on");
    place.sql("ALTER TABLE gone RENAME TO counts; ALTER TABLE gone_too RENAME TO tickets").await;
    assert!(refresh(&pair.b, &tokens["refresh_token"]).await["refresh_token"].is_string(), "it was not used up");
    assert_eq!(password(&pair.a, "ann", "secret").await.status, 200);
}
