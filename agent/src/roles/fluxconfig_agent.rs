//! Makes flux configurations, and source control configurations of the time of Flux 1, Flux's own objects (docs/features.md
//! G1, G10): follows what the gateway wants, writes it down as
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
//! | [`config_agent`] | the same of a source control configuration |
//! | [`pins`] | whether it is allowed here |
//! | [`key`] | keys of SSH |
//! | [`render`] | the configuration as Flux's objects |
//! | [`place`] | writes and removes them |
//! | [`converge`] | what is wanted against what is there |
//! | [`handover`] | from kustomizations that leave to those that come |
//! | [`left`] | what configurations left that the gateway does not know |
//! | [`views`] | what Flux says of its objects |
//! | [`comply`] | what that means for the configuration and each of its objects |

pub mod comply;
pub mod config_agent;
pub mod converge;
pub mod handover;
pub mod key;
pub mod left;
pub mod pins;
pub mod place;
pub mod render;
pub mod spec;
pub mod views;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::{api::id::FLUX_CONFIGURATIONS, ids::ClusterId};

use self::{
    config_agent::GitConfigs,
    converge::{Converge, Placed},
    spec::{Properties, Secrets},
    views::Views,
};
use super::{
    Entry, Role,
    egress_proxy::Grants,
    error::BuildError,
    health::Reporter,
    lease::{Lease, Standing},
    objects::{
        Kind,
        follow::Follow,
        gateway::Gateway,
        parts::Ledger,
        progress::Progress,
        report::Report,
        state::{Problem, Status, Wanted},
        store::Store,
    },
};
use crate::{
    chain,
    config::{Deployment, Gitops, proxy_address},
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
            egress: parts.egress.clone(),
            proxy: proxy_address(),
        })))
    },
};

/// Between two attempts to read what is there at the start.
const LOAD_AGAIN: Duration = Duration::from_secs(5);
/// How long one attempt may take.
const LOAD_WITHIN: Duration = Duration::from_secs(30);

/// Why the role cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing can be made.
    #[error("there is no way to the apiserver; set [cluster] kubeconfig, or leave [gitops] out")]
    NoApiserver,
}

impl From<SetupError> for BuildError {
    fn from(error: SetupError) -> Self {
        Self::Role { what: "flux configurations", source: Box::new(error) }
    }
}

/// The kind of flux configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FluxConfigs;

impl Kind for FluxConfigs {
    const TYPE: &'static str = FLUX_CONFIGURATIONS;
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

    fn details(status: &Status<Self>) -> Option<Value> {
        let shown = &status.shown;
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

impl Configurations for FluxConfigs {
    fn properties(wanted: &Wanted) -> Result<Properties, Problem> {
        Properties::read(&wanted.properties)
    }

    fn owner(name: &str) -> String {
        name.to_owned()
    }

    fn owned(owner: &str) -> Option<&str> {
        GitConfigs::owned(owner).is_none().then_some(owner)
    }
}

/// A kind of configurations that become Flux's objects.
pub trait Configurations: Kind<Shown = Shown, Own = Own> {
    /// Whether the chart of the agents, which brings the definition, may be older than this kind.
    const IS_LATER: bool = false;

    /// What is wanted, as the properties of a flux configuration, without what is secret.
    ///
    /// # Errors
    /// What does not fit.
    fn properties(wanted: &Wanted) -> Result<Properties, Problem>;

    /// Puts what is secret into properties that are none in a flux configuration.
    ///
    /// # Errors
    /// What does not fit.
    fn reveal(properties: &mut Properties, secrets: &Secrets) -> Result<(), Problem> {
        let _ = (properties, secrets);
        Ok(())
    }

    /// What Flux's objects of a configuration are named after and labelled with. No two kinds have one in common.
    fn owner(name: &str) -> String;

    /// The name of the configuration of this kind that owns something.
    fn owned(owner: &str) -> Option<&str>;

    /// What is to be told of one that is fine.
    fn remark(wanted: &Wanted) -> Option<String> {
        let _ = wanted;
        None
    }
}

/// What keeps the kinds of configurations from being worked at, as one state of the role.
pub struct Troubles {
    /// How the role fares.
    health: Reporter,
    of: Mutex<BTreeMap<&'static str, (&'static str, String)>>,
    warnings: Mutex<BTreeMap<(&'static str, About), String>>,
}

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// The definition of a kind is missing.
    Definition,
    /// There are configurations that the gateway does not know.
    Left,
    /// A controller of Flux does not run.
    Controllers,
}

impl Troubles {
    /// A list without troubles, which reports them to `health`.
    pub fn new(health: Reporter) -> Self {
        Self { health, of: Mutex::default(), warnings: Mutex::default() }
    }

