//! TLS and HTTP on the user's socket: limits on connections, handshakes, headers and idle time. What a request is
//! answered by, [`serve`] finds out.
//!
//! One TCP port is shared: ALPN `towline/1` is an agent's HTTP/2 carrier, `h2` and `http/1.1` are users, and the
//! WebSocket carrier is a path of the latter. A tunnel's credential is nothing on the users' side and the other way
//! round.

pub mod flood;
pub mod framing;
mod linger;
pub mod serve;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use certs::{Peer, PeerIdentity, tls};
use daemon::{Phase, chain};
use futures_util::FutureExt as _;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn, upgrade::Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::server::TlsStream;
use tunnel::transport::cork::cork;
use types::limits;

use self::{
    flood::Frames,
    framing::{Framing, InTurn, Note, Notes, Timeouts},
    linger::Linger,
};
use crate::{
    admission::{accept, limit::Unread},
    core::Core,
    identity::{Access, Holder, Proof},
    metrics::labels::Cause,
    named::Named,
    places::Admission,
    replicas::Replicas,
    request::{
        Connection,
        address::{LongTarget, ServerName},
        respond::Body,
    },
    sessions::cut::{Streams, cuttable},
};

/// Streams that a user may have open at once in one HTTP/2 connection.
const H2_STREAMS: u32 = 4096;
/// Resets of streams that were not answered yet, before the connection ends (CVE-2023-44487).
const H2_PENDING_RESETS: usize = 200;
/// Resets that a client provokes, before the connection ends (CVE-2025-8671).
const H2_LOCAL_RESETS: usize = 1024;
/// What one HTTP/2 stream may have queued unsent, in bytes.
const H2_SEND_BYTES: usize = 512 * 1024;
/// Interval of pings on an idle HTTP/2 connection, and the time within which each must be answered.
const H2_PING: Duration = Duration::from_secs(30);
/// A user who is gone without a word, such as one behind a NAT that forgot the connection, is noticed within 2 minutes.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);
/// Connections that the system takes before they are accepted.
const BACKLOG: u32 = 1024;
/// A pause after a failed bind.
const BIND_AGAIN: Duration = Duration::from_millis(250);
/// How long an idle connection may take to answer that it is to end.
const GOODBYE: Duration = Duration::from_secs(2);

/// Accepts connections until the gateway drains. A replica accepts them only while it admits requests: a balancer gives
/// connections to who has the fewest, and one that answers 503 to all would get them all.
pub async fn accept(core: Arc<Core>, listener: TcpListener) {
    let (replicas, address) = match (core.replicas.clone(), listener.local_addr()) {
        (Some(replicas), Ok(address)) => (replicas, address),
        _ => return accept_until(&core, &listener, core.shutdown.draining()).await,
    };
    let mut listener = Some(listener).filter(|_| replicas.look_at_admission());
    loop {
        let open = match listener.take() {
            Some(open) => open,
            None => tokio::select! {
                biased;
                () = core.shutdown.draining() => return,
                open = listening_again(&replicas, address) => open,
            },
        };
        replicas.listens(true);
        let end = async {
            tokio::select! {
                biased;
                () = core.shutdown.draining() => {}
                () = replicas.admission(false) => {}
            }
        };
        accept_until(&core, &open, end).await;
        replicas.listens(false);
        if core.shutdown.phase() != Phase::Ready {
            return;
        }
        // Whom the system has connected already is not cut off without a word.
        while let Some(Ok((socket, peer))) = open.accept().now_or_never() {
            admit(&core, socket, peer);
        }
    }
}

/// Refuses connections until requests are admitted again, and listens then.
async fn listening_again(replicas: &Replicas, address: SocketAddr) -> TcpListener {
    loop {
        let bound = async {
            let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
            socket.set_reuseaddr(true)?;
            // Nobody else gets the port meanwhile. What is bound and does not listen refuses connections.
            socket.bind(address)?;
            replicas.admission(true).await;
            socket.listen(BACKLOG)
        };
        match bound.await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::error!(%address, %error, "users and agents cannot be listened for; it is tried again");
                tokio::time::sleep(BIND_AGAIN).await;
            }
        }
    }
}

