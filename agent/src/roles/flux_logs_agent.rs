//! Sends what Flux's controllers log of flux configurations to the gateway (docs/features.md D5): tails the controllers'
//! pods, tells by the configurations in the cluster whose line is whose, takes out what looks like a secret, and ships the
//! rest behind users' traffic. A line of nobody's configuration does not leave the cluster.
//!
//! Every line has a position: its instant and its number among those of that instant, by pod. The gateway takes each
//! position once and says at the start up to where it has the lines, so that nothing is doubled by a restart of the agent,
//! of a controller or of the gateway. Lines beyond a bound are counted, and the next line says how many were left out.
//!
//! | part | what it does |
//! |---|---|
//! | [`line`] | bytes into lines, and a line into what it says |
//! | [`owners`] | whose object a line is about |
//! | [`pods`] | the controllers' pods, and watching kinds |
//! | [`ring`] | what waits to be sent, within bounds |
//! | [`tail`] | reads one pod to its end, over restarts and broken connections |

pub mod line;
pub mod owners;
pub mod pods;
pub mod ring;
pub mod tail;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit, redact::redact};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use kube::Client;
use types::agent_api::{LOG_MESSAGE_BYTES, LogLine, LogLines, LogPosition, LogPositions, paths};

use self::{
    line::Said,
    owners::Owners,
    pods::{Controller, Pods},
    ring::Ring,
};
use super::{Entry, Role, fluxconfig_agent::SetupError, health::Reporter};
use crate::{
    chain,
    config::{Deployment, RoleSet},
    identity::clock::SharedClock,
    metrics,
    tunnel::api::AgentApi,
};

/// This role's name.
pub const NAME: &str = Deployment::FluxLogsAgent.name();

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::FluxLogsAgent],
    build: |parts| {
        // A process with all roles has this one where it makes flux configurations.
        if parts.config.roles == RoleSet::All && parts.config.gitops.is_none() {
            return Ok(None);
        }
        let client = parts.kubernetes.clone().ok_or(SetupError::NoApiserver)?;
        Ok(Some(Arc::new(FluxLogsAgent::new(client, parts.api.clone(), parts.health.of(NAME), parts.clock.clone()))))
    },
};

/// Where Flux's controllers are: the chart microsoft.flux is installed there alone.
const FLUX_NAMESPACE: &str = "flux-system";
/// Pods that are read at once. Flux has four, and as many more while they are replaced.
const PODS_MAX: usize = 16;
/// Bytes of a message that are looked through for secrets; what is behind them is not sent.
const REDACTED_BYTES: usize = 2 * LOG_MESSAGE_BYTES;
/// How long the start waits for the gateway to say which lines it has. Later it takes none twice either.
const POSITIONS_WAIT: Duration = Duration::from_secs(30);
/// Bytes of that answer: 64 sources.
const POSITIONS_BYTES: usize = 64 * 1024;
/// Waits after lines that did not arrive.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(2),
    quick_cap: Duration::from_secs(10),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(300),
    steady_after: Duration::from_secs(60),
};

/// Reads the logs of Flux's controllers and sends the gateway the lines that concern configurations of this cluster.
pub struct FluxLogsAgent {
    client: Client,
    api: AgentApi,
    health: Reporter,
    clock: SharedClock,
    owners: Owners,
    pods: Pods,
    ring: Ring,
    taken: OnceLock<LogPositions>,
}

impl FluxLogsAgent {
    /// By that client, whose namespace is the agents'.
    pub fn new(client: Client, api: AgentApi, health: Reporter, clock: SharedClock) -> Self {
        let (owners, pods, ring) = (Owners::default(), Pods::default(), Ring::default());
        Self { client, api, health, clock, owners, pods, ring, taken: OnceLock::new() }
    }

    async fn work(&self) {
        let boxed: [BoxFuture<'_, ()>; 4] = [
            Box::pin(self.owners.run(&self.client, &self.health)),
            Box::pin(self.pods.run(&self.client, FLUX_NAMESPACE, &self.health)),
            Box::pin(self.tails()),
            Box::pin(self.ship()),
        ];
        futures_util::future::join_all(boxed).await;
    }

