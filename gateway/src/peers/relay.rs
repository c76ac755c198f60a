//! One request from another replica, onto a tunnel of this one: bytes both ways, chunk by chunk and uncopied. Each half
//! ends at one side as it did at the other: finish, reset and stop are passed on with their codes, and a chunk is taken
//! from one side only once the other has taken the one before, so that a reader that stalls holds its own window and
//! nothing here.
//!
//! The other replica has authenticated and authorised the request, and has its record; the agent does so again.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tunnel::{
    transport::{Incoming, OpenError, RecvStream, SendStream, Stream, StreamError},
    wire::{close::StreamCode, hop::Hop},
};

use crate::core::Core;

/// Chunks that are passed on before others have their turn.
const CHUNKS_A_TURN: u32 = 32;

/// Relays until both directions have ended.
pub async fn relay(core: Arc<Core>, replica: Arc<str>, incoming: Incoming) {
    let _open = core.metrics.hops.enter();
    let Incoming { head, stream: mut there } = incoming;
    let hop = match Hop::decode(head) {
        Ok(hop) => hop,
        Err(error) => {
            tracing::debug!(%replica, %error, "the head of a hop cannot be read");
            return there.send.reset(StreamCode::BadHead);
        }
    };
    // What came with the head, so that a request without a body is one packet here too.
    let first = match there.recv.recv().now_or_never() {
        Some(Err(_)) => return,
        other => other.and_then(Result::ok),
    };
    let opened = Box::pin(open(&core, hop, matches!(first, Some(None)))).await;
    match opened {
        Ok(here) => join(there, here, first).await,
        Err(code) => {
            tracing::debug!(%replica, %code, "a hop is not taken");
            there.send.reset(code);
        }
    }
}

/// Opens a stream on one of this replica's own tunnels, never by another hop. The code tells the other replica whether
/// the request may be sent elsewhere.
async fn open(core: &Core, hop: Hop, bodiless: bool) -> Result<Stream, StreamCode> {
    let admits = core.replicas.as_ref().is_none_or(|replicas| replicas.admits());
    if !admits || core.snapshots.load().cluster(&hop.cluster).is_none() {
        return Err(StreamCode::NotHere);
    }
    let limits = core.limits();
    let deadline = Instant::now() + limits.open_timeout;
    let tunnels = core.tunnels.of(&hop.cluster);
    let request = hop.into_request();
    let mut why = StreamCode::NotHere;
    for tunnel in tunnels {
        if tunnel.handle.open_streams() >= limits.streams_per_tunnel as usize {
            why = StreamCode::Limit;
            continue;
        }
        let request = request.clone();
        let opening = if bodiless { tunnel.handle.ask(request) } else { tunnel.handle.open(request) };
        match tokio::time::timeout_at(deadline.into(), opening).await {
            Ok(Ok(stream)) => {
                tunnel.use_now();
                return Ok(stream);
            }
            Ok(Err(error)) => {
                tracing::debug!(tunnel = %tunnel, %error, "stream not opened; trying another tunnel");
                if matches!(error, OpenError::Draining) {
                    tunnel.set_draining();
                }
                if let Some(said) = not_opened(Some(&error)) {
                    why = said;
                }
            }
            Err(_) => return Err(not_opened(None).unwrap_or(why)),
        }
    }
    Err(why)
}

/// What the other replica is told where a tunnel took no stream, if more than that there is none: `error`, or that it
/// took too long. Each is a refusal, because nothing was sent and the request may go elsewhere.
fn not_opened(error: Option<&OpenError>) -> Option<StreamCode> {
    match error {
        Some(OpenError::TooManyStreams(_)) | None => Some(StreamCode::Limit),
        Some(OpenError::Draining | OpenError::Closed(_)) => None,
    }
}

/// One direction of a relayed stream.
#[derive(Default)]
struct Way {
    /// Taken from one side and not yet by the other.
    chunk: Bytes,
    over: bool,
    /// Over because the source finished, not because the sink takes no more.
    whole: bool,
}

/// Which side broke a request off, and how.
enum Broken {
    /// The one that the bytes come from.
    Source(StreamCode),
    /// The one that they go to.
    Sink(StreamCode),
}

