//! One credential, no claims, agents are no users, unknown is like forbidden.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use certs::{Validity, tls};
use tunnel::{transport::session::HelloError, wire::close::CloseCode};

use crate::world::{World, at, cluster, get};

const CLAIMS: &[(&str, &str)] = &[
    ("X-Remote-User", "admin"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-A", "b"),
    ("X-Forwarded-For", "192.0.2.1"),
    ("X-Forwarded-Client-Cert", "By=x"),
    ("Forwarded", "for=192.0.2.1"),
    ("Front-End-Https", "on"),
    ("Cookie", "a=b"),
    ("Proxy-Authorization", "Basic eDp5"),
];

#[tokio::test]
async fn claims_of_identity_and_hop_by_hop_headers_do_not_cross() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let claims: String = CLAIMS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut user = world.user().await;
    user.send(get(
        &at("a", "/x"),
        &token,
        &format!("{claims}Keep-Alive: 1\r\nConnection: X-Secret, keep-alive\r\nX-Secret: 1\r\n"),
    ))
    .await;
    let arrived = agent.next().await;
    for (name, _) in CLAIMS.iter().chain(&[("x-secret", ""), ("keep-alive", ""), ("connection", "")]) {
        assert_eq!(arrived.header(&name.to_lowercase()), None, "{name}");
    }
    assert!(arrived.header("authorization").is_some());
}

/// docs/threats.md TH2: what `Connection` names is the client's own business; it can take away only the client's own
/// headers.
#[tokio::test]
async fn connection_cannot_take_away_the_credential() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for lines in [
        "Connection: Authorization\r\n",
        "Connection: close, Authorization\r\n",
        "Connection: close\r\nConnection: authorization, Impersonate-User\r\nImpersonate-User: bob\r\n",
    ] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, lines)).await;
        assert_eq!(user.answer().await.status, 401, "{lines}");
    }
    agent.nothing().await;
}

#[tokio::test]
async fn impersonation_is_passed_whole_or_refused() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    user.send(get(
        &at("a", "/x"),
        &token,
        "IMPERSONATE-USER: bob\r\nImpersonate-Group: g\r\nImpersonate-Extra-Scopes: v\r\n",
    ))
    .await;
    let arrived = agent.next().await;
    assert_eq!(arrived.header("impersonate-user"), Some("bob"));
    assert_eq!(arrived.header("impersonate-extra-scopes"), Some("v"));
    arrived.answer(200, &[], "").await;
    user.answer().await;
    for lines in [
        "Impersonate-Surprise: x\r\nImpersonate-User: bob\r\n",
        "impersonate-: x\r\n",
        "Impersonate-Group: system:masters\r\n",
        "Impersonate-User: a\r\nImpersonate-User: b\r\n",
        "Impersonate-User:\r\n",
    ] {
        user.send(get(&at("a", "/x"), &token, lines)).await;
        assert_eq!(user.answer().await.status, 403, "{lines}");
    }
    agent.nothing().await;
    world.quiet().await;
    let records = world.audit().await;
    assert_eq!(records[0]["impersonated_user"], "bob");
    // Who looks for what was denied finds these too.
    for refused in &records[1..] {
        assert_eq!((&refused["decision"], &refused["status"]), (&"deny".into(), &403.into()), "{refused}");
    }
    assert_eq!(records.len(), 6);
}

