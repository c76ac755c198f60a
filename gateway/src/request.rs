//! One user request: the stages in order, and what travels through them.
//!
//! `accept` · `address` · `audit` · `authenticate` · `authorize` · `locate` · `open` · `relay` · `respond`; each is a file
//! below, a span, a label of metrics and a field of the audit record.

pub mod accept;
pub mod address;
pub mod authenticate;
pub mod headers;
pub mod locate;
pub mod open;
pub mod redirect;
pub mod relay;
pub mod respond;
pub mod trace;
pub mod whoami;

use std::{
    cell::RefCell,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, Version};
use hyper::body::Incoming;
use tracing::Instrument as _;
use tunnel::wire::head::RequestHead;
use types::ids::{RequestId, hex};

use self::{
    accept::{Faulty, Turn},
    address::{Address, AddressError, ClusterAddress, Endpoint, LongTarget, ServerName},
    respond::{Body, Kind, Refusal},
    trace::Trace,
};
use crate::{
    admission::limit::SIGN_INS_PER_ADDRESS,
    answers::{self, REQUEST_ID},
    audit::{self, Record},
    config::Limits,
    core::Core,
    identity::{Access, AuthenticateError, Credential},
    metrics::labels::Stage,
    permit::{self, Permit},
    policy::DenialReason,
    random,
    sessions::{SessionHandle, What},
    snapshot::Snapshot,
    tunnels::websocket::{self, NoUpgrade},
};

/// What is known of a user's connection.
#[derive(Debug)]
pub struct Connection {
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The same as text, for the agent's log of each of its requests.
    pub address: Bytes,
    /// What the TLS server name says that it asked for.
    pub server_name: ServerName,
    /// The access certificate that it showed, if it showed one.
    pub access: Option<Arc<Access>>,
    /// All client certificates that it showed, for a tunnel in a WebSocket.
    pub certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
    /// How many requests it has made.
    pub requests: AtomicU64,
}

/// What a request carries from stage to stage.
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// Its method.
    pub method: Method,
    /// Whether the answers of its connection come one after the other, so that one waits for another's reader.
    pub http1: bool,
    /// Its headers; the stages take out what must not go on.
    pub headers: HeaderMap,
    /// The protocol that it wants to change to.
    pub upgrade: Option<Bytes>,
    /// The way into the cluster.
    pub address: Box<ClusterAddress>,
    /// Its body, and the upgrade of its connection; whoever sends the body on takes it.
    pub body: Option<Incoming>,
    /// Hands over the connection after a 101.
    pub on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    /// Who asks from where.
    pub connection: Arc<Connection>,
    /// The trace that it belongs to.
    pub trace: Trace,
    /// Whether Kubernetes lets it take its time.
    pub long_running: bool,
    /// When an answer must have begun.
    pub deadline: Instant,
}

/// Serves one request of a user, over HTTP/1.1 with its turn on the connection and what is wrong with its head. Never
/// fails: every outcome is an answer.
///
/// What a future is given it has room for until its end, and what it moves on it has room for twice: the large parts come,
/// and go from stage to stage, in boxes.
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
    let mut slot = Some(record);
    let outcome = stages(&core, connection, (turn, faulty), id, http, &mut slot).await;
    let mut response = match outcome {
        Ok(response) => {
            // Answers of ours keep their record until here; relayed ones took it along.
            if let Some(record) = &mut slot {
                record.answered(response.status());
                record.outcome(audit::Outcome::Complete);
            }
            response
        }
        Err(refusal) => match &mut slot {
            Some(record) => respond::refuse(&refusal, id, http1, words, record),
            None => Response::new(Body::empty()),
        },
    };
    if let Ok(id) = HeaderValue::try_from(hex(&id.0)) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn stages(
    core: &Arc<Core>,
    connection: Arc<Connection>,
    (turn, faulty): (Option<&Turn>, Option<Box<Faulty>>),
    id: RequestId,
    http: Box<http::Request<Incoming>>,
    slot: &mut Option<Record>,
) -> Result<Response<Body>, Refusal> {
    let record = slot.as_mut().expect(HELD);
    if let Some(faulty) = faulty {
        return Err(Refusal::new(Stage::Accept, faulty.fault.kind()));
    }
    match address(core, connection, id, *http)? {
        Routed::Cluster(request) => {
            // Its stages say nothing above debug, its tasks have spans of their own, and its record has the id: a span that
            // nobody sees costs what a stage does.
            let span = tracing::debug_span!("request", request.id = %id);
            reach(core, turn, request, slot).instrument(span).await
        }
        // In a box of its own, so that what goes to a cluster does not carry the room for it.
        Routed::Here(here) => {
            let span = tracing::info_span!("request", request.id = %id);
            Box::pin(serve_here(core, turn, id, *here, record)).instrument(span).await
        }
    }
}

