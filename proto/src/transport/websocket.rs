//! Carrier 3: HTTP/2 inside a WebSocket, binary messages, for HTTP proxies and L7 balancers. No extension is negotiated
//! (attack D7: no deflate), and messages are bounded.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Sink, Stream};
use http::{Request, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        self, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    carrier::{Carrier, CarrierError, Facts},
    http2,
};
use crate::limits;

/// Where the gateway serves it: `GET` with `Upgrade: websocket`, ALPN `http/1.1`.
pub const PATH: &str = "/.towline/tunnel";
/// The subprotocol that both ends name in `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "towline.v1";

/// One message: an HTTP/2 frame and what small frames go with it.
const MESSAGE_BYTES: usize = limits::CHUNK_BYTES + 64 * 1024;
/// Written bytes above which tungstenite writes at once instead of waiting for a flush.
const WRITE_BUFFER_BYTES: usize = 128 * 1024;

/// The value of `Sec-WebSocket-Accept` for a request's `Sec-WebSocket-Key` (RFC 6455 section 4.2.2). The gateway
/// answers 101 with it, `Upgrade: websocket`, `Connection: Upgrade` and the subprotocol, then calls [`accept`].
pub fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

/// The gateway's end, over an already upgraded byte stream.
pub async fn accept<T>(io: T, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config())).await;
    http2::client_side(WebSocketIo::new(socket), facts).await
}

/// The agent's end: the WebSocket handshake for [`PATH`] over a TLS stream, then HTTP/2. `host` is the `Host` header.
pub async fn connect<T>(io: T, host: &str, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = upgrade(io, host).await?;
    http2::server_side(io, facts).await
}

/// The WebSocket handshake alone.
pub(crate) async fn upgrade<T>(io: T, host: &str) -> Result<WebSocketIo<T>, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let request = Request::get(format!("wss://{host}{PATH}"))
        .header(header::HOST, host)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        .body(())
        .map_err(|error| CarrierError::Protocol(format!("host {host:?}: {error}")))?;
    match client_async_with_config(request, io, Some(config())).await {
        Ok((socket, _)) => Ok(WebSocketIo::new(socket)),
        Err(tungstenite::Error::Http(response)) => Err(CarrierError::Upgrade(response.status().as_u16())),
        Err(tungstenite::Error::Io(error)) => Err(CarrierError::Lost(error.to_string())),
        Err(error) => Err(CarrierError::Protocol(error.to_string())),
    }
}

/// The messages of a WebSocket that was not asked for by HTTP, set as the carrier's are: what they cost by themselves is
/// measured with it. One end is the client, and masks what it sends.
pub async fn bare<T>(io: T, client: bool) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let role = if client { Role::Client } else { Role::Server };
    WebSocketIo::new(WebSocketStream::from_raw_socket(io, role, Some(config())).await)
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES))
        .read_buffer_size(WRITE_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(4 * MESSAGE_BYTES)
}

/// A WebSocket's binary messages as a byte stream.
pub(crate) struct WebSocketIo<T> {
    socket: WebSocketStream<T>,
    /// What is left of the message read last.
    message: Bytes,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketIo<T> {
    fn new(socket: WebSocketStream<T>) -> Self {
        Self { socket, message: Bytes::new() }
    }
}

fn failed(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.message.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(message))) => self.message = message,
                // tungstenite answers pings itself.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Text(_) | Message::Frame(_))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "not a binary message")));
                }
                Some(Err(error)) => return Poll::Ready(Err(failed(error))),
            }
        }
        let taken = self.message.len().min(buf.remaining());
        buf.put_slice(&self.message[..taken]);
        self.message.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// One message of all slices, so that a frame's head and body travel together.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
        let total = slices.iter().map(|slice| slice.len()).sum::<usize>().min(MESSAGE_BYTES);
        if total == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut message = BytesMut::with_capacity(total);
        for slice in slices {
            let room = total - message.len();
            message.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        Pin::new(&mut self.socket).start_send(Message::Binary(message.freeze())).map_err(failed)?;
        Poll::Ready(Ok(total))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(failed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(failed)
    }
}
