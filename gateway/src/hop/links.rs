//! Keeps links to every other replica up: dials, tries again with backoff, and moves on to a new link before the
//! certificate of the old one ends. A link that is over takes no new streams; those that are open go on.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwapOption;
use certs::{is_still_of, replica, tls::ALPN_REPLICA};
use daemon::{
    Backoff, BackoffPolicy, Shutdown, TaskGroup, random_unit,
    tcp::{self, ConnectError},
};
use futures_util::FutureExt as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tunnel::{
    transport::{
        CarrierKind, TunnelHandle,
        carrier::{CarrierError, Facts},
        http2,
        session::{self, GatewaySide, HelloError, SessionOptions},
    },
    wire::{close::CloseCode, hello::Refuse},
};

use super::{Hops, identity::IdentityError};
use crate::{random, replicas::Replica};

/// Links to each other replica. One bears [`types::limits::STREAMS_PER_TUNNEL`] streams, and is driven by one task.
pub const LINKS: usize = 4;
/// Longest time for looking up another replica's name, and for connecting to it.
const STEP: Duration = Duration::from_secs(3);
/// TLS, the carrier's handshake and the hello, each.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often a link that is over is looked at, whether its last stream has ended.
const LOOK: Duration = Duration::from_secs(1);
/// The links are on the inside of an installation: another replica that is gone is noticed by a refused connection, or
/// by its lease, which lasts as long as silence is borne here.
const SILENCE: Duration = Duration::from_secs(10);

const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(50),
    quick_cap: Duration::from_secs(1),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(10),
    steady_after: Duration::from_secs(10),
};

/// A link that is up.
pub struct Link {
    /// The other replica's name.
    pub replica: String,
    /// Opens streams to it.
    pub handle: TunnelHandle,
    chain: Vec<CertificateDer<'static>>,
}

/// Another replica, in one of its starts.
pub struct Peer {
    replica: Arc<Replica>,
    links: [ArcSwapOption<Link>; LINKS],
    /// It is not alive any more.
    over: CancellationToken,
}

impl Peer {
    fn new(replica: Arc<Replica>) -> Arc<Self> {
        Arc::new(Self { replica, links: Default::default(), over: CancellationToken::new() })
    }

    /// The link with the fewest streams.
    pub fn best(&self) -> Option<Arc<Link>> {
        self.links.iter().filter_map(ArcSwapOption::load_full).min_by_key(|link| link.handle.open_streams())
    }

    /// Whether any of its links is up.
    pub fn has_link(&self) -> bool {
        self.links.iter().any(|link| link.load().is_some())
    }
}

/// Why another replica is not reached.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("its address {0:?} is not host:port; set [replicas] address (or --replica-address) at that replica")]
    Address(String),
    #[error("it cannot be connected to: {0}")]
    Connect(String),
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    #[error("it does not speak the protocol of replicas")]
    Protocol,
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("no answer in time")]
    Timeout,
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(match error {
            ConnectError::Resolve { host, reason } => format!("{host} cannot be looked up: {reason}"),
            ConnectError::Connect { address, reason } => format!("{address}: {reason}"),
        })
    }
}

/// How two replicas look for signs of life.
pub fn session_options() -> SessionOptions {
    SessionOptions {
        probe_period: SILENCE / 5,
        idle_period: SILENCE / 4,
        probe_deadline: SILENCE,
        answer_within: SILENCE / 2,
        ..SessionOptions::default()
    }
}

