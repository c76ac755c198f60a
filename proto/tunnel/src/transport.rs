//! The tunnel: an authenticated connection that an agent dialled, and the streams in it.
//!
//! Layers, from the top: trait [`Tunnel`] (what both programs see) · [`session`] (hello, stream identity, credit, stop,
//! probes, drain: the same code over every carrier) · trait `Carrier` (raw two-way byte streams) · one file per
//! carrier.
//!
//! Per direction a stream ends in exactly one of three ways. **Finish**: all bytes were given. **Reset** with a code:
//! it was broken off, both directions end and each reader sees an error, never a clean end. **Stop** with a code: the
//! reader wants no more of one direction; its writer ends quietly and the other direction goes on. Dropping an
//! unfinished send half resets; dropping an unfinished receive half stops.

pub mod carrier;
pub mod cork;
pub mod dial;
#[cfg(test)]
mod long_path;
pub mod loss;
pub mod memory;
#[cfg(test)]
pub(crate) mod paths;
pub mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod websocket;

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use types::{
    ids::StreamId,
    version::{Features, Version},
};

pub use self::{
    carrier::{http2, quic},
    session::stream::{RecvStream, SendStream},
};

use crate::wire::{
    close::{CloseCode, StreamCode},
    hello::Replica,
};

/// Locks what is left whole whatever panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An authenticated connection that an agent dialled. Symmetric: both ends open and accept streams.
pub trait Tunnel: Send + Sync + 'static {
    /// Opens a stream whose first bytes are `head`, an encoded message with its length prefix. No round trip: head and
    /// first body bytes leave in the same flight. Waits for a free stream if the carrier has none, bounded by the
    /// caller's deadline.
    fn open(&self, head: Bytes) -> BoxFuture<'_, Result<Stream, OpenError>>;

    /// As [`Self::open`] where `head` is all that the opener has to say: the stream's send half is finished.
    fn ask(&self, head: Bytes) -> BoxFuture<'_, Result<Stream, OpenError>> {
        Box::pin(async {
            let mut stream = self.open(head).await?;
            // A stream that is already over says so where the answer is read.
            let _ = stream.send.finish();
            Ok(stream)
        })
    }

    /// The next stream that the peer opened, its head read whole. `Err` when the tunnel is closed.
    fn accept(&self) -> BoxFuture<'_, Result<Incoming, Closed>>;

    /// Asks the peer to open no more streams and to dial elsewhere first (make before break). Open streams go on.
    fn drain(&self, code: CloseCode, reconnect_within: Duration);

    /// Completes when the peer asked to drain.
    fn draining(&self) -> BoxFuture<'_, Drain>;

    /// Closes at once; open streams are reset.
    fn close(&self, code: CloseCode, message: &str);

    /// Completes when the tunnel is closed, whoever closed it.
    fn closed(&self) -> BoxFuture<'_, Closed>;

    /// What is known of the tunnel.
    fn info(&self) -> &TunnelInfo;

    /// Streams open now, in both directions.
    fn open_streams(&self) -> usize;

    /// Round-trip time of the latest probe.
    fn rtt(&self) -> Option<Duration>;

    /// Bytes received so far, on any stream: what changes while the path is alive. Always zero: not known.
    fn received(&self) -> u64 {
        0
    }

    /// Whether the peer's sign of life is so overdue that a new stream had better go elsewhere.
    fn suspect(&self) -> bool {
        false
    }

    /// Asks the peer for a sign of life at once: there is reason to doubt that it is there.
    fn probe(&self) {}

    /// Packets of the carrier so far. `None` where the system keeps them to itself (TCP).
    fn packets(&self) -> Option<Packets> {
        None
    }
}

/// Packets that this end sent on a carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Packets {
    /// Sent, in all.
    pub sent: u64,
    /// Of these lost, as far as is known.
    pub lost: u64,
}

/// A shared tunnel.
pub type TunnelHandle = Arc<dyn Tunnel>;

/// A peer's request to drain.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Why the peer drains.
    pub code: CloseCode,
    /// Reconnect after a random time of up to this.
    pub reconnect_within: Duration,
}

/// Facts about a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelInfo {
    /// The carrier that the tunnel runs on.
    pub carrier: CarrierKind,
    /// The peer's address at the start.
    pub peer: Option<SocketAddr>,
    /// The version agreed on.
    pub version: Version,
    /// The features of both.
    pub features: Features,
    /// The gateway's name of the tunnel, 16 random bytes.
    pub session: [u8; 16],
    /// The peer's instance (agent process), on the gateway's side.
    pub instance: [u8; 16],
    /// The agent's program version as it said.
    pub agent_version: String,
    /// To which of several replicas of the gateway the tunnel leads, and how many there were at the hello.
    pub replica: Option<Box<Replica>>,
}

/// What bears a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CarrierKind {
    /// QUIC on UDP.
    Quic,
    /// HTTP/2 over TLS on TCP.
    Http2,
    /// HTTP/2 inside a WebSocket over TLS on TCP.
    WebSocket,
    /// In memory, for tests.
    Memory,
}

impl CarrierKind {
    /// The name in options, logs, metrics: `quic`, `h2`, `websocket`, `memory`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Http2 => "h2",
            Self::WebSocket => "websocket",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a tunnel is closed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("tunnel closed by {}: {code}{}{message}", if *.by_peer { "peer" } else { "this end" }, if .message.is_empty() { "" } else { ": " })]
pub struct Closed {
    /// Why the tunnel was closed.
    pub code: CloseCode,
    /// A sentence for people, possibly empty.
    pub message: String,
    /// Whether the peer closed it.
    pub by_peer: bool,
}

/// Why no stream could be opened. In every case no byte of the head has reached the peer's roles.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The tunnel is closed.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The peer drains; use another tunnel.
    #[error("tunnel is draining")]
    Draining,
    /// [`types::limits::STREAMS_PER_TUNNEL`] streams are open.
    #[error("tunnel has {0} streams open, the limit")]
    TooManyStreams(u32),
}

/// Why bytes cannot be sent or received on a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The reader wants no more (only seen by a writer). End quietly.
    #[error("stopped by the reader: {0}")]
    Stopped(StreamCode),
    /// Broken off by the peer.
    #[error("reset by the peer: {0}")]
    Reset(StreamCode),
    /// The tunnel is gone.
    #[error("tunnel lost: {0}")]
    Lost(CloseCode),
    /// This end already finished, reset or stopped the half.
    #[error("stream half is already over")]
    Over,
}

/// A stream that the peer opened.
pub struct Incoming {
    /// The opener's head message, without its length prefix.
    pub head: Bytes,
    /// The channel behind the head; its first bytes are those that follow it.
    pub stream: Stream,
}

/// A two-way byte channel.
pub struct Stream {
    /// Ours, not the carrier's number.
    pub id: StreamId,
    /// The way to the peer.
    pub send: SendStream,
    /// The way from the peer.
    pub recv: RecvStream,
}

/// Why no message could be read from a stream.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MessageError {
    /// The stream broke off.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream ended within the message.
    #[error("stream ended before its head was complete")]
    Ended,
    /// The message is not readable.
    #[error(transparent)]
    Wire(#[from] crate::wire::error::WireError),
}
