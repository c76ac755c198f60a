//! What roles are built from: the settings of the process, and what several roles share.

use std::sync::Arc;

use auth::token::Verifier;
use certs::PeerIdentity;
use daemon::TaskGroup;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use types::ids::ClusterId;

use super::{
    cluster_metadata_operator::Facts,
    config_agent::Wanted,
    egress_proxy::Grants,
    error::BuildError,
    health::Health,
    kube_aad_proxy::users::{Judges, Users},
    kubernetes,
    logcollector::LogBuffer,
    serve::{Server, at_once},
};
use crate::{
    chain,
    config::{Config, Deployment, IdentitySource, IdentityStore, ManagedIdentity, RoleSet},
    identity::{
        Identities,
        clock::{SharedClock, SystemClock},
        store::{self, Store},
    },
    tunnel::{Tunnels, api::AgentApi, connect::Connector, status::StatusBoard},
};

/// What a role is built from.
pub struct Parts {
    /// The settings of this process.
    pub config: Config,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Connects to the gateway.
    pub connector: Arc<Connector>,
    /// The cluster's certificate.
    pub identities: Identities,
    /// The agents' own way to the apiserver; `None` where no role of this process needs it, or there is none.
    pub kubernetes: Option<kube::Client>,
    /// What the gateway says of the tunnel.
    pub status: Arc<StatusBoard>,
    /// How each role fares.
    pub health: Health,
    /// The time of day.
    pub clock: SharedClock,
    /// What judges users; `None` where this process neither serves users nor answers the apiserver about them.
    pub judges: Option<Judges>,
    /// What serving users takes; `None` where this process serves none.
    pub users: Option<Users>,
    /// Serves the tunnel's streams by the roles.
    pub server: Server,
    /// The tunnels to the gateway.
    pub tunnels: Arc<Tunnels>,
    /// The agents' own exchanges with the gateway.
    pub api: AgentApi,
    /// What the control plane wants of this cluster's agents.
    pub wanted: Wanted,
    /// What is known of the cluster; nothing before the first look.
    pub facts: watch::Sender<Option<Facts>>,
    /// Who in the cluster may reach a source through the gateway.
    pub egress: Grants,
    /// The metrics of this process.
    pub metrics: Option<PrometheusHandle>,
    /// The log lines of this process.
    pub logs: Option<LogBuffer>,
}

impl Parts {
    /// By these settings, with the system's clock. Tasks of connections to the apiserver run in `connections`. What is
    /// written to `logs` is sent to the gateway.
    pub async fn new(
        config: Config,
        connections: &TaskGroup,
        metrics: Option<PrometheusHandle>,
        logs: Option<LogBuffer>,
    ) -> Result<Self, BuildError> {
        let identities = Identities::default();
        let connector = Arc::new(Connector::new(&config, &identities)?);
        let cluster = own_cluster(&config, &connector)?;
        let judged = config.roles.serves_users() || config.guard.is_some();
        let judges = match judged {
            true => Some(Judges::new(&config, verifier(&config, &connector)?, &cluster)),
            false => None,
        };
        let users = match judges.clone().filter(|_| config.roles.serves_users()) {
            Some(judges) => Some(Users::new(&config, judges, connections).await?),
            None => None,
        };
        let kubernetes = kubernetes_client(&config).await?;
        let status = Arc::<StatusBoard>::default();
        let server = Server::idle(at_once(config.streams_max, daemon::memory::limit()));
        let (carrier, grace) = (config.gateway.carrier, config.drain_grace);
        let tunnels = Tunnels::new(connector.clone(), carrier, server.clone(), status.clone(), grace);
        // Nobody waits for the tunnel of an agent that serves no users: its own exchanges take whichever is up.
        let replicas = if config.roles.serves_users() { config.gateway.replicas } else { 1 };
        let tunnels = Arc::new(tunnels.to_replicas(replicas));
        let api = AgentApi::new(tunnels.current());
        Ok(Self {
            config,
            cluster,
            connector,
            identities,
            kubernetes,
            status,
            health: Health::default(),
            clock: Arc::new(SystemClock),
            judges,
            users,
            wanted: server.wanted().clone(),
            server,
            tunnels,
            api,
            facts: watch::Sender::new(None),
            egress: Grants::default(),
            metrics,
            logs,
        })
    }

    /// The certificate's settings and where it is kept; `None` where somebody else looks after it.
    pub fn managed(&self) -> Result<Option<(&ManagedIdentity, Store)>, BuildError> {
        match &self.config.gateway.identity {
            IdentitySource::Managed(managed) => {
                Ok(Some((managed, store::open(&managed.store, self.kubernetes.as_ref())?)))
            }
            IdentitySource::Files { .. } => Ok(None),
        }
    }
}

/// The agents' own way to the apiserver, where something needs it. What only manages does without, and says so.
async fn kubernetes_client(config: &Config) -> Result<Option<kube::Client>, BuildError> {
    let secret = matches!(
        &config.gateway.identity,
        IdentitySource::Managed(ManagedIdentity { store: IdentityStore::Secret(_), .. })
    );
    let guards = config.guard.as_ref().is_some_and(|guard| guard.directory.is_none());
    let flux = config.gitops.is_some() || config.roles == RoleSet::Of(Deployment::FluxLogsAgent);
    let upgrades = config.upgrades.is_some();
    if !secret && !upgrades && !config.roles.manages() && config.extensions.is_none() && !guards && !flux {
        return Ok(None);
    }
    match kubernetes::client(&config.cluster).await {
        Ok(client) => Ok(Some(client)),
        Err(err) if secret => Err(err.into()),
        Err(err) => {
            let error = crate::chain(&err);
            tracing::warn!(error, "nothing is known of the cluster: there is no way to its apiserver");
            Ok(None)
        }
    }
}

/// The cluster's id: from the settings where the agents get its certificate themselves, and any other is refused; else
/// from the agent's own certificate.
fn own_cluster(config: &Config, connector: &Connector) -> Result<ClusterId, BuildError> {
    if let IdentitySource::Managed(managed) = &config.gateway.identity {
        return Ok(managed.cluster.clone());
    }
    let credentials = connector.credentials().ok_or(crate::tunnel::setup::SetupError::NoIdentity)?;
    let claimed = PeerIdentity::claimed(credentials.chain()).map_err(BuildError::Certificate)?;
    let id = claimed.agent().map_err(BuildError::Certificate)?;
    id.parse().map_err(BuildError::ClusterId)
}

/// Verifies with the agent's own issuers; their keys are read the same way as the gateway is reached.
pub fn verifier(config: &Config, connector: &Arc<Connector>) -> Result<Verifier, certs::tls::TlsError> {
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
