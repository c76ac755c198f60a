//! Versions of extensions for many clusters (docs/features.md E14): assignments that give a version to what is there.

use super::*;

const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
const EXTENSIONS_VERSION: &str = "api-version=2025-03-01";
/// An assignment looks again after this time at clusters that have not ended.
const AGAIN_MS: i64 = 15_000;

/// A gateway with clusters, whose catalogue has `example.web` 1.0.0 and 1.1.0, and `example.db` with the same.
async fn stage(clusters: &[&str]) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let versions: &[(&str, &[&str])] = &[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])];
    crate::catalogue::tests::make(&folder.path().join("catalogue"), versions, |index| {
        let mut other = index.types[0].clone();
        "example.db".clone_into(&mut other.name);
        index.types.insert(0, other);
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    for name in clusters {
        site.of_ring(name, "one").await;
    }
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site
}

fn path(cluster: &str) -> String {
    format!("{}/providers/{EXTENSIONS}/web?{EXTENSIONS_VERSION}", cluster_id("g", cluster))
}

/// The version for all clusters, `percent` of them at once, with at most `failures` failures.
fn rolls(version: &str, percent: u32, failures: u32) -> Value {
    json!({"properties": {
        "selector": {"tags": {}},
        "template": {
            "type": EXTENSIONS, "name": "web", "existing": true,
            "properties": {"extensionType": "example.web", "version": version},
        },
        "rollout": {"maxConcurrentPercent": percent, "maxFailures": failures},
    }})
}

impl Bench {
    /// Its owners install an extension in a cluster, with settings of that cluster.
    async fn installs(&self, cluster: &str, kind: &str) {
        let settings = json!({"host": cluster});
        let body = json!({"properties": {"extensionType": kind, "configurationSettings": settings}});
        let made = self.call("owner", "PUT", &path(cluster), Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
        self.reports(cluster, ObjectState::Succeeded).await;
    }

    async fn reports(&self, cluster: &str, state: ObjectState) {
        let key = cluster_id("g", cluster).to_ascii_lowercase();
        let object = self.control.objects(&key, Some(EXTENSIONS), None).await.unwrap().objects.remove(0);
        let told = ObjectStatus {
            id: object.id.clone(),
            generation: object.generation,
            state,
            current_version: None,
            error: (state == ObjectState::Failed)
                .then(|| ObjectError { code: "HookFailed".into(), message: "the hook did not end".into() }),
            statuses: Vec::new(),
            events: Vec::new(),
            details: None,
            parts: None,
        };
        self.control.objects_told(&key, ObjectStatuses { objects: vec![told] }).await.unwrap();
    }

    async fn properties_in(&self, cluster: &str) -> Value {
        self.call("owner", "GET", &path(cluster), None).await.body["properties"].clone()
    }

    /// Those whose extension is to have this version.
    async fn with_version(&self, version: &str, clusters: &[&'static str]) -> Vec<&'static str> {
        let mut found = Vec::new();
        for cluster in clusters {
            if self.properties_in(cluster).await["version"] == version {
                found.push(*cluster);
            }
        }
        found
    }

    /// Time passes, and what waits is carried out.
    async fn goes_on(&self) {
        self.clock_ms.fetch_add(AGAIN_MS, Ordering::SeqCst);
        self.roll().await;
    }
}

#[tokio::test]
async fn e14_version_reaches_the_extensions_that_are_there_in_stages_and_leaves_the_rest_to_their_owners() {
    const ALL: [&str; 4] = ["a", "b", "c", "d"];
    let site = stage(&["a", "b", "c", "d", "none", "other"]).await;
    for cluster in ALL {
        site.installs(cluster, "example.web").await;
    }
    site.installs("other", "example.db").await;
    site.wants("web", rolls("1.1.0", 50, 0)).await;
    site.roll().await;
    let first = site.with_version("1.1.0", &ALL).await;
    assert_eq!((first.len(), site.counts("web").await), (2, [4, 2, 0, 0, 0, 4]));
    let own = site.properties_in(first[0]).await;
    assert_eq!((&own["autoUpgradeMode"], &own["configurationSettings"]["host"]), (&json!("none"), &json!(first[0])));
    site.goes_on().await;
    assert_eq!(site.with_version("1.1.0", &ALL).await, first, "these have not ended");
    for cluster in &first {
        site.reports(cluster, ObjectState::Succeeded).await;
    }
    site.goes_on().await;
    assert_eq!(site.with_version("1.1.0", &ALL).await.len(), 4);
    for cluster in ALL {
        site.reports(cluster, ObjectState::Succeeded).await;
    }
    site.goes_on().await;
    assert_eq!(
        (site.counts("web").await, &site.summary("web").await["state"]),
        ([4, 4, 4, 0, 0, 0], &json!("Complete"))
    );
    assert_eq!(site.properties_in("none").await, Value::Null);
    assert_eq!(site.properties_in("other").await["version"], Value::Null, "of another type");

    // Their owners still change them.
    let patch = json!({"properties": {"configurationSettings": {"replicas": "3"}}});
    assert_eq!(site.call("owner", "PATCH", &path("a"), Some(patch)).await.status, 202);
    // The end of the rollout takes nothing away.
    let gone = site.fleet("DELETE", "web", None).await;
    site.roll().await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    assert_eq!(site.with_version("1.1.0", &ALL).await.len(), 4);
}

#[tokio::test]
async fn e14_rollout_pauses_on_failures_says_where_and_goes_on_when_it_is_resumed() {
    const ALL: [&str; 3] = ["a", "b", "c"];
    let site = stage(&ALL).await;
    for cluster in ALL {
        site.installs(cluster, "example.web").await;
    }
    site.wants("web", rolls("1.1.0", 1, 0)).await;
    site.roll().await;
    let first = site.with_version("1.1.0", &ALL).await;
    assert_eq!(first.len(), 1, "one in any case");
    site.reports(first[0], ObjectState::Failed).await;
    site.goes_on().await;
    let own = site.summary("web").await;
    assert_eq!((&own["state"], &own["failures"][0]["code"]), (&json!("Paused"), &json!("HookFailed")), "{own}");
    assert!(own["stateReason"].as_str().unwrap().contains("1 clusters failed"), "{own}");
    site.goes_on().await;
    assert_eq!(site.with_version("1.1.0", &ALL).await.len(), 1);
    assert_eq!(site.states("web", json!({"state": "failed"})).await, [(first[0].to_owned(), "Failed".to_owned())]);

    site.fleet("PATCH", "web", Some(json!({"properties": {"rollout": {"paused": false}}}))).await;
    site.roll().await;
    assert_eq!(site.with_version("1.1.0", &ALL).await.len(), 2);
    // Back to the version from before, everywhere at once.
    site.wants("web", rolls("1.0.0", 100, 0)).await;
    site.roll().await;
    assert_eq!(site.with_version("1.0.0", &ALL).await.len(), 3);
}

#[tokio::test]
async fn e14_rollout_is_for_named_clusters_and_refuses_what_is_no_version() {
    let site = stage(&["a", "b"]).await;
    for cluster in ["a", "b"] {
        site.installs(cluster, "example.web").await;
    }
    let mut named = rolls("1.1.0", 100, 0);
    named["properties"]["selector"]["clusters"] = json!([cluster_id("g", "b").to_ascii_uppercase()]);
    site.wants("web", named.clone()).await;
    site.roll().await;
    assert_eq!(site.with_version("1.1.0", &["a", "b"]).await, ["b"]);
    // What somebody reads can be written again, and changes nothing.
    let read = site.fleet("GET", "web", None).await.body;
    site.wants("web", read).await;
    assert_eq!(site.summary("web").await["state"], "RollingOut");

    let with = |at: &str, value: Value| {
        let mut body = rolls("1.1.0", 100, 0);
        *body.pointer_mut(at).unwrap() = value;
        body
    };
    let template = "/properties/template/properties";
    for (body, code) in [
        (with(template, json!({"extensionType": "example.web"})), "InvalidRequestContent"),
        (
            with(template, json!({"extensionType": "example.web", "version": "1.1.0", "configurationSettings": {}})),
            "InvalidRequestContent",
        ),
        (with(template, json!({"extensionType": "example.web", "version": "9.9.9"})), "ExtensionVersionNotFound"),
        (with("/properties/template/type", json!(CONFIGURATIONS)), "InvalidRequestContent"),
        (with("/properties/selector", json!({"tags": {}, "clusters": ["a"]})), "InvalidRequestContent"),
    ] {
        let refused = site.fleet("PUT", "bad", Some(body)).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.to_string().contains(code), "{}", refused.body);
    }
    named["properties"]["template"].as_object_mut().unwrap().remove("existing");
    let refused = site.fleet("PUT", "web", Some(named)).await;
    assert_eq!((refused.status, refused.code()), (400, "PropertyChangeNotAllowed"), "{}", refused.body);
}

/// Without `existing` an assignment makes extensions, as it makes configurations.
#[tokio::test]
async fn e14_assignment_installs_extensions_in_clusters_by_their_tags() {
    let site = stage(&["a", "b"]).await;
    let mut body = rolls("1.0.0", 100, 0);
    body["properties"]["template"].as_object_mut().unwrap().remove("existing");
    body["properties"]["template"]["properties"]["configurationSettings"] = json!({"replicas": "2"});
    site.wants("web", body).await;
    site.roll().await;
    for cluster in ["a", "b"] {
        assert_eq!(site.properties_in(cluster).await["configurationSettings"]["replicas"], "2");
        site.reports(cluster, ObjectState::Succeeded).await;
    }
    site.roll().await;
    assert_eq!(
        (site.counts("web").await, &site.summary("web").await["state"]),
        ([2, 2, 2, 0, 0, 0], &json!("Complete"))
    );
    let patch = json!({"properties": {"configurationSettings": {"replicas": "3"}}});
    assert_eq!(site.call("owner", "PATCH", &path("a"), Some(patch)).await.code(), "ManagedByFleetAssignment");
}
