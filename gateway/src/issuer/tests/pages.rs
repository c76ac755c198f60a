//! Users who sign in by a page: device codes, authorization codes, refresh tokens; and who would like to be them.

use super::*;
use crate::issuer::clients::COMMAND_CLIENT;

const API: &str = "https://gw.example";
const REDIRECT: &str = "http://127.0.0.1:5000/back";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
/// RFC 7636 appendix B.
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// A hidden field of a form.
    fn field(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.text.split_once(&format!("name=\"{name}\" value=\""))?;
        rest.split('"').next()
    }

    /// The query of the address that it leads to.
    fn query(&self, name: &str) -> Option<String> {
        let to = url::Url::parse(self.headers["location"].to_str().unwrap()).unwrap();
        to.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}

/// A browser that keeps the one cookie.
struct Browser<'a> {
    issuer: &'a Issuer,
    cookie: Option<String>,
}

impl<'a> Browser<'a> {
    fn new(issuer: &'a Issuer) -> Self {
        Self { issuer, cookie: None }
    }

    async fn send(&mut self, method: Method, path: &str, body: String) -> Answer {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/x-www-form-urlencoded");
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", format!("a=b; {cookie}"));
        }
        let response = self.issuer.handle(HERE, request.body(Full::new(Bytes::from(body))).unwrap()).await;
        let (parts, body) = response.into_parts();
        if let Some(cookie) = parts.headers.get("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.contains("; Path=/; Secure; HttpOnly; SameSite=Strict"), "{cookie}");
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let answer = Answer { status: parts.status, headers: parts.headers, text };
        if answer.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
            is_a_safe_page(&answer);
        }
        answer
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, String::new()).await
    }

    async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.send(Method::POST, path, body).await
    }

    async fn allow(&mut self, path: &str, flow: &str, name: &str, password: &str) -> Answer {
        let fields = [("flow", flow), ("username", name), ("password", password), ("decision", "allow")];
        self.post(path, &fields).await
    }
}

/// No script, no frame, nothing from elsewhere, kept by nobody; each field has its label.
fn is_a_safe_page(page: &Answer) {
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    for part in
        ["default-src 'none'", "style-src 'sha256-", "frame-ancestors 'none'", "base-uri 'none'", "form-action "]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !page.text.contains("<script") && !page.text.contains(" style="));
    assert_eq!(page.headers["cache-control"], "no-store");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    assert_eq!(page.headers["referrer-policy"], "no-referrer");
    assert!(page.text.starts_with("<!doctype html><html lang=\"en\">"));
    assert_eq!(page.text.matches("<input id=").count(), page.text.matches("<label for=").count());
}

