//! Decisions that were made: a token that was verified is not verified again for a short while, and never twice at
//! once.
//!
//! Kept are successes alone, at most until the token ends and at most for [`KEEP`] (docs/features.md A8: that is how
//! long a key's withdrawal can go unnoticed once it is known; a changed key set ends it at once). Bounded in bytes, by
//! the SHA-256 of audience and token: the token itself is not kept.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use quick_cache::{
    DefaultHashBuilder, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use tokio::sync::OnceCell;

use super::{error::TokenError, identity::Identity};

/// How long a decision is kept at most.
pub const KEEP: Duration = Duration::from_secs(120);
/// Bytes of all decisions kept, about.
pub(super) const BYTES: u64 = 32 * 1024 * 1024;
/// Of one without groups, about.
const ONE_BYTES: u64 = 512;
/// Parts with a lock and as many bytes each: no identity is too large for one.
const PARTS: usize = 16;

pub(super) type Digest = [u8; 32];

/// A verified token.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) identity: Arc<Identity>,
    /// Place of its issuer, and that issuer's keys at the time.
    pub(super) issuer: usize,
    pub(super) generation: u64,
    /// By a clock that nobody sets.
    pub(super) made: Instant,
    /// Good in this span: a clock that was set back asks again.
    pub(super) from: SystemTime,
    pub(super) until: SystemTime,
}

impl Decision {
    fn has_ended(&self, now: SystemTime) -> bool {
        now >= self.until || self.made.elapsed() >= KEEP
    }
}

type Outcome = Result<Arc<Decision>, TokenError>;

pub(super) struct Decisions {
    kept: Cache<Digest, Arc<Decision>, Bytes>,
    in_flight: Mutex<HashMap<Digest, Arc<OnceCell<Outcome>>>>,
}

impl Decisions {
    pub(super) fn new() -> Self {
        let options = OptionsBuilder::new()
            .shards(PARTS)
            .estimated_items_capacity((BYTES / ONE_BYTES) as usize)
            .weight_capacity(BYTES)
            .build()
            .expect("both capacities are set");
        let kept = Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { kept, in_flight: Mutex::new(HashMap::new()) }
    }

    /// A decision that holds now.
    pub(super) fn kept(&self, digest: &Digest, now: SystemTime) -> Option<Arc<Decision>> {
        self.kept.get(digest).filter(|decision| decision.from <= now && !decision.has_ended(now))
    }

    /// Forgets those that have ended.
    pub(super) fn sweep(&self, now: SystemTime) {
        self.kept.retain(|_, decision| !decision.has_ended(now));
    }

    /// Makes a decision, or waits for the one who is at it. If that one goes away, the next goes on in its place.
    pub(super) async fn decide(&self, digest: Digest, make: impl Future<Output = Outcome>) -> Outcome {
        let cell = self.in_flight().entry(digest).or_default().clone();
        let claim = Claim { all: self, digest, cell };
        let outcome = claim.cell.get_or_init(|| make).await.clone();
        if let Ok(decision) = &outcome {
            self.kept.insert(digest, decision.clone());
        }
        outcome
    }

    /// How many tokens are being verified.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.in_flight().len()
    }

    /// What is kept, in bytes, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.kept.weight()
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<Digest, Arc<OnceCell<Outcome>>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the cell out of the map with the last who waits for it, however that one ends.
struct Claim<'a> {
    all: &'a Decisions,
    digest: Digest,
    cell: Arc<OnceCell<Outcome>>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut map = self.all.in_flight();
        // Two: the map and this one. Counted under the lock, under which alone clones are made.
        let done = Arc::strong_count(&self.cell) <= 2 || self.cell.initialized();
        if done && map.get(&self.digest).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell)) {
            map.remove(&self.digest);
        }
    }
}

/// What a decision weighs, in bytes.
#[derive(Clone)]
struct Bytes;

impl Weighter<Digest, Arc<Decision>> for Bytes {
    fn weight(&self, _: &Digest, decision: &Arc<Decision>) -> u64 {
        let identity = &decision.identity;
        let texts = identity.groups.iter().chain(identity.extra.values().flatten()).map(|text| text.len() + 48);
        ONE_BYTES + texts.sum::<usize>() as u64
    }
}
