//! Handshakes give way to requests. Thousands of agents that come back at once have thousands of handshakes ready at a
//! time, each most of a millisecond of a processor; a request that becomes ready meanwhile would wait behind all of
//! them, at each of its steps. So their steps take turns with everything else, and a listener takes one more connection
//! only when it is its turn: what waits, waits with the system, and those that have begun come to their end before
//! others begin.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
};

/// Time of handshakes in a row, before all else that is ready goes first.
const IN_A_ROW: Duration = Duration::from_micros(250);
/// After that, where other handshakes wait for their turn, the thread leaves its processor for about this time, and for
/// the system's slack of 50 microseconds more. A program on the same processor that a request has just been sent to
/// would wait for the end of the thread's slice otherwise, milliseconds each time; `sched_yield` does not end it.
const REST: Duration = Duration::from_micros(60);

/// Turns of handshakes, as many at once as there are threads for them.
pub struct Pace {
    turns: Semaphore,
    /// Nanoseconds since others went first.
    spent: AtomicU64,
    /// Handshakes that wait for their turn.
    waiting: AtomicUsize,
    in_a_row: Duration,
}

impl Pace {
    /// Turns for `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self::with(threads, IN_A_ROW)
    }

    fn with(threads: usize, in_a_row: Duration) -> Self {
        Self { turns: Semaphore::new(threads.max(1)), spent: AtomicU64::new(0), waiting: AtomicUsize::new(0), in_a_row }
    }

    /// Waits for those who wait already, and, where handshakes have had their time, until others have had some.
    pub async fn turn(&self) {
        drop(self.begin(false).await);
    }

    /// Runs a handshake, each step of it in a turn. Others may go before the next one, but never before that who waits
    /// longer.
    pub async fn steps<F: Future>(&self, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        loop {
            let turn = self.begin(true).await;
            let polled = std::future::poll_fn(|cx| {
                let begin = Instant::now();
                let polled = handshake.as_mut().poll(cx);
                self.spend(begin.elapsed());
                Poll::Ready(polled)
            });
            if let Poll::Ready(done) = polled.await {
                return done;
            }
            drop(turn);
            woken().await;
        }
    }

    /// A turn, of a handshake's or of who begins others. Who holds it while others go first keeps the next handshake
    /// from beginning.
    async fn begin(&self, handshake: bool) -> SemaphorePermit<'_> {
        let turn = {
            let _waits = handshake.then(|| Waits::among(&self.waiting));
            self.turns.acquire().await
        };
        let Ok(turn) = turn else { unreachable!("it is never closed") };
        if Duration::from_nanos(self.spent.load(Ordering::Relaxed)) >= self.in_a_row {
            self.spent.store(0, Ordering::Relaxed);
            others().await;
            // Behind who begins others there is one that it has just begun.
            if self.waiting.load(Ordering::Relaxed) > usize::from(!handshake) {
                // Not the runtime's sleep: that lasts a millisecond at least, in which the thread has nothing to do.
                thread::sleep(REST);
                // What has been answered meanwhile.
                others().await;
            }
        }
        turn
    }

    fn spend(&self, time: Duration) {
        self.spent.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2), Ordering::Relaxed);
    }
}

/// One of those who wait, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn among(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets others run that are ready. The first time lets the runtime find out what is; on a runtime of several threads it
/// comes back before that, which the second lets run. A busy one comes back in the end all the same.
async fn others() {
    yield_now().await;
    yield_now().await;
}

