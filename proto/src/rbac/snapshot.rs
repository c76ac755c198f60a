//! What concerns one cluster, as its agent pulls it (feature Z9): roles and assignments as JSON, and beside it a statement of
//! the issuer that the agent has pinned, over the SHA-256 of that JSON. Whoever is between the two can leave it out, which
//! ends rights and gives none.

use std::{collections::HashMap, sync::Arc};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::{
    Assignment, Policy, Role, Scope, Window,
    action::InvalidPattern,
    role::{RawPermission, built_in},
    scope::InvalidScope,
};
use crate::ids::ClusterId;

/// `typ` of the statement's header, so that it is no token and a token is no statement.
pub const STATEMENT_TYPE: &str = "towline-policy+jws";
/// Largest document, in bytes: some ten thousand assignments.
pub const DOCUMENT_BYTES: usize = 4 * 1024 * 1024;

/// Whom a statement is for.
pub fn audience(cluster: &ClusterId) -> String {
    format!("towline:policy:{cluster}")
}

/// A document and the statement that it is right: the answer to [`crate::agent_api::paths::POLICY`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Signed {
    /// JSON of a [`Document`], byte for byte as it was digested.
    pub document: String,
    /// What `after` of the next question is: the same as long as the same is decided.
    pub etag: String,
    /// A compact JWS (RFC 7515) of type [`STATEMENT_TYPE`]: `iss`, `aud` ([`audience`]), `iat`, `exp`, and `sha256` of the
    /// document, base64url.
    pub statement: String,
}

/// The `sha256` of a statement.
pub fn digest_of(document: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, document.as_bytes()))
}

/// Roles and assignments at one cluster, above it and below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document {
    /// The cluster's ARM id, in lower case.
    pub cluster: String,
    /// Rises with every change; an agent never goes back to a lower one.
    pub revision: i64,
    /// Whether calls are decided by it. If not, the cluster's own RBAC decides alone.
    pub enabled: bool,
    /// Custom roles that are assigned. Built-in ones are known to the agent.
    pub roles: Vec<RawRole>,
    /// Assignments of roles that allow something in a cluster.
    pub assignments: Vec<RawAssignment>,
}

/// A role definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawRole {
    /// GUID.
    pub id: String,
    /// What it allows.
    pub permissions: Vec<RawPermission>,
}

/// An assignment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawAssignment {
    /// As [`super::principal`] names them.
    pub principal: String,
    /// Where it holds.
    pub scope: String,
    /// GUID of the role.
    pub role: String,
    /// The first second, if bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<i64>,
    /// The second behind the last, if bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<i64>,
}

