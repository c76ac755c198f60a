//! The admin listener: health, readiness, status, metrics. Plain HTTP, off the network unless configured otherwise;
//! nothing on it is secret.

use std::{net::SocketAddr, sync::Arc};

use axum::{Json, Router, extract, http::StatusCode, routing::get};
use daemon::{Phase, Shutdown, admin};
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    config::{Deployment, RoleSet},
    identity::{Identities, spell},
    roles::{
        clusteridentityoperator, guard,
        health::{Health, State},
        kube_aad_proxy::dial::Apiserver,
        serve::Server,
    },
    tunnel::status::StatusBoard,
};

/// What the listener tells.
#[derive(Clone)]
pub struct Facts {
    /// The state of the tunnel to the gateway.
    pub status: Arc<StatusBoard>,
    /// Serves the tunnel's streams, and counts those that are open.
    pub server: Server,
    /// The cluster, where users reach it through this process.
    pub apiserver: Option<Arc<Apiserver>>,
    /// The cluster's id.
    pub cluster: String,
    /// What this process does.
    pub roles: RoleSet,
    /// The cluster's certificate, where the agents look after it.
    pub identities: Identities,
    /// How each role fares.
    pub health: Health,
    /// Where the process stands.
    pub shutdown: Shutdown,
    /// The metrics; none where another part of the process has them.
    pub metrics: Option<PrometheusHandle>,
}

/// A listener that is bound and not yet served.
pub struct Admin {
    listener: TcpListener,
}

impl Admin {
    /// Binds the listener's socket; fails as the operating system reports it.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The address that it is bound to.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process is closed: while it drains people still look.
    pub async fn serve(self, facts: Facts) {
        let shutdown = facts.shutdown.clone();
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .route("/metrics", get(metrics))
            .with_state(facts);
        let serving = admin::serve(self.listener, TowerToHyperService::new(router));
        let _ = shutdown.until_closed(serving).await;
    }
}

/// Ready is a tunnel that is up, in a process that does not drain; for guard, that the apiserver is answered. What is
/// not ready says why.
async fn readyz(extract::State(facts): extract::State<Facts>) -> (StatusCode, String) {
    let why = if facts.shutdown.phase() != Phase::Ready {
        "draining".to_owned()
    } else if facts.roles == RoleSet::Of(Deployment::Guard) {
        // It answers the apiserver also while the gateway is away, and must be found then.
        match facts.health.all().remove(guard::NAME) {
            Some(health) if health.state == State::Running => return (StatusCode::OK, "ok\n".to_owned()),
            Some(health) => format!("guard: {}", health.message),
            None => "guard has not begun".to_owned(),
        }
    } else if facts.status.is_deleted() {
        "the cluster's resource was deleted: these agents ask only once an hour".to_owned()
    } else if facts.status.carrier().is_none() {
        let failing = facts.health.all().remove(clusteridentityoperator::NAME).map(|health| health.message);
        match failing.filter(|message| !message.is_empty()).or_else(|| facts.status.last_error()) {
            Some(error) => format!("no tunnel: {error}"),
            None => "no tunnel".to_owned(),
        }
    } else {
        return (StatusCode::OK, "ok\n".to_owned());
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

async fn status(extract::State(facts): extract::State<Facts>) -> Json<Value> {
    let apiserver = facts.apiserver.as_ref().map(|apiserver| apiserver.open());
    let identity = facts.identities.current().map(|identity| {
        let stored = &identity.stored;
        json!({
            "not_before": spell(stored.not_before), "not_after": spell(stored.not_after),
            "principal_id": stored.principal_id,
        })
    });
    Json(json!({
        "cluster": facts.cluster,
        "version": daemon::release::version(),
        "phase": format!("{:?}", facts.shutdown.phase()).to_lowercase(),
        "tunnel": facts.status.json(),
        "streams": facts.server.running(),
        "apiserver": apiserver.map(|(connections, streams)| json!({ "connections": connections, "streams": streams })),
        "roles": facts.roles.as_str(),
        "certificate": identity,
        "deleted": facts.status.is_deleted(),
        "health": facts.health.json(),
    }))
}

async fn metrics(extract::State(facts): extract::State<Facts>) -> String {
    facts.metrics.map(|metrics| metrics.render()).unwrap_or_default()
}
