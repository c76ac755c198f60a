//! UDP endpoints: the gateway's listener and an agent's dialled connection.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::hmac;
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::pki_types::CertificateDer;
use types::limits;

use super::{Link, congestion, keep_alive::KeepAlive, streams};
use crate::{
    transport::{
        CarrierKind,
        carrier::{self, Carrier, CarrierError, Facts},
        http2::ALPN,
    },
    wire::close::CloseCode,
};

/// Bytes asked of the kernel for each socket buffer: at 1 Gbit/s 60 ms without a turn on the processor.
const SOCKET_BUFFER_BYTES: usize = 8 * 1024 * 1024;
/// Below this a warning is logged once: bursts will be lost.
const SOCKET_BUFFER_LOW_BYTES: usize = 1024 * 1024;
/// After the session's own probe has given up, QUIC does too. The session's probes, and [`KeepAlive`] while it rests,
/// keep the connection and the bindings of NATs: quinn's own keep-alive is off.
const IDLE_TIMEOUT: Duration = Duration::from_secs(25);
/// What one stream may have in flight before the session's credit is looked at: head and the largest window.
const STREAM_WINDOW_BYTES: u64 = limits::WINDOW_MAX + 2 * limits::HEAD_BYTES as u64;
/// Unacknowledged bytes of one connection: several times the product of 1 Gbit/s and 100 ms.
const SEND_WINDOW_BYTES: u64 = limits::WINDOW_GROWTH_PER_TUNNEL;

/// The peer acknowledges after more packets than these, or after that time (draft-ietf-quic-ack-frequency): each
/// acknowledgement costs both ends about what a packet does. So few, and so short a time, that a window which loss has
/// made small opens as before.
const PACKETS_PER_ACK: u32 = 4;
const ACK_DELAY: Duration = Duration::from_millis(5);

/// A packet is lost once one that was sent later has come and this many round trips have passed since it was sent,
/// however many have overtaken it: three, with which quinn begins (RFC 9002 section 6.1.1), are a fraction of a
/// millisecond at 200 Mbit/s, and a path that lets packets overtake each other looked like one that loses them. As RACK
/// does (RFC 8985), a quarter of a round trip is waited; so much later is a loss repaired.
pub(super) const LOST_AFTER_ROUND_TRIPS: f32 = 1.25;

/// Streams that an agent may have open at first: more than it has exchanges, of which a few are under way at once.
/// quinn keeps places for as many in two tables from the beginning, 80 bytes each: 256 are 20 KiB for every idle
/// tunnel, thousands half a MiB. Where more are open the number grows with them ([`Link::allow_streams`]).
const STREAMS_OF_AGENT: u32 = 64;

/// How long the gateway waits after one stateless reset until it sends another. No time at all: quinn sends none in
/// place of those that fall within it, and with its 20 ms a gateway that had restarted told 50 agents in a second that
/// it knew nothing of them. A reset is shorter than what it answers, so that nobody can make much of little with it or
/// keep two ends at it.
const RESET_INTERVAL: Duration = Duration::ZERO;

/// Streams that a gateway may have open at first; the number grows as that of an agent does. Tables for all 8,448 of
/// them were a third of what an agent's part of a handshake took.
const STREAMS_OF_GATEWAY_AT_FIRST: u32 = 1024;

/// First packets that wait to be looked at, before anything is known of their senders; and what each of these may have
/// sent after it, in bytes: the rest of a client's first flight.
const INCOMING: usize = 1024;
const INCOMING_BYTES: u64 = 16 * 1024;

/// Datagrams are signs of life, and one that nobody has read yet is as good as many.
const DATAGRAM_BYTES: usize = 64;

/// How a UDP endpoint behaves.
#[derive(Clone, Debug)]
pub struct QuicOptions {
    /// Segmentation offload of the kernel. Off where a driver or a middlebox breaks it.
    pub gso: bool,
    /// Handshakes in progress above which a new peer must first prove its address (Retry).
    pub retry_above: usize,
    /// A secret that a gateway has again after a restart, such as a digest over its private key. With it the gateway
    /// tells an agent at once that it knows nothing of its connection (RFC 9000 section 10.3), where the agent would
    /// otherwise wait for a sign of life. Without it resets are of a key that dies with the process.
    pub reset_secret: Option<ResetSecret>,
}

