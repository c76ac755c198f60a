//! The parts of a running gateway that its modules share: registries, bounds, metrics, trust, and the tasks' group. One
//! value of [`Core`] is made at the start and lives as long as the process; what may change while it runs is behind a
//! lock or an atomic pointer of its own.

use std::sync::Arc;

use ::tunnel::transport::Incoming;
use arc_swap::{ArcSwap, ArcSwapOption};
use certs::Roots;
use daemon::{Shutdown, TaskGroup};
use tokio_rustls::TlsAcceptor;
use types::ids::ClusterKey;

use crate::{
    admission::{limit::Admissions, pace::Pace, refused::Refusals, unproven::Unproven},
    audit::AuditLog,
    config::Limits,
    control::Control,
    fleet::{
        asked::Asked,
        registry::{LiveTunnel, Registry},
        told::AgentReports,
    },
    hop::Hops,
    issuer::Issuer,
    metrics::Metrics,
    named::{Named, Names},
    replicas::Replicas,
    sessions::{Sessions, slots::Slots},
    snapshot::Snapshots,
    trust::Trust,
};

/// Serves the streams that an agent opens on one tunnel. Tunnels know no more of what agents ask.
pub trait AgentStreams: Send + Sync {
    /// Serves a stream in a task of its own, or refuses it at once.
    fn start(&self, core: &Arc<Core>, tunnel: &Arc<LiveTunnel>, incoming: Incoming);
}

/// The shared parts.
pub struct Core {
    /// Clusters, issuers, grants of now.
    pub snapshots: Arc<Snapshots>,
    /// Open sessions of users, to list and to end them.
    pub sessions: Arc<Sessions>,
    /// Live tunnels, by cluster.
    pub tunnels: Arc<Registry>,
    /// Metrics and log lines that agents pushed.
    pub told: AgentReports,
    /// How much clusters' agents may ask.
    pub agents: Asked,
    /// Makes what serves the streams that an agent opens on a tunnel of this cluster.
    pub agent_streams: fn(&Asked, &ClusterKey) -> Box<dyn AgentStreams>,
    /// Streams by user and cluster.
    pub slots: Arc<Slots>,
    /// For what is kept of request bodies until their answers begin.
    pub bodies: Arc<tunnel::exchange::Room>,
    /// Connections and handshakes by address.
    pub admissions: Admissions,
    /// When handshakes have their turns.
    pub pace: Pace,
    /// When requests without an identity have their turns.
    pub unproven: Unproven,
    /// Takes audit records.
    pub audit: Arc<AuditLog>,
    /// Records of connections without a request.
    pub refusals: Refusals,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// Bounds, replaceable while running.
    pub limits: ArcSwap<Limits>,
    /// The names that clusters have beside their keys.
    pub names: Names,
    /// The control plane, if there is one.
    pub control: Option<Arc<Control>>,
    /// The built-in issuer, if there is one.
    pub issuer: ArcSwapOption<Issuer>,
    /// All tasks but the audit writer.
    pub tasks: TaskGroup,
    /// The phase of the process: ready, draining or closed.
    pub shutdown: Shutdown,
    /// Certificates and trust.
    pub trust: Arc<Trust>,
    /// The other gateways that share the store, if this one is one of several.
    pub replicas: Option<Arc<Replicas>>,
    /// The way to tunnels of other replicas, if this gateway is one of several.
    pub hops: Option<Arc<Hops>>,
}

impl Core {
    /// The bounds of now.
    pub fn limits(&self) -> Arc<Limits> {
        self.limits.load_full()
    }

    /// Whether anything new may begin here: this gateway is no replica, or one that is not fenced.
    pub fn admits(&self) -> bool {
        self.replicas.as_ref().is_none_or(|replicas| replicas.admits())
    }

    /// Whether this gateway is a replica that has admitted nothing yet.
    pub fn is_starting(&self) -> bool {
        self.replicas.as_ref().is_some_and(|replicas| !replicas.has_begun())
    }

    /// The acceptor of the public TCP port, and the suffix of clusters' server names, if it has a certificate for them.
    pub fn tls_acceptor(&self) -> (TlsAcceptor, Option<Arc<Named>>) {
        let (public, named) = self.trust.public();
        (TlsAcceptor::from(public), named)
    }

    /// The CA of agents' and access certificates.
    pub fn roots(&self) -> Roots {
        self.trust.roots()
    }
}
