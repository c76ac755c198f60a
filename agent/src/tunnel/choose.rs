//! Which carriers to try and in which order: pure decisions, the clock comes in. What worked is remembered per network
//! (the gateway and the local address used to reach it), so that a laptop-like agent that moves, or one that comes back
//! after an outage, begins with what worked there.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use tunnel::transport::CarrierKind;

use crate::config::CarrierChoice;

/// How long QUIC alone is tried before TCP joins the race, where QUIC may work.
pub const HEAD_START: Duration = Duration::from_millis(250);
/// The first probe of QUIC after TCP took over, and how much longer each next one waits, up to the longest.
const PROBE_FIRST: Duration = Duration::from_secs(5);
const PROBE_LONGEST: Duration = Duration::from_secs(25);
/// Time for which QUIC is left alone after its goodput collapsed; doubles with each collapse, up to `PENALTY_LONGEST`.
const PENALTY_FIRST: Duration = Duration::from_secs(120);
const PENALTY_LONGEST: Duration = Duration::from_secs(3600);
/// QUIC tunnels that came up and fell silent within `DEATHS_WITHIN`, which together count as a collapse.
const DEATHS_MAX: usize = 3;
const DEATHS_WITHIN: Duration = Duration::from_secs(300);
/// Within this time one death is told twice: the silence, and then the end.
const SAME_OUTAGE: Duration = Duration::from_secs(20);
/// Time that QUIC must have worked before a collapse for the penalty to begin with the first one again.
const FORGIVEN: Duration = Duration::from_secs(1800);
/// Networks remembered at once.
const NETWORKS_MAX: usize = 16;

/// Where the agent is and where it wants to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Network {
    /// `host:port` of the gateway.
    pub gateway: String,
    /// The local address that packets to it leave from, if known.
    pub local: Option<IpAddr>,
}

/// What is known of the carriers on one network.
#[derive(Debug, Clone)]
struct Known {
    /// The TCP carrier that worked last.
    tcp: Option<CarrierKind>,
    /// Whether QUIC worked the last time it was tried; none: never tried.
    quic: Option<bool>,
    penalty: Duration,
    /// Since when QUIC works.
    quic_since: Option<Instant>,
    quic_not_before: Option<Instant>,
    probe: Duration,
    /// When QUIC tunnels died lately; at most [`DEATHS_MAX`].
    deaths: Vec<Instant>,
    used: Instant,
}

impl Known {
    fn new(now: Instant) -> Self {
        Self {
            tcp: None,
            quic: None,
            penalty: PENALTY_FIRST,
            quic_since: None,
            quic_not_before: None,
            probe: PROBE_FIRST,
            deaths: Vec::new(),
            used: now,
        }
    }
}

/// The next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Whether QUIC takes part.
    pub quic: bool,
    /// How long QUIC is alone.
    pub head_start: Duration,
    /// TCP carriers in turn.
    pub tcp: Vec<CarrierKind>,
}

/// Memory of what worked.
#[derive(Debug)]
pub struct Chooser {
    choice: CarrierChoice,
    networks: HashMap<Network, Known>,
}

impl Chooser {
    /// Nothing known yet.
    pub fn new(choice: CarrierChoice) -> Self {
        Self { choice, networks: HashMap::new() }
    }

    /// What to try on this network. Behind a proxy there is no QUIC.
    pub fn plan(&mut self, network: &Network, proxied: bool, now: Instant) -> Plan {
        match self.choice {
            CarrierChoice::Pinned(CarrierKind::Quic) => {
                Plan { quic: true, head_start: Duration::ZERO, tcp: Vec::new() }
            }
            CarrierChoice::Pinned(carrier) => Plan { quic: false, head_start: Duration::ZERO, tcp: vec![carrier] },
            CarrierChoice::Auto => {
                let known = self.known(network, now);
                let quic = !proxied && known.quic_not_before.is_none_or(|then| now >= then);
                let head_start = if quic && known.quic != Some(false) { HEAD_START } else { Duration::ZERO };
                let tcp = if known.tcp == Some(CarrierKind::WebSocket) {
                    vec![CarrierKind::WebSocket, CarrierKind::Http2]
                } else {
                    vec![CarrierKind::Http2, CarrierKind::WebSocket]
                };
                Plan { quic, head_start, tcp }
            }
        }
    }