/// Accepts connections until `end` completes.
async fn accept_until(core: &Arc<Core>, listener: &TcpListener, end: impl Future<Output = ()>) {
    let mut end = std::pin::pin!(end);
    while let Some((socket, peer)) = accept::next(end.as_mut(), listener, "users and agents").await {
        admit(core, socket, peer);
        core.pace.turn().await;
    }
}

/// Serves a connection in a task of its own, where there is room for it.
fn admit(core: &Arc<Core>, socket: TcpStream, peer: SocketAddr) {
    let peer = canonical(peer);
    let Some(admission) = core.admissions.connection(peer.ip(), &core.limits()) else {
        core.refusals.record(peer, Cause::Connections, "too many connections");
        return;
    };
    let served = Arc::clone(core);
    core.tasks.spawn("connection", async move {
        if let Err(error) = connection(&served, socket, peer, admission).await {
            ended(&served, peer, &error);
        }
    });
}

/// An IPv4 address that arrived on an IPv6 socket, as IPv4.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// Why a connection ended is worth a record where somebody was refused, and not where they went away.
fn ended(core: &Core, peer: SocketAddr, error: &io::Error) {
    match Cause::of(error) {
        Some(cause) => {
            if cause == Cause::Http2 {
                core.unproven.ended(peer.ip());
            }
            core.refusals.record(peer, cause, &chain(error));
        }
        None => tracing::debug!(%peer, error = %chain(error), "connection ended"),
    }
}

async fn connection(core: &Arc<Core>, socket: TcpStream, peer: SocketAddr, admission: Admission) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE)?;
    let (stream, named) = {
        let Some(_handshake) = core.admissions.handshake(peer.ip(), &core.limits()) else {
            core.refusals.record(peer, Cause::Handshakes, "too many handshakes");
            return Ok(());
        };
        let _open = core.metrics.handshakes.enter();
        let (acceptor, named) = core.tls_acceptor();
        let handshake = Box::pin(core.pace.steps(acceptor.accept(socket)));
        let stream = tokio::time::timeout(limits::HELLO_DEADLINE, handshake)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "TLS handshake took too long"))??;
        (stream, named)
    };
    let (_, session) = stream.get_ref();
    let suffix = named.as_deref().map(Named::suffix);
    let server_name = ServerName::of(session.server_name(), core.names.domain.as_deref(), suffix);
    let certificates: Vec<_> =
        session.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
    match session.alpn_protocol() {
        Some(tls::ALPN_TUNNEL) if server_name.is_bound() => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "an agent's tunnel at a cluster's name for users"))
        }
        Some(tls::ALPN_TUNNEL) => {
            drop(admission);
            // Boxed, so that the futures of users' connections stay small.
            Box::pin(crate::tunnels::accept::http2(Arc::clone(core), Box::new(stream), peer, certificates)).await;
            Ok(())
        }
        alpn => {
            let h2 = alpn == Some(tls::ALPN_H2);
            let access = access(core, &certificates);
            let requests = AtomicU64::new(0);
            // Who showed a certificate has proved in the handshake that an authority here knows them.
            let standing = core.unproven.standing(peer.ip(), !certificates.is_empty());
            let address = Bytes::from(peer.to_string());
            let connection =
                Arc::new(Connection { peer, address, server_name, access, certificates, requests, standing });
            let _open = core.metrics.connections.enter();
            let _admission = admission;
            let core = Arc::clone(core);
            if h2 { serve_h2(core, stream, connection).await } else { serve_h1(core, stream, connection).await }
        }
    }
}

/// Completes when a connection is to take no more requests.
async fn ending(core: &Core, connection: &Connection) {
    tokio::select! {
        () = core.shutdown.draining() => {}
        () = untrusted(core, connection) => {}
        () = fenced(core) => {}
    }
}

/// Completes when so many requests of a connection were refused before anybody knew whose they are that it is to end.
async fn spent(core: &Core, connection: &Connection) {
    connection.standing.spent().await;
    core.unproven.ended(connection.peer.ip());
    core.refusals.record(connection.peer, Cause::Unproven, "too many of its requests without an identity were refused");
}