fn authorize(more: &[(&str, &str)]) -> String {
    let mut fields = vec![
        ("client_id", COMMAND_CLIENT),
        ("response_type", "code"),
        ("redirect_uri", REDIRECT),
        ("scope", "openid offline_access https://gw.example/.default"),
        ("state", "a&b=\"<c>"),
        ("nonce", "n1"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
    ];
    fields.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    fields.extend(more.iter().filter(|(_, value)| !value.is_empty()));
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    format!("/authorize?{query}")
}

async fn code(browser: &mut Browser<'_>) -> String {
    let page = browser.get(&authorize(&[])).await;
    let flow = page.field("flow").unwrap().to_owned();
    let answer = browser.allow("/authorize", &flow, "ann", "secret").await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    answer.query("code").unwrap()
}

async fn redeem(f: &Fixture, code: &str, more: &[(&str, &str)]) -> Value {
    let mut fields = vec![
        ("grant_type", "authorization_code"),
        ("client_id", COMMAND_CLIENT),
        ("redirect_uri", REDIRECT),
        ("code_verifier", VERIFIER),
        ("code", code),
    ];
    fields.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    fields.extend(more);
    Browser::new(&f.issuer).post("/token", &fields).await.json()
}

async fn refresh(f: &Fixture, token: &Value, more: &[(&str, &str)]) -> Value {
    let mut fields = vec![
        ("grant_type", "refresh_token"),
        ("client_id", COMMAND_CLIENT),
        ("refresh_token", token.as_str().unwrap_or_default()),
    ];
    fields.extend(more);
    Browser::new(&f.issuer).post("/token", &fields).await.json()
}

fn id_claims(answer: &Value) -> Value {
    claims(&serde_json::json!({ "access_token": answer["id_token"] }))
}

#[tokio::test]
async fn a_code_is_exchanged_for_tokens_of_the_user() {
    let f = fixture().await;
    let mut browser = Browser::new(&f.issuer);
    let page = browser.get(&authorize(&[("login_hint", "\"><script>")])).await;
    assert!(page.text.contains("the towline command") && page.text.contains("https://gw.example"));
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("http://127.0.0.1:5000 'self'"));
    let flow = page.field("flow").unwrap().to_owned();
    let wrong = browser.allow("/authorize", &flow, "ann", "x").await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text.contains("role=\"alert\"") && wrong.text.contains("value=\"ann\""));
    let answer = browser.allow("/authorize", wrong.field("flow").unwrap(), "ann", "secret").await;
    assert_eq!((answer.status.as_u16(), answer.query("state").as_deref()), (303, Some("a&b=\"<c>")));
    assert_eq!(answer.query("iss").as_deref(), Some("https://gw.example/.towline/issuer"), "RFC 9207");
    let tokens = redeem(&f, &answer.query("code").unwrap(), &[("client_info", "1")]).await;
    let (access, id) = (claims(&tokens), id_claims(&tokens));
    assert_eq!((access["aud"].as_str(), access["preferred_username"].as_str()), (Some(API), Some("ann")));
    assert_eq!((id["aud"].as_str(), id["nonce"].as_str()), (Some(COMMAND_CLIENT), Some("n1")));
    assert_eq!((&id["sub"], id["auth_time"].is_u64()), (&access["sub"], true));
    let account: Value =
        serde_json::from_slice(&BASE64.decode(tokens["client_info"].as_str().unwrap()).unwrap()).unwrap();
    assert_eq!((&account["uid"], &account["utid"]), (&access["oid"], &Value::from(TENANT)));
    let cluster = format!("towline:cluster:{CLUSTER}/.default");
    let next = refresh(&f, &tokens["refresh_token"], &[("scope", &cluster)]).await;
    assert_eq!(claims(&next)["aud"], CLUSTER.parse::<ClusterId>().unwrap().audience(), "each token for one audience");
    assert_ne!(next["refresh_token"], tokens["refresh_token"]);
}

/// Newer tokens of a sign-in keep its sessions, and those of another do not.
#[tokio::test]
async fn tokens_name_the_sign_in_that_they_came_of_and_not_its_refresh_token() {
    let f = fixture().await;
    let mut sids = Vec::new();
    for _ in 0..2 {
        let mut browser = Browser::new(&f.issuer);
        let code = code(&mut browser).await;
        let tokens = redeem(&f, &code, &[]).await;
        let next = refresh(&f, &tokens["refresh_token"], &[]).await;
        let (sid, again) = (claims(&tokens)["sid"].clone(), claims(&next)["sid"].clone());
        assert_eq!(sid, again);
        let sid = sid.as_str().unwrap().to_owned();
        let token = tokens["refresh_token"].as_str().unwrap();
        assert!(sid.len() == 32 && !token.contains(&sid) && !sid.contains(&token[..FAMILY]), "{sid}");
        sids.push(sid);
    }
    assert_ne!(sids[0], sids[1]);
}

/// Characters of a refresh token that name its family.
const FAMILY: usize = 43;

#[tokio::test]
async fn a_code_is_handed_over_by_a_form_where_the_client_wants_it() {
    let f = fixture().await;
    let mut browser = Browser::new(&f.issuer);
    let page = browser.get(&authorize(&[("response_mode", "form_post")])).await;
    let page = browser.allow("/authorize", page.field("flow").unwrap(), "ann", "secret").await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains(&format!("action=\"{REDIRECT}\"")) && page.text.contains("<button"));
    assert_eq!(page.field("state"), Some("a&amp;b=&quot;&lt;c&gt;"));
    assert!(redeem(&f, page.field("code").unwrap(), &[]).await["access_token"].is_string());
    let page = browser.get(&authorize(&[])).await;
    let refused = browser.post("/authorize", &[("flow", page.field("flow").unwrap()), ("decision", "deny")]).await;
    assert_eq!(refused.query("error").as_deref(), Some("access_denied"));
}

#[tokio::test]
async fn attack_open_redirect_goes_nowhere() {
    let f = fixture().await;
    for more in [
        ("redirect_uri", "https://evil.example/"),
        ("redirect_uri", "http://127.0.0.1@evil.example/"),
        ("redirect_uri", ""),
        ("client_id", "unknown"),
        ("client_id", ""),
    ] {
        let page = Browser::new(&f.issuer).get(&authorize(&[more])).await;
        assert_eq!(page.status, 400, "{more:?}");
        assert!(!page.headers.contains_key("location") && page.field("flow").is_none());
        assert!(!page.text.contains("evil.example") && !page.text.contains("<form"), "{more:?}");
    }
    let twice = format!("{}&redirect_uri=https://evil.example/", authorize(&[]));
    assert_eq!(Browser::new(&f.issuer).get(&twice).await.status, 400);
}

