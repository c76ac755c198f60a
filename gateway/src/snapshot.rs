//! What the request path knows of clusters, issuers and grants: an immutable snapshot that is replaced as a whole and
//! can be watched. The configuration file feeds it, and the store, whose part is the [`Directory`].

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use auth::{
    rbac::{Action, Plane, Scope, principal::principals, snapshot::Document},
    token::{Identity, RawIssuer, Verifier},
};
use certs::Roots;
use daemon::Shutdown;
use tokio::sync::watch;
use types::{
    api::ResourceId,
    ids::{ClusterId, ClusterKey},
    instants::unix_seconds,
};

use crate::{
    account_names::AccountNames,
    accounts::Accounts,
    cluster::{Agents, Cluster, ClusterRef, Gone, Named, REACH},
    config::{Dynamic, Sessions, egress::Egress},
    directory::Directory,
    guid::is_guid,
    identity::{Access, Holder, Principal},
    issuer::Issuer,
    policy::{DenialReason, Policy},
};

/// How often the issuer's files are looked at: a change holds within a second.
const ACCOUNTS_EVERY: Duration = Duration::from_millis(500);

static REACH_ACTION: LazyLock<Action> = LazyLock::new(|| Action::new(REACH));

/// Everything a decision needs, of one moment.
#[derive(Clone)]
pub struct Snapshot {
    clusters: HashMap<ClusterKey, ClusterRef>,
    issuers: Arc<Vec<RawIssuer>>,
    /// Who may reach what.
    pub policy: Policy,
    /// Verifies tokens with the keys of the configured issuers.
    pub verifier: Arc<Verifier>,
    /// Whom access certificates must be of; nobody, where there are no listeners.
    roots: Option<Roots>,
    /// Bounds of users' sessions.
    pub sessions: Sessions,
    /// Hosts that clusters reach through this gateway.
    pub egress: Arc<Egress>,
    /// What the store adds: more clusters, roles and their assignments.
    pub directory: Arc<Directory>,
    /// The built-in issuer's accounts, if there is one.
    pub accounts: Option<Arc<Accounts>>,
}

impl Snapshot {
    /// Of a configuration and the verifier made from its issuers.
    pub fn new(dynamic: &Dynamic, verifier: Arc<Verifier>) -> Self {
        Self {
            clusters: dynamic.clusters.iter().map(|id| Cluster::new(id.clone())).map(|c| (c.key, c)).collect(),
            issuers: Arc::new(dynamic.issuers.clone()),
            policy: Policy::new(dynamic.grants.clone(), dynamic.disabled.clone()),
            verifier,
            roots: None,
            sessions: dynamic.sessions,
            egress: Arc::new(dynamic.egress.clone()),
            directory: Arc::default(),
            accounts: None,
        }
    }

    /// The same, where these authorities are trusted.
    #[must_use]
    pub fn trusting(self, roots: Roots) -> Self {
        Self { roots: Some(roots), ..self }
    }

    /// Whether an access certificate is still of an authority that is trusted.
    pub fn vouches_for(&self, access: &Access) -> bool {
        self.roots.as_ref().map_or(access.proof.is_none(), |roots| access.is_of(roots))
    }

    /// The cluster of a key, if it is registered.
    pub fn cluster(&self, key: &ClusterKey) -> Option<&ClusterRef> {
        self.clusters.get(key).or_else(|| self.directory.cluster(key))
    }

    /// Whether the configuration file names a cluster. It is then the only authority for that id: a resource of the
    /// same id counts for nothing, and the API neither creates nor changes one.
    pub fn is_configured(&self, key: &ClusterKey) -> bool {
        self.clusters.contains_key(key)
    }

    /// The store's cluster of a key, unless the configuration file names that id.
    pub fn stored(&self, key: &ClusterKey) -> Option<&ClusterRef> {
        if self.is_configured(key) { None } else { self.directory.cluster(key) }
    }

    /// Whether an object id is that of the identity of a cluster, or of an extension in one.
    pub fn is_identity(&self, id: &str) -> bool {
        self.directory.of_identity(id).is_some_and(|cluster| !self.is_configured(&cluster.key))
    }

    /// The resource group, by its key, of the cluster whose identity, or that of an extension in it, has an object id.
    pub fn group_of_identity(&self, id: &str) -> Option<String> {
        let cluster = self.directory.of_identity(id)?;
        ResourceId::parse(cluster.id.as_str()).ok()?.parent().map(|group| group.key().to_owned())
    }

    /// What the agent of a cluster decides by, where it is told to ask roles and assignments.
    pub fn document(&self, cluster: &ClusterId) -> Document {
        if self.is_configured(&cluster.key()) {
            return Document::new(cluster, self.directory.revision(), false, std::iter::empty());
        }
        self.directory.document(cluster)
    }

