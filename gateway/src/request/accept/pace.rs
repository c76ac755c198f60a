//! Handshakes give way to requests. Thousands of agents that come back at once have thousands of handshakes ready at a time,
//! each most of a millisecond of a processor; a request that becomes ready meanwhile would wait behind all of them, at each of
//! its steps. So their steps take turns with everything else. Users' handshakes do not wait for those of agents; and of
//! agents those that have begun come to their end before others begin, so that no deadline is missed by all at once.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
};

/// Time of handshakes in a row, before all else that is ready goes first.
const IN_A_ROW: Duration = Duration::from_micros(250);

/// The handshakes of a gateway.
pub struct Pace {
    /// Those of users, and of whoever does not say what it is.
    pub users: Lane,
    /// Those of agents.
    pub agents: Lane,
    /// Agents that are about to begin.
    newcomers: Semaphore,
}

impl Pace {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        Self::with(threads.max(1), IN_A_ROW)
    }

    fn with(threads: usize, in_a_row: Duration) -> Self {
        let lane = || Lane { turns: Semaphore::new(threads), spent: AtomicU64::new(0), in_a_row };
        Self { users: lane(), agents: lane(), newcomers: Semaphore::new(threads) }
    }

    /// As [`Lane::steps`] among agents, behind all that have begun.
    pub async fn newcomer<F: Future>(&self, handshake: F) -> F::Output {
        let place = acquire(&self.newcomers).await;
        self.agents.steps_from(Some(place), handshake).await
    }
}

/// Turns of handshakes of one kind, as many at once as there are threads for them. Who waits longer goes first.
pub struct Lane {
    turns: Semaphore,
    /// Nanoseconds since others went first.
    spent: AtomicU64,
    in_a_row: Duration,
}

async fn acquire(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    let Ok(permit) = semaphore.acquire().await else { unreachable!("it is never closed") };
    permit
}

impl Lane {
    /// Waits for those who wait already, and, where handshakes have had their time, until others have had some.
    pub async fn turn(&self) {
        drop(self.begin().await);
    }

    /// Runs a handshake, each step of it in a turn.
    pub async fn steps<F: Future>(&self, handshake: F) -> F::Output {
        self.steps_from(None, handshake).await
    }

    /// The same of one that gives up a place with its first step.
    async fn steps_from<F: Future>(&self, mut place: Option<SemaphorePermit<'_>>, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        loop {
            let turn = self.begin().await;
            let polled = std::future::poll_fn(|cx| {
                let begin = Instant::now();
                let polled = handshake.as_mut().poll(cx);
                self.spend(begin.elapsed());
                Poll::Ready(polled)
            });
            if let Poll::Ready(done) = polled.await {
                return done;
            }
            drop((turn, place.take()));
            woken().await;
        }
    }

    /// A turn. Who holds it while others go first keeps the next handshake from beginning.
    async fn begin(&self) -> SemaphorePermit<'_> {
        let turn = acquire(&self.turns).await;
        if Duration::from_nanos(self.spent.load(Ordering::Relaxed)) >= self.in_a_row {
            self.spent.store(0, Ordering::Relaxed);
            // The first lets the runtime find out what else is ready; on a runtime of several threads it comes back before
            // that, which the second lets run. A busy one comes back in the end all the same.
            yield_now().await;
            yield_now().await;
        }
        turn
    }

    fn spend(&self, time: Duration) {
        self.spent.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2), Ordering::Relaxed);
    }
}

