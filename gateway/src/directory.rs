//! What decisions need of the stored resources, in memory: clusters, role definitions and assignments of one moment.
//! Immutable when shared; a change makes another one, which shares what did not change. No SQL on the path of a
//! request.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use auth::rbac::{
    Action, Assignment, Denied, Plane, Policy, Role, Scope,
    policy::Asker,
    principal::{group_key, user_key},
    role::built_in,
    snapshot::{Document, RawAssignment, bytes_of, is_built_in, is_told},
};
use types::{
    api::ResourceId,
    ids::{ClusterId, ClusterKey},
};

use crate::{
    cluster::{Agents, Cluster, ClusterRef, wanted::Wanted},
    shards::Shards,
    store::{changes::Change, resources::Stored},
    stored::last_name,
};

/// The stored resources that decisions look at.
#[derive(Clone, Default)]
pub struct Directory {
    /// The kinds that are read.
    kinds: Deciding,
    revision: i64,
    clusters: Shards<ClusterKey, ClusterRef>,
    /// Custom definitions by GUID. Two of one GUID can only have been written at the same moment; then neither gives
    /// anything.
    roles: HashMap<String, Vec<Definition>>,
    /// Identities by their object ids: the cluster that each is of, or is an extension of.
    identities: Shards<String, ClusterKey>,
    /// Object ids of extensions' identities, by the key of the extension.
    of_extension: Shards<String, (String, ClusterKey)>,
    /// Assignments by key: a role that changes, comes or goes changes what they give.
    assignments: Shards<String, Assigned>,
    /// Their keys by the cluster that they are at or below, else by their scope; and by their role.
    at: Index,
    of_role: Index,
    /// Of the configuration; they are not kept.
    owners: Arc<[Assignment]>,
    policy: Arc<Policy>,
    /// Identities of clusters that were deleted, by their object ids.
    deleted: Shards<String, ()>,
    /// The revision of the last change of what decides, and by cluster or scope where that is known.
    decided: Decided,
    /// Subscriptions whose clusters count, in lower case; all, where nobody has said.
    subscriptions: Option<Arc<[String]>>,
}

/// Keys by what they have in common.
#[derive(Clone, Default)]
struct Index(Shards<Box<str>, Arc<BTreeSet<Box<str>>>>);

impl Index {
    fn add(&mut self, what: &str, key: &str) {
        // Taken out, so that nothing is copied unless another directory shares it.
        let mut keys = self.0.remove(what).unwrap_or_default();
        Arc::make_mut(&mut keys).insert(key.into());
        self.0.insert(what.into(), keys);
    }

    fn remove(&mut self, what: &str, key: &str) {
        let Some(mut keys) = self.0.remove(what) else { return };
        Arc::make_mut(&mut keys).remove(key);
        if !keys.is_empty() {
            self.0.insert(what.into(), keys);
        }
    }

    fn of<'a>(&'a self, what: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.get(what).into_iter().flat_map(|keys| keys.iter()).map(|key| &**key)
    }
}

/// What is at exactly one scope, and what that takes of the document of each cluster there and below.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of role assignments.
    pub assignments: usize,
    /// Bytes of those that say something about calls to a cluster, and of the custom roles that they name.
    pub bytes: usize,
}

/// Identities that are remembered as deleted at most. Who is not among them is told nothing, and asks again.
pub const DELETED: u32 = 100_000;
/// Places whose last change is known at most; beyond it all count as changed.
const DECIDED_PLACES: usize = 100_000;

/// When what decides has changed last.
#[derive(Clone, Default)]
struct Decided {
    /// Anything at all.
    last: i64,
    /// What may concern every place.
    everywhere: i64,
    /// By the cluster that an assignment is at or below, else by its scope.
    places: Shards<String, i64>,
}

impl Decided {
    fn everywhere(&mut self, revision: i64) {
        (self.last, self.everywhere) = (self.last.max(revision), self.everywhere.max(revision));
    }

    fn at(&mut self, place: &str, revision: i64) {
        if self.places.len() >= DECIDED_PLACES {
            self.places = Shards::default();
            self.everywhere(revision);
        }
        self.last = self.last.max(revision);
        self.places.insert(place.to_owned(), revision);
    }
}

