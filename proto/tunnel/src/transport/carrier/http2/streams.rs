//! Streams of h2 as halves of a carrier's stream, for both ends: the agent's requests that wait at the gateway until it
//! opens a stream, and those that the agent opens. Here HTTP/2's resets become stops and resets of the session, whose
//! peer must be able to tell one from the other.

use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use daemon::TaskGroup;
use h2::{Reason, RecvStream, SendStream, client::ResponseFuture, server::SendResponse};
use http::Response;

use super::{
    STOPPED, STREAMS,
    body::{Body, reset},
    shelf::{Shelf, Shelves},
};
use crate::{
    transport::carrier::{RawError, RawRecv, RawSend, RawStream},
    wire::close::StreamCode,
};

/// A stream that the gateway opened, at the gateway.
pub(super) fn opened_pair(body: SendStream<Bytes>, answer: ResponseFuture, kept: &Kept) -> RawStream {
    pair(H2Send::Body(body), kept.shelves.place(Body::Waiting(answer)), Some(kept.graves.clone()))
}

/// A parked stream that the agent opened, at the gateway.
pub(super) fn parked_pair(body: SendStream<Bytes>, answer: Shelf, kept: &Kept) -> RawStream {
    pair(H2Send::Body(body), answer, Some(kept.graves.clone()))
}

/// Any stream at the agent.
pub(super) fn accepted_pair(respond: SendResponse<Bytes>, body: RecvStream, shelves: &Shelves) -> RawStream {
    pair(H2Send::NotBegun(respond), shelves.place(Body::Here(body)), None)
}

fn pair(send: H2Send, shelf: Shelf, graves: Option<Graves>) -> RawStream {
    RawStream { send: RawSend::Http2(send), recv: RawRecv::Http2(H2Recv { shelf: Some(shelf), graves }) }
}

/// What the gateway's end keeps of streams: what is unread, and what is stopped.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) shelves: Shelves,
    pub(super) graves: Graves,
}

pub(crate) enum H2Send {
    /// The answer's headers leave with its first bytes.
    NotBegun(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
}

impl H2Send {
    /// The body, beginning the answer if need be.
    fn begin(&mut self) -> Result<&mut SendStream<Bytes>, h2::Error> {
        if let Self::NotBegun(respond) = self {
            *self = Self::Body(respond.send_response(Response::new(()), false)?);
        }
        match self {
            Self::Body(body) => Ok(body),
            Self::NotBegun(_) => unreachable!("begun above"),
        }
    }

    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
        max: usize,
        last: bool,
    ) -> Poll<Result<usize, RawError>> {
        let body = match self.begin() {
            Ok(body) => body,
            Err(error) => return Poll::Ready(Err(writer_error(&error))),
        };
        let wanted = chunk.len().min(max);
        let mut room = body.capacity();
        if room == 0 {
            body.reserve_capacity(wanted);
            match ready!(body.poll_capacity(cx)) {
                Some(Ok(capacity)) => room = capacity,
                Some(Err(error)) => return Poll::Ready(Err(writer_error(&error))),
                None => return self.poll_stopped(cx).map(Err),
            }
        }
        let taken = wanted.min(room);
        match body.send_data(chunk.split_to(taken), last && chunk.is_empty()) {
            Ok(()) => Poll::Ready(Ok(taken)),
            // The stream is over; the reset tells why.
            Err(_) => self.poll_stopped(cx).map(Err),
        }
    }

    /// Queues the first bytes of a stream, whatever room there is.
    pub(crate) fn queue_first(&mut self, first: Bytes, last: bool) -> Result<(), RawError> {
        match self.begin().and_then(|body| body.send_data(first, last)) {
            Ok(()) => Ok(()),
            // The stream is over; the reset tells why.
            Err(_) => match self.poll_stopped(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(error) => Err(error),
                Poll::Pending => Err(RawError::Lost),
            },
        }
    }

    pub(crate) fn finish(&mut self) {
        // An error means that the stream is already over.
        let _ = match self {
            Self::NotBegun(respond) => respond.send_response(Response::new(()), true).map(|body| {
                *self = Self::Body(body);
            }),
            Self::Body(body) => body.send_data(Bytes::new(), true),
        };
    }

    pub(crate) fn reset(&mut self, code: StreamCode) {
        let reason = Reason::from(code.number());
        match self {
            Self::NotBegun(respond) => respond.send_reset(reason),
            Self::Body(body) => body.send_reset(reason),
        }
    }

    pub(crate) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<RawError> {
        let reason = match self {
            Self::NotBegun(respond) => ready!(respond.poll_reset(cx)),
            Self::Body(body) => ready!(body.poll_reset(cx)),
        };
        Poll::Ready(match reason {
            Ok(reason) => writer_reason(reason),
            Err(error) => writer_error(&error),
        })
    }
}

/// Reads stopped halves out to their ends, each in a task of the connection's. If they were dropped instead, h2 as a
/// client would reset the stream with CANCEL and discard what is still queued in the other direction, though it was
/// finished (h2 as a server resets with NO_ERROR, which sends what is queued first). The peer's writer has been told to
/// stop, so that this is short; of a peer that never ends them no more are kept than streams can be open.
#[derive(Clone)]
pub(super) struct Graves(pub(super) TaskGroup);

impl Graves {
    fn read_out(&self, shelf: Shelf) {
        if tokio::runtime::Handle::try_current().is_err() {
            // Dropped when the runtime has ended: so has the connection.
            return;
        }
        if self.0.running() > STREAMS as usize {
            // Dropped: it is reset, and the peer keeps to nothing anyway.
            return;
        }
        self.0.spawn("digger", async move {
            let _ = tokio::time::timeout(STOPPED, shelf.read_out()).await;
        });
    }
}

pub(crate) struct H2Recv {
    /// None once it is stopped.
    shelf: Option<Shelf>,
    /// Where a stopped half is read out, at the gateway.
    graves: Option<Graves>,
}

impl H2Recv {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        self.shelf.as_ref().map_or(Poll::Ready(Ok(None)), |shelf| shelf.poll_recv(cx))
    }

    pub(crate) fn stop(&mut self, _code: StreamCode, broken: bool) -> bool {
        if let (Some(shelf), Some(graves), false) = (self.shelf.take(), &self.graves, broken) {
            graves.read_out(shelf);
        }
        false
    }
}

/// The reason of a reset as a writer sees it.
fn writer_reason(reason: Reason) -> RawError {
    match reason {
        // h2's own reset once the peer dropped both halves: it has all it wants. A reader never takes these for an
        // end: as a client h2 discards what is queued before CANCEL, so that the end is only where `END_STREAM` was.
        Reason::NO_ERROR | Reason::CANCEL => RawError::Stopped(StreamCode::NoMore),
        reason => reset(reason),
    }
}

fn writer_error(error: &h2::Error) -> RawError {
    match error.reason() {
        // Of a stream above the last one that the peer looked at (RFC 9113 section 6.8).
        _ if error.is_go_away() && error.is_remote() => RawError::Reset(StreamCode::Draining),
        Some(reason) if error.is_reset() => writer_reason(reason),
        _ => RawError::Lost,
    }
}
