//! Upgrades the agents (docs/features.md U1): when the gateway wants another version, the upgrader looks for it in the
//! signed catalogue, and a Job carries the upgrade out and outlives the pods that it replaces. A gateway chooses among
//! the versions of the catalogue, and no others: this cluster verifies it by keys that were pinned at the installation.
//!
//! It is a Deployment of its own, because who may make a Job may run anything with any service account of the agents'
//! namespace: the other agents may not (SECURITY.md).
//!
//! | part | what it does |
//! |---|---|
//! | [`judge`] | whether an upgrade is begun, and why not |
//! | [`state`] | what is kept in the cluster: how far an upgrade is |
//! | [`job`] | the Job, and what is wrong with its pods |

pub mod job;
pub mod judge;
pub mod state;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::catalogue::{choice, version::Version};
use daemon::Shutdown;
use futures_util::future::BoxFuture;
use k8s_openapi::api::{apps::v1::Deployment as Installed, batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use types::agent_api::{Desired, codes};

use self::{
    job::{Plan, Work},
    judge::{Images, Judged, Refusal, There},
    state::{Kept, NEWEST, Phase, State, TRUST},
};
use super::{
    Entry, Role,
    catalogue::{Catalogue, KeysError, Pinned, Trusts},
    error::BuildError,
    health::Reporter,
    objects::state::Problem,
};
use crate::{
    chain,
    config::{self, Deployment},
    identity::clock::SharedClock,
    tunnel::api::AgentApi,
};

/// This role's name.
pub const NAME: &str = Deployment::Upgrader.name();
/// The type of the agents in a catalogue.
pub const TYPE: &str = types::agent_api::AGENTS_TYPE;

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::Upgrader],
    build: |parts| {
        let Some(settings) = &parts.config.upgrades else { return Ok(None) };
        let client = parts.kubernetes.clone().ok_or(SetupError::NoApiserver)?;
        Ok(Some(Arc::new(Upgrader {
            kept: Kept::new(&client),
            client,
            settings: settings.clone(),
            api: parts.api.clone(),
            desired: parts.wanted.desired(),
            clock: parts.clock.clone(),
            health: parts.health.of(NAME),
            begun: Mutex::default(),
        })))
    },
};

/// Between two looks at a Job.
const TICK: Duration = Duration::from_secs(3);
/// After a look that failed, and after a wait whose reason may pass by itself.
const AGAIN: Duration = Duration::from_secs(60);
/// Pods of the Job that are looked at.
const PODS_MAX: u32 = 50;

/// Why the role cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A key of the catalogue.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Nothing can be upgraded.
    #[error("there is no way to the apiserver; set [cluster] kubeconfig, or leave [upgrades] out")]
    NoApiserver,
}

impl From<SetupError> for BuildError {
    fn from(error: SetupError) -> Self {
        Self::Role { what: "upgrades", source: Box::new(error) }
    }
}

/// Begins upgrades, and looks after the Job that carries one out.
pub struct Upgrader {
    client: Client,
    kept: Kept,
    settings: config::Upgrades,
    api: AgentApi,
    desired: watch::Receiver<Option<Desired>>,
    clock: SharedClock,
    health: Reporter,
    /// The version that was begun last, and when it may be begun again: one that waited or could not begin is not begun
    /// again at once.
    begun: Mutex<Option<(String, Instant)>>,
}

/// Trouble of a Job, and since when.
type Standing = Option<(&'static str, Instant)>;

impl Trusts for Kept {
    fn object(&self) -> &'static str {
        "key trust of ConfigMap towline-upgrade"
    }

    fn pins(&self) -> &'static str {
        "upgrades.catalogueKeys"
    }

    fn trust(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async move {
            let read = self.read(TRUST).await;
            Ok(read.map_err(|err| problem("read", &err))?.map(String::into_bytes))
        })
    }

    fn keep_trust<'a>(&'a self, trust: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let written = self.write(&json!({ TRUST: trust.to_string() })).await;
            written.map_err(|err| problem("written", &err))
        })
    }
}

fn problem(what: &str, err: &kube::Error) -> String {
    format!("the ConfigMap {} cannot be {what}: {}", state::OBJECT, chain(err))
}

