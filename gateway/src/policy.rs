//! Who may reach which cluster: a pure decision over a snapshot, no await, no clock, no lookup elsewhere.

use std::collections::{BTreeMap, HashSet};

use types::ids::ClusterId;

use crate::{
    config::{Grant, GrantScope},
    identity::Principal,
};

/// The rules in force.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// What a user is granted. No hash: most configurations name few, and users have hundreds of groups.
    users: BTreeMap<String, Vec<GrantScope>>,
    /// What a group is granted.
    groups: BTreeMap<String, Vec<GrantScope>>,
    disabled: HashSet<String>,
}

/// Why somebody may not. For logs and audit; the user is told the same for all but the
/// last.
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
    /// The access certificate is of the cluster that had this name before, or says nobody's right that could be asked.
    OtherIdentity,
    /// The authority of the access certificate is trusted no more.
    OtherAuthority,
    /// The cluster's feature `cluster-connect` is off (docs/features.md K9). Users are told so.
    ConnectOff,
}

impl DenialReason {
    /// The word in audit records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownCluster => "unknown_cluster",
            Self::NoGrant => "no_grant",
            Self::Disabled => "disabled",
            Self::OtherCluster => "other_cluster",
            Self::OtherIdentity => "other_identity",
            Self::OtherAuthority => "other_authority",
            Self::ConnectOff => "cluster_connect_off",
        }
    }
}

impl Policy {
    /// Rules of a configuration.
    pub fn new(grants: Vec<Grant>, disabled: HashSet<String>) -> Self {
        let mut policy = Self { disabled, ..Self::default() };
        for Grant { cluster, users, groups } in grants {
            for (names, granted) in [(users, &mut policy.users), (groups, &mut policy.groups)] {
                for name in names {
                    granted.entry(name).or_default().push(cluster.clone());
                }
            }
        }
        policy
    }

    /// Names that are refused everywhere.
    pub fn disabled(&self) -> &HashSet<String> {
        &self.disabled
    }

    /// Whether a user is refused everywhere.
    pub fn is_disabled(&self, name: &str) -> bool {
        self.disabled.contains(name)
    }

    /// Whether `principal` may reach `cluster` (`None`: it is not registered). All grants that they have are looked at
    /// in either case, so that an unknown cluster takes as long as a forbidden one.
    pub fn decide(&self, principal: &Principal, cluster: Option<&ClusterId>) -> Result<(), DenialReason> {
        if self.is_disabled(principal.name()) {
            return Err(DenialReason::Disabled);
        }
        let granted = match principal {
            Principal::User(identity) => self.grants(&identity.username, &identity.groups, cluster),
            Principal::ServiceAccount(access) => match (cluster, &access.holder) {
                (Some(cluster), _) if *cluster != access.cluster => return Err(DenialReason::OtherCluster),
                (_, Some(holder)) if self.is_disabled(&holder.username) => return Err(DenialReason::Disabled),
                (_, Some(holder)) => self.grants(&holder.username, &holder.groups, cluster),
                // The certificate itself is the right (docs/identity.md).
                (_, None) => true,
            },
        };
        match (cluster, granted) {
            (None, _) => Err(DenialReason::UnknownCluster),
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(DenialReason::NoGrant),
        }
    }
}

impl Policy {
    fn grants(&self, username: &str, groups: &[String], cluster: Option<&ClusterId>) -> bool {
        let of_groups = groups.iter().filter_map(|group| self.groups.get(group));
        let scopes = self.users.get(username).into_iter().chain(of_groups).flatten();
        scopes.fold(false, |granted, scope| granted | covers(scope, cluster))
    }
}

fn covers(scope: &GrantScope, cluster: Option<&ClusterId>) -> bool {
    match scope {
        GrantScope::AllClusters => true,
        GrantScope::Cluster(id) => Some(id) == cluster,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::SystemTime};

    use auth::token::testing::TestIssuer;

    use super::*;
    use crate::identity::Access;

    fn cluster(name: &str) -> ClusterId {
        format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}")
            .parse()
            .unwrap()
    }

    async fn user(name: &str, groups: &[&str]) -> Principal {
        let (issuer, now) = (TestIssuer::new("https://issuer.test"), SystemTime::now());
        let token = issuer.token(name, groups, &cluster("a").audience(), now);
        Principal::User(issuer.verifier().verify(&token, &cluster("a").audience(), now).await.unwrap())
    }

    #[tokio::test]
    async fn grants_are_by_user_or_group_and_for_one_or_all_clusters() {
        let ann = user("ann", &[]).await;
        let ops = user("otto", &["ops"]).await;
        let Principal::User(identity) = &ops else { unreachable!("made as a user") };
        let group = identity.groups[0].clone();
        let grants = vec![
            Grant {
                cluster: GrantScope::Cluster(cluster("a")),
                users: [ann.name().to_owned()].into(),
                groups: Default::default(),
            },
            Grant { cluster: GrantScope::AllClusters, users: Default::default(), groups: [group].into() },
        ];
        let policy = Policy::new(grants.clone(), HashSet::new());
        assert_eq!(policy.decide(&ann, Some(&cluster("a"))), Ok(()));
        assert_eq!(policy.decide(&ann, Some(&cluster("b"))), Err(DenialReason::NoGrant));
        assert_eq!(policy.decide(&ops, Some(&cluster("b"))), Ok(()));
        // What is not registered is nobody's, not even for a grant everywhere.
        assert_eq!(policy.decide(&ops, None), Err(DenialReason::UnknownCluster));
        let both = ["a", "b"].map(|name| Grant { cluster: GrantScope::Cluster(cluster(name)), ..grants[0].clone() });
        let policy_of_both = Policy::new(both.to_vec(), HashSet::new());
        for (name, decision) in [("a", Ok(())), ("b", Ok(())), ("c", Err(DenialReason::NoGrant))] {
            assert_eq!(policy_of_both.decide(&ann, Some(&cluster(name))), decision, "{name}");
        }
        let policy = Policy::new(grants, [ops.name().to_owned()].into());
        assert_eq!(policy.decide(&ops, Some(&cluster("b"))), Err(DenialReason::Disabled));
    }

    #[test]
    fn an_access_certificate_opens_its_own_cluster_only() {
        let access = Access {
            cluster: cluster("a"),
            name: "ann".to_owned(),
            holder: None,
            expires: SystemTime::now(),
            proof: None,
        };
        let principal = Principal::ServiceAccount(Arc::new(access));
        let policy = Policy::default();
        assert_eq!(policy.decide(&principal, Some(&cluster("a"))), Ok(()));
        assert_eq!(policy.decide(&principal, Some(&cluster("b"))), Err(DenialReason::OtherCluster));
        let disabled = Policy::new(vec![], ["ann".to_owned()].into());
        assert_eq!(disabled.decide(&principal, Some(&cluster("a"))), Err(DenialReason::Disabled));
    }
}
