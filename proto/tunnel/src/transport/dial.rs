//! From a host name to an established carrier: resolve, connect or ask the proxy, TLS, then the carrier's own
//! handshake. Each step has a deadline and an error of its own, so that a person sees which hop failed.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

mod proxy;
mod tcp;

use daemon::tcp::{ConnectError, race, resolve};
use futures_util::{FutureExt, TryFutureExt};
use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use secrecy::SecretString;
pub use tcp::TcpIo;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    CarrierKind,
    carrier::{Carrier, CarrierError, Facts},
    http2, quic, websocket,
};

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
    /// TCP port of the proxy.
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
    /// A TCP connection (all addresses of a name together).
    pub connect: Duration,
    /// The proxy's answer to `CONNECT`, its TLS included.
    pub proxy: Duration,
    /// TLS with the gateway, or the whole QUIC handshake.
    pub handshake: Duration,
    /// The WebSocket upgrade.
    pub upgrade: Duration,
    /// Settings for QUIC alone.
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
        /// The host name that was looked up.
        host: String,
        /// Error of the lookup.
        reason: String,
    },
    /// No TCP connection to the gateway or, where `proxy`, to the proxy.
    #[error("cannot connect to {}{address}: {reason}", if *.proxy { "proxy " } else { "" })]
    Connect {
        /// The address, or the name if there were several.
        address: String,
        /// Whether it is the proxy's.
        proxy: bool,
        /// Errors of the attempts.
        reason: String,
    },
    /// TLS with the proxy itself.
    #[error("TLS with proxy {proxy} failed: {reason}")]
    ProxyTls {
        /// `host:port` of the proxy.
        proxy: String,
        /// Error of the TLS handshake with the proxy.
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
        /// HTTP status code of the proxy's answer.
        status: u16,
    },
    /// The proxy did not answer `CONNECT` in time, broke off or answered garbage.
    #[error("proxy {proxy} failed: {reason}")]
    ProxyBroken {
        /// `host:port` of the proxy.
        proxy: String,
        /// What went wrong while the answer was awaited.
        reason: String,
    },
    /// TLS with the gateway (or with what answers in its place).
    #[error("TLS with {host} failed: {reason}")]
    Tls {
        /// Host name or address of the gateway.
        host: String,
        /// Error of the TLS or HTTP/2 handshake, or that it took too long.
        reason: String,
    },
    /// The peer is no gateway, or one that does not offer this carrier: another ALPN.
    #[error("{host} does not offer carrier {carrier}")]
    NotOffered {
        /// Host name or address of the gateway.
        host: String,
        /// The carrier that was asked for.
        carrier: CarrierKind,
    },
    /// The WebSocket upgrade was answered with another status than 101, or not in time.
    #[error("the WebSocket upgrade at {host} failed: {reason}")]
    WebSocket {
        /// Host name or address of the gateway.
        host: String,
        /// The status, if it answered.
        status: Option<u16>,
        /// Error of the upgrade.
        reason: String,
    },
    /// No QUIC connection: no answer (UDP dropped), or its handshake failed.
    #[error("QUIC with {address} failed: {reason}")]
    Quic {
        /// The address of the gateway that was tried.
        address: SocketAddr,
        /// Error of the connection or its handshake.
        reason: String,
    },
    /// QUIC cannot go through an HTTP proxy.
    #[error("QUIC cannot go through an HTTP proxy")]
    QuicThroughProxy,
}

impl DialError {
    fn of(error: ConnectError, proxy: bool) -> Self {
        match error {
            ConnectError::Resolve { host, reason } => Self::Resolve { host, reason },
            ConnectError::Connect { address, reason } => Self::Connect { address, proxy, reason },
        }
    }
}

/// Dials the gateway on a carrier.
pub async fn dial(target: &Target, carrier: CarrierKind, options: &DialOptions) -> Result<Carrier, DialError> {
    match carrier {
        CarrierKind::Quic => dial_quic(target, options).await,
        CarrierKind::Http2 => {
            let (io, facts) = open_tls(target, carrier, http2::ALPN, options).await?;
            if io.get_ref().1.alpn_protocol() != Some(http2::ALPN) {
                return Err(DialError::NotOffered { host: target.host.clone(), carrier });
            }
            within(options.handshake, http2::server_side(io, facts))
                .await
                .map_err(|error| DialError::Tls { host: target.host.clone(), reason: error.to_string() })
        }
        CarrierKind::WebSocket => dial_websocket(target, options).await,
        CarrierKind::Memory => Err(DialError::NotOffered { host: target.host.clone(), carrier }),
    }
}

