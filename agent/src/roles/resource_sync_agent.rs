//! Tells the gateway of the cluster: at the start, on each change, and at most every five
//! minutes; keeps the custom resource in step with what was told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use kube::Client;
use tokio::sync::watch;
use types::{
    agent_api::{Desired, Heartbeat, HeartbeatAnswer, Upgrade, paths},
    ids::ClusterId,
};

use super::{
    Entry, Role,
    cluster_metadata_operator::{Facts, Known},
    health::{Health, Reporter},
    resource::{self, Shown},
    upgrader::state::Kept,
};
use crate::{
    chain,
    config::Deployment,
    identity::{self, Identities, clock::SharedClock},
    tunnel::api::{AgentApi, ApiError},
};

/// This role's name.
pub const NAME: &str = "resource-sync-agent";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ControllerManager],
    build: |parts| {
        Ok(Some(Arc::new(ResourceSyncAgent {
            cluster: parts.cluster.clone(),
            api: parts.api.clone(),
            client: parts.kubernetes.clone(),
            known: parts.facts.subscribe(),
            health: parts.health.clone(),
            reporter: parts.health.of(NAME),
            identities: parts.identities.clone(),
            desired: parts.wanted.desired(),
            clock: parts.clock.clone(),
            last: watch::Sender::new(None),
            upgrade: watch::Sender::new(None),
            warnings: Mutex::default(),
        })))
    },
};

/// The longest between two heartbeats whatever the gateway says, and the shortest, so that changes in quick succession
/// are told together.
const LONGEST: Duration = Duration::from_secs(300);
const SHORTEST: Duration = Duration::from_secs(5);
/// How long the first heartbeat waits for the first look at the cluster.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// How long a change waits for others that come with it.
const TOGETHER: Duration = Duration::from_millis(500);
/// How often the custom resource is written though nothing of the cluster changed: it shows when the gateway last
/// heard.
const RESOURCE: Duration = Duration::from_secs(60);
/// How often it is read how far an upgrade is, while a version is wanted.
const UPGRADE: Duration = Duration::from_secs(10);
/// Minutes that the clock may be off: what is told of it before tokens are refused is of use.
const CLOCK_MINUTES: u64 = 2;
/// Errors in one heartbeat, and characters of one.
const ERRORS_MAX: usize = 32;
/// Waits after a heartbeat that did not arrive.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(5),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(60),
    steady_after: Duration::from_secs(60),
};

/// Sends heartbeats to the gateway, and keeps the custom resource up to date.
pub struct ResourceSyncAgent {
    /// The cluster that this agent serves.
    pub cluster: ClusterId,
    /// The agents' own exchanges with the gateway.
    pub api: AgentApi,
    /// To the apiserver, for the custom resource.
    pub client: Option<Client>,
    /// What is known of the cluster.
    pub known: Known,
    /// How the roles fare.
    pub health: Health,
    /// How this one does.
    pub reporter: Reporter,
    /// Holds the certificate in use; a heartbeat's answer can ask for its renewal.
    pub identities: Identities,
    /// What is wanted of the agents.
    pub desired: watch::Receiver<Option<Desired>>,
    /// The time of day.
    pub clock: SharedClock,
    /// When the gateway last took a heartbeat, by its clock.
    pub last: watch::Sender<Option<String>>,
    /// How far the last upgrade of the agents is, as the cluster keeps it.
    pub upgrade: watch::Sender<Option<Upgrade>>,
    /// What is not as it should be though the role works.
    pub warnings: Mutex<Warnings>,
}

/// What is not as it should be though the role works.
#[derive(Default)]
pub struct Warnings {
    /// The clock here is another than the gateway's.
    clock: Option<String>,
    /// The custom resource cannot be written.
    resource: Option<String>,
}

impl Role for ResourceSyncAgent {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown
                .until_draining(async {
                    tokio::join!(self.tell(), self.show(), self.follow_upgrade());
                })
                .await;
        })
    }
}

