//! Work that one of several gateways does at a time: whoever holds its name in the store does it, and the others wait.
//!
//! The name is held for a short time and renewed. A process that is killed, or that cannot reach the store, loses it, and
//! another one goes on from what the store has. One that cannot renew stops before another may begin.

use std::{future::Future, time::Duration};

use daemon::Shutdown;
use tokio::time::{sleep, timeout};

use crate::{
    random,
    replicas::boot_time,
    store::{Backend, Store},
};

/// How long a name is held.
pub const HELD: Duration = Duration::from_secs(15);
/// How often it is renewed, and asked for by those who wait.
pub const AGAIN: Duration = Duration::from_secs(4);
/// The work stops this long before the name ends, so that the clocks of two machines may run at different speeds.
const MARGIN: Duration = Duration::from_secs(2);
/// How often it is looked at whether the name's time is over. Timers stand still while a virtual machine is suspended, and
/// the name ends all the same: the work goes on for this long afterwards at most.
const LOOK: Duration = Duration::from_millis(500);

/// Does some work while this process holds its name, until the work ends or the gateway drains. Where the name is lost the
/// work is dropped, and begun anew once it is held again. With SQLite the work is done at once.
pub async fn alone<F: Future<Output = ()>>(store: &Store, name: &str, shutdown: &Shutdown, work: impl Fn() -> F) {
    if store.backend() == Backend::Sqlite {
        return work().await;
    }
    let holder = random::guid();
    loop {
        let Some(until) = shutdown.until_draining(take(store, name, &holder)).await else { return };
        tracing::info!(work = name, "this gateway does it from now on, and no other one");
        let lost = tokio::select! {
            biased;
            () = shutdown.draining() => false,
            () = lost(store, name, &holder, until) => true,
            () = work() => false,
        };
        if !lost {
            if let Err(error) = store.let_go(name, &holder).await {
                tracing::debug!(work = name, %error, "it cannot be given back; it ends by itself");
            }
            return;
        }
        tracing::warn!(work = name, "this gateway cannot renew its right to do it: it is left to another one");
    }
}

/// Waits until the name is held; until when the work may go on, as time since the machine started.
async fn take(store: &Store, name: &str, holder: &str) -> Duration {
    loop {
        let until = boot_time() + HELD - MARGIN;
        match store.hold(name, holder, HELD).await {
            Ok(true) => return until,
            Ok(false) => {}
            Err(error) => tracing::debug!(work = name, %error, "it cannot be asked for"),
        }
        sleep(AGAIN).await;
    }
}

/// Renews, and completes once that is no longer possible.
async fn lost(store: &Store, name: &str, holder: &str, mut until: Duration) {
    loop {
        let again = boot_time() + AGAIN;
        while boot_time() < again {
            sleep(LOOK).await;
        }
        let asked = boot_time();
        if asked >= until {
            return;
        }
        let next = asked + HELD - MARGIN;
        // A machine that is suspended in between has its answer late: who has the name by then, the next round finds out.
        match timeout(until.saturating_sub(boot_time()), store.hold(name, holder, HELD)).await {
            Ok(Ok(true)) => until = next,
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::debug!(work = name, %error, "it cannot be renewed");
                if boot_time() + AGAIN >= until {
                    return;
                }
            }
        }
    }
}
