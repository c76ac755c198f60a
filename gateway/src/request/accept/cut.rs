//! Ends what a user does not let end: an answer whose reader has stopped reading is not asked for its next bytes, and so
//! cannot say that its session is over. Over HTTP/1.1 the connection is cut, over HTTP/2 the one stream.

use std::time::Duration;

use proto::process::{Task, TaskGroup};
use tokio_util::sync::CancellationToken;

use crate::sessions::SessionHandle;

/// How long a reader may take to see the end of an answer whose session is over, before it is cut.
const GRACE: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Cuts the connection or stream on which the request of this task is served.
    static CUT: CancellationToken;
}

/// Runs `serving` until it ends or is cut (`None`).
pub async fn cuttable<F: Future>(serving: F) -> Option<F::Output> {
    let cut = CancellationToken::new();
    let serving = async {
        tokio::select! {
            biased;
            output = serving => Some(output),
            () = cut.cancelled() => None,
        }
    };
    CUT.scope(cut.clone(), serving).await
}

/// Cuts what serves the present request once its session is over, unless dropped within [`GRACE`] from then: an answer
/// that is still asked for its bytes ends by itself.
pub fn once_ended(tasks: &TaskGroup, session: &SessionHandle) -> Option<Task<()>> {
    let (cut, ended) = (CUT.try_with(CancellationToken::clone).ok()?, session.ended());
    Some(tasks.spawn_task("cut", async move {
        ended.await;
        tokio::time::sleep(GRACE).await;
        cut.cancel();
    }))
}

/// Spawns the streams of an HTTP/2 connection, each so that it can be cut. Dropping a stream unfinished resets it.
#[derive(Clone)]
pub struct Streams(pub TaskGroup);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.execute(cuttable(stream));
    }
}
