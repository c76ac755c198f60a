//! Slows down who guesses passwords: failures are counted per address and per user from that address, in fixed windows.
//!
//! The count of one user from one address keeps a guesser away without letting them lock that user out elsewhere.

use std::{net::IpAddr, time::Duration};

use quick_cache::sync::{Cache, EntryAction, EntryResult};
use tokio::time::Instant;

use crate::request::accept::limit::network;

/// A window; also what a refused client is told to wait.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Failures of one user from one address in a window.
const PER_USER: u32 = 10;
/// Failures from one address in a window.
const PER_ADDRESS: u32 = 100;
/// Windows kept; over that those go that were asked for least.
const WINDOWS: usize = 16_384;

#[derive(PartialEq, Eq, Hash, Clone)]
enum Key {
    Address(IpAddr),
    User(IpAddr, String),
}

/// Failures since it began.
#[derive(Clone)]
struct Window {
    failures: u32,
    began: Instant,
}

impl Window {
    fn is_over(&self) -> bool {
        self.began.elapsed() >= WINDOW
    }
}

pub struct Failures {
    windows: Cache<Key, Window>,
}

impl Failures {
    pub fn new() -> Self {
        Self { windows: Cache::new(WINDOWS) }
    }

    /// Whether there were too many failures to try again now.
    pub fn too_many(&self, address: IpAddr, user: &str) -> bool {
        let address = network(address);
        let count = |key| self.windows.get(&key).filter(|window| !window.is_over()).map_or(0, |window| window.failures);
        count(Key::User(address, user.to_owned())) >= PER_USER || count(Key::Address(address)) >= PER_ADDRESS
    }

    /// Counts one.
    pub fn count(&self, address: IpAddr, user: &str) {
        let address = network(address);
        for key in [Key::User(address, user.to_owned()), Key::Address(address)] {
            let first = || Window { failures: 1, began: Instant::now() };
            let counted = self.windows.entry(&key, None, |_, window| {
                if window.is_over() {
                    *window = first();
                } else {
                    window.failures += 1;
                }
                EntryAction::Retain(())
            });
            if let EntryResult::Vacant(place) = counted {
                // Refused only where it was forgiven at this moment.
                let _ = place.insert(first());
            }
        }
    }

    /// Forgets those of a user who has now signed in.
    pub fn forgive(&self, address: IpAddr, user: &str) {
        self.windows.remove(&Key::User(network(address), user.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_is_stopped_for_that_user_from_that_address_only() {
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let failures = Failures::new();
        for _ in 0..PER_USER {
            assert!(!failures.too_many(here, "ann"));
            failures.count(here, "ann");
        }
        assert!(failures.too_many(here, "ann"));
        assert!(!failures.too_many(there, "ann") && !failures.too_many(here, "bob"));
        failures.forgive(here, "ann");
        assert!(!failures.too_many(here, "ann"));
    }

    /// A count is that of its window alone.
    #[tokio::test(start_paused = true)]
    async fn a_minute_later_it_may_be_tried_again() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let failures = Failures::new();
        for _ in 0..PER_USER {
            failures.count(here, "ann");
        }
        tokio::time::advance(WINDOW - Duration::from_secs(1)).await;
        failures.count(here, "ann");
        assert!(failures.too_many(here, "ann"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!failures.too_many(here, "ann"));
        failures.count(here, "ann");
        assert!(!failures.too_many(here, "ann"), "the one before is over");
    }

    /// Who has an IPv6 network had a fresh count for each of its 2^64 addresses.
    #[test]
    fn another_address_of_the_same_ipv6_network_is_no_fresh_start() {
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let failures = Failures::new();
        for last in 0..PER_USER {
            failures.count(address(last as u16), "ann");
        }
        assert!(failures.too_many(address(999), "ann"));
        assert!(!failures.too_many(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]), "ann"));
    }

    #[test]
    fn an_address_that_tries_many_users_is_stopped() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let failures = Failures::new();
        for user in 0..PER_ADDRESS {
            failures.count(here, &user.to_string());
        }
        assert!(failures.too_many(here, "ann"));
    }
}
