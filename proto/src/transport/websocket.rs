//! Carrier 3: HTTP/2 inside a WebSocket, binary messages, for HTTP proxies and L7 balancers. No extension is negotiated
//! (attack D7: no deflate), and messages are bounded.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
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
/// What is read at once, in bytes. tungstenite zeroes as much before every read, even one that finds nothing: the 128 KiB of
/// before were a quarter of a core's second-level cache. No read brings more than a TLS record, 16 KiB.
const READ_BUFFER_BYTES: usize = 8 * 1024;
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
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(4 * MESSAGE_BYTES)
}

/// A WebSocket's binary messages as a byte stream.
pub(crate) struct WebSocketIo<T> {
    socket: WebSocketStream<T>,
    /// What is left of the message read last.
    message: Bytes,
    /// Whether a write waits for room: a flush must not take its waker away.
    waits: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketIo<T> {
    fn new(socket: WebSocketStream<T>) -> Self {
        Self { socket, message: Bytes::new(), waits: false }
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
        self.waits = true;
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
        self.waits = false;
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

    /// tokio-tungstenite wakes whoever flushed last along with whoever reads. Here both are one connection, which would have two
    /// rings for one message, and take them for work that came together (`cork`): a flush that is done leaves no waker behind.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut nobody = Context::from_waker(Waker::noop());
        if !self.waits
            && let Poll::Ready(flushed) = Pin::new(&mut self.socket).poll_flush(&mut nobody)
        {
            return Poll::Ready(flushed.map_err(failed));
        }
        Pin::new(&mut self.socket).poll_flush(cx).map_err(failed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[derive(Default)]
    struct Rings(AtomicUsize);

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn end<T: AsyncRead + AsyncWrite + Unpin>(io: T, role: Role) -> WebSocketIo<T> {
        WebSocketIo::new(WebSocketStream::from_raw_socket(io, role, Some(config())).await)
    }

    /// With two rings for each message a connection put off every turn (`cork`), for other work that never came.
    #[tokio::test]
    async fn what_arrives_rings_once() {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let (mut here, mut there) = (end(here, Role::Client).await, end(there, Role::Server).await);
        let rings = Arc::new(Rings::default());
        let waker = Waker::from(rings.clone());
        let mut cx = Context::from_waker(&waker);
        for round in 1..=3 {
            assert!(Pin::new(&mut here).poll_write(&mut cx, b"ping").is_ready());
            assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
            let (mut bytes, mut got) = ([0; 16], 0);
            while got == 0 {
                let mut buf = ReadBuf::new(&mut bytes);
                match Pin::new(&mut here).poll_read(&mut cx, &mut buf) {
                    Poll::Ready(read) => {
                        read.unwrap();
                        got = buf.filled().len();
                    }
                    Poll::Pending => {
                        there.write_all(b"pong").await.unwrap();
                        there.flush().await.unwrap();
                    }
                }
            }
            assert_eq!(rings.0.load(Ordering::SeqCst), round);
        }
    }

    /// A flush that waits is called when there is room, whatever was flushed before.
    #[tokio::test]
    async fn a_flush_that_waits_is_called() {
        let (here, mut there) = tokio::io::duplex(1024);
        let mut here = end(here, Role::Client).await;
        let rings = Arc::new(Rings::default());
        let waker = Waker::from(rings.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
        assert!(Pin::new(&mut here).poll_write(&mut cx, &[7; 1500]).is_ready());
        assert!(Pin::new(&mut here).poll_flush(&mut cx).is_pending());
        let mut taken = [0; 1024];
        tokio::io::AsyncReadExt::read_exact(&mut there, &mut taken).await.unwrap();
        assert_eq!(rings.0.load(Ordering::SeqCst), 1);
        assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
    }

    /// A socket without room, until it is said to have some.
    #[derive(Default)]
    struct Full {
        has_room: bool,
        waits: Option<Waker>,
    }

    impl AsyncRead for Full {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Full {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.has_room {
                return Poll::Ready(Ok(bytes.len()));
            }
            self.waits = Some(cx.waker().clone());
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// There may be room, and a flush be done, before whoever waits to write is told.
    #[tokio::test]
    async fn a_write_that_waits_is_called_whatever_is_flushed() {
        let mut io = end(Full::default(), Role::Server).await;
        let rings = Arc::new(Rings::default());
        let waker = Waker::from(rings.clone());
        let mut cx = Context::from_waker(&waker);
        while Pin::new(&mut io).poll_write(&mut cx, &[7; 64 * 1024]).is_ready() {}
        let socket = io.socket.get_mut();
        socket.has_room = true;
        let told = socket.waits.take().unwrap();
        assert!(Pin::new(&mut io).poll_flush(&mut cx).is_ready());
        told.wake();
        assert_eq!(rings.0.load(Ordering::SeqCst), 1);
    }
}
