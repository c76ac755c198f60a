//! Work whose size callers choose, and that may take longer than a request may hold up a thread of the runtime. A few
//! pieces run at once, on threads of their own. The others wait, and parties take turns ([`by`]), so that a caller with a
//! thousand pieces does not delay the one piece of another. The number of waiting pieces is bounded: when there are too
//! many, the party with the most loses its oldest. Documents of agents have a line of their own, because a withdrawn right
//! must arrive in time, however many bodies users send.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll::{Pending, Ready},
};

use daemon::shares::{Queue, Turn};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Semaphore, SemaphorePermit},
    task::{JoinError, block_in_place},
};

/// Pieces of users' work at once. Requests of all others keep the other processors, and their turns on these.
const AT_ONCE: usize = 2;
/// Pieces that wait for that: more than there are places of bodies, which most of them come from.
const WAITING: usize = 1024;
/// Documents at once.
const DOCUMENTS_AT_ONCE: usize = 1;
/// Questions for documents that wait. Where a role changes, every cluster below its scope asks at the same moment.
const DOCUMENTS_WAITING: usize = 16 * 1024;
/// Pieces at once of work that borrows from its request ([`here`], [`turns`]).
const IN_PLACE_AT_ONCE: usize = 2;
/// Pieces that wait for that. Each holds what was read of a body, up to 4 MiB.
const IN_PLACE_WAITING: usize = 128;
/// Whose work it is: a caller, the resource group of a cluster, a network.
type Party = Arc<str>;

static USERS: LazyLock<Lines> = LazyLock::new(|| Lines::new(AT_ONCE, WAITING));
static DOCUMENTS: LazyLock<Lines> = LazyLock::new(|| Lines::new(DOCUMENTS_AT_ONCE, DOCUMENTS_WAITING));
/// Its places are held for a turn only, never while something is waited for. So what waits for one of the other places
/// within a turn waits for nothing that waits for a turn.
static IN_PLACE: LazyLock<Lines> = LazyLock::new(|| Lines::new(IN_PLACE_AT_ONCE, IN_PLACE_WAITING));

/// Where one sort of work waits.
struct Lines {
    /// Parties, in turns.
    parties: Queue<Party>,
    /// Who follows the store ([`following`]): there is one in a process.
    followers: Semaphore,
    /// Who holds a lock that others need ([`holding`]): behind the work of their own party all others would wait.
    holders: Semaphore,
    /// The gateway's own work, which is of no party: a few tasks, that wait for their turns one after the other.
    own: Semaphore,
}

impl Lines {
    fn new(at_once: usize, waiting: usize) -> Self {
        let one = || Semaphore::new(1);
        Self { parties: Queue::new(at_once, waiting), followers: one(), holders: one(), own: one() }
    }

    /// A place for what runs here. What has had one before never gives way: it may have written something.
    async fn place(&'static self) -> Result<Place, GaveWay> {
        let work = WORK.try_with(Arc::clone).ok();
        let line = match &work {
            _ if FOLLOWING.try_with(|()| ()).is_ok() => &self.followers,
            None => &self.own,
            Some(work) if work.locks.load(Ordering::Relaxed) > 0 => &self.holders,
            Some(work) => {
                let turn = match work.has_begun.load(Ordering::Relaxed) {
                    true => self.parties.turn_of_begun(Arc::clone(&work.party)).await,
                    false => self.parties.turn_of(Arc::clone(&work.party)).await.ok_or(GaveWay)?,
                };
                work.has_begun.store(true, Ordering::Relaxed);
                return Ok(Place::Party(turn));
            }
        };
        // Never closed: an error would let the work begin without a place.
        Ok(Place::Alone(line.acquire().await.ok()))
    }
}

