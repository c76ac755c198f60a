//! Flux configurations (docs/features.md G1-G11): what is written and refused, what agents of the cluster are told, and
//! what is shown of what they tell.

use serde_json::Map;
use types::agent_api::{
    ObjectError, ObjectState, ObjectStatus, ObjectStatuses, ObjectStatusesAnswer, Objects, PARTS_OF_AN_OBJECT, Parts,
    ProtectedQuestion, encode,
};

use super::*;

const CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/fluxConfigurations";
const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
const NEWEST: &str = "api-version=2025-04-01";
const OLD: &str = "api-version=2022-07-01";
const EXTENSION_VERSION: &str = "api-version=2025-03-01";
/// Generations begin at the clock's instant, and rise by one while it stands still.
const BEFORE: i64 = 1_800_000_000_000 - 1;

pub(super) fn id(name: &str) -> String {
    format!("{}/providers/{CONFIGURATIONS}/{name}", cluster_id("g", "c"))
}

pub(super) fn at(name: &str) -> String {
    format!("{}?{NEWEST}", id(name))
}

fn extension(name: &str) -> String {
    format!("{}/providers/{EXTENSIONS}/{name}?{EXTENSION_VERSION}", cluster_id("g", "c"))
}

pub(super) fn key(cluster: &str) -> String {
    cluster_id("g", cluster).to_ascii_lowercase()
}

/// Lines of `known_hosts`.
fn known_hosts() -> String {
    types::known_hosts::built_in("git@github.com:x").unwrap()
}

fn git() -> Value {
    json!({"properties": {
        "sourceKind": "GitRepository",
        "gitRepository": {"url": "https://example.com/shop.git", "repositoryRef": {"branch": "main"}},
        "kustomizations": {"apps": {"path": "./apps", "dependsOn": ["infra"], "prune": true}, "infra": {}},
    }})
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut body = git();
    change(&mut body["properties"]);
    body
}

