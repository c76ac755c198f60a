//! docs/threats.md TH1 to TH10 and a hostile gateway, judged by the raw bytes that the apiserver received.

use std::time::{Duration, SystemTime};

use auth::token::testing::TestIssuer;
use serde_json::{Value, json};
use types::ids::ClusterId;

use crate::{
    apiserver::{Act, Apiserver, OWN_TOKEN},
    harness::{CLUSTER, Harness, ISSUER, head, lines},
};

async fn ok() -> Apiserver {
    Apiserver::start(|_| vec![Act::Ok("fine")]).await
}

fn reviewing(allowed: impl Fn(usize) -> bool + Send + 'static) -> impl FnMut(&str) -> Vec<Act> + Send + 'static {
    let mut asked = 0;
    move |head| {
        if !head.starts_with("POST /apis/authorization.k8s.io/v1/subjectaccessreviews ") {
            return vec![Act::Ok("fine")];
        }
        asked += 1;
        let body = json!({ "kind": "SubjectAccessReview", "status": { "allowed": allowed(asked) } }).to_string();
        let length = body.len();
        vec![Act::write(&format!("HTTP/1.1 201 Created\r\nContent-Length: {length}\r\n\r\n{body}"))]
    }
}

fn review_of(raw: &str) -> Value {
    serde_json::from_str(raw.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn a_user_is_impersonated_with_the_agents_own_credential() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let answer = harness.get("/api/v1/pods?watch=0", &[("accept", "application/json")]).await;
    assert_eq!((answer.status, answer.body.as_str(), answer.refused_by), (200, "fine", None));
    let raw = &apiserver.requests()[0];
    assert!(raw.starts_with("GET /api/v1/pods?watch=0 HTTP/1.1\r\n"), "{raw}");
    assert_eq!(lines(raw, "authorization"), [format!("Bearer {OWN_TOKEN}")]);
    assert_eq!(lines(raw, "impersonate-user"), ["jane"]);
    assert_eq!(lines(raw, "impersonate-group"), ["dev"]);
    assert_eq!(lines(raw, "host"), [apiserver.address.to_string()]);
    assert!(lines(raw, "transfer-encoding").is_empty() && lines(raw, "content-length").is_empty(), "{raw}");
}

#[tokio::test]
async fn attack_th1_impersonation_needs_the_clusters_word_for_each_part() {
    let apiserver = Apiserver::start(reviewing(|_| true)).await;
    let harness = Harness::new(apiserver.access()).await;
    let asked = [("impersonate-user", "bob"), ("impersonate-group", "ops"), ("impersonate-extra-scopes", "s")];
    assert_eq!(harness.get("/api", &asked).await.status, 200);
    let raw = apiserver.requests();
    assert_eq!(raw.len(), 4, "three reviews and the request");
    let review = review_of(&raw[0]);
    assert_eq!(review["spec"]["user"], "jane");
    assert_eq!(review["spec"]["groups"], json!(["dev", "system:authenticated"]));
    let wanted = json!({ "verb": "impersonate", "group": "", "version": "v1", "resource": "users", "name": "bob" });
    assert_eq!(review["spec"]["resourceAttributes"], wanted);
    assert_eq!(review_of(&raw[1])["spec"]["resourceAttributes"]["resource"], "groups");
    assert_eq!(review_of(&raw[2])["spec"]["resourceAttributes"]["subresource"], "scopes");
    for review in &raw[..3] {
        assert!(lines(review, "impersonate-user").is_empty(), "asked in the agent's own name");
    }
    assert_eq!(lines(&raw[3], "impersonate-user"), ["bob"]);
    assert_eq!(lines(&raw[3], "impersonate-group"), ["ops"]);
    assert_eq!(lines(&raw[3], "impersonate-extra-towline.io%2foriginal-user"), ["jane"]);
    assert_eq!(lines(&raw[3], "impersonate-extra-scopes"), ["s"]);
}

#[tokio::test]
async fn attack_th1_impersonation_that_the_cluster_does_not_allow_is_refused() {
    let apiserver = Apiserver::start(reviewing(|number| number == 1)).await;
    let harness = Harness::new(apiserver.access()).await;
    let asked = [("impersonate-user", "admin"), ("impersonate-group", "ops")];
    let answer = harness.get("/api", &asked).await;
    assert_eq!((answer.status, answer.refused_by.as_deref()), (403, Some("review")));
    let status: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("Forbidden")));
    let raw = apiserver.requests();
    assert_eq!(raw.len(), 3, "two reviews for the user, and one of the agent's own");
    let is_review = |raw: &String| raw.starts_with("POST /apis/authorization.k8s.io/v1/");
    assert!(raw.iter().all(is_review), "only reviews reached the apiserver");
}

