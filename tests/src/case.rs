//! One test: its name, what it needs of the machine, and how it runs beside others. What a machine cannot do is
//! reported as skipped, by name, and never as passed.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use libtest_mimic::{Completion, Failed, Trial};

use crate::leftovers::Before;

/// What a test needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// No more than the programs of this workspace.
    Nothing,
    /// The control plane of the real cluster.
    Cluster,
    /// A node that runs pods (root).
    Pods,
    /// Network namespaces (root).
    Namespaces,
}

impl Needs {
    /// What this machine lacks of it. Asked by a test that runs, and not when all tests are made: to know whether pods
    /// run, the cluster is brought up.
    fn missing(self) -> Option<&'static str> {
        let (has, without) = match self {
            Self::Nothing => return None,
            Self::Cluster => (crate::cluster::available(), "needs tests/cluster/cluster"),
            Self::Pods => (crate::cluster::has_node(), "needs a cluster that runs pods, and so root"),
            Self::Namespaces => (crate::network::available(), "needs root and network namespaces"),
        };
        (!has).then_some(without)
    }
}

/// How long a test may take before it counts as hanging: it fails by its name then, and the others go on.
fn limit() -> Duration {
    Duration::from_secs(if full() { 3600 } else { 1200 })
}

/// Whether the long matrix was asked for (`make test-full`).
pub fn full() -> bool {
    std::env::var_os("TOWLINE_TEST_FULL").is_some()
}

/// How a test runs beside others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Manner {
    /// It works: three at a time.
    Works,
    /// It waits for the most part, for what programs do by their own clocks: eight at a time.
    Waits,
    /// It looks at the whole cluster before and after, because it installs into it: no other may change anything there.
    Installs,
    /// It loads the machine: two at a time and without others, for those that install wait for apiservers which it would
    /// starve.
    Loads,
    /// It measures what others would slow down: alone.
    Alone,
}

impl Manner {
    /// A trial carries it as its kind until it is run.
    fn of(trial: &Trial) -> Self {
        let all = [Self::Works, Self::Waits, Self::Installs, Self::Loads, Self::Alone];
        all.into_iter().find(|manner| manner.kind() == trial.kind()).expect("a test of this module")
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Waits => "waits",
            Self::Installs => "installs",
            Self::Loads => "loads",
            Self::Alone => "alone",
        }
    }

    /// How much of the floor it takes.
    fn share(self) -> u32 {
        match self {
            Self::Works => WHOLE / 3,
            Self::Waits => WHOLE / 8,
            Self::Loads => WHOLE / 2,
            Self::Installs | Self::Alone => WHOLE,
        }
    }
}

/// Which tests this process runs: `TOWLINE_TEST_LANE`. Processes with a cluster each take one that installs after the
/// other, beside one with all others that work beside them; then come those that need the machine to themselves, and a
/// last process reads what all have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// All of them.
    All,
    /// `installs`: those that need a cluster to themselves.
    Installs,
    /// `others`: all that need neither a cluster nor the machine to themselves.
    Others,
    /// `alone`: those that need the machine to themselves.
    Alone,
    /// `sweep`: none but the reading of what others have written.
    Sweep,
}

impl Lane {
    /// As the environment says. Panics when it says what is no lane: no test would run, and none fail.
    pub fn chosen() -> Self {
        match std::env::var("TOWLINE_TEST_LANE").as_deref() {
            Err(std::env::VarError::NotPresent) => Self::All,
            Ok("installs") => Self::Installs,
            Ok("others") => Self::Others,
            Ok("alone") => Self::Alone,
            Ok("sweep") => Self::Sweep,
            other => panic!("TOWLINE_TEST_LANE is `installs`, `others`, `alone` or `sweep`, not {other:?}"),
        }
    }

    /// Whether it reads at the end what was written.
    pub fn sweeps(self) -> bool {
        matches!(self, Self::All | Self::Sweep)
    }

    fn runs(self, trial: &Trial) -> bool {
        match self {
            Self::All => true,
            Self::Installs => Manner::of(trial) == Manner::Installs,
            Self::Others => matches!(Manner::of(trial), Manner::Works | Manner::Waits),
            Self::Alone => matches!(Manner::of(trial), Manner::Loads | Manner::Alone),
            Self::Sweep => false,
        }
    }

    /// Of all tests those of this lane, in the order in which they start: what needs the machine to itself comes last.
    pub fn of(self, mut trials: Vec<Trial>) -> Vec<Trial> {
        trials.retain(|trial| self.runs(trial));
        trials.sort_by_key(|trial| Manner::of(trial).max(Manner::Waits));
        // The manner is no part of what is printed.
        trials.into_iter().map(|trial| trial.with_kind("")).collect()
    }
}

/// How many tests may be begun: more than may run, so that who waits for the floor holds up nobody behind it.
pub const BEGUN: usize = 64;

