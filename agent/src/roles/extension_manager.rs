//! Installs helm charts of the signed catalogue as extensions (docs/features.md E1): follows what the gateway wants,
//! writes it down as custom resources, makes the cluster so by helm, and tells the gateway how far it is. The gateway
//! chooses among charts of the catalogue and gives values; what is not in the catalogue, as this cluster verified it, is
//! not installed. While the link is down, all goes on by the custom resources.
//!
//! | part | what it does |
//! |---|---|
//! | [`objects`](super::objects) | what is wanted and how far it is, as for every kind |
//! | [`state`], [`store`] | what is kept of extensions beside |
//! | [`catalogue`](super::catalogue) | the verified index and charts |
//! | [`converge`] | what is wanted against what is there, one extension after the other |
//! | [`plan`] | the decision: which version, where, and whether helm must run |
//! | [`values`] | settings as values of a chart |
//! | [`locks`] | settings that the gateway may not give |
//! | [`agents`] | what charts with an agent of ours are told |
//! | [`place`] | namespaces, service accounts, what the cluster is |
//! | [`releases`] | releases as helm keeps them |
//! | [`helm`] | the child process |
//! | [`registry`] | charts from a registry of the operator |
//! | [`images`] | images from a registry of the operator |
//! | [`explain`] | why something does not get ready, and what to do |

pub mod agents;
pub mod converge;
pub mod explain;
pub mod helm;
pub mod images;
pub mod locks;
pub mod place;
pub mod plan;
pub mod registry;
pub mod releases;
pub mod state;
pub mod store;
pub mod values;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use kube::Client;
use types::{api::id::EXTENSIONS, ids::ClusterId};

use self::{
    converge::Converge,
    helm::{Helm, HelmError},
    registry::Registry,
    state::Own,
    store::Store,
};
use super::{
    Entry, Role,
    catalogue::{Catalogue, Charts, KeysError, Pinned, gateway::Library, read_keys},
    error::BuildError,
    health::Reporter,
    objects::{Kind, Nothing, follow::Follow, progress::Progress, report::Report},
};
use crate::{
    config::{self, Cluster, Deployment},
    identity::clock::SharedClock,
};

/// This role's name.
pub const NAME: &str = Deployment::ExtensionManager.name();

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ExtensionManager],
    build: |parts| {
        let Some(settings) = &parts.config.extensions else { return Ok(None) };
        let engine = Engine {
            client: parts.kubernetes.clone().ok_or(SetupError::NoApiserver)?,
            cluster: parts.cluster.clone(),
            access: parts.config.cluster.clone(),
            settings: settings.clone(),
            distribution: parts.config.metadata.distribution.clone(),
            clock: parts.clock.clone(),
            health: parts.health.of(NAME),
            grace: parts.config.drain_grace.max(GRACE_MIN),
        };
        Ok(Some(Arc::new(ExtensionManager::new(engine, parts.api.clone())?)))
    },
};

/// The kind of extensions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions;

impl Kind for Extensions {
    const TYPE: &'static str = EXTENSIONS;
    const RESOURCE: (&'static str, &'static str) = ("ExtensionConfig", "extensionconfigs");
    const NOUN: &'static str = "extension";
    const NOUNS: &'static str = "extensions";
    const MANAGER: &'static str = NAME;
    const SECRET: &'static str = "extension";
    const MAX: usize = 200;
    const TOO_MANY: &'static str = "TooManyExtensions";
    /// Those of a helm release.
    const NAME_CHARS: usize = 53;
    const UNNAMEABLE: &'static str = "has a name that no helm release can have";

    type Shown = Nothing;
    type Own = Own;
}

/// Between two attempts to read what is there at the start.
const LOAD_AGAIN: Duration = Duration::from_secs(5);

/// The least time that helm has to end what it has begun; the pod has a little more
/// (docker/chart/towline-agent/templates/_helpers.tpl).
const GRACE_MIN: Duration = Duration::from_secs(50);
/// Of that, what is left when helm is told to end.
const GRACE_END: Duration = Duration::from_secs(15);
/// To write down how helm ended.
const WRITE_DOWN: Duration = Duration::from_secs(3);

