//! Signals of the operating system: SIGTERM and SIGINT drain and, the second time, stop at once; what SIGHUP means is
//! the program's business: reading its configuration again, or an end.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::{Shutdown, TaskGroup};

/// What was heard, beside what [`Shutdown`] says.
#[derive(Clone)]
pub struct Signals {
    reloads: watch::Receiver<u64>,
    interrupted: Arc<AtomicBool>,
}

impl Signals {
    /// Completes at the next SIGHUP that was not seen yet; several that come while one is served count once. Never,
    /// once the process is closed. Cancel-safe.
    pub async fn reload(&mut self) {
        if self.reloads.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether SIGINT (Ctrl+C) was among what ended the process. Known before the drain begins that it caused.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }
}

/// Installs the handlers and listens in `tasks` until `shutdown` is closed. Fails if the handlers cannot be installed.
pub fn signals(tasks: &TaskGroup, shutdown: &Shutdown) -> io::Result<Signals> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (reload, reloads) = watch::channel(0u64);
    let signals = Signals { reloads, interrupted: Arc::default() };
    let interrupted = signals.interrupted.clone();
    let shutdown = shutdown.clone();
    tasks.spawn("signals", async move {
        let mut heard = 0;
        loop {
            let name = tokio::select! {
                biased;
                () = shutdown.closed() => return,
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => {
                    interrupted.store(true, Ordering::SeqCst);
                    "SIGINT"
                }
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP");
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
    Ok(signals)
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
    async fn hangup_reloads_the_first_interrupt_drains_and_term_then_closes() {
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let mut signals = signals(&tasks, &shutdown).unwrap();
        send("-HUP");
        signals.reload().await;
        assert_eq!(shutdown.phase(), crate::Phase::Ready);
        assert!(!signals.interrupted());
        send("-INT");
        shutdown.draining().await;
        // At once: an exit code and a grace time hang on it.
        assert!(signals.interrupted());
        assert_eq!(shutdown.phase(), crate::Phase::Draining);
        send("-TERM");
        shutdown.closed().await;
        tasks.join().await.unwrap();
    }
}