    /// A carrier came up.
    pub fn worked(&mut self, network: &Network, carrier: CarrierKind, now: Instant) {
        let known = self.known(network, now);
        match carrier {
            CarrierKind::Quic => {
                known.quic = Some(true);
                known.quic_since = Some(now);
                known.probe = PROBE_FIRST;
            }
            other => known.tcp = Some(other),
        }
    }

    /// QUIC did not come up.
    pub fn quic_failed(&mut self, network: &Network, now: Instant) {
        self.known(network, now).quic = Some(false);
    }

    /// A tunnel that was up fell silent. TCP is tried beside QUIC at once; a path where QUIC comes up again and again
    /// only to fall silent (most packets lost) is one where it does not work.
    pub fn died(&mut self, network: &Network, carrier: CarrierKind, now: Instant) {
        if carrier != CarrierKind::Quic {
            return;
        }
        let known = self.known(network, now);
        known.quic = Some(false);
        known.deaths.retain(|death| now.duration_since(*death) < DEATHS_WITHIN);
        if known.deaths.last().is_none_or(|last| now.duration_since(*last) >= SAME_OUTAGE) {
            known.deaths.push(now);
        }
        if known.deaths.len() >= DEATHS_MAX {
            known.deaths.clear();
            self.collapsed(network, carrier, now);
        }
    }

    /// A carrier's goodput collapsed: QUIC is left alone for a while.
    pub fn collapsed(&mut self, network: &Network, carrier: CarrierKind, now: Instant) {
        let known = self.known(network, now);
        if carrier == CarrierKind::Quic {
            known.quic = Some(false);
            if known.quic_since.take().is_some_and(|since| now.duration_since(since) >= FORGIVEN) {
                known.penalty = PENALTY_FIRST;
            }
            known.quic_not_before = Some(now + known.penalty);
            known.penalty = (known.penalty * 2).min(PENALTY_LONGEST);
        } else {
            // TCP fares no better: whatever ails the path, QUIC copes best with loss.
            known.quic = None;
            known.quic_not_before = None;
        }
    }

    /// Whether there is another carrier to leave for.
    pub fn has_choice(&self) -> bool {
        self.choice == CarrierChoice::Auto
    }

    /// When to probe QUIC next, while on another carrier. `None`: never.
    pub fn next_probe(
        &mut self,
        network: &Network,
        current: CarrierKind,
        proxied: bool,
        now: Instant,
    ) -> Option<Duration> {
        if self.choice != CarrierChoice::Auto || current == CarrierKind::Quic || proxied {
            return None;
        }
        let known = self.known(network, now);
        let wait = known.probe;
        known.probe = (known.probe * 2).min(PROBE_LONGEST);
        let penalty = known.quic_not_before.map_or(Duration::ZERO, |then| then.saturating_duration_since(now));
        Some(wait.max(penalty))
    }

    fn known(&mut self, network: &Network, now: Instant) -> &mut Known {
        if !self.networks.contains_key(network) && self.networks.len() >= NETWORKS_MAX {
            let oldest = self.networks.iter().min_by_key(|(_, known)| known.used).map(|(network, _)| network.clone());
            if let Some(oldest) = oldest {
                self.networks.remove(&oldest);
            }
        }
        let known = self.networks.entry(network.clone()).or_insert_with(|| Known::new(now));
        known.used = now;
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(last: u8) -> Network {
        Network { gateway: "gw:443".to_owned(), local: Some(IpAddr::from([192, 0, 2, last])) }
    }

    #[test]
    fn quic_has_a_head_start_until_it_fails_and_what_worked_comes_first() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        let first = chooser.plan(&network(1), false, now);
        assert_eq!(
            first,
            Plan { quic: true, head_start: HEAD_START, tcp: vec![CarrierKind::Http2, CarrierKind::WebSocket] }
        );
        chooser.quic_failed(&network(1), now);
        chooser.worked(&network(1), CarrierKind::WebSocket, now);
        let next = chooser.plan(&network(1), false, now);
        assert!(next.quic && next.head_start.is_zero());
        assert_eq!(next.tcp[0], CarrierKind::WebSocket);
        assert_eq!(chooser.plan(&network(2), false, now), first, "another network is another story");
        assert!(!chooser.plan(&network(1), true, now).quic, "no QUIC through a proxy");
    }

