//! What bears a tunnel, before any hello: raw two-way byte streams and the facts that TLS gave.
//!
//! A carrier gives no more than this: streams either end can open, bytes in order, an end, a reset with a code, and a
//! connection that is there or lost. Identity of streams, credit and stop with a code are [`super::session`]'s. The
//! halves are enums rather than trait objects, so that a chunk costs no allocation and no indirect call.

pub mod http2;
pub mod memory;
pub mod quic;

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use rustls::pki_types::CertificateDer;

use super::{CarrierKind, Closed, Packets};
use crate::wire::close::{CloseCode, StreamCode};

/// What is known of a connection when a carrier is made of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The carrier that is made of the connection.
    pub kind: CarrierKind,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The certificates that the peer proved in this connection's own TLS, its own first; empty if it showed none.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// An established connection, ready for [`super::session`].
pub struct Carrier {
    pub(crate) facts: Facts,
    pub(crate) link: Link,
}

impl Carrier {
    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// Why no carrier could be made of a connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CarrierError {
    /// The handshake took longer than [`types::limits::HELLO_DEADLINE`].
    #[error("the carrier's handshake took too long")]
    Timeout,
    /// TLS failed: certificate, ALPN or a record.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The WebSocket upgrade was answered with this status and not 101.
    #[error("the upgrade was answered with status {0}")]
    Upgrade(u16),
    /// The protocol of the carrier failed.
    #[error("{0}")]
    Protocol(String),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(String),
}

/// Why a raw half gives or takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawError {
    /// The peer's reader wants no more.
    Stopped(StreamCode),
    /// The peer broke the stream off.
    Reset(StreamCode),
    /// The connection is gone.
    Lost,
}

/// The connection. Dropping it closes it.
pub(crate) enum Link {
    Memory(memory::Link),
    Quic(quic::Link),
    Http2(http2::Link),
}

macro_rules! each {
    ($on:expr, $name:ident => $do:expr) => {
        match $on {
            Self::Memory($name) => $do,
            Self::Quic($name) => $do,
            Self::Http2($name) => $do,
        }
    };
}

/// Both halves of a raw stream.
pub(crate) struct RawStream {
    pub(crate) send: RawSend,
    pub(crate) recv: RawRecv,
}

impl Link {
    /// Opens a raw stream; waits while the carrier has no room for one. `Err`: the connection is gone.
    pub(crate) async fn open(&self) -> Result<RawStream, RawError> {
        match self {
            // Boxed: it is for tests, and larger than all others.
            Self::Memory(link) => Box::pin(link.open()).await,
            Self::Quic(link) => link.open().await,
            Self::Http2(link) => link.open().await,
        }
    }

    /// The next raw stream that the peer opened. Cancel-safe.
    pub(crate) async fn accept(&self) -> Result<RawStream, RawError> {
        each!(self, link => link.accept().await)
    }

    /// Completes when the connection is gone.
    pub(crate) async fn closed(&self) -> Closed {
        each!(self, link => link.closed().await)
    }

    /// Closes at once. Whether the carrier itself carries the code to the peer.
    pub(crate) fn close(&self, code: CloseCode, message: &str) {
        each!(self, link => link.close(code, message))
    }

    /// Lets the peer have `bytes` in flight and unread on the whole connection from now on.
    pub(crate) fn allow(&self, bytes: u64) {
        match self {
            Self::Memory(_) => {}
            Self::Quic(link) => link.allow(bytes),
            Self::Http2(link) => link.allow(bytes),
        }
    }

    /// Takes what a stream begins with into the count of what is queued without room, until the carrier has let go of
    /// it. HTTP/2 gives a stream no room before it is open, so that waiting for room would be a turn of the connection
    /// and a packet more for each request. `Err`: it has to wait for room; too much is queued, or the carrier gives
    /// room at once.
    pub(crate) fn count_first(&self, first: Bytes) -> Result<Bytes, Bytes> {
        match self {
            Self::Http2(link) => link.count_first(first),
            Self::Memory(_) | Self::Quic(_) => Err(first),
        }
    }

    /// Makes room for more streams of the peer, where the carrier's own bound began lower than the session's.
    pub(crate) fn allow_streams(&self, open: usize) {
        if let Self::Quic(link) = self {
            link.allow_streams(open);
        }
    }

    /// Packets so far, where the carrier counts them.
    pub(crate) fn packets(&self) -> Option<Packets> {
        match self {
            Self::Quic(link) => Some(link.packets()),
            Self::Memory(_) | Self::Http2(_) => None,
        }
    }

    /// Whether it remembers streams that were reset, up to [`limits::RESET_STREAMS`].
    pub(crate) fn remembers_resets(&self) -> bool {
        match self {
            Self::Http2(_) => true,
            Self::Memory(_) | Self::Quic(_) => false,
        }
    }