impl ResourceSyncAgent {
    /// Sends a heartbeat on each change, and otherwise at the interval that the gateway gives. Never returns.
    async fn tell(&self) {
        let mut known = self.known.clone();
        let _ = tokio::time::timeout(FIRST_LOOK, known.wait_for(Option::is_some)).await;
        let mut backoff = Backoff::new(AGAIN);
        loop {
            self.api.up().await;
            known.mark_unchanged();
            let mut desired = self.desired.clone();
            desired.mark_unchanged();
            let mut upgrade = self.upgrade.subscribe();
            let mut health = self.health.changes();
            let told = self.heartbeat();
            let wait = match self.api.post::<HeartbeatAnswer>(paths::HEARTBEAT, &told).await {
                Ok(answer) => {
                    backoff.reset();
                    self.reporter.running();
                    let clock = clock_warning(self.clock.now(), &answer.received);
                    self.warn(|warnings| warnings.clock = clock);
                    self.last.send_replace(Some(answer.received));
                    if answer.renew_certificate {
                        self.identities.ask_renewal();
                    }
                    // The gateway's pace, spread a little so that agents that began together do not stay so.
                    Duration::from_secs(answer.next_in_seconds)
                        .clamp(SHORTEST, LONGEST)
                        .mul_f64(0.9 + random_unit() / 10.0)
                }
                Err(err) => self.failed(&err, &mut backoff),
            };
            tokio::time::sleep(SHORTEST.min(wait)).await;
            let changed = async {
                tokio::select! {
                    _ = known.changed() => {}
                    _ = desired.changed() => {}
                    _ = upgrade.changed() => {}
                    () = self.health_differs(&mut health, &told) => {}
                }
                tokio::time::sleep(TOGETHER).await;
            };
            let _ = tokio::time::timeout(wait.saturating_sub(SHORTEST), changed).await;
        }
    }

    fn warn(&self, change: impl FnOnce(&mut Warnings)) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut warnings);
        self.reporter.warnings([&warnings.clock, &warnings.resource].into_iter().flatten().cloned().collect());
    }

    fn failed(&self, err: &ApiError, backoff: &mut Backoff) -> Duration {
        let error = chain(err);
        tracing::debug!(error, "a heartbeat did not arrive");
        let reason = match err.refused() {
            Some(refused) if refused.status == 410 => "ResourceDeleted",
            Some(refused) if refused.status == 409 => "AlreadyConnected",
            Some(_) => "Refused",
            None => "Unreachable",
        };
        self.reporter.failing(reason, &error);
        let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
        // What is refused for good is asked as seldom as a heartbeat is sent at all.
        if matches!(reason, "ResourceDeleted" | "AlreadyConnected") {
            LONGEST
        } else {
            err.retry_after().unwrap_or(wait).max(wait)
        }
    }

    /// Completes when what a heartbeat says of the roles is no more what `told` said.
    async fn health_differs(&self, changes: &mut watch::Receiver<u64>, told: &Heartbeat) {
        loop {
            let now = self.heartbeat();
            if now.roles != told.roles || now.errors != told.errors {
                return;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// What there is to tell.
    fn heartbeat(&self) -> Heartbeat {
        let facts = self.known.borrow().clone().unwrap_or_default();
        let roles: BTreeMap<String, String> = self
            .health
            .all()
            .into_iter()
            .map(|(name, role)| (name.to_owned(), role.state.as_str().to_owned()))
            .collect();
        // That the gateway could not be reached is over when it reads so.
        let mut errors = resource::errors(&self.health, ERRORS_MAX);
        errors.retain(|error| error.component != NAME || error.severity == "Warning");
        Heartbeat {
            agent_version: daemon::release::version().to_owned(),
            kube_system_uid: facts.kube_system_uid,
            kubernetes_version: facts.kubernetes_version,
            total_node_count: facts.nodes,
            total_core_count: facts.cores,
            distribution: facts.distribution,
            distribution_version: facts.distribution_version,
            infrastructure: facts.infrastructure,
            platforms: facts.platforms,
            errors,
            roles,
            desired_revision: self.desired.borrow().as_ref().map_or(0, |desired| desired.revision),
            upgrade: self.upgrade.borrow().clone(),
        }
    }

    /// Reads how far an upgrade of the agents is, while one is wanted or was.
    async fn follow_upgrade(&self) {
        let Some(client) = &self.client else { return std::future::pending().await };
        let kept = Kept::new(client);
        let mut desired = self.desired.clone();
        loop {
            desired.mark_unchanged();
            let wanted = self.desired.borrow().as_ref().and_then(|desired| desired.agent_version.clone());
            let found = match kept.state().await {
                Ok(state) => Some(state.map(|state| state.told())),
                // The installation makes the object where upgrades are on, and gives the right to read it.
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                    Some(wanted.as_deref().and_then(|wanted| upgrades_are_off(wanted, self.clock.now())))
                }
                Err(err) => {
                    tracing::debug!(error = chain(&err), "how far an upgrade is, is not known");
                    None
                }
            };
            if let Some(found) = found {
                self.upgrade.send_if_modified(|known| {
                    let is_news = known.as_ref().map(without_time) != found.as_ref().map(without_time);
                    if is_news {
                        *known = found;
                    }
                    is_news
                });
            }
            if wanted.is_some() {
                tokio::time::sleep(UPGRADE).await;
            } else {
                let _ = tokio::time::timeout(LONGEST, desired.changed()).await;
            }
        }
    }

    /// Keeps the custom resource.
    async fn show(&self) {
        let Some(client) = &self.client else { return std::future::pending().await };
        let (mut known, mut last) = (self.known.clone(), self.last.subscribe());
        let mut identities = self.identities.subscribe();
        let mut health = self.health.changes();
        let mut backoff = Backoff::new(AGAIN);
        loop {
            known.mark_unchanged();
            last.mark_unchanged();
            identities.mark_unchanged();
            health.mark_unchanged();
            let facts: Facts = known.borrow().clone().unwrap_or_default();
            let shown = Shown {
                cluster: self.cluster.as_str(),
                facts: &facts,
                health: &self.health,
                identities: &self.identities,
                last_connectivity: last.borrow().clone(),
                desired_revision: self.desired.borrow().as_ref().map_or(0, |desired| desired.revision),
                now: self.clock.now(),
            };
            let wait = match resource::write(client, &shown).await {
                Ok(()) => {
                    backoff.reset();
                    self.warn(|warnings| warnings.resource = None);
                    SHORTEST
                }
                Err(problem) => {
                    tracing::debug!(problem, "the custom resource is not written");
                    self.warn(|warnings| warnings.resource = Some(problem));
                    SHORTEST.max(backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0))
                }
            };
            tokio::time::sleep(wait).await;
            let changed = async {
                tokio::select! {
                    _ = known.changed() => {}
                    _ = last.changed() => {}
                    _ = identities.changed() => {}
                    _ = health.changed() => {}
                }
            };
            let _ = tokio::time::timeout(RESOURCE, changed).await;
        }
    }
}

