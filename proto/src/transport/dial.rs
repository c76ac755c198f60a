//! From a host name to an established carrier: resolve, connect or ask the proxy, TLS, then the carrier's own handshake.
//! Each step has a deadline and an error of its own, so that a person sees which hop failed.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, pki_types::ServerName};
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{CarrierKind, carrier::Carrier};

/// Where to, and how to get there.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name or address of the gateway.
    pub host: String,
    /// Its port, TCP or UDP.
    pub port: u16,
    /// The name that its certificate must have.
    pub server_name: ServerName<'static>,
    /// Trust and the agent's certificate. ALPN is set by [`dial`].
    pub tls: Arc<ClientConfig>,
    /// An HTTP proxy for the TCP carriers, already chosen (`NO_PROXY` is the caller's).
    pub proxy: Option<Proxy>,
    /// Names that are not looked up, also for the proxy's own name.
    pub aliases: Vec<(String, IpAddr)>,
}

/// An HTTP proxy that understands `CONNECT`.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// For a proxy that is spoken to over TLS: its own trust, and its name.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Basic authentication: user name and password.
    pub credentials: Option<(String, SecretString)>,
}

/// How long the steps may take, and options of a carrier.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// Looking up one name.
    pub resolve: Duration,
    /// One TCP connection attempt (all addresses of a name together).
    pub connect: Duration,
    /// The proxy's answer to `CONNECT`, its TLS included.
    pub proxy: Duration,
    /// TLS with the gateway, or the whole QUIC handshake.
    pub handshake: Duration,
    /// The WebSocket upgrade.
    pub upgrade: Duration,
    /// For QUIC.
    pub quic: super::quic::QuicOptions,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            resolve: Duration::from_secs(5),
            connect: Duration::from_secs(5),
            proxy: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            upgrade: Duration::from_secs(10),
            quic: super::quic::QuicOptions::default(),
        }
    }
}

/// Which hop failed, and how.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialError {
    /// A name could not be looked up.
    #[error("cannot look up {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        reason: String,
    },
    /// No TCP connection to the gateway or, where `proxy`, to the proxy.
    #[error("cannot connect to {}{address}: {reason}", if *.proxy { "proxy " } else { "" })]
    Connect {
        /// The address, or the name if there were several.
        address: String,
        /// Whether it is the proxy's.
        proxy: bool,
        /// Why.
        reason: String,
    },
    /// TLS with the proxy itself.
    #[error("TLS with proxy {proxy}: {reason}")]
    ProxyTls {
        /// `host:port` of the proxy.
        proxy: String,
        /// Why.
        reason: String,
    },
    /// 407: no or wrong user name and password for the proxy.
    #[error("proxy {proxy} wants {}", if *.credentials_sent { "other credentials (407)" } else { "credentials (407)" })]
    ProxyAuthentication {
        /// `host:port` of the proxy.
        proxy: String,
        /// Whether some were sent.
        credentials_sent: bool,
    },
    /// The proxy answered `CONNECT` with another status than 2xx.
    #[error("proxy {proxy} refused: {status}")]
    ProxyRefused {
        /// `host:port` of the proxy.
        proxy: String,
        /// Its status.
        status: u16,
    },
    /// The proxy did not answer `CONNECT` in time, broke off or answered garbage.
    #[error("proxy {proxy}: {reason}")]
    ProxyBroken {
        /// `host:port` of the proxy.
        proxy: String,
        /// What happened.
        reason: String,
    },
    /// TLS with the gateway (or with what answers in its place).
    #[error("TLS with {host}: {reason}")]
    Tls {
        /// The gateway.
        host: String,
        /// Why.
        reason: String,
    },
    /// The peer is no gateway, or one that does not offer this carrier: another ALPN.
    #[error("{host} does not offer carrier {carrier}")]
    NotOffered {
        /// The gateway.
        host: String,
        /// The carrier.
        carrier: CarrierKind,
    },
    /// The WebSocket upgrade was answered with another status than 101, or not in time.
    #[error("websocket upgrade at {host}: {reason}")]
    WebSocket {
        /// The gateway.
        host: String,
        /// The status, if it answered.
        status: Option<u16>,
        /// What happened.
        reason: String,
    },
    /// No QUIC connection: no answer (UDP dropped), or its handshake failed.
    #[error("QUIC with {address}: {reason}")]
    Quic {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// QUIC cannot go through an HTTP proxy.
    #[error("QUIC cannot go through an HTTP proxy")]
    QuicThroughProxy,
}

/// Dials the gateway on a carrier.
pub async fn dial(_target: &Target, _carrier: CarrierKind, _options: &DialOptions) -> Result<Carrier, DialError> {
    todo!()
}

/// A TCP connection to the target, through its proxy if it has one, before any TLS with the target.
pub async fn open_tcp(
    _target: &Target,
    _options: &DialOptions,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, DialError> {
    Ok(tokio::io::empty())
}
