//! Work for requests of which nobody knows yet whose they are. Everybody who reaches the port can ask for it, thousands
//! of times on one connection, and all tasks wait in one line for a processor. So one connection begins a few requests
//! at a time, and where no credential of a connection was accepted yet, each step of its requests takes a turn that
//! networks take one after the other. A connection whose requests are refused again and again is ended, and the next
//! ones of its address may have fewer refused.
//!
//! A connection that has shown a good credential waits for nobody else's: it takes no turns, and there is no lock on
//! the way of its requests.

use std::{
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use daemon::shares::{Queue, Shared, address, network};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::yield_now,
    time::Instant,
};

use super::pace::woken;

/// Requests of one connection that are being looked at, up to where it is known whose they are. What takes its time
/// behind that, such as a watch, does not count.
pub const AT_A_TIME: u32 = 32;
/// Requests that may wait for their first turn; of more, the oldest gives way of the network that has most.
pub const WAITING: usize = 16 * 1024;
/// Requests without an identity that one connection may have refused, before it is to end...
pub const REFUSED: u32 = 256;
/// ...and one more in this time.
const REFUSED_REFILL: Duration = Duration::from_secs(1);
/// Whoever goes on although they were told that the connection is to end is cut off behind as many: those that may have
/// been on their way.
const REFUSED_ON_THE_WAY: u32 = 4096;
/// Addresses that are remembered for connections that were ended; of more, the network with most gives way.
pub const REMEMBERED: usize = 4096;
/// One ended connection is forgotten in this time.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// More of them do not make what an address may do any smaller.
const MOST_ENDED: u32 = 4;

/// What all connections share.
pub struct Unproven {
    turns: Queue,
    ended: Mutex<Shared<IpAddr, Ended>>,
}

/// Connections of an address that were ended.
#[derive(Clone, Copy)]
struct Ended {
    times: u32,
    last: Instant,
}

impl Ended {
    /// How many are remembered now.
    fn now(self, now: Instant) -> u32 {
        let forgotten = now.saturating_duration_since(self.last).as_secs() / FORGOTTEN.as_secs();
        self.times.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

impl Unproven {
    /// Turns for `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self { turns: Queue::new(threads.max(1), WAITING), ended: Mutex::new(Shared::new(REMEMBERED)) }
    }

    /// The standing of a connection that begins; `proven`: it has shown who it is already.
    pub fn standing(&self, peer: IpAddr, proven: bool) -> Standing {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = ended.get(&address(peer)).map_or(0, |ended| ended.now(Instant::now()));
        Standing::new(proven, ended.min(MOST_ENDED))
    }

    /// Remembers that a connection of this address was ended for what it did.
    pub fn ended(&self, peer: IpAddr) {
        let now = Instant::now();
        let mut table = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let before = table.get(&address(peer)).map_or(0, |ended| ended.now(now));
        table.insert(network(peer), address(peer), Ended { times: (before + 1).min(MOST_ENDED), last: now });
    }

    /// Runs what serves a request: each step in a turn, for as long as the connection has not shown who it is. `None`:
    /// too many wait, most of them are of this network, and nothing of the request was done. One that has begun is not
    /// turned away: it may have used up a code or written something, and its client must learn what came of that. As many
    /// have begun as connections hold.
    pub async fn steps<F: Future>(&self, peer: IpAddr, standing: &Standing, serving: F) -> Option<F::Output> {
        let mut serving = pin!(serving);
        let mut has_begun = false;
        loop {
            if standing.is_proven() {
                return Some(serving.await);
            }
            let turn = match has_begun {
                true => self.turns.turn_again(peer).await,
                false => self.turns.turn(peer).await?,
            };
            has_begun = true;
            // Behind all that is ready, and with the turn, so that those that came with it wait for theirs and do not
            // follow each other in one go.
            yield_now().await;
            let polled = std::future::poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx))).await;
            if let Poll::Ready(done) = polled {
                return Some(done);
            }
            // Not while it waits for others: a client decides how long that is.
            drop(turn);
            woken().await;
        }
    }
}

/// What one connection has shown so far.
#[derive(Debug)]
pub struct Standing {
    proven: AtomicBool,
    /// Requests that have come and are not being looked at yet.
    arrived: Arc<AtomicU32>,
    places: Arc<Semaphore>,
    /// How many may still be refused.
    left: Mutex<Left>,
    /// What it is told.
    end: watch::Sender<End>,
    /// Connections of its address that were ended a short time ago.
    halved: u32,
}

#[derive(Debug)]
struct Left {
    refused: u32,
    refilled: Instant,
    on_the_way: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    No,
    Asked,
    Cut,
}

/// A request that has come and is not being looked at yet.
pub struct Arrived(Arc<AtomicU32>);

