//! The rest of a stream as an HTTP body: the bytes behind the head are the body, without framing. A body that ends
//! before its announced length, or goes on behind it, is an error for its reader.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::{content_length, half::Receiver};
use crate::{
    transport::{RecvStream, StreamError},
    wire::close::StreamCode,
};

/// The rest of a receive half as an HTTP body, without a copy. A reset, a lost tunnel, and an end before or behind the
/// announced length are errors, never a clean end.
pub struct StreamBody {
    reading: Reading<RecvStream>,
}

impl StreamBody {
    /// What is left of `recv`, of unknown length.
    pub fn new(recv: RecvStream) -> Self {
        Self { reading: Reading::new(recv) }
    }

    /// The body of a request: its length is the `content-length` in `headers`. Where there is none, a look at what has
    /// arrived tells whether there is a body at all, so that none is sent on.
    pub fn of_request(recv: RecvStream, headers: &HeaderMap) -> Self {
        let mut this = Self::new(recv);
        this.reading.expect_length(content_length(headers));
        this.reading.peek();
        this
    }

    /// The body of the answer to a `method` request. Answers to HEAD, and those of 204 and 304, have none whatever
    /// their `content-length` (RFC 9110 section 6.4.1).
    pub fn of_response(recv: RecvStream, method: &Method, status: StatusCode, headers: &HeaderMap) -> Self {
        let mut this = Self::new(recv);
        let none = *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        this.reading.expect_length(if none { Some(0) } else { content_length(headers) });
        this.reading.peek();
        this
    }

    /// Wants no more: tells the peer why, rather than that the body was dropped.
    pub fn stop(&mut self, code: StreamCode) {
        self.reading.recv.stop(code);
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.reading.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.at_end()
    }

    fn size_hint(&self) -> SizeHint {
        self.reading.size_hint()
    }
}

/// [`StreamBody`] over any receiver.
pub(super) struct Reading<R> {
    recv: R,
    /// Taken from `recv` ahead of its time.
    ahead: Option<Result<Option<Bytes>, StreamError>>,
    /// Bytes still to come, where known.
    left: Option<u64>,
    ended: bool,
}

/// A body that ends before its announced length, or goes on behind it, was broken off as far as its reader can tell.
const WRONG_LENGTH: StreamError = StreamError::Reset(StreamCode::Upstream);

impl<R: Receiver> Reading<R> {
    pub(super) fn new(recv: R) -> Self {
        Self { recv, ahead: None, left: None, ended: false }
    }

    pub(super) fn expect_length(&mut self, length: Option<u64>) {
        self.left = length;
    }

    /// Takes what is there already, so that an end that came with the head is known now, and an end that came with the
    /// last chunk does not look like a reader that stopped early.
    pub(super) fn peek(&mut self) {
        self.look_ahead(&mut Context::from_waker(Waker::noop()));
    }

    fn look_ahead(&mut self, cx: &mut Context<'_>) {
        if self.ahead.is_none()
            && !self.ended
            && let Poll::Ready(next) = self.recv.poll_recv(cx)
        {
            self.ahead = Some(next);
        }
    }

    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            let next = match self.ahead.take() {
                Some(next) => next,
                None => ready!(self.recv.poll_recv(cx)),
            };
            let chunk = match next {
                Ok(Some(chunk)) if chunk.is_empty() => continue,
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    self.ended = true;
                    return Poll::Ready(if self.left.is_some_and(|left| left > 0) {
                        Some(Err(WRONG_LENGTH))
                    } else {
                        None
                    });
                }
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
            };
            if let Some(left) = &mut self.left {
                let Some(after) = left.checked_sub(chunk.len() as u64) else {
                    self.ended = true;
                    return Poll::Ready(Some(Err(WRONG_LENGTH)));
                };
                *left = after;
                if after == 0 {
                    self.look_ahead(cx);
                }
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
    }

    /// Nothing more comes and nothing was wrong, as far as is known without waiting.
    pub(super) fn at_end(&self) -> bool {
        match self.left {
            _ if self.ended => true,
            Some(left) => left == 0,
            None => matches!(self.ahead, Some(Ok(None))),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.at_end() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}
