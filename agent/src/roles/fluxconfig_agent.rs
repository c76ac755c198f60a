//! Makes flux configurations Flux's own objects (docs/features.md G1): follows what the gateway wants, writes it down as
//! custom resources, makes sources, Kustomizations and what they need of them, and tells what Flux says: whether each
//! object complies, at which commit, and what is wrong. Flux pulls and applies by itself: while the link is down, and also
//! while this role is.
//!
//! The owner of the cluster decides which repositories, scopes and namespaces configurations may have ([`pins`]).
//!
//! | part | what it does |
//! |---|---|
//! | [`objects`](super::objects) | what is wanted and how far it is, as for every kind |
//! | [`spec`] | a configuration's properties |
//! | [`pins`] | whether it is allowed here |
//! | [`key`] | keys of SSH |
//! | [`render`] | the configuration as Flux's objects |
//! | [`place`] | writes and removes them |
//! | [`converge`] | what is wanted against what is there |
//! | [`views`] | what Flux says of its objects |
//! | [`comply`] | what that means for the configuration and each of its objects |

pub mod comply;
pub mod converge;
pub mod key;
pub mod pins;
pub mod place;
pub mod render;
pub mod spec;
pub mod views;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::ids::ClusterId;

use self::{converge::Converge, views::Views};
use super::{
    Entry, Role,
    health::Reporter,
    objects::{
        Kind, follow::Follow, gateway::Gateway, parts::Ledger, progress::Progress, report::Report, state::Status,
        store::Store,
    },
};
use crate::{
    config::{Deployment, Gitops},
    identity::clock::SharedClock,
};

/// This role's name.
pub const NAME: &str = Deployment::FluxconfigAgent.name();

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::FluxconfigAgent],
    build: |parts| {
        let Some(settings) = &parts.config.gitops else { return Ok(None) };
        Ok(Some(Arc::new(FluxconfigAgent {
            client: parts.kubernetes.clone().ok_or(SetupError::NoApiserver)?,
            cluster: parts.cluster.clone(),
            settings: settings.clone(),
            clock: parts.clock.clone(),
            health: parts.health.of(NAME),
            gateway: parts.api.clone(),
        })))
    },
};

/// Between two attempts to read what is there at the start.
const LOAD_AGAIN: Duration = Duration::from_secs(5);

/// Why the role cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing can be made.
    #[error("there is no way to the apiserver; set [cluster] kubeconfig, or leave [gitops] out")]
    NoApiserver,
}

/// The kind of flux configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FluxConfigs;

impl Kind for FluxConfigs {
    const TYPE: &'static str = "Microsoft.KubernetesConfiguration/fluxConfigurations";
    const RESOURCE: (&'static str, &'static str) = ("FluxConfig", "fluxconfigs");
    const NOUN: &'static str = "flux configuration";
    const NOUNS: &'static str = "flux configurations";
    const MANAGER: &'static str = NAME;
    const SECRET: &'static str = "fluxconfig";
    const MAX: usize = 200;
    const TOO_MANY: &'static str = "TooManyFluxConfigurations";
    /// The gateway has the same bound. It is also that of the name with a hyphen and the name of a kustomization.
    const NAME_CHARS: usize = 62;
    const UNNAMEABLE: &'static str = "has a name that no object of Flux can have";

    type Shown = Shown;
    type Own = Own;

    fn is_there(status: &Status<Self>) -> bool {
        status.record.own.applied.is_some()
    }

    fn details(shown: &Shown) -> Option<Value> {
        let all = [
            ("complianceState", &shown.compliance_state),
            ("errorMessage", &shown.error_message),
            ("repositoryPublicKey", &shown.repository_public_key),
            ("sourceSyncedCommitId", &shown.source_synced_commit_id),
            ("sourceUpdatedAt", &shown.source_updated_at),
            ("statusUpdatedAt", &shown.status_updated_at),
        ];
        let said = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))));
        let said: serde_json::Map<_, _> = said.collect();
        (!said.is_empty()).then_some(Value::Object(said))
    }
}

/// What the custom resource shows of a configuration: counts and the first objects that do not comply, however many there
/// are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shown {
    /// Whether it complies.
    pub compliance_state: Option<String>,
    /// What is wrong first.
    pub error_message: Option<String>,
    /// The public half of its key.
    pub repository_public_key: Option<String>,
    /// The revision that was pulled.
    pub source_synced_commit_id: Option<String>,
    /// When it came.
    pub source_updated_at: Option<String>,
    /// When something of this changed last.
    pub status_updated_at: Option<String>,
    /// Objects that were applied.
    pub objects: usize,
    /// Of these, those that comply.
    pub compliant_objects: usize,
    /// That do not.
    pub non_compliant_objects: usize,
    /// Of which it is not known yet.
    pub pending_objects: usize,
    /// The first that do not comply.
    pub non_compliant: Vec<String>,
}

/// What the role needs to know of a configuration after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Own {
    /// Where its objects are.
    pub namespace: Option<String>,
    /// With whose rights: its scope.
    pub scope: Option<String>,
    /// The generation that was applied.
    pub applied: Option<i64>,
    /// When that was, RFC 3339.
    pub applied_at: Option<String>,
    /// Since when it is being taken down.
    pub deleting_since: Option<String>,
}

/// Makes the cluster follow the sources that the gateway's flux configurations name.
pub struct FluxconfigAgent<G> {
    /// To the apiserver; its default namespace is the agents'.
    pub client: Client,
    /// This cluster.
    pub cluster: ClusterId,
    /// What the owner of the cluster allows.
    pub settings: Gitops,
    /// The time of day.
    pub clock: SharedClock,
    /// How the role fares.
    pub health: Reporter,
    /// What answers questions about what is wanted, and is told how far it is.
    pub gateway: G,
}

impl<G: Gateway> FluxconfigAgent<G> {
    /// Works until it is dropped.
    pub async fn work(&self) {
        let store = Store::new(self.client.clone());
        // What is there is known before the gateway says what is wanted.
        while let Err(problem) = store.load().await {
            self.health.failing("NotLoaded", &problem);
            tokio::time::sleep(LOAD_AGAIN).await;
        }
        let (views, ledger) = (Views::new(self.client.clone()), Ledger::default());
        let follow = Follow::new(&self.gateway, &store, &self.cluster);
        let converge = Converge {
            client: &self.client,
            store: &store,
            follow: &follow,
            views: &views,
            ledger: &ledger,
            settings: &self.settings,
            progress: Progress::new(&store, self.clock.clone()),
            clock: self.clock.clone(),
            health: self.health.clone(),
            made: Default::default(),
            memory: Default::default(),
            apart: Default::default(),
            orphans: Default::default(),
        };
        let report = Report { gateway: &self.gateway, store: &store, follow: &follow, parts: Some(&ledger) };
        let (follow, seen): (BoxFuture<'_, ()>, BoxFuture<'_, ()>) = (Box::pin(follow.run()), Box::pin(views.run()));
        let (converge, report): (BoxFuture<'_, ()>, BoxFuture<'_, ()>) =
            (Box::pin(converge.run()), Box::pin(report.run()));
        tokio::join!(follow, seen, converge, report);
    }
}

impl<G: Gateway> Role for FluxconfigAgent<G> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut work: BoxFuture<'_, ()> = Box::pin(self.work());
            // What is half done is done again by the next process: everything is compared from the beginning.
            let _ = shutdown.until_draining(&mut work).await;
        })
    }
}