/// A secret that prints nothing.
#[derive(Clone)]
pub struct ResetSecret([u8; 32]);

impl ResetSecret {
    /// Derived from `material`, which may be a private key: what is derived means nothing elsewhere.
    pub fn derive(material: &[u8]) -> Self {
        let label = b"towline quic stateless reset v1\0".as_slice();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &[label, material].concat());
        let mut secret = [0; 32];
        secret.copy_from_slice(digest.as_ref());
        Self(secret)
    }

    /// The secret of one of several replicas that derive theirs from the same material. None of them resets what is
    /// another's, and none knows another's connection ids.
    #[must_use]
    pub fn of_replica(&self, name: &str) -> Self {
        Self::derive(&[&self.0, name.as_bytes()].concat())
    }

    /// Tokens of resets by one key, and connection ids that are recognised after a restart by another.
    fn endpoint(&self) -> EndpointConfig {
        let ids = self.ids();
        let mut config = EndpointConfig::new(Arc::new(self.key()));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        config
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    fn ids(&self) -> u64 {
        let ids = hmac::sign(&self.key(), b"connection ids");
        ids.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

impl std::fmt::Debug for ResetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetSecret")
    }
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self { gso: true, retry_above: limits::QUIC_RETRY_ABOVE, reset_secret: None }
    }
}

/// The gateway's UDP endpoint.
pub struct Listener {
    endpoint: Endpoint,
    options: QuicOptions,
    handshakes: Arc<AtomicUsize>,
    keep_alive: Arc<KeepAlive>,
}

impl Listener {
    /// Listens on a bound socket, within a tokio runtime. ALPN is set here. `tls` must be TLS 1.3 capable and decides
    /// whether client certificates are asked for.
    pub fn bind(socket: UdpSocket, tls: Arc<rustls::ServerConfig>, options: QuicOptions) -> io::Result<Self> {
        let config = server_config(&tls, &options)?;
        let mut known = options.reset_secret.as_ref().map(ResetSecret::endpoint).unwrap_or_default();
        known.min_reset_interval(RESET_INTERVAL);
        let endpoint = endpoint(socket, known, Some(config))?;
        Ok(Self { endpoint, options, handshakes: Arc::default(), keep_alive: Arc::new(KeepAlive::start()) })
    }

    /// Uses another certificate or trust for connections from now on.
    pub fn set_tls(&self, tls: Arc<rustls::ServerConfig>) -> io::Result<()> {
        self.endpoint.set_server_config(Some(server_config(&tls, &self.options)?));
        Ok(())
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The next peer; its handshake is not done yet. `None` once closed. Cancel-safe.
    pub async fn accept(&self) -> Option<Connecting> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if self.handshakes.load(Ordering::Relaxed) >= self.options.retry_above
                && !incoming.remote_address_validated()
            {
                // Costs one stateless datagram. An error means that the peer was validated: cannot be here.
                let _ = incoming.retry();
                continue;
            }
            self.handshakes.fetch_add(1, Ordering::Relaxed);
            let counted = Counted(self.handshakes.clone());
            let (endpoint, keep_alive) = (self.endpoint.clone(), self.keep_alive.clone());
            return Some(Connecting { incoming, endpoint, keep_alive, _counted: counted });
        }
    }

    /// Accepts no more; open connections go on until their tunnels close.
    pub fn stop_accepting(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Closes the endpoint with all its connections and waits until peers were told.
    pub async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(CloseCode::Shutdown.number()), b"");
        self.endpoint.wait_idle().await;
    }
}

/// A handshake in progress.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A peer whose handshake is not done.
pub struct Connecting {
    incoming: quinn::Incoming,
    endpoint: Endpoint,
    keep_alive: Arc<KeepAlive>,
    _counted: Counted,
}

