//! An HTTP body onto a stream, and the acceptor's answer with its head: each chunk as soon as it is there, a finish
//! only at the source's own end, and a reset with the reason otherwise.

use std::{future::poll_fn, pin::pin, task::Poll};

use bytes::{Bytes, BytesMut};
use http_body::Body;

use super::{Counters, half::Sender};
use crate::{
    transport::{SendStream, StreamError},
    wire::{close::StreamCode, error::WireError, head::ResponseHead},
};

/// What is there of a body with the head leaves with it if it is no longer than this, in bytes: copying it costs less
/// than a frame of its own at both ends.
const WITH_HEAD_BYTES: usize = 4 * 1024;

/// How a body transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// All of it was given and the half is finished.
    Whole,
    /// The reader wanted no more; nothing is wrong.
    Stopped,
}

/// Why a body could not be sent whole.
#[derive(Debug, thiserror::Error)]
pub enum SendBodyError<E> {
    /// The head is over a limit of the wire; the stream was reset with [`StreamCode::Internal`].
    #[error("the answer's head cannot be sent")]
    Head(#[source] WireError),
    /// The source broke off; the stream was reset with [`StreamCode::Upstream`].
    #[error("the body's source broke off")]
    Source(#[source] E),
    /// The stream broke off.
    #[error(transparent)]
    Stream(StreamError),
}

/// Sends `body` chunk by chunk, each as soon as it is there (watch events do not wait), then finishes; returns the
/// bytes sent. Trailers are dropped. Notices a stop, reset or lost tunnel also while the source is silent.
pub async fn send_body<B>(send: &mut SendStream, body: B) -> (u64, Result<Sent, SendBodyError<B::Error>>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let counters = Counters::default();
    let result = pump(send, None, body, &counters).await;
    (counters.sent(), result)
}

/// Sends the head of an answer. Of a 101 it is all; [`super::splice`] goes on.
pub async fn respond_head(send: &mut SendStream, head: &ResponseHead) -> Result<(), SendBodyError<StreamError>> {
    let head = encode(send, head)?;
    send.send(head.freeze()).await.map_err(SendBodyError::Stream)
}

/// Sends an answer: the head, then `body` as [`send_body`] does; its bytes are added to
/// `counters` as they are sent. A stop that comes in time for the head counts as
/// [`Sent::Stopped`] too.
pub async fn respond<B>(
    send: &mut SendStream,
    head: &ResponseHead,
    body: B,
    counters: &Counters,
) -> Result<Sent, SendBodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    let head = encode(send, head)?;
    respond_encoded(send, head, body, counters).await
}

/// As [`respond`], with a head that is encoded already.
pub async fn respond_encoded<B>(
    send: &mut SendStream,
    head: BytesMut,
    body: B,
    counters: &Counters,
) -> Result<Sent, SendBodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    pump(send, Some(head), body, counters).await
}

fn encode<S: Sender, E>(send: &mut S, head: &ResponseHead) -> Result<BytesMut, SendBodyError<E>> {
    head.encode().map_err(|error| {
        send.reset(StreamCode::Internal);
        SendBodyError::Head(error)
    })
}

/// The work of [`send_body`] over any sender, behind a head that is not sent yet.
pub(super) async fn pump<S, B>(
    send: &mut S,
    mut head: Option<BytesMut>,
    body: B,
    counters: &Counters,
) -> Result<Sent, SendBodyError<B::Error>>
where
    S: Sender,
    B: Body<Data = Bytes> + Unpin,
{
    let mut body = pin!(body);
    loop {
        if body.is_end_stream() {
            return end(send, head).await;
        }
        let next = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            // The head does not wait for a body.
            Poll::Pending if head.is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let next = tokio::select! {
            biased;
            next = next => next,
            why = send.stopped() => return ended(send, why),
        };
        let chunk = match next {
            None => Bytes::new(),
            Some(None) => return end(send, head).await,
            Some(Some(Err(error))) => {
                // It was an answer until here.
                if let Some(head) = head
                    && let Err(why) = send.send(head.freeze()).await
                {
                    return ended(send, why);
                }
                send.reset(StreamCode::Upstream);
                return Err(SendBodyError::Source(error));
            }
            // Trailers: no Kubernetes API uses them.
            Some(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        let length = chunk.len();
        let chunk = match head.take() {
            None if length == 0 => continue,
            None => chunk,
            Some(mut head) if length <= WITH_HEAD_BYTES => {
                head.extend_from_slice(&chunk);
                head.freeze()
            }
            Some(head) => {
                if let Err(why) = send.send(head.freeze()).await {
                    return ended(send, why);
                }
                chunk
            }
        };
        let last = body.is_end_stream();
        let sent = if last { send.send_last(chunk).await } else { send.send(chunk).await };
        match sent {
            Ok(()) => counters.add_sent(length),
            Err(why) => return ended(send, why),
        }
        if last {
            return Ok(Sent::Whole);
        }
    }
}

/// Ends the direction, behind a head if that is not sent yet.
async fn end<S: Sender, E>(send: &mut S, head: Option<BytesMut>) -> Result<Sent, SendBodyError<E>> {
    let result = match head {
        Some(head) => send.send_last(head.freeze()).await,
        None => send.finish(),
    };
    match result {
        Ok(()) => Ok(Sent::Whole),
        Err(why) => ended(send, why),
    }
}

fn ended<S: Sender, E>(send: &mut S, why: StreamError) -> Result<Sent, SendBodyError<E>> {
    match why {
        StreamError::Stopped(_) => Ok(quiet_end(send)),
        why => Err(SendBodyError::Stream(why)),
    }
}

/// After a stop the half ends like any other, so that dropping it does not reset the direction that goes on.
pub(super) fn quiet_end<S: Sender>(send: &mut S) -> Sent {
    let _ = send.finish();
    Sent::Stopped
}
