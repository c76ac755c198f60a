//! The way to tunnels of other replicas: one hop. This replica keeps connections to each other one that is alive, its
//! **links**, and hands on over them what users ask of clusters that have no tunnel here (docs/replicas.md). What
//! others hand on to this one is served by [`crate::peers`], from its own tunnels alone, so that there are never two
//! hops.
//!
//! A link is a tunnel's session over HTTP/2 and TLS 1.3, opened by whoever dials, with certificates of role
//! `urn:towline:gateway:<replica>`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ask`] | questions to all other replicas at once |
//! | [`identity`] | the certificate of this replica, which it issues to itself |
//! | [`links`] | dials other replicas, and keeps the links up |

pub mod ask;
pub mod identity;
pub mod links;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tunnel::{
    transport::{OpenError, Stream},
    wire::{error::WireError, hop::Hop},
};
use types::ids::ClusterKey;

use self::{
    identity::Identity,
    links::{Link, Peer},
};
use crate::{
    fleet::registry::Registry,
    metrics::Metrics,
    replicas::{Replica, Replicas},
    trust::Trust,
};

/// How long a request waits for a link to a replica that has its cluster's tunnel, where none is up, and for news of an
/// agent that is on its way from one replica to another.
const LINK_WAIT: Duration = Duration::from_secs(1);

/// The links to other replicas.
pub struct Hops {
    /// Who is there, and who has tunnels of which clusters.
    pub replicas: Arc<Replicas>,
    /// What this replica shows others.
    pub identity: Identity,
    peers: ArcSwap<HashMap<String, Arc<Peer>>>,
    /// Told when a link came up.
    came: Notify,
    /// Goes on with each look, so that equals take turns.
    turn: AtomicUsize,
    /// This replica drains, and its agents have moved.
    left: CancellationToken,
    metrics: Arc<Metrics>,
}

/// Why no stream was opened over a hop. In each case no byte of the request reached an agent.
#[derive(Debug, thiserror::Error)]
pub enum HopError {
    /// No other replica has a tunnel of the cluster.
    #[error("no other replica has a tunnel of the cluster")]
    Nobody,
    /// A tunnel of the cluster came to this replica while the way to another one was waited for.
    #[error("a tunnel of the cluster is here by now")]
    Here,
    /// Some have, and none of them could be reached.
    #[error(
        "replicas with a tunnel of the cluster ({replicas}) cannot be reached; see their logs and [replicas] address"
    )]
    Unreached {
        /// Names of the replicas, with commas between them.
        replicas: String,
    },
    /// No link took a stream.
    #[error("no link to another replica took the request")]
    Open(#[source] OpenError),
    /// No link took a stream in time.
    #[error("no link to another replica took the request in time")]
    Timeout,
    /// The head and what names its cluster are too long together.
    #[error("the request's head cannot be handed to another replica")]
    Head(#[source] WireError),
}

/// What goes onto the stream, and until when one must be open.
pub struct Request<'a> {
    /// The cluster that the request is for.
    pub cluster: &'a ClusterKey,
    /// The request's head, encoded.
    pub head: Bytes,
    /// Whether nothing follows the head.
    pub bodiless: bool,
    /// When a stream must be open.
    pub deadline: Instant,
    /// The replica that refused it already.
    pub refused_by: Option<&'a str>,
    /// The tunnels of this replica.
    pub here: &'a Registry,
    /// The newest of these that was tried.
    pub tried: Option<u64>,
}

impl Hops {
    /// Links to other replicas, none of which is dialled yet.
    pub fn new(replicas: Arc<Replicas>, trust: Arc<Trust>, metrics: Arc<Metrics>) -> Self {
        let identity = Identity::new(replicas.name().to_owned(), trust);
        let (came, turn) = (Notify::new(), AtomicUsize::new(0));
        let left = CancellationToken::new();
        Self { replicas, identity, peers: ArcSwap::default(), came, turn, left, metrics }
    }

    /// Whether another replica has a tunnel of the cluster, and can be reached now or may be in a moment.
    pub fn leads_to(&self, cluster: &ClusterKey) -> bool {
        !self.replicas.holders(cluster).is_empty() || self.replicas.is_between(cluster)
    }

    /// Other replicas are to hand this one nothing more: its agents have moved.
    pub fn leave(&self) {
        self.left.cancel();
    }