/// What there is to share. A test that works takes a third: beside three clusters with a test each, more at a time keep two
/// cores no busier, and each test waits longer for all others, some of them longer than they may.
const WHOLE: u32 = 24;

/// Who comes first goes first, so that those that need it whole get their turn.
struct Floor {
    state: Mutex<FloorState>,
    changed: Condvar,
}

struct FloorState {
    free: u32,
    next: u64,
    turn: u64,
}

/// What a test has of a floor; given back on drop.
struct Share<'a>(&'a Floor, u32);

static FLOOR: Floor = Floor::new();

impl Floor {
    const fn new() -> Self {
        Self { state: Mutex::new(FloorState { free: WHOLE, next: 0, turn: 0 }), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, FloorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, wanted: u32) -> Share<'_> {
        let mut state = self.state();
        let mine = state.next;
        state.next += 1;
        while state.turn != mine || state.free < wanted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.free -= wanted;
        state.turn += 1;
        self.changed.notify_all();
        Share(self, wanted)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.0.state().free += self.1;
        self.0.changed.notify_all();
    }
}

/// A test that works beside others.
pub fn case(name: impl Into<String>, needs: Needs, run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    made(name.into(), needs, Manner::Works, run)
}

/// A test that mostly waits: for a bound of seconds that programs keep by their clocks, with little work.
pub fn waits(
    name: impl Into<String>,
    needs: Needs,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    made(name.into(), needs, Manner::Waits, run)
}

/// A test that installs into the real cluster and compares all that is there before and after.
pub fn installs(
    name: impl Into<String>,
    needs: Needs,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    made(name.into(), needs, Manner::Installs, run)
}

/// A test that loads the machine, and asserts no time that the machine's load could change. It runs beside one more of its
/// kind at the most, before those that measure.
pub fn loads(
    name: impl Into<String>,
    needs: Needs,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    made(name.into(), needs, Manner::Loads, run)
}

/// A test that needs the machine for itself, because it asserts a bound on time that is promised in seconds.
pub fn alone(
    name: impl Into<String>,
    needs: Needs,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    made(name.into(), needs, Manner::Alone, run)
}

/// Runs in a thread of its own, which is left to itself when it does not end.
fn bounded(run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let (done, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || done.send(run()));
    match outcome.recv_timeout(limit()) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => anyhow::bail!("it hangs: no end within {:?}", limit()),
        // It panicked, and so does this thread, with the same words.
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => anyhow::bail!("it ended without an outcome"),
        },
    }
}

fn failed(error: anyhow::Error) -> Failed {
    Failed::from(format!("{error:?}"))
}

fn made(
    name: String,
    needs: Needs,
    manner: Manner,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let shown = name.clone();
    Trial::ignorable_test(name, move || {
        if let Some(missing) = needs.missing() {
            return Ok(Completion::ignored_with(missing));
        }
        let _floor = FLOOR.take(manner.share());
        let before = (manner == Manner::Installs).then(Before::look).transpose().map_err(failed)?;
        let start = Instant::now();
        let outcome = bounded(run);
        eprintln!("   {shown}: {:.1} s", start.elapsed().as_secs_f32());
        outcome.map_err(failed)?;
        if let Some(before) = before {
            before.passed();
        }
        Ok(Completion::Completed)
    })
    .with_kind(manner.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(floor: &Floor, count: u64) {
        while floor.state().next < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn whole_floor_goes_to_who_came_first_and_not_to_who_wants_less() {
        let floor = Floor::new();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let small = floor.take(1);
            scope.spawn(|| {
                let _share = floor.take(WHOLE);
                order.lock().unwrap().push("whole");
            });
            begun(&floor, 2);
            scope.spawn(|| {
                let _share = floor.take(1);
                order.lock().unwrap().push("small");
            });
            begun(&floor, 3);
            assert!(order.lock().unwrap().is_empty(), "what is taken is not whole");
            drop(small);
        });
        assert_eq!(*order.lock().unwrap(), ["whole", "small"]);
        assert_eq!(floor.state().free, WHOLE);
    }

    #[test]
    fn each_test_is_in_one_lane_and_alone_comes_last() {
        let all = || {
            let nothing = || Ok(());
            vec![
                alone("a", Needs::Nothing, nothing),
                case("c", Needs::Nothing, nothing),
                installs("i", Needs::Nothing, nothing),
                installs("j", Needs::Nothing, nothing),
                loads("l", Needs::Nothing, nothing),
                waits("w", Needs::Nothing, nothing),
            ]
        };
        let names =
            |lane: Lane| -> Vec<String> { lane.of(all()).iter().map(|trial| trial.name().to_owned()).collect() };
        assert_eq!(names(Lane::All), ["c", "w", "i", "j", "l", "a"]);
        assert_eq!(names(Lane::Others), ["c", "w"]);
        assert_eq!(names(Lane::Alone), ["l", "a"]);
        assert_eq!(names(Lane::Installs), ["i", "j"]);
        assert!(names(Lane::Sweep).is_empty());
    }
}