impl Connecting {
    /// Where it comes from.
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Whether the peer has proved that it is at [`Self::peer`]; otherwise anybody may have written that address there.
    pub fn address_is_proved(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Completes the handshake, within [`types::limits::HELLO_DEADLINE`].
    pub async fn establish(self) -> Result<Carrier, CarrierError> {
        let connecting = self.incoming.accept().map_err(|error| failed(&error))?;
        match tokio::time::timeout(limits::HELLO_DEADLINE, connecting).await {
            Err(_) => Err(CarrierError::Timeout),
            Ok(Err(error)) => Err(failed(&error)),
            Ok(Ok(connection)) => Ok(established(connection, self.endpoint, STREAMS_OF_AGENT, Some(self.keep_alive))),
        }
    }
}

/// Dials `address` from a socket of its own. The caller bounds the time.
pub(crate) async fn connect(
    address: SocketAddr,
    server_name: &str,
    tls: &Arc<rustls::ClientConfig>,
    options: &QuicOptions,
) -> Result<Carrier, CarrierError> {
    let config = client_config(tls, options).map_err(|error| CarrierError::Tls(error.to_string()))?;
    let lost = |error: io::Error| CarrierError::Lost(error.to_string());
    let endpoint =
        endpoint(UdpSocket::bind(any(address)).map_err(lost)?, EndpointConfig::default(), None).map_err(lost)?;
    let connecting = endpoint
        .connect_with(config, address, server_name)
        .map_err(|error| CarrierError::Protocol(error.to_string()))?;
    let connection = connecting.await.map_err(|error| failed(&error))?;
    Ok(established(connection, endpoint, STREAMS_OF_GATEWAY_AT_FIRST, None))
}

fn established(
    connection: Connection,
    endpoint: Endpoint,
    streams: u32,
    keep_alive: Option<Arc<KeepAlive>>,
) -> Carrier {
    let certificates = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .map(|chain| *chain)
        .unwrap_or_default();
    let facts = Facts { kind: CarrierKind::Quic, peer: Some(connection.remote_address()), certificates };
    Carrier { facts, link: carrier::Link::Quic(Link::new(connection, endpoint, streams, keep_alive)) }
}

fn failed(error: &ConnectionError) -> CarrierError {
    match error {
        ConnectionError::TimedOut => CarrierError::Timeout,
        // 0x100..0x200 is CRYPTO_ERROR: a TLS alert of either side.
        ConnectionError::TransportError(fault) if (0x100..0x200).contains(&u64::from(fault.code)) => {
            CarrierError::Tls(streams::line(&error.to_string()))
        }
        ConnectionError::ConnectionClosed(close) if (0x100..0x200).contains(&u64::from(close.error_code)) => {
            CarrierError::Tls(streams::line(&error.to_string()))
        }
        _ => CarrierError::Lost(streams::line(&error.to_string())),
    }
}

/// quinn's own endpoint, set as [`Listener`]'s is: what the carrier costs by itself is measured with it.
pub fn bare_listener(socket: UdpSocket, tls: &rustls::ServerConfig) -> io::Result<Endpoint> {
    endpoint(socket, EndpointConfig::default(), Some(server_config(tls, &QuicOptions::default())?))
}

/// quinn's own connection, set as an agent's is; with its endpoint, which has to live as long. The caller bounds the
/// time.
pub async fn bare_connect(
    address: SocketAddr,
    server_name: &str,
    tls: &rustls::ClientConfig,
) -> io::Result<(Endpoint, Connection)> {
    let config = client_config(tls, &QuicOptions::default())?;
    let endpoint = endpoint(UdpSocket::bind(any(address))?, EndpointConfig::default(), None)?;
    let connecting = endpoint.connect_with(config, address, server_name).map_err(io::Error::other)?;
    let connection = connecting.await?;
    Ok((endpoint, connection))
}

/// Any free port that reaches `address`.
fn any(address: SocketAddr) -> SocketAddr {
    if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() }
}

fn endpoint(socket: UdpSocket, config: EndpointConfig, server: Option<ServerConfig>) -> io::Result<Endpoint> {
    enlarge_buffers(&socket);
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime))
}

