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
use k8s_openapi::api::{
    apps::v1::Deployment as Installed,
    batch::v1::Job,
    core::v1::{Event, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use types::agent_api::{Desired, codes};

use self::{
    job::{Next, Plan, Seen, Work},
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
    begun: Mutex<Option<Begun>>,
}

/// The version that was begun last.
struct Begun {
    version: String,
    /// When it may be begun again: one that waited or could not begin is not begun again at once.
    again: Instant,
    /// Whether its Job was made, and is not to be made again.
    is_made: bool,
}

impl Begun {
    fn too_soon(&self, version: &str, now: Instant) -> Option<Duration> {
        let wait = self.again.saturating_duration_since(now);
        (self.version == version && self.is_made && !wait.is_zero()).then_some(wait)
    }
}

/// Since when a Job is seen, by a clock that nobody sets.
struct Watched {
    uid: Option<String>,
    since: Instant,
    going: Option<Instant>,
    trouble: Option<(&'static str, Instant)>,
    /// Since when no pod is at work; none while one is.
    idle: Option<Instant>,
}

impl Watched {
    fn new(uid: Option<String>, now: Instant) -> Self {
        Self { uid, since: now, going: None, trouble: None, idle: None }
    }

    /// This Job, which may be another one than before.
    fn look(&mut self, job: &Job, now: Instant) {
        if self.uid != job.metadata.uid {
            *self = Self::new(job.metadata.uid.clone(), now);
        }
        if is_going(job) {
            self.going.get_or_insert(now);
        }
    }

    /// How long its pods have been so.
    fn seen(&mut self, pods: &[Pod], now: Instant) -> Seen {
        let trouble = job::trouble(pods);
        self.idle = (!pods.iter().any(job::is_at_work)).then(|| self.idle.unwrap_or(now));
        self.trouble = trouble.as_ref().map(|trouble| match self.trouble {
            Some((reason, since)) if reason == trouble.reason => (reason, since),
            _ => (trouble.reason, now),
        });
        Seen {
            age: now.duration_since(self.since),
            going: self.going.map(|since| now.duration_since(since)),
            trouble: trouble.zip(self.trouble.map(|(_, since)| now.duration_since(since))),
            idle: self.idle.map(|since| now.duration_since(since)),
            ..Seen::default()
        }
    }
}

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
        let mut watched = Watched::new(None, Instant::now());
        loop {
            desired.mark_unchanged();
            let wait = match self.turn(&catalogue, &mut watched).await {
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
    async fn turn(&self, catalogue: &Catalogue<'_, AgentApi>, watched: &mut Watched) -> Result<Duration, kube::Error> {
        let state = self.kept.state().await?;
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        let running = state.clone().filter(|state| state.phase.is_running());
        let job = jobs.get_opt(job::NAME).await?;
        if let Some(job) = &job {
            watched.look(job, Instant::now());
        }
        match (job, running) {
            (Some(job), Some(state)) => self.look_after(&job, &state, watched).await,
            // It has come to its end, and said so, or it was taken back and may never end.
            (Some(_), None) => {
                let seen = watched.seen(&[], Instant::now());
                let is_lost = job::next(seen, self.settings.window, self.settings.timeout) == Next::Drop;
                self.remove_job(if is_lost { DeleteParams::background() } else { DeleteParams::foreground() }).await?;
                Ok(TICK)
            }
            // It was removed by somebody, or the upgrader ended before it made one.
            (None, Some(state)) if state.phase.has_changed() => {
                self.make_job(&self.finish()).await?;
                Ok(TICK)
            }
            (None, _) => self.decide(catalogue, state.as_ref()).await,
        }
    }

    /// Whether an upgrade is to begin.
    async fn decide(&self, catalogue: &Catalogue<'_, AgentApi>, last: Option<&State>) -> Result<Duration, kube::Error> {
        let desired = self.desired.borrow().clone();
        // Nothing was heard of the gateway yet.
        let Some(Desired { agent_version: wanted, auto_upgrade, .. }) = desired else {
            return Ok(self.settings.interval);
        };
        if let Some(is_on) = auto_upgrade {
            self.kept.show_auto_update(is_on).await?;
        }
        let running = daemon::release::version();
        let there = self.there(last).await?;
        let refusal = match judge::judge(wanted.as_deref(), running, &there) {
            Judged::Nothing => {
                if let Some(last) = last.filter(|last| last.is_passing()) {
                    tracing::info!(version = last.version, "an upgrade that was not begun is no longer wanted");
                    self.forget(last).await?;
                }
                // What was taken out of the catalogue, and keys that were replaced, are known before anything is wanted
                // again: no older catalogue is believed then (docs/catalogue.md).
                if let Err(problem) = catalogue.look().await {
                    tracing::debug!(reason = problem.code, error = problem.message, "no catalogue of the agents");
                }
                return Ok(self.settings.interval);
            }
            Judged::Refused(refusal) => refusal,
            Judged::Begin(version, images) => {
                if let Some(wait) = self.too_soon(&version) {
                    // Preparing without a Job: it was not made, or somebody removed it.
                    if let Some(last) = last.filter(|last| last.phase == Phase::Preparing) {
                        let message = format!("the Job {} was removed by somebody", job::NAME);
                        self.take_back(last, "JobRemoved", &message).await?;
                    }
                    return Ok(wait.min(self.settings.interval));
                }
                match self.plan(catalogue, &version, &images).await {
                    Ok(plan) => return self.begin(plan, last).await,
                    Err(problem) => Refusal { version, reason: problem.code, message: problem.message },
                }
            }
        };
        let Refusal { version, reason, message } = refusal;
        let now = self.clock.now();
        let next = match last.filter(|last| last.version == version && last.phase == Phase::Waiting) {
            Some(last) => last.at(Phase::Waiting, reason, &message, now),
            None => State::new(&version, running, last, now).at(Phase::Waiting, reason, &message, now),
        };
        if last != Some(&next) {
            tracing::warn!(version, reason, message, "an upgrade of the agents waits");
            self.kept.change(last, Some(&next), None).await?;
        }
        Ok(AGAIN.min(self.settings.interval))
    }

    /// An upgrade that has not begun is no longer wanted. False where it went on meanwhile.
    async fn forget(&self, state: &State) -> Result<bool, kube::Error> {
        let is_done = self.kept.change(Some(state), state.forgotten(self.clock.now()).as_ref(), None).await?;
        // Wanted again, as after a pause, it need not wait for long.
        self.with_begun(|begun| begun.again = begun.again.min(Instant::now() + AGAIN));
        Ok(is_done)
    }

    /// How long it is until a version may be begun again; none where it may be begun now.
    fn too_soon(&self, version: &str) -> Option<Duration> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.as_ref().and_then(|begun| begun.too_soon(version, Instant::now()))
    }

    fn with_begun(&self, change: impl FnOnce(&mut Begun)) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = begun.as_mut() {
            change(begun);
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
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Begun { version, again, is_made: false });
        if !self.kept.change(last, Some(&state), None).await? {
            return Ok(TICK);
        }
        let made = self.make_job(&Work::Upgrade(plan)).await;
        // One that nobody answered for may be made, and is looked for.
        if !made.as_ref().is_err_and(|error| !matches!(error, kube::Error::Api(_))) {
            self.with_begun(|begun| begun.is_made = true);
        }
        let Err(error) = made else { return Ok(TICK) };
        if let kube::Error::Api(status) = &error {
            // A quota, a policy: until that is changed nothing is under way.
            let message = format!("the Job {} cannot be made: {}; it is tried again", job::NAME, status.message);
            tracing::warn!(version = state.version, message, "an upgrade of the agents waits");
            let waits = state.at(Phase::Waiting, "NoJob", &message, self.clock.now());
            self.kept.change(Some(&state), Some(&waits), None).await?;
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

    /// In the foreground it is there until its pods have ended: one that still applies something must not meet the next one.
    async fn remove_job(&self, how: DeleteParams) -> Result<(), kube::Error> {
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        match jobs.delete(job::NAME, &how).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(err) => Err(err),
        }
    }

    /// A Job is at work: one that cannot begin is taken back, and one that was cut off is followed by another.
    async fn look_after(&self, job: &Job, state: &State, watched: &mut Watched) -> Result<Duration, kube::Error> {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let own = ListParams::default().labels(&format!("app.kubernetes.io/name={}", job::NAME)).limit(PODS_MAX);
        let mut pods = pods.list(&own).await?.items;
        // Those of a Job before this one say nothing of it.
        let is_its = |pod: &Pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
        };
        pods.retain(is_its);
        let seen = Seen {
            has_ended: has_ended(job),
            has_changed: state.phase.has_changed(),
            is_wanted: self.is_wanted(&state.version),
            ..watched.seen(&pods, Instant::now())
        };
        let lost =
            seen.trouble.as_ref().map(|(trouble, _)| trouble).filter(|trouble| trouble.reason == state::NODE_LOST);
        let lost = lost.map(|trouble| trouble.message.clone());
        let (reason, message) = match job::next(seen, self.settings.window, self.settings.timeout) {
            Next::Wait => return Ok(TICK),
            Next::Remove => {
                tracing::warn!(version = state.version, "the Job of an upgrade was cut off; another one follows");
                self.remove_job(DeleteParams::foreground()).await?;
                return Ok(TICK);
            }
            Next::Drop => {
                tracing::warn!(version = state.version, "the machine of an upgrade's Job is lost; another Job follows");
                let message = lost.unwrap_or_else(|| "its pods do not end".to_owned());
                let message = format!("the machine of the upgrade's Job was lost: {message}");
                // Written before another pod begins: what this one still does is refused from here on.
                if let Some(next) = state.on_lost_machine(&message, self.clock.now())
                    && !self.kept.change(Some(state), Some(&next), None).await?
                {
                    return Ok(TICK);
                }
                self.with_begun(|begun| begun.is_made = false);
                self.remove_job(DeleteParams::background()).await?;
                return Ok(TICK);
            }
            Next::Forget => {
                tracing::info!(version = state.version, "an upgrade that was being prepared is no longer wanted");
                if self.forget(state).await? {
                    self.remove_job(DeleteParams::foreground()).await?;
                }
                return Ok(TICK);
            }
            Next::TakeBack(trouble) => (trouble.reason, trouble.message),
            Next::TakeBackUnended => {
                let trouble = job::unended(&pods, &self.events_of(job).await);
                (trouble.reason, trouble.message)
            }
        };
        // The Job may have gone on in between.
        if !self.take_back(state, reason, &message).await? {
            return Ok(TICK);
        }
        self.remove_job(DeleteParams::foreground()).await?;
        Ok(self.settings.interval)
    }

    /// Nothing was changed, and the version is not to begin now. False where the upgrade went on meanwhile.
    async fn take_back(&self, state: &State, reason: &'static str, message: &str) -> Result<bool, kube::Error> {
        let version = &state.version;
        let message = format!(
            "version {version} of the agents was not begun, and nothing was changed: {message}. It is tried again while the gateway wants it."
        );
        tracing::warn!(version, reason, message, "an upgrade of the agents was not begun");
        let next = state.at(Phase::RolledBack, reason, &message, self.clock.now());
        self.kept.change(Some(state), Some(&next), None).await
    }

    /// Whether the gateway wants a version, as far as it has told.
    fn is_wanted(&self, version: &str) -> bool {
        let desired = self.desired.borrow();
        let Some(desired) = desired.as_ref() else { return true };
        desired.agent_version.as_deref().is_some_and(|wanted| judge::named(wanted) == version)
    }

    /// What its controller tells of a Job; nothing where that cannot be read.
    async fn events_of(&self, job: &Job) -> Vec<Event> {
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let its = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(PODS_MAX);
        match events.list(&its).await {
            Ok(list) => list.items,
            Err(error) => {
                tracing::warn!(error = chain(&error), "events of the Job cannot be read");
                Vec::new()
            }
        }
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

/// Whether it is complete, or has failed.
fn has_ended(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    { conditions }.any(|one| (one.type_ == "Complete" || one.type_ == "Failed") && one.status == "True")
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    /// A version that was wanted again a minute after a pause was looked at an hour later.
    #[test]
    fn u1_a_version_that_may_not_begin_yet_is_looked_at_when_it_may() {
        let now = Instant::now();
        let begun = Begun { version: "0.3.0".to_owned(), again: now + 60 * SECOND, is_made: true };
        assert_eq!(begun.too_soon("0.3.0", now + 20 * SECOND), Some(40 * SECOND));
        assert_eq!(begun.too_soon("0.3.0", now + 60 * SECOND), None);
        assert_eq!(begun.too_soon("0.3.1", now), None, "another one need not wait");
        assert_eq!(Begun { is_made: false, ..begun }.too_soon("0.3.0", now), None);
    }

    /// A pod that was drained late in an upgrade has none in its place for some seconds: its Job was taken for stuck then,
    /// and the version was refused from there on.
    #[test]
    fn u1_a_job_is_idle_since_its_last_pod_was_at_work() {
        let at_work =
            pod(json!({"containerStatuses": [{"name": "upgrade", "image": "a:2", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}}}]}));
        let creating = pod(json!({"containerStatuses": [{"name": "upgrade", "image": "a:2", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}));
        let begun = Instant::now();
        let mut watched = Watched::new(None, begun);
        let looks = [
            (0, None, Some(0)),
            (5, Some(&creating), Some(5)),
            (9, Some(&at_work), None),
            (5000, None, Some(0)),
            (5010, None, Some(10)),
            (5020, Some(&creating), Some(20)),
            (5030, Some(&at_work), None),
        ];
        for (second, pod, idle) in looks {
            let pods: Vec<Pod> = pod.into_iter().cloned().collect();
            let seen = watched.seen(&pods, begun + second * SECOND);
            assert_eq!((seen.age, seen.idle), (second * SECOND, idle.map(|idle| idle * SECOND)), "{second}");
        }
        let other = serde_json::from_value(json!({"metadata": {"uid": "2"}})).unwrap();
        watched.look(&other, begun + 9000 * SECOND);
        assert_eq!(watched.seen(&[], begun + 9000 * SECOND).idle, Some(Duration::ZERO), "it is another Job");
    }
}
