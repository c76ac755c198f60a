//! What clients send back as they read it, or send twice: it is taken, and disturbs nothing. Names are found in any case
//! (docs/features.md R2, E1, G1).

use types::agent_api::{ObjectState, Objects};

use super::{
    flux_configurations::{at as configuration, key, site, status},
    *,
};

const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
const SOURCE_CONTROL: &str = "Microsoft.KubernetesConfiguration/sourceControlConfigurations";

fn below(kind: &str, name: &str, version: &str) -> String {
    format!("{}/providers/{kind}/{name}?api-version={version}", cluster_id("g", "c"))
}

fn extension(name: &str) -> String {
    below(EXTENSIONS, name, "2025-03-01")
}

fn source_control(name: &str) -> String {
    below(SOURCE_CONTROL, name, "2023-05-01")
}

fn git() -> Value {
    json!({"properties": {
        "sourceKind": "GitRepository",
        "gitRepository": {"url": "https://example.com/shop.git", "repositoryRef": {"branch": "main"}, "httpsUser": "u"},
        "configurationProtectedSettings": {"httpsKey": "Z2VoZWlt"},
        "kustomizations": {"apps": {"path": "./apps", "dependsOn": ["infra"], "prune": true}, "infra": {}},
    }})
}

fn git_of_old() -> Value {
    json!({"properties": {
        "repositoryUrl": "https://example.com/shop.git", "operatorParams": "--git-branch=main",
        "configurationProtectedSettings": {"httpsUser": "cmVhZGVy", "httpsKey": "Z2VoZWlt"},
    }})
}

impl Bench {
    /// With one resource of each kind that clients write, and where each is.
    async fn with_one_of_each(&self) -> Vec<String> {
        let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
        let role = format!(
            "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{}?api-version=2022-04-01",
            crate::random::guid()
        );
        let fleet = format!("{scope}/providers/Towline.Fleet/assignments/fleet?api-version=2026-11-01");
        let mut template = git();
        template["properties"]["kustomizations"] = json!({"apps": {"prune": true}});
        let template = json!({"type": "Microsoft.KubernetesConfiguration/fluxConfigurations", "name": "more", "properties": template["properties"]});
        for (path, body) in [
            (configuration("shop"), git()),
            (source_control("old"), git_of_old()),
            (fleet.clone(), json!({"properties": {"selector": {"tags": {"ring": "one"}}, "template": template}})),
            (
                role.clone(),
                json!({"properties": {
                    "roleName": "r", "assignableScopes": [scope], "permissions": [{"actions": ["*/read"]}],
                }}),
            ),
        ] {
            let made = self.call("owner", "PUT", &path, Some(body)).await;
            assert_eq!(made.status, 201, "{path}: {}", made.body);
        }
        let assigned = self.assign("reader", READER, &scope, json!({})).await;
        assert_eq!(assigned.status, 201, "{}", assigned.body);
        let assigned = format!("{}?api-version=2022-04-01", assigned.body["id"].as_str().unwrap());
        vec![
            group("g"),
            cluster("g", "c"),
            format!("{}?api-version=2026-05-01", cluster_id("g", "c")),
            extension("flux"),
            configuration("shop"),
            source_control("old"),
            fleet,
            role,
            assigned,
        ]
    }

    async fn followed(&self) -> Objects {
        self.control.objects(&key("c"), None, None).await.unwrap()
    }
}

#[tokio::test]
async fn r3_what_was_read_is_taken_back_of_every_kind_by_put_and_by_patch() {
    let site = site().await;
    for path in site.with_one_of_each().await {
        let read = site.call("owner", "GET", &path, None).await;
        assert_eq!(read.status, 200, "{path}: {}", read.body);
        let put = site.call("owner", "PUT", &path, Some(read.body.clone())).await;
        assert!(matches!(put.status, 200 | 201), "{path}: {} {}", put.status, put.body);
        let patched = site.call("owner", "PATCH", &path, Some(read.body.clone())).await;
        let has_patch = !(path.contains("Microsoft.Authorization") || path.contains(SOURCE_CONTROL));
        assert_eq!(patched.status, if has_patch { 200 } else { 405 }, "{path}: {}", patched.body);
        let again = site.call("owner", "GET", &path, None).await.body;
        let without = |mut body: Value| {
            body.as_object_mut().unwrap().remove("systemData");
            body["properties"].as_object_mut().unwrap().retain(|name, _| !name.starts_with("updated"));
            body
        };
        assert_eq!(without(again), without(read.body), "{path}");
    }
}