/// Completes when the task is woken by what was polled last.
pub(super) async fn woken() {
    let mut waited = false;
    std::future::poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Handshakes that are all ready at once.
    const READY: usize = 300;
    /// Steps of each.
    const STEPS: usize = 4;

    /// What a step takes: more than a packet on its way through the system.
    const STEP: Duration = Duration::from_micros(20);

    /// Steps that handshakes had for each of an echo's round trips, where each is made in a turn or is not.
    async fn steps_of_a_round_trip(pace: Option<Arc<Pace>>) -> usize {
        let (steps, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut user = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut echo, _) = listener.accept().await.unwrap();
        let echoes = tokio::spawn(async move {
            let mut byte = [0];
            while echo.read_exact(&mut byte).await.is_ok() && echo.write_all(&byte).await.is_ok() {}
        });
        let asks = tokio::spawn({
            let over = Arc::clone(&over);
            async move {
                let (mut round_trips, mut byte) = (0, [0]);
                while !over.load(Ordering::SeqCst) {
                    user.write_all(&byte).await.unwrap();
                    user.read_exact(&mut byte).await.unwrap();
                    round_trips += 1;
                }
                round_trips
            }
        });
        let handshakes: Vec<_> = (0..READY)
            .map(|_| {
                let (steps, pace) = (Arc::clone(&steps), pace.clone());
                let handshake = async move {
                    for _ in 0..STEPS {
                        steps.fetch_add(1, Ordering::SeqCst);
                        let begin = Instant::now();
                        while begin.elapsed() < STEP {}
                        // The peer's answer is here at once.
                        let mut answered = false;
                        std::future::poll_fn(|cx| {
                            if std::mem::replace(&mut answered, true) {
                                return Poll::Ready(());
                            }
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        })
                        .await;
                    }
                };
                tokio::spawn(async move {
                    match pace {
                        Some(pace) => pace.steps(handshake).await,
                        None => handshake.await,
                    }
                })
            })
            .collect();
        for handshake in handshakes {
            handshake.await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
        let round_trips = asks.await.unwrap();
        echoes.await.unwrap();
        assert_eq!(steps.load(Ordering::SeqCst), READY * STEPS);
        READY * STEPS / round_trips
    }

    async fn a_request_passes_handshakes_that_are_ready() {
        let each = Arc::new(Pace::with(1, Duration::ZERO));
        // There and back are two waits for the socket, and one of each side for its task.
        let steps = steps_of_a_round_trip(Some(each)).await;
        assert!(steps <= 8, "{steps} steps of handshakes for each round trip");
        // What this is for: without turns it waits for all that are ready.
        let steps = steps_of_a_round_trip(None).await;
        assert!(steps > 30, "{steps} steps of handshakes for each round trip, without turns");
    }

    #[tokio::test]
    async fn a_request_passes_handshakes_that_are_ready_on_one_thread() {
        a_request_passes_handshakes_that_are_ready().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_request_passes_handshakes_that_are_ready_on_a_worker() {
        // In a task: the worker waits until all are there.
        tokio::spawn(a_request_passes_handshakes_that_are_ready()).await.unwrap();
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_turn_to_the_next() {
        let pace = Pace::with(1, Duration::ZERO);
        {
            // It has the turn, and waits until all else has gone first.
            let mut first = pin!(pace.steps(async {}));
            assert!(futures_util::poll!(first.as_mut()).is_pending());
            let mut second = pin!(pace.turn());
            assert!(futures_util::poll!(second.as_mut()).is_pending());
        }
        pace.turn().await;
    }

    /// How long the turn of a handshake took to come, with as many that wait behind it.
    async fn turn_beside(waiting: usize) -> Duration {
        let pace = Pace::with(1, Duration::ZERO);
        let mut first = pin!(pace.steps(async {}));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        let mut others: Vec<_> = (0..waiting).map(|_| Box::pin(pace.steps(async {}))).collect();
        for other in &mut others {
            assert!(futures_util::poll!(other.as_mut()).is_pending());
        }
        assert_eq!(pace.waiting.load(Ordering::SeqCst), waiting);
        // Who gives up waits no more.
        others.truncate(1);
        assert_eq!(pace.waiting.load(Ordering::SeqCst), waiting.min(1));
        let begin = Instant::now();
        first.await;
        let took = begin.elapsed();
        futures_util::future::join_all(others).await;
        assert_eq!(pace.waiting.load(Ordering::SeqCst), 0);
        took
    }

    #[tokio::test]
    async fn the_thread_rests_where_handshakes_wait() {
        let mut alone = Duration::MAX;
        for _ in 0..20 {
            alone = alone.min(turn_beside(0).await);
        }
        assert!(alone < REST, "{alone:?}");
        assert!(turn_beside(3).await >= REST);
    }

    /// A handshake alone is no reason for a rest, for a listener is always there.
    #[tokio::test]
    async fn who_begins_others_does_not_count_as_waiting() {
        let pace = Pace::with(1, Duration::ZERO);
        let mut handshake = pin!(pace.steps(async {}));
        assert!(futures_util::poll!(handshake.as_mut()).is_pending());
        let mut listener = pin!(pace.turn());
        assert!(futures_util::poll!(listener.as_mut()).is_pending());
        assert_eq!(pace.waiting.load(Ordering::SeqCst), 0);
        handshake.await;
        listener.await;
    }

    #[tokio::test]
    async fn a_handshake_that_waits_for_its_peer_holds_no_turn() {
        let pace = Pace::new(1);
        let (answer, answered) = tokio::sync::oneshot::channel();
        let mut waiting = pin!(pace.steps(answered));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(pace.steps(async { 7 }).await, 7);
        answer.send(8).unwrap();
        assert_eq!(waiting.await, Ok(8));
    }
}
