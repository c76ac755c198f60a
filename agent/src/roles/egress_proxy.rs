//! The way of Flux to sources that only the gateway reaches (docs/gitops.md; docs/features.md N1): an HTTP proxy inside
//! the cluster that knows CONNECT and nothing else. Each connection is a stream to the gateway, which dials the source. TLS
//! is end to end between source-controller and the source, so neither this agent nor the gateway sees what is fetched, nor
//! credentials of the source.
//!
//! A client shows credentials. [`Grants`] makes them for each configuration and writes them into the Secret that the
//! configuration's source names (`proxySecretRef`). They lead to that source and nowhere else. They are valid as long as
//! this process runs; the next one makes new credentials and writes the Secrets again.
//!
//! The listener is there once the first configuration needs it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use daemon::{Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tunnel::exchange::{Counters, splice_counted};
use types::{ids::hex, random};

use super::{Entry, Role, health::Reporter};
use crate::{
    chain,
    config::Deployment,
    metrics,
    peers::{Peers, Place, Places},
    tunnel::api::{AgentApi, ApiError},
};

/// This role's name.
pub const NAME: &str = "egress-proxy";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::FluxconfigAgent],
    build: |parts| {
        let Some(settings) = &parts.config.gitops else { return Ok(None) };
        Ok(Some(Arc::new(EgressProxy {
            listen: settings.proxy_listen,
            desk: Desk::new(parts.egress.clone(), parts.api.clone()),
            health: parts.health.of(NAME),
        })))
    },
};

/// Connections that have shown no credentials yet, in all and from one address: of source-controller's pod there are a few
/// for an instant. They have places apart, so that who has no credentials keeps out nobody's opened connections.
const HEADS_MAX: usize = 256;
const HEADS_PER_PEER: usize = 32;
/// Opened connections at once, in all and of one configuration. The gateway has the same bound for a configuration.
const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_PER_CONFIGURATION: usize = 8;
/// How long a head may take, and how many bytes it may have.
const HEAD: Duration = Duration::from_secs(10);
const HEAD_BYTES: u64 = 8 * 1024;
/// A connection on which nothing moves either way ends after this. The gateway's own limit is shorter.
const IDLE: Duration = Duration::from_secs(330);
/// How often that is looked at.
const LOOKS: u32 = 10;
/// After a failed accept, such as without free files, and after an address that cannot be had.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// Characters of a reason that Flux shows: the reason phrase is all that Go's client tells of a refusal.
const REASON_CHARS: usize = 300;
/// Bytes of a password before they are text.
const PASSWORD_BYTES: usize = 32;

/// Credentials for the proxy. They do not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The owner of the source's objects.
    pub user: String,
    /// Made here, for this owner alone.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Who may use the proxy, and where to.
struct Grant {
    /// The name of the configuration, as the gateway knows it.
    configuration: String,
    /// The destination that the proxy may open, `host:port`.
    to: String,
    password: String,
}

/// The configurations whose sources are reached through the gateway. As many as there are configurations. Clones share
/// them.
#[derive(Clone)]
pub struct Grants(Arc<Shared>);

struct Shared {
    all: Mutex<HashMap<String, Grant>>,
    /// Whether there has been one.
    any: watch::Sender<bool>,
    /// Counts what is taken away or changed.
    changes: watch::Sender<u64>,
}

impl Default for Grants {
    fn default() -> Self {
        let (any, changes) = (watch::Sender::new(false), watch::Sender::new(0));
        Self(Arc::new(Shared { all: Mutex::default(), any, changes }))
    }
}

