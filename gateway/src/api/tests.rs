//! The API over a real store, without sockets: what a client sends and gets.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use auth::token::testing::TestIssuer;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use daemon::Shutdown;
use http_body_util::{BodyExt, Full};
use serde_json::json;

mod bounds;
mod connectivity;
mod events;
mod extension_types;
mod extensions;
mod fleet;
mod flux_configurations;
mod flux_logs;
mod operations;
mod owners;
mod quotas;
mod refusals;
mod semantics;
mod sent_back;
mod sessions;
mod size;
mod source_control_configurations;
mod upgrades;
mod withdrawn;
use types::instants::instant;

use super::*;
use crate::{
    audit::AuditLog,
    config::{
        Dynamic,
        api::{Api, StoreAt, Subscription},
        quotas::{Quota, Quotas},
    },
    control::Parts,
    identity::Principal,
    metrics::Metrics,
    policy::DenialReason,
    resources,
    snapshot::Snapshots,
    store::{Store, protect::Protector},
};

/// How long a cluster may take, where the configuration does not say.
const DUE_MS: i64 = 48 * 3600 * 1000;
const URL: &str = "https://gateway.test";
const SUBSCRIPTION: &str = "11111111-1111-4111-8111-111111111111";
const TENANT: &str = "22222222-2222-4222-8222-222222222222";
const CLUSTER_USER: &str = "00493d72-78f6-4148-b6c5-d3ce8e4799dd";
const ONBOARDING: &str = "34e09817-6cbe-4d01-b1a2-e0eac5743d41";
const READER: &str = "acdd72a7-3385-48ef-bd42-f606fba81ae7";
const CLUSTERS: &str = "Microsoft.Kubernetes/connectedClusters";
const ASSIGNMENTS: &str = "Microsoft.Authorization/roleAssignments";
const VERSION: &str = "api-version=2024-01-01";

