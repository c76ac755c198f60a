//! The cluster's own authentication and authorization webhook (docs/features.md Z1): the apiserver asks here whose a
//! token is and what somebody may do. Both are answered as for requests through the tunnel, by the same verifiers and
//! the same signed snapshot of roles and assignments, so that a user is the same who goes straight to the apiserver.
//!
//! ```text
//! POST /tokenreviews            authentication.k8s.io/v1, v1beta1    TokenReview
//! POST /subjectaccessreviews    authorization.k8s.io/v1, v1beta1     SubjectAccessReview
//! GET  /healthz, /readyz
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`access`] | what somebody may do, in guard's order and with its reasons |
//! | [`answer`] | a request and its answer; the bounds of both |
//! | [`cache`] | the cache of decisions |
//! | [`handshakes`] | the TLS handshakes in progress, and their bounds |
//! | [`keeper`] | the certificates: made, kept and renewed here, and the files that the apiserver is given (Z10) |
//! | [`review`] | the two kinds of questions, read and written |
//! | [`token`] | whose a token is |

pub mod access;
pub mod answer;
pub mod cache;
pub mod handshakes;
pub mod keeper;
pub mod review;
pub mod token;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use daemon::{Phase, Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use http::{HeaderValue, header};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use self::{
    access::Access,
    answer::Desk,
    handshakes::{Handshake, Handshakes},
    keeper::{Keeper, Published, Store, Withdrawal},
    token::Tokens,
};
use super::{Entry, Role, error::BuildError, parts::Parts};
use crate::{
    chain,
    config::{self, Deployment},
    metrics,
    peers::Peers,
};

/// This role's name.
pub const NAME: &str = Deployment::Guard.name();

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::Guard],
    build: |parts| {
        let Some(settings) = &parts.config.guard else { return Ok(None) };
        Ok(Some(Arc::new(Guard::of(settings, parts)?)))
    },
};

/// Handshakes at once, in all and from one address. Apart from connections, so that who has no certificate takes no
/// place of the apiserver's; and behind one address there may be others than the apiserver, which opens as many
/// connections at once as it has reviews to ask for.
const HANDSHAKES_MAX: usize = 4096;
const HANDSHAKES_PER_PEER: usize = 512;
/// Connections at once, in all and from one address: several apiservers may be behind one.
const CONNECTIONS_MAX: usize = 1024;
const CONNECTIONS_PER_PEER: usize = 512;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long a connection may be idle, and a head may take: longer than an apiserver keeps an idle connection (90 s), so
/// that it is the one that closes it.
const IDLE: Duration = Duration::from_secs(120);
/// How long a connection lives. Then the apiserver is told to open another one, and shows its certificate again, so that a
/// warning can be given before that certificate ends.
const CONNECTION_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long connections are accepted after draining has begun, because the cluster's machines may still send some here.
const LINGERS: Duration = Duration::from_secs(5);
/// How long a connection that must end may take for what it is answering.
const ENDS: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted, at most.
const BACKLOG: u32 = 1024;
/// After a failed accept, such as without free files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Bytes and lines of a request's head at most.
const HEAD_BYTES: usize = 64 * 1024;
const HEAD_LINES: usize = 64;

/// Why guard cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Certificates are kept in Secrets, and there is no way to these.
    #[error(
        "there is no way to the apiserver, whose Secrets keep the certificates; set [cluster] kubeconfig, or guard.directory"
    )]
    NoStore,
    /// Nothing says what the apiserver dials.
    #[error("the address that the apiserver dials is unknown: this pod sees no Service guard; set guard.server")]
    NoServer,
    /// The process does not judge users.
    #[error("no issuers are configured, so that every token is somebody else's; write [[issuers]]")]
    NoIssuers,
}

impl From<SetupError> for BuildError {
    fn from(error: SetupError) -> Self {
        Self::Role { what: NAME, source: Box::new(error) }
    }
}

/// Answers the cluster's apiserver about tokens and rights, over mutual TLS.
pub struct Guard {
    address: Option<SocketAddr>,
    /// None once it has drained: what still comes is refused, and does not wait in vain.
    listener: Mutex<Option<Arc<TcpListener>>>,
    published: Published,
    keeper: Keeper,
    desk: Arc<Desk>,
    handshakes: Handshakes,
    connections: Peers,
    lingers: Duration,
    life: Duration,
}