/// Asks for large buffers; says once if the system gives small ones (cloudflared #522: containers).
fn enlarge_buffers(socket: &UdpSocket) {
    static SAID: OnceLock<()> = OnceLock::new();
    let socket = socket2::SockRef::from(socket);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    let got = socket.recv_buffer_size().unwrap_or(0);
    if is_news(got, &SAID) {
        tracing::info!(
            buffer_bytes = got,
            "the system allows only small UDP buffers; QUIC may lose bursts (raise net.core.rmem_max and wmem_max)"
        );
    }
}

/// Whether buffers of `bytes` are too small and this was not logged yet.
fn is_news(bytes: usize, said: &OnceLock<()>) -> bool {
    bytes < SOCKET_BUFFER_LOW_BYTES && said.set(()).is_ok()
}

fn transport(options: &QuicOptions, peers_streams: u32) -> Arc<TransportConfig> {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK)).max_ack_delay(Some(ACK_DELAY));
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(peers_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BYTES)
        .stream_receive_window(window(STREAM_WINDOW_BYTES))
        .receive_window(window(limits::CARRIER_WINDOW_HELLO))
        .send_window(SEND_WINDOW_BYTES)
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .ack_frequency_config(Some(acks))
        .packet_threshold(u32::MAX)
        .time_threshold(LOST_AFTER_ROUND_TRIPS)
        .congestion_controller_factory(Arc::new(congestion::Config::default()))
        .enable_segmentation_offload(options.gso);
    Arc::new(config)
}

fn window(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

fn server_config(tls: &rustls::ServerConfig, options: &QuicOptions) -> io::Result<ServerConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(transport(options, STREAMS_OF_AGENT))
        .migration(true)
        .max_incoming(INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING as u64 * INCOMING_BYTES / 4);
    Ok(config)
}

fn client_config(tls: &rustls::ClientConfig, options: &QuicOptions) -> io::Result<ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = false;
    let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(options, STREAMS_OF_GATEWAY_AT_FIRST));
    Ok(config)
}

