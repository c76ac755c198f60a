//! Places of local connections. Whoever has an account on this machine can connect and say nothing, so where all places
//! are taken, the oldest connection goes that has not shown the token yet; one that has keeps its place.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The places, and who came without being known, the oldest first.
pub struct Places {
    free: Arc<Semaphore>,
    strangers: VecDeque<Weak<Guest>>,
    /// More than this many are looked through for those who are gone or known.
    tidy_above: usize,
}

/// One connection's standing.
#[derive(Default)]
pub struct Guest {
    known: AtomicBool,
    leave: Notify,
}

impl Guest {
    /// A request of it showed the token.
    pub fn now_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    /// Completes when its place is needed.
    pub async fn leaving(&self) {
        self.leave.notified().await;
    }

    fn is_stranger(&self) -> bool {
        !self.known.load(Ordering::Relaxed)
    }
}

impl Places {
    /// At most `count` at once.
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), strangers: VecDeque::new(), tidy_above: 2 * count }
    }

    /// A place, held until the permit is dropped. Waits where all are held by the known, or until a stranger has gone.
    pub async fn take(&mut self) -> Option<(OwnedSemaphorePermit, Arc<Guest>)> {
        let free = self.free.clone();
        let place = match free.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.dismiss_oldest();
                free.acquire_owned().await.ok()?
            }
        };
        if self.strangers.len() >= self.tidy_above {
            self.strangers.retain(|guest| guest.upgrade().is_some_and(|guest| guest.is_stranger()));
        }
        let guest = Arc::new(Guest::default());
        self.strangers.push_back(Arc::downgrade(&guest));
        Some((place, guest))
    }

    fn dismiss_oldest(&mut self) {
        while let Some(guest) = self.strangers.pop_front() {
            if let Some(guest) = guest.upgrade().filter(|guest| guest.is_stranger()) {
                return guest.leave.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another user of the machine kept 2,048 connections open and said nothing: nobody else came in any more.
    #[tokio::test]
    async fn strangers_who_hold_every_place_keep_nobody_out() {
        let mut places = Places::new(3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(places.take().await.unwrap());
        }
        held[0].1.now_known();
        for _ in 0..20 {
            let (_, oldest) = &held[1];
            let oldest = oldest.clone();
            let leaves = async {
                oldest.leaving().await;
                drop(held.remove(1));
            };
            let (taken, ()) = tokio::join!(places.take(), leaves);
            held.push(taken.unwrap());
            assert!(places.strangers.len() <= places.tidy_above);
        }
        assert!(!held[0].1.is_stranger());
    }

    #[tokio::test]
    async fn the_known_keep_their_places() {
        let mut places = Places::new(1);
        let (place, guest) = places.take().await.unwrap();
        guest.now_known();
        {
            let mut waiting = std::pin::pin!(places.take());
            assert!(futures_util::FutureExt::now_or_never(waiting.as_mut()).is_none());
            assert!(futures_util::FutureExt::now_or_never(guest.leaving()).is_none());
            drop(place);
            drop(waiting.await.unwrap());
        }
        // Those who left are forgotten in time.
        for _ in 0..100 {
            drop(places.take().await.unwrap());
            assert!(places.strangers.len() <= places.tidy_above);
        }
    }
}
