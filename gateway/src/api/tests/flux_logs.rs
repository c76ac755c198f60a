//! Log lines of Flux's controllers (docs/features.md D5): what is taken of a cluster, what is kept, and who is shown what.

use types::agent_api::{
    LOG_LINES_AT_ONCE, LOG_MESSAGE_BYTES, LOG_SOURCES, LogLevel, LogLine, LogLines, LogPosition, ObjectState,
    ObjectStatus, ObjectStatuses, Parts,
};

use crate::store::logs::Part;

use super::{
    flux_configurations::{at, id, key, site, status},
    *,
};

const VERSION_OF_IT: &str = "api-version=2025-04-01";

fn line(name: &str, nanos: i64, nth: u32) -> LogLine {
    LogLine {
        id: id(name),
        source: "pod-1".to_owned(),
        position: LogPosition { nanos, nth },
        level: LogLevel::Info,
        controller: "kustomize-controller".to_owned(),
        kind: "Kustomization".to_owned(),
        namespace: "default".to_owned(),
        name: format!("{name}-apps"),
        message: format!("{nanos}.{nth}"),
        left_out: 0,
    }
}

impl Bench {
    async fn logged(&self, lines: Vec<LogLine>) {
        self.control.lines_told(&key("c"), LogLines { lines }).await.unwrap();
    }

    async fn listed(&self, name: &str, question: Value) -> Value {
        let path = format!("{}/listLogs?{VERSION_OF_IT}", id(name));
        let answer = self.call("owner", "POST", &path, Some(question)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    async fn messages(&self, name: &str, question: Value) -> Vec<String> {
        let body = self.listed(name, question).await;
        body["value"].as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap().to_owned()).collect()
    }

    async fn configured(&self, name: &str) {
        let body = json!({"properties": {
            "sourceKind": "GitRepository", "gitRepository": {"url": "https://e.com/x.git", "repositoryRef": {"branch": "main"}},
            "kustomizations": {"apps": {}},
        }});
        let made = self.call("owner", "PUT", &at(name), Some(body)).await;
        assert!(made.status < 300, "{}", made.body);
    }
}

#[tokio::test]
async fn d5_lines_are_taken_once_and_listed_behind_a_number_and_by_level() {
    let site = site().await;
    site.configured("shop").await;
    site.configured("other").await;
    let revision = site.control.store.revision().await.unwrap();
    let error = LogLine { level: LogLevel::Error, left_out: 7, ..line("shop", 2, 1) };
    let source = LogLine { kind: "GitRepository".to_owned(), name: "shop".to_owned(), ..line("shop", 1, 2) };
    site.logged(vec![line("shop", 1, 1), source, line("other", 1, 3), error.clone()]).await;
    // The same again, whose answer was lost, with one more; and the first line of another pod.
    let elsewhere = LogLine { source: "pod-2".to_owned(), ..line("shop", 1, 9) };
    site.logged(vec![line("shop", 1, 1), line("shop", 1, 2), error, line("shop", 2, 2), elsewhere]).await;
    assert_eq!(site.messages("shop", json!({})).await, ["1.1", "1.2", "2.1", "2.2", "1.9"]);
    assert_eq!(site.messages("other", json!({})).await, ["1.3"]);
    assert_eq!(site.messages("shop", json!({"level": "error"})).await, ["2.1"]);
    assert_eq!(site.messages("shop", json!({"kustomization": "apps", "newest": 2})).await, ["2.2", "1.9"]);
    assert_eq!(site.messages("shop", json!({"kustomization": "app"})).await, [""; 0]);
    let body = site.listed("shop", json!({"level": "error"})).await;
    let one = &body["value"][0];
    assert_eq!(
        (&one["leftOut"], &one["level"], &one["time"]),
        (&json!(7), &json!("error"), &json!("1970-01-01T00:00:00Z"))
    );
    assert!(body["last"].as_i64() > one["number"].as_i64(), "{body}");
    assert_eq!(site.messages("shop", json!({"after": one["number"]})).await, ["2.2", "1.9"]);
    assert_eq!(site.control.store.revision().await.unwrap(), revision, "nobody is woken by a log line");
    let known = site.control.store.log_positions(&key("c")).await.unwrap();
    assert_eq!(known.sources["pod-1"], LogPosition { nanos: 2, nth: 2 });
    let refused = site
        .call("owner", "POST", &format!("{}/listLogs?{VERSION_OF_IT}", id("shop")), Some(json!({"level": "loud"})))
        .await;
    assert_eq!((refused.status, &refused.body["error"]["target"]), (400, &json!("level")));
    let nobody =
        site.call("nobody", "POST", &format!("{}/listLogs?{VERSION_OF_IT}", id("shop")), Some(json!({}))).await;
    assert_eq!(nobody.status, 403, "{}", nobody.body);
}

#[tokio::test]
async fn d5_what_a_hostile_cluster_logs_is_bounded_and_of_its_own_alone() {
    let site = site().await;
    site.configured("shop").await;
    // Of another cluster's configuration, of what is none, and of what is not there: nothing is kept.
    let told = LogLines { lines: vec![line("shop", 1, 1)] };
    site.control.lines_told(&key("d"), told).await.unwrap();
    let none = ["/", "", "/subscriptions/s/x", &id("absent"), &cluster_id("g", "c")].map(|id| id.to_owned());
    let lines = none.into_iter().zip(1..).map(|(id, nth)| LogLine { id, ..line("shop", 1, nth) }).collect();
    site.logged(lines).await;
    assert_eq!(site.messages("shop", json!({})).await, [""; 0]);
    // Long texts, and texts that no column takes.
    let long = "ä\0\u{1b}[31m\u{1}\n".repeat(10_000);
    let one = LogLine {
        controller: long.clone(),
        kind: long.clone(),
        namespace: long.clone(),
        name: long.clone(),
        message: long.clone(),
        left_out: u64::MAX,
        ..line("shop", i64::MAX, u32::MAX)
    };
    site.logged(vec![one, LogLine { source: long, ..line("shop", 1, 1) }]).await;
    let body = site.listed("shop", json!({})).await;
    let shown = body["value"].as_array().unwrap();
    assert_eq!(shown.len(), 1);
    assert!(shown[0].to_string().len() < 2 * LOG_MESSAGE_BYTES && !shown[0].to_string().contains("\\u00"));
    let lines = vec![line("shop", 1, 1); LOG_LINES_AT_ONCE + 1];
    let refused = site.control.lines_told(&key("c"), LogLines { lines }).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 400);
    // More pods than anybody has: the oldest are forgotten.
    let pods: Vec<_> = (0..300).map(|n| LogLine { source: format!("pod-{n}"), ..line("shop", n, 1) }).collect();
    for pods in pods.chunks(LOG_LINES_AT_ONCE) {
        site.logged(pods.to_vec()).await;
    }
    assert_eq!(site.control.store.log_positions(&key("c")).await.unwrap().sources.len(), LOG_SOURCES);
}