struct Bench {
    control: Arc<Control>,
    snapshots: Arc<Snapshots>,
    issuer: TestIssuer,
    clock_ms: Arc<AtomicI64>,
    folder: tempfile::TempDir,
    built_in: Option<Arc<crate::issuer::Issuer>>,
    shutdown: Shutdown,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = TestIssuer::new("https://issuer.test");
        let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
        Self::open(folder, issuer, clock_ms, None).await
    }

    /// With other quotas.
    async fn with_quotas(group: Quota, subscription: Quota) -> Self {
        let (folder, issuer) = (tempfile::tempdir().unwrap(), TestIssuer::new("https://issuer.test"));
        let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
        Self::open_with(folder, issuer, clock_ms, None, Quotas { group, subscription }).await
    }

    /// With other owners in its configuration than `owner`.
    async fn owned_by(owners: Vec<String>) -> Self {
        let (folder, issuer) = (tempfile::tempdir().unwrap(), TestIssuer::new("https://issuer.test"));
        let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
        Self::open(folder, issuer, clock_ms, Some(owners)).await
    }

    async fn open(
        folder: tempfile::TempDir,
        issuer: TestIssuer,
        clock_ms: Arc<AtomicI64>,
        owners: Option<Vec<String>>,
    ) -> Self {
        Self::open_with(folder, issuer, clock_ms, owners, Quotas::default()).await
    }

    async fn open_with(
        folder: tempfile::TempDir,
        issuer: TestIssuer,
        clock_ms: Arc<AtomicI64>,
        owners: Option<Vec<String>>,
        quotas: Quotas,
    ) -> Self {
        let verifier = Arc::new(issuer.verifier());
        let owner = issuer.token("owner", &[], URL, SystemTime::now());
        let owner = verifier.verify(&owner, URL, SystemTime::now()).await.unwrap();
        let settings = Api {
            url: URL.to_owned(),
            tenant: TENANT.to_owned(),
            store: StoreAt::Sqlite(folder.path().join("towline.db")),
            store_key_file: folder.path().join("store.key"),
            subscriptions: vec![Subscription { id: SUBSCRIPTION.to_owned(), name: "test".to_owned() }],
            owners: owners.unwrap_or_else(|| vec![Caller::of(&owner).object_id().to_owned()]),
            ca: None,
            ca_file: None,
            secret_files: Vec::new(),
            webhooks: Vec::new(),
            catalogue_dir: Some(folder.path().join("catalogue")).filter(|catalogue| catalogue.exists()),
            upgrades: crate::config::upgrades::Upgrades::default(),
            quotas,
            reads_per_minute: 12_000,
            writes_per_minute: 60,
            operation_timeout: crate::config::api::OPERATION_TIMEOUT,
        };
        let store = Store::open(&settings.store.url()).await.unwrap();
        let protector = Protector::open_or_create(&settings.store_key_file).unwrap();
        let snapshots = Arc::new(Snapshots::new(Snapshot::new(&Dynamic::default(), verifier)));
        let now = Arc::clone(&clock_ms);
        let clock =
            Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(now.load(Ordering::SeqCst).unsigned_abs()));
        let control = Control::open(Parts {
            settings,
            store,
            protector,
            clock,
            snapshots: Arc::clone(&snapshots),
            tunnels: Arc::default(),
            kinds: resources::for_control(),
        })
        .await
        .unwrap();
        let shutdown = Shutdown::new();
        let tasks = vec![
            tokio::spawn(Arc::clone(&control).follow(shutdown.clone())),
            tokio::spawn(Arc::clone(&control).work(crate::control::work::WORKS, shutdown.clone())),
        ];
        Self { control, snapshots, issuer, clock_ms, folder, built_in: None, shutdown, tasks }
    }

    /// Stops and starts again on the same store.
    async fn restart(self) -> Self {
        self.shutdown.close();
        for task in self.tasks {
            task.await.unwrap();
        }
        self.control.store.close().await;
        let Api { owners, quotas, .. } = self.control.settings.clone();
        Self::open_with(self.folder, self.issuer, self.clock_ms, Some(owners), quotas).await
    }

    async fn call_with(
        &self,
        user: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let token = self.issuer.token(user, &["team"], URL, SystemTime::now());
        let mut request =
            Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = body.map(|body| body.to_string()).unwrap_or_default();
        if !bytes.is_empty() {
            request = request.header("content-type", "application/json");
        }
        self.send(request.body(Full::new(Bytes::from(bytes))).unwrap()).await
    }

    async fn call(&self, user: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.call_with(user, method, path, body, &[]).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (head, body) = self.respond(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    async fn respond<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let id = RequestId([7; 16]);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut record =
            Record::open(AuditLog::nowhere(), Arc::new(Metrics::new()), id, peer, request.method().as_str());
        // As the router hands it on: decoded once.
        let path = request.uri().path().replace("%20", " ");
        let snapshot = self.snapshots.load();
        let issuer = self.built_in.clone();
        let site = Site { control: &self.control, snapshot, issuer, sessions: None, hops: None };
        serve(site, id, &path, request, &mut record).await
    }

    async fn group(&self, name: &str) {
        let made = self.call("owner", "PUT", &group(name), Some(json!({"location": "eastus"}))).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.body);
    }

    async fn cluster(&self, group: &str, name: &str) -> Answer {
        self.call("owner", "PUT", &cluster(group, name), Some(new_cluster())).await
    }

    async fn assign(&self, user: &str, role: &str, scope: &str, extra: Value) -> Answer {
        let mut properties = json!({
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{role}"),
            "principalId": self.object_id(user).await,
            "principalType": "User",
        });
        properties.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap_or_default());
        let name = crate::random::guid();
        let path = format!("{scope}/providers/{ASSIGNMENTS}/{name}?api-version=2022-04-01");
        self.call("owner", "PUT", &path, Some(json!({"properties": properties}))).await
    }

    async fn identity(&self, user: &str, audience: &str) -> Arc<Identity> {
        let (token, now) = (self.issuer.token(user, &["team"], audience, SystemTime::now()), SystemTime::now());
        self.issuer.verifier().verify(&token, audience, now).await.unwrap()
    }

    async fn object_id(&self, user: &str) -> String {
        Caller::of(&self.identity(user, URL).await).object_id().to_owned()
    }

    /// Keeps copies of a resource beside it, as somebody else would have made them.
    async fn copied(&self, id: &str, copies: u64) {
        use crate::store::{
            batch::{Batch, Expect},
            resources::Stored,
        };
        let kept = self.control.store.get(&id.to_ascii_lowercase()).await.unwrap().unwrap();
        let copy = |n| Stored { key: format!("{}-{n}", kept.key), id: format!("{}-{n}", kept.id), ..kept.clone() };
        let puts = (0..copies).map(|n| (copy(n), Expect::Absent)).collect();
        self.control.write(&Batch { puts, ..Batch::default() }).await.unwrap().unwrap();
    }

    /// Follows an operation to its end.
    async fn ended(&self, user: &str, url: &str) -> Answer {
        let path = url.strip_prefix(URL).unwrap().to_owned();
        loop {
            let answer = self.call(user, "GET", &path, None).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            if answer.body["status"] != "InProgress" {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn group(name: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}?api-version=2024-03-01")
}

fn cluster_id(group: &str, name: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/{CLUSTERS}/{name}")
}

fn cluster(group: &str, name: &str) -> String {
    format!("{}?{VERSION}", cluster_id(group, name))
}

fn new_cluster() -> Value {
    json!({
        "location": "eastus",
        "tags": {"a": "1", "b": "2"},
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"},
    })
}

#[tokio::test]
async fn r1_a_cluster_is_created_shown_listed_changed_and_deleted() {
    let site = Bench::new().await;
    site.group("G").await;
    let made = site.cluster("G", "Edge").await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.body["id"], cluster_id("G", "Edge"));
    assert_eq!(made.body["type"], CLUSTERS);
    assert_eq!(made.body["identity"]["tenantId"], TENANT);
    let properties = &made.body["properties"];
    // Until the operation has ended, as far as this client knows.
    assert_eq!(properties["provisioningState"], "Provisioning");
    assert_eq!(properties["distribution"], "k3s");
    assert_eq!(properties["connectivityStatus"], "AgentNotInstalled");
    assert!(properties["totalNodeCount"].is_null() && properties.get("gateway").is_none());
    let operation = site.ended("owner", made.header("azure-asyncoperation")).await;
    assert_eq!(operation.body["status"], "Succeeded");
    assert_eq!(made.header("retry-after"), "1");

    // Any case finds it (docs/features.md R2), and its own case is shown.
    let shown =
        site.call("owner", "GET", &cluster("g", "EDGE").replace("resourceGroups", "resourcegroups"), None).await;
    let mut settled = made.body.clone();
    settled["properties"]["provisioningState"] = "Succeeded".into();
    assert_eq!((shown.status, &shown.body), (200, &settled));
    assert_eq!(shown.header("etag"), made.header("etag"));
    // Creating it again changes it and keeps its identity (docs/features.md R3).
    let again = site.cluster("g", "edge").await;
    assert_eq!(again.status, 200, "{}", again.body);
    assert_eq!(again.body["identity"]["principalId"], made.body["identity"]["principalId"]);
    assert_eq!(again.body["systemData"]["createdAt"], made.body["systemData"]["createdAt"]);
    // Tags are replaced as a whole (docs/features.md R12), properties one by one.
    let patch = json!({"tags": {"c": "3"}, "properties": {"azureHybridBenefit": "true"}});
    let changed = site.call("owner", "PATCH", &cluster("G", "Edge"), Some(patch)).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(changed.body["tags"], json!({"c": "3"}));
    assert_eq!(changed.body["properties"]["azureHybridBenefit"], "True");
    assert_eq!(changed.body["properties"]["distribution"], "k3s");
    for scope in [format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/G"), format!("/subscriptions/{SUBSCRIPTION}")] {
        let list = site.call("owner", "GET", &format!("{scope}/providers/{CLUSTERS}?{VERSION}"), None).await;
        assert_eq!(list.body["value"].as_array().map(Vec::len), Some(1), "{}", list.body);
        assert!(list.body.get("nextLink").is_none());
    }

    let gone = site.call("owner", "DELETE", &cluster("G", "Edge"), None).await;
    assert_eq!(gone.status, 202);
    assert!(!gone.header("location").is_empty());
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    let result = site.call("owner", "GET", gone.header("location").strip_prefix(URL).unwrap(), None).await;
    assert_eq!(result.status, 200);
    let shown = site.call("owner", "GET", &cluster("G", "Edge"), None).await;
    assert_eq!((shown.status, shown.code()), (404, "ResourceNotFound"));
    assert_eq!(site.call("owner", "DELETE", &cluster("G", "Edge"), None).await.status, 204);
}

#[tokio::test]
async fn r2_a_name_is_the_same_in_any_case_and_keeps_the_one_that_it_was_created_in() {
    let site = Bench::new().await;
    site.group("Fleet").await;
    assert_eq!(site.cluster("FLEET", "Edge.West-1_a").await.status, 201);
    for (group, name) in [("fleet", "edge.west-1_a"), ("FLEET", "EDGE.WEST-1_A")] {
        assert_eq!(site.cluster(group, name).await.status, 200, "the same one");
        let shown = site.call("owner", "GET", &cluster(group, name), None).await;
        assert_eq!((shown.status, shown.body["name"].as_str()), (200, Some("Edge.West-1_a")), "{}", shown.body);
    }
    for bad in [".edge", "-edge", "_edge", "edge%20west", "edge!", &"e".repeat(64)] {
        let refused = site.cluster("fleet", bad).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidResourceName"), "{bad}: {}", refused.body);
    }
}

#[tokio::test]
async fn r5_a_cluster_has_one_identity_of_the_systems_and_no_other() {
    let site = Bench::new().await;
    site.group("g").await;
    let made = site.cluster("g", "c").await.body["identity"].clone();
    assert_eq!((&made["type"], &made["tenantId"]), (&json!("SystemAssigned"), &json!(TENANT)));
    assert!(crate::guid::is_guid(made["principalId"].as_str().unwrap()), "{made}");
    assert_eq!(site.cluster("g", "c").await.body["identity"], made, "it stays");
    assert_ne!(site.cluster("g", "d").await.body["identity"]["principalId"], made["principalId"]);
    for identity in [
        json!({"type": "UserAssigned"}),
        json!({"type": "SystemAssigned,UserAssigned"}),
        json!({"type": "UserAssigned", "userAssignedIdentities": {"/x": {}}}),
        json!({}),
        json!("SystemAssigned"),
    ] {
        let mut body = new_cluster();
        body["identity"] = identity.clone();
        let refused = site.call("owner", "PUT", &cluster("g", "e"), Some(body)).await;
        assert_eq!(refused.status, 400, "{identity}: {}", refused.body);
    }
    let mut body = new_cluster();
    body["identity"] = json!({"type": "None"});
    let none = site.call("owner", "PUT", &cluster("g", "e"), Some(body)).await;
    assert_eq!((none.status, &none.body["identity"]["principalId"]), (201, &Value::Null), "{}", none.body);
}

/// Counted for each principal in each subscription, and said in every answer.
#[tokio::test]
async fn n5_too_many_writes_are_refused_until_later_and_others_go_on() {
    let site = Bench::new().await;
    site.group("g").await;
    let left = |answer: &Answer, what: &str| answer.header(&format!("x-ms-ratelimit-remaining-{what}")).to_owned();
    let read = site.call("owner", "GET", &group("g"), None).await;
    assert_eq!(left(&read, "subscription-reads"), "11999");
    assert_eq!(
        left(&site.call("owner", "GET", "/tenants?api-version=2020-01-01", None).await, "tenant-reads"),
        "11999"
    );
    let mut refused = None;
    for _ in 0..2000 {
        let answer = site.call("owner", "PUT", &group("g"), Some(json!({"location": "eastus"}))).await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("60 in a minute");
    assert_eq!((refused.status, refused.code()), (429, "SubscriptionRequestsThrottled"), "{}", refused.body);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(left(&refused, "subscription-writes"), "0");
    assert_eq!(site.call("owner", "GET", &group("g"), None).await.status, 200, "reads are counted apart");
    let other = site.call("bob", "PUT", &group("g"), Some(json!({"location": "eastus"}))).await;
    assert_eq!((other.status, left(&other, "subscription-writes")), (403, "59".to_owned()), "and so is everybody");
}

#[tokio::test]
async fn r1_bad_clusters_are_refused_with_the_place_of_the_fault() {
    let site = Bench::new().await;
    site.group("g").await;
    let with = |at: &str, value: Value| {
        let mut body = new_cluster();
        *body.pointer_mut(at).unwrap_or(&mut Value::Null) = value;
        body
    };
    let key = |bytes: &[u8]| json!(BASE64.encode(bytes));
    let at = "/properties/agentPublicKeyCertificate";
    for (body, code, target) in [
        (json!({}), "InvalidRequestContent", ""),
        (with("/location", Value::Null), "MissingRequiredProperty", "location"),
        (with("/identity", Value::Null), "MissingRequiredProperty", "identity"),
        (with("/identity/type", Value::Null), "MissingRequiredProperty", "identity.type"),
        (with("/properties", Value::Null), "MissingRequiredProperty", "properties"),
        (with("/identity/type", json!("UserAssigned")), "InvalidRequestContent", "identity.type"),
        (with(at, Value::Null), "MissingRequiredProperty", "properties.agentPublicKeyCertificate"),
        (with(at, json!("not base64")), "InvalidRequestContent", "properties.agentPublicKeyCertificate"),
        (with(at, key(b"no key")), "InvalidRequestContent", "properties.agentPublicKeyCertificate"),
        (with("/properties/distribution", json!(7)), "InvalidRequestContent", "properties.distribution"),
        (with("/tags", json!({"a": 1})), "InvalidRequestContent", "tags"),
    ] {
        let answer = site.call("owner", "PUT", &cluster("g", "c"), Some(body)).await;
        assert_eq!((answer.status, answer.code()), (400, code), "{}", answer.body);
        assert_eq!(answer.body["error"]["target"].as_str().unwrap_or_default(), target, "{}", answer.body);
    }
    for name in ["-c", "a%20b", "x".repeat(64).as_str(), "c.", "a'b"] {
        let answer = site.cluster("g", name).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidResourceName"), "{name}: {}", answer.body);
    }
    let elsewhere = site.cluster("nowhere", "c").await;
    assert_eq!((elsewhere.status, elsewhere.code()), (404, "ResourceGroupNotFound"));
    let foreign = cluster("g", "c").replace(SUBSCRIPTION, TENANT);
    let foreign = site.call("owner", "PUT", &foreign, Some(new_cluster())).await;
    assert_eq!((foreign.status, foreign.code()), (404, "SubscriptionNotFound"));
}

#[tokio::test]
async fn r12_a_resource_does_not_move() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let mut moved = new_cluster();
    moved["location"] = json!("West Europe");
    let answer = site.call("owner", "PUT", &cluster("g", "c"), Some(moved.clone())).await;
    assert_eq!((answer.status, answer.code()), (409, "InvalidResourceLocation"));
    moved["location"] = json!("East US");
    assert_eq!(site.call("owner", "PUT", &cluster("g", "c"), Some(moved)).await.status, 200);
}

#[tokio::test]
async fn two_writers_never_lose_an_update() {
    let site = Bench::new().await;
    site.group("g").await;
    let made = site.cluster("g", "c").await;
    let tag = made.header("etag").to_owned();
    let patch = |value: &str| Some(json!({"tags": {"winner": value}}));
    let first = site.call_with("owner", "PATCH", &cluster("g", "c"), patch("one"), &[("if-match", &tag)]).await;
    let second = site.call_with("owner", "PATCH", &cluster("g", "c"), patch("two"), &[("if-match", &tag)]).await;
    assert_eq!((first.status, second.status, second.code()), (200, 412, "PreconditionFailed"));
    let exists =
        site.call_with("owner", "PUT", &cluster("g", "c"), Some(new_cluster()), &[("if-none-match", "*")]).await;
    assert_eq!(exists.status, 412);
    let unknown = site.call_with("owner", "PUT", &cluster("g", "d"), Some(new_cluster()), &[("if-match", "*")]).await;
    assert_eq!(unknown.status, 412);
    let same =
        site.call_with("owner", "GET", &cluster("g", "c"), None, &[("if-none-match", first.header("etag"))]).await;
    assert_eq!((same.status, &same.body), (304, &Value::Null));
    // Without a condition every one of many at once is done, one after the other.
    let patches = (0..20).map(|n| {
        let site = &site;
        async move {
            let patch = json!({"properties": {"distribution": format!("d{n}")}});
            site.call("owner", "PATCH", &cluster("g", "c"), Some(patch)).await.status
        }
    });
    let outcomes = futures_util::future::join_all(patches).await;
    assert!(outcomes.iter().all(|status| matches!(status, 200 | 409)), "{outcomes:?}");
    assert!(outcomes.contains(&200));
}

#[tokio::test]
async fn pages_stay_right_while_rows_change() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a", "b", "c", "d", "e"] {
        site.cluster("g", name).await;
    }
    let path = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/{CLUSTERS}?{VERSION}&$top=2");
    let first = site.call("owner", "GET", &path, None).await;
    let next = first.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    let gone = site.call("owner", "DELETE", &cluster("g", "a"), None).await;
    site.ended("owner", gone.header("azure-asyncoperation")).await;
    site.cluster("g", "aa").await;
    let second = site.call("owner", "GET", &next, None).await;
    let names = |answer: &Answer| -> Vec<String> {
        answer.body["value"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names(&first), names(&second)), (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()]));
    let next = second.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap();
    let third = site.call("owner", "GET", next, None).await;
    assert_eq!(names(&third), ["e"]);
    assert!(third.body.get("nextLink").is_none());
    for bad in ["$top=0", "$top=x", "$skipToken=%00", "$skipToken=x&$skipToken=y"] {
        let answer = site.call("owner", "GET", &path.replace("$top=2", bad), None).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidQueryParameterValue"), "{bad}");
    }
}

