#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The agent in a cluster: dials out to the gateway, keeps a tunnel up, and serves the streams that come through it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | valid settings |
//! | [`tunnel`] | keeps a tunnel up: choice of carrier, dialling, draining, serving its streams |
//! | [`roles`] | what is served: the authenticating proxy before the apiserver, and others; the table of them |
//! | [`check`] | why a connection does not come about, hop by hop |
//! | [`admin`] | health, readiness, status, metrics |
//! | [`metrics`] | every metric, named once |

pub mod admin;
pub mod check;
pub mod config;
pub mod metrics;
pub mod roles;
pub mod tunnel;

pub use proto::process::chain;

use std::{net::SocketAddr, sync::Arc};

use certs::PeerIdentity;
use metrics_exporter_prometheus::PrometheusHandle;
use proto::{
    ids::ClusterId,
    process::{Panicked, Shutdown, TaskGroup},
    token::Verifier,
};

use self::{
    admin::{Admin, Facts},
    config::Config,
    roles::{
        Role, Roles,
        clusterconnect_agent::ClusterconnectAgent,
        echo::Echo,
        kube_aad_proxy::{
            KubeAadProxy,
            authenticate::Authenticator,
            authorize::Authorizer,
            dial::{Apiserver, access::Access},
            impersonate::Names,
        },
        refresh::Refresh,
        sessions::Sessions,
        whoami::Whoami,
    },
    tunnel::{Tunnels, connect::Connector, serve::Server, status::StatusBoard},
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
    ClusterId(#[source] proto::ids::InvalidClusterId),
    /// The way to the apiserver.
    #[error("the way to the apiserver")]
    Access(#[from] roles::kube_aad_proxy::dial::access::AccessError),
    /// The apiserver's address.
    #[error("the way to the apiserver")]
    Apiserver(#[from] roles::kube_aad_proxy::dial::DialError),
    /// TLS for reading the issuers' keys.
    #[error("the issuers of tokens")]
    Issuers(#[from] certs::tls::TlsError),
    /// The admin listener.
    #[error("the admin listener {address}")]
    Admin {
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
    facts: Facts,
    authenticator: Arc<Authenticator>,
}

impl Agent {
    /// Reads certificates, keys and the kubeconfig; binds the admin listener; dials nothing yet.
    pub async fn build(config: Config, metrics: Option<PrometheusHandle>) -> Result<Self, BuildError> {
        let shutdown = Shutdown::new();
        let connector = Arc::new(Connector::new(&config)?);
        let cluster = own_cluster(&connector.credentials())?;
        let access = Access::new(&config.cluster).await?;
        let connections = TaskGroup::new("apiserver");
        let apiserver = Arc::new(Apiserver::new(access, connections.clone())?);
        let verifier = verifier(&config, &connector)?;
        let names = Names::new(&config.impersonation);
        let sessions = Sessions::new(config.outlive_token);
        let authenticator = Arc::new(Authenticator::new(verifier, cluster.clone()));
        let authorizer = Authorizer::new(authenticator.clone(), config.azure_rbac.clone());
        let served: Vec<Arc<dyn Role>> = vec![
            Arc::new(KubeAadProxy::new(
                authenticator.clone(),
                authorizer.clone(),
                apiserver.clone(),
                names.clone(),
                sessions.clone(),
            )),
            Arc::new(Whoami::new(authenticator.clone(), names)),
            Arc::new(Refresh::new(authenticator.clone(), sessions)),
            Arc::new(Echo),
        ];
        let server = Server::new(Roles::new(served.clone()), config.streams_max);
        let status = Arc::new(StatusBoard::default());
        let tunnels =
            Tunnels::new(connector, config.gateway.carrier, server.clone(), status.clone(), config.drain_grace);
        let mut roles: Vec<Arc<dyn Role>> = vec![Arc::new(ClusterconnectAgent::new(tunnels))];
        roles.extend(served);
        let admin = match config.admin {
            Some(address) => Some(Admin::bind(address).await.map_err(|source| BuildError::Admin { address, source })?),
            None => None,
        };
        if let Some(address) = admin.as_ref().and_then(|admin| admin.address().ok()) {
            tracing::info!(%address, "agent admin listener");
        }
        let facts = Facts {
            status,
            server,
            apiserver,
            cluster: cluster.as_str().to_owned(),
            shutdown: shutdown.clone(),
            metrics,
        };
        Ok(Self { shutdown, tasks: TaskGroup::new("agent"), connections, roles, admin, facts, authenticator })
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

    /// What the admin listener tells, also for tests.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Runs every role until told to drain, drains, and ends.
    pub async fn run(self) -> Result<(), Panicked> {
        let Self { shutdown, tasks, connections, roles, admin, facts, authenticator } = self;
        let running = TaskGroup::new("roles");
        for role in roles {
            let shutdown = shutdown.clone();
            running.spawn(role.name(), async move { role.run(shutdown).await });
        }
        tasks.spawn("issuers", async move { authenticator.keep_fresh().await });
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

/// The cluster's id, from the agent's own certificate and nowhere else.
fn own_cluster(credentials: &certs::Credentials) -> Result<ClusterId, BuildError> {
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

impl proto::token::Connect for SameWay {
    fn connect(&self, host: String, port: u16) -> proto::token::Boxed<std::io::Result<Box<dyn proto::token::Socket>>> {
        let connector = self.0.clone();
        Box::pin(async move {
            let io = connector.open_tcp(&host, port).await.map_err(|err| std::io::Error::other(chain(&err)))?;
            Ok(Box::new(io) as Box<dyn proto::token::Socket>)
        })
    }
}
