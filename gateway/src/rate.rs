//! How often somebody may ask: a bucket of tokens for each who asks, refilled evenly (feature N5). Bounded in number:
//! one that is full again says nothing and is forgotten, and of too many those go of whoever has most
//! ([`daemon::shares`]).

use std::{
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use daemon::shares::Shared;
use tokio::time::Instant;

/// Buckets that are not full, at most.
const BUCKETS: usize = 100_000;

/// Size and refill rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests at once, after a time without any.
    pub burst: u32,
    /// Requests that come back in a second.
    pub per_second: f64,
}

impl Rate {
    /// A token bucket of `burst` requests, refilled at `per_second`.
    pub const fn new(burst: u32, per_second: f64) -> Self {
        Self { burst, per_second }
    }
}

/// Buckets by who asks, who in turn belong to a network or the like.
pub struct Rates<K, N>(Mutex<Shared<K, Bucket, N>>);

struct Bucket {
    left: f64,
    at: Instant,
    rate: Rate,
}

impl Bucket {
    fn left_at(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64() * self.rate.per_second;
        (self.left + refilled).min(f64::from(self.rate.burst))
    }
}

impl<K: Hash + Eq + Clone, N: Hash + Ord + Clone> Default for Rates<K, N> {
    fn default() -> Self {
        Self(Mutex::new(Shared::new(BUCKETS)))
    }
}

impl<K: Hash + Eq + Clone, N: Hash + Ord + Clone> Rates<K, N> {
    /// Takes one of `key`, which belongs to `of`. `Ok`: how many more there are at once; `Err`: too many, and after how
    /// many seconds there is one again, at least 1.
    pub fn take(&self, of: &N, key: &K, rate: Rate, now: Instant) -> Result<u32, u64> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.get(key).is_none() {
            buckets.expire(of, |bucket| bucket.left_at(now) >= f64::from(bucket.rate.burst));
            buckets.insert(of.clone(), key.clone(), Bucket { left: f64::from(rate.burst), at: now, rate });
        }
        let Some(bucket) = buckets.get_mut(key) else { return Err(1) };
        bucket.rate = rate;
        (bucket.left, bucket.at) = (bucket.left_at(now), now);
        if bucket.left < 1.0 {
            let seconds = ((1.0 - bucket.left) / rate.per_second).ceil().clamp(1.0, 3600.0);
            // Between 1 and 3600.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            return Err(seconds as u64);
        }
        bucket.left -= 1.0;
        // Between 0 and the burst.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(bucket.left as u32)
    }

    /// Gives back one that was taken.
    pub fn give_back(&self, key: &K) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(key) {
            bucket.left = (bucket.left + 1.0).min(f64::from(bucket.rate.burst));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn n5_a_burst_is_let_through_then_so_many_a_second_and_everybody_for_themselves() {
        let (rates, rate, now) = (Rates::default(), Rate::new(3, 0.5), Instant::now());
        for left in [2, 1, 0] {
            assert_eq!(rates.take(&(), &"a", rate, now), Ok(left));
        }
        assert_eq!(rates.take(&(), &"a", rate, now), Err(2));
        assert_eq!(rates.take(&(), &"b", rate, now), Ok(2));
        assert_eq!(rates.take(&(), &"a", rate, now + Duration::from_millis(1500)), Err(1));
        assert_eq!(rates.take(&(), &"a", rate, now + Duration::from_secs(2)), Ok(0));
        assert_eq!(rates.take(&(), &"a", rate, now + Duration::from_secs(3600)), Ok(2), "no more than the burst");
        // A clock that goes back gives nothing.
        assert_eq!(rates.take(&(), &"a", rate, now), Ok(1));
    }

    #[test]
    fn n5_what_is_given_back_may_be_taken_again_and_no_more() {
        let (rates, rate, now) = (Rates::default(), Rate::new(1, 0.5), Instant::now());
        rates.give_back(&"a");
        assert_eq!(rates.take(&(), &"a", rate, now), Ok(0));
        rates.give_back(&"a");
        rates.give_back(&"a");
        assert_eq!(rates.take(&(), &"a", rate, now), Ok(0));
        assert_eq!(rates.take(&(), &"a", rate, now), Err(2));
    }

    #[test]
    fn n5_full_buckets_are_forgotten_and_a_newcomer_always_gets_one() {
        let (rates, rate, now) = (Rates::default(), Rate::new(1, 1.0), Instant::now());
        for key in 0..BUCKETS {
            assert_eq!(rates.take(&"many", &key, rate, now), Ok(0));
        }
        assert_eq!(rates.take(&"one", &BUCKETS, rate, now), Ok(0), "another network is not kept out");
        assert_eq!(rates.take(&"one", &BUCKETS, rate, now), Err(1));
        assert_eq!(rates.take(&"many", &1, rate, now), Err(1), "its oldest gave way, and no other");
        assert_eq!(rates.take(&"many", &(BUCKETS + 1), rate, now + Duration::from_secs(1)), Ok(0));
        assert_eq!(rates.0.lock().unwrap().len(), 2);
    }
}
