//! Tunnels over each carrier, on loopback with throw-away certificates.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;
use tunnel::{
    transport::{
        CarrierKind, Incoming, Stream, TunnelHandle,
        carrier::{Carrier, Facts},
        dial::{self, DialOptions, Target},
        http2, memory,
        quic::{Listener, QuicOptions},
        session::{self, AgentSide, GatewaySide, Presented, SessionOptions},
        websocket,
    },
    wire::{hello::Refuse, message::Writer},
};

/// A hang fails with a name instead of stopping the run. No case takes as long, not even on a machine that gives it a
/// twentieth of a processor.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

/// A tunnel with both ends in this process.
pub struct Pair {
    pub kind: CarrierKind,
    pub gateway_opens: bool,
    /// The end that opens streams in a case.
    pub opener: TunnelHandle,
    /// The other one.
    pub acceptor: TunnelHandle,
    /// Cuts the connection as a failing network would: no farewell.
    pub cable: Option<Cable>,
    _listener: Option<Arc<Listener>>,
}

impl Pair {
    pub fn gateway(&self) -> &TunnelHandle {
        if self.gateway_opens { &self.opener } else { &self.acceptor }
    }

    pub fn agent(&self) -> &TunnelHandle {
        if self.gateway_opens { &self.acceptor } else { &self.opener }
    }

    /// One stream, both ends.
    pub async fn stream(&self) -> (Stream, Stream) {
        let (opened, accepted) = tokio::join!(self.opener.open(head(b"x")), self.acceptor.accept());
        (opened.unwrap(), accepted.unwrap().stream)
    }

