//! The listener for other replicas, and the owner of each connection that came up: who dialled is another replica by
//! its certificate, and nothing else is let in.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use certs::{Peer, is_still_of, tls::ALPN_REPLICA};
use daemon::chain;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tunnel::{
    transport::{
        CarrierKind, Incoming, TunnelHandle,
        carrier::Facts,
        http2,
        session::{self, AgentSide},
    },
    wire::{
        close::{CloseCode, StreamCode},
        head::REQUEST,
        hop::{self, HOP},
    },
};
use types::{limits, version::Features};

use super::{questions, relay};
use crate::{
    admission::accept::next,
    core::Core,
    hop::{
        Hops,
        links::{LINKS, session_options},
    },
    metrics::labels::Cause,
    random,
    replicas::MOST_REPLICAS,
    skew,
};

/// Connections of other replicas at once. Each has [`LINKS`], and as many again while those of one certificate follow
/// those of another.
const CONNECTIONS: i64 = (2 * LINKS * MOST_REPLICAS) as i64;
/// A certificate that ends later than this is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// Accepts connections of other replicas until this one has drained its tunnels.
pub async fn listen(core: Arc<Core>, hops: Arc<Hops>, listener: TcpListener) {
    while let Some((socket, peer)) = next(hops.left(), &listener, "other replicas").await {
        let (core, hops) = (Arc::clone(&core), Arc::clone(&hops));
        core.tasks.clone().spawn("peer", async move {
            if let Err(error) = connection(&core, &hops, socket, peer).await {
                let cause = Cause::of(&error).unwrap_or(Cause::Tls);
                core.refusals.record(peer, cause, &format!("at the listener for replicas: {}", chain(&error)));
            }
        });
    }
}

/// Another replica's connection, after its handshake.
struct Dialled {
    replica: String,
    chain: Vec<CertificateDer<'static>>,
    ends: SystemTime,
    handle: TunnelHandle,
}

async fn connection(core: &Arc<Core>, hops: &Hops, socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let dialled = {
        let Some(_handshake) = core.admissions.handshake(peer.ip().to_canonical(), &core.limits()) else {
            return Err(io::Error::other("too many handshakes"));
        };
        let establish = Box::pin(establish(hops, socket, peer));
        // TLS, carrier and hello each have a deadline; all three together have three times that.
        tokio::time::timeout(limits::HELLO_DEADLINE * 3, establish)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"))??
    };
    let _open = core.metrics.peers.enter();
    if core.metrics.peers.now() > CONNECTIONS {
        dialled.handle.close(CloseCode::Overloaded, "too many connections of replicas");
        return Err(io::Error::other("too many connections of replicas"));
    }
    tracing::debug!(replica = dialled.replica, %peer, "link of another replica up");
    Box::pin(serve(core, hops, dialled)).await;
    Ok(())
}

async fn establish(hops: &Hops, socket: TcpStream, peer: SocketAddr) -> io::Result<Dialled> {
    http2::tune_tcp(&socket);
    let shown = hops.identity.shown(SystemTime::now()).map_err(io::Error::other)?;
    let acceptor = TlsAcceptor::from(Arc::clone(&shown.server));
    let accepting = acceptor.accept_with(socket, |tls| tls.set_buffer_limit(Some(http2::TLS_BUFFER_BYTES)));
    let stream = tokio::time::timeout(limits::HELLO_DEADLINE, accepting)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "TLS handshake took too long"))??;
    let (_, tls) = stream.get_ref();
    if tls.alpn_protocol() != Some(ALPN_REPLICA) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the protocol of replicas"));
    }
    let chain: Vec<_> =
        tls.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect();
    let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    let verified = Peer::verify(&chain, &shown.roots, SystemTime::now()).map_err(|error| refused(error.to_string()))?;
    let replica = verified.identity.gateway().map_err(|error| refused(error.to_string()))?.to_owned();
    if replica == hops.identity.name() {
        return Err(refused(format!("a replica with this one's own name, {replica}; each needs a name of its own")));
    }
    let facts = Facts { kind: CarrierKind::Http2, peer: Some(peer), certificates: chain.clone() };
    let carrier = http2::server_side(stream, facts).await.map_err(io::Error::other)?;
    let side = AgentSide {
        agent_version: skew::OWN.to_owned(),
        instance: random::bytes(),
        features: Features::default(),
        held: Vec::new(),
        prove: Box::new(|_| Err("a replica shows its certificate in TLS".to_owned())),
        options: session_options(),
    };
    let handle = session::connect(carrier, side).await.map_err(io::Error::other)?;
    Ok(Dialled { replica, chain, ends: verified.not_after, handle })
}

/// Serves what another replica asks until the connection ends.
async fn serve(core: &Arc<Core>, hops: &Hops, dialled: Dialled) {
    let Dialled { replica, chain, ends, handle } = dialled;
    let replica: Arc<str> = replica.into();
    let mut authorities = hops.identity.authorities();
    // What has changed since the handshake is looked at too.
    authorities.mark_changed();
    let mut left = false;
    loop {
        let until_end = ends.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::select! {
            biased;
            closed = handle.closed() => {
                return tracing::debug!(%replica, %closed, "link of another replica down");
            }
            () = core.shutdown.closed() => {
                handle.close(CloseCode::Shutdown, "the replica stops");
                let _ = handle.closed().await;
                return;
            }
            () = hops.left(), if !left => {
                left = true;
                handle.drain(CloseCode::Shutdown, Duration::ZERO);
            }
            _ = authorities.changed() => {
                if !is_still_of(&chain, &hops.identity.roots(), SystemTime::now()) {
                    handle.close(CloseCode::Unauthorised, "the replica's certificate has expired or is no longer trusted");
                }
            }
            () = tokio::time::sleep(until_end.min(LONGEST_SLEEP)) => {
                if ends <= SystemTime::now() {
                    handle.close(CloseCode::Unauthorised, "the replica's certificate has expired");
                }
            }
            incoming = handle.accept() => if let Ok(incoming) = incoming {
                start(core, &replica, incoming);
            },
        }
    }
}

fn start(core: &Arc<Core>, replica: &Arc<str>, incoming: Incoming) {
    match hop::kind(&incoming.head) {
        Some(REQUEST) => {
            core.tasks.spawn("question", questions::answer(Arc::clone(core), Arc::clone(replica), incoming));
        }
        Some(HOP) => core.tasks.spawn("hop", relay::relay(Arc::clone(core), Arc::clone(replica), incoming)),
        kind => {
            tracing::debug!(%replica, kind, "no such message between replicas");
            let mut stream = incoming.stream;
            stream.send.reset(StreamCode::BadHead);
        }
    }
}
