//! What no client of ours sends to the resource API, to every kind of resource that is written, over a real socket:
//! malformed and huge bodies, wrong types, unknown properties, names that lead elsewhere, SQL in every text, versions
//! that there are not, subscriptions of others, and several clients that want one name. Nothing of it is a 500,
//! everything gets ARM's envelope, and what was there before is there afterwards.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use gateway::{
    Extras,
    issuer::{Issuer, IssuerSettings},
};
use serde_json::{Value, json};

use crate::{
    enrolment::{SUBSCRIPTION, TENANT, URL, section},
    world::{Answer, User, World, config},
};

const OTHER: &str = "99999999-9999-4999-8999-999999999999";
const READER: &str = "acdd72a7-3385-48ef-bd42-f606fba81ae7";
const GUID: &str = "7c1f0d0e-3a7e-4b1c-9a53-0d1f2a3b4c5d";
const ANOTHER_GUID: &str = "5b2d8f61-94c7-4e0a-8a4d-6c7e8f901234";
/// What is sent in a body that is too long: more than the issue's 5 MB.
const HUGE: usize = 5 * 1024 * 1024 + 1;

struct Site {
    world: World,
    owner: String,
    /// Connections that are open and idle.
    idle: Mutex<Vec<User>>,
}

/// One way to write, with a body that would be taken.
struct Target {
    what: &'static str,
    method: &'static str,
    path: String,
    version: &'static str,
    body: Value,
    /// Whether properties that it does not know are refused.
    strict: bool,
}

impl Target {
    fn url(&self) -> String {
        format!("{}?api-version={}", self.path, self.version)
    }

    /// The same for another one.
    fn url_of(&self, name: &str) -> String {
        format!("{}/{name}?api-version={}", self.path.rsplit_once('/').unwrap().0, self.version)
    }
}

fn group(name: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}")
}

fn cluster(name: &str) -> String {
    format!("{}/providers/Microsoft.Kubernetes/connectedClusters/{name}", group("g"))
}

fn new_cluster() -> Value {
    json!({
        "location": "here",
        "tags": {"a": "1"},
        "kind": "ProvisionedCluster",
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "agentPublicKeyCertificate": "",
            "distribution": "k3s",
            "distributionVersion": "1.2",
            "infrastructure": "generic",
            "privateLinkState": "Disabled",
            "azureHybridBenefit": "NotApplicable",
            "aadProfile": {"enableAzureRBAC": false, "adminGroupObjectIDs": ["x"], "tenantID": "t"},
            "arcAgentProfile": {"agentAutoUpgrade": "Enabled", "systemComponents": [{"type": "x", "majorVersion": 1}]},
            "securityProfile": {"workloadIdentity": {"enabled": false}},
            "oidcIssuerProfile": {"enabled": false, "selfHostedIssuerUrl": "u"},
            "gateway": {"enabled": false},
            "arcAgentryConfigurations": [{"feature": "f", "settings": {"s": "v"}, "protectedSettings": {"p": "v"}}],
        },
    })
}

