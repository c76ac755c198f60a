//! When to try again. Clock and random source come in as arguments.

use std::time::{Duration, Instant};

/// The numbers of a [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The upper end of the first delay; doubles with each failure.
    pub first: Duration,
    /// The largest delay while failing for no longer than [`Self::quick_for`].
    pub quick_cap: Duration,
    /// Time after the first failure in which delays stay below [`Self::quick_cap`]: a short outage costs little.
    pub quick_for: Duration,
    /// The largest delay after that.
    pub cap: Duration,
    /// Life of a connection from which on it counts as a success; one that died sooner counts as another failure, so
    /// that a peer that accepts and then refuses is not dialled in a tight loop.
    pub steady_after: Duration,
}

impl Default for BackoffPolicy {
    /// What an agent's reconnect uses: within 1 s during the first minute, then up to 30 s.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            quick_cap: Duration::from_secs(1),
            quick_for: Duration::from_secs(60),
            cap: Duration::from_secs(30),
            steady_after: Duration::from_secs(10),
        }
    }
}

/// Exponential backoff with full jitter: a delay is uniform between zero and an upper end that doubles.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    failing_since: Option<Instant>,
    upper: Duration,
}

impl Backoff {
    /// Nothing has failed yet.
    pub fn new(policy: BackoffPolicy) -> Self {
        Self { policy, failing_since: None, upper: policy.first }
    }

    /// An attempt failed at `now`: how long to wait. `unit` is a random number in `0.0..1.0`, such as [`random_unit`].
    pub fn failed(&mut self, now: Instant, unit: f64) -> Duration {
        let since = *self.failing_since.get_or_insert(now);
        let quick = now.saturating_duration_since(since) < self.policy.quick_for;
        let cap = if quick { self.policy.quick_cap } else { self.policy.cap };
        let upper = self.upper.min(cap);
        self.upper = upper.saturating_mul(2).min(self.policy.cap);
        upper.mul_f64(if unit.is_finite() { unit.clamp(0.0, 1.0) } else { 1.0 })
    }

    /// A connection ended after `lived`. One that lived for [`BackoffPolicy::steady_after`] makes all failures
    /// forgotten.
    pub fn lived(&mut self, lived: Duration) {
        if lived >= self.policy.steady_after {
            self.reset();
        }
    }

    /// Forgets all failures.
    pub fn reset(&mut self) {
        *self = Self::new(self.policy);
    }
}

/// A random number in `0.0..1.0` from the operating system.
pub fn random_unit() -> f64 {
    // Without randomness the middle is still a fair delay.
    let Ok(bytes) = types::random::bytes() else { return 0.5 };
    // The 53 bits that a double holds exactly.
    (u64::from_ne_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_keep_their_bounds(steps in prop::collection::vec((0u64..20_000, 0.0f64..1.0), 1..200)) {
            let policy = BackoffPolicy::default();
            let mut backoff = Backoff::new(policy);
            let start = Instant::now();
            let mut now = start;
            let mut first = None;
            for (gap_ms, unit) in steps {
                now += Duration::from_millis(gap_ms);
                let first = *first.get_or_insert(now);
                let delay = backoff.failed(now, unit);
                let cap = if now - first < policy.quick_for { policy.quick_cap } else { policy.cap };
                prop_assert!(delay <= cap, "{delay:?} {cap:?}");
            }
        }

        #[test]
        fn the_upper_end_never_shrinks_while_failing(gaps in prop::collection::vec(0u64..20_000, 1..200)) {
            let mut backoff = Backoff::new(BackoffPolicy::default());
            let mut now = Instant::now();
            let mut last = Duration::ZERO;
            for gap_ms in gaps {
                now += Duration::from_millis(gap_ms);
                let upper = backoff.failed(now, 1.0);
                prop_assert!(upper >= last);
                last = upper;
            }
        }

        #[test]
        fn jitter_is_full(unit in 0.0f64..1.0) {
            let mut backoff = Backoff::new(BackoffPolicy::default());
            prop_assert_eq!(backoff.failed(Instant::now(), unit), Duration::from_millis(100).mul_f64(unit));
        }
    }

    #[test]
    fn t5_an_outage_of_hours_ends_at_the_cap_and_a_steady_connection_resets() {
        let mut backoff = Backoff::new(BackoffPolicy::default());
        let mut now = Instant::now();
        for _ in 0..10_000 {
            now += Duration::from_secs(1);
            backoff.failed(now, 1.0);
        }
        assert_eq!(backoff.failed(now, 1.0), Duration::from_secs(30));
        backoff.lived(Duration::from_secs(1));
        assert_eq!(backoff.failed(now, 1.0), Duration::from_secs(30));
        backoff.lived(Duration::from_secs(11));
        assert_eq!(backoff.failed(now, 1.0), Duration::from_millis(100));
    }

    #[test]
    fn the_random_source_stays_in_range() {
        assert!((0..1000).map(|_| random_unit()).all(|unit| (0.0..1.0).contains(&unit)));
    }
}
