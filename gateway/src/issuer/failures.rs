//! Slows down who guesses passwords: failures are counted per address and per user from that address, in fixed windows.
//!
//! The count of one user from one address keeps a guesser away without letting them lock that user out elsewhere.

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use daemon::shares::{Shared, address, network};
use tokio::time::Instant;

/// A window; also what a refused client is told to wait.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Failures of one user from one address in a window.
pub const PER_USER: u32 = 10;
/// Failures from one address in a window.
pub const PER_ADDRESS: u32 = 100;
/// Windows kept; over that the oldest go of the network that has most.
pub const WINDOWS: usize = 16_384;

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
    windows: Mutex<Shared<Key, Window>>,
}

impl Failures {
    pub fn new() -> Self {
        Self { windows: Mutex::new(Shared::new(WINDOWS)) }
    }

    fn windows(&self) -> MutexGuard<'_, Shared<Key, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there were too many failures to try again now.
    pub fn too_many(&self, peer: IpAddr, user: &str) -> bool {
        are_too_many(&self.windows(), peer, user)
    }

    /// Counts a failed sign-in for the address, and for the user at that address.
    pub fn count(&self, peer: IpAddr, user: &str) {
        count_in(&mut self.windows(), peer, user);
    }

    /// Counts a try that may fail, unless there were too many: then it is false. Of many at once no more are told that they
    /// may than there is room for.
    pub fn may_try(&self, peer: IpAddr, user: &str) -> bool {
        let mut windows = self.windows();
        let may = !are_too_many(&windows, peer, user);
        if may {
            count_in(&mut windows, peer, user);
        }
        may
    }

    /// Takes back a try that did not fail.
    pub fn take_back(&self, peer: IpAddr, user: &str) {
        let (mut windows, address) = (self.windows(), address(peer));
        for key in [Key::User(address, user.to_owned()), Key::Address(address)] {
            if let Some(window) = windows.get_mut(&key) {
                window.failures = window.failures.saturating_sub(1);
            }
        }
    }

    /// Forgets those of a user who has now signed in.
    pub fn forgive(&self, peer: IpAddr, user: &str) {
        self.windows().remove(&Key::User(address(peer), user.to_owned()));
    }
}

fn are_too_many(windows: &Shared<Key, Window>, peer: IpAddr, user: &str) -> bool {
    let address = address(peer);
    let count = |key| windows.get(&key).filter(|window| !window.is_over()).map_or(0, |window| window.failures);
    count(Key::User(address, user.to_owned())) >= PER_USER || count(Key::Address(address)) >= PER_ADDRESS
}

fn count_in(windows: &mut Shared<Key, Window>, peer: IpAddr, user: &str) {
    let (of, address) = (network(peer), address(peer));
    windows.expire(&of, Window::is_over);
    for key in [Key::User(address, user.to_owned()), Key::Address(address)] {
        match windows.get_mut(&key).filter(|window| !window.is_over()) {
            Some(window) => window.failures += 1,
            None => drop(windows.insert(of, key, Window { failures: 1, began: Instant::now() })),
        }
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

    #[test]
    fn a_try_that_did_not_fail_is_taken_back_and_no_other_with_it() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let failures = Failures::new();
        for _ in 0..PER_USER - 1 {
            assert!(failures.may_try(here, "ann"));
        }
        for _ in 0..PER_ADDRESS {
            assert!(failures.may_try(here, "ann"));
            failures.take_back(here, "ann");
        }
        assert!(failures.may_try(here, "ann") && !failures.may_try(here, "ann") && failures.may_try(here, "bob"));
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

    /// Who had many addresses made room in the table until the count of one of them was forgotten.
    #[test]
    fn a_flood_from_one_network_forgets_no_count_of_another() {
        let (here, failures) = (IpAddr::from([192, 0, 2, 1]), Failures::new());
        for _ in 0..PER_USER {
            failures.count(here, "ann");
        }
        for n in 0..=WINDOWS {
            let flood = IpAddr::from([0x2001, 0xdb8, 0, n as u16, 0, 0, 0, 1]);
            failures.count(flood, "ann");
        }
        assert!(failures.too_many(here, "ann"));
        assert!(failures.windows().len() <= WINDOWS);
    }
}