/// Everything that takes a body, and what was made for it by [`Site::new`].
fn targets() -> Vec<Target> {
    let authorization = format!("{}/providers/Microsoft.Authorization", group("g"));
    let role = json!({"properties": {
        "roleName": "Looker", "description": "d", "assignableScopes": [group("g")],
        "permissions": [{"actions": ["*/read"], "notActions": ["A/b/read"], "dataActions": [], "notDataActions": []}],
    }});
    let assignment = json!({"properties": {
        "roleDefinitionId": format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{READER}"),
        "principalId": "dev:ann", "principalType": "User", "description": "d", "endDateTime": "2999-01-01T00:00:00Z",
    }});
    let principals = "/providers/Microsoft.Authorization/servicePrincipals".to_owned();
    let target = |what, method, path, version, body| Target { what, method, path, version, body, strict: true };
    vec![
        target(
            "group",
            "PUT",
            group("new"),
            "2024-03-01",
            json!({"location": "here", "tags": {"a": "1"}, "managedBy": "m"}),
        ),
        target("group's part", "PATCH", group("g"), "2024-03-01", json!({"tags": {"a": "1"}, "managedBy": "m"})),
        target("cluster", "PUT", cluster("new"), "2026-05-01", new_cluster()),
        target(
            "cluster's part",
            "PATCH",
            cluster("c"),
            "2026-05-01",
            json!({"tags": {"a": "1"}, "properties": {"distribution": "k3s", "gateway": {"enabled": true}}}),
        ),
        target("role", "PUT", format!("{authorization}/roleDefinitions/{GUID}"), "2022-04-01", role),
        target("assignment", "PUT", format!("{authorization}/roleAssignments/{GUID}"), "2022-04-01", assignment),
        target(
            "service principal",
            "POST",
            principals.clone(),
            "2022-04-01",
            json!({"displayName": "ci", "secretLifetimeSeconds": 600}),
        ),
        target(
            "another secret",
            "POST",
            format!("{principals}/kept/rotate"),
            "2022-04-01",
            json!({"keepExisting": false, "secretLifetimeSeconds": 600}),
        ),
        target(
            "enrolment token",
            "POST",
            format!("{}/createEnrolmentToken", group("g")),
            "2024-03-01",
            json!({"name": "n", "expiresInSeconds": 600}),
        ),
        target(
            "withdrawal",
            "POST",
            format!("{}/withdrawEnrolmentToken", group("g")),
            "2024-03-01",
            json!({"id": "0"}),
        ),
        target(
            "credential",
            "POST",
            format!("{}/listClusterUserCredential", cluster("c")),
            "2024-01-01",
            json!({"authenticationMethod": "AAD", "clientProxy": true}),
        ),
        Target {
            strict: false,
            ..target("ids of Graph", "POST", "/v1.0/directoryObjects/getByIds".to_owned(), "1", json!({"ids": ["x"]}))
        },
    ]
}

impl Site {
    async fn new() -> Self {
        let world = World::build(&config(&section("")), Extras::default()).await;
        let issuer = Issuer::open(IssuerSettings {
            url: format!("{URL}/.towline/issuer"),
            state: world.dir.path().join("issuer"),
            ttl: Duration::from_secs(600),
            tenant: TENANT.to_owned(),
            api_audience: URL.to_owned(),
            audiences: Vec::new(),
            clients: Vec::new(),
        });
        world.gateway.set_issuer(Arc::new(issuer.unwrap()));
        let owner = world.issuer.token("owner", &[], URL, SystemTime::now());
        let site = Self { world, owner, idle: Mutex::default() };
        let principal = "/providers/Microsoft.Authorization/servicePrincipals?api-version=2022-04-01";
        for (method, target, body) in [
            ("PUT", format!("{}?api-version=2024-03-01", group("g")), json!({"location": "here"})),
            ("PUT", format!("{}?api-version=2026-05-01", cluster("c")), new_cluster()),
            ("POST", principal.to_owned(), json!({"displayName": "kept"})),
        ] {
            let made = site.send(method, &target, &body.to_string()).await;
            assert_eq!(made.status, 201, "{}", made.text());
        }
        site
    }

    async fn send(&self, method: &str, target: &str, body: &str) -> Answer {
        self.send_as(&self.owner, method, target, body, "Content-Type: application/json\r\n").await
    }

