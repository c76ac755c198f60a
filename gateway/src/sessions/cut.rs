//! Ends what a user does not let end: an answer whose reader has stopped reading is not asked for its next bytes, and
//! so cannot say that its session is over. Over HTTP/1.1 the connection is cut, over HTTP/2 the one stream.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use daemon::{Task, TaskGroup};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::sessions::SessionHandle;

/// How long a reader may take to see the end of an answer whose session is over, before it is cut.
const GRACE: Duration = Duration::from_secs(1);

/// Made when somebody first wants to cut: few requests are ever cut.
type Cut = Arc<OnceLock<CancellationToken>>;

tokio::task_local! {
    /// Cuts the connection or stream on which the request of this task is served.
    static CUT: Cut;
}

/// Runs `serving` until it ends or is cut (`None`).
pub fn cuttable<F: Future>(serving: F) -> Cuttable<F> {
    Cuttable { serving: Box::pin(serving), cut: Cut::default(), cancelled: None }
}

/// The future that [`cuttable`] returns.
pub struct Cuttable<F> {
    serving: Pin<Box<F>>,
    cut: Cut,
    cancelled: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<F: Future> Future for Cuttable<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(output) = CUT.sync_scope(Arc::clone(&this.cut), || this.serving.as_mut().poll(cx)) {
            return Poll::Ready(Some(output));
        }
        // Made by `serving` only, within its poll.
        let Some(cut) = this.cut.get() else { return Poll::Pending };
        let cancelled = this.cancelled.get_or_insert_with(|| Box::pin(cut.clone().cancelled_owned()));
        cancelled.as_mut().poll(cx).map(|()| None)
    }
}

/// Cuts what serves the present request once its session is over, unless dropped within [`GRACE`] from then: an answer
/// that is still asked for its bytes ends by itself.
pub fn once_ended(tasks: &TaskGroup, session: &SessionHandle) -> Option<Task<()>> {
    let cut = CUT.try_with(|cut| cut.get_or_init(CancellationToken::new).clone()).ok()?;
    let ended = session.ended();
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