/// The stages of a request to a cluster.
async fn reach(
    core: &Arc<Core>,
    turn: Option<&Turn>,
    mut request: Box<Request>,
    slot: &mut Option<Record>,
) -> Result<Response<Body>, Refusal> {
    let record = slot.as_mut().expect(HELD);
    describe(&request, record);
    if let (Some(turn), true) = (turn, request.long_running) {
        turn.long_running();
    }
    let snapshot = core.snapshots.load();

    record.stage(Stage::Authenticate);
    if request.address.endpoint == Endpoint::WhoAmI {
        return Box::pin(whoami::serve(core, &snapshot, request, record)).await;
    }
    let (permit, session) = admit(core, &snapshot, &mut request, record).await?;

    record.stage(Stage::Locate);
    let slot_of_streams = core.slots.acquire(&permit, &core.limits())?;
    let tunnels = locate::locate(&core.tunnels, permit.cluster())?;

    record.stage(Stage::Open);
    let bodiless = request.upgrade.is_none() && request.body.as_ref().is_none_or(http_body::Body::is_end_stream);
    let role = role(&request);
    let head = open::encode(&head(&mut request, role))?;
    let relayed = {
        let opened = open::open(core, tunnels, (head.clone(), bodiless), slot_of_streams).await?;
        record.carrier(opened.tunnel.handle.info().carrier);
        record.stage(Stage::Relay);
        Box::pin(relay::relay(core, request, (head, opened), session, slot))
    };
    relayed.await
}

/// Serves what goes to no cluster.
async fn serve_here(
    core: &Arc<Core>,
    turn: Option<&Turn>,
    id: RequestId,
    Here { what, http, connection }: Here,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    match what {
        Ours::Tunnel => tunnel(core, &connection, http),
        Ours::Addresses => match *http.method() {
            Method::GET | Method::HEAD => Ok(answers::written(core.trust.addresses()).map(Body::Full)),
            _ => Err(Refusal::new(Stage::Address, Kind::NotFound)),
        },
        Ours::Issuer => issuer(core, &connection, http).await,
        Ours::Agents => agents(core, &connection, http, record).await,
        Ours::Api(path) => {
            let mut response = api(core, id, &path, http, record).await?;
            if let Body::Live(live) = response.body_mut() {
                live.hold(connection);
                turn.into_iter().for_each(Turn::long_running);
            }
            Ok(response)
        }
    }
}

/// Authenticates and authorises; the right is then a session that can be taken back.
async fn admit(
    core: &Arc<Core>,
    snapshot: &Snapshot,
    request: &mut Request,
    record: &mut Record,
) -> Result<(Permit, SessionHandle), Refusal> {
    let refused = |error: AuthenticateError| {
        let kind = if error.is_unavailable() { Kind::IssuerUnavailable } else { Kind::Unauthorized };
        Refusal::new(Stage::Authenticate, kind).because(error)
    };
    let cluster = snapshot.cluster(&request.address.key);
    let query = request.address.target.iter().position(|b| *b == b'?').map(|at| &request.address.target[at + 1..]);
    let query = query.map(String::from_utf8_lossy);
    let credential = Credential::take(&mut request.headers, query.as_deref()).map_err(refused)?;
    let access = request.connection.access.as_ref();
    let principal =
        authenticate::authenticate(snapshot, &credential, access, (&request.address.key, cluster), SystemTime::now())
            .await
            .map_err(refused)?;
    drop(credential);
    record.user(principal.name(), principal.issuer());

    record.stage(Stage::Authorize);
    let permit = permit::authorize(snapshot, &principal, cluster).map_err(|denial| {
        record.decision(false, Some(denial.0.as_str()));
        forbidden(principal.name(), denial.0)
    })?;
    record.decision(true, None);
    record.cluster(&permit.cluster().id);
    if request.address.endpoint == Endpoint::Unknown {
        return Err(Refusal::new(Stage::Address, Kind::NotFound));
    }
    if let Some(user) = headers::impersonation(&mut request.headers)? {
        record.impersonated(user.as_bytes());
    }
    let what = What::new(&request.method, &request.address.target);
    let session = core.sessions.open(request.id, &permit, what, snapshot.sessions.outlive_token);
    Ok((permit, session))
}