impl Grants {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Grant>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a configuration's source through: the credentials that lead to `to` (`host:port`), the same ones for as long as
    /// this process lives.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn give(&self, owner: &str, configuration: &str, to: &str) -> Result<Credentials, String> {
        let mut all = self.all();
        let password = match all.get(owner) {
            Some(known) => known.password.clone(),
            None => {
                let bytes = random::bytes::<PASSWORD_BYTES>();
                hex(&bytes.map_err(|_| "there are no random numbers".to_owned())?)
            }
        };
        let grant = Grant { configuration: configuration.to_owned(), to: to.to_owned(), password: password.clone() };
        let old = all.insert(owner.to_owned(), grant);
        drop(all);
        if old.is_some_and(|old| old.to != to) {
            self.0.changes.send_modify(|count| *count += 1);
        }
        self.0.any.send_replace(true);
        Ok(Credentials { user: owner.to_owned(), password })
    }

    /// Withdraws the grant of a configuration: its credentials are refused from now on, and its open connections end.
    pub fn take(&self, owner: &str) {
        if self.all().remove(owner).is_some() {
            self.0.changes.send_modify(|count| *count += 1);
        }
    }

    /// The name of the configuration that these credentials are of, if they lead there.
    fn judge(&self, credentials: &Credentials, to: &str) -> Result<String, Refusal> {
        let all = self.all();
        let grant = all.get(&credentials.user).filter(|grant| {
            verify_slices_are_equal(grant.password.as_bytes(), credentials.password.as_bytes()).is_ok()
        });
        let grant = grant.ok_or_else(Refusal::unauthenticated)?;
        if grant.to == to {
            return Ok(grant.configuration.clone());
        }
        let message = format!("the configuration {} has its source at {}, not at {to}", grant.configuration, grant.to);
        Err(Refusal { status: StatusCode::FORBIDDEN, result: "other_host", message })
    }

    /// Returns when these credentials no longer allow this destination.
    async fn lost(&self, credentials: &Credentials, to: &str) {
        let mut changes = self.0.changes.subscribe();
        while self.judge(credentials, to).is_ok() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Why a connection is refused.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    /// The word of the metric.
    result: &'static str,
    message: String,
}

impl Refusal {
    fn unauthenticated() -> Self {
        let message = "the credentials for the proxy are missing or no longer valid".to_owned();
        Self { status: StatusCode::PROXY_AUTHENTICATION_REQUIRED, result: "unauthenticated", message }
    }

    fn busy(configuration: &str) -> Self {
        let message = format!(
            "{CONNECTIONS_PER_CONFIGURATION} connections of the configuration {configuration}, or {CONNECTIONS_MAX} of all, are open: the limit"
        );
        Self { status: StatusCode::SERVICE_UNAVAILABLE, result: "limit", message }
    }

    fn unreadable(message: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, result: "unreadable", message: message.to_owned() }
    }

    /// Of what the gateway says, or of one that cannot be reached.
    fn of(error: &ApiError) -> Self {
        let refused = error.refused();
        let (status, result) = match refused.map(|refused| refused.status) {
            Some(403) => (StatusCode::FORBIDDEN, "gateway_refused"),
            Some(429 | 503) => (StatusCode::SERVICE_UNAVAILABLE, "gateway_busy"),
            Some(_) => (StatusCode::BAD_GATEWAY, "gateway_failed"),
            None => (StatusCode::BAD_GATEWAY, "no_gateway"),
        };
        let message = refused.map_or_else(|| error.to_string(), |refused| format!("the gateway: {}", refused.message));
        Self { status, result, message }
    }

    fn bytes(&self) -> Vec<u8> {
        let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let reason: String = self.message.chars().map(plain).take(REASON_CHARS).collect();
        let code = self.status.as_u16();
        let more = match self.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => "Proxy-Authenticate: Basic realm=\"towline\"\r\n",
            StatusCode::METHOD_NOT_ALLOWED => "Allow: CONNECT\r\n",
            _ => "",
        };
        let length = self.message.len() + 1;
        let head = format!("HTTP/1.1 {code} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n");
        format!("{head}{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{}\n", self.message).into_bytes()
    }
}

/// A request of CONNECT.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    to: String,
    credentials: Credentials,
}