impl Upgrader {
    /// Works until it is dropped.
    async fn work(&self) {
        let pinned = Pinned { keys: self.settings.keys.clone(), catalogue: self.settings.catalogue.clone() };
        let catalogue = Catalogue::new(&self.api, &self.kept, pinned, self.clock.clone(), self.settings.interval);
        let mut desired = self.desired.clone();
        let mut standing: Standing = None;
        loop {
            desired.mark_unchanged();
            let wait = match self.turn(&catalogue, &mut standing).await {
                Ok(wait) => {
                    self.health.running();
                    wait
                }
                Err(err) => {
                    let error = chain(&err);
                    tracing::warn!(error, "upgrades of the agents are not looked after");
                    self.health.failing("NoApiserver", &error);
                    AGAIN
                }
            };
            if wait == TICK {
                // A Job goes its way whatever is wanted meanwhile.
                tokio::time::sleep(TICK).await;
            } else {
                let _ = tokio::time::timeout(wait, desired.changed()).await;
            }
        }
    }

    /// One look; returns when to look again.
    async fn turn(
        &self,
        catalogue: &Catalogue<'_, AgentApi>,
        standing: &mut Standing,
    ) -> Result<Duration, kube::Error> {
        let state = self.kept.state().await?;
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        let running = state.clone().filter(|state| state.phase.is_running());
        match (jobs.get_opt(job::NAME).await?, running) {
            (Some(job), Some(state)) => self.look_after(&job, &state, standing).await,
            // It has come to its end, and said so.
            (Some(job), None) => {
                *standing = None;
                let ended = ended(&job);
                if ended.is_some() || is_going(&job) {
                    self.remove_job().await?;
                }
                Ok(TICK)
            }
            // It was removed by somebody, or the upgrader ended before it made one.
            (None, Some(state)) if state.phase.has_changed() => {
                self.make_job(&self.finish()).await?;
                Ok(TICK)
            }
            (None, state_running) => {
                let last = state.or(state_running);
                self.decide(catalogue, last.as_ref()).await
            }
        }
    }

    /// Whether an upgrade is to begin.
    async fn decide(&self, catalogue: &Catalogue<'_, AgentApi>, last: Option<&State>) -> Result<Duration, kube::Error> {
        let wanted = self.desired.borrow().as_ref().map(|desired| desired.agent_version.clone());
        // Nothing was heard of the gateway yet.
        let Some(wanted) = wanted else { return Ok(self.settings.interval) };
        let running = daemon::release::version();
        let there = self.there(last).await?;
        let refusal = match judge::judge(wanted.as_deref(), running, &there) {
            Judged::Nothing => {
                if let Some(last) = last.filter(|last| last.is_passing()) {
                    tracing::info!(version = last.version, "an upgrade that was not begun is no longer wanted");
                    match last.forgotten(self.clock.now()) {
                        Some(before) => self.kept.set(&before).await?,
                        None => self.kept.write(&json!({ state::STATE: Value::Null })).await?,
                    }
                    // Wanted again, as after a pause, it need not wait for long.
                    self.may_begin_within(AGAIN);
                }
                // What was taken out of the catalogue, and keys that were replaced, are known before anything is wanted
                // again: no older catalogue is believed then (docs/catalogue.md).
                if let Err(problem) = catalogue.look().await {
                    tracing::debug!(reason = problem.code, error = problem.message, "no catalogue of the agents");
                }
                return Ok(self.settings.interval);
            }
            Judged::Refused(refusal) => refusal,
            // Preparing without a Job: it was not made, or somebody removed it.
            Judged::Begin(version, _)
                if self.is_too_soon(&version) && last.is_none_or(|last| last.phase != Phase::Preparing) =>
            {
                return Ok(self.settings.interval);
            }
            Judged::Begin(version, images) => match self.plan(catalogue, &version, &images).await {
                Ok(plan) => return self.begin(plan, last).await,
                Err(problem) => Refusal { version, reason: problem.code, message: problem.message },
            },
        };
        let Refusal { version, reason, message } = refusal;
        let now = self.clock.now();
        let next = match last.filter(|last| last.version == version && last.phase == Phase::Waiting) {
            Some(last) => last.at(Phase::Waiting, reason, &message, now),
            None => State::new(&version, running, last, now).at(Phase::Waiting, reason, &message, now),
        };
        if last != Some(&next) {
            tracing::warn!(version, reason, message, "an upgrade of the agents waits");
            self.kept.set(&next).await?;
        }
        Ok(AGAIN.min(self.settings.interval))
    }