#[tokio::test]
async fn d5_the_newest_lines_are_kept_of_each_configuration_and_of_a_cluster() {
    let site = site().await;
    let names: Vec<String> = (0..12).map(|n| format!("shop-{n}")).collect();
    for name in &names {
        site.configured(name).await;
    }
    for (name, nth) in names.iter().zip(1..) {
        let lines: Vec<_> = (1..=600).map(|n| line(name, nth * 1000 + n, 1)).collect();
        for lines in lines.chunks(LOG_LINES_AT_ONCE) {
            site.logged(lines.to_vec()).await;
        }
    }
    let newest = site.messages("shop-11", json!({})).await;
    assert_eq!((newest.len(), newest[0].as_str(), newest[499].as_str()), (500, "12101.1", "12600.1"));
    let mut all = 0;
    for name in &names {
        all += site.messages(name, json!({})).await.len();
    }
    assert_eq!(all, 5000);
}

#[tokio::test]
async fn d5_lines_go_with_their_configuration_and_their_cluster() {
    let site = site().await;
    site.configured("shop").await;
    site.logged(vec![line("shop", 1, 1)]).await;
    assert_eq!(site.call("owner", "DELETE", &format!("{}&forceDelete=true", at("shop")), None).await.status, 200);
    site.configured("shop").await;
    assert_eq!(site.messages("shop", json!({})).await, [""; 0]);
    // What was taken before stays taken.
    site.logged(vec![line("shop", 1, 1), line("shop", 1, 2)]).await;
    assert_eq!(site.messages("shop", json!({})).await, ["1.2"]);
    let gone = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    let shop = id("shop").to_ascii_lowercase();
    assert!(site.control.store.lines_of(&shop, Part::ALL).await.unwrap().is_empty());
    assert!(site.control.store.log_positions(&key("c")).await.unwrap().sources.is_empty());
}

#[tokio::test]
async fn d5_the_last_error_is_a_condition_of_what_does_not_comply() {
    let site = site().await;
    site.configured("shop").await;
    let part = |name: &str, state: &str| {
        let condition = json!({"type": "Ready", "status": "False", "reason": "R", "message": "m"});
        let told = json!({"name": name, "namespace": "default", "kind": "Kustomization", "complianceState": state,
            "statusConditions": [condition]});
        (name.to_owned(), Some(told))
    };
    let values = [part("shop-apps", "Non-Compliant"), part("shop-more", "Compliant")].into();
    let told = ObjectStatus {
        id: id("shop"),
        parts: Some(Parts { after: None, position: 1, values }),
        ..status(1, ObjectState::Succeeded)
    };
    site.control.objects_told(&key("c"), ObjectStatuses { objects: vec![told] }).await.unwrap();
    let error = |name: &str, nth| LogLine { level: LogLevel::Error, name: name.to_owned(), ..line("shop", 1, nth) };
    site.logged(vec![error("shop-apps", 1), error("shop-apps", 2), error("shop-more", 3), line("shop", 1, 4)]).await;
    let shown = site.call("owner", "GET", &at("shop"), None).await;
    let statuses = &shown.body["properties"]["statuses"];
    let types = |at: usize| {
        let conditions = statuses[at]["statusConditions"].as_array().unwrap();
        conditions.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((types(0), types(1)), (vec!["Ready".to_owned(), "LastError".to_owned()], vec!["Ready".to_owned()]));
    assert_eq!(statuses[0]["statusConditions"][1]["message"], "1.2", "{statuses}");
}