impl Request {
    /// Reads a head, which ends with an empty line.
    fn of(head: &[u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(head).map_err(|_| Refusal::unreadable("the head is not text"))?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Refusal::unreadable("the first line is not a request of HTTP/1.1"));
        };
        if method != "CONNECT" {
            let message = "only CONNECT: sources are reached through the gateway by https alone".to_owned();
            return Err(Refusal { status: StatusCode::METHOD_NOT_ALLOWED, result: "not_connect", message });
        }
        let authority: http::uri::Authority =
            target.parse().map_err(|_| Refusal::unreadable("CONNECT wants host:port"))?;
        if authority.port_u16().is_none() || target.contains('@') {
            return Err(Refusal::unreadable("CONNECT wants host:port"));
        }
        let mut given = lines.filter_map(|line| line.split_once(':'));
        let given = given.find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"));
        let credentials = given.and_then(|(_, value)| basic(value)).ok_or_else(Refusal::unauthenticated)?;
        Ok(Self { to: target.to_ascii_lowercase(), credentials })
    }
}

/// The user and the password of `Basic` (RFC 7617).
fn basic(value: &str) -> Option<Credentials> {
    let (scheme, encoded) = value.trim().split_once(' ')?;
    let decoded = BASE64.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(Credentials { user: user.to_owned(), password: password.to_owned() })
}

/// What a connection needs.
#[derive(Clone)]
struct Desk {
    grants: Grants,
    gateway: AgentApi,
    /// Places of opened connections, by the configuration's owner.
    opened: Places<String>,
}

impl Desk {
    fn new(grants: Grants, gateway: AgentApi) -> Self {
        Self { grants, gateway, opened: Places::new(CONNECTIONS_MAX, CONNECTIONS_PER_CONFIGURATION) }
    }

