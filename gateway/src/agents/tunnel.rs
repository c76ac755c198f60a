//! Exchanges on streams of role `agent-api` that an agent opens on its tunnel. Who asks is who the tunnel's certificate
//! says; no message names a cluster.

use std::sync::{Arc, LazyLock};

use http::Method;
use tokio::sync::Semaphore;
use tunnel::{
    exchange::{Counters, StreamBody, respond},
    transport::{Incoming, Stream},
    wire::{
        close::StreamCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::{
    agent_api::{EGRESS_ROLE, ROLE},
    api::ResourceId,
    ids::ClusterKey,
    limits,
};

use super::{Agent, Call, OF_TUNNELS, Reply, answered, busy, certificate, egress, find, in_time, named, query, whole};
use crate::{
    api_error::ApiError,
    aside,
    control::{Control, turns::Bodies},
    core::{AgentStreams, Core},
    fleet::{
        asked::{Asked, EXCHANGES_OF_CLUSTER, OfCluster},
        registry::LiveTunnel,
    },
};

/// Exchanges of one tunnel at once. A few of them wait for news all the time.
const EXCHANGES: usize = 32;
/// Connections to other hosts, and refusals of such, of one tunnel at once. Each cluster may have fewer connections.
const EGRESS: usize = 64;
/// Exchanges of all tunnels whose bodies are read at once.
const BODIES_OF_ALL: usize = 512;
/// How long an answer may wait for its reader, beside the time that its bytes take at the lowest rate.
const ANSWER_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);
/// Bytes in a second that are waited for: a chart of 20 MiB may take almost 6 minutes.
const LOWEST_RATE: u64 = 64 * 1024;
static ALL_BODIES: LazyLock<Bodies> = LazyLock::new(|| Bodies::at_once(BODIES_OF_ALL));

/// The exchanges of one tunnel.
pub struct Exchanges {
    places: Arc<Semaphore>,
    egress: Arc<Semaphore>,
    cluster: Arc<OfCluster>,
}

impl Exchanges {
    /// Of a tunnel of a cluster.
    pub fn streams(asked: &Asked, cluster: &ClusterKey) -> Box<dyn AgentStreams> {
        let [places, egress] = [EXCHANGES, EGRESS].map(|places| Arc::new(Semaphore::new(places)));
        Box::new(Self { places, egress, cluster: asked.of(cluster) })
    }
}

impl AgentStreams for Exchanges {
    fn start(&self, core: &Arc<Core>, tunnel: &Arc<LiveTunnel>, incoming: Incoming) {
        let Incoming { head, mut stream } = incoming;
        let head = match RequestHead::decode(head) {
            Ok(head) => head,
            Err(error) => {
                tracing::debug!(tunnel = tunnel.id(), %error, "the head of an agent's stream cannot be read");
                return stream.send.reset(StreamCode::BadHead);
            }
        };
        let is_egress = head.role == EGRESS_ROLE;
        let Some(control) = core.control.clone().filter(|_| is_egress || head.role == ROLE) else {
            tracing::debug!(tunnel = tunnel.id(), role = head.role, "no such role for an agent here");
            return stream.send.reset(StreamCode::UnknownRole);
        };
        if !core.admits() {
            return stream.send.reset(StreamCode::Limit);
        }
        // Connections to other hosts last, and have places of their own.
        let places = if is_egress { &self.egress } else { &self.places };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return stream.send.reset(StreamCode::Limit);
        };
        let (core, tunnel, cluster) = (Arc::clone(core), Arc::clone(tunnel), Arc::clone(&self.cluster));
        core.tasks.clone().spawn("agent exchange", async move {
            let handle = Arc::clone(&tunnel.handle);
            tokio::select! {
                biased;
                // Whoever is cut off gets no further.
                _ = handle.closed() => {}
                () = async {
                    if is_egress {
                        egress::serve(&core, &control, &tunnel, head, stream).await;
                    } else {
                        exchange(core, control, &tunnel, &cluster, head, stream).await;
                    }
                } => {}
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
        let asked = Target { method: &head.method, path, query: asked };
        let serving = serve(core, control, tunnel, cluster, asked, body);
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
    let length = http_body::Body::size_hint(&body).lower();
    let deadline = ANSWER_DEADLINE + std::time::Duration::from_secs(length / LOWEST_RATE);
    let sent = tokio::time::timeout(deadline, respond(&mut send, &head, body, &counters)).await;
    if !matches!(sent, Ok(Ok(_))) {
        tracing::debug!(tunnel = tunnel.id(), path, "an answer to an agent did not get through");
    }
}

/// What an agent asks for in an exchange.
#[derive(Clone, Copy)]
struct Target<'a> {
    method: &'a Method,
    path: &'a str,
    query: Option<&'a str>,
}

async fn serve(
    core: Arc<Core>,
    control: Arc<Control>,
    tunnel: &LiveTunnel,
    cluster: &OfCluster,
    asked: Target<'_>,
    body: StreamBody,
) -> Result<Reply, ApiError> {
    const { assert!(EXCHANGES < limits::STREAMS_PER_TUNNEL as usize) };
    let route = find(OF_TUNNELS, asked.method, asked.path)?;
    let place = Arc::clone(&cluster.places).try_acquire_owned();
    let _place = place.map_err(|_| busy(&format!("{EXCHANGES_OF_CLUSTER} exchanges of this cluster's agents")))?;
    core.agents.by_cluster(tunnel.cluster.key, route.path, route.rate)?;
    let ended = |_| ApiError::internal("bodies are read no more");
    let id = &tunnel.cluster.id;
    // Who may connect clusters in a resource group has as many as they like, and one place for each would be all.
    let party = ResourceId::parse(id.as_str()).ok().and_then(|id| id.parent()).map(|group| group.key().to_owned());
    let party = party.unwrap_or_default();
    let (_own, body) = if http_body::Body::is_end_stream(&body) {
        (None, bytes::Bytes::new())
    } else {
        let own = cluster.bodies.acquire().await.map_err(ended)?;
        let mut place = ALL_BODIES.take(id.as_str(), party.clone()).await?;
        (Some(own), place.keep(whole(body, route.body_bytes)).await?)
    };
    core.snapshots.load().serves(id, &tunnel.names).map_err(|gone| certificate::refused(&gone))?;
    let call = Call { core, control, query: query(asked.query), body };
    let (names, authority) = (tunnel.names.clone(), tunnel.authority.clone());
    let agent = Agent { cluster: Arc::clone(&tunnel.cluster), names, authority, tunnel: tunnel.id() };
    aside::by(&party, in_time((route.serve)(&call, &agent))).await
}