#[tokio::test]
async fn r3_what_no_patch_changes_is_refused_where_it_is_another_one() {
    let site = site().await;
    site.with_one_of_each().await;
    for (path, part, code, target) in [
        (group("g"), json!({"location": "westus"}), "InvalidResourceLocation", "location"),
        (cluster("g", "c"), json!({"location": "westus"}), "InvalidResourceLocation", "location"),
        (cluster("g", "c"), json!({"kind": "ProvisionedCluster"}), "PropertyChangeNotAllowed", "kind"),
        (cluster("g", "c"), json!({"identity": {"type": "None"}}), "PropertyChangeNotAllowed", "identity.type"),
        (
            cluster("g", "c"),
            json!({"properties": {"infrastructure": "other"}}),
            "PropertyChangeNotAllowed",
            "properties.infrastructure",
        ),
        (
            extension("flux"),
            json!({"properties": {"extensionType": "example.other"}}),
            "ExtensionTypeMismatch",
            "properties.extensionType",
        ),
        (
            extension("flux"),
            json!({"properties": {"scope": {"namespace": {"targetNamespace": "x"}}}}),
            "ExtensionScopeImmutable",
            "properties.scope",
        ),
    ] {
        let refused = site.call("owner", "PATCH", &path, Some(part.clone())).await;
        let told = (refused.status, refused.code(), refused.body["error"]["target"].as_str().unwrap_or_default());
        assert_eq!(told, (409, code, target), "{part}: {}", refused.body);
    }
    let unknown = site.call("owner", "PATCH", &cluster("g", "c"), Some(json!({"colour": "red"}))).await;
    assert_eq!((unknown.status, unknown.code()), (400, "UnknownProperty"), "{}", unknown.body);
}

#[tokio::test]
async fn e1_g1_g10_write_that_changes_nothing_leaves_what_is_under_way_alone() {
    let site = site().await;
    site.with_one_of_each().await;
    let wanted = site.followed().await;
    let generations = |all: &Objects| {
        all.objects.iter().map(|one| (one.id.clone(), one.generation, one.operation.clone())).collect::<Vec<_>>()
    };
    assert_eq!(wanted.objects.len(), 3);
    let mut operations = Vec::new();
    for (path, patch) in [(extension("flux"), true), (configuration("shop"), true), (source_control("old"), false)] {
        let read = site.call("owner", "GET", &path, None).await;
        let mut answers = vec![site.call("owner", "PUT", &path, Some(read.body.clone())).await];
        if patch {
            answers.push(site.call("owner", "PATCH", &path, Some(json!({}))).await);
            answers.push(site.call("owner", "PATCH", &path, Some(json!({"properties": {}}))).await);
        }
        for answer in answers {
            assert_eq!((answer.status, &answer.body), (200, &read.body), "{path}");
            assert_eq!(answer.header("etag"), read.header("etag"), "{path}");
            let operation = answer.header("azure-asyncoperation");
            let id = operation.rsplit('/').next().unwrap().split('?').next().unwrap();
            assert!(wanted.objects.iter().any(|one| one.operation.as_deref() == Some(id)), "{path}: {operation}");
            let told = site.call("owner", "GET", operation.strip_prefix(URL).unwrap(), None).await;
            assert_eq!(told.body["status"], "InProgress", "{path}: {}", told.body);
            operations.push(id.to_owned());
        }
    }
    assert_eq!(generations(&site.followed().await), generations(&wanted));
    // Another write begins another one, and protected settings do, whatever they are.
    let other = json!({"properties": {"suspend": true}});
    let secret = json!({"properties": {"configurationProtectedSettings": {"httpsKey": "Z2VoZWlt"}}});
    for part in [other, secret] {
        let changed = site.call("owner", "PATCH", &configuration("shop"), Some(part)).await;
        assert_eq!(changed.status, 202, "{}", changed.body);
        assert!(operations.iter().all(|id| !changed.header("azure-asyncoperation").contains(id)));
    }
}

