//! The binary messages of a WebSocket as a byte stream. What is read is unmasked where it lies; what the gateway sends
//! goes to TLS from where the caller has it, and an agent's, which has to be masked, by way of some records' worth at a
//! time.
//!
//! One task reads and writes, as HTTP/2's connection does: an answer to a ping may wait for room on behalf of whoever
//! reads.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use types::random;

use super::{
    MESSAGE_BYTES,
    frames::{self, Decoder, HEAD_BYTES, Key},
};

/// Bytes that are masked at once: four TLS records (RFC 8446 section 5.1), which leave in one system call and stay in
/// the processor's caches until they are encrypted.
const PIECE_BYTES: usize = 64 * 1024;
/// Slices of one message. HTTP/2 has a frame's head and its payload.
const SLICES: usize = 8;

/// Keys for masking, which whoever chooses the payload must not be able to foretell (RFC 6455 section 10.3): from the
/// system's source of randomness, some at once.
#[derive(Default)]
struct Keys {
    bytes: [u8; 32],
    /// What is left of them.
    left: usize,
}

impl Keys {
    fn next(&mut self) -> io::Result<Key> {
        if self.left == 0 {
            self.bytes = random::bytes().map_err(|_| io::Error::other("no randomness"))?;
            self.left = self.bytes.len();
        }
        let (rest, key) = self.bytes[..self.left].split_last_chunk().ok_or(io::ErrorKind::InvalidData)?;
        self.left = rest.len();
        Ok(Key(*key))
    }
}

/// One end of a WebSocket.
pub(crate) struct WebSocketIo<T> {
    io: T,
    /// What came along with the handshake.
    early: Bytes,
    decoder: Decoder,
    /// Masking keys of a client's frames; a server has none (RFC 6455 §5.3).
    keys: Option<Keys>,
    /// Heads, masked payload and answers that `io` has not taken, from `sent` on.
    queued: Vec<u8>,
    sent: usize,
    /// What has still to be written of the message that was begun, in bytes of its payload.
    left: usize,
    key: Key,
    /// A frame to be sent when no message is under way.
    answer: Option<Vec<u8>>,
    /// A close frame was sent, or will be: nothing may follow.
    closing: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketIo<T> {
    /// The server's end. `early` was read already.
    pub(super) fn server(io: T, early: Bytes) -> Self {
        Self::new(io, early, Decoder::new(true), None)
    }

    /// The client's end. `early` was read already.
    pub(super) fn client(io: T, early: Bytes) -> Self {
        Self::new(io, early, Decoder::new(false), Some(Keys::default()))
    }

    fn new(io: T, early: Bytes, decoder: Decoder, keys: Option<Keys>) -> Self {
        Self {
            io,
            early,
            decoder,
            keys,
            queued: Vec::new(),
            sent: 0,
            left: 0,
            key: Key::default(),
            answer: None,
            closing: false,
        }
    }

    /// Bytes that wait for room.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.queued.capacity() + self.answer.as_ref().map_or(0, Vec::capacity)
    }

    fn next_key(&mut self) -> io::Result<Option<Key>> {
        self.keys.as_mut().map(Keys::next).transpose()
    }

    /// `io` has taken `bytes` of what is queued.
    fn took(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.queued.len() {
            self.queued.clear();
            self.sent = 0;
        }
    }

    /// Gives all that is queued to `io`.
    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.queued.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.queued[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                taken => self.took(taken),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The same, and an answer that waits, where no message is under way. Behind what is queued: a peer that does not
    /// read has one answer here, however often it asks.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_queued(cx))?;
        if self.left == 0
            && let Some(answer) = self.answer.take()
        {
            self.queued = answer;
        }
        self.poll_queued(cx)
    }

    /// Begins a message. All that is queued was given to `io`.
    fn begin(&mut self, bytes: usize) -> io::Result<()> {
        let key = self.next_key()?;
        if self.queued.capacity() == 0 {
            self.queued.reserve_exact(HEAD_BYTES + if key.is_some() { bytes.min(PIECE_BYTES - HEAD_BYTES) } else { 0 });
        }
        frames::begin(&mut self.queued, bytes, key);
        (self.left, self.key) = (bytes, key.unwrap_or_default());
        Ok(())
    }

