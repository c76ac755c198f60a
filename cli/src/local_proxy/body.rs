//! Bodies of answers: of our own, or the gateway's chunk by chunk as they come.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tunnel::exchange::Resendable;

use super::slot::Slot;

/// The body of an answer.
pub enum AnswerBody {
    /// Of our own.
    Own(Option<Bytes>),
    /// The gateway's; its connection has one stream less while it flows.
    Upstream {
        /// As it comes.
        body: Incoming,
        /// Held while it does.
        _slot: Option<Slot>,
        /// The request's body, which ends with the answer if it still flows.
        _request: Option<Resendable<Incoming>>,
    },
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Own((!bytes.is_empty()).then_some(bytes))
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}
