//! Places of one kind, such as connections or forms that are being read: bounded in all, by address and by network, so
//! that no few addresses take them all. What agents take is bounded by subscription instead ([`Shares`]).

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use daemon::shares::{address, network, share};
use dashmap::DashMap;

/// Nobody may have more than a share of the places that are still free ([`share`]), so that some are left whoever
/// comes: two addresses at once get a tenth each, ten get 6 % each and leave 44 %, a hundred leave 7 %, and the last
/// ones go to those who have none. An address may have this many in any case, until then.
pub const SHARE_MIN: u32 = 16;
/// Shares of an address that its network (/24, /48) has.
const SHARES_OF_NETWORK: u32 = 2;

/// How many places are taken: in all, by address and by network.
#[derive(Default)]
pub struct Counts {
    /// Places taken by all addresses together.
    pub all: AtomicU32,
    /// Places taken by each address.
    pub by_address: DashMap<IpAddr, u32>,
    /// By network (/24, /48).
    pub by_network: DashMap<IpAddr, u32>,
}

/// Places of one kind, bounded in all and by address.
#[derive(Default)]
pub struct Places(Arc<Counts>);

impl Places {
    /// A place; `None`: there are too many in all, or from this address.
    pub fn take(&self, peer: IpAddr, limit: u32, limit_by_address: u32) -> Option<Admission> {
        enter(&self.0, peer, limit, limit_by_address, SHARE_MIN)
    }
}

/// One place in the counts, given back on drop.
pub struct Admission {
    counts: Arc<Counts>,
    address: IpAddr,
    network: IpAddr,
}

/// Takes a place. `None`: `limit` places are taken in all, or this address or its network has its share of those that
/// are still free. An address gets at least `least` of them.
pub fn enter(counts: &Arc<Counts>, peer: IpAddr, limit: u32, limit_by_address: u32, least: u32) -> Option<Admission> {
    let taken = counts.all.fetch_add(1, Ordering::Relaxed);
    // Gives back what it counts, whatever comes.
    let place = Admission { counts: Arc::clone(counts), address: address(peer), network: network(peer) };
    let own = count(&counts.by_address, place.address);
    let near = count(&counts.by_network, place.network);
    if taken >= limit {
        return None;
    }
    let share = share(limit, taken, least);
    let shares = if share > 1 { share.saturating_mul(SHARES_OF_NETWORK) } else { share };
    (own <= limit_by_address.min(share) && near <= shares).then_some(place)
}

/// One more of this; how many there are then.
fn count(map: &DashMap<IpAddr, u32>, key: IpAddr) -> u32 {
    let mut count = map.entry(key).or_default();
    *count += 1;
    *count
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.counts.all.fetch_sub(1, Ordering::Relaxed);
        leave(&self.counts.by_address, &self.address);
        leave(&self.counts.by_network, &self.network);
    }
}

fn leave<K: Hash + Eq>(map: &DashMap<K, u32>, key: &K) {
    if let Some(mut count) = map.get_mut(key) {
        *count -= 1;
    }
    map.remove_if(key, |_, count| *count == 0);
}

/// Places of one kind, of which each subscription has a share of those that are free ([`share`]): a subscription that
/// has none gets one, however many others fill theirs. Clones share the places.
#[derive(Clone)]
pub struct Shares {
    limit: u32,
    taken: Arc<Mutex<Taken>>,
}

/// Places that are taken, in all and by subscription; a subscription that has none is forgotten.
#[derive(Default)]
struct Taken {
    all: u32,
    of: HashMap<String, u32>,
}

/// A place of a subscription; dropping it gives it back.
pub struct Held {
    of: Shares,
    subscription: String,
}

impl Shares {
    /// So many places.
    pub fn new(limit: u32) -> Self {
        Self { limit, taken: Arc::default() }
    }

    /// A place; `None`: this subscription has its share of those that are free.
    pub fn take(&self, subscription: &str) -> Option<Held> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.of.get(subscription).copied().unwrap_or_default();
        if taken.all >= self.limit || own >= share(self.limit, taken.all, 1) {
            return None;
        }
        taken.all += 1;
        *taken.of.entry(subscription.to_owned()).or_default() += 1;
        drop(taken);
        Some(Held { of: self.clone(), subscription: subscription.to_owned() })
    }

    /// How many places are taken.
    pub fn taken(&self) -> u32 {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        match taken.of.get_mut(&self.subscription) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.of.remove(&self.subscription)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Look-ups that a resolver does not answer keep their places, and one subscription had all of them.
    #[test]
    fn n1_places_of_some_subscriptions_leave_some_to_another_one() {
        let places = Shares::new(256);
        let mut held = Vec::new();
        for subscription in 0..16 {
            let own: Vec<_> = std::iter::from_fn(|| places.take(&subscription.to_string())).collect();
            assert!((1..=32).contains(&own.len()), "{subscription} has {}", own.len());
            held.extend(own);
        }
        assert!(places.take("0").is_none());
        let newcomer = places.take("another").unwrap();
        assert_eq!(places.taken() as usize, held.len() + 1);
        drop((held, newcomer));
        assert_eq!((places.taken(), places.taken.lock().unwrap().of.len()), (0, 0));
    }
}