/// That another version is wanted in a cluster that does not upgrade its agents.
fn upgrades_are_off(wanted: &str, now: SystemTime) -> Option<Upgrade> {
    (wanted != daemon::release::version()).then(|| Upgrade {
        version: wanted.to_owned(),
        state: "Waiting".to_owned(),
        reason: "Off".to_owned(),
        message: format!(
            "the agents of this cluster do not upgrade themselves: towline connect again with --disable-auto-upgrade=false, or upgrade them to {wanted} by hand (towline upgrade; helm upgrade where helm installed them)"
        ),
        time: identity::spell(now),
    })
}

/// Everything but the time, which is another whenever it is looked.
fn without_time(upgrade: &Upgrade) -> [&str; 4] {
    [&upgrade.version, &upgrade.state, &upgrade.reason, &upgrade.message]
}

/// What to say of a clock that is further from the gateway's than tokens' times allow. It is not put right by the
/// gateway's: a hostile one would bring back tokens that have ended.
fn clock_warning(now: SystemTime, received: &str) -> Option<String> {
    let theirs = identity::parse(received).ok()?;
    let (ahead, by) = match now.duration_since(theirs) {
        Ok(by) => ("ahead of", by),
        Err(error) => ("behind", error.duration()),
    };
    // In minutes, for a text that changes with each heartbeat would be told with each.
    let minutes = by.as_secs() / 60;
    (minutes >= CLOCK_MINUTES).then(|| {
        format!(
            "the clock of the agent's node is {minutes} minutes {ahead} the gateway's: users' tokens and the times of roles are \
             judged by it, and refused as expired or not yet valid; set the time of the nodes (NTP)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x1_a_clock_a_day_off_is_told_and_a_minute_is_not() {
        let received = "2026-11-22T12:00:00Z";
        let at = identity::parse(received).unwrap();
        let told = |now| clock_warning(now, received);
        assert_eq!(told(at), None);
        assert_eq!(told(at + Duration::from_secs(119)), None);
        assert_eq!(told(at - Duration::from_secs(119)), None);
        assert!(told(at + Duration::from_secs(86_400)).unwrap().contains("1440 minutes ahead of the gateway's"));
        assert!(told(at - Duration::from_secs(86_400)).unwrap().contains("1440 minutes behind the gateway's"));
        assert_eq!(clock_warning(at, "yesterday"), None);
    }
}
