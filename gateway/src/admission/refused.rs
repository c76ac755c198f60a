//! Connections that end before, or instead of, a request or a tunnel: over a bound, TLS that fails, HTTP that the
//! libraries refuse by themselves, agents that prove nothing. Each is counted; log and audit record have them at a
//! bounded rate, because anybody can provoke them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    audit::{AuditLog, sampled::Window},
    metrics::{Metrics, labels::Cause},
};

/// Counts refused connections, and writes audit records of them at a bounded rate.
pub struct Refusals {
    audit: Arc<AuditLog>,
    metrics: Arc<Metrics>,
    window: Mutex<Window>,
}

impl Refusals {
    /// Writes to this audit log and these metrics.
    pub fn new(audit: Arc<AuditLog>, metrics: Arc<Metrics>) -> Self {
        let window = Mutex::new(Window::new(Instant::now()));
        Self { audit, metrics, window }
    }

    /// A connection was refused.
    pub fn record(&self, peer: SocketAddr, cause: Cause, why: &str) {
        self.metrics.connection_refused(cause);
        let Some(unrecorded) = self.place(Instant::now()) else { return };
        tracing::info!(%peer, cause = cause.as_str(), why, unrecorded, "connection refused");
        if !self.audit.connection_refused(&self.metrics, peer, cause.as_str(), why, unrecorded) {
            self.window().give_back(unrecorded.saturating_add(1));
        }
    }

    /// How many have no record and are told by none so far, for the end of the log.
    pub fn take_untold(&self) -> u64 {
        self.window().take_untold()
    }

    /// A place for one more record, with how many had none before it.
    fn place(&self, now: Instant) -> Option<u64> {
        self.window().place(now)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::audit::sampled::{RECORDS, WINDOW};

    #[test]
    fn records_are_bounded_and_say_what_is_missing() {
        let refusals = Refusals::new(AuditLog::nowhere(), Arc::new(Metrics::new()));
        let start = Instant::now();
        for _ in 0..RECORDS {
            assert_eq!(refusals.place(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(refusals.place(start), None);
        }
        assert_eq!(refusals.place(start + WINDOW), Some(5));
        assert_eq!(refusals.place(start + WINDOW), Some(0));
        // Those that find no room in the log are told by the next, or at its end.
        for _ in 0..3 {
            refusals.record(([192, 0, 2, 1], 5).into(), Cause::Tls, "no handshake");
        }
        assert_eq!((refusals.take_untold(), refusals.take_untold()), (3, 0));
    }

    #[test]
    fn who_went_away_is_not_refused() {
        let gone = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(Cause::of(&gone), None);
        let tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(Cause::of(&tls), Some(Cause::Tls));
        assert_eq!(Cause::of(&io::Error::new(io::ErrorKind::InvalidData, "chunk")), Some(Cause::Http1));
        assert_eq!(Cause::of(&io::Error::from(io::ErrorKind::TimedOut)), Some(Cause::Timeout));
    }
}
