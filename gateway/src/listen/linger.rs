//! Ends a connection so that the last answer is read. Whoever is refused in the middle of a large body (RFC 9112
//! section 9.6) is still sending; a socket that is closed with unread bytes in it is reset, and the reset takes the
//! refusal away before it is read. So our side ends first, and what still comes is thrown away for a while.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// How long what still comes is read,
const LINGER: Duration = Duration::from_secs(10);
/// and how long a silent peer is waited for.
const SILENCE: Duration = Duration::from_secs(2);
/// Bytes that are thrown away at most.
const THROWN_AWAY: usize = 256 * 1024 * 1024;
/// Bytes that are read at once,
const CHUNK: usize = 16 * 1024;
/// and how often before others get their turn.
const IN_A_ROW: usize = 16;

/// A connection whose shutdown reads on for a while.
pub struct Linger<S> {
    io: S,
    ending: Option<Ending>,
}

struct Ending {
    ends: Pin<Box<Sleep>>,
    silent: Pin<Box<Sleep>>,
    left: usize,
}

impl<S> Linger<S> {
    /// Of an open connection.
    pub fn new(io: S) -> Self {
        Self { io, ending: None }
    }

    /// The connection by itself, which ends at once.
    pub fn into_inner(self) -> S {
        self.io
    }
}

impl Ending {
    fn begin() -> Self {
        Self {
            ends: Box::pin(tokio::time::sleep(LINGER)),
            silent: Box::pin(tokio::time::sleep(SILENCE)),
            left: THROWN_AWAY,
        }
    }

    fn poll<S: AsyncRead + Unpin>(&mut self, io: &mut S, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; CHUNK];
        for _ in 0..IN_A_ROW {
            if self.left == 0 || self.ends.as_mut().poll(cx).is_ready() || self.silent.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = match ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer)) {
                Ok(()) => buffer.filled().len(),
                Err(_) => 0,
            };
            if read == 0 {
                return Poll::Ready(());
            }
            self.left = self.left.saturating_sub(read);
            self.silent.as_mut().reset(tokio::time::Instant::now() + SILENCE);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Linger<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Linger<S> {
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
        let Self { io, ending } = &mut *self;
        let ending = match ending {
            Some(ending) => ending,
            None => {
                ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
                ending.insert(Ending::begin())
            }
        };
        ending.poll(io, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_still_comes_is_read_and_our_end_is_seen_first() {
        let (near, mut far) = tokio::io::duplex(1024);
        let mut near = Linger::new(near);
        let ours = tokio::spawn(async move {
            near.write_all(b"413").await.unwrap();
            near.shutdown().await.unwrap();
        });
        // More than what the connection holds, before the answer is looked at.
        far.write_all(&vec![0; 512 * 1024]).await.unwrap();
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"413");
        drop(far);
        ours.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_holds_a_connection_by_silence_or_by_sending_on() {
        let begun = tokio::time::Instant::now();
        let (near, _far) = tokio::io::duplex(1024);
        Linger::new(near).shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), SILENCE);

        let begun = tokio::time::Instant::now();
        let (near, mut far) = tokio::io::duplex(16);
        let trickle = tokio::spawn(async move {
            while far.write_all(b"x").await.is_ok() {
                tokio::time::advance(Duration::from_millis(100)).await;
            }
        });
        Linger::new(near).shutdown().await.unwrap();
        assert!(begun.elapsed() <= LINGER + SILENCE, "{:?}", begun.elapsed());
        trickle.await.unwrap();
    }
}
