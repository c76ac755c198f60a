//! What a TCP connection to the gateway is, with the proxy that may stand between.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// A TCP connection, direct or through a proxy.
#[derive(Debug)]
pub enum TcpIo {
    /// Direct, or through a proxy that is spoken to in the clear.
    Direct(TcpStream),
    /// Through a proxy that is spoken to over TLS.
    InTls(Box<TlsStream<TcpStream>>),
}

impl TcpIo {
    /// The socket at the bottom.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Direct(io) => io,
            Self::InTls(io) => io.get_ref().0,
        }
    }

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
