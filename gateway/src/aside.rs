//! Work whose size callers choose and that may take longer than a request may hold up a thread of the runtime: a few pieces at
//! once, on threads of their own. The rest waits in line; who waits is bounded where it came from (bodies of one caller,
//! exchanges of one cluster).

use tokio::{sync::Semaphore, task::JoinError};

/// Pieces at once. Requests of all others keep the other processors, and their turns on these.
const AT_ONCE: usize = 2;

static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// Does a piece of work and waits for it. It goes on where nobody waits any more, and keeps its place until it has ended.
///
/// # Errors
/// When it panicked, or the process ends.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    // Never closed: an error would let the work begin without a place.
    let place = PLACES.acquire().await.ok();
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    working.await
}
