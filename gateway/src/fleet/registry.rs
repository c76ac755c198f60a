//! The live tunnels by cluster. A request looks here and nowhere else.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::SystemTime,
};

use dashmap::DashMap;
use tokio::sync::{Notify, futures::Notified};
use tunnel::transport::TunnelHandle;
use types::{
    ids::{ClusterKey, hex},
    version::Features,
};

use crate::cluster::{ClusterRef, Named};

/// A tunnel that is up.
pub struct LiveTunnel {
    /// Opens streams to the agent, and drains or closes the tunnel.
    pub handle: TunnelHandle,
    /// Where it leads.
    pub cluster: ClusterRef,
    /// What its agent's certificate names beside the cluster.
    pub names: Named,
    /// Which authority its agent's certificate is of.
    pub authority: Option<String>,
    /// When the tunnel was registered.
    pub since: SystemTime,
    number: u64,
    draining: AtomicBool,
    /// Its agent dialled again.
    replaced: AtomicBool,
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

    /// Tunnels that come later have higher ones.
    pub fn number(&self) -> u64 {
        self.number
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

/// A cluster whose agents were here.
#[derive(Debug, Clone)]
pub struct Touched {
    /// Which.
    pub cluster: ClusterRef,
    /// Whether a tunnel of it came or went, or it was there all the time.
    pub moved: bool,
}

/// The live tunnels.
#[derive(Default)]
pub struct Registry {
    by_cluster: DashMap<ClusterKey, Tunnels>,
    next: AtomicU64,
    /// Clusters with a tunnel that came or went, until somebody takes them; one entry for each.
    touched: Mutex<HashMap<ClusterKey, Touched>>,
    changed: Notify,
    /// Told when a tunnel came.
    came: Notify,
    /// Whether other replicas are told of tunnels.
    shared: AtomicBool,
    /// Then clusters with a tunnel that came or went, until somebody takes them; one entry for each.
    moved: Mutex<HashSet<ClusterKey>>,
    moves: Notify,
}

/// Those of a cluster.
struct Tunnels {
    live: Vec<Arc<LiveTunnel>>,
    /// Since when it has one without a break.
    since: SystemTime,
    /// Goes on with each look, so that equals take turns.
    turn: AtomicUsize,
}

/// Keeps a tunnel in the registry.
pub struct Registered {
    registry: Arc<Registry>,
    /// The tunnel. It leaves the registry when this guard is dropped.
    pub tunnel: Arc<LiveTunnel>,
}

impl Registry {
    /// Adds a tunnel until the guard drops.
    pub fn add(
        self: &Arc<Self>,
        handle: TunnelHandle,
        cluster: ClusterRef,
        names: Named,
        authority: Option<String>,
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
            replaced: AtomicBool::default(),
            resting: AtomicBool::default(),
            used: Notify::new(),
        });
        let none = || Tunnels { live: Vec::new(), since, turn: AtomicUsize::default() };
        self.by_cluster.entry(key).or_insert_with(none).live.push(Arc::clone(&tunnel));
        self.touch(&tunnel.cluster);
        self.moved(&tunnel.cluster.key);
        self.came.notify_waiters();
        Registered { registry: Arc::clone(self), tunnel }
    }

    /// The tunnels of a cluster that take users: not draining ones first, of these the ones that owe no sign of life,
    /// then the least loaded. Of equal ones those come first that their agents dialled last, and agents take turns.
    pub fn of(&self, key: &ClusterKey) -> Vec<Arc<LiveTunnel>> {
        let Some(there) = self.by_cluster.get(key) else { return Vec::new() };
        let mut tunnels = there.live.clone();
        let turn = there.turn.fetch_add(1, Ordering::Relaxed);
        drop(there);
        tunnels.retain(|tunnel| !tunnel.handle.info().features.contains(Features::NO_USERS));
        if tunnels.len() < 2 {
            return tunnels;
        }
        let rank = |t: Arc<LiveTunnel>| {
            ((t.is_draining(), t.handle.suspect(), t.handle.open_streams(), t.replaced.load(Ordering::Relaxed)), t)
        };
        let mut ranked: Vec<_> = tunnels.into_iter().map(rank).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let alike = ranked.partition_point(|(rank, _)| *rank == ranked[0].0);
        ranked[..alike].rotate_left(turn % alike);
        ranked.into_iter().map(|(_, tunnel)| tunnel).collect()
    }

    /// Those of them that came after all of a number ([`LiveTunnel::number`]).
    pub fn newer(&self, key: &ClusterKey, than: Option<u64>) -> Vec<Arc<LiveTunnel>> {
        let mut tunnels = self.of(key);
        tunnels.retain(|tunnel| Some(tunnel.number) > than);
        tunnels
    }

