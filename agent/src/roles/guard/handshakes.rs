//! The TLS handshakes in progress. Who has no certificate of guard's may begin as many as they like: where there are too
//! many, the oldest makes way, so that an apiserver, which is done in a moment, gets through.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// Bounds them, in all and from one address. Clones share them.
#[derive(Clone)]
pub struct Handshakes {
    open: Arc<Mutex<Open>>,
    places: usize,
    each: usize,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// The oldest first.
    of: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

/// One in progress; dropping it gives its place back.
pub struct Handshake {
    open: Arc<Mutex<Open>>,
    id: u64,
    displaced: CancellationToken,
}

impl Handshakes {
    /// At most `places` in all, and `each` from one address.
    pub fn new(places: usize, each: usize) -> Self {
        Self { open: Arc::default(), places, each }
    }

    /// Begins one from this address, in place of the oldest where there are too many.
    pub fn begin(&self, peer: IpAddr) -> Handshake {
        let peer = peer.to_canonical();
        let mut open = lock(&self.open);
        let mut own = open.of.iter().filter(|(_, (other, _))| *other == peer).map(|(id, _)| *id);
        let oldest = own.next();
        let oldest = if oldest.is_some() && own.count() + 1 >= self.each {
            oldest
        } else {
            open.of.keys().next().copied().filter(|_| open.of.len() >= self.places)
        };
        if let Some((_, displaced)) = oldest.and_then(|id| open.of.remove(&id)) {
            displaced.cancel();
        }
        let (id, displaced) = (open.next, CancellationToken::new());
        open.next += 1;
        open.of.insert(id, (peer, displaced.clone()));
        Handshake { open: self.open.clone(), id, displaced }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handshake {
    /// Completes when it must make way for another one. Cancel-safe.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        lock(&self.open).of.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z1_the_oldest_handshake_makes_way() {
        let handshakes = Handshakes::new(4, 2);
        let at = |last: u8| IpAddr::from([192, 0, 2, last]);
        let gone = |all: &[&Handshake]| all.iter().map(|one| one.displaced.is_cancelled()).collect::<Vec<_>>();
        let (other, a, b) = (handshakes.begin(at(9)), handshakes.begin(at(1)), handshakes.begin(at(1)));
        let c = handshakes.begin("::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(gone(&[&other, &a, &b, &c]), [false, true, false, false], "the oldest of the same address");
        drop(a);
        let d = handshakes.begin(at(2));
        assert_eq!(gone(&[&other, &b, &c, &d]), [false; 4]);
        let e = handshakes.begin(at(3));
        assert_eq!(gone(&[&other, &b, &c, &d, &e]), [true, false, false, false, false], "the oldest of all");
        drop((other, b, c, d, e));
        assert!(lock(&handshakes.open).of.is_empty());
    }
}