    /// Serves one connection to its end. Its first place is for as long as it has shown no credentials.
    async fn serve(&self, socket: TcpStream, first: Place<IpAddr>) {
        let _ = socket.set_nodelay(true);
        let mut io = BufReader::new(socket);
        let asked = match timeout(HEAD, head(&mut io)).await {
            Ok(Ok(head)) => Request::of(&head),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => return metrics::egress("unreadable"),
        };
        let opened = async {
            let asked = asked?;
            let configuration = self.grants.judge(&asked.credentials, &asked.to)?;
            let place =
                self.opened.take(asked.credentials.user.clone()).ok_or_else(|| Refusal::busy(&configuration))?;
            drop(first);
            let stream = self.gateway.reach(&configuration, &asked.to).await.map_err(|error| {
                tracing::warn!(configuration, to = asked.to, error = %error, "the gateway gives no way to a source");
                Refusal::of(&error)
            })?;
            Ok::<_, Refusal>((asked, stream, place))
        };
        let (asked, stream, _place) = match opened.await {
            Ok(opened) => opened,
            Err(refusal) => {
                metrics::egress(refusal.result);
                tracing::debug!(status = refusal.status.as_u16(), why = refusal.message, "a connection is refused");
                let _ = timeout(HEAD, io.write_all(&refusal.bytes())).await;
                let _ = timeout(HEAD, io.shutdown()).await;
                return;
            }
        };
        if !matches!(timeout(HEAD, io.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")).await, Ok(Ok(()))) {
            return metrics::egress("gone");
        }
        metrics::egress("opened");
        let counters = Counters::default();
        tokio::select! {
            biased;
            () = self.grants.lost(&asked.credentials, &asked.to) => {}
            () = idle(&counters) => {}
            end = splice_counted(io, stream.send, stream.recv, &counters) => if let Err(error) = end {
                tracing::debug!(to = asked.to, error = chain(&error), "a connection to a source broke off");
            },
        }
    }
}

/// Reads a head up to its empty line, and leaves what comes behind it.
async fn head(io: &mut BufReader<TcpStream>) -> Result<Vec<u8>, Refusal> {
    let mut head = Vec::new();
    let mut limited = io.take(HEAD_BYTES);
    loop {
        // Nothing more is read at the end of what comes, and at the bound.
        let read = limited.read_until(b'\n', &mut head).await;
        if !matches!(read, Ok(1..)) || !head.ends_with(b"\n") {
            return Err(Refusal::unreadable("the head broke off, or is longer than 8 KiB"));
        }
        if head.ends_with(b"\r\n\r\n") {
            return Ok(head);
        }
    }
}

/// Returns when nothing has moved for [`IDLE`].
async fn idle(counters: &Counters) {
    let (mut seen, mut quiet) = (None, 0);
    while quiet < LOOKS {
        let now = Some((counters.sent(), counters.received()));
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        sleep(IDLE / LOOKS).await;
    }
}

/// The listener inside the cluster.
pub struct EgressProxy {
    listen: SocketAddr,
    desk: Desk,
    health: Reporter,
}

impl EgressProxy {
    /// Listens once somebody needs it.
    async fn work(&self) {
        self.health.running();
        let mut any = self.desk.grants.0.any.subscribe();
        if any.wait_for(|any| *any).await.is_err() {
            std::future::pending::<()>().await;
        }
        let listener = loop {
            match TcpListener::bind(self.listen).await {
                Ok(listener) => break listener,
                Err(err) => {
                    let message = format!("cannot listen at {}: {err}", self.listen);
                    self.health.failing("NoListener", &message);
                    sleep(LISTEN_AGAIN).await;
                }
            }
        };
        tracing::info!(address = %self.listen, "proxy to sources that the gateway reaches");
        self.health.running();
        accept(listener, self.desk.clone()).await;
    }
}

async fn accept(listener: TcpListener, desk: Desk) {
    let (tasks, peers) = (TaskGroup::new("egress proxy"), Peers::new(HEADS_MAX, HEADS_PER_PEER));
    loop {
        let (socket, peer): (TcpStream, IpAddr) = match listener.accept().await {
            Ok((socket, peer)) => (socket, peer.ip()),
            Err(err) => {
                tracing::warn!(error = %err, "cannot accept a connection to a source");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Some(place) = peers.take(peer) else {
            metrics::egress("limit");
            tracing::warn!(%peer, limit = HEADS_PER_PEER, "too many connections without credentials: one more is closed");
            continue;
        };
        let desk = desk.clone();
        tasks.spawn("connection", async move {
            desk.serve(socket, place).await;
        });
    }
}

impl Role for EgressProxy {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut work: BoxFuture<'_, ()> = Box::pin(self.work());
            let _ = shutdown.until_draining(&mut work).await;
        })
    }
}