#[tokio::test]
async fn attack_pkce_downgrade_is_refused() {
    let f = fixture().await;
    for more in [
        &[("code_challenge_method", "plain")][..],
        &[("code_challenge_method", "")],
        &[("code_challenge", "")],
        &[("code_challenge", "short")],
        &[("code_challenge", ""), ("code_challenge_method", "")],
    ] {
        let answer = Browser::new(&f.issuer).get(&authorize(more)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.query("error").as_deref()),
            (303, Some("invalid_request")),
            "{more:?}"
        );
    }
    let mut browser = Browser::new(&f.issuer);
    for more in [("code_verifier", ""), ("code_verifier", CHALLENGE), ("redirect_uri", "http://127.0.0.1:6000/back")] {
        let code = code(&mut browser).await;
        assert_eq!(redeem(&f, &code, &[more]).await["error"], "invalid_grant", "{more:?}");
        assert_eq!(redeem(&f, &code, &[]).await["error"], "invalid_grant", "it is used up");
    }
    for (more, error) in [
        (("response_type", "token"), "unsupported_response_type"),
        (("response_mode", "fragment"), "invalid_request"),
        (("scope", "everything"), "invalid_scope"),
        (("scope", "https://elsewhere/.default"), "invalid_target"),
        (("prompt", "none"), "login_required"),
    ] {
        let answer = browser.get(&authorize(&[more])).await;
        assert_eq!(answer.query("error").as_deref(), Some(error), "{more:?}");
        assert_eq!(answer.query("state").as_deref(), Some("a&b=\"<c>"));
    }
}

#[tokio::test]
async fn attack_code_replay_ends_what_came_of_the_code() {
    let f = fixture().await;
    let code = code(&mut Browser::new(&f.issuer)).await;
    let tokens = redeem(&f, &code, &[]).await;
    let next = refresh(&f, &tokens["refresh_token"], &[]).await;
    assert!(next["access_token"].is_string());
    assert_eq!(redeem(&f, &code, &[]).await["error"], "invalid_grant");
    assert_eq!(refresh(&f, &next["refresh_token"], &[]).await["error"], "invalid_grant");
}

#[tokio::test]
async fn attack_a_form_of_another_browser_is_nothing() {
    let f = fixture().await;
    let (mut victim, mut attacker) = (Browser::new(&f.issuer), Browser::new(&f.issuer));
    let page = attacker.get(&authorize(&[])).await;
    let flow = page.field("flow").unwrap();
    for browser in [&mut Browser::new(&f.issuer), &mut victim] {
        let answer = browser.allow("/authorize", flow, "ann", "secret").await;
        assert_eq!(answer.status, 400);
        assert!(!answer.headers.contains_key("location"));
        browser.get(&authorize(&[])).await;
        assert_eq!(browser.allow("/authorize", flow, "ann", "secret").await.status, 400, "with a cookie of its own");
    }
    assert_eq!(attacker.allow("/device", flow, "ann", "secret").await.status, 400, "a form of another page");
}

#[tokio::test]
async fn attack_guessing_on_the_pages_is_slowed_down() {
    let f = fixture().await;
    let mut browser = Browser::new(&f.issuer);
    let flow = browser.get("/device").await.field("flow").unwrap().to_owned();
    for n in 0..12 {
        let answer = browser.post("/device", &[("flow", &flow), ("user_code", "BBBB-BBBB")]).await;
        assert_eq!(answer.status, if n < 10 { 400 } else { 429 }, "{n}");
    }
    let flow = browser.get(&authorize(&[])).await.field("flow").unwrap().to_owned();
    for n in 0..11 {
        let answer = browser.allow("/authorize", &flow, "ann", "x").await;
        assert_eq!(answer.status, if n < 10 { 400 } else { 429 }, "{n}");
    }
}

#[tokio::test]
async fn attack_a_flood_of_made_up_refresh_tokens_is_slowed_down() {
    let f = fixture().await;
    let mut last = Value::Null;
    for n in 0..=100 {
        last = refresh(&f, &Value::from(format!("{n:043}.x")), &[]).await["error"].clone();
    }
    assert_eq!(last, "temporarily_unavailable");
}

