//! Whether the peer is alive: when to ask it, and when to give it up. Pure decisions: what was heard and the time are
//! arguments.
//!
//! Two silences are looked at. Of the **session** nothing was heard: the whole path to the peer's session is in doubt,
//! with a long deadline. Of the **carrier** nothing was heard, not even an acknowledgement, on a carrier that repeats
//! nothing by itself for long (QUIC): then the path itself is in doubt, the peer is asked again and again at once, and
//! given up when several questions in a row were not answered. A burst of loss answers one of them.
//!
//! A tunnel **in use** (a stream of the gateway's is open, or was a moment ago) is looked at every second, and over
//! QUIC its peer says something every second, for the agent asks where nothing was heard for a second. All others are
//! **idle**: only the gateway asks, once in a period (a longer one over TCP, where a peer that was killed is known by
//! itself), and its question is a sign of life for the agent, which asks by itself a little later only if that is not
//! there: so it learns of a gateway that was killed, and a NAT that forgot the way in of the agent. The gateway asks
//! because it can ask all whose time has come [together]: ten thousand questions of their agents, each at its own
//! moment, wake a processor that finds nothing of that tunnel in its caches. Where the carrier says by itself that the
//! peer gets what it is sent (QUIC) the gateway's session rests, and the carrier says in its place that the gateway is
//! there; that the peer's session is alive too it asks from time to time.
//!
//! Whoever opens a stream has the tunnel looked at at once, and the silence is counted from when something was last
//! heard, not from the look before: what was dead while it was idle is given up as soon after that as if it had been
//! looked at all the time.
//!
//! After each look a tunnel is in one of four modes, which decide when it is looked at next and when its peer is asked:
//!
//! | mode | when | next look | questions |
//! |---|---|---|---|
//! | rests | nobody needs the peer, nothing is owed, and the carrier keeps the tunnel | with the next question | one a minute, by the gateway |
//! | idle | nobody needs the peer, and nobody doubts it | with the next question, or when the answer is late | one a period, by the gateway; by the agent where that does not come |
//! | used | somebody needs it: a stream is open; over QUIC also one was a moment ago, or an answer is late | each second | one a period; by the agent over QUIC after each second of silence |
//! | urgent | the same, or somebody doubts it, and nothing was heard for long | each urgent period | at each look |
//!
//! | from | to | by |
//! |---|---|---|
//! | rests, idle | used | a stream of the gateway's opens, which has it looked at |
//! | idle | used | over QUIC an answer is late |
//! | rests | idle | the carrier finds that the peer does not get its signs; a question is due |
//! | idle | rests | the answer to the last question came, and the carrier keeps the tunnel |
//! | rests, idle, used | urgent | a doubt; silence of a peer that somebody needs |
//! | urgent | used, idle, rests | something is heard: what was owed, and what was said against the peer, is forgotten |
//! | used | idle, rests | the last stream ended, over QUIC a while ago; rests where the carrier keeps the tunnel and no answer is owed |
//! | each | dead | the session left questions unanswered until its deadline |
//! | urgent | dead | over QUIC several questions in a row were not answered |

use std::{
    sync::LazyLock,
    time::{self, Duration},
};

use tokio::time::Instant;

use super::{SessionOptions, state::Side};

/// Interval of looks at a tunnel in use; at most a quarter of the probe period.
const LOOK: Duration = Duration::from_secs(1);
/// Silence after which the agent asks, over QUIC while the tunnel is in use. A gateway that has restarted answers with
/// a reset, a NAT that has changed learns the new mapping, and the gateway hears from a live agent.
const SAY_WITHIN: Duration = Duration::from_secs(1);
/// How long a tunnel counts as in use after its last stream.
pub(super) const LATELY: Duration = Duration::from_secs(10);
/// The longest interval of urgent questions, however long round trips are.
const URGENT_MAX: Duration = Duration::from_secs(2);
/// How much too early a look may come.
const EARLY: Duration = Duration::from_millis(50);
/// How long before the agent would ask by itself the gateway asks an idle peer: once to twice this. A session that
/// rests asks several times this long before its rest would end.
const SOONER: Duration = Duration::from_millis(500);
/// Idle tunnels are looked at on multiples of this: about twenty of ten thousand at once over TCP, which takes a
/// processor a millisecond.
const BEAT: Duration = Duration::from_millis(32);
/// The longest rest of a session while its carrier keeps the tunnel alive; then the session asks.
const REST: Duration = Duration::from_secs(60);
/// A longer round trip is measured again while the tunnel is idle: it may have been one slow moment.
const LONG_RTT: Duration = Duration::from_secs(1);

/// What is known of the peer at one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Bytes that the session received so far, and when the last of them came.
    pub(super) received: u64,
    pub(super) heard: Instant,
    /// When its carrier last said that the peer is there, with nothing of its session, or no later than that: at the
    /// agent a sign that came, at the gateway one that was sent and acknowledged.
    pub(super) sign: Instant,
    /// The carrier says so for this end, and looks whether the peer gets it.
    pub(super) kept: bool,
    /// What the carrier received so far, where silence of a tunnel in use means something (QUIC).
    pub(super) carrier: Option<u64>,
    /// Round-trip time by the carrier, or by the session's own questions where the carrier measures none.
    pub(super) rtt: Option<Duration>,
    /// What the last question of this side took to be answered.
    pub(super) answered_in: Option<Duration>,
    /// Streams of the gateway's are open: somebody may wait.
    pub(super) waiting: bool,
    /// So were some within [`LATELY`].
    pub(super) lately: bool,
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

/// Questions that were asked since the last sign of life.
#[derive(Clone, Copy, Debug)]
struct Owed {
    questions: u32,
    /// Since the first of them.
    since: Duration,
    /// What the peer may take before it is suspect.
    grace: Duration,
}

/// Who needs the peer now: it decides how closely the tunnel is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    /// Nobody waits for the peer.
    Idle,
    /// Somebody waits, on a carrier that tells a dead peer by itself.
    Waited,
    /// The tunnel is in use, or its peer owes an answer, on a carrier that must be asked (QUIC).
    Prompt,
}

/// What speaks against the peer since it was last heard; the later variant outweighs the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trust {
    /// Nothing speaks against the peer.
    Whole,
    /// The carrier has found that the peer does not get what it is sent.
    Broken,
    /// Somebody has reason to doubt it.
    Doubted,
}

