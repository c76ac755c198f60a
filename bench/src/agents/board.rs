//! Who of a fleet has a tunnel, and how long it took.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent::tunnel::{Tunnels, api::CurrentTunnel, status::StatusBoard};
use daemon::TaskGroup;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    latency::Latency,
    load::{Outcome, count},
};

/// How often the agents are looked at that are waited for.
const LOOK: Duration = Duration::from_millis(200);

/// One agent of a fleet: its tunnels, and the board that shows their state.
pub struct Member {
    tunnels: Arc<Tunnels>,
    status: Arc<StatusBoard>,
}

impl Member {
    /// Of what keeps its tunnel up, and where that says how it fares.
    pub fn new(tunnels: Tunnels, status: Arc<StatusBoard>) -> Self {
        Self { tunnels: Arc::new(tunnels), status }
    }

    /// Names of the gateways that it has tunnels to.
    fn gateways(&self) -> Vec<String> {
        gateways(&self.status)
    }
}

/// Names of the gateways that an agent has tunnels to; one that is no replica has none.
fn gateways(status: &StatusBoard) -> Vec<String> {
    let state = status.json();
    let tunnels = state["tunnels"].as_array().into_iter().flatten();
    tunnels.filter_map(|tunnel| tunnel["replica"].as_str().map(str::to_owned)).collect()
}

/// Whether these are two gateways besides one that was killed.
fn are_two(gateways: &[String], but: Option<&str>) -> bool {
    gateways.iter().filter(|name| Some(name.as_str()) != but).count() >= 2
}

/// All of a fleet.
pub struct Board {
    members: Vec<Member>,
    seen: Mutex<Seen>,
    changed: Notify,
}

/// Since the start, or since all were lost.
struct Seen {
    /// From when each is measured; `None` once it has a tunnel.
    missing: Vec<Option<Instant>>,
    left: usize,
    begin: Instant,
    last: Instant,
    latency: Latency,
}

impl Seen {
    fn new(missing: Vec<Option<Instant>>, begin: Instant) -> Self {
        Self { left: missing.len(), missing, begin, last: begin, latency: Latency::default() }
    }

    fn up(&mut self, number: usize, now: Instant) {
        if let Some(since) = self.missing.get_mut(number).and_then(Option::take) {
            self.latency.record(now.saturating_duration_since(since));
            self.left -= 1;
            self.last = now;
        }
    }
}

impl Board {
    /// Has all of them dial, `rate` in a second.
    pub fn start(members: Vec<Member>, rate: f64, tasks: &TaskGroup) -> Arc<Self> {
        let begin = Instant::now();
        let missing = (0..members.len()).map(|number| Some(super::due(begin, number, rate))).collect();
        let this = Arc::new(Self { members, seen: Mutex::new(Seen::new(missing, begin)), changed: Notify::new() });
        for (number, member) in this.members.iter().enumerate() {
            tasks.spawn("agent", super::run(Arc::clone(&member.tunnels), super::due(begin, number, rate)));
            tasks.spawn("watch", Arc::clone(&this).watch(number, member.tunnels.current()));
        }
        this
    }

    /// Each tunnel that comes up counts once: what was there when all were lost is known by its name.
    async fn watch(self: Arc<Self>, number: usize, mut current: CurrentTunnel) {
        let mut known = None;
        loop {
            let now = current.borrow_and_update().as_ref().map(|tunnel| tunnel.info().session);
            if now.is_some() && now != known {
                known = now;
                self.seen().up(number, Instant::now());
                self.changed.notify_one();
            }
            if current.changed().await.is_err() {
                return;
            }
        }
    }

    /// All have lost their tunnel, just now.
    pub fn lost(&self) {
        let now = Instant::now();
        *self.seen() = Seen::new(vec![Some(now); self.members.len()], now);
    }

