//! Bodies on the way to and from the apiserver: the stream's chunks as they are, no copy.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use proto::{exchange::StreamBody, transport::StreamError};
use tokio::sync::oneshot;

use super::pool::Lease;

/// What goes to the apiserver.
pub struct RequestBody(Kind);

enum Kind {
    Empty,
    Whole(Option<Bytes>),
    Stream { first: Option<Bytes>, rest: Box<StreamBody>, over: oneshot::Receiver<()> },
}

/// Held by whoever runs the exchange. When it is dropped, a request body that still flows ends: the answer is complete,
/// and whoever sends the body is told to stop.
pub struct BodyGuard(#[expect(dead_code, reason = "held for its drop")] Option<oneshot::Sender<()>>);

impl RequestBody {
    /// No body at all.
    pub fn empty() -> Self {
        Self(Kind::Empty)
    }

    /// These bytes.
    pub fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes)))
    }

    /// The rest of a stream, behind a chunk that was already taken from it.
    pub fn stream(first: Option<Bytes>, rest: StreamBody) -> (Self, BodyGuard) {
        let (guard, over) = oneshot::channel();
        (Self(Kind::Stream { first, rest: Box::new(rest), over }), BodyGuard(Some(guard)))
    }

    /// Whether there is no body.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Kind::Empty)
    }
}

impl BodyGuard {
    /// For a request without a body that flows.
    pub fn none() -> Self {
        Self(None)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream { first, rest, over } => {
                if let Some(bytes) = first.take() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                if over.poll_unpin(cx).is_ready() {
                    return Poll::Ready(Some(Err(StreamError::Over)));
                }
                Pin::new(&mut **rest).poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty | Kind::Whole(None) => true,
            Kind::Stream { first: None, rest, .. } => rest.is_end_stream(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty | Kind::Whole(None) => SizeHint::with_exact(0),
            Kind::Whole(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream { first: None, rest, .. } => rest.size_hint(),
            Kind::Stream { .. } => SizeHint::default(),
        }
    }
}

/// What comes from the apiserver. Holds its claim on the connection.
pub struct AnswerBody {
    body: Incoming,
    lease: Option<Lease>,
}

impl AnswerBody {
    pub(super) fn new(body: Incoming, lease: Option<Lease>) -> Self {
        let mut this = Self { body, lease };
        if this.body.is_end_stream() {
            this.finished();
        }
        this
    }

    /// Of a connection that is not used again.
    pub fn alone(body: Incoming) -> Self {
        Self { body, lease: None }
    }

    fn finished(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.finished();
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(lease) = &mut self.lease {
            lease.drive(cx);
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || (matches!(frame, Some(Ok(_))) && self.body.is_end_stream()) {
            self.finished();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
