//! The cache of decisions about rights: an apiserver that asks the same again is answered without a look at roles and
//! assignments. A decision counts while the snapshot that it was made by is the newest and has not expired, until an
//! assignment begins or ends, and for no longer than the operator allows ([`DecisionCache`]).

use std::time::SystemTime;

use quick_cache::sync;

use crate::{config::DecisionCache, metrics, roles::kube_aad_proxy::authorize::Edition};

/// A digest of a question.
pub type Digest = [u8; 32];

/// Decisions by their questions. The decisions that are asked for least go first when it is full.
pub struct Cache {
    /// `None`: it is turned off.
    known: Option<sync::Cache<Digest, Known>>,
    bounds: DecisionCache,
}

#[derive(Clone, Copy)]
struct Known {
    allowed: bool,
    by: Edition,
    until: SystemTime,
}

impl Cache {
    /// An empty cache with these bounds.
    pub fn new(bounds: DecisionCache) -> Self {
        let known = (bounds.entries > 0).then(|| sync::Cache::new(bounds.entries as usize));
        Self { known, bounds }
    }

    /// Whether the question was allowed, if that was decided by the snapshot `current`. A decision does not outlive the
    /// snapshot's statement: after that there is no current one.
    pub fn get(&self, question: &Digest, current: Option<Edition>, now: SystemTime) -> Option<bool> {
        let known = self.known.as_ref()?.get(question);
        let known = known.filter(|known| Some(known.by) == current && now < known.until);
        metrics::review_cached(known.is_some());
        known.map(|known| known.allowed)
    }

    /// Keeps a decision that the snapshot `by` gave at `now`, until `changes` at the latest.
    pub fn keep(&self, question: Digest, allowed: bool, by: Edition, changes: Option<SystemTime>, now: SystemTime) {
        let Some(known) = &self.known else { return };
        let until = now + if allowed { self.bounds.allowed_for } else { self.bounds.denied_for };
        let until = changes.map_or(until, |changes| changes.min(until));
        if now < until {
            known.insert(question, Known { allowed, by, until });
        }
    }
}
