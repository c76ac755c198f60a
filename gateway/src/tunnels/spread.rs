//! Has agents dial anew where that spreads tunnels over replicas: an agent that was told of no other replica when it
//! dialled, and agents of a replica that has far more tunnels than the others. Only with `[replicas]`.
//!
//! A tunnel is asked to drain. The agent then dials the shared address again, and moves once the new tunnel is up;
//! streams go on on the old one until they end. Few are asked at a time, so that a new replica is not flooded with
//! handshakes. Where the address leads an agent to the same replica again, nothing is gained by asking: a replica whose
//! share does not fall asks more and more seldom.

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use tokio::time::MissedTickBehavior;
use tunnel::wire::close::CloseCode;
use types::version::Features;

use crate::{
    fleet::registry::{LiveTunnel, Registry},
    replicas::Replicas,
};

/// How often tunnels are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// One look asks one in `ONE_IN` of all tunnels: all of them within a minute.
const ONE_IN: usize = 30;
/// Agents dial within this time of being asked.
const RECONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Tunnels that a replica may have beside a fifth more than its share before it gives any away.
const SLACK: usize = 16;
/// Looks between two rounds of giving away, at first and at most: a minute, about an hour.
const ROUND: u32 = 30;
const ROUND_MOST: u32 = 1800;

/// What is remembered between looks.
#[derive(Debug)]
pub struct Spread {
    /// Tunnels that are still to be given away in this round.
    left: usize,
    /// What was too much when the round began.
    surplus: usize,
    /// Looks until the next round.
    wait: u32,
    /// Looks between rounds.
    round: u32,
}

impl Default for Spread {
    fn default() -> Self {
        Self { left: 0, surplus: 0, wait: ROUND, round: ROUND }
    }
}

/// How many tunnels a replica has too many, of its own, of all others', and how many others there are.
fn surplus(own: usize, elsewhere: usize, others: usize) -> usize {
    let share = (own + elsewhere).div_ceil(others + 1);
    if own > share + share / 5 + SLACK { own - share } else { 0 }
}

impl Spread {
    /// Spreads tunnels until the gateway drains.
    pub async fn run(mut self, replicas: Arc<Replicas>, tunnels: Arc<Registry>, shutdown: Shutdown) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.draining() => return,
                _ = look.tick() => {}
            }
            let others = replicas.others().len();
            if others == 0 {
                self = Self::default();
                continue;
            }
            let all: Vec<_> = tunnels.all().into_iter().filter(|tunnel| takes_users(tunnel)).collect();
            let too_many = self.due().then(|| surplus(all.len(), replicas.users_tunnels_elsewhere(), others));
            for tunnel in self.choose(all, too_many) {
                tracing::debug!(
                    cluster.id = %tunnel.cluster.id, tunnel = tunnel.id(),
                    "an agent is asked to dial anew, so that tunnels spread over replicas"
                );
                tunnel.set_draining();
                tunnel.handle.drain(CloseCode::Elsewhere, RECONNECT_WITHIN);
            }
        }
    }

    /// Whether a round of giving away begins with this look.
    fn due(&mut self) -> bool {
        self.wait = self.wait.saturating_sub(1);
        self.wait == 0
    }

    /// The tunnels that are asked now; `too_many` where a round begins.
    fn choose(&mut self, all: Vec<Arc<LiveTunnel>>, too_many: Option<usize>) -> Vec<Arc<LiveTunnel>> {
        if let Some(too_many) = too_many {
            // A quarter less than last time is worth the agents' dials.
            let helped = too_many == 0 || self.surplus == 0 || too_many <= self.surplus - self.surplus / 4;
            self.round = if helped { ROUND } else { (self.round * 2).min(ROUND_MOST) };
            (self.wait, self.surplus, self.left) = (self.round, too_many, too_many);
        }
        let mut now = all.len().div_ceil(ONE_IN);
        let mut asked = Vec::new();
        // Not the same first each time: the registry has no order that lasts.
        for tunnel in all {
            if now == 0 {
                break;
            }
            let alone = was_told_of_none(&tunnel);
            if alone || self.left > 0 {
                now -= 1;
                if !alone {
                    self.left -= 1;
                }
                asked.push(tunnel);
            }
        }
        asked
    }
}

/// Whether it is one that users' requests take, and that goes on.
fn takes_users(tunnel: &LiveTunnel) -> bool {
    !tunnel.is_draining() && !tunnel.handle.info().features.contains(Features::NO_USERS)
}

/// Whether its agent was told at the hello that there is no other replica.
fn was_told_of_none(tunnel: &LiveTunnel) -> bool {
    tunnel.handle.info().replica.as_deref().is_some_and(|replica| replica.of < 2)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tunnel::{
        transport::{CarrierKind, TunnelHandle, memory},
        wire::hello::Replica,
    };

    use super::*;
    use crate::{
        cluster::{Cluster, Named},
        fleet::registry::Registered,
    };

    struct Fleet {
        registry: Arc<Registry>,
        _held: Vec<(Registered, TunnelHandle)>,
    }

    /// A number of tunnels, whose agents were told of `of` replicas.
    async fn fleet(tunnels: usize, of: u32) -> Fleet {
        let (registry, mut held) = (Arc::<Registry>::default(), Vec::new());
        for number in 0..tunnels {
            let id =
                format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c{number}");
            let replica = Replica { name: Bytes::from_static(b"a"), of };
            let (gateway, agent) = memory::pair_at(CarrierKind::Memory, replica).await;
            let cluster = Cluster::new(id.parse().unwrap());
            held.push((registry.add(gateway, cluster, Named::default(), None), agent));
        }
        Fleet { registry, _held: held }
    }

    #[test]
    fn t7_what_a_replica_has_too_many_is_more_than_a_fifth_above_its_share() {
        assert_eq!(surplus(1000, 0, 1), 500, "the other one has just started");
        assert_eq!(surplus(500, 500, 1), 0);
        assert_eq!(surplus(600, 400, 1), 0);
        assert_eq!(surplus(617, 383, 1), 117);
        assert_eq!(surplus(20, 0, 2), 0, "a handful is not worth it");
        assert_eq!(surplus(600, 300, 2), 300);
    }

    #[tokio::test]
    async fn t7_agents_that_were_told_of_no_other_replica_are_asked_few_at_a_time() {
        let alone = fleet(90, 1).await;
        let mut spread = Spread::default();
        assert_eq!(spread.choose(alone.registry.all(), None).len(), 3);
        let told = fleet(90, 2).await;
        assert!(spread.choose(told.registry.all(), None).is_empty());
    }

    #[tokio::test]
    async fn t7_a_surplus_is_given_away_once_a_round_and_more_seldom_while_that_does_not_help() {
        let fleet = fleet(90, 2).await;
        let mut spread = Spread::default();
        assert_eq!(spread.choose(fleet.registry.all(), Some(5)).len(), 3);
        assert_eq!(spread.choose(fleet.registry.all(), None).len(), 2);
        assert!(spread.choose(fleet.registry.all(), None).is_empty(), "until the next round");
        let mut rounds = Vec::new();
        for _ in 0..8 {
            spread.choose(fleet.registry.all(), Some(5));
            rounds.push(spread.wait);
        }
        assert_eq!(rounds, [60, 120, 240, 480, 960, 1800, 1800, 1800]);
        spread.choose(fleet.registry.all(), Some(3));
        assert_eq!(spread.wait, ROUND, "it helped");
        let looks = (1..).find(|_| spread.due()).unwrap();
        assert_eq!(looks, ROUND);
    }
}