#[tokio::test]
async fn attack_th1_reserved_names_are_refused_whatever_the_cluster_says() {
    let apiserver = Apiserver::start(reviewing(|_| true)).await;
    let harness = Harness::new(apiserver.access()).await;
    for (user, group) in [("jane", "system:masters"), ("system:admin", "dev"), ("jane", "System:Masters")] {
        let answer = harness.get("/api", &[("impersonate-user", user), ("impersonate-group", group)]).await;
        assert_eq!(answer.status, 403, "{user} {group}");
    }
    assert!(apiserver.requests().is_empty());
}

#[tokio::test]
async fn attack_th1_a_service_account_may_be_asked_for() {
    let apiserver = Apiserver::start(reviewing(|_| true)).await;
    let harness = Harness::new(apiserver.access()).await;
    assert_eq!(harness.get("/api", &[("impersonate-user", "system:serviceaccount:apps:web")]).await.status, 200);
    let raw = apiserver.requests();
    let wanted = json!({ "verb": "impersonate", "group": "", "version": "v1", "resource": "serviceaccounts", "name": "web", "namespace": "apps" });
    assert_eq!(review_of(&raw[0])["spec"]["resourceAttributes"], wanted);
    assert_eq!(lines(&raw[1], "impersonate-user"), ["system:serviceaccount:apps:web"]);
}

/// An apiserver of which the agent finds out whether it has constrained impersonation; `allowed` is by the number of
/// the SubjectAccessReview, and `plain` is whether the agent may impersonate anything.
fn constrained(
    has: bool,
    plain: bool,
    allowed: impl Fn(usize) -> bool + Send + 'static,
) -> impl FnMut(&str) -> Vec<Act> + Send + 'static {
    let mut reviewing = reviewing(allowed);
    move |head| {
        let answer = |status: &str, body: Value| {
            let body = body.to_string();
            vec![Act::write(&format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))]
        };
        if head.starts_with("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews ") {
            return answer("201 Created", json!({ "status": { "allowed": plain } }));
        }
        if !head.starts_with("POST /apis/authentication.k8s.io/v1/selfsubjectreviews ") {
            return reviewing(head);
        }
        if has || plain {
            return answer("201 Created", json!({ "status": { "userInfo": { "username": "towline.io:probe" } } }));
        }
        answer("403 Forbidden", json!({ "kind": "Status" }))
    }
}

const AS_BOB: [(&str, &str); 1] = [("impersonate-user", "bob")];