    /// Logs which ids both the configuration file and the store have. The resources are left in the store for somebody
    /// to look at: they take effect again if the entry is removed.
    pub fn warn_of_shadowed(&self) {
        const NAMED: usize = 10;
        let shadowed: Vec<&str> =
            self.clusters.keys().filter_map(|key| Some(self.directory.cluster(key)?.id.as_str())).collect();
        if !shadowed.is_empty() {
            tracing::warn!(
                count = shadowed.len(),
                ids = shadowed[..shadowed.len().min(NAMED)].join(", "),
                "clusters are in [[clusters]] and in the store: the configuration decides alone, and the resources and their agents' certificates are ignored; remove the entry, or the resource's group"
            );
        }
    }

    /// The cluster that an agent serves whose certificate names this id and what is beside it.
    pub fn serves(&self, id: &ClusterId, names: &Named) -> Result<&ClusterRef, Gone> {
        let named = names.principal.as_deref().filter(|principal| is_guid(principal));
        // Not because it is absent: a database that was restored from before knows nothing of it.
        let gone = |otherwise: fn(ClusterId) -> Gone| match named {
            Some(principal) if self.directory.was_deleted(principal) => Gone::Deleted(id.clone()),
            _ => otherwise(id.clone()),
        };
        let cluster = self.cluster(&id.key()).ok_or_else(|| gone(Gone::Unknown))?;
        match &cluster.agents {
            Agents::Anyone if named.is_none() => Ok(cluster),
            Agents::Anyone => Err(gone(Gone::Configured)),
            Agents::Identity { principal, onboarding, .. } if named == Some(principal) => {
                let present = onboarding.is_some() && *onboarding == names.onboarding;
                if present { Ok(cluster) } else { Err(Gone::Replaced(id.clone())) }
            }
            _ => Err(gone(Gone::Foreign)),
        }
    }

    /// Whether `principal` may reach `cluster` (`None`: it is not registered): by a grant of the configuration, or by a
    /// role at the cluster or above it. To a cluster of the configuration file no role of the store leads, wherever it
    /// is assigned. An unknown cluster takes as long as a forbidden one.
    pub fn decide(&self, principal: &Principal, cluster: Option<&ClusterRef>) -> Result<(), DenialReason> {
        let account = match principal {
            Principal::User(identity) => Some((&identity.issuer, &identity.subject, identity.credential.as_deref())),
            // A token of a deleted user ends in minutes; their access certificate would live on.
            Principal::ServiceAccount(access) => {
                let held = access.holder.as_ref();
                held.map(|holder| (&holder.issuer, &holder.subject, holder.credential.as_deref()))
            }
        };
        if account.is_some_and(|(issuer, subject, with)| !self.is_in_force(issuer, subject, with)) {
            return Err(DenialReason::Disabled);
        }
        if let Principal::ServiceAccount(access) = principal {
            if !self.vouches_for(access) {
                return Err(DenialReason::OtherAuthority);
            }
            // A token of an issuer that has left the configuration is not taken to begin with.
            if access.holder.as_ref().is_some_and(|holder| !self.has_issuer(&holder.issuer)) {
                return Err(DenialReason::NoGrant);
            }
        }
        self.may_reach(principal, cluster)?;
        // Only who may reach it is told that nobody can.
        if cluster.is_some_and(|cluster| !cluster.wanted.cluster_connect) {
            Err(DenialReason::ConnectOff)
        } else {
            Ok(())
        }
    }

    /// The names that issuers give.
    pub fn names(&self) -> AccountNames {
        let own = self.accounts.as_ref().map(|accounts| accounts.issuer_url());
        AccountNames::new(&self.issuers, own, self.policy.disabled())
    }

    /// Whether an account still is: of the built-in issuer's, one that was neither deleted nor disabled, and has not
    /// replaced what was signed in with.
    fn is_in_force(&self, issuer: &str, subject: &str, credential: Option<&str>) -> bool {
        let url = self.issuer_url(issuer);
        let accounts = self.accounts.as_ref().filter(|accounts| url == Some(accounts.issuer_url()));
        accounts.is_none_or(|own| own.has(subject, credential) || self.is_identity(subject))
    }

    /// Whether somebody with a good token may still use the resource API: nobody disabled, and of the built-in issuer's
    /// nobody deleted.
    pub fn is_welcome(&self, issuer: Option<&Issuer>, identity: &Identity) -> bool {
        !self.policy.is_disabled(&identity.username)
            && self.is_known(issuer, &identity.issuer, &identity.subject, identity.credential.as_deref())
    }

    /// Whether the built-in issuer, if it is the one of this configured name, has somebody of this `sub` who is not
    /// disabled, and what they signed in with still holds, where it is known.
    pub fn is_known(&self, issuer: Option<&Issuer>, name: &str, subject: &str, credential: Option<&str>) -> bool {
        let url = self.issuer_url(name);
        let own = issuer.filter(|issuer| url == Some(issuer.settings().url.as_str()));
        own.is_none_or(|issuer| issuer.is_in_force(subject, credential) || self.is_identity(subject))
    }