/// What a client says comes back in the page's form, which must not be too long then.
#[tokio::test]
async fn a_long_request_of_a_client_comes_back_whole() {
    let f = fixture().await;
    let mut browser = Browser::new(&f.issuer);
    let state = "\u{1}\"".repeat(600);
    let page = browser.get(&authorize(&[("state", &state)])).await;
    let answer = browser.allow("/authorize", page.field("flow").unwrap(), "ann", "secret").await;
    assert_eq!(answer.query("state"), Some(state));
    assert_eq!(browser.get(&authorize(&[("state", &"x".repeat(5000))])).await.status, 400);
}

#[tokio::test]
async fn a_device_signs_in_by_a_page_on_another_machine() {
    let mut f = fixture().await;
    f.issuer.clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let mut device = Browser::new(&f.issuer);
    let scope = ("scope", "openid offline_access https://gw.example/.default");
    let path = format!("/{TENANT}/oauth2/v2.0/devicecode");
    let begun = device.post(&path, &[("client_id", COMMAND_CLIENT), scope]).await.json();
    assert_eq!((&begun["interval"], &begun["expires_in"]), (&5.into(), &900.into()));
    assert_eq!(begun["verification_uri"], "https://gw.example/.towline/issuer/device");
    let device_code = begun["device_code"].as_str().unwrap();
    let poll = [("grant_type", grant::DEVICE_GRANT), ("client_id", COMMAND_CLIENT), ("device_code", device_code)];
    assert_eq!(device.post("/token", &poll).await.json()["error"], "authorization_pending");
    assert_eq!(device.post("/token", &poll).await.json()["error"], "slow_down");
    let user_code = begun["user_code"].as_str().unwrap();
    let mut browser = Browser::new(&f.issuer);
    let page = browser.get(&format!("/device?user_code={user_code}")).await;
    assert!(page.text.contains(&format!("value=\"{user_code}\"")));
    let typed = user_code.to_lowercase().replace('-', " ");
    let page = browser.post("/device", &[("flow", page.field("flow").unwrap()), ("user_code", &typed)]).await;
    for told in ["the towline command", "127.0.0.1", user_code] {
        assert!(page.text.contains(told), "{told}");
    }
    let done = browser.allow("/device", page.field("flow").unwrap(), "ann", "secret").await;
    assert!(done.status == 200 && done.text.contains("Signed in"));
    let again = browser.allow("/device", page.field("flow").unwrap(), "ann", "secret").await;
    assert_eq!(again.status, 400, "once");
    f.issuer.clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_060);
    let mut device = Browser::new(&f.issuer);
    let tokens = device.post("/token", &poll).await.json();
    assert_eq!((&claims(&tokens)["aud"], &id_claims(&tokens)["aud"]), (&API.into(), &COMMAND_CLIENT.into()));
    assert!(tokens["refresh_token"].is_string());
    assert_eq!(device.post("/token", &poll).await.json()["error"], "invalid_grant");
    assert_eq!(device.post(&path, &[("client_id", "x"), scope]).await.json()["error"], "invalid_client");
}

#[tokio::test]
async fn a_disabled_user_and_a_new_password_end_what_was_signed_in_before() {
    let f = fixture().await;
    let mut browser = Browser::new(&f.issuer);
    let first = redeem(&f, &code(&mut browser).await, &[]).await;
    let second = redeem(&f, &code(&mut browser).await, &[]).await;
    let waiting = code(&mut browser).await;
    f.edit_users(|users| users.set_disabled("ann", true)).await.unwrap();
    assert_eq!(refresh(&f, &first["refresh_token"], &[]).await["error"], "invalid_grant");
    f.edit_users(|users| users.set_disabled("ann", false)).await.unwrap();
    for token in [&first["refresh_token"], &second["refresh_token"]] {
        assert_eq!(refresh(&f, token, &[]).await["error"], "invalid_grant", "enabled again is no sign-in");
    }
    assert_eq!(redeem(&f, &waiting, &[]).await["error"], "invalid_grant");
    let third = redeem(&f, &code(&mut browser).await, &[]).await;
    assert_eq!(refresh(&f, &third["refresh_token"], &[("client_id_", "x")]).await["token_type"], "Bearer");
    f.edit_users(|users| users.put("ann", &[], "secret").map(|_| ())).await.unwrap();
    assert_eq!(refresh(&f, &third["refresh_token"], &[]).await["error"], "invalid_grant");
}
