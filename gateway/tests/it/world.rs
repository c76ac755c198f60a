//! A gateway on real sockets, agents that a test plays by hand, and users that speak raw bytes.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::token::testing::TestIssuer;
use bytes::Bytes;
use certs::{Authority, Credentials, Issued, Validity, tls};
use daemon::{Task, TaskGroup};
use gateway::{Addresses, Extras, Gateway, Handle, config::Config};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel::{
    transport::{
        CarrierKind, Stream, TunnelHandle,
        carrier::Facts,
        dial::{DialOptions, Target, dial},
        http2,
        session::{self, AgentSide, HelloError, SessionOptions},
    },
    wire::head::{RequestHead, ResponseHead},
};
use types::{ids::ClusterId, limits};

/// Nothing in a test may take longer.
pub const LONG: Duration = Duration::from_secs(20);
/// The wildcard name of host-form addresses.
pub const DOMAIN: &str = "clusters.test";

/// A cluster's id.
pub fn cluster(name: &str) -> ClusterId {
    format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}")
        .parse()
        .unwrap()
}

/// A gateway with clusters `a` (granted to `dev:ann` and to group `dev:ops`) and `b` (granted to nobody).
pub struct World {
    pub authority: Authority,
    pub issuer: TestIssuer,
    pub addresses: Addresses,
    pub gateway: Handle,
    pub dir: TempDir,
    pub tasks: TaskGroup,
    running: Option<Task<()>>,
}

impl World {
    /// With nothing special in its configuration.
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// With more in its configuration.
    pub async fn with(more: &str) -> Self {
        Self::build(&config(more), Extras::default()).await
    }

    /// With a whole configuration, and with a clock or an issuer of the test's.
    pub async fn build(text: &str, extras: Extras) -> Self {
        let authority = Authority::create("test", Validity::days(400)).unwrap();
        Self::of(text, extras, authority, (|_: &Path| {}, |_: &mut Config| {})).await
    }

    /// The same of this authority; `prepare` changes its folder, and `change` what was read of the configuration.
    pub async fn of(
        text: &str,
        extras: Extras,
        authority: Authority,
        (prepare, change): (impl FnOnce(&Path), impl FnOnce(&mut Config)),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = authority
            .issue_server(&["127.0.0.1", "localhost", "gateway.test", &format!("*.{DOMAIN}")], Validity::days(1));
        let server = server.unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        server.save(&dir.path().join("tls.crt"), &dir.path().join("tls.key")).unwrap();
        let issuer = TestIssuer::new("https://issuer.test");
        issuer.raw("dev", dir.path()).unwrap();
        let file = dir.path().join("gateway.toml");
        authority.save(&dir.path().join("authority")).unwrap();
        std::fs::write(&file, text).unwrap();
        prepare(dir.path());
        let mut config = Config::load(&file).unwrap();
        change(&mut config);
        let gateway = Gateway::build(config, extras).await.unwrap();
        let (addresses, handle, tasks) = (gateway.addresses(), gateway.handle(), TaskGroup::new("test"));
        let running = Some(tasks.spawn_task("gateway", gateway.run()));
        Self { authority, issuer, addresses, gateway: handle, dir, tasks, running }
    }

    /// Replaces the configuration file and reloads.
    pub async fn reconfigure(&self, text: &str) -> Result<(), String> {
        std::fs::write(self.dir.path().join("gateway.toml"), text).unwrap();
        self.gateway.reload().await.map_err(|error| error.to_string())
    }

    /// A token of a user for a cluster.
    pub fn token(&self, user: &str, name: &str) -> String {
        self.issuer.token(user, &[], &cluster(name).audience(), SystemTime::now())
    }

    /// An agent of a cluster, over HTTP/2.
    pub async fn agent(&self, name: &str) -> Agent {
        let own = self.authority.issue_agent(cluster(name).as_str(), Validity::days(1)).unwrap();
        Agent { tunnel: self.dial(own.credentials()).await.unwrap() }
    }

    /// An agent of a cluster, dialled as agents do.
    pub async fn agent_on(&self, name: &str, carrier: CarrierKind) -> Agent {
        self.agent_at(self.addresses.public, name, carrier, agent_side()).await
    }

