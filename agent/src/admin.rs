//! The admin listener: health, readiness, status, metrics. Plain HTTP, off the network unless configured otherwise; nothing
//! on it is secret.

use std::{net::SocketAddr, sync::Arc};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use proto::process::{Phase, Shutdown, admin};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    roles::kube_aad_proxy::dial::Apiserver,
    tunnel::{serve::Server, status::StatusBoard},
};

/// What the listener tells.
#[derive(Clone)]
pub struct Facts {
    /// The tunnel.
    pub status: Arc<StatusBoard>,
    /// The streams.
    pub server: Server,
    /// The cluster.
    pub apiserver: Arc<Apiserver>,
    /// The cluster's id.
    pub cluster: String,
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
    /// Binds.
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

/// Ready is a tunnel that is up, in a process that does not drain.
async fn readyz(State(facts): State<Facts>) -> (StatusCode, &'static str) {
    if facts.shutdown.phase() != Phase::Ready {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if facts.status.carrier().is_none() {
        (StatusCode::SERVICE_UNAVAILABLE, "no tunnel\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn status(State(facts): State<Facts>) -> Json<Value> {
    let (connections, streams) = facts.apiserver.open();
    Json(json!({
        "cluster": facts.cluster,
        "version": env!("CARGO_PKG_VERSION"),
        "phase": format!("{:?}", facts.shutdown.phase()).to_lowercase(),
        "tunnel": facts.status.json(),
        "streams": facts.server.running(),
        "apiserver": { "connections": connections, "streams": streams },
    }))
}

async fn metrics(State(facts): State<Facts>) -> String {
    facts.metrics.map(|metrics| metrics.render()).unwrap_or_default()
}