impl Way {
    /// Passes on what there is. Ready: the direction is over, or one side broke the whole stream off.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut RecvStream, to: &mut SendStream) -> Poll<Result<(), Broken>> {
        for _ in 0..CHUNKS_A_TURN {
            if self.over {
                return Poll::Ready(Ok(()));
            }
            if !self.chunk.is_empty() {
                match to.poll_send(cx, &mut self.chunk) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(end)) => return Poll::Ready(self.refused(from, to, end)),
                }
            }
            match from.poll_recv(cx) {
                Poll::Ready(Ok(Some(chunk))) => self.chunk = chunk,
                Poll::Ready(Ok(None)) => {
                    // An end of the sink that came in between is seen by the other direction.
                    let _ = to.finish();
                    (self.over, self.whole) = (true, true);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::Source(code(&error)))),
                Poll::Pending => {
                    return match to.poll_stopped(cx) {
                        Poll::Pending => Poll::Pending,
                        Poll::Ready(end) => Poll::Ready(self.refused(from, to, end)),
                    };
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The sink takes no more.
    fn refused(&mut self, from: &mut RecvStream, to: &mut SendStream, end: StreamError) -> Result<(), Broken> {
        self.over = true;
        self.chunk = Bytes::new();
        match end {
            StreamError::Stopped(code) => {
                from.stop(code);
                // So that dropping it does not reset the direction that goes on.
                let _ = to.finish();
                Ok(())
            }
            end => Err(Broken::Sink(code(&end))),
        }
    }
}

/// What the other side is told of a break.
fn code(error: &StreamError) -> StreamCode {
    match error {
        StreamError::Reset(code) | StreamError::Stopped(code) => *code,
        StreamError::Lost(_) => StreamCode::TunnelLost,
        StreamError::Over => StreamCode::Internal,
    }
}