#[tokio::test]
async fn r10_a_group_takes_what_it_holds_along_and_a_restart_goes_on_with_it() {
    let site = Bench::new().await;
    site.group("g").await;
    site.group("other").await;
    for name in ["a", "b"] {
        site.cluster("g", name).await;
    }
    site.cluster("other", "c").await;
    // Nobody carries it out before the restart.
    for task in &site.tasks {
        task.abort();
    }
    let site = Bench { tasks: vec![tokio::spawn(Arc::clone(&site.control).follow(site.shutdown.clone()))], ..site };
    let gone = site.call("owner", "DELETE", &group("G"), None).await;
    assert_eq!(gone.status, 202);
    let shown = site.call("owner", "GET", &group("g"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Deleting");
    let busy = site.call("owner", "PUT", &group("g"), Some(json!({"location": "eastus"}))).await;
    assert_eq!((busy.status, busy.code()), (409, "ResourceBeingDeleted"));
    let at = gone.header("azure-asyncoperation").to_owned();
    let site = site.restart().await;
    assert_eq!(site.ended("owner", &at).await.body["status"], "Succeeded");
    assert_eq!(site.call("owner", "HEAD", &group("g"), None).await.status, 404);
    assert_eq!(site.call("owner", "GET", &cluster("g", "a"), None).await.status, 404);
    assert_eq!(site.call("owner", "HEAD", &group("other"), None).await.status, 204);
    assert_eq!(site.call("owner", "GET", &cluster("other", "c"), None).await.status, 200);
}

#[tokio::test]
async fn s1_the_onboarding_role_creates_clusters_and_nothing_else() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "theirs").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let assigned = site.assign("robot", ONBOARDING, &scope, json!({})).await;
    assert_eq!(assigned.status, 201, "{}", assigned.body);
    let made = site.call("robot", "PUT", &cluster("g", "own"), Some(new_cluster())).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let assignment = format!("{scope}/providers/{ASSIGNMENTS}/{}?api-version=2022-04-01", crate::random::guid());
    let credential = format!("{}/listClusterUserCredential?{VERSION}", cluster_id("g", "theirs"));
    let forbidden = [
        ("DELETE", cluster("g", "theirs"), "Microsoft.Kubernetes/connectedClusters/delete"),
        ("POST", credential, "Microsoft.Kubernetes/connectedClusters/listClusterUserCredential/action"),
        ("PUT", assignment, "Microsoft.Authorization/roleAssignments/write"),
        ("PUT", group("mine"), "Microsoft.Resources/subscriptions/resourceGroups/write"),
        ("DELETE", group("g"), "Microsoft.Resources/subscriptions/resourceGroups/delete"),
        ("PUT", cluster("other", "c"), "Microsoft.Kubernetes/connectedClusters/write"),
    ];
    for (method, path, action) in forbidden {
        let answer = site.call("robot", method, &path, Some(json!({"location": "eastus"}))).await;
        assert_eq!((answer.status, answer.code()), (403, "AuthorizationFailed"), "{method} {path}: {}", answer.body);
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("'{action}'")) && message.contains("/subscriptions/"), "{message}");
    }
}

