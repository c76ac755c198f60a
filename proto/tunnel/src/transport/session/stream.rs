//! A stream's two halves: endings and credit on top of a carrier's raw halves.
//!
//! Positions count the bytes after the opener's preface and head, from the acceptor's first byte in the other
//! direction. A receiver announces up to which position its peer may send when half of the window was taken; the window
//! doubles when a whole one was taken within two round trips, as far as the tunnel's sum allows.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::time::Instant;
use types::limits;

use super::state::Lease;
use crate::{
    transport::{
        MessageError, Stream, StreamError,
        carrier::{RawError, RawRecv, RawSend, RawStream},
    },
    wire::{
        close::StreamCode,
        error::WireError,
        message::{self, LENGTH_BYTES},
    },
};

/// Windows grow for readers that are quicker than this even where the round trip is shorter: the time to be scheduled.
const GROW_WITHIN: Duration = Duration::from_millis(4);
/// Credit is given back by half a window, but no less often than this: in large lumps a sender runs dry again and
/// again, and QUIC's congestion window does not grow behind one that does.
const CREDIT_STEP_BYTES: u64 = 1024 * 1024;
/// Until a probe has measured it.
const RTT_GUESS: Duration = Duration::from_millis(50);

/// Joins raw halves and a place in the tunnel.
pub(crate) fn stream(lease: Arc<Lease>, RawStream { send, recv }: RawStream) -> Stream {
    Stream {
        id: lease.state.id,
        send: SendStream { raw: send, lease: lease.clone(), position: 0, over: false, blocked: false },
        recv: RecvStream::new(recv, lease),
    }
}

/// The sending half. Dropping it unfinished resets the stream.
pub struct SendStream {
    raw: RawSend,
    lease: Arc<Lease>,
    /// Bytes sent that count.
    position: u64,
    /// Finished, reset or ended because of a stop.
    over: bool,
    /// Waits for room in the carrier.
    blocked: bool,
}

impl SendStream {
    /// Sends a chunk, without a copy; waits for credit and for room in the carrier. Empty chunks are allowed.
    /// Cancel-safe only in that a dropped call may have sent part of the chunk.
    pub async fn send(&mut self, mut chunk: Bytes) -> Result<(), StreamError> {
        poll_fn(|cx| self.poll_send(cx, &mut chunk)).await
    }

    /// As [`Self::send`] and then [`Self::finish`], in one frame where the carrier has frames.
    pub async fn send_last(&mut self, mut chunk: Bytes) -> Result<(), StreamError> {
        if chunk.is_empty() {
            return self.finish();
        }
        poll_fn(|cx| self.poll_send_part(cx, &mut chunk, true)).await
    }

