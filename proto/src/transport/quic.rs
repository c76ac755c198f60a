//! Carrier 1: QUIC on UDP, ALPN `towline/1`, native streams.

use std::{io, net::SocketAddr, sync::Arc};

use super::carrier::{Carrier, CarrierError};

/// How a UDP endpoint behaves.
#[derive(Clone, Debug)]
pub struct QuicOptions {
    /// Segmentation offload of the kernel. Off where a driver or a middlebox breaks it.
    pub gso: bool,
    /// Handshakes in progress above which a new peer must first prove its address (Retry).
    pub retry_above: usize,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self { gso: true, retry_above: crate::limits::QUIC_RETRY_ABOVE }
    }
}

/// The gateway's UDP endpoint.
pub struct Listener {
    _todo: (),
}

impl Listener {
    /// Listens on a bound socket, within a tokio runtime. ALPN is set here. `tls` must be TLS 1.3 capable and decides
    /// whether client certificates are asked for.
    pub fn bind(
        _socket: std::net::UdpSocket,
        _tls: Arc<rustls::ServerConfig>,
        _options: QuicOptions,
    ) -> io::Result<Self> {
        todo!()
    }

    /// Uses another certificate or trust for connections from now on.
    pub fn set_tls(&self, _tls: Arc<rustls::ServerConfig>) -> io::Result<()> {
        todo!()
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        todo!()
    }

    /// The next peer; its handshake is not done yet. `None` once closed. Cancel-safe.
    pub async fn accept(&self) -> Option<Connecting> {
        todo!()
    }

    /// Accepts no more; open connections go on until their tunnels close.
    pub fn stop_accepting(&self) {
        todo!()
    }

    /// Closes the endpoint with all its connections and waits until peers were told.
    pub async fn close(&self) {
        todo!()
    }
}

/// A peer whose handshake is not done.
pub struct Connecting {
    _todo: (),
}

impl Connecting {
    /// Where it comes from.
    pub fn peer(&self) -> SocketAddr {
        todo!()
    }

    /// Completes the handshake, within [`crate::limits::HELLO_DEADLINE`].
    pub async fn establish(self) -> Result<Carrier, CarrierError> {
        todo!()
    }
}