#[tokio::test]
async fn who_may_not_read_cannot_tell_what_exists() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "there").await;
    for method in ["GET", "DELETE"] {
        let real = site.call("stranger", method, &cluster("g", "there"), None).await;
        let none = site.call("stranger", method, &cluster("g", "other"), None).await;
        let nowhere = site.call("stranger", method, &cluster("nowhere", "other"), None).await;
        let text =
            |answer: &Answer, name: &str, group: &str| answer.body.to_string().replace(name, "X").replace(group, "Y");
        assert_eq!((real.status, none.status, nowhere.status), (403, 403, 403));
        assert_eq!(text(&real, "there", "/g/"), text(&none, "other", "/g/"));
        assert_eq!(text(&real, "there", "/g/"), text(&nowhere, "other", "/nowhere/"));
    }
    let list = site.call("stranger", "GET", "/subscriptions?api-version=2022-12-01", None).await;
    assert_eq!((list.status, list.body["value"].as_array().map(Vec::len)), (200, Some(0)));
    let list = site.call("owner", "GET", "/subscriptions?api-version=2022-12-01", None).await;
    assert_eq!(list.body["value"][0]["subscriptionId"], SUBSCRIPTION);
    assert_eq!(list.body["value"][0]["tenantId"], TENANT);
}

/// As ARM takes them. `Ⱥ` has two bytes and its lower case three, so that keys and texts have other lengths.
#[tokio::test]
async fn groups_of_any_alphabet_are_found_in_any_case_and_after_a_restart() {
    let mut site = Bench::new().await;
    let names =
        [("Entwicklung-Ü", "ENTWICKLUNG-ü"), ("ȺȺẞ(1)", "ⱥⱥß(1)"), ("開発", "開発"), ("-Проект_2", "-проект_2")];
    let (mut reader, cluster_of) =
        (Vec::new(), |group: &str| cluster_id(group, "C").parse::<types::ids::ClusterId>().unwrap());
    for (name, other) in names {
        site.group(name).await;
        assert_eq!(site.cluster(other, "C").await.status, 201, "{name}");
        reader.push(site.assign("ann", CLUSTER_USER, &cluster_id(other, "c"), json!({})).await.status);
    }
    assert_eq!(reader, [201; 4]);
    for round in 0..2 {
        for (name, other) in names {
            assert_eq!(site.cluster(name, "c").await.status, 200, "the same one");
            let shown = site.call("owner", "GET", &group(other), None).await;
            assert_eq!((shown.status, shown.body["name"].as_str()), (200, Some(name)), "{}", shown.body);
            let list = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{other}/providers/{CLUSTERS}?{VERSION}");
            let list = site.call("owner", "GET", &list, None).await;
            assert_eq!(list.body["value"].as_array().map(Vec::len), Some(1), "{}", list.body);
            let list = format!(
                "/subscriptions/{SUBSCRIPTION}/resources?api-version=2021-04-01&$filter=resourceGroup%20eq%20'{other}'"
            );
            let list = site.call("owner", "GET", &list, None).await;
            assert_eq!(list.body["value"].as_array().map(Vec::len), Some(1), "{}", list.body);
            let id = cluster_of(other);
            let principal = Principal::User(site.identity("ann", &id.audience()).await);
            let snapshot = site.snapshots.load();
            assert_eq!(snapshot.decide(&principal, snapshot.cluster(&id.key())), Ok(()), "{name}, round {round}");
        }
        site = site.restart().await;
    }
    let gone = site.call("owner", "DELETE", &group("ENTWICKLUNG-ü"), None).await;
    assert_eq!(gone.status, 202, "{}", gone.body);
    let ended = site.ended("owner", gone.header("azure-asyncoperation")).await;
    assert_eq!(ended.body["status"], "Succeeded", "{}", ended.body);
    assert_eq!(site.call("owner", "GET", &cluster("Entwicklung-Ü", "C"), None).await.status, 404);
    for bad in ["a.", "u\u{308}", "a\u{a0}b", "a\u{202e}b", &"ü".repeat(91)] {
        let refused = site.call("owner", "PUT", &group(bad), Some(json!({"location": "eastus"}))).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidResourceName"), "{bad:?}: {}", refused.body);
    }
}

