//! Tokens of the cluster's identity for what else runs in the cluster: extensions and other agents ask over
//! HTTPS, the gateway gives them, short-lived and for one audience. `kubectl create token`-like service-account tokens
//! of audience [`ask::AUDIENCE`] say who asks; the cluster's own RBAC says who may: `create` on
//! `identitytokens.towline.io` of the agents' namespace, the name being the audience. With `"extension": "<name>"` the
//! token is of that extension's identity (E11), and who may is a service account of its release.
//!
//! ```text
//! POST /v1/token          Authorization: Bearer <service-account token>      {"audience": "https://gateway.example.org"}
//! 200 {"access_token": "...", "token_type": "Bearer", "expires_in": 3600, "expires_on": 1760000000, "audience": "..."}
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`ask`] | who asks, and whether they may: two reviews by the apiserver |
//! | [`certificate`] | the listener's certificate: made, kept, published and renewed here (docs/features.md A7) |
//! | [`desk`] | a request and its answer |
//! | [`refusals`] | tokens that were refused a moment ago |

pub mod ask;
pub mod certificate;
pub mod desk;
pub mod refusals;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use certs::serving::ShownNow;
use daemon::{Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use self::{
    ask::ClusterReviews,
    certificate::{Keeper, Store},
    desk::Desk,
};
use super::{Entry, Role, error::BuildError, parts::Parts};
use crate::{
    chain,
    config::{Deployment, TokenListener},
    peers::Peers,
};

/// This role's name.
pub const NAME: &str = "identity-tokens";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ControllerManager],
    build: |parts| {
        let Some(settings) = &parts.config.identity_tokens else { return Ok(None) };
        Ok(Some(Arc::new(IdentityTokens::of(settings, parts)?)))
    },
};

/// Connections at once, in all and from one address.
const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_PER_PEER: usize = 16;
/// How long a handshake, and a head, may take, and a connection be idle.
const HEAD: Duration = Duration::from_secs(5);
/// How long one connection may last at most: tokens are asked for once in a while.
const CONNECTION: Duration = Duration::from_secs(60);
/// Connections that wait to be accepted, at most.
const BACKLOG: u32 = 1024;
/// After a failed accept, such as without free files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The HTTPS listener that gives out tokens of the cluster's identity inside the cluster.
pub struct IdentityTokens {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    keeper: Keeper,
    desk: Arc<Desk>,
    peers: Peers,
}

impl IdentityTokens {
    /// Serves on `listener`, with what `keeper` looks after.
    ///
    /// # Errors
    /// When rustls refuses the settings.
    pub fn new(
        listener: TcpListener,
        shown: ShownNow,
        keeper: Keeper,
        desk: Desk,
    ) -> Result<Self, certs::tls::TlsError> {
        let acceptor = TlsAcceptor::from(Arc::new(certs::tls::server_inside(Arc::new(shown))?));
        Ok(Self {
            listener,
            acceptor,
            keeper,
            desk: Arc::new(desk),
            peers: Peers::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER),
        })
    }

    fn of(settings: &TokenListener, parts: &Parts) -> Result<Self, BuildError> {
        let client = parts.kubernetes.clone().ok_or(BuildError::NoReviews)?;
        let listener = listen(settings.listen).map_err(|source| BuildError::Listener {
            what: "identity_tokens",
            address: settings.listen,
            source,
        })?;
        let clock = parts.clock.clone();
        let shown = ShownNow::new(Arc::new(move || clock.now()));
        let store = match &settings.directory {
            Some(directory) => Store::Directory(directory.clone()),
            None => Store::Cluster(client.clone()),
        };
        let keeper = Keeper {
            shown: shown.clone(),
            names: settings.server_names.clone(),
            store,
            clock: parts.clock.clone(),
            health: parts.health.of(NAME),
            current: Mutex::default(),
        };
        let (identities, status, health) = (parts.identities.clone(), parts.status.clone(), parts.health.clone());
        let desk = Desk::new(Box::new(ClusterReviews(client)), parts.api.clone(), identities, status, health);
        Ok(Self::new(listener, shown, keeper, desk)?)
    }

    async fn accept(&self) {
        let tasks = TaskGroup::new("identity tokens");
        loop {
            let (socket, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(err) => {
                    tracing::warn!(error = %err, "cannot accept a connection of who wants a token");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Some(place) = self.peers.take(peer.ip()) else {
                tracing::warn!(peer = %peer.ip(), "too many connections of who wants tokens: one more is closed");
                continue;
            };
            let (acceptor, desk) = (self.acceptor.clone(), self.desk.clone());
            tasks.spawn("connection", async move {
                let _ = tokio::time::timeout(CONNECTION, connection(socket, peer.ip(), acceptor, desk)).await;
                drop(place);
            });
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn connection(socket: TcpStream, peer: IpAddr, acceptor: TlsAcceptor, desk: Arc<Desk>) {
    let io = match tokio::time::timeout(HEAD, acceptor.accept(socket)).await {
        Ok(Ok(io)) => io,
        Ok(Err(err)) => return tracing::debug!(error = %err, "no TLS with who wants a token"),
        Err(_) => return,
    };
    let service = service_fn(move |request| {
        let desk = desk.clone();
        async move { Ok::<_, std::convert::Infallible>(desk.answer(request, peer).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(io), service);
    if let Err(err) = served.await {
        tracing::debug!(error = chain(&err), "a connection of who wants a token broke off");
    }
}

impl Role for IdentityTokens {
    fn reports(&self) -> bool {
        true
    }

    fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = shutdown.draining() => {}
                () = self.keeper.keep() => {}
                () = self.accept() => {}
            }
        })
    }
}