    /// The same at another address, that leads to the gateway.
    pub async fn agent_at(&self, at: SocketAddr, name: &str, carrier: CarrierKind, side: AgentSide) -> Agent {
        let own = self.authority.issue_agent(cluster(name).as_str(), Validity::days(1)).unwrap();
        let roots = self.authority.roots().unwrap();
        let tls = match carrier {
            CarrierKind::WebSocket => tls::client_websocket(&roots, own.credentials()),
            _ => tls::client_tunnel(&roots, own.credentials(), &[tls::ALPN_TUNNEL]),
        };
        let target = Target {
            host: "127.0.0.1".to_owned(),
            port: at.port(),
            server_name: server_name("localhost"),
            tls: Arc::new(tls.unwrap()),
            proxy: None,
            aliases: Vec::new(),
        };
        let carrier = dial(&target, carrier, &DialOptions::default()).await.unwrap();
        Agent { tunnel: session::connect(carrier, side).await.unwrap() }
    }

    /// Dials the gateway as an agent with any certificate.
    pub async fn dial(&self, own: &Credentials) -> Result<TunnelHandle, HelloError> {
        self.dial_as(own, agent_side()).await
    }

    /// The same with another hello.
    pub async fn dial_as(&self, own: &Credentials, side: AgentSide) -> Result<TunnelHandle, HelloError> {
        let config = tls::client_tunnel(&self.authority.roots().unwrap(), own, &[tls::ALPN_TUNNEL]).unwrap();
        let tcp = TcpStream::connect(self.addresses.public).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(server_name("localhost"), tcp).await.unwrap();
        let facts = Facts { kind: CarrierKind::Http2, peer: None, certificates: vec![] };
        let lost = |error: tunnel::transport::carrier::CarrierError| HelloError::Lost(error.to_string());
        let carrier = http2::server_side(stream, facts).await.map_err(lost)?;
        session::connect(carrier, side).await
    }

    /// A user's raw connection over HTTP/1.1.
    pub async fn user(&self) -> User {
        self.user_with("localhost", None, &[tls::ALPN_HTTP11]).await
    }

    /// A user's raw connection.
    pub async fn user_with(&self, name: &str, own: Option<&Issued>, alpn: &[&[u8]]) -> User {
        self.user_as(name, own.map(Issued::credentials), alpn).await
    }

    /// The same with a certificate of which there is no more than that.
    pub async fn user_as(&self, name: &str, own: Option<&Credentials>, alpn: &[&[u8]]) -> User {
        let roots = self.authority.roots().unwrap();
        let mut config = match own {
            Some(own) => tls::client_https_with(&roots, own, alpn).unwrap(),
            None => tls::client_https(&roots).unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
        let tcp = TcpStream::connect(self.addresses.public).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(server_name(name), tcp).await.unwrap();
        User { stream, buffer: Vec::new() }
    }

    /// One request to the admin listener: status and body.
    pub async fn admin(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut tcp = TcpStream::connect(self.addresses.admin).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        let status = answer[9..12].parse().unwrap();
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// The audit records so far.
    pub async fn audit(&self) -> Vec<serde_json::Value> {
        self.gateway.core().audit.flush().await;
        read_lines(&self.dir.path().join("audit.json"))
    }

    /// The audit file once the gateway has stopped.
    pub fn audit_text(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("audit.json")).unwrap()
    }

    /// Waits until all gauges of open things but tunnels are 0.
    pub async fn quiet(&self) {
        let metrics = &self.gateway.core().metrics;
        let open = || {
            let counts = [&metrics.requests, &metrics.streams, &metrics.sessions, &metrics.handshakes];
            counts.iter().map(|open| open.now()).sum::<i64>() + self.gateway.core().slots.taken() as i64
        };
        let all = async {
            while open() != 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, all).await.unwrap_or_else(|_| panic!("left open: {}", metrics.render()));
    }

    /// Drains and waits for the end of the gateway.
    pub async fn stop(&mut self) {
        self.gateway.drain();
        tokio::time::timeout(LONG, self.running.take().unwrap()).await.unwrap().unwrap();
    }
}

/// What agents say, all as one process.
pub fn agent_side() -> AgentSide {
    AgentSide {
        agent_version: "test".to_owned(),
        instance: [1; 16],
        features: types::version::Features::default(),
        held: Vec::new(),
        prove: Box::new(|_| Err("no proof in this test".to_owned())),
        options: SessionOptions::default(),
    }
}

/// The configuration of a world.
pub fn config(more: &str) -> String {
    config_with("", more)
}

/// The same with more about agents.
pub fn config_with(agents: &str, more: &str) -> String {
    let (a, b) = (cluster("a"), cluster("b"));
    format!(
        r#"
        [listen]
        public = "127.0.0.1:0"
        admin = "127.0.0.1:0"
        domain = "{DOMAIN}"
        [tls]
        certificate_file = "tls.crt"
        key_file = "tls.key"
        [agents]
        ca_file = "ca.crt"
        {agents}
        [audit]
        file = "audit.json"
        [[issuers]]
        name = "dev"
        url = "https://issuer.test"
        keys_file = "dev-keys.json"
        username_prefix = "dev:"
        groups_prefix = "dev:"
        [[clusters]]
        id = "{a}"
        [[clusters]]
        id = "{b}"
        [[grants]]
        cluster = "{a}"
        users = ["dev:ann"]
        groups = ["dev:ops"]
        {more}
        "#
    )
}

fn read_lines(file: &Path) -> Vec<serde_json::Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn server_name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).unwrap()
}