    async fn send_as(&self, token: &str, method: &str, target: &str, body: impl AsRef<[u8]>, headers: &str) -> Answer {
        let body = body.as_ref();
        let idle = self.idle.lock().unwrap().pop();
        let mut user = match idle {
            Some(user) => user,
            None => self.world.user().await,
        };
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        );
        user.send([head.as_bytes(), body].concat()).await;
        let answer = user.answer().await;
        if !answer.header("connection").is_some_and(|word| word.eq_ignore_ascii_case("close")) {
            self.idle.lock().unwrap().push(user);
        }
        answer
    }

    /// What was made at the start is there and as it was, and takes what it took.
    async fn stands(&self) {
        for target in
            [format!("{}?api-version=2024-03-01", group("g")), format!("{}?api-version=2026-05-01", cluster("c"))]
        {
            let there = self.send("GET", &target, "").await;
            assert_eq!(there.status, 200, "{}", there.text());
        }
        let list = format!("{}/providers/Microsoft.Kubernetes/connectedClusters?api-version=2026-05-01", group("g"));
        let clusters = self.send("GET", &list, "").await.json();
        assert!(clusters["value"].as_array().is_some_and(|all| !all.is_empty()), "{clusters}");
        let again =
            self.send("PUT", &format!("{}?api-version=2026-05-01", cluster("c")), &new_cluster().to_string()).await;
        assert_eq!(again.status, 200, "{}", again.text());
    }
}

/// That an answer is ARM's envelope: a code and a sentence.
fn refused(answer: &Answer, status: u16, code: &str, of: &str) {
    assert_eq!(answer.status, status, "{of}: {}", answer.text());
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], code, "{of}: {error}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{of}: {error}");
    assert!(answer.header("x-ms-request-id").is_some() || answer.header("x-towline-request-id").is_some(), "{of}");
}

/// Every value in a body: its JSON pointer, and its place as an error's target names it.
fn values(value: &Value, pointer: &str, place: &str, found: &mut Vec<(String, String)>) {
    let members: Vec<(String, String, &Value)> = match value {
        Value::Object(object) => object
            .iter()
            .map(|(name, value)| {
                let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                (format!("{pointer}/{name}"), place, value)
            })
            .collect(),
        Value::Array(list) => {
            let numbered = list.iter().enumerate();
            numbered.map(|(n, value)| (format!("{pointer}/{n}"), format!("{place}[{n}]"), value)).collect()
        }
        _ => Vec::new(),
    };
    for (pointer, place, value) in members {
        values(value, &pointer, &place, found);
        found.push((pointer, place));
    }
}

fn all_values(body: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    values(body, "", "", &mut found);
    found
}

fn with(body: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = body.clone();
    *changed.pointer_mut(pointer).unwrap() = value;
    changed
}

#[tokio::test]
async fn malformed_bodies_are_refused_by_everything_that_takes_one() {
    let site = Site::new().await;
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(33), "]".repeat(33));
    let deeper = format!("{{\"a\":{}", "[".repeat(200_000));
    let bodies: [&[u8]; 14] = [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\"x\"",
        b"null",
        b"{} {}",
        b"{\"a\":1,\"a\":2}",
        b"{\"a\":{\"b\":1,\"b\":1}}",
        b"{\"a\":\"\\u0000\"}",
        b"{\"a\":NaN}",
        b"{\"a\":\"\xff\xfe\"}",
        deep.as_bytes(),
        deeper.as_bytes(),
    ];
    for target in targets() {
        for body in bodies {
            let json = "Content-Type: application/json\r\n";
            let answer = site.send_as(&site.owner, target.method, &target.url(), body, json).await;
            let of = format!("{}: {}", target.what, String::from_utf8_lossy(&body[..body.len().min(40)]));
            refused(&answer, 400, "InvalidRequestContent", &of);
        }
        let typed = |kind: &str| format!("Content-Type: {kind}\r\n");
        for headers in [
            String::new(),
            typed("text/plain"),
            typed("application/xml"),
            typed("application/x-www-form-urlencoded"),
            typed("application/jsonx"),
            format!("{}Content-Encoding: gzip\r\n", typed("application/json")),
        ] {
            let body = target.body.to_string();
            let answer = site.send_as(&site.owner, target.method, &target.url(), &body, &headers).await;
            refused(&answer, 415, "UnsupportedMediaType", &format!("{}: {headers}", target.what));
        }
    }
    site.stands().await;
}