/// The two ends of a connection over sockets of a test's making: the gateway's, the agent's.
#[cfg(test)]
pub(crate) async fn carriers_over(
    near: Arc<dyn quinn::AsyncUdpSocket>,
    server: &rustls::ServerConfig,
    far: Arc<dyn quinn::AsyncUdpSocket>,
    client: &rustls::ClientConfig,
    address: SocketAddr,
) -> (Carrier, Carrier) {
    let options = QuicOptions::default();
    let end = |server, socket| {
        Endpoint::new_with_abstract_socket(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime)).unwrap()
    };
    let (near, far) = (end(Some(server_config(server, &options).unwrap()), near), end(None, far));
    let dialled = far.connect_with(client_config(client, &options).unwrap(), address, "gateway.test").unwrap();
    let accepted = async { near.accept().await.unwrap().accept().unwrap().await.unwrap() };
    let (accepted, dialled) = tokio::join!(accepted, dialled);
    (
        established(accepted, near.clone(), STREAMS_OF_AGENT, Some(Arc::new(KeepAlive::start()))),
        established(dialled.unwrap(), far, STREAMS_OF_GATEWAY_AT_FIRST, None),
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quinn::Runtime as _;
    use quinn_proto::ConnectionIdGenerator;

    use super::*;
    use crate::transport::{memory, paths, session::SessionOptions};

    /// Containers and old defaults give a fraction of what is asked for (cloudflared #522).
    #[tokio::test]
    async fn small_socket_buffers_are_said_once_and_lose_nothing() {
        const BUFFER_BYTES: usize = 16 * 1024;
        const BODY_BYTES: usize = 2 * 1024 * 1024;
        let said = OnceLock::new();
        assert!(!is_news(SOCKET_BUFFER_LOW_BYTES, &said));
        assert_eq!([is_news(2 * BUFFER_BYTES, &said), is_news(2 * BUFFER_BYTES, &said)], [true, false]);

        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let options = socket2::SockRef::from(&socket);
            options.set_recv_buffer_size(BUFFER_BYTES).unwrap();
            options.set_send_buffer_size(BUFFER_BYTES).unwrap();
            // Linux gives twice what it is asked for, for what it needs beside.
            assert!(options.recv_buffer_size().unwrap() <= 2 * BUFFER_BYTES);
            TokioRuntime.wrap_udp_socket(socket).unwrap()
        };
        let (near, far) = (socket(), socket());
        let address = near.local_addr().unwrap();
        let (server, client) = paths::tls("gateway.test");
        let moved = async {
            let (mut gateway, agent) = carriers_over(near, &server, far, &client, address).await;
            // Who the agent is does not matter here.
            gateway.facts.certificates = vec![Vec::new().into()];
            let (gateway, agent) = memory::joined(gateway, agent, SessionOptions::default()).await;
            let mut asking = gateway.open(Bytes::from_static(b"\0\0\0\x01\x10")).await.unwrap();
            let mut asked = agent.accept().await.unwrap().stream;
            let send = async {
                asked.send.send(Bytes::from(vec![7; BODY_BYTES])).await.unwrap();
                asked.send.finish().unwrap();
            };
            let receive = async {
                let mut got = 0;
                while let Some(chunk) = asking.recv.recv().await.unwrap() {
                    got += chunk.len();
                }
                got
            };
            tokio::join!(send, receive).1
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), moved).await.expect("all of it comes"), BODY_BYTES);
    }

    /// What connections of a gateway before this one send, all at once, is answered at once: with quinn's 20 ms from
    /// one reset to the next, 5,000 agents would have waited for 100 s.
    #[tokio::test]
    async fn all_agents_of_a_gateway_that_has_restarted_are_told() {
        let secret = ResetSecret::derive(b"a key");
        let listener = listener(&secret);
        let agents = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        agents.connect(listener.local_addr().unwrap()).await.unwrap();
        for _ in 0..100 {
            agents.send(&packet(&secret)).await.unwrap();
        }
        let mut answer = [0; 100];
        for told in 0..100 {
            let reset = tokio::time::timeout(Duration::from_secs(10), agents.recv(&mut answer)).await;
            let length = reset.unwrap_or_else(|_| panic!("{told} of 100 were told")).unwrap();
            assert!(length < 49, "{length}: longer than what it answers");
        }
    }

    /// A balancer may send a packet of one replica's connection to another, which has the same TLS key.
    #[tokio::test]
    async fn t12_a_replica_does_not_reset_the_connections_of_another() {
        let shared = ResetSecret::derive(b"a key");
        let (a, b) = (shared.of_replica("a"), shared.of_replica("b"));
        let listener = listener(&a);
        let agents = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        agents.connect(listener.local_addr().unwrap()).await.unwrap();
        let (of_b, of_a) = (packet(&b), packet(&a));
        for packet in [&of_b, &packet(&shared), &of_a] {
            agents.send(packet).await.unwrap();
        }
        let mut answer = [0; 100];
        let reset = tokio::time::timeout(Duration::from_secs(10), agents.recv(&mut answer)).await;
        let length = reset.expect("its own connection is reset").unwrap();
        let token =
            |secret: &ResetSecret, packet: &[u8]| hmac::sign(&secret.key(), &packet[1..9]).as_ref()[..16].to_vec();
        assert_eq!(answer[length - 16..length], token(&a, &of_a), "the first answer is to its own");
        assert_ne!(token(&a, &of_b), token(&b, &of_b), "an agent of the other takes no token of this one");
    }

    /// A short header (RFC 9000 section 17.3), the gateway's connection id, and what nobody can read any more.
    fn packet(secret: &ResetSecret) -> Vec<u8> {
        let mut ids = HashedConnectionIdGenerator::from_key(secret.ids());
        [&[0x40], &*ids.generate_cid(), &[7; 40]].concat()
    }

    fn listener(secret: &ResetSecret) -> Listener {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["gateway.test".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap().der().clone();
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let options = QuicOptions { reset_secret: Some(secret.clone()), ..QuicOptions::default() };
        Listener::bind(UdpSocket::bind("127.0.0.1:0").unwrap(), Arc::new(tls), options).unwrap()
    }
}
