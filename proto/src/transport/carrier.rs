//! What bears a tunnel, before any hello: raw two-way byte streams and the facts that TLS gave.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;

use super::CarrierKind;

/// What is known of a connection when a carrier is made of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The carrier.
    pub kind: CarrierKind,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The certificates that the peer proved in this connection's own TLS, its own first; empty if it showed none.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// An established connection, ready for [`super::session`].
pub struct Carrier {
    pub(crate) facts: Facts,
}

impl Carrier {
    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// Why no carrier could be made of a connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CarrierError {
    /// The handshake took longer than [`crate::limits::HELLO_DEADLINE`].
    #[error("the carrier's handshake took too long")]
    Timeout,
    /// TLS failed: certificate, ALPN or a record.
    #[error("TLS: {0}")]
    Tls(String),
    /// The protocol of the carrier failed.
    #[error("{0}")]
    Protocol(String),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(String),
}
