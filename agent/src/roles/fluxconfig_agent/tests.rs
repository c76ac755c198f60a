//! From what the gateway wants to Flux's objects and back, on an apiserver that is a map and without Flux: the tests write
//! what Flux would.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use types::agent_api::{
    BODY_BYTES, Object, ObjectState, ObjectStatus, ObjectStatuses, ObjectStatusesAnswer, Objects, ProtectedQuestion,
    ProtectedSettings, encode,
};

use super::{FluxConfigs, FluxconfigAgent, config_agent::GitConfigs, converge, key::KeyPair};
use crate::{
    config::Gitops,
    identity::clock::{Clock, SharedClock, SystemClock},
    roles::{
        egress_proxy::Grants,
        health::{Health, RoleHealth, State},
        objects::{
            Kind as _,
            gateway::{Asked, Gateway},
            store::CONTENT,
            testing::Map,
        },
    },
    tunnel::api::{ApiError, Refused},
};

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
const SOURCES: &str = "/apis/source.toolkit.fluxcd.io/v1/namespaces/team/gitrepositories";
const KUSTOMIZATIONS: &str = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/team/kustomizations";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/towline:flux-applier:team";
const ROLE_BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/flux-applier";

/// A gateway that says what it was told to.
#[derive(Clone, Default)]
struct Scripted(Arc<Script>);

#[derive(Default)]
struct Script {
    pages: Mutex<VecDeque<Objects>>,
    git_pages: Mutex<VecDeque<Objects>>,
    told: Mutex<Vec<ObjectStatus>>,
    messages: Mutex<usize>,
    sizes: Mutex<Vec<usize>>,
    /// The gateway keeps no protected settings any more.
    gone: Mutex<bool>,
    again: Mutex<Vec<String>>,
    settings: Mutex<Vec<(String, String)>>,
}

impl Gateway for Scripted {
    fn up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn objects<'a>(&'a self, kind: &'a str, _: Option<i64>) -> Asked<'a, Option<Objects>> {
        let pages = if kind == FluxConfigs::TYPE { &self.0.pages } else { &self.0.git_pages };
        let page = pages.lock().unwrap().pop_front();
        Box::pin(async move {
            match page {
                Some(page) => Ok(Some(page)),
                None => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok(None)
                }
            }
        })
    }

    fn protected<'a>(&'a self, _: &'a ProtectedQuestion) -> Asked<'a, ProtectedSettings> {
        let settings = self.0.settings.lock().unwrap().clone();
        if *self.0.gone.lock().unwrap() {
            let (code, message) = ("ProtectedSettingsGone".to_owned(), "give them again".to_owned());
            let refused = ApiError::Refused(Refused { status: 410, code, message, retry_after: None });
            return Box::pin(async move { Err(refused) });
        }
        Box::pin(async move { Ok(ProtectedSettings { settings: settings.into_iter().collect() }) })
    }

    fn statuses<'a>(&'a self, statuses: &'a ObjectStatuses) -> Asked<'a, ObjectStatusesAnswer> {
        self.0.told.lock().unwrap().extend(statuses.objects.clone());
        *self.0.messages.lock().unwrap() += 1;
        self.0.sizes.lock().unwrap().push(serde_json::to_vec(statuses).unwrap().len());
        let again = std::mem::take(&mut *self.0.again.lock().unwrap());
        Box::pin(async move { Ok(ObjectStatusesAnswer { unknown: Vec::new(), again }) })
    }
}

/// A clock that is some time ahead.
#[derive(Debug, Clone, Default)]
struct Ahead(Arc<Mutex<Duration>>);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemClock.now() + *self.0.lock().unwrap()
    }
}

fn object(name: &str, generation: i64, spec: Value) -> Object {
    object_of(FluxConfigs::TYPE, name, generation, spec)
}

fn object_of(kind: &str, name: &str, generation: i64, spec: Value) -> Object {
    Object {
        id: format!("{CLUSTER}/providers/{kind}/{name}"),
        kind: kind.to_owned(),
        generation,
        spec: Some(spec),
        deleting: false,
        protected: None,
        operation: None,
        principal_id: None,
    }
}

fn properties(scope: &str, kustomizations: &[&str]) -> Value {
    let all: serde_json::Map<_, _> =
        kustomizations.iter().map(|name| ((*name).to_owned(), json!({"path": "./", "prune": true}))).collect();
    json!({
        "scope": scope, "namespace": "team", "sourceKind": "GitRepository",
        "gitRepository": {"url": "https://git.example.org/app", "repositoryRef": {"branch": "main"}},
        "kustomizations": all,
    })
}

/// The role on a map, with what the gateway says.
struct Stage {
    map: Map,
    gateway: Scripted,
    clock: Ahead,
    settings: Gitops,
    health: Health,
    egress: Grants,
    proxy: Option<String>,
}

impl Stage {
    fn new() -> Self {
        Self {
            map: Map::default(),
            gateway: Scripted::default(),
            clock: Ahead::default(),
            settings: Gitops::default(),
            health: Health::default(),
            egress: Grants::default(),
            proxy: Some("http://10.0.0.9:3128".to_owned()),
        }
    }

    fn wants(&self, objects: Vec<Object>) {
        let is_flux = objects.iter().all(|object| object.kind == FluxConfigs::TYPE);
        let script = &self.gateway.0;
        let mut pages = if is_flux { &script.pages } else { &script.git_pages }.lock().unwrap();
        pages.push_back(Objects { position: 1, identity: None, whole: false, more: false, objects });
    }

    /// Runs the role until something holds.
    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let clock: SharedClock = Arc::new(self.clock.clone());
        let role = FluxconfigAgent {
            client: self.map.client(),
            cluster: CLUSTER.parse().unwrap(),
            settings: self.settings.clone(),
            clock,
            health: self.health.of(super::NAME),
            gateway: self.gateway.clone(),
            egress: self.egress.clone(),
            proxy: self.proxy.clone(),
        };
        let holds = async {
            for _ in 0..600 {
                if holds() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            false
        };
        let work: BoxFuture<'_, ()> = Box::pin(role.work());
        let held = tokio::select! {
            () = work => false,
            held = holds => held,
        };
        let all = self.map.all().iter().map(|(path, one)| format!("{path}: {one}")).collect::<Vec<_>>().join("\n");
        assert!(held, "{what} did not come about\n{all}\n{:#?}", self.last());
    }

    fn has(&self, path: &str) -> bool {
        self.map.all().contains_key(path)
    }

    fn get(&self, path: &str) -> Value {
        self.map.all().get(path).cloned().unwrap_or_default()
    }

    fn config(&self, name: &str) -> Value {
        self.get(&format!("/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/{name}"))
    }

    fn last(&self) -> Option<ObjectStatus> {
        self.gateway.0.told.lock().unwrap().last().cloned()
    }

    fn told(&self, is: impl Fn(&ObjectStatus) -> bool) -> bool {
        self.gateway.0.told.lock().unwrap().iter().any(is)
    }

    /// What Flux says of an object.
    fn says(&self, path: &str, ready: &str, reason: &str, more: Value) {
        let generation = self.get(path)["metadata"]["generation"].clone();
        let conditions = json!([{"type": "Ready", "status": ready, "reason": reason, "message": format!("{reason}!"), "lastTransitionTime": "2026-11-27T10:00:00Z"}]);
        let mut status = json!({"observedGeneration": generation, "conditions": conditions});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.map.change(path, json!({ "status": status }));
    }

    fn pulled(&self, name: &str, revision: &str) {
        let artifact = json!({"artifact": {"revision": revision, "lastUpdateTime": "2026-11-27T10:00:00Z"}});
        self.says(&format!("{SOURCES}/{name}"), "True", "Succeeded", artifact);
    }