/// Why a document is not taken.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Of another cluster.
    #[error("the snapshot of roles is of another cluster")]
    Cluster,
    /// A pattern of a role.
    #[error("a role in the snapshot")]
    Role(#[from] InvalidPattern),
    /// A scope of an assignment.
    #[error("an assignment in the snapshot")]
    Scope(#[from] InvalidScope),
    /// An assignment of a role that is not there.
    #[error("an assignment in the snapshot names a role that is not in it")]
    UnknownRole,
}

impl Document {
    /// Of the assignments that concern a cluster. The same assignments make the same document but for the revision.
    pub fn new<'a>(
        cluster: &ClusterId,
        revision: i64,
        enabled: bool,
        assignments: impl IntoIterator<Item = &'a Assignment>,
    ) -> Self {
        let mut custom: HashMap<&str, &Arc<Role>> = HashMap::new();
        let mut kept = Vec::new();
        for assignment in assignments {
            let role = &assignment.role;
            if role.permissions().iter().all(|permission| permission.data_actions.is_empty()) {
                continue;
            }
            if !built_in().iter().any(|built_in| built_in.role.id() == role.id()) {
                custom.insert(role.id(), role);
            }
            kept.push(RawAssignment {
                principal: assignment.principal.to_string(),
                scope: assignment.scope.to_string(),
                role: role.id().to_owned(),
                starts: assignment.window.starts,
                ends: assignment.window.ends,
            });
        }
        kept.sort_unstable();
        kept.dedup();
        let data = |raw: &RawPermission| RawPermission { actions: Vec::new(), not_actions: Vec::new(), ..raw.clone() };
        let mut roles: Vec<RawRole> = custom
            .into_values()
            .map(|role| RawRole {
                id: role.id().to_owned(),
                permissions: role.permissions().iter().map(data).collect(),
            })
            .collect();
        roles.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Self { cluster: cluster.as_str().to_owned(), revision, enabled, roles, assignments: kept }
    }

    /// The same for documents that decide the same, whatever their revision.
    pub fn etag(&self) -> String {
        let same = Self { revision: 0, ..self.clone() };
        digest_of(&serde_json::to_string(&same).unwrap_or_default())
    }

    /// What is decided by.
    ///
    /// # Errors
    /// When it is of another cluster, or a part of it cannot be read: none of it is taken then.
    pub fn policy(&self, cluster: &ClusterId) -> Result<Policy, DocumentError> {
        if self.cluster != cluster.as_str() {
            return Err(DocumentError::Cluster);
        }
        let mut roles: HashMap<&str, Arc<Role>> =
            built_in().iter().map(|built_in| (built_in.role.id(), Arc::clone(&built_in.role))).collect();
        for raw in &self.roles {
            // A built-in role is what this program knows, whatever a document says.
            if !roles.contains_key(raw.id.as_str()) {
                roles.insert(&raw.id, Arc::new(Role::new(&raw.id, &raw.permissions)?));
            }
        }
        let mut policy = Policy::default();
        for (at, raw) in self.assignments.iter().enumerate() {
            policy.insert(Assignment {
                id: at.to_string().into(),
                principal: raw.principal.as_str().into(),
                scope: raw.scope.parse::<Scope>()?,
                role: Arc::clone(roles.get(raw.role.as_str()).ok_or(DocumentError::UnknownRole)?),
                window: Window { starts: raw.starts, ends: raw.ends },
            });
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac::{Action, Plane, principal::user_key};

    const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

    fn assignment(role: &Arc<Role>, scope: &str) -> Assignment {
        Assignment {
            id: "a".into(),
            principal: user_key("ann").into(),
            scope: scope.parse().unwrap(),
            role: Arc::clone(role),
            window: Window { starts: None, ends: Some(10) },
        }
    }

    fn custom(data: &str) -> Arc<Role> {
        let raw = RawPermission {
            actions: vec!["a/b/read".to_owned()],
            data_actions: data.split_whitespace().map(str::to_owned).collect(),
            ..RawPermission::default()
        };
        Arc::new(Role::new("0AA2F2C6-3F7B-4F6E-9F5C-0123456789AB", &[raw]).unwrap())
    }

    #[test]
    fn z9_a_document_decides_as_the_assignments_it_was_made_of() {
        let id: ClusterId = CLUSTER.parse().unwrap();
        let of = [
            assignment(
                &custom("Microsoft.Kubernetes/connectedClusters/pods/read"),
                &format!("{CLUSTER}/namespaces/dev"),
            ),
            assignment(&custom(""), CLUSTER),
        ];
        let document = Document::new(&id, 7, true, &of);
        assert_eq!((document.assignments.len(), document.roles.len()), (1, 1), "no data action, nothing to tell");
        assert!(document.roles[0].permissions[0].actions.is_empty());
        let text = serde_json::to_string(&document).unwrap();
        let policy = serde_json::from_str::<Document>(&text).unwrap().policy(&id).unwrap();
        let action = Action::new("Microsoft.Kubernetes/connectedClusters/pods/read");
        let at = |scope: Scope, now| policy.decide(&[user_key("ann")], Plane::Data, &action, &scope, now).is_ok();
        assert!(at(Scope::namespace(&id, "dev"), 9));
        assert!(!at(Scope::namespace(&id, "dev"), 10), "its time is over");
        assert!(!at(Scope::cluster(&id), 9));
    }

    #[test]
    fn z9_of_a_document_that_cannot_be_read_nothing_is_taken() {
        let id: ClusterId = CLUSTER.parse().unwrap();
        let good = Document::new(&id, 7, true, &[assignment(&custom("a/b/read"), CLUSTER)]);
        let other = format!("{CLUSTER}x").parse().unwrap();
        assert!(matches!(good.policy(&other), Err(DocumentError::Cluster)));
        let mut broken = good.clone();
        broken.roles.clear();
        assert!(matches!(broken.policy(&id), Err(DocumentError::UnknownRole)));
        let mut broken = good.clone();
        broken.roles[0].permissions[0].data_actions.push("a b".to_owned());
        assert!(matches!(broken.policy(&id), Err(DocumentError::Role(_))));
        let mut broken = good;
        broken.assignments[0].scope = "/x".to_owned();
        assert!(matches!(broken.policy(&id), Err(DocumentError::Scope(_))));
    }

    /// A document that gives the Viewer's GUID other permissions changes nothing of what a viewer may.
    #[test]
    fn z9_built_in_roles_are_what_the_program_knows() {
        let id: ClusterId = CLUSTER.parse().unwrap();
        let viewer = built_in().iter().find(|role| role.name == "Azure Arc Kubernetes Viewer").unwrap();
        let mut document = Document::new(&id, 1, true, &[assignment(&viewer.role, CLUSTER)]);
        assert!(document.roles.is_empty());
        let raw = RawPermission { data_actions: vec!["*".to_owned()], ..RawPermission::default() };
        document.roles.push(RawRole { id: viewer.role.id().to_owned(), permissions: vec![raw] });
        let policy = document.policy(&id).unwrap();
        let secrets = Action::new("Microsoft.Kubernetes/connectedClusters/secrets/read");
        assert!(policy.decide(&[user_key("ann")], Plane::Data, &secrets, &Scope::cluster(&id), 0).is_err());
    }
}
