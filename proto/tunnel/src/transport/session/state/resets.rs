//! How fast streams may be reset: as fast as HTTP/2 forgets it ([`limits::RESET_STREAMS`]). Without that one user who begins to
//! send and cancels, without pause, ends the tunnel that all users of the cluster share.
//!
//! Whoever opens a stream waits, not whoever resets one: that would have nothing to lose by it. A stream whose opener has sent
//! all and wants no more of the answer is not reset, and does not count; one that its peer did not want to the end does.

use std::{sync::atomic::Ordering, time::Duration};

use types::limits;

use super::{Shared, micros};

const REMEMBERED_US: u64 = limits::RESET_REMEMBERED.as_micros() as u64;
/// Each is paid off by so much time, in microseconds.
const EACH_US: u64 = REMEMBERED_US / limits::RESETS_AT_ONCE;

impl Shared {
    /// A stream was broken off while its sender was not done, here or by the peer.
    pub(crate) fn count_reset(&self) {
        if !self.remembers_resets {
            return;
        }
        let now = micros(self.begun.elapsed());
        let one_more = |until: u64| Some(until.max(now).saturating_add(EACH_US));
        let _ = self.resets_until_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    }

    /// How long to wait before another stream is opened: until no more are remembered than may be reset at once. A moment,
    /// or for as long as it takes to forget all that are open.
    pub(crate) fn wait_for_resets(&self) -> Option<Duration> {
        match self.resets_until_us.load(Ordering::Relaxed) {
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

    use super::{super::Side, *};

    #[tokio::test(start_paused = true)]
    async fn more_than_may_be_reset_at_once_are_waited_for() {
        let shared = Shared::new(Side::Gateway, Duration::from_millis(1), true);
        let reset = |count| (0..count).for_each(|_| shared.count_reset());
        assert_eq!(shared.wait_for_resets(), None);
        reset(limits::RESETS_AT_ONCE - 1);
        assert_eq!(shared.wait_for_resets(), None);
        // As many as can be open: all of them together are still remembered.
        reset(limits::STREAMS_PER_TUNNEL.into());
        let wait = shared.wait_for_resets().unwrap();
        assert!(wait < limits::RESET_REMEMBERED, "{wait:?}");
        // The clock of a tunnel that has just begun says a microsecond.
        advance(wait + Duration::from_micros(1)).await;
        assert_eq!(shared.wait_for_resets(), None);
        // From then on as many as time pays off.
        reset(10);
        let wait = shared.wait_for_resets().unwrap();
        assert!(wait <= Duration::from_micros(10 * EACH_US), "{wait:?}");
        advance(2 * limits::RESET_REMEMBERED).await;
        reset(limits::RESETS_AT_ONCE - 1);
        assert_eq!(shared.wait_for_resets(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_carrier_that_remembers_no_resets_is_not_waited_for() {
        let shared = Shared::new(Side::Gateway, Duration::from_millis(1), false);
        (0..4 * limits::RESETS_AT_ONCE).for_each(|_| shared.count_reset());
        assert_eq!(shared.wait_for_resets(), None);
    }
}
