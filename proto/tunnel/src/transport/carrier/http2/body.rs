//! What h2 has of a stream's bytes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, client::ResponseFuture};

use crate::{transport::carrier::RawError, wire::close::StreamCode};

/// What is read of a stream.
pub(super) enum Body {
    /// The answer's headers are not here yet.
    Waiting(ResponseFuture),
    Here(RecvStream),
    Stopped,
}

impl Body {
    /// The next bytes, never empty; `None` at the clean end. Their room is given back with [`Self::release`].
    pub(super) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        ready!(self.poll_begun(cx))?;
        let Self::Here(body) = self else { return Poll::Ready(Ok(None)) };
        loop {
            match ready!(body.poll_data(cx)) {
                None => return Poll::Ready(Ok(None)),
                Some(Err(error)) => return Poll::Ready(Err(reader_error(&error))),
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => return Poll::Ready(Ok(Some(chunk))),
            }
        }
    }

    /// Completes when the answer's headers are here, if they have to come.
    pub(super) fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        if let Self::Waiting(answer) = self {
            match ready!(Pin::new(answer).poll(cx)) {
                Ok(answer) => *self = Self::Here(answer.into_body()),
                Err(error) => return Poll::Ready(Err(reader_error(&error))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// `bytes` were handed to the reader, and h2's window gets room for as many: the session's credit bounds what is in
    /// flight.
    pub(super) fn release(&mut self, bytes: usize) {
        if let Self::Here(body) = self {
            // Fails only for a stream that is over.
            let _ = body.flow_control().release_capacity(bytes);
        }
    }
}

/// The reason of a reset, whichever half it is of.
pub(super) fn reset(reason: Reason) -> RawError {
    match u32::from(reason) {
        // HTTP/2's own word that the stream was not processed (RFC 9113 section 8.7).
        0x07 => RawError::Reset(StreamCode::Limit),
        // Its other codes are not a peer's decision about the stream.
        0x02..=0x0d if reason != Reason::CANCEL => RawError::Lost,
        number => RawError::Reset(StreamCode::from_number(number)),
    }
}

fn reader_error(error: &h2::Error) -> RawError {
    match error.reason() {
        _ if error.is_go_away() && error.is_remote() => RawError::Reset(StreamCode::Draining),
        Some(reason) if error.is_reset() => reset(reason),
        _ => RawError::Lost,
    }
}