/// What decisions take from the resources of a kind ([`crate::resources::Kind::decides`] says it).
#[derive(Clone, Copy)]
pub enum Decides {
    /// Each is a cluster.
    Clusters(fn(&Stored) -> ReadCluster),
    /// Each defines a custom role; `None`: it cannot be read, and gives nothing.
    Roles(fn(&Stored) -> Option<Definition>),
    /// Each gives a role to somebody; `None`: it cannot be read, and gives nothing.
    Assignments(fn(&Stored) -> Option<Assigned>),
    /// Each is below a cluster and may have an identity of its own: its object id.
    Identities(fn(&Stored) -> Option<String>),
}

/// The kinds of resources that decisions look at, by their full types.
pub type Deciding = Arc<[(&'static str, Decides)]>;

/// What a kept resource says of its cluster.
pub struct ReadCluster {
    /// Whom its agents' certificates must name.
    pub agents: Agents,
    /// What is wanted of its agents.
    pub wanted: Wanted,
}

/// A custom role definition.
#[derive(Clone)]
pub struct Definition {
    /// The key of its resource.
    pub key: String,
    /// What people call it, in lower case.
    pub name: Box<str>,
    /// What the role allows.
    pub role: Arc<Role>,
    /// Where it may be assigned, and below: who may write it has the right to do so at all of these.
    pub assignable: Vec<Scope>,
}

/// A role assignment as it is kept.
#[derive(Clone)]
pub struct Assigned {
    /// To whom: two where it may be a user or a group.
    pub principals: Box<[Arc<str>]>,
    /// The scope at which it is made. It also holds everywhere below.
    pub scope: Scope,
    /// The GUID of the role.
    pub role: String,
    /// The time in which the assignment holds.
    pub window: auth::rbac::Window,
}

impl Directory {
    /// One that reads resources of these kinds, and begins with owners: principals that have the role Owner everywhere,
    /// by the configuration.
    pub fn new(kinds: Deciding, owners: &[String]) -> Self {
        let owner = built_in().iter().find(|role| role.name == "Owner").map(|role| &role.role);
        let one = |id: &String| {
            Some(Assignment {
                id: "configured".into(),
                principal: user_key(id).into(),
                scope: Scope::root(),
                role: Arc::clone(owner?),
                window: auth::rbac::Window::default(),
            })
        };
        let owners: Arc<[Assignment]> = owners.iter().filter_map(one).collect();
        Self { policy: Arc::new(owners.iter().cloned().collect()), owners, kinds, ..Self::default() }
    }

    /// The same, where clusters of other subscriptions than these do not count: the API manages none of them.
    #[must_use]
    pub fn within<'a>(self, subscriptions: impl Iterator<Item = &'a str>) -> Self {
        Self { subscriptions: Some(subscriptions.map(str::to_ascii_lowercase).collect()), ..self }
    }

    fn is_within(&self, id: &ClusterId) -> bool {
        let is = |known: &String| known.eq_ignore_ascii_case(id.subscription());
        self.subscriptions.as_ref().is_none_or(|known| known.iter().any(is))
    }

    /// Takes what is kept, of a time when the newest revision was at least `revision`.
    pub fn load(&mut self, all: &[Stored], revision: i64) {
        all.iter().for_each(|stored| self.put(stored));
        self.revision = self.revision.max(revision);
        self.decided.everywhere(self.revision);
    }

    /// Takes identities whose clusters were deleted.
    pub fn load_deleted(&mut self, principals: Vec<String>) {
        principals.into_iter().for_each(|principal| self.note_deleted(principal));
    }

    fn note_deleted(&mut self, principal: String) {
        if self.deleted.len() < DELETED as usize {
            self.deleted.insert(principal, ());
        }
    }

    /// Whether an object id was that of a cluster's identity which was deleted. Absence alone says nothing.
    pub fn was_deleted(&self, principal: &str) -> bool {
        self.deleted.get(principal).is_some()
    }

    /// The revision of the last change of roles and assignments, or of who is decided about by them.
    pub fn decided(&self) -> i64 {
        self.decided.last
    }

    /// The revision of the last change that may concern the document of a cluster.
    pub fn decided_about(&self, cluster: &ClusterId) -> i64 {
        let scope = Scope::cluster(cluster);
        let around = scope.with_parents().filter_map(|at| self.decided.places.get(at));
        around.copied().max().unwrap_or_default().max(self.decided.everywhere)
    }

    /// Takes changes, oldest first.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(stored) => self.put(stored),
                Change::Deleted { key, kind, revision } => self.delete(kind, key, *revision),
            }
            self.revision = self.revision.max(change.revision());
        }
    }

    fn decides(&self, kind: &str) -> Option<Decides> {
        self.kinds.iter().find(|(name, _)| name.eq_ignore_ascii_case(kind)).map(|(_, decides)| *decides)
    }

    fn put(&mut self, stored: &Stored) {
        match self.decides(&stored.kind) {
            Some(Decides::Clusters(read)) => self.put_cluster(stored, read),
            Some(Decides::Roles(read)) => {
                self.define(&stored.key, read(stored));
                self.decided.everywhere(stored.revision);
            }
            Some(Decides::Assignments(read)) => self.put_assignment(stored, read(stored)),
            Some(Decides::Identities(read)) => {
                let identity = read(stored).filter(|_| !stored.is_deleting());
                let cluster = parent_cluster(stored).filter(|id| self.is_within(id));
                self.identify(&stored.key, identity.zip(cluster));
            }
            None => {}
        }
    }

    fn put_cluster(&mut self, stored: &Stored, read: fn(&Stored) -> ReadCluster) {
        match stored.id.parse::<ClusterId>() {
            Ok(id) if !self.is_within(&id) => {}
            Ok(id) if !stored.is_deleting() => {
                let ReadCluster { agents, wanted } = read(stored);
                let known = self.clusters.get(&id.key());
                let wanted = wanted.or_known(known.map(|known| &known.wanted));
                if known.is_none_or(|known| known.wanted.azure_rbac != wanted.azure_rbac) {
                    self.decided.at(&stored.key, stored.revision);
                }
                let former = known.and_then(|known| known.agents.principal()).map(str::to_owned);
                if known.is_none_or(|known| known.agents != agents || known.wanted != wanted) {
                    if former.as_deref() != agents.principal() {
                        self.forget_identity(former.as_deref(), &id.key());
                        if let Some(principal) = agents.principal() {
                            self.identities.insert(principal.to_owned(), id.key());
                        }
                    }
                    self.clusters.insert(id.key(), Cluster::of(id, agents, wanted));
                }
            }
            Ok(id) => self.remove(&id, &stored.key, stored.revision),
            Err(error) => tracing::error!(id = stored.id, %error, "a kept cluster's id cannot be read"),
        }
    }

    fn put_assignment(&mut self, stored: &Stored, assigned: Option<Assigned>) {
        self.decided_by(&stored.key, stored.revision);
        self.forget(&stored.key);
        let Some(assigned) = assigned else { return };
        let at = place(&assigned.scope);
        self.decided.at(&at, stored.revision);
        self.at.add(&at, &stored.key);
        self.of_role.add(&assigned.role, &stored.key);
        self.assignments.insert(stored.key.clone(), assigned);
        self.give(&stored.key);
    }

    fn remove(&mut self, id: &ClusterId, key: &str, revision: i64) {
        self.decided.at(key, revision);
        let removed = self.clusters.remove(&id.key());
        if let Some(principal) = removed.as_ref().and_then(|removed| removed.agents.principal()) {
            let principal = principal.to_owned();
            self.forget_identity(Some(&principal), &id.key());
            self.note_deleted(principal);
        }
    }

    /// An assignment changes or goes.
    fn decided_by(&mut self, key: &str, revision: i64) {
        if let Some(kept) = self.assignments.get(key) {
            self.decided.at(&place(&kept.scope), revision);
        }
    }

    fn delete(&mut self, kind: &str, key: &str, revision: i64) {
        match self.decides(kind) {
            Some(Decides::Clusters(_)) => {
                if let Ok(id) = key.parse::<ClusterId>() {
                    self.remove(&id, key, revision);
                }
            }
            Some(Decides::Roles(_)) => {
                self.define(key, None);
                self.decided.everywhere(revision);
            }
            Some(Decides::Assignments(_)) => {
                self.decided_by(key, revision);
                self.forget(key);
            }
            Some(Decides::Identities(_)) => self.identify(key, None),
            None => {}
        }
    }

    /// The extension of a key has this identity from now on, or none.
    fn identify(&mut self, key: &str, identity: Option<(String, ClusterId)>) {
        if let Some((former, cluster)) = self.of_extension.remove(key) {
            self.forget_identity(Some(&former), &cluster);
        }
        if let Some((principal, cluster)) = identity {
            self.identities.insert(principal.clone(), cluster.key());
            self.of_extension.insert(key.to_owned(), (principal, cluster.key()));
        }
    }

    fn forget_identity(&mut self, principal: Option<&str>, of: &ClusterKey) {
        if let Some(principal) = principal.filter(|principal| self.identities.get(*principal) == Some(of)) {
            self.identities.remove(principal);
        }
    }

    /// The full types of the kinds that are read.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + use<> {
        let kinds = Arc::clone(&self.kinds);
        (0..kinds.len()).map(move |at| kinds[at].0)
    }

    fn define(&mut self, key: &str, definition: Option<Definition>) {
        let guid = last_name(key);
        let all = self.roles.entry(guid.to_owned()).or_default();
        all.retain(|other| other.key != key);
        all.extend(definition);
        if all.is_empty() {
            self.roles.remove(guid);
        }
        self.regive(guid);
    }

    fn give(&mut self, key: &str) {
        let Some(kept) = self.assignments.get(key) else { return };
        // A role that is not there, or not assignable there (any more), gives nothing.
        for given in self.given(key, kept) {
            Arc::make_mut(&mut self.policy).insert(given);
        }
    }

    /// What a kept assignment gives.
    fn given<'a>(&self, key: &'a str, kept: &'a Assigned) -> impl Iterator<Item = Assignment> + use<'a> {
        let role = self.role_at(&kept.role, &kept.scope);
        kept.principals.iter().filter_map(move |principal| {
            Some(Assignment {
                id: key.into(),
                principal: Arc::clone(principal),
                scope: kept.scope.clone(),
                role: role.clone()?,
                window: kept.window,
            })
        })
    }

    fn take_back(policy: &mut Arc<Policy>, key: &str, kept: &Assigned) {
        for principal in &kept.principals {
            Arc::make_mut(policy).remove(principal, &kept.scope, key);
        }
    }

    fn forget(&mut self, key: &str) {
        if let Some(kept) = self.assignments.remove(key) {
            self.at.remove(&place(&kept.scope), key);
            self.of_role.remove(&kept.role, key);
            Self::take_back(&mut self.policy, key, &kept);
        }
    }

    /// Gives all assignments of a role anew.
    fn regive(&mut self, guid: &str) {
        let of_role: Vec<String> = self.of_role.of(guid).map(str::to_owned).collect();
        for key in of_role {
            if let Some(kept) = self.assignments.get(&key) {
                Self::take_back(&mut self.policy, &key, kept);
            }
            self.give(&key);
        }
    }

    /// What is at exactly this scope, if the role of its GUID were as `replaced` says.
    pub fn held_at(&self, scope: &Scope, replaced: Option<&Role>) -> Held {
        let (mut held, mut roles) = (Held::default(), HashSet::new());
        for (key, kept) in self.kept_around(&place(scope)).filter(|(_, kept)| kept.scope == *scope) {
            held.assignments += 1;
            for given in self.given(key, kept) {
                held.bytes += told_bytes(&given, replaced, &mut roles);
            }
        }
        held
    }

    /// What is at each scope where a custom role is assigned, if it were as `role` says.
    pub fn held_with(&self, role: &Role) -> Vec<(Scope, Held)> {
        let kept = self.of_role.of(role.id()).filter_map(|key| self.assignments.get(key));
        let scopes: BTreeSet<&Scope> = kept.map(|kept| &kept.scope).collect();
        scopes.into_iter().map(|scope| (scope.clone(), self.held_at(scope, Some(role)))).collect()
    }

    /// Bytes that another assignment of this role would take at the scope.
    pub fn bytes_of_another(
        &self,
        principals: &[String],
        scope: &Scope,
        role: &Arc<Role>,
        window: auth::rbac::Window,
    ) -> usize {
        // A role that is named there already is there once.
        let named = self.kept_around(&place(scope)).any(|(_, kept)| kept.scope == *scope && kept.role == role.id());
        let mut roles = HashSet::new();
        if named {
            roles.insert(role.id().to_owned());
        }
        let one = |principal: &String| Assignment {
            id: "".into(),
            principal: principal.as_str().into(),
            scope: scope.clone(),
            role: Arc::clone(role),
            window,
        };
        principals.iter().map(|principal| told_bytes(&one(principal), None, &mut roles)).sum()
    }

    /// How many custom roles may be assigned at exactly this scope.
    pub fn roles_at(&self, scope: &Scope) -> usize {
        self.roles.values().flatten().filter(|definition| definition.assignable.contains(scope)).count()
    }

    fn kept_around<'a>(&'a self, place: &str) -> impl Iterator<Item = (&'a str, &'a Assigned)> + use<'a> {
        self.at.of(place).filter_map(|key| Some((key, self.assignments.get(key)?)))
    }

    /// The newest revision that is in it.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The cluster of a key, if it is registered.
    pub fn cluster(&self, key: &ClusterKey) -> Option<&ClusterRef> {
        self.clusters.get(key)
    }

    /// The cluster whose identity has this object id, or that of an extension in it.
    pub fn of_identity(&self, id: &str) -> Option<&ClusterRef> {
        self.clusters.get(self.identities.get(id)?)
    }

    /// How many clusters there are.
    pub fn cluster_count(&self) -> usize {
        self.clusters.len()
    }

    /// Whether there is a role of a GUID in lower case.
    pub fn has_role(&self, guid: &str) -> bool {
        self.roles.contains_key(guid) || built_in().iter().any(|role| role.role.id() == guid)
    }

    /// Whether a custom role of this GUID is defined by another resource than that of `key`.
    pub fn is_defined_elsewhere(&self, guid: &str, key: &str) -> bool {
        self.roles.get(guid).is_some_and(|all| all.iter().any(|definition| definition.key != key))
    }

    /// The GUID of another custom role with this name (in lower case) that may be assigned where one of these scopes
    /// is, or reaches: whoever names it there means one of two.
    pub fn same_name(&self, name: &str, scopes: &[Scope], guid: &str) -> Option<&str> {
        let within = |a: &Scope, b: &Scope| a.with_parents().any(|at| at == b.as_str());
        let meet = |a: &Scope| scopes.iter().any(|b| within(a, b) || within(b, a));
        let mut others = self.roles.iter().filter(|(other, _)| *other != guid);
        let found = others.find(|(_, all)| all.iter().any(|one| *one.name == *name && one.assignable.iter().any(meet)));
        found.map(|(other, _)| other.as_str())
    }

    /// The role of a GUID in lower case, if it may be assigned at a scope.
    pub fn role_at(&self, guid: &str, scope: &Scope) -> Option<Arc<Role>> {
        if let Some(built_in) = built_in().iter().find(|role| role.role.id() == guid) {
            return Some(Arc::clone(&built_in.role));
        }
        let [definition] = self.roles.get(guid)?.as_slice() else { return None };
        let here = scope.with_parents().any(|at| definition.assignable.iter().any(|known| known.as_str() == at));
        here.then(|| Arc::clone(&definition.role))
    }

    /// Who has a role at a scope itself or at `/`, now and without an end: keys of assignments and of principals.
    pub fn owners_at(&self, scope: &Scope, role: &str, now: i64) -> Vec<(&str, &str)> {
        let here = |at: &Scope| at == scope || *at == Scope::root();
        let lasts = |kept: &Assigned| kept.role == role && here(&kept.scope) && kept.window.contains_always(now);
        let kept = self.assignments.iter().filter(|(_, kept)| lasts(kept));
        kept.flat_map(|(key, kept)| kept.principals.iter().map(move |principal| (key.as_str(), &**principal))).collect()
    }

    /// Whether an assignment names a role.
    pub fn is_assigned(&self, guid: &str) -> bool {
        self.of_role.of(guid).next().is_some()
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
        let decided = self.policy.decide(principals, plane, action, scope, now).map(drop);
        if let Err(Denied::Exhausted(why)) = &decided {
            tracing::warn!(%scope, ?action, %why, "a decision was denied; make the roles that are assigned there smaller");
        }
        decided
    }

    /// Whether the configuration makes one of the principals an owner of everything.
    pub fn has_owner(&self, principals: &[String]) -> bool {
        self.owners.iter().any(|owner| principals.iter().any(|principal| **principal == *owner.principal))
    }

    /// What the agent of a cluster decides by, where it is told to ask roles and assignments. `revision` is this
    /// moment's.
    pub fn document(&self, cluster: &ClusterId) -> Document {
        let decides = self.clusters.get(&cluster.key()).is_some_and(|cluster| cluster.wanted.azure_rbac);
        let scope = Scope::cluster(cluster);
        // Where they decide nothing, nobody need know them.
        let places = scope.with_parents().filter(|_| decides);
        let kept = places.flat_map(|at| self.kept_around(at)).flat_map(|(key, kept)| self.given(key, kept));
        let around: Vec<Assignment> = kept.chain(self.owners.iter().filter(|_| decides).cloned()).collect();
        Document::new(cluster, self.revision, decides, &around)
    }

    /// One question about many scopes.
    pub fn asker<'a>(&'a self, principals: &[String], plane: Plane, action: Action, now: i64) -> Asker<'a> {
        self.policy.asker(principals, plane, action, now)
    }

    /// Whether one of the principals may do this at some place below.
    pub fn decide_below(&self, principals: &[String], action: &Action, scope: &Scope, now: i64) -> bool {
        self.policy.decide_below(principals, Plane::Control, action, scope, now)
    }
}