    /// Writes what is queued and a part of the message along with it.
    fn poll_write_plain(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut all = [IoSlice::new(&[]); SLICES + 1];
            all[0] = IoSlice::new(&self.queued[self.sent..]);
            let (mut count, mut left) = (1, self.left);
            for slice in parts(slices) {
                let part = slice.len().min(left);
                all[count] = IoSlice::new(&slice[..part]);
                (count, left) = (count + 1, left - part);
            }
            let taken = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &all[..count]))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let queued = taken.min(self.queued.len() - self.sent);
            self.took(queued);
            if taken > queued {
                self.left -= taken - queued;
                return Poll::Ready(Ok(taken - queued));
            }
        }
    }

    /// Masks a part of the message and queues it, piece by piece, as long as `io` takes them.
    fn poll_write_masked(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut total = 0;
        for slice in parts(slices) {
            let mut rest = &slice[..slice.len().min(self.left)];
            while !rest.is_empty() {
                if self.queued.len() >= PIECE_BYTES {
                    match self.poll_queued(cx)? {
                        Poll::Ready(()) => {}
                        Poll::Pending if total == 0 => return Poll::Pending,
                        Poll::Pending => return Poll::Ready(Ok(total)),
                    }
                }
                let (piece, behind) = rest.split_at(rest.len().min(PIECE_BYTES - self.queued.len()));
                let from = self.queued.len();
                self.queued.extend_from_slice(piece);
                self.key.apply(&mut self.queued[from..]);
                self.left -= piece.len();
                total += piece.len();
                rest = behind;
            }
        }
        // What `io` does not take now it takes before the next message, or when it is flushed.
        let _ = self.poll_queued(cx)?;
        Poll::Ready(Ok(total))
    }
}

/// What of a write becomes one message.
fn parts<'a>(slices: &'a [IoSlice<'_>]) -> impl Iterator<Item = &'a [u8]> {
    slices.iter().map(|slice| &**slice).filter(|slice| !slice.is_empty()).take(SLICES)
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        while buf.remaining() > 0 && !this.decoder.is_closed() {
            if this.early.is_empty() {
                ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            } else {
                let part = this.early.len().min(buf.remaining());
                buf.put_slice(&this.early[..part]);
                this.early.advance(part);
                if this.early.is_empty() {
                    // Or its buffer would be kept.
                    this.early = Bytes::new();
                }
            }
            if buf.filled().len() == before {
                let cut = !this.decoder.is_between_messages();
                return Poll::Ready(if cut { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) });
            }
            let kept = this.decoder.decode(&mut buf.filled_mut()[before..]);
            buf.set_filled(before + *kept.as_ref().unwrap_or(&0));
            let answer = match (this.decoder.asked(), &kept) {
                (_, Err(_)) => Some(frames::close(frames::PROTOCOL_ERROR, this.next_key()?)),
                (Some(asked), Ok(_)) => Some(asked.answer(this.next_key()?)),
                (None, Ok(_)) => None,
            };
            if answer.is_some() && !this.closing {
                this.answer = answer;
                this.closing = this.decoder.is_closed();
                // Where that fails, the next write says so: what was read before comes first.
                let _ = this.poll_answer(cx);
            }
            if kept? > 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// One message of all slices, so that a frame's head and body travel together. Where only a part of it is taken,
    /// what follows is the rest of it.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = parts(slices).map(<[u8]>::len).sum();
        if total == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.left == 0 {
            ready!(self.poll_answer(cx))?;
            if self.closing {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            self.begin(total.min(MESSAGE_BYTES))?;
        }
        if self.keys.is_some() { self.poll_write_masked(cx, slices) } else { self.poll_write_plain(cx, slices) }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(cx))?;
        // An idle connection keeps no room.
        self.queued = Vec::new();
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            let key = self.next_key()?;
            self.answer = Some(frames::close(frames::NORMAL, key));
            self.closing = true;
        }
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