#[tokio::test]
async fn constrained_impersonation_needs_the_right_to_the_call_too() {
    let apiserver = Apiserver::start(constrained(true, false, |number| number > 1)).await;
    let harness = Harness::new(apiserver.access()).await;
    let target = "/api/v1/namespaces/n/pods";
    assert_eq!(harness.get(target, &AS_BOB).await.status, 200);
    let raw = apiserver.requests();
    let attributes = |at: usize| review_of(&raw[at])["spec"]["resourceAttributes"].clone();
    assert_eq!(attributes(0)["verb"], "impersonate");
    assert_eq!(attributes(1)["subresource"], "towline.io/probe");
    assert_eq!(lines(&raw[2], "impersonate-user"), ["towline.io:probe"]);
    assert_eq!(lines(&raw[2], "impersonate-extra-towline.io%2fprobe"), ["constrained-impersonation"]);
    let call = json!({ "verb": "impersonate-on:user-info:list", "group": "", "version": "v1", "resource": "pods", "namespace": "n" });
    assert_eq!(attributes(3), call);
    let user = json!({ "verb": "impersonate:user-info", "group": "authentication.k8s.io", "version": "v1", "resource": "users", "name": "bob" });
    assert_eq!(attributes(4), user);
    assert_eq!(lines(&raw[5], "impersonate-user"), ["bob"]);
    // All of it is remembered, and another call is another question.
    assert_eq!(harness.get(target, &AS_BOB).await.status, 200);
    assert_eq!(apiserver.requests().len(), 7);
    assert_eq!(harness.get("/api/v1/namespaces/m/pods", &AS_BOB).await.status, 200);
    assert_eq!(apiserver.requests().len(), 9);
}

#[tokio::test]
async fn constrained_impersonation_without_one_of_its_rights_is_refused() {
    for denied in [2, 3] {
        let apiserver = Apiserver::start(constrained(true, false, move |number| number > 1 && number != denied)).await;
        let harness = Harness::new(apiserver.access()).await;
        let answer = harness.get("/api/v1/pods", &AS_BOB).await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (403, Some("review")), "{denied}");
        assert!(answer.body.contains("cannot impersonate users"), "{}", answer.body);
    }
}

/// A role with all verbs has the constrained ones too, in clusters whose apiserver knows nothing of them.
#[tokio::test]
async fn constrained_rights_are_nothing_to_an_apiserver_without_them() {
    for (has, plain) in [(false, false), (false, true)] {
        let apiserver = Apiserver::start(constrained(has, plain, |number| number > 1)).await;
        let harness = Harness::new(apiserver.access()).await;
        for _ in 0..2 {
            assert_eq!(harness.get("/api/v1/pods", &AS_BOB).await.status, 403, "{has} {plain}");
        }
        let reviews = apiserver.requests().iter().filter(|raw| raw.contains("/subjectaccessreviews ")).count();
        assert_eq!(reviews, 1, "only the verb impersonate was asked about");
    }
}

#[tokio::test]
async fn attack_th2_connection_cannot_take_identity_headers_away() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let hop = [
        ("connection", "close, Impersonate-User, Impersonate-Group, X-Remote-User"),
        ("connection", "impersonate-extra-oid"),
        ("impersonate-user", "admin"),
        ("x-remote-user", "admin"),
    ];
    let jane = harness.jane();
    let hop = hop.into_iter().chain([("authorization", jane.as_str())]).collect::<Vec<_>>();
    // Whether such a head is refused as a whole or stripped, nothing of it arrives.
    if let Some(answer) = harness.send_hostile(&head("GET", "/api", &hop)).await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(harness.get("/api", &[]).await.status, 200);
    for raw in apiserver.requests() {
        assert_eq!(lines(&raw, "impersonate-user"), ["jane"]);
        assert_eq!(lines(&raw, "impersonate-group"), ["dev"]);
        assert!(lines(&raw, "x-remote-user").is_empty() && lines(&raw, "connection").is_empty(), "{raw}");
    }
}

#[tokio::test]
async fn attack_th3_th4_unknown_and_misspelt_identity_headers_reach_nobody() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    for name in ["impersonate-foo", "impersonate_user", "impersonate-extra-", "x_remote_user", "impersonate-users"] {
        let answer = harness.get("/api", &[(name, "admin")]).await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (400, Some("admit")), "{name}");
    }
    assert!(apiserver.requests().is_empty());
}