fn forbidden(user: &str, reason: DenialReason) -> Refusal {
    let kind = match reason {
        DenialReason::ConnectOff => Kind::ConnectOff,
        _ => Kind::Forbidden { user: user.to_owned() },
    };
    Refusal::new(Stage::Authorize, kind).because(reason.as_str())
}

enum Routed {
    Cluster(Box<Request>),
    Here(Box<Here>),
}

/// A request that the gateway answers itself.
struct Here {
    what: Ours,
    http: http::Request<Incoming>,
    connection: Arc<Connection>,
}

enum Ours {
    /// An agent's tunnel in a WebSocket.
    Tunnel,
    /// How clusters are addressed.
    Addresses,
    Issuer,
    Agents,
    /// The resource API; its path.
    Api(String),
}

/// Where it goes, and whether its head is one that may go anywhere. Takes out what no hop may forward.
fn address(
    core: &Core,
    connection: Arc<Connection>,
    id: RequestId,
    mut http: http::Request<Incoming>,
) -> Result<Routed, Refusal> {
    let refuse = |kind| Refusal::new(Stage::Address, kind);
    if matches!(*http.method(), Method::CONNECT | Method::TRACE) {
        return Err(refuse(Kind::Method));
    }
    headers::check(http.version(), http.headers())?;
    let long = http.extensions_mut().remove::<LongTarget>();
    let parsed = address::parse(
        http.version(),
        http.method(),
        http.uri(),
        http.headers(),
        &core.names,
        connection.server_name,
        long.as_ref(),
    );
    let address = parsed.map_err(|error| match error {
        AddressError::Misdirected => refuse(Kind::Misdirected),
        error => refuse(Kind::Address(error)),
    })?;
    let here = |what, http, connection| Ok(Routed::Here(Box::new(Here { what, http, connection })));
    match address {
        Address::Nowhere => Err(refuse(Kind::NotFound)),
        Address::Tunnel => here(Ours::Tunnel, http, connection),
        Address::Addresses => here(Ours::Addresses, http, connection),
        Address::Issuer => here(Ours::Issuer, http, connection),
        Address::Agents => here(Ours::Agents, http, connection),
        Address::Api(path) => here(Ours::Api(path), http, connection),
        Address::Cluster(address) => {
            let http1 = http.version() <= Version::HTTP_11;
            let upgrade = headers::upgrade(&http)?;
            let on_upgrade = upgrade.is_some().then(|| hyper::upgrade::on(&mut http));
            let (parts, body) = http.into_parts();
            let mut headers = parts.headers;
            headers::strip_request(&mut headers, upgrade.is_some());
            let trace = Trace::take(&mut headers, id.0, span_id(id));
            let long_running = upgrade.is_some() || is_long_running(&address.endpoint);
            let deadline = Instant::now() + answer_time(&address.endpoint, long_running, &core.limits());
            Ok(Routed::Cluster(Box::new(Request {
                id,
                method: parts.method,
                http1,
                headers,
                upgrade,
                address,
                body: Some(body),
                on_upgrade,
                connection,
                trace,
                long_running,
                deadline,
            })))
        }
    }
}

/// An agent's tunnel in a WebSocket.
fn tunnel(core: &Arc<Core>, connection: &Connection, http: http::Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let from = (connection.peer, &*connection.certificates);
    match websocket::upgrade(core, from, http, accept::into_stream) {
        Ok(response) => Ok(response.map(|()| Body::empty())),
        Err(NoUpgrade::Draining) => Err(Refusal::new(Stage::Accept, Kind::Draining)),
        Err(NoUpgrade::Malformed(why)) => Err(Refusal::new(Stage::Address, Kind::BadRequest(why))),
    }
}