    /// Waits for all. Who has none by then has failed.
    pub async fn up(&self, within: Duration) -> Outcome {
        let all = async {
            while self.seen().left > 0 {
                self.changed.notified().await;
            }
        };
        // Those that are missing are counted below.
        let _ = timeout(within, all).await;
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        let seen = self.seen();
        let mut errors = BTreeMap::new();
        for (member, _) in self.members.iter().zip(&seen.missing).filter(|(_, missing)| missing.is_some()) {
            count(&mut errors, member.status.last_error().unwrap_or_else(|| "no tunnel yet".to_owned()));
        }
        Outcome {
            requests: seen.latency.len(),
            failed: seen.left as u64,
            errors,
            seconds: seen.last.saturating_duration_since(seen.begin).as_secs_f64(),
            latency: seen.latency.clone(),
            ..Outcome::default()
        }
    }

    /// Who has a tunnel at this moment.
    pub fn now(&self) -> Outcome {
        let without = self.members.iter().filter(|member| member.tunnels.current().borrow().is_none());
        let mut errors = BTreeMap::new();
        without.for_each(|member| {
            count(&mut errors, member.status.last_error().unwrap_or_else(|| "no tunnel yet".to_owned()));
        });
        let failed = errors.values().sum();
        Outcome { requests: self.members.len() as u64 - failed, failed, errors, ..Outcome::default() }
    }

    /// Waits until all have tunnels to two gateways besides `but`. Who has not by then has failed.
    pub async fn two(&self, but: Option<&str>, within: Duration) -> Outcome {
        let (begin, mut left) = (Instant::now(), self.members.iter().collect::<Vec<_>>());
        loop {
            left.retain(|member| !are_two(&member.gateways(), but));
            if left.is_empty() || begin.elapsed() > within {
                break;
            }
            sleep(LOOK).await;
        }
        let failed = left.len() as u64;
        Outcome { requests: self.members.len() as u64 - failed, failed, ..Outcome::default() }
    }

    /// Numbers of those without a tunnel to the gateway of this name.
    pub fn without(&self, name: &str) -> Vec<u32> {
        let lacks = |member: &Member| !member.gateways().iter().any(|gateway| gateway == name);
        (0..).zip(&self.members).filter(|(_, member)| lacks(member)).map(|(number, _)| number).collect()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tunnel::transport::CarrierKind;

    use super::*;
    use crate::load::ERRORS;

    #[test]
    fn a_tunnel_to_a_killed_gateway_is_none_of_an_agents_two() {
        let status = StatusBoard::default();
        status.up(0, CarrierKind::Http2, "x:1", Some("first"));
        assert!(!are_two(&gateways(&status), None));
        status.up(1, CarrierKind::Http2, "x:2", Some("second"));
        assert_eq!(gateways(&status), ["first", "second"]);
        assert!(are_two(&gateways(&status), None) && !are_two(&gateways(&status), Some("first")));
        status.down(0, "killed");
        status.up(0, CarrierKind::Http2, "x:3", Some("third"));
        assert!(are_two(&gateways(&status), Some("first")));
    }

    #[test]
    fn each_counts_once_from_when_it_was_due() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut seen = Seen::new(vec![Some(at(0)), Some(at(100)), Some(at(200))], begin);
        seen.up(1, at(150));
        seen.up(1, at(900));
        seen.up(0, at(10));
        assert_eq!((seen.left, seen.latency.len(), seen.last), (1, 2, at(10)));
        assert!((50_000..51_000).contains(&seen.latency.at(1.0).unwrap()), "{:?}", seen.latency.at(1.0));
        seen.up(9, at(1));
        assert_eq!(seen.left, 1, "there is no such agent");
    }

    #[test]
    fn kinds_of_errors_are_bounded_and_none_is_lost() {
        let mut errors = BTreeMap::new();
        (0..100).for_each(|number| count(&mut errors, format!("error {number}")));
        assert_eq!((errors.len(), errors.values().sum::<u64>()), (ERRORS + 1, 100));
    }
}
