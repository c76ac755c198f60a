//! Work whose size callers choose and that may take longer than a request may hold up a thread of the runtime: a few
//! pieces at once, on threads of their own. The rest waits in line; who waits is bounded where it came from (bodies of
//! one caller, exchanges of one cluster). Documents of agents have a line of their own: a withdrawn right must arrive
//! in its time, however many bodies users send.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::pin,
    task::Poll::{Pending, Ready},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::{JoinError, block_in_place},
};

/// Pieces of users' work at once. Requests of all others keep the other processors, and their turns on these.
const AT_ONCE: usize = 2;
/// Documents at once.
const DOCUMENTS_AT_ONCE: usize = 1;
/// Pieces at once of work that borrows from its request ([`here`], [`turns`]).
const IN_PLACE_AT_ONCE: usize = 2;
/// The same of who follows the store ([`following`]): there is one in a process.
const FOLLOWERS_AT_ONCE: usize = 1;

static USERS: Semaphore = Semaphore::const_new(AT_ONCE);
static DOCUMENTS: Semaphore = Semaphore::const_new(DOCUMENTS_AT_ONCE);
/// Its places are held for a turn only, never while something is waited for. So what waits for one of the other places
/// within a turn waits for nothing that waits for a turn.
static IN_PLACE: Semaphore = Semaphore::const_new(IN_PLACE_AT_ONCE);
/// As [`IN_PLACE`].
static FOLLOWERS: Semaphore = Semaphore::const_new(FOLLOWERS_AT_ONCE);

tokio::task_local! {
    /// Whether what runs here follows the store, and takes its places and no user's.
    static FOLLOWING: ();
}

thread_local! {
    /// Whether this thread is in a turn, within which no second place is taken.
    static IN_A_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Does a piece of work and waits for it. It goes on where nobody waits any more, and keeps its place until it has
/// ended.
///
/// # Errors
/// When it panicked, or the process ends.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    within(&USERS, work).await
}

/// The same for a document that an agent asks for.
///
/// # Errors
/// As [`aside`].
pub async fn document<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    within(&DOCUMENTS, work).await
}

async fn within<T: Send + 'static>(
    places: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // Never closed: an error would let the work begin without a place.
    let place = places.acquire().await.ok();
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    working.await
}

/// Does all of a future as one that follows the store: a withdrawn right is known in its time, however many long bodies
/// users read, and users do not wait for a snapshot that is read anew.
pub async fn following<F: Future>(future: F) -> F::Output {
    FOLLOWING.scope((), future).await
}

/// The places of work that borrows.
fn places() -> &'static Semaphore {
    if FOLLOWING.try_with(|()| ()).is_ok() { &FOLLOWERS } else { &IN_PLACE }
}

/// Does work that borrows from its request. If it is long, the runtime hands all other tasks of this thread to another
/// thread first.
pub async fn here<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    if !is_long || IN_A_TURN.get() {
        return work();
    }
    // Never closed, as above.
    let _place = places().acquire().await.ok();
    apart(work)
}

/// The same of work in a transaction, which waits for no place: what it holds is bounded already, and others wait for
/// that.
pub fn held<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    if is_long && !IN_A_TURN.get() { apart(work) } else { work() }
}

/// Waits for a future. If it is long, each of its turns is taken as the work of [`here`] is. A lock or a transaction
/// that others need must not be held in one: its turns wait in line.
pub async fn turns<F: Future>(is_long: bool, future: F) -> F::Output {
    if !is_long || IN_A_TURN.get() {
        return future.await;
    }
    let mut future = pin!(future);
    loop {
        let place = places().acquire().await.ok();
        let turn = poll_fn(|cx| Ready(apart(|| future.as_mut().poll(cx)))).await;
        drop(place);
        if let Ready(output) = turn {
            return output;
        }
        // The future wakes this task when it can go on.
        let mut was_polled = false;
        poll_fn(|_| if std::mem::replace(&mut was_polled, true) { Ready(()) } else { Pending }).await;
    }
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

    use super::*;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A long write held up the only worker thread, and so the task that it waited for.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_that_borrows_leaves_its_thread_to_others() {
        let tell_later = |told: mpsc::Sender<()>| tokio::spawn(async move { told.send(()) });
        let (tell, told) = mpsc::channel();
        let one = tokio::spawn(async move {
            tell_later(tell);
            here(true, move || told.recv_timeout(PATIENCE)).await
        });
        assert_eq!(one.await.unwrap(), Ok(()));
        let (tell, told) = mpsc::channel();
        let other = tokio::spawn(turns(true, async move {
            tokio::task::yield_now().await;
            tell_later(tell);
            told.recv_timeout(PATIENCE)
        }));
        assert_eq!(other.await.unwrap(), Ok(()));
    }

    /// As many as there are places, each with long work within: none of them waits for a place that it holds itself.
    #[tokio::test]
    async fn long_work_within_a_turn_takes_no_second_place() {
        let one = |n: usize| {
            turns(true, async move {
                tokio::task::yield_now().await;
                let inner = turns(true, async move { here(true, || n).await + aside(move || n).await.unwrap() });
                let sum = inner.await;
                tokio::task::yield_now().await;
                sum
            })
        };
        let sums = futures_util::future::join_all((0..4 * IN_PLACE_AT_ONCE).map(one)).await;
        assert_eq!(sums, (0..4 * IN_PLACE_AT_ONCE).map(|n| 2 * n).collect::<Vec<_>>());
        // All places are free again, those that another test holds for a moment in the end.
        let all = IN_PLACE.acquire_many(IN_PLACE_AT_ONCE as u32);
        assert!(tokio::time::timeout(PATIENCE, all).await.is_ok());
    }

    /// A snapshot that is read anew held up the lists of users, and long lists the withdrawal of a right.
    #[tokio::test]
    async fn who_follows_the_store_and_users_do_not_wait_for_one_another() {
        let users = IN_PLACE.acquire_many(IN_PLACE_AT_ONCE as u32).await.unwrap();
        assert_eq!(following(here(true, || 7)).await, 7);
        assert_eq!(following(turns(true, async { here(true, || 8).await })).await, 8);
        drop(users);
        let follower = FOLLOWERS.acquire_many(FOLLOWERS_AT_ONCE as u32).await.unwrap();
        assert_eq!(here(true, || 9).await, 9);
        // What a follower begins with a place of its own waits for that.
        let mut waits = Box::pin(following(here(true, || 10)));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(follower);
        assert_eq!(waits.await, 10);
    }

    /// A transaction that waited for users' work would hold up all writes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_in_a_transaction_waits_for_no_place_and_leaves_its_thread_to_others() {
        let users = IN_PLACE.acquire_many(IN_PLACE_AT_ONCE as u32).await.unwrap();
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
                (end, tokio::spawn(aside(move || ended.recv().is_ok())))
            })
            .unzip();
        while USERS.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(document(|| 7).await.unwrap(), 7);
        drop(ends);
        for one in held {
            assert!(!one.await.unwrap().unwrap());
        }
    }
}