/// The answer where too many requests wait that nobody has looked at yet.
fn too_many_wait(core: &Core, connection: &Connection) -> Response<Body> {
    core.refusals.record(connection.peer, Cause::Unproven, "too many requests without an identity wait for a turn");
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
    response
}

/// Completes when this gateway is a replica that admits nothing any more. Boxed, so that the connections of a gateway
/// that is none stay small.
async fn fenced(core: &Core) {
    match &core.replicas {
        Some(replicas) => Box::pin(replicas.admission(false)).await,
        None => std::future::pending().await,
    }
}

/// Completes when the authority of what a connection showed is trusted no more: a handshake would be refused now.
async fn untrusted(core: &Core, connection: &Connection) {
    let mut authorities = core.trust.authorities();
    // What has changed since the handshake is looked at too.
    authorities.mark_changed();
    while !connection.certificates.is_empty() && authorities.changed().await.is_ok() {
        let roots = core.roots();
        let trusted = match &connection.access {
            // Those who judged it when the connection came need not do it again.
            Some(access) => access.is_of(&roots),
            // What is no access certificate, or could not be read as one, was judged in the handshake only.
            None => certs::is_still_of(&connection.certificates, &roots, SystemTime::now()),
        };
        if !trusted {
            return;
        }
    }
    std::future::pending().await
}

/// The access certificate of the connection, if it showed one. An agent's certificate is nothing here.
fn access(core: &Core, certificates: &[CertificateDer<'static>]) -> Option<Arc<Access>> {
    if certificates.is_empty() {
        return None;
    }
    let judged_by = core.roots();
    match Peer::verify(certificates, &judged_by, SystemTime::now()) {
        Ok(Peer { identity: PeerIdentity::Access { id, name }, not_after, holder, .. }) => {
            let cluster = id.parse().ok()?;
            // What cannot be read must not pass for a certificate without one.
            let holder = match holder {
                Some(text) => Some(Holder::of(&text)?),
                None => None,
            };
            let proof = Some(Proof { chain: certificates.to_vec(), judged_by });
            Some(Arc::new(Access { cluster, name, holder, expires: not_after, proof }))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "client certificate ignored");
            None
        }
    }
}

