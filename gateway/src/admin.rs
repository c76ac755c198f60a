//! The admin listener: health, readiness, metrics, log level, drain, sessions, tunnels, reload. An address of its own
//! that users must not reach; browsers are turned away, so that no page can press its buttons.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post, put},
};
use daemon::{Phase, telemetry::LogLevel};
use serde_json::{Value, json};
use types::{
    ids::{ClusterKey, RequestId},
    instants::rfc3339,
};

use crate::{
    core::Core,
    reload::{ReloadError, Reloader},
    replicas::{LEASE, show},
    sessions::EndReason,
    upgrades,
};

/// Sessions in one list.
const LIST: usize = 10_000;

struct Admin {
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    log_level: Option<LogLevel>,
}

type Shared = State<Arc<Admin>>;

/// Routes of the admin listener: health, metrics, log level, drain, reload, sessions, tunnels and agents.
pub fn router(core: Arc<Core>, reloader: Arc<Reloader>, log_level: Option<LogLevel>, address: SocketAddr) -> Router {
    let loopback = address.ip().is_loopback();
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/loglevel", put(set_log_level).get(log_level_now))
        .route("/drain", post(drain))
        .route("/reload", post(reload))
        .route("/sessions", get(sessions))
        .route("/sessions/{id}", delete(end_session))
        .route("/tunnels", get(tunnels))
        .route("/replicas", get(replicas))
        .route("/upgrades", get(upgrades_status))
        .route("/upgrades/pause", post(pause_upgrades))
        .route("/upgrades/resume", post(resume_upgrades))
        .route("/agents/{cluster}/metrics", get(agent_metrics))
        .route("/agents/{cluster}/logs", get(agent_logs))
        .layer(middleware::from_fn_with_state(loopback, no_browsers))
        .with_state(Arc::new(Admin { core, reloader, log_level }))
}

/// Browsers say where a request comes from, but for a GET within what they hold for one site; there a name tells, which
/// an attacker's DNS can point at this machine. So an address that only this machine reaches is not served under other
/// names.
async fn no_browsers(State(loopback): State<bool>, request: Request, next: Next) -> Response {
    let browser = request.headers().contains_key(header::ORIGIN) || request.headers().contains_key("sec-fetch-site");
    if browser || (loopback && has_foreign_name(&request)) {
        (StatusCode::FORBIDDEN, "not for browsers\n").into_response()
    } else {
        next.run(request).await
    }
}

/// Whether the request names a host that is neither an address nor `localhost`.
fn has_foreign_name(request: &Request) -> bool {
    let header = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = request.uri().authority().map(|authority| authority.as_str()).or(header) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().is_err() && !name.eq_ignore_ascii_case("localhost")
}