    /// Asks the gateway up to where it has the lines.
    async fn positions(&self) -> LogPositions {
        loop {
            self.api.up().await;
            match self.api.poll(paths::OBJECT_LOGS, POSITIONS_BYTES).await {
                Ok(known) => return known.unwrap_or_default(),
                Err(err) => tracing::debug!(error = chain(&err), "the gateway does not say which log lines it has"),
            }
            tokio::time::sleep(AGAIN.first).await;
        }
    }

    /// Reads every controller's pod for as long as it is there.
    async fn tails(&self) {
        let taken = tokio::time::timeout(POSITIONS_WAIT, self.positions()).await.unwrap_or_default();
        let _ = self.taken.set(taken);
        // Whose is whose is known before the first line.
        self.owners.known().await;
        let mut changes = self.pods.changes();
        let (mut reading, mut read) = (BTreeSet::new(), FuturesUnordered::new());
        loop {
            for uid in self.pods.uids() {
                if reading.len() < PODS_MAX && reading.insert(uid.clone()) {
                    let one: BoxFuture<'_, String> = Box::pin(async move {
                        tail::run(self, &uid).await;
                        uid
                    });
                    read.push(one);
                }
            }
            tokio::select! {
                Some(uid) = read.next(), if !read.is_empty() => drop(reading.remove(&uid)),
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Up to where the gateway had the lines of a pod when this process began.
    fn taken_of(&self, uid: &str) -> Option<LogPosition> {
        self.taken.get().and_then(|taken| taken.sources.get(uid).copied())
    }

    /// A line of a controller, with its position among those of its pod.
    fn take(&self, controller: &Controller, position: LogPosition, text: &[u8]) {
        let Some(said) = Said::read(text) else { return metrics::flux_log_line("unreadable") };
        let Some(id) = self.owners.of(&said.kind, &said.namespace, &said.name) else {
            return metrics::flux_log_line("nobodys");
        };
        if !self.ring.admits(&id, position.nanos) {
            return metrics::flux_log_line("too_many");
        }
        metrics::flux_log_line("taken");
        self.ring.push(LogLine {
            id,
            source: controller.uid.clone(),
            position,
            level: said.level,
            controller: controller.name.to_owned(),
            kind: said.kind,
            namespace: said.namespace,
            name: said.name,
            message: told(&said.message),
            left_out: 0,
        });
    }

    /// Sends what waits.
    async fn ship(&self) {
        let mut backoff = Backoff::new(AGAIN);
        loop {
            self.ring.some().await;
            self.api.up().await;
            let lines = self.ring.batch();
            let told = LogLines { lines };
            let Ok(body) = serde_json::to_vec(&told) else { continue };
            match self.api.bulk(paths::OBJECT_LOGS, "application/json", body.into()).await {
                Ok(()) => {
                    metrics::pushed("flux_logs", true);
                    backoff.reset();
                }
                Err(err) => {
                    metrics::pushed("flux_logs", false);
                    tracing::debug!(error = chain(&err), "log lines of Flux were not sent");
                    self.ring.put_back(told.lines);
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                    tokio::time::sleep(err.retry_after().unwrap_or(wait).max(wait)).await;
                }
            }
        }
    }
}

/// A message as it leaves the cluster. A word that the bound would cut is left out: half a secret is not known as one.
fn told(message: &str) -> String {
    let mut text = message;
    if text.len() > REDACTED_BYTES {
        text = &text[..text.floor_char_boundary(REDACTED_BYTES)];
        text = &text[..text.rfind(char::is_whitespace).unwrap_or(0)];
    }
    let mut text = redact(text);
    text.truncate(text.floor_char_boundary(LOG_MESSAGE_BYTES));
    text
}

impl Role for FluxLogsAgent {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut work: BoxFuture<'_, ()> = Box::pin(self.work());
            let _ = shutdown.until_draining(&mut work).await;
        })
    }
}