#[tokio::test]
async fn e1_g1_same_write_after_a_failure_tries_again() {
    let site = site().await;
    let body = || {
        let mut body = git();
        body["properties"].as_object_mut().unwrap().remove("configurationProtectedSettings");
        body["properties"]["gitRepository"].as_object_mut().unwrap().remove("httpsUser");
        body
    };
    assert_eq!(site.call("owner", "PUT", &configuration("shop"), Some(body())).await.status, 201);
    let tell = async |generation, state| {
        let told = types::agent_api::ObjectStatus {
            id: configuration("shop").split('?').next().unwrap().to_owned(),
            ..status(generation, state)
        };
        let told = types::agent_api::ObjectStatuses { objects: vec![told] };
        site.control.objects_told(&key("c"), told).await.unwrap();
    };
    let again = async || site.call("owner", "PUT", &configuration("shop"), Some(body())).await;
    tell(1, ObjectState::Failed).await;
    let retried = again().await;
    assert_eq!((retried.status, retried.header("azure-asyncoperation").is_empty()), (200, false), "{}", retried.body);
    tell(2, ObjectState::Succeeded).await;
    site.ended("owner", retried.header("azure-asyncoperation")).await;
    let same = again().await;
    assert_eq!((same.status, same.header("azure-asyncoperation")), (200, ""), "{}", same.body);
    assert_eq!(same.body["properties"]["provisioningState"], "Succeeded");
    // What is to be deleted, and could not be, is wanted again.
    let gone = site.call("owner", "DELETE", &configuration("shop"), None).await;
    tell(3, ObjectState::Failed).await;
    site.ended("owner", gone.header("azure-asyncoperation")).await;
    assert!(!again().await.header("azure-asyncoperation").is_empty());
}

#[tokio::test]
async fn a_resource_takes_no_post_and_says_what_it_takes() {
    let site = site().await;
    for path in site.with_one_of_each().await {
        let refused = site.call("owner", "POST", &path, Some(json!({}))).await;
        assert_eq!(refused.status, 405, "{path}: {}", refused.body);
        assert!(refused.header("allow").contains("PUT"), "{path}");
    }
}

#[tokio::test]
async fn r2_put_by_a_name_in_another_case_is_of_the_one_that_is_there() {
    let site = site().await;
    for path in site.with_one_of_each().await {
        let read = site.call("owner", "GET", &path, None).await.body;
        let (at, version) = path.split_once('?').unwrap();
        let (parent, name) = at.rsplit_once('/').unwrap();
        let shouted = format!("{parent}/{}?{version}", name.to_uppercase());
        for method in ["PUT", "PATCH"] {
            let written = site.call("owner", method, &shouted, Some(read.clone())).await;
            assert!(matches!(written.status, 200 | 201 | 202 | 405), "{method} {shouted}: {}", written.body);
            if written.status < 300 {
                assert_eq!((&written.body["id"], &written.body["name"]), (&read["id"], &read["name"]));
            }
        }
        assert_eq!(site.call("owner", "GET", &path, None).await.body["id"], read["id"]);
    }
    let own = site.call("owner", "GET", &source_control("old"), None).await.body;
    assert_eq!(own["properties"]["operatorInstanceName"], "old");
    // A new one has a name that it may have.
    for path in [configuration("NEW"), extension("NEW"), source_control("NEW")] {
        let refused = site.call("owner", "PUT", &path, Some(git())).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidResourceName"), "{path}: {}", refused.body);
    }
}
