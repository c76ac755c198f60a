//! One test: its name, what it needs of the machine, and how it runs beside others. What a machine cannot do is reported
//! as skipped, by name, and never as passed.

use std::sync::RwLock;

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
        run()
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
        run()
    })
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
