//! What concerns one cluster, as its agent pulls it (feature Z9): roles and assignments as JSON, and beside it a
//! statement of the issuer that the agent has pinned, over the SHA-256 of that JSON. Whoever is between the two can
//! leave it out, which ends rights and gives none.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use types::ids::ClusterId;

use super::{
    Assignment, Policy, Role, Scope, Window,
    action::InvalidPattern,
    role::{RawPermission, built_in},
    scope::InvalidScope,
};

/// `typ` of the statement's header, so that it is no token and a token is no statement.
pub const STATEMENT_TYPE: &str = "towline-policy+jws";
/// Largest document, in bytes: some ten thousand assignments. What is beyond it is left out ([`Document::fit`]).
pub const DOCUMENT_BYTES: usize = 4 * 1024 * 1024;
/// Of these for what is neither roles nor assignments: names of properties, and the cluster's id.
const FRAME_BYTES: usize = 4096;
/// Scopes that [`Omitted`] names at most.
const SCOPES_NAMED: usize = 5;

/// Whom a statement is for.
pub fn audience(cluster: &ClusterId) -> String {
    format!("towline:policy:{cluster}")
}

/// A document and the statement that it is right: the answer to [`types::agent_api::paths::POLICY`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Signed {
    /// JSON of a [`Document`], byte for byte as it was digested.
    pub document: String,
    /// What `after` of the next question is: the same as long as the same is decided.
    pub etag: String,
    /// A compact JWS (RFC 7515) of type [`STATEMENT_TYPE`]: `iss`, `aud` ([`audience`]), `iat`, `exp`, and `sha256` of
    /// the document, base64url.
    pub statement: String,
    /// What was left out of the document because all of it would be too large. For people; nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

/// What a document leaves out so that it fits: nobody has a right by it in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Number of assignments that are left out.
    pub assignments: usize,
    /// At which scopes most, the first five.
    pub scopes: Vec<String>,
}

impl std::fmt::Display for Omitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (assignments, scopes) = (self.assignments, self.scopes.join(", "));
        write!(
            f,
            "{assignments} role assignments give no right in this cluster, because all of them together exceed {DOCUMENT_BYTES} bytes; they are at {scopes}. Assign fewer or smaller roles there, and to groups instead of users"
        )
    }
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
    /// GUID of the role definition.
    pub id: String,
    /// What the role allows.
    pub permissions: Vec<RawPermission>,
}

/// A role assignment, as the document has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawAssignment {
    /// As [`super::principal`] names them.
    pub principal: String,
    /// The scope that it holds at, as an ARM id.
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

impl From<&Assignment> for RawAssignment {
    fn from(assignment: &Assignment) -> Self {
        Self {
            principal: assignment.principal.to_string(),
            scope: assignment.scope.to_string(),
            role: assignment.role.id().to_owned(),
            starts: assignment.window.starts,
            ends: assignment.window.ends,
        }
    }
}