/// How the tunnel is looked at until the next look; see the table in the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Left to the carrier.
    Rests,
    /// Nobody needs the peer, and nobody doubts it.
    Idle,
    /// Somebody needs it.
    Used,
    /// It is needed or doubted, and silent.
    Urgent,
}

/// What was received up to the last look, in bytes.
#[derive(Clone, Copy, Default, Debug)]
struct Received {
    session: u64,
    carrier: u64,
}

/// How long ago something was last heard, at the last look.
#[derive(Clone, Copy, Default, Debug)]
struct Silence {
    /// Heard by the session itself.
    session: Duration,
    /// By the carrier, or by the session where that is all there is.
    carrier: Duration,
    /// The peer's carrier said that the peer is there.
    sign: Duration,
}

impl Silence {
    /// How long neither the session nor the carrier has heard anything.
    fn of_all(self) -> Duration {
        self.session.min(self.carrier)
    }
}

/// The questions of this side.
#[derive(Clone, Copy, Default, Debug)]
struct Asked {
    /// Since the last one.
    last: Option<Duration>,
    /// Since the first one after the session was last heard.
    awaited: Option<Duration>,
    /// Those after anything was last heard.
    owed: Option<Owed>,
}

/// What decides when the next question is due.
#[derive(Clone, Copy)]
struct Due {
    period: Duration,
    need: Need,
    /// The round trip is to be measured again.
    remeasure: bool,
    /// The carrier keeps the tunnel.
    kept: bool,
}

/// The judge of one tunnel's peer. All durations are this process's own time: one that was stopped has not listened,
/// and that time is no silence of the peer's.
#[derive(Debug)]
pub(super) struct Liveness<'a> {
    side: Side,
    options: &'a SessionOptions,
    /// How long before the agent the gateway asks.
    sooner: Duration,
    looked: Instant,
    received: Received,
    silence: Silence,
    asked: Asked,
    trust: Trust,
    /// What was said against the peer since the last look.
    told: Trust,
    mode: Mode,
    /// The peer owes an answer for longer than it may take.
    suspect: bool,
    /// Look again after.
    next: Duration,
}

impl<'a> Liveness<'a> {
    pub(super) fn new(side: Side, options: &'a SessionOptions, now: Instant) -> Self {
        Self {
            side,
            options,
            sooner: SOONER,
            looked: now,
            received: Received::default(),
            silence: Silence::default(),
            asked: Asked::default(),
            trust: Trust::Whole,
            told: Trust::Whole,
            mode: Mode::Used,
            suspect: false,
            next: Duration::ZERO,
        }
    }

    /// Has the gateway ask idle peers at slightly different periods, by `unit` from 0 to 1: those whose time has come
    /// at once, as after a pause of the process, would be asked at once for ever.
    pub(super) fn apart(self, unit: f64) -> Self {
        Self { sooner: SOONER.mul_f64(1.0 + unit.clamp(0.0, 1.0)), ..self }
    }

    /// How long to wait until the next look.
    pub(super) fn next(&self) -> Duration {
        self.next
    }

