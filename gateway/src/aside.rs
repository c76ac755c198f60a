//! Work whose size callers choose and that may take longer than a request may hold up a thread of the runtime: a few
//! pieces at once, on threads of their own. The rest waits in line; who waits is bounded where it came from (bodies of
//! one caller, exchanges of one cluster). Documents of agents have a line of their own: a withdrawn right must arrive
//! in its time, however many bodies users send.

use tokio::{sync::Semaphore, task::JoinError};

/// Pieces of users' work at once. Requests of all others keep the other processors, and their turns on these.
const AT_ONCE: usize = 2;
/// Documents at once.
const DOCUMENTS_AT_ONCE: usize = 1;

static USERS: Semaphore = Semaphore::const_new(AT_ONCE);
static DOCUMENTS: Semaphore = Semaphore::const_new(DOCUMENTS_AT_ONCE);

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

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
