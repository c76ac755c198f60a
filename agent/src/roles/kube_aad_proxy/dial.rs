//! Connections to the apiserver: HTTP/2 for plain requests, as many connections as the streams need (an apiserver allows
//! about 100 streams on one; 1,000 watches must fit), HTTP/1.1 where ALPN says so, connections apart for answers that may come
//! in drops, and one HTTP/1.1 connection for each upgrade, never used again after anything but 101 (CVE-2018-1002105).
//!
//! Nothing is sent twice: a request goes to another connection only while none of it has left (hyper hands it back), or
//! when the apiserver said with GOAWAY or REFUSED_STREAM that it did not look at it, it is safe, and it has no body.
//! Redirects are answers like any other (CVE-2020-8559, CVE-2022-3172).

pub mod access;
pub mod body;
mod tasks;

use std::{
    future::Future as _,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, Response, Uri, Version, header, uri};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::{
    kubernetes::RequestInfo,
    limits,
    process::TaskGroup,
    transport::cork::{Turns, cork},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::{
    access::{Access, AccessError},
    body::{AnswerBody, RequestBody},
    tasks::ConnectionTasks,
};
use super::{admit::percent_decode, impersonate::UpstreamHead};

/// Streams on one HTTP/2 connection, below what an apiserver allows (100).
const STREAMS_PER_CONNECTION: usize = 64;
/// HTTP/2 connections at the most; together they carry what one cluster may have open.
const CONNECTIONS_MAX: usize = 256;
/// Idle HTTP/1.1 connections that are kept.
const IDLE_MAX: usize = 64;
/// How long an idle connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// What one stream may have in flight from the apiserver before its reader took anything. The apiserver is near.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Room for every stream's window, so that stalled readers never block others of the connection; several times that, for h2
/// makes of half of it what small frames may cost it beside their bytes, over which it ends the connection: enough for events
/// of 28 bytes on average, which none has.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 1024;
/// HTTP/2 frames at the most.
const FRAME_BYTES: u32 = 256 * 1024;
/// What one stream may queue towards the apiserver.
const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// Buffer of an HTTP/1.1 connection: a whole head must fit.
const HTTP1_BUFFER_BYTES: usize = 512 * 1024;
/// Looking up the name, connecting and TLS, each.
const STEP_DEADLINE: Duration = Duration::from_secs(10);
/// How long others wait for a dial before the next of them dials too: one backend of the apiserver that does not answer must not
/// hold up what another would take (lesson 1). A handshake in a cluster takes a few milliseconds; at most 60 dials hang at once.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a busy or idle HTTP/2 connection is probed, and how long the answer may take (lesson 11). Together as long as
/// client-go waits: hundreds of watches hang on one connection, and on a starved machine an answer may take ten seconds.
const PING_PERIOD: Duration = Duration::from_secs(15);
const PING_DEADLINE: Duration = Duration::from_secs(30);
/// The same for HTTP/1.1, which cannot ask whether the apiserver is still there.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(PING_PERIOD).with_interval(Duration::from_secs(10)).with_retries(3);
/// How many connections a request that was not sent may try.
const ATTEMPTS: usize = 4;

/// Why the apiserver gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The agent's own credential cannot be had.
    #[error("the agent's own credential for the apiserver")]
    Credential(#[source] AccessError),
    /// No connection: the name, TCP or TLS. Nothing was sent.
    #[error("cannot connect to the apiserver at {address}: {step}")]
    Connect {
        /// `host:port`.
        address: String,
        /// Which step failed, and how.
        step: String,
    },
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
    /// The connection broke after the request, or a part of it, was sent.
    #[error("the apiserver broke off before it answered")]
    Broken(#[source] hyper::Error),
    /// Each connection that was tried closed before the request was sent.
    #[error("no connection to the apiserver lasted long enough")]
    Attempts,
}

/// The cluster's apiserver.
pub struct Apiserver {
    access: Access,
    authority: uri::Authority,
    pool: Arc<Pool>,
    /// Connections without the agent's client certificate, for tokens that are passed through.
    bare: Arc<Pool>,
    tasks: TaskGroup,
}

#[derive(Default)]
pub(super) struct Pool {
    connections: Mutex<Connections>,
    /// Who dials for all, unless that takes long.
    dialling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Connections {
    http2: Vec<Http2>,
    idle: Idle,
    /// What was dialled for answers in drops, and is for nothing else: where HTTP/2 is spoken it has GOAWAY, and is better.
    idle_for_drops: Idle,
}

/// Connections of HTTP/1.1 that wait for another request, and since when.
#[derive(Default)]
struct Idle(Vec<(http1::SendRequest<RequestBody>, Instant)>);

struct Http2 {
    send: http2::SendRequest<RequestBody>,
    load: Arc<Load>,
    /// How many streams the apiserver allows now.
    allowed: Arc<AtomicUsize>,
}

/// Streams open on a connection.
struct Load {
    /// What is told of each request.
    turns: Turns,
    streams: AtomicUsize,
    idle_since: Mutex<Instant>,
}

/// A claim on a connection; held until the answer's body is dropped.
pub(super) enum Lease {
    /// One stream of an HTTP/2 connection, held for its drop.
    Stream(#[expect(dead_code, reason = "held for its drop")] Claim),
    /// A whole HTTP/1.1 connection, given back when the answer was read to its end.
    Connection(Option<http1::SendRequest<RequestBody>>, Arc<Pool>, Pace),
}

/// One stream of a connection.
pub(super) struct Claim(Arc<Load>);

/// How an answer comes, and so on which connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As the apiserver makes it.
    Flows,
    /// In drops, at whatever pace a pod likes: a log that is followed, what is proxied to a service. The apiserver makes a frame
    /// of each, and of what their reader leaves unread h2 keeps every frame: hundreds of bytes for one, and beyond an allowance
    /// it ends the connection, with all that others have on it. HTTP/1.1 leaves it to the socket.
    Drips,
    /// The same while a body may still be on its way, which Go's HTTP/1.1 reads before it answers: HTTP/2, and no others on
    /// the connection.
    DripsBothWays,
}

enum Sender {
    Http2(http2::SendRequest<RequestBody>, Claim),
    Http1(http1::SendRequest<RequestBody>),
}

impl Connections {
    /// What is closed or has been idle for long.
    fn retire(&mut self) {
        self.http2.retain(|connection| !connection.send.is_closed() && !connection.load.idle_for(IDLE_TIME));
        self.idle.retire();
        self.idle_for_drops.retire();
    }

    fn idle(&mut self, pace: Pace) -> &mut Idle {
        match pace {
            Pace::Drips => &mut self.idle_for_drops,
            Pace::Flows | Pace::DripsBothWays => &mut self.idle,
        }
    }
}

impl Idle {
    fn retire(&mut self) {
        self.0.retain(|(send, since)| !send.is_closed() && since.elapsed() < IDLE_TIME);
    }

    fn take(&mut self) -> Option<Sender> {
        let ready = self.0.iter().rposition(|(send, _)| send.is_ready())?;
        Some(Sender::Http1(self.0.swap_remove(ready).0))
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection with room, if there is one.
    fn take(&self) -> Option<Sender> {
        let mut connections = self.lock();
        connections.retire();
        let full = connections.http2.len() >= CONNECTIONS_MAX;
        let room = |connection: &&Http2| {
            full || connection.load.streams() < connection.allowed.load(Ordering::Relaxed).min(STREAMS_PER_CONNECTION)
        };
        // The first with room, so that the last ones become idle; when all are full, the least loaded.
        let chosen = if full {
            connections.http2.iter().min_by_key(|connection| connection.load.streams())
        } else {
            connections.http2.iter().find(room)
        };
        if let Some(connection) = chosen {
            return Some(Sender::Http2(connection.send.clone(), connection.load.claim()));
        }
        connections.idle.take()
    }

    /// The same for an answer in drops.
    fn take_for_drops(&self) -> Option<Sender> {
        let mut connections = self.lock();
        connections.retire();
        connections.idle_for_drops.take()
    }

    fn add(&self, send: http2::SendRequest<RequestBody>, allowed: Arc<AtomicUsize>, turns: Turns) -> Sender {
        let load = Load::new(turns);
        let claim = load.claim();
        self.lock().http2.push(Http2 { send: send.clone(), load, allowed });
        Sender::Http2(send, claim)
    }

    fn give_back(&self, send: http1::SendRequest<RequestBody>, pace: Pace) {
        let mut connections = self.lock();
        let Idle(idle) = connections.idle(pace);
        if !send.is_closed() && idle.len() < IDLE_MAX {
            idle.push((send, Instant::now()));
        }
    }
}

impl Load {
    fn new(turns: Turns) -> Arc<Self> {
        Arc::new(Self { turns, streams: AtomicUsize::new(0), idle_since: Mutex::new(Instant::now()) })
    }

    fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    fn idle_for(&self, time: Duration) -> bool {
        self.streams() == 0 && self.idle_since.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= time
    }

    fn claim(self: &Arc<Self>) -> Claim {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Claim(self.clone())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    /// The answer was read to its end.
    pub(super) fn finished(&mut self) {
        if let Self::Connection(send, pool, pace) = self
            && let Some(send) = send.take()
        {
            pool.give_back(send, *pace);
        }
    }
}

impl Apiserver {
    /// Nothing is dialled yet. Connections run as tasks of `tasks`.
    pub fn new(access: Access, tasks: TaskGroup) -> Result<Self, DialError> {
        let authority = access.authority().parse().map_err(|err: uri::InvalidUri| DialError::Request(err.into()))?;
        Ok(Self { access, authority, pool: Arc::default(), bare: Arc::default(), tasks })
    }

    /// How it is reached.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// HTTP/2 connections open now, and streams on them.
    pub fn open(&self) -> (usize, usize) {
        let count = |pool: &Pool| {
            let connections = pool.lock();
            (
                connections.http2.len(),
                connections.http2.iter().map(|connection| connection.load.streams()).sum::<usize>(),
            )
        };
        let (own, bare) = (count(&self.pool), count(&self.bare));
        (own.0 + bare.0, own.1 + bare.1)
    }

    /// Sends a plain request; completes with the head of the answer. Dropping the future or the answer's body cancels
    /// the request at the apiserver.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for what it is given twice")]
    pub fn send(
        &self,
        head: &mut UpstreamHead,
        mut body: RequestBody,
    ) -> impl Future<Output = Result<Response<AnswerBody>, DialError>> {
        async move {
            self.authorize(head).await?;
            let repeatable = head.method().is_safe() && body.is_empty();
            let pace = pace(head, repeatable);
            for _ in 0..ATTEMPTS {
                match self.acquire(head, pace).await? {
                    Sender::Http2(mut send, claim) => {
                        let request = self.request(head, Version::HTTP_2, body)?;
                        claim.0.turns.hand();
                        match send.try_send_request(request).await {
                            Ok(answer) => {
                                return Ok(answer.map(|body| AnswerBody::new(body, Some(Lease::Stream(claim)))));
                            }
                            Err(mut err) => match err.take_message() {
                                Some(unsent) => body = unsent.into_body(),
                                None if repeatable && was_not_looked_at(err.error()) => body = RequestBody::empty(),
                                None => return Err(DialError::Broken(err.into_error())),
                            },
                        }
                    }
                    Sender::Http1(mut send) => {
                        let request = self.request(head, Version::HTTP_11, body)?;
                        match send.try_send_request(request).await {
                            Ok(answer) => {
                                let pool = self.pool(head.needs_own_credential()).clone();
                                let lease = Lease::Connection(Some(send), pool, pace);
                                return Ok(answer.map(|body| AnswerBody::new(body, Some(lease))));
                            }
                            Err(mut err) => match err.take_message() {
                                Some(unsent) => body = unsent.into_body(),
                                None => return Err(DialError::Broken(err.into_error())),
                            },
                        }
                    }
                }
            }
            Err(DialError::Attempts)
        }
    }

    /// Sends an upgrade request on a connection of its own. The connection lives in the answer: after 101 it is the
    /// upgraded one, after anything else it ends with the answer's body.
    pub async fn upgrade(&self, head: &mut UpstreamHead) -> Result<Response<Incoming>, DialError> {
        self.authorize(head).await?;
        let tls = self.connect(true, head.needs_own_credential()).await?;
        let mut send = self.http1(tls).await?;
        let request = self.request(head, Version::HTTP_11, RequestBody::empty())?;
        send.send_request(request).await.map_err(DialError::Broken)
    }

    /// Writes the agent's own credential, where it goes with the request.
    async fn authorize(&self, head: &mut UpstreamHead) -> Result<(), DialError> {
        if head.needs_own_credential()
            && let Some(own) = self.access.authorization().await.map_err(DialError::Credential)?
        {
            head.authorize(own);
        }
        Ok(())
    }

    fn request(
        &self,
        head: &UpstreamHead,
        version: Version,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, DialError> {
        let mut uri = uri::Parts::default();
        uri.path_and_query = Some(head.target().clone());
        if version == Version::HTTP_2 {
            uri.scheme = Some(uri::Scheme::HTTPS);
            uri.authority = Some(self.authority.clone());
        }
        let uri = Uri::from_parts(uri).map_err(|err| DialError::Request(err.into()))?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method().clone();
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        *request.headers_mut() = head.headers().clone();
        if version != Version::HTTP_2 {
            let host = HeaderValue::from_str(self.authority.as_str()).map_err(|err| DialError::Request(err.into()))?;
            request.headers_mut().insert(header::HOST, host);
            // hyper drops the body of a GET or HEAD whose length nobody declared, without a word.
            if !http_body::Body::is_end_stream(request.body())
                && !request.headers().contains_key(header::CONTENT_LENGTH)
            {
                request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        Ok(request)
    }

    fn pool(&self, own: bool) -> &Arc<Pool> {
        if own { &self.pool } else { &self.bare }
    }

    /// A connection with room; dials one at a time, so that a burst shares what it opens, unless that takes long.
    async fn acquire(&self, head: &UpstreamHead, pace: Pace) -> Result<Sender, DialError> {
        let own = head.needs_own_credential();
        let pool = self.pool(own);
        let kept = match pace {
            Pace::Flows => pool.take(),
            Pace::Drips => pool.take_for_drops(),
            Pace::DripsBothWays => None,
        };
        if let Some(sender) = kept {
            return Ok(sender);
        }
        // In boxes of their own: few requests dial, and every one would carry the room for TLS and HTTP/2 handshakes.
        match pace {
            Pace::Flows => Box::pin(self.dial(own)).await,
            Pace::Drips => Box::pin(self.dial_for_drops(own)).await,
            Pace::DripsBothWays => Box::pin(self.dial_alone(own)).await,
        }
    }

    /// HTTP/1.1 for requests without a body, which the apiserver takes at once or not at all. `own` is whether it may show the
    /// agent's certificate.
    async fn dial_for_drops(&self, own: bool) -> Result<Sender, DialError> {
        let tls = self.connect(true, own).await?;
        // Keep-alive says nothing while a request waits to be acknowledged.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(tls.get_ref().0).set_tcp_user_timeout(Some(PING_PERIOD + PING_DEADLINE));
        self.http1(tls).await.map(Sender::Http1)
    }

    /// A connection that no other request gets.
    async fn dial_alone(&self, own: bool) -> Result<Sender, DialError> {
        let tls = self.connect(false, own).await?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return self.http1(tls).await.map(Sender::Http1);
        }
        let (send, _, turns) = self.http2(tls).await?;
        Ok(Sender::Http2(send, Load::new(turns).claim()))
    }

    async fn dial(&self, own: bool) -> Result<Sender, DialError> {
        let pool = self.pool(own);
        let mut dialling = Some(pool.dialling.lock().await);
        if let Some(sender) = pool.take() {
            return Ok(sender);
        }
        let mut connecting = pin!(self.connect(false, own));
        let tls = match tokio::time::timeout(PATIENCE, &mut connecting).await {
            Ok(tls) => tls?,
            Err(_) => {
                dialling = None;
                connecting.await?
            }
        };
        if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (send, allowed, turns) = self.http2(tls).await?;
            return Ok(pool.add(send, allowed, turns));
        }
        // HTTP/1.1 carries one request at a time: others need not wait for this one's handshake.
        drop(dialling);
        Ok(Sender::Http1(self.http1(tls).await?))
    }

    async fn connect(&self, http1: bool, own: bool) -> Result<TlsStream<TcpStream>, DialError> {
        let failed = |step: String| DialError::Connect { address: self.authority.to_string(), step };
        let late = |what: &str| failed(format!("{what} took longer than {} s", STEP_DEADLINE.as_secs()));
        let addresses: Vec<SocketAddr> =
            tokio::time::timeout(STEP_DEADLINE, tokio::net::lookup_host((self.access.host(), self.access.port())))
                .await
                .map_err(|_| late("looking up the name"))?
                .map_err(|err| failed(format!("looking up the name: {err}")))?
                .collect();
        let tcp = tokio::time::timeout(STEP_DEADLINE, TcpStream::connect(&addresses[..]))
            .await
            .map_err(|_| late("connecting"))?
            .map_err(|err| failed(format!("connecting: {err}")))?;
        tcp.set_nodelay(true).map_err(|err| failed(format!("socket option: {err}")))?;
        // A system that refuses it still works.
        let _ = SockRef::from(&tcp).set_tcp_keepalive(&KEEPALIVE);
        let connector = TlsConnector::from(self.access.tls(http1, own));
        tokio::time::timeout(STEP_DEADLINE, connector.connect(self.access.server_name(), tcp))
            .await
            .map_err(|_| late("TLS"))?
            .map_err(|err| failed(format!("TLS: {err}")))
    }

    async fn http2(
        &self,
        tls: TlsStream<TcpStream>,
    ) -> Result<(http2::SendRequest<RequestBody>, Arc<AtomicUsize>, Turns), DialError> {
        let header_bytes = u32::try_from(limits::HEADER_LIST_BYTES).unwrap_or(u32::MAX);
        let (io, cork) = cork(tls);
        let (turns, tasks) = (cork.turns(), ConnectionTasks::new(self.tasks.clone()));
        let (send, connection) = http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(header_bytes)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_PERIOD)
            .keep_alive_timeout(PING_DEADLINE)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(DialError::Broken)?;
        let allowed = Arc::new(AtomicUsize::new(STREAMS_PER_CONNECTION));
        let allows = allowed.clone();
        let mut connection = Box::pin(connection);
        let run = std::future::poll_fn(move |cx| {
            let ended = connection.as_mut().poll(cx);
            allows.store(connection.current_max_send_streams(), Ordering::Relaxed);
            ended
        });
        let run = async move {
            if let Err(err) = run.await {
                tracing::debug!(error = %err, "connection to the apiserver ended");
            }
        };
        self.tasks.spawn("apiserver connection", cork.drive(tasks.beside_socket(run)));
        Ok((send, allowed, turns))
    }

    async fn http1(&self, tls: TlsStream<TcpStream>) -> Result<http1::SendRequest<RequestBody>, DialError> {
        let (send, connection) = http1::Builder::new()
            .max_headers(limits::HEADER_COUNT)
            .max_buf_size(HTTP1_BUFFER_BYTES)
            .handshake(TokioIo::new(tls))
            .await
            .map_err(DialError::Broken)?;
        self.tasks.spawn("apiserver connection", async move {
            if let Err(err) = connection.with_upgrades().await {
                tracing::debug!(error = %err, "connection to the apiserver ended");
            }
        });
        Ok(send)
    }
}

/// `repeatable` is a request that changes nothing and has no body.
fn pace(head: &UpstreamHead, repeatable: bool) -> Pace {
    // As the apiserver reads it, which decodes.
    let path = percent_decode(head.target().path().as_bytes());
    if !path.split(|byte| *byte == b'/').any(|part| matches!(part, b"log" | b"proxy")) {
        return Pace::Flows;
    }
    // Others may be called so.
    let info = RequestInfo::parse(head.method(), &String::from_utf8_lossy(&path), head.target().query());
    if info.verb != "proxy" && !matches!(&*info.subresource, "log" | "proxy") {
        Pace::Flows
    } else if repeatable {
        Pace::Drips
    } else {
        Pace::DripsBothWays
    }
}

/// Whether the apiserver said that it never processed the stream (RFC 9113 sections 6.8 and 8.7).
fn was_not_looked_at(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(err) = source {
        if let Some(err) = err.downcast_ref::<h2::Error>() {
            return err.is_remote() && (err.is_go_away() || err.reason() == Some(h2::Reason::REFUSED_STREAM));
        }
        source = err.source();
    }
    false
}