/// Read to its end, so that its sender sees why.
#[tokio::test]
async fn a_body_of_5_megabytes_is_refused_by_everything_that_takes_one() {
    let site = Site::new().await;
    for target in targets() {
        let long = with(&json!({"location": ""}), "/location", "x".repeat(HUGE).into()).to_string();
        let answer = site.send(target.method, &target.url(), &long).await;
        refused(&answer, 413, "RequestContentTooLarge", target.what);
    }
    site.stands().await;
}

#[tokio::test]
async fn wrong_types_and_unknown_properties_are_refused_with_their_place() {
    let site = Site::new().await;
    for target in targets().iter().filter(|target| target.strict) {
        for (pointer, place) in all_values(&target.body) {
            let is = target.body.pointer(&pointer).unwrap().clone();
            let wrong =
                [json!(7), json!(-1), json!(1.5), json!("no such word"), json!(true), json!([]), json!({"a": 1})];
            let same = |other: &Value| std::mem::discriminant(other) == std::mem::discriminant(&is);
            for other in wrong.iter().filter(|other| !same(other)) {
                let body = with(&target.body, &pointer, other.clone()).to_string();
                let answer = site.send(target.method, &target.url(), &body).await;
                let of = format!("{}: {place} = {other}", target.what);
                refused(&answer, 400, "InvalidRequestContent", &of);
                let at = answer.json()["error"]["target"].as_str().unwrap_or_default().to_owned();
                assert!(!at.is_empty() && place.starts_with(&at), "{of}: at {at:?}");
            }
            if is.is_string() {
                let body = with(&target.body, &pointer, "x".repeat(100_000).into()).to_string();
                let answer = site.send(target.method, &target.url(), &body).await;
                assert_eq!(answer.status, 400, "{}: {place} is too long: {}", target.what, answer.text());
            }
        }
        // A map of texts takes any name; every other object knows its own.
        let open = ["tags", "settings", "protectedSettings"];
        let objects = all_values(&target.body).into_iter().filter(|(pointer, place)| {
            let last = place.rsplit('.').next().unwrap_or_default();
            target.body.pointer(pointer).is_some_and(Value::is_object) && !open.contains(&last)
        });
        for (pointer, place) in objects.chain([(String::new(), String::new())]) {
            let mut body = target.body.clone();
            body.pointer_mut(&pointer).unwrap()["surprise"] = json!(1);
            let answer = site.send(target.method, &target.url(), &body.to_string()).await;
            refused(&answer, 400, "UnknownProperty", &format!("{}: {place}", target.what));
            let expected = if place.is_empty() { "surprise".to_owned() } else { format!("{place}.surprise") };
            assert_eq!(answer.json()["error"]["target"], expected, "{}", target.what);
        }
    }
    site.stands().await;
}

