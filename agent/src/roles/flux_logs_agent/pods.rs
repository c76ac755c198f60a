//! The pods of Flux's controllers, and how objects of a kind are followed.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::timeout};

use crate::roles::{health::Reporter, kubernetes::problem};

/// The controllers whose lines are about objects of configurations.
const CONTROLLERS: [&str; 4] =
    ["source-controller", "kustomize-controller", "helm-controller", "notification-controller"];
/// Labels of their pods, of our chart and of Flux's own manifests.
const LABELS: [&str; 3] = ["app.kubernetes.io/name", "app.kubernetes.io/component", "app"];
/// The container that logs, in both.
const CONTAINER: &str = "manager";
/// Pods that are kept.
const PODS_MAX: usize = 64;
/// Objects of a page of a list, and of all pages.
const PAGE: u32 = 100;
const OBJECTS_MAX: usize = 2000;
/// Until a kind is listed again whose watch has ended.
pub const SOON: Duration = Duration::from_millis(200);
/// Until a kind is listed again that could not be listed or watched.
pub const AGAIN: Duration = Duration::from_secs(3);

/// How long a page may take, and a watch to begin.
const ANSWER: Duration = Duration::from_secs(60);
/// A watch that says nothing for so long is begun again: the apiserver ends each before, so its connection is gone.
const QUIET: Duration = Duration::from_secs(360);

/// What there is of a kind.
#[derive(Debug)]
pub enum News<K> {
    /// All of it.
    Whole(Vec<K>),
    /// One that is new, or as it is now.
    Put(K),
    /// One that is gone.
    Gone(K),
}

/// Lists, then watches until the apiserver ends it, which it does every few minutes.
///
/// # Errors
/// What the apiserver said.
pub async fn follow<K>(api: &Api<K>, mut take: impl FnMut(News<K>)) -> Result<(), String>
where
    K: Clone + Debug + DeserializeOwned,
{
    let failed = |err: kube::Error| problem("its objects", &err);
    let late = |_| format!("the apiserver has not answered within {} s", ANSWER.as_secs());
    let (mut params, mut found) = (ListParams::default().limit(PAGE), Vec::new());
    let version = loop {
        let page = timeout(ANSWER, api.list(&params)).await.map_err(late)?.map_err(failed)?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty() && found.len() < OBJECTS_MAX) {
            Some(token) => params.continue_token = Some(token),
            None => break page.metadata.resource_version.unwrap_or_default(),
        }
    };
    take(News::Whole(found));
    let watch = WatchParams::default();
    let begun = timeout(ANSWER, api.watch(&watch, &version)).await.map_err(late)?;
    let mut events = begun.map_err(failed)?.boxed();
    while let Ok(event) = timeout(QUIET, events.try_next()).await {
        let Some(event) = event.map_err(failed)? else { break };
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => take(News::Put(object)),
            WatchEvent::Deleted(object) => take(News::Gone(object)),
            WatchEvent::Bookmark(_) => {}
            // Too old: listed anew.
            WatchEvent::Error(_) => return Ok(()),
        }
    }
    Ok(())
}

/// A pod of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// The pod's UID.
    pub uid: String,
    /// The pod's name.
    pub pod: String,
    /// The name of the controller that runs in it, such as `kustomize-controller`.
    pub name: &'static str,
    /// The container that logs.
    pub container: String,
    /// How often it was started again.
    pub restarts: i32,
}

impl Controller {
    /// The controller of a pod, if it is one's and has been started.
    pub fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let named = |name: &&str| LABELS.iter().any(|label| labels.get(*label).is_some_and(|value| value == name));
        let name = CONTROLLERS.iter().copied().find(named)?;
        let containers = &pod.spec.as_ref()?.containers;
        let container = containers.iter().find(|one| one.name == CONTAINER).or(containers.first())?.name.clone();
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let status = statuses.iter().find(|status| status.name == container)?;
        let state = status.state.as_ref()?;
        if state.running.is_none() && state.terminated.is_none() && status.restart_count == 0 {
            return None;
        }
        Some(Self {
            uid: pod.metadata.uid.clone()?,
            pod: pod.metadata.name.clone()?,
            name,
            container,
            restarts: status.restart_count,
        })
    }
}

/// The controllers' pods.
pub struct Pods {
    all: Mutex<BTreeMap<String, Controller>>,
    changed: watch::Sender<()>,
}

impl Default for Pods {
    fn default() -> Self {
        Self { all: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl Pods {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Controller>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The UIDs of all.
    pub fn uids(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    /// One of them.
    pub fn get(&self, uid: &str) -> Option<Controller> {
        self.all().get(uid).cloned()
    }

    /// Tells of changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Follows them for ever.
    pub async fn run(&self, client: &Client, namespace: &str, health: &Reporter) {
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        loop {
            let take = |news| {
                self.take(news);
                health.running();
            };
            let wait = match follow(&api, take).await {
                Ok(()) => SOON,
                Err(problem) => {
                    health.failing("PodsNotFollowed", &format!("the pods of Flux in {namespace}: {problem}"));
                    AGAIN
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes note of what there is.
    pub fn take(&self, news: News<Pod>) {
        let mut all = self.all();
        let before = all.clone();
        match news {
            News::Whole(pods) => {
                let found = pods.iter().filter_map(Controller::of).take(PODS_MAX);
                *all = found.map(|one| (one.uid.clone(), one)).collect();
            }
            News::Put(pod) => {
                if let Some(one) = Controller::of(&pod)
                    && (all.len() < PODS_MAX || all.contains_key(&one.uid))
                {
                    all.insert(one.uid.clone(), one);
                }
            }
            News::Gone(pod) => drop(all.remove(&pod.metadata.uid.unwrap_or_default())),
        }
        let changed = *all != before;
        drop(all);
        if changed {
            self.changed.send_replace(());
        }
    }
}
