//! Signals of the operating system: SIGTERM and SIGINT drain and, the second time, stop at once; SIGHUP reloads.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::{Shutdown, TaskGroup};

/// Tells when to read the configuration again. Requests that come while one is served count once.
pub struct Reloads {
    count: watch::Receiver<u64>,
}

impl Reloads {
    /// Completes at the next SIGHUP that was not seen yet. Never, once the process is closed. Cancel-safe.
    pub async fn next(&mut self) {
        if self.count.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Installs the handlers and listens in `tasks` until `shutdown` is closed. Fails if the handlers cannot be installed.
pub fn signals(tasks: &TaskGroup, shutdown: &Shutdown) -> io::Result<Reloads> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (reload, count) = watch::channel(0u64);
    let shutdown = shutdown.clone();
    tasks.spawn("signals", async move {
        let mut heard = 0;
        loop {
            let name = tokio::select! {
                biased;
                () = shutdown.closed() => return,
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: reloading the configuration");
                    reload.send_modify(|count| *count += 1);
                    continue;
                }
            };
            heard += 1;
            if heard == 1 {
                tracing::info!("{name}: draining; once more stops at once");
                shutdown.drain();
            } else {
                tracing::warn!("{name} again: stopping at once");
                shutdown.close();
            }
        }
    });
    Ok(Reloads { count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(signal: &str) {
        let me = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &me]).status().unwrap().success());
    }

    // One test for all, because signals belong to the whole test process.
    #[tokio::test]
    async fn hangup_reloads_the_first_term_drains_and_the_second_closes() {
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let mut reloads = signals(&tasks, &shutdown).unwrap();
        send("-HUP");
        reloads.next().await;
        assert_eq!(shutdown.phase(), crate::process::Phase::Ready);
        send("-TERM");
        shutdown.draining().await;
        assert_eq!(shutdown.phase(), crate::process::Phase::Draining);
        send("-INT");
        shutdown.closed().await;
        tasks.join().await.unwrap();
    }
}