#[tokio::test]
async fn versions_that_there_are_not_are_refused_everywhere() {
    let site = Site::new().await;
    let lists = [
        "/subscriptions".to_owned(),
        "/tenants".to_owned(),
        format!("/subscriptions/{SUBSCRIPTION}"),
        format!("/subscriptions/{SUBSCRIPTION}/resourcegroups"),
        format!("/subscriptions/{SUBSCRIPTION}/resources"),
        format!("/subscriptions/{SUBSCRIPTION}/locations"),
        format!("/subscriptions/{SUBSCRIPTION}/providers"),
        format!("{}/providers/Microsoft.Authorization/roleDefinitions", group("g")),
        format!("{}/providers/Microsoft.Authorization/roleAssignments", group("g")),
        format!("{}/providers/Microsoft.Kubernetes/events", group("g")),
        "/providers/Microsoft.Kubernetes/operations".to_owned(),
        "/providers/Microsoft.Kubernetes/sessions".to_owned(),
        "/providers/Microsoft.Kubernetes/sessions/00".to_owned(),
    ];
    let reads = lists.into_iter().map(|path| ("GET", path, String::new()));
    // Graph's version is in its path.
    let writes = targets().into_iter().filter(|target| target.strict);
    let writes = writes.map(|target| (target.method, target.path, target.body.to_string()));
    for (method, path, body) in reads.chain(writes) {
        for (query, code) in [
            ("", "MissingApiVersionParameter"),
            ("?api-version=", "MissingApiVersionParameter"),
            ("?apiversion=2024-01-01", "MissingApiVersionParameter"),
            ("?api-version=today", "InvalidApiVersionParameter"),
            ("?api-version=2024-01-01%27%20OR%201=1", "InvalidApiVersionParameter"),
            ("?api-version=2024-01-01&api-version=2024-01-01", "InvalidQueryParameterValue"),
        ] {
            let answer = site.send(method, &format!("{path}{query}"), &body).await;
            refused(&answer, 400, code, &format!("{method} {path}{query}"));
        }
    }
    for target in targets().iter().filter(|target| target.path.starts_with("/subscriptions/")) {
        let unknown = format!("{}?api-version=1999-01-01", target.path);
        let answer = site.send(target.method, &unknown, &target.body.to_string()).await;
        refused(&answer, 400, "NoRegisteredProviderFound", target.what);
    }
    site.stands().await;
}