impl Guard {
    /// Serves on `listener`, with what `keeper` looks after.
    pub fn new(listener: TcpListener, keeper: Keeper, desk: Desk) -> Self {
        Self {
            address: listener.local_addr().ok(),
            listener: Mutex::new(Some(Arc::new(listener))),
            published: keeper.published.clone(),
            keeper,
            desk: Arc::new(desk),
            handshakes: Handshakes::new(HANDSHAKES_MAX, HANDSHAKES_PER_PEER),
            connections: Peers::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER),
            lingers: LINGERS,
            life: CONNECTION_LIFE,
        }
    }

    fn of(settings: &config::Guard, parts: &Parts) -> Result<Self, BuildError> {
        let judges = parts.judges.clone().filter(|_| !settings.issuers.is_empty()).ok_or(SetupError::NoIssuers)?;
        let store = match &settings.directory {
            Some(directory) => Store::Directory(directory.clone()),
            None => Store::Cluster(parts.kubernetes.clone().ok_or(SetupError::NoStore)?),
        };
        let (host, port) = settings.server.clone().or_else(config::service_address).ok_or(SetupError::NoServer)?;
        let listener = listen(settings.listen).map_err(|source| BuildError::Listener {
            what: NAME,
            address: settings.listen,
            source,
        })?;
        let mut names = settings.server_names.clone();
        if !names.contains(&host) {
            names.push(host.clone());
        }
        let keeper = Keeper {
            published: Published::default(),
            names,
            server: (host, port),
            store,
            clock: parts.clock.clone(),
            health: parts.health.of(NAME),
            authorizer: Some(judges.authorizer.clone()).filter(|authorizer| authorizer.is_on()),
        };
        let (owners, names) = (settings.issuers.clone(), judges.names.clone());
        let access = Access::new(judges.authorizer, owners, names, &settings.skip_users, settings.cache);
        let tokens = Tokens { authenticator: judges.authenticator, names: judges.names };
        Ok(Self::new(listener, keeper, Desk::new(tokens, access, parts.clock.clone())))
    }

    async fn accept(&self, listener: &TcpListener, tasks: &TaskGroup, shutdown: &Shutdown, ending: &Shutdown) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(err) => {
                    tracing::warn!(error = %err, "cannot accept a connection of the apiserver");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let withdrawal = self.published.withdrawal();
            let Some(tls) = self.published.acceptor() else {
                metrics::guard_refused("limit");
                continue;
            };
            let connection = Connection {
                peer: peer.ip(),
                handshake: self.handshakes.begin(peer.ip()),
                withdrawal,
                shutdown: shutdown.clone(),
                ending: ending.clone(),
                published: self.published.clone(),
                connections: self.connections.clone(),
                desk: self.desk.clone(),
                life: self.life,
            };
            tasks.spawn("connection", connection.serve(socket, tls));
        }
    }

    async fn lingered(&self, shutdown: &Shutdown) {
        shutdown.draining().await;
        tokio::time::sleep(self.lingers).await;
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

struct Connection {
    peer: IpAddr,
    handshake: Handshake,
    withdrawal: Withdrawal,
    shutdown: Shutdown,
    /// Drains when connections must end.
    ending: Shutdown,
    published: Published,
    connections: Peers,
    desk: Arc<Desk>,
    life: Duration,
}

impl Connection {
    async fn serve(self, socket: TcpStream, tls: TlsAcceptor) {
        let Self { peer, handshake, mut withdrawal, shutdown, ending, published, connections, desk, life } = self;
        let _ = socket.set_nodelay(true);
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(HANDSHAKE, tls.accept(socket)) => accepted,
            () = handshake.displaced() => return metrics::guard_refused("limit"),
        };
        let io = match accepted {
            Ok(Ok(io)) => io,
            Ok(Err(err)) => {
                metrics::guard_refused("tls");
                return tracing::debug!(%peer, error = %err, "no TLS with a client of guard");
            }
            Err(_) => return metrics::guard_refused("timeout"),
        };
        drop(handshake);
        if let Some(own) = io.get_ref().1.peer_certificates().and_then(<[_]>::first) {
            published.presented(own);
        }
        let Some(_place) = connections.take(peer) else { return metrics::guard_refused("limit") };
        let since = Instant::now();
        let service = service_fn(move |request| {
            let (desk, shutdown) = (desk.clone(), shutdown.clone());
            async move {
                let mut response = desk.answer(request).await;
                // An apiserver that is told takes its next question to another connection, and loses none.
                if shutdown.phase() != Phase::Ready || since.elapsed() >= life {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEAD_LINES)
            .serve_connection(TokioIo::new(io), service);
        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => Some(ended),
            () = withdrawal.withdrawn() => None,
            () = ending.draining() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                served.as_mut().graceful_shutdown();
                tokio::time::timeout(ENDS, served).await.unwrap_or(Ok(()))
            }
        };
        if let Err(err) = ended {
            tracing::debug!(error = chain(&err), "a connection of the apiserver broke off");
        }
    }
}

impl Role for Guard {
    fn reports(&self) -> bool {
        true
    }

    fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Serves until the process drains, and a while longer: an apiserver whose connection is cut or
    /// refused does not ask again, and refuses the user about whom it asked.
    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Some(listener) = listener else { return };
            let (tasks, ending) = (TaskGroup::new(NAME), Shutdown::new());
            tokio::select! {
                biased;
                () = self.lingered(&shutdown) => {}
                () = self.keeper.keep() => {}
                () = self.accept(&listener, &tasks, &shutdown, &ending) => {}
            }
            drop(listener);
            drop(self.listener.lock().unwrap_or_else(PoisonError::into_inner).take());
            ending.drain();
            let _ = tokio::time::timeout(ENDS, tasks.join()).await;
        })
    }
}

#[cfg(test)]
mod tests;