/// Completes when the task is woken by what was polled last.
async fn woken() {
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

    /// Whose peer's answers are here at once.
    async fn handshake(steps: Arc<AtomicUsize>) {
        for _ in 0..STEPS {
            steps.fetch_add(1, Ordering::SeqCst);
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
    }

    /// Steps that handshakes had between two of an echo's round trips at most, where each is made in a turn or is not.
    async fn most_between(pace: Option<Arc<Pace>>) -> usize {
        let (steps, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut user = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut echo, _) = listener.accept().await.unwrap();
        let echoes = tokio::spawn(async move {
            let mut byte = [0];
            while echo.read_exact(&mut byte).await.is_ok() && echo.write_all(&byte).await.is_ok() {}
        });
        let asks = tokio::spawn({
            let (steps, over) = (Arc::clone(&steps), Arc::clone(&over));
            async move {
                let (mut most, mut last, mut byte) = (0, 0, [0]);
                while !over.load(Ordering::SeqCst) {
                    user.write_all(&byte).await.unwrap();
                    user.read_exact(&mut byte).await.unwrap();
                    let now = steps.load(Ordering::SeqCst);
                    most = most.max(now - last);
                    last = now;
                }
                most
            }
        });
        let handshakes: Vec<_> = (0..READY)
            .map(|_| {
                let (steps, pace) = (Arc::clone(&steps), pace.clone());
                let handshake = handshake(steps);
                tokio::spawn(async move {
                    match pace {
                        Some(pace) => pace.agents.steps(handshake).await,
                        None => handshake.await,
                    }
                })
            })
            .collect();
        for handshake in handshakes {
            handshake.await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
        let most = asks.await.unwrap();
        echoes.await.unwrap();
        assert_eq!(steps.load(Ordering::SeqCst), READY * STEPS);
        most
    }

    async fn a_request_passes_handshakes_that_are_ready() {
        let each = Arc::new(Pace::with(1, Duration::ZERO));
        // There and back are two waits for the socket, and one of each side for its task.
        let most = most_between(Some(each)).await;
        assert!(most <= 8, "{most} steps of handshakes before a request");
        // What this is for: without turns it waits for all that are ready.
        assert!(most_between(None).await > 30);
    }

    #[tokio::test]
    async fn a_request_passes_handshakes_that_are_ready_on_one_thread() {
        a_request_passes_handshakes_that_are_ready().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_request_passes_handshakes_that_are_ready_on_a_worker() {
        a_request_passes_handshakes_that_are_ready().await;
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_turn_to_the_next() {
        let Pace { users: lane, .. } = Pace::with(1, Duration::ZERO);
        {
            // It has the turn, and waits until all else has gone first.
            let mut first = pin!(lane.steps(async {}));
            assert!(futures_util::poll!(first.as_mut()).is_pending());
            let mut second = pin!(lane.turn());
            assert!(futures_util::poll!(second.as_mut()).is_pending());
        }
        lane.turn().await;
    }

    #[tokio::test]
    async fn a_handshake_that_waits_for_its_peer_holds_no_turn() {
        let pace = Pace::new(1);
        let (answer, answered) = tokio::sync::oneshot::channel();
        let mut waiting = pin!(pace.newcomer(answered));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(pace.newcomer(async { 7 }).await, 7);
        answer.send(8).unwrap();
        assert_eq!(waiting.await, Ok(8));
    }

    /// All had their first step, and then all their second: whoever had a deadline missed it where others did.
    #[tokio::test]
    async fn agents_that_have_begun_end_before_others_begin() {
        let (pace, under_way) = (Arc::new(Pace::with(1, Duration::ZERO)), Arc::new(AtomicUsize::new(0)));
        let agents: Vec<_> = (0..READY)
            .map(|_| {
                let (pace, under_way) = (Arc::clone(&pace), Arc::clone(&under_way));
                tokio::spawn(async move {
                    let whole = async {
                        let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                        handshake(Arc::default()).await;
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        now
                    };
                    pace.newcomer(whole).await
                })
            })
            .collect();
        for agent in agents {
            let most = agent.await.unwrap();
            assert!(most <= STEPS + 2, "{most} handshakes under way");
        }
    }

    #[tokio::test]
    async fn a_user_does_not_wait_for_the_handshakes_of_agents() {
        let (pace, steps) = (Arc::new(Pace::with(1, Duration::ZERO)), Arc::new(AtomicUsize::new(0)));
        let agents: Vec<_> = (0..READY)
            .map(|_| {
                let (pace, steps) = (Arc::clone(&pace), Arc::clone(&steps));
                tokio::spawn(async move { pace.newcomer(handshake(steps)).await })
            })
            .collect();
        pace.users.steps(handshake(Arc::default())).await;
        let meanwhile = steps.load(Ordering::SeqCst);
        assert!(meanwhile <= 4 * STEPS, "{meanwhile} steps of agents before a user");
        for agent in agents {
            agent.await.unwrap();
        }
        assert_eq!(steps.load(Ordering::SeqCst), READY * STEPS);
    }
}
