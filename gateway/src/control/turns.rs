//! Turns of what takes memory while it is under way, such as request bodies: a bounded number at once, of everybody and
//! of one caller, so that slow ones neither fill memory nor keep others out.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use http::{StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::ApiError;

/// Bodies that are read at once, and of one caller.
const BODIES: Bounds = Bounds { at_once: 64, of_one_caller: 8 };
/// Lists that other replicas are asked for at once, and of one caller: each of them may answer with 16 MiB.
const LISTS: Bounds = Bounds { at_once: 4, of_one_caller: 1 };
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(10);

/// How many have their turn at once.
#[derive(Clone, Copy)]
struct Bounds {
    /// Of all callers together.
    at_once: usize,
    /// Of one caller.
    of_one_caller: usize,
}

/// Whose turn it is now.
pub struct Turns {
    what: &'static str,
    bounds: Bounds,
    all: Arc<Semaphore>,
    /// Those who read or wait; others' are gone.
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// Of request bodies.
    pub fn of_bodies() -> Self {
        Self::new("with a body are being read", BODIES)
    }

    /// Of lists that other replicas are asked for.
    pub fn of_lists() -> Self {
        Self::new("for such a list are being answered", LISTS)
    }

    fn new(what: &'static str, bounds: Bounds) -> Self {
        Self { what, bounds, all: Arc::new(Semaphore::new(bounds.at_once)), callers: Mutex::default() }
    }

    /// Waits for a turn, a bounded time. 429 names the bound that was in the way.
    pub async fn take(&self, caller: &str) -> Result<Turn, ApiError> {
        let own = self.of(caller);
        let full = |whose: &str, bound: usize| {
            let message = format!("{bound} requests{whose} {} at once, the limit; try again shortly.", self.what);
            ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
        };
        let own = in_turn(own).await.ok_or_else(|| full(" of yours", self.bounds.of_one_caller))?;
        let all = in_turn(Arc::clone(&self.all)).await.ok_or_else(|| full("", self.bounds.at_once))?;
        Ok(Turn { _own: own, _all: all })
    }

    fn of(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = callers.get(caller).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.bounds.of_one_caller));
        callers.insert(caller.to_owned(), Arc::downgrade(&new));
        new
    }
}

async fn in_turn(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(TURN, places.acquire_owned()).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_holds_bodies_keeps_nobody_else_out_and_is_told() {
        let turns = Turns::of_bodies();
        let mut held = Vec::new();
        for _ in 0..BODIES.of_one_caller {
            held.push(turns.take("slow").await.unwrap());
        }
        let refused = turns.take("slow").await.err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (429, "TooManyRequests"));
        held.push(turns.take("other").await.unwrap());
        // A turn that is given back is the next one's.
        let waits = tokio::spawn(async move { (turns.take("slow").await.is_ok(), turns) });
        held.remove(0);
        let (took, turns) = waits.await.unwrap();
        assert!(took);
        drop(held);
        turns.take("third").await.unwrap();
        assert_eq!(turns.callers.lock().unwrap().len(), 1, "who is done is forgotten");
    }

    /// Each list of sessions waited for all replicas and held what they said, however many somebody asked for.
    #[tokio::test(start_paused = true)]
    async fn t12_one_caller_has_one_list_at_a_time_and_all_together_a_few() {
        let turns = Turns::of_lists();
        let mut held = vec![turns.take("ann").await.unwrap()];
        let refused = turns.take("ann").await.err().unwrap();
        assert!(
            refused.detail.message.starts_with("1 requests of yours for such a list"),
            "{}",
            refused.detail.message
        );
        for number in 1..LISTS.at_once {
            held.push(turns.take(&number.to_string()).await.unwrap());
        }
        assert_eq!(turns.take("another").await.err().unwrap().status.as_u16(), 429);
        held.pop();
        turns.take("another").await.unwrap();
    }
}