/// `kubectl --as jörg --as-group Développeurs --as-user-extra my_key=v`, as client-go writes it, and a header of what
/// is proxied to.
#[tokio::test]
async fn names_of_any_alphabet_and_underscores_arrive() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let lines = "Impersonate-User: j\u{f6}rg\r\nImpersonate-Group: D\u{e9}veloppeurs\r\nImpersonate-Extra-My_key: v\r\n\
        X_Custom: 1\r\n";
    user.send(get(&at("a", "/x"), &token, lines)).await;
    let arrived = agent.next().await;
    let bytes = |name: &str| arrived.head.headers.get(name).map(|value| value.as_bytes().to_vec());
    assert_eq!(bytes("impersonate-user").unwrap(), "j\u{f6}rg".as_bytes());
    assert_eq!(bytes("impersonate-group").unwrap(), "D\u{e9}veloppeurs".as_bytes());
    assert_eq!(bytes("impersonate-extra-my_key").unwrap(), b"v");
    assert_eq!(bytes("x_custom").unwrap(), b"1");
    arrived.answer(200, &[], "").await;
    user.answer().await;
    for lines in ["Impersonate_User: bob\r\n", "X.Remote.User: bob\r\n", "Transfer_Encoding: chunked\r\n"] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, lines)).await;
        assert_eq!(user.answer().await.status, 400, "{lines}");
    }
    agent.nothing().await;
    world.quiet().await;
    assert_eq!(world.audit().await[0]["impersonated_user"], "j\u{f6}rg");
}

/// Shows the row TH5 of docs/threats.md.
#[tokio::test]
async fn exactly_one_credential_is_taken() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let encoded = URL_SAFE_NO_PAD.encode(&token);
    let target = at("a", "/x");
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let socket =
        format!("Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}\r\n");
    for (target, lines) in [
        (target.clone(), String::new()),
        (target.clone(), format!("{bearer}{bearer}")),
        (target.clone(), format!("Authorization: Bearer {token}, Bearer {token}\r\n")),
        (target.clone(), format!("Authorization: Basic {token}\r\n")),
        (format!("{target}?access_token={token}"), String::new()),
        (format!("{target}?access_token={token}"), bearer.clone()),
        (target.clone(), format!("{bearer}{socket}")),
    ] {
        let mut user = world.user().await;
        user.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).await;
        let answer = user.answer().await;
        assert_eq!(answer.status, 401, "{lines}");
        assert_eq!(answer.json()["message"], "Unauthorized");
        assert!(answer.header("www-authenticate").is_some());
    }
    agent.nothing().await;
    let mut user = world.user().await;
    user.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{socket}\r\n")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.header("sec-websocket-protocol"), Some("v5.channel.k8s.io"));
    assert_eq!(arrived.header("authorization"), Some(format!("Bearer {token}").as_str()));
}

/// docs/threats.md TH26: a token for cluster A is nothing at B, and what does not exist looks like what is forbidden.
#[tokio::test]
async fn unknown_and_forbidden_clusters_look_alike_and_tokens_are_for_one_cluster() {
    let world = World::with("[[disabled]]\nuser = \"dev:mallory\"").await;
    let mut user = world.user().await;
    let shape = |answer: &crate::world::Answer| {
        let mut json = answer.json();
        json["details"] = serde_json::Value::Null;
        (answer.status, json.to_string())
    };
    user.send(get(&at("b", "/x"), &world.token("ann", "a"), "")).await;
    let known = user.answer().await;
    user.send(get(&at("unheard-of", "/x"), &world.token("ann", "a"), "")).await;
    let unknown = user.answer().await;
    assert_eq!(known.status, 401);
    assert_eq!(shape(&known), shape(&unknown));
    // With an audience that is not bound to one cluster, both are 403.
    let text = crate::world::config("").replace("username_prefix", "audiences = [\"shared\"]\nusername_prefix");
    world.reconfigure(&text).await.unwrap();
    let shared = world.issuer.token("ann", &[], "shared", SystemTime::now());
    user.send(get(&at("b", "/x"), &shared, "")).await;
    let known = user.answer().await;
    user.send(get(&at("unheard-of", "/x"), &shared, "")).await;
    let unknown = user.answer().await;
    assert_eq!(known.status, 403);
    assert_eq!(shape(&known), shape(&unknown));
    let stranger = world.issuer.token("stranger", &[], &cluster("a").audience(), SystemTime::now());
    user.send(get(&at("a", "/x"), &stranger, "")).await;
    let answer = user.answer().await;
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("authorize") && answer.text().contains("dev:stranger"), "{}", answer.text());
}

