//! Pulls what the control plane wants of this cluster's agents and applies it: where cluster connect is
//! off, users' streams are refused and what is open ends, whoever is at the other end of the tunnel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use daemon::{Backoff, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use types::agent_api::{BODY_BYTES, Desired, paths};

use super::{Entry, Role, health::Reporter};
use crate::{
    chain,
    config::Deployment,
    tunnel::api::{AGAIN, AgentApi},
};

/// This role's name.
pub const NAME: &str = "config-agent";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: Deployment::ALL,
    build: |parts| {
        let health = parts.health.of(NAME);
        Ok(Some(Arc::new(ConfigAgent::new(parts.api.clone(), parts.wanted.clone(), health))))
    },
};

/// Between two questions, however soon the gateway answers.
const PAUSE: Duration = Duration::from_millis(500);
/// An answer that came sooner than this, and brought nothing new, is from a gateway that does not wait: it is asked
/// seldom.
const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_secs(30);

/// What is wanted, shared. Before the first answer nothing is known, and users are let through: the gateway, which says
/// what is wanted, lets nobody through that it does not want.
#[derive(Debug, Clone)]
pub struct Wanted {
    desired: watch::Sender<Option<Desired>>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { desired: watch::Sender::new(None) }
    }
}

impl Wanted {
    /// What is wanted, and changes of it.
    pub fn desired(&self) -> watch::Receiver<Option<Desired>> {
        self.desired.subscribe()
    }

    /// This is wanted from now on.
    pub fn set(&self, desired: Desired) {
        self.desired.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&desired);
            *known = Some(desired);
            changed
        });
    }

    /// Whether users may come through.
    pub fn lets_users_through(&self) -> bool {
        self.desired.borrow().as_ref().is_none_or(|desired| desired.cluster_connect)
    }

    /// Completes when users may not come through.
    pub async fn users_shut_out(&self) {
        let mut desired = self.desired.subscribe();
        let out = |desired: &Option<Desired>| desired.as_ref().is_some_and(|desired| !desired.cluster_connect);
        if desired.wait_for(out).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Pulls the desired state of the agents from the gateway, and publishes it to the other roles.
pub struct ConfigAgent {
    api: AgentApi,
    wanted: Wanted,
    health: Reporter,
}

impl ConfigAgent {
    /// Asks over the tunnel.
    pub fn new(api: AgentApi, wanted: Wanted, health: Reporter) -> Self {
        Self { api, wanted, health }
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(AGAIN);
        loop {
            self.api.up().await;
            let known = self.wanted.desired().borrow().as_ref().map(|desired| desired.revision);
            let path = match known {
                Some(revision) => format!("{}?after={revision}", paths::DESIRED),
                None => paths::DESIRED.to_owned(),
            };
            let asked = Instant::now();
            let wait = match self.api.poll::<Desired>(&path, BODY_BYTES).await {
                Ok(news) => {
                    backoff.reset();
                    self.health.running();
                    let new = news.as_ref().is_some_and(|desired| known != Some(desired.revision));
                    if let Some(desired) = news {
                        self.apply(desired);
                    }
                    if new || asked.elapsed() >= PATIENT { PAUSE } else { IMPATIENT }
                }
                Err(err) => {
                    let error = chain(&err);
                    tracing::debug!(error, "what is wanted of this cluster is not known");
                    self.health.failing("Unreachable", &error);
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                    err.retry_after().unwrap_or(wait).max(wait)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    fn apply(&self, desired: Desired) {
        let before = self.wanted.lets_users_through();
        let (revision, now) = (desired.revision, desired.cluster_connect);
        self.wanted.set(desired);
        if before != now {
            tracing::info!(revision, cluster_connect = now, "whether users may come through has changed");
        }
    }
}

impl Role for ConfigAgent {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(self.work()).await;
        })
    }
}
