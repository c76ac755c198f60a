//! What has arrived and nobody takes, kept as bytes and not as frames.
//!
//! h2 keeps each DATA frame until its reader takes it, and has an allowance for what small ones cost beside their bytes, over
//! which it ends the connection (RFC 9113 section 10.5). A log that nobody reads, a line in a frame, comes to that within its
//! stream's credit, and every other user's streams would end with it. So, behind so many bytes from the socket, all that is
//! unread is taken out of h2 and small chunks are joined; only then the connection reads on. That holds for whatever a peer
//! sends, and costs what is read at once nothing but a look.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{connection::STREAMS, streams::Body};
use crate::transport::carrier::RawError;

/// Bytes that a connection reads before what is unread is put on shelves...
const READ_BYTES: usize = 256 * 1024;
/// ...and so many more for each open stream, for each of them is looked at.
const READ_BYTES_PER_STREAM: usize = 512;
/// Read ahead of frames at the most: a TLS record, and h2's own buffer.
const AHEAD_BYTES: usize = 64 * 1024;
/// The smallest DATA frame that costs anything: its head and a byte.
const FRAME_BYTES: usize = 10;
/// What h2 counts at most for a small frame, in bytes.
const FRAME_COST: usize = 256;
/// h2's allowance for small frames: all that is read between two looks, and two frames of each stream that no shelf knows yet.
pub(super) const SMALL_FRAMES_BYTES: usize =
    ((READ_BYTES + READ_BYTES_PER_STREAM * STREAMS as usize + AHEAD_BYTES) / FRAME_BYTES + 2 * STREAMS as usize)
        * FRAME_COST;
/// Chunks of at least so many bytes are kept as they are.
const LARGE_BYTES: usize = 4 * 1024;
/// Smaller ones are joined up to so many bytes.
const JOINED_BYTES: usize = 64 * 1024;

/// The shelves of a connection's streams.
#[derive(Clone, Default)]
pub(super) struct Shelves(Arc<All>);

#[derive(Default)]
struct All {
    live: Mutex<Slab<Arc<Mutex<Unread>>>>,
    /// Bytes from the socket since the last look.
    read: AtomicUsize,
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

/// Nothing below panics while a lock is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
                    Poll::Pending if self.0.is_due() => self.look(),
                    polled => return polled,
                }
            }
        })
        .await
    }

    /// Puts on shelves what is unread, and lets the connection read on.
    fn look(&self) {
        for (_, unread) in lock(&self.0.live).iter() {
            lock(unread).put();
        }
        self.0.read.store(0, Ordering::Relaxed);
    }
}

impl All {
    fn is_due(&self) -> bool {
        let read = self.read.load(Ordering::Relaxed);
        // The lock only where it may matter.
        read >= READ_BYTES && read >= READ_BYTES + READ_BYTES_PER_STREAM * lock(&self.live).len()
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
            Poll::Pending if self.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) => {}
            Poll::Pending => self.reader = Some(cx.waker().clone()),
        }
        next
    }
}

impl Shelf {
    /// As [`crate::transport::carrier::RawRecv::poll_recv`].
    pub(super) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        lock(&self.unread).poll_recv(cx)
    }

    /// Takes the body off, with nothing of what is kept.
    pub(super) fn clear(&self) -> Body {
        let mut unread = lock(&self.unread);
        (unread.kept, unread.joined, unread.reader) = (VecDeque::new(), BytesMut::new(), None);
        std::mem::replace(&mut unread.body, Body::Stopped)
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let place = lock(&self.all.live).try_remove(self.place);
        // Behind the lock: the end of a body is told to its connection.
        drop((self.clear(), place));
    }
}

/// See [`Shelves::metered`].
pub(super) struct Metered<T> {
    io: T,
    all: Arc<All>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.all.is_due() {
            // Whoever drives the connection looks, and polls it again.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.all.read.fetch_add(buf.filled().len() - before, Ordering::Relaxed);
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