    /// What keeps a kind, named by its full type, from being worked at; nothing any more.
    pub fn say(&self, kind: &'static str, trouble: Option<(&'static str, String)>) {
        let mut all = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => drop(all.insert(kind, trouble)),
            None => drop(all.remove(kind)),
        }
        match all.values().next() {
            Some((reason, message)) => self.health.failing(reason, message),
            None => self.health.running(),
        }
    }

    /// What does not keep a kind from being worked at and somebody should know; nothing any more.
    fn warn(&self, kind: &'static str, about: About, warning: Option<String>) {
        let mut all = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        match warning {
            Some(warning) => drop(all.insert((kind, about), warning)),
            None => drop(all.remove(&(kind, about))),
        }
        let all: BTreeSet<_> = all.values().cloned().collect();
        self.health.warnings(all.into_iter().collect());
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
    /// Flux's objects with this configuration's label that were there before it and are none of its own: nobody said that
    /// they were to be deleted ([`mod@left`]).
    pub left: Option<Vec<String>>,
}

/// Makes the cluster follow the sources that the gateway's flux configurations name.
pub struct FluxconfigAgent<G> {
    /// To the apiserver; its default namespace is the agents'.
    pub client: Client,
    /// ARM id of the cluster that the agent runs in.
    pub cluster: ClusterId,
    /// What the owner of the cluster allows.
    pub settings: Gitops,
    /// The time of day.
    pub clock: SharedClock,
    /// How the role fares.
    pub health: Reporter,
    /// What answers questions about what is wanted, and is told how far it is.
    pub gateway: G,
    /// Who may reach a source through the gateway.
    pub egress: Grants,
    /// How others in the cluster reach the proxy that leads there; none where its Service is not there.
    pub proxy: Option<String>,
}

impl<G: Gateway> FluxconfigAgent<G> {
    /// Works until it is dropped.
    pub async fn work(&self) {
        let views = Views::new(self.client.clone());
        let flux = Store::<FluxConfigs>::new(self.client.clone());
        let git = Store::<GitConfigs>::new(self.client.clone());
        let shared = Shared {
            views: &views,
            turn: &tokio::sync::Mutex::default(),
            troubles: &Troubles::new(self.health.clone()),
        };
        tokio::join!(self.load(&flux, shared.troubles), self.load(&git, shared.troubles));
        let of_flux = || known(&flux);
        let of_git = || known(&git);
        let ledger = Ledger::default();
        let seen: BoxFuture<'_, ()> = Box::pin(views.run());
        let flux: BoxFuture<'_, ()> = Box::pin(self.work_at(&flux, &of_git, Some(&ledger), &shared));
        let git: BoxFuture<'_, ()> = Box::pin(self.work_at(&git, &of_flux, None, &shared));
        tokio::join!(seen, flux, git);
    }

    /// Says how this pod stands beside others of its Deployment.
    fn stands(&self, standing: &Standing) {
        let (reason, message) = match standing {
            Standing::Works => {
                self.health.starting();
                return;
            }
            Standing::Unguarded(why) => {
                tracing::warn!(
                    problem = why,
                    "two pods of fluxconfig-agent may work side by side: upgrade the extension microsoft.flux"
                );
                return;
            }
            Standing::Waits(holder) => {
                let message =
                    format!("the pod {holder} works at configurations; this one does when that one has ended");
                ("AnotherPodWorks", message)
            }
            Standing::Fails(why) => ("LeaseNotHeld", why.clone()),
        };
        tracing::info!(reason, message, "this pod does not work at configurations");
        match standing {
            Standing::Waits(_) => self.health.waiting(reason, &message),
            _ => self.health.failing(reason, &message),
        }
        // Only the one that works knows who may reach a source through the gateway.
        self.egress.keep(|_| false);
    }

