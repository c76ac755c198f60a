//! Exchanges on streams of role `agent-api` that an agent opens on its tunnel. Who asks is who the tunnel's certificate
//! says; no message names a cluster.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use daemon::shares::{address, network};
use http::Method;
use tokio::{sync::Semaphore, time::Instant};
use tunnel::{
    exchange::{Counters, StreamBody, respond},
    transport::{Incoming, Stream},
    wire::{
        close::StreamCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::{agent_api::ROLE, ids::ClusterKey, limits};

use super::{
    Agent, Call, OF_TUNNELS, Reply, answered, busy, certificate, find, in_time, named, query, too_often, whole,
};
use crate::{
    api::error::ApiError,
    control::Control,
    core::Core,
    rate::{Rate, Rates},
    tunnels::registry::LiveTunnel,
};

/// Exchanges of one tunnel at once. A few of them wait for news all the time.
const EXCHANGES: usize = 32;
/// The same of one cluster, however many tunnels it has.
const EXCHANGES_OF_CLUSTER: usize = 64;
/// Of these such whose bodies are held,
const BODIES: usize = 8;
/// and of all tunnels together.
const BODIES_OF_ALL: usize = 512;
/// How long an answer may wait for its reader.
const ANSWER_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);
/// Clusters whose tunnels are gone are not looked for among fewer than twice so many.
const SWEEP_LEAST: usize = 64;

static ALL_BODIES: Semaphore = Semaphore::const_new(BODIES_OF_ALL);

/// What the agents of all clusters ask.
#[derive(Default)]
pub struct Asked {
    clusters: Mutex<Clusters>,
    rates: Rates<(ClusterKey, &'static str), ClusterKey>,
    addresses: Rates<(IpAddr, &'static str), IpAddr>,
}

#[derive(Default)]
struct Clusters {
    /// By cluster, as long as a tunnel of it is up.
    known: HashMap<ClusterKey, Weak<OfCluster>>,
    /// With so many entries those whose tunnels are gone are looked for: when they have doubled, so that each tunnel of a
    /// fleet that comes back does not look at all others.
    sweep_at: usize,
}

/// What the agents of one cluster ask, over all of its tunnels.
struct OfCluster {
    places: Arc<Semaphore>,
    bodies: Semaphore,
}

impl Asked {
    fn of(&self, key: &ClusterKey) -> Arc<OfCluster> {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clusters.known.get(key).and_then(Weak::upgrade) {
            return known;
        }
        if clusters.known.len() >= clusters.sweep_at {
            clusters.known.retain(|_, other| other.strong_count() > 0);
            clusters.sweep_at = 2 * clusters.known.len().max(SWEEP_LEAST);
        }
        let places = Arc::new(Semaphore::new(EXCHANGES_OF_CLUSTER));
        let new = Arc::new(OfCluster { places, bodies: Semaphore::new(BODIES) });
        clusters.known.insert(*key, Arc::downgrade(&new));
        new
    }

    /// Counts a question of an address that has proved nothing: each by itself, for many clusters may be behind one address,
    /// and whoever asks one too often keeps nobody from another.
    pub fn by_address(&self, peer: IpAddr, path: &'static str, rate: Rate) -> Result<(), ApiError> {
        let taken = self.addresses.take(&network(peer), &(address(peer), path), rate, Instant::now());
        taken.map(drop).map_err(|seconds| too_often("Your address", seconds))
    }

    /// Takes back that a question was counted: whose it was has been proved.
    pub fn not_of_address(&self, peer: IpAddr, path: &'static str) {
        self.addresses.give_back(&(address(peer), path));
    }

    /// Counts a question of a cluster that has proved that it is the one.
    pub fn by_cluster(&self, cluster: ClusterKey, path: &'static str, rate: Rate) -> Result<(), ApiError> {
        let taken = self.rates.take(&cluster, &(cluster, path), rate, Instant::now());
        taken.map(drop).map_err(|seconds| too_often("This cluster", seconds))
    }
}

/// The exchanges of one tunnel.
pub struct Exchanges {
    places: Arc<Semaphore>,
    cluster: Arc<OfCluster>,
}

impl Exchanges {
    /// Of a tunnel of a cluster.
    pub fn new(asked: &Asked, cluster: &ClusterKey) -> Self {
        Self { places: Arc::new(Semaphore::new(EXCHANGES)), cluster: asked.of(cluster) }
    }

    /// Serves a stream that the agent opened, in a task of its own.
    pub fn start(&self, core: &Arc<Core>, tunnel: &Arc<LiveTunnel>, incoming: Incoming) {
        let Incoming { head, mut stream } = incoming;
        let head = match RequestHead::decode(head) {
            Ok(head) => head,
            Err(error) => {
                tracing::debug!(tunnel = tunnel.id(), %error, "the head of an agent's stream cannot be read");
                return stream.send.reset(StreamCode::BadHead);
            }
        };
        let Some(control) = core.control.clone().filter(|_| head.role == ROLE) else {
            tracing::debug!(tunnel = tunnel.id(), role = head.role, "no such role for an agent here");
            return stream.send.reset(StreamCode::UnknownRole);
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return stream.send.reset(StreamCode::Limit);
        };
        let (core, tunnel, cluster) = (Arc::clone(core), Arc::clone(tunnel), Arc::clone(&self.cluster));
        core.tasks.clone().spawn("agent exchange", async move {
            let handle = Arc::clone(&tunnel.handle);
            tokio::select! {
                biased;
                // Whoever is cut off gets no further.
                _ = handle.closed() => {}
                () = exchange(core, control, &tunnel, &cluster, head, stream) => {}
            }
            drop(place);
        });
    }
}

async fn exchange(
    core: Arc<Core>,
    control: Arc<Control>,
    tunnel: &LiveTunnel,
    cluster: &OfCluster,
    head: RequestHead,
    stream: Stream,
) {
    let Stream { mut send, recv, .. } = stream;
    let target = String::from_utf8_lossy(&head.target).into_owned();
    let (path, asked) = target.split_once('?').map_or((target.as_str(), None), |(path, query)| (path, Some(query)));
    let body = StreamBody::of_request(recv, &head.headers);
    let answer = async {
        let serving = serve(core, control, tunnel, cluster, (&head.method, path, asked), body);
        named(answered(serving.await, path), head.request_id)
    };
    let answer = tokio::select! {
        biased;
        // Who asked is gone: what waits for news need not wait on.
        _ = send.stopped() => return,
        answer = answer => answer,
    };
    let (parts, body) = answer.into_parts();
    let head = ResponseHead { status: parts.status, headers: parts.headers, refused_by: None };
    let counters = Counters::default();
    let sent = tokio::time::timeout(ANSWER_DEADLINE, respond(&mut send, &head, body, &counters)).await;
    if !matches!(sent, Ok(Ok(_))) {
        tracing::debug!(tunnel = tunnel.id(), path, "an answer to an agent did not get through");
    }
}

async fn serve(
    core: Arc<Core>,
    control: Arc<Control>,
    tunnel: &LiveTunnel,
    cluster: &OfCluster,
    (method, path, asked): (&Method, &str, Option<&str>),
    body: StreamBody,
) -> Result<Reply, ApiError> {
    const { assert!(EXCHANGES < limits::STREAMS_PER_TUNNEL as usize) };
    let route = find(OF_TUNNELS, method, path)?;
    let place = Arc::clone(&cluster.places).try_acquire_owned();
    let _place = place.map_err(|_| busy(&format!("{EXCHANGES_OF_CLUSTER} exchanges of this cluster's agents")))?;
    core.agents.by_cluster(tunnel.cluster.key, route.path, route.rate)?;
    let ended = |_| ApiError::internal("bodies are read no more");
    let (_own, _all, body) = if http_body::Body::is_end_stream(&body) {
        (None, None, bytes::Bytes::new())
    } else {
        let own = cluster.bodies.acquire().await.map_err(ended)?;
        let turn = tokio::time::timeout(super::BODY_DEADLINE, ALL_BODIES.acquire()).await;
        let all = turn.map_err(|_| busy(&format!("{BODIES_OF_ALL} bodies")))?.map_err(ended)?;
        (Some(own), Some(all), whole(body, route.body_bytes).await?)
    };
    let id = &tunnel.cluster.id;
    core.snapshots.load().serves(id, &tunnel.names).map_err(|gone| certificate::refused(&gone))?;
    let call = Call { core, control, query: query(asked), body };
    let (names, authority) = (tunnel.names.clone(), tunnel.authority.clone());
    let agent = Agent { cluster: Arc::clone(&tunnel.cluster), names, authority, tunnel: tunnel.id() };
    in_time((route.serve)(&call, &agent)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> ClusterKey {
        ClusterKey::from_hex(format!("{number:064x}").as_bytes()).unwrap()
    }

    fn known(asked: &Asked) -> (usize, usize) {
        let clusters = asked.clusters.lock().unwrap();
        (clusters.known.len(), clusters.sweep_at)
    }

    /// Each tunnel that came up looked at the clusters of all others: a storm of 10,000 took 10,000 looks each.
    #[test]
    fn a_fleet_that_comes_back_looks_for_gone_clusters_only_when_there_are_twice_as_many() {
        let asked = Asked::default();
        for number in 0..10_000 {
            drop(asked.of(&key(number)));
        }
        assert!(known(&asked).0 <= 2 * SWEEP_LEAST, "{:?}", known(&asked));
        let up: Vec<_> = (0..10_000).map(|number| asked.of(&key(number))).collect();
        let (entries, sweep_at) = known(&asked);
        assert!(entries >= up.len() && sweep_at > entries && sweep_at <= 2 * entries, "{entries} {sweep_at}");
        assert!(Arc::ptr_eq(&up[7], &asked.of(&key(7))));
        drop(up);
        for number in 0..20_000 {
            drop(asked.of(&key(10_000 + number)));
        }
        assert!(known(&asked).0 <= 2 * SWEEP_LEAST, "{:?}", known(&asked));
    }
}