/// What an assignment takes of a document; a role, the first time that it is named.
fn told_bytes(assignment: &Assignment, replaced: Option<&Role>, roles: &mut HashSet<String>) -> usize {
    let role = replaced.filter(|role| role.id() == assignment.role.id()).unwrap_or(&assignment.role);
    if !is_told(role) {
        return 0;
    }
    let first = !is_built_in(role) && roles.insert(role.id().to_owned());
    bytes_of(&RawAssignment::from(assignment)) + if first { role.told_bytes() } else { 0 }
}

/// The cluster that a scope is at or below, else the scope.
fn place(scope: &Scope) -> Box<str> {
    let cluster = scope.with_parents().find(|at| at.parse::<ClusterId>().is_ok());
    cluster.unwrap_or(scope.as_str()).into()
}

/// The cluster that a resource is below.
fn parent_cluster(stored: &Stored) -> Option<ClusterId> {
    ResourceId::parse(&stored.id).ok()?.parent_text().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resources::{connected_cluster, role_assignment, role_definition};

    const GROUP: &str = "/subscriptions/11111111-1111-4111-8111-111111111111/resourceGroups/g";

    fn id(name: &str) -> ClusterId {
        format!("{GROUP}/providers/{}/{name}", connected_cluster::NAME).parse().unwrap()
    }

    fn put(kind: &str, id: &str, revision: i64, body: Value) -> Change {
        Change::Put(Stored {
            key: id.to_ascii_lowercase(),
            kind: kind.to_ascii_lowercase(),
            parent: String::new(),
            id: id.to_owned(),
            revision,
            body,
            protected: None,
        })
    }

    fn assigned(scope: &str, revision: i64) -> Change {
        let at = format!("{scope}/providers/{}/22222222-2222-4222-8222-222222222222", role_assignment::NAME);
        let role = "acdd72a7-3385-48ef-bd42-f606fba81ae7";
        let body = json!({"properties": {"principalId": "ann", "roleDefinitionId": format!("/providers/{}/{role}", role_definition::NAME)}});
        put(role_assignment::NAME, &at, revision, body)
    }

    #[test]
    fn z9_a_write_concerns_the_clusters_around_it_alone() {
        let mut directory = Directory::new(crate::resources::deciding(), &[]);
        let (a, b) = (id("a"), id("b"));
        let about = |directory: &Directory| [directory.decided_about(&a), directory.decided_about(&b)];
        let cluster = |id: &ClusterId, revision, rbac| {
            let body =
                json!({"identity": {"principalId": "p"}, "properties": {"aadProfile": {"enableAzureRBAC": rbac}}});
            put(connected_cluster::NAME, id.as_str(), revision, body)
        };
        directory.apply(&[cluster(&a, 1, false), cluster(&b, 2, false)]);
        assert_eq!((about(&directory), directory.decided()), ([1, 2], 2));
        directory.apply(&[cluster(&a, 3, false)]);
        assert_eq!((about(&directory), directory.decided()), ([1, 2], 2), "nothing that decides");
        directory.apply(&[cluster(&a, 4, true)]);
        assert_eq!(about(&directory), [4, 2]);
        directory.apply(&[assigned(b.as_str(), 5)]);
        assert_eq!(about(&directory), [4, 5]);
        directory.apply(&[assigned(&format!("{}/namespaces/n", a.as_str()), 6)]);
        assert_eq!(about(&directory), [6, 5]);
        directory.apply(&[assigned(GROUP, 7)]);
        assert_eq!(about(&directory), [7, 7]);
        let Change::Put(gone) = assigned(b.as_str(), 0) else { unreachable!("made as one") };
        directory.apply(&[Change::Deleted { key: gone.key, kind: gone.kind, revision: 8 }]);
        assert_eq!((about(&directory), directory.decided()), ([7, 8], 8));
    }

    #[test]
    fn e11_an_extensions_identity_is_in_force_while_it_and_its_cluster_are_there() {
        use crate::resources::extension;
        let mut directory = Directory::new(crate::resources::deciding(), &[]);
        let cluster = |name: &str, state: &str, revision| {
            let body = json!({"identity": {"principalId": name}, "properties": {"provisioningState": state}});
            put(connected_cluster::NAME, id(name).as_str(), revision, body)
        };
        let at = |name: &str| format!("{}/providers/{}/{name}", id("a").as_str(), extension::NAME);
        let extension = |name: &str, state: &str, revision| {
            let body =
                json!({"identity": {"principalId": format!("of {name}")}, "properties": {"provisioningState": state}});
            put(extension::NAME, &at(name), revision, body)
        };
        let of = |directory: &Directory, identity: &str| Some(directory.of_identity(identity)?.id.name().to_owned());
        directory.apply(&[extension("web", "Succeeded", 1)]);
        assert_eq!(of(&directory, "of web"), None, "there is no such cluster");
        directory.apply(&[cluster("a", "Succeeded", 2), cluster("b", "Succeeded", 3)]);
        for (identity, cluster) in [("a", "a"), ("b", "b"), ("of web", "a")] {
            assert_eq!(of(&directory, identity).as_deref(), Some(cluster));
        }
        assert_eq!((of(&directory, ""), of(&directory, "of others")), (None, None));
        // Without an identity; another one after it was made again; on its way out; gone.
        directory.apply(&[put(extension::NAME, &at("web"), 4, json!({"properties": {}}))]);
        assert_eq!(of(&directory, "of web"), None);
        directory.apply(&[extension("web", "Succeeded", 5), extension("db", "Succeeded", 6)]);
        assert!(of(&directory, "of web").is_some() && of(&directory, "of db").is_some());
        directory.apply(&[extension("web", "Deleting", 7)]);
        assert_eq!(of(&directory, "of web"), None);
        let gone = |name: &str, kind: &str, revision| Change::Deleted {
            key: name.to_ascii_lowercase(),
            kind: kind.to_ascii_lowercase(),
            revision,
        };
        directory.apply(&[gone(&at("db"), extension::NAME, 8)]);
        assert_eq!(of(&directory, "of db"), None);
        directory.apply(&[extension("db", "Succeeded", 9), gone(id("a").as_str(), connected_cluster::NAME, 10)]);
        assert_eq!((of(&directory, "of db"), of(&directory, "a")), (None, None));
        assert!(of(&directory, "b").is_some());
    }

    #[test]
    fn r8_only_what_was_there_and_went_was_deleted() {
        let mut directory = Directory::new(crate::resources::deciding(), &[]);
        let body = |state: &str| json!({"identity": {"principalId": "p"}, "properties": {"provisioningState": state}});
        assert!(!directory.was_deleted("p"));
        directory.apply(&[put(connected_cluster::NAME, id("a").as_str(), 1, body("Succeeded"))]);
        assert!(!directory.was_deleted("p"));
        directory.apply(&[put(connected_cluster::NAME, id("a").as_str(), 2, body("Deleting"))]);
        assert!(directory.was_deleted("p") && !directory.was_deleted("q"));
        directory.load_deleted(vec!["q".to_owned()]);
        assert!(directory.was_deleted("q"));
    }
}
