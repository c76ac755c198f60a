//! Carrier 3: HTTP/2 inside a WebSocket, binary messages, for HTTP proxies and L7 balancers.

use tokio::io::{AsyncRead, AsyncWrite};

use super::carrier::{Carrier, CarrierError, Facts};

/// Where the gateway serves it: `GET` with `Upgrade: websocket`, ALPN `http/1.1`.
pub const PATH: &str = "/.towline/tunnel";
/// The subprotocol that both ends name in `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "towline.v1";

/// The value of `Sec-WebSocket-Accept` for a request's `Sec-WebSocket-Key` (RFC 6455 section 4.2.2). The gateway
/// answers 101 with it, `Upgrade: websocket`, `Connection: Upgrade` and the subprotocol, then calls [`accept`].
pub fn accept_key(_key: &[u8]) -> String {
    todo!()
}

/// The gateway's end, over an already upgraded byte stream.
pub async fn accept<T>(_io: T, _facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    todo!()
}

/// The agent's end: the WebSocket handshake for [`PATH`] over a TLS stream, then HTTP/2. `host` is the `Host` header.
pub async fn connect<T>(_io: T, _host: &str, _facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    todo!()
}