/// A TCP connection to the target, through its proxy if it has one, before any TLS with the target.
pub async fn open_tcp(target: &Target, options: &DialOptions) -> Result<TcpIo, DialError> {
    match &target.proxy {
        Some(proxy) => proxy::connect(proxy, target, options).await,
        None => {
            let socket = connect(&target.host, target.port, false, target, options).await?;
            http2::tune_tcp(&socket);
            Ok(TcpIo::Direct(socket))
        }
    }
}

/// A TCP connection to the target, or to its proxy.
async fn connect(
    host: &str,
    port: u16,
    proxy: bool,
    target: &Target,
    options: &DialOptions,
) -> Result<TcpStream, DialError> {
    let connected = async {
        let addresses = resolve(host, port, &target.aliases, options.resolve).await?;
        daemon::tcp::connect(host, &addresses, options.connect).await
    };
    connected.await.map_err(|error| DialError::of(error, proxy))
}

async fn dial_quic(target: &Target, options: &DialOptions) -> Result<Carrier, DialError> {
    if target.proxy.is_some() {
        return Err(DialError::QuicThroughProxy);
    }
    let addresses = resolve(&target.host, target.port, &target.aliases, options.resolve)
        .await
        .map_err(|error| DialError::of(error, false))?;
    let name = target.server_name.to_str();
    let name = &*name;
    race(&addresses, |address| {
        let connecting = quic::connect(address, name, &target.tls, &options.quic);
        let bounded = within(options.handshake, connecting);
        bounded.map_err(move |error| DialError::Quic { address, reason: error.to_string() }).boxed()
    })
    .await
    // The last one had all the time that there was.
    .map_err(|mut errors| {
        let none = || DialError::Resolve { host: target.host.clone(), reason: "the name has no address".to_owned() };
        errors.pop().unwrap_or_else(none)
    })
}

async fn dial_websocket(target: &Target, options: &DialOptions) -> Result<Carrier, DialError> {
    let (io, facts) = open_tls(target, CarrierKind::WebSocket, b"http/1.1", options).await?;
    let host = authority(&target.host, target.port);
    let failed = |error: CarrierError| {
        let status = if let CarrierError::Upgrade(status) = error { Some(status) } else { None };
        DialError::WebSocket { host: target.host.clone(), status, reason: error.to_string() }
    };
    within(options.upgrade, websocket::connect(io, &host, facts)).await.map_err(failed)
}

/// TLS with the gateway, over TCP or through the proxy.
async fn open_tls(
    target: &Target,
    carrier: CarrierKind,
    alpn: &[u8],
    options: &DialOptions,
) -> Result<(TlsStream<TcpIo>, Facts), DialError> {
    let io = open_tcp(target, options).await?;
    let peer = io.peer_addr();
    let host = || target.host.clone();
    let io = match timeout(options.handshake, tls(io, &target.tls, &target.server_name, alpn)).await {
        Ok(Ok(io)) => io,
        Ok(Err(error)) if refuses_alpn(&error) => return Err(DialError::NotOffered { host: host(), carrier }),
        Ok(Err(error)) => return Err(DialError::Tls { host: host(), reason: error.to_string() }),
        Err(_) => return Err(DialError::Tls { host: host(), reason: "no answer in time".to_owned() }),
    };
    let certificates = io.get_ref().1.peer_certificates().map(|chain| chain.to_vec()).unwrap_or_default();
    Ok((io, Facts { kind: carrier, peer, certificates }))
}

async fn tls<T>(io: T, config: &ClientConfig, name: &ServerName<'static>, alpn: &[u8]) -> io::Result<TlsStream<T>>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut config = config.clone();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = false;
    TlsConnector::from(Arc::new(config))
        .connect_with(name.clone(), io, |connection| connection.set_buffer_limit(Some(http2::TLS_BUFFER_BYTES)))
        .await
}

/// Whether TLS failed because the peer does not speak the protocol that was asked for.
fn refuses_alpn(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some_and(|error| {
        matches!(
            error,
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
                | rustls::Error::NoApplicationProtocol
        )
    })
}

async fn within<T>(time: Duration, step: impl Future<Output = Result<T, CarrierError>>) -> Result<T, CarrierError> {
    timeout(time, step).await.unwrap_or(Err(CarrierError::Timeout))
}

/// `host:port` with brackets around an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}