    /// What came from the peer so far, on a carrier whose silence means something while the tunnel is in use (QUIC,
    /// which queues little and is asked every second then); `None` on others.
    pub(crate) fn heard(&self) -> Option<u64> {
        match self {
            Self::Quic(link) => Some(link.heard()),
            Self::Memory(_) | Self::Http2(_) => None,
        }
    }

    /// Has the peer told at intervals of `every` that this end is there, while its session rests; on a carrier that
    /// reports by itself whether the peer got it. `None`: the session has to ask.
    pub(crate) fn keep_alive(&self, every: Duration) -> Option<Arc<quic::Peer>> {
        match self {
            Self::Quic(link) => link.keep_alive(every),
            Self::Memory(_) | Self::Http2(_) => None,
        }
    }

    /// Completes when the peer has said so. Cancel-safe. `Err`: the connection is gone, or has no such signs.
    pub(crate) async fn sign(&self) -> Result<(), RawError> {
        match self {
            Self::Quic(link) => link.sign().await,
            Self::Memory(_) | Self::Http2(_) => Err(RawError::Lost),
        }
    }

    /// Round-trip time as the carrier measures it all the time, where it does.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        match self {
            Self::Quic(link) => Some(link.rtt()),
            Self::Memory(_) | Self::Http2(_) => None,
        }
    }

    /// Whether [`Self::close`] tells the peer code and message, so that no control message is needed.
    pub(crate) fn close_is_told(&self) -> bool {
        matches!(self, Self::Quic(_))
    }
}

/// The sending half of a raw stream.
pub(crate) enum RawSend {
    Memory(memory::PipeSend),
    Quic(quic::QuicSend),
    Http2(http2::H2Send),
}

impl RawSend {
    /// Takes at most `max` bytes from the front of a `chunk` that is not empty, without a copy: how many. Where it
    /// takes all and the chunk is the `last`, it ends the direction, as [`Self::finish`] does, with no frame of its own
    /// for that.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
        max: usize,
        last: bool,
    ) -> Poll<Result<usize, RawError>> {
        let taken = match self {
            Self::Memory(half) => half.poll_send(cx, chunk, max),
            Self::Quic(half) => half.poll_send(cx, chunk, max),
            Self::Http2(half) => return half.poll_send(cx, chunk, max, last),
        };
        if last && chunk.is_empty() && matches!(taken, Poll::Ready(Ok(_))) {
            self.finish();
        }
        taken
    }

    /// Sends all of `chunk`, outside of any credit.
    pub(crate) async fn send_all(&mut self, mut chunk: Bytes) -> Result<(), RawError> {
        while !chunk.is_empty() {
            std::future::poll_fn(|cx| self.poll_send(cx, &mut chunk, usize::MAX, false)).await?;
        }
        Ok(())
    }

    /// Queues what a stream begins with, as [`Link::count_first`] gave it, and ends the direction if that is also the
    /// `last`.
    pub(crate) fn queue_first(&mut self, first: Bytes, last: bool) -> Result<(), RawError> {
        match self {
            Self::Http2(half) => half.queue_first(first, last),
            Self::Memory(_) | Self::Quic(_) => unreachable!("these carriers count none"),
        }
    }

    /// Ends the direction cleanly.
    pub(crate) fn finish(&mut self) {
        each!(self, half => half.finish());
    }

    /// Breaks this direction off, and on carriers that cannot tell them apart the other one too.
    pub(crate) fn reset(&mut self, code: StreamCode) {
        each!(self, half => half.reset(code));
    }

    /// Completes when the peer stopped or reset the stream or the connection is gone.
    pub(crate) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<RawError> {
        each!(self, half => half.poll_stopped(cx))
    }

    /// For the control stream: before all others.
    pub(crate) fn prioritise(&mut self) {
        if let Self::Quic(half) = self {
            half.prioritise();
        }
    }
}

/// The receiving half of a raw stream.
pub(crate) enum RawRecv {
    Memory(memory::PipeRecv),
    Quic(quic::QuicRecv),
    Http2(http2::H2Recv),
}

impl RawRecv {
    /// The next bytes, never empty; `None` at the clean end.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        each!(self, half => half.poll_recv(cx))
    }

    /// As [`Self::poll_recv`], for `await`.
    pub(crate) async fn recv(&mut self) -> Result<Option<Bytes>, RawError> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Wants no more; `broken` if the whole stream was broken off at this end. Whether the carrier itself tells the
    /// peer, so that no control message is needed.
    pub(crate) fn stop(&mut self, code: StreamCode, broken: bool) -> bool {
        each!(self, half => half.stop(code, broken))
    }
}
