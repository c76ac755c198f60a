//! Looks for what has happened to clusters, and tells who listens ([`crate::events`]).

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use serde_json::json;
use tokio::time::MissedTickBehavior;
use types::{agent_api::Upgrade, ids::ClusterId};

use super::Control;
use crate::{
    cluster::upgrade::{self, State},
    metrics::Metrics,
    skew,
    store::events::{Kind, OfAgents},
};

/// How often it is looked for what has happened: silence has no event of its own.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Control {
    /// Tells what happens until the gateway drains; then streams of events end, so that nobody waits for them.
    pub async fn tell(self: Arc<Self>, shutdown: Shutdown) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.draining() => {
                    self.notices.end();
                    return;
                }
                _ = look.tick() => {}
            }
            self.tell_once().await;
        }
    }

    /// Tells what has happened by now.
    pub async fn tell_once(&self) {
        // The newest number is also that of what other replicas told.
        match self.store.tell_all(self.now_ms()).await {
            Ok((_, newest)) => self.notices.tell_newest(newest),
            Err(error) => {
                tracing::error!(%error, "what has happened to clusters cannot be told");
                if let Ok(newest) = self.store.newest_event().await {
                    self.notices.tell_newest(newest);
                }
            }
        }
    }
}

/// Tells that the version of a cluster's agents fits the gateway otherwise than was told last, if it does. A failure is
/// logged: the next hello or heartbeat finds the same difference.
pub async fn of_version(control: &Control, cluster: &ClusterId, version: &str) {
    if control.snapshot().stored(&cluster.key()).is_none() {
        return;
    }
    let skew = skew::judge(version);
    let detail = json!({"agentVersion": shown(version), "gatewayVersion": skew::OWN});
    let told = OfAgents { kind: Kind::AgentVersion, status: skew.event(), mark: skew.event(), detail };
    match control.store.tell_of_agents(cluster.as_str(), &told, control.now_ms()).await {
        Ok(true) => {
            tracing::info!(cluster.id = %cluster, agent.version = shown(version), fits = skew.event(), "the version of a cluster's agents fits otherwise than before");
        }
        Ok(false) => {}
        Err(error) => tracing::warn!(cluster.id = %cluster, %error, "an event of a cluster's agents cannot be kept"),
    }
}

/// Tells how far an upgrade of a cluster's agents is, unless that was told last.
pub async fn of_upgrade(control: &Control, metrics: &Metrics, cluster: &ClusterId, upgrade: &Upgrade) {
    let state = State::of(upgrade).as_str();
    let detail = json!({"agentVersion": upgrade.version, "reason": upgrade.reason, "message": upgrade.message});
    let mark = upgrade::mark(upgrade);
    let told = OfAgents { kind: Kind::AgentUpgrade, status: state, mark: &mark, detail };
    match control.store.tell_of_agents(cluster.as_str(), &told, control.now_ms()).await {
        Ok(true) => {
            metrics.upgrade_told(state);
            tracing::info!(cluster.id = %cluster, agent.version = upgrade.version, state, reason = upgrade.reason, message = upgrade.message, "a cluster tells of an upgrade of its agents");
        }
        Ok(false) => {}
        Err(error) => tracing::warn!(cluster.id = %cluster, %error, "an event of an upgrade cannot be kept"),
    }
}

/// A version that a peer named, short enough for people.
fn shown(version: &str) -> String {
    version.chars().filter(|c| !c.is_control()).take(40).collect()
}
