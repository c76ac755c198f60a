//! How many records of each party wait for the writer: of a user, or of a subscription that the gateway does something
//! for. Nobody is counted out while a quarter of the queue is free. Of that quarter each party has a share, so that a
//! party whose records come faster than they are written loses further ones of its own, and nobody else does.
//!
//! A request waits for no lock and allocates nothing for this. Parties are counted by a hash with a key of this
//! process, in a table that does not grow: two parties of one place in it have one share together, and nobody can
//! choose whose place it has.

use std::{
    hash::{BuildHasher as _, Hash, RandomState},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use daemon::shares;

use super::QUEUE_RECORDS;

/// Places of parties.
const SLOTS: u16 = 4096;
/// Places of the queue of which each party has a share.
const SHARED_RECORDS: usize = QUEUE_RECORDS / 4;

/// The place of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

/// Records that wait, and those that could not.
pub(super) struct Waiting {
    hasher: RandomState,
    slots: Box<[AtomicU32]>,
    /// Records that found no room, since the start.
    pub(super) dropped: AtomicU64,
}

impl Default for Waiting {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Self { hasher: RandomState::new(), slots, dropped: AtomicU64::new(0) }
    }
}

impl Waiting {
    /// The place of a party.
    pub(super) fn slot(&self, party: impl Hash) -> Slot {
        let slot = self.hasher.hash_one(party) % u64::from(SLOTS);
        Slot(u16::try_from(slot).unwrap_or_default())
    }

    /// One more record waits, unless the party has more than its share of the places that are free. Whether it does.
    pub(super) fn begin(&self, slot: Slot, free: usize) -> bool {
        let before = self.of(slot).fetch_add(1, Ordering::Relaxed);
        if free > SHARED_RECORDS || before < share(free) {
            return true;
        }
        self.end(slot);
        false
    }

    /// One that waited waits no longer.
    pub(super) fn end(&self, slot: Slot) {
        self.of(slot).fetch_sub(1, Ordering::Relaxed);
    }

    fn of(&self, Slot(slot): Slot) -> &AtomicU32 {
        &self.slots[usize::from(slot)]
    }

    /// How many records of all parties wait.
    #[cfg(test)]
    pub(super) fn all(&self) -> u32 {
        self.slots.iter().map(|slot| slot.load(Ordering::Relaxed)).sum()
    }
}

/// How many records of one party may wait while so many places are free.
fn share(free: usize) -> u32 {
    let records = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    shares::share(records(QUEUE_RECORDS), records(QUEUE_RECORDS.saturating_sub(free)), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_few_records_waiting_always_has_room_for_one() {
        let waiting = Waiting::default();
        let ann = waiting.slot(("ann", "dev"));
        assert_eq!(waiting.slot(("ann", "dev")), ann);
        let mut free = QUEUE_RECORDS;
        while waiting.begin(ann, free) {
            free -= 1;
        }
        assert_eq!((free, waiting.all()), (SHARED_RECORDS, u32::try_from(QUEUE_RECORDS - SHARED_RECORDS).unwrap()));
        let bob = (0..).map(|n| waiting.slot((n, "dev"))).find(|slot| *slot != ann).unwrap();
        let own = (0..).take_while(|taken| waiting.begin(bob, SHARED_RECORDS - taken)).count();
        assert!((400..600).contains(&own), "{own}");
        for _ in 0..own {
            waiting.end(bob);
        }
        assert!(waiting.begin(bob, 1), "a first one");
        assert!(!waiting.begin(bob, 1) && !waiting.begin(ann, 1), "and none beyond the last places");
    }
}