    #[test]
    fn quic_is_probed_at_least_twice_a_minute_but_not_soon_after_a_collapse() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        for _ in 0..10 {
            let wait = chooser.next_probe(&network(1), CarrierKind::Http2, false, now).unwrap();
            assert!(wait <= Duration::from_secs(25), "{wait:?}");
        }
        chooser.collapsed(&network(1), CarrierKind::Quic, now);
        assert_eq!(chooser.next_probe(&network(1), CarrierKind::Http2, false, now), Some(PENALTY_FIRST));
        assert!(!chooser.plan(&network(1), false, now).quic);
        assert!(chooser.plan(&network(1), false, now + PENALTY_FIRST).quic);
        assert_eq!(chooser.next_probe(&network(1), CarrierKind::Quic, false, now), None);
        chooser.collapsed(&network(1), CarrierKind::Http2, now);
        assert!(chooser.plan(&network(1), false, now).quic, "when TCP collapses as well, QUIC may come back");
    }

    #[test]
    fn quic_that_falls_silent_again_and_again_is_left_alone_for_a_while() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        for seconds in [0, 400, 800] {
            chooser.died(&network(1), CarrierKind::Quic, at(seconds));
            let plan = chooser.plan(&network(1), false, at(seconds));
            assert!(plan.quic && plan.head_start.is_zero(), "an outage now and then is none of QUIC's doing");
        }
        chooser.died(&network(1), CarrierKind::Quic, at(830));
        chooser.died(&network(1), CarrierKind::Quic, at(860));
        assert!(!chooser.plan(&network(1), false, at(861)).quic);
        assert!(chooser.plan(&network(1), false, at(861) + PENALTY_FIRST).quic);
    }

    #[test]
    fn each_collapse_leaves_quic_alone_for_longer_until_it_has_worked_for_long() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        let mut at = now;
        let mut collapse = |lived: Duration| {
            chooser.worked(&network(1), CarrierKind::Quic, at);
            at += lived;
            chooser.collapsed(&network(1), CarrierKind::Quic, at);
            let wait = chooser.next_probe(&network(1), CarrierKind::Http2, false, at).unwrap();
            at += wait;
            wait
        };
        let minute = Duration::from_secs(60);
        assert_eq!([minute, minute, minute].map(&mut collapse), [PENALTY_FIRST, PENALTY_FIRST * 2, PENALTY_FIRST * 4]);
        assert_eq!([FORGIVEN, minute].map(&mut collapse), [PENALTY_FIRST, PENALTY_FIRST * 2]);
    }

    /// A tunnel that fell silent and then ended counted twice: two outages were taken for QUIC's doing.
    #[test]
    fn silence_and_the_end_after_it_are_one_death() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        for seconds in [0, 3, 100, 103] {
            chooser.died(&network(1), CarrierKind::Quic, now + Duration::from_secs(seconds));
        }
        assert!(chooser.plan(&network(1), false, now + Duration::from_secs(104)).quic);
    }

    #[test]
    fn a_pinned_carrier_is_the_only_one() {
        let now = Instant::now();
        let mut chooser = Chooser::new(CarrierChoice::Pinned(CarrierKind::Http2));
        assert_eq!(chooser.plan(&network(1), false, now).tcp, [CarrierKind::Http2]);
        assert!(!chooser.plan(&network(1), false, now).quic);
        assert_eq!(chooser.next_probe(&network(1), CarrierKind::Http2, false, now), None);
    }

    #[test]
    fn networks_are_bounded() {
        let (mut chooser, now) = (Chooser::new(CarrierChoice::Auto), Instant::now());
        for last in 0..200 {
            chooser.worked(&network(last), CarrierKind::Quic, now + Duration::from_secs(last.into()));
        }
        assert_eq!(chooser.networks.len(), NETWORKS_MAX);
    }
}
