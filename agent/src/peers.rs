//! Places, in all and for each who takes them: one that takes all of its own keeps nobody else out.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Places by who takes them. Who has none is forgotten. Clones share the places.
#[derive(Debug, Clone)]
pub struct Places<K: Eq + Hash> {
    open: Arc<Mutex<HashMap<K, usize>>>,
    places: usize,
    each: usize,
}

/// Places for connections and what is asked on them, by address.
#[derive(Debug, Clone)]
pub struct Peers(Places<IpAddr>);

impl Peers {
    /// At most `places` places in all, and `each` for one address.
    pub fn new(places: usize, each: usize) -> Self {
        Self(Places::new(places, each))
    }

    /// A place, if there is one in all and for this address.
    pub fn take(&self, peer: IpAddr) -> Option<Place<IpAddr>> {
        self.0.take(peer.to_canonical())
    }
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// At most `places` places in all, and `each` for one key.
    pub fn new(places: usize, each: usize) -> Self {
        Self { open: Arc::default(), places, each }
    }

    /// A place, if there is one in all and for this one.
    pub fn take(&self, who: K) -> Option<Place<K>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.get(&who).copied().unwrap_or_default();
        if own >= self.each || open.values().sum::<usize>() >= self.places {
            return None;
        }
        open.insert(who.clone(), own + 1);
        Some(Place { open: self.open.clone(), who })
    }
}

/// A place; dropping it gives it back.
#[derive(Debug)]
pub struct Place<K: Eq + Hash> {
    open: Arc<Mutex<HashMap<K, usize>>>,
    who: K,
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_has_its_own_places_and_all_have_no_more_than_there_are() {
        let peers = Peers::new(5, 2);
        let at = |last: u8| IpAddr::from([192, 0, 2, last]);
        let one: Vec<_> = (0..2).map(|_| peers.take(at(1)).unwrap()).collect();
        assert!(peers.take(at(1)).is_none(), "its own are taken");
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert!(peers.take(mapped).is_none(), "the same peer, spelt otherwise");
        let others: Vec<_> = [2, 2, 3].map(|last| peers.take(at(last)).unwrap()).into();
        assert!(peers.take(at(4)).is_none(), "all are taken");
        drop(others);
        assert!(peers.take(at(4)).is_some());
        drop(one);
        assert!(peers.0.open.lock().unwrap().is_empty(), "who has none is forgotten");
    }
}