/// Whoever is not of a subscription's tenant cannot tell whether there is such a one; who owns all is told that there
/// is not.
#[tokio::test]
async fn subscriptions_of_others_are_out_of_reach_for_everything() {
    let site = Site::new().await;
    let stranger = site.world.issuer.token("stranger", &[], URL, SystemTime::now());
    let json = "Content-Type: application/json\r\n";
    for target in targets().iter().filter(|target| target.path.starts_with("/subscriptions/")) {
        let elsewhere = target.url().replace(SUBSCRIPTION, OTHER);
        let body = target.body.to_string();
        refused(&site.send(target.method, &elsewhere, &body).await, 404, "SubscriptionNotFound", target.what);
        for url in [&elsewhere, &target.url()] {
            let answer = site.send_as(&stranger, target.method, url, &body, json).await;
            refused(&answer, 403, "AuthorizationFailed", target.what);
        }
    }
    for path in ["", "/resourcegroups", "/resources", "/providers", "/locations"] {
        let version = if path == "/resourcegroups" { "2024-03-01" } else { "2022-12-01" };
        let url = format!("/subscriptions/{OTHER}{path}?api-version={version}");
        refused(&site.send_as(&stranger, "GET", &url, "", "").await, 403, "AuthorizationFailed", &url);
        refused(&site.send("GET", &url, "").await, 404, "SubscriptionNotFound", &url);
    }
    site.stands().await;
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused_by_every_kind() {
    let site = Site::new().await;
    let named = targets().into_iter().filter(|target| target.method == "PUT");
    for target in named {
        let above = target.path.rsplit_once('/').unwrap().0.to_owned();
        let long = "n".repeat(300);
        for (bad, code) in [
            ("..", ""),
            (".", ""),
            ("%2e%2e", ""),
            ("..%2f..%2fx", ""),
            ("..;x", ""),
            ("a%5cb", ""),
            ("a%00b", ""),
            ("a%0d%0ab", ""),
            ("%c0%ae", ""),
            ("%zz", ""),
            ("a%252e%252e", "InvalidResourceId"),
            ("a%3fb", "InvalidResourceId"),
            ("a%23b", "InvalidResourceId"),
            (long.as_str(), "InvalidResourceId"),
            ("a%20b", "InvalidResourceName"),
            ("%27%3b%20DROP%20TABLE%20resources%3b--", "InvalidResourceName"),
            ("%22%20OR%201=1", "InvalidResourceName"),
            ("%e2%80%ae", "InvalidResourceName"),
            ("a*", "InvalidResourceName"),
        ] {
            for method in ["PUT", "GET", "DELETE"] {
                let url = format!("{above}/{bad}?api-version={}", target.version);
                let answer = site
                    .send(method, &url, if method == "PUT" { target.body.to_string() } else { String::new() }.as_str())
                    .await;
                let of = format!("{method} {}: {bad}", target.what);
                if method == "PUT" || code != "InvalidResourceName" {
                    assert_eq!(answer.status, 400, "{of}: {}", answer.text());
                    let found = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
                    assert!(!found.is_empty() && (code.is_empty() || found == code), "{of}: {found}");
                } else {
                    // Nothing of that name was ever made.
                    assert!(matches!(answer.status, 204 | 404), "{of}: {}", answer.text());
                }
            }
        }
    }
    for path in [
        "/providers/Microsoft.Authorization/servicePrincipals/%27%20OR%20%271%27=%271",
        "/providers/Microsoft.Kubernetes/sessions/%27%20OR%20%271%27=%271",
    ] {
        let answer = site.send("GET", &format!("{path}?api-version=2022-04-01"), "").await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
    }
    site.stands().await;
}

const SQL: [&str; 6] = [
    "'; DROP TABLE resources; --",
    "' OR '1'='1",
    "\" UNION SELECT body FROM resources --",
    "x'); DELETE FROM agents; --",
    "$1 ?1 :a @b {0} %s",
    "\\'; \u{2019}--/*",
];

/// It is refused, or it is a text like any other and comes back as it was sent.
#[tokio::test]
async fn sql_in_every_text_is_a_text() {
    let site = Site::new().await;
    for target in targets() {
        for (pointer, place) in all_values(&target.body) {
            if !target.body.pointer(&pointer).unwrap().is_string() {
                continue;
            }
            for sql in SQL {
                let body = with(&target.body, &pointer, sql.into()).to_string();
                let answer = site.send(target.method, &target.url(), &body).await;
                let of = format!("{}: {place} = {sql}", target.what);
                assert!(answer.status < 500, "{of}: {}", answer.text());
                let kept = answer.json().pointer(&pointer).cloned().filter(|_| answer.status < 300);
                assert!(kept.is_none_or(|kept| kept == sql), "{of}: {}", answer.text());
            }
        }
        let encoded = |text: &str| url_encoded(text);
        for sql in SQL {
            for header in ["If-Match", "If-None-Match", "x-ms-client-request-id", "x-ms-correlation-request-id"] {
                let Some(sql) = Some(sql).filter(|sql| sql.is_ascii()) else { continue };
                let headers = format!("Content-Type: application/json\r\n{header}: {sql}\r\n");
                let body = target.body.to_string();
                let answer = site.send_as(&site.owner, target.method, &target.url(), body, &headers).await;
                assert!(answer.status < 500, "{}: {header}: {sql}: {}", target.what, answer.text());
            }
            for parameter in ["$filter", "$top", "$skipToken", "api-version", "after", "cluster", "onlyIfEmpty"] {
                for path in [
                    format!("{}/providers/Microsoft.Kubernetes/connectedClusters", group("g")),
                    format!("{}/providers/Microsoft.Authorization/roleAssignments", group("g")),
                    format!("{}/providers/Microsoft.Kubernetes/events", group("g")),
                    "/providers/Microsoft.Kubernetes/sessions".to_owned(),
                ] {
                    if target.what != "group" {
                        continue;
                    }
                    let url = format!("{path}?api-version=2022-04-01&{}={}", parameter, encoded(sql));
                    let answer = site.send("GET", &url, "").await;
                    assert!(answer.status < 500, "{url}: {}", answer.text());
                }
            }
        }
    }
    site.stands().await;
}

fn url_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Of several who create one thing at once one does, and the others change what it made or are told of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_clients_that_race_for_one_name_one_creates() {
    const CLIENTS: usize = 6;
    let site = Site::new().await;
    for target in targets().iter().filter(|target| target.method == "PUT") {
        // Two names that differ, because nothing is deleted in between.
        for (name, only_new, others) in
            [(GUID, "If-None-Match: *\r\n", &[412, 409][..]), (ANOTHER_GUID, "", &[200, 409])]
        {
            let mut body = target.body.clone();
            for (property, other) in [("roleName", "Another"), ("principalId", "dev:bob")] {
                if name != GUID && body["properties"][property].is_string() {
                    body["properties"][property] = json!(other);
                }
            }
            let (url, body) = (target.url_of(name), body.to_string());
            let headers = format!("Content-Type: application/json\r\n{only_new}");
            let sends = (0..CLIENTS).map(|_| site.send_as(&site.owner, target.method, &url, &body, &headers));
            let mut answers = Vec::new();
            for answer in futures_util::future::join_all(sends).await {
                answers.push((answer.status, answer.text()));
            }
            let created = answers.iter().filter(|(status, _)| *status == 201).count();
            assert_eq!(created, 1, "{}: {answers:?}", target.what);
            assert!(
                answers.iter().all(|(status, _)| *status == 201 || others.contains(status)),
                "{}: {answers:?}",
                target.what
            );
        }
    }
    let principal = "/providers/Microsoft.Authorization/servicePrincipals?api-version=2022-04-01";
    let sends = (0..CLIENTS).map(|_| site.send("POST", principal, r#"{"displayName":"one"}"#));
    let statuses: Vec<u16> = futures_util::future::join_all(sends).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 409)), "{statuses:?}");
    site.stands().await;
}

