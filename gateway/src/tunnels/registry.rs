//! The live tunnels by cluster. A request looks here and nowhere else.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    time::SystemTime,
};

use dashmap::DashMap;
use proto::{
    ids::{ClusterKey, hex},
    transport::TunnelHandle,
    version::Features,
};
use tokio::sync::Notify;

use crate::snapshot::{ClusterRef, Named};

/// A tunnel that is up.
pub struct LiveTunnel {
    /// The tunnel.
    pub handle: TunnelHandle,
    /// Where it leads.
    pub cluster: ClusterRef,
    /// What its agent's certificate names beside the cluster.
    pub names: Named,
    /// Which authority its agent's certificate is of.
    pub authority: Option<String>,
    /// Since when.
    pub since: SystemTime,
    number: u64,
    draining: AtomicBool,
    /// Nobody looks at it until it is used, which is told.
    resting: AtomicBool,
    used: Notify,
}

impl LiveTunnel {
    /// A stream was opened on it.
    pub fn use_now(&self) {
        // In one order with what [`Self::rest`] does: one of both sees the other.
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) && self.resting.swap(false, Ordering::Relaxed) {
            self.used.notify_one();
        }
    }

    /// Whether nobody uses it, so that who looks at it may wait until it is [`Self::used`].
    pub fn rest(&self) -> bool {
        self.resting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.handle.open_streams() == 0
    }

    /// Completes when it is used again. For one who rests.
    pub async fn used(&self) {
        self.used.notified().await;
    }

    /// Takes no new streams from now on if there is another tunnel.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether its agent asked for no more streams.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The name of the tunnel in logs and lists: 32 hex digits.
    pub fn id(&self) -> String {
        hex(&self.handle.info().session)
    }
}

impl fmt::Display for LiveTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.handle.info().carrier, self.id())
    }
}

/// The live tunnels.
#[derive(Default)]
pub struct Registry {
    by_cluster: DashMap<ClusterKey, Vec<Arc<LiveTunnel>>>,
    next: AtomicU64,
    /// Clusters with a tunnel that came or went, until somebody takes them; one entry for each.
    touched: Mutex<HashMap<ClusterKey, ClusterRef>>,
    changed: Notify,
}

/// Keeps a tunnel in the registry.
pub struct Registered {
    registry: Arc<Registry>,
    /// The tunnel.
    pub tunnel: Arc<LiveTunnel>,
}

impl Registry {
    /// Adds a tunnel until the guard drops.
    pub fn add(
        self: &Arc<Self>,
        handle: TunnelHandle,
        cluster: ClusterRef,
        (names, authority): (Named, Option<String>),
    ) -> Registered {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = cluster.key;
        let since = SystemTime::now();
        let tunnel = Arc::new(LiveTunnel {
            handle,
            cluster,
            names,
            authority,
            since,
            number,
            draining: AtomicBool::default(),
            resting: AtomicBool::default(),
            used: Notify::new(),
        });
        self.by_cluster.entry(key).or_default().push(Arc::clone(&tunnel));
        self.touch(&tunnel.cluster);
        Registered { registry: Arc::clone(self), tunnel }
    }

    /// The tunnels of a cluster that take users: not draining ones first, of these the ones that owe no sign of life, then the
    /// least loaded, then the youngest.
    pub fn of(&self, key: &ClusterKey) -> Vec<Arc<LiveTunnel>> {
        let mut tunnels = self.by_cluster.get(key).map(|tunnels| tunnels.clone()).unwrap_or_default();
        tunnels.retain(|tunnel| !tunnel.handle.info().features.contains(Features::NO_USERS));
        tunnels.sort_by_cached_key(|t| {
            (t.is_draining(), t.handle.suspect(), t.handle.open_streams(), u64::MAX - t.number)
        });
        tunnels
    }

    /// Asks the agent of `new` for a sign of life on its older tunnels: it may have dialled because they are gone.
    pub fn doubt_older(&self, new: &LiveTunnel) {
        let instance = new.handle.info().instance;
        for tunnel in self.by_cluster.get(&new.cluster.key).iter().flat_map(|tunnels| tunnels.iter()) {
            if tunnel.number != new.number && tunnel.handle.info().instance == instance {
                tunnel.handle.probe();
            }
        }
    }

    /// How many tunnels a cluster has.
    pub fn count_of(&self, key: &ClusterKey) -> usize {
        self.by_cluster.get(key).map_or(0, |tunnels| tunnels.len())
    }

    /// Whether there is no tunnel at all.
    pub fn is_empty(&self) -> bool {
        self.by_cluster.is_empty()
    }

    /// Says that a cluster's agent was here just now, which is kept at once.
    pub fn touch(&self, cluster: &ClusterRef) {
        self.note(cluster);
        self.changed.notify_one();
    }

    /// The same, which is kept with all others' within the minute.
    pub fn note(&self, cluster: &ClusterRef) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.insert(cluster.key, Arc::clone(cluster));
    }

    /// Waits until there are clusters to take. For one who waits.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Clusters whose agents were here since the last time.
    pub fn take_touched(&self) -> Vec<ClusterRef> {
        let touched = std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
        touched.into_values().collect()
    }

    /// All tunnels.
    pub fn all(&self) -> Vec<Arc<LiveTunnel>> {
        self.by_cluster.iter().flat_map(|entry| entry.value().clone()).collect()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let key = self.tunnel.cluster.key;
        if let Some(mut tunnels) = self.registry.by_cluster.get_mut(&key) {
            tunnels.retain(|tunnel| tunnel.number != self.tunnel.number);
        }
        self.registry.by_cluster.remove_if(&key, |_, tunnels| tunnels.is_empty());
        self.registry.touch(&self.tunnel.cluster);
    }
}