    /// Whether that may be seconds, so that a stream that is opened meanwhile has to say so.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.mode, Mode::Idle | Mode::Rests)
    }

    /// Whether that is left to the carrier until then.
    pub(super) fn rests(&self) -> bool {
        self.mode == Mode::Rests
    }

    /// Whether the peer's answer is so overdue that a new request had better go elsewhere.
    pub(super) fn suspect(&self) -> bool {
        self.suspect
    }

    /// Somebody has reason to doubt: ask at once.
    pub(super) fn doubt(&mut self) {
        self.told = Trust::Doubted;
    }

    /// The carrier has found that the peer does not get what it is sent.
    pub(super) fn break_rest(&mut self) {
        self.told = self.told.max(Trust::Broken);
    }

    /// Looks at what was heard until `now`.
    pub(super) fn look(&mut self, seen: Seen, now: Instant) -> Step {
        self.listen(seen, now);
        self.distrust();
        self.suspect = self.is_overdue();
        if self.asked.awaited.is_some() && self.left(seen).is_zero() {
            return Step::Dead;
        }
        let need = self.need(seen);
        let urgent = self.is_silent() && (need != Need::Idle || self.trust == Trust::Doubted);
        let (rtt, shortest) = (seen.rtt.unwrap_or_default(), self.options.urgent_period);
        let urgent_period = rtt.clamp(shortest, URGENT_MAX.max(shortest));
        let due = self.due(seen, need);
        let step = if self.wait_before_asking(due, urgent.then_some(urgent_period)) > EARLY {
            Step::Wait
        } else if urgent && need == Need::Prompt && self.has_asked_in_vain() {
            return Step::Dead;
        } else {
            self.ask(need, urgent_period.max(2 * rtt));
            Step::Ask
        };
        self.mode = if urgent {
            Mode::Urgent
        } else if need != Need::Idle {
            Mode::Used
        } else if due.kept && self.asked.owed.is_none() && self.asked.awaited.is_none() {
            Mode::Rests
        } else {
            Mode::Idle
        };
        self.next = self.until_next(seen, due, urgent_period);
        step
    }

    /// How long until the next look.
    fn until_next(&self, seen: Seen, due: Due, urgent_period: Duration) -> Duration {
        let next = match (self.mode, self.asked.owed) {
            (Mode::Urgent, _) => urgent_period,
            (mode, _) if mode == Mode::Used || self.suspect => {
                let look = LOOK.min(self.options.probe_period / 4);
                self.wait_before_asking(due, None).clamp(look / 8, look)
            }
            // Looked at as soon as the answer is there.
            (_, Some(owed)) => {
                let late = self.options.suspect_after.saturating_sub(owed.since);
                if late > EARLY { late } else { self.options.suspect_after }
            }
            (_, None) => self.wait_before_asking(due, None),
        };
        if self.asked.awaited.is_some() { next.min(self.left(seen)) } else { next }
    }

    /// Who needs the peer. One that does not answer is in doubt, also where nobody waits.
    fn need(&self, seen: Seen) -> Need {
        let owes = |owed: Owed| owed.since + EARLY >= self.options.suspect_after;
        let wanted = seen.waiting || seen.lately || self.trust == Trust::Doubted || self.asked.owed.is_some_and(owes);
        match seen.carrier {
            Some(_) if wanted => Need::Prompt,
            _ if seen.waiting => Need::Waited,
            _ => Need::Idle,
        }
    }

    fn due(&self, seen: Seen, need: Need) -> Due {
        let period = match seen.carrier {
            None if need == Need::Idle => self.options.idle_period,
            _ => self.options.probe_period,
        };
        let remeasure = seen.answered_in.is_some_and(|took| took > LONG_RTT);
        Due { period, need, remeasure, kept: seen.kept && self.trust != Trust::Broken }
    }

    /// Whether nothing was heard for long enough to ask a peer that somebody needs.
    fn is_silent(&self) -> bool {
        self.silence.of_all() + EARLY >= self.options.suspect_after
    }

    /// Whether the answer takes longer than it may.
    fn is_overdue(&self) -> bool {
        self.is_silent() && self.asked.owed.is_some_and(|owed| owed.since + EARLY >= owed.grace)
    }

    /// Whether as many questions in a row were not answered as a peer is given.
    fn has_asked_in_vain(&self) -> bool {
        self.asked.owed.is_some_and(|owed| owed.questions >= self.options.urgent_probes)
    }

    /// What the session has left to answer in.
    fn left(&self, seen: Seen) -> Duration {
        let awaited = self.asked.awaited.unwrap_or_default();
        let silent = match seen.carrier {
            None => self.silence.session,
            // A session that was not probed for a minute was not silent for a minute.
            Some(_) => self.silence.session.min(awaited + self.options.probe_period),
        };
        let deadline = self.options.probe_deadline.saturating_sub(silent);
        deadline.max(self.options.answer_within.saturating_sub(awaited))
    }

    /// Brings what has passed up to `now`.
    fn listen(&mut self, seen: Seen, now: Instant) {
        let passed = now.duration_since(self.looked).min(self.next + self.next.min(LOOK));
        let to_the_session = seen.received != self.received.session;
        let to_the_carrier = seen.carrier.is_some_and(|count| count != self.received.carrier);
        let before = self.silence;
        let session = match to_the_session {
            true => now.duration_since(seen.heard).min(passed),
            false => before.session + passed,
        };
        let sign = now.duration_since(seen.sign).min(before.sign + passed);
        let carrier = match seen.carrier {
            // The session is all there is.
            None => session,
            Some(_) if !to_the_carrier => before.carrier + passed,
            // No later than the session, which says when.
            Some(_) if to_the_session => session,
            // All that is known is that it was since the last look, which was a moment ago or long ago.
            Some(_) if passed <= 2 * LOOK => Duration::ZERO,
            Some(_) => passed.min(sign),
        };
        self.silence = Silence { session, carrier, sign };
        self.received = Received { session: seen.received, carrier: seen.carrier.unwrap_or_default() };
        self.looked = now;
        self.asked.last = self.asked.last.map(|since| since + passed);
        self.asked.awaited = self.asked.awaited.filter(|_| !to_the_session).map(|since| since + passed);
        if to_the_session || to_the_carrier {
            self.asked.owed = None;
            self.trust = Trust::Whole;
        } else if let Some(owed) = &mut self.asked.owed {
            owed.since += passed;
        }
    }

    /// Takes up what was said against the peer. A doubt comes behind what was heard until now: that is older than it.
    fn distrust(&mut self) {
        let told = std::mem::replace(&mut self.told, Trust::Whole);
        if told == Trust::Doubted {
            self.silence.session = self.silence.session.max(self.options.suspect_after);
            self.silence.carrier = self.silence.carrier.max(self.options.suspect_after);
        }
        self.trust = self.trust.max(told);
    }

    /// How long until the next question is due.
    fn wait_before_asking(&self, due: Due, urgent: Option<Duration>) -> Duration {
        let Due { period, need, remeasure, kept } = due;
        let Some(asked) = self.asked.last else { return Duration::ZERO };
        if let Some(urgent) = urgent {
            return urgent.saturating_sub(asked);
        }
        let left = period.saturating_sub(asked);
        let Silence { session, sign, .. } = self.silence;
        match (self.side, need) {
            (Side::Agent, Need::Prompt) => {
                let say = SAY_WITHIN.min(self.options.probe_period);
                left.min(say.saturating_sub(self.silence.of_all()).max(say.saturating_sub(asked)))
            }
            (_, Need::Prompt | Need::Waited) => left,
            (Side::Agent, Need::Idle) if remeasure => left,
            // The gateway's question should have come, or its carrier's sign; but not for ever nothing but that.
            (Side::Agent, Need::Idle) => {
                let rest = (REST + period).saturating_sub(session);
                left.max(period.saturating_sub(session.min(sign)).min(rest))
            }
            (Side::Gateway, Need::Idle) if self.trust == Trust::Broken && self.asked.owed.is_none() => Duration::ZERO,
            (Side::Gateway, Need::Idle) => {
                let left = period.saturating_sub(self.sooner).saturating_sub(session.min(asked));
                // Further apart too.
                let rest = if kept { REST.saturating_sub(8 * self.sooner) } else { Duration::ZERO };
                left.max(rest.saturating_sub(session))
            }
        }
    }

    /// An answer may take `patience` before the peer is suspect, and where silence has its reason a while longer.
    fn ask(&mut self, need: Need, patience: Duration) {
        self.asked.last = Some(Duration::ZERO);
        self.asked.awaited.get_or_insert(Duration::ZERO);
        let suspect_after = self.options.suspect_after;
        let doubted = self.trust == Trust::Doubted;
        let grace = match need {
            _ if doubted => Duration::ZERO,
            // Nobody waits. All whose question falls into a pause of the gateway's would leave it otherwise.
            Need::Idle => 2 * suspect_after.max(patience),
            // It was idle until now, which is the reason of its silence.
            _ if self.is_idle() => suspect_after.max(patience),
            _ => suspect_after.saturating_sub(self.silence.of_all()) + patience,
        };
        // Suspect before it is given up, however long its round trips: another tunnel is made in between.
        let grace = grace.min(self.options.answer_within / 2);
        let owed = self.asked.owed.get_or_insert(Owed { questions: 0, since: Duration::ZERO, grace });
        if doubted {
            // What it was asked before counts.
            owed.grace = Duration::ZERO;
        }
        owed.questions += 1;
    }
}

