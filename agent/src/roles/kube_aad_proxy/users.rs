//! What the roles share that serve users or answer about them.

use std::sync::Arc;

use auth::token::Verifier;
use daemon::TaskGroup;
use types::ids::ClusterId;

use super::{
    authenticate::Authenticator,
    authorize::Authorizer,
    dial::{
        Apiserver, DialError,
        access::{Access, AccessError},
    },
    impersonate::Names,
};
use crate::{
    config::Config,
    roles::{error::BuildError, sessions::Sessions},
};

/// What says who somebody is and what they may do: the same for requests through the tunnel and for the apiserver's
/// own questions.
#[derive(Clone)]
pub struct Judges {
    /// Judges users' tokens.
    pub authenticator: Arc<Authenticator>,
    /// Asks roles and assignments.
    pub authorizer: Arc<Authorizer>,
    /// Whom users may be.
    pub names: Names,
}

/// What the roles share that serve users.
pub struct Users {
    /// The cluster's apiserver.
    pub apiserver: Arc<Apiserver>,
    /// Judges users' tokens.
    pub authenticator: Arc<Authenticator>,
    /// Asks roles and assignments.
    pub authorizer: Arc<Authorizer>,
    /// Whom users may be.
    pub names: Names,
    /// What users have open.
    pub sessions: Arc<Sessions>,
}

impl Judges {
    /// For users of `cluster`, whose tokens `verifier` verifies.
    pub fn new(config: &Config, verifier: Verifier, cluster: &ClusterId) -> Self {
        let authenticator = Arc::new(Authenticator::new(verifier, cluster.clone()));
        let authorizer = Authorizer::new(authenticator.clone(), config.azure_rbac.clone());
        Self { authenticator, authorizer, names: Names::new(&config.impersonation) }
    }
}

impl Users {
    /// By these settings; tasks of connections to the apiserver run in `connections`.
    pub async fn new(config: &Config, judges: Judges, connections: &TaskGroup) -> Result<Self, BuildError> {
        let access = Access::new(&config.cluster).await?;
        let apiserver = Arc::new(Apiserver::new(access, connections.clone())?);
        let Judges { authenticator, authorizer, names } = judges;
        let sessions = Sessions::new(config.outlive_token, authenticator.verifier().clone());
        Ok(Self { apiserver, authenticator, authorizer, names, sessions })
    }
}

impl From<AccessError> for BuildError {
    fn from(error: AccessError) -> Self {
        Self::Role { what: "the way to the apiserver", source: Box::new(error) }
    }
}

impl From<DialError> for BuildError {
    fn from(error: DialError) -> Self {
        Self::Role { what: "the way to the apiserver", source: Box::new(error) }
    }
}
