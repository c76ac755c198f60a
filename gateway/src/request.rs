//! One request of a user to a cluster: the stages in order, and what travels through them.
//!
//! `accept` · `address` · `audit` · `authenticate` · `authorize` · `locate` · `open` · `relay` · `respond`; each is a
//! span, a label of metrics and a field of the audit record, and a file below, but for `accept` ([`crate::listen`]),
//! `audit` ([`crate::audit`]) and `authorize` ([`crate::permit`]).

pub mod address;
pub mod authenticate;
pub mod headers;
pub mod locate;
pub mod open;
pub mod redirect;
pub mod refusal;
pub mod relay;
pub mod respond;
pub mod trace;
pub mod whoami;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Version};
use hyper::body::Incoming;
use tunnel::wire::{head::RequestHead, roles};
use types::{api::UNCONFIRMED_BY, ids::RequestId};

use self::{
    address::{Address, AddressError, ClusterAddress, Endpoint, LongTarget, ServerName},
    refusal::{Kind, Refusal},
    respond::Body,
    trace::Trace,
};
use crate::{
    admission::unproven::{Place, Standing},
    audit::{Custody, Record},
    config::Limits,
    core::Core,
    identity::{Access, AuthenticateError, Credential},
    metrics::labels::Stage,
    permit::{self, Permit},
    policy::DenialReason,
    sessions::{SessionHandle, What},
    snapshot::Snapshot,
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
    /// What it has shown of who it is.
    pub standing: Standing,
}

/// What a request carries from stage to stage.
pub struct Request {
    /// Id in the answer, in logs and in audit records, the same at the agent.
    pub id: RequestId,
    /// HTTP method of the client's request.
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
    /// One of those of its connection that are being looked at, until it is known whose it is.
    pub place: Option<Place>,
}

/// Where a request wants to go, if its head is one that may go anywhere.
///
/// # Errors
/// The refusal of a head that may not.
pub fn address(core: &Core, server_name: ServerName, http: &mut http::Request<Incoming>) -> Result<Address, Refusal> {
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
        server_name,
        long.as_ref(),
    );
    match parsed {
        Ok(Address::Nowhere) => Err(refuse(Kind::NotFound)),
        Ok(address) => Ok(address),
        Err(AddressError::Misdirected) => Err(refuse(Kind::Misdirected)),
        Err(error) => Err(refuse(Kind::Address(error))),
    }
}

impl Request {
    /// Of a request that goes to a cluster. Takes out what no hop may forward.
    ///
    /// # Errors
    /// The refusal of an upgrade that is not one.
    pub fn new(
        core: &Core,
        connection: Arc<Connection>,
        id: RequestId,
        mut http: http::Request<Incoming>,
        address: Box<ClusterAddress>,
    ) -> Result<Box<Self>, Refusal> {
        let http1 = http.version() <= Version::HTTP_11;
        let upgrade = headers::upgrade(&http)?;
        let on_upgrade = upgrade.is_some().then(|| hyper::upgrade::on(&mut http));
        let place = http.extensions_mut().remove::<Place>();
        let (parts, body) = http.into_parts();
        let mut headers = parts.headers;
        headers::strip_request(&mut headers, upgrade.is_some());
        let trace = Trace::take(&mut headers, id.0, span_id(id));
        let long_running = upgrade.is_some() || is_long_running(&address.endpoint);
        let deadline = Instant::now() + answer_time(&address.endpoint, long_running, &core.limits());
        Ok(Box::new(Self {
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
            place,
        }))
    }
}

/// The stages of a request to a cluster, behind its address.
///
/// # Errors
/// The refusal of a stage; the record is in `slot` then.
pub async fn reach(
    core: &Arc<Core>,
    mut request: Box<Request>,
    custody: &mut Custody,
) -> Result<Response<Body>, Refusal> {
    let record = custody.record();
    describe(&request, record);
    let snapshot = core.snapshots.load();

    record.stage(Stage::Authenticate);
    if request.address.endpoint == Endpoint::WhoAmI {
        return Box::pin(whoami::serve(core, &snapshot, request, record)).await;
    }
    // A block, so that the future has no room for the right while the request lasts.
    let (session, slot_of_streams, tunnels, not_told) = {
        let (permit, session) = admit(core, &snapshot, &mut request, record).await?;
        request.connection.standing.prove();
        request.place = None;
        // Before others are asked: what one user may have open bounds what waits for them.
        record.stage(Stage::Locate);
        let slot_of_streams = core.slots.acquire(&permit, &core.limits())?;
        let mut not_told = None;
        if request.address.endpoint == Endpoint::Refresh
            && let (Some(hops), Some((sign_in, cluster, end))) = (&core.hops, session.session().newest())
        {
            // Boxed, so that this rare case does not enlarge the future of every request.
            let names = Box::pin(hops.tell_newest(sign_in, cluster, &end)).await;
            not_told = HeaderValue::try_from(names.join(",")).ok().filter(|_| !names.is_empty()).map(Box::new);
        }
        (session, slot_of_streams, locate::locate(core, permit.cluster())?, not_told)
    };

    record.stage(Stage::Open);
    let bodiless = request.upgrade.is_none() && request.body.as_ref().is_none_or(http_body::Body::is_end_stream);
    let role = role(&request);
    let head = open::encode(&head(&mut request, role))?;
    let relayed = {
        let ways = open::Ways { cluster: &request.address.key, tunnels, refused_by: None };
        let opened = open::open(core, ways, head.clone(), bodiless, slot_of_streams).await?;
        opened.via.note(record);
        record.stage(Stage::Relay);
        Box::pin(relay::relay(core, request, head, opened, session, custody))
    };
    let mut answer = relayed.await?.map(Body::from);
    if let Some(names) = not_told {
        // Sessions there are not extended.
        answer.headers_mut().insert(HeaderName::from_static(UNCONFIRMED_BY), *names);
    }
    Ok(answer)
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
        authenticate::authenticate(snapshot, &credential, access, &request.address.key, cluster, SystemTime::now())
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
    let impersonated = headers::impersonation(&mut request.headers)
        .inspect_err(|refusal| record.decision(false, Some(&refusal.summary())))?;
    if let Some(user) = impersonated {
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
        Endpoint::Refresh => roles::REFRESH,
        Endpoint::WhoAmI => roles::WHOAMI,
        Endpoint::Kubernetes(_) | Endpoint::Unknown => roles::KUBE_AAD_PROXY,
    }
}

/// What goes onto the stream: the bytes that were authorised, on headers that no hop-by-hop name touched. Takes them
/// out of the request.
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

/// Half of the request's random bytes, not all 0: one step of the gateway's for each request.
fn span_id(RequestId([mut span @ .., _, _, _, _, _, _, _, _]): RequestId) -> [u8; 8] {
    span[7] |= u8::from(span == [0; 8]);
    span
}

/// How long the answer to a watch, an exec or what a service behind the apiserver thinks about may take to begin.
const LONG_RUNNING_DEADLINE: Duration = Duration::from_secs(3600);
/// How long a single question to an agent may take (whoami).
pub const QUESTION_DEADLINE: Duration = Duration::from_secs(10);
