//! How much the carrier lets the peer have in flight: what the windows of all streams may be, and not what those of the most
//! streams might be. Credit decides before it; it bounds a peer that keeps to no credit.

use std::sync::atomic::Ordering;

use types::limits;

use super::Shared;

impl Shared {
    /// What all windows may be now, and those of as many streams again.
    fn wanted_room(&self) -> u64 {
        let streams =
            (self.open_streams() as u64 / limits::CARRIER_WINDOW_STREAMS + 1) * limits::CARRIER_WINDOW_STREAMS;
        limits::CARRIER_WINDOW_BASE + 2 * streams * limits::WINDOW_INITIAL + self.growth.load(Ordering::Acquire)
    }

    /// Less only if it is much less: what was allowed cannot be taken back, only not renewed.
    fn other_room(&self) -> Option<u64> {
        let (wanted, room) = (self.wanted_room(), self.room.load(Ordering::Acquire));
        (wanted > room || wanted < room / 2).then_some(wanted)
    }

    pub(super) fn look_at_room(&self) {
        if self.other_room().is_some() {
            self.room_wanted.notify_one();
        }
    }

    /// The carrier's new window, if it is to be another one.
    pub(crate) fn take_room(&self) -> Option<u64> {
        let wanted = self.other_room()?;
        self.room.store(wanted, Ordering::Release);
        Some(wanted)
    }
}