impl Hops {
    /// Keeps links to all other replicas that are alive, or may go on without the database, until the process ends.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let tasks = TaskGroup::new("links");
        let mut serving = self.replicas.serving();
        loop {
            let others = Arc::clone(&serving.borrow_and_update());
            self.follow(&tasks, &others);
            tokio::select! {
                biased;
                () = shutdown.closed() => return,
                changed = serving.changed() => if changed.is_err() { return },
            }
        }
    }

    fn follow(self: &Arc<Self>, tasks: &TaskGroup, others: &[Arc<Replica>]) {
        let before = self.peers.load_full();
        let mut now = HashMap::with_capacity(others.len());
        for other in others.iter().filter(|other| other.name != self.identity.name()) {
            let same = |peer: &&Arc<Peer>| peer.replica.generation == other.generation;
            let peer = before.get(&other.name).filter(same).map(Arc::clone).unwrap_or_else(|| {
                let peer = Peer::new(Arc::clone(other));
                for slot in 0..LINKS {
                    tasks.spawn("link", Arc::clone(self).keep(tasks.clone(), Arc::clone(&peer), slot));
                }
                peer
            });
            now.insert(other.name.clone(), peer);
        }
        for (name, peer) in before.iter() {
            if !now.get(name).is_some_and(|kept| Arc::ptr_eq(kept, peer)) {
                peer.over.cancel();
            }
        }
        self.peers.store(Arc::new(now));
    }

    /// Keeps one link to another replica up for as long as that is alive.
    async fn keep(self: Arc<Self>, tasks: TaskGroup, peer: Arc<Peer>, slot: usize) {
        let mut backoff = Backoff::new(BACKOFF);
        let (mut warned, name) = (false, &peer.replica.name);
        loop {
            let dialled = tokio::select! {
                biased;
                () = peer.over.cancelled() => return,
                dialled = Box::pin(self.dial(&peer.replica)) => dialled,
            };
            let wait = match dialled {
                Ok((link, renew_at)) => {
                    let began = Instant::now();
                    warned = false;
                    tracing::debug!(replica = name, slot, "link to another replica up");
                    if let Some(old) = peer.links[slot].swap(Some(Arc::clone(&link))) {
                        tasks.spawn("link", finish(old));
                    }
                    self.replicas.reached(&peer.replica);
                    self.came.notify_waiters();
                    let _open = self.metrics.links.enter();
                    match self.watch(&peer, &link, renew_at).await {
                        End::Renew => continue,
                        End::Over => {
                            peer.links[slot].store(None);
                            return finish(link).await;
                        }
                        End::Drains => {
                            peer.links[slot].store(None);
                            tasks.spawn("link", finish(link));
                        }
                        End::Closed => {
                            peer.links[slot].store(None);
                            if !peer.has_link() {
                                // Until its lease is renewed, requests go elsewhere at once.
                                self.replicas.failed(&peer.replica);
                            }
                        }
                    }
                    backoff.lived(began.elapsed());
                    backoff.failed(Instant::now(), random_unit())
                }
                Err(error) => {
                    if !peer.has_link() {
                        self.replicas.failed(&peer.replica);
                        // Whoever waits for it waits no more.
                        self.came.notify_waiters();
                    }
                    if !std::mem::replace(&mut warned, true) && slot == 0 {
                        tracing::warn!(replica = name, address = peer.replica.address, %error, "another replica is not reached; trying again");
                    }
                    // A link whose successor could not be dialled goes on until it ends.
                    if peer.links[slot].load_full().is_some_and(|old| old.handle.closed().now_or_never().is_some()) {
                        peer.links[slot].store(None);
                    }
                    backoff.failed(Instant::now(), random_unit())
                }
            };
            tokio::select! {
                biased;
                () = peer.over.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Waits until a link needs another one in its place.
    async fn watch(&self, peer: &Peer, link: &Link, renew_at: SystemTime) -> End {
        let left = renew_at.duration_since(SystemTime::now()).unwrap_or_default();
        let mut renew = std::pin::pin!(tokio::time::sleep(left));
        let mut authorities = self.identity.authorities();
        authorities.mark_changed();
        loop {
            tokio::select! {
                biased;
                closed = link.handle.closed() => {
                    tracing::debug!(replica = link.replica, %closed, "link to another replica down");
                    return End::Closed;
                }
                () = peer.over.cancelled() => return End::Over,
                drain = link.handle.draining() => {
                    tracing::info!(replica = link.replica, code = %drain.code, "another replica drains");
                    return End::Drains;
                }
                changed = authorities.changed() => {
                    let roots = self.identity.roots();
                    if changed.is_err() || !is_still_of(&link.chain, &roots, SystemTime::now()) {
                        link.handle.close(CloseCode::Unauthorised, "the replica's certificate has expired or is no longer trusted");
                    }
                }
                () = &mut renew => return End::Renew,
            }
        }
    }

    async fn dial(&self, to: &Replica) -> Result<(Arc<Link>, SystemTime), DialError> {
        let wrong = || DialError::Address(to.address.clone());
        let (host, port) = to.address.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let addresses = tcp::resolve(host, port, &[], STEP).await?;
        let socket = tcp::connect(host, &addresses, STEP).await?;
        http2::tune_tcp(&socket);
        let peer = socket.peer_addr().ok();
        let shown = self.identity.shown(SystemTime::now())?;
        let config = replica::client(&shown.credentials, &shown.roots, &to.name).map_err(IdentityError::from)?;
        // Whom it is for is in the certificate's role; no name is sent.
        let name = ServerName::try_from("replica.towline").map_err(|_| DialError::Protocol)?;
        let connecting = TlsConnector::from(Arc::new(config))
            .connect_with(name, socket, |tls| tls.set_buffer_limit(Some(http2::TLS_BUFFER_BYTES)));
        let stream = timeout(HANDSHAKE, connecting).await.map_err(|_| DialError::Timeout)?;
        let stream = stream.map_err(|error| DialError::Tls(error.to_string()))?;
        let (_, tls) = stream.get_ref();
        if tls.alpn_protocol() != Some(ALPN_REPLICA) {
            return Err(DialError::Protocol);
        }
        let chain: Vec<_> =
            tls.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect();
        let facts = Facts { kind: CarrierKind::Http2, peer, certificates: chain.clone() };
        let carrier = timeout(HANDSHAKE, http2::client_side(stream, facts)).await.map_err(|_| DialError::Timeout)??;
        let side = GatewaySide {
            session: random::bytes(),
            replica: None,
            // Who it is was judged by TLS.
            authenticate: |_| async { Ok::<_, Refuse>(()) },
            options: session_options(),
        };
        let (handle, ()) =
            timeout(HANDSHAKE, session::accept(carrier, side)).await.map_err(|_| DialError::Timeout)??;
        Ok((Arc::new(Link { replica: to.name.clone(), handle, chain }), shown.renew_at))
    }
}

/// Why a link needs another one in its place.
enum End {
    /// Its certificate is in the second half of its life.
    Renew,
    /// The other replica is not alive any more.
    Over,
    /// The other replica stops.
    Drains,
    /// The link was closed.
    Closed,
}

/// Closes a link once its last stream has ended.
async fn finish(link: Arc<Link>) {
    while link.handle.open_streams() > 0 {
        if timeout(LOOK, link.handle.closed()).await.is_ok() {
            return;
        }
    }
    link.handle.close(CloseCode::Drained, "");
    link.handle.closed().await;
}