    /// A kustomization has applied everything for the first time, and something of it does not get healthy: as
    /// kustomize-controller says that, which has not observed the generation then.
    fn unhealthy(&self, path: &str, revision: &str) {
        let generation = self.get(path)["metadata"]["generation"].clone();
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "HealthCheckFailed", "message": "timeout",
            "lastTransitionTime": "2026-11-27T10:00:00Z", "observedGeneration": generation,
        });
        let status = json!({"observedGeneration": -1, "conditions": [ready], "lastAttemptedRevision": revision});
        self.map.change(path, json!({ "status": status }));
    }

    fn applied(&self, name: &str, revision: &str, ids: &[&str]) {
        let entries: Vec<_> = ids.iter().map(|id| json!({"id": id, "v": "v1"})).collect();
        let more = json!({"lastAppliedRevision": revision, "lastAttemptedRevision": revision, "inventory": {"entries": entries}});
        self.says(&format!("{KUSTOMIZATIONS}/{name}"), "True", "ReconciliationSucceeded", more);
    }
}

fn failed_with(status: &ObjectStatus, code: &str) -> bool {
    status.state == ObjectState::Failed && status.error.as_ref().is_some_and(|error| error.code == code)
}

fn compliance(status: &ObjectStatus) -> Option<&str> {
    status.details.as_ref()?["complianceState"].as_str()
}

#[tokio::test]
async fn g1_configuration_becomes_flux_objects_and_their_status_comes_back() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps", "infra"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    assert_eq!(stage.get(BINDING)["roleRef"]["name"], "cluster-admin");
    assert!(stage.has("/api/v1/namespaces/team") && stage.has("/api/v1/namespaces/team/serviceaccounts/flux-applier"));
    assert!(!stage.has("/api/v1/namespaces/team/secrets/web-auth"), "nothing is secret");
    assert_eq!(stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["spec"]["serviceAccountName"], "flux-applier");
    stage.pulled("web", "main@sha1:a");
    stage.applied("web-infra", "main@sha1:a", &[]);
    stage.applied("web-apps", "main@sha1:a", &["shop_one_apps_Deployment"]);
    stage.until("compliant", || stage.told(|one| compliance(one) == Some("Compliant"))).await;
    let shown = &stage.config("web")["status"];
    assert_eq!(
        (&shown["complianceState"], &shown["objects"], &shown["state"]),
        (&json!("Compliant"), &json!(1), &json!("Succeeded"))
    );
    assert_eq!(stage.last().unwrap().details.unwrap()["sourceSyncedCommitId"], "main@sha1:a");
    assert!(
        stage.told(|one| one.parts.as_ref().is_some_and(|parts| parts.values.contains_key("shop_one_apps_Deployment")))
    );
    // A kustomization that left the configuration goes.
    stage.wants(vec![object("web", 2, properties("cluster", &["infra"]))]);
    stage.until("removed", || !stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/web-infra")));
}

#[tokio::test]
async fn n1_the_way_through_the_gateway_comes_and_goes_with_its_configuration() {
    let mut stage = Stage::new();
    let secret = "/api/v1/namespaces/team/secrets/web-proxy";
    let mut wanted = properties("cluster", &["apps"]);
    wanted["throughGateway"] = true.into();
    // A pod that does not know the Service says what to do.
    let proxy = stage.proxy.take();
    stage.wants(vec![object("web", 1, wanted.clone())]);
    stage.until("no proxy", || stage.config("web").to_string().contains("upgrade the extension microsoft.flux")).await;
    assert!(!stage.has(secret));
    stage.proxy = proxy;
    stage.wants(vec![object("web", 2, wanted.clone())]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let source = format!("{SOURCES}/web");
    assert_eq!(stage.get(&source)["spec"]["proxySecretRef"]["name"], "web-proxy");
    let data = stage.get(secret)["data"].clone();
    assert_eq!(data["address"], encode(b"http://10.0.0.9:3128"));
    assert_eq!(data["username"], encode(b"web"));
    // Another process has other credentials, and writes them down.
    stage.egress = Grants::default();
    stage.until("other credentials", || stage.get(secret)["data"]["password"] != data["password"]).await;
    wanted["throughGateway"] = false.into();
    stage.wants(vec![object("web", 3, wanted)]);
    stage.until("direct", || !stage.has(secret)).await;
}

#[tokio::test]
async fn g6_nothing_is_sent_where_nothing_changes_and_all_where_the_gateway_asks() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    stage.pulled("web", "main@sha1:a");
    stage.applied("web-apps", "main@sha1:a", &["shop_one_apps_Deployment"]);
    stage.until("compliant", || stage.told(|one| compliance(one) == Some("Compliant"))).await;
    let messages = || *stage.gateway.0.messages.lock().unwrap();
    // A new process tells the parts anew, and nothing after that.
    let (before, began, mut settled) = (messages(), std::time::Instant::now(), 0);
    stage
        .until("time passed", || {
            if began.elapsed() < Duration::from_secs(2) {
                settled = messages();
            }
            began.elapsed() > Duration::from_secs(4)
        })
        .await;
    assert!(settled > before && messages() == settled, "{before} {settled} {:#?}", stage.last());
    let parts = stage.gateway.0.told.lock().unwrap()[before..].iter().find_map(|one| one.parts.clone());
    assert_eq!(parts.unwrap().after, None);
    // An object that is new is told alone, and all of them when the gateway answers that it has lost something.
    let (id, one, two) = (stage.last().unwrap().id, "shop_one_apps_Deployment", "shop_two_apps_Deployment");
    let parts = || {
        let told = stage.gateway.0.told.lock().unwrap();
        told[settled..].iter().filter_map(|one| one.parts.clone()).collect::<Vec<_>>()
    };
    let mut changed = false;
    stage
        .until("all again", || {
            if parts().len() == 1 && !changed {
                changed = true;
                *stage.gateway.0.again.lock().unwrap() = vec![id.clone()];
                stage.applied("web-apps", "main@sha1:a", &[one, two]);
            }
            parts().len() == 3
        })
        .await;
    let told: Vec<_> = parts().into_iter().map(|parts| (parts.after.is_none(), parts.values.len())).collect();
    assert_eq!(told, [(true, 3), (false, 1), (true, 4)]);
}

#[tokio::test]
async fn g7_what_the_owner_does_not_allow_is_not_written_and_what_runs_is_suspended() {
    let mut stage = Stage::new();
    stage.settings.allowed_scopes = Some(vec!["namespace".to_owned()]);
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "NotAllowedInCluster"))).await;
    assert!(!stage.has("/api/v1/namespaces/team") && !stage.has(BINDING));
    // It was allowed for a time.
    stage.settings = Gitops::default();
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    assert_eq!(stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["spec"]["suspend"], false);
    stage.settings.allowed_repositories = Some(vec!["https://git.example.org/other".to_owned()]);
    let suspended = |path: String| stage.get(&path)["spec"]["suspend"] == true;
    stage
        .until("suspended", || suspended(format!("{KUSTOMIZATIONS}/web-apps")) && suspended(format!("{SOURCES}/web")))
        .await;
    stage.until("told", || stage.last().is_some_and(|one| failed_with(&one, "NotAllowedInCluster"))).await;
    assert_eq!(stage.config("web")["status"]["errorInfo"]["code"], "NotAllowedInCluster");
}

