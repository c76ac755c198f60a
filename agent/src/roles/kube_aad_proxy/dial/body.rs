//! Bodies on the way to the apiserver: the stream's chunks as they are, no copy.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tunnel::{
    exchange::{Part, Resendable, Sending, SendingError, StreamBody},
    transport::StreamError,
};

/// What goes to the apiserver, on one connection.
pub struct RequestBody(Kind);

enum Kind {
    Empty,
    Whole(Option<Bytes>),
    Stream(Sending<StreamBody>),
}

/// A request's body, on whichever connection it goes. Held by whoever runs the exchange. When it is dropped, a body
/// that still flows ends: the answer is complete, and the sender is told to stop.
pub struct Outgoing(Source);

enum Source {
    Empty,
    Whole(Bytes),
    Stream(Resendable<StreamBody>),
}

impl Outgoing {
    /// No body at all.
    pub fn empty() -> Self {
        Self(Source::Empty)
    }

    /// A body that is complete in memory, so that its length is known.
    pub fn whole(bytes: Bytes) -> Self {
        Self(Source::Whole(bytes))
    }

    /// The rest of a stream, behind a chunk that was already taken from it.
    pub fn stream(first: Option<Bytes>, rest: StreamBody, room: Part) -> Self {
        Self(Source::Stream(Resendable::new(first, rest, room)))
    }

    /// Whether there is no body.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Source::Empty)
    }

    /// The body from its beginning. `None`: more of it was sent than is kept.
    pub fn send(&self) -> Option<RequestBody> {
        Some(RequestBody(match &self.0 {
            Source::Empty => Kind::Empty,
            Source::Whole(bytes) => Kind::Whole(Some(bytes.clone())),
            Source::Stream(body) => Kind::Stream(body.send()?),
        }))
    }

    /// The answer has begun: the body will not be sent again.
    pub fn release(&self) {
        if let Source::Stream(body) = &self.0 {
            body.release();
        }
    }
}

impl RequestBody {
    /// No body at all.
    pub fn empty() -> Self {
        Self(Kind::Empty)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = SendingError<StreamError>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty | Kind::Whole(None) => true,
            Kind::Whole(Some(_)) => false,
            Kind::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty | Kind::Whole(None) => SizeHint::with_exact(0),
            Kind::Whole(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(body) => body.size_hint(),
        }
    }
}