async fn serve_h1(core: Arc<Core>, stream: TlsStream<TcpStream>, connection: Arc<Connection>) -> io::Result<()> {
    let notes = Notes::default();
    let limits = core.limits();
    let timeouts = Timeouts { head: limits.header_timeout, answer: limits.answer_timeout };
    let long = core.admissions.long_targets(connection.peer.ip());
    let io = TokioIo::new(Framing::new(Linger::new(stream), notes.clone(), timeouts, long));
    let shown = Arc::clone(&connection);
    let service = {
        let core = Arc::clone(&core);
        service_fn(move |request: Request<Incoming>| {
            let (turn, note) = notes.next();
            let (core, connection) = (Arc::clone(&core), Arc::clone(&connection));
            let mut request = Box::new(request);
            let fault = match note {
                Note::Fine => None,
                Note::Faulty(faulty) => Some(Box::new(faulty)),
                Note::Long(target) => {
                    request.extensions_mut().insert(LongTarget(target));
                    None
                }
            };
            async move {
                let serving =
                    Box::pin(serve::serve(Arc::clone(&core), Arc::clone(&connection), Some((&turn, fault)), request));
                let served = core.unproven.steps(connection.peer.ip(), &connection.standing, serving).await;
                let response = served.unwrap_or_else(|| too_many_wait(&core, &connection));
                let own = match response.body() {
                    Body::Full(_) => true,
                    Body::Live(live) => live.is_whole(),
                    _ => false,
                };
                turn.answered(response.status() == http::StatusCode::SWITCHING_PROTOCOLS, own);
                Ok::<Response<InTurn<Body>>, Infallible>(response.map(|body| turn.body(body)))
            }
        })
    };
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_headers(types::limits::HEADER_COUNT)
        // Above what is let through, so that the refusal is ours.
        .max_buf_size(2 * framing::HEAD_BYTES);
    let serving = builder.serve_connection(io, service).with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let serving = async {
        tokio::select! {
            biased;
            result = serving.as_mut() => result,
            () = ending(&core, &shown) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            () = spent(&core, &shown) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    match cuttable(serving).await {
        Some(result) => result.map_err(io::Error::other),
        None => Err(io::Error::other("cut: an answer's session is over and nobody reads")),
    }
}

/// The connection of a user that has become a tunnel's, without what reads users' heads and lingers for who is refused,
/// and what was read of it already. Nothing if it is not over HTTP/1.1.
pub fn into_stream(upgraded: Upgraded) -> Option<(Box<TlsStream<TcpStream>>, Bytes)> {
    let parts = upgraded.downcast::<TokioIo<Framing<Linger<TlsStream<TcpStream>>>>>().ok()?;
    let (io, held) = parts.io.into_inner().into_parts();
    let early = if held.is_empty() { parts.read_buf } else { [parts.read_buf, held].concat().into() };
    Some((Box::new(io.into_inner()), early))
}

async fn serve_h2(core: Arc<Core>, stream: TlsStream<TcpStream>, connection: Arc<Connection>) -> io::Result<()> {
    let unread = Unread::default();
    let (io, cork) = cork(Frames::new(stream, flood::bound(connection.standing.part(flood::CANCELLED))));
    let turns = cork.turns();
    let service = {
        let (core, connection) = (Arc::clone(&core), Arc::clone(&connection));
        service_fn(move |request: Request<Incoming>| {
            let (core, unread, turns) = (Arc::clone(&core), unread.clone(), turns.clone());
            let (connection, mut request) = (Arc::clone(&connection), Box::new(request));
            let arrived = connection.standing.arrive();
            async move {
                if let Some(place) = connection.standing.place(arrived).await {
                    request.extensions_mut().insert(place);
                }
                let serving = Box::pin(serve::serve(Arc::clone(&core), Arc::clone(&connection), None, request));
                let served = core.unproven.steps(connection.peer.ip(), &connection.standing, serving).await;
                let response = served.unwrap_or_else(|| too_many_wait(&core, &connection));
                turns.hand();
                Ok::<Response<Body>, Infallible>(Body::counted(response, || core.admissions.unread(&unread)))
            }
        })
    };
    let mut builder = hyper::server::conn::http2::Builder::new(Streams(core.tasks.clone()));
    builder
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .max_frame_size(limits::USER_FRAME_BYTES)
        .max_send_buf_size(H2_SEND_BYTES)
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(limits::USER_HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(H2_PENDING_RESETS)
        .max_local_error_reset_streams(H2_LOCAL_RESETS)
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PING);
    let serving = builder.serve_connection(TokioIo::new(io), service);
    let serving = async move {
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            biased;
            result = serving.as_mut() => result,
            () = ending(&core, &connection) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            () = spent(&core, &connection) => {
                serving.as_mut().graceful_shutdown();
                // What is under way is answered; who asks for ever more is cut off.
                tokio::select! {
                    result = serving.as_mut() => result,
                    () = connection.standing.goes_on() => Ok(()),
                }
            }
            () = idle(&connection, core.limits().idle_timeout) => {
                serving.as_mut().graceful_shutdown();
                // A request that crosses the goodbye is still answered; who does not answer it is gone.
                tokio::select! {
                    result = serving.as_mut() => result,
                    () = idle(&connection, GOODBYE) => Ok(()),
                }
            }
        }
    };
    cork.drive(serving).await.map_err(io::Error::other)
}

/// Completes when the connection made no request for `timeout` and no answer is under way.
async fn idle(connection: &Arc<Connection>, timeout: Duration) {
    /// The connection's own holds: here, and in the service.
    const OWN: usize = 2;
    let mut seen = connection.requests.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(timeout).await;
        let now = connection.requests.load(Ordering::Relaxed);
        if now == seen && Arc::strong_count(connection) <= OWN {
            return;
        }
        seen = now;
    }
}
