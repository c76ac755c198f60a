//! What a role definition allows, and the built-in definitions (feature Z3).

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use types::api::id::CONNECTED_CLUSTERS;

use super::{
    action::{Action, InvalidPattern, Pattern, Patterns},
    budget::{Budget, Exhausted},
};

/// Which of the two kinds of operation is asked about. A role lists them apart, and neither says anything on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plane {
    /// On resources: `actions`.
    Control,
    /// On what is in them, such as a cluster's pods: `dataActions`.
    Data,
}

/// One permission of a role definition as ARM writes it. A role allows what one of its permissions allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawPermission {
    /// Operations on resources.
    pub actions: Vec<String>,
    /// Operations that are taken out of `actions`.
    pub not_actions: Vec<String>,
    /// Operations on what is in them.
    pub data_actions: Vec<String>,
    /// Operations that are taken out of `data_actions`.
    pub not_data_actions: Vec<String>,
}

/// A permission that is ready to be asked.
#[derive(Debug, Clone)]
struct Permission {
    control: Difference,
    data: Difference,
}

/// `listed` less `excepted`.
#[derive(Debug, Clone)]
struct Difference {
    listed: Patterns,
    excepted: Patterns,
}

impl Difference {
    fn parse(listed: &[String], excepted: &[String]) -> Result<Self, InvalidPattern> {
        let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::parse(text)).collect::<Result<_, _>>();
        Ok(Self { listed: patterns(listed)?, excepted: patterns(excepted)? })
    }

    fn contains(&self, action: &Action, budget: &mut Budget) -> Result<bool, Exhausted> {
        Ok(self.listed.any(action, budget)? && !self.excepted.any(action, budget)?)
    }

    fn steps(&self) -> usize {
        self.listed.steps() + self.excepted.steps()
    }
}

/// A role definition.
#[derive(Debug, Clone)]
pub struct Role {
    id: Box<str>,
    permissions: Vec<Permission>,
    /// As they were given.
    raw: Box<[RawPermission]>,
    /// Steps that a question about either plane takes at most.
    steps: usize,
    told_bytes: usize,
    everything: bool,
}

impl Role {
    /// Of its id (the GUID, in any case) and permissions. Fails on the first pattern that cannot be read.
    pub fn new(id: &str, permissions: &[RawPermission]) -> Result<Self, InvalidPattern> {
        let permission = |raw: &RawPermission| {
            Ok(Permission {
                control: Difference::parse(&raw.actions, &raw.not_actions)?,
                data: Difference::parse(&raw.data_actions, &raw.not_data_actions)?,
            })
        };
        let raw: Box<[RawPermission]> = permissions.into();
        let permissions: Vec<Permission> = permissions.iter().map(permission).collect::<Result<_, _>>()?;
        let steps = permissions.iter().map(|one| one.control.steps().max(one.data.steps())).sum();
        let (told_bytes, everything) = (told_bytes(&raw), raw.iter().any(is_everything));
        Ok(Self { id: id.to_ascii_lowercase().into(), permissions, told_bytes, raw, steps, everything })
    }

    /// The GUID, in lower case.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The permissions that the role was made of.
    pub fn permissions(&self) -> &[RawPermission] {
        &self.raw
    }

    /// About the bytes that a document for an agent has of it ([`super::snapshot`]).
    pub fn told_bytes(&self) -> usize {
        self.told_bytes
    }

    /// Steps of [`Budget`] that a question to it takes at most, but for names that are looked up.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether the operation is allowed by one of the permissions. What one permission excepts, another may give.
    /// `false` also where a budget of its own does not suffice to know.
    pub fn allows(&self, plane: Plane, action: &Action) -> bool {
        self.allows_within(plane, action, &mut Budget::decision()).unwrap_or(false)
    }

    /// Whether a permission of it has all operations on what is in a cluster, and takes none out.
    pub fn allows_everything(&self) -> bool {
        self.everything
    }