impl Drop for Arrived {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of [`AT_A_TIME`], until it is dropped. It travels with the request to where that is known.
#[derive(Clone)]
pub struct Place(#[expect(dead_code, reason = "it is held")] Arc<OwnedSemaphorePermit>);

impl Standing {
    /// Of a connection of an address of which as many were ended a short time ago.
    fn new(proven: bool, halved: u32) -> Self {
        Self {
            proven: AtomicBool::new(proven),
            arrived: Arc::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME as usize)),
            left: Mutex::new(Left {
                refused: REFUSED >> halved,
                refilled: Instant::now(),
                on_the_way: REFUSED_ON_THE_WAY,
            }),
            end: watch::Sender::new(End::No),
            halved,
        }
    }

    /// A bound for this connection, out of one for connections of addresses that did nothing.
    pub fn part(&self, bound: u32) -> u32 {
        bound >> self.halved
    }

    /// Whether the last credential that it showed was accepted.
    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// A credential of it was accepted.
    pub fn prove(&self) {
        // Read first: a write would take the line from the other threads, each time.
        if !self.is_proven() {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// A request was refused, and nobody knows whose it was.
    pub fn refused(&self) {
        self.proven.store(false, Ordering::Relaxed);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let refill = now.saturating_duration_since(left.refilled).as_secs() / REFUSED_REFILL.as_secs();
        if refill > 0 {
            left.refused = (left.refused + u32::try_from(refill).unwrap_or(REFUSED).min(REFUSED)).min(REFUSED);
            // The rest of it counts for the next time.
            left.refilled += REFUSED_REFILL * u32::try_from(refill).unwrap_or(u32::MAX);
        }
        let end = match left.refused.checked_sub(1) {
            Some(rest) => {
                left.refused = rest;
                return;
            }
            None => match left.on_the_way.checked_sub(1) {
                Some(rest) => {
                    left.on_the_way = rest;
                    End::Asked
                }
                None => End::Cut,
            },
        };
        drop(left);
        self.end.send_if_modified(|told| std::mem::replace(told, end.max(*told)) < end);
    }

    /// Completes when so many were refused that the connection is to end.
    pub async fn spent(&self) {
        self.until(End::Asked).await;
    }

    /// Completes when it has not ended although it was told.
    pub async fn goes_on(&self) {
        self.until(End::Cut).await;
    }

    async fn until(&self, end: End) {
        // It fails only where the sender is gone, which is here.
        let _ = self.end.subscribe().wait_for(|told| *told >= end).await;
    }

    /// A request has come.
    pub fn arrive(&self) -> Arrived {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        Arrived(Arc::clone(&self.arrived))
    }

    /// Waits until fewer than [`AT_A_TIME`] of this connection are being looked at. `None`: that few have come.
    pub async fn place(&self, arrived: Arrived) -> Option<Place> {
        if self.arrived.load(Ordering::Relaxed) <= AT_A_TIME {
            return None;
        }
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        // Behind all that is ready: those that have come with it would follow each other in one go otherwise.
        yield_now().await;
        drop(arrived);
        Some(Place(Arc::new(place)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::{FutureExt as _, future::join_all};

    use super::*;

    fn v4(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn one_connection_begins_a_few_requests_at_a_time() {
        let standing = Arc::new(Standing::new(true, 0));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let come: Vec<_> = (0..1000).map(|_| standing.arrive()).collect();
        let look_at = |arrived: Arrived| async {
            let place = standing.place(arrived).await;
            if place.is_some() {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
            place.is_some()
        };
        let waited = join_all(come.into_iter().map(look_at)).await.into_iter().filter(|waited| *waited).count();
        assert_eq!(most.load(Ordering::SeqCst), AT_A_TIME as usize);
        assert!(waited >= 1000 - AT_A_TIME as usize, "{waited}");
        // What is behind it holds nothing, so that a thousand watches are no bound for the next.
        let alone = standing.arrive();
        assert!(standing.place(alone).await.is_none());
        assert_eq!(standing.arrived.load(Ordering::Relaxed), 0);
    }

    /// Steps that requests without an identity had before another's request was over.
    async fn steps_before_another(unproven: Arc<Unproven>, paced: bool, proven: bool) -> usize {
        let steps = Arc::new(AtomicUsize::new(0));
        let flooding = Arc::new(Standing::new(false, 0));
        let tasks: Vec<_> = (0..500)
            .map(|_| {
                let (unproven, flooding, steps) = (Arc::clone(&unproven), Arc::clone(&flooding), Arc::clone(&steps));
                tokio::spawn(async move {
                    let serving = async {
                        for _ in 0..4 {
                            steps.fetch_add(1, Ordering::SeqCst);
                            yield_now().await;
                        }
                    };
                    match paced {
                        true => unproven.steps(v4("192.0.2.1"), &flooding, serving).await.unwrap(),
                        false => serving.await,
                    }
                })
            })
            .collect();
        let other = tokio::spawn({
            let (unproven, steps) = (Arc::clone(&unproven), Arc::clone(&steps));
            async move {
                let standing = Standing::new(proven, 0);
                let serving = async {
                    for _ in 0..4 {
                        yield_now().await;
                    }
                };
                unproven.steps(v4("198.51.100.1"), &standing, serving).await.unwrap();
                steps.load(Ordering::SeqCst)
            }
        });
        let before = other.await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(steps.load(Ordering::SeqCst), 2000, "each is served in the end");
        before
    }

    #[tokio::test]
    async fn a_request_passes_those_without_an_identity() {
        let before = steps_before_another(Arc::new(Unproven::new(1)), true, true).await;
        assert!(before <= 40, "{before} steps before one of who has shown a good credential");
        let before = steps_before_another(Arc::new(Unproven::new(1)), true, false).await;
        assert!(before <= 40, "{before} steps before one of another network that has shown nothing yet");
        // What this is for.
        let before = steps_before_another(Arc::new(Unproven::new(1)), false, true).await;
        assert!(before > 1000, "{before} steps without turns");
    }

    #[tokio::test]
    async fn what_waits_for_its_client_holds_no_turn() {
        let unproven = Unproven::new(1);
        let (standing, other) = (Standing::new(false, 0), Standing::new(false, 0));
        let (send, body) = tokio::sync::oneshot::channel();
        let mut waits = pin!(unproven.steps(v4("192.0.2.1"), &standing, body));
        // It lets others go first, and then waits for its body.
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        assert_eq!(unproven.steps(v4("192.0.2.1"), &other, async { 7 }).await, Some(7));
        send.send(8).unwrap();
        assert_eq!(waits.await, Some(Ok(8)));
    }

    /// A request used up its code, and was turned away when it was to go on.
    #[tokio::test]
    async fn a_request_that_has_begun_is_not_turned_away() {
        let unproven = Unproven { turns: Queue::new(1, 2), ended: Mutex::new(Shared::new(1)) };
        let (standing, peer, used) = (Standing::new(false, 0), v4("192.0.2.1"), AtomicUsize::new(0));
        let (answer, stored) = tokio::sync::oneshot::channel();
        let mut begun = pin!(unproven.steps(peer, &standing, async {
            used.fetch_add(1, Ordering::SeqCst);
            stored.await
        }));
        while used.load(Ordering::SeqCst) == 0 {
            assert!(futures_util::poll!(begun.as_mut()).is_pending());
        }
        let held = unproven.turns.turn(peer).await.unwrap();
        answer.send(7).unwrap();
        assert!(futures_util::poll!(begun.as_mut()).is_pending(), "it waits for another turn");
        let mut others: Vec<_> = (0..4).map(|_| Box::pin(unproven.steps(peer, &standing, async { 8 }))).collect();
        for other in &mut others {
            assert!(futures_util::poll!(other.as_mut()).is_pending());
        }
        drop(held);
        assert_eq!(begun.await, Some(Ok(7)));
        let served = join_all(others).await.into_iter().flatten().count();
        assert_eq!((served, used.load(Ordering::SeqCst)), (2, 1), "of those that had not begun two found no place");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_refused_again_and_again_is_to_end() {
        let unproven = Unproven::new(1);
        let (peer, near) = (v4("192.0.2.1"), v4("192.0.2.2"));
        let refusals = |standing: &Standing| {
            let mut spent = pin!(standing.spent());
            (0..).take_while(|_| spent.as_mut().now_or_never().is_none()).inspect(|_| standing.refused()).count()
        };
        let first = unproven.standing(peer, true);
        assert_eq!(refusals(&first), REFUSED as usize + 1);
        assert!(!first.is_proven() && first.goes_on().now_or_never().is_none());
        for _ in 0..REFUSED_ON_THE_WAY {
            first.refused();
        }
        assert!(first.goes_on().now_or_never().is_some(), "it was told, and went on");
        // Each one that was ended halves what the next may do, down to a sixteenth, and time gives it back.
        for ended in 1..10 {
            unproven.ended(peer);
            assert_eq!(refusals(&unproven.standing(peer, false)), (REFUSED >> ended.min(MOST_ENDED)) as usize + 1);
        }
        assert_eq!(refusals(&unproven.standing(near, false)), REFUSED as usize + 1, "others behind the same network");
        tokio::time::advance(MOST_ENDED * FORGOTTEN).await;
        assert_eq!(unproven.standing(peer, false).part(REFUSED), REFUSED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_refusal_now_and_then_lives() {
        let standing = Standing::new(false, 0);
        // A client that asks once a second is a few milliseconds early or late.
        for turn in 0..10_000 {
            let late = if turn % 2 == 0 { 997 } else { 1_003 };
            tokio::time::advance(Duration::from_millis(late)).await;
            standing.refused();
        }
        assert!(standing.spent().now_or_never().is_none());
        standing.prove();
        assert!(standing.is_proven());
    }
}