    /// Completes at [`Self::leave`].
    pub async fn left(&self) {
        self.left.cancelled().await;
    }

    /// Completes when there is a link to each other replica that is alive, but for those that were tried in vain.
    pub async fn linked(&self) {
        loop {
            let came = self.came.notified();
            let peers = self.peers.load();
            let others = self.replicas.others();
            let linked = |name: &str| peers.get(name).is_some_and(|peer| peer.has_link());
            if others.iter().all(|other| !other.is_reachable() || linked(&other.name)) {
                return;
            }
            came.await;
        }
    }

    /// Links to replicas that have a tunnel of a cluster: those whose leases last first, of these the least loaded, and of
    /// equals in turns.
    fn ways(&self, request: &Request<'_>) -> Result<Vec<Arc<Link>>, HopError> {
        let mut holders = self.replicas.holders(request.cluster);
        holders.retain(|holder| request.refused_by != Some(&*holder.name));
        if holders.is_empty() {
            return Err(HopError::Nobody);
        }
        let peers = self.peers.load();
        let best = |name: &str| peers.get(name).and_then(|peer| peer.best());
        let way = |holder: &Arc<Replica>| Some((!holder.has_lease(), best(&holder.name)?));
        let mut ways: Vec<_> = holders.iter().filter_map(way).collect();
        if ways.is_empty() {
            let names: Vec<_> = holders.iter().map(|holder| holder.name.as_str()).collect();
            return Err(HopError::Unreached { replicas: names.join(", ") });
        }
        let rank = |(lapsed, link): &(bool, Arc<Link>)| (*lapsed, link.handle.suspect(), link.handle.open_streams());
        ways.sort_by_cached_key(rank);
        let first = rank(&ways[0]);
        let alike = ways.iter().take_while(|way| rank(way) == first).count().max(1);
        ways[..alike].rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % alike);
        Ok(ways.into_iter().map(|(_, link)| link).collect())
    }

    /// The same, waiting a moment where the link to a holder is not up, or where the agent is on its way from one
    /// replica to another, which may be this one.
    async fn ways_soon(&self, request: &Request<'_>) -> Result<Vec<Arc<Link>>, HopError> {
        let until = tokio::time::Instant::from_std(request.deadline.min(Instant::now() + LINK_WAIT));
        loop {
            let (mut came, mut moved) = (pin!(self.came.notified()), pin!(self.replicas.moves()));
            let mut here = pin!(request.here.came());
            came.as_mut().enable();
            moved.as_mut().enable();
            here.as_mut().enable();
            let error = match self.ways(request) {
                Err(error @ HopError::Unreached { .. }) => error,
                // A replica that had the tunnel has it no more, or cannot be reached.
                Err(error @ HopError::Nobody)
                    if request.refused_by.is_some() || self.replicas.is_between(request.cluster) =>
                {
                    error
                }
                other => return other,
            };
            if !request.here.newer(request.cluster, request.tried).is_empty() {
                return Err(HopError::Here);
            }
            tokio::select! {
                biased;
                () = came => {}
                () = moved => {}
                () = here => {}
                () = tokio::time::sleep_until(until) => return Err(error),
            }
        }
    }

    /// Opens a stream to a replica that has a tunnel of the cluster. That it is open says nothing of the tunnel: the
    /// other replica may still refuse it, with a code that says so.
    ///
    /// # Errors
    /// [`HopError`].
    pub async fn open(&self, request: &Request<'_>) -> Result<(Stream, Arc<Link>), HopError> {
        let ways = self.ways_soon(request).await?;
        let hop = Hop::new(*request.cluster, request.head.clone()).map_err(HopError::Head)?;
        let message = hop.encode().map_err(HopError::Head)?.freeze();
        let mut last = HopError::Nobody;
        for link in ways {
            let message = message.clone();
            let opening = if request.bodiless { link.handle.ask(message) } else { link.handle.open(message) };
            match tokio::time::timeout_at(request.deadline.into(), opening).await {
                Ok(Ok(stream)) => return Ok((stream, link)),
                Ok(Err(error)) => {
                    tracing::debug!(replica = link.replica, %error, "no stream to another replica; trying the next");
                    last = HopError::Open(error);
                }
                Err(_) => return Err(HopError::Timeout),
            }
        }
        Err(last)
    }
}