#[tokio::test]
async fn asked_names_of_any_alphabet_are_reviewed_and_arrive() {
    let apiserver = Apiserver::start(reviewing(|_| true)).await;
    let harness = Harness::new(apiserver.access()).await;
    let asked = [
        ("impersonate-user", "j\u{f6}rg"),
        ("impersonate-group", "D\u{e9}veloppeurs"),
        ("impersonate-extra-my_key", "v"),
        ("x_custom", "1"),
    ];
    assert_eq!(harness.get("/api", &asked).await.status, 200);
    let raw = apiserver.requests();
    let named = |at: usize| review_of(&raw[at])["spec"]["resourceAttributes"]["name"].as_str().unwrap().to_owned();
    assert_eq!([named(0), named(1), named(2)], ["j\u{f6}rg", "D\u{e9}veloppeurs", "v"]);
    assert_eq!(lines(&raw[3], "impersonate-user"), ["j\u{f6}rg"]);
    assert_eq!(lines(&raw[3], "impersonate-group"), ["D\u{e9}veloppeurs"]);
    assert_eq!(lines(&raw[3], "impersonate-extra-my%5fkey"), ["v"], "as the apiserver decodes it");
    assert_eq!(lines(&raw[3], "x_custom"), ["1"]);
}

#[tokio::test]
async fn attack_th5_one_credential_and_never_beside_the_agents() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    assert_eq!(harness.get("/api", &[("authorization", "Bearer other")]).await.status, 401);
    assert!(apiserver.requests().is_empty());
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(harness.token("jane", &[]));
    let protocols = format!("v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}");
    let answer = harness.send(&head("GET", "/api", &[("sec-websocket-protocol", &protocols)]), b"").await;
    assert_eq!(answer.status, 200);
    let raw = &apiserver.requests()[0];
    assert_eq!(lines(raw, "sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    assert_eq!(lines(raw, "impersonate-user"), ["jane"]);
    assert!(!raw.contains(&encoded));
}

#[tokio::test]
async fn attack_th6_other_identity_headers_are_removed() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let names =
        ["x-remote-user", "x-remote-group", "x-remote-extra-a", "x-forwarded-for", "forwarded", "front-end-https"];
    let headers: Vec<_> =
        names.iter().chain(&["x-forwarded-client-cert", "cookie"]).map(|&name| (name, "evil")).collect();
    assert_eq!(harness.get("/api", &headers).await.status, 200);
    assert!(!apiserver.requests()[0].contains("evil"));
}

#[tokio::test]
async fn attack_th7_th8_a_token_that_maps_to_nobody_or_to_a_reserved_name_is_refused() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let good = harness.issuer.claims("jane", &audience, SystemTime::now());
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        format!("Bearer {}", harness.issuer.mint(&claims))
    };
    for (name, value) in [
        ("sub", json!("system:admin")),
        ("sub", json!("system:serviceaccount:kube-system:x")),
        ("sub", json!("")),
        ("sub", json!(null)),
        ("sub", json!(7)),
        ("sub", json!("a\nb")),
        ("sub", json!("x".repeat(64 * 1024))),
        ("groups", json!(["system:masters"])),
        ("groups", json!(["dev", " system:masters"])),
        ("groups", json!({ "a": 1 })),
        ("groups", json!([["dev"]])),
    ] {
        let credential = changed(name, value.clone());
        let answer = harness.send(&head("GET", "/api", &[("authorization", &credential)]), b"").await;
        assert!(matches!(answer.status, 401 | 403 | 431), "{name} {value}: {}", answer.status);
    }
    assert!(apiserver.requests().is_empty());
}

#[tokio::test]
async fn attack_th9_three_hundred_groups_arrive() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let groups: Vec<String> = (0..300).map(|number| format!("{number:0>100}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let credential = format!("Bearer {}", harness.token("jane", &groups));
    let answer = harness.send(&head("GET", "/api", &[("authorization", &credential)]), b"").await;
    assert_eq!(answer.status, 200);
    assert_eq!(lines(&apiserver.requests()[0], "impersonate-group"), groups);
}

#[tokio::test]
async fn a6_a_token_of_nobody_known_passes_unchanged_and_alone() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let foreign = TestIssuer::new("https://kubernetes.default.svc").token("sa", &[], "x", SystemTime::now());
    for token in ["opaque-token", foreign.as_str()] {
        let credential = format!("Bearer {token}");
        let asked = [("authorization", credential.as_str()), ("x-remote-user", "admin"), ("impersonate-user", "bob")];
        assert_eq!(harness.send(&head("GET", "/a", &asked), b"").await.status, 200);
        let raw = apiserver.requests().pop().unwrap();
        assert_eq!(lines(&raw, "authorization"), [credential.as_str()]);
        assert_eq!(lines(&raw, "impersonate-user"), ["bob"], "the apiserver judges what it asks for");
        assert!(!raw.contains(OWN_TOKEN) && !raw.contains("x-remote-user"));
        assert_eq!(harness.send(&head("GET", "/b", &asked[..1]), b"").await.status, 200);
        let raw = apiserver.requests().pop().unwrap();
        assert!(!raw.to_ascii_lowercase().contains("impersonate"), "{raw}");
    }
}