    /// Completes when a tunnel of any cluster comes, from the first poll on.
    pub fn came(&self) -> Notified<'_> {
        self.came.notified()
    }

    /// Asks the agent of `new` for a sign of life on its older tunnels: it may have dialled because they are gone.
    pub fn doubt_older(&self, new: &LiveTunnel) {
        let instance = new.handle.info().instance;
        let Some(there) = self.by_cluster.get(&new.cluster.key) else { return };
        for tunnel in &there.live {
            if tunnel.number < new.number && tunnel.handle.info().instance == instance {
                tunnel.replaced.store(true, Ordering::Relaxed);
                tunnel.handle.probe();
            }
        }
    }

    /// How many tunnels a cluster has.
    pub fn count_of(&self, key: &ClusterKey) -> usize {
        self.by_cluster.get(key).map_or(0, |tunnels| tunnels.live.len())
    }

    /// Since when a cluster has a tunnel without a break; none if it has none.
    pub fn since(&self, key: &ClusterKey) -> Option<SystemTime> {
        self.by_cluster.get(key).map(|tunnels| tunnels.since)
    }

    /// As if a cluster had a tunnel since another instant.
    #[cfg(test)]
    pub fn set_since(&self, key: &ClusterKey, since: SystemTime) {
        self.by_cluster.get_mut(key).unwrap().since = since;
    }

    /// Whether there is no tunnel at all.
    pub fn is_empty(&self) -> bool {
        self.by_cluster.is_empty()
    }

    /// Says that a cluster's agent was here just now, which is kept within a moment.
    pub fn touch(&self, cluster: &ClusterRef) {
        self.put_touched(cluster, true);
        self.changed.notify_one();
    }

    /// The cluster's agents are still here, which is kept with all others' within the minute, unless it was kept lately.
    pub fn note(&self, cluster: &ClusterRef) {
        self.put_touched(cluster, false);
    }

    fn put_touched(&self, cluster: &ClusterRef, moved: bool) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        let one = touched.entry(cluster.key).or_insert_with(|| Touched { cluster: Arc::clone(cluster), moved });
        *one = Touched { cluster: Arc::clone(cluster), moved: moved || one.moved };
    }

    /// Waits until there are clusters to take. For one who waits.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Clusters whose agents were here since the last time.
    pub fn take_touched(&self) -> Vec<Touched> {
        let touched = std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
        touched.into_values().collect()
    }

    /// Notes from now on of which clusters tunnels come and go, beginning with all that there are.
    pub fn share(&self) {
        self.shared.store(true, Ordering::SeqCst);
        self.put_back(self.by_cluster.iter().map(|entry| *entry.key()));
    }

    fn moved(&self, key: &ClusterKey) {
        if self.shared.load(Ordering::SeqCst) {
            self.put_back([*key]);
        }
    }

    /// Notes clusters again that [`Self::take_moved`] gave.
    pub fn put_back(&self, keys: impl IntoIterator<Item = ClusterKey>) {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        self.moves.notify_one();
    }

    /// Waits until [`Self::take_moved`] has clusters to give. Only one task may wait.
    pub async fn moves(&self) {
        self.moves.notified().await;
    }

    /// Up to `most` clusters whose tunnels came or went, with how many of each kind there are now: those that take
    /// users, and others.
    pub fn take_moved(&self, most: usize) -> Vec<(ClusterKey, usize, usize)> {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<ClusterKey> = moved.iter().take(most).copied().collect();
        for key in &keys {
            moved.remove(key);
        }
        if moved.is_empty() {
            moved.shrink_to_fit();
        } else {
            self.moves.notify_one();
        }
        drop(moved);
        let counted = |key: ClusterKey| {
            let there = self.by_cluster.get(&key);
            let live = there.as_ref().map_or(&[][..], |tunnels| &tunnels.live);
            let others = live.iter().filter(|one| one.handle.info().features.contains(Features::NO_USERS)).count();
            (key, live.len() - others, others)
        };
        keys.into_iter().map(counted).collect()
    }

    /// Every registered tunnel of every cluster, in no particular order.
    pub fn all(&self) -> Vec<Arc<LiveTunnel>> {
        self.by_cluster.iter().flat_map(|entry| entry.value().live.clone()).collect()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let key = self.tunnel.cluster.key;
        if let Some(mut tunnels) = self.registry.by_cluster.get_mut(&key) {
            tunnels.live.retain(|tunnel| tunnel.number != self.tunnel.number);
            // What it took the place of is its agent's last again: of two that were dialled at once, either may be
            // kept.
            let instance = self.tunnel.handle.info().instance;
            let of_agent = tunnels.live.iter().filter(|tunnel| tunnel.handle.info().instance == instance);
            if let Some(last) = of_agent.max_by_key(|tunnel| tunnel.number) {
                last.replaced.store(false, Ordering::Relaxed);
            }
        }
        self.registry.by_cluster.remove_if(&key, |_, tunnels| tunnels.live.is_empty());
        self.registry.touch(&self.tunnel.cluster);
        self.registry.moved(&key);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tunnel::transport::{Stream, memory};

    use super::*;
    use crate::cluster::Cluster;

    const ID: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
    /// Of a kind that nobody here looks at.
    const HEAD: &[u8] = b"\0\0\0\x01\x10";

    /// So many tunnels of one cluster, as if each was of an agent of its own.
    struct Site {
        registry: Arc<Registry>,
        cluster: ClusterRef,
        tunnels: Vec<Registered>,
        _agents: Vec<TunnelHandle>,
    }

    impl Site {
        async fn of(count: usize) -> Self {
            let (registry, cluster) = (Arc::<Registry>::default(), Cluster::new(ID.parse().unwrap()));
            let (mut tunnels, mut agents) = (Vec::new(), Vec::new());
            for _ in 0..count {
                let (gateway, agent) = memory::pair().await;
                tunnels.push(registry.add(gateway, Arc::clone(&cluster), Named::default(), None));
                agents.push(agent);
            }
            Self { registry, cluster, tunnels, _agents: agents }
        }

        /// Where the next stream goes.
        fn next(&self) -> usize {
            let best = Arc::clone(&self.registry.of(&self.cluster.key)[0]);
            self.tunnels.iter().position(|one| Arc::ptr_eq(&one.tunnel, &best)).unwrap()
        }

        async fn open(&self, at: usize, count: usize) -> Vec<Stream> {
            let mut held = Vec::new();
            for _ in 0..count {
                held.push(self.tunnels[at].tunnel.handle.open(Bytes::from_static(HEAD)).await.unwrap());
            }
            held
        }
    }

    #[tokio::test]
    async fn t7_streams_go_to_the_least_loaded_tunnel_until_all_have_as_many() {
        let site = Site::of(3).await;
        let mut held = site.open(0, 4).await;
        held.extend(site.open(1, 2).await);
        let mut taken = Vec::new();
        for _ in 0..6 {
            let at = site.next();
            held.extend(site.open(at, 1).await);
            taken.push(at);
        }
        assert_eq!(taken[..2], [2, 2], "the third alone until it has what the second has");
        taken.sort_unstable();
        assert_eq!(taken, [1, 1, 2, 2, 2, 2], "then both, until they have what the first has");
        // What has ended counts no more.
        drop(held.drain(..3));
        assert_eq!(site.next(), 0);
    }

    #[tokio::test]
    async fn t7_clusters_whose_tunnels_move_are_taken_once_with_what_they_have() {
        let mut site = Site::of(2).await;
        let (registry, key) = (Arc::clone(&site.registry), site.cluster.key);
        assert_eq!(registry.take_moved(10), [], "nobody is told of them");
        registry.share();
        assert_eq!(registry.take_moved(10), [(key, 2, 0)], "what was there before");
        drop(site.tunnels.pop());
        drop(site.tunnels.pop());
        assert_eq!(registry.take_moved(0), []);
        assert_eq!(registry.take_moved(10), [(key, 0, 0)], "once, however often it has changed");
        assert_eq!(registry.take_moved(10), []);
        registry.put_back([key]);
        assert_eq!(registry.take_moved(10), [(key, 0, 0)]);
    }

    /// Requests one after the other all went to the agent that came last.
    #[tokio::test]
    async fn t7_tunnels_of_equal_load_take_turns() {
        let site = Site::of(3).await;
        let taken: Vec<_> = (0..6).map(|_| site.next()).collect();
        assert_eq!(taken, [0, 1, 2, 0, 1, 2]);
    }

    #[tokio::test]
    async fn t7_a_tunnel_that_drains_comes_after_those_that_have_more_to_do() {
        let site = Site::of(2).await;
        let _held = site.open(1, 5).await;
        site.tunnels[0].tunnel.set_draining();
        assert_eq!([site.next(), site.next()], [1, 1]);
        assert_eq!(site.registry.of(&site.cluster.key).len(), 2, "it is there where no other can take it");
    }

    /// Whoever came behind one with more to do had its turns as well.
    #[tokio::test]
    async fn t7_only_those_of_equal_load_take_turns() {
        let site = Site::of(3).await;
        let _held = site.open(2, 1).await;
        let taken: Vec<_> = (0..6).map(|_| site.next()).collect();
        assert_eq!(taken, [0, 1, 0, 1, 0, 1]);
    }

    /// An agent dials over two carriers at once, and the one that it lets go may be the one that came last here.
    #[tokio::test]
    async fn t7_a_tunnel_whose_successor_went_away_has_its_turns_again() {
        let mut site = Site::of(2).await;
        site.registry.doubt_older(&site.tunnels[1].tunnel);
        drop(site.tunnels.pop());
        let (gateway, agent) = memory::pair().await;
        site.tunnels.push(site.registry.add(gateway, Arc::clone(&site.cluster), Named::default(), None));
        site._agents.push(agent);
        let taken: Vec<_> = (0..4).map(|_| site.next()).collect();
        assert_eq!(taken.iter().filter(|&&at| at == 0).count(), 2, "{taken:?}");
    }

    /// An agent dials again when its tunnel is gone, which is not always known here by then.
    #[tokio::test]
    async fn t7_of_one_agents_tunnels_the_last_one_comes_first() {
        let site = Site::of(2).await;
        site.registry.doubt_older(&site.tunnels[1].tunnel);
        assert_eq!([site.next(), site.next(), site.next()], [1, 1, 1]);
        let _held = site.open(1, 1).await;
        assert_eq!(site.next(), 0, "it serves as long as nothing is known against it");
    }
}