/// Ready as long as it does not drain and is not fenced. Tunnels do not count: a gateway that is not ready would never get any.
async fn ready(State(admin): Shared) -> Response {
    match admin.core.shutdown.phase() {
        Phase::Ready if admin.core.is_starting() => {
            let why = "starting: this replica takes its lease and reads the store\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        Phase::Ready if admin.core.replicas.as_ref().is_some_and(|replicas| replicas.is_superseded()) => {
            let why = "superseded: another process has this replica's name; give each a name of its own\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        Phase::Ready if !admin.core.admits() => {
            let why = "fenced: this replica has no lease in the store; its log says why\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        // A client that reads `ready` may connect at once, so the listener must be there.
        Phase::Ready if admin.core.replicas.as_ref().is_some_and(|replicas| !replicas.is_listening()) => {
            let why = "starting: this replica is about to listen\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        Phase::Ready => "ready\n".into_response(),
        Phase::Draining | Phase::Closed => (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response(),
    }
}

async fn metrics(State(admin): Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], admin.core.metrics.render()).into_response()
}

async fn log_level_now(State(admin): Shared) -> Response {
    match &admin.log_level {
        Some(level) => format!("{}\n", level.current()).into_response(),
        None => (StatusCode::NOT_IMPLEMENTED, "this process has no log level to change\n").into_response(),
    }
}

async fn set_log_level(State(admin): Shared, filter: String) -> Response {
    match &admin.log_level {
        Some(level) => match level.set(filter.trim()) {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        },
        None => (StatusCode::NOT_IMPLEMENTED, "this process has no log level to change\n").into_response(),
    }
}

async fn drain(State(admin): Shared) -> Response {
    admin.core.shutdown.drain();
    (StatusCode::ACCEPTED, "draining\n").into_response()
}

async fn reload(State(admin): Shared) -> Response {
    match admin.reloader.reload().await {
        Ok(()) => "reloaded\n".into_response(),
        Err(error @ ReloadError::Audit(_)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", daemon::chain(&error))).into_response()
        }
        Err(error) => {
            (StatusCode::UNPROCESSABLE_ENTITY, format!("the old configuration stays: {error}\n")).into_response()
        }
    }
}

async fn sessions(State(admin): Shared) -> Json<Value> {
    let list = admin.core.sessions.list(LIST);
    let entries: Vec<Value> = list
        .iter()
        .map(|session| {
            json!({
                "id": session.id.to_string(),
                "user": session.principal.name(),
                "issuer": session.principal.issuer(),
                "cluster": session.cluster.id.as_str(),
                "what": session.what(),
                "started": rfc3339(session.started),
            })
        })
        .collect();
    Json(json!({ "sessions": entries, "total": admin.core.sessions.count() }))
}

async fn end_session(State(admin): Shared, Path(id): Path<String>) -> Response {
    let Some(id) = RequestId::from_hex(&id) else {
        return (StatusCode::BAD_REQUEST, "a session's id is 32 hex digits\n").into_response();
    };
    if admin.core.sessions.end(id, EndReason::Operator) {
        tracing::info!(request.id = %id, "session ended by an operator");
        StatusCode::NO_CONTENT.into_response()
    } else {
        (StatusCode::NOT_FOUND, "no such session\n").into_response()
    }
}

async fn tunnels(State(admin): Shared) -> Json<Value> {
    let tunnels = admin.core.tunnels.all();
    let entries: Vec<Value> = tunnels
        .iter()
        .map(|tunnel| {
            let info = tunnel.handle.info();
            json!({
                "id": tunnel.id(),
                "cluster": tunnel.cluster.id.as_str(),
                "carrier": info.carrier.as_str(),
                "peer": info.peer.map(|peer| peer.to_string()),
                "agent_version": info.agent_version,
                "instance": types::ids::hex(&info.instance),
                "since": rfc3339(tunnel.since),
                "draining": tunnel.is_draining(),
                "streams": tunnel.handle.open_streams(),
                "rtt_ms": tunnel.handle.rtt().map(|rtt| rtt.as_secs_f64() * 1000.0),
            })
        })
        .collect();
    Json(json!({ "tunnels": entries }))
}

/// The replicas, as this one knows them, and as the store has them if it can be read.
async fn replicas(State(admin): Shared) -> Response {
    let (Some(control), Some(replicas)) = (&admin.core.control, &admin.core.replicas) else {
        let why = "this gateway is the only one: its configuration has no [replicas]\n";
        return (StatusCode::NOT_IMPLEMENTED, why).into_response();
    };
    let known: Vec<Value> = replicas
        .known()
        .iter()
        .map(|replica| {
            json!({
                "name": replica.name,
                "generation": replica.generation,
                "address": replica.address,
                "version": replica.version,
                "applied": replica.applied(),
                "reachable": replica.is_reachable(),
                "settings_differ": replicas.differences(replica),
            })
        })
        .collect();
    let store = match control.store.replicas_overview(LEASE).await {
        Ok(overview) => show::overview(&overview),
        Err(error) => json!({ "error": daemon::chain(&error) }),
    };
    let left = replicas.left();
    Json(json!({
        "name": replicas.name(),
        "generation": replicas.generation(),
        "admits": replicas.admits(),
        "fenced_in_seconds": left.as_secs(),
        "clusters_elsewhere": replicas.clusters_elsewhere(),
        "known": known,
        "store": store,
    }))
    .into_response()
}

/// How far the automatic upgrades of agents are.
async fn upgrades_status(State(admin): Shared) -> Response {
    let Some(control) = &admin.core.control else { return no_api() };
    match upgrades::status(control).await {
        Ok(status) => Json(status).into_response(),
        Err(error) => not_done(&error),
    }
}

async fn pause_upgrades(State(admin): Shared) -> Response {
    let Some(control) = &admin.core.control else { return no_api() };
    match upgrades::pause(control).await {
        Ok(()) => "paused\n".into_response(),
        Err(error) => not_done(&error),
    }
}

async fn resume_upgrades(State(admin): Shared) -> Response {
    let Some(control) = &admin.core.control else { return no_api() };
    match upgrades::resume(control).await {
        Ok(true) => "resumed\n".into_response(),
        Ok(false) => {
            let message = "somebody paused or resumed upgrades at the same moment, and nothing was changed: look at /upgrades, and resume them then\n";
            (StatusCode::CONFLICT, message).into_response()
        }
        Err(error) => not_done(&error),
    }
}

fn no_api() -> Response {
    (StatusCode::NOT_IMPLEMENTED, "this gateway has no resource API ([api]), and upgrades no agents\n").into_response()
}

fn not_done(error: &str) -> Response {
    tracing::error!(error, "a question about upgrades of agents cannot be answered");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("the store cannot be read or written: {error}\n")).into_response()
}

/// What the agents of a cluster pushed last; the cluster by its key, as its address has it.
async fn agent_metrics(State(admin): Shared, Path(cluster): Path<String>) -> Response {
    told(&cluster, |key| admin.core.told.metrics(key), "text/plain; version=0.0.4")
}

async fn agent_logs(State(admin): Shared, Path(cluster): Path<String>) -> Response {
    told(&cluster, |key| admin.core.told.logs(key), "application/x-ndjson")
}

fn told(cluster: &str, of: impl FnOnce(&ClusterKey) -> Option<String>, kind: &'static str) -> Response {
    let Some(key) = ClusterKey::from_hex(cluster.as_bytes()) else {
        return (StatusCode::BAD_REQUEST, "a cluster's key is 64 hex digits\n").into_response();
    };
    match of(&key) {
        Some(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        None => (StatusCode::NOT_FOUND, "nothing was pushed for this cluster\n").into_response(),
    }
}