impl Grants {
    /// Takes away all but those of these owners.
    pub fn keep(&self, owned: impl Fn(&str) -> bool) {
        let gone: HashSet<String> = self.all().keys().filter(|owner| !owned(owner)).cloned().collect();
        gone.iter().for_each(|owner| self.take(owner));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tunnel::{
        exchange::respond_head,
        transport::{Stream, memory},
        wire::head::{RequestHead, ResponseHead},
    };

    use super::*;

    /// A proxy with a gateway that a test plays.
    struct Played {
        address: SocketAddr,
        grants: Grants,
        gateway: tunnel::transport::TunnelHandle,
        _tasks: TaskGroup,
        _current: watch::Sender<Option<tunnel::transport::TunnelHandle>>,
    }

    impl Played {
        async fn new() -> Self {
            let (gateway, agent) = memory::pair().await;
            let current = watch::Sender::new(Some(agent));
            let desk = Desk::new(Grants::default(), AgentApi::new(current.subscribe()));
            let grants = desk.grants.clone();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let tasks = TaskGroup::new("test");
            tasks.spawn("proxy", accept(listener, desk));
            Self { address, grants, gateway, _tasks: tasks, _current: current }
        }

        /// The next stream that reaches the gateway.
        async fn arrived(&self) -> (RequestHead, Stream) {
            let incoming = self.gateway.accept().await.unwrap();
            (RequestHead::decode(incoming.head).unwrap(), incoming.stream)
        }

        async fn ask(&self, request: &str) -> TcpStream {
            let mut socket = TcpStream::connect(self.address).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            socket
        }

        /// All that is answered where no connection comes about.
        async fn refused(&self, request: &str) -> String {
            let mut text = String::new();
            self.ask(request).await.read_to_string(&mut text).await.unwrap();
            text
        }
    }

    fn connect(to: &str, credentials: &Credentials) -> String {
        let encoded = BASE64.encode(format!("{}:{}", credentials.user, credentials.password));
        format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic {encoded}\r\n\r\n")
    }

    async fn answer(stream: &mut Stream, status: StatusCode) {
        let head = ResponseHead { status, headers: http::HeaderMap::new(), refused_by: None };
        respond_head(&mut stream.send, &head).await.unwrap();
    }

    const TO: &str = "git.example.org:443";

    #[tokio::test]
    async fn n1_bytes_go_both_ways_through_the_gateway() {
        let played = Played::new().await;
        let credentials = played.grants.give("shop", "shop", TO).unwrap();
        // The client sends data before it has read the answer; that data arrives too.
        let mut socket = played.ask(&format!("{}hello", connect("GIT.example.org:443", &credentials))).await;
        let (head, mut stream) = played.arrived().await;
        assert_eq!((head.role.as_str(), head.method), ("egress", http::Method::CONNECT));
        assert_eq!(head.target, Bytes::from_static(b"/v1/egress?configuration=shop&to=git.example.org:443"));
        assert!(head.headers.is_empty(), "credentials of the proxy stay in the cluster");
        answer(&mut stream, StatusCode::OK).await;
        let mut line = [0; 39];
        socket.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"HTTP/1.1 200 Connection established\r\n\r\n");
        assert_eq!(stream.recv.recv().await.unwrap().unwrap(), Bytes::from_static(b"hello"));
        stream.send.send(Bytes::from_static(b"there")).await.unwrap();
        stream.send.finish().unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "there");
    }

    #[tokio::test]
    async fn n1_who_has_no_credentials_gets_nowhere() {
        let played = Played::new().await;
        let known = played.grants.give("shop", "shop", TO).unwrap();
        let other = played.grants.give("other", "other", "other.example.org:443").unwrap();
        assert_ne!(known.password, other.password);
        assert_eq!(
            played.grants.give("shop", "shop", TO).unwrap(),
            known,
            "the same ones as long as the process lives"
        );
        let wrong = Credentials { user: "shop".to_owned(), password: other.password.clone() };
        let unknown = Credentials { user: "nobody".to_owned(), password: String::new() };
        for request in [
            connect(TO, &wrong),
            connect(TO, &unknown),
            format!("CONNECT {TO} HTTP/1.1\r\n\r\n"),
            format!("CONNECT {TO} HTTP/1.1\r\nProxy-Authorization: Bearer {}\r\n\r\n", known.password),
        ] {
            let answer = played.refused(&request).await;
            assert!(answer.starts_with("HTTP/1.1 407 ") && answer.contains("Proxy-Authenticate: Basic"), "{answer}");
            assert!(!answer.contains(&known.password), "{answer}");
        }
        let answer = played.refused(&connect(TO, &other)).await;
        assert!(answer.starts_with("HTTP/1.1 403 the configuration other has its source at other.example.org:443"));
        for (request, status) in [
            (format!("GET http://{TO}/ HTTP/1.1\r\n\r\n"), "405"),
            ("CONNECT git.example.org HTTP/1.1\r\n\r\n".to_owned(), "400"),
            (format!("CONNECT user@{TO} HTTP/1.1\r\n\r\n"), "400"),
            ("nonsense\r\n\r\n".to_owned(), "400"),
        ] {
            let answer = played.refused(&request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
        played.grants.take("shop");
        assert!(played.refused(&connect(TO, &known)).await.starts_with("HTTP/1.1 407 "));
        assert!(!format!("{known:?}").contains(&known.password));
    }

    #[tokio::test]
    async fn n1_what_the_gateway_refuses_is_the_reason_that_flux_shows() {
        let played = Played::new().await;
        let credentials = played.grants.give("shop", "shop", TO).unwrap();
        let asking = async { played.refused(&connect(TO, &credentials)).await };
        let answering = async {
            let (_, mut stream) = played.arrived().await;
            answer(&mut stream, StatusCode::FORBIDDEN).await;
            let body = r#"{"error": {"code": "EgressNotAllowed", "message": "not\r\nin the list."}}"#;
            stream.send.send(Bytes::from_static(body.as_bytes())).await.unwrap();
            stream.send.finish().unwrap();
            stream
        };
        let (answer, _stream) = tokio::join!(asking, answering);
        assert!(answer.starts_with("HTTP/1.1 403 the gateway: notin the list.\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn n1_connections_end_where_their_configuration_goes_elsewhere() {
        let played = Played::new().await;
        let credentials = played.grants.give("shop", "shop", TO).unwrap();
        let mut socket = played.ask(&connect(TO, &credentials)).await;
        let (_, mut stream) = played.arrived().await;
        answer(&mut stream, StatusCode::OK).await;
        let mut line = [0; 39];
        socket.read_exact(&mut line).await.unwrap();
        played.grants.give("shop", "shop", "elsewhere.example.org:443").unwrap();
        assert!(stream.recv.recv().await.is_err(), "a connection that was cut has no clean end");
        assert!(socket.read(&mut line).await.is_ok_and(|read| read == 0));
        played.grants.keep(|owner| owner != "shop");
        assert!(played.grants.all().is_empty());
    }

    #[tokio::test]
    async fn n1_neither_a_configuration_nor_who_has_no_credentials_keeps_others_out() {
        let played = Played::new().await;
        let shop = played.grants.give("shop", "shop", TO).unwrap();
        let other = played.grants.give("other", "other", TO).unwrap();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_PER_CONFIGURATION {
            let socket = played.ask(&connect(TO, &shop)).await;
            held.push((socket, played.arrived().await));
        }
        let answer = played.refused(&connect(TO, &shop)).await;
        assert!(answer.starts_with("HTTP/1.1 503 8 connections of the configuration shop"), "{answer}");
        // Silent ones of one address have a bound of their own, and the open connections none of their places.
        let mut silent = Vec::new();
        for _ in 0..HEADS_PER_PEER {
            silent.push(TcpStream::connect(played.address).await.unwrap());
        }
        let mut over = TcpStream::connect(played.address).await.unwrap();
        assert!(over.read(&mut [0]).await.is_ok_and(|read| read == 0), "one more is closed");
        drop(silent.pop());
        // The place is free once the proxy has seen that end.
        let opened = loop {
            let mut socket = played.ask(&connect(TO, &other)).await;
            tokio::select! {
                arrived = played.arrived() => break (socket, arrived),
                _ = socket.read_u8() => {}
            }
        };
        assert_eq!(opened.1.0.target, Bytes::from_static(b"/v1/egress?configuration=other&to=git.example.org:443"));
        drop((held, silent));
    }

    #[tokio::test]
    async fn n1_a_head_is_bounded() {
        let played = Played::new().await;
        let long = format!("CONNECT {TO} HTTP/1.1\r\nX: {}", "x".repeat(9000));
        let mut socket = TcpStream::connect(played.address).await.unwrap();
        socket.write_all(long.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 400");
    }

    /// Read again where nothing more comes, each would hold a thread for as long as the program runs.
    #[tokio::test]
    async fn n1_a_head_that_stops_behind_a_line_is_refused() {
        let played = Played::new().await;
        let at_the_bound = format!("{}\n", "x".repeat(8191));
        let empty = "\n".repeat(8192);
        for head in [at_the_bound.as_str(), &empty, "CONNECT a:1 HTTP/1.1\r\n"] {
            let mut socket = TcpStream::connect(played.address).await.unwrap();
            socket.write_all(head.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut answer = [0; 12];
            socket.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 400");
        }
    }
}