/// A place, until it is dropped.
enum Place {
    Alone(#[expect(dead_code, reason = "it is held")] Option<SemaphorePermit<'static>>),
    Party(#[expect(dead_code, reason = "it is held")] Turn<Party>),
}

/// What is known of the work that a task does for a party.
struct Work {
    party: Party,
    /// It has had a place.
    has_begun: AtomicBool,
    /// Locks that it holds and others need.
    locks: AtomicUsize,
}

tokio::task_local! {
    /// Whether what runs here follows the store, and takes its places and no user's.
    static FOLLOWING: ();
    /// Whose turns are taken.
    static WORK: Arc<Work>;
}

thread_local! {
    /// Whether this thread is in a turn, within which no second place is taken.
    static IN_A_TURN: Cell<bool> = const { Cell::new(false) };
}

/// A piece of work that was not begun: more pieces wait than may, and most of them are of the same party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much long work waits, and most of it is of one party")]
pub struct GaveWay;

/// Why a piece of work has no result.
#[derive(Debug, thiserror::Error)]
pub enum AsideError {
    /// It was not begun.
    #[error(transparent)]
    GaveWay(#[from] GaveWay),
    /// It panicked, or the process ends.
    #[error(transparent)]
    Failed(#[from] JoinError),
}

/// Does all of a future as the work of a party, which takes turns with others.
pub async fn by<F: Future>(party: &str, future: F) -> F::Output {
    let work = Work { party: party.into(), has_begun: AtomicBool::default(), locks: AtomicUsize::default() };
    WORK.scope(Arc::new(work), future).await
}

/// A lock that others need is held by the work that runs here, until this is dropped: it waits behind none of its party.
#[must_use]
pub struct Holding(Option<Arc<Work>>);

/// Says that a lock is held, which others need.
pub fn holding() -> Holding {
    let work = WORK.try_with(Arc::clone).ok();
    if let Some(work) = &work {
        work.locks.fetch_add(1, Ordering::Relaxed);
    }
    Holding(work)
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(work) = &self.0 {
            work.locks.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Does a piece of work and waits for it. It goes on where nobody waits any more, and keeps its place until it has
/// ended.
///
/// # Errors
/// When it gave way to others before it began, it panicked, or the process ends.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AsideError> {
    within(&USERS, work).await
}

/// The same for a document that an agent asks for.
///
/// # Errors
/// As [`aside`].
pub async fn document<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AsideError> {
    within(&DOCUMENTS, work).await
}

async fn within<T: Send + 'static>(
    lines: &'static Lines,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AsideError> {
    let place = lines.place().await?;
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    Ok(working.await?)
}

/// Does all of a future as one that follows the store: a withdrawn right is known in its time, however many long bodies
/// users read, and users do not wait for a snapshot that is read anew.
pub async fn following<F: Future>(future: F) -> F::Output {
    FOLLOWING.scope((), future).await
}

/// Does work that borrows from its request. If it is long, the runtime hands all other tasks of this thread to another
/// thread first.
///
/// # Errors
/// When it gave way to others before it began.
pub async fn here<T>(is_long: bool, work: impl FnOnce() -> T) -> Result<T, GaveWay> {
    if !is_long || IN_A_TURN.get() {
        return Ok(work());
    }
    let _place = IN_PLACE.place().await?;
    Ok(apart(work))
}

/// The same of work in a transaction, which waits for no place: what it holds is bounded already, and others wait for
/// that.
pub fn held<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    if is_long && !IN_A_TURN.get() { apart(work) } else { work() }
}

/// Waits for a future. If it is long, each of its turns is taken as the work of [`here`] is. A lock or a transaction
/// that others need must not be held in one: its turns wait in line.
///
/// # Errors
/// When it gave way to others before its first turn; later it does not.
pub async fn turns<F: Future>(is_long: bool, future: F) -> Result<F::Output, GaveWay> {
    if !is_long || IN_A_TURN.get() {
        return Ok(future.await);
    }
    let mut future = pin!(future);
    loop {
        let place = IN_PLACE.place().await?;
        let turn = poll_fn(|cx| Ready(apart(|| future.as_mut().poll(cx)))).await;
        drop(place);
        if let Ready(output) = turn {
            return Ok(output);
        }
        // The future wakes this task when it can go on.
        let mut was_polled = false;
        poll_fn(|_| if std::mem::replace(&mut was_polled, true) { Ready(()) } else { Pending }).await;
    }
}

/// From here on what runs here gives way to nobody, such as the answer to what was written.
pub fn has_begun() {
    let _ = WORK.try_with(|work| work.has_begun.store(true, Ordering::Relaxed));
}

/// Does work on this thread, without the tasks that wait for it. A runtime of one thread has no other one for them:
/// commands of the machine's operator have such, and serve nobody else.
fn apart<T>(work: impl FnOnce() -> T) -> T {
    struct InATurn;
    impl Drop for InATurn {
        fn drop(&mut self) {
            IN_A_TURN.set(false);
        }
    }
    IN_A_TURN.set(true);
    let _turn = InATurn;
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::sync::{Mutex, MutexGuard};

    use super::*;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// All places of work that borrows, once they are free. One test at a time has them.
    async fn all_places() -> (MutexGuard<'static, ()>, Vec<Place>) {
        static ONE_TEST: Mutex<()> = Mutex::const_new(());
        let (alone, mut places) = (ONE_TEST.lock().await, Vec::new());
        for _ in 0..IN_PLACE_AT_ONCE {
            places.push(by("test", IN_PLACE.place()).await.unwrap());
        }
        (alone, places)
    }

    /// A long write held up the only worker thread, and so the task that it waited for.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_that_borrows_leaves_its_thread_to_others() {
        let tell_later = |told: mpsc::Sender<()>| tokio::spawn(async move { told.send(()) });
        let (tell, told) = mpsc::channel();
        let one = tokio::spawn(async move {
            tell_later(tell);
            here(true, move || told.recv_timeout(PATIENCE)).await
        });
        assert_eq!(one.await.unwrap(), Ok(Ok(())));
        let (tell, told) = mpsc::channel();
        let other = tokio::spawn(turns(true, async move {
            tokio::task::yield_now().await;
            tell_later(tell);
            told.recv_timeout(PATIENCE)
        }));
        assert_eq!(other.await.unwrap(), Ok(Ok(())));
    }

    /// As many as there are places, each with long work within: none of them waits for a place that it holds itself.
    #[tokio::test]
    async fn long_work_within_a_turn_takes_no_second_place() {
        let one = |n: usize| {
            let work = turns(true, async move {
                tokio::task::yield_now().await;
                let inner =
                    turns(true, async move { here(true, || n).await.unwrap() + aside(move || n).await.unwrap() });
                let sum = inner.await.unwrap();
                tokio::task::yield_now().await;
                sum
            });
            by("test", work)
        };
        let sums = futures_util::future::join_all((0..4 * IN_PLACE_AT_ONCE).map(one)).await;
        assert_eq!(sums, (0..4 * IN_PLACE_AT_ONCE).map(|n| Ok(2 * n)).collect::<Vec<_>>());
        // All places are free again, those that another test holds for a moment in the end.
        assert!(tokio::time::timeout(PATIENCE, all_places()).await.is_ok());
    }

    /// A snapshot that is read anew held up the lists of users, and long lists the withdrawal of a right.
    #[tokio::test]
    async fn who_follows_the_store_and_users_do_not_wait_for_one_another() {
        let users = all_places().await;
        assert_eq!(following(here(true, || 7)).await, Ok(7));
        assert_eq!(following(turns(true, async { here(true, || 8).await })).await, Ok(Ok(8)));
        drop(users);
        let follower = IN_PLACE.followers.acquire().await.unwrap();
        assert_eq!(by("test", here(true, || 9)).await, Ok(9));
        // What a follower begins with a place of its own waits for that.
        let mut waits = Box::pin(following(here(true, || 10)));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(follower);
        assert_eq!(waits.await, Ok(10));
    }

    /// A transaction that waited for users' work would hold up all writes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_in_a_transaction_waits_for_no_place_and_leaves_its_thread_to_others() {
        let users = all_places().await;
        let (tell, told) = mpsc::channel();
        let one = tokio::spawn(async move {
            tokio::spawn(async move { tell.send(()) });
            held(true, move || told.recv_timeout(PATIENCE))
        });
        assert_eq!(one.await.unwrap(), Ok(()));
        drop(users);
    }

    /// Users' long bodies held up the documents of all clusters.
    #[tokio::test]
    async fn document_does_not_wait_for_users_work() {
        let (ends, held): (Vec<_>, Vec<_>) = (0..AT_ONCE + 1)
            .map(|_| {
                let (end, ended) = mpsc::channel::<()>();
                (end, tokio::spawn(by("test", aside(move || ended.recv().is_ok()))))
            })
            .unzip();
        // One of them waits: all places are taken.
        while USERS.parties.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(document(|| 7).await.unwrap(), 7);
        drop(ends);
        for one in held {
            assert!(!one.await.unwrap().unwrap());
        }
    }

    /// Who asked a thousand long questions had everybody else wait behind them, and nobody counted how many they were.
    #[tokio::test]
    async fn who_asks_often_lets_others_go_on_and_is_told_when_it_is_too_often() {
        const MOST: usize = 100;
        let lines: &'static Lines = Box::leak(Box::new(Lines::new(1, MOST)));
        let held = by("other", lines.place()).await.unwrap();
        let (tell, mut order) = tokio::sync::mpsc::unbounded_channel();
        let ask = |who: &'static str| {
            let tell = tell.clone();
            tokio::spawn(by(who, async move {
                let had = lines.place().await.map(drop);
                tell.send((who, had)).unwrap();
            }))
        };
        let asked: Vec<_> = (0..MOST + 3).map(|_| ask("often")).collect();
        // Those that were one too many are told at once.
        for _ in 0..3 {
            assert_eq!(order.recv().await, Some(("often", Err(GaveWay))));
        }
        let one = ask("once");
        assert_eq!(order.recv().await, Some(("often", Err(GaveWay))), "whoever has most makes room");
        assert!(order.try_recv().is_err());
        // What has begun, or must come to its end, gives way to nobody and has nobody give way.
        let end = tokio::spawn(by("often", async move {
            has_begun();
            lines.place().await.map(drop)
        }));
        tokio::task::yield_now().await;
        assert!(order.try_recv().is_err());
        drop(held);
        let mut before = 0;
        while order.recv().await.unwrap() != ("once", Ok(())) {
            before += 1;
        }
        assert!(before <= 1, "{before} of another one before it");
        assert_eq!(end.await.unwrap(), Ok(()));
        one.await.unwrap();
        for one in asked {
            one.await.unwrap();
        }
    }

    /// Whoever holds the turn of rights waited behind all that its party had asked for, and everybody else for that turn.
    #[tokio::test]
    async fn who_holds_a_lock_and_the_gateway_itself_wait_behind_no_party() {
        let lines: &'static Lines = Box::leak(Box::new(Lines::new(1, 1)));
        let held = by("often", lines.place()).await.unwrap();
        let mut waits = Box::pin(by("often", lines.place()));
        assert!(futures_util::poll!(&mut waits).is_pending());
        let mut holder = Box::pin(by("often", async {
            let lock = holding();
            drop(lines.place().await.unwrap());
            drop(lock);
            lines.place().await.map(drop)
        }));
        assert!(futures_util::poll!(&mut holder).is_pending(), "it has none of its own once the lock is free");
        let own = lines.place().await.unwrap();
        drop(own);
        assert!(matches!(futures_util::poll!(&mut waits), Ready(Err(GaveWay))), "the oldest makes room");
        drop(held);
        assert_eq!(holder.await, Ok(()));
    }
}