    /// As [`Self::send`], for `poll` code: ready when all of `chunk` was taken from it. Cancel-safe: what is left in
    /// `chunk` was not sent.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<Result<(), StreamError>> {
        self.poll_send_part(cx, chunk, false)
    }

    fn poll_send_part(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes, last: bool) -> Poll<Result<(), StreamError>> {
        loop {
            if self.over {
                return Poll::Ready(Err(self.lease.state.send_end().unwrap_or(StreamError::Over)));
            }
            if let Some(end) = self.lease.state.send_end() {
                return Poll::Ready(Err(self.end(end)));
            }
            if chunk.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let credit = self.lease.state.send_limit.load(Ordering::Acquire).saturating_sub(self.position);
            let max = usize::try_from(credit).unwrap_or(usize::MAX).min(self.lease.shared.chunk_bytes());
            let polled = if max == 0 {
                // Without credit there is nothing to send, but the peer may end the stream.
                self.raw.poll_stopped(cx).map(Err)
            } else {
                self.raw.poll_send(cx, chunk, max, last)
            };
            self.set_blocked(max > 0 && polled.is_pending());
            match polled {
                Poll::Ready(Ok(taken)) => {
                    self.position += taken as u64;
                    if last && chunk.is_empty() {
                        self.over = true;
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => {
                    let end = self.raw_end(error);
                    return Poll::Ready(Err(self.end(end)));
                }
                Poll::Pending => {
                    let state = &self.lease.state;
                    state.send_waker.register(cx.waker());
                    // What changed before the waker was there would be missed.
                    let more = max == 0 && state.send_limit.load(Ordering::Acquire) > self.position;
                    if state.send_end().is_none() && !more {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Sends the opener's first bytes, which are outside of any credit, as [`crate::transport::carrier::Link::count_first`] gave
    /// them; they are all if `last`. What ends the stream meanwhile is told to its reader. `Err`: the carrier is gone.
    pub(crate) async fn begin(&mut self, first: Result<Bytes, Bytes>, last: bool) -> Result<(), RawError> {
        let sent = match first {
            Ok(queued) => self.raw.queue_first(queued, last),
            Err(first) => self.raw.send_all(first).await.map(|()| {
                if last {
                    self.raw.finish();
                }
            }),
        };
        match sent {
            Ok(()) => {
                self.over = last;
                Ok(())
            }
            Err(RawError::Reset(_) | RawError::Stopped(_)) => Ok(()),
            Err(RawError::Lost) => Err(RawError::Lost),
        }
    }

    /// All bytes were given. Does not wait for the peer.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        if self.over {
            return Err(self.lease.state.send_end().unwrap_or(StreamError::Over));
        }
        if let Some(end) = self.lease.state.send_end() {
            return Err(self.end(end));
        }
        self.over = true;
        self.raw.finish();
        Ok(())
    }

    /// Breaks the whole stream off.
    pub fn reset(&mut self, code: StreamCode) {
        let state = &self.lease.state;
        if state.over().is_some() {
            self.over = true;
            return;
        }
        state.set_reset_here(code);
        self.over = true;
        self.raw.reset(code);
        self.lease.shared.resets.count();
        // Where the other half is idle, nothing else would tell the peer's writer.
        self.lease.queue_stop(code);
    }

    /// Completes when the reader stopped, the stream was reset or the tunnel is gone: what a sender that waits for its
    /// own source selects on. Cancel-safe.
    pub async fn stopped(&mut self) -> StreamError {
        poll_fn(|cx| self.poll_stopped(cx)).await
    }

    /// As [`Self::stopped`], for `poll` code.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        self.lease.state.send_waker.register(cx.waker());
        if let Some(end) = self.lease.state.send_end() {
            return Poll::Ready(self.end(end));
        }
        match self.raw.poll_stopped(cx) {
            Poll::Ready(error) => {
                let end = self.raw_end(error);
                Poll::Ready(self.end(end))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn set_blocked(&mut self, blocked: bool) {
        if std::mem::replace(&mut self.blocked, blocked) != blocked {
            self.lease.shared.set_blocked(blocked);
        }
    }

    /// Notes what the carrier said.
    fn raw_end(&self, error: RawError) -> StreamError {
        let state = &self.lease.state;
        match error {
            RawError::Stopped(code) => state.set_stopped(code),
            RawError::Reset(code) => state.set_reset_by_peer(code),
            RawError::Lost => return self.lease.lost(),
        }
        state.send_end().unwrap_or(StreamError::Over)
    }

    /// Ends the half quietly, once, because of `end`.
    fn end(&mut self, end: StreamError) -> StreamError {
        if !std::mem::replace(&mut self.over, true) {
            self.raw.finish();
            self.lease.shared.resets.count();
        }
        end
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.set_blocked(false);
        if !self.over {
            match self.lease.state.send_end() {
                Some(end) => {
                    self.end(end);
                }
                None => self.reset(StreamCode::Dropped),
            }
        }
    }
}

/// The receiving half. Dropping it before the end stops the direction.
pub struct RecvStream {
    raw: RawRecv,
    lease: Arc<Lease>,
    /// Bytes that came and were not taken yet: what was behind a message.
    pending: Bytes,
    /// The beginning of a message.
    partial: BytesMut,
    /// Bytes that came and count.
    received: u64,
    /// Bytes that the caller took.
    taken: u64,
    /// Up to which position the peer may send.
    announced: u64,
    window: u64,
    /// When and where the present window began to be taken.
    since: Option<(Instant, u64)>,
    /// The peer finished.
    finished: bool,
    /// Finished, reset or stopped.
    over: bool,
}

impl RecvStream {
    fn new(raw: RawRecv, lease: Arc<Lease>) -> Self {
        Self {
            raw,
            lease,
            pending: Bytes::new(),
            partial: BytesMut::new(),
            received: 0,
            taken: 0,
            announced: limits::WINDOW_INITIAL,
            window: limits::WINDOW_INITIAL,
            since: None,
            finished: false,
            over: false,
        }
    }

    /// Bytes that came behind the opener's head.
    pub(crate) fn begin_with(&mut self, pending: Bytes) {
        self.received += pending.len() as u64;
        self.pending = pending;
    }

    /// The next chunk; `None` after the peer finished. Credit goes back to the peer as chunks are taken. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`Self::recv`], for `poll` code.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        if self.received > self.announced {
            return Poll::Ready(Err(self.lease.violation("a stream was sent beyond its credit")));
        }
        if !self.pending.is_empty() {
            let chunk = std::mem::take(&mut self.pending);
            self.take(chunk.len());
            return Poll::Ready(Ok(Some(chunk)));
        }
        if self.finished {
            return Poll::Ready(Ok(None));
        }
        if self.over {
            return Poll::Ready(Err(self.lease.state.over().unwrap_or(StreamError::Over)));
        }
        if let Some(error) = self.lease.state.over() {
            return Poll::Ready(Err(error));
        }
        match self.raw.poll_recv(cx) {
            Poll::Ready(Ok(Some(chunk))) => {
                self.received += chunk.len() as u64;
                self.lease.shared.life.hear(chunk.len());
                if self.received > self.announced {
                    return Poll::Ready(Err(self.lease.violation("a stream was sent beyond its credit")));
                }
                self.take(chunk.len());
                Poll::Ready(Ok(Some(chunk)))
            }
            Poll::Ready(Ok(None)) => {
                self.finished = true;
                self.over = true;
                Poll::Ready(Ok(None))
            }
            Poll::Ready(Err(RawError::Reset(code) | RawError::Stopped(code))) => {
                self.over = true;
                self.lease.state.set_reset_by_peer(code);
                Poll::Ready(Err(self.lease.state.over().unwrap_or(StreamError::Reset(code))))
            }
            Poll::Ready(Err(RawError::Lost)) => Poll::Ready(Err(self.lease.lost())),
            Poll::Pending => {
                self.lease.state.recv_waker.register(cx.waker());
                match self.lease.state.over() {
                    Some(error) => Poll::Ready(Err(error)),
                    None => Poll::Pending,
                }
            }
        }
    }

    /// Gives credit back for bytes that the caller took.
    fn take(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        if self.announced - self.taken > self.window - (self.window / 2).min(CREDIT_STEP_BYTES) {
            return;
        }
        let now = Instant::now();
        match self.since {
            None => self.since = Some((now, self.taken)),
            Some((since, from)) if self.taken.saturating_sub(from) >= self.window => {
                self.since = Some((now, self.taken));
                let quick = (self.lease.shared.life.rtt().unwrap_or(RTT_GUESS) * 3).max(GROW_WITHIN);
                if now - since <= quick && self.window < limits::WINDOW_MAX && self.lease.grow(self.window) {
                    self.window *= 2;
                }
            }
            Some(_) => {}
        }
        self.announced = self.taken + self.window;
        self.lease.announce(self.announced);
    }

    /// Reads one length-prefixed message of at most `limit` bytes, given back without its prefix. Bytes behind it stay
    /// for `recv`.
    pub async fn recv_message(&mut self, limit: usize) -> Result<Bytes, MessageError> {
        loop {
            if let Some(message) = self.take_message(limit)? {
                return Ok(message);
            }
            match self.recv().await? {
                None => return Err(MessageError::Ended),
                Some(chunk) if self.partial.is_empty() && self.whole_message(&chunk, limit)? => {
                    // The common case: all of it in one chunk, no copy.
                    let mut chunk = chunk;
                    let length = message::length(&chunk, limit)?.unwrap_or(0);
                    chunk.advance(LENGTH_BYTES);
                    let message = chunk.split_to(length);
                    self.put_back(chunk);
                    return Ok(message);
                }
                Some(chunk) => self.partial.extend_from_slice(&chunk),
            }
        }
    }

    fn whole_message(&self, chunk: &Bytes, limit: usize) -> Result<bool, WireError> {
        Ok(message::length(chunk, limit)?.is_some_and(|length| chunk.len() - LENGTH_BYTES >= length))
    }

    fn take_message(&mut self, limit: usize) -> Result<Option<Bytes>, WireError> {
        let Some(length) = message::length(&self.partial, limit)? else { return Ok(None) };
        if self.partial.len() - LENGTH_BYTES < length {
            return Ok(None);
        }
        let mut partial = std::mem::take(&mut self.partial).freeze();
        partial.advance(LENGTH_BYTES);
        let message = partial.split_to(length);
        self.put_back(partial);
        Ok(Some(message))
    }

    /// Puts back bytes of the chunk taken last.
    fn put_back(&mut self, rest: Bytes) {
        self.taken -= rest.len() as u64;
        self.pending = rest;
    }

    /// Wants no more.
    pub fn stop(&mut self, code: StreamCode) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.pending = Bytes::new();
        let broken = self.lease.state.reset_here();
        let told = self.raw.stop(broken.unwrap_or(code), broken.is_some());
        if !told && self.lease.state.over().is_none() {
            self.lease.queue_stop(code);
        }
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Often the end is already here and only was not asked for: then there is nothing to stop.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        if self.pending.is_empty()
            && self.lease.state.over().is_none()
            && matches!(self.raw.poll_recv(&mut cx), Poll::Ready(Ok(None)))
        {
            return;
        }
        self.stop(StreamCode::NoMore);
    }
}

#[cfg(test)]
impl SendStream {
    pub(crate) fn early_stops_for_test(&self) -> usize {
        self.lease.shared.early_stops_for_test()
    }
}

#[cfg(test)]
impl RecvStream {
    pub(crate) fn window_for_test(&self) -> u64 {
        self.window
    }

    pub(crate) fn growth_for_test(&self) -> u64 {
        self.lease.shared.growth_for_test()
    }
}
