//! What a load has seen so far: requests as they begin, read and end, counted by many tasks at once, and made into an
//! outcome when the load is over.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{Outcome, count};
use crate::latency::Latency;

/// Counts requests as they end.
pub struct Meter {
    seen: Mutex<Seen>,
    begins: watch::Sender<u64>,
    read: AtomicU64,
}

#[derive(Default)]
struct Seen {
    latency: Latency,
    bytes: u64,
    failed: u64,
    errors: BTreeMap<String, u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Self { seen: Mutex::default(), begins: watch::Sender::new(0), read: AtomicU64::new(0) }
    }
}

impl Meter {
    /// The head of an answer is here.
    pub fn begin(&self) {
        self.begins.send_modify(|count| *count += 1);
    }

    /// `bytes` more of an answer have arrived.
    pub fn reads(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of all answers so far, those under way included.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// How many answers began.
    pub fn begins(&self) -> u64 {
        *self.begins.borrow()
    }

    /// Completes when `count` answers began, or as many requests are over, whatever became of them. Cancel-safe.
    pub async fn begun(&self, count: usize) {
        let enough = |begins: &u64| (*begins).max(self.over()) >= count as u64;
        // The sender is `self`.
        let _ = self.begins.subscribe().wait_for(enough).await;
    }

    /// A request that was due then has ended.
    pub fn record(&self, due: Instant, outcome: anyhow::Result<u64>) {
        let time = due.elapsed();
        let mut seen = self.seen();
        match outcome {
            Ok(bytes) => {
                seen.bytes += bytes;
                seen.latency.record(time);
            }
            Err(error) => {
                seen.failed += 1;
                count(&mut seen.errors, format!("{error:#}"));
            }
        }
        drop(seen);
        self.begins.send_modify(|_| ());
    }

    /// Something came that was measured elsewhere.
    pub fn took(&self, time: Duration) {
        self.seen().latency.record(time);
    }

    /// All of it, of a load that took `seconds`.
    pub fn outcome(&self, seconds: f64) -> Outcome {
        let seen = self.seen();
        Outcome {
            requests: seen.latency.len(),
            failed: seen.failed,
            beside: None,
            errors: seen.errors.clone(),
            bytes: seen.bytes,
            seconds,
            latency: seen.latency.clone(),
            extra: BTreeMap::new(),
        }
    }

    /// How many are over, whatever became of them.
    pub fn over(&self) -> u64 {
        let seen = self.seen();
        seen.failed + seen.latency.len()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ERRORS;

    #[test]
    fn kinds_of_errors_are_bounded_and_none_is_lost() {
        let meter = Meter::default();
        for number in 0..100 {
            meter.record(Instant::now(), Err(anyhow::anyhow!("error {number}")));
        }
        let outcome = meter.outcome(1.0);
        assert_eq!((outcome.failed, outcome.errors.len(), outcome.errors["others"]), (100, ERRORS + 1, 84));
        assert_eq!(outcome.errors.values().sum::<u64>(), 100);
    }
}
