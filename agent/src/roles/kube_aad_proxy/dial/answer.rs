//! Bodies on the way from the apiserver: the chunks as they are, no copy.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tunnel::exchange::Held;

use super::pool::Lease;

/// What comes from the apiserver. Holds its claim on the connection.
pub struct AnswerBody {
    body: Incoming,
    lease: Option<Lease>,
    /// What it may hold while nobody reads it; none if it is narrow.
    held: Option<Held>,
}

impl AnswerBody {
    pub(super) fn new(body: Incoming, lease: Option<Lease>, held: Option<Held>) -> Self {
        let mut this = Self { body, lease, held };
        if this.body.is_end_stream() {
            this.finished();
        }
        this
    }

    /// Of a connection that is not used again.
    pub fn alone(body: Incoming) -> Self {
        Self { body, lease: None, held: None }
    }

    fn finished(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.finished();
        }
        self.held = None;
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
