//! What the request path knows of clusters, issuers and grants: an immutable snapshot that is replaced as a whole and
//! can be watched. The seam to the store: the next version feeds it from there instead of from a file.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use proto::{
    ids::{ClusterId, ClusterKey},
    token::Verifier,
};
use tokio::sync::watch;

use crate::{
    config::{Dynamic, Sessions},
    policy::Policy,
};

/// A registered cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its id.
    pub id: ClusterId,
    /// Its key, made of the id.
    pub key: ClusterKey,
    /// The audience of tokens for it.
    pub audience: String,
}

/// A shared cluster.
pub type ClusterRef = Arc<Cluster>;

impl Cluster {
    /// Of an id.
    pub fn new(id: ClusterId) -> ClusterRef {
        Arc::new(Self { key: id.key(), audience: id.audience(), id })
    }
}

/// Everything a decision needs, of one moment.
pub struct Snapshot {
    clusters: HashMap<ClusterKey, ClusterRef>,
    issuers: Vec<String>,
    /// Who may reach what.
    pub policy: Policy,
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// How sessions live.
    pub sessions: Sessions,
}

impl Snapshot {
    /// Of a configuration and the verifier made from its issuers.
    pub fn new(dynamic: &Dynamic, verifier: Arc<Verifier>) -> Self {
        Self {
            clusters: dynamic.clusters.iter().map(|id| Cluster::new(id.clone())).map(|c| (c.key, c)).collect(),
            issuers: dynamic.issuers.iter().map(|issuer| issuer.name.clone()).collect(),
            policy: Policy::new(dynamic.grants.clone(), dynamic.disabled.clone()),
            verifier,
            sessions: dynamic.sessions,
        }
    }

    /// The cluster of a key, if it is registered.
    pub fn cluster(&self, key: &ClusterKey) -> Option<&ClusterRef> {
        self.clusters.get(key)
    }

    /// Whether an issuer of this name is configured.
    pub fn has_issuer(&self, name: &str) -> bool {
        self.issuers.iter().any(|issuer| issuer == name)
    }

    /// How many clusters are registered.
    pub fn cluster_count(&self) -> usize {
        self.clusters.len()
    }
}

/// The current snapshot, and news of its replacement.
pub struct Snapshots {
    current: ArcSwap<Snapshot>,
    generation: watch::Sender<u64>,
}

impl Snapshots {
    /// Begins with one.
    pub fn new(first: Snapshot) -> Self {
        Self { current: ArcSwap::from_pointee(first), generation: watch::Sender::new(1) }
    }

    /// The snapshot of now. Keep it for one decision, not for a session.
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Replaces it and tells who watches.
    pub fn replace(&self, next: Snapshot) {
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
