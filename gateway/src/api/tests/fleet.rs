//! Fleet assignments (docs/features.md G13): one configuration for the clusters that have some tags.

mod versions;

use types::agent_api::{ObjectError, ObjectState, ObjectStatus, ObjectStatuses};

use super::*;
use crate::{
    control::work::{Round, Work},
    rollout::Rollouts,
    store::{
        batch::{Batch, Expect},
        resources::Stored,
    },
};

const FLEET: &str = "Towline.Fleet/assignments";
const FLEET_VERSION: &str = "api-version=2026-11-01";
const CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/fluxConfigurations";
const NEWEST: &str = "api-version=2025-04-01";
const SECRET: &str = "Z2VoZWlt";

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn rollouts() -> Rollouts {
    Rollouts::new(AuditLog::nowhere(), Arc::new(Metrics::new()))
}

fn scope(group: Option<&str>) -> String {
    let group = group.map(|group| format!("/resourceGroups/{group}")).unwrap_or_default();
    format!("/subscriptions/{SUBSCRIPTION}{group}")
}

fn assignment(group: Option<&str>, name: &str) -> String {
    format!("{}/providers/{FLEET}/{name}?{FLEET_VERSION}", scope(group))
}

fn child(cluster: &str, name: &str) -> String {
    format!("{}/providers/{CONFIGURATIONS}/{name}", cluster_id("g", cluster))
}

fn template(url: &str) -> Value {
    json!({"type": CONFIGURATIONS, "name": "shop", "properties": {
        "sourceKind": "GitRepository", "gitRepository": {"url": url, "repositoryRef": {"branch": "main"}},
        "kustomizations": {"apps": {"prune": true}},
    }})
}

/// For the clusters of the ring `one`.
fn wanted(rollout: Value) -> Value {
    json!({"properties": {
        "selector": {"tags": {"Ring": "one"}}, "template": template("https://example.com/shop.git"), "rollout": rollout,
    }})
}

/// Like [`wanted`], with a password.
fn secret() -> Value {
    let mut body = wanted(json!({}));
    body["properties"]["template"]["properties"]["gitRepository"]["httpsUser"] = "reader".into();
    body["properties"]["template"]["properties"]["configurationProtectedSettings"] = json!({"httpsKey": SECRET});
    body
}

/// A gateway with the group `g`, these clusters of the ring `one`, and a catalogue that has Flux.
async fn site(clusters: &[&str]) -> Bench {
    site_with(clusters, Quotas::default()).await
}

