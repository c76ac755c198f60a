//! Extensions (docs/features.md E1-E10, D4): what is written, what an agent of the cluster is told, and what comes of
//! what it tells.

use types::agent_api::{
    ObjectError, ObjectEvent, ObjectState, ObjectStatus, ObjectStatuses, Objects, ProtectedQuestion, StatusLine,
};

use super::*;
use crate::{
    control::objects::{NOBODY_MS, QUIET_MS},
    store::{
        agents::Agent,
        batch::{Batch, Expect},
        resources::Stored,
    },
};

const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
const EVENTS_VERSION: &str = "api-version=2025-03-01";

fn extension_id(cluster: &str, name: &str) -> String {
    format!("{}/providers/{EXTENSIONS}/{name}", cluster_id("g", cluster))
}

fn extension(cluster: &str, name: &str) -> String {
    format!("{}?{EVENTS_VERSION}", extension_id(cluster, name))
}

fn web() -> Value {
    json!({"properties": {"extensionType": "example.web", "configurationSettings": {"replicas": "2", "a.b": "x"}}})
}

/// A gateway with a group and a cluster that an agent was seen of.
async fn bench() -> Bench {
    let site = Bench::new().await;
    site.group("g").await;
    let key = "MIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gunVTLw7onLRnrq0/IzW7yWR7QkrmBL7jTKEn5u+qKhbwKfBstIs+bMY2Zkp18gnTxKLxoS2tFczGkPLPgizskuemMghRniWaoLcyehkd3qqGElvW/VDL5AaWTg0nLVkjRo9z+40RQzuVaE8AkAFmxZzow3x+VJYKdjykkJ0iT9wCS0DRTXu269V264Vf/3jvredZiKRkgwlL9xNAwxXFg0x/XFw005UWVRIkdgcKWTjpBP2dPwVZ4WWC+9aGVd+Gyn1o0CLelf4rEjGoXbAAEgAqeGUxrcIlbjXfbcmwIDAQAB";
    for name in ["c", "d"] {
        let mut body = new_cluster();
        body["properties"]["agentPublicKeyCertificate"] = key.into();
        let made = site.call("owner", "PUT", &cluster("g", name), Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
        seen(&site, name).await;
    }
    site
}

async fn seen(site: &Bench, name: &str) {
    let key = cluster_id("g", name).to_ascii_lowercase();
    site.control.store.seen(std::slice::from_ref(&key), site.control.now_ms()).await.unwrap();
    let agent: Option<Agent> = site.control.store.agent(&key).await.unwrap();
    assert!(agent.unwrap().first_seen_ms.is_some());
}

async fn objects(site: &Bench, name: &str, after: Option<i64>) -> Objects {
    site.control.objects(&cluster_id("g", name).to_ascii_lowercase(), None, after).await.unwrap()
}

/// Generations begin at the clock's instant, and rise by one while it stands still.
const BEFORE: i64 = 1_800_000_000_000 - 1;

/// What is told of the n-th generation.
fn status(cluster: &str, name: &str, generation: i64, state: ObjectState) -> ObjectStatus {
    ObjectStatus {
        id: extension_id(cluster, name),
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

async fn tell(site: &Bench, cluster: &str, status: ObjectStatus) -> Vec<String> {
    let key = cluster_id("g", cluster).to_ascii_lowercase();
    site.control.objects_told(&key, ObjectStatuses { objects: vec![status] }).await.unwrap().unknown
}

fn operation_id(answer: &Answer) -> String {
    answer.header("azure-asyncoperation").to_owned()
}

async fn state_of(site: &Bench, operation: &str) -> Value {
    let answer = site.call("owner", "GET", operation.strip_prefix(URL).unwrap(), None).await;
    answer.body["status"].clone()
}

#[tokio::test]
async fn e13_a_plan_is_kept_and_shown_and_is_nothing_to_the_cluster() {
    let site = bench().await;
    let mut body = web();
    let plan = json!({"name": "basic", "publisher": "example", "product": "web"});
    body["plan"] = plan.clone();
    assert_eq!(site.call("owner", "PUT", &extension("c", "web"), Some(body.clone())).await.status, 201);
    assert_eq!(site.call("owner", "GET", &extension("c", "web"), None).await.body["plan"], plan);
    let told = objects(&site, "c", None).await;
    assert!(told.objects[0].spec.as_ref().unwrap().get("plan").is_none());
    for wrong in [json!("basic"), json!({"name": 7}), json!({"price": "0"})] {
        body["plan"] = wrong.clone();
        let refused = site.call("owner", "PUT", &extension("c", "other"), Some(body.clone())).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
}

#[tokio::test]
async fn e1_an_extension_is_there_when_its_cluster_says_so() {
    let site = bench().await;
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let properties = &made.body["properties"];
    assert_eq!(properties["provisioningState"], "Creating");
    assert_eq!(properties["scope"], json!({"cluster": {}}));
    assert_eq!((&properties["releaseTrain"], &properties["autoUpgradeMode"]), (&json!("Stable"), &json!("compatible")));
    assert!(made.body.get("object").is_none() && properties["isSystemExtension"] == false, "{}", made.body);
    let operation = operation_id(&made);
    assert_eq!(state_of(&site, &operation).await, "InProgress");

    let told = objects(&site, "c", None).await;
    let object = &told.objects[0];
    assert!(told.whole && told.objects.len() == 1 && object.id == extension_id("c", "web"));
    assert_eq!((object.generation, object.deleting, &object.protected), (BEFORE + 1, false, &None));
    let spec = object.spec.as_ref().unwrap();
    assert_eq!((&spec["extensionType"], &spec["reconcile"]), (&json!("example.web"), &json!("repair")));
    assert!(operation.contains(object.operation.as_deref().unwrap()), "{operation}");
    assert!(objects(&site, "d", None).await.objects.is_empty(), "another cluster's agents are told nothing");
    assert!(objects(&site, "c", Some(told.position)).await.objects.is_empty());

    assert!(tell(&site, "c", status("c", "web", 1, ObjectState::Creating)).await.is_empty());
    assert_eq!(state_of(&site, &operation).await, "InProgress");
    let line = StatusLine {
        code: "Installed".to_owned(),
        display_status: "Installed".to_owned(),
        level: "Information".to_owned(),
        message: "web 1.2.3 is installed".to_owned(),
        time: "2026-11-27T12:00:00Z".to_owned(),
    };
    let done = ObjectStatus {
        current_version: Some("1.2.3".to_owned()),
        statuses: vec![line],
        ..status("c", "web", 1, ObjectState::Succeeded)
    };
    assert!(tell(&site, "c", done).await.is_empty());
    assert_eq!(site.ended("owner", &operation).await.body["status"], "Succeeded");
    let shown = site.call("owner", "GET", &extension("c", "WEB"), None).await;
    let properties = &shown.body["properties"];
    assert_eq!(
        (&properties["provisioningState"], &properties["currentVersion"], &properties["errorInfo"]),
        (&json!("Succeeded"), &json!("1.2.3"), &Value::Null)
    );
    assert_eq!(properties["statuses"][0]["code"], "Installed");
    let listed = site
        .call("owner", "GET", &format!("{}/providers/{EXTENSIONS}?{EVENTS_VERSION}", cluster_id("g", "c")), None)
        .await;
    assert_eq!(listed.body["value"], json!([shown.body]));
    let all = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/resources?{VERSION}");
    let all = site.call("owner", "GET", &all, None).await;
    assert!(all.body["value"].to_string().contains("/extensions/web"), "{}", all.body);

    // A PATCH changes single settings, and says at once that it is under way.
    let patch = json!({"properties": {"configurationSettings": {"replicas": "3", "a.b": null}}});
    let changed = site.call("owner", "PATCH", &extension("c", "web"), Some(patch)).await;
    assert_eq!((changed.status, &changed.body["properties"]["provisioningState"]), (202, &json!("Updating")));
    assert_eq!(changed.body["properties"]["configurationSettings"], json!({"replicas": "3"}));
    let news = objects(&site, "c", Some(told.position)).await;
    assert_eq!((news.objects[0].generation, news.whole), (BEFORE + 2, false));
    let failed = ObjectStatus {
        error: Some(ObjectError {
            code: "ExtensionOperationFailed".to_owned(),
            message: "the pod web-0 cannot pull its image".to_owned(),
        }),
        current_version: Some("1.2.3".to_owned()),
        ..status("c", "web", 2, ObjectState::Failed)
    };
    tell(&site, "c", failed).await;
    let ended = site.ended("owner", &operation_id(&changed)).await;
    assert_eq!(
        (&ended.body["status"], &ended.body["error"]["code"]),
        (&json!("Failed"), &json!("ExtensionOperationFailed"))
    );
    let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
    assert_eq!(shown.body["properties"]["errorInfo"]["message"], "the pod web-0 cannot pull its image");
    assert_eq!(shown.body["properties"]["provisioningState"], "Failed");
    // The same by the extension's own address.
    let own = format!(
        "{}/operations/{}?{EVENTS_VERSION}",
        extension_id("c", "web"),
        news.objects[0].operation.as_ref().unwrap()
    );
    assert_eq!(site.call("owner", "GET", &own, None).await.body["status"], "Failed");
    let other = own.replace("/web/operations/", "/other/operations/");
    let unknown = site.call("owner", "GET", &other, None).await;
    assert_eq!((unknown.status, unknown.code()), (404, "OperationNotFound"), "{}", unknown.body);
}

#[tokio::test]
async fn e1_a_newer_write_takes_the_place_of_an_older_one() {
    let site = bench().await;
    let put = async |replicas: &str| {
        let mut body = web();
        body["properties"]["configurationSettings"]["replicas"] = replicas.into();
        operation_id(&site.call("owner", "PUT", &extension("c", "web"), Some(body)).await)
    };
    let (first, second) = (put("1").await, put("2").await);
    let ended = site.ended("owner", &first).await;
    assert_eq!(
        (&ended.body["status"], &ended.body["error"]["code"]),
        (&json!("Canceled"), &json!("OperationPreempted"))
    );
    // What is told of the older one is not about this one.
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    assert_eq!(state_of(&site, &second).await, "InProgress");
    tell(&site, "c", status("c", "web", 2, ObjectState::Succeeded)).await;
    assert_eq!(site.ended("owner", &second).await.body["status"], "Succeeded");
    // Nothing can be told of what is not wanted yet.
    tell(&site, "c", status("c", "web", 99, ObjectState::Failed)).await;
    let third = put("3").await;
    assert_eq!(state_of(&site, &third).await, "InProgress");
}

#[tokio::test]
async fn e10_a_deletion_ends_when_the_cluster_has_taken_it_down() {
    let site = bench().await;
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    let gone = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    assert_eq!(gone.status, 202, "{}", gone.body);
    let told = objects(&site, "c", None).await;
    assert!(told.objects[0].deleting && told.objects[0].generation == BEFORE + 2);
    let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Deleting");
    let refused = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    assert_eq!((refused.status, refused.code()), (409, "ResourceBeingDeleted"));
    // Who deletes it again waits for the same.
    let again = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    assert_eq!(objects(&site, "c", None).await.objects[0].generation, BEFORE + 2);
    tell(&site, "c", status("c", "web", 2, ObjectState::Deleted)).await;
    for answer in [&gone, &again] {
        assert_eq!(site.ended("owner", &operation_id(answer)).await.body["status"], "Succeeded");
    }
    assert_eq!(site.call("owner", "GET", &extension("c", "web"), None).await.status, 404);
    let after = objects(&site, "c", Some(told.position)).await;
    assert!(after.objects.iter().all(|object| object.spec.is_none()), "{after:?}");
    assert_eq!(tell(&site, "c", status("c", "web", 2, ObjectState::Deleted)).await, [extension_id("c", "web")]);
    // By force at once.
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    let forced = site.call("owner", "DELETE", &format!("{}&forceDelete=true", extension("c", "web")), None).await;
    assert_eq!(forced.status, 200, "{}", forced.body);
    assert_eq!(site.call("owner", "GET", &extension("c", "web"), None).await.status, 404);
    // Where no agent was ever seen nothing can be there.
    site.cluster("g", "fresh").await;
    site.call("owner", "PUT", &extension("fresh", "web"), Some(web())).await;
    let gone = site.call("owner", "DELETE", &extension("fresh", "web"), None).await;
    assert_eq!(site.ended("owner", &operation_id(&gone)).await.body["status"], "Succeeded");
}

#[tokio::test]
async fn e10_of_two_deletions_none_says_that_it_is_gone_while_it_is_not() {
    let site = bench().await;
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    let first = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    let second = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    tell(&site, "c", status("c", "web", 2, ObjectState::Failed)).await;
    for answer in [&first, &second] {
        assert_eq!(site.ended("owner", &operation_id(answer)).await.body["status"], "Failed");
    }
    let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Failed");
    assert!(objects(&site, "c", None).await.objects[0].deleting, "nobody wants it again");
    // Deleted again it goes; a cluster that goes takes operations with it.
    let third = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    tell(&site, "c", status("c", "web", 3, ObjectState::Deleted)).await;
    assert_eq!(site.ended("owner", &operation_id(&third)).await.body["status"], "Succeeded");
    let made = site.call("owner", "PUT", &extension("d", "web"), Some(web())).await;
    site.call("owner", "DELETE", &format!("{}&forceDelete=true", extension("d", "web")), None).await;
    assert_eq!(site.ended("owner", &operation_id(&made)).await.body["status"], "Canceled");
}

#[tokio::test]
async fn e1_what_is_told_while_an_operation_is_looked_at_is_not_missed() {
    let site = bench().await;
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    let key = extension_id("c", "web").to_ascii_lowercase();
    let id = operation_id(&made).rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
    let store = &site.control.store;
    // A process has it, has seen nothing yet, and is told something before it gives it back.
    let waiting = loop {
        store.wake_operations_of(&key, site.control.now_ms()).await.unwrap();
        let all = store.operations_waiting("converge", site.control.now_ms(), 10).await.unwrap();
        if let Some(one) = all.into_iter().find(|one| one.operation.id == id)
            && let Some(claim) = store.claim_operation(&one, "other", site.control.now_ms() + 60_000).await.unwrap()
        {
            break claim;
        }
    };
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    assert!(store.release_operation(&waiting, site.control.now_ms(), i64::MAX / 2, true).await.unwrap());
    assert_eq!(site.ended("owner", &operation_id(&made)).await.body["status"], "Succeeded");
}

#[tokio::test]
async fn e4_upgrades_are_turned_off_and_on_by_either_word() {
    let site = bench().await;
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    for (patch, mode, minor) in [
        (json!({"autoUpgradeMode": "none"}), "none", false),
        (json!({"autoUpgradeMinorVersion": true}), "compatible", true),
        (json!({"autoUpgradeMinorVersion": false}), "none", false),
        (json!({"autoUpgradeMode": "patch"}), "patch", false),
    ] {
        let changed = site.call("owner", "PATCH", &extension("c", "web"), Some(json!({"properties": patch}))).await;
        let properties = &changed.body["properties"];
        assert_eq!(changed.status, 202, "{}", changed.body);
        assert_eq!(
            (&properties["autoUpgradeMode"], &properties["autoUpgradeMinorVersion"]),
            (&json!(mode), &json!(minor))
        );
    }
}

/// The cluster is connected, and its extension-manager is not there.
#[tokio::test]
async fn e8_where_extensions_are_off_it_is_said_at_once_and_not_after_48_hours() {
    let site = bench().await;
    let (gateway, _agent) = tunnel::transport::memory::pair().await;
    let _tunnel = site.control.tunnels.add(gateway, site.known("c"), Default::default(), None);
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    site.call("owner", "PUT", &extension("d", "web"), Some(web())).await;
    let told = async |cluster: &str| {
        let shown = site.call("owner", "GET", &extension(cluster, "web"), None).await;
        let properties = &shown.body["properties"];
        (properties["provisioningState"].clone(), properties["statuses"][0].clone())
    };
    assert_eq!(told("c").await, (json!("Creating"), Value::Null), "a gateway that has just begun knows nothing");
    site.clock_ms.fetch_add(QUIET_MS, Ordering::SeqCst);
    let (state, line) = told("c").await;
    assert_eq!((state, &line["code"], &line["level"]), (json!("Creating"), &json!("AgentMissing"), &json!("Warning")));
    assert!(line["message"].as_str().unwrap().contains("towline enable-features"), "{line}");
    assert_eq!(told("d").await, (json!("Creating"), Value::Null), "one that is offline is waited for");
    assert_eq!(told("c").await.1, line, "it stays the same");
    objects(&site, "c", None).await;
    assert_eq!(told("c").await.1, Value::Null, "it is there");

    site.clock_ms.fetch_add(NOBODY_MS, Ordering::SeqCst);
    let ended = loop {
        let answer = site.call("owner", "GET", operation_id(&made).strip_prefix(URL).unwrap(), None).await;
        if answer.body["status"] != "InProgress" {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended.body["error"]["code"], "AgentMissing", "{}", ended.body);
    assert_eq!(told("c").await.0, "Failed");
    // It comes back, and goes on.
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    assert_eq!(told("c").await.0, "Succeeded");
    assert_eq!(told("d").await.0, "Creating", "48 hours are left");
}

/// Nobody can ask while the cluster is away; what is to be deleted is not waited for any longer than what is to be made.
#[tokio::test]
async fn e8_agent_is_missed_from_the_reconnect_on_and_for_deletions_too() {
    let site = bench().await;
    let told = async || {
        let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
        shown.body["properties"]["statuses"][0]["code"].clone()
    };
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    tell(&site, "c", status("c", "web", 1, ObjectState::Succeeded)).await;
    let gone = site.call("owner", "DELETE", &extension("c", "web"), None).await;
    objects(&site, "c", None).await;
    let back_ms = site.clock_ms.fetch_add(QUIET_MS, Ordering::SeqCst) + QUIET_MS;
    let (gateway, _agent) = tunnel::transport::memory::pair().await;
    let _tunnel = site.control.tunnels.add(gateway, site.known("c"), Default::default(), None);
    let back = std::time::UNIX_EPOCH + Duration::from_millis(back_ms.try_into().unwrap());
    site.control.tunnels.set_since(&site.known("c").key, back);
    // It asked before it was away for longer than an agent leaves questions out, and is back just now.
    assert_eq!(told().await, Value::Null);
    site.clock_ms.fetch_add(QUIET_MS, Ordering::SeqCst);
    assert_eq!(told().await, "AgentMissing");
    assert_eq!(state_of(&site, &operation_id(&gone)).await, "InProgress");
    site.clock_ms.fetch_add(NOBODY_MS, Ordering::SeqCst);
    let ended = loop {
        let answer = site.call("owner", "GET", operation_id(&gone).strip_prefix(URL).unwrap(), None).await;
        if answer.body["status"] != "InProgress" {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended.body["error"]["code"], "AgentMissing", "{}", ended.body);
    assert!(ended.body["error"]["message"].as_str().unwrap().contains("forceDelete"), "{}", ended.body);
    let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Failed");
}

#[tokio::test]
async fn e8_what_a_cluster_has_not_done_within_48_hours_has_failed_and_says_what_was_waited_for() {
    let site = bench().await;
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    site.call("owner", "PUT", &extension("c", "old"), Some(web())).await;
    tell(&site, "c", status("c", "old", 1, ObjectState::Succeeded)).await;
    let gone = site.call("owner", "DELETE", &extension("c", "old"), None).await;
    site.clock_ms.fetch_add(DUE_MS + 1, Ordering::SeqCst);
    for answer in [&made, &gone] {
        // Looked at at the latest when it is due: here as after a restart.
        let ended = loop {
            let answer = site.call("owner", "GET", operation_id(answer).strip_prefix(URL).unwrap(), None).await;
            if answer.body["status"] != "InProgress" {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(ended.body["error"]["code"], "OperationTimedOut", "{}", ended.body);
    }
    for name in ["web", "old"] {
        let shown = site.call("owner", "GET", &extension("c", name), None).await;
        let properties = &shown.body["properties"];
        assert_eq!(properties["provisioningState"], "Failed", "{}", shown.body);
        assert!(properties["errorInfo"]["message"].as_str().unwrap().contains("48 hours"), "{}", shown.body);
    }
    // What was to be deleted is not installed again; when the cluster has taken it down after all, it is gone.
    let old = objects(&site, "c", None).await.objects.into_iter().find(|one| one.id.ends_with("/old")).unwrap();
    assert!(old.deleting);
    tell(&site, "c", status("c", "old", old.generation - BEFORE, ObjectState::Deleted)).await;
    assert_eq!(site.call("owner", "GET", &extension("c", "old"), None).await.status, 404);
    // The cluster is back, and goes on.
    let generation =
        objects(&site, "c", None).await.objects.iter().find(|one| one.id.ends_with("/web")).unwrap().generation;
    tell(&site, "c", status("c", "web", generation - BEFORE, ObjectState::Succeeded)).await;
    let shown = site.call("owner", "GET", &extension("c", "web"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Succeeded");
}

#[tokio::test]
async fn e6_protected_settings_go_to_their_own_cluster_alone_and_are_kept_48_hours() {
    const SECRET: &str = "hunter2-hunter2";
    let site = bench().await;
    let mut body = web();
    body["properties"]["configurationProtectedSettings"] = json!({"db.password": SECRET, "other": "x"});
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(body)).await;
    assert!(!made.body.to_string().contains(SECRET), "{}", made.body);
    let object = objects(&site, "c", None).await.objects.remove(0);
    assert!(!serde_json::to_string(&object).unwrap().contains(SECRET));
    let question = |object: &types::agent_api::Object| ProtectedQuestion {
        id: object.id.clone(),
        protected: object.protected.clone().unwrap(),
    };
    let key = |name: &str| cluster_id("g", name).to_ascii_lowercase();
    let given = site.control.protected_of(&key("c"), &question(&object)).await.unwrap();
    assert_eq!(given.settings["db.password"], SECRET);
    assert!(!format!("{given:?}").contains(SECRET));
    let refused = site.control.protected_of(&key("d"), &question(&object)).await.unwrap_err();
    assert_eq!(refused.status, 404, "another cluster's");
    // What is not given stays; what is given replaces all of it.
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    assert_eq!(objects(&site, "c", None).await.objects[0].protected, object.protected);
    let patch = json!({"properties": {"configurationProtectedSettings": {"db.password": "new"}}});
    site.call("owner", "PATCH", &extension("c", "web"), Some(patch)).await;
    let newer = objects(&site, "c", None).await.objects.remove(0);
    assert_ne!(newer.protected, object.protected);
    let refused = site.control.protected_of(&key("c"), &question(&object)).await.unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (409, "ProtectedSettingsChanged"));
    let given = site.control.protected_of(&key("c"), &question(&newer)).await.unwrap();
    assert_eq!((given.settings.len(), given.settings["db.password"].as_str()), (1, "new"));
    // Nobody keeps them for longer.
    site.clock_ms.fetch_add(DUE_MS, Ordering::SeqCst);
    site.control.forget_protected().await.unwrap();
    let stored = site.control.store.get(&extension_id("c", "web").to_ascii_lowercase()).await.unwrap().unwrap();
    assert!(stored.protected.is_none());
    let refused = site.control.protected_of(&key("c"), &question(&newer)).await.unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (410, "ProtectedSettingsGone"));
}

#[tokio::test]
async fn d4_events_are_listed_in_order() {
    let site = bench().await;
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    let event = |number, reason: &str| ObjectEvent {
        number,
        operation: None,
        phase: "Create".to_owned(),
        level: "Normal".to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        object: None,
        first: format!("t{number}"),
        last: format!("t{number}"),
        count: 1,
    };
    let events = vec![event(1, "Begun"), event(2, "Installed")];
    tell(&site, "c", ObjectStatus { events, ..status("c", "web", 1, ObjectState::Creating) }).await;
    let listed = site
        .call("owner", "POST", &format!("{}/listEvents?{EVENTS_VERSION}", extension_id("c", "web")), Some(json!({})))
        .await;
    let reasons: Vec<_> = listed.body["value"].as_array().unwrap().iter().map(|one| one["reason"].clone()).collect();
    assert_eq!(reasons, ["Begun", "Installed"], "{}", listed.body);
    // Who has nothing to say sends neither a body nor its type.
    let path = format!("{}/listEvents?{EVENTS_VERSION}", extension_id("c", "web"));
    let bare = site.call("owner", "POST", &path, None).await;
    assert_eq!((bare.status, &bare.body["value"]), (200, &listed.body["value"]), "{}", bare.body);
}

/// What is larger no agent takes.
#[tokio::test]
async fn e5_many_patches_put_no_more_together_than_one_put_may_send() {
    let site = bench().await;
    let target = extension("c", "web");
    assert_eq!(site.call("owner", "PUT", &target, Some(web())).await.status, 201);
    let part = |from: usize| {
        let settings: serde_json::Map<String, Value> =
            (from..from + 100).map(|number| (format!("k{number}"), "x".repeat(1000).into())).collect();
        json!({"properties": {"configurationSettings": settings}})
    };
    let mut statuses = Vec::new();
    for step in 0..3 {
        statuses.push(site.call("owner", "PATCH", &target, Some(part(step * 100))).await.status);
    }
    assert_eq!(statuses, [202, 202, 413]);
    let shown = site.call("owner", "GET", &target, None).await;
    assert_eq!(shown.body["properties"]["configurationSettings"].as_object().unwrap().len(), 202);
    let other = json!({"properties": {"configurationSettings": {"k0": "y".repeat(1000)}}});
    assert_eq!(site.call("owner", "PATCH", &target, Some(other)).await.status, 202, "what is there may change");
}

/// Clients of Azure's SDK that follow configurations and extensions use one version for both.
#[tokio::test]
async fn e1_extensions_take_the_api_versions_that_clients_use() {
    let site = bench().await;
    for (name, version) in [("one", "2022-03-01"), ("two", "2022-07-01"), ("three", "2023-05-01")] {
        let target = format!("{}?api-version={version}", extension_id("c", name));
        let made = site.call("owner", "PUT", &target, Some(web())).await;
        assert_eq!(made.status, 201, "{version}: {}", made.body);
    }
}

#[tokio::test]
async fn e1_bad_input_is_refused_with_its_place() {
    let site = bench().await;
    let put = async |body: Value| site.call("owner", "PUT", &extension("c", "bad"), Some(body)).await;
    let with = |name: &str, value: Value| {
        let mut body = web();
        body["properties"][name] = value;
        body
    };
    let many: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("k{n}"), json!("v"))).collect();
    for (body, target) in [
        (json!({"properties": {}}), "properties.extensionType"),
        (with("version", json!("1 2")), "properties.version"),
        (with("scope", json!({"cluster": {}, "namespace": {"targetNamespace": "x"}})), "properties.scope"),
        (with("scope", json!({"cluster": {"releaseNamespace": "Kube"}})), "properties.scope.cluster.releaseNamespace"),
        (
            with("scope", json!({"cluster": {"releaseNamespace": "kube-system"}})),
            "properties.scope.cluster.releaseNamespace",
        ),
        (with("configurationSettings", json!({"a": 1})), "properties.configurationSettings"),
        (with("configurationSettings", Value::Object(many)), "properties.configurationSettings"),
        (with("reconcile", json!("often")), "properties.reconcile"),
    ] {
        let refused = put(body).await;
        let error = &refused.body["error"];
        let target_is = error["target"] == target || error["details"].to_string().contains(target);
        assert!(refused.status == 400 && target_is, "{target}: {}", refused.body);
    }
    let name = site.call("owner", "PUT", &extension("c", &"x".repeat(63)), Some(web())).await;
    assert_eq!((name.status, name.code()), (400, "InvalidResourceName"));
    let both = with("version", json!("1.0.0"));
    let mut both = both;
    both["properties"]["autoUpgradeMinorVersion"] = true.into();
    assert_eq!(put(both).await.status, 400);
    assert_eq!(put(web()).await.status, 201);
    let other = put(with("extensionType", json!("example.other"))).await;
    assert_eq!((other.status, other.code()), (409, "ExtensionTypeMismatch"));
    let elsewhere =
        format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/{EXTENSIONS}/web?{EVENTS_VERSION}");
    assert_eq!(site.call("owner", "PUT", &elsewhere, Some(web())).await.status, 400);
    let missing = site.call("owner", "PUT", &extension("none", "web"), Some(web())).await;
    assert_eq!(missing.status, 404, "{}", missing.body);
}

#[tokio::test]
async fn e1_what_a_cluster_tells_wakes_no_other_and_takes_no_revision() {
    let site = bench().await;
    for name in ["c", "d"] {
        site.call("owner", "PUT", &extension(name, "web"), Some(web())).await;
    }
    let key = |name: &str| cluster_id("g", name).to_ascii_lowercase();
    let (revisions, decided) = (site.control.revisions(), site.control.decided());
    let (mut c, d) = (site.control.followers.follow(&key("c")), site.control.followers.follow(&key("d")));
    let before = site.control.store.revision().await.unwrap();
    for _ in 0..100 {
        tell(&site, "c", status("c", "web", 1, ObjectState::Creating)).await;
    }
    assert_eq!(site.control.store.revision().await.unwrap(), before);
    assert!(!revisions.has_changed().unwrap() && !decided.has_changed().unwrap() && !c.has_changed().unwrap());
    let other = json!({"properties": {"configurationSettings": {"replicas": "3"}}});
    assert_eq!(site.call("owner", "PATCH", &extension("c", "web"), Some(other)).await.status, 202);
    c.changed().await.unwrap();
    assert!(!d.has_changed().unwrap(), "the agents of another cluster sleep on");
}

#[tokio::test]
async fn e1_a_thousand_clusters_that_report_wake_nobody() {
    const REPORTING: usize = 1000;
    let site = bench().await;
    let (names, mut batch): (Vec<String>, _) = ((0..REPORTING).map(|n| format!("r{n}")).collect(), Batch::default());
    for name in &names {
        let key = cluster_id("g", name).to_ascii_lowercase();
        let group = key.split("/providers/").next().unwrap().to_owned();
        let of = |id: String, kind: &str, parent: String, body: Value| Stored {
            key: id.to_ascii_lowercase(),
            kind: kind.to_ascii_lowercase(),
            parent,
            id,
            revision: 0,
            body,
            protected: None,
        };
        let cluster = json!({"location": "eastus", "properties": {"agentPublicKeyCertificate": ""}});
        batch.puts.push((of(cluster_id("g", name), CLUSTERS, group, cluster), Expect::Absent));
        let mut body = web();
        body["object"] = json!({"generation": BEFORE + 1});
        batch.puts.push((of(extension_id(name, "web"), EXTENSIONS, key, body), Expect::Absent));
    }
    let revision = site.control.write(&batch).await.unwrap().unwrap();
    site.control.caught_up(revision).await;
    let mut followers: Vec<_> = ["c", "d", "r7"]
        .map(|name| site.control.followers.follow(&cluster_id("g", name).to_ascii_lowercase()))
        .into_iter()
        .collect();
    let (mut revisions, mut decided) = (site.control.revisions(), site.control.decided());
    revisions.mark_unchanged();
    decided.mark_unchanged();
    for state in [ObjectState::Creating, ObjectState::Succeeded] {
        for name in &names {
            tell(&site, name, status(name, "web", 1, state)).await;
        }
    }
    assert_eq!(site.control.store.revision().await.unwrap(), revision, "2,000 reports take no revision");
    assert!(!revisions.has_changed().unwrap() && !decided.has_changed().unwrap(), "nor do they wake a session");
    for follower in &mut followers {
        assert!(!follower.has_changed().unwrap(), "nor the agents of any cluster");
    }
    let shown = site.call("owner", "GET", &extension("r7", "web"), None).await;
    assert_eq!(shown.body["properties"]["provisioningState"], "Succeeded", "{}", shown.body);
}

#[tokio::test]
async fn e10_what_is_below_a_cluster_goes_with_it() {
    let site = bench().await;
    let made = site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    tell(&site, "c", status("c", "web", 1, ObjectState::Creating)).await;
    let gone = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    assert_eq!(site.ended("owner", &operation_id(&gone)).await.body["status"], "Succeeded");
    assert!(site.control.store.told(&extension_id("c", "web").to_ascii_lowercase()).await.unwrap().is_none());
    // What was waited for is not any more; created again by that name it begins anew.
    assert_eq!(site.ended("owner", &operation_id(&made)).await.body["status"], "Canceled");
    site.cluster("g", "c").await;
    assert_eq!(site.call("owner", "GET", &extension("c", "web"), None).await.status, 404);
}

/// That something is on no page says nothing of it: who begins is told what was deleted while it was away.
#[tokio::test]
async fn e10_who_begins_is_told_of_deletions_that_are_not_of_a_former_cluster() {
    let site = bench().await;
    let force = format!("{}&forceDelete=true", extension("c", "web"));
    let gone = |page: &Objects| -> Vec<(String, i64)> {
        let gone = page.objects.iter().filter(|one| one.spec.is_none());
        gone.map(|one| (one.id.rsplit('/').next().unwrap().to_owned(), one.generation)).collect()
    };
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    assert!(gone(&objects(&site, "c", None).await).is_empty());
    assert!(site.call("owner", "DELETE", &force, None).await.status < 300);
    let whole = objects(&site, "c", None).await;
    let told = gone(&whole);
    assert!(told.len() == 1 && told[0].0 == "web" && (1..=whole.position).contains(&told[0].1), "{told:?}");
    assert!(gone(&objects(&site, "d", None).await).is_empty());
    // What is there again is not gone.
    site.call("owner", "PUT", &extension("c", "web"), Some(web())).await;
    let whole = objects(&site, "c", None).await;
    assert_eq!((gone(&whole), whole.objects.len()), (Vec::new(), 1));
    // What went with its cluster is of no agent of the one that has its name now, from wherever it asks.
    let before = whole.position;
    let deleted = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    site.ended("owner", &operation_id(&deleted)).await;
    site.cluster("g", "c").await;
    for after in [None, Some(before)] {
        assert!(objects(&site, "c", after).await.objects.is_empty(), "{after:?}");
    }
}

#[tokio::test]
async fn e1_pages_of_what_is_wanted_are_bounded_and_complete() {
    let site = bench().await;
    let key = cluster_id("g", "c").to_ascii_lowercase();
    let mut batch = Batch::default();
    for n in 0..150 {
        let id = extension_id("c", &format!("e{n:03}"));
        let stored = Stored {
            key: id.to_ascii_lowercase(),
            kind: EXTENSIONS.to_ascii_lowercase(),
            parent: key.clone(),
            id,
            revision: 0,
            body: json!({"properties": {"extensionType": "t", "configurationSettings": {"long": "x".repeat(100_000)}}}),
            protected: None,
        };
        batch.puts = vec![(stored, Expect::Absent)];
        site.control.store.apply(&batch).await.unwrap().unwrap();
    }
    let (mut after, mut seen, mut pages) = (None, std::collections::BTreeSet::new(), 0);
    loop {
        let page = objects(&site, "c", after).await;
        assert_eq!(page.whole, after.is_none());
        assert!(serde_json::to_vec(&page).unwrap().len() <= types::agent_api::OBJECTS_BYTES);
        seen.extend(page.objects.into_iter().map(|object| object.id));
        pages += 1;
        after = Some(page.position);
        if !page.more {
            break;
        }
    }
    assert!(seen.len() == 150 && pages > 10, "{} in {pages}", seen.len());
    // From a future of a database that was restored: everything anew.
    assert!(objects(&site, "c", Some(i64::MAX)).await.whole);
}

#[tokio::test]
async fn e12_version_that_does_not_work_on_what_is_known_of_the_cluster_is_refused_early() {
    let folder = tempfile::tempdir().unwrap();
    let versions: [(&str, &[&str]); 2] = [("1.0.0", &["Stable"]), ("2.0.0", &["Preview"])];
    crate::catalogue::tests::make(&folder.path().join("catalogue"), &versions, |index| {
        index.types[0].versions[1].kube_version = Some(">=1.40.0".parse().unwrap());
        index.types[0].versions[0].supported_distributions = vec!["k3s".to_owned()];
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    site.cluster("g", "c").await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    let put = async |name: &str, more: Value| {
        let mut own = json!({"extensionType": "example.web"});
        own.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        site.call("owner", "PUT", &extension("c", name), Some(json!({"properties": own}))).await
    };
    let newer = || json!({"version": "2.0.0"});
    // Nothing is known of a cluster that no agent has told of.
    assert_eq!(put("early", newer()).await.status, 201);
    let tell = async |kubernetes: &str, distribution: &str| {
        let key = cluster_id("g", "c").to_ascii_lowercase();
        let facts = json!({"kubernetesVersion": kubernetes, "distribution": distribution});
        site.control.store.put_facts(&key, None, &facts, None, 1).await.unwrap();
    };
    tell("1.36.2", "k3s").await;
    for more in [newer(), json!({"releaseTrain": "Preview"})] {
        let refused = put("late", more).await;
        assert_eq!((refused.status, refused.code()), (400, "VersionNotSupported"), "{}", refused.body);
        assert!(refused.body.to_string().contains("needs Kubernetes >=1.40.0"), "{}", refused.body);
    }
    assert_eq!(put("late", json!({})).await.status, 201);
    // What is there already stays as it is wanted.
    assert_eq!(put("early", json!({"version": "2.0.0", "configurationSettings": {"a": "1"}})).await.status, 200);
    tell("1.41.0", "aks").await;
    assert_eq!(put("newer", newer()).await.status, 201);
    assert_eq!(put("older", json!({})).await.code(), "VersionNotSupported");
    tell("1.41.0", "generic").await;
    assert_eq!(put("older", json!({})).await.status, 201);
}

#[tokio::test]
async fn e12_a_version_that_no_node_can_run_is_refused_when_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    crate::catalogue::tests::make(&folder.path().join("catalogue"), &[("1.0.0", &["Stable"])], |index| {
        index.types[0].versions[0].platforms = vec!["linux/amd64".to_owned(), "linux/arm64".to_owned()];
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    site.cluster("g", "c").await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    let put = async |name: &str, more: Value| {
        let mut own = json!({"extensionType": "example.web"});
        own.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        site.call("owner", "PUT", &extension("c", name), Some(json!({"properties": own}))).await
    };
    let tell = async |facts: Value| {
        let key = cluster_id("g", "c").to_ascii_lowercase();
        site.control.store.put_facts(&key, None, &facts, None, 1).await.unwrap();
    };
    tell(json!({"platforms": ["linux/riscv64", "windows/amd64"]})).await;
    for more in [json!({"version": "1.0.0"}), json!({})] {
        let refused = put("web", more).await;
        assert_eq!((refused.status, refused.code()), (400, "VersionNotSupported"), "{}", refused.body);
        let says = "it runs on linux/amd64, linux/arm64, and the cluster's nodes are linux/riscv64, windows/amd64";
        assert!(refused.body.to_string().contains(says), "{}", refused.body);
    }
    // One node that can is enough, and an agent that does not tell of platforms is as before.
    tell(json!({"platforms": ["linux/arm64", "windows/amd64"]})).await;
    assert_eq!(put("web", json!({"version": "1.0.0"})).await.status, 201);
    tell(json!({"kubernetesVersion": "1.36.0"})).await;
    assert_eq!(put("other", json!({})).await.status, 201);
}

#[tokio::test]
async fn e7_who_names_no_namespace_means_the_one_that_is_there() {
    let site = bench().await;
    let body = |scope: Value| {
        let mut body = web();
        body["properties"]["scope"] = scope;
        body
    };
    let placed = json!({"cluster": {"releaseNamespace": "shop"}});
    let put = async |scope: Value| site.call("owner", "PUT", &extension("c", "web"), Some(body(scope))).await;
    assert_eq!(put(placed.clone()).await.status, 201);
    for scope in [Value::Null, json!({"cluster": {}}), placed.clone()] {
        let same = put(scope).await;
        assert_eq!((same.status, &same.body["properties"]["scope"]), (200, &placed), "{}", same.body);
    }
    for scope in [json!({"cluster": {"releaseNamespace": "other"}}), json!({"namespace": {"targetNamespace": "shop"}})]
    {
        assert_eq!(put(scope).await.code(), "ExtensionScopeImmutable");
    }
}

#[tokio::test]
async fn e3_what_the_catalogue_has_not_is_refused_early() {
    let folder = tempfile::tempdir().unwrap();
    let versions: &[(&str, &[&str])] = &[("1.0.0", &["Stable"]), ("1.1.0", &["Preview"])];
    crate::catalogue::tests::make(&folder.path().join("catalogue"), versions, |_| {});
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    site.cluster("g", "c").await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    let put = async |properties: Value| {
        let path = extension("c", &crate::random::guid()[..8].replace(|c: char| c.is_ascii_digit(), "a"));
        site.call("owner", "PUT", &path, Some(json!({"properties": properties}))).await
    };
    for (properties, code, target) in [
        (json!({"extensionType": "example.none"}), "ExtensionTypeNotFound", "properties.extensionType"),
        (json!({"extensionType": "example.web", "version": "9.0.0"}), "ExtensionVersionNotFound", "properties.version"),
        (
            json!({"extensionType": "example.web", "releaseTrain": "Nightly"}),
            "ReleaseTrainNotFound",
            "properties.releaseTrain",
        ),
        (
            json!({"extensionType": "example.web", "releaseTrain": "Nightly", "version": "1.1.0"}),
            "ReleaseTrainNotFound",
            "properties.releaseTrain",
        ),
    ] {
        let refused = put(properties).await;
        assert_eq!((refused.status, refused.code()), (400, code), "{}", refused.body);
        assert_eq!(refused.body["error"]["target"], target);
    }
    for properties in [
        json!({"extensionType": "Example.Web"}),
        json!({"extensionType": "example.web", "version": "v1.1.0"}),
        json!({"extensionType": "example.web", "releaseTrain": "preview"}),
    ] {
        let made = put(properties).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
}
