//! Places in the audit log for what anybody can have written: requests that were refused before it was known whose they
//! are. Each network has a number of them in a second; the next record of it says how many had none. No count is lost: of a
//! record that finds no room it goes to the next one, of a network that is forgotten to the one that takes its place, and
//! what is left at the end has lines of its own.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use daemon::shares::{Shared, network};

/// Records in one [`WINDOW`]; the next one says how many there were beyond.
pub const RECORDS: u32 = 20;
/// The length of time that [`RECORDS`] counts in.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Networks that are counted. One that is forgotten begins anew.
const NETWORKS: usize = 4096;

/// Counts them. The lock is taken for what is refused, and for nothing else.
pub(super) struct Sampled(Mutex<Shared<IpAddr, Window>>);

/// Places for records in a [`WINDOW`] after the other.
pub struct Window {
    since: Instant,
    records: u32,
    unrecorded: u64,
}

impl Window {
    /// The first one begins now.
    pub fn new(now: Instant) -> Self {
        Self { since: now, records: 0, unrecorded: 0 }
    }

    /// A place for one more record, with how many had none before it.
    pub fn place(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.records) = (now, 0);
        }
        if self.records == RECORDS {
            self.unrecorded += 1;
            return None;
        }
        self.records += 1;
        Some(std::mem::take(&mut self.unrecorded))
    }

    /// So many more have no record: the one that was to tell of them was not kept.
    pub fn give_back(&mut self, unrecorded: u64) {
        self.unrecorded = self.unrecorded.saturating_add(unrecorded);
    }

    /// How many have no record and are told by none so far. From now on they count as told.
    pub fn take_untold(&mut self) -> u64 {
        std::mem::take(&mut self.unrecorded)
    }
}

impl Default for Sampled {
    fn default() -> Self {
        Self(Mutex::new(Shared::new(NETWORKS)))
    }
}

impl Sampled {
    /// A place for one more record of this address's network, with how many had none before it.
    pub(super) fn place(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        self.with(peer, now, |window| window.place(now))?
    }

    /// A record of this address's network was not kept, which was to tell of others: so many have none.
    pub(super) fn give_back(&self, peer: IpAddr, unrecorded: u64, now: Instant) {
        self.with(peer, now, |window| window.give_back(unrecorded));
    }

    /// The networks of which some have no record and are told by none so far, with how many.
    pub(super) fn take_untold(&self) -> Vec<(IpAddr, u64)> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let networks: Vec<IpAddr> = windows.iter().map(|(network, _)| *network).collect();
        let untold = networks.into_iter().filter_map(|network| {
            let untold = windows.get_mut(&network)?.take_untold();
            (untold > 0).then_some((network, untold))
        });
        untold.collect()
    }

    fn with<T>(&self, peer: IpAddr, now: Instant, change: impl FnOnce(&mut Window) -> T) -> Option<T> {
        let network = network(peer);
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.get(&network).is_none() {
            let forgotten = windows.insert(network, network, Window::new(now));
            if let (Some((_, mut forgotten)), Some(window)) = (forgotten, windows.get_mut(&network)) {
                window.give_back(forgotten.take_untold());
            }
        }
        windows.get_mut(&network).map(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_records_and_the_next_one_says_what_is_missing() {
        let (sampled, start) = (Sampled::default(), Instant::now());
        let (one, near, other): (IpAddr, IpAddr, IpAddr) =
            ([192, 0, 2, 1].into(), [192, 0, 2, 9].into(), [198, 51, 100, 1].into());
        for _ in 0..RECORDS {
            assert_eq!(sampled.place(one, start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(sampled.place(near, start), None);
        }
        assert_eq!(sampled.place(other, start), Some(0));
        assert_eq!(sampled.place(one, start + WINDOW), Some(5));
        assert_eq!(sampled.place(one, start + WINDOW), Some(0));
    }

    #[test]
    fn no_count_is_lost_with_its_record_its_network_or_at_the_end() {
        let (sampled, start) = (Sampled(Mutex::new(Shared::new(2))), Instant::now());
        let peers: [IpAddr; 3] = [[192, 0, 2, 1].into(), [198, 51, 100, 1].into(), [203, 0, 113, 1].into()];
        let flood = |peer: IpAddr, requests: u32| (0..requests).filter_map(|_| sampled.place(peer, start)).sum::<u64>();
        assert_eq!((flood(peers[0], RECORDS + 5), flood(peers[1], RECORDS + 7)), (0, 0));
        // The next record of the first was not kept.
        assert_eq!(sampled.place(peers[0], start + WINDOW), Some(5));
        sampled.give_back(peers[0], 6, start + WINDOW);
        // A third network takes the place of one of them, whichever that is.
        let of_gone = sampled.place(peers[2], start + WINDOW).unwrap();
        let left: u64 = sampled.take_untold().into_iter().map(|(_, untold)| untold).sum();
        assert!([6, 7].contains(&of_gone), "{of_gone}");
        assert_eq!(of_gone + left, 13);
        assert_eq!(sampled.take_untold(), []);
    }
}
