//! An HTTP body onto a stream, and the acceptor's answer.

use std::pin::pin;

use bytes::Bytes;
use http_body::Body;

use super::{Counters, half::Sender};
use crate::{
    transport::{SendStream, StreamError},
    wire::{close::StreamCode, error::WireError, head::ResponseHead},
};

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

/// Sends `body` chunk by chunk, each as soon as it is there (watch events do not wait), then finishes; returns the bytes
/// sent. Trailers are dropped. Notices a stop, reset or lost tunnel also while the source is silent.
pub async fn send_body<B>(send: &mut SendStream, body: B) -> (u64, Result<Sent, SendBodyError<B::Error>>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let counters = Counters::default();
    let result = pump(send, body, &counters).await;
    (counters.sent(), result)
}

/// As [`send_body`]; the bytes are added to `counters` as they are sent.
pub async fn send_body_counted<B>(
    send: &mut SendStream,
    body: B,
    counters: &Counters,
) -> Result<Sent, SendBodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    pump(send, body, counters).await
}

/// Sends the head of an answer. Of a 101 it is all; [`super::splice`] goes on.
pub async fn respond_head(send: &mut SendStream, head: &ResponseHead) -> Result<(), SendBodyError<StreamError>> {
    head_of(send, head).await
}

/// Sends an answer: the head, then `body` as [`send_body_counted`] does. A stop that comes in time for the head counts as
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
    match head_of(send, head).await {
        Ok(()) => pump(send, body, counters).await,
        Err(SendBodyError::Stream(StreamError::Stopped(_))) => Ok(quiet_end(send)),
        Err(error) => Err(error),
    }
}

async fn head_of<S: Sender, E>(send: &mut S, head: &ResponseHead) -> Result<(), SendBodyError<E>> {
    let bytes = head.encode().map_err(|error| {
        send.reset(StreamCode::Internal);
        SendBodyError::Head(error)
    })?;
    send.send(bytes.freeze()).await.map_err(SendBodyError::Stream)
}

/// The work of [`send_body`] over any sender.
pub(super) async fn pump<S, B>(send: &mut S, body: B, counters: &Counters) -> Result<Sent, SendBodyError<B::Error>>
where
    S: Sender,
    B: Body<Data = Bytes> + Unpin,
{
    let mut body = pin!(body);
    loop {
        if body.is_end_stream() {
            return finish(send);
        }
        let frame = tokio::select! {
            biased;
            frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)) => frame,
            why = send.stopped() => return ended(send, why),
        };
        match frame {
            None => return finish(send),
            Some(Err(error)) => {
                send.reset(StreamCode::Upstream);
                return Err(SendBodyError::Source(error));
            }
            Some(Ok(frame)) => {
                // Trailers: no Kubernetes API uses them (DESIGN.md section 3).
                let Ok(chunk) = frame.into_data() else { continue };
                let length = chunk.len();
                if length == 0 {
                    continue;
                }
                match send.send(chunk).await {
                    Ok(()) => counters.add_sent(length),
                    Err(why) => return ended(send, why),
                }
            }
        }
    }
}

fn finish<S: Sender, E>(send: &mut S) -> Result<Sent, SendBodyError<E>> {
    match send.finish() {
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
