//! How fast streams may be reset: as fast as HTTP/2 forgets it ([`limits::RESET_STREAMS`]). Without that one user who
//! begins to send and cancels, without pause, ends the tunnel that all users of the cluster share.
//!
//! Whoever opens a stream waits, not whoever resets one: that would have nothing to lose by it. A stream whose opener
//! has sent all and wants no more of the answer is not reset, and does not count; one that its peer did not want to the
//! end does.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;
use types::limits;

use super::micros;

const REMEMBERED_US: u64 = limits::RESET_REMEMBERED.as_micros() as u64;
/// Time that pays off one reset, in microseconds.
const EACH_US: u64 = REMEMBERED_US / limits::RESETS_AT_ONCE;

/// What the carrier remembers of streams that were reset.
pub(crate) struct Resets {
    begun: Instant,
    /// Whether it remembers them, and has a bound for it.
    remembered: bool,
    /// When all that were reset here are paid off, in microseconds since it began.
    until_us: AtomicU64,
}

impl Resets {
    pub(super) fn new(begun: Instant, remembered: bool) -> Self {
        Self { begun, remembered, until_us: AtomicU64::new(0) }
    }

    /// A stream was broken off while its sender was not done, here or by the peer.
    pub(crate) fn count(&self) {
        if !self.remembered {
            return;
        }
        let now = micros(self.begun.elapsed());
        let one_more = |until: u64| Some(until.max(now).saturating_add(EACH_US));
        let _ = self.until_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    }

    /// How long to wait before another stream is opened: until no more are remembered than may be reset at once. A
    /// moment, or for as long as it takes to forget all that are open.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.until_us.load(Ordering::Relaxed) {
            0 => None,
            until => {
                let free = micros(self.begun.elapsed()).saturating_add(REMEMBERED_US);
                until.checked_sub(free).filter(|wait| *wait > 0).map(Duration::from_micros)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_than_may_be_reset_at_once_are_waited_for() {
        let resets = Resets::new(Instant::now(), true);
        let reset = |count| (0..count).for_each(|_| resets.count());
        assert_eq!(resets.wait(), None);
        reset(limits::RESETS_AT_ONCE - 1);
        assert_eq!(resets.wait(), None);
        // As many as can be open: all of them together are still remembered.
        reset(limits::STREAMS_PER_TUNNEL.into());
        let wait = resets.wait().unwrap();
        assert!(wait < limits::RESET_REMEMBERED, "{wait:?}");
        // The clock of a tunnel that has just begun says a microsecond.
        advance(wait + Duration::from_micros(1)).await;
        assert_eq!(resets.wait(), None);
        // From then on as many as time pays off.
        reset(10);
        let wait = resets.wait().unwrap();
        assert!(wait <= Duration::from_micros(10 * EACH_US), "{wait:?}");
        advance(2 * limits::RESET_REMEMBERED).await;
        reset(limits::RESETS_AT_ONCE - 1);
        assert_eq!(resets.wait(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_carrier_that_remembers_no_resets_is_not_waited_for() {
        let resets = Resets::new(Instant::now(), false);
        (0..4 * limits::RESETS_AT_ONCE).for_each(|_| resets.count());
        assert_eq!(resets.wait(), None);
    }
}
