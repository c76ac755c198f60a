//! Names to addresses, addresses to a TCP connection.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::client::TlsStream;

use super::DialError;
use crate::transport::http2::tune_tcp;

/// Addresses of one name that are tried.
const ADDRESSES: usize = 8;
/// After so long without an answer the next address is tried as well (RFC 8305 section 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Looks `host` up, among the aliases first.
pub(super) async fn resolve(
    host: &str,
    port: u16,
    aliases: &[(String, IpAddr)],
    time: Duration,
) -> Result<Vec<SocketAddr>, DialError> {
    let aliased: Vec<_> = aliases
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(host))
        .map(|(_, address)| SocketAddr::new(*address, port))
        .collect();
    if !aliased.is_empty() {
        return Ok(aliased);
    }
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let failed = |reason: String| DialError::Resolve { host: host.to_owned(), reason };
    match timeout(time, tokio::net::lookup_host((host, port))).await {
        Err(_) => Err(failed("no answer in time".to_owned())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.take(ADDRESSES).collect();
            if addresses.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(addresses) }
        }
    }
}

/// Connects to the first of `addresses` that answers.
pub(super) async fn connect(
    host: &str,
    addresses: &[SocketAddr],
    proxy: bool,
    time: Duration,
) -> Result<TcpStream, DialError> {
    let failed = |address: String, reason: String| DialError::Connect { address, proxy, reason };
    let all = race(addresses, |address| {
        let connecting = async move {
            TcpStream::connect(address).await.map_err(|error| failed(address.to_string(), error.to_string()))
        };
        connecting.boxed()
    });
    match timeout(time, all).await {
        Ok(Ok(socket)) => {
            tune_tcp(&socket);
            Ok(socket)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => {
            let address = match addresses {
                [one] => one.to_string(),
                _ => host.to_owned(),
            };
            Err(failed(address, "no answer in time".to_owned()))
        }
    }
}

/// Tries the addresses one after the other, each a little later; the first that succeeds wins, else the last error.
/// `addresses` is not empty.
///
/// Boxed: of an `AsyncFn` the compiler cannot tell that the whole is `Send`, and a caller that spawns needs that.
pub(super) async fn race<'a, T: 'a>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> BoxFuture<'a, Result<T, DialError>>,
) -> Result<T, DialError> {
    let mut attempts = FuturesUnordered::new();
    for (address, index) in addresses.iter().zip(0u32..) {
        let attempt = attempt(*address);
        let delayed = async move {
            if index > 0 {
                sleep(NEXT_ADDRESS * index).await;
            }
            attempt.await
        };
        attempts.push(delayed.boxed());
    }
    let mut last = None;
    while let Some(result) = attempts.next().await {
        match result {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(DialError::Resolve { host: String::new(), reason: "no address".to_owned() }))
}

/// A TCP connection, direct or through a proxy.
#[derive(Debug)]
pub enum TcpIo {
    /// Direct, or through a proxy that is spoken to in the clear.
    Direct(TcpStream),
    /// Through a proxy that is spoken to over TLS.
    InTls(Box<TlsStream<TcpStream>>),
}

impl TcpIo {
    /// The address of the other end: the target's or the proxy's.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Direct(io) => io.peer_addr().ok(),
            Self::InTls(io) => io.get_ref().0.peer_addr().ok(),
        }
    }
}

macro_rules! delegate {
    ($self:ident, $io:ident => $do:expr) => {
        match $self.get_mut() {
            Self::Direct(io) => {
                let $io = Pin::new(io);
                $do
            }
            Self::InTls(io) => {
                let $io = Pin::new(io.as_mut());
                $do
            }
        }
    };
}

impl AsyncRead for TcpIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for TcpIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_shutdown(cx))
    }
}