#[tokio::test]
async fn z2_a_role_at_one_cluster_opens_that_cluster_until_it_is_taken_back() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a", "b"] {
        site.cluster("g", name).await;
    }
    let cluster_of = |name: &str| -> types::ids::ClusterId { cluster_id("g", name).parse().unwrap() };
    let reaches = async |name: &str| {
        let id = cluster_of(name);
        let principal = Principal::User(site.identity("ann", &id.audience()).await);
        let snapshot = site.snapshots.load();
        snapshot.decide(&principal, snapshot.cluster(&id.key()))
    };
    assert_eq!(reaches("a").await, Err(DenialReason::NoGrant));
    assert_eq!(reaches("none").await, Err(DenialReason::UnknownCluster));
    let assigned = site.assign("ann", CLUSTER_USER, &cluster_id("g", "a"), json!({})).await;
    assert_eq!(assigned.status, 201, "{}", assigned.body);
    assert_eq!((reaches("a").await, reaches("b").await), (Ok(()), Err(DenialReason::NoGrant)));
    let twice = site.assign("ann", CLUSTER_USER, &cluster_id("g", "a"), json!({})).await;
    assert_eq!((twice.status, twice.code()), (409, "RoleAssignmentExists"));
    // Listed at the cluster, and by whom it is for.
    let path = format!("{}/providers/{ASSIGNMENTS}?api-version=2022-04-01", cluster_id("g", "a"));
    let object_id = site.object_id("ann").await;
    let list =
        site.call("owner", "GET", &format!("{path}&$filter=atScope()%20and%20assignedTo('{object_id}')"), None).await;
    assert_eq!(list.body["value"].as_array().map(Vec::len), Some(1), "{}", list.body);
    assert_eq!(list.body["value"][0]["properties"]["scope"], cluster_id("g", "a"));
    let credential = format!("{}/listClusterUserCredential?{VERSION}", cluster_id("g", "a"));
    let body = json!({"authenticationMethod": "AAD", "clientProxy": false});
    let answer = site.call("ann", "POST", &credential, Some(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let kubeconfig = BASE64.decode(answer.body["kubeconfigs"][0]["value"].as_str().unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], format!("{URL}/{}", cluster_of("a").key().hex()));

    let at = format!("{}?api-version=2022-04-01", assigned.body["id"].as_str().unwrap());
    assert_eq!(site.call("owner", "DELETE", &at, None).await.status, 200);
    assert_eq!(site.call("owner", "DELETE", &at, None).await.status, 204);
    assert_eq!(reaches("a").await, Err(DenialReason::NoGrant));
    // A deleted cluster is nobody's from the moment on at which that has begun.
    let owned = site.assign("ann", CLUSTER_USER, &cluster_id("g", "b"), json!({})).await;
    assert_eq!((owned.status, reaches("b").await), (201, Ok(())));
    assert_eq!(site.call("owner", "DELETE", &cluster("g", "b"), None).await.status, 202);
    assert_eq!(reaches("b").await, Err(DenialReason::UnknownCluster));
}

#[tokio::test]
async fn z9_an_agent_is_told_what_concerns_its_cluster_and_nothing_else() {
    const VIEWER: &str = "63f0a09d-1495-4db4-a681-037d84835eb4";
    let site = Bench::new().await;
    site.group("g").await;
    site.group("h").await;
    for (group, name) in [("g", "a"), ("g", "b"), ("h", "a")] {
        site.cluster(group, name).await;
    }
    let (a, b) = (cluster_id("g", "a"), cluster_id("g", "b"));
    let document = |id: &str| site.control.directory().document(&id.parse().unwrap());
    let empty = document(&a);
    assert!(
        !empty.enabled && empty.assignments.is_empty(),
        "owners of the configuration are told to no agent: {empty:?}"
    );
    for scope in [
        format!("{a}/namespaces/dev"),
        b.clone(),
        format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g"),
        format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/h"),
        format!("/subscriptions/{SUBSCRIPTION}"),
    ] {
        let assigned = site.assign("ann", VIEWER, &scope, json!({})).await;
        assert_eq!(assigned.status, 201, "{}", assigned.body);
    }
    // On the resource itself: of no interest within the cluster.
    assert_eq!(site.assign("bob", CLUSTER_USER, &a, json!({})).await.status, 201);
    let before = document(&a);
    assert!(before.assignments.is_empty(), "where they decide nothing, nobody need know them");
    for name in ["a", "b"] {
        let mut body = site.call("owner", "GET", &cluster("g", name), None).await.body;
        body["properties"]["aadProfile"] = json!({"enableAzureRBAC": true});
        let path = format!("{}?api-version=2026-05-01", cluster_id("g", name));
        assert_eq!(site.call("owner", "PUT", &path, Some(body)).await.status, 200);
    }
    let after = document(&a);
    let scopes = |id: &str| document(id).assignments.into_iter().map(|one| one.scope).collect::<Vec<_>>();
    let subscription = format!("/subscriptions/{SUBSCRIPTION}");
    let group = format!("{subscription}/resourcegroups/g");
    let lower = a.to_lowercase();
    assert_eq!(scopes(&a), [subscription.clone(), group.clone(), format!("{lower}/namespaces/dev")]);
    assert_eq!(scopes(&b), [subscription, group, b.to_lowercase()]);

    assert!(after.enabled && after.revision > before.revision && after.etag() != before.etag());
    // What is written elsewhere changes the revision and not what is decided.
    site.cluster("h", "c").await;
    assert_eq!(document(&a).etag(), after.etag());
    assert!(document(&a).revision > after.revision);
}

#[tokio::test]
async fn z11_an_assignment_is_bounded_in_time_and_a_group_is_no_user_of_that_name() {
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let late = site.assign("ann", READER, &scope, json!({"endDateTime": "2020-01-01T00:00:00Z"})).await;
    assert_eq!((late.status, late.code()), (400, "InvalidExpiration"));
    let ends = instant(site.clock_ms.load(Ordering::SeqCst) + 60_000);
    let assigned = site.assign("ann", READER, &scope, json!({"endDateTime": ends})).await;
    assert_eq!(assigned.status, 201, "{}", assigned.body);
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 200);
    site.clock_ms.fetch_add(60_000, Ordering::SeqCst);
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 403);

    let team = site.identity("bob", URL).await.groups[0].clone();
    let named = |kind: &str| json!({"principalId": team.clone(), "principalType": kind});
    assert_eq!(site.assign("x", READER, &scope, named("User")).await.status, 201);
    assert_eq!(site.call("bob", "GET", &group("g"), None).await.status, 403);
    let as_group = site.assign("x", READER, &scope, named("Group")).await;
    assert_eq!((as_group.status, as_group.code()), (409, "RoleAssignmentExists"));
    let other = format!("/subscriptions/{SUBSCRIPTION}");
    assert_eq!(site.assign("x", READER, &other, named("Group")).await.status, 201);
    assert_eq!(site.call("bob", "GET", &group("g"), None).await.status, 200);
}

