//! Supervises the other roles: each runs in a task of its own; one that ends or panics is started again after a while,
//! and no other is disturbed.

use std::time::{Duration, Instant};

use daemon::{Backoff, BackoffPolicy, Shutdown, TaskGroup, random_unit};

use super::{Named, health::Health};
use crate::{config::Deployment, metrics};

/// This role's name.
pub const NAME: &str = Deployment::ControllerManager.name();

/// Run time of a role after which its next restart waits the shortest time again.
const STEADY: Duration = Duration::from_secs(600);
/// Waits between starts: a role that fails at once must not keep a processor busy.
const RESTARTS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(10),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(120),
    steady_after: STEADY,
};

/// Runs `roles` until told to drain, and then to their ends.
pub async fn supervise(roles: Vec<Named>, health: Health, shutdown: Shutdown) {
    let supervisors = TaskGroup::new("supervisors");
    health.of(NAME).running();
    for role in roles {
        let (health, shutdown) = (health.clone(), shutdown.clone());
        supervisors.spawn(role.name, async move { keep(role, &health, &shutdown).await });
    }
    // A supervisor does nothing that could panic.
    let _ = shutdown.until_closed(supervisors.join()).await;
    supervisors.abort();
}

async fn keep(named: Named, health: &Health, shutdown: &Shutdown) {
    let Named { name, role } = named;
    let reporter = health.of(name);
    let mut backoff = Backoff::new(RESTARTS);
    loop {
        if role.reports() {
            reporter.starting()
        } else {
            reporter.running()
        }
        let begun = Instant::now();
        let running = TaskGroup::new("roles");
        let (runs, until) = (role.clone(), shutdown.clone());
        let ended = running.spawn_task(name, async move { metrics::timed(name, runs.run(until)).await }).await;
        if shutdown.phase() != daemon::Phase::Ready {
            return;
        }
        let why = match ended {
            Ok(()) => "it ended by itself".to_owned(),
            Err(err) => err.to_string(),
        };
        backoff.lived(begun.elapsed());
        let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
        tracing::error!(role = name, error = why, again_in_ms = wait.as_millis(), "a role ended: it is started again");
        reporter.failing("Ended", &why);
        metrics::role_restarted(name);
        if shutdown.until_draining(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::roles::{Role, health::State};

    struct Fragile {
        runs: AtomicUsize,
        health: Health,
    }

    impl Role for Fragile {
        fn reports(&self) -> bool {
            true
        }

        fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
            Box::pin(async move {
                match self.runs.fetch_add(1, Ordering::SeqCst) {
                    0 => panic!("as the test says"),
                    1 => {}
                    _ => {
                        self.health.of("fragile").running();
                        shutdown.draining().await;
                    }
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_panics_or_ends_is_started_again_and_says_so() {
        let health = Health::default();
        let role = Arc::new(Fragile { runs: AtomicUsize::new(0), health: health.clone() });
        let shutdown = Shutdown::new();
        let group = TaskGroup::new("test");
        let running = supervise(vec![Named { name: "fragile", role: role.clone() }], health.clone(), shutdown.clone());
        group.spawn("supervise", running);
        let mut changes = health.changes();
        let mut told = Vec::new();
        loop {
            changes.changed().await.unwrap();
            let Some(fragile) = health.all().remove("fragile") else { continue };
            if fragile.state == State::Failing {
                told.push(fragile.message);
            } else if fragile.state == State::Running {
                break;
            }
        }
        assert_eq!(role.runs.load(Ordering::SeqCst), 3);
        assert!(told[0].contains("as the test says") && told[1].contains("ended by itself"), "{told:?}");
        shutdown.drain();
        group.join().await.unwrap();
    }
}
