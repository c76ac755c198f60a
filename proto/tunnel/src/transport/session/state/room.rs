//! How much the carrier lets the peer have in flight: what the windows of all streams may be, and not what those of the
//! most streams might be. Credit decides before it; it bounds a peer that keeps to no credit.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use types::limits;

/// The carrier's window.
pub(crate) struct Room {
    /// Bytes that windows of streams have grown beyond their first size.
    growth: AtomicU64,
    /// What the carrier lets the peer have in flight on the whole connection, in bytes.
    allowed: AtomicU64,
    /// Told when that should be more or much less.
    pub(crate) wanted: Notify,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { growth: AtomicU64::new(0), allowed: AtomicU64::new(limits::CARRIER_WINDOW_HELLO), wanted: Notify::new() }
    }

    /// Grows the window of a stream by `bytes`, if the tunnel's sum allows: at most a quarter of what is left, so that
    /// the last of many readers gets something too.
    pub(super) fn grow(&self, bytes: u64) -> bool {
        self.growth
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |grown| {
                let left = limits::WINDOW_GROWTH_PER_TUNNEL.saturating_sub(grown);
                (bytes <= left / 4).then_some(grown + bytes)
            })
            .is_ok()
    }

    /// The stream is over.
    pub(super) fn shrink(&self, bytes: u64) {
        self.growth.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// What all windows may be now, and those of as many streams again.
    fn wished(&self, open: usize) -> u64 {
        let streams = (open as u64 / limits::CARRIER_WINDOW_STREAMS + 1) * limits::CARRIER_WINDOW_STREAMS;
        limits::CARRIER_WINDOW_BASE + 2 * streams * limits::WINDOW_INITIAL + self.growth.load(Ordering::Acquire)
    }

    /// Less only if it is much less: what was allowed cannot be taken back, only not renewed.
    fn other(&self, open: usize) -> Option<u64> {
        let (wished, allowed) = (self.wished(open), self.allowed.load(Ordering::Acquire));
        (wished > allowed || wished < allowed / 2).then_some(wished)
    }

    /// `open` streams are open now, or a window has grown.
    pub(super) fn look(&self, open: usize) {
        if self.other(open).is_some() {
            self.wanted.notify_one();
        }
    }

    /// The carrier's new window for `open` streams, if it is to be another one.
    pub(super) fn take(&self, open: usize) -> Option<u64> {
        let wished = self.other(open)?;
        self.allowed.store(wished, Ordering::Release);
        Some(wished)
    }

    #[cfg(test)]
    pub(super) fn growth(&self) -> u64 {
        self.growth.load(Ordering::Acquire)
    }
}
