//! From settings to the roles of one process.

use std::sync::{Arc, Mutex};

use certs::serving::ShownNow;
use daemon::TaskGroup;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use types::ids::ClusterId;

use crate::{
    BuildError,
    config::{Config, IdentitySource, IdentityStore, ManagedIdentity},
    identity::{
        Identities,
        clock::{SharedClock, SystemClock},
        store::{self, Store},
    },
    roles::{
        Role,
        cluster_metadata_operator::{self, ClusterMetadataOperator},
        clusterconnect_agent::{self, ClusterconnectAgent, Follow},
        clusteridentityoperator::{
            self, ClusterIdentityOperator, ClusterUid,
            enrol::{Enrol, Enroller},
        },
        config_agent::{self, ConfigAgent, Wanted},
        echo::Echo,
        guard::{self, Guard},
        health::Health,
        identity_tokens::{
            self, IdentityTokens,
            ask::ClusterReviews,
            certificate::{self, Keeper},
            desk::Desk,
        },
        kube_aad_proxy::{
            KubeAadProxy,
            authenticate::Authenticator,
            authorize::Authorizer,
            dial::{Apiserver, access::Access},
            impersonate::Names,
        },
        kubernetes,
        logcollector::{self, LogBuffer, LogCollector},
        metrics_agent::{self, MetricsAgent},
        refresh::Refresh,
        resource_sync_agent::{self, ResourceSyncAgent},
        sessions::Sessions,
        whoami::Whoami,
    },
    tunnel::{Tunnels, api::AgentApi, connect::Connector, status::StatusBoard},
};

/// What serves users.
pub(crate) struct Users {
    pub served: Vec<Arc<dyn Role>>,
    pub apiserver: Arc<Apiserver>,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Arc<Authorizer>,
}

/// The roles behind users' tunnel.
pub(crate) async fn users(
    config: &Config,
    connector: &Arc<Connector>,
    cluster: &ClusterId,
    connections: &TaskGroup,
) -> Result<Users, BuildError> {
    let access = Access::new(&config.cluster).await?;
    let apiserver = Arc::new(Apiserver::new(access, connections.clone())?);
    let verifier = crate::verifier(config, connector)?;
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
    Ok(Users { served, apiserver, authenticator, authorizer })
}

/// What the roles that manage have in common.
pub(crate) struct Parts {
    pub cluster: ClusterId,
    pub connector: Arc<Connector>,
    pub identities: Identities,
    pub kubernetes: Option<kube::Client>,
    pub status: Arc<StatusBoard>,
    pub health: Health,
    pub clock: SharedClock,
}

impl Parts {
    /// With the system's clock. The agents' own way to the apiserver is made where something needs it.
    pub async fn new(
        config: &Config,
        cluster: ClusterId,
        connector: Arc<Connector>,
        identities: Identities,
    ) -> Result<Self, BuildError> {
        let secret = matches!(
            &config.gateway.identity,
            IdentitySource::Managed(ManagedIdentity { store: IdentityStore::Secret(_), .. })
        );
        let mut kubernetes = None;
        if secret || config.roles.manages() {
            match kubernetes::client(&config.cluster).await {
                Ok(client) => kubernetes = Some(client),
                Err(err) if secret => return Err(err.into()),
                Err(err) => {
                    let error = crate::chain(&err);
                    tracing::warn!(error, "nothing is known of the cluster: there is no way to its apiserver");
                }
            }
        }
        let (status, health, clock) = (Arc::default(), Health::default(), Arc::new(SystemClock));
        Ok(Self { cluster, connector, identities, kubernetes, status, health, clock })
    }

    fn store(&self, managed: &ManagedIdentity) -> Result<Store, BuildError> {
        Ok(store::open(&managed.store, self.kubernetes.as_ref())?)
    }

    /// The role that holds the tunnel.
    pub fn tunnel_role(&self, config: &Config, tunnels: Tunnels) -> Result<Arc<dyn Role>, BuildError> {
        let users = config.roles.serves_users();
        let name = if users { clusterconnect_agent::NAME } else { clusterconnect_agent::OWN };
        let follow = match &config.gateway.identity {
            IdentitySource::Managed(managed) if !config.roles.manages() => Some(Follow {
                store: self.store(managed)?,
                identities: self.identities.clone(),
                cluster: self.cluster.clone(),
            }),
            _ => None,
        };
        let (status, health) = (self.status.clone(), self.health.of(name));
        Ok(Arc::new(ClusterconnectAgent::new(name, tunnels, status, health, follow)))
    }

    /// Where what is learned of issuers' keys is kept; `None` where somebody else looks after the certificate.
    pub fn issuer_keys(&self, config: &Config) -> Result<Option<Store>, BuildError> {
        match &config.gateway.identity {
            IdentitySource::Managed(managed) => self.store(managed).map(Some),
            IdentitySource::Files { .. } => Ok(None),
        }
    }