async fn api(
    core: &Core,
    id: RequestId,
    path: &str,
    http: http::Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Some(control) = &core.control else { return Err(Refusal::new(Stage::Address, Kind::NotFound)) };
    let snapshot = core.snapshots.load();
    let (issuer, sessions) = (core.issuer.load_full(), Some(Arc::clone(&core.sessions)));
    let site = crate::api::Site { control, snapshot: &snapshot, issuer, sessions };
    Ok(crate::api::serve(site, id, path, http, record).await.map(Body::from))
}

async fn agents(
    core: &Arc<Core>,
    connection: &Connection,
    http: http::Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Some(control) = &core.control else { return Err(Refusal::new(Stage::Address, Kind::NotFound)) };
    let from = (connection.peer.ip(), &*connection.certificates);
    Ok(crate::agents::listener::serve(core, control, from, http, record).await.map(Body::Full))
}

async fn issuer(
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

fn describe(request: &Request, record: &mut Record) {
    record.path(&String::from_utf8_lossy(&request.address.target));
    record.key(request.address.key);
    record.trace(request.trace.id());
    if let Endpoint::Kubernetes(info) = &request.address.endpoint {
        record.info(info);
    }
    if let Some(upgrade) = &request.upgrade {
        record.upgrade(upgrade);
    }
}

fn role(request: &Request) -> &'static str {
    match request.address.endpoint {
        Endpoint::Refresh => "refresh",
        Endpoint::WhoAmI => "whoami",
        Endpoint::Kubernetes(_) | Endpoint::Unknown => "kube-aad-proxy",
    }
}

/// What goes onto the stream: the bytes that were authorised, on headers that no hop-by-hop name touched. Takes them out of
/// the request.
fn head(request: &mut Request, role: &str) -> RequestHead {
    RequestHead {
        role: role.to_owned(),
        request_id: request.id,
        method: request.method.clone(),
        target: request.address.target.clone(),
        headers: std::mem::take(&mut request.headers),
        deadline_ms: Some(milliseconds(request.deadline.saturating_duration_since(Instant::now()))),
        traceparent: Some(request.trace.parent()),
        user_address: Some(request.connection.address.clone()),
    }
}

/// How long an answer may take to begin: what Kubernetes calls long running takes the time that it likes.
fn answer_time(endpoint: &Endpoint, long_running: bool, limits: &Limits) -> Duration {
    match endpoint {
        Endpoint::WhoAmI | Endpoint::Refresh => QUESTION_DEADLINE,
        Endpoint::Kubernetes(_) if long_running => LONG_RUNNING_DEADLINE,
        Endpoint::Kubernetes(_) | Endpoint::Unknown => limits.request_timeout,
    }
}

fn is_long_running(endpoint: &Endpoint) -> bool {
    matches!(endpoint, Endpoint::Kubernetes(info) if info.is_long_running())
}

/// At least 1: 0 would be over before it is read.
fn milliseconds(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Drawn many at a time: a draw begins with the processor's own source, which takes as long as a page of bytes does. They
/// are names and no secrets.
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

/// Why there is a record wherever one is asked for.
const HELD: &str = "the record is taken by relay only, behind all other stages";

/// Half of the request's random bytes, not all 0: one step of the gateway's for each request.
fn span_id(RequestId([mut span @ .., _, _, _, _, _, _, _, _]): RequestId) -> [u8; 8] {
    span[7] |= u8::from(span == [0; 8]);
    span
}

/// How long the answer to a watch, an exec or what a service behind the apiserver thinks about may take to begin.
const LONG_RUNNING_DEADLINE: Duration = Duration::from_secs(3600);
/// How long a single question to an agent may take (whoami).
pub const QUESTION_DEADLINE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// What is allocated and moved for every request: 3.3 KB for all of it once, and 2.5 KB of that for the stages. What is above
    /// 1,032 bytes misses glibc's cache for the thread.
    #[test]
    fn the_futures_of_a_request_stay_small() {
        fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let serve = size(|(core, connection, http)| serve(core, connection, None, http));
        let relay = size(|(core, (request, opened, session), slot): (&Arc<Core>, _, &mut Option<Record>)| {
            relay::relay(core, request, opened, session, slot)
        });
        assert!(serve <= 1032 && relay <= 1032, "{serve} and {relay}");
    }
}
