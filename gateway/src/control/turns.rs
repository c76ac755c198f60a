//! Turns of what takes memory while it is under way, such as request bodies: a bounded number at once, of everybody and
//! of one caller, so that slow ones neither fill memory nor keep others out.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use daemon::shares::Shared;
use http::{StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::api_error::ApiError;

/// Bodies of the resource API that are read at once, and of one caller.
const BODIES: Bounds = Bounds { at_once: 64, of_one_caller: 8 };
/// Lists that other replicas are asked for at once, and of one caller: each of them may answer with 16 MiB.
const LISTS: Bounds = Bounds { at_once: 4, of_one_caller: 1 };
/// Long lists that are put together at once, and of one party: each has a page of the store and an answer.
const LONG_LISTS: Bounds = Bounds { at_once: 8, of_one_caller: 2 };
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
    callers: Callers,
}

/// Turns of each caller.
struct Callers {
    of_one: usize,
    /// Those who have a turn or wait; others are gone.
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// Of lists that other replicas are asked for.
    pub fn of_lists() -> Self {
        Self::new("for such a list are being answered", LISTS)
    }

    /// Of long lists of the resource API, by party.
    pub fn of_long_lists() -> Self {
        Self::new("for long lists are being answered", LONG_LISTS)
    }

    fn new(what: &'static str, bounds: Bounds) -> Self {
        Self {
            what,
            bounds,
            all: Arc::new(Semaphore::new(bounds.at_once)),
            callers: Callers::new(bounds.of_one_caller),
        }
    }

    /// Waits for a turn, a bounded time. 429 names the bound that was in the way.
    pub async fn take(&self, caller: &str) -> Result<Turn, ApiError> {
        let own = self.callers.take(caller, self.what).await?;
        let all = in_turn(Arc::clone(&self.all)).await.ok_or_else(|| full(self.what, "", self.bounds.at_once))?;
        Ok(Turn { _own: own, _all: all })
    }
}

impl Callers {
    fn new(of_one: usize) -> Self {
        Self { of_one, known: Mutex::default() }
    }

    async fn take(&self, caller: &str, what: &str) -> Result<OwnedSemaphorePermit, ApiError> {
        in_turn(self.of(caller)).await.ok_or_else(|| full(what, " of yours", self.of_one))
    }

    fn of(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = callers.get(caller).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.of_one));
        callers.insert(caller.to_owned(), Arc::downgrade(&new));
        new
    }
}

fn full(what: &str, whose: &str, bound: usize) -> ApiError {
    let message = format!("{bound} requests{whose} {what} at once, the limit; try again shortly.");
    ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
}

/// Places of request bodies, which hold memory while they come. How long a body takes is up to who sends it, so that a
/// place is not kept until then: where all are taken, whoever has most gives one to a newcomer.
pub struct Bodies {
    bounds: Bounds,
    callers: Callers,
    held: Arc<Mutex<Held>>,
}

struct Held {
    next: u64,
    /// Dropped where it gives way.
    places: Shared<u64, oneshot::Sender<()>, String>,
}

/// The place of a body, until it is dropped.
pub struct BodyPlace {
    _own: OwnedSemaphorePermit,
    at_once: usize,
    number: u64,
    held: Arc<Mutex<Held>>,
    gone: oneshot::Receiver<()>,
}

impl Bodies {
    /// Of the resource API.
    pub fn of_requests() -> Self {
        Self::new(BODIES)
    }

    /// Of so many at once, whose senders have bounds of their own.
    pub fn at_once(at_once: usize) -> Self {
        Self::new(Bounds { at_once, of_one_caller: at_once })
    }

    fn new(bounds: Bounds) -> Self {
        let held = Held { next: 0, places: Shared::new(bounds.at_once) };
        Self { bounds, callers: Callers::new(bounds.of_one_caller), held: Arc::new(Mutex::new(held)) }
    }

    /// A place for a body of `caller`, who belongs to `party`: it is parties that have shares, because one may have many
    /// callers.
    ///
    /// # Errors
    /// 429 where as many bodies of this caller are read.
    pub async fn take(&self, caller: &str, party: String) -> Result<BodyPlace, ApiError> {
        let own = self.callers.take(caller, WITH_BODY).await?;
        let (stays, gone) = oneshot::channel();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let number = held.next;
        held.next += 1;
        held.places.insert(party, number, stays);
        drop(held);
        Ok(BodyPlace { _own: own, at_once: self.bounds.at_once, number, held: Arc::clone(&self.held), gone })
    }
}

impl BodyPlace {
    /// What comes of reading a body in this place: 429 where it had to give way before that.
    pub async fn keep<T>(&mut self, reading: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            read = reading => read,
            _ = &mut self.gone => {
                let message = format!(
                    "{} requests {WITH_BODY} at once, the limit, and this one gave way to others; send it again.",
                    self.at_once
                );
                Err(ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
                    .with(header::RETRY_AFTER, "1"))
            }
        }
    }
}

impl Drop for BodyPlace {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).places.remove(&self.number);
    }
}

const WITH_BODY: &str = "with a body are being read";

async fn in_turn(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(TURN, places.acquire_owned()).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_holds_bodies_keeps_nobody_else_out_and_is_told() {
        let bodies = Bodies::of_requests();
        let mut held = Vec::new();
        for _ in 0..BODIES.of_one_caller {
            held.push(bodies.take("slow", "slow".to_owned()).await.unwrap());
        }
        let refused = bodies.take("slow", "slow".to_owned()).await.err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (429, "TooManyRequests"));
        held.push(bodies.take("other", "other".to_owned()).await.unwrap());
        // A place that is given back is the next one's.
        let waits = tokio::spawn(async move { (bodies.take("slow", "slow".to_owned()).await.is_ok(), bodies) });
        held.remove(0);
        let (took, bodies) = waits.await.unwrap();
        assert!(took);
        drop(held);
        bodies.take("third", "third".to_owned()).await.unwrap();
        assert_eq!(bodies.callers.known.lock().unwrap().len(), 1, "who is done is forgotten");
        assert!(bodies.held.lock().unwrap().places.is_empty());
    }

    /// Eight service principals without any right held all places, and every other write was refused for half a minute.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_has_the_place_of_the_party_that_has_most() {
        let bodies = Bodies::of_requests();
        let party = |_: usize| "cluster of one tenant".to_owned();
        let mut held = Vec::new();
        for number in 0..BODIES.at_once {
            held.push(bodies.take(&format!("identity {number}"), party(number)).await.unwrap());
        }
        let mut ours = bodies.take("ann", "ann".to_owned()).await.unwrap();
        let refused = held[0].keep(std::future::pending::<Result<(), _>>()).await.err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (429, "TooManyRequests"));
        // However many more they begin, it is theirs that give way.
        for number in 0..BODIES.at_once {
            held.push(bodies.take(&format!("more {number}"), party(number)).await.unwrap());
        }
        assert!(ours.keep(async { Ok(()) }).await.is_ok());
        assert!(ours.gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        assert_eq!(bodies.held.lock().unwrap().places.len(), BODIES.at_once);
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
