//! One request on a user's socket, whoever answers it: its record, its address, and who that leads to. A request to a
//! cluster goes through the stages of [`crate::request`]; the resource API, the built-in issuer, agents' exchanges and
//! tunnels in a WebSocket have paths of their own.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
};

use http::{HeaderValue, Method, Response, Version};
use hyper::body::Incoming;
use tracing::Instrument as _;
use types::ids::{RequestId, hex};

use super::{
    framing::{Faulty, Turn},
    into_stream,
};
use crate::{
    admission::{limit::SIGN_INS_PER_ADDRESS, unproven::Place},
    agents,
    answers::{self, REQUEST_ID},
    api,
    audit::{self, Custody, Record},
    core::Core,
    metrics::labels::Stage,
    random,
    request::{
        self, Connection, Request,
        address::{self, Address},
        refusal::{Kind, Refusal},
        respond::{self, Body},
    },
    tunnels::websocket::{self, NoUpgrade},
};

/// Serves one request of a user, over HTTP/1.1 with its turn on the connection and what is wrong with its head. Never
/// fails: every outcome is an answer.
///
/// Large values go boxed from stage to stage, so that its future stays small (docs/decisions/0013-small-futures.md).
pub async fn serve(
    core: Arc<Core>,
    connection: Arc<Connection>,
    turn: Option<(&Turn, Option<Box<Faulty>>)>,
    http: Box<http::Request<Incoming>>,
) -> Response<Body> {
    let id = new_request_id();
    let http1 = http.version() <= Version::HTTP_11;
    let (turn, faulty) = turn.map_or((None, None), |(turn, faulty)| (Some(turn), faulty));
    let (method, target) = match &faulty {
        Some(faulty) => (faulty.method.as_str(), faulty.target.as_str()),
        None => (http.method().as_str(), http.uri().path()),
    };
    let mut record = Record::open(Arc::clone(&core.audit), Arc::clone(&core.metrics), id, connection.peer, method);
    record.path(target);
    let of_api = core.control.is_some() && !connection.server_name.is_bound() && address::begins_as_api(target);
    let words = if of_api { respond::Words::Arm } else { respond::Words::Kubernetes };
    connection.requests.fetch_add(1, Ordering::Relaxed);
    let mut custody = Custody::Stages(record);
    let outcome = match faulty {
        Some(faulty) => Err(Refusal::new(Stage::Accept, faulty.fault.kind())),
        None => stages(&core, Arc::clone(&connection), turn, id, http, &mut custody).await,
    };
    let mut response = match outcome {
        Ok(response) => {
            // Answers of ours keep their record until here; relayed ones took it along.
            if let Some(record) = custody.kept() {
                record.answered(response.status());
                record.outcome(audit::Outcome::Complete);
            }
            response
        }
        Err(refusal) => match custody.kept() {
            Some(record) => respond::refuse(&refusal, id, http1, words, record),
            None => Response::new(Body::empty()),
        },
    };
    match custody.kept() {
        // What this gateway cannot answer is no fault of who asks.
        Some(record) if record.is_nobodys() && response.status().is_server_error() => {}
        Some(record) if record.is_nobodys() => connection.standing.refused(),
        Some(record) if !record.is_named() => {}
        _ => connection.standing.prove(),
    }
    if let Ok(id) = HeaderValue::try_from(hex(&id.0)) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn stages(
    core: &Arc<Core>,
    connection: Arc<Connection>,
    turn: Option<&Turn>,
    id: RequestId,
    http: Box<http::Request<Incoming>>,
    custody: &mut Custody,
) -> Result<Response<Body>, Refusal> {
    let record = custody.record();
    match route(core, connection, id, http)? {
        Routed::Cluster(request) => {
            if let (Some(turn), true) = (turn, request.long_running) {
                turn.long_running();
            }
            // Its stages say nothing above debug, its tasks have spans of their own, and its record has the id: a span
            // that nobody sees costs what a stage does.
            let span = tracing::debug_span!("request", request.id = %id);
            request::reach(core, request, custody).instrument(span).await
        }
        // Boxed, so that the future of a request to a cluster stays small.
        Routed::Here(here) => {
            let span = tracing::info_span!("request", request.id = %id);
            Box::pin(serve_here(core, turn, id, *here, record)).instrument(span).await
        }
    }
}

/// Where a request goes: boxed, because the future of every request reserves space for it.
enum Routed {
    Cluster(Box<Request>),
    Here(Box<Here>),
}

fn route(
    core: &Core,
    connection: Arc<Connection>,
    id: RequestId,
    mut http: Box<http::Request<Incoming>>,
) -> Result<Routed, Refusal> {
    if !core.admits() {
        let superseded = core.replicas.as_ref().is_some_and(|replicas| replicas.is_superseded());
        let kind = match core.is_starting() {
            true => Kind::Starting,
            false if superseded => Kind::Superseded,
            false => Kind::Fenced,
        };
        return Err(Refusal::new(Stage::Accept, kind));
    }
    Ok(match request::address(core, connection.server_name, &mut http)? {
        Address::Cluster(address) => Routed::Cluster(Request::new(core, connection, id, *http, address)?),
        address => Routed::Here(Box::new(Here { address, http, connection })),
    })
}

/// A request that goes to no cluster.
struct Here {
    address: Address,
    http: Box<http::Request<Incoming>>,
    connection: Arc<Connection>,
}

/// Serves what goes to no cluster.
async fn serve_here(
    core: &Arc<Core>,
    turn: Option<&Turn>,
    id: RequestId,
    Here { address, mut http, connection }: Here,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    // These wait for their clients, and have bounds of their own.
    if !matches!(address, Address::Api(_)) {
        http.extensions_mut().remove::<Place>();
    }
    match address {
        Address::Tunnel => serve_tunnel(core, &connection, *http),
        Address::Addresses => match *http.method() {
            Method::GET | Method::HEAD => Ok(answers::written(core.trust.addresses()).map(Body::Full)),
            _ => Err(Refusal::new(Stage::Address, Kind::NotFound)),
        },
        Address::Issuer => serve_issuer(core, &connection, *http).await,
        Address::Agents => serve_agents(core, &connection, *http, record).await,
        Address::Api(path) => {
            let mut response = serve_api(core, id, &path, *http, record).await?;
            if let Body::Live(live) = response.body_mut()
                && !live.is_whole()
            {
                live.hold(connection);
                turn.into_iter().for_each(Turn::long_running);
            }
            Ok(response)
        }
        Address::Cluster(_) | Address::Nowhere => Err(Refusal::new(Stage::Address, Kind::NotFound)),
    }
}

/// An agent's tunnel in a WebSocket.
fn serve_tunnel(
    core: &Arc<Core>,
    connection: &Connection,
    http: http::Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    match websocket::upgrade(core, connection.peer, &connection.certificates, http, into_stream) {
        Ok(response) => Ok(response.map(|()| Body::empty())),
        Err(NoUpgrade::Draining) => Err(Refusal::new(Stage::Accept, Kind::Draining)),
        Err(NoUpgrade::Malformed(why)) => Err(Refusal::new(Stage::Address, Kind::BadRequest(why))),
    }
}

async fn serve_api(
    core: &Core,
    id: RequestId,
    path: &str,
    http: http::Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Some(control) = &core.control else { return Err(Refusal::new(Stage::Address, Kind::NotFound)) };
    let (issuer, sessions) = (core.issuer.load_full(), Some(Arc::clone(&core.sessions)));
    let hops = core.hops.clone();
    let site = api::Site { control, snapshot: core.snapshots.load(), issuer, sessions, hops };
    Ok(api::serve(site, id, path, http, record).await.map(Body::from))
}

async fn serve_agents(
    core: &Arc<Core>,
    connection: &Connection,
    http: http::Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Some(control) = &core.control else { return Err(Refusal::new(Stage::Address, Kind::NotFound)) };
    let (peer, certificates) = (connection.peer.ip(), &*connection.certificates);
    Ok(agents::listener::serve(core, control, peer, certificates, http, record).await.map(Body::from))
}

async fn serve_issuer(
    core: &Core,
    connection: &Connection,
    http: http::Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let Some(issuer) = core.issuer.load_full() else { return Err(Refusal::new(Stage::Address, Kind::NotFound)) };
    let Some(_place) = core.admissions.sign_in(connection.peer.ip()) else {
        let kind = Kind::Limit { name: "sign-ins at once from one address", value: SIGN_INS_PER_ADDRESS.into() };
        return Err(Refusal::new(Stage::Authenticate, kind));
    };
    Ok(issuer.handle(connection.peer.ip(), http).await.map(Body::Full))
}

/// Drawn many at a time: a draw begins with the processor's own source, which takes as long as a page of bytes does.
/// They are names and no secrets.
fn new_request_id() -> RequestId {
    const DRAWN: usize = 64;
    thread_local! {
        static IDS: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    IDS.with_borrow_mut(|ids| {
        RequestId(ids.pop().unwrap_or_else(|| {
            let drawn = random::bytes::<{ 16 * DRAWN }>();
            let (drawn, _) = drawn.as_chunks();
            ids.extend(&drawn[1..]);
            drawn[0]
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is allocated and moved for every request: 3.3 KB for all of it once, and 2.5 KB of that for the stages.
    /// What is above 1,032 bytes misses glibc's cache for the thread.
    #[test]
    fn the_futures_of_a_request_stay_small() {
        fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let serve = size(|(core, connection, http)| serve(core, connection, None, http));
        let relay = size(|(core, (request, head, opened, session), custody): (&Arc<Core>, _, &mut Custody)| {
            request::relay::relay(core, request, head, opened, session, custody)
        });
        assert!(serve <= 1032 && relay <= 1032, "{serve} and {relay}");
    }
}