#[tokio::test]
async fn a_disabled_user_is_refused_though_granted() {
    let world = World::with("[[disabled]]\nuser = \"dev:ann\"").await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &world.token("ann", "a"), "")).await;
    assert_eq!(user.answer().await.status, 403);
    assert_eq!(world.audit().await[0]["reason"], "disabled");
}

/// A service account's token needs an access certificate of that cluster; an agent's certificate is nothing to a user.
#[tokio::test]
async fn service_account_tokens_need_the_right_to_reach_the_cluster() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let foreign = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMiLCJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6bjpzIn0.c2ln";
    let own = world.authority.issue_access(cluster("a").as_str(), "ann", Validity::days(1)).unwrap();
    let other = world.authority.issue_access(cluster("b").as_str(), "ann", Validity::days(1)).unwrap();
    let agents = world.authority.issue_agent(cluster("a").as_str(), Validity::days(1)).unwrap();
    for (certificate, status) in [(None, 401), (Some(&other), 401), (Some(&agents), 401)] {
        let mut user = world.user_with("localhost", certificate, &[tls::ALPN_HTTP11]).await;
        user.send(get(&at("a", "/x"), foreign, "")).await;
        assert_eq!(user.answer().await.status, status);
    }
    // With a certificate for another cluster, what is there and what is not look alike.
    let mut user = world.user_with("localhost", Some(&own), &[tls::ALPN_HTTP11]).await;
    for name in ["b", "unheard-of"] {
        user.send(get(&at(name, "/x"), foreign, "")).await;
        assert_eq!(user.answer().await.status, 401, "{name}");
    }
    user.send(get(&at("a", "/x"), foreign, "")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.header("authorization"), Some(format!("Bearer {foreign}").as_str()));
    arrived.answer(200, &[], "").await;
    assert_eq!(user.answer().await.status, 200);
    // The certificate alone is no credential, and beside a token of ours it changes nothing.
    user.send(format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", at("a", "/x"))).await;
    assert_eq!(user.answer().await.status, 401);
    user.send(get(&at("a", "/x"), &world.token("stranger", "a"), "")).await;
    assert_eq!(user.answer().await.status, 403);
    agent.nothing().await;
}

/// docs/features.md T4: who an agent is comes from its certificate, and only registered clusters get tunnels.
#[tokio::test]
async fn agents_without_a_registered_cluster_get_no_tunnel() {
    let world = World::new().await;
    let unknown = world.authority.issue_agent(cluster("unheard-of").as_str(), Validity::days(1)).unwrap();
    let access = world.authority.issue_access(cluster("a").as_str(), "ann", Validity::days(1)).unwrap();
    for own in [unknown, access] {
        match world.dial(own.credentials()).await {
            Err(HelloError::Refused { code: CloseCode::Unauthorised, .. }) => {}
            other => panic!("{:?}", other.err()),
        }
    }
    assert_eq!(world.gateway.core().metrics.tunnels_open(), 0);
}

#[tokio::test]
async fn whoami_tells_what_a_401_keeps_to_itself() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    let now = SystemTime::now();
    let expired = world.issuer.token("ann", &[], &cluster("a").audience(), now - Duration::from_secs(100_000));
    user.send(get(&at("a", "/.towline/whoami"), &expired, "")).await;
    let answer = user.answer().await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(json["gateway"]["accepted"], false);
    assert!(json["gateway"]["why"].as_str().unwrap().contains("expired"), "{json}");
    assert_eq!(json["agent"]["accepted"], false);
    agent.nothing().await;
    user.send(get(&at("a", "/.towline/whoami"), &world.token("ann", "a"), "")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.head.role, "whoami");
    arrived.answer(200, &[], r#"{"accepted":true,"user":"dev:ann"}"#).await;
    let json = user.answer().await.json();
    assert_eq!((&json["gateway"]["user"], &json["gateway"]["allowed"]), (&"dev:ann".into(), &true.into()), "{json}");
    assert_eq!(json["agent"]["user"], "dev:ann");
}
