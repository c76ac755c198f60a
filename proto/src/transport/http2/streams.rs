//! h2's streams as raw halves.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, client::ResponseFuture, server::SendResponse};
use http::Response;
use tokio::sync::mpsc;

use crate::{
    transport::carrier::{RawError, RawRecv, RawSend},
    wire::close::StreamCode,
};

pub(super) type RawPair = (RawSend, RawRecv);

/// A stream that the gateway opened, at the gateway.
pub(super) fn opened_pair(body: SendStream<Bytes>, answer: ResponseFuture) -> RawPair {
    pair(H2Send::Body(body), H2Recv::Waiting(answer))
}

/// A parked stream that the agent opened, at the gateway.
pub(super) fn parked_pair(body: SendStream<Bytes>, answer: RecvStream, bury: mpsc::Sender<RecvStream>) -> RawPair {
    pair(H2Send::Body(body), H2Recv::Body(answer, Some(bury)))
}

/// Any stream at the agent.
pub(super) fn accepted_pair(respond: SendResponse<Bytes>, body: RecvStream) -> RawPair {
    pair(H2Send::NotBegun(respond), H2Recv::Body(body, None))
}

fn pair(send: H2Send, recv: H2Recv) -> RawPair {
    (RawSend::Http2(send), RawRecv::Http2(recv))
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
        match body.send_data(chunk.split_to(taken), false) {
            Ok(()) => Poll::Ready(Ok(taken)),
            // The stream is over; the reset tells why.
            Err(_) => self.poll_stopped(cx).map(Err),
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

pub(crate) enum H2Recv {
    /// The answer's headers are not here yet.
    Waiting(ResponseFuture),
    /// The sender is where a stopped half of an agent's stream is read out, at the gateway.
    Body(RecvStream, Option<mpsc::Sender<RecvStream>>),
    Stopped,
}

impl H2Recv {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        loop {
            match self {
                Self::Stopped => return Poll::Ready(Ok(None)),
                Self::Waiting(answer) => match ready!(Pin::new(answer).poll(cx)) {
                    Ok(answer) => *self = Self::Body(answer.into_body(), None),
                    Err(error) => return Poll::Ready(Err(reader_error(&error))),
                },
                Self::Body(body, _) => match ready!(body.poll_data(cx)) {
                    None => return Poll::Ready(Ok(None)),
                    // The peer dropped both halves after it had finished; h2 then resets the stream, and the end that
                    // came before it is forgotten here. A half that was dropped unfinished has a code of ours.
                    Some(Err(error)) if is_implicit_reset(&error) => return Poll::Ready(Ok(None)),
                    Some(Err(error)) => return Poll::Ready(Err(reader_error(&error))),
                    Some(Ok(chunk)) => {
                        // The session's credit bounds what is in flight; h2's window is given back at once. Fails only
                        // for a stream that is over.
                        let _ = body.flow_control().release_capacity(chunk.len());
                        if !chunk.is_empty() {
                            return Poll::Ready(Ok(Some(chunk)));
                        }
                    }
                },
            }
        }
    }

    pub(crate) fn stop(&mut self, _code: StreamCode, _broken: bool) -> bool {
        if let Self::Body(body, Some(bury)) = std::mem::replace(self, Self::Stopped) {
            // The queue has room for every stream that a connection may have.
            let _ = bury.try_send(body);
        }
        false
    }
}

/// The reason of a reset as a writer sees it.
fn writer_reason(reason: Reason) -> RawError {
    match reason {
        // h2's own reset once the peer dropped both halves: it has all it wants.
        Reason::NO_ERROR | Reason::CANCEL => RawError::Stopped(StreamCode::NoMore),
        reason => reset(reason),
    }
}

fn reset(reason: Reason) -> RawError {
    match u32::from(reason) {
        // HTTP/2's own codes are not a peer's decision about the stream.
        0x02..=0x0d if reason != Reason::REFUSED_STREAM && reason != Reason::CANCEL => RawError::Lost,
        number => RawError::Reset(StreamCode::from_number(number)),
    }
}

fn writer_error(error: &h2::Error) -> RawError {
    match error.reason() {
        Some(reason) if error.is_reset() => writer_reason(reason),
        _ => RawError::Lost,
    }
}

fn is_implicit_reset(error: &h2::Error) -> bool {
    error.is_reset() && matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL))
}

fn reader_error(error: &h2::Error) -> RawError {
    match error.reason() {
        Some(reason) if error.is_reset() => reset(reason),
        _ => RawError::Lost,
    }
}