    fn may_reach(&self, principal: &Principal, cluster: Option<&ClusterRef>) -> Result<(), DenialReason> {
        let granted = self.policy.decide(principal, cluster.map(|cluster| &cluster.id));
        if let Principal::ServiceAccount(access) = principal {
            self.same_identity(access.holder.as_ref(), cluster)?;
        }
        let Err(DenialReason::NoGrant | DenialReason::UnknownCluster) = granted else { return granted };
        let principals = match principal {
            Principal::User(identity) => principals(identity),
            Principal::ServiceAccount(access) => access.holder.as_ref().map(Holder::principals).unwrap_or_default(),
        };
        let configured = cluster.is_some_and(|cluster| self.is_configured(&cluster.key));
        // What the configuration admits is not widened by the store: only its own owners reach its clusters by a role.
        let scope = cluster.filter(|_| !configured).map_or_else(Scope::root, |cluster| Scope::cluster(&cluster.id));
        let now = i64::try_from(unix_seconds(SystemTime::now())).unwrap_or(i64::MAX);
        let by_role = self.directory.decide(&principals, Plane::Control, &REACH_ACTION, &scope, now);
        let counts = !configured || self.directory.has_owner(&principals);
        if by_role.is_ok() && counts && cluster.is_some() { Ok(()) } else { granted }
    }

    /// Whether an access certificate is of the cluster's present identity. One that names nobody whose right could be
    /// asked is good where the configuration has the cluster: whoever made it has the authority's key.
    fn same_identity(&self, holder: Option<&Holder>, cluster: Option<&ClusterRef>) -> Result<(), DenialReason> {
        let Some(cluster) = cluster else { return Ok(()) };
        let same = match holder {
            Some(holder) => holder.cluster.as_deref() == cluster.agents.principal(),
            None => cluster.agents == Agents::Anyone,
        };
        if same { Ok(()) } else { Err(DenialReason::OtherIdentity) }
    }

    /// Whether tokens are verified by the same issuers as in another snapshot, and the built-in issuer is as it was.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        let accounts = |snapshot: &Self| snapshot.accounts.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.verifier, &other.verifier) && accounts(self) == accounts(other)
    }

    /// Whether an issuer of this name is configured.
    pub fn has_issuer(&self, name: &str) -> bool {
        self.issuers.iter().any(|known| known.name == name)
    }

    /// The address of an issuer, its `iss`.
    pub fn issuer_url(&self, name: &str) -> Option<&str> {
        self.issuers.iter().find(|known| known.name == name).map(|known| known.url.as_str())
    }

    /// The issuers as configured.
    pub fn issuers(&self) -> &[RawIssuer] {
        &self.issuers
    }

    /// How many clusters are registered.
    pub fn cluster_count(&self) -> usize {
        let shadowed = self.clusters.keys().filter(|key| self.directory.cluster(key).is_some()).count();
        self.clusters.len() + self.directory.cluster_count() - shadowed
    }
}

/// The current snapshot, and news of its replacement.
pub struct Snapshots {
    current: ArcSwap<Snapshot>,
    /// Whoever replaces the snapshot changes a part of it.
    replacing: Mutex<()>,
    generation: watch::Sender<u64>,
}

impl Snapshots {
    /// Begins with one.
    pub fn new(first: Snapshot) -> Self {
        Self { current: ArcSwap::from_pointee(first), replacing: Mutex::default(), generation: watch::Sender::new(1) }
    }

    /// The snapshot of now. Keep it for one decision, not for a session.
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Replaces what comes from the configuration, and tells who watches.
    pub fn replace(&self, next: Snapshot) {
        self.change(|old| Snapshot { directory: Arc::clone(&old.directory), accounts: old.accounts.clone(), ..next });
    }

    /// Replaces what comes from the store, and tells who watches.
    pub fn set_directory(&self, directory: Arc<Directory>) {
        self.change(|old| Snapshot { directory, ..old.clone() });
    }

    /// Replaces the built-in issuer's accounts, and tells who watches.
    pub fn set_accounts(&self, accounts: Arc<Accounts>) {
        self.change(|old| Snapshot { accounts: Some(accounts), ..old.clone() });
    }

    fn change(&self, next: impl FnOnce(&Snapshot) -> Snapshot) {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (old, next) = (self.load(), next(&self.load()));
        // Before anything is decided by them: a key that was revoked must verify nothing, and asking for the keys takes
        // time.
        if let Some(accounts) = &next.accounts
            && !next.has_keys_of(&old)
        {
            accounts.give_keys(&next.verifier);
        }
        self.current.store(Arc::new(next));
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Changes whenever the snapshot was replaced.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Counts replacements, from 1.
    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }
}

/// Keeps the snapshot's accounts those of now, until the gateway stops.
pub async fn follow_accounts(snapshots: Arc<Snapshots>, shutdown: Shutdown) {
    loop {
        let accounts = snapshots.load().accounts.clone();
        let change = async {
            match &accounts {
                Some(accounts) => accounts.change().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.closed() => return,
            () = change => {}
            () = tokio::time::sleep(ACCOUNTS_EVERY) => {}
        }
        let snapshot = snapshots.load();
        if let Some(accounts) = snapshot.accounts.as_ref().filter(|accounts| !accounts.is_of_now()) {
            snapshots.set_accounts(Arc::new(accounts.renewed()));
        }
    }
}
