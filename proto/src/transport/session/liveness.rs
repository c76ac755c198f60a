//! Whether the peer is alive: when to ask it, and when to give it up. Pure decisions; counts and the clock come in.
//!
//! Two silences are looked at. Of the **session** nothing was heard: the whole path to the peer's session is in doubt, with
//! a long deadline. Of the **carrier** nothing was heard, not even an acknowledgement, on a carrier whose peer says
//! something every second (QUIC): then the path itself is in doubt, the peer is asked again and again at once, and given up
//! when several questions in a row were not answered. A burst of loss answers one of them.

use std::time::Duration;

use tokio::time::Instant;

use super::SessionOptions;

/// While all is well the peer is looked at so often, or four times in a period of probes.
const LOOK: Duration = Duration::from_secs(1);
/// Questions follow each other no slower than this, however long round trips are.
const URGENT_MAX: Duration = Duration::from_secs(2);

/// What is known of the peer at one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Bytes that the session received so far.
    pub(super) session: u64,
    /// What the carrier received so far, where it hears from the peer every second.
    pub(super) carrier: Option<u64>,
    /// Round-trip time.
    pub(super) rtt: Option<Duration>,
    /// Streams are open: somebody may wait.
    pub(super) waiting: bool,
}

/// What to do after a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Wait,
    /// Send a probe.
    Ask,
    /// Give the tunnel up.
    Dead,
}

/// How long one count has not changed, in this process's own time.
#[derive(Default, Debug)]
struct Silence {
    count: u64,
    lasted: Duration,
}

impl Silence {
    fn look(&mut self, count: u64, passed: Duration) {
        if count == self.count {
            self.lasted += passed;
        } else {
            *self = Self { count, lasted: Duration::ZERO };
        }
    }
}

/// The judge of one tunnel's peer.
#[derive(Debug)]
pub(super) struct Liveness {
    options: SessionOptions,
    session: Silence,
    carrier: Silence,
    looked: Instant,
    /// Since the last question.
    since_asked: Option<Duration>,
    /// Questions without any sign of life since.
    unanswered: u32,
    /// One of them had its time.
    overdue: bool,
    /// Told to ask, and nothing heard since.
    doubted: bool,
    /// Look again after.
    next: Duration,
}

impl Liveness {
    pub(super) fn new(options: &SessionOptions, now: Instant) -> Self {
        Self {
            options: options.clone(),
            session: Silence::default(),
            carrier: Silence::default(),
            looked: now,
            since_asked: None,
            unanswered: 0,
            overdue: false,
            doubted: false,
            next: Duration::ZERO,
        }
    }

    /// How long to wait until the next look.
    pub(super) fn next(&self) -> Duration {
        self.next
    }

    /// Whether the peer owes an answer for so long that a new request had better go elsewhere.
    pub(super) fn suspect(&self) -> bool {
        self.overdue
    }

