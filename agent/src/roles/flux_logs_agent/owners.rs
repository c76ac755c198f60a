//! Whose object a line is about: the names that flux configurations give their objects, by their custom resources
//! (`fluxconfigs.towline.io`), which are there before the objects are.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kube::{Api, Client, api::DynamicObject};
use tokio::sync::watch;

use super::pods::{AGAIN, News, SOON, follow};
use crate::roles::{
    fluxconfig_agent::{FluxConfigs, views::FluxKind},
    health::Reporter,
    objects::{Kind as _, state::Wanted},
};

/// Configurations that are kept; the gateway wants 200 at most.
const OWNERS_MAX: usize = 1000;

/// A configuration, as far as lines are told apart by it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    id: String,
    namespace: String,
    name: String,
    kustomizations: Vec<String>,
}

impl Owner {
    fn of(object: &DynamicObject) -> Option<Self> {
        let wanted: Wanted = serde_json::from_value(object.data.get("spec")?.clone()).ok()?;
        let own = &wanted.properties;
        let all = own["kustomizations"].as_object();
        let kustomizations = all.map(|all| all.keys().cloned().collect()).unwrap_or_default();
        let namespace = own["namespace"].as_str().unwrap_or("default").to_owned();
        Some(Self { id: wanted.id, namespace, name: object.metadata.name.clone()?, kustomizations })
    }

    fn has(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let is_source = FluxKind::SOURCES.iter().any(|source| source.names().2 == kind);
        let is_own = |one: &String| name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('-')) == Some(one);
        self.namespace == namespace
            && match is_source {
                true => name == self.name,
                false => kind == FluxKind::Kustomization.names().2 && self.kustomizations.iter().any(is_own),
            }
    }
}

/// The configurations of this cluster.
pub struct Owners {
    all: Mutex<BTreeMap<String, Owner>>,
    known: watch::Sender<bool>,
}

impl Default for Owners {
    fn default() -> Self {
        Self { all: Mutex::default(), known: watch::Sender::new(false) }
    }
}

impl Owners {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Owner>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until they were listed once.
    pub async fn known(&self) {
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// The ARM id of the configuration that made this object. Names are joined with hyphens: one that two configurations
    /// may have made is nobody's, for who may read the one may not read the other.
    pub fn of(&self, kind: &str, namespace: &str, name: &str) -> Option<String> {
        let all = self.all();
        let mut owners = all.values().filter(|owner| owner.has(kind, namespace, name));
        let first = owners.next()?;
        owners.next().is_none().then(|| first.id.clone())
    }

    /// Follows them for ever, in the client's namespace.
    pub async fn run(&self, client: &Client, health: &Reporter) {
        let (kind, plural) = FluxConfigs::RESOURCE;
        let kind = kube::api::ApiResource::from_gvk_with_plural(
            &kube::core::GroupVersionKind::gvk("towline.io", "v1alpha1", kind),
            plural,
        );
        let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
        loop {
            let wait = match follow(&api, |news| self.take(news)).await {
                Ok(()) => SOON,
                Err(problem) => {
                    health.failing("ConfigurationsNotFollowed", &format!("flux configurations: {problem}"));
                    AGAIN
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes note of what there is.
    pub fn take(&self, news: News<DynamicObject>) {
        let mut all = self.all();
        match news {
            News::Whole(objects) => {
                let found = objects.iter().filter_map(Owner::of).take(OWNERS_MAX);
                *all = found.map(|owner| (owner.name.clone(), owner)).collect();
                drop(all);
                self.known.send_replace(true);
            }
            News::Put(object) => {
                if let Some(owner) = Owner::of(&object)
                    && (all.len() < OWNERS_MAX || all.contains_key(&owner.name))
                {
                    all.insert(owner.name.clone(), owner);
                }
            }
            News::Gone(object) => drop(all.remove(&object.metadata.name.unwrap_or_default())),
        }
    }
}
