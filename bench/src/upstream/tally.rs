//! What arrived of uploads that never end: who sends one asks for it on another connection, by the number that it gave
//! it. What left the sender says nothing of that, for it may be anywhere on the way.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::{Deserialize, Serialize};

/// Before the number, in a path.
const PATH: &str = "/bench/tally/";
/// Bodies that are known: the last ones.
const KEPT: usize = 64;

static TALLIES: Mutex<VecDeque<(u64, Tally)>> = Mutex::new(VecDeque::new());

struct Tally {
    first: Instant,
    bytes: u64,
}

/// What is told of one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrived {
    /// Bytes so far.
    pub bytes: u64,
    /// Since the first of them.
    pub seconds: f64,
}

/// What to send to, and to ask.
pub fn path(number: u64) -> String {
    format!("{PATH}{number}")
}

/// The number in such a path, if it is one.
pub fn number(path: &str) -> Option<u64> {
    path.strip_prefix(PATH)?.parse().ok()
}

/// Counts `bytes` more for the body `number`.
pub fn add(number: u64, bytes: u64) {
    let mut tallies = tallies();
    if let Some((_, tally)) = tallies.iter_mut().find(|(known, _)| *known == number) {
        tally.bytes += bytes;
        return;
    }
    if tallies.len() >= KEPT {
        tallies.pop_front();
    }
    tallies.push_back((number, Tally { first: Instant::now(), bytes }));
}

/// What arrived so far; nothing of a number that is not known.
pub fn arrived(number: u64) -> Arrived {
    let tallies = tallies();
    let found = tallies.iter().find(|(known, _)| *known == number);
    found.map_or(Arrived { bytes: 0, seconds: 0.0 }, |(_, tally)| Arrived {
        bytes: tally.bytes,
        seconds: tally.first.elapsed().as_secs_f64(),
    })
}

fn tallies() -> MutexGuard<'static, VecDeque<(u64, Tally)>> {
    TALLIES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_own_sum_and_the_oldest_are_forgotten() {
        let of = |n: u64| 1_000_000 + n;
        (0..=KEPT as u64).for_each(|n| add(of(n), 5));
        add(of(KEPT as u64), 7);
        assert_eq!((arrived(of(KEPT as u64)).bytes, arrived(of(0)).bytes), (12, 0));
        assert_eq!((number(&path(7)), number("/bench/tally/x"), number("/bench/sink")), (Some(7), None, None));
    }
}