#[tokio::test]
async fn z3_z4_custom_roles_give_what_they_say_and_built_in_ones_stay() {
    let site = Bench::new().await;
    site.group("g").await;
    let role = |guid: &str| {
        format!(
            "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{guid}?api-version=2022-04-01"
        )
    };
    let built_in = site.call("owner", "GET", &role(READER), None).await;
    assert_eq!((built_in.status, &built_in.body["properties"]["roleName"]), (200, &json!("Reader")));
    assert_eq!(site.call("owner", "DELETE", &role(READER), None).await.status, 403);
    let list = role("").replace("/?", "?");
    let found = site.call("owner", "GET", &format!("{list}&$filter=roleName%20eq%20'Reader'"), None).await;
    assert_eq!(found.body["value"].as_array().map(Vec::len), Some(1), "{}", found.body);
    assert_eq!(site.call("owner", "GET", &format!("{list}&$filter=x"), None).await.code(), "InvalidFilter");

    let guid = crate::random::guid();
    let custom = |actions: Value| {
        json!({"properties": {"roleName": "Tagger", "assignableScopes": [format!("/subscriptions/{SUBSCRIPTION}")],
            "permissions": [{"actions": actions, "notActions": []}]}})
    };
    let bad = site.call("owner", "PUT", &role(&guid), Some(custom(json!(["a b"])))).await;
    assert_eq!((bad.status, bad.code()), (400, "InvalidActionOrNotAction"), "{}", bad.body);
    let made = site.call("owner", "PUT", &role(&guid), Some(custom(json!(["*/read"])))).await;
    assert_eq!((made.status, &made.body["properties"]["type"]), (201, &json!("CustomRole")), "{}", made.body);
    let again = site.call("owner", "PUT", &role(&crate::random::guid()), Some(custom(json!(["*/read"])))).await;
    assert_eq!((again.status, again.code()), (409, "RoleDefinitionWithSameNameExists"), "two roles of one name");
    let scope = format!("/subscriptions/{SUBSCRIPTION}");
    let assigned = site.assign("ann", &guid, &scope, json!({})).await;
    assert_eq!(assigned.status, 201, "{}", assigned.body);
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 200);
    assert_eq!(
        site.call("owner", "PUT", &role(&guid), Some(custom(json!(["Microsoft.Kubernetes/*"])))).await.status,
        200
    );
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 403);
    let held = site.call("owner", "DELETE", &role(&guid), None).await;
    assert_eq!((held.status, held.code()), (409, "RoleDefinitionHasAssignments"));
    let missing = site.assign("ann", &crate::random::guid(), &scope, json!({})).await;
    assert_eq!((missing.status, missing.code()), (404, "RoleDefinitionDoesNotExist"));
}

#[tokio::test]
async fn tokens_of_clusters_are_nothing_here_and_none_says_where_to_sign_in() {
    let site = Bench::new().await;
    let send = async |token: Option<String>| {
        let mut request = Request::builder().uri("/subscriptions?api-version=2022-12-01");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        site.send(request.body(Full::default()).unwrap()).await
    };
    let none = send(None).await;
    assert_eq!((none.status, none.code()), (401, "AuthenticationFailed"));
    assert!(none.header("www-authenticate").contains(TENANT));
    let audience = cluster_id("g", "c").parse::<types::ids::ClusterId>().unwrap().audience();
    for audience in [audience.as_str(), "https://other.test", ""] {
        let token = site.issuer.token("owner", &[], audience, SystemTime::now());
        let answer = send(Some(token)).await;
        assert_eq!((answer.status, answer.code()), (401, "InvalidAuthenticationToken"), "{audience}");
    }
    let stranger = TestIssuer::new("https://other.test").token("owner", &[], URL, SystemTime::now());
    assert_eq!(send(Some(stranger)).await.status, 401);
    // Where everything is needs no sign-in.
    let open = site
        .send(Request::builder().uri("/metadata/endpoints?api-version=2022-09-01").body(Full::default()).unwrap())
        .await;
    assert_eq!((open.status, &open.body["authentication"]["tenant"]), (200, &json!(TENANT)));
}

#[tokio::test]
async fn a_disabled_user_is_refused_with_a_good_token() {
    let site = Bench::new().await;
    site.group("g").await;
    let name = site.identity("owner", URL).await.username.clone();
    let disabled = Dynamic { disabled: [name].into(), ..Dynamic::default() };
    site.snapshots.replace(Snapshot::new(&disabled, Arc::new(site.issuer.verifier())));
    let answer = site.call("owner", "GET", &group("g"), None).await;
    assert_eq!((answer.status, answer.code()), (401, "InvalidAuthenticationToken"));
    site.snapshots.replace(Snapshot::new(&Dynamic::default(), Arc::new(site.issuer.verifier())));
    assert_eq!(site.call("owner", "GET", &group("g"), None).await.status, 200);
}

#[tokio::test]
async fn requests_that_make_no_sense_get_the_envelope() {
    let site = Bench::new().await;
    site.group("g").await;
    let path = cluster("g", "c");
    let bare = path.split('?').next().unwrap().to_owned();
    for (method, path, status, code) in [
        ("GET", bare.clone(), 400, "MissingApiVersionParameter"),
        ("GET", format!("{bare}?api-version=today"), 400, "InvalidApiVersionParameter"),
        ("GET", format!("{bare}?api-version=1999-01-01"), 400, "NoRegisteredProviderFound"),
        ("GET", format!("{path}&api-version=2024-01-01"), 400, "InvalidQueryParameterValue"),
        ("GET", "/subscriptions/x/y?api-version=2024-01-01".to_owned(), 400, "InvalidResourceId"),
        ("GET", path.replace("connectedClusters", "others"), 404, "InvalidResourceType"),
        ("POST", format!("{bare}/explode?{VERSION}"), 404, "InvalidResourceType"),
        ("POST", path.clone(), 405, "MethodNotAllowed"),
        ("GET", format!("{bare}/listClusterUserCredential?{VERSION}"), 405, "MethodNotAllowed"),
        ("DELETE", format!("{bare}/listclusterusercredential?{VERSION}"), 405, "MethodNotAllowed"),
        ("PUT", format!("/subscriptions/{SUBSCRIPTION}?api-version=2022-12-01"), 405, "MethodNotAllowed"),
        (
            "DELETE",
            format!("/subscriptions/{SUBSCRIPTION}/resourcegroups?api-version=2024-03-01"),
            405,
            "MethodNotAllowed",
        ),
        ("GET", format!("/subscriptions/{SUBSCRIPTION}/providers/Nobody?{VERSION}"), 404, "InvalidResourceNamespace"),
    ] {
        let answer = site.call("owner", method, &path, None).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{method} {path}: {}", answer.body);
        assert!(answer.body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(!answer.header("x-ms-request-id").is_empty());
    }
    let echo = site
        .call_with(
            "owner",
            "GET",
            &group("g"),
            None,
            &[("x-ms-client-request-id", "mine"), ("x-ms-return-client-request-id", "TRUE")],
        )
        .await;
    assert_eq!(echo.header("x-ms-client-request-id"), "mine");
    for namespace in ["Microsoft.Kubernetes", "microsoft.kubernetes"] {
        let provider = site
            .call("owner", "GET", &format!("/subscriptions/{SUBSCRIPTION}/providers/{namespace}?{VERSION}"), None)
            .await;
        assert_eq!(provider.body["registrationState"], "Registered");
    }
}

#[tokio::test]
async fn d6_the_correlation_id_of_a_command_comes_back_and_what_is_no_guid_is_replaced() {
    let site = Bench::new().await;
    site.group("g").await;
    let of = async |sent: &str| {
        let headers = [("x-ms-correlation-request-id", sent)];
        site.call_with("owner", "GET", &group("g"), None, &headers)
            .await
            .header("x-ms-correlation-request-id")
            .to_owned()
    };
    let guid = "6f0d2c1e-8f2a-4a51-9d6f-0b1c2d3e4f50";
    assert_eq!(of(guid).await, guid);
    for no_guid in ["all", "", "6f0d2c1e8f2a4a519d6f0b1c2d3e4f5", "6f0d2c1e-8f2a-4a51-9d6f-0b1c2d3e4f50x"] {
        let new = of(no_guid).await;
        assert!(new != no_guid && new.len() == 32, "{no_guid:?}: {new}");
    }
}

#[tokio::test]
async fn protected_settings_never_come_back() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut body = new_cluster();
    body["properties"]["arcAgentryConfigurations"] =
        json!([{"feature": "f", "settings": {"a": "b"}, "protectedSettings": {"password": "hunter2"}}]);
    let path = cluster("g", "c").replace("2024-01-01", "2026-05-01");
    let made = site.call("owner", "PUT", &path, Some(body)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.body["properties"]["arcAgentryConfigurations"][0]["settings"], json!({"a": "b"}));
    assert!(!made.body.to_string().contains("hunter2"));
    let id = ResourceId::parse(&cluster_id("g", "c")).unwrap();
    let kept = site.control.store.get(id.key()).await.unwrap().unwrap();
    assert!(kept.protected.is_some() && !kept.body.to_string().contains("hunter2"));
    assert!(!kept.protected.unwrap().windows(7).any(|bytes| bytes == b"hunter2"));
}