    /// The same, within what is left of a budget.
    ///
    /// # Errors
    /// When that does not suffice to know.
    pub fn allows_within(&self, plane: Plane, action: &Action, budget: &mut Budget) -> Result<bool, Exhausted> {
        for permission in &self.permissions {
            budget.spend(16)?;
            let allowed = match plane {
                Plane::Control => permission.control.contains(action, budget)?,
                Plane::Data => permission.data.contains(action, budget)?,
            };
            if allowed {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Names of properties, and what stands around each text.
fn told_bytes(permissions: &[RawPermission]) -> usize {
    const ROLE: usize = 80;
    const PERMISSION: usize = 80;
    const TEXT: usize = 3;
    let of = |one: &RawPermission| {
        let texts = one.data_actions.iter().chain(&one.not_data_actions);
        PERMISSION + texts.map(|text| text.len() + TEXT).sum::<usize>()
    };
    ROLE + permissions.iter().map(of).sum::<usize>()
}

/// A definition that every subscription has and nobody can delete.
pub struct BuiltInRole {
    /// The display name.
    pub name: String,
    /// As it is shown.
    pub permission: RawPermission,
    /// As it is asked.
    pub role: Arc<Role>,
}

/// The built-in definitions, in the order of `builtin-roles.json`.
pub fn built_in() -> &'static [BuiltInRole] {
    static ROLES: LazyLock<Vec<BuiltInRole>> =
        LazyLock::new(|| read_built_in().expect("the file is part of the program and a test reads it"));
    &ROLES
}

fn read_built_in() -> Result<Vec<BuiltInRole>, Box<dyn std::error::Error>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw {
        role_name: String,
        name: String,
        #[serde(flatten)]
        permission: RawPermission,
    }
    #[derive(Deserialize)]
    struct File {
        roles: Vec<Raw>,
    }
    let file: File = serde_json::from_str(include_str!("builtin-roles.json"))?;
    let role = |raw: Raw| {
        let role = Arc::new(Role::new(&raw.name, std::slice::from_ref(&raw.permission))?);
        Ok(BuiltInRole { name: raw.role_name, permission: raw.permission, role })
    };
    file.roles.into_iter().map(role).collect()
}

/// Whether a permission has all operations on what is in a cluster, by a pattern that says so in one piece, and takes none
/// out.
fn is_everything(permission: &RawPermission) -> bool {
    let all = format!("{CONNECTED_CLUSTERS}/*");
    let is_all = |pattern: &String| pattern == "*" || pattern.eq_ignore_ascii_case(&all);
    permission.not_data_actions.is_empty() && permission.data_actions.iter().any(is_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Role {
        &built_in().iter().find(|role| role.name == name).unwrap().role
    }

    #[test]
    fn z3_the_viewer_reads_pods_and_no_secrets() {
        let viewer = named("Azure Arc Kubernetes Viewer");
        let data = |name: &str| {
            viewer.allows(Plane::Data, &Action::new(&format!("Microsoft.Kubernetes/connectedClusters/{name}")))
        };
        assert!(data("pods/read"));
        assert!(data("apps/deployments/read"));
        for denied in
            ["secrets/read", "pods/write", "pods/delete", "pods/exec/action", "rbac.authorization.k8s.io/roles/read"]
        {
            assert!(!data(denied), "{denied}");
        }
        // The planes are apart: reading pods is no right on the resource.
        assert!(!viewer.allows(Plane::Control, &Action::new("Microsoft.Kubernetes/connectedClusters/pods/read")));
    }

    #[test]
    fn z3_the_cluster_admin_may_all_in_the_cluster() {
        let admin = named("Azure Arc Kubernetes Cluster Admin");
        assert!(admin.allows(Plane::Data, &Action::new("Microsoft.Kubernetes/connectedClusters/secrets/read")));
        assert!(
            admin.allows(Plane::Data, &Action::new("Microsoft.Kubernetes/connectedClusters/users/impersonate/action"))
        );
        assert!(!admin.allows(Plane::Control, &Action::new("Microsoft.Kubernetes/connectedClusters/delete")));
    }

    #[test]
    fn s1_onboarding_writes_clusters_and_deletes_none() {
        let onboarding = named("Kubernetes Cluster - Azure Arc Onboarding");
        let may = |name: &str| onboarding.allows(Plane::Control, &Action::new(name));
        assert!(may("Microsoft.Kubernetes/connectedClusters/write"));
        assert!(!may("Microsoft.Kubernetes/connectedClusters/delete"));
        assert!(!may("Microsoft.Kubernetes/connectedClusters/listClusterUserCredential/action"));
        assert!(!may("Microsoft.Authorization/roleAssignments/write"));
    }

    #[test]
    fn z4_an_exception_takes_from_its_own_permission_only() {
        let raw = |actions: &[&str], not_actions: &[&str]| RawPermission {
            actions: actions.iter().map(|a| (*a).to_owned()).collect(),
            not_actions: not_actions.iter().map(|a| (*a).to_owned()).collect(),
            ..RawPermission::default()
        };
        let role = Role::new("R", &[raw(&["a/*"], &["a/delete"]), raw(&["a/delete"], &[])]).unwrap();
        assert!(role.allows(Plane::Control, &Action::new("A/Delete")));
        let role = Role::new("R", &[raw(&["a/*"], &["a/delete"])]).unwrap();
        assert!(!role.allows(Plane::Control, &Action::new("A/Delete")));
        assert!(role.allows(Plane::Control, &Action::new("a/read")));
    }
}
