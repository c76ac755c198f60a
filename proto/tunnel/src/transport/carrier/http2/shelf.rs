//! What has arrived and nobody takes, kept as bytes and not as frames.
//!
//! h2 keeps each DATA frame until its reader takes it: a hundred bytes or more for one. Its guard against that is an
//! allowance for small frames, over which it ends the connection (RFC 9113 section 10.5). A log that nobody reads, a
//! line in a frame, came to that within its stream's credit, and every other user's streams ended with it. So that
//! allowance is without bound, and behind so many bytes from the socket all that is unread is taken out of h2 and small
//! chunks are joined; only then the connection reads on. That holds for whatever a peer sends, and costs what is read
//! at once nothing but a look.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::Body;
use crate::transport::{carrier::RawError, lock};

/// Bytes that a connection reads before what is unread is put on shelves: at ten bytes for the smallest frame that
/// costs anything, h2 has 26,000 of them at the most...
const READ_BYTES: usize = 256 * 1024;
/// ...and this many more for each stream that was open, for each of them is looked at.
const READ_BYTES_PER_STREAM: usize = 512;
/// Size in bytes from which on a chunk is kept as it is.
const LARGE_BYTES: usize = 4 * 1024;
/// Size in bytes up to which smaller chunks are joined.
const JOINED_BYTES: usize = 64 * 1024;

/// The shelves of a connection's streams.
#[derive(Clone)]
pub(super) struct Shelves(Arc<All>);

struct All {
    live: Mutex<Slab<Arc<Mutex<Unread>>>>,
    /// Bytes that may come from the socket before the next look. Only a look makes it more, so that whoever found that
    /// one is due is not alone with that.
    left: AtomicUsize,
}

/// One stream's place, and the only reader of its body.
pub(super) struct Shelf {
    unread: Arc<Mutex<Unread>>,
    place: usize,
    all: Arc<All>,
}

struct Unread {
    body: Body,
    /// Taken from the body and not by the reader, `joined` last.
    kept: VecDeque<Bytes>,
    joined: BytesMut,
    /// What the body ended with, behind what is kept.
    end: Option<Result<(), RawError>>,
    /// The reader's, when it last found nothing: a look must not take its place in the body.
    reader: Option<Waker>,
}

impl Default for Shelves {
    fn default() -> Self {
        Self(Arc::new(All { live: Mutex::default(), left: AtomicUsize::new(READ_BYTES) }))
    }
}

impl Shelves {
    /// Makes a place for what arrives on a stream.
    pub(super) fn place(&self, body: Body) -> Shelf {
        let unread = Unread { body, kept: VecDeque::new(), joined: BytesMut::new(), end: None, reader: None };
        let unread = Arc::new(Mutex::new(unread));
        let place = lock(&self.0.live).insert(Arc::clone(&unread));
        Shelf { unread, place, all: Arc::clone(&self.0) }
    }

    /// The socket of the connection, which reads no further while a look is due.
    pub(super) fn metered<T>(&self, io: T) -> Metered<T> {
        Metered { io, all: Arc::clone(&self.0) }
    }

    /// Polls what drives the connection, and looks at what is unread whenever that is due.
    pub(super) async fn drive<F: Future>(&self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            loop {
                match connection.as_mut().poll(cx) {
                    Poll::Pending if self.0.left() == 0 => self.look(),
                    polled => return polled,
                }
            }
        })
        .await
    }

    /// Puts on shelves what is unread, and lets the connection read on.
    fn look(&self) {
        let live = lock(&self.0.live);
        for (_, unread) in live.iter() {
            lock(unread).put();
        }
        self.0.left.store(READ_BYTES + READ_BYTES_PER_STREAM * live.len(), Ordering::Relaxed);
    }
}

impl All {
    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

impl Unread {
    /// Takes what h2 has, which its windows bound.
    fn put(&mut self) {
        let reader = self.reader.clone();
        let mut cx = Context::from_waker(reader.as_ref().unwrap_or(Waker::noop()));
        while self.end.is_none()
            && let Poll::Ready(next) = self.body.poll_recv(&mut cx)
        {
            match next {
                Ok(Some(chunk)) => self.keep(chunk),
                Ok(None) => self.end = Some(Ok(())),
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }

    fn keep(&mut self, chunk: Bytes) {
        let large = chunk.len() >= LARGE_BYTES;
        if !self.joined.is_empty() && (large || self.joined.len() + chunk.len() > JOINED_BYTES) {
            self.kept.push_back(std::mem::take(&mut self.joined).freeze());
        }
        if large {
            self.kept.push_back(chunk);
        } else {
            self.joined.extend_from_slice(&chunk);
        }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        let next = match self.kept.pop_front() {
            Some(chunk) => Poll::Ready(Ok(Some(chunk))),
            None if !self.joined.is_empty() => Poll::Ready(Ok(Some(std::mem::take(&mut self.joined).freeze()))),
            None => match self.end {
                Some(end) => Poll::Ready(end.map(|()| None)),
                None => self.body.poll_recv(cx),
            },
        };
        match &next {
            // Not before: what is kept counts, or a peer that keeps to no credit could have any amount of it kept.
            Poll::Ready(Ok(Some(chunk))) => self.body.release(chunk.len()),
            Poll::Ready(_) => {}
            Poll::Pending => self.waits(cx),
        }
        next
    }

    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        let begun = match (&self.body, self.end) {
            // A look has found out.
            (Body::Waiting(_), Some(Err(error))) => Poll::Ready(Err(error)),
            _ => self.body.poll_begun(cx),
        };
        if begun.is_pending() {
            self.waits(cx);
        }
        begun
    }

    fn waits(&mut self, cx: &Context<'_>) {
        if !self.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            self.reader = Some(cx.waker().clone());
        }
    }
}

impl Shelf {
    /// As [`crate::transport::carrier::RawRecv::poll_recv`].
    pub(super) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        lock(&self.unread).poll_recv(cx)
    }

    /// Completes when the answer has begun, of a stream that was opened for it.
    pub(super) fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        lock(&self.unread).poll_begun(cx)
    }

    /// Reads to the end, whichever it is.
    pub(super) async fn read_out(self) {
        while let Ok(Some(_)) = poll_fn(|cx| self.poll_recv(cx)).await {}
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let place = lock(&self.all.live).try_remove(self.place);
        let mut unread = lock(&self.unread);
        let kept = unread.kept.iter().map(Bytes::len).sum::<usize>() + unread.joined.len();
        unread.body.release(kept);
        // A look may hold the rest for a moment longer.
        let body = std::mem::replace(&mut unread.body, Body::Stopped);
        drop(unread);
        drop((body, place));
    }
}

/// The byte channel that [`Shelves::metered`] returns.
pub(super) struct Metered<T> {
    io: T,
    all: Arc<All>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.all.left();
        if left == 0 {
            // Whoever drives the connection looks, and polls it again.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.all.left.store(left.saturating_sub(buf.filled().len() - before), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
