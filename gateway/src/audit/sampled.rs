//! Places in the audit log for what anybody can have written: requests that were refused before it was known whose they
//! are. Each network has a number of them in a second; the next record of it says how many had none.

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
}

impl Default for Sampled {
    fn default() -> Self {
        Self(Mutex::new(Shared::new(NETWORKS)))
    }
}

impl Sampled {
    /// A place for one more record of this address's network, with how many had none before it.
    pub(super) fn place(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let network = network(peer);
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.get(&network).is_none() {
            windows.insert(network, network, Window::new(now));
        }
        windows.get_mut(&network)?.place(now)
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
}
