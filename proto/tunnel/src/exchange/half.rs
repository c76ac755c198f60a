//! What this module needs of a stream's halves, so that its tests can script a peer to the chunk.

use std::{
    future::Future,
    task::{Context, Poll},
};

use bytes::Bytes;

use crate::{
    transport::{RecvStream, SendStream, StreamError},
    wire::close::StreamCode,
};

/// What a carrier's half must do for [`SendStream`].
pub(super) trait Sender: Send {
    fn send(&mut self, chunk: Bytes) -> impl Future<Output = Result<(), StreamError>> + Send;
    fn send_last(&mut self, chunk: Bytes) -> impl Future<Output = Result<(), StreamError>> + Send;
    fn finish(&mut self) -> Result<(), StreamError>;
    fn reset(&mut self, code: StreamCode);
    fn stopped(&mut self) -> impl Future<Output = StreamError> + Send;
}

/// What a carrier's half must do for [`RecvStream`].
pub(super) trait Receiver: Send {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>>;
    fn stop(&mut self, code: StreamCode);
}

impl Sender for SendStream {
    fn send(&mut self, chunk: Bytes) -> impl Future<Output = Result<(), StreamError>> + Send {
        SendStream::send(self, chunk)
    }

    fn send_last(&mut self, chunk: Bytes) -> impl Future<Output = Result<(), StreamError>> + Send {
        SendStream::send_last(self, chunk)
    }

    fn finish(&mut self) -> Result<(), StreamError> {
        SendStream::finish(self)
    }

    fn reset(&mut self, code: StreamCode) {
        SendStream::reset(self, code);
    }

    fn stopped(&mut self) -> impl Future<Output = StreamError> + Send {
        SendStream::stopped(self)
    }
}

impl Receiver for RecvStream {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        RecvStream::poll_recv(self, cx)
    }

    fn stop(&mut self, code: StreamCode) {
        RecvStream::stop(self, code);
    }
}