/// Why the role cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The pinned keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Nothing can be installed.
    #[error("there is no way to the apiserver; set [cluster] kubeconfig, or leave [extensions] out")]
    NoApiserver,
    /// The folder of helm.
    #[error("cannot make helm's folder (extensions.work_dir)")]
    Folder(#[from] HelmError),
}

impl From<SetupError> for BuildError {
    fn from(error: SetupError) -> Self {
        Self::Role { what: "extensions", source: Box::new(error) }
    }
}

/// What the role is built from, but for the gateway.
pub struct Engine {
    /// To the apiserver; its default namespace is the agents'.
    pub client: Client,
    /// The cluster that this agent serves.
    pub cluster: ClusterId,
    /// How helm reaches the apiserver.
    pub access: Cluster,
    /// The table `[extensions]` of the agent's configuration.
    pub settings: config::Extensions,
    /// The distribution, where an operator named it.
    pub distribution: Option<String>,
    /// The time of day.
    pub clock: SharedClock,
    /// How the role fares.
    pub health: Reporter,
    /// How long helm may go on while the agent drains.
    pub grace: Duration,
}

/// Makes the cluster's Helm releases match what the gateway wants; `G` is the gateway's side.
pub struct ExtensionManager<G> {
    engine: Engine,
    pinned: Pinned,
    helm: Helm,
    store: Store,
    gateway: G,
}

impl<G: Library> ExtensionManager<G> {
    /// Of a gateway.
    ///
    /// # Errors
    /// When a key cannot be read, or the folder of helm not be made.
    pub fn new(engine: Engine, gateway: G) -> Result<Self, SetupError> {
        let settings = &engine.settings;
        let keys = read_keys(&settings.keys, &settings.key_files)?;
        let pinned = Pinned { keys, catalogue: settings.catalogue.clone() };
        let helm = Helm::new(settings.helm.clone(), &settings.work_dir, &engine.access, settings.timeout)?;
        let store = Store::new(engine.client.clone());
        Ok(Self { engine, pinned, helm, store, gateway })
    }

    /// Works until it is dropped.
    pub async fn work(&self) {
        let Engine { client, cluster, settings, distribution, clock, health, .. } = &self.engine;
        // What is there is known before the gateway says what is wanted.
        while let Err(problem) = self.store.load().await {
            health.failing("NotLoaded", &problem);
            tokio::time::sleep(LOAD_AGAIN).await;
        }
        let (gateway, store) = (&self.gateway, &self.store);
        let registry = settings.chart_registry.as_ref().map(|url| Registry {
            helm: &self.helm,
            client,
            url,
            secret: settings.registry_secret.as_deref(),
        });
        let catalogue = Catalogue::new(gateway, store, self.pinned.clone(), clock.clone(), settings.catalogue_interval)
            .with_charts(registry.as_ref().map(|registry| registry as &dyn Charts));
        let follow = Follow::new(gateway, store, cluster);
        let converge = Converge {
            client,
            store,
            catalogue: &catalogue,
            follow: &follow,
            helm: &self.helm,
            settings,
            distribution: distribution.clone(),
            progress: Progress::new(store, clock.clone()),
            clock: clock.clone(),
            health: health.clone(),
        };
        let report = Report { gateway, store, follow: &follow, parts: None };
        let (follow, catalogue): (BoxFuture<'_, ()>, BoxFuture<'_, ()>) =
            (Box::pin(follow.run()), Box::pin(catalogue.run()));
        let (converge, report): (BoxFuture<'_, ()>, BoxFuture<'_, ()>) =
            (Box::pin(converge.run()), Box::pin(report.run()));
        tokio::join!(follow, catalogue, converge, report);
    }
}

impl<G: Library> Role for ExtensionManager<G> {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut work: BoxFuture<'_, ()> = Box::pin(self.work());
            if shutdown.until_draining(&mut work).await.is_some() {
                return;
            }
            self.helm.close();
            if !self.helm.is_running() {
                return;
            }
            let ended = async {
                if !self.helm.ended_within(self.engine.grace - GRACE_END).await {
                    self.helm.terminate();
                    self.helm.ended_within(GRACE_END - WRITE_DOWN).await;
                }
                tokio::time::sleep(WRITE_DOWN).await;
            };
            // A helm that still runs is killed when this is dropped.
            tokio::select! {
                () = shutdown.closed() => {}
                () = ended => {}
                () = work => {}
            }
        })
    }
}