/// Why a document is not taken.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The document is of another cluster.
    #[error("the snapshot of roles is of another cluster")]
    Cluster,
    /// A pattern of a role.
    #[error("a role in the snapshot has a pattern that cannot be read")]
    Role(#[from] InvalidPattern),
    /// A scope of an assignment.
    #[error("an assignment in the snapshot has a scope that cannot be read")]
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
            if !is_told(role) {
                continue;
            }
            if !is_built_in(role) {
                custom.insert(role.id(), role);
            }
            kept.push(RawAssignment::from(assignment));
        }
        kept.sort_unstable();
        kept.dedup();
        let mut roles: Vec<RawRole> = custom.into_values().map(|role| raw_role(role)).collect();
        roles.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Self { cluster: cluster.as_str().to_owned(), revision, enabled, roles, assignments: kept }
    }

    /// Leaves out what does not fit into [`DOCUMENT_BYTES`], and says what. The scopes that take the most give way,
    /// each down to the same share, and of a scope its largest assignments. Nobody gains a right by that: an assignment
    /// only allows. What is withdrawn is not in the document either way, so a withdrawal arrives whatever its size.
    pub fn fit(&mut self) -> Option<Omitted> {
        self.fit_into(DOCUMENT_BYTES - FRAME_BYTES - self.cluster.len())
    }

    fn fit_into(&mut self, bound: usize) -> Option<Omitted> {
        // Roles that assignments share count in parts, which are no parts any more where some of them are left out:
        // then it is done again, each time for less.
        const PASSES: usize = 8;
        let (before, mut omitted) = (self.assignments.len(), HashMap::<String, usize>::new());
        for pass in 0..=PASSES {
            let sizes = Sizes::of(self);
            if sizes.total <= bound {
                break;
            }
            let share = sizes.share(bound - bound * pass / PASSES);
            let mut left: HashMap<&str, usize> = HashMap::new();
            let mut keep = vec![false; self.assignments.len()];
            for at in &sizes.ascending {
                let left = left.entry(self.assignments[*at].scope.as_str()).or_insert(share);
                if let Some(rest) = left.checked_sub(sizes.cost[*at]) {
                    (*left, keep[*at]) = (rest, true);
                } else {
                    // Those behind it are as large or larger.
                    *left = 0;
                    *omitted.entry(self.assignments[*at].scope.clone()).or_default() += 1;
                }
            }
            let mut keep = keep.into_iter();
            self.assignments.retain(|_| keep.next().unwrap_or_default());
            let named: HashSet<&str> = self.assignments.iter().map(|one| one.role.as_str()).collect();
            self.roles.retain(|role| named.contains(role.id.as_str()));
        }
        let mut scopes: Vec<(usize, String)> = omitted.into_iter().map(|(scope, count)| (count, scope)).collect();
        scopes.sort_unstable_by(|a, b| b.cmp(a));
        let scopes: Vec<String> = scopes.into_iter().take(SCOPES_NAMED).map(|(_, scope)| scope).collect();
        (!scopes.is_empty()).then(|| Omitted { assignments: before - self.assignments.len(), scopes })
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

/// What the parts of a document take of its bytes.
struct Sizes {
    /// Of each assignment, with its part of its role.
    cost: Vec<usize>,
    /// The assignments, the smallest first.
    ascending: Vec<usize>,
    /// Of all assignments at each scope.
    scopes: Vec<usize>,
    /// Bytes of all roles and assignments together.
    total: usize,
}

impl Sizes {
    fn of(document: &Document) -> Self {
        let mut users: HashMap<&str, usize> = HashMap::new();
        for assignment in &document.assignments {
            *users.entry(&assignment.role).or_default() += 1;
        }
        let roles: HashMap<&str, usize> =
            document.roles.iter().map(|role| (role.id.as_str(), bytes_of(role))).collect();
        let mut scopes: HashMap<&str, usize> = HashMap::new();
        let mut cost = Vec::with_capacity(document.assignments.len());
        let mut total: usize = roles.values().sum();
        for assignment in &document.assignments {
            let role = assignment.role.as_str();
            let own = bytes_of(assignment);
            let part =
                roles.get(role).copied().unwrap_or_default().div_ceil(users.get(role).copied().unwrap_or(1).max(1));
            total += own;
            *scopes.entry(&assignment.scope).or_default() += own + part;
            cost.push(own + part);
        }
        let mut ascending: Vec<usize> = (0..cost.len()).collect();
        ascending.sort_by_key(|at| cost[*at]);
        let scopes = scopes.into_values().collect();
        Self { cost, ascending, scopes, total }
    }

    /// The most that one scope may take, so that all of them together take no more than `bound`.
    fn share(&self, bound: usize) -> usize {
        let mut scopes = self.scopes.clone();
        scopes.sort_unstable();
        let mut left = bound;
        for (at, size) in scopes.iter().enumerate() {
            let share = left / (scopes.len() - at);
            if *size > share {
                return share;
            }
            left -= size;
        }
        usize::MAX
    }
}

/// Bytes of a part of a document, with the comma behind it.
pub fn bytes_of(part: &impl Serialize) -> usize {
    serde_json::to_vec(part).map_or(0, |text| text.len()) + 1
}

/// The part of a role that a document holds: what it allows in a cluster.
fn raw_role(role: &Role) -> RawRole {
    let data = |raw: &RawPermission| RawPermission { actions: Vec::new(), not_actions: Vec::new(), ..raw.clone() };
    RawRole { id: role.id().to_owned(), permissions: role.permissions().iter().map(data).collect() }
}

/// Whether a role allows something in clusters, so that documents name it.
pub fn is_told(role: &Role) -> bool {
    role.permissions().iter().any(|permission| !permission.data_actions.is_empty())
}

/// Whether agents know a role by themselves.
pub fn is_built_in(role: &Role) -> bool {
    built_in().iter().any(|built_in| built_in.role.id() == role.id())
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

    fn large(number: usize, bytes: usize) -> Arc<Role> {
        let data_actions = (0..bytes / 500).map(|n| format!("a/{}{n:0>10}/read", "x".repeat(483))).collect();
        let raw = RawPermission { data_actions, ..RawPermission::default() };
        Arc::new(Role::new(&format!("00000000-0000-4000-8000-{number:0>12}"), &[raw]).unwrap())
    }

    /// Twenty roles of 250 KiB at one namespace kept every later document of the cluster away from its agents.
    #[test]
    fn a_document_that_is_too_large_leaves_out_what_is_largest() {
        let id: ClusterId = CLUSTER.parse().unwrap();
        let viewer = built_in().iter().find(|role| role.name == "Azure Arc Kubernetes Viewer").unwrap();
        let heavy = format!("{CLUSTER}/namespaces/heavy").to_ascii_lowercase();
        let at = |role: &Arc<Role>, scope: &str, who: usize| Assignment {
            principal: user_key(&format!("user-{who}")).into(),
            ..assignment(role, scope)
        };
        let mut of: Vec<Assignment> = (0..20).map(|n| at(&large(n, 250 * 1024), &heavy, n)).collect();
        of.push(at(&viewer.role, &heavy, 100));
        of.push(at(&large(100, 300 * 1024), CLUSTER, 101));
        of.extend((0..500).map(|n| at(&viewer.role, &format!("{CLUSTER}/namespaces/n{n}"), n)));
        let mut document = Document::new(&id, 7, true, &of);
        assert!(serde_json::to_string(&document).unwrap().len() > DOCUMENT_BYTES);
        let omitted = document.fit().unwrap();
        let bytes = serde_json::to_string(&document).unwrap().len();
        assert!(bytes <= DOCUMENT_BYTES && bytes > DOCUMENT_BYTES / 2, "{bytes}");
        assert_eq!(omitted.scopes, [heavy.as_str()], "nobody else gives way");
        assert_eq!(document.assignments.len() + omitted.assignments, of.len());
        assert!((1..20).contains(&omitted.assignments), "{omitted}");
        let policy = document.policy(&id).unwrap();
        let action = Action::new("Microsoft.Kubernetes/connectedClusters/pods/read");
        for (who, namespace) in [(100, "heavy"), (0, "n0"), (499, "n499")] {
            let scope = Scope::namespace(&id, namespace);
            let decided = policy.decide(&[user_key(&format!("user-{who}"))], Plane::Data, &action, &scope, 9);
            assert!(decided.is_ok(), "{who} at {namespace}");
        }
        // What is withdrawn is gone from the next one, too.
        of.retain(|one| &*one.principal != user_key("user-499").as_str());
        let mut next = Document::new(&id, 8, true, &of);
        next.fit();
        assert!(serde_json::to_string(&next).unwrap().len() <= DOCUMENT_BYTES);
        assert_eq!(next.assignments.len(), document.assignments.len() - 1);
        // One that fits is left as it is.
        let mut small = Document::new(&id, 9, true, &of[20..]);
        let before = small.clone();
        assert_eq!((small.fit(), small), (None, before));
    }

    proptest::proptest! {
        /// Whatever roles are shared by whom: it fits in the end, leaves nothing out where it fits, and names no role
        /// that is not in it.
        #[test]
        fn any_document_fits_in_the_end(
            of in proptest::collection::vec((0usize..6, 0usize..6, 0usize..4), 0..60),
            bound in 0usize..40_000,
        ) {
            let id: ClusterId = CLUSTER.parse().unwrap();
            let roles: Vec<_> = (0..6).map(|n| large(n, n * n * 500)).collect();
            let assignments = of.iter().map(|(role, scope, who)| Assignment {
                principal: user_key(&format!("user-{who}")).into(),
                ..assignment(&roles[*role], &format!("{CLUSTER}/namespaces/n{scope}"))
            });
            let assignments: Vec<_> = assignments.collect();
            let mut document = Document::new(&id, 1, true, &assignments);
            let (whole, before) = (Sizes::of(&document).total, document.assignments.len());
            let omitted = document.fit_into(bound);
            proptest::prop_assert!(Sizes::of(&document).total <= bound);
            proptest::prop_assert_eq!(omitted.is_none(), whole <= bound);
            proptest::prop_assert_eq!(before, document.assignments.len() + omitted.map_or(0, |one| one.assignments));
            proptest::prop_assert!(document.policy(&id).is_ok());
        }
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
