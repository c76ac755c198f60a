//! The way out of [`Framing`]: what the gateway answers itself must be taken within a time, and a connection that ends
//! within a request reads on for a while.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{At, Framing};

/// What is thrown away after an answer in the middle of a request, so that the answer is not lost to a TCP reset.
const LINGER: (usize, Duration) = (256 * 1024, Duration::from_secs(1));

impl<T> Framing<T> {
    /// Bounds how long an answer of our own may wait for its reader, who may be anybody.
    fn within_deadline<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() || !self.notes.own() {
            self.answer_deadline = None;
            return written;
        }
        let timeout = self.timeouts.answer;
        let deadline = self.answer_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is not read")))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Framing<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.within_deadline(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.within_deadline(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.within_deadline(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let shut = Pin::new(&mut this.io).poll_shutdown(cx);
            ready!(this.within_deadline(cx, shut))?;
            let between = this.at == At::Head && this.head.is_empty() && this.held.is_empty();
            if between || this.at == At::Opaque {
                return Poll::Ready(Ok(()));
            }
        }
        let (left, deadline) = this
            .linger
            .get_or_insert_with(|| (LINGER.0, Box::pin(tokio::time::sleep_until(Instant::now() + LINGER.1))));
        while *left > 0 && deadline.as_mut().poll(cx).is_pending() {
            let mut room = [0; 4096];
            let mut buffer = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut this.io).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *left = left.saturating_sub(buffer.filled().len()),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
