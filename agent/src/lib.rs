#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The agent in a cluster: dials out to the gateway, keeps a tunnel up, and serves the streams that come through it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | valid settings |
//! | [`identity`] | the cluster's certificate: how it is got, renewed and kept |
//! | [`tunnel`] | keeps a tunnel up: choice of carrier, dialling, draining |
//! | [`roles`] | what serves a tunnel's streams: the authenticating proxy before the apiserver, and others; the table of them |
//! | [`check`] | why a connection does not come about, hop by hop |
//! | [`admin`] | health, readiness, status, metrics |
//! | [`metrics`] | every metric, named once |
//! | [`reload`] | what of the settings takes effect while the agent runs: the outbound proxy |
//! | [`peers`] | places for connections, in all and for each address |
//! | [`program`] | the process `towline-agent` |

pub mod admin;
pub mod check;
pub mod config;
pub mod identity;
pub mod metrics;
pub mod peers;
pub mod program;
pub mod reload;
pub mod roles;
pub mod tunnel;

pub use daemon::chain;
pub use roles::error::BuildError;

use std::{net::SocketAddr, sync::Arc};

use daemon::{Panicked, Shutdown, TaskGroup};
use metrics_exporter_prometheus::PrometheusHandle;

use self::{
    admin::{Admin, Facts},
    config::Config,
    identity::store::Store,
    roles::{
        Named, Roles, controller_manager, identity_tokens, kube_aad_proxy::authenticate::Authenticator,
        logcollector::LogBuffer, parts::Parts,
    },
    tunnel::{connect::Connector, forward::Forward},
};

/// An agent, built and not yet running.
pub struct Agent {
    shutdown: Shutdown,
    tasks: TaskGroup,
    connections: TaskGroup,
    roles: Vec<Named>,
    admin: Option<Admin>,
    forward: Option<Forward>,
    tokens: Option<SocketAddr>,
    connector: Arc<Connector>,
    facts: Facts,
    authenticator: Option<Arc<Authenticator>>,
    issuer_keys: Option<Store>,
}

impl Agent {
    /// Reads certificates, keys and the kubeconfig; binds the listeners; dials nothing yet. What is written to `logs`
    /// is sent to the gateway.
    pub async fn build(
        config: Config,
        metrics: Option<PrometheusHandle>,
        logs: Option<LogBuffer>,
    ) -> Result<Self, BuildError> {
        let shutdown = Shutdown::new();
        let connections = TaskGroup::new("apiserver");
        let parts = Parts::new(config, &connections, metrics, logs).await?;
        let roles = roles::build(&parts)?;
        parts.server.begin(Roles::new(roles.clone()));
        let tokens = roles.iter().find(|named| named.name == identity_tokens::NAME);
        let tokens = tokens.and_then(|named| named.role.address());
        if let Some(address) = tokens {
            tracing::info!(%address, "listener for tokens of the cluster's identity");
        }
        let bind = |what: &'static str, address: SocketAddr| {
            move |source: std::io::Error| BuildError::Listener { what, address, source }
        };
        let (mut admin, mut forward) = (None, None);
        let issuer_keys = parts.managed()?.map(|(_, store)| store);
        let Parts { config, cluster, connector, identities, status, health, judges, users, server, metrics, .. } =
            parts;
        if let Some(address) = config.admin {
            let bound = Admin::bind(address).await.map_err(bind("admin", address))?;
            tracing::info!(address = bound.address().ok().map(tracing::field::display), "agent admin listener");
            admin = Some(bound);
        }
        if let Some(address) = config.forward {
            let bound = Forward::bind(address, connector.clone()).await.map_err(bind("forward", address))?;
            tracing::info!(address = bound.address().ok().map(tracing::field::display), "listener for other agents");
            forward = Some(bound);
        }
        let facts = Facts {
            status,
            server,
            apiserver: users.as_ref().map(|users| users.apiserver.clone()),
            cluster: cluster.as_str().to_owned(),
            roles: config.roles,
            identities,
            health,
            shutdown: shutdown.clone(),
            metrics,
        };
        let authenticator = judges.map(|judges| judges.authenticator);
        if let Some(authenticator) = &authenticator {
            facts.identities.teach(authenticator.verifier().clone());
        }
        let tasks = TaskGroup::new("agent");
        Ok(Self {
            shutdown,
            tasks,
            connections,
            roles,
            admin,
            forward,
            tokens,
            connector,
            facts,
            authenticator,
            issuer_keys,
        })
    }

    /// Where the process stands; `drain` and `close` on it end [`Self::run`].
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// The group that signals and other parts of the process run in.
    pub fn tasks(&self) -> &TaskGroup {
        &self.tasks
    }

    /// Where the admin listener is bound.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|admin| admin.address().ok())
    }

    /// Where connections for the gateway are taken.
    pub fn forward_address(&self) -> Option<SocketAddr> {
        self.forward.as_ref().and_then(|forward| forward.address().ok())
    }

    /// The way to the gateway, whose proxy may change while the agent runs.
    pub fn connector(&self) -> Arc<Connector> {
        self.connector.clone()
    }

    /// Where tokens of the cluster's identity are asked for.
    pub fn tokens_address(&self) -> Option<SocketAddr> {
        self.tokens
    }

    /// What the admin listener tells, also for tests.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Runs every role until told to drain, drains, and ends.
    pub async fn run(self) -> Result<(), Panicked> {
        let Self { shutdown, tasks, connections, roles, admin, forward, facts, authenticator, issuer_keys, .. } = self;
        let running = TaskGroup::new("supervisor");
        running.spawn(
            controller_manager::NAME,
            controller_manager::supervise(roles, facts.health.clone(), shutdown.clone()),
        );
        if let (Some(store), Some(authenticator)) = (issuer_keys, &authenticator) {
            let verifier = authenticator.verifier().clone();
            tasks.spawn("issuer-keys", async move { identity::issuer_keys::keep(&store, &verifier).await });
        }
        if let Some(authenticator) = authenticator {
            tasks.spawn("issuers", async move { authenticator.keep_fresh().await });
        }
        if let Some(forward) = forward {
            let shutdown = shutdown.clone();
            tasks.spawn("forward", async move { forward.run(shutdown).await });
        }
        if let Some(admin) = admin {
            tasks.spawn("admin", admin.serve(facts));
        }
        let result = tokio::select! {
            biased;
            panicked = tasks.panicked() => Err(panicked),
            result = running.join() => result,
        };
        shutdown.close();
        running.abort();
        tasks.abort();
        connections.abort();
        let _ = tasks.join().await;
        result
    }

    /// Begins to drain: [`Self::run`] then finishes what was accepted and ends.
    pub fn drain(shutdown: &Shutdown) {
        shutdown.drain();
    }
}