/// An agent that a test plays.
pub struct Agent {
    pub tunnel: TunnelHandle,
}

/// A request as it arrived at the agent.
pub struct Arrived {
    pub head: RequestHead,
    pub stream: Stream,
}

impl Agent {
    /// The next request.
    pub async fn next(&self) -> Arrived {
        let incoming = tokio::time::timeout(LONG, self.tunnel.accept()).await.unwrap().unwrap();
        Arrived { head: RequestHead::decode(incoming.head).unwrap(), stream: incoming.stream }
    }

    /// That nothing arrives: a question is answered first by the way of the tunnel, so no time passes.
    pub async fn nothing(&self) {
        let accepting = tokio::time::timeout(Duration::from_millis(200), self.tunnel.accept()).await;
        assert!(accepting.is_err(), "a request arrived at the agent");
    }
}

impl Arrived {
    /// A header that must be there at most once.
    pub fn header(&self, name: &str) -> Option<&str> {
        assert!(self.head.headers.get_all(name).iter().count() <= 1, "{name} twice");
        self.head.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Sends the head of an answer.
    pub async fn answer_head(&mut self, status: u16, headers: &[(&'static str, &str)]) {
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect();
        let head = ResponseHead { status: StatusCode::from_u16(status).unwrap(), headers: map, refused_by: None };
        self.stream.send.send(head.encode().unwrap().freeze()).await.unwrap();
    }

    /// A whole answer.
    pub async fn answer(mut self, status: u16, headers: &[(&'static str, &str)], body: &str) {
        let length = body.len().to_string();
        let headers = [headers, &[("content-length", length.as_str())]].concat();
        self.answer_head(status, &headers).await;
        self.stream.send.send(Bytes::copy_from_slice(body.as_bytes())).await.unwrap();
        self.stream.send.finish().unwrap();
    }

    /// The whole request body.
    pub async fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(chunk) = self.stream.recv.recv().await.unwrap() {
            body.extend_from_slice(&chunk);
        }
        body
    }
}

/// A user who speaks raw HTTP/1.1.
pub struct User {
    pub stream: TlsStream<TcpStream>,
    pub buffer: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl User {
    /// Sends bytes to the gateway, and flushes them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// More bytes into the buffer; false at the end.
    pub async fn more(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        match tokio::time::timeout(LONG, self.stream.read(&mut chunk)).await.expect("an answer in time") {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.buffer.extend_from_slice(&chunk[..length]);
                true
            }
        }
    }

    /// Bytes up to and with `end`.
    pub async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|w| w == end) {
                return self.buffer.drain(..at + end.len()).collect();
            }
            assert!(self.more().await, "ended within {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// The head of the next answer.
    pub async fn head(&mut self) -> Answer {
        let head = String::from_utf8(self.until(b"\r\n\r\n").await).unwrap();
        Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() }
    }

    /// The next answer, which has a length.
    pub async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        let length: usize = answer.header("content-length").unwrap_or("0").parse().unwrap();
        while self.buffer.len() < length {
            assert!(self.more().await, "ended within a body");
        }
        answer.body = self.buffer.drain(..length).collect();
        answer
    }

    /// That the connection is closed and nothing more comes.
    pub async fn closed(&mut self) {
        while self.more().await {}
        assert!(self.buffer.is_empty(), "{:?}", String::from_utf8_lossy(&self.buffer));
    }
}

/// A GET request's bytes.
pub fn get(target: &str, token: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{more}\r\n")
}

/// The path-form target of a cluster.
pub fn at(name: &str, rest: &str) -> String {
    format!("/{}{rest}", cluster(name).key())
}

/// What a head may hold, for tests that go to the limit.
pub const HEADER_LIST: usize = limits::HEADER_LIST_BYTES;