#[tokio::test]
async fn g1_names_that_collide_are_decided_by_the_label() {
    let stage = Stage::new();
    stage.wants(vec![object("a", 1, properties("cluster", &["b-c"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    stage.wants(vec![object("a-b", 1, properties("cluster", &["c"]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "NameInUse"))).await;
    assert!(
        stage.told(|one| one
            .error
            .as_ref()
            .is_some_and(|error| error.message.contains("belongs to the configuration a;")))
    );
    assert_eq!(stage.get(&format!("{KUSTOMIZATIONS}/a-b-c"))["metadata"]["labels"]["towline.io/fluxconfig"], "a");
    // What somebody else made is left alone too.
    stage.map.all().insert(
        format!("{SOURCES}/mine"),
        json!({"metadata": {"name": "mine", "namespace": "team", "uid": "u"}, "spec": {"url": "x"}}),
    );
    stage.wants(vec![object("mine", 1, properties("cluster", &[]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "NameInUse") && one.id.ends_with("/mine"))).await;
    assert_eq!(stage.get(&format!("{SOURCES}/mine"))["spec"]["url"], "x");
}

#[tokio::test]
async fn g7_scopes_do_not_share_a_service_account() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("namespace", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    assert_eq!(stage.get(ROLE_BINDING)["roleRef"]["name"], "admin");
    assert_eq!(stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["spec"]["targetNamespace"], "team");
    stage.wants(vec![object("wide", 1, properties("cluster", &["apps"]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "ScopeConflict"))).await;
    assert!(!stage.has(BINDING));
}

#[tokio::test]
async fn g7_what_runs_is_suspended_while_what_is_wanted_cannot_be_made() {
    let mut evil = Stage::new();
    evil.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    evil.until("applied", || evil.told(|one| one.state == ObjectState::Succeeded)).await;
    // An address that is allowed, in a configuration that is never made.
    evil.settings.allowed_repositories = Some(vec!["ssh://git.example.org/good".to_owned()]);
    let mut spec = properties("cluster", &["apps"]);
    spec["gitRepository"]["url"] = json!("ssh://git@git.example.org/good");
    evil.wants(vec![object("web", 2, spec)]);
    evil.until("refused", || evil.told(|one| failed_with(one, "KnownHostsMissing"))).await;
    let suspended = |stage: &Stage| {
        let paths = [format!("{KUSTOMIZATIONS}/web-apps"), format!("{SOURCES}/web")];
        paths.iter().all(|path| stage.get(path)["spec"]["suspend"] == true)
    };
    evil.until("suspended", || suspended(&evil)).await;
    // One that nobody can read.
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    stage.wants(vec![object("web", 2, json!({"kustomizations": 1}))]);
    stage.until("suspended", || suspended(&stage)).await;
    stage.wants(vec![object("web", 3, properties("cluster", &["apps"]))]);
    stage.until("runs again", || !suspended(&stage)).await;
}

#[tokio::test]
async fn g7_scope_that_changed_is_another_configuration_and_the_loser_is_suspended() {
    let stage = Stage::new();
    let both = ["a", "b"].map(|name| object(name, 1, properties("namespace", &["apps"])));
    stage.wants(both.to_vec());
    let done =
        |name: &'static str| move |one: &ObjectStatus| one.id.ends_with(name) && one.state == ObjectState::Succeeded;
    stage.until("applied", || stage.told(done("/a")) && stage.told(done("/b"))).await;
    stage.wants(vec![object("a", 2, properties("cluster", &["apps"]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "ScopeConflict") && one.id.ends_with("/a"))).await;
    assert!(!stage.has(&format!("{KUSTOMIZATIONS}/a-apps")) && !stage.has(BINDING), "what was there is taken down");
    let b = format!("{KUSTOMIZATIONS}/b-apps");
    assert_eq!(stage.get(&b)["spec"]["suspend"], false);
    // Nobody knows any more that b was there first.
    let lost = json!({"status": {"record": {"namespace": null, "scope": null, "applied": null}}});
    stage.map.change("/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/b", lost);
    stage.until("suspended", || stage.get(&b)["spec"]["suspend"] == true).await;
}

#[tokio::test]
async fn g7_namespace_of_any_controllers_of_flux_is_refused() {
    let stage = Stage::new();
    let account = "/api/v1/namespaces/team/serviceaccounts/kustomize-controller";
    let made = json!({"metadata": {"name": "kustomize-controller", "namespace": "team"}});
    stage.map.all().insert(account.to_owned(), made);
    stage.wants(vec![object("web", 1, properties("namespace", &["apps"]))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "NotAllowedInCluster"))).await;
    assert!(!stage.has(ROLE_BINDING) && !stage.has(&format!("{KUSTOMIZATIONS}/web-apps")));
    // The rights of the cluster are given openly. It comes first by its name.
    stage.wants(vec![object("all", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
}

#[tokio::test]
async fn g11_configuration_is_taken_down_in_order_and_without_flux_too() {
    let stage = Stage::new();
    let mut web = object("web", 1, properties("cluster", &["apps"]));
    web.protected = Some("tag".to_owned());
    web.spec.as_mut().unwrap()["gitRepository"]["httpsUser"] = json!("u");
    *stage.gateway.0.settings.lock().unwrap() = vec![("httpsKey".to_owned(), encode(b"pa55word"))];
    stage.wants(vec![web.clone()]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    assert_eq!(stage.get("/api/v1/namespaces/team/secrets/web-auth")["data"]["password"], encode(b"pa55word"));
    // Flux's finalizers, and nobody who takes them off.
    let (source, applied) = (format!("{SOURCES}/web"), format!("{KUSTOMIZATIONS}/web-apps"));
    for path in [&source, &applied] {
        stage.map.change(path, json!({"metadata": {"finalizers": ["finalizers.fluxcd.io"]}}));
    }
    (web.deleting, web.generation) = (true, 2);
    stage.wants(vec![web]);
    stage.until("deleted", || !stage.get(&applied)["metadata"]["deletionTimestamp"].is_null()).await;
    assert!(stage.get(&source)["metadata"]["deletionTimestamp"].is_null(), "the source goes after what it feeds");
    assert!(stage.has(BINDING), "Flux needs the rights to prune");
    *stage.clock.0.lock().unwrap() = Duration::from_secs(600);
    stage.until("gone", || stage.told(|one| one.state == ObjectState::Deleted)).await;
    let last = stage.last().unwrap();
    assert!(last.statuses.iter().any(|line| line.code == "FinalizersRemoved"), "{last:#?}");
    stage.until("forgotten", || stage.config("web").is_null()).await;
    for path in [
        &source,
        &applied,
        BINDING,
        "/api/v1/namespaces/team/secrets/web-auth",
        "/api/v1/namespaces/team/serviceaccounts/flux-applier",
    ] {
        assert!(!stage.has(path), "{path}");
    }
    assert!(stage.has("/api/v1/namespaces/team"), "somebody may use it");
}

#[tokio::test]
async fn g11_pruning_that_takes_long_is_told_as_such_while_its_controller_runs() {
    let stage = Stage::new();
    let mut web = object("web", 1, properties("cluster", &["apps"]));
    stage.wants(vec![web.clone()]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let applied = format!("{KUSTOMIZATIONS}/web-apps");
    stage.map.change(&applied, json!({"metadata": {"finalizers": ["finalizers.fluxcd.io"]}}));
    (web.deleting, web.generation) = (true, 2);
    stage.wants(vec![web]);
    stage.until("deleted", || !stage.get(&applied)["metadata"]["deletionTimestamp"].is_null()).await;
    // It says that it runs, and has not ended.
    let election = "/apis/coordination.k8s.io/v1/namespaces/flux-system/leases/kustomize-controller-leader-election";
    let says = |ahead: u64| {
        *stage.clock.0.lock().unwrap() = Duration::from_secs(ahead);
        let at = format!("{:.6}", Timestamp::try_from(stage.clock.now()).unwrap());
        json!({"metadata": {"name": "k"}, "spec": {"holderIdentity": "pod", "renewTime": at}})
    };
    let beats = says(600);
    stage.map.all().insert(election.to_owned(), beats);
    let line = |code: &'static str| {
        move |one: &ObjectStatus| {
            one.statuses.iter().find(|line| line.code == code).map(|line| line.message.clone()).unwrap_or_default()
        }
    };
    let prunes = |one: &ObjectStatus| line("Pruning")(one).contains("kustomize-controller runs, and removes what 1");
    stage.until("told", || stage.told(prunes)).await;
    assert!(!stage.told(|one| !line("FinalizersRemoved")(one).is_empty()));
    assert_eq!(stage.get(&applied)["metadata"]["finalizers"], json!(["finalizers.fluxcd.io"]));
    // The warning is gone from the status.
    *stage.clock.0.lock().unwrap() = Duration::from_secs(700);
    stage.until("gone", || stage.told(|one| one.state == ObjectState::Deleted)).await;
    let last = line("FinalizersRemoved")(&stage.last().unwrap());
    assert!(last.contains("kustomize-controller does not run, and was seen last at 20"), "{last}");
    assert!(last.contains("what they had applied may still be there"), "{last}");
}

#[tokio::test]
async fn g11_finalizers_of_others_stay_and_nothing_is_left_where_the_record_was_lost() {
    let stage = Stage::new();
    let mut web = object("web", 1, properties("cluster", &["apps"]));
    (web.protected, web.spec.as_mut().unwrap()["suspend"]) = (Some("tag".to_owned()), json!(true));
    web.spec.as_mut().unwrap()["gitRepository"]["httpsUser"] = json!("u");
    *stage.gateway.0.settings.lock().unwrap() = vec![("httpsKey".to_owned(), encode(b"pa55word"))];
    stage.wants(vec![web.clone()]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let applied = format!("{KUSTOMIZATIONS}/web-apps");
    stage.map.change(&applied, json!({"metadata": {"finalizers": ["finalizers.fluxcd.io", "example.org/x"]}}));
    let lost = json!({"status": {"record": {"namespace": null, "scope": null, "applied": null}}});
    stage.map.change("/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/web", lost);
    // It was begun long ago, and Flux was asked only now.
    *stage.clock.0.lock().unwrap() = Duration::from_secs(100);
    let begun = json!({"status": {"record": {"deletingSince": "2020-01-01T00:00:00Z"}}});
    stage.map.change("/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/web", begun);
    (web.deleting, web.generation) = (true, 2);
    stage.wants(vec![web]);
    let mut asked = None;
    stage
        .until("some time", || {
            let is_asked = !stage.get(&applied)["metadata"]["deletionTimestamp"].is_null();
            is_asked && asked.get_or_insert_with(std::time::Instant::now).elapsed() > Duration::from_secs(3)
        })
        .await;
    assert_eq!(stage.get(&applied)["metadata"]["finalizers"], json!(["finalizers.fluxcd.io", "example.org/x"]));
    *stage.clock.0.lock().unwrap() = Duration::from_secs(600);
    stage.until("let go", || stage.get(&applied)["metadata"]["finalizers"] == json!(["example.org/x"])).await;
    stage.map.all().remove(&applied);
    stage.until("gone", || stage.told(|one| one.state == ObjectState::Deleted)).await;
    for path in [BINDING, "/api/v1/namespaces/team/secrets/web-auth"] {
        assert!(!stage.has(path), "{path}");
    }
}

/// Flux's finalizer, so that what is deleted stays to be looked at.
fn held() -> Value {
    json!({"metadata": {"finalizers": ["finalizers.fluxcd.io"]}})
}

#[tokio::test]
async fn g11_a_kustomization_that_is_renamed_stays_until_the_new_one_has_applied() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps", "infra"]))]);
    let is_made =
        |generation: i64| stage.told(|one| one.generation == generation && one.state == ObjectState::Succeeded);
    stage.until("made", || is_made(1)).await;
    let path = |name: &str| format!("{KUSTOMIZATIONS}/web-{name}");
    let (apps, applications) = (path("apps"), path("applications"));
    stage.pulled("web", "main@sha1:a");
    stage.applied("web-apps", "main@sha1:a", &["team_one_apps_Deployment"]);
    stage.applied("web-infra", "main@sha1:a", &[]);
    stage.until("compliant", || stage.told(|one| compliance(one) == Some("Compliant"))).await;
    stage.map.change(&apps, held());
    stage.wants(vec![object("web", 2, properties("cluster", &["applications", "infra"]))]);
    stage.until("made", || is_made(2) && stage.has(&applications)).await;
    let handing = |one: &ObjectStatus| {
        let line = one.statuses.iter().find(|line| line.code == "HandingOver");
        line.is_some_and(|line| line.message.starts_with("web-apps left the configuration"))
    };
    stage.until("told", || stage.last().is_some_and(|one| handing(&one) && compliance(&one) == Some("Pending"))).await;
    let waits = |path: &str| {
        let one = stage.get(path);
        one["spec"]["suspend"] == true
            && one["metadata"]["annotations"]["towline.io/replaced-by"] == "web-applications"
            && one["metadata"]["deletionTimestamp"].is_null()
    };
    assert!(waits(&apps), "{}", stage.get(&apps));
    // One that fails has taken nothing over, and neither has one that is at another revision.
    stage.says(&applications, "False", "ReconciliationFailed", json!({"lastAttemptedRevision": "main@sha1:a"}));
    stage.until("failed", || stage.last().is_some_and(|one| compliance(&one) == Some("Non-Compliant"))).await;
    assert!(waits(&apps) && stage.last().is_some_and(|one| handing(&one)), "{:#?}", stage.last());
    // Another process goes on; whether what was applied gets healthy is not waited for.
    stage.unhealthy(&applications, "main@sha1:a");
    stage.until("deleted", || !stage.get(&apps)["metadata"]["deletionTimestamp"].is_null()).await;
    let last = stage.get(&apps);
    assert_eq!(
        (&last["spec"]["suspend"], &last["spec"]["dependsOn"]),
        (&json!(false), &json!([{"name": "web-apps"}])),
        "Flux prunes it, and applies nothing more of it"
    );
    stage.map.all().remove(&apps);
    stage.applied("web-applications", "main@sha1:a", &["team_one_apps_Deployment"]);
    stage.until("compliant", || stage.last().is_some_and(|one| compliance(&one) == Some("Compliant"))).await;
    assert!(!handing(&stage.last().unwrap()));
}

#[tokio::test]
async fn g11_what_leaves_waits_for_nothing_where_nothing_comes_in_its_place() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps", "infra"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    // Flux has applied nothing yet, and neither what stays nor what comes from the same place is of interest.
    stage.wants(vec![object("web", 2, properties("cluster", &["infra"]))]);
    stage.until("removed", || !stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
    // A folder that becomes a part of another one's: that one has to apply first.
    stage.wants(vec![object("web", 3, properties("cluster", &["apps", "infra"]))]);
    stage.until("made", || stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
    let mut wider = properties("cluster", &["infra"]);
    wider["kustomizations"]["infra"]["path"] = json!("./all");
    stage.wants(vec![object("web", 4, wider.clone())]);
    let is_held = |by: &str| {
        stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["metadata"]["annotations"]["towline.io/replaced-by"] == by
    };
    stage.until("held", || is_held("web-infra")).await;
    // What it waits for is not wanted any more.
    wider["kustomizations"] = json!({});
    stage.wants(vec![object("web", 5, wider)]);
    stage.until("removed", || !stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
}

#[tokio::test]
async fn g11_what_is_suspended_is_pruned_too_when_it_is_removed() {
    let stage = Stage::new();
    let wanted = |generation: i64, names: &[&str]| {
        let mut web = object("web", generation, properties("cluster", names));
        web.spec.as_mut().unwrap()["suspend"] = json!(true);
        web
    };
    stage.wants(vec![wanted(1, &["a", "b"])]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let path = |name: &str| format!("{KUSTOMIZATIONS}/web-{name}");
    let is_to_prune = |name: &str| {
        let one = stage.get(&path(name));
        one["spec"]["suspend"] == false
            && one["spec"]["dependsOn"] == json!([{"name": format!("web-{name}")}])
            && !one["metadata"]["deletionTimestamp"].is_null()
    };
    for name in ["a", "b"] {
        stage.map.change(&path(name), held());
    }
    stage.wants(vec![wanted(2, &["b"])]);
    stage.until("pruned", || is_to_prune("a")).await;
    assert_eq!(stage.get(&path("b"))["spec"]["suspend"], true);
    stage.map.all().remove(&path("a"));
    let mut gone = wanted(3, &["b"]);
    gone.deleting = true;
    stage.wants(vec![gone]);
    stage.until("pruned", || is_to_prune("b")).await;
    assert_eq!(stage.get(&format!("{SOURCES}/web"))["spec"]["suspend"], true, "nothing newer is pulled");
    stage.map.all().remove(&path("b"));
    stage.until("gone", || stage.told(|one| one.state == ObjectState::Deleted)).await;
}

#[tokio::test]
async fn g11_what_is_left_of_a_configuration_that_nobody_deleted_goes_on_and_is_told() {
    let stage = Stage::new();
    stage.wants(["web", "kept"].map(|name| object(name, 1, properties("cluster", &["apps"]))).to_vec());
    let done =
        |name: &'static str| move |one: &ObjectStatus| one.id.ends_with(name) && one.state == ObjectState::Succeeded;
    stage.until("applied", || stage.told(done("/web")) && stage.told(done("/kept"))).await;
    // The cluster is connected again: its custom resources are gone.
    for name in ["web", "kept"] {
        let path = format!("/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/{name}");
        stage.map.all().remove(&path);
    }
    let objects = vec![object("kept", 7, properties("cluster", &["apps"]))];
    let page = Objects { position: 9, identity: Some("two".to_owned()), whole: true, more: false, objects };
    stage.gateway.0.pages.lock().unwrap().push_back(page);
    let warns = |text: &str| stage.fares().is_some_and(|fares| fares.warnings.iter().any(|one| one.contains(text)));
    let says = "1 flux configurations go on that the gateway does not know";
    stage
        .until("told", || warns(says) && warns(": web. ") && stage.config("kept")["status"]["state"] == "Succeeded")
        .await;
    for path in [format!("{SOURCES}/web"), format!("{KUSTOMIZATIONS}/web-apps"), format!("{KUSTOMIZATIONS}/kept-apps")]
    {
        assert!(stage.get(&path)["metadata"]["deletionTimestamp"].is_null() && stage.has(&path), "{path}");
        assert_eq!(stage.get(&path)["spec"]["suspend"], false);
    }
    assert!(stage.has(BINDING));
    // One of its name takes it over, but for what it does not name.
    stage.wants(vec![object("web", 8, properties("cluster", &["infra"]))]);
    stage.until("taken over", || stage.config("web")["status"]["state"] == "Succeeded").await;
    let left = "Kustomization/team/web-apps";
    assert_eq!(stage.config("web")["status"]["record"]["left"], json!([left]));
    assert!(stage.config("web")["status"]["events"].to_string().contains(left));
    stage.until("no warning", || stage.fares().is_some_and(|fares| fares.warnings.is_empty())).await;
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/web-apps")) && stage.has(&format!("{KUSTOMIZATIONS}/web-infra")));
    // What it named goes as ever when it leaves; what it names becomes its own.
    stage.wants(vec![object("web", 9, properties("cluster", &["apps"]))]);
    stage.until("its own", || stage.config("web")["status"]["record"]["left"] == json!([])).await;
    assert_eq!(stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["spec"]["prune"], true);
}

#[tokio::test]
async fn g11_what_a_configuration_took_over_by_its_label_alone_goes_without_what_it_had_applied() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let path = "/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/web";
    stage.map.all().remove(path);
    stage.wants(vec![object("web", 8, properties("cluster", &["infra"]))]);
    stage.until("taken over", || stage.config("web")["status"]["state"] == "Succeeded").await;
    let mut gone = object("web", 9, properties("cluster", &["infra"]));
    gone.deleting = true;
    stage.wants(vec![gone]);
    stage
        .until("gone", || !stage.has(&format!("{KUSTOMIZATIONS}/web-apps")) && !stage.has(&format!("{SOURCES}/web")))
        .await;
    let written = stage.map.written();
    let of = |name: &str| {
        let path = format!("{KUSTOMIZATIONS}/{name}");
        written.iter().any(|(at, body)| *at == path && *body == json!({"spec": {"prune": false}}))
    };
    assert_eq!((of("web-apps"), of("web-infra")), (true, false));
}

#[tokio::test]
async fn g11_a_configuration_of_another_resource_of_the_cluster_prunes_nothing_of_the_one_before_it() {
    let stage = Stage::new();
    let page = |identity: &str, objects: Vec<Object>| {
        let identity = Some(identity.to_owned());
        let page = Objects { position: 5, identity, whole: true, more: false, objects };
        stage.gateway.0.pages.lock().unwrap().push_back(page);
    };
    page("one", vec![object("web", 1, properties("cluster", &["apps", "infra"]))]);
    stage.until("applied", || stage.config("web")["status"]["state"] == "Succeeded").await;
    // Of the same name, in another namespace and with other kustomizations.
    let mut spec = properties("cluster", &["infra"]);
    spec["namespace"] = "other".into();
    page("two", vec![object("web", 2, spec)]);
    let made = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/other/kustomizations/web-infra";
    stage.until("applied", || stage.has(made) && stage.config("web")["status"]["record"]["applied"] == 2).await;
    for path in [format!("{SOURCES}/web"), format!("{KUSTOMIZATIONS}/web-apps"), format!("{KUSTOMIZATIONS}/web-infra")]
    {
        assert!(stage.has(&path) && stage.get(&path)["metadata"]["deletionTimestamp"].is_null(), "{path}");
    }
    // Nor later.
    let mut spec = properties("cluster", &["more"]);
    spec["namespace"] = "other".into();
    page("two", vec![object("web", 3, spec)]);
    let more = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/other/kustomizations/web-more";
    stage.until("changed", || stage.has(more) && stage.config("web")["status"]["record"]["applied"] == 3).await;
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/web-apps")) && stage.has(&format!("{KUSTOMIZATIONS}/web-infra")));
}

/// A cluster whose Flux did not run stayed `Compliant`. Clocks of nodes differ, and what was written before this process, or
/// before Flux was installed again, says nothing.
#[test]
fn g6_controllers_that_do_not_run_are_known_by_what_they_write_and_by_no_others_clock() {
    let mut renewals = converge::Renewals::default();
    let second = |at: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    let (here, ahead) = (|at: u64| second(10_000 + at), |at: u64| second(90_000 + at));
    assert!(!renewals.is_stopped("source-controller", second(5), here(0)), "from long ago, and seen just now");
    assert!(!renewals.is_stopped("source-controller", second(5), here(119)));
    assert!(renewals.is_stopped("source-controller", second(5), here(120)));
    for at in (0..600).step_by(30) {
        assert!(!renewals.is_stopped("kustomize-controller", ahead(at), here(at)), "by a clock that is ahead");
    }
    assert!(renewals.is_stopped("kustomize-controller", ahead(570), here(690)));
    assert!(!renewals.is_stopped("source-controller", second(20_000), here(700)), "it runs again");
}

#[tokio::test]
async fn g1_names_are_as_long_as_at_the_gateway_and_longer_ones_are_told_to_fail() {
    let stage = Stage::new();
    let names = [62, 63].map(|length| "n".repeat(length));
    stage.wants(names.iter().map(|name| object(name, 1, properties("cluster", &[]))).collect());
    stage.until("refused", || stage.told(|one| failed_with(one, "InvalidName") && one.id.ends_with(&names[1]))).await;
    stage.until("made", || stage.has(&format!("{SOURCES}/{}", names[0]))).await;
}

#[tokio::test]
async fn g3_generated_key_is_the_same_for_the_life_of_a_configuration() {
    let stage = Stage::new();
    let mut spec = properties("cluster", &["apps"]);
    spec["gitRepository"] =
        json!({"url": "ssh://git@git.example.org/app", "sshKnownHosts": encode(b"h ssh-ed25519 A")});
    stage.wants(vec![object("web", 1, spec.clone())]);
    let key = |one: &ObjectStatus| Some(one.details.as_ref()?["repositoryPublicKey"].as_str()?.to_owned());
    stage.until("a key", || stage.last().as_ref().and_then(key).is_some()).await;
    let first = stage.last().as_ref().and_then(key).unwrap();
    assert!(first.starts_with("ssh-ed25519 "), "{first}");
    spec["suspend"] = json!(true);
    stage.wants(vec![object("web", 2, spec)]);
    stage
        .until("the next generation", || {
            stage.last().is_some_and(|one| one.generation == 2 && one.state == ObjectState::Succeeded)
        })
        .await;
    assert_eq!(stage.last().as_ref().and_then(key), Some(first));
    assert_eq!(stage.last().as_ref().and_then(compliance), Some("Suspended"));
    assert!(!serde_json::to_string(&*stage.gateway.0.told.lock().unwrap()).unwrap().contains("PRIVATE"));
    // Where the custom resource was made anew, the key goes with that one.
    let config = "/apis/towline.io/v1alpha1/namespaces/towline/fluxconfigs/web";
    stage.map.change(config, json!({"metadata": {"uid": "another"}}));
    let key = "/api/v1/namespaces/towline/secrets/fluxconfig-web-key";
    stage.until("owned", || stage.get(key)["metadata"]["ownerReferences"][0]["uid"] == "another").await;
}

#[tokio::test]
async fn g3_generated_key_is_that_of_the_process_that_was_first() {
    let stage = Stage::new();
    let key = "/api/v1/namespaces/towline/secrets/fluxconfig-web-key";
    let first = KeyPair::generate("towline/web").unwrap();
    let data = json!({ CONTENT: encode(&serde_json::to_vec(&first.private).unwrap()) });
    stage.map.precede(key, json!({"metadata": {"name": "fluxconfig-web-key", "uid": "theirs"}, "data": data}));
    let mut spec = properties("cluster", &["apps"]);
    spec["gitRepository"] =
        json!({"url": "ssh://git@git.example.org/app", "sshKnownHosts": encode(b"h ssh-ed25519 A")});
    stage.wants(vec![object("web", 1, spec)]);
    let shown = |one: &ObjectStatus| Some(one.details.as_ref()?["repositoryPublicKey"].as_str()?.to_owned());
    stage.until("a key", || stage.last().as_ref().and_then(shown).is_some()).await;
    assert_eq!(stage.last().as_ref().and_then(shown), Some(first.public));
    assert_eq!(stage.get(key)["data"], data);
}

#[tokio::test]
async fn g3_credentials_of_a_configuration_are_no_others_whoever_names_their_secret() {
    let stage = Stage::new();
    stage.gateway.0.settings.lock().unwrap().push(("httpsKey".to_owned(), encode(b"hunter22")));
    let elsewhere = |name: &str, secret: &str| {
        let mut spec = properties("cluster", &["apps"]);
        spec["gitRepository"] = json!({"url": "https://evil.example.com/app", "localAuthRef": secret});
        object(name, 1, spec)
    };
    let web = Object { protected: Some("tag".to_owned()), ..object("web", 1, properties("cluster", &["apps"])) };
    // Of a configuration that has no Secret yet, of one that has, and its own name.
    stage.wants(vec![web, elsewhere("early", "web-tls"), elsewhere("zoo", "web-auth"), elsewhere("own", "own-auth")]);
    let refused = |name: &str| {
        let is_it =
            |one: &ObjectStatus| one.id.ends_with(&format!("/{name}")) && failed_with(one, "SecretOfConfiguration");
        stage.told(is_it)
    };
    let secret = "/api/v1/namespaces/team/secrets/web-auth";
    stage.until("refused", || stage.has(secret) && ["early", "zoo", "own"].into_iter().all(refused)).await;
    let sources = || stage.map.all().keys().filter(|path| path.starts_with(SOURCES)).cloned().collect::<Vec<_>>();
    assert_eq!(sources(), [format!("{SOURCES}/web")]);
    assert!(stage.last().unwrap().error.unwrap().message.contains("made for the configuration "));
    // What somebody made in the cluster is used as before, whatever it is called.
    let made = json!({"metadata": {"name": "web-tls", "namespace": "team"}});
    stage.map.all().insert("/api/v1/namespaces/team/secrets/web-tls".to_owned(), made);
    stage.wants(vec![Object { generation: 2, ..elsewhere("early", "web-tls") }]);
    stage.until("applied", || stage.has(&format!("{SOURCES}/early"))).await;
    // One that was there first is suspended when its Secret becomes that of a configuration.
    let labels = json!({"app.kubernetes.io/managed-by": "towline", "towline.io/fluxconfig": "web"});
    stage.map.change("/api/v1/namespaces/team/secrets/web-tls", json!({"metadata": {"labels": labels}}));
    stage.until("suspended", || stage.get(&format!("{SOURCES}/early"))["spec"]["suspend"] == true).await;
}

#[tokio::test]
async fn g3_a_secret_that_is_not_there_yet_is_named_by_nobody_when_a_configuration_gets_it() {
    let stage = Stage::new();
    stage.gateway.0.settings.lock().unwrap().push(("httpsKey".to_owned(), encode(b"hunter22")));
    let mut spec = properties("cluster", &["apps"]);
    spec["gitRepository"] = json!({"url": "https://evil.example.com/app", "localAuthRef": "web-auth"});
    let early = object("early", 1, spec.clone());
    // There is no configuration of that name, and no Secret.
    stage.wants(vec![early.clone()]);
    stage.until("refused", || stage.told(|one| failed_with(one, "SecretMissing"))).await;
    assert!(!stage.has(&format!("{SOURCES}/early")));
    // Another name leads to no configuration: Flux waits for that Secret.
    let (mut other, source) = (spec, format!("{SOURCES}/zoo"));
    other["gitRepository"]["localAuthRef"] = "mine".into();
    stage.wants(vec![object("zoo", 1, other)]);
    stage.until("applied", || stage.has(&source)).await;
    // A source that names the Secret, whatever its configuration says: it is suspended before there is one.
    stage.map.change(&source, json!({"spec": {"secretRef": {"name": "web-auth"}}}));
    let (secret, before) = ("/api/v1/namespaces/team/secrets/web-auth", stage.map.written().len());
    let web = Object { protected: Some("tag".to_owned()), ..object("web", 1, properties("cluster", &["apps"])) };
    stage.wants(vec![web]);
    stage.until("made", || stage.has(secret)).await;
    let written = stage.map.written();
    let written = &written[before..];
    let suspended = written.iter().position(|(path, body)| *path == source && body["spec"]["suspend"] == true);
    let made = written.iter().position(|(path, _)| path == secret);
    assert!(suspended.is_some_and(|at| Some(at) < made), "{suspended:?} {made:?}");
    // The Secret has an owner now: a configuration that names it is refused and says why.
    stage.wants(vec![Object { generation: 2, ..early }]);
    stage.until("refused", || stage.told(|one| failed_with(one, "SecretOfConfiguration"))).await;
}

#[tokio::test]
async fn g2_a_flux_that_is_older_and_lacks_a_kind_is_told_of_but_for_that_kind() {
    let stage = Stage::new();
    stage.map.refuse(Some(("ocirepositories", StatusCode::NOT_FOUND)));
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    stage.pulled("web", "main@sha1:a");
    stage.applied("web-apps", "main@sha1:a", &["shop_one_apps_Deployment"]);
    stage.until("compliant", || stage.told(|one| compliance(one) == Some("Compliant"))).await;
    assert_eq!(stage.fares().map(|fares| fares.state), Some(State::Running));
}

#[tokio::test]
async fn g8_protected_settings_that_the_gateway_keeps_no_more_fail_at_once() {
    for kind in [FluxConfigs::TYPE, GitConfigs::TYPE] {
        let stage = Stage::new();
        *stage.gateway.0.gone.lock().unwrap() = true;
        let spec = if kind == FluxConfigs::TYPE { properties("cluster", &["apps"]) } else { old("cluster") };
        let web = Object { protected: Some("tag".to_owned()), ..object_of(kind, "web", 1, spec) };
        stage.wants(vec![web.clone()]);
        stage.until("failed", || stage.told(|one| failed_with(one, "ProtectedSettingsGone"))).await;
        let error = stage.last().unwrap().error.unwrap();
        assert!(error.message.contains("give configurationProtectedSettings again"), "{kind}: {}", error.message);
        assert!(!stage.map.all().keys().any(|path| path.starts_with(SOURCES)), "{kind}");
        // Given again they come under another tag.
        *stage.gateway.0.gone.lock().unwrap() = false;
        stage.wants(vec![Object { protected: Some("next".to_owned()), generation: 2, ..web }]);
        stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    }
}

#[tokio::test]
async fn g6_of_5000_objects_the_one_that_is_new_is_told_alone() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("made", || stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
    stage.pulled("web", "main@sha1:a");
    let ids: Vec<_> = (0..5000).map(|number| format!("shop_map-{number}__ConfigMap")).collect();
    let mut inventory: Vec<&str> = ids.iter().map(String::as_str).collect();
    stage.applied("web-apps", "main@sha1:a", &inventory);
    let values = |from: usize| {
        let told = stage.gateway.0.told.lock().unwrap();
        told[from..].iter().filter_map(|one| Some(one.parts.as_ref()?.values.clone())).collect::<Vec<_>>()
    };
    let all_are_told = || {
        let told: HashSet<_> = values(0).into_iter().flat_map(BTreeMap::into_keys).collect();
        ids.iter().all(|id| told.contains(id))
    };
    let mut settled = None;
    stage
        .until("only the new one", || {
            if settled.is_none() && all_are_told() {
                settled = Some(stage.gateway.0.told.lock().unwrap().len());
                inventory.push("shop_new__ConfigMap");
                stage.applied("web-apps", "main@sha1:a", &inventory);
            }
            settled.is_some_and(|from| !values(from).is_empty())
        })
        .await;
    let last = values(settled.unwrap());
    assert_eq!(last.iter().map(|part| part.keys().collect::<Vec<_>>()).collect::<Vec<_>>(), [["shop_new__ConfigMap"]]);
    let sizes = stage.gateway.0.sizes.lock().unwrap();
    assert!(sizes.len() > 2 && sizes.iter().all(|size| *size <= BODY_BYTES), "{sizes:?}");
    assert!(*sizes.last().unwrap() < 4096, "{sizes:?}");
}

#[tokio::test]
async fn g1_who_waits_for_reconciliation_succeeds_when_the_time_is_over_and_sees_that_it_does_not_comply() {
    let stage = Stage::new();
    let mut spec = properties("cluster", &["apps"]);
    spec["waitForReconciliation"] = true.into();
    spec["reconciliationWaitDuration"] = "PT5M".into();
    stage.wants(vec![object("web", 1, spec)]);
    stage.until("made", || stage.has(&format!("{KUSTOMIZATIONS}/web-apps"))).await;
    stage.says(&format!("{SOURCES}/web"), "False", "GitOperationFailed", json!({}));
    let waits = |one: &ObjectStatus| one.statuses.iter().any(|line| line.code == "WaitingForReconciliation");
    stage.until("waits", || stage.told(|one| waits(one) && compliance(one) == Some("Non-Compliant"))).await;
    assert!(!stage.told(|one| one.state == ObjectState::Succeeded));
    *stage.clock.0.lock().unwrap() = Duration::from_secs(301);
    stage.until("the end", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let last = stage.last().unwrap();
    assert_eq!((compliance(&last), last.error.is_none()), (Some("Non-Compliant"), true), "{last:#?}");
}

/// A source control configuration with these protected settings.
fn source_control(name: &str, generation: i64, spec: Value) -> Object {
    Object { protected: Some("tag".to_owned()), ..object_of(GitConfigs::TYPE, name, generation, spec) }
}

fn old(scope: &str) -> Value {
    json!({
        "repositoryUrl": "https://git.example.org/app", "operatorNamespace": "team", "operatorScope": scope,
        "operatorParams": "--git-branch=main --git-path=apps --git-poll-interval=1m --sync-garbage-collection",
        "enableHelmOperator": true,
    })
}

fn state_of(status: &ObjectStatus) -> Option<&str> {
    status.details.as_ref()?["complianceStatus"]["complianceState"].as_str()
}

#[tokio::test]
async fn g10_data_exchange_https_username_and_token_pulled_and_status_pushed() {
    let stage = Stage::new();
    *stage.gateway.0.settings.lock().unwrap() =
        vec![("httpsUser".to_owned(), encode(b"reader")), ("httpsKey".to_owned(), encode(b"pa55word"))];
    stage.wants(vec![source_control("web", 1, old("namespace"))]);
    stage.until("installed", || stage.told(|one| state_of(one) == Some("Installed"))).await;
    let source = stage.get(&format!("{SOURCES}/git.web"));
    assert_eq!(
        (&source["spec"]["url"], &source["spec"]["interval"]),
        (&json!("https://git.example.org/app"), &json!("60s"))
    );
    assert_eq!(
        (&source["spec"]["ref"], &source["spec"]["secretRef"]),
        (&json!({"branch": "main"}), &json!({"name": "git.web-auth"}))
    );
    let files = stage.get("/api/v1/namespaces/team/secrets/git.web-auth")["data"].clone();
    assert_eq!((&files["username"], &files["password"]), (&json!(encode(b"reader")), &json!(encode(b"pa55word"))));
    let kustomization = stage.map.all().keys().find(|path| path.starts_with(KUSTOMIZATIONS)).unwrap().clone();
    let spec = stage.get(&kustomization)["spec"].clone();
    assert_eq!(
        (&spec["path"], &spec["prune"], &spec["targetNamespace"]),
        (&json!("./apps"), &json!(true), &json!("team"))
    );
    assert_eq!(stage.get(ROLE_BINDING)["roleRef"]["name"], "admin");
    stage.pulled("git.web", "main@sha1:a");
    let name = kustomization.rsplit('/').next().unwrap();
    stage.applied(name, "main@sha1:a", &["team_one_apps_Deployment"]);
    stage.until("compliant", || stage.told(|one| state_of(one) == Some("Compliant"))).await;
    let last = stage.last().unwrap();
    let compliance = &last.details.as_ref().unwrap()["complianceStatus"];
    assert!(compliance["lastConfigApplied"].is_string() && compliance["messageLevel"] == "Warning", "{compliance}");
    assert!(compliance["message"].as_str().unwrap().contains("enableHelmOperator"), "{compliance}");
    assert!(last.id.contains("sourceControlConfigurations") && last.parts.is_none());
    let own = stage.get("/apis/towline.io/v1alpha1/namespaces/towline/gitconfigs/web");
    assert_eq!((&own["status"]["complianceState"], &own["status"]["objects"]), (&json!("Compliant"), &json!(1)));
    stage.says(&format!("{SOURCES}/git.web"), "False", "GitOperationFailed", json!({}));
    stage.until("noncompliant", || stage.told(|one| state_of(one) == Some("Noncompliant"))).await;
    // It goes as it came.
    let mut gone = source_control("web", 2, old("namespace"));
    gone.deleting = true;
    stage.wants(vec![gone]);
    stage.until("gone", || stage.told(|one| one.state == ObjectState::Deleted)).await;
    let left: Vec<_> =
        stage.map.all().keys().filter(|path| path.contains("git.web") || path.contains("applier")).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn g10_data_exchange_private_key_and_known_hosts_pulled_or_the_key_is_made_here() {
    let stage = Stage::new();
    let mut spec = old("cluster");
    spec["repositoryUrl"] = json!("git@git.example.org:team/app");
    spec["sshKnownHostsContents"] = json!(encode(b"git.example.org ssh-ed25519 AAAA"));
    let given = super::key::KeyPair::generate("given").unwrap();
    *stage.gateway.0.settings.lock().unwrap() = vec![("sshPrivateKey".to_owned(), encode(given.private.as_bytes()))];
    let made = object_of(GitConfigs::TYPE, "made", 1, spec.clone());
    stage.wants(vec![source_control("given", 1, spec), made]);
    let is_installed =
        |name: &'static str| move |one: &ObjectStatus| one.id.ends_with(name) && state_of(one) == Some("Installed");
    stage.until("installed", || stage.told(is_installed("/given")) && stage.told(is_installed("/made"))).await;
    let files = |name: &str| stage.get(&format!("/api/v1/namespaces/team/secrets/git.{name}-auth"))["data"].clone();
    assert_eq!(files("given")["identity"], encode(given.private.as_bytes()));
    assert_eq!(files("given")["known_hosts"], encode(b"git.example.org ssh-ed25519 AAAA"));
    assert_eq!(stage.get(&format!("{SOURCES}/git.given"))["spec"]["url"], "ssh://git@git.example.org/team/app");
    let key = |name: &str| {
        let told = stage.gateway.0.told.lock().unwrap();
        let found = told.iter().rev().find(|one| one.id.ends_with(name)).and_then(|one| one.details.clone());
        found.unwrap()["repositoryPublicKey"].as_str().unwrap().to_owned()
    };
    assert_eq!(key("/given"), given.public);
    assert_eq!(encode(key("/made").as_bytes()), files("made")["identity.pub"]);
    assert!(stage.has("/api/v1/namespaces/towline/secrets/gitconfig-made-key"));
}

#[tokio::test]
async fn g10_both_kinds_share_namespaces_and_no_object() {
    let stage = Stage::new();
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.wants(vec![object_of(GitConfigs::TYPE, "web", 1, old("cluster"))]);
    let is_done =
        |kind: &'static str| move |one: &ObjectStatus| one.id.contains(kind) && one.state == ObjectState::Succeeded;
    let (flux, git) = ("fluxConfigurations", "sourceControlConfigurations");
    stage.until("applied", || stage.told(is_done(flux)) && stage.told(is_done(git))).await;
    assert!(stage.has(&format!("{SOURCES}/web")) && stage.has(&format!("{SOURCES}/git.web")));
    // An agent that does not know the second kind must not take its objects for those of a lost flux configuration.
    let labels = stage.get(&format!("{SOURCES}/git.web"))["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"app.kubernetes.io/managed-by": "towline", "towline.io/gitconfig": "web"}));
    // Other rights in the same namespace would be those of the first.
    stage.wants(vec![object_of(GitConfigs::TYPE, "narrow", 1, old("namespace"))]);
    stage.until("refused", || stage.told(|one| failed_with(one, "ScopeConflict"))).await;
    let message =
        stage.gateway.0.told.lock().unwrap().iter().find_map(|one| Some(one.error.as_ref()?.message.clone())).unwrap();
    assert!(message.contains("configuration web of scope cluster"), "{message}");
    // What both repositories have is said on both, each with the name of the other.
    let all: Vec<_> = stage.map.all().keys().filter(|path| path.starts_with(KUSTOMIZATIONS)).cloned().collect();
    for path in all {
        let name = path.rsplit('/').next().unwrap();
        stage.pulled(if name.starts_with("git.") { "git.web" } else { "web" }, "main@sha1:a");
        stage.applied(name, "main@sha1:a", &["team_one_apps_Deployment"]);
    }
    let says = |kind: &'static str, text: &'static str| {
        move |one: &ObjectStatus| {
            let details = one.details.as_ref().map(Value::to_string).unwrap_or_default();
            one.id.contains(kind) && details.contains(text)
        }
    };
    stage
        .until("told", || {
            stage.told(says(flux, "by the source control configuration web"))
                && stage.told(says(git, "by the configuration web"))
        })
        .await;
    // One of the two goes, and the other one keeps its rights.
    let mut gone = object("web", 2, properties("cluster", &["apps"]));
    gone.deleting = true;
    stage.wants(vec![gone]);
    stage.until("gone", || stage.told(|one| one.id.contains(flux) && one.state == ObjectState::Deleted)).await;
    assert!(stage.has(BINDING) && stage.has(&format!("{SOURCES}/git.web")));
}

#[tokio::test]
async fn g7_g10_what_the_owner_does_not_allow_has_failed() {
    let mut stage = Stage::new();
    stage.settings.allowed_repositories = Some(vec!["https://git.example.org/other".to_owned()]);
    stage.wants(vec![object_of(GitConfigs::TYPE, "web", 1, old("cluster"))]);
    stage
        .until("refused", || {
            stage.told(|one| failed_with(one, "NotAllowedInCluster") && state_of(one) == Some("Failed"))
        })
        .await;
    assert!(!stage.has("/api/v1/namespaces/team") && !stage.has(BINDING));
    // Nor what no gateway of ours would send.
    stage.settings = Gitops::default();
    let mut spec = old("cluster");
    spec["operatorParams"] = json!("--git-path=../../etc");
    stage.wants(vec![object_of(GitConfigs::TYPE, "odd", 1, spec)]);
    stage
        .until("refused", || stage.told(|one| failed_with(one, "InvalidConfiguration") && one.id.ends_with("/odd")))
        .await;
}

impl Stage {
    fn fares(&self) -> Option<RoleHealth> {
        self.health.all().remove(super::NAME)
    }

    /// The kustomization of a path.
    fn of_path(&self, path: &str) -> Option<String> {
        let all = self.map.all();
        let found = all.iter().find(|(at, one)| at.starts_with(KUSTOMIZATIONS) && one["spec"]["path"] == path);
        found.map(|(at, _)| at.rsplit('/').next().unwrap().to_owned())
    }
}

#[tokio::test]
async fn g10_a_definition_that_is_missing_is_a_warning_and_keeps_nothing_back() {
    let stage = Stage::new();
    stage.map.refuse(Some(("gitconfigs", StatusCode::NOT_FOUND)));
    stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
    stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
    let fares = stage.fares().unwrap();
    assert_eq!((fares.state, fares.warnings.len()), (State::Running, 1), "{fares:?}");
    assert!(fares.warnings[0].contains("gitconfigs.towline.io is missing"), "{fares:?}");
    stage.map.refuse(None);
    stage.until("no warning", || stage.fares().is_some_and(|fares| fares.warnings.is_empty())).await;
}

#[tokio::test]
async fn g10_while_one_kind_cannot_be_read_the_other_gives_no_rights_and_is_judged() {
    for code in [StatusCode::FORBIDDEN, StatusCode::INTERNAL_SERVER_ERROR] {
        let mut stage = Stage::new();
        stage.map.refuse(Some(("gitconfigs", code)));
        stage.wants(vec![object("web", 1, properties("cluster", &["apps"]))]);
        let waits = || stage.config("web")["status"].to_string().contains("WaitingForScopes");
        stage.until("waiting", waits).await;
        assert!(!stage.has(BINDING) && !stage.has("/api/v1/namespaces/team"));
        assert_eq!(stage.fares().map(|fares| (fares.state, fares.reason)), Some((State::Failing, "NotLoaded")));
        stage.map.refuse(None);
        stage.until("applied", || stage.told(|one| one.state == ObjectState::Succeeded)).await;
        assert!(stage.has(BINDING));
        // What the owner allows by now is looked at all the same.
        stage.map.refuse(Some(("gitconfigs", code)));
        stage.settings.allowed_scopes = Some(vec!["namespace".to_owned()]);
        let is_suspended = || stage.get(&format!("{KUSTOMIZATIONS}/web-apps"))["spec"]["suspend"] == true;
        stage.until("suspended", is_suspended).await;
    }
}

#[tokio::test]
async fn g10_a_path_that_left_stays_until_the_new_ones_are_applied() {
    let stage = Stage::new();
    let wants = |generation: i64, path: &str| {
        let mut spec = old("cluster");
        spec["operatorParams"] = json!(format!("--sync-garbage-collection --git-path={path}"));
        stage.wants(vec![object_of(GitConfigs::TYPE, "web", generation, spec)]);
    };
    let is_made =
        |generation: i64| stage.told(|one| one.generation == generation && one.state == ObjectState::Succeeded);
    wants(1, "apps");
    stage.until("made", || is_made(1)).await;
    let apps = stage.of_path("./apps").unwrap();
    stage.pulled("git.web", "main@sha1:a");
    stage.applied(&apps, "main@sha1:a", &["team_one_apps_Deployment"]);
    stage.until("compliant", || stage.told(|one| state_of(one) == Some("Compliant"))).await;
    wants(2, "apps/prod");
    stage.until("made", || is_made(2)).await;
    let prod = stage.of_path("./apps/prod").unwrap();
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/{apps}")), "the new one has applied nothing yet");
    // At an older revision it may lack what was moved there.
    stage.pulled("git.web", "main@sha1:b");
    stage.applied(&prod, "main@sha1:a", &["team_one_apps_Deployment"]);
    let own = "/apis/towline.io/v1alpha1/namespaces/towline/gitconfigs/web";
    stage.until("looked at", || stage.get(own)["status"]["sourceSyncedCommitId"] == "main@sha1:b").await;
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/{apps}")), "it is not at the current revision");
    stage.applied(&prod, "main@sha1:b", &["team_one_apps_Deployment"]);
    stage.until("gone", || !stage.has(&format!("{KUSTOMIZATIONS}/{apps}"))).await;
    assert!(stage.has(&format!("{KUSTOMIZATIONS}/{prod}")));
}