/// Passes bytes between two streams until both directions are over, or one of the streams is broken off. `first` is
/// what was taken from `a` already.
async fn join(mut a: Stream, mut b: Stream, first: Option<Option<Bytes>>) {
    let (mut up, mut down) = (Way::default(), Way::default());
    match first {
        Some(Some(chunk)) => up.chunk = chunk,
        // Opened with its send half finished.
        Some(None) => up.over = true,
        None => {}
    }
    let mut told = false;
    let broken = poll_fn(|cx| {
        let there = up.poll(cx, &mut a.recv, &mut b.send);
        if let Poll::Ready(Err(broken)) = there {
            return Poll::Ready(Some(broken));
        }
        match down.poll(cx, &mut b.recv, &mut a.send) {
            Poll::Ready(Err(Broken::Source(code))) => return Poll::Ready(Some(Broken::Sink(code))),
            Poll::Ready(Err(Broken::Sink(code))) => return Poll::Ready(Some(Broken::Source(code))),
            Poll::Ready(Ok(())) if there.is_ready() => return Poll::Ready(None),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        // Of a direction that waits for its sink nobody asks the source, and a source that has its whole answer has
        // only this to say that it gives up.
        if down.whole && !told {
            match a.send.poll_stopped(cx) {
                Poll::Ready(StreamError::Reset(code)) => return Poll::Ready(Some(Broken::Source(code))),
                // Some carriers tell a reset to a writer that has finished as a stop; by itself a reader that has what
                // it wants stops with another code.
                Poll::Ready(StreamError::Stopped(code)) if code != StreamCode::NoMore => {
                    return Poll::Ready(Some(Broken::Source(code)));
                }
                Poll::Ready(StreamError::Lost(_)) => return Poll::Ready(Some(Broken::Source(StreamCode::Cancelled))),
                Poll::Ready(_) => told = true,
                Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await;
    // From here on `Source` is `a`.
    match broken {
        None => {}
        // To the agent a replica that is gone is a user who is gone.
        Some(Broken::Source(StreamCode::TunnelLost)) => b.send.reset(StreamCode::Cancelled),
        Some(Broken::Source(code)) => b.send.reset(code),
        Some(Broken::Sink(code)) => a.send.reset(code),
    }
}

#[cfg(test)]
mod tests {
    use daemon::{Task, TaskGroup};
    use tunnel::transport::{TunnelHandle, memory};

    use super::*;

    /// Of a kind that nobody here looks at.
    const HEAD: &[u8] = b"\0\0\0\x01\x10";

    /// What the other replica and the agent have of a request that is relayed, with the tunnels that bear it.
    struct Relayed {
        replica: Stream,
        agent: Stream,
        relaying: Task<()>,
        near: (TunnelHandle, TunnelHandle),
        far: (TunnelHandle, TunnelHandle),
        _tasks: TaskGroup,
    }

    impl Relayed {
        async fn new() -> Self {
            let (near, far) = (memory::pair().await, memory::pair().await);
            let replica = near.0.open(Bytes::from_static(HEAD)).await.unwrap();
            let there = near.1.accept().await.unwrap().stream;
            let here = far.0.open(Bytes::from_static(HEAD)).await.unwrap();
            let agent = far.1.accept().await.unwrap().stream;
            let tasks = TaskGroup::new("test");
            let relaying = tasks.spawn_task("relay", join(there, here, None));
            Self { replica, agent, relaying, near, far, _tasks: tasks }
        }

        /// All is over, and neither tunnel has a stream left.
        async fn over(self) {
            self.relaying.await.unwrap();
            drop((self.replica, self.agent));
            assert_eq!((self.near.0.open_streams(), self.far.1.open_streams()), (0, 0));
        }
    }

    async fn whole(recv: &mut RecvStream) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = recv.recv().await.unwrap() {
            all.extend_from_slice(&chunk);
        }
        all
    }

    /// A code that is none would be answered as if the request may have been carried out, and nobody would repeat it.
    #[test]
    fn t12_a_stream_that_the_holder_could_not_open_in_time_is_a_refusal_that_passes() {
        for error in [None, Some(OpenError::TooManyStreams(1)), Some(OpenError::Draining)] {
            let code = not_opened(error.as_ref()).unwrap_or(StreamCode::NotHere);
            assert!(code.is_refusal() && code.is_passing(), "{error:?}: {code}");
        }
    }

    #[tokio::test]
    async fn t12_bytes_and_half_closes_pass_a_hop_in_both_directions() {
        let mut relayed = Relayed::new().await;
        relayed.replica.send.send(Bytes::from_static(b"question")).await.unwrap();
        relayed.replica.send.finish().unwrap();
        assert_eq!(whole(&mut relayed.agent.recv).await, b"question");
        // The other direction goes on behind the half-close.
        let body = vec![7; 3 * 1024 * 1024];
        let send = async {
            relayed.agent.send.send(Bytes::from(body.clone())).await.unwrap();
            relayed.agent.send.finish().unwrap();
        };
        let ((), got) = tokio::join!(send, whole(&mut relayed.replica.recv));
        assert!(got == body);
        relayed.over().await;
    }

    #[tokio::test]
    async fn t12_a_reset_passes_a_hop_with_its_code_from_either_side() {
        for code in [StreamCode::Cancelled, StreamCode::Unauthorised, StreamCode::Deadline, StreamCode::Unknown(0x1ff)]
        {
            let mut relayed = Relayed::new().await;
            relayed.replica.send.reset(code);
            assert_eq!(relayed.agent.recv.recv().await, Err(StreamError::Reset(code)));
            relayed.over().await;
        }
        for code in [StreamCode::Draining, StreamCode::Limit, StreamCode::BadHead, StreamCode::Upstream] {
            let mut relayed = Relayed::new().await;
            relayed.agent.send.reset(code);
            assert_eq!(relayed.replica.recv.recv().await, Err(StreamError::Reset(code)));
            relayed.over().await;
        }
    }

    #[tokio::test]
    async fn t12_a_stop_passes_a_hop_with_its_code_and_the_other_direction_goes_on() {
        let mut relayed = Relayed::new().await;
        relayed.agent.recv.stop(StreamCode::NoMore);
        assert_eq!(relayed.replica.send.stopped().await, StreamError::Stopped(StreamCode::NoMore));
        relayed.agent.send.send(Bytes::from_static(b"answer")).await.unwrap();
        relayed.agent.send.finish().unwrap();
        assert_eq!(whole(&mut relayed.replica.recv).await, b"answer");
        relayed.over().await;

        let mut relayed = Relayed::new().await;
        relayed.replica.recv.stop(StreamCode::Unauthorised);
        assert_eq!(relayed.agent.send.stopped().await, StreamError::Stopped(StreamCode::Unauthorised));
        relayed.replica.send.finish().unwrap();
        assert_eq!(whole(&mut relayed.agent.recv).await, b"");
        relayed.over().await;
    }

    #[tokio::test]
    async fn t12_a_lost_tunnel_is_told_by_a_code_of_its_own_and_a_lost_replica_is_a_user_who_went_away() {
        let mut relayed = Relayed::new().await;
        relayed.far.1.close(tunnel::wire::close::CloseCode::Shutdown, "");
        assert_eq!(relayed.replica.recv.recv().await, Err(StreamError::Reset(StreamCode::TunnelLost)));
        let mut relayed = Relayed::new().await;
        relayed.near.0.close(tunnel::wire::close::CloseCode::Shutdown, "");
        assert_eq!(relayed.agent.recv.recv().await, Err(StreamError::Reset(StreamCode::Cancelled)));
    }

    /// Without that a user who goes away behind an answer would leave the upload to an agent that does not read it.
    #[tokio::test]
    async fn t12_a_user_who_goes_away_ends_an_upload_that_waits_for_its_reader() {
        let mut relayed = Relayed::new().await;
        relayed.agent.send.send(Bytes::from_static(b"answer")).await.unwrap();
        relayed.agent.send.finish().unwrap();
        assert_eq!(whole(&mut relayed.replica.recv).await, b"answer");
        let mut send = relayed.replica.send;
        let mut chunk = Bytes::from(vec![7; 64 * 1024]);
        // Until no more fits between here and the agent.
        let full = poll_fn(|cx| match send.poll_send(cx, &mut chunk) {
            Poll::Ready(result) => {
                result.unwrap();
                chunk = Bytes::from(vec![7; 64 * 1024]);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Ready(()),
        });
        full.await;
        send.reset(StreamCode::Cancelled);
        relayed.relaying.await.unwrap();
    }

    /// A reader that stalls holds the windows of its own stream, at both tunnels, and nobody else's.
    #[tokio::test]
    async fn t12_a_stalled_reader_over_a_hop_does_not_hold_another() {
        let stalled = Relayed::new().await;
        let (near, far) = (&stalled.near, &stalled.far);
        let mut agent = stalled.agent.send;
        let mut filled = 0;
        let mut chunk = Bytes::from(vec![7; 64 * 1024]);
        loop {
            // Whatever moves, moves while the others run: when nothing does for 1,000 turns, it has come to rest.
            let mut turns = 0;
            let sent = poll_fn(|cx| match agent.poll_send(cx, &mut chunk) {
                Poll::Ready(result) => Poll::Ready(result.map(|()| true)),
                Poll::Pending if turns > 1000 => Poll::Ready(Ok(false)),
                Poll::Pending => {
                    turns += 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            });
            if !sent.await.unwrap() {
                break;
            }
            filled += 64 * 1024;
            chunk = Bytes::from(vec![7; 64 * 1024]);
            assert!(filled < 4 * 1024 * 1024, "somebody hoards what nobody reads");
        }
        // Another request over the same two tunnels.
        let mut replica = near.0.open(Bytes::from_static(HEAD)).await.unwrap();
        let there = near.1.accept().await.unwrap().stream;
        let here = far.0.open(Bytes::from_static(HEAD)).await.unwrap();
        let mut other = far.1.accept().await.unwrap().stream;
        let tasks = TaskGroup::new("test");
        let relaying = tasks.spawn_task("relay", join(there, here, Some(None)));
        let body = vec![9; 2 * 1024 * 1024];
        let send = async {
            other.send.send(Bytes::from(body.clone())).await.unwrap();
            other.send.finish().unwrap();
        };
        let ((), got) = tokio::join!(send, whole(&mut replica.recv));
        assert!(got == body);
        relaying.await.unwrap();
    }
}