#[tokio::test]
async fn the_open_api_document_knows_every_kind() {
    let site = Bench::new().await;
    let document = site.send(Request::builder().uri("/openapi.json").body(Full::default()).unwrap()).await;
    assert_eq!(document.status, 200);
    for kind in crate::resources::KINDS {
        let name = kind.name().rsplit('/').next().unwrap();
        assert!(document.body["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

/// It was made anew for each request, 7 ms of a worker, and anybody may ask.
#[tokio::test]
async fn the_open_api_document_is_made_once_and_not_sent_again() {
    let site = Bench::new().await;
    let ask = async |known: &str| {
        let request = Request::builder().uri("/openapi.json").header("if-none-match", known);
        site.respond(request.body(Full::<Bytes>::default()).unwrap()).await
    };
    let first = ask("\"other\"").await;
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(
        (first.status().as_u16(), &first.headers()["cache-control"]),
        (200, &HeaderValue::from_static("no-cache"))
    );
    for known in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
        let again = ask(&known).await;
        assert_eq!(
            (again.status().as_u16(), again.headers()["etag"].to_str().unwrap()),
            (304, tag.as_str()),
            "{known}"
        );
        assert!(again.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
    // The same bytes, not equal ones.
    let (one, other) = (first.into_body().collect(), ask("\"other\"").await.into_body().collect());
    let (one, other) = (one.await.unwrap().to_bytes(), other.await.unwrap().to_bytes());
    assert!(one.len() > 10_000 && one.as_ptr() == other.as_ptr());
}

const ACCESS_ADMIN: &str = "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9";

fn role_path(scope: &str, guid: &str) -> String {
    format!("{scope}/providers/Microsoft.Authorization/roleDefinitions/{guid}?api-version=2022-04-01")
}

fn custom_role(scopes: &[&str], actions: &[&str]) -> Option<Value> {
    let name = format!("may {}", actions.join(" "));
    Some(json!({"properties": {"roleName": name, "assignableScopes": scopes, "permissions": [{"actions": actions}]}}))
}

#[tokio::test]
async fn z4_who_administers_one_cluster_redefines_no_role_of_others() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "mine").await;
    let (top, mine) = (format!("/subscriptions/{SUBSCRIPTION}"), cluster_id("g", "mine"));
    let guid = crate::random::guid();
    let made = site.call("owner", "PUT", &role_path(&top, &guid), custom_role(&[&top], &["Microsoft.None/read"])).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(site.assign("eve", &guid, &top, json!({})).await.status, 201);
    assert_eq!(site.assign("eve", ACCESS_ADMIN, &mine, json!({})).await.status, 201);
    // The same GUID at their own scope, in any case of letters.
    for guid in [guid.clone(), guid.to_ascii_uppercase()] {
        let answer = site.call("eve", "PUT", &role_path(&mine, &guid), custom_role(&[&mine], &["*"])).await;
        assert_eq!((answer.status, answer.code()), (409, "RoleDefinitionWithSameIdExists"), "{}", answer.body);
    }
    // A role that reaches beyond what is theirs.
    let other = crate::random::guid();
    for wide in ["/", top.as_str()] {
        let answer = site.call("eve", "PUT", &role_path(&mine, &other), custom_role(&[&mine, wide], &["*"])).await;
        assert_eq!((answer.status, answer.code()), (403, "AuthorizationFailed"), "{}", answer.body);
    }
    assert_eq!(site.call("eve", "GET", &group("g"), None).await.status, 403);
    let none = site.call("eve", "PUT", &role_path(&mine, &other), custom_role(&[], &["*"])).await;
    assert_eq!((none.status, none.code()), (400, "InvalidAssignableScopes"));
    // One of their own holds there, and cannot be given above.
    assert_eq!(site.call("eve", "PUT", &role_path(&mine, &other), custom_role(&[&mine], &["*"])).await.status, 201);
    let above = site.assign("eve", &other, &top, json!({})).await;
    assert_eq!((above.status, above.code()), (400, "RoleAssignmentScopeNotAssignableToRoleDefinition"));
    assert_eq!(site.assign("bob", &other, &mine, json!({})).await.status, 201);
    assert_eq!(site.call("bob", "GET", &cluster("g", "mine"), None).await.status, 200);
}

#[tokio::test]
async fn z4_a_role_that_is_no_longer_assignable_at_a_scope_gives_nothing_there() {
    let site = Bench::new().await;
    site.group("g").await;
    let (top, held) =
        (format!("/subscriptions/{SUBSCRIPTION}"), format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g"));
    let guid = crate::random::guid();
    let write = async |scopes: &[&str]| {
        let made = site.call("owner", "PUT", &role_path(&held, &guid), custom_role(scopes, &["*/read"])).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.body);
    };
    write(&[&top]).await;
    assert_eq!(site.assign("ann", &guid, &top, json!({})).await.status, 201);
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 200);
    write(&[&held]).await;
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 403);
    write(&[&top]).await;
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 200);
}

