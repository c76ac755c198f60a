//! Who may reach which cluster: a pure decision over a snapshot, no await, no clock, no lookup elsewhere.

use std::collections::HashSet;

use proto::ids::ClusterId;

use crate::{
    config::{Grant, GrantScope},
    request::authenticate::Principal,
};

/// The rules in force.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    grants: Vec<Grant>,
    disabled: HashSet<String>,
}

/// Why somebody may not. For logs and audit; the user is told the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialReason {
    /// The cluster is not registered.
    UnknownCluster,
    /// No grant names the user or one of the groups.
    NoGrant,
    /// The user is disabled.
    Disabled,
    /// The access certificate is for another cluster.
    OtherCluster,
}

impl DenialReason {
    /// The word in audit records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownCluster => "unknown_cluster",
            Self::NoGrant => "no_grant",
            Self::Disabled => "disabled",
            Self::OtherCluster => "other_cluster",
        }
    }
}

impl Policy {
    /// Rules of a configuration.
    pub fn new(grants: Vec<Grant>, disabled: HashSet<String>) -> Self {
        Self { grants, disabled }
    }

    /// Whether `principal` may reach `cluster` (`None`: it is not registered). All grants are looked at in either case,
    /// so that an unknown cluster takes as long as a forbidden one.
    pub fn decide(&self, principal: &Principal, cluster: Option<&ClusterId>) -> Result<(), DenialReason> {
        if self.disabled.contains(principal.name()) {
            return Err(DenialReason::Disabled);
        }
        let granted = match principal {
            Principal::User(identity) => self.grants.iter().fold(false, |granted, grant| {
                let named = grant.users.contains(&identity.username)
                    || identity.groups.iter().any(|group| grant.groups.contains(group));
                granted | (named & covers(&grant.cluster, cluster))
            }),
            // The certificate itself is the right (DESIGN.md section 2).
            Principal::ServiceAccount(access) => match cluster {
                Some(cluster) if *cluster != access.cluster => return Err(DenialReason::OtherCluster),
                _ => true,
            },
        };
        match (cluster, granted) {
            (None, _) => Err(DenialReason::UnknownCluster),
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(DenialReason::NoGrant),
        }
    }
}

fn covers(scope: &GrantScope, cluster: Option<&ClusterId>) -> bool {
    match scope {
        GrantScope::AllClusters => true,
        GrantScope::Cluster(id) => Some(id) == cluster,
    }
}
