//! One test: its name, what it needs of the machine, and how it runs beside others. What a machine cannot do is reported
//! as skipped, by name, and never as passed.

use std::{
    sync::{RwLock, mpsc::RecvTimeoutError},
    time::Duration,
};

use libtest_mimic::{Failed, Trial};

/// What a test needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Programs only.
    Nothing,
    /// The control plane of the real cluster.
    Cluster,
    /// A node that runs pods (root).
    Pods,
    /// Network namespaces (root).
    Namespaces,
}

/// How long a test may take before it counts as hanging: it fails by its name then, and the others go on.
fn limit() -> Duration {
    Duration::from_secs(if full() { 3600 } else { 1200 })
}

/// Tests with a measured wait run alone, the others beside each other.
static FLOOR: RwLock<()> = RwLock::new(());

/// Whether the long matrix was asked for (`make test-full`).
pub fn full() -> bool {
    std::env::var_os("TOWLINE_TEST_FULL").is_some()
}

/// A test that runs beside others.
pub fn case(name: impl Into<String>, needs: Needs, run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    trial(name.into(), needs, move || {
        let _floor = FLOOR.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        bounded(run)
    })
}

/// A test that needs the machine for itself, because it loads it or because it asserts a bound on time that the issue
/// states in seconds.
pub fn alone(
    name: impl Into<String>,
    needs: Needs,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    trial(name.into(), needs, move || {
        let _floor = FLOOR.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        bounded(run)
    })
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

fn trial(name: String, needs: Needs, run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    let missing = match needs {
        Needs::Nothing => false,
        Needs::Cluster => !crate::cluster::available(),
        Needs::Pods => !crate::cluster::has_node(),
        Needs::Namespaces => !crate::network::available(),
    };
    let shown = name.clone();
    Trial::test(name, move || {
        let start = std::time::Instant::now();
        let outcome = run();
        eprintln!("   {shown}: {:.1} s", start.elapsed().as_secs_f32());
        outcome.map_err(|error| Failed::from(format!("{error:?}")))
    })
    .with_ignored_flag(missing)
}