#[tokio::test]
async fn lists_say_nothing_about_what_the_caller_may_not_read() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a-secret", "b-secret", "mine", "z-secret"] {
        site.cluster("g", name).await;
    }
    assert_eq!(site.assign("ann", READER, &cluster_id("g", "mine"), json!({})).await.status, 201);
    let top = format!("/subscriptions/{SUBSCRIPTION}");
    for list in [format!("{top}/providers/{CLUSTERS}?{VERSION}&$top=1"), format!("{top}/resources?{VERSION}&$top=1")] {
        let first = site.call("ann", "GET", &list, None).await;
        assert_eq!(first.status, 200, "{}", first.body);
        assert_eq!(first.body["value"].as_array().map(Vec::len), Some(1), "{}", first.body);
        assert_eq!(first.body["value"][0]["name"], "mine");
        // The token is sealed, and the rest is as if nothing else were there.
        let next = first.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
        let token = next.split("skipToken=").nth(1).unwrap();
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).unwrap();
        assert!(!String::from_utf8_lossy(&token).contains("subscriptions"));
        let rest = site.call("ann", "GET", &next, None).await;
        assert_eq!((&rest.body["value"], rest.body.get("nextLink")), (&json!([]), None));
    }
    // Who may read everything but clusters sees none in the list of all resources.
    let guid = crate::random::guid();
    let role = json!({"properties": {"roleName": "r", "assignableScopes": [top],
        "permissions": [{"actions": ["*/read"], "notActions": ["Microsoft.Kubernetes/*", "Microsoft.KubernetesConfiguration/*"]}]}});
    assert_eq!(site.call("owner", "PUT", &role_path(&top, &guid), Some(role)).await.status, 201);
    assert_eq!(site.assign("bob", &guid, &top, json!({})).await.status, 201);
    let list = site.call("bob", "GET", &format!("{top}/resources?{VERSION}"), None).await;
    assert!(list.status == 403 && !list.body.to_string().contains("secret"), "{}", list.body);
}

#[tokio::test]
async fn s1_a_role_at_one_group_shows_its_subscription_and_no_other_group() {
    let site = Bench::new().await;
    site.group("g").await;
    site.group("other").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("robot", ONBOARDING, &scope, json!({})).await.status, 201);
    // What `az login` and `az connectedk8s` ask first.
    let list = site.call("robot", "GET", "/subscriptions?api-version=2022-12-01", None).await;
    assert_eq!(list.body["value"][0]["subscriptionId"], SUBSCRIPTION);
    for path in ["", "/providers/Microsoft.Kubernetes", "/locations"] {
        let path = format!("/subscriptions/{SUBSCRIPTION}{path}?api-version=2022-12-01");
        assert_eq!(site.call("robot", "GET", &path, None).await.status, 200, "{path}");
        assert_eq!(site.call("stranger", "GET", &path, None).await.status, 403, "{path}");
        // Which subscriptions there are is nothing a stranger learns.
        let unknown = path.replace(SUBSCRIPTION, TENANT);
        assert_eq!(site.call("stranger", "GET", &unknown, None).await.status, 403, "{unknown}");
    }
    let groups = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups?api-version=2024-03-01");
    let groups = site.call("robot", "GET", &groups, None).await;
    assert_eq!(groups.body["value"].as_array().map(Vec::len), Some(1), "{}", groups.body);
}

#[tokio::test]
async fn r10_a_second_deletion_takes_nothing_that_was_created_since() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    // Nobody carries deletions out until the second one is asked for.
    let Bench { control, shutdown, .. } = &site;
    site.tasks[1].abort();
    let (path, id) = (cluster("g", "c"), ResourceId::parse(&cluster_id("g", "c")).unwrap());
    let first = site.call("owner", "DELETE", &path, None).await;
    let second = site.call("owner", "DELETE", &path, None).await;
    assert_eq!((first.status, second.status), (202, 202));
    // The first is carried out, the cluster is created again, and then the second is.
    let stored = control.store.get(id.key()).await.unwrap().unwrap();
    assert!(control.store.delete(&stored.key, crate::store::batch::Expect::Any).await.unwrap().is_ok());
    let made = site.cluster("g", "c").await;
    assert_eq!(made.status, 201, "{}", made.body);
    let work = tokio::spawn(Arc::clone(control).work(crate::control::work::WORKS, shutdown.clone()));
    for deletion in [&first, &second] {
        assert_eq!(site.ended("owner", deletion.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    }
    assert_eq!(site.call("owner", "GET", &path, None).await.status, 200);
    work.abort();
}

#[tokio::test]
async fn r10_nothing_is_created_in_what_is_being_deleted() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "there").await;
    site.tasks[1].abort();
    assert_eq!(site.call("owner", "DELETE", &group("g"), None).await.status, 202);
    let new = site.cluster("g", "new").await;
    assert_eq!((new.status, new.code()), (409, "ResourceGroupBeingDeleted"), "{}", new.body);
    let assigned = site.assign("ann", READER, &cluster_id("g", "there"), json!({})).await;
    assert_eq!((assigned.status, assigned.code()), (409, "ResourceGroupBeingDeleted"), "{}", assigned.body);
}

#[tokio::test]
async fn r11_a_group_that_holds_something_is_kept_by_only_if_empty() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "theirs").await;
    let gone_if_empty = |word: &str| format!("{}&onlyIfEmpty={word}", group("g"));
    let kept = site.call("owner", "DELETE", &gone_if_empty("true"), None).await;
    assert_eq!((kept.status, kept.code()), (409, "ResourceNotEmpty"), "{}", kept.body);
    assert_eq!(site.call("owner", "DELETE", &gone_if_empty("maybe"), None).await.status, 400);
    assert_eq!(site.call("owner", "GET", &cluster("g", "theirs"), None).await.status, 200);
    let deleted = site.call("owner", "DELETE", &cluster("g", "theirs"), None).await;
    site.ended("owner", deleted.header("azure-asyncoperation")).await;
    assert_eq!(site.call("owner", "DELETE", &gone_if_empty("True"), None).await.status, 200);
    assert_eq!(site.call("owner", "GET", &group("g"), None).await.status, 404);
    // Other types, and without it as ever.
    site.group("g").await;
    site.cluster("g", "theirs").await;
    assert_eq!(site.call("owner", "DELETE", &gone_if_empty("false"), None).await.status, 202);
}

#[tokio::test]
async fn z2_people_whose_ids_differ_in_case_are_not_one() {
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("Ann", READER, &scope, json!({})).await.status, 201);
    assert_eq!(site.call("Ann", "GET", &group("g"), None).await.status, 200);
    for other in ["ann", "ANN", "Anｎ"] {
        assert_eq!(site.call(other, "GET", &group("g"), None).await.status, 403, "{other}");
    }
    // GUIDs are written in any case.
    let guid = crate::random::guid();
    assert_eq!(site.assign(&guid.to_ascii_uppercase(), READER, &scope, json!({})).await.status, 201);
    assert_eq!(site.call(&guid, "GET", &group("g"), None).await.status, 200);
}

#[tokio::test]
async fn an_answer_is_not_many_times_as_long_as_the_faults_it_tells() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut body = new_cluster();
    body["properties"] = (0..10_000).map(|n| (format!("x{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
    let answer = site.call("owner", "PUT", &cluster("g", "c"), Some(body)).await;
    assert_eq!((answer.status, answer.code()), (400, "InvalidRequestContent"));
    assert_eq!(answer.body["error"]["details"].as_array().map(Vec::len), Some(50));
}

#[tokio::test]
async fn r11_a_group_has_one_address() {
    let site = Bench::new().await;
    let other =
        format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Resources/resourceGroups/g?api-version=2024-03-01");
    for method in ["PUT", "GET"] {
        let answer = site.call("owner", method, &other, Some(json!({"location": "eastus"}))).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidResourceId"), "{}", answer.body);
    }
}