    /// Reads what there is of a kind.
    async fn load<K: Configurations>(&self, store: &Store<K>, troubles: &Troubles) {
        let loaded = tokio::time::timeout(LOAD_WITHIN, store.load()).await;
        let problem = loaded.unwrap_or_else(|_| Err(format!("{} cannot be read: the apiserver is too slow", K::NOUNS)));
        let is_missing = K::IS_LATER && problem.is_err() && store.is_missing();
        let problem = problem.err();
        match problem.clone().filter(|_| !is_missing) {
            Some(problem) => troubles.say(K::TYPE, Some(("NotLoaded", problem))),
            None => troubles.say(K::TYPE, None),
        }
        troubles.warn(K::TYPE, About::Definition, problem.filter(|_| is_missing));
    }

    /// Works at one kind of configurations. `others`: what is known of those of other kinds.
    async fn work_at<K: Configurations>(
        &self,
        store: &Store<K>,
        others: &(dyn Fn() -> Option<Vec<Placed>> + Send + Sync),
        ledger: Option<&Ledger>,
        shared: &Shared<'_>,
    ) {
        // What is there is known before the gateway says what is wanted; the other kinds do not wait for this one.
        while !store.is_loaded() {
            tokio::time::sleep(LOAD_AGAIN).await;
            self.load(store, shared.troubles).await;
        }
        let follow = Follow::new(&self.gateway, store, &self.cluster);
        let converge = Converge {
            client: &self.client,
            store,
            others,
            turn: shared.turn,
            follow: &follow,
            views: shared.views,
            ledger,
            settings: &self.settings,
            egress: &self.egress,
            proxy: self.proxy.as_deref(),
            progress: Progress::new(store, self.clock.clone()),
            clock: self.clock.clone(),
            troubles: shared.troubles,
            made: Default::default(),
            memory: Default::default(),
            apart: Default::default(),
            orphans: Default::default(),
            stopped: Default::default(),
            renewed: Default::default(),
        };
        let report = Report { gateway: &self.gateway, store, follow: &follow, parts: ledger };
        let follow: BoxFuture<'_, ()> = Box::pin(follow.run());
        let (converge, report): (BoxFuture<'_, ()>, BoxFuture<'_, ()>) =
            (Box::pin(converge.run()), Box::pin(report.run()));
        tokio::join!(follow, converge, report);
    }
}

/// Where the configurations of a kind are; unless they could not be read yet.
fn known<K: Configurations>(store: &Store<K>) -> Option<Vec<Placed>> {
    (store.is_loaded() || (K::IS_LATER && store.is_missing())).then(|| Placed::all(store))
}

/// What the kinds of configurations share.
struct Shared<'a> {
    views: &'a Views,
    turn: &'a tokio::sync::Mutex<()>,
    troubles: &'a Troubles,
}

impl<G: Gateway> Role for FluxconfigAgent<G> {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let lease = match Lease::new(&self.client, NAME, self.clock.clone()) {
                Ok(lease) => lease,
                Err(err) => {
                    self.health
                        .failing("NoLease", &format!("this process cannot be told from others: {}", chain(&err)));
                    return;
                }
            };
            let mut work: BoxFuture<'_, ()> = Box::pin(
                lease.hold(|standing| self.stands(standing), || -> BoxFuture<'_, ()> { Box::pin(self.work()) }),
            );
            // What is half done is done again by the next process: everything is compared from the beginning.
            let _ = shutdown.until_draining(&mut work).await;
            drop(work);
            lease.release().await;
        })
    }
}