#[tokio::test]
async fn attack_th10_a_hostile_gateway_gets_refusals_only() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let now = SystemTime::now();
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let other_audience = CLUSTER.replace("Clusters/c", "Clusters/other").parse::<ClusterId>().unwrap().audience();
    // The same issuer's name, with keys of the gateway's own making.
    let forged = TestIssuer::new(ISSUER).token("admin", &["ops"], &audience, now);
    let other_cluster = harness.issuer.token("admin", &[], &other_audience, now);
    let expired = harness.issuer.token("admin", &[], &audience, now - Duration::from_secs(7200));
    let unsigned = {
        let parts: Vec<&str> = forged.split('.').collect();
        format!("{}.{}.", parts[0], parts[1])
    };
    for token in [forged, other_cluster, expired, unsigned] {
        let credential = format!("Bearer {token}");
        let headers =
            [("authorization", credential.as_str()), ("x-remote-user", "admin"), ("impersonate-user", "admin")];
        let answer = harness.send(&head("GET", "/api", &headers), b"").await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (401, Some("authenticate")));
        assert!(
            !answer.body.contains("audience") && !answer.body.contains("expired"),
            "a 401 tells nothing: {}",
            answer.body
        );
    }
    for headers in [&[][..], &[("x-remote-user", "admin")], &[("impersonate-user", "admin")]] {
        assert_eq!(harness.send(&head("GET", "/api", headers), b"").await.status, 401);
    }
    assert!(apiserver.requests().is_empty());
}

#[tokio::test]
async fn whoami_says_why_a_token_is_refused() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let whoami = async |credential: &str| -> Value {
        let mut head = head("GET", "/.towline/whoami", &[("authorization", credential)]);
        head.role = "whoami".to_owned();
        serde_json::from_str(&harness.send(&head, b"").await.body).unwrap()
    };
    let good = whoami(&harness.jane()).await;
    assert_eq!((&good["accepted"], &good["user"], &good["groups"]), (&json!(true), &json!("jane"), &json!(["dev"])));
    let other = harness.issuer.token("jane", &[], "towline:cluster:/other", SystemTime::now());
    let refused = whoami(&format!("Bearer {other}")).await;
    assert_eq!(refused["accepted"], false);
    assert!(refused["why"].as_str().unwrap().contains("audience"), "{refused}");
    assert_eq!(whoami("Bearer opaque").await["credential"], "service-account");
}

#[tokio::test]
async fn a_session_ends_when_its_tokens_time_is_over() {
    let apiserver = Apiserver::start(|_| {
        vec![Act::write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), Act::Hang]
    })
    .await;
    let harness = Harness::with(apiserver.access(), Duration::ZERO, 64).await;
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    // Longer where the token's time was over before it was looked at: this machine may stand still for seconds.
    let mut lives = [1, 5, 25, 125].into_iter();
    let answer = loop {
        let now = SystemTime::now();
        let mut claims = harness.issuer.claims("jane", &audience, now);
        claims["exp"] =
            json!(auth::token::testing::unix_seconds(now) + lives.next().expect("a token that is accepted"));
        let credential = format!("Bearer {}", harness.issuer.mint(&claims));
        let answer = harness.send(&head("GET", "/watch", &[("authorization", &credential)]), b"").await;
        if answer.status != 401 {
            break answer;
        }
    };
    assert_eq!((answer.status, answer.body.as_str()), (200, "abc"));
    let expected = tunnel::transport::StreamError::Reset(tunnel::wire::close::StreamCode::Unauthorised);
    assert_eq!(answer.end, Err(expected));
    apiserver.until(|seen| seen.gone == 1).await;
}