    /// Somebody has reason to doubt: ask at once.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
        self.session.lasted = self.session.lasted.max(self.options.suspect_after);
        self.carrier.lasted = self.carrier.lasted.max(self.options.suspect_after);
    }

    fn silent(&self) -> Duration {
        self.session.lasted.min(self.carrier.lasted)
    }

    /// Looks at what was heard until `now`.
    pub(super) fn look(&mut self, seen: Seen, now: Instant) -> Step {
        // A process that was stopped itself has not listened: that time is no silence of the peer's.
        let passed = now.duration_since(self.looked).min(self.next * 2);
        self.looked = now;
        self.session.look(seen.session, passed);
        // Where the carrier hears nothing by itself, the session is all there is.
        self.carrier.look(seen.carrier.unwrap_or(seen.session), passed);
        self.since_asked = self.since_asked.map(|since| since + passed);
        let silent = self.silent();
        if silent.is_zero() {
            self.unanswered = 0;
            self.doubted = false;
        }
        self.overdue = self.unanswered > 0 && silent >= self.options.suspect_after;
        let prompt = seen.carrier.is_some();
        let doubtful = silent >= self.options.suspect_after && (prompt || seen.waiting || self.doubted);
        let urgent =
            seen.rtt.unwrap_or_default().clamp(self.options.urgent_period, URGENT_MAX.max(self.options.urgent_period));
        self.next = if doubtful { urgent } else { LOOK.min(self.options.probe_period / 4) };
        let pause = if doubtful { urgent } else { self.options.probe_period };
        if self.session.lasted >= self.options.probe_deadline {
            return Step::Dead;
        }
        // A look may come a little early.
        if self.since_asked.is_some_and(|since| since + self.next / 8 < pause) {
            return Step::Wait;
        }
        if prompt && doubtful && self.unanswered >= self.options.urgent_probes {
            return Step::Dead;
        }
        self.unanswered += 1;
        self.since_asked = Some(Duration::ZERO);
        Step::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    /// A peer that is looked at as the session does, until the tunnel is given up or `end`; what was heard by the session
    /// and by the carrier at each time comes from `heard`.
    fn run(
        end: u64,
        waiting: bool,
        heard: impl Fn(Duration) -> (u64, Option<u64>),
    ) -> (Option<Duration>, Vec<Duration>) {
        run_with(end, waiting, |_| Duration::ZERO, heard)
    }

    fn run_with(
        end: u64,
        waiting: bool,
        late: impl Fn(Duration) -> Duration,
        heard: impl Fn(Duration) -> (u64, Option<u64>),
    ) -> (Option<Duration>, Vec<Duration>) {
        let start = Instant::now();
        let mut liveness = Liveness::new(&SessionOptions::default(), start);
        let (mut at, mut asked) = (Duration::ZERO, Vec::new());
        while at < Duration::from_secs(end) {
            let (session, carrier) = heard(at);
            let seen = Seen { session, carrier, rtt: Some(Duration::from_millis(20)), waiting };
            match liveness.look(seen, start + at) {
                Step::Dead => return (Some(at), asked),
                Step::Ask => asked.push(at),
                Step::Wait => {}
            }
            at += liveness.next() + late(at);
        }
        (None, asked)
    }

    fn until(at: Duration, end: u64) -> u64 {
        at.as_secs().min(end)
    }

    #[test]
    fn a_silent_quic_peer_is_asked_at_once_and_given_up_within_ten_seconds() {
        for waiting in [false, true] {
            // The last that was heard came at 30 s.
            let (dead, asked) = run(100, waiting, |at| (until(at, 30), Some(until(at, 30))));
            let silent = dead.unwrap() - Duration::from_secs(30);
            assert!(silent > Duration::from_secs(7) && silent <= Duration::from_secs(10), "{silent:?}");
            let urgent = asked.iter().filter(|at| **at > Duration::from_secs(31)).count();
            assert!(urgent >= limits::URGENT_PROBES as usize, "{asked:?}");
        }
    }

    #[test]
    fn a_burst_of_loss_of_four_seconds_kills_no_quic_tunnel() {
        let gap = |at: Duration| if (30..34).contains(&at.as_secs()) { 30 } else { at.as_secs() };
        assert_eq!(run(300, true, |at| (gap(at), Some(gap(at)))).0, None);
    }

    #[test]
    fn a_peer_whose_session_stands_still_is_given_up_though_its_carrier_answers() {
        let (dead, _) = run(100, true, |at| (until(at, 30), Some(at.as_millis() as u64)));
        let silent = dead.unwrap() - Duration::from_secs(30);
        assert!(silent >= limits::PROBE_DEADLINE && silent < Duration::from_secs(25), "{silent:?}");
    }

    #[test]
    fn a_silent_tcp_peer_has_the_long_deadline_and_is_asked_early_only_where_somebody_waits() {
        for waiting in [false, true] {
            let (dead, asked) = run(100, waiting, |at| (until(at, 30), None));
            let silent = dead.unwrap() - Duration::from_secs(30);
            assert!(silent >= limits::PROBE_DEADLINE && silent < Duration::from_secs(25), "{silent:?}");
            // The regular one falls into this time too.
            let early = asked.iter().filter(|at| (31..36).contains(&at.as_secs())).count();
            assert!(if waiting { early > 3 } else { early <= 1 }, "{asked:?}");
        }
    }

    #[test]
    fn an_idle_tunnel_is_probed_once_in_a_period() {
        let (dead, asked) = run(800, false, |at| (at.as_secs() / 8, Some(at.as_secs())));
        assert_eq!(dead, None);
        assert!(asked.len() >= 90 && asked.len() <= 101, "{}", asked.len());
    }

    #[test]
    fn a_peer_is_suspect_only_once_it_owes_an_answer() {
        let start = Instant::now();
        let mut liveness = Liveness::new(&SessionOptions::default(), start);
        let mut at = Duration::ZERO;
        let mut look = |liveness: &mut Liveness, heard| {
            let seen = Seen { session: heard, carrier: None, rtt: None, waiting: false };
            let step = liveness.look(seen, start + at);
            at += liveness.next();
            (step, liveness.suspect())
        };
        // Idle, and each question is answered before the next look.
        for heard in 1..100 {
            while look(&mut liveness, heard) != (Step::Ask, false) {
                assert!(!liveness.suspect());
            }
        }
        // Somebody doubts it: asked at once, and suspect when that has had its time.
        liveness.doubt();
        assert_eq!(look(&mut liveness, 99).0, Step::Ask);
        assert!(look(&mut liveness, 99).1);
        assert!(!look(&mut liveness, 100).1);
    }

    #[test]
    fn a_process_that_was_stopped_itself_takes_nobody_for_dead() {
        // Each minute it gets no turn for 50 s; nothing of what came meanwhile has been read at the first look.
        let late = |at: Duration| Duration::from_secs(if at.as_secs() % 60 == 7 { 50 } else { 0 });
        let heard = |at: Duration| if at.as_secs() % 60 >= 57 { at.as_secs() / 60 * 60 + 7 } else { at.as_secs() };
        assert_eq!(run_with(1000, true, late, |at| (heard(at), Some(heard(at)))).0, None);
    }
}