async fn site_with(clusters: &[&str], quotas: Quotas) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    crate::catalogue::tests::make(&folder.path().join("catalogue"), &[("1.0.0", &["Stable"])], |index| {
        "microsoft.flux".clone_into(&mut index.types[0].name);
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open_with(folder, TestIssuer::new("https://issuer.test"), clock_ms, None, quotas).await;
    site.group("g").await;
    for name in clusters {
        site.of_ring(name, "one").await;
    }
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site
}

impl Bench {
    /// Makes a cluster of a ring, or moves it there.
    async fn of_ring(&self, name: &str, ring: &str) {
        let mut body = new_cluster();
        body["tags"] = json!({"ring": ring});
        let made = self.call("owner", "PUT", &cluster("g", name), Some(body)).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.body);
    }

    async fn fleet(&self, method: &str, name: &str, body: Option<Value>) -> Answer {
        self.call("owner", method, &assignment(Some("g"), name), body).await
    }

    async fn wants(&self, name: &str, body: Value) {
        let made = self.fleet("PUT", name, Some(body)).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.body);
    }

    /// Carries out what waits, as the gateway's own worker does, until nothing does. How many looks that took.
    async fn roll(&self) -> u32 {
        self.roll_with(&rollouts().at(LONG, Duration::ZERO)).await
    }

    async fn roll_with(&self, rollouts: &Rollouts) -> u32 {
        let mut looks = 0;
        loop {
            let round = self.round(rollouts).await;
            assert_eq!(round.error, None);
            if round.done == 0 {
                return looks;
            }
            looks += round.done;
        }
    }

    /// Looks once at all that waits.
    async fn round(&self, rollouts: &Rollouts) -> Round {
        let works = rollouts.works();
        let works: Vec<&dyn Work> = works.iter().map(AsRef::as_ref).collect();
        self.control.carry_out_some(&works, "process").await.0
    }

    fn later(&self, hours: i64) {
        self.clock_ms.fetch_add(hours * 3_600_000, Ordering::SeqCst);
    }

    /// As the agents are told: the generation of the configuration in a cluster.
    async fn generation(&self, cluster: &str) -> i64 {
        let key = cluster_id("g", cluster).to_ascii_lowercase();
        self.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].generation
    }

    async fn summary(&self, name: &str) -> Value {
        self.fleet("GET", name, None).await.body["properties"].clone()
    }

    /// Matched, applied, compliant, not, failed and pending.
    async fn counts(&self, name: &str) -> [u64; 6] {
        let own = self.summary(name).await;
        ["matched", "applied", "compliant", "nonCompliant", "failed", "pending"]
            .map(|count| own["counts"][count].as_u64().unwrap_or_else(|| panic!("{own}")))
    }

    async fn states(&self, name: &str, asked: Value) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (mut next, mut states) = (Some(assignment(Some("g"), name).replace('?', "/listClusters?")), Vec::new());
        while let Some(path) = next {
            let answer = self.call("owner", "POST", &path, Some(asked.clone())).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let page = answer.body["value"].as_array().unwrap().iter();
            states.extend(page.map(|one| (text(&one["name"]), text(&one["state"]))));
            next = answer.body["nextLink"].as_str().map(|link| link.strip_prefix(URL).unwrap().to_owned());
        }
        states
    }

    async fn made(&self, cluster: &str, name: &str) -> Answer {
        self.call("owner", "GET", &format!("{}?{NEWEST}", child(cluster, name)), None).await
    }

    /// The cluster tells how far its configuration is.
    async fn says(&self, cluster: &str, state: ObjectState, compliance: &str) {
        self.says_why(cluster, state, compliance, "Bad").await;
    }

    async fn says_why(&self, cluster: &str, state: ObjectState, compliance: &str, code: &str) {
        let key = cluster_id("g", cluster).to_ascii_lowercase();
        let wanted = self.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap();
        let object = &wanted.objects[0];
        let error = (state == ObjectState::Failed).then(|| ObjectError { code: code.into(), message: "broken".into() });
        let told = ObjectStatus {
            id: object.id.clone(),
            generation: object.generation,
            state,
            current_version: None,
            error,
            statuses: Vec::new(),
            events: Vec::new(),
            details: Some(json!({"complianceState": compliance, "sourceSyncedCommitId": "main@sha1:0f"})),
            parts: None,
        };
        self.control.objects_told(&key, ObjectStatuses { objects: vec![told] }).await.unwrap();
    }

    async fn complies(&self, cluster: &str) {
        self.says(cluster, ObjectState::Succeeded, "Compliant").await;
    }

    /// Those of the clusters whose configuration is being deleted tell that it is gone.
    async fn says_gone(&self, clusters: &[&str]) {
        for cluster in clusters {
            let key = cluster_id("g", cluster).to_ascii_lowercase();
            let wanted = self.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap();
            if wanted.objects.first().is_some_and(|object| object.deleting) {
                self.says(cluster, ObjectState::Deleted, "Unknown").await;
                while self.made(cluster, "shop").await.status != 404 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Clusters that have the configuration now.
    async fn having(&self, clusters: &[&'static str]) -> Vec<&'static str> {
        let mut having = Vec::new();
        for cluster in clusters {
            let made = self.made(cluster, "shop").await;
            if made.status == 200 && made.body["properties"]["provisioningState"] != "Deleting" {
                having.push(*cluster);
            }
        }
        having
    }
}

#[tokio::test]
async fn g13_configuration_is_given_to_clusters_by_tag_now_and_later_and_says_who_complies() {
    let site = site(&["a", "b"]).await;
    site.of_ring("other", "two").await;
    let made = site.fleet("PUT", "all", Some(wanted(json!({})))).await;
    assert_eq!((made.status, &made.body["properties"]["state"]), (201, &json!("RollingOut")), "{}", made.body);
    assert_eq!(made.body["properties"]["rollout"], json!({"maxConcurrentPercent": 100, "paused": false}));
    assert!(made.header("azure-asyncoperation").is_empty(), "nothing that a client would wait for");
    site.roll().await;
    assert_eq!(site.counts("all").await, [2, 2, 0, 0, 0, 2]);
    let config = site.made("a", "shop").await.body;
    let id = assignment(Some("g"), "all").split('?').next().unwrap().to_owned();
    assert_eq!(config["managedBy"], id, "{config}");
    assert_eq!(
        (&config["systemData"]["createdBy"], &config["systemData"]["createdByType"]),
        (&json!(id), &json!("Application"))
    );
    assert!(!config.to_string().contains("managedTemplate"), "{config}");
    assert_eq!(config["properties"]["kustomizations"]["apps"]["wait"], true, "with the defaults of its kind");
    assert_eq!(site.having(&["a", "b", "other"]).await, ["a", "b"]);

    site.complies("a").await;
    site.says("b", ObjectState::Succeeded, "Non-Compliant").await;
    site.roll().await;
    assert_eq!(site.counts("all").await, [2, 2, 1, 1, 0, 0]);
    let own = site.summary("all").await;
    assert_eq!((&own["state"], &own["failures"][0]["state"]), (&json!("Complete"), &json!("Non-Compliant")), "{own}");
    let pair = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    assert_eq!(site.states("all", json!({})).await, [pair("a", "Compliant"), pair("b", "Non-Compliant")]);
    assert_eq!(site.states("all", json!({"state": "compliant"})).await, [pair("a", "Compliant")]);

    // One that comes later, and one that gets the tag, in any case of its name.
    site.of_ring("late", "one").await;
    site.of_ring("other", "one").await;
    site.roll().await;
    assert_eq!(site.having(&["a", "b", "late", "other"]).await.len(), 4);
    assert_eq!(site.counts("all").await[0], 4);
}

#[tokio::test]
async fn g13_configuration_leaves_a_cluster_whose_tags_do_not_match_any_more() {
    let site = site(&["a", "b"]).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    site.of_ring("a", "two").await;
    site.roll().await;
    while site.made("a", "shop").await.status != 404 {
        tokio::task::yield_now().await;
    }
    assert_eq!((site.having(&["a", "b"]).await, site.counts("all").await[0]), (vec!["b"], 1));
    // And comes back with them.
    site.of_ring("a", "one").await;
    site.roll().await;
    assert_eq!(site.having(&["a", "b"]).await, ["a", "b"]);
}

#[tokio::test]
async fn g13_deleted_assignment_takes_its_configurations_along_and_a_deleted_cluster_or_group_goes() {
    let site = site(&["a", "b", "c"]).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    let gone = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    site.ended("owner", gone.header("azure-asyncoperation")).await;
    site.roll().await;
    assert_eq!(site.counts("all").await[0], 2);
    let gone = site.fleet("DELETE", "all", None).await;
    assert_eq!(gone.status, 202, "{}", gone.body);
    let refused = site.fleet("PUT", "all", Some(wanted(json!({})))).await;
    assert_eq!((refused.status, refused.code()), (409, "ResourceBeingDeleted"));
    site.roll().await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    assert_eq!(site.fleet("GET", "all", None).await.status, 404);
    assert!(site.having(&["a", "b"]).await.is_empty());
    // Not even where it is to be empty is it left behind.
    while site.made("a", "shop").await.status != 404 || site.made("b", "shop").await.status != 404 {
        tokio::task::yield_now().await;
    }
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    let path = assignment(Some("g"), "all") + "&onlyIfEmpty=true";
    assert_eq!(site.call("owner", "DELETE", &path, None).await.status, 202);
    site.roll().await;
    assert!(site.having(&["a", "b"]).await.is_empty());
    let gone = site.call("owner", "DELETE", &group("g"), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    site.roll().await;
}

#[tokio::test]
async fn g13_what_an_assignment_made_is_changed_by_it_alone() {
    let site = site(&["a"]).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    let path = format!("{}?{NEWEST}", child("a", "shop"));
    let body = json!({"properties": {"suspend": true}});
    for (method, path, body) in [
        ("PATCH", path.clone(), Some(body)),
        ("PUT", path.clone(), Some(json!({"properties": template("https://x.example/y.git")["properties"]}))),
        ("DELETE", path.clone(), None),
        ("DELETE", format!("{path}&forceDelete=true"), None),
    ] {
        let refused = site.call("owner", method, &path, body).await;
        assert_eq!((refused.status, refused.code()), (409, "ManagedByFleetAssignment"), "{}", refused.body);
        let message = refused.body["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("/assignments/all") && message.contains("towline flux"), "{message}");
    }
    // A write that says so itself becomes none of the assignment's.
    let mut own = json!({"properties": template("https://x.example/y.git")["properties"]});
    own["managedBy"] = assignment(Some("g"), "all").split('?').next().into();
    let made = site.call("owner", "PUT", &format!("{}?{NEWEST}", child("a", "own")), Some(own)).await;
    assert_eq!((made.status, &made.body["managedBy"]), (201, &Value::Null), "{}", made.body);
}

#[tokio::test]
async fn g13_name_that_somebody_else_has_is_never_taken_over() {
    let site = site(&["a", "b"]).await;
    let own = json!({"properties": template("https://x.example/y.git")["properties"]});
    let made = site.call("owner", "PUT", &format!("{}?{NEWEST}", child("a", "shop")), Some(own)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    site.wants("first", wanted(json!({}))).await;
    site.roll().await;
    assert_eq!(site.counts("first").await, [2, 1, 0, 0, 1, 1]);
    let url = site.made("a", "shop").await.body["properties"]["gitRepository"]["url"].clone();
    assert_eq!(url, "https://x.example/y.git");
    let failure = site.summary("first").await["failures"][0].clone();
    assert_eq!(failure["code"], "NameTaken");
    assert!(failure["message"].as_str().unwrap().contains("not made by this assignment"), "{failure}");
    // A second assignment says who has the name.
    site.wants("second", wanted(json!({}))).await;
    site.roll().await;
    assert_eq!(site.counts("second").await, [2, 0, 0, 0, 2, 0]);
    let all = site.summary("second").await["failures"].to_string();
    assert!(all.contains("/assignments/first"), "{all}");
    // And takes nothing of the first along.
    site.fleet("DELETE", "second", None).await;
    site.roll().await;
    assert_eq!(site.having(&["a", "b"]).await, ["a", "b"]);
}

#[tokio::test]
async fn g13_no_more_than_the_share_is_unfinished_at_one_time() {
    const ALL: [&str; 10] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];
    let site = site(&ALL).await;
    site.wants("all", wanted(json!({"maxConcurrentPercent": 30}))).await;
    site.roll().await;
    let mut finished = Vec::new();
    for wave in [3, 6, 9, 10] {
        let having = site.having(&ALL).await;
        assert_eq!((having.len(), &site.summary("all").await["counts"]["applied"]), (wave, &json!(wave)));
        for cluster in having {
            if !finished.contains(&cluster) {
                finished.push(cluster);
                site.complies(cluster).await;
            }
        }
        site.roll().await;
    }
    assert_eq!(site.counts("all").await, [10, 10, 10, 0, 0, 0]);
    assert_ne!(finished, ALL, "in an order that is as good as chance");
    // Another template goes the same way.
    let patch = json!({"properties": {"template": template("https://example.com/next.git")}});
    assert_eq!(site.fleet("PATCH", "all", Some(patch)).await.status, 200);
    site.roll().await;
    assert_eq!(site.counts("all").await, [10, 3, 0, 0, 0, 10]);
    let mut next = 0;
    for cluster in ALL {
        let url = site.made(cluster, "shop").await.body["properties"]["gitRepository"]["url"].clone();
        next += usize::from(url == "https://example.com/next.git");
    }
    assert_eq!(next, 3);
}

#[tokio::test]
async fn g13_too_many_failures_pause_it_until_somebody_resumes() {
    let site = site(&["a", "b", "c", "d"]).await;
    site.wants("all", wanted(json!({"maxConcurrentPercent": 25, "maxFailures": 0}))).await;
    site.roll().await;
    let [first] = site.having(&["a", "b", "c", "d"]).await[..] else { panic!("one at a time") };
    site.says(first, ObjectState::Failed, "Non-Compliant").await;
    site.roll().await;
    let own = site.summary("all").await;
    assert_eq!((&own["state"], &own["counts"]["pending"]), (&json!("Paused"), &json!(3)), "{own}");
    assert!(own["stateReason"].as_str().unwrap().contains("1 clusters failed"), "{own}");
    assert_eq!((&own["failures"][0]["code"], &own["failures"][0]["message"]), (&json!("Bad"), &json!("broken")));
    assert_eq!(site.having(&["a", "b", "c", "d"]).await.len(), 1, "nothing new is begun");
    // What is known is no reason any more; another failure is.
    let resume = json!({"properties": {"rollout": {"paused": false}}});
    assert_eq!(site.fleet("PATCH", "all", Some(resume)).await.status, 200);
    site.roll().await;
    let two = site.having(&["a", "b", "c", "d"]).await;
    assert_eq!((two.len(), &site.summary("all").await["state"]), (2, &json!("RollingOut")));
    let second = two.into_iter().find(|cluster| *cluster != first).unwrap();
    site.says(second, ObjectState::Failed, "Non-Compliant").await;
    site.roll().await;
    assert_eq!(site.summary("all").await["state"], "Paused");
    // Somebody may pause it, too, and a patch of something else does not resume it.
    let other = json!({"properties": {"rollout": {"maxConcurrentPercent": 100}}});
    site.fleet("PATCH", "all", Some(other)).await;
    site.roll().await;
    assert_eq!(
        (site.summary("all").await["state"].clone(), site.having(&["a", "b", "c", "d"]).await.len()),
        (json!("Paused"), 2)
    );
}

#[tokio::test]
async fn g13_who_writes_one_needs_the_rights_to_both() {
    let site = site(&["a"]).await;
    let scope = scope(Some("g"));
    let role = |name: &str, actions: Value| {
        json!({"properties": {
            "roleName": name, "assignableScopes": [scope], "permissions": [{"actions": actions}],
        }})
    };
    let ids = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"];
    for (id, name, actions) in [
        (ids[0], "Assigns", json!(["Towline.Fleet/*"])),
        (ids[1], "Configures", json!(["Microsoft.KubernetesConfiguration/fluxConfigurations/*"])),
    ] {
        let path = format!("{scope}/providers/Microsoft.Authorization/roleDefinitions/{id}?api-version=2022-04-01");
        let made = site.call("owner", "PUT", &path, Some(role(name, actions))).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    for (user, role) in [("assigns", ids[0]), ("configures", ids[1]), ("both", ids[0]), ("both", ids[1])] {
        let made = site.assign(user, role, &scope, json!({})).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let path = assignment(Some("g"), "all");
    for (user, missing) in [("assigns", "fluxConfigurations/write"), ("configures", "assignments/write")] {
        let refused = site.call(user, "PUT", &path, Some(wanted(json!({})))).await;
        assert_eq!((refused.status, refused.code()), (403, "AuthorizationFailed"), "{}", refused.body);
        assert!(refused.body["error"]["message"].as_str().unwrap().contains(missing), "{}", refused.body);
    }
    assert_eq!(site.call("both", "PUT", &path, Some(wanted(json!({})))).await.status, 201);
    // Not further than where the roles are.
    let all = assignment(None, "all");
    assert_eq!(site.call("both", "PUT", &all, Some(wanted(json!({})))).await.status, 403);
    for (method, body) in [("PATCH", Some(json!({"properties": {"rollout": {"paused": true}}}))), ("DELETE", None)] {
        assert_eq!(site.call("assigns", method, &path, body).await.status, 403, "{method}");
    }
    let list = path.replace('?', "/listClusters?");
    assert_eq!(site.call("assigns", "POST", &list, Some(json!({}))).await.status, 403);
    assert_eq!(site.call("both", "POST", &list, Some(json!({}))).await.status, 200);
    // Nor is what they would be refused there told them beside the counts.
    site.roll().await;
    site.says("a", ObjectState::Failed, "Non-Compliant").await;
    site.roll().await;
    for (user, known) in [("assigns", 0), ("both", 1)] {
        let own = site.call(user, "GET", &path, None).await.body["properties"].clone();
        assert_eq!(own["failures"].as_array().map(Vec::len), Some(known), "{user}: {own}");
        assert_eq!(own["counts"]["failed"], 1, "{user}: {own}");
    }
    assert_eq!(site.call("both", "DELETE", &path, None).await.status, 202);
}

#[tokio::test]
async fn g13_assignment_of_a_subscription_reaches_all_its_groups() {
    let site = site(&["a"]).await;
    site.group("h").await;
    let mut body = new_cluster();
    body["tags"] = json!({"ring": "one"});
    assert_eq!(site.call("owner", "PUT", &cluster("h", "far"), Some(body)).await.status, 201);
    let path = assignment(None, "everywhere");
    let mut all = wanted(json!({}));
    all["properties"]["selector"] = json!({"tags": {}});
    let made = site.call("owner", "PUT", &path, Some(all.clone())).await;
    assert_eq!(made.status, 201, "{}", made.body);
    site.roll().await;
    let shown = site.call("owner", "GET", &path, None).await;
    assert_eq!(shown.body["properties"]["counts"]["applied"], 2, "{}", shown.body);
    // One list has the assignments of the subscription and of its groups.
    site.wants("some", wanted(json!({}))).await;
    let list = format!("{}/providers/{FLEET}?{FLEET_VERSION}", scope(None));
    let list = site.call("owner", "GET", &list, None).await;
    assert_eq!(list.body["value"].as_array().map(Vec::len), Some(2), "{}", list.body);
    assert!(list.body["value"].to_string().contains("\"applied\":2"), "{}", list.body);
    // In a cluster none can be.
    let inside = format!("{}/providers/{FLEET}/x?{FLEET_VERSION}", cluster_id("g", "a"));
    assert_eq!(site.call("owner", "PUT", &inside, Some(all)).await.status, 400);
}

#[tokio::test]
async fn g13_template_is_checked_when_it_is_written_and_hides_its_secrets() {
    let site = site(&["a"]).await;
    let with = |change: fn(&mut Value)| {
        let mut body = wanted(json!({}));
        change(&mut body["properties"]);
        body
    };
    for (body, place) in [
        (with(|own| drop(own.as_object_mut().unwrap().remove("selector"))), "properties.selector"),
        (with(|own| own["selector"] = json!({})), "properties.selector.tags"),
        (
            with(|own| own["template"]["type"] = json!("Microsoft.Kubernetes/connectedClusters")),
            "properties.template.type",
        ),
        (with(|own| own["template"]["name"] = json!("Shop!")), "properties.template.name"),
        (with(|own| own["template"]["properties"]["new"] = json!(1)), "properties.template.properties.new"),
        (
            with(|own| own["template"]["properties"]["gitRepository"]["url"] = json!("ftp://x")),
            "properties.template.properties.gitRepository.url",
        ),
        (
            with(|own| own["template"]["properties"]["kustomizations"]["apps"]["dependsOn"] = json!(["no"])),
            "properties.template.properties.kustomizations",
        ),
        (
            with(|own| own["template"]["properties"]["gitRepository"]["httpsUser"] = json!("u")),
            "properties.template.properties.gitRepository.httpsUser",
        ),
        (with(|own| own["rollout"]["maxConcurrentPercent"] = json!(0)), "properties.rollout.maxConcurrentPercent"),
    ] {
        let refused = site.fleet("PUT", "all", Some(body)).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.to_string().contains(place), "{place}: {}", refused.body);
    }

    // How many there are in a cluster of whatever name is no matter.
    let stored = |n: usize| Stored {
        key: format!("{}-{n}", child("any", "full").to_lowercase()),
        kind: CONFIGURATIONS.to_ascii_lowercase(),
        parent: cluster_id("g", "any").to_ascii_lowercase(),
        id: format!("{}-{n}", child("any", "full")),
        revision: 0,
        body: json!({"properties": {}}),
        protected: None,
    };
    site.of_ring("any", "none").await;
    let puts =
        (0..crate::control::objects::OF_A_CLUSTER).map(|n| (stored(usize::try_from(n).unwrap()), Expect::Absent));
    site.control.store.apply(&Batch { puts: puts.collect(), ..Batch::default() }).await.unwrap().unwrap();
    let made = site.fleet("PUT", "all", Some(secret())).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let stored = site.control.store.get(&assignment(Some("g"), "all").split('?').next().unwrap().to_lowercase()).await;
    let stored = stored.unwrap().unwrap();
    for text in [made.body.to_string(), stored.body.to_string()] {
        assert!(!text.contains(SECRET) && !text.contains("configurationProtectedSettings"), "{text}");
    }
    site.roll().await;
    let key = cluster_id("g", "a").to_ascii_lowercase();
    let wanted_there = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap();
    assert!(wanted_there.objects[0].protected.is_some(), "the cluster asks for it");
    // What is sent back as it is shown is no change; what was given stays for clusters that come later.
    let same = site.fleet("PUT", "all", Some(json!({"properties": made.body["properties"].clone()}))).await;
    assert_eq!(same.status, 200, "{}", same.body);
    site.roll().await;
    let after = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap();
    assert_eq!(after.objects[0].generation, wanted_there.objects[0].generation);
    site.of_ring("late", "one").await;
    site.roll().await;
    let late = site.control.objects(&cluster_id("g", "late").to_ascii_lowercase(), Some(CONFIGURATIONS), None).await;
    assert!(late.unwrap().objects[0].protected.is_some());
    let mut body = secret();
    body["properties"]["template"]["name"] = "other".into();
    let refused = site.fleet("PUT", "all", Some(body)).await;
    assert_eq!((refused.status, refused.code()), (400, "PropertyChangeNotAllowed"), "{}", refused.body);
    let scope = json!({"properties": {"template": {"properties": {"scope": "namespace"}}}});
    let mut body = secret();
    body["properties"]["template"]["properties"]["scope"] =
        scope["properties"]["template"]["properties"]["scope"].clone();
    let refused = site.fleet("PUT", "all", Some(body)).await;
    assert_eq!((refused.status, refused.code()), (400, "PropertyChangeNotAllowed"), "{}", refused.body);
}

#[tokio::test]
async fn g13_one_cluster_that_refuses_keeps_no_other_from_its_configuration() {
    let site = site(&["a", "b"]).await;
    // The name that the extension would have there is that of another one.
    let path = format!("{}/providers/Microsoft.KubernetesConfiguration/extensions/flux", cluster_id("g", "a"));
    let id = types::api::ResourceId::parse(&path).unwrap();
    let stored = Stored {
        key: id.key().to_owned(),
        kind: "microsoft.kubernetesconfiguration/extensions".to_owned(),
        parent: id.parent_key().to_owned(),
        id: path,
        revision: 0,
        body: json!({"properties": {"extensionType": "other"}}),
        protected: None,
    };
    site.control.store.put(&stored, Expect::Absent).await.unwrap().unwrap();
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    assert_eq!(site.counts("all").await, [2, 1, 0, 0, 1, 1]);
    assert_eq!(site.summary("all").await["failures"][0]["code"], "FluxExtensionNameTaken");
    // It is tried again after some minutes.
    site.control.store.delete(&stored.key, Expect::Any).await.unwrap().unwrap();
    site.clock_ms.fetch_add(6 * 60 * 1000, Ordering::SeqCst);
    site.roll().await;
    assert_eq!(site.counts("all").await, [2, 2, 0, 0, 0, 2]);
}

#[tokio::test]
async fn g13_another_process_goes_on_where_one_was_killed() {
    let site = site(&["a", "b", "c"]).await;
    site.wants("all", wanted(json!({"maxConcurrentPercent": 34}))).await;
    site.roll().await;
    let first = site.having(&["a", "b", "c"]).await;
    assert_eq!(first.len(), 1);
    // Killed with a claim in its hands.
    site.complies(first[0]).await;
    let store = &site.control.store;
    let waiting = store.operations_waiting("fleet-rollout", site.control.now_ms(), 10).await.unwrap();
    let until = site.control.now_ms() + 60_000;
    assert!(store.claim_operation(&waiting[0], "killed", until).await.unwrap().is_some());
    let site = site.restart().await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site.roll().await;
    assert_eq!(site.having(&["a", "b", "c"]).await, first, "one process at a time");
    site.clock_ms.fetch_add(61_000, Ordering::SeqCst);
    site.roll().await;
    let second = site.having(&["a", "b", "c"]).await;
    assert_eq!(second.len(), 2, "the next one, and no other");
    assert!(second.contains(&first[0]));
    assert_eq!(site.counts("all").await, [3, 2, 1, 0, 0, 2]);
    let generation = |site: &Bench, cluster: &str| {
        let (control, key) = (Arc::clone(&site.control), cluster_id("g", cluster).to_ascii_lowercase());
        async move { control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].generation }
    };
    let before = generation(&site, first[0]).await;
    site.roll().await;
    assert_eq!(generation(&site, first[0]).await, before, "nothing is written twice");
}

#[tokio::test]
async fn g13_a_thousand_clusters_get_one_in_few_looks() {
    const CLUSTERS_OF_FLEET: usize = 1000;
    // One each on an idle machine. On a busy one a look ends after its turn, well before the end of a step.
    const LOOKS: u32 = 50;
    let turns = rollouts().at(Duration::from_secs(10), Duration::ZERO);
    let site = site(&[]).await;
    let mut batch = Batch::default();
    for n in 0..CLUSTERS_OF_FLEET {
        let id = types::api::ResourceId::parse(&cluster_id("g", &format!("edge-{n}"))).unwrap();
        let stored = Stored {
            key: id.key().to_owned(),
            kind: CLUSTERS.to_ascii_lowercase(),
            parent: id.parent_key().to_owned(),
            id: id.as_str().to_owned(),
            revision: 0,
            body: json!({"location": "eastus", "tags": {"ring": "one"}, "properties": {"agentPublicKeyCertificate": ""}}),
            protected: None,
        };
        batch.puts.push((stored, Expect::Absent));
    }
    site.control.write(&batch).await.unwrap().unwrap();
    site.wants("all", wanted(json!({}))).await;
    let looks = site.roll_with(&turns).await;
    assert!(looks <= LOOKS, "{looks} looks write all");
    assert_eq!(site.counts("all").await, [1000, 1000, 0, 0, 0, 1000]);
    let held = site.control.store.count(&CONFIGURATIONS.to_ascii_lowercase(), "").await.unwrap();
    assert_eq!(held, CLUSTERS_OF_FLEET as u64);
    let list = site.states("all", json!({"state": "Applying"})).await;
    assert_eq!(list.len(), CLUSTERS_OF_FLEET);
    // Nor does each of them that tells something take a look of its own.
    for n in 0..CLUSTERS_OF_FLEET {
        site.complies(&format!("edge-{n}")).await;
    }
    let looks = site.roll_with(&turns).await;
    assert!(looks <= LOOKS, "{looks} looks after what each has told");
    assert_eq!(site.counts("all").await, [1000, 1000, 1000, 0, 0, 0]);
}

#[tokio::test]
async fn g13_turn_that_is_over_at_once_still_comes_forward() {
    const ALL: [&str; 20] = [
        "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7",
        "d8", "d9",
    ];
    let site = site(&ALL).await;
    site.wants("all", wanted(json!({}))).await;
    let none = rollouts().at(Duration::ZERO, Duration::ZERO);
    assert_eq!(site.roll_with(&none).await, 2, "a batch in each turn");
    assert_eq!(site.counts("all").await[1], 20);
    // Also where others leave, and where the assignment goes.
    let nobody = json!({"properties": {"selector": {"tags": {"ring": "two"}}}});
    assert_eq!(site.fleet("PATCH", "all", Some(nobody)).await.status, 200);
    site.of_ring("new", "two").await;
    site.roll_with(&none).await;
    assert!(site.having(&ALL).await.is_empty());
    assert_eq!(site.having(&["new"]).await, ["new"]);
}

#[tokio::test]
async fn g13_assignment_with_more_to_do_comes_after_those_that_have_waited() {
    let site = site(&["a", "b"]).await;
    site.wants("all", wanted(json!({}))).await;
    let store = &site.control.store;
    let waiting = async |now_ms| store.operations_waiting("fleet-rollout", now_ms, 10).await.unwrap();
    // Woken while it is looked at.
    let one = waiting(site.control.now_ms()).await.remove(0);
    let claim = store.claim_operation(&one, "process", site.control.now_ms() + 60_000).await.unwrap().unwrap();
    store.wake_operations_of(&one.operation.resource, site.control.now_ms()).await.unwrap();
    let now_ms = site.control.now_ms() + 1000;
    assert!(store.release_operation(&claim, now_ms, i64::MAX / 2, true).await.unwrap());
    assert!(waiting(now_ms - 1).await.is_empty(), "not before all others");
    assert_eq!(waiting(now_ms).await.len(), 1);
}

#[tokio::test]
async fn g13_cluster_that_was_away_for_longer_than_secrets_are_kept_gets_them_again() {
    let site = site(&["a"]).await;
    // Two days later it would end what the cluster has not answered, before or after the cluster does.
    site.tasks[1].abort();
    site.wants("all", secret()).await;
    site.roll().await;
    let first = site.generation("a").await;
    site.later(49);
    site.control.forget_protected().await.unwrap();
    site.says_why("a", ObjectState::Failed, "Non-Compliant", "ProtectedSettingsGone").await;
    site.roll().await;
    let second = site.generation("a").await;
    assert!(second > first);
    let key = cluster_id("g", "a").to_ascii_lowercase();
    let there = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].clone();
    let question = types::agent_api::ProtectedQuestion { id: there.id, protected: there.protected.unwrap() };
    let settings = site.control.protected_of(&key, &question).await.unwrap().settings;
    assert!(settings.iter().any(|(_, value)| value == SECRET), "its agent gets them");
    // A cluster that says so over and over is not written over and over.
    site.says_why("a", ObjectState::Failed, "Non-Compliant", "ProtectedSettingsGone").await;
    site.roll().await;
    assert_eq!((site.generation("a").await, site.counts("all").await[4]), (second, 1));
}

/// With the onboarding role alone somebody connected a cluster with a key of their own, and the assignment gave it what it
/// had kept for the previous agents.
#[tokio::test]
async fn g13_cluster_with_another_key_gets_secrets_that_somebody_gives_again_and_no_others() {
    const ONBOARDING: &str = "34e09817-6cbe-4d01-b1a2-e0eac5743d41";
    let site = site(&["a", "b"]).await;
    assert_eq!(site.assign("onboarder", ONBOARDING, &scope(Some("g")), json!({})).await.status, 201);
    site.wants("all", secret()).await;
    site.roll().await;
    let key = cluster_id("g", "a").to_ascii_lowercase();
    let asked = async || {
        let there = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].clone();
        let question = types::agent_api::ProtectedQuestion { id: there.id, protected: there.protected.unwrap() };
        site.control.protected_of(&key, &question).await.map(|given| given.settings).map_err(|error| error.detail.code)
    };
    assert!(asked().await.unwrap().values().any(|value| value == SECRET));
    site.later(1);
    let mut other = new_cluster();
    other["tags"] = json!({"ring": "one"});
    other["properties"]["agentPublicKeyCertificate"] = super::connectivity::public_key().into();
    assert_eq!(site.call("onboarder", "PUT", &cluster("g", "a"), Some(other)).await.status, 200);
    let gone = Err("ProtectedSettingsGone".to_owned());
    let refilled = async || {
        site.says_why("a", ObjectState::Failed, "Non-Compliant", "ProtectedSettingsGone").await;
        site.later(1);
        let touched = json!({"tags": {"ring": "one", "n": site.control.now_ms().to_string()}});
        assert_eq!(site.call("owner", "PATCH", &cluster("g", "a"), Some(touched)).await.status, 200);
        site.roll().await;
        asked().await
    };
    assert_eq!(refilled().await, gone);
    // Nor with another template that brings none.
    let mut newer = secret();
    newer["properties"]["template"]["properties"]["gitRepository"]["repositoryRef"]["branch"] = "next".into();
    let properties = newer["properties"]["template"]["properties"].as_object_mut().unwrap();
    properties.remove("configurationProtectedSettings");
    site.wants("all", newer.clone()).await;
    site.roll().await;
    assert_eq!(refilled().await, gone);
    let failures = site.summary("all").await["failures"].clone();
    assert_eq!((&failures[0]["code"], failures.as_array().unwrap().len()), (&json!("ClusterHasOtherAgents"), 1));
    // The same values: the caller who gives them again knows whose the cluster is.
    newer["properties"]["template"]["properties"]["configurationProtectedSettings"] = json!({"httpsKey": SECRET});
    site.wants("all", newer).await;
    site.roll().await;
    assert!(refilled().await.unwrap().values().any(|value| value == SECRET));
}

/// By the clocks of two replicas the key was older than the secrets, and its holder got them.
#[tokio::test]
async fn g13_key_is_newer_than_secrets_by_the_order_of_writes_and_not_by_clocks() {
    let site = site(&["a"]).await;
    assert_eq!(site.assign("onboarder", ONBOARDING, &scope(Some("g")), json!({})).await.status, 201);
    site.wants("all", secret()).await;
    site.roll().await;
    let key = cluster_id("g", "a").to_ascii_lowercase();
    // The cluster says that it has none, and is looked at a day later.
    let refilled = async || {
        site.says_why("a", ObjectState::Failed, "Non-Compliant", "ProtectedSettingsGone").await;
        site.later(24);
        let touched = json!({"tags": {"ring": "one", "n": site.control.now_ms().to_string()}});
        assert_eq!(site.call("owner", "PATCH", &cluster("g", "a"), Some(touched)).await.status, 200);
        site.roll().await;
        let there = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].clone();
        let question = types::agent_api::ProtectedQuestion { id: there.id, protected: there.protected.unwrap() };
        site.control.protected_of(&key, &question).await.map(|given| given.settings).map_err(|error| error.detail.code)
    };
    // A replica whose clock is an hour behind.
    site.later(-1);
    let mut other = new_cluster();
    other["tags"] = json!({"ring": "one"});
    other["properties"]["agentPublicKeyCertificate"] = super::connectivity::public_key().into();
    assert_eq!(site.call("onboarder", "PUT", &cluster("g", "a"), Some(other)).await.status, 200);
    assert_eq!(refilled().await, Err("ProtectedSettingsGone".to_owned()));
    // And one that is a day further behind is told them again.
    site.later(-48);
    site.wants("all", secret()).await;
    site.later(48);
    site.roll().await;
    assert!(refilled().await.unwrap().values().any(|value| value == SECRET));
}

#[tokio::test]
async fn g13_pause_holds_removals_and_waves_bound_them() {
    const ALL: [&str; 4] = ["a", "b", "c", "d"];
    let site = site(&ALL).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    for cluster in ALL {
        site.complies(cluster).await;
    }
    let nobody = json!({"properties": {
        "selector": {"tags": {"ring": "typo"}}, "rollout": {"paused": true, "maxConcurrentPercent": 50},
    }});
    assert_eq!(site.fleet("PATCH", "all", Some(nobody)).await.status, 200);
    site.roll().await;
    assert_eq!(site.having(&ALL).await.len(), 4, "nothing is taken away while it is paused");
    let resume = json!({"properties": {"rollout": {"paused": false}}});
    assert_eq!(site.fleet("PATCH", "all", Some(resume)).await.status, 200);
    // Half of those that are left at one time.
    for left in [2, 1, 0] {
        site.roll().await;
        assert_eq!(site.having(&ALL).await.len(), left);
        site.roll().await;
        assert_eq!(site.having(&ALL).await.len(), left, "while they are going");
        assert_eq!(site.summary("all").await["state"], "RollingOut", "it is not complete while something is left");
        site.says_gone(&ALL).await;
    }
    site.clock_ms.fetch_add(61_000, Ordering::SeqCst);
    site.roll().await;
    assert_eq!(site.summary("all").await["state"], "Complete");
}

#[tokio::test]
async fn g13_share_is_one_of_the_clusters_that_are_to_have_it() {
    const ALL: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let site = site(&ALL).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    for cluster in ALL {
        site.complies(cluster).await;
    }
    for cluster in ["n1", "n2", "n3", "n4"] {
        site.of_ring(cluster, "two").await;
    }
    let other = json!({"properties": {"selector": {"tags": {"ring": "two"}}, "rollout": {"maxConcurrentPercent": 25}}});
    assert_eq!(site.fleet("PATCH", "all", Some(other)).await.status, 200);
    site.roll().await;
    let having = site.having(&["n1", "n2", "n3", "n4"]).await;
    assert_eq!((having.len(), site.having(&ALL).await.len()), (1, 6), "a quarter of four, and a quarter of eight");
}

#[tokio::test]
async fn g13_what_is_only_of_the_moment_is_no_failure_of_a_cluster() {
    let site = site(&["a", "b"]).await;
    // Somebody deletes the group of one; the gateway cannot open what it sealed.
    site.group("h").await;
    let mut body = new_cluster();
    body["tags"] = json!({"ring": "one"});
    assert_eq!(site.call("owner", "PUT", &cluster("h", "far"), Some(body)).await.status, 201);
    let key = scope(Some("h")).to_lowercase();
    let mut going = site.control.store.get(&key).await.unwrap().unwrap();
    crate::control::objects::mark_deleting(&mut going, true);
    site.control.store.put(&going, Expect::Any).await.unwrap().unwrap();
    let path = assignment(None, "all");
    let made = site.call("owner", "PUT", &path, Some(wanted(json!({"maxFailures": 0})))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    site.roll().await;
    let own = site.call("owner", "GET", &path, None).await.body["properties"].clone();
    assert_eq!((&own["state"], &own["counts"]["failed"]), (&json!("RollingOut"), &json!(0)), "{own}");
    assert_eq!(own["counts"]["applied"], 2, "the others have it: {own}");
}

#[tokio::test]
async fn g13_what_keeps_an_assignment_from_going_on_is_told_of_it() {
    let site = site(&["a"]).await;
    site.wants("all", secret()).await;
    let key = assignment(Some("g"), "all").split('?').next().unwrap().to_lowercase();
    let mut stored = site.control.store.get(&key).await.unwrap().unwrap();
    stored.protected = Some(vec![0; 64]);
    site.control.store.put(&stored, Expect::Any).await.unwrap().unwrap();
    let round = site.round(&rollouts().at(LONG, Duration::ZERO)).await;
    assert!(round.error.unwrap().contains("store_key_file"));
    let own = site.summary("all").await;
    assert_eq!((&own["state"], &own["counts"]["pending"]), (&json!("RollingOut"), &json!(1)), "{own}");
    assert!(own["stateReason"].as_str().unwrap().contains("store_key_file"), "{own}");
}

#[tokio::test]
async fn g13_cluster_that_never_ends_keeps_others_for_two_days_at_most_and_one_that_has_ended_never() {
    let site = site(&["a", "b", "c"]).await;
    site.wants("all", wanted(json!({"maxConcurrentPercent": 34}))).await;
    site.roll().await;
    let [first] = site.having(&["a", "b", "c"]).await[..] else { panic!("one at a time") };
    site.complies(first).await;
    // A push to the repository is no part of the rollout.
    site.says(first, ObjectState::Succeeded, "Pending").await;
    site.roll().await;
    let two = site.having(&["a", "b", "c"]).await;
    assert_eq!(two.len(), 2);
    // Its Flux does not run.
    let second = two.into_iter().find(|cluster| *cluster != first).unwrap();
    site.says(second, ObjectState::Succeeded, "Pending").await;
    site.roll().await;
    assert_eq!(site.having(&["a", "b", "c"]).await.len(), 2);
    site.later(49);
    site.roll().await;
    assert_eq!(site.having(&["a", "b", "c"]).await.len(), 3);
    let failed = site.summary("all").await["failures"].clone();
    assert_eq!((failed.as_array().unwrap().len(), &failed[0]["code"]), (1, &json!("TimedOut")), "{failed}");
    // It may comply after all.
    site.complies(second).await;
    site.roll().await;
    assert_eq!(site.counts("all").await[4], 0);
}

#[tokio::test]
async fn g13_write_of_an_assignment_that_has_changed_does_not_happen() {
    let site = site(&["a"]).await;
    site.wants("all", wanted(json!({}))).await;
    let key = assignment(Some("g"), "all").split('?').next().unwrap().to_lowercase();
    let before = site.control.store.get(&key).await.unwrap().unwrap();
    let pause = json!({"properties": {"rollout": {"paused": true}}});
    assert_eq!(site.fleet("PATCH", "all", Some(pause)).await.status, 200);
    let cluster = site.control.store.get(&cluster_id("g", "a").to_ascii_lowercase()).await.unwrap().unwrap();
    let batch = Batch {
        puts: vec![(cluster, Expect::Any)],
        as_read: vec![(key.clone(), Some(before.revision))],
        ..Batch::default()
    };
    let refused = site.control.write(&batch).await.unwrap().unwrap_err();
    assert!(matches!(refused, crate::store::batch::Refused::Changed { key: changed, .. } if changed == key));
}

#[tokio::test]
async fn g13_assignments_at_once_are_no_more_than_may_be() {
    const MOST: u64 = 100;
    let site = site(&[]).await;
    site.wants("all", wanted(json!({}))).await;
    let id = |name: &str| assignment(Some("g"), name).split('?').next().unwrap().to_owned();
    site.copied(&id("all"), MOST - 2).await;
    for round in 0..5 {
        let names = ["one", "two"].map(|name| format!("{name}{round}"));
        let put = |name| site.fleet("PUT", name, Some(wanted(json!({}))));
        let answers: [Answer; 2] = tokio::join!(put(&names[0]), put(&names[1])).into();
        let kept = usize::from(answers[0].status != 201);
        let refused = &answers[1 - kept];
        assert_eq!((answers[kept].status, refused.status), (201, 409), "round {round}");
        assert_eq!(refused.code(), "QuotaExceeded", "{}", refused.body);
        let key = id(&names[kept]).to_ascii_lowercase();
        site.control.store.delete(&key, Expect::Any).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn g13_write_of_a_cluster_that_keeps_its_tags_wakes_no_assignment() {
    let site = site(&["a", "b"]).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    site.of_ring("a", "one").await;
    assert_eq!(site.roll().await, 0);
    site.of_ring("a", "two").await;
    assert!(site.roll().await > 0);
    // And what is woken over and over rests between two looks.
    let rollouts = rollouts().at(LONG, LONG);
    site.of_ring("a", "one").await;
    assert_eq!(site.round(&rollouts).await.done, 1);
    let having = site.having(&["a", "b"]).await.len();
    site.of_ring("new", "one").await;
    site.round(&rollouts).await;
    assert_eq!(site.having(&["new", "a", "b"]).await.len(), having);
}

#[tokio::test]
async fn g13_cluster_that_goes_from_one_ring_to_another_is_no_failure_of_either() {
    let site = site(&["a", "b"]).await;
    let ring = |ring: &str| {
        let mut body = wanted(json!({"maxFailures": 0, "maxConcurrentPercent": 1}));
        body["properties"]["selector"] = json!({"tags": {"ring": ring}});
        body
    };
    site.wants("one", ring("one")).await;
    site.roll().await;
    let mine = site.having(&["a", "b"]).await[0];
    // What it has is the first one's when the second looks.
    let pause = json!({"properties": {"rollout": {"paused": true}}});
    assert_eq!(site.fleet("PATCH", "one", Some(pause)).await.status, 200);
    site.of_ring(mine, "two").await;
    site.of_ring("other", "two").await;
    site.wants("two", ring("two")).await;
    site.roll().await;
    let own = site.summary("two").await;
    assert_eq!((&own["state"], &own["counts"]["failed"]), (&json!("RollingOut"), &json!(0)), "{own}");
    assert_eq!(site.having(&["other"]).await, ["other"]);
}

#[tokio::test]
async fn g13_kept_secrets_do_not_follow_to_another_address() {
    let site = site(&["a"]).await;
    site.wants("all", secret()).await;
    let with = |url: &str| {
        let mut body = secret();
        body["properties"]["template"]["properties"]["gitRepository"]["url"] = url.into();
        let own = body["properties"]["template"]["properties"].as_object_mut().unwrap();
        own.remove("configurationProtectedSettings");
        body
    };
    for url in ["https://mine.example/x.git", "http://example.com/shop.git", "https://example.com:8443/shop.git"] {
        let refused = site.fleet("PUT", "all", Some(with(url))).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidCredentials"), "{}", refused.body);
        let patch = json!({"properties": {"template": with(url)["properties"]["template"]}});
        assert_eq!(site.fleet("PATCH", "all", Some(patch)).await.status, 400);
    }
    let same = site.fleet("PUT", "all", Some(with("https://example.com/other.git"))).await;
    assert_eq!(same.status, 200, "{}", same.body);
    let mut again = with("https://mine.example/x.git");
    again["properties"]["template"]["properties"]["configurationProtectedSettings"] = json!({"httpsKey": SECRET});
    assert_eq!(site.fleet("PUT", "all", Some(again)).await.status, 200);
}

#[tokio::test]
async fn g13_same_template_with_the_same_secret_is_no_new_one() {
    let site = site(&["a"]).await;
    site.wants("all", secret()).await;
    site.roll().await;
    let first = site.generation("a").await;
    site.clock_ms.fetch_add(1000, Ordering::SeqCst);
    site.wants("all", secret()).await;
    site.roll().await;
    assert_eq!(site.generation("a").await, first);
    let mut other = secret();
    other["properties"]["template"]["properties"]["configurationProtectedSettings"] = json!({"httpsKey": "YW5kZXJz"});
    site.wants("all", other).await;
    site.roll().await;
    assert!(site.generation("a").await > first);
}

/// The other kind was refused beside the former one, which nobody could take away who does not see it.
#[tokio::test]
async fn g13_template_takes_other_credentials_as_a_configuration_does() {
    let site = site(&["a"]).await;
    let of_blob = |url: &str, credentials: Value| {
        let mut blob = json!({"url": url, "containerName": "c"});
        blob.as_object_mut().unwrap().extend(credentials.as_object().cloned().unwrap());
        let mut body = wanted(json!({}));
        body["properties"]["template"]["properties"] = json!({"sourceKind": "AzureBlob", "azureBlob": blob});
        body
    };
    let key = cluster_id("g", "a").to_ascii_lowercase();
    let settings = async || {
        site.roll().await;
        let there = site.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap().objects[0].clone();
        let question = types::agent_api::ProtectedQuestion { id: there.id, protected: there.protected.unwrap() };
        let told = site.control.protected_of(&key, &question).await.unwrap().settings;
        told.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    let (here, elsewhere) = ("https://account.example.com", "https://other.example.com");
    for (url, credentials, sealed) in [
        (here, json!({"accountKey": "geheim-1"}), "azureBlob.accountKey=geheim-1"),
        (here, json!({"sasToken": "geheim-2"}), "azureBlob.sasToken=geheim-2"),
        (elsewhere, json!({"accountKey": "geheim-3"}), "azureBlob.accountKey=geheim-3"),
    ] {
        site.wants("all", of_blob(url, credentials)).await;
        assert_eq!(settings().await, [sealed]);
    }
    let generation = site.generation("a").await;
    site.wants("all", of_blob(elsewhere, json!({"accountKey": "geheim-3"}))).await;
    site.wants("all", of_blob(elsewhere, json!({}))).await;
    assert_eq!(settings().await, ["azureBlob.accountKey=geheim-3"]);
    assert_eq!(site.generation("a").await, generation, "the same again, or what is kept, changes nothing");
    let both = of_blob(elsewhere, json!({"accountKey": "geheim-3", "sasToken": "geheim-2"}));
    let refused = site.fleet("PUT", "all", Some(both)).await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidCredentials"), "{}", refused.body);
    assert_eq!(refused.body["error"]["target"], "properties.template.properties.azureBlob.sasToken");
}

#[tokio::test]
async fn g13_template_is_refused_for_what_a_configuration_is_and_takes_what_was_read_of_one() {
    let site = site(&["a"]).await;
    let inner = |change: Value| {
        let mut body = wanted(json!({}));
        let own = body["properties"]["template"]["properties"].as_object_mut().unwrap();
        own.extend(change.as_object().cloned().unwrap());
        body
    };
    let git = |more: Value| {
        let mut git = json!({"url": "https://example.com/shop.git"});
        git.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        json!({ "gitRepository": git })
    };
    let ssh = json!({"gitRepository": {"url": "ssh://git@github.com/a/b"}, "configurationProtectedSettings": {"sshPrivateKey": SECRET}});
    for (change, at) in [
        (git(json!({"repositoryRef": {"branch": "a..b"}})), "gitRepository.repositoryRef.branch"),
        (git(json!({"repositoryRef": {"semver": "x y z"}})), "gitRepository.repositoryRef.semver"),
        (git(json!({"repositoryRef": {"branch": "a", "tag": "b"}})), "gitRepository.repositoryRef"),
        (git(json!({"sshKnownHosts": SECRET})), "gitRepository.sshKnownHosts"),
        (git(json!({"localAuthRef": "a", "httpsCACert": SECRET})), "gitRepository.httpsCACert"),
        (ssh, "configurationProtectedSettings.sshPrivateKey"),
        (
            json!({"kustomizations": {"a": {"postBuild": {"substitute": {"1": "x"}}}}}),
            "kustomizations.a.postBuild.substitute.1",
        ),
        (json!({"kustomizations": {"x".repeat(60): {}}}), "kustomizations"),
    ] {
        let refused = site.fleet("PUT", "all", Some(inner(change))).await;
        assert_eq!(refused.status, 400, "{at}: {}", refused.body);
        let place = format!("properties.template.properties.{at}");
        assert!(refused.body.to_string().contains(&place), "{place}: {}", refused.body);
    }
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    let generation = site.generation("a").await;
    // As somebody reads it of a cluster, with what only the gateway writes.
    let read = site.made("a", "shop").await.body["properties"].clone();
    assert!(read["provisioningState"].is_string() && read["kustomizations"]["apps"]["name"].is_string(), "{read}");
    let mut again = wanted(json!({}));
    again["properties"]["template"]["properties"] = read;
    again["properties"]["template"]["name"] = "SHOP".into();
    site.clock_ms.fetch_add(1000, Ordering::SeqCst);
    let written = site.fleet("PUT", "all", Some(again)).await;
    assert_eq!(written.status, 200, "{}", written.body);
    assert_eq!(written.body["properties"]["template"]["name"], "shop", "it keeps its name");
    site.roll().await;
    assert_eq!(site.generation("a").await, generation, "nothing was changed");
}

/// Checks, sealing and showing of many values held up a worker for up to half a second. Now they leave it to others
/// (`long_work_that_borrows_leaves_its_thread_to_others`), which changes no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_assignment_of_many_values_is_written_and_read_as_any_other() {
    let site = site(&["a"]).await;
    let mut body = secret();
    let values: serde_json::Map<String, Value> = (0..200).map(|n| (format!("v{n:04}"), json!(""))).collect();
    let one = json!({"path": "./a", "prune": true, "postBuild": {"substitute": values}});
    let kustomizations = (10..30).map(|n| (format!("k{n}"), one.clone()));
    body["properties"]["template"]["properties"]["kustomizations"] = Value::Object(kustomizations.collect());
    assert!(!crate::answers::is_short(&body));
    site.wants("all", body.clone()).await;
    site.roll().await;
    let configuration = format!("{}?{NEWEST}", child("a", "shop"));
    for path in [assignment(Some("g"), "all"), configuration] {
        let read = site.call("owner", "GET", &path, None).await;
        assert_eq!(read.status, 200, "{}", read.body);
        let properties = &read.body["properties"];
        let found = properties.get("template").map_or(properties, |template| &template["properties"]);
        assert_eq!(found["kustomizations"].as_object().unwrap().len(), 20);
        assert_eq!(found["kustomizations"]["k10"]["postBuild"]["substitute"].as_object().unwrap().len(), 200);
        assert!(!read.body.to_string().contains(SECRET));
    }
    let list = format!("{}/providers/{CONFIGURATIONS}?{NEWEST}", cluster_id("g", "a"));
    let listed = site.call("owner", "GET", &list, None).await;
    assert_eq!(listed.body["value"].as_array().unwrap().len(), 1, "{}", listed.status);
    site.wants("all", body).await;
    assert_eq!(site.fleet("DELETE", "all", None).await.status, 202);
}

/// A template of 235 KiB for ten thousand clusters took gigabytes.
#[tokio::test]
async fn g13_what_an_assignment_makes_counts_to_the_quota_of_its_group() {
    // Three clusters, the assignment, and for two of these clusters Flux and the configuration.
    let group = Quota { resources: 8, ..Quotas::default().group };
    let site = site_with(&["a", "b", "c"], Quotas { group, ..Quotas::default() }).await;
    site.wants("all", wanted(json!({}))).await;
    site.roll().await;
    assert_eq!(site.counts("all").await, [3, 2, 0, 0, 1, 2]);
    let failure = site.summary("all").await["failures"][0].clone();
    assert_eq!(failure["code"], "QuotaExceeded", "{failure}");
    assert!(failure["message"].as_str().unwrap().starts_with("The resource group 'g' holds 8 resources"), "{failure}");
    assert_eq!(site.summary("all").await["state"], "RollingOut", "it waits for what was begun");
    // Once one is gone another one has its room, some minutes later.
    let has = site.having(&["a", "b", "c"]).await;
    let gone = site.call("owner", "DELETE", &cluster("g", has[0]), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    site.clock_ms.fetch_add(6 * 60 * 1000, Ordering::SeqCst);
    site.roll().await;
    assert_eq!(site.counts("all").await, [2, 2, 0, 0, 0, 2]);
}

/// A full group stopped a rollout to all others. What cannot be applied there still stops it.
#[tokio::test]
async fn g13_a_full_group_pauses_no_rollout() {
    // Four clusters, the assignment, and for one of these clusters Flux and the configuration.
    let group = Quota { resources: 7, ..Quotas::default().group };
    let clusters = ["a", "b", "c", "d"];
    let site = site_with(&clusters, Quotas { group, ..Quotas::default() }).await;
    site.wants("all", wanted(json!({"maxConcurrentPercent": 25, "maxFailures": 0}))).await;
    site.roll().await;
    let [first] = site.having(&clusters).await[..] else { panic!("one has room") };
    site.complies(first).await;
    site.roll().await;
    let own = site.summary("all").await;
    assert_eq!((&own["counts"]["failed"], &own["state"]), (&json!(3), &json!("Complete")), "{own}");
    assert_eq!(own["failures"][0]["code"], "QuotaExceeded", "{own}");
    // They are tried again by a rollout that goes on.
    site.clock_ms.fetch_add(6 * 60 * 1000, Ordering::SeqCst);
    let gone = site.call("owner", "DELETE", &cluster("g", first), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    site.roll().await;
    let [second] = site.having(&clusters).await[..] else {
        panic!("another has room: {:?}", site.summary("all").await)
    };
    site.says(second, ObjectState::Failed, "Non-Compliant").await;
    site.clock_ms.fetch_add(6 * 60 * 1000, Ordering::SeqCst);
    site.roll().await;
    let own = site.summary("all").await;
    assert!(own["stateReason"].as_str().is_some_and(|why| why.contains("1 clusters failed")), "{own}");
}