#[tokio::test]
async fn refresh_extends_what_the_same_principal_has_open() {
    let apiserver =
        Apiserver::start(|_| vec![Act::write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), Act::Hang]).await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let mut watch = harness.open(&head("GET", "/watch", &[("authorization", &jane)])).await;
    watch.send.finish().unwrap();
    assert_eq!(crate::harness::response_head(&mut watch.recv).await.status, 200);
    let refresh = async |credential: &str| {
        let mut head = head("POST", "/.towline/refresh", &[("authorization", credential)]);
        head.role = "refresh".to_owned();
        harness.send(&head, b"").await
    };
    let answer = refresh(&jane).await;
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((answer.status, &body["extended"]), (200, &json!(true)));
    let other = format!("Bearer {}", harness.token("bob", &[]));
    let body: Value = serde_json::from_str(&refresh(&other).await.body).unwrap();
    assert_eq!(body["extended"], false);
    assert_eq!(refresh("Bearer opaque").await.status, 401);
}

/// Z9: what an assignment allows reaches the apiserver with the groups that carry its verbs; nobody else gets these.
#[tokio::test]
async fn z9_an_allowed_call_is_given_its_verbs_and_nobody_brings_them() {
    use auth::rbac::{
        Assignment, Window,
        principal::user_key,
        role::built_in,
        snapshot::{self, Document, STATEMENT_TYPE, Signed},
    };
    let apiserver = Apiserver::start(reviewing(|_| true)).await;
    let harness = Harness::new(apiserver.access()).await;
    let cluster: ClusterId = CLUSTER.parse().unwrap();
    let viewer = built_in().iter().find(|role| role.name == "Azure Arc Kubernetes Viewer").unwrap();
    let assignment = Assignment {
        id: "a".into(),
        principal: user_key("jane").into(),
        scope: format!("{CLUSTER}/namespaces/dev").parse().unwrap(),
        role: viewer.role.clone(),
        window: Window::default(),
    };
    let document = serde_json::to_string(&Document::new(&cluster, 1, true, &[assignment])).unwrap();
    let mut claims = harness.issuer.claims("-", &snapshot::audience(&cluster), SystemTime::now());
    claims["sha256"] = json!(snapshot::digest_of(&document));
    let header = json!({"alg": "ES256", "kid": harness.issuer.key().kid, "typ": STATEMENT_TYPE});
    let statement = harness.issuer.mint_with(&header, &claims);
    harness
        .authorizer
        .take(&Signed { document, statement, etag: String::new(), omitted: None }, SystemTime::now())
        .await
        .unwrap();

    assert_eq!(harness.get("/api/v1/namespaces/dev/pods", &[]).await.status, 200);
    assert_eq!(harness.get("/api/v1/namespaces/dev/secrets", &[]).await.status, 200);
    let raw = apiserver.requests();
    assert_eq!(lines(&raw[0], "impersonate-group"), ["dev", "towline.io:rbac:list"]);
    assert_eq!(lines(&raw[0], "impersonate-user"), ["jane"]);
    assert_eq!(lines(&raw[1], "impersonate-group"), ["dev"], "the cluster's own RBAC decides");
    for group in ["towline.io:rbac:get", "Towline.IO:rbac:create"] {
        let answer = harness.get("/api", &[("impersonate-user", "bob"), ("impersonate-group", group)]).await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (403, Some("impersonate")), "{group}");
        let token = harness.issuer.token("jane", &[group], &cluster.audience(), SystemTime::now());
        let answer = harness.send(&head("GET", "/api", &[("authorization", &format!("Bearer {token}"))]), b"").await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (403, Some("impersonate")), "{group} in a token");
    }
}