/// A gateway with a group, two clusters and a catalogue that has Flux, or not.
async fn site_with(flux: bool) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    crate::catalogue::tests::make(&folder.path().join("catalogue"), &[("1.0.0", &["Stable"])], |index| {
        if flux {
            "microsoft.flux".clone_into(&mut index.types[0].name);
        }
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    site.cluster("g", "c").await;
    site.cluster("g", "d").await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site
}

pub(super) async fn site() -> Bench {
    site_with(true).await
}

impl Bench {
    async fn flux(&self, method: &str, name: &str, body: Option<Value>) -> Answer {
        self.call("owner", method, &at(name), body).await
    }

    /// Creates one that everything is fine with.
    async fn created(&self, name: &str) {
        let made = self.flux("PUT", name, Some(git())).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }

    /// Why a body is refused, and where.
    async fn refused(&self, name: &str, body: Value) -> (String, String) {
        let answer = self.flux("PUT", name, Some(body)).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let error = &answer.body["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (text("code"), text("target"))
    }

    async fn wanted(&self, after: Option<i64>) -> Objects {
        self.control.objects(&key("c"), Some(CONFIGURATIONS), after).await.unwrap()
    }

    async fn tell_of(&self, name: &str, told: ObjectStatus) -> ObjectStatusesAnswer {
        let told = ObjectStatus { id: id(name), ..told };
        self.control.objects_told(&key("c"), ObjectStatuses { objects: vec![told] }).await.unwrap()
    }

    async fn tell_parts(&self, name: &str, parts: Parts) -> Vec<String> {
        self.tell_of(name, ObjectStatus { parts: Some(parts), ..status(1, ObjectState::Succeeded) }).await.again
    }

    /// The names of the parts that are shown.
    async fn parts(&self, name: &str) -> Vec<String> {
        let shown = self.flux("GET", name, None).await;
        names(&shown.body["properties"]["statuses"])
    }
}

fn names(statuses: &Value) -> Vec<String> {
    statuses.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

pub(super) fn status(generation: i64, state: ObjectState) -> ObjectStatus {
    ObjectStatus {
        id: String::new(),
        generation: BEFORE + generation,
        state,
        current_version: None,
        error: None,
        statuses: Vec::new(),
        events: Vec::new(),
        details: None,
        parts: None,
    }
}

fn part(name: &str, state: &str) -> (String, Option<Value>) {
    let told = json!({"name": name, "namespace": "shop", "kind": "Deployment", "complianceState": state});
    (name.to_owned(), Some(told))
}

fn parts<const N: usize>(after: Option<u64>, position: u64, values: [(String, Option<Value>); N]) -> Parts {
    Parts { after, position, values: values.into() }
}

#[tokio::test]
async fn g1_a_configuration_is_shown_with_defaults_and_there_when_its_cluster_says_so() {
    let site = site().await;
    let made = site.flux("PUT", "shop", Some(git())).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let own = &made.body["properties"];
    assert_eq!(
        (&own["scope"], &own["namespace"], &own["suspend"]),
        (&json!("cluster"), &json!("default"), &json!(false))
    );
    assert_eq!((&own["provisioningState"], &own["complianceState"]), (&json!("Creating"), &json!("Pending")));
    assert_eq!((&own["statuses"], &own["errorMessage"]), (&json!([]), &Value::Null));
    let git = &own["gitRepository"];
    assert_eq!((&git["timeoutInSeconds"], &git["syncIntervalInSeconds"]), (&json!(600), &json!(600)));
    let wanted = json!({
        "name": "infra", "path": "", "prune": false, "force": false, "wait": true, "timeoutInSeconds": 600,
        "syncIntervalInSeconds": 600,
    });
    assert_eq!(own["kustomizations"]["infra"], wanted);
    assert!(made.body.get("object").is_none(), "{}", made.body);
    let operation = made.header("azure-asyncoperation").to_owned();

    let told = site.wanted(None).await;
    assert_eq!((told.objects.len(), told.objects[0].generation), (1, BEFORE + 1));
    let spec = told.objects[0].spec.as_ref().unwrap();
    assert_eq!((&spec["scope"], &spec["kustomizations"]["apps"]["wait"]), (&json!("cluster"), &json!(true)));
    assert!(spec.get("statuses").is_none() && spec.get("provisioningState").is_none(), "{spec}");

    let details = json!({
        "complianceState": "Non-Compliant", "sourceSyncedCommitId": "main@sha1:0123", "errorMessage": "no such path",
        "repositoryPublicKey": 7, "provisioningState": "Succeeded", "html": "x", "statusUpdatedAt": "2026-11-27T12:00:00Z",
    });
    let done = ObjectStatus { details: Some(details), ..status(1, ObjectState::Succeeded) };
    assert_eq!(site.tell_of("shop", done).await, ObjectStatusesAnswer::default());
    assert_eq!(site.ended("owner", &operation).await.body["status"], "Succeeded");
    let shown = site.flux("GET", "SHOP", None).await;
    let own = &shown.body["properties"];
    assert_eq!((&own["provisioningState"], &own["complianceState"]), (&json!("Succeeded"), &json!("Non-Compliant")));
    assert_eq!(
        (&own["sourceSyncedCommitId"], &own["errorMessage"]),
        (&json!("main@sha1:0123"), &json!("no such path"))
    );
    assert_eq!((&own["repositoryPublicKey"], own.get("html")), (&Value::Null, None));
    // What a message does not name stays as it was told.
    site.tell_of("shop", status(1, ObjectState::Succeeded)).await;
    let again = site.flux("GET", "shop", None).await;
    assert_eq!(again.body["properties"]["complianceState"], "Non-Compliant");
    let own = format!("{}/operations/{}?{NEWEST}", id("shop"), told.objects[0].operation.as_ref().unwrap());
    assert_eq!(site.call("owner", "GET", &own, None).await.body["status"], "Succeeded");
    let all = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/resources?{VERSION}");
    let all = site.call("owner", "GET", &all, None).await;
    assert!(!all.body["value"].to_string().contains("/fluxConfigurations/"), "{}", all.body);
}

#[tokio::test]
async fn g1_a_failure_that_is_not_explained_names_flux_and_one_that_is_shows_its_message() {
    let site = site().await;
    let made = site.flux("PUT", "shop", Some(git())).await;
    site.tell_of("shop", status(1, ObjectState::Failed)).await;
    let ended = site.ended("owner", made.header("azure-asyncoperation")).await;
    assert_eq!(ended.body["error"]["code"], "FluxConfigurationOperationFailed", "{}", ended.body);
    assert!(ended.body["error"]["message"].as_str().unwrap().contains("towline flux show"), "{}", ended.body);
    let error = ObjectError { code: "NamespaceNotAllowed".to_owned(), message: "pinned in the cluster".to_owned() };
    site.tell_of("shop", ObjectStatus { error: Some(error), ..status(1, ObjectState::Failed) }).await;
    let shown = site.flux("GET", "shop", None).await;
    assert_eq!(shown.body["properties"]["errorMessage"], "pinned in the cluster");
}

#[tokio::test]
async fn g1_two_references_are_refused() {
    let site = site().await;
    let two = with(|own| own["gitRepository"]["repositoryRef"] = json!({"branch": "main", "tag": "v1"}));
    let refused = site.refused("shop", two).await;
    assert_eq!(refused, ("InvalidRepositoryReference".into(), "properties.gitRepository.repositoryRef".into()));
    // A PATCH names another one in place of the one before.
    site.created("shop").await;
    let patch = json!({"properties": {"gitRepository": {"repositoryRef": {"tag": "v1"}}}});
    let changed = site.flux("PATCH", "shop", Some(patch)).await;
    assert_eq!(changed.status, 202, "{}", changed.body);
    assert_eq!(changed.body["properties"]["gitRepository"]["repositoryRef"], json!({"tag": "v1"}));
}

#[tokio::test]
async fn g1_a_url_of_another_scheme_is_refused() {
    let site = site().await;
    for (kind, name, url) in [
        ("GitRepository", "gitRepository", "ftp://example.com/shop.git"),
        ("GitRepository", "gitRepository", "https://me:word@example.com/shop.git"),
        ("Bucket", "bucket", "s3://example.com"),
        ("AzureBlob", "azureBlob", "ssh://example.com"),
        ("OCIRepository", "ociRepository", "https://example.com/shop"),
    ] {
        let body = json!({"properties": {
            "sourceKind": kind, name: {"url": url, "bucketName": "b", "containerName": "c"},
        }});
        let answer = site.flux("PUT", "shop", Some(body)).await;
        let target = format!("properties.{name}.url");
        assert!(answer.status == 400 && answer.body.to_string().contains(&target), "{}", answer.body);
    }
    for url in ["git@github.com:org/shop.git", "http://10.0.0.1/shop.git"] {
        let body = with(|own| own["gitRepository"]["url"] = url.into());
        assert!(site.flux("PUT", "shop", Some(body)).await.status < 300, "{url}");
    }
    let body = with(|own| {
        own["gitRepository"]["url"] = "ssh://git@example.com/shop.git".into();
        own["gitRepository"]["sshKnownHosts"] = encode(known_hosts().as_bytes()).into();
    });
    assert!(site.flux("PUT", "shop", Some(body)).await.status < 300);
}

#[tokio::test]
async fn g1_a_source_that_does_not_fit_its_kind_is_refused() {
    let site = site().await;
    let bucket = json!({"url": "https://minio.example.com", "bucketName": "b"});
    let both = with(|own| own["bucket"] = bucket.clone());
    assert_eq!(site.refused("shop", both).await, ("InvalidSource".into(), "properties.bucket".into()));
    let other = with(|own| own["sourceKind"] = "Bucket".into());
    let answer = site.flux("PUT", "shop", Some(other)).await;
    assert_eq!(
        (answer.status, answer.body["error"]["details"].as_array().map(Vec::len)),
        (400, Some(2)),
        "{}",
        answer.body
    );
    let none = json!({"properties": {"kustomizations": {}}});
    assert_eq!(site.refused("shop", none).await, ("MissingRequiredProperty".into(), "properties.sourceKind".into()));
    // Another kind of source takes the place of the former one; az sends an empty one along.
    site.created("shop").await;
    let patch = json!({"properties": {"sourceKind": "Bucket", "bucket": bucket, "gitRepository": {}}});
    let changed = site.flux("PATCH", "shop", Some(patch)).await;
    let own = &changed.body["properties"];
    assert_eq!((changed.status, &own["bucket"]["insecure"], own.get("gitRepository")), (202, &json!(true), None));
}

#[tokio::test]
async fn g1_a_change_of_scope_or_namespace_is_refused() {
    let site = site().await;
    let body = with(|own| {
        own["scope"] = "namespace".into();
        own["namespace"] = "team".into();
    });
    assert_eq!(site.flux("PUT", "shop", Some(body)).await.status, 201);
    for (name, value) in [("scope", "cluster"), ("namespace", "other")] {
        let refused = site.refused("shop", with(|own| own[name] = value.into())).await;
        assert_eq!(refused, ("PropertyChangeNotAllowed".into(), format!("properties.{name}")));
        let patch = site.flux("PATCH", "shop", Some(json!({"properties": {name: value}}))).await;
        assert_eq!(patch.status, 400, "{}", patch.body);
    }
    // Who does not name them leaves them.
    let same = site.flux("PUT", "shop", Some(git())).await;
    let own = &same.body["properties"];
    assert_eq!((same.status, &own["scope"], &own["namespace"]), (200, &json!("namespace"), &json!("team")));
}

#[tokio::test]
async fn g1_names_that_are_too_long_together_are_refused() {
    let site = site().await;
    let named = |length: usize| with(|own| own["kustomizations"] = json!({"k".repeat(length): {}}));
    let (code, target) = site.refused(&"n".repeat(31), named(32)).await;
    assert_eq!(
        (code.as_str(), target),
        ("InvalidKustomization", format!("properties.kustomizations.{}", "k".repeat(32)))
    );
    assert_eq!(site.flux("PUT", &"n".repeat(31), Some(named(31))).await.status, 201);
    let (_, target) = site.refused("shop", with(|own| own["kustomizations"] = json!({"A_b": {}}))).await;
    assert_eq!(target, "properties.kustomizations.A_b");
    let many: Map<String, Value> = (0..101).map(|n| (format!("k{n}"), json!({}))).collect();
    let (_, target) = site.refused("shop", with(|own| own["kustomizations"] = many.into())).await;
    assert_eq!(target, "properties.kustomizations");
    assert_eq!(site.refused("Shop", git()).await.1, "name");
}

#[tokio::test]
async fn g1_unknown_and_circular_dependencies_are_refused() {
    let site = site().await;
    let depends =
        |a: Value, b: Value| with(|own| own["kustomizations"] = json!({"a": {"dependsOn": a}, "b": {"dependsOn": b}}));
    for (body, at) in [
        (depends(json!(["none"]), json!([])), "a"),
        (depends(json!(["a"]), json!([])), "a"),
        (depends(json!(["b"]), json!(["a"])), "a"),
    ] {
        let refused = site.refused("shop", body).await;
        assert_eq!(refused, ("InvalidDependency".into(), format!("properties.kustomizations.{at}.dependsOn")));
    }
    let many = depends(json!(vec!["b"; 101]), json!([]));
    assert_eq!(site.refused("shop", many).await.0, "InvalidKustomization");
    // Also what a PATCH leads to: it takes away what another one waits for.
    site.created("shop").await;
    let patch = site.flux("PATCH", "shop", Some(json!({"properties": {"kustomizations": {"infra": null}}}))).await;
    assert_eq!((patch.status, &patch.body["error"]["code"]), (400, &json!("InvalidDependency")), "{}", patch.body);
}

#[tokio::test]
async fn g1_texts_that_flux_would_not_take_are_refused() {
    let site = site().await;
    for (change, target) in [
        (json!({"gitRepository": {"httpsCACert": "no base64"}}), "properties.gitRepository.httpsCACert"),
        (json!({"gitRepository": {"sshKnownHosts": ""}}), "properties.gitRepository.sshKnownHosts"),
        (json!({"gitRepository": {"syncIntervalInSeconds": 0}}), "properties.gitRepository.syncIntervalInSeconds"),
        (json!({"gitRepository": {"nosuch": 1}}), "properties.gitRepository.nosuch"),
        (json!({"kustomizations": {"apps": {"path": "../x"}}}), "properties.kustomizations.apps.path"),
        (json!({"kustomizations": {"apps": {"prune": "yes"}}}), "properties.kustomizations.apps.prune"),
        (json!({"namespace": "Team"}), "properties.namespace"),
        (json!({"gitRepository": {"sshKnownHosts": "AAEC"}}), "properties.gitRepository.sshKnownHosts"),
        (
            json!({"gitRepository": {"repositoryRef": {"semver": "not a range!!"}}}),
            "properties.gitRepository.repositoryRef.semver",
        ),
        (
            json!({"gitRepository": {"repositoryRef": {"branch": "a..b~^:"}}}),
            "properties.gitRepository.repositoryRef.branch",
        ),
        (json!({"gitRepository": {"url": "git@git.test:a"}}), "properties.gitRepository.sshKnownHosts"),
        (
            json!({"kustomizations": {"apps": {"postBuild": {"substitute": {"a-b": "x"}}}}}),
            "properties.kustomizations.apps.postBuild.substitute.a-b",
        ),
        (json!({"reconciliationWaitDuration": "5 minutes"}), "properties.reconciliationWaitDuration"),
        (
            json!({"configurationProtectedSettings": {"password": "aGk="}}),
            "properties.configurationProtectedSettings.password",
        ),
        (
            json!({"configurationProtectedSettings": {"httpsKey": "hi!"}}),
            "properties.configurationProtectedSettings.httpsKey",
        ),
    ] {
        let body = with(|own| {
            for (name, value) in change.as_object().unwrap() {
                match (own.get_mut(name).and_then(Value::as_object_mut), value) {
                    (Some(own), Value::Object(new)) => own.extend(new.clone()),
                    _ => own[name] = value.clone(),
                }
            }
        });
        assert_eq!(site.refused("shop", body).await.1, target, "{change}");
    }
}

#[tokio::test]
async fn g4_artifacts_that_nobody_could_verify_are_refused() {
    let site = site().await;
    let oci = |verify: Value| {
        json!({"properties": {
            "sourceKind": "OCIRepository",
            "ociRepository": {"url": "oci://ghcr.io/org/shop", "repositoryRef": {"tag": "1"}, "verify": verify},
        }})
    };
    let key = encode(b"-----BEGIN PUBLIC KEY-----");
    for (verify, target) in [
        (json!({"provider": "gpg"}), "provider"),
        (json!({"verificationConfig": {"cosign.pub": "no base64"}}), "verificationConfig.cosign.pub"),
        (json!({"provider": "Cosign", "verificationConfig": {"cosign.pub": "AAEC"}}), "verificationConfig.cosign.pub"),
        (json!({"provider": "notation", "verificationConfig": {"ca.pem": ""}}), "verificationConfig.ca.pem"),
    ] {
        let refused = site.refused("shop", oci(verify.clone())).await;
        assert_eq!(refused.1, format!("properties.ociRepository.verify.{target}"), "{verify}");
    }
    for verify in [
        json!({"provider": "COSIGN", "verificationConfig": {"cosign.pub": key}}),
        json!({"provider": "notation", "verificationConfig": {"trustpolicy.json": encode(b"{}")}}),
    ] {
        assert!(site.flux("PUT", "shop", Some(oci(verify.clone()))).await.status < 300, "{verify}");
    }
}

#[tokio::test]
async fn g1_two_kustomizations_of_one_name_in_the_cluster_are_refused() {
    let site = site().await;
    let named = |names: &[&str], namespace: &str| {
        let all: Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        with(|own| {
            own["kustomizations"] = all.into();
            own["namespace"] = namespace.into();
        })
    };
    assert_eq!(site.flux("PUT", "a-b", Some(named(&["c", "d"], "one"))).await.status, 201);
    for (name, kustomization) in [("a", "b-c"), ("a-b-c", "x")] {
        assert_eq!(site.flux("PUT", name, Some(named(&["apps"], "one"))).await.status, 201);
        let taken = site.flux("PUT", "a", Some(named(&["b-c"], "one"))).await;
        assert_eq!(
            (taken.status, taken.code()),
            (409, "KustomizationNameTaken"),
            "{name} {kustomization}: {}",
            taken.body
        );
        assert_eq!(taken.body["error"]["target"], "properties.kustomizations.b-c");
    }
    // Also what a PATCH adds, and to the longer name.
    let patch = json!({"properties": {"kustomizations": {"b-d": {}}}});
    let taken = site.flux("PATCH", "a", Some(patch)).await;
    assert_eq!((taken.status, taken.code()), (409, "KustomizationNameTaken"), "{}", taken.body);
    let patch = json!({"properties": {"kustomizations": {"c-x": {}}}});
    let added = site.flux("PATCH", "a-b", Some(patch.clone())).await;
    assert_eq!(added.status, 202, "{}", added.body);
    let taken = site.flux("PUT", "a-b-c", Some(named(&["x"], "one"))).await;
    assert_eq!((taken.status, taken.code()), (409, "KustomizationNameTaken"), "{}", taken.body);
    // Another namespace has other objects.
    assert_eq!(site.flux("PUT", "a-b-c-d", Some(named(&["x"], "two"))).await.status, 201);
    assert_eq!(site.flux("DELETE", "a", None).await.status, 202);
}

/// Of the answers to two requests that clash, the first of which adds `b-c` and the second `c`, one is of this status and
/// the other one the refusal of its name.
fn one_is_refused(answers: &(Answer, Answer), done: u16) {
    let (kept, refused, name) = match answers.0.status == done {
        true => (&answers.0, &answers.1, "c"),
        false => (&answers.1, &answers.0, "b-c"),
    };
    assert_eq!((kept.status, refused.status), (done, 409), "{} {}", kept.body, refused.body);
    assert_eq!(refused.code(), "KustomizationNameTaken", "{}", refused.body);
    assert_eq!(refused.body["error"]["target"], format!("properties.kustomizations.{name}"));
}

/// Requests of one moment all look before the first of them is kept. Of two configurations that clash only the agents of
/// their cluster refused one.
#[tokio::test]
async fn g1_of_two_new_ones_that_clash_at_once_one_is_refused() {
    let site = site().await;
    site.created("first").await;
    for n in 0..25 {
        let names = [format!("new{n}"), format!("new{n}-b")];
        let put = |at: usize, name: &str| {
            let body = with(|own| own["kustomizations"] = json!({name: {}}));
            site.flux("PUT", &names[at], Some(body))
        };
        one_is_refused(&tokio::join!(put(0, "b-c"), put(1, "c")), 201);
        let shown = tokio::join!(site.flux("GET", &names[0], None), site.flux("GET", &names[1], None));
        let mut shown = [shown.0.status, shown.1.status];
        shown.sort_unstable();
        assert_eq!(shown, [200, 404], "round {n}");
    }
}

#[tokio::test]
async fn g1_of_two_changes_that_clash_at_once_one_is_refused() {
    let site = site().await;
    for n in 0..12 {
        let names = [format!("old{n}"), format!("old{n}-b")];
        for name in &names {
            site.created(name).await;
        }
        let patch = |at: usize, name: &str| {
            let body = json!({"properties": {"kustomizations": {name: {}}}});
            site.flux("PATCH", &names[at], Some(body))
        };
        one_is_refused(&tokio::join!(patch(0, "b-c"), patch(1, "c")), 202);
    }
}

#[tokio::test]
async fn g1_configurations_at_once_are_no_more_than_may_be() {
    let site = site().await;
    site.created("shop").await;
    site.copied(&id("shop"), crate::control::objects::OF_A_CLUSTER - 2).await;
    for round in 0..5 {
        let names: Vec<String> = (0..4).map(|n| format!("new{round}-{n}")).collect();
        let all = names.iter().map(|name| site.flux("PUT", name, Some(git())));
        let answers = futures_util::future::join_all(all).await;
        let mut codes: Vec<_> = answers.iter().map(|answer| (answer.status, answer.code())).collect();
        codes.sort_unstable();
        let full = (409, "QuotaExceeded");
        assert_eq!(codes, [(201, ""), full, full, full], "round {round}");
        let kept = answers.iter().position(|answer| answer.status == 201).unwrap();
        let key = id(&names[kept]).to_ascii_lowercase();
        site.control.store.delete(&key, crate::store::batch::Expect::Any).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn g5_null_takes_a_variable_away() {
    let site = site().await;
    let substitute = |texts: Value| json!({"postBuild": {"substitute": texts}});
    let body = with(|own| own["kustomizations"] = json!({"apps": substitute(json!({"a": "1", "b": "2"}))}));
    assert_eq!(site.flux("PUT", "shop", Some(body)).await.status, 201);
    let patch = json!({"properties": {"kustomizations": {"apps": substitute(json!({"a": null, "c": "3"}))}}});
    let changed = site.flux("PATCH", "shop", Some(patch)).await;
    assert_eq!(changed.status, 202, "{}", changed.body);
    let texts = &changed.body["properties"]["kustomizations"]["apps"]["postBuild"]["substitute"];
    assert_eq!(*texts, json!({"b": "2", "c": "3"}));
}

#[tokio::test]
async fn g1_a_patch_changes_what_it_names_and_null_takes_a_kustomization_away() {
    let site = site().await;
    site.created("shop").await;
    let patch = json!({"properties": {
        "suspend": true,
        "gitRepository": {"syncIntervalInSeconds": 60, "repositoryRef": null},
        "kustomizations": {"apps": null, "infra": {"prune": true}, "more": {"dependsOn": ["infra"]}},
    }});
    let changed = site.flux("PATCH", "shop", Some(patch)).await;
    assert_eq!(changed.status, 202, "{}", changed.body);
    let own = &changed.body["properties"];
    let git = json!({"url": "https://example.com/shop.git", "timeoutInSeconds": 600, "syncIntervalInSeconds": 60});
    assert_eq!((&own["gitRepository"], &own["suspend"]), (&git, &json!(true)));
    let all = own["kustomizations"].as_object().unwrap();
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["infra", "more"]);
    assert_eq!((&all["infra"]["prune"], &all["infra"]["wait"]), (&json!(true), &json!(true)));
    assert_eq!(all["more"]["timeoutInSeconds"], 600);
    assert_eq!(site.wanted(None).await.objects[0].generation, BEFORE + 2);
}

#[tokio::test]
async fn g1_an_older_api_version_keeps_what_it_does_not_show() {
    let site = site().await;
    let body = with(|own| {
        own["kustomizations"]["apps"]["wait"] = false.into();
        own["waitForReconciliation"] = true.into();
    });
    site.flux("PUT", "shop", Some(body)).await;
    let old = format!("{}?{OLD}", id("shop"));
    let shown = site.call("owner", "GET", &old, None).await;
    let own = &shown.body["properties"];
    assert!(own.get("waitForReconciliation").is_none() && own["kustomizations"]["apps"].get("wait").is_none(), "{own}");
    assert_eq!(site.call("owner", "PUT", &old, Some(git())).await.status, 200);
    let own = site.flux("GET", "shop", None).await.body["properties"].clone();
    assert_eq!((&own["waitForReconciliation"], &own["kustomizations"]["apps"]["wait"]), (&json!(true), &json!(false)));
}

#[tokio::test]
async fn g4_oci_is_known_to_the_api_versions_that_have_it() {
    let site = site().await;
    let body = json!({"properties": {
        "sourceKind": "ocirepository",
        "ociRepository": {"url": "oci://ghcr.io/org/shop", "repositoryRef": {"tag": "1"}, "tlsConfig": {"privateKey": "aGk="}},
    }});
    let old = format!("{}?api-version=2024-11-01", id("shop"));
    let refused = site.call("owner", "PUT", &old, Some(body.clone())).await;
    assert_eq!((refused.status, &refused.body["error"]["target"]), (400, &json!("properties.sourceKind")));
    let preview = format!("{}?api-version=2024-04-01-preview", id("shop"));
    let made = site.call("owner", "PUT", &preview, Some(body)).await;
    assert_eq!((made.status, &made.body["properties"]["sourceKind"]), (201, &json!("OCIRepository")), "{}", made.body);
    assert!(made.body["properties"]["ociRepository"]["tlsConfig"].get("privateKey").is_none());
    assert!(site.call("owner", "GET", &old, None).await.body["properties"].get("ociRepository").is_none());
    // What does not concern the source is changed by them too.
    let suspended = site.call("owner", "PATCH", &old, Some(json!({"properties": {"suspend": true}}))).await;
    assert_eq!(suspended.status, 202, "{}", suspended.body);
    let own = site.flux("GET", "shop", None).await.body["properties"].clone();
    assert_eq!((&own["ociRepository"]["insecure"], &own["suspend"]), (&json!(false), &json!(true)));
}

#[tokio::test]
async fn g4_blobs_are_known_from_their_first_api_version_on() {
    let site = site().await;
    let blob = json!({"properties": {
        "sourceKind": "AzureBlob", "azureBlob": {"url": "https://account.example.com", "containerName": "c", "accountKey": "k"},
    }});
    let at = |name: &str, version: &str| format!("{}?api-version={version}", id(name));
    let refused = site.call("owner", "PUT", &at("blob", "2022-03-01"), Some(blob.clone())).await;
    assert_eq!((refused.status, &refused.body["error"]["target"]), (400, &json!("properties.sourceKind")));
    for (name, version) in [("one", "2022-07-01"), ("two", "2022-11-01")] {
        let made = site.call("owner", "PUT", &at(name, version), Some(blob.clone())).await;
        assert_eq!((made.status, &made.body["properties"]["sourceKind"]), (201, &json!("AzureBlob")), "{}", made.body);
    }
    assert!(
        site.call("owner", "GET", &at("one", "2022-03-01"), None).await.body["properties"].get("azureBlob").is_none()
    );
    let made = site.call("owner", "PUT", &at("git", "2022-03-01"), Some(git())).await;
    assert_eq!(made.status, 201, "{}", made.body);
}

#[tokio::test]
async fn g1_write_only_settings_go_to_the_cluster_alone_by_their_names() {
    let site = site().await;
    let blob = |credentials: Value| {
        let mut source = json!({"url": "https://account.example.com", "containerName": "c"});
        source.as_object_mut().unwrap().extend(credentials.as_object().cloned().unwrap());
        json!({"properties": {"sourceKind": "AzureBlob", "azureBlob": source}})
    };
    let settings = async |answer: &Answer| {
        let kept = site.control.store.get(&id("shop").to_ascii_lowercase()).await.unwrap().unwrap();
        let object = site.wanted(None).await.objects.remove(0);
        for text in [answer.body.to_string(), kept.body.to_string(), serde_json::to_string(&object).unwrap()] {
            assert!(!text.contains("geheim") && !text.contains("Z2VoZWlt"), "{text}");
        }
        let question = ProtectedQuestion { id: object.id, protected: object.protected.unwrap() };
        assert!(site.control.protected_of(&key("d"), &question).await.is_err(), "another cluster's");
        let told = site.control.protected_of(&key("c"), &question).await.unwrap().settings;
        told.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    // Each alone, and another one takes the place of the former one.
    let principal = |more: Value| {
        let mut principal = json!({"clientId": "i", "tenantId": "t"});
        principal.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        json!({ "servicePrincipal": principal })
    };
    for (credentials, sealed) in [
        (json!({"accountKey": "geheim-1"}), vec!["azureBlob.accountKey=geheim-1"]),
        (json!({"sasToken": "geheim-2"}), vec!["azureBlob.sasToken=geheim-2"]),
        (principal(json!({"clientSecret": "geheim-3"})), vec!["azureBlob.servicePrincipal.clientSecret=geheim-3"]),
        (
            principal(json!({"clientCertificate": "Z2VoZWlt", "clientCertificatePassword": "geheim-4"})),
            vec![
                "azureBlob.servicePrincipal.clientCertificate=Z2VoZWlt",
                "azureBlob.servicePrincipal.clientCertificatePassword=geheim-4",
            ],
        ),
    ] {
        let put = site.flux("PUT", "shop", Some(blob(credentials.clone()))).await;
        assert!(matches!(put.status, 200 | 201), "{}", put.body);
        assert_eq!(settings(&put).await, sealed);
    }
    let read = site.flux("GET", "shop", None).await;
    assert_eq!(site.flux("PUT", "shop", Some(read.body.clone())).await.body, read.body);
    let patch = |credentials: Value| json!({"properties": {"azureBlob": credentials}});
    let one = patch(json!({"servicePrincipal": {"clientCertificatePassword": "geheim-6"}}));
    let patched = site.flux("PATCH", "shop", Some(one)).await;
    assert_eq!(settings(&patched).await[1], "azureBlob.servicePrincipal.clientCertificatePassword=geheim-6");
    let patched = site.flux("PATCH", "shop", Some(patch(json!({"sasToken": "geheim-5"})))).await;
    assert!(patched.status == 202 && patched.body["properties"]["azureBlob"].get("servicePrincipal").is_none());
    assert_eq!(settings(&patched).await, ["azureBlob.sasToken=geheim-5"]);
    // `null` takes one away.
    let patched = site.flux("PATCH", "shop", Some(patch(json!({"accountKey": "geheim-7", "sasToken": null})))).await;
    assert_eq!(settings(&patched).await, ["azureBlob.accountKey=geheim-7"]);
    let both = patch(json!({"accountKey": "geheim-7", "sasToken": "geheim-5"}));
    let refused = site.flux("PATCH", "shop", Some(both)).await;
    let target = refused.body["error"]["target"].as_str();
    assert_eq!((refused.status, target), (400, Some("properties.azureBlob.sasToken")), "{}", refused.body);
    // With the source they go. The protected settings are replaced as a whole.
    let bucket = json!({"properties": {
        "sourceKind": "Bucket", "bucket": {"url": "https://example.com", "bucketName": "b", "accessKey": "a"},
        "configurationProtectedSettings": {"secretKey": "Z2VoZWltLTQ="},
    }});
    let patched = site.flux("PATCH", "shop", Some(bucket)).await;
    assert_eq!(patched.status, 202, "{}", patched.body);
    assert_eq!(settings(&patched).await, ["bucketSecretKey=Z2VoZWltLTQ="]);
    let git = json!({"properties": {
        "sourceKind": "GitRepository", "gitRepository": {"url": "https://example.com/x"},
        "configurationProtectedSettings": {"httpsKey": "aGk="},
    }});
    let patched = site.flux("PATCH", "shop", Some(git)).await;
    assert_eq!(settings(&patched).await, ["httpsKey=aGk="]);
}

#[tokio::test]
async fn g1_kept_secrets_do_not_follow_to_another_host() {
    let site = site().await;
    let body = with(|own| own["configurationProtectedSettings"] = json!({"httpsKey": "aGk="}));
    assert_eq!(site.flux("PUT", "shop", Some(body)).await.status, 201);
    let url = |url: &str, more: Value| {
        let mut own = more;
        own["gitRepository"] = json!({"url": url});
        json!({"properties": own})
    };
    // Another path of the same host, and the same secrets.
    assert_eq!(site.flux("PATCH", "shop", Some(url("https://example.com/b", json!({})))).await.status, 202);
    let elsewhere = ["https://example.com.evil.test/b", "https://example.com:8443/b", "http://example.com/b"];
    let refused = async |site: &Bench| {
        for other in elsewhere {
            let answer = site.flux("PATCH", "shop", Some(url(other, json!({})))).await;
            assert_eq!((answer.status, answer.code()), (400, "InvalidCredentials"), "{other}: {}", answer.body);
            assert_eq!(answer.body["error"]["target"], "properties.configurationProtectedSettings", "{}", answer.body);
        }
        let whole = with(|own| own["gitRepository"]["url"] = "https://evil.test/b".into());
        assert_eq!(site.flux("PUT", "shop", Some(whole)).await.status, 400);
    };
    refused(&site).await;
    // Also when only the cluster still has them, and the gateway does not.
    site.clock_ms.fetch_add(DUE_MS, Ordering::SeqCst);
    site.control.forget_protected().await.unwrap();
    refused(&site).await;
    // Others, and none, may go anywhere.
    for own in [json!({"httpsKey": "aG8="}), json!({})] {
        let own = json!({ "configurationProtectedSettings": own });
        let answer = site.flux("PATCH", "shop", Some(url("https://evil.test/b", own))).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        let back = url("https://example.com/b", json!({"configurationProtectedSettings": {"httpsKey": "aGk="}}));
        assert_eq!(site.flux("PATCH", "shop", Some(back)).await.status, 202);
    }
}

#[tokio::test]
async fn g8_protected_settings_are_kept_48_hours_also_when_some_are_given_again() {
    let site = site().await;
    let blob = json!({"properties": {
        "sourceKind": "AzureBlob",
        "azureBlob": {"url": "https://account.example.com", "containerName": "c", "servicePrincipal": {
            "clientId": "i", "tenantId": "t", "clientCertificate": "Z2VoZWlt", "clientCertificatePassword": "geheim-2",
        }},
    }});
    assert_eq!(site.flux("PUT", "shop", Some(blob)).await.status, 201);
    site.clock_ms.fetch_add(DUE_MS - 3_600_000, Ordering::SeqCst);
    let patch = json!({"properties": {"azureBlob": {"servicePrincipal": {"clientCertificatePassword": "geheim-3"}}}});
    assert_eq!(site.flux("PATCH", "shop", Some(patch)).await.status, 202);
    site.control.forget_protected().await.unwrap();
    let object = site.wanted(None).await.objects.remove(0);
    let question = ProtectedQuestion { id: object.id, protected: object.protected.unwrap() };
    assert!(site.control.protected_of(&key("c"), &question).await.is_ok());
    // The certificate is 48 hours old now.
    site.clock_ms.fetch_add(3_600_000, Ordering::SeqCst);
    site.control.forget_protected().await.unwrap();
    let gone = site.control.protected_of(&key("c"), &question).await.unwrap_err();
    assert_eq!((gone.status.as_u16(), gone.detail.code.as_str()), (410, "ProtectedSettingsGone"));
    assert!(gone.detail.message.contains("towline flux update"), "{}", gone.detail.message);
}

#[tokio::test]
async fn g8_x4_what_a_cluster_has_not_done_within_48_hours_has_failed_and_names_its_agent() {
    let site = site().await;
    let made = site.flux("PUT", "shop", Some(git())).await;
    let told = json!({"complianceState": "Compliant"});
    site.tell_of("shop", ObjectStatus { details: Some(told), ..status(1, ObjectState::Updating) }).await;
    site.clock_ms.fetch_add(DUE_MS + 3_600_000, Ordering::SeqCst);
    let operation = made.header("azure-asyncoperation").strip_prefix(URL).unwrap().to_owned();
    let ended = loop {
        let answer = site.call("owner", "GET", &operation, None).await;
        if answer.body["status"] != "InProgress" {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended.body["error"]["code"], "OperationTimedOut", "{}", ended.body);
    assert!(ended.body["error"]["message"].as_str().unwrap().contains("fluxconfig-agent"), "{}", ended.body);
    let shown = site.flux("GET", "shop", None).await;
    let own = &shown.body["properties"];
    // The last that is known of what complies stays.
    assert_eq!((&own["provisioningState"], &own["complianceState"]), (&json!("Failed"), &json!("Compliant")));
    assert!(own["errorMessage"].as_str().unwrap().contains("48 hours"), "{own}");
}

#[tokio::test]
async fn g8_x4_what_a_cluster_does_at_the_47th_hour_has_succeeded_and_stays_so_at_the_49th() {
    const HOUR_MS: i64 = 3_600_000;
    let site = site().await;
    let made = site.flux("PUT", "shop", Some(git())).await;
    site.clock_ms.fetch_add(47 * HOUR_MS, Ordering::SeqCst);
    assert_eq!(site.flux("GET", "shop", None).await.body["properties"]["provisioningState"], "Creating");
    let told = json!({"complianceState": "Compliant"});
    site.tell_of("shop", ObjectStatus { details: Some(told), ..status(1, ObjectState::Succeeded) }).await;
    let ended = site.ended("owner", made.header("azure-asyncoperation")).await;
    assert_eq!(ended.body["status"], "Succeeded", "{}", ended.body);
    site.clock_ms.fetch_add(2 * HOUR_MS, Ordering::SeqCst);
    let shown = site.flux("GET", "shop", None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Succeeded", "{}", shown.body);
}

#[tokio::test]
async fn g1_objects_are_asked_for_by_kind() {
    let site = site().await;
    site.created("shop").await;
    let of = async |kind: Option<&str>| {
        let told = site.control.objects(&key("c"), kind, None).await;
        told.map(|told| told.objects.into_iter().map(|one| one.kind.to_lowercase()).collect::<Vec<_>>())
    };
    let (flux, extension) = (CONFIGURATIONS.to_lowercase(), EXTENSIONS.to_lowercase());
    assert_eq!(of(Some(CONFIGURATIONS)).await.unwrap(), [flux.as_str()]);
    assert_eq!(of(Some(&extension)).await.unwrap(), [extension.as_str()]);
    assert_eq!(of(None).await.unwrap().len(), 2);
    let refused = of(Some("Microsoft.Kubernetes/connectedClusters")).await.unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.detail.target.as_deref()), (400, Some("kind")));
    // A position of one kind goes on with that kind.
    let position = site.wanted(None).await.position;
    assert!(site.wanted(Some(position)).await.objects.is_empty());
    assert_eq!(site.call("owner", "DELETE", &at("shop"), None).await.status, 202);
    let news = site.wanted(Some(position)).await.objects.remove(0);
    assert!(news.deleting || news.spec.is_none(), "{news:?}");
}

#[tokio::test]
async fn g6_parts_are_told_as_changes_and_those_that_do_not_comply_come_first() {
    let site = site().await;
    site.created("shop").await;
    let revision = site.control.store.revision().await.unwrap();
    let all = [part("c", "Compliant"), part("b", "Pending"), part("z", "Non-Compliant"), part("y", "Non-Compliant")];
    assert!(site.tell_parts("shop", parts(None, 7, all)).await.is_empty());
    assert_eq!(site.parts("shop").await, ["y", "z", "b", "c"]);
    let change = [part("y", "Compliant"), part("a", "Non-Compliant"), ("b".to_owned(), None)];
    assert!(site.tell_parts("shop", parts(Some(7), 8, change)).await.is_empty());
    assert_eq!(site.parts("shop").await, ["a", "z", "c", "y"]);
    // The same message again, whose answer was lost.
    assert!(site.tell_parts("shop", parts(Some(7), 8, [part("a", "Pending")])).await.is_empty());
    assert_eq!(site.parts("shop").await, ["a", "z", "c", "y"]);
    // Something in between is missing.
    assert_eq!(site.tell_parts("shop", parts(Some(9), 10, [part("x", "Pending")])).await, [id("shop")]);
    assert_eq!(site.parts("shop").await, ["a", "z", "c", "y"]);
    assert!(site.tell_parts("shop", parts(None, u64::MAX, [part("x", "Pending")])).await.is_empty());
    assert!(site.tell_parts("shop", parts(Some(u64::MAX), 1, [part("w", "Pending")])).await.is_empty());
    assert_eq!(site.parts("shop").await, ["w", "x"]);
    assert_eq!(site.control.store.revision().await.unwrap(), revision, "nothing that is told is a change");
    // Of what is not wanted yet nothing is told, and nothing taken.
    let early = ObjectStatus { parts: Some(parts(Some(1), 2, [])), ..status(9, ObjectState::Succeeded) };
    assert_eq!(site.tell_of("shop", early).await.again, [id("shop")]);
}

#[tokio::test]
async fn g6_what_is_told_of_a_part_is_typed_and_bounded() {
    let site = site().await;
    site.created("shop").await;
    let long = "ä\0\"".repeat(20_000);
    let condition = json!({"type": "Ready", "status": "False", "reason": "R", "message": long, "more": 1});
    let told = json!({
        "name": "web", "namespace": 7, "kind": "Deployment", "complianceState": "Splendid", "html": "<b>",
        "appliedBy": {"name": "shop-apps", "namespace": "default", "uid": "u"}, "statusConditions": vec![condition; 40],
        "helmReleaseProperties": {"failureCount": 3, "installFailureCount": -1},
    });
    let values = [
        ("web".to_owned(), Some(told)),
        ("n".repeat(601), Some(json!({"name": "n"}))),
        ("text".to_owned(), Some(json!("x"))),
    ];
    assert!(site.tell_parts("shop", parts(None, 1, values)).await.is_empty());
    let shown = site.flux("GET", "shop", None).await;
    let statuses = shown.body["properties"]["statuses"].as_array().unwrap();
    assert_eq!(statuses.len(), 1, "{}", shown.body);
    let one = &statuses[0];
    assert!(one.to_string().len() <= types::agent_api::PART_BYTES && !one.to_string().contains("\\u0000"));
    assert_eq!(
        (&one["appliedBy"], one.get("namespace")),
        (&json!({"name": "shop-apps", "namespace": "default"}), None)
    );
    assert_eq!((&one["helmReleaseProperties"], one.get("complianceState")), (&json!({"failureCount": 3}), None));
    assert_eq!(one["statusConditions"].as_array().map(Vec::len), Some(16));
    let details = json!({"errorMessage": "\"".repeat(100_000)});
    site.tell_of("shop", ObjectStatus { details: Some(details), ..status(1, ObjectState::Succeeded) }).await;
    let shown = site.flux("GET", "shop", None).await;
    assert_eq!(shown.body["properties"]["errorMessage"].as_str().map(str::len), Some(4096));
}

#[tokio::test]
async fn g6_parts_are_bounded_in_number_and_a_list_shows_a_hundred_of_each() {
    let site = site().await;
    for name in ["a", "b", "c"] {
        site.created(name).await;
    }
    let many = |from: usize| (from..from + 9000).map(|n| part(&format!("p{n:05}"), "Compliant"));
    for name in ["a", "b", "c"] {
        let (last, state) = part("zz-last", "Non-Compliant");
        let values = many(0).chain([(last, state)]).collect();
        assert!(site.tell_parts(name, Parts { after: None, position: 1, values }).await.is_empty());
    }
    // 20,000 in a cluster: the third has what was left.
    assert_eq!(
        (site.parts("a").await.len(), site.parts("b").await.len(), site.parts("c").await.len()),
        (9001, 9001, 1998)
    );
    let values = many(9000).collect();
    assert!(site.tell_parts("a", Parts { after: Some(1), position: 2, values }).await.is_empty());
    assert_eq!(site.parts("a").await.len(), 9001, "no room in the cluster any more");
    let values = many(0).map(|(name, _)| (name, None)).collect();
    assert!(site.tell_parts("b", Parts { after: Some(1), position: 2, values }).await.is_empty());
    assert_eq!(site.parts("b").await, ["zz-last"]);
    let values = many(9000).collect();
    assert!(site.tell_parts("a", Parts { after: Some(2), position: 3, values }).await.is_empty());
    assert_eq!(site.parts("a").await.len(), PARTS_OF_AN_OBJECT);

    let list = format!("{}/providers/{CONFIGURATIONS}?{NEWEST}", cluster_id("g", "c"));
    let listed = site.call("owner", "GET", &list, None).await;
    let shown: Vec<_> =
        listed.body["value"].as_array().unwrap().iter().map(|one| names(&one["properties"]["statuses"])).collect();
    assert_eq!(shown.iter().map(Vec::len).collect::<Vec<_>>(), [100, 1, 100]);
    assert_eq!((shown[0][0].as_str(), shown[0][1].as_str()), ("zz-last", "p00000"));
    let too_many = (0..PARTS_OF_AN_OBJECT + 1).map(|n| (n.to_string(), None)).collect();
    let told = ObjectStatus {
        parts: Some(Parts { after: None, position: 5, values: too_many }),
        ..ObjectStatus { id: id("a"), ..status(1, ObjectState::Succeeded) }
    };
    let refused = site.control.objects_told(&key("c"), ObjectStatuses { objects: vec![told] }).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 400);
}

#[tokio::test]
async fn g11_a_deletion_ends_when_the_cluster_has_taken_it_down_and_at_once_when_forced() {
    let site = site().await;
    for name in ["shop", "other"] {
        site.created(name).await;
        site.tell_parts(name, parts(None, 1, [part("a", "Compliant")])).await;
    }
    let gone = site.flux("DELETE", "shop", None).await;
    assert_eq!(gone.status, 202, "{}", gone.body);
    assert_eq!(site.flux("GET", "shop", None).await.body["properties"]["provisioningState"], "Deleting");
    let object = site.wanted(None).await.objects.into_iter().find(|one| one.deleting).unwrap();
    site.tell_of("shop", status(object.generation - BEFORE, ObjectState::Deleted)).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    assert_eq!(site.flux("GET", "shop", None).await.status, 404);
    assert_eq!(site.call("owner", "DELETE", &format!("{}&forceDelete=true", at("other")), None).await.status, 200);
    // The agent tells of it until it has heard; a new one of that name begins without parts.
    assert_eq!(site.tell_of("other", status(1, ObjectState::Succeeded)).await.unknown, [id("other")]);
    site.created("other").await;
    assert!(site.parts("other").await.is_empty());
    assert_eq!(site.tell_parts("other", parts(Some(1), 2, [part("a", "Compliant")])).await, [id("other")]);
    let list = format!("{}/providers/{EXTENSIONS}?{EXTENSION_VERSION}", cluster_id("g", "c"));
    let extensions = site.call("owner", "GET", &list, None).await;
    assert_eq!(extensions.body["value"].as_array().map(Vec::len), Some(1), "the extension stays");
}

#[tokio::test]
async fn g2_the_first_configuration_creates_the_extension_with_an_operation_of_its_own() {
    let site = site().await;
    site.created("shop").await;
    let flux = site.call("owner", "GET", &extension("flux"), None).await;
    let own = &flux.body["properties"];
    assert_eq!((&own["extensionType"], &own["scope"]), (&json!("microsoft.flux"), &json!({"cluster": {}})));
    let wanted = site.control.objects(&key("c"), Some(EXTENSIONS), None).await.unwrap().objects.remove(0);
    let configuration = site.wanted(None).await.objects.remove(0);
    assert!(wanted.operation.is_some() && wanted.operation != configuration.operation);
    let told =
        ObjectStatus { id: wanted.id.clone(), generation: wanted.generation, ..status(1, ObjectState::Succeeded) };
    site.control.objects_told(&key("c"), ObjectStatuses { objects: vec![told] }).await.unwrap();
    let operation = format!("{URL}{}/operations/{}?{EXTENSION_VERSION}", wanted.id, wanted.operation.unwrap());
    assert_eq!(site.ended("owner", &operation).await.body["status"], "Succeeded");
    // The next one finds it, and wants nothing else of it.
    site.created("more").await;
    let same = site.control.objects(&key("c"), Some(EXTENSIONS), None).await.unwrap().objects.remove(0);
    assert_eq!(same.generation, wanted.generation);
}

#[tokio::test]
async fn g2_many_configurations_are_created_at_once_and_the_extension_is_not_written_again() {
    let site = site().await;
    let names: Vec<String> = (0..20).map(|n| format!("shop-{n}")).collect();
    let all = names.iter().map(|name| site.flux("PUT", name, Some(git())));
    for created in futures_util::future::join_all(all).await {
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let flux = format!("{}/providers/{EXTENSIONS}/flux", cluster_id("g", "c")).to_ascii_lowercase();
    let revision = async || site.control.store.get(&flux).await.unwrap().unwrap().revision;
    let before = revision().await;
    site.created("more").await;
    assert_eq!(revision().await, before);
    // Who saw no configuration and deletes the extension is told of one that came meanwhile.
    let kind = CONFIGURATIONS.to_ascii_lowercase();
    let parent = cluster_id("g", "c").to_ascii_lowercase();
    let expect = crate::store::batch::Expect::Revision(before);
    let mut batch = crate::store::batch::Batch { deletes: vec![(flux.clone(), expect)], ..Default::default() };
    batch.without = vec![(kind, parent)];
    let refused = site.control.store.apply(&batch).await.unwrap();
    assert!(matches!(refused, Err(crate::store::batch::Refused::Changed { .. })), "{refused:?}");
    // And who saw the extension and needs it, that it is gone.
    site.control.store.delete(&flux, expect).await.unwrap().unwrap();
    let stored = site.control.store.get(&id("more").to_ascii_lowercase()).await.unwrap().unwrap();
    let expect = crate::store::batch::Expect::Any;
    let batch = crate::store::batch::Batch { puts: vec![(stored, expect)], standing: vec![flux], ..Default::default() };
    let refused = site.control.store.apply(&batch).await.unwrap();
    assert!(matches!(refused, Err(crate::store::batch::Refused::Changed { .. })), "{refused:?}");
}

#[tokio::test]
async fn g2_an_extension_of_another_name_is_used_and_another_one_named_flux_is_left() {
    let site = site().await;
    let body = json!({"properties": {"extensionType": "Microsoft.Flux"}});
    assert_eq!(site.call("owner", "PUT", &extension("gitops"), Some(body)).await.status, 201);
    site.created("shop").await;
    assert_eq!(site.call("owner", "GET", &extension("flux"), None).await.status, 404);
    // A type of an index of before, which this catalogue has no more.
    let at = cluster_id("g", "d");
    let key = format!("{at}/providers/{EXTENSIONS}/flux").to_ascii_lowercase();
    let stored = crate::store::resources::Stored {
        kind: EXTENSIONS.to_ascii_lowercase(),
        parent: at.to_ascii_lowercase(),
        id: key.clone(),
        key,
        revision: 0,
        body: json!({"properties": {"extensionType": "example.flux"}}),
        protected: None,
    };
    site.control.store.put(&stored, crate::store::batch::Expect::Absent).await.unwrap().unwrap();
    let path = format!("{at}/providers/{CONFIGURATIONS}/shop?{NEWEST}");
    let refused = site.call("owner", "PUT", &path, Some(git())).await;
    assert_eq!(
        (refused.status, &refused.body["error"]["code"]),
        (409, &json!("FluxExtensionNameTaken")),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn g2_without_flux_in_the_catalogue_a_configuration_is_refused() {
    let site = site_with(false).await;
    let refused = site.flux("PUT", "shop", Some(git())).await;
    assert_eq!((refused.status, &refused.body["error"]["code"]), (409, &json!("FluxExtensionNotAvailable")));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("microsoft.flux"), "{}", refused.body);
    let nowhere = format!("{}/providers/{CONFIGURATIONS}/shop?{NEWEST}", cluster_id("g", "none"));
    assert_eq!(site.call("owner", "PUT", &nowhere, Some(git())).await.status, 404);
}

/// As Azure Resource Manager says of an extension resource; `az` looks for this code to tell which of both is missing.
#[tokio::test]
async fn e1_of_what_is_below_a_cluster_that_is_not_there_the_cluster_is_named() {
    let site = site().await;
    let kinds = ["extensions", "fluxConfigurations", "sourceControlConfigurations"];
    let at = |cluster: &str, kind: &str, name: &str| {
        let version = if kind == "extensions" {
            "2023-05-01"
        } else if kind == kinds[1] {
            "2025-04-01"
        } else {
            "2023-05-01"
        };
        format!(
            "{}/providers/Microsoft.KubernetesConfiguration/{kind}{name}?api-version={version}",
            cluster_id("g", cluster)
        )
    };
    let absent = "The Resource 'Microsoft.Kubernetes/connectedClusters/none' under resource group 'g' was not found.";
    let patch = json!({"properties": {}});
    for kind in kinds {
        let mut calls = vec![("GET", "/shop", None), ("GET", "", None)];
        if kind == "fluxConfigurations" {
            calls.extend([("PUT", "/shop", Some(git())), ("PATCH", "/shop", Some(patch.clone()))]);
        }
        for (method, name, body) in calls {
            let answer = site.call("owner", method, &at("none", kind, name), body.clone()).await;
            assert_eq!((answer.status, answer.code()), (404, "ResourceNotFound"), "{method} {kind}: {}", answer.body);
            assert_eq!(answer.body["error"]["message"], absent, "{method} {kind}");
            let nowhere = at("none", kind, name).replace("/resourceGroups/g/", "/resourceGroups/nowhere/");
            let answer = site.call("owner", method, &nowhere, body.clone()).await;
            assert_eq!((answer.status, answer.code()), (404, "ResourceGroupNotFound"), "{method}: {}", answer.body);
            // Who may not is told the same of a cluster that is there.
            for cluster in ["none", "c"] {
                let refused = site.call("stranger", method, &at(cluster, kind, name), body.clone()).await;
                assert_eq!((refused.status, refused.code()), (403, "AuthorizationFailed"), "{}", refused.body);
            }
        }
        assert_eq!(site.call("owner", "DELETE", &at("none", kind, "/shop"), None).await.status, 204);
        let there = site.call("owner", "GET", &at("c", kind, "/shop"), None).await;
        assert_eq!((there.status, there.code()), (404, "ResourceNotFound"));
        let message = there.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("Microsoft.KubernetesConfiguration/{kind}/shop")), "{message}");
    }
}

#[tokio::test]
async fn g2_the_extension_stays_while_there_are_configurations() {
    let site = site().await;
    site.created("shop").await;
    site.created("bank").await;
    for query in ["", "&forceDelete=true"] {
        let refused = site.call("owner", "DELETE", &format!("{}{query}", extension("flux")), None).await;
        assert_eq!(
            (refused.status, &refused.body["error"]["code"]),
            (409, &json!("ExtensionInUse")),
            "{}",
            refused.body
        );
        assert!(refused.body["error"]["message"].as_str().unwrap().contains("bank, shop"), "{}", refused.body);
    }
    // A second one, which the cluster never installs, can be taken away; and nothing is deleted for being empty.
    let second = json!({"properties": {"extensionType": "microsoft.flux"}});
    assert_eq!(site.call("owner", "PUT", &extension("flux2"), Some(second)).await.status, 201);
    let empty = site.call("owner", "DELETE", &format!("{}&onlyIfEmpty=true", at("shop")), None).await;
    assert_eq!(empty.status, 202, "{}", empty.body);
    assert_eq!(site.call("owner", "DELETE", &extension("flux"), None).await.status, 409);
    assert_eq!(site.call("owner", "DELETE", &extension("flux2"), None).await.status, 202);
    for name in ["shop", "bank"] {
        site.call("owner", "DELETE", &format!("{}&forceDelete=true", at(name)), None).await;
    }
    assert_eq!(site.call("owner", "DELETE", &extension("flux"), None).await.status, 202);
    let early = site.flux("PUT", "shop", Some(git())).await;
    assert!(early.status == 409 || early.status == 201, "{}", early.body);
}

#[tokio::test]
async fn g1_the_provider_names_its_types() {
    let site = site().await;
    let path = format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.KubernetesConfiguration?{VERSION}");
    let provider = site.call("owner", "GET", &path, None).await;
    let types: Vec<_> =
        provider.body["resourceTypes"].as_array().unwrap().iter().map(|one| one["resourceType"].clone()).collect();
    let wanted = ["extensions", "fluxConfigurations", "sourceControlConfigurations", "extensionTypes"];
    assert_eq!(types, wanted, "{}", provider.body);
}

#[tokio::test]
async fn g1_configurations_go_with_their_cluster() {
    let site = site().await;
    site.created("shop").await;
    site.tell_parts("shop", parts(None, 1, [part("a", "Compliant")])).await;
    let gone = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    let key = id("shop").to_ascii_lowercase();
    assert!(site.control.store.get(&key).await.unwrap().is_none());
    assert!(site.control.store.parts_of(&key, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn g6_what_is_said_of_the_whole_is_never_ahead_of_its_parts() {
    const TIMES: u64 = 200;
    let site = site().await;
    site.created("a").await;
    let number = |value: &Value| value.as_str().unwrap_or("0").parse::<u64>().unwrap();
    let tells = async {
        for n in 1..=TIMES {
            let value = json!({"name": n.to_string(), "kind": "Deployment", "complianceState": "Compliant"});
            let told = ObjectStatus {
                details: Some(json!({ "sourceSyncedCommitId": n.to_string() })),
                parts: Some(parts(None, n, [("p".to_owned(), Some(value))])),
                ..status(1, ObjectState::Succeeded)
            };
            assert!(site.tell_of("a", told).await.again.is_empty());
        }
    };
    let reads = async {
        let mut whole = 0;
        while whole < TIMES {
            let shown = site.flux("GET", "a", None).await.body;
            let properties = &shown["properties"];
            whole = number(&properties["sourceSyncedCommitId"]);
            let part = number(&properties["statuses"][0]["name"]);
            assert!(part >= whole, "{part} beside {whole}");
        }
    };
    tokio::join!(tells, reads);
}
