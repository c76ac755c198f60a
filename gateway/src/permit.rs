//! The stage `authorize`: principal and cluster to [`Permit`] or [`Denial`], by asking the snapshot. Only a permit can
//! go on: the later stages and sessions take one, and nothing but this file makes one. Stands on identity, policy and
//! snapshot.

use crate::{cluster::ClusterRef, identity::Principal, policy::DenialReason, snapshot::Snapshot};

/// The right of one principal to reach one cluster now.
#[derive(Debug)]
pub struct Permit {
    principal: Principal,
    cluster: ClusterRef,
}

/// No right. An unknown cluster is denied like a forbidden one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial(pub DenialReason);

impl Permit {
    /// Who may send the request.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The cluster that the permit is for.
    pub fn cluster(&self) -> &ClusterRef {
        &self.cluster
    }
}

/// Asks the policy.
#[tracing::instrument(name = "authorize", level = "debug", skip_all)]
pub fn authorize(snapshot: &Snapshot, principal: &Principal, cluster: Option<&ClusterRef>) -> Result<Permit, Denial> {
    let decision = snapshot.decide(principal, cluster);
    match (decision, cluster) {
        (Ok(()), Some(cluster)) => Ok(Permit { principal: principal.clone(), cluster: cluster.clone() }),
        (Ok(()), None) => Err(Denial(DenialReason::UnknownCluster)),
        (Err(reason), _) => Err(Denial(reason)),
    }
}
