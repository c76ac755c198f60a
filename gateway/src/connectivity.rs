//! Whether clusters' agents are there: computed when it is read, from instants that the store keeps, so
//! that it is right after a restart and whoever asks. Instants are this gateway's own; what an agent says of the time
//! is not listened to.

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use tokio::time::MissedTickBehavior;

use crate::{
    cluster::ClusterRef,
    control::Control,
    fleet::registry::{Registry, Touched},
    store::agents::{Agent, OFFLINE_AFTER_MS},
};

/// How often the clusters whose tunnels are up are looked at, all together. Those that no replica has kept as seen for
/// [`SEEN_AGAIN_AFTER_MS`](crate::store::agents::SEEN_AGAIN_AFTER_MS) are written.
const SEEN_EVERY: Duration = Duration::from_secs(60);
/// Time between two of these writes: thousands of agents that come back within seconds are a few transactions and not
/// one each, while users' requests wait for the same processor.
pub const APART: Duration = Duration::from_millis(250);

/// A cluster's `connectivityStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Registered, and never seen.
    Connecting,
    /// Seen less than 15 minutes ago.
    Connected,
    /// Not seen for 15 minutes or longer.
    Offline,
    /// The certificate of its identity has ended: it cannot come back before it is connected anew (C4).
    Expired,
    /// The resource has no key that an agent could come with (C5).
    AgentNotInstalled,
}

impl Status {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "Connecting",
            Self::Connected => "Connected",
            Self::Offline => "Offline",
            Self::Expired => "Expired",
            Self::AgentNotInstalled => "AgentNotInstalled",
        }
    }

    /// Of what is kept; `live` if a tunnel of the cluster is up here, which may be ahead of what is kept.
    pub fn of(agent: &Agent, live: bool, now_ms: i64) -> Self {
        if agent.certificate.as_ref().is_some_and(|certificate| certificate.ends_ms <= now_ms) {
            Self::Expired
        } else if live || Self::is_lately(agent, now_ms) {
            Self::Connected
        } else if agent.agentless {
            Self::AgentNotInstalled
        } else if agent.last_seen_ms.is_none() {
            Self::Connecting
        } else {
            Self::Offline
        }
    }

    /// Whether it was seen less than 15 minutes ago.
    pub fn is_lately(agent: &Agent, now_ms: i64) -> bool {
        agent.last_seen_ms.is_some_and(|at| now_ms.saturating_sub(at) < OFFLINE_AFTER_MS)
    }
}

/// Keeps in the store which clusters' tunnels are up: at once when one comes or goes, with all that did so in the
/// [`APART`] after the write before, and every four to five minutes while they are up, until the gateway stops.
pub async fn keep(control: Arc<Control>, tunnels: Arc<Registry>, shutdown: Shutdown) {
    if let Err(error) = control.store.forget_future(control.now_ms()).await {
        tracing::error!(%error, "signs of life of the future cannot be taken back");
    }
    let mut every = tokio::time::interval(SEEN_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let last = tokio::select! {
            biased;
            () = shutdown.closed() => true,
            () = tunnels.changed() => false,
            _ = every.tick() => {
                tunnels.all().iter().for_each(|tunnel| tunnels.note(&tunnel.cluster));
                false
            }
        };
        if last {
            tunnels.all().iter().for_each(|tunnel| tunnels.touch(&tunnel.cluster));
        }
        let snapshot = control.snapshot();
        // A tunnel of a cluster that was deleted and created again is no sign of life of the new one, nor is one of a
        // cluster of the configuration.
        let same = |cluster: &ClusterRef| {
            let now = snapshot.stored(&cluster.key);
            now.is_some_and(|now| now.agents.principal() == cluster.agents.principal())
        };
        let touched = tunnels.take_touched();
        let (moved, stayed): (Vec<_>, Vec<_>) =
            touched.into_iter().filter(|one| same(&one.cluster)).partition(|one| one.moved);
        let keys = |some: Vec<Touched>| some.into_iter().map(|one| one.cluster.id.to_string()).collect::<Vec<_>>();
        let (moved, stayed) = (keys(moved), keys(stayed));
        let kept = control.store.seen_again(&stayed, control.now_ms()).await;
        if let Err(error) = kept.and(control.store.seen(&moved, control.now_ms()).await) {
            let clusters = moved.len() + stayed.len();
            tracing::error!(%error, clusters, "signs of life cannot be kept; the next minute's are");
        }
        if last {
            return;
        }
        if !moved.is_empty() {
            // Closed or not, the next round finds out.
            let _ = shutdown.until_closed(tokio::time::sleep(APART)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::Certified;

    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;

    fn seen(last_seen_ms: Option<i64>) -> Agent {
        Agent { last_seen_ms, first_seen_ms: last_seen_ms, ..Agent::default() }
    }

    #[test]
    fn c2_connected_until_14_59_and_c3_offline_from_15_00_on() {
        let agent = seen(Some(DAY));
        for (after, status) in [
            (0, Status::Connected),
            (14 * MINUTE + 59_000, Status::Connected),
            (15 * MINUTE - 1, Status::Connected),
            (15 * MINUTE, Status::Offline),
            (40 * DAY, Status::Offline),
        ] {
            assert_eq!(Status::of(&agent, false, DAY + after), status, "{after} ms after");
        }
        assert_eq!(Status::of(&agent, true, 40 * DAY), Status::Connected, "a tunnel is up");
    }

    #[test]
    fn c6_a_sign_of_life_of_the_future_is_one_of_now() {
        assert_eq!(Status::of(&seen(Some(2 * DAY)), false, DAY), Status::Connected);
        assert_eq!(Status::of(&seen(Some(i64::MAX)), false, i64::MIN), Status::Connected);
    }

    #[test]
    fn c1_connecting_until_first_seen_and_c5_agent_not_installed_without_a_key() {
        assert_eq!(Status::of(&seen(None), false, DAY), Status::Connecting);
        let agentless = Agent { agentless: true, ..Agent::default() };
        assert_eq!(Status::of(&agentless, false, DAY), Status::AgentNotInstalled);
        let silent = Agent { agentless: true, ..seen(Some(1)) };
        assert_eq!(Status::of(&silent, false, DAY), Status::AgentNotInstalled);
    }

    #[test]
    fn c4_expired_over_all_on_day_90_of_a_certificate() {
        let certificate =
            Some(Certified { begins_ms: 0, ends_ms: 90 * DAY, serial: "1".to_owned(), key: String::new() });
        for (day, status) in
            [(45, Status::Connected), (89, Status::Connected), (90, Status::Expired), (91, Status::Expired)]
        {
            let agent = Agent { certificate: certificate.clone(), ..seen(Some(day * DAY)) };
            assert_eq!(Status::of(&agent, true, day * DAY), status, "day {day}");
        }
        let agentless = Agent { agentless: true, certificate, ..Agent::default() };
        assert_eq!(Status::of(&agentless, false, 90 * DAY), Status::Expired);
        assert_eq!(Status::of(&agentless, false, 90 * DAY - 1), Status::AgentNotInstalled);
    }
}