/// The gateway's look at an idle tunnel that is due in `wait`, put off until those of others are due as well.
pub(super) fn together(wait: Duration) -> Duration {
    static BEGUN: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);
    let due = BEGUN.elapsed() + wait;
    wait + beat_after(due).saturating_sub(due)
}

/// The first beat that is not before `due`, both since the process began.
fn beat_after(due: Duration) -> Duration {
    // A process that has run for four years has no beat any more.
    BEAT * u32::try_from(due.as_nanos().div_ceil(BEAT.as_nanos())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use types::limits;

    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// How a tunnel is looked at.
    #[derive(Clone, Copy)]
    struct Case {
        side: Side,
        waiting: bool,
        quic: bool,
    }

    /// What is known of a peer that was last heard `heard` after `start`, by the session and, over QUIC, by its
    /// carrier.
    fn seen(start: Instant, heard: Duration, quic: bool, waiting: bool) -> Seen {
        let received = heard.as_millis() as u64;
        let carrier = quic.then_some(received);
        let (heard, rtt) = (start + heard, Some(RTT));
        Seen { received, heard, sign: start, kept: false, carrier, rtt, answered_in: rtt, waiting, lately: false }
    }

    const BOTH: [Side; 2] = [Side::Gateway, Side::Agent];

    /// Looks at a peer as the session does, until the tunnel is given up or `end` (in seconds). `heard` says of each
    /// time when the session last heard something until then; the carrier hears the same and no more. When it was given
    /// up, and what was asked.
    fn run(case: Case, end: u64, heard: impl Fn(Duration) -> Duration) -> (Option<Duration>, Vec<Duration>) {
        run_with(case, end, |_| Duration::ZERO, |at, _| heard(at))
    }

    /// The same with looks that come late, and a peer that may answer what it was asked.
    fn run_with(
        Case { side, waiting, quic }: Case,
        end: u64,
        late: impl Fn(Duration) -> Duration,
        heard: impl Fn(Duration, &[Duration]) -> Duration,
    ) -> (Option<Duration>, Vec<Duration>) {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(side, &options, start);
        let (mut at, mut asked) = (Duration::ZERO, Vec::new());
        while at < Duration::from_secs(end) {
            let last = heard(at, &asked);
            match liveness.look(seen(start, last, quic, waiting), start + at) {
                Step::Dead => return (Some(at), asked),
                Step::Ask => asked.push(at),
                Step::Wait => {}
            }
            at += liveness.next() + late(at);
        }
        (None, asked)
    }

    /// Something every second until `end`, and then nothing.
    fn each_second_until(end: u64) -> impl Fn(Duration) -> Duration {
        move |at| Duration::from_secs(at.as_secs().min(end))
    }

    /// The answer to the last question that was asked a round trip ago, until `end`.
    fn answers_until(end: u64) -> impl Fn(Duration, &[Duration]) -> Duration {
        move |at, asked: &[Duration]| {
            let there = |asked: &&Duration| **asked + RTT <= at.min(Duration::from_secs(end));
            asked.iter().rev().find(there).map_or(Duration::ZERO, |asked| *asked + RTT)
        }
    }

    #[test]
    fn a_silent_quic_peer_in_use_is_asked_at_once_and_given_up_within_ten_seconds() {
        for side in BOTH {
            // The last that was heard came at 30 s.
            let (dead, asked) = run(Case { side, waiting: true, quic: true }, 100, each_second_until(30));
            let silent = dead.unwrap() - Duration::from_secs(30);
            assert!(silent > Duration::from_secs(7) && silent <= Duration::from_secs(10), "{silent:?}");
            let urgent = asked.iter().filter(|at| **at > Duration::from_secs(30)).count();
            assert!(urgent >= limits::URGENT_PROBES as usize, "{asked:?}");
        }
    }

    /// docs/features.md T6: 30 s. The gateway hears answers to its questions, the agent those questions.
    #[test]
    fn an_idle_quic_peer_is_given_up_within_twenty_seconds_of_the_last_sign() {
        let gateway = Case { side: Side::Gateway, waiting: false, quic: true };
        let (dead, asked) = run_with(gateway, 200, |_| Duration::ZERO, answers_until(60));
        let last = answers_until(60)(Duration::from_secs(60), &asked);
        let silent = dead.unwrap() - last;
        assert!(silent > Duration::from_secs(7) && silent <= limits::PROBE_DEADLINE, "{silent:?}");
        let agent = Case { side: Side::Agent, ..gateway };
        let questions = |at: Duration| Duration::from_secs(at.as_secs().min(64) / 8 * 8).max(RTT.min(at));
        let (dead, _) = run(agent, 200, questions);
        let silent = dead.unwrap() - Duration::from_secs(64);
        assert!(silent > Duration::from_secs(7) && silent <= limits::PROBE_DEADLINE, "{silent:?}");
    }

    /// docs/features.md T6, whenever it fell silent; and the answer to a question had its time.
    #[test]
    fn an_idle_tcp_peer_is_given_up_within_thirty_seconds_of_the_last_sign() {
        for end_ms in (60_000..90_000).step_by(100) {
            let end = Duration::from_millis(end_ms);
            let gateway = Case { side: Side::Gateway, waiting: false, quic: false };
            let answers = |at: Duration, asked: &[Duration]| {
                let there = |asked: &&Duration| **asked + RTT <= at.min(end);
                asked.iter().rev().find(there).map_or(Duration::ZERO, |asked| *asked + RTT)
            };
            let (dead, asked) = run_with(gateway, 200, |_| Duration::ZERO, answers);
            let (last, dead) = (answers(end, &asked), dead.unwrap());
            let unanswered = asked.iter().find(|asked| **asked > last).unwrap();
            assert!(dead - last < Duration::from_secs(30), "{last:?} {dead:?}");
            assert!(dead - *unanswered >= limits::ANSWER_WITHIN, "{unanswered:?} {dead:?}");
            // And the agent, which hears the questions.
            let agent = Case { side: Side::Agent, ..gateway };
            let questions = |at: Duration| Duration::from_millis(at.min(end).as_millis() as u64 / 15_000 * 15_000);
            let (dead, _) = run(agent, 200, questions);
            assert!(dead.unwrap() - questions(end) < Duration::from_secs(30), "{end:?} {dead:?}");
        }
    }

    /// The silence counts from when something was heard, however long ago the last look was.
    #[test]
    fn a_stream_that_opens_on_a_dead_idle_tunnel_is_told_within_ten_seconds() {
        for side in BOTH {
            for opened_ms in (0..8000).step_by(100) {
                let start = Instant::now();
                let options = SessionOptions::default();
                let mut liveness = Liveness::new(side, &options, start);
                let (mut at, opened) = (Duration::ZERO, Duration::from_secs(80) + Duration::from_millis(opened_ms));
                let mut dead = None;
                // It was alive until 80 s, and answered or asked each period.
                while dead.is_none() && at < Duration::from_secs(200) {
                    let heard = Duration::from_secs(at.as_secs().min(80) / 8 * 8).max(RTT.min(at));
                    let waiting = at >= opened;
                    if liveness.look(seen(start, heard, true, waiting), start + at) == Step::Dead {
                        dead = Some(at);
                    }
                    assert!(waiting || liveness.is_idle() || liveness.next() <= Duration::from_secs(2));
                    let next = at + liveness.next();
                    // The stream that opens has it looked at.
                    at = if at < opened && liveness.is_idle() { next.min(opened) } else { next };
                }
                let after = dead.unwrap() - opened;
                assert!(
                    after <= Duration::from_secs(10),
                    "{side:?}: opened after {opened_ms} ms, given up {after:?} later"
                );
            }
        }
    }

    #[test]
    fn a_burst_of_loss_of_four_seconds_kills_no_quic_tunnel() {
        let gap = |at: Duration| Duration::from_secs(if (30..34).contains(&at.as_secs()) { 30 } else { at.as_secs() });
        for side in BOTH {
            assert_eq!(run(Case { side, waiting: true, quic: true }, 300, gap).0, None);
            assert_eq!(run(Case { side, waiting: false, quic: true }, 300, gap).0, None);
        }
    }

    #[test]
    fn a_peer_whose_session_stands_still_is_given_up_though_its_carrier_answers() {
        let start = Instant::now();
        for side in BOTH {
            let options = SessionOptions::default();
            let mut liveness = Liveness::new(side, &options, start);
            let (mut at, mut dead) = (Duration::ZERO, None);
            while dead.is_none() && at < Duration::from_secs(100) {
                let heard = each_second_until(30)(at);
                let (received, carrier) = (heard.as_millis() as u64, Some(at.as_millis() as u64));
                let seen = Seen { received, carrier, lately: true, ..seen(start, heard, true, true) };
                dead = (liveness.look(seen, start + at) == Step::Dead).then_some(at);
                at += liveness.next();
            }
            let silent = dead.unwrap() - Duration::from_secs(30);
            assert!(silent >= limits::PROBE_DEADLINE && silent < Duration::from_secs(25), "{silent:?}");
        }
    }

    #[test]
    fn a_silent_tcp_peer_has_the_long_deadline_and_is_asked_early_only_where_somebody_waits() {
        for (side, waiting) in
            [(Side::Agent, false), (Side::Agent, true), (Side::Gateway, false), (Side::Gateway, true)]
        {
            let (dead, asked) = run(Case { side, waiting, quic: false }, 100, each_second_until(30));
            let silent = dead.unwrap() - Duration::from_secs(30);
            let end = Duration::from_secs(if waiting { 25 } else { 30 });
            assert!(silent >= limits::PROBE_DEADLINE && silent < end, "{silent:?}");
            // The regular one falls into this time too.
            let early = asked.iter().filter(|at| (31..36).contains(&at.as_secs())).count();
            assert!(if waiting { early > 3 } else { early <= 1 }, "{asked:?}");
        }
    }

    /// How often the carrier of a gateway whose session rests says that it is there.
    const SIGN: Duration = Duration::from_millis(7200);

    /// Both ends of one idle tunnel in virtual time, for a hundred periods: how often each looked (the agent first),
    /// when each asked the other's session, and when the gateway's carrier said that it is there, where it does
    /// (`kept`).
    fn both_ends(quic: bool, kept: bool) -> ([usize; 2], [Vec<Duration>; 2], Vec<Duration>) {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut ends = [Side::Agent, Side::Gateway].map(|side| Liveness::new(side, &options, start));
        let (mut looks, mut asked, mut signs) = ([0; 2], [Vec::new(), Vec::new()], Vec::new());
        // The next look of each, and what its session and its carrier have heard.
        let (mut next, mut heard, mut carried) = ([Duration::ZERO; 2], [Duration::ZERO; 2], [Duration::ZERO; 2]);
        let (mut next_sign, mut sign) = (SIGN, Duration::ZERO);
        let end = 100 * if quic { limits::PROBE_PERIOD } else { limits::IDLE_PERIOD };
        while next[0].min(next[1]) < end {
            if next_sign < next[0].min(next[1]) {
                if ends[1].rests() {
                    signs.push(next_sign);
                    sign = next_sign + RTT / 2;
                    carried = [sign, next_sign + RTT];
                }
                next_sign += SIGN;
                continue;
            }
            let who = usize::from(next[1] < next[0]);
            let (at, liveness) = (next[who], &mut ends[who]);
            looks[who] += 1;
            let carrier = quic.then_some(carried[who].as_millis() as u64);
            let signed = if who == 0 { start + sign } else { start };
            let heard_of = seen(start, heard[who], quic, false);
            let step = liveness.look(Seen { carrier, sign: signed, kept: kept && who == 1, ..heard_of }, start + at);
            next[who] = at + liveness.next();
            match step {
                Step::Dead => panic!("dead after {at:?}"),
                Step::Wait => {}
                Step::Ask => {
                    (heard[1 - who], carried[1 - who], carried[who]) = (at + RTT / 2, at + RTT / 2, at + RTT);
                    asked[who].push(at);
                    heard[who] = at + RTT;
                    // The answer has it looked at.
                    next[who] = at + RTT;
                }
            }
            assert!(!liveness.suspect());
        }
        (looks, asked, signs)
    }

    /// Ten thousand idle tunnels kept a processor busy, each looked at every second and asked by both ends; and when
    /// only the agents asked, each at its own moment.
    #[test]
    fn an_idle_tunnel_is_asked_once_in_a_period_by_the_gateway_and_looked_at_no_more_than_twice() {
        for quic in [false, true] {
            let (looks, [agents, gateways], _) = both_ends(quic, false);
            assert!((100..=115).contains(&gateways.len()) && agents.len() <= 1, "{agents:?} {gateways:?}");
            assert!(looks.iter().all(|looks| *looks <= 230), "{looks:?}");
        }
    }

    /// Each sign of life woke the gateway's session twice: ten thousand took twice what the carrier does.
    #[test]
    fn a_session_rests_for_most_of_a_minute_while_its_carrier_keeps_the_tunnel() {
        let (looks, [agents, gateways], signs) = both_ends(true, true);
        let asked: Vec<_> = gateways.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let rest = Duration::from_secs(50)..=Duration::from_secs(71);
        assert!(asked.len() > 10 && asked.iter().all(|pause| rest.contains(pause)), "{gateways:?}");
        assert!(looks[1] <= 2 * gateways.len() + 2, "{looks:?}");
        // The signs are enough for the agent.
        assert!(agents.len() <= 1 && signs.len() > 90, "{agents:?} {signs:?}");
    }

    /// Its carrier answers for ever; its session has stood still from the first. So may a gateway's, of which nothing
    /// but the carrier's signs come.
    #[test]
    fn an_idle_quic_peer_whose_session_stands_still_is_given_up_in_the_end() {
        for (side, kept) in [(Side::Gateway, true), (Side::Gateway, false), (Side::Agent, false)] {
            let start = Instant::now();
            let options = SessionOptions::default();
            let mut liveness = Liveness::new(side, &options, start);
            // It answered the first question.
            let (mut at, mut heard) = (Duration::ZERO, Duration::ZERO);
            loop {
                let carrier = Some(at.as_millis() as u64);
                let sign = start + if side == Side::Agent { at } else { Duration::ZERO };
                match liveness.look(Seen { carrier, sign, kept, ..seen(start, heard, true, false) }, start + at) {
                    Step::Dead => break,
                    _ if heard.is_zero() => (at, heard) = (at + RTT, RTT),
                    _ => at += liveness.next().max(RTT),
                }
                assert!(at <= Duration::from_secs(81), "{side:?} {kept}");
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_get_its_signs_is_asked_at_once_and_given_up_in_time() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Gateway, &options, start);
        // The carrier acknowledged signs until 28.8 s, which is noticed at the next sign.
        let last = 4 * SIGN + RTT;
        let mut look = |at: Duration, broken| {
            if broken {
                liveness.break_rest();
            }
            let carrier = Some(at.min(last).as_millis() as u64);
            let heard = Seen { carrier, kept: true, ..seen(start, RTT.min(at), true, false) };
            let step = liveness.look(heard, start + at);
            (step, liveness.rests(), at + liveness.next(), liveness.suspect())
        };
        assert_eq!(look(Duration::ZERO, false).0, Step::Ask);
        let (step, rests, next, _) = look(RTT, false);
        assert!(step == Step::Wait && rests && next > Duration::from_secs(50), "{step:?} {next:?}");
        let broken = 5 * SIGN + Duration::from_millis(60);
        let (step, rests, mut next, suspect) = look(broken, true);
        assert!(step == Step::Ask && !rests && !suspect, "{step:?} {rests} {suspect}");
        let mut suspected = false;
        let dead = loop {
            let at = next;
            let (step, rests, after, suspect) = look(at, false);
            next = after;
            assert!(!rests);
            suspected |= suspect;
            if step == Step::Dead {
                break at;
            }
        };
        assert!(suspected && dead - last <= limits::PROBE_DEADLINE, "{dead:?}");
    }

    /// A late acknowledgement is one.
    #[test]
    fn a_peer_that_answers_after_all_is_left_to_the_carrier_again() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Gateway, &options, start);
        let mut look = |at: Duration, heard: Duration, broken| {
            if broken {
                liveness.break_rest();
            }
            let step = liveness.look(Seen { kept: true, ..seen(start, heard, true, false) }, start + at);
            (step, liveness.rests(), liveness.suspect())
        };
        assert_eq!(look(Duration::ZERO, Duration::ZERO, false), (Step::Ask, false, false));
        assert_eq!(look(RTT, RTT, false), (Step::Wait, true, false));
        assert_eq!(look(SIGN, RTT, true), (Step::Ask, false, false));
        assert_eq!(look(SIGN + RTT, SIGN + RTT, false), (Step::Wait, true, false));
    }

    /// After a pause of the process all idle tunnels are due at once, and were so in each period from then on.
    #[test]
    fn idle_tunnels_that_were_asked_at_once_are_asked_apart_soon() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let asked = [0.0, 0.1, 1.0].map(|unit| {
            let mut liveness = Liveness::new(Side::Gateway, &options, start).apart(unit);
            let (mut at, mut asked) = (Duration::ZERO, Vec::new());
            while asked.len() <= 10 {
                let heard = asked.last().map_or(Duration::ZERO, |asked| at.min(*asked + RTT));
                if liveness.look(seen(start, heard, false, false), start + at) == Step::Ask {
                    asked.push(at);
                }
                at += if asked.last() == Some(&at) { RTT } else { liveness.next() };
            }
            asked
        });
        assert!(asked.iter().all(|asked| asked[0] == Duration::ZERO));
        let apart = [1, 2].map(|other| asked[0][10] - asked[other][10]);
        let about = |apart: Duration, due: Duration| apart.abs_diff(due) < 2 * EARLY;
        assert!(about(apart[0], SOONER) && about(apart[1], 10 * SOONER), "{apart:?}");
    }

    /// The session had not been asked for most of a minute.
    #[test]
    fn a_stream_that_opens_while_the_session_rests_has_it_asked_at_once() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Gateway, &options, start);
        let look = |liveness: &mut Liveness, at: Duration, waiting| {
            // The session answered the first question; the carrier answers all.
            let carrier = Some(at.saturating_sub(RTT).as_millis() as u64);
            liveness.look(Seen { carrier, kept: true, ..seen(start, RTT.min(at), true, waiting) }, start + at)
        };
        look(&mut liveness, Duration::ZERO, false);
        assert_eq!(look(&mut liveness, RTT, false), Step::Wait);
        assert!(liveness.rests());
        let opened = Duration::from_secs(41);
        assert_eq!(look(&mut liveness, opened, true), Step::Ask);
        assert!(!liveness.rests());
        let mut at = opened;
        while look(&mut liveness, at, true) != Step::Dead {
            at += liveness.next();
        }
        let after = at - opened;
        assert!(after > limits::ANSWER_WITHIN && after < Duration::from_secs(13), "{after:?}");
    }

    /// The agent's own question mends what the NAT forgot. It came when users had given the tunnel up.
    #[test]
    fn an_agent_behind_a_nat_that_forgot_it_asks_before_a_user_gives_the_tunnel_up() {
        let forgotten = (40_000..110_000).step_by(50).map(Duration::from_millis);
        for (forgotten, kept) in forgotten.flat_map(|forgotten| [(forgotten, false), (forgotten, true)]) {
            let start = Instant::now();
            let options = SessionOptions::default();
            let mut ends = [Side::Agent, Side::Gateway].map(|side| Liveness::new(side, &options, start));
            let (mut next, mut heard) = ([Duration::ZERO; 2], [Duration::ZERO; 2]);
            let (mut next_sign, mut sign) = (SIGN, Duration::ZERO);
            // A stream opens just then. Nothing gets to the agent until it has said something itself.
            let (mut opened, mut mended) = (false, false);
            while !mended {
                if !opened && next_sign < forgotten.min(next[0]).min(next[1]) {
                    if ends[1].rests() {
                        sign = next_sign + RTT / 2;
                    }
                    next_sign += SIGN;
                    continue;
                }
                let who = usize::from(next[1] < next[0]);
                let at = next[who].min(if opened { Duration::MAX } else { forgotten });
                let who = if at < next[who] { 1 } else { who };
                opened |= at >= forgotten;
                let carrier = Some(heard[who].max(sign).as_millis() as u64);
                let signed = start + if who == 0 { sign } else { sign.saturating_sub(RTT / 2) };
                let heard_of = seen(start, heard[who], true, who == 1 && opened);
                let step =
                    ends[who].look(Seen { carrier, sign: signed, kept: kept && who == 1, ..heard_of }, start + at);
                next[who] = at + ends[who].next();
                match step {
                    Step::Dead => panic!("{who} at {at:?}, forgotten at {forgotten:?}"),
                    Step::Wait => {}
                    Step::Ask if who == 1 && opened => {}
                    Step::Ask => {
                        (heard[1 - who], heard[who]) = (at + RTT / 2, at + RTT);
                        // The answer has it looked at.
                        next[who] = at + RTT;
                        mended = opened;
                    }
                }
            }
        }
    }

    /// An old gateway waits for its agent's question; a killed one says nothing either.
    #[test]
    fn an_agent_whose_gateway_does_not_ask_asks_by_itself() {
        for (quic, period) in [(false, limits::IDLE_PERIOD), (true, limits::PROBE_PERIOD)] {
            let agent = Case { side: Side::Agent, waiting: false, quic };
            let (dead, asked) = run_with(agent, 1000, |_| Duration::ZERO, answers_until(1000));
            assert_eq!(dead, None);
            let due = 1000 / period.as_secs() as usize;
            assert!((due - 5..=due + 1).contains(&asked.len()), "{}", asked.len());
        }
    }

    /// One slow answer, and then no more questions: the agent left its carrier for round trips that it no longer
    /// measured.
    #[test]
    fn an_agent_measures_a_long_round_trip_again() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let each_period = 1 + 99 / limits::IDLE_PERIOD.as_secs();
        for (took, asks) in [(Duration::from_millis(40), 1), (Duration::from_secs(5), each_period)] {
            let mut liveness = Liveness::new(Side::Agent, &options, start);
            let (mut at, mut asked) = (Duration::ZERO, 0);
            while at < Duration::from_secs(100) {
                // The gateway says something every second.
                let heard = Duration::from_secs(at.as_secs());
                let seen = Seen { answered_in: Some(took), ..seen(start, heard, false, false) };
                asked += u64::from(liveness.look(seen, start + at) == Step::Ask);
                at += liveness.next().max(EARLY);
            }
            assert_eq!(asked, asks, "{took:?}");
        }
    }

    #[test]
    fn looks_that_are_due_at_about_the_same_time_come_at_the_same_time() {
        let at = |ms| beat_after(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 1, 31, 32, 33, 64].map(at), [0, 32, 32, 32, 64, 64]);
        assert_eq!(beat_after(Duration::from_nanos(32_000_001)), 2 * BEAT);
        assert_eq!(beat_after(Duration::from_secs(10 * 365 * 24 * 3600)), Duration::ZERO);
        let wait = Duration::from_secs(15);
        assert!((wait..=wait + BEAT).contains(&together(wait)));
    }

    #[test]
    fn a_quic_tunnel_in_use_hears_from_its_agent_every_second() {
        let agent = Case { side: Side::Agent, waiting: true, quic: true };
        let (dead, asked) = run_with(agent, 100, |_| Duration::ZERO, answers_until(100));
        assert_eq!(dead, None);
        let pauses = asked.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses.max().unwrap() <= 2 * SAY_WITHIN, "{asked:?}");
        assert!(asked.len() <= 101, "{}", asked.len());
    }

    #[test]
    fn a_peer_is_suspect_only_once_it_owes_an_answer() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Agent, &options, start);
        let mut at = Duration::ZERO;
        let mut look = |liveness: &mut Liveness, heard: Duration| {
            let seen = Seen {
                received: heard.as_millis() as u64,
                heard: start + heard,
                sign: start,
                kept: false,
                carrier: None,
                rtt: None,
                answered_in: None,
                waiting: false,
                lately: false,
            };
            let step = liveness.look(seen, start + at);
            let looked = at;
            at += if step == Step::Ask { RTT } else { liveness.next() };
            (step, liveness.suspect(), looked)
        };
        // Idle, and each question is answered before the next look.
        let mut heard = Duration::ZERO;
        for _ in 1..100 {
            let (step, suspect, looked) = look(&mut liveness, heard);
            assert!(!suspect);
            if step == Step::Ask {
                heard = looked + RTT / 2;
            }
        }
        // Somebody doubts it: asked at once, and suspect when that has had its time.
        let (_, _, looked) = look(&mut liveness, heard);
        liveness.doubt();
        let (step, _, _) = look(&mut liveness, heard);
        assert_eq!(step, Step::Ask);
        assert!(look(&mut liveness, heard).1);
        assert!(!look(&mut liveness, looked + LOOK).1);
    }

    /// With questions after a second of silence, round trips of more than that made every agent behind a full uplink
    /// leave its tunnel.
    #[test]
    fn a_peer_whose_round_trips_take_long_is_not_suspect() {
        for rtt in [Duration::from_millis(1200), Duration::from_millis(1500), Duration::from_secs(4)] {
            for (waiting, quic) in [(false, false), (false, true), (true, false), (true, true)] {
                for side in BOTH {
                    let start = Instant::now();
                    let options = SessionOptions::default();
                    let mut liveness = Liveness::new(side, &options, start);
                    let (mut at, mut asked) = (Duration::ZERO, Vec::new());
                    while at < Duration::from_secs(200) {
                        let answered = asked.iter().rev().find(|asked| **asked + rtt <= at);
                        let heard = answered.map_or(Duration::ZERO, |asked: &Duration| *asked + rtt);
                        let seen = Seen { rtt: Some(rtt), ..seen(start, heard, quic, waiting) };
                        match liveness.look(seen, start + at) {
                            Step::Ask => asked.push(at),
                            Step::Wait => {}
                            Step::Dead => panic!("dead after {at:?}"),
                        }
                        assert!(!liveness.suspect(), "{side:?} {waiting} {quic} {rtt:?} at {at:?}");
                        at += liveness.next();
                    }
                }
            }
        }
    }

    /// What was heard before somebody had a reason to doubt is no answer to it, also where it had not been looked at
    /// yet.
    #[test]
    fn a_doubt_outlives_what_was_heard_before_it() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Gateway, &options, start);
        let seen = |heard_ms| seen(start, Duration::from_millis(heard_ms), false, false);
        liveness.look(seen(0), start);
        assert_eq!(liveness.look(seen(20), start + Duration::from_millis(20)), Step::Wait);
        liveness.doubt();
        assert_eq!(liveness.look(seen(8000), start + Duration::from_millis(8500)), Step::Ask);
        assert!(liveness.look(seen(8000), start + Duration::from_secs(9)) == Step::Ask && liveness.suspect());
    }

    /// The question of an idle tunnel gave it time that a doubt did not take back.
    #[test]
    fn a_doubt_counts_the_question_that_is_not_answered_yet() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Agent, &options, start);
        let look = |liveness: &mut Liveness, at, doubt| {
            if doubt {
                liveness.doubt();
            }
            // Nothing but the answer to the first question.
            (liveness.look(seen(start, RTT.min(at), false, false), start + at), liveness.suspect())
        };
        look(&mut liveness, Duration::ZERO, false);
        look(&mut liveness, RTT, false);
        let due = limits::IDLE_PERIOD + Duration::from_secs(1);
        assert_eq!(look(&mut liveness, due, false), (Step::Ask, false));
        assert_eq!(look(&mut liveness, due + Duration::from_secs(1), true), (Step::Ask, false));
        assert!(look(&mut liveness, due + Duration::from_millis(1500), false).1);
    }

    /// Round trips of more than half of what a peer has for an answer: dead and never suspect, so that nobody dialled
    /// in time.
    #[test]
    fn a_dead_peer_was_suspect_before_however_long_its_round_trips_were() {
        for rtt in [Duration::from_secs(3), Duration::from_secs(9)] {
            let start = Instant::now();
            let options = SessionOptions::default();
            let mut liveness = Liveness::new(Side::Agent, &options, start);
            let (mut at, mut suspect) = (Duration::ZERO, None);
            loop {
                let seen = Seen { rtt: Some(rtt), ..seen(start, Duration::ZERO, false, false) };
                if liveness.look(seen, start + at) == Step::Dead {
                    break;
                }
                if liveness.suspect() {
                    suspect.get_or_insert(at);
                }
                at += liveness.next();
            }
            assert!(
                suspect.is_some_and(|suspect| at - suspect >= Duration::from_secs(3)),
                "{rtt:?} {at:?} {suspect:?}"
            );
        }
    }

    /// Silence of an idle tunnel has its reason: the answer to the first question after it may take a moment.
    #[test]
    fn an_idle_peer_is_not_suspect_as_soon_as_a_stream_opens() {
        let start = Instant::now();
        let options = SessionOptions::default();
        let mut liveness = Liveness::new(Side::Gateway, &options, start);
        let look = |liveness: &mut Liveness, at_ms: u64, heard_ms: u64, waiting| {
            let (at, heard) = (Duration::from_millis(at_ms), Duration::from_millis(heard_ms));
            (liveness.look(seen(start, heard, true, waiting), start + at), liveness.suspect())
        };
        assert_eq!(look(&mut liveness, 0, 0, false), (Step::Ask, false));
        assert_eq!(look(&mut liveness, 20, 20, false), (Step::Wait, false));
        assert!(liveness.is_idle() && liveness.next() > Duration::from_secs(7));
        // Opened nine seconds later: asked at once, asked again soon, and suspect two seconds later.
        assert_eq!(look(&mut liveness, 9000, 20, true), (Step::Ask, false));
        for at_ms in [9500, 10_000, 10_500] {
            assert_eq!(look(&mut liveness, at_ms, 20, true), (Step::Ask, false), "{at_ms}");
        }
        assert_eq!(look(&mut liveness, 11_000, 20, true), (Step::Ask, true));
        assert!(!look(&mut liveness, 11_200, 11_150, true).1);
    }

    #[test]
    fn a_process_that_was_stopped_itself_takes_nobody_for_dead() {
        // Each minute it gets no turn for 50 s; nothing of what came meanwhile has been read at the first look.
        let late = |at: Duration| Duration::from_secs(if at.as_secs() % 60 == 7 { 50 } else { 0 });
        let heard = |at: Duration, _: &[Duration]| {
            Duration::from_secs(if at.as_secs() % 60 >= 57 { at.as_secs() / 60 * 60 + 7 } else { at.as_secs() })
        };
        for side in BOTH {
            for waiting in [false, true] {
                for quic in [false, true] {
                    assert_eq!(run_with(Case { side, waiting, quic }, 1000, late, heard).0, None);
                }
            }
        }
    }
}
