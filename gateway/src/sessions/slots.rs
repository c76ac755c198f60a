//! How many streams each user and each cluster has open: bounded, so that neither keeps others out.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use dashmap::DashMap;
use types::ids::ClusterKey;

use crate::{config::Limits, identity::PrincipalKey, permit::Permit};

/// Counts of streams by user and by cluster.
#[derive(Default)]
pub struct Slots {
    users: DashMap<PrincipalKey, Arc<AtomicU32>>,
    clusters: DashMap<ClusterKey, Arc<AtomicU32>>,
}

/// One stream's place in the counts.
pub struct Slot {
    slots: Arc<Slots>,
    user: Option<(PrincipalKey, Arc<AtomicU32>)>,
    cluster: Option<(ClusterKey, Arc<AtomicU32>)>,
}

/// A bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Name of the limit that is reached.
    pub name: &'static str,
    /// How many streams it allows.
    pub value: u32,
}

impl Slot {
    /// The user who has the slot, if it is a user's.
    pub fn user(&self) -> Option<&PrincipalKey> {
        self.user.as_ref().map(|(user, _)| user)
    }
}

impl Slots {
    /// Takes a place for a stream, or says which limit is reached.
    pub fn acquire(self: &Arc<Self>, permit: &Permit, limits: &Limits) -> Result<Slot, Full> {
        let full = |name, value| Full { name, value };
        let mut slot = Slot { slots: Arc::clone(self), user: None, cluster: None };
        let user = permit.principal().key();
        let count = enter(&self.users, &user, limits.streams_per_user)
            .ok_or_else(|| full("streams per user", limits.streams_per_user))?;
        slot.user = Some((user, count));
        let cluster = permit.cluster().key;
        let count = enter(&self.clusters, &cluster, limits.streams_per_cluster)
            .ok_or_else(|| full("streams per cluster", limits.streams_per_cluster))?;
        slot.cluster = Some((cluster, count));
        Ok(slot)
    }

    /// Places taken by users, for tests: 0 when nothing is open.
    pub fn taken(&self) -> usize {
        self.users.len() + self.clusters.len()
    }
}

fn enter<K>(map: &DashMap<K, Arc<AtomicU32>>, key: &K, limit: u32) -> Option<Arc<AtomicU32>>
where
    K: std::hash::Hash + Eq + Clone,
{
    // Either way under the map's lock: a count that is entered is not being removed.
    if let Some(count) = map.get(key) {
        return count_up(&count, limit);
    }
    count_up(&map.entry(key.clone()).or_default(), limit)
}

fn count_up(count: &Arc<AtomicU32>, limit: u32) -> Option<Arc<AtomicU32>> {
    // Never above the limit for a moment: that would refuse another who has a place.
    let up = |taken| (taken < limit).then(|| taken + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok().map(|_| Arc::clone(count))
}

fn leave<K: std::hash::Hash + Eq>(map: &DashMap<K, Arc<AtomicU32>>, key: &K, count: &AtomicU32) {
    count.fetch_sub(1, Ordering::Relaxed);
    // Under the map's lock, so that nobody enters a count that is being removed.
    map.remove_if(key, |_, count| count.load(Ordering::Relaxed) == 0);
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((key, count)) = self.user.take() {
            leave(&self.slots.users, &key, &count);
        }
        if let Some((key, count)) = self.cluster.take() {
            leave(&self.slots.clusters, &key, &count);
        }
    }
}
