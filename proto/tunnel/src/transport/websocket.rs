//! HTTP/2 inside a WebSocket (RFC 6455), binary messages, for HTTP proxies and L7 balancers. No extension is
//! negotiated (no deflate, against bombs), and messages are bounded.
//!
//! The framing is ours: a library's, with its messages as values, cost a small request a tenth of its time, as each was
//! copied twice at either end. In the tests the other end is a library's (tungstenite).

mod frames;
mod handshake;
mod io;

#[cfg(test)]
mod tests;

use bytes::Bytes;
pub(crate) use frames::decode_in_parts;
pub use handshake::{PATH, SUBPROTOCOL, accept_key, is_upgrade, only};
use tokio::io::{AsyncRead, AsyncWrite};
use types::limits;

use self::io::WebSocketIo;
use super::{
    carrier::{Carrier, CarrierError, Facts},
    http2,
};

/// One message: an HTTP/2 frame and what small frames go with it.
const MESSAGE_BYTES: usize = limits::CHUNK_BYTES + 64 * 1024;

/// The gateway's end, over an already upgraded byte stream of which `early` was read already.
pub async fn accept<T>(io: T, early: Bytes, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    http2::client_side(WebSocketIo::server(io, early), facts).await
}

/// The agent's end: the WebSocket handshake for [`PATH`] over a TLS stream, then HTTP/2. `host` is the `Host` header.
pub async fn connect<T>(io: T, host: &str, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = handshake::upgrade(io, host).await?;
    http2::server_side(io, facts).await
}

/// The messages of a WebSocket that was not asked for by HTTP, set as the carrier's are: what they cost by themselves
/// is measured with it. One end is the client, and masks what it sends. One task reads and writes.
pub fn bare<T>(io: T, client: bool) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if client { WebSocketIo::client(io, Bytes::new()) } else { WebSocketIo::server(io, Bytes::new()) }
}