/// What is only read has no other methods, and parameters that mean nothing are named.
#[tokio::test]
async fn what_is_only_read_is_not_written_and_names_bad_parameters() {
    let site = Site::new().await;
    let events = format!("{}/providers/Microsoft.Kubernetes/events?api-version=2026-05-01", group("g"));
    for url in [
        "/subscriptions?api-version=2022-12-01".to_owned(),
        format!("/subscriptions/{SUBSCRIPTION}?api-version=2022-12-01"),
        "/tenants?api-version=2022-12-01".to_owned(),
        events.clone(),
        format!("/subscriptions/{SUBSCRIPTION}/resources?api-version=2024-03-01"),
    ] {
        for method in ["PUT", "PATCH", "DELETE"] {
            let answer = site.send(method, &url, "{}").await;
            refused(&answer, 405, "MethodNotAllowed", &format!("{method} {url}"));
            assert!(answer.header("allow").is_some_and(|allow| allow.contains("GET")), "{method} {url}");
        }
    }
    let clusters = format!("{}/providers/Microsoft.Kubernetes/connectedClusters?api-version=2026-05-01", group("g"));
    for (list, bad) in [
        (&clusters, "$top=0"),
        (&clusters, "$top=-1"),
        (&clusters, "$top=1.5"),
        (&clusters, "$top=99999999999999999999"),
        (&clusters, "$skipToken=AAAA"),
        (&clusters, "$skipToken=%27"),
        (&clusters, "$top=1&$TOP=2"),
        (&events, "$top=0"),
        (&events, "$top=x"),
        (&events, "after=-1"),
        (&events, "after=x"),
        (&events, "after=99999999999999999999"),
    ] {
        let answer = site.send("GET", &format!("{list}&{bad}"), "").await;
        refused(&answer, 400, "InvalidQueryParameterValue", bad);
    }
    let long = format!("name%20eq%20%27{}%27", "x".repeat(2000));
    for filter in ["x", "name%20eq%20%27a", "name%20like%20%27a%27", "(name%20eq%20%27a%27)", long.as_str()] {
        let answer = site.send("GET", &format!("{clusters}&$filter={filter}"), "").await;
        refused(&answer, 400, "InvalidFilter", filter);
    }
}