    /// Completes when no stream is open at either end.
    pub async fn idle(&self) {
        while self.opener.open_streams() + self.acceptor.open_streams() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Runs one case and checks that nothing stays open behind it.
pub async fn run<F>(kind: CarrierKind, gateway_opens: bool, case: impl FnOnce(Arc<Pair>) -> F)
where
    F: Future<Output = ()>,
{
    let pair = Arc::new(pair(kind, gateway_opens, SessionOptions::default()).await);
    let case = async {
        case(pair.clone()).await;
        // Streams of which the case knows nothing any more may still arrive.
        tokio::select! {
            () = pair.idle() => {}
            () = async { while pair.acceptor.accept().await.is_ok() {} std::future::pending().await } => {}
        }
    };
    if tokio::time::timeout(CASE_DEADLINE, case).await.is_err() {
        panic!("the case hangs with {} and {} streams open", pair.opener.open_streams(), pair.acceptor.open_streams());
    }
}

/// A head message with `body` in it.
pub fn head(body: &[u8]) -> Bytes {
    let mut writer = Writer::begin(BytesMut::new(), 16);
    writer.bytes(body);
    writer.finish().freeze()
}

/// Answers every stream with what `serve` does, until the tunnel ends.
pub fn serve<F>(tunnel: &TunnelHandle, serve: impl Fn(Incoming) -> F + Send + 'static) -> Serving
where
    F: Future<Output = ()> + Send + 'static,
{
    let tunnel = tunnel.clone();
    let task = tokio::spawn(async move {
        while let Ok(incoming) = tunnel.accept().await {
            tokio::spawn(serve(incoming));
        }
    });
    Serving(task.abort_handle())
}

/// Ends when dropped.
pub struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub async fn pair(kind: CarrierKind, gateway_opens: bool, options: SessionOptions) -> Pair {
    let (gateway, agent, cable, listener) = carriers(kind).await;
    let gateway = session::accept(gateway, gateway_side(options.clone()));
    let agent = session::connect(agent, agent_side(options));
    let (gateway, agent) = tokio::join!(gateway, agent);
    let (gateway, agent) = (gateway.unwrap().0, agent.unwrap());
    let (opener, acceptor) = if gateway_opens { (gateway, agent) } else { (agent, gateway) };
    Pair { kind, gateway_opens, opener, acceptor, cable, _listener: listener }
}

pub type Authenticate = fn(Presented) -> std::future::Ready<Result<Presented, Refuse>>;

pub fn gateway_side(options: SessionOptions) -> GatewaySide<Authenticate> {
    GatewaySide {
        session: [7; 16],
        replica: None,
        authenticate: |presented| std::future::ready(Ok(presented)),
        options,
    }
}

pub fn agent_side(options: SessionOptions) -> AgentSide {
    AgentSide {
        agent_version: "1.2.3".to_owned(),
        instance: [9; 16],
        features: types::version::Features::default(),
        held: Vec::new(),
        prove: Box::new(|_| Err("the carrier shows the certificate".to_owned())),
        options,
    }
}

/// The gateway's and the agent's end of a carrier, dialled as the agent does.
pub async fn carriers(kind: CarrierKind) -> (Carrier, Carrier, Option<Cable>, Option<Arc<Listener>>) {
    let tls = Tls::new();
    match kind {
        CarrierKind::Memory => {
            let (gateway, agent) = memory::carriers();
            (gateway, agent, None, None)
        }
        CarrierKind::Quic => {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let listener = Arc::new(Listener::bind(socket, tls.server(&[]), QuicOptions::default()).unwrap());
            let address = listener.local_addr().unwrap();
            let gateway = async { listener.accept().await.unwrap().establish().await.unwrap() };
            let (gateway, agent) = tokio::join!(gateway, tls.dial(address, kind));
            (gateway, agent, None, Some(listener))
        }
        CarrierKind::Http2 | CarrierKind::WebSocket => {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, cable) = Cable::to(listener.local_addr().unwrap()).await;
            let gateway = tls.accept_tcp(&listener, kind);
            let (gateway, agent) = tokio::join!(gateway, tls.dial(address, kind));
            (gateway, agent, Some(cable), None)
        }
    }
}

/// A throw-away authority and what it issued.
pub struct Tls {
    pub roots: Arc<RootCertStore>,
    pub server: (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    pub client: (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
}

impl Tls {
    pub fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let issue = |names: &[&str], usage| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = rcgen::CertificateParams::new(names).unwrap();
            params.extended_key_usages = vec![usage];
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        };
        Self {
            server: issue(&["gateway.test"], rcgen::ExtendedKeyUsagePurpose::ServerAuth),
            client: issue(&["agent.test"], rcgen::ExtendedKeyUsagePurpose::ClientAuth),
            roots: Arc::new(roots),
        }
    }

    pub fn server(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.server.0.clone(), self.server.1.clone_key())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    pub fn client(&self) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(self.client.0.clone(), self.client.1.clone_key())
            .unwrap();
        Arc::new(config)
    }

    pub fn target(&self, address: SocketAddr) -> Target {
        Target {
            host: "gateway.test".to_owned(),
            port: address.port(),
            server_name: ServerName::try_from("gateway.test").unwrap(),
            tls: self.client(),
            proxy: None,
            aliases: vec![("Gateway.Test".to_owned(), address.ip())],
        }
    }

    async fn dial(&self, address: SocketAddr, kind: CarrierKind) -> Carrier {
        dial::dial(&self.target(address), kind, &DialOptions::default()).await.unwrap()
    }

    /// What the gateway's public listener does with one connection.
    pub async fn accept_tcp(&self, listener: &TcpListener, kind: CarrierKind) -> Carrier {
        let (socket, peer) = listener.accept().await.unwrap();
        http2::tune_tcp(&socket);
        let acceptor = TlsAcceptor::from(self.server(&[http2::ALPN, b"http/1.1"]));
        let mut io = acceptor
            .accept_with(socket, |connection| connection.set_buffer_limit(Some(http2::TLS_BUFFER_BYTES)))
            .await
            .unwrap();
        let certificates = io.get_ref().1.peer_certificates().unwrap().to_vec();
        let facts = Facts { kind, peer: Some(peer), certificates };
        if kind == CarrierKind::Http2 {
            assert_eq!(io.get_ref().1.alpn_protocol(), Some(http2::ALPN));
            return http2::client_side(io, facts).await.unwrap();
        }
        let request = read_head(&mut io).await;
        assert!(request.starts_with(&format!("GET {} HTTP/1.1\r\n", websocket::PATH)), "{request}");
        let key = request
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("sec-websocket-key: ").map(|_| &line[19..]));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {}\r\n\r\n",
            websocket::accept_key(key.unwrap().as_bytes()),
            websocket::SUBPROTOCOL
        );
        io.write_all(answer.as_bytes()).await.unwrap();
        io.flush().await.unwrap();
        websocket::accept(io, Bytes::new(), facts).await.unwrap()
    }
}

/// Reads an HTTP head byte by byte.
pub async fn read_head(io: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A cable between two TCP sockets that can be cut without a farewell of the programs at its ends.
pub struct Cable(AbortHandle);

impl Cable {
    async fn to(target: SocketAddr) -> (SocketAddr, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = tokio::net::TcpStream::connect(target).await.unwrap();
            for end in [&near, &far] {
                end.set_nodelay(true).unwrap();
            }
            let _ = tokio::io::copy_bidirectional_with_sizes(&mut near, &mut far, 1 << 18, 1 << 18).await;
        });
        (address, Self(task.abort_handle()))
    }

    pub fn cut(&self) {
        self.0.abort();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.cut();
    }
}
