//! What decisions need of the stored resources, in memory: clusters, role definitions and assignments of one moment.
//! Immutable when shared; a change makes another one, which shares what did not change. No SQL on the path of a request.

use std::{collections::HashMap, sync::Arc};

use proto::{
    ids::{ClusterId, ClusterKey},
    rbac::{Action, Assignment, Denied, Plane, Policy, Role, Scope, role::built_in},
};
use serde_json::Value;

use crate::{
    resources::{connected_cluster, is_deleting, properties, role_assignment, role_definition},
    snapshot::{Cluster, ClusterRef},
    store::{changes::Change, resources::Stored},
};

/// The stored resources that decisions look at.
#[derive(Clone, Default)]
pub struct Directory {
    revision: i64,
    clusters: HashMap<ClusterKey, ClusterRef>,
    /// Custom definitions by GUID.
    roles: HashMap<String, Arc<Role>>,
    /// Kept assignments by key: a role that changes, comes or goes changes what they give.
    assignments: HashMap<String, Kept>,
    policy: Policy,
}

/// An assignment as kept.
#[derive(Clone)]
struct Kept {
    principal: Arc<str>,
    scope: Scope,
    role: String,
    window: proto::rbac::Window,
}

impl Directory {
    /// One that begins with owners: principals that have the role Owner everywhere, by the configuration.
    pub fn with_owners(owners: &[String]) -> Self {
        let owner = built_in().iter().find(|role| role.name == "Owner").map(|role| Arc::clone(&role.role));
        let mut directory = Self::default();
        for id in owners {
            let Some(role) = owner.clone() else { break };
            directory.policy.insert(Assignment {
                id: "configured".into(),
                principal: user_key(id).into(),
                scope: Scope::root(),
                role,
                window: proto::rbac::Window::default(),
            });
        }
        directory
    }

    /// Takes what is kept, of a time when the newest revision was at least `revision`.
    pub fn load(&mut self, all: &[Stored], revision: i64) {
        all.iter().for_each(|stored| self.put(stored));
        self.revision = self.revision.max(revision);
    }

    /// Takes changes, oldest first.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(stored) => self.put(stored),
                Change::Deleted { key, kind, .. } => self.delete(kind, key),
            }
            self.revision = self.revision.max(change.revision());
        }
    }

    fn put(&mut self, stored: &Stored) {
        if is(&stored.kind, connected_cluster::NAME) {
            match stored.id.parse::<ClusterId>() {
                Ok(id) if !is_deleting(stored) => {
                    self.clusters.entry(id.key()).or_insert_with(|| Cluster::new(id));
                }
                Ok(id) => drop(self.clusters.remove(&id.key())),
                Err(error) => tracing::error!(id = stored.id, %error, "a kept cluster's id cannot be read"),
            }
        } else if is(&stored.kind, role_definition::NAME) {
            let guid = last(&stored.key);
            match role_definition::role(stored) {
                Some(role) => drop(self.roles.insert(guid.to_owned(), role)),
                None => drop(self.roles.remove(guid)),
            }
            self.regive(guid);
        } else if is(&stored.kind, role_assignment::NAME) {
            self.forget(&stored.key);
            if let Some(kept) = kept(stored) {
                self.assignments.insert(stored.key.clone(), kept);
                self.give(&stored.key);
            }
        }
    }

    fn delete(&mut self, kind: &str, key: &str) {
        if is(kind, connected_cluster::NAME) {
            if let Ok(id) = key.parse::<ClusterId>() {
                self.clusters.remove(&id.key());
            }
        } else if is(kind, role_definition::NAME) {
            self.roles.remove(last(key));
            self.regive(last(key));
        } else if is(kind, role_assignment::NAME) {
            self.forget(key);
        }
    }

    fn give(&mut self, key: &str) {
        let Some(kept) = self.assignments.get(key) else { return };
        // A role that is not there gives nothing.
        let Some(role) = self.role(&kept.role) else { return };
        self.policy.insert(Assignment {
            id: key.into(),
            principal: Arc::clone(&kept.principal),
            scope: kept.scope.clone(),
            role,
            window: kept.window,
        });
    }

    fn forget(&mut self, key: &str) {
        if let Some(kept) = self.assignments.remove(key) {
            self.policy.remove(&kept.principal, &kept.scope, key);
        }
    }

    /// Gives all assignments of a role anew.
    fn regive(&mut self, guid: &str) {
        let of_role: Vec<String> =
            self.assignments.iter().filter(|(_, kept)| kept.role == guid).map(|(key, _)| key.clone()).collect();
        for key in of_role {
            if let Some(kept) = self.assignments.get(&key) {
                self.policy.remove(&kept.principal, &kept.scope, &key);
            }
            self.give(&key);
        }
    }

    /// The newest revision that is in it.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The cluster of a key, if it is registered.
    pub fn cluster(&self, key: &ClusterKey) -> Option<&ClusterRef> {
        self.clusters.get(key)
    }

    /// How many clusters there are.
    pub fn cluster_count(&self) -> usize {
        self.clusters.len()
    }

    /// The role of a GUID in lower case.
    pub fn role(&self, guid: &str) -> Option<Arc<Role>> {
        let built_in = built_in().iter().find(|role| role.role.id() == guid).map(|role| &role.role);
        built_in.or_else(|| self.roles.get(guid)).cloned()
    }

    /// Whether an assignment names a role.
    pub fn is_assigned(&self, guid: &str) -> bool {
        self.assignments.values().any(|kept| kept.role == guid)
    }

    /// The key of the assignment of the same role to the same principal at the same scope.
    pub fn same_assignment(&self, principal: &str, scope: &Scope, guid: &str) -> Option<String> {
        [user_key(principal), group_key(principal)].iter().find_map(|principal| {
            let at = self.policy.at(principal, scope);
            at.iter().find(|assignment| assignment.role.id() == guid).map(|assignment| assignment.id.to_string())
        })
    }

    /// Whether one of the principals may do this there.
    pub fn decide(
        &self,
        principals: &[String],
        plane: Plane,
        action: &Action,
        scope: &Scope,
        now: i64,
    ) -> Result<(), Denied> {
        self.policy.decide(principals, plane, action, scope, now).map(drop)
    }

    /// Whether one of the principals may do this at some place below.
    pub fn decide_below(&self, principals: &[String], action: &Action, scope: &Scope, now: i64) -> bool {
        self.policy.decide_below(principals, Plane::Control, action, scope, now)
    }
}

/// How a user or service principal is named in the policy.
pub fn user_key(id: &str) -> String {
    format!("user {}", id.to_ascii_lowercase())
}

/// The same of a group. Apart, so that nobody whose id happens to be a group's name has what the group has.
pub fn group_key(id: &str) -> String {
    format!("group {}", id.to_ascii_lowercase())
}

fn kept(stored: &Stored) -> Option<Kept> {
    let body = stored.body.as_object()?;
    let properties = properties(body)?;
    let id = proto::api::ResourceId::parse(&stored.id).ok()?;
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    let key = if matches!(text("principalType"), Some("Group" | "ForeignGroup")) { group_key } else { user_key };
    Some(Kept {
        principal: key(text("principalId")?).into(),
        scope: role_assignment::scope_of(&id).ok()?,
        role: role_assignment::definition_of(properties)?,
        window: role_assignment::window(body),
    })
}

fn is(kind: &str, name: &str) -> bool {
    kind.eq_ignore_ascii_case(name)
}

fn last(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or_default()
}
