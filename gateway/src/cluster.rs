//! What is known of a registered cluster, and what its agents' certificates must say: words that the request stages,
//! the tunnels and the resource API share.

pub mod upgrade;
pub mod wanted;

use std::sync::Arc;

use aws_lc_rs::digest;
use certs::Peer;
use tunnel::wire::close::CloseCode;
use types::{
    agent_api::CONNECT_AGAIN,
    ids::{ClusterId, ClusterKey},
};

use self::wanted::Wanted;

/// The action that lets somebody reach the cluster's apiserver through the gateway.
pub const REACH: &str = "Microsoft.Kubernetes/connectedClusters/listClusterUserCredential/action";

/// Where a cluster of this key stands in the order of waves: as good as by chance, and the same each time.
pub fn wave_order(key: &str) -> [u8; 8] {
    let sum = digest::digest(&digest::SHA256, key.as_bytes());
    std::array::from_fn(|at| sum.as_ref()[at])
}

/// A registered cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct Cluster {
    /// ARM id of the connected cluster.
    pub id: ClusterId,
    /// Its key, made of the id.
    pub key: ClusterKey,
    /// The audience of tokens for it.
    pub audience: String,
    /// Whom its agents' certificates must name.
    pub agents: Agents,
    /// What is wanted of its agents.
    pub wanted: Wanted,
}

/// Whom a cluster's agents' certificates must name beside the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agents {
    /// Nobody: the cluster is one of the configuration's, and so are its certificates.
    Anyone,
    /// The cluster's identity.
    Identity {
        /// Its object id. A cluster that was deleted and created again has another.
        principal: String,
        /// The object id of the identity that the resource had first: its agents know the resource by it. Another key may
        /// give the resource another identity, and it is the same resource still.
        resource: String,
        /// Which onboarding key its certificates must rest on; without one nobody has proved anything.
        onboarding: Option<String>,
    },
    /// It is kept without an identity: no certificate is its.
    Nobody,
}

impl Agents {
    /// The object id of the cluster's identity.
    pub fn principal(&self) -> Option<&str> {
        match self {
            Self::Identity { principal, .. } => Some(principal),
            Self::Anyone | Self::Nobody => None,
        }
    }

    /// By what agents know the cluster's resource: the object id of the first identity that it had.
    pub fn resource(&self) -> Option<&str> {
        match self {
            Self::Identity { resource, .. } => Some(resource),
            Self::Anyone | Self::Nobody => None,
        }
    }
}

/// What an agent's certificate names beside its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// The object id of the cluster's identity; anything else in a certificate that was made by hand.
    pub principal: Option<String>,
    /// The onboarding key that it rests on.
    pub onboarding: Option<String>,
}

impl From<&Peer> for Named {
    fn from(peer: &Peer) -> Self {
        Self { principal: peer.principal.clone(), onboarding: peer.onboarding.clone() }
    }
}

/// A certificate's cluster is not there (any more).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// Nobody knows such a cluster.
    #[error("cluster {0} is not registered at this gateway")]
    Unknown(ClusterId),
    /// The certificate is of an identity that was deleted.
    #[error("{code}: the resource {0} that this certificate was issued for was deleted; remove the agent, or connect the cluster again", code = types::agent_api::codes::RESOURCE_DELETED)]
    Deleted(ClusterId),
    /// The certificate names nobody, or somebody else.
    #[error("the certificate is not of the identity that cluster {0} has")]
    Foreign(ClusterId),
    /// The certificate names an identity of the API, and the configuration file has the cluster.
    #[error(
        "cluster {0} is defined in the gateway's configuration file, which this certificate was not made for; the gateway's operator makes certificates for it, or removes it from [[clusters]]"
    )]
    Configured(ClusterId),
    /// The certificate rests on an onboarding key that the cluster has no more, or names none (as those that were
    /// issued before certificates did). Who has the cluster's present key gets one that does.
    #[error(
        "the certificate was issued for another onboarding key than cluster {0} has; enrol with the present key, or {CONNECT_AGAIN}"
    )]
    Replaced(ClusterId),
}

impl Gone {
    /// How a tunnel ends because of it.
    pub fn code(&self) -> CloseCode {
        match self {
            Self::Deleted(_) => CloseCode::Deleted,
            Self::Unknown(_) | Self::Foreign(_) | Self::Configured(_) | Self::Replaced(_) => CloseCode::Unauthorised,
        }
    }
}

/// A shared cluster.
pub type ClusterRef = Arc<Cluster>;

impl Cluster {
    /// Of an id; of the configuration's.
    pub fn new(id: ClusterId) -> ClusterRef {
        Self::of(id, Agents::Anyone, Wanted::default())
    }

    /// Of an id, with what its agents must show and what is wanted of them.
    pub fn of(id: ClusterId, agents: Agents, wanted: Wanted) -> ClusterRef {
        Arc::new(Self { key: id.key(), audience: id.audience(), id, agents, wanted })
    }
}
