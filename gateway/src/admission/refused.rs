//! Connections that end before, or instead of, a request or a tunnel: over a bound, TLS that fails, HTTP that the
//! libraries refuse by themselves, agents that prove nothing. Each is counted; log and audit record have them at a
//! bounded rate, because anybody can provoke them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    audit::AuditLog,
    metrics::{Metrics, labels::Cause},
};

/// Records in one [`WINDOW`]; the next one says how many there were beyond.
pub const RECORDS: u32 = 20;
/// The length of time that [`RECORDS`] counts in.
const WINDOW: Duration = Duration::from_secs(1);

/// Counts refused connections, and writes audit records of them at a bounded rate.
pub struct Refusals {
    audit: Arc<AuditLog>,
    metrics: Arc<Metrics>,
    window: Mutex<Window>,
}

struct Window {
    since: Instant,
    records: u32,
    unrecorded: u64,
}

impl Refusals {
    /// Writes to this audit log and these metrics.
    pub fn new(audit: Arc<AuditLog>, metrics: Arc<Metrics>) -> Self {
        let window = Mutex::new(Window { since: Instant::now(), records: 0, unrecorded: 0 });
        Self { audit, metrics, window }
    }

    /// A connection was refused.
    pub fn record(&self, peer: SocketAddr, cause: Cause, why: &str) {
        self.metrics.connection_refused(cause);
        let Some(unrecorded) = self.place(Instant::now()) else { return };
        tracing::info!(%peer, cause = cause.as_str(), why, unrecorded, "connection refused");
        self.audit.connection_refused(&self.metrics, peer, cause.as_str(), why, unrecorded);
    }

    /// A place for one more record, with how many had none before it.
    fn place(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(window.since) >= WINDOW {
            (window.since, window.records) = (now, 0);
        }
        if window.records == RECORDS {
            window.unrecorded += 1;
            return None;
        }
        window.records += 1;
        Some(std::mem::take(&mut window.unrecorded))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

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