    fn is_too_soon(&self, version: &str) -> bool {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.as_ref().is_some_and(|(last, again)| last == version && Instant::now() < *again)
    }

    fn may_begin_within(&self, wait: Duration) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, again)) = begun.as_mut() {
            *again = (*again).min(Instant::now() + wait);
        }
    }

    /// What is known of the agents that run.
    async fn there(&self, last: Option<&State>) -> Result<There, kube::Error> {
        let deployments: Api<Installed> = Api::default_namespaced(self.client.clone());
        let agent = deployments.get(Deployment::ClusterconnectAgent.name()).await?;
        let extensions = deployments.get_opt(Deployment::ExtensionManager.name()).await?;
        let label = |name: &str| agent.metadata.labels.as_ref().and_then(|labels| labels.get(name).cloned());
        let running = daemon::release::version();
        let newest = match self.kept.read(NEWEST).await? {
            Some(newest) if judge::is_newer(&newest, running) => newest,
            // What cannot be read is written anew.
            before => {
                if before.as_deref() != Some(running) {
                    self.kept.write(&json!({ NEWEST: running })).await?;
                }
                running.to_owned()
            }
        };
        Ok(There {
            newest,
            managed_by: label("app.kubernetes.io/managed-by").unwrap_or_default(),
            installed: label("app.kubernetes.io/version").unwrap_or_default(),
            agent: image(&agent),
            extension_manager: extensions.as_ref().map(image),
            refused: last.map(|last| last.refused.clone()).unwrap_or_default(),
        })
    }

    /// What is to be installed, of the catalogue as this cluster verifies it.
    async fn plan(&self, catalogue: &Catalogue<'_, AgentApi>, version: &str, images: &Images) -> Result<Plan, Problem> {
        catalogue.look().await?;
        let known = catalogue.usable();
        let Some(verified) = known.verified else {
            return Err(known
                .problem
                .unwrap_or_else(|| Problem::passes(codes::NO_CATALOGUE, "the gateway has no catalogue")));
        };
        let missing = || {
            Problem::passes(
                "NotInCatalogue",
                format!(
                    "the gateway wants version {version} of the agents, and the catalogue, as this cluster verifies it, does not have it: add the chart as type {TYPE} and sign the catalogue"
                ),
            )
        };
        let parsed: Version = version.parse().map_err(|_| missing())?;
        let kind = verified.index().extension_type(TYPE).ok_or_else(missing)?;
        let release = kind.release(&parsed).ok_or_else(missing)?;
        let kubernetes = self.client.apiserver_version().await.ok().and_then(|info| info.git_version.parse().ok());
        let cluster = choice::Cluster { kubernetes, ..choice::Cluster::default() };
        release.fits(&cluster).map_err(|unfit| {
            Problem::stays("Unfit", format!("version {version} of the agents does not fit this cluster: {unfit}"))
        })?;
        let chart = catalogue.chart(&verified, TYPE, release).await?;
        let named = |repository: &str, program: &str| {
            let digest = chart.chart().image_digests.get(program);
            let digest = digest.map_or_else(String::new, |digest| format!("@{digest}"));
            format!("{repository}:{version}{digest}")
        };
        Ok(Plan {
            version: version.to_owned(),
            agent: named(&images.agent, "agent"),
            extension_manager: images
                .extension_manager
                .as_ref()
                .map(|image| named(image, Deployment::ExtensionManager.name())),
            window: self.settings.window,
            timeout: self.settings.timeout,
        })
    }

    async fn begin(&self, plan: Plan, last: Option<&State>) -> Result<Duration, kube::Error> {
        let (version, image) = (plan.version.clone(), plan.agent.clone());
        tracing::info!(version, image, "the agents are upgraded");
        let state = State::new(&version, daemon::release::version(), last, self.clock.now()).after(last);
        let again = Instant::now() + self.settings.interval;
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some((version, again));
        self.kept.set(&state).await?;
        let Err(error) = self.make_job(&Work::Upgrade(plan)).await else { return Ok(TICK) };
        if let kube::Error::Api(status) = &error {
            // A quota, a policy: until that is changed nothing is under way.
            let message = format!("the Job {} cannot be made: {}; it is tried again", job::NAME, status.message);
            tracing::warn!(version = state.version, message, "an upgrade of the agents waits");
            self.kept.set(&state.at(Phase::Waiting, "NoJob", &message, self.clock.now())).await?;
            return Ok(self.settings.interval);
        }
        Err(error)
    }

    fn finish(&self) -> Work {
        Work::Finish { window: self.settings.window, timeout: self.settings.timeout }
    }

    async fn make_job(&self, work: &Work) -> Result<(), kube::Error> {
        let deployments: Api<Installed> = Api::default_namespaced(self.client.clone());
        let own = deployments.get(NAME).await?;
        let manifest = job::manifest(&own, self.client.default_namespace(), work);
        let job: Job = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        match jobs.create(&PostParams::default(), &job).await {
            Ok(_) => Ok(()),
            // Another upgrader process has made one since the look above; the next look finds it.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(err) => Err(err),
        }
    }

    /// It is there until its pods have ended: one that still applies something must not meet the next one.
    async fn remove_job(&self) -> Result<(), kube::Error> {
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        match jobs.delete(job::NAME, &DeleteParams::foreground()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(err) => Err(err),
        }
    }

    /// A Job is at work: one that cannot begin is taken back, and one that was cut off is followed by another.
    async fn look_after(&self, job: &Job, state: &State, standing: &mut Standing) -> Result<Duration, kube::Error> {
        if is_going(job) {
            return Ok(TICK);
        }
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let own = ListParams::default().labels(&format!("app.kubernetes.io/name={}", job::NAME)).limit(PODS_MAX);
        let mut pods = pods.list(&own).await?.items;
        // Those of a Job before this one say nothing of it.
        let is_its = |pod: &Pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
        };
        pods.retain(is_its);
        let trouble = job::trouble(&pods);
        let since = trouble.as_ref().map(|trouble| match *standing {
            Some((reason, since)) if reason == trouble.reason => (reason, since),
            _ => (trouble.reason, Instant::now()),
        });
        *standing = since;
        let stands = since.map(|(_, since)| since.elapsed());
        let has_ended = ended(job);
        if state.phase.has_changed() {
            // The kept objects are enough to go on or back: the new image is not asked for again.
            let is_stuck = stands.is_some_and(|stands| stands > self.settings.window);
            if has_ended.is_some() || is_stuck {
                tracing::warn!(version = state.version, "the Job of an upgrade was cut off; another one follows");
                self.remove_job().await?;
                *standing = None;
            }
            return Ok(TICK);
        }
        let is_over = stands.is_some_and(|stands| stands > self.settings.window.min(self.settings.timeout));
        let trouble = match (trouble, has_ended) {
            (Some(trouble), _) if trouble.is_final || is_over => trouble,
            (trouble, Some(_)) => trouble.unwrap_or_else(|| job::Trouble {
                reason: "JobFailed",
                message: format!("the Job {} ended before it had begun to change anything", job::NAME),
                is_final: true,
            }),
            _ => return Ok(TICK),
        };
        // The Job may have gone on in between.
        let now = self.kept.state().await?;
        if now.as_ref() != Some(state) {
            return Ok(TICK);
        }
        self.remove_job().await?;
        *standing = None;
        let message = format!(
            "version {} of the agents was not begun, and nothing was changed: {}. It is tried again while the gateway wants it.",
            state.version, trouble.message
        );
        tracing::warn!(
            version = state.version,
            reason = trouble.reason,
            message,
            "an upgrade of the agents was not begun"
        );
        self.kept.set(&state.at(Phase::RolledBack, trouble.reason, &message, self.clock.now())).await?;
        Ok(self.settings.interval)
    }
}

/// The image of a Deployment's first container.
fn image(deployment: &Installed) -> String {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.and_then(|pod| pod.containers.first()?.image.clone()).unwrap_or_default()
}

fn is_going(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// Whether it is complete; none while it runs.
fn ended(job: &Job) -> Option<bool> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let is = |kind: &str| conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    if is("Complete") { Some(true) } else { is("Failed").then_some(false) }
}

impl Role for Upgrader {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let work: BoxFuture<'_, ()> = Box::pin(self.work());
            shutdown.until_draining(work).await;
        })
    }
}