    /// The roles that manage, if this process does.
    pub fn managers(&self, config: &Config, api: &AgentApi, wanted: &Wanted) -> Result<Vec<Arc<dyn Role>>, BuildError> {
        let mut roles: Vec<Arc<dyn Role>> = Vec::new();
        if !config.roles.manages() {
            return Ok(roles);
        }
        if let IdentitySource::Managed(managed) = &config.gateway.identity {
            roles.push(Arc::new(self.identity_operator(managed, api)?));
        }
        let (client, health) = (self.kubernetes.clone(), self.health.of(cluster_metadata_operator::NAME));
        let metadata = ClusterMetadataOperator::new(client, config.metadata.clone(), health);
        roles.push(Arc::new(ResourceSyncAgent {
            cluster: self.cluster.clone(),
            api: api.clone(),
            client: self.kubernetes.clone(),
            known: metadata.known(),
            health: self.health.clone(),
            reporter: self.health.of(resource_sync_agent::NAME),
            identities: self.identities.clone(),
            desired: wanted.desired(),
            clock: self.clock.clone(),
            last: watch::Sender::new(None),
            warnings: Default::default(),
        }));
        roles.push(Arc::new(metadata));
        Ok(roles)
    }

    /// The role that gives others in the cluster tokens of its identity, where it is told to.
    pub async fn identity_tokens(&self, config: &Config, api: &AgentApi) -> Result<Option<IdentityTokens>, BuildError> {
        let Some(settings) = &config.identity_tokens else { return Ok(None) };
        let client = self.kubernetes.clone().ok_or(BuildError::NoReviews)?;
        let listener = tokio::net::TcpListener::bind(settings.listen).await;
        let listener = listener.map_err(|source| BuildError::Listener {
            what: "identity_tokens",
            address: settings.listen,
            source,
        })?;
        let clock = self.clock.clone();
        let shown = ShownNow::new(Arc::new(move || clock.now()));
        let store = match &settings.directory {
            Some(directory) => certificate::Store::Directory(directory.clone()),
            None => certificate::Store::Cluster(client.clone()),
        };
        let keeper = Keeper {
            shown: shown.clone(),
            names: settings.server_names.clone(),
            store,
            clock: self.clock.clone(),
            health: self.health.of(identity_tokens::NAME),
            current: Mutex::default(),
        };
        let reviews = Box::new(ClusterReviews(client));
        let (identities, status, health) = (self.identities.clone(), self.status.clone(), self.health.clone());
        let desk = Desk::new(reviews, api.clone(), identities, status, health);
        Ok(Some(IdentityTokens::new(listener, shown, keeper, desk)?))
    }

    /// The role that pulls roles and assignments, where the cluster is told to ask them.
    pub fn guard(&self, users: Option<&Users>, api: &AgentApi) -> Option<Arc<dyn Role>> {
        let authorizer = users.map(|users| users.authorizer.clone()).filter(|authorizer| authorizer.is_on())?;
        Some(Arc::new(Guard::new(api.clone(), authorizer, self.health.of(guard::NAME))))
    }

    /// The roles that each process has: what is wanted of it, and what it tells of itself.
    pub fn reporters(
        &self,
        config: &Config,
        api: &AgentApi,
        wanted: &Wanted,
        recorder: Option<PrometheusHandle>,
        logs: Option<LogBuffer>,
    ) -> Vec<Arc<dyn Role>> {
        let health = |name| self.health.of(name);
        let mut roles: Vec<Arc<dyn Role>> = vec![
            Arc::new(ConfigAgent::new(api.clone(), wanted.clone(), health(config_agent::NAME))),
            Arc::new(MetricsAgent::new(api.clone(), recorder, config.roles, health(metrics_agent::NAME))),
        ];
        if let Some(logs) = logs {
            let (cluster, health) = (self.cluster.clone(), health(logcollector::NAME));
            roles.push(Arc::new(LogCollector::new(api.clone(), logs, cluster, config.roles, health)));
        }
        roles
    }

    fn identity_operator(
        &self,
        managed: &ManagedIdentity,
        api: &AgentApi,
    ) -> Result<ClusterIdentityOperator, BuildError> {
        let enroller = managed.onboarding_key_file.clone().map(|key_file| {
            let (connector, cluster) = (self.connector.clone(), self.cluster.clone());
            Box::new(Enroller::new(connector, cluster, key_file, self.clock.clone())) as Box<dyn Enrol>
        });
        Ok(ClusterIdentityOperator {
            cluster: self.cluster.clone(),
            store: self.store(managed)?,
            identities: self.identities.clone(),
            enroller,
            api: api.clone(),
            status: self.status.clone(),
            health: self.health.of(clusteridentityoperator::NAME),
            clock: self.clock.clone(),
            uid: cluster_uid(self.kubernetes.clone()),
        })
    }
}

fn cluster_uid(client: Option<kube::Client>) -> ClusterUid {
    Arc::new(move || {
        let client = client.clone();
        Box::pin(async move {
            match client {
                Some(client) => kubernetes::kube_system_uid(&client).await,
                None => Err("there is no way to the apiserver; set [cluster] kubeconfig".to_owned()),
            }
        })
    })
}
