//! The first line of a request whose target is longer than the HTTP library takes. The library writes the target `/`;
//! [`LongLine`], under it, writes the real one in its place. A connection carries one such request and no other.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::Method;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the library is given for a target.
pub(super) const STAND_IN: &str = "/";

/// Writes a request's method and target for the library.
pub(super) struct LongLine<T> {
    io: T,
    /// What is not written yet of `METHOD target`: two pieces, so that the target is not copied.
    begins: [Bytes; 2],
    /// What the library still has to write of its own `METHOD /`.
    skips: usize,
}

impl<T> LongLine<T> {
    pub(super) fn new(io: T, method: &Method, target: Bytes) -> Self {
        let method = format!("{method} ");
        let skips = method.len() + STAND_IN.len();
        Self { io, begins: [method.into(), target], skips }
    }
}

impl<T: AsyncWrite + Unpin> LongLine<T> {
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for piece in &mut self.begins {
            while !piece.is_empty() {
                match ready!(Pin::new(&mut self.io).poll_write(cx, piece))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => piece.advance(written),
                }
            }
            // An empty view would still hold the memory, and the place.
            *piece = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LongLine<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.skips == 0 {
            return Pin::new(&mut this.io).poll_write(cx, bytes);
        }
        ready!(this.poll_begin(cx))?;
        let skipped = this.skips.min(bytes.len());
        this.skips -= skipped;
        Poll::Ready(Ok(skipped))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.skips == 0 {
            return Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        self.poll_write(cx, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LongLine<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn first_line_has_the_target_whatever_the_pieces() {
        for size in [1, 3, 5, 100] {
            let (near, mut far) = tokio::io::duplex(7);
            let mut io = LongLine::new(near, &Method::GET, Bytes::from_static(b"/a/b?c"));
            let writing = async move {
                for piece in b"GET / HTTP/1.1\r\nhost: /\r\n\r\nGET / body".chunks(size) {
                    io.write_all(piece).await.unwrap();
                }
                assert!(io.begins.iter().all(Bytes::is_empty));
            };
            let mut out = String::new();
            let (_, read) = tokio::join!(writing, far.read_to_string(&mut out));
            read.unwrap();
            assert_eq!(out, "GET /a/b?c HTTP/1.1\r\nhost: /\r\n\r\nGET / body", "{size}");
        }
    }
}
