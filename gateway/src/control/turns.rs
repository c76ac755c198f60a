//! Turns of request bodies: a bounded number is read at once, of everybody and of one caller, so that slow ones neither
//! fill memory nor keep others out.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use http::{StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::ApiError;

/// Bodies that are read at once,
const AT_ONCE: usize = 64;
/// and of one caller.
const OF_ONE_CALLER: usize = 8;
/// How long a request waits until its body is read.
const TURN: Duration = Duration::from_secs(10);

/// Whose body is read now.
pub struct Turns {
    all: Arc<Semaphore>,
    /// Those who read or wait; others' are gone.
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to hold one body.
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), callers: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn, a bounded time. 429 names the bound that was in the way.
    pub async fn take(&self, caller: &str) -> Result<Turn, ApiError> {
        let own = self.of(caller);
        let full = |whose: &str, bound: usize| {
            let message = format!("{bound} requests{whose} with a body are being read at once; try again shortly.");
            ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
        };
        let own = in_turn(own).await.ok_or_else(|| full(" of yours", OF_ONE_CALLER))?;
        let all = in_turn(Arc::clone(&self.all)).await.ok_or_else(|| full("", AT_ONCE))?;
        Ok(Turn { _own: own, _all: all })
    }

    fn of(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = callers.get(caller).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(OF_ONE_CALLER));
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
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..OF_ONE_CALLER {
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
}
