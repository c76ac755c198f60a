//! The way out of [`Framing`]. What the server library answers itself, to heads that it cannot read, has no body: users
//! get a `Status` in its place, which names the limit.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http::{StatusCode, header};
use proto::{
    exchange::Status,
    ids::RequestId,
    limits::{HEADER_COUNT, HEADER_LIST_BYTES, TARGET_BYTES},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{At, Framing};
use crate::request::{Stage, random_16};

/// What is thrown away after an answer in the middle of a request, so that the answer is not lost to a TCP reset.
const LINGER: (usize, Duration) = (256 * 1024, Duration::from_secs(1));
/// The longest answer of the library's own, in bytes.
const CANNED_BYTES: usize = 256;

/// What to write instead of `written`, if that is one of the library's own answers.
fn instead_of(written: &[u8]) -> Option<Bytes> {
    if written.len() > CANNED_BYTES || !written.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let mut lines = std::str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?.split("\r\n");
    let code = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let empty = ["connection: close", "content-length: 0"];
    if !lines.all(|line| empty.contains(&line) || line.starts_with("date: ")) {
        return None;
    }
    let message = match code {
        400 => "the request cannot be read as HTTP/1.1".to_owned(),
        414 => format!("the request target is longer than {TARGET_BYTES} bytes"),
        431 => format!(
            "the request head is over limit headers of {HEADER_COUNT} or over limit header bytes of {HEADER_LIST_BYTES}"
        ),
        _ => return None,
    };
    let code = StatusCode::from_u16(code).ok()?;
    let mut status = Status::new(code, RequestId(random_16()), message);
    if code != StatusCode::BAD_REQUEST {
        status.reason = if code == StatusCode::URI_TOO_LONG { "RequestURITooLong" } else { "RequestEntityTooLarge" };
        status.stage = Some(Stage::Accept.as_str());
    }
    let answer: http::Response<Bytes> = status.response();
    let mut out = format!("HTTP/1.1 {code}\r\nconnection: close\r\n").into_bytes();
    for (name, value) in answer.headers().iter().filter(|(name, _)| **name != header::CONNECTION) {
        out.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(answer.body());
    Some(out.into())
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Framing<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Only where this very connection sent such a head: a cluster's body that looks like an answer stays as it is.
        if self.instead.is_none() && self.at == At::Cut {
            self.instead = instead_of(bytes);
        }
        let this = &mut *self;
        let Some(rest) = &mut this.instead else { return Pin::new(&mut this.io).poll_write(cx, bytes) };
        while !rest.is_empty() {
            let written = ready!(Pin::new(&mut this.io).poll_write(cx, rest))?;
            rest.advance(written);
        }
        this.instead = None;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bytes.iter().find(|slice| !slice.is_empty()) {
            Some(first) if self.at == At::Cut && (self.instead.is_some() || instead_of(first).is_some()) => {
                self.poll_write(cx, first)
            }
            _ => Pin::new(&mut self.io).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            let between = this.at == At::Head && this.line.is_empty() && this.held.is_empty();
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
