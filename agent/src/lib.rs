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

use std::{net::SocketAddr, sync::Arc};

use auth::token::Verifier;
use certs::PeerIdentity;
use daemon::{Panicked, Shutdown, TaskGroup};
use metrics_exporter_prometheus::PrometheusHandle;
use types::ids::ClusterId;

use self::{
    admin::{Admin, Facts},
    config::{Config, IdentitySource},
    identity::store::Store,
    roles::{
        Role, Roles, controller_manager, identity_tokens, kube_aad_proxy::authenticate::Authenticator,
        logcollector::LogBuffer, parts::Parts,
    },
    tunnel::{connect::Connector, forward::Forward},
};

/// Why an agent cannot be built. The chain of causes names the file or setting.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The way to the gateway.
    #[error("the way to the gateway")]
    Gateway(#[from] tunnel::connect::SetupError),
    /// The agent's certificate is none of an agent.
    #[error("the agent's certificate")]
    Certificate(#[source] certs::PeerError),
    /// The cluster's id in the certificate is none.
    #[error("the agent's certificate")]
    ClusterId(#[source] types::ids::InvalidClusterId),
    /// The way to the apiserver.
    #[error("the way to the apiserver")]
    Access(#[from] roles::kube_aad_proxy::dial::access::AccessError),
    /// The apiserver's address.
    #[error("the way to the apiserver")]
    Apiserver(#[from] roles::kube_aad_proxy::dial::DialError),
    /// The agents' own way to the apiserver.
    #[error("the agents' own way to the apiserver")]
    Kubernetes(#[from] roles::kubernetes::KubernetesError),
    /// Where the cluster's certificate is kept.
    #[error("where the cluster's certificate is kept")]
    Store(#[from] identity::store::StoreError),
    /// TLS for reading the issuers' keys.
    #[error("the issuers of tokens")]
    Issuers(#[from] certs::tls::TlsError),
    /// Nobody says who asks for tokens.
    #[error(
        "identity_tokens: there is no way to the apiserver, which has to say who asks; set [cluster] kubeconfig, or leave it out"
    )]
    NoReviews,
    /// Extensions without what they need.
    #[error("extensions")]
    Extensions(#[from] roles::extension_manager::SetupError),
    /// Upgrades without what they need.
    #[error("upgrades")]
    Upgrades(#[from] roles::upgrader::SetupError),
    /// The webhook server without what it needs.
    #[error("guard")]
    Guard(#[from] roles::guard::SetupError),
    /// Flux configurations without what they need.
    #[error("flux configurations")]
    Gitops(#[from] roles::fluxconfig_agent::SetupError),
    /// A listener.
    #[error("the {what} listener {address}")]
    Listener {
        /// Which.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// An agent, built and not yet running.
pub struct Agent {
    shutdown: Shutdown,
    tasks: TaskGroup,
    connections: TaskGroup,
    roles: Vec<Arc<dyn Role>>,
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
        let tokens = roles.iter().find(|role| role.name() == identity_tokens::NAME).and_then(|role| role.address());
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

/// The cluster's id: from the settings where the agents get its certificate themselves, and any other is refused; else
/// from the agent's own certificate.
fn own_cluster(config: &Config, connector: &Connector) -> Result<ClusterId, BuildError> {
    if let IdentitySource::Managed(managed) = &config.gateway.identity {
        return Ok(managed.cluster.clone());
    }
    let credentials = connector.credentials().ok_or(tunnel::connect::SetupError::NoIdentity)?;
    let claimed = PeerIdentity::claimed(credentials.chain()).map_err(BuildError::Certificate)?;
    let id = claimed.agent().map_err(BuildError::Certificate)?;
    id.parse().map_err(BuildError::ClusterId)
}

/// Verifies with the agent's own issuers; their keys are read the same way as the gateway is reached.
fn verifier(config: &Config, connector: &Arc<Connector>) -> Result<Verifier, certs::tls::TlsError> {
    Verifier::new(config.issuers.clone(), Arc::new(SameWay(connector.clone())))
}

/// Reads issuers' keys as the gateway is reached: through the proxy, and by `gateway.addresses` where DNS is no help.
struct SameWay(Arc<Connector>);

impl auth::token::Connect for SameWay {
    fn connect(&self, host: String, port: u16) -> auth::token::Boxed<std::io::Result<Box<dyn auth::token::Socket>>> {
        let connector = self.0.clone();
        Box::pin(async move {
            let io = connector.open_tcp(&host, port).await.map_err(|err| std::io::Error::other(chain(&err)))?;
            Ok(Box::new(io) as Box<dyn auth::token::Socket>)
        })
    }
}
