//! The other gateways that share this one's store: which of them are alive, and which have tunnels of a cluster
//! (docs/replicas.md). Only with `[replicas]`.
//!
//! Each replica has a row in the store that it renews, its **lease**, and a row for each cluster that it has tunnels
//! of. All replicas keep these rows in memory. The database's clock alone decides whose lease has ended, because clocks
//! of machines differ. A replica that cannot renew its own lease for long enough admits nothing more: it is
//! **fenced**.
//!
//! | module | what it holds |
//! |---|---|
//! | [`holders`] | which other replicas have tunnels of which clusters |
//! | [`keep`] | keeps the own lease and tunnels in the store, and follows those of others |
//! | [`show`] | what operators are shown |

pub mod holders;
pub mod keep;
pub mod show;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::{
    sync::{Notify, futures::Notified, watch},
    time::Instant,
};
use types::ids::ClusterKey;

use self::holders::{Count, Holders, Number};
use crate::{
    config::{
        Config,
        common::Fingerprint,
        replicas::{Replicas as Settings, STALE_FOR},
    },
    store::{
        Store,
        protect::Protector,
        replicas::{Applied, Row, Unrenewed},
    },
};

/// How long a lease lasts from each renewal on, by the database's clock.
pub const LEASE: Duration = Duration::from_secs(10);
/// How often a lease is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How often a write that waits for other replicas looks at their rows.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Other replicas that are looked at. More rows than this are not of a sound installation.
pub const MOST_REPLICAS: usize = 256;
/// A renewal that there never was.
const NEVER: i64 = i64::MIN;

/// Another replica, from one of its starts to the end of that process.
#[derive(Debug)]
pub struct Replica {
    /// The replica's name, as `[replicas] name` sets it.
    pub name: String,
    /// Which of its starts this is. A later start of the same name has a higher one.
    pub generation: i64,
    /// The host and port of its listener for other replicas.
    pub address: String,
    /// The version of its program.
    pub version: String,
    /// How long it goes on once its lease has ended; `None` where it does not say.
    pub stale_for: Option<Duration>,
    /// Of its settings that all replicas share; `None` where it does not say.
    fingerprint: ArcSwapOption<Fingerprint>,
    number: Number,
    applied: AtomicI64,
    /// When its lease was renewed last, by the database's clock.
    renewed: AtomicI64,
    /// When that was seen to change last, in milliseconds of this process's [`Uptime`], which no step of a clock moves.
    renewal_seen: AtomicU64,
    /// This process has seen its lease last, or be renewed. Not so of a row whose lease had ended before this process began.
    had_lease: AtomicBool,
    /// The renewal at which a connection to it was refused.
    failed: AtomicI64,
    alive: AtomicBool,
    /// Its lease lasts, or has ended so lately that it may go on without the database.
    serves: AtomicBool,
    /// A link to it is up.
    linked: AtomicBool,
    /// Number of the last change of its tunnels, and of the last one of which no row may be left.
    changed: AtomicI64,
    forgotten: AtomicI64,
}

impl Replica {
    /// The newest revision of the store that its decisions know.
    pub fn applied(&self) -> i64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Whether its lease lasts.
    pub fn has_lease(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Whether requests can be passed to it: its lease lasts, and no connection was refused since its last renewal. Or it
    /// goes on without the database, and a link to it is up.
    pub fn is_reachable(&self) -> bool {
        let renewed = self.has_lease() && self.failed.load(Ordering::Relaxed) != self.renewed.load(Ordering::Relaxed);
        renewed || self.is_linked()
    }

    /// Whether it may go on without the database, and a link to it says that it is there.
    fn is_linked(&self) -> bool {
        self.serves.load(Ordering::Relaxed) && self.linked.load(Ordering::Relaxed)
    }
}

/// A row of another replica, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The replica's name, as `[replicas] name` sets it.
    pub name: String,
    /// Which of its starts.
    pub generation: i64,
    /// Host and port of its listener for other replicas.
    pub address: String,
    /// The version of its program.
    pub version: String,
    /// The newest revision that its decisions know.
    pub applied: i64,
    /// When it renewed its lease last, milliseconds since 1970 by the database's clock.
    pub renewed_ms: i64,
    /// Whether its lease has not ended, by the same clock.
    pub alive: bool,
    /// Whether that is so, or the lease ended less than its `stale_for` ago and was not given back.
    pub serves: bool,
    /// How long it goes on once its lease has ended; `None` where it does not say.
    pub stale_for: Option<Duration>,
    /// Of its settings that all replicas share; `None` where it does not say.
    pub fingerprint: Option<Fingerprint>,
}

/// Time since the machine started, which goes on while it is suspended. Tests bring their own.
pub type Uptime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The replicas, as this one knows them.
pub struct Replicas {
    settings: Settings,
    generation: AtomicI64,
    uptime: Uptime,
    /// Milliseconds of [`Uptime`] from which on nothing is admitted.
    fenced_at: AtomicU64,
    /// A later start has this name now.
    superseded: AtomicBool,
    /// What [`Replicas::admits`] said last, for those who wait for a change.
    admitting: watch::Sender<bool>,
    /// Whether users' and agents' connections are accepted.
    listening: watch::Sender<bool>,
    /// All whose rows are there, alive or not.
    known: ArcSwap<Vec<Arc<Replica>>>,
    alive: watch::Sender<Arc<[Arc<Replica>]>>,
    /// Those, and the ones that may go on without the database.
    serving: watch::Sender<Arc<[Arc<Replica>]>>,
    holders: Holders,
    /// Of the settings in force here that all replicas share.
    fingerprint: ArcSwapOption<Fingerprint>,
    /// Differences that the log has, by the names of the other replicas.
    noticed: Mutex<HashMap<String, Vec<String>>>,
    /// The number of the next start that is seen.
    next: Mutex<Number>,
    /// Told when a replica has applied more, or is gone.
    progress: watch::Sender<()>,
    /// Asks for a look at all rows.
    look: Notify,
    /// Told when others' tunnels have changed.
    moved: Notify,
}

impl Replicas {
    /// Knows nobody yet, and admits nothing until the first lease.
    pub fn new(settings: Settings, uptime: Option<Uptime>) -> Self {
        Self {
            settings,
            generation: AtomicI64::new(0),
            uptime: uptime.unwrap_or_else(|| Arc::new(boot_time)),
            fenced_at: AtomicU64::new(0),
            superseded: AtomicBool::new(false),
            admitting: watch::Sender::new(false),
            listening: watch::Sender::new(false),
            known: ArcSwap::default(),
            alive: watch::Sender::new(Arc::from([])),
            serving: watch::Sender::new(Arc::from([])),
            holders: Holders::default(),
            fingerprint: ArcSwapOption::empty(),
            noticed: Mutex::default(),
            next: Mutex::new(0),
            progress: watch::Sender::new(()),
            look: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// The name of this replica.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// What it is told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which start of this replica's name this process is; 0 before its first lease.
    pub fn generation(&self) -> i64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The other replicas that are alive.
    pub fn others(&self) -> Arc<[Arc<Replica>]> {
        Arc::clone(&self.alive.borrow())
    }

    /// How many replicas are alive, with this one.
    pub fn count(&self) -> u32 {
        u32::try_from(self.alive.borrow().len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Changes when another replica starts or ends.
    pub fn watch(&self) -> watch::Receiver<Arc<[Arc<Replica>]>> {
        self.alive.subscribe()
    }

    /// The other replicas that links are kept to: those that are alive, and those that may go on without the database. It
    /// changes when one comes or is no longer among them.
    pub fn serving(&self) -> watch::Receiver<Arc<[Arc<Replica>]>> {
        self.serving.subscribe()
    }

    /// Other replicas that can be reached and have a tunnel of a cluster that takes users, in no particular order. Does not
    /// allocate where there are none.
    pub fn holders(&self, key: &ClusterKey) -> Vec<Arc<Replica>> {
        let mut found = Vec::new();
        self.holders.each(key, |number, count| {
            if count.users > 0
                && let Some(replica) = self.known.load().iter().find(|replica| replica.number == number)
                && replica.is_reachable()
            {
                found.push(Arc::clone(replica));
            }
        });
        found
    }

    /// How many tunnels of a cluster other replicas have that are alive, or go on without the database.
    pub fn tunnels_elsewhere(&self, key: &ClusterKey) -> usize {
        let mut sum = 0;
        self.holders.each(key, |number, count| {
            let known = self.known.load();
            let there = |replica: &Replica| replica.has_lease() || replica.is_linked();
            if known.iter().any(|replica| replica.number == number && there(replica)) {
                sum += count.all();
            }
        });
        sum
    }

    /// Clusters that have tunnels at other replicas.
    pub fn clusters_elsewhere(&self) -> usize {
        self.holders.clusters()
    }

    /// How many tunnels other replicas have that take requests of users. Looks at each cluster that has one.
    pub fn users_tunnels_elsewhere(&self) -> usize {
        self.holders.users()
    }

    /// Whether an alive replica that cannot be reached now has a tunnel of a cluster that takes users: the agent is about
    /// to move, or the replica is about to be reached.
    pub fn is_between(&self, key: &ClusterKey) -> bool {
        let mut found = false;
        self.holders.each(key, |number, count| {
            let known = self.known.load();
            let holder = known.iter().find(|replica| replica.number == number);
            found |= count.users > 0
                && holder.is_some_and(|holder| holder.alive.load(Ordering::Relaxed) && !holder.is_reachable());
        });
        found
    }

    /// A connection to a replica was refused: [`Self::holders`] passes it over until it renews its lease, or one comes
    /// up.
    pub fn failed(&self, replica: &Replica) {
        replica.linked.store(false, Ordering::Relaxed);
        replica.failed.store(replica.renewed.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A connection to a replica came up.
    pub fn reached(&self, replica: &Replica) {
        replica.linked.store(true, Ordering::Relaxed);
        replica.failed.store(NEVER, Ordering::Relaxed);
    }

    /// Completes when other replicas' tunnels change, from the first poll on.
    pub fn moves(&self) -> Notified<'_> {
        self.moved.notified()
    }

    /// Whether anything new may begin here: this replica's lease lasts, or ended less than `stale_for` ago, and no
    /// later start has its name.
    pub fn admits(&self) -> bool {
        !self.superseded.load(Ordering::Acquire)
            && milliseconds((self.uptime)()) < self.fenced_at.load(Ordering::Acquire)
    }

    /// Looks whether [`Self::admits`] says something new, because time has passed, and tells those who wait for that.
    pub fn look_at_admission(&self) -> bool {
        let admits = self.admits();
        self.admitting.send_if_modified(|before| std::mem::replace(before, admits) != admits);
        admits
    }

    /// Completes when [`Self::admits`] is found to say `wanted`. What time changes is found within a second.
    pub async fn admission(&self, wanted: bool) {
        // The sender is here.
        let _ = self.admitting.subscribe().wait_for(|admits| *admits == wanted).await;
    }

    /// Whether connections of users and agents are accepted: not while nothing is admitted.
    pub fn is_listening(&self) -> bool {
        *self.listening.borrow()
    }

    /// Completes when they are.
    pub async fn listening(&self) {
        // The sender is here.
        let _ = self.listening.subscribe().wait_for(|listening| *listening).await;
    }

    /// Notes whether connections of users and agents are accepted now.
    pub fn listens(&self, listening: bool) {
        self.listening.send_replace(listening);
    }

    /// This process has taken a lease, also one that was superseded before: no later start has the name now.
    pub fn begun(&self, generation: i64) {
        self.joined(generation);
        self.superseded.store(false, Ordering::Release);
    }

    /// The row of this replica's name is of this process: its generation.
    pub fn joined(&self, generation: i64) {
        self.generation.store(generation, Ordering::Release);
    }

    /// Time left until nothing is admitted any more, unless the lease is renewed.
    pub fn left(&self) -> Duration {
        let fenced_at = Duration::from_millis(self.fenced_at.load(Ordering::Acquire));
        fenced_at.saturating_sub((self.uptime)())
    }

    /// Holds a lease that was asked for at an instant of [`Self::uptime`].
    pub fn renewed(&self, generation: i64, asked: Duration) {
        self.joined(generation);
        let until = asked.saturating_add(LEASE).saturating_add(self.settings.stale_for);
        self.fenced_at.fetch_max(milliseconds(until), Ordering::AcqRel);
        self.look_at_admission();
    }

    /// A later start has this replica's name: nothing is admitted here until this process has a lease again, and what
    /// the last one allowed is over.
    pub fn superseded(&self) {
        self.superseded.store(true, Ordering::Release);
        self.fenced_at.fetch_min(milliseconds((self.uptime)()), Ordering::AcqRel);
        self.look_at_admission();
    }

    /// Whether this process has admitted anything yet.
    pub fn has_begun(&self) -> bool {
        self.fenced_at.load(Ordering::Acquire) > 0
    }

    /// Whether a later start has this replica's name.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    /// Time since the machine started.
    pub fn uptime(&self) -> Duration {
        (self.uptime)()
    }

    /// Takes the rows of all other replicas. What starts had that are no longer among them is forgotten.
    pub fn learn(&self, rows: &[Seen]) {
        let now_ms = milliseconds((self.uptime)());
        let known = self.known.load_full();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = Vec::with_capacity(rows.len());
        for row in rows.iter().take(MOST_REPLICAS) {
            let same = known.iter().find(|known| known.name == row.name && known.generation == row.generation);
            let replica = same.map(Arc::clone).unwrap_or_else(|| {
                *next += 1;
                Arc::new(Replica {
                    name: row.name.clone(),
                    generation: row.generation,
                    address: row.address.clone(),
                    version: row.version.clone(),
                    stale_for: row.stale_for,
                    fingerprint: ArcSwapOption::empty(),
                    number: *next,
                    applied: AtomicI64::new(row.applied),
                    renewed: AtomicI64::new(row.renewed_ms),
                    renewal_seen: AtomicU64::new(now_ms),
                    had_lease: AtomicBool::new(row.alive),
                    failed: AtomicI64::new(NEVER),
                    alive: AtomicBool::new(row.alive),
                    serves: AtomicBool::new(row.serves),
                    linked: AtomicBool::new(false),
                    changed: AtomicI64::new(0),
                    forgotten: AtomicI64::new(0),
                })
            });
            replica.applied.fetch_max(row.applied, Ordering::AcqRel);
            if replica.renewed.swap(row.renewed_ms, Ordering::AcqRel) != row.renewed_ms {
                replica.renewal_seen.store(now_ms, Ordering::Release);
                replica.had_lease.store(true, Ordering::Release);
            }
            replica.alive.store(row.alive, Ordering::Release);
            replica.serves.store(row.serves, Ordering::Release);
            replica.fingerprint.store(row.fingerprint.clone().map(Arc::new));
            now.push(replica);
        }
        let gone: Vec<Number> =
            known.iter().filter(|old| !now.iter().any(|new| new.number == old.number)).map(|old| old.number).collect();
        let those = |are: fn(&Replica) -> bool| -> Arc<[Arc<Replica>]> {
            now.iter().filter(|replica| are(replica)).map(Arc::clone).collect()
        };
        let (alive, serving) = (those(Replica::has_lease), those(|replica| replica.serves.load(Ordering::Relaxed)));
        self.known.store(Arc::new(now));
        self.log_differences();
        gone.into_iter().for_each(|number| self.holders.forget(number));
        self.progress.send_replace(());
        for (told, these) in [(&self.alive, alive), (&self.serving, serving)] {
            told.send_if_modified(|before| {
                let same =
                    before.len() == these.len() && before.iter().zip(these.iter()).all(|(a, b)| Arc::ptr_eq(a, b));
                *before = these;
                !same
            });
        }
    }

    /// Has the others know the settings in force here. At the start, and when a reload may have changed them.
    pub fn set_fingerprint(&self, fingerprint: Fingerprint) {
        self.fingerprint.store(Some(Arc::new(fingerprint)));
        self.log_differences();
        self.look.notify_one();
    }

    /// What others are to know of the settings in force here.
    pub fn fingerprint(&self) -> Option<Arc<Fingerprint>> {
        self.fingerprint.load_full()
    }

    /// Groups of settings that all replicas are to share, and in which another one differs from this one; `None` where
    /// they cannot be compared.
    pub fn differences(&self, replica: &Replica) -> Option<Vec<String>> {
        let theirs = replica.fingerprint.load_full();
        differences(&*self.fingerprint()?, theirs.as_deref(), (self.settings.stale_for, replica.stale_for))
    }

    /// How many living replicas have other settings than this one.
    pub fn differing(&self) -> usize {
        let differs = |replica: &&Arc<Replica>| self.differences(replica).is_some_and(|groups| !groups.is_empty());
        self.others().iter().filter(differs).count()
    }

    /// Logs once how the settings of each other replica differ, and once that they no longer do.
    fn log_differences(&self) {
        for (replica, groups) in self.news() {
            if groups.is_empty() {
                tracing::info!(replica, "settings no longer differ from those of another replica");
            } else {
                let settings = groups.join(", ");
                tracing::warn!(
                    replica,
                    settings,
                    "settings differ from those of another replica, and are to be the same"
                );
            }
        }
    }

    /// Living replicas whose differences are not those that were noticed last.
    fn news(&self) -> Vec<(String, Vec<String>)> {
        let known = self.known.load();
        let mut noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        noticed.retain(|name, _| known.iter().any(|replica| replica.name == *name));
        let mut news = Vec::new();
        for replica in known.iter().filter(|replica| replica.has_lease()) {
            // One that has just started again does not say yet.
            let Some(groups) = self.differences(replica) else { continue };
            let before = noticed.insert(replica.name.clone(), groups.clone()).unwrap_or_default();
            if before != groups {
                news.push((replica.name.clone(), groups));
            }
        }
        news
    }

    /// Takes what a replica told of itself. Whether the replica is known.
    pub fn told(&self, name: &str, generation: i64, changed: i64, applied: i64) -> bool {
        let known = self.known.load();
        let replica = known.iter().find(|known| known.name == name && known.generation == generation);
        let Some(replica) = replica else { return name == self.name() };
        replica.changed.fetch_max(changed, Ordering::AcqRel);
        if replica.applied.fetch_max(applied, Ordering::AcqRel) < applied {
            self.progress.send_replace(());
        }
        true
    }

    /// How long ago a replica was seen to renew its lease at the latest, by the own uptime, and whether this process has
    /// seen it have one. Zero, where what the database has of it is newer than what is known here.
    fn since_renewal(&self, row: &Applied) -> (Duration, bool) {
        let known = self.known.load();
        let same = |known: &&Arc<Replica>| known.name == row.name && known.generation == row.generation;
        match known.iter().find(same) {
            Some(replica) if replica.renewed.load(Ordering::Acquire) == row.renewed_ms => {
                (self.unrenewed_for(replica), replica.had_lease.load(Ordering::Acquire))
            }
            Some(_) => (Duration::ZERO, true),
            None => (Duration::ZERO, row.alive),
        }
    }

    /// How long a replica was not seen to renew its lease, by the own uptime.
    fn unrenewed_for(&self, replica: &Replica) -> Duration {
        (self.uptime)().saturating_sub(Duration::from_millis(replica.renewal_seen.load(Ordering::Acquire)))
    }

    /// How long a replica may serve from a renewal of its lease on, by what it says of itself. One of an older program
    /// does not say: most likely it has what this one has, or nothing is configured; the longer of both, for a replica that
    /// is named as unconfirmed too long is a nuisance, and one that is not named serves what was withdrawn.
    pub fn serves_for(&self, stale_for: Option<Duration>) -> Duration {
        LEASE.saturating_add(stale_for.unwrap_or_else(|| self.stale_for_unknown()))
    }

    fn stale_for_unknown(&self) -> Duration {
        self.settings.stale_for.max(STALE_FOR)
    }

    /// The names of living replicas whose `stale_for` is another one.
    pub fn others_than(&self, stale_for: Duration) -> Vec<String> {
        let others = self.others();
        let other = |replica: &&Arc<Replica>| replica.stale_for.is_some_and(|theirs| theirs != stale_for);
        others.iter().filter(other).map(|replica| replica.name.clone()).collect()
    }

    /// The rows of other replicas that were not seen to be renewed for as long as `after` says, by the own uptime: a step
    /// of the database's clock makes none of them old.
    pub fn unrenewed(&self, after: impl Fn(&Replica) -> Duration) -> Vec<Unrenewed> {
        let known = self.known.load();
        let old = known.iter().filter(|replica| self.unrenewed_for(replica) >= after(replica));
        let unrenewed = |replica: &Arc<Replica>| Unrenewed {
            name: replica.name.clone(),
            generation: replica.generation,
            renewed_ms: replica.renewed.load(Ordering::Acquire),
        };
        old.map(unrenewed).collect()
    }

    /// Waits until every other replica whose lease lasts has applied a revision, at most until `deadline`. The names of
    /// those that have not told so by then, and of those that cannot read it and may go on with what they know
    /// (the `stale_for` of each). One that ended or gave its lease back meanwhile is not among them.
    ///
    /// A lease lasts where the database's clock says so, and also where the own uptime does: after a step of that clock
    /// the row of a replica that cannot reach the database looks old, while the replica goes on. The own uptime says nothing
    /// of a lease that had ended when this process began: nobody waits for such a replica, which would renew its lease if it
    /// could confirm anything. It is named until it is fenced by the own uptime too.
    pub async fn unconfirmed(&self, store: &Store, revision: i64, deadline: Instant) -> Vec<String> {
        let applied = || store.applied_by_replicas(LEASE, self.stale_for_unknown());
        // The rows and not what is in memory: a replica that started a moment ago may not be known here yet. One that
        // starts after this reads the store only then.
        let Ok(Ok(rows)) = tokio::time::timeout_at(deadline, applied()).await else {
            let known = self.known.load();
            let may_serve = |replica: &&Arc<Replica>| {
                replica.has_lease() || self.unrenewed_for(replica) < self.serves_for(replica.stale_for)
            };
            return known.iter().filter(may_serve).map(|replica| replica.name.clone()).collect();
        };
        let mut progress = self.progress.subscribe();
        let (mut waiting, mut unconfirmed) = (Vec::new(), Vec::new());
        for row in rows.into_iter().filter(|row| row.name != self.name() && row.applied < revision) {
            let (since, had_lease) = self.since_renewal(&row);
            if row.alive || (had_lease && since < LEASE) {
                waiting.push(Waiting { name: row.name, generation: row.generation, was_known: false });
            } else if row.serves || since < self.serves_for(row.stale_for) {
                unconfirmed.push(row.name);
            }
        }
        loop {
            let known = self.known.load_full();
            waiting.retain_mut(|one| {
                let found = known.iter().find(|known| known.name == one.name && known.generation == one.generation);
                match found {
                    Some(replica) => {
                        one.was_known = true;
                        replica.applied() < revision
                    }
                    // It was here, and has left or started again: what starts reads the store anew.
                    None => !one.was_known,
                }
            });
            if waiting.is_empty() {
                return unconfirmed;
            }
            if waiting.iter().any(|one| !one.was_known) {
                self.look.notify_one();
            }
            let now = Instant::now();
            if now >= deadline {
                unconfirmed.extend(waiting.into_iter().map(|one| one.name));
                return unconfirmed;
            }
            let next = deadline.min(now + LOOK_AGAIN);
            if tokio::time::timeout_at(next, progress.changed()).await.is_err()
                && let Ok(Ok(rows)) = tokio::time::timeout_at(deadline, applied()).await
            {
                // What was told was not heard, such as after a connection that was lost.
                let confirmed = |one: &Waiting| {
                    rows.iter()
                        .any(|row| row.name == one.name && row.generation == one.generation && row.applied >= revision)
                };
                waiting.retain(|one| !confirmed(one));
            }
        }
    }

    /// All whose rows are there, alive or not.
    pub fn known(&self) -> Arc<Vec<Arc<Replica>>> {
        self.known.load_full()
    }

    /// Another replica has `count` tunnels of a cluster from now on. Of one whose row is not there, nothing is kept.
    pub fn holds(&self, replica: &Replica, key: ClusterKey, count: Count) {
        if self.known.load().iter().any(|known| known.number == replica.number) {
            self.holders.set(replica.number, key, count);
            self.moved.notify_waiters();
        }
    }
}

/// A replica that a write waits for.
struct Waiting {
    name: String,
    generation: i64,
    was_known: bool,
}

/// A warning where replicas that run have other settings than a configuration, of those that all are to share. Nothing
/// where they cannot be asked, which others find.
pub async fn warning(config: &Config) -> Option<String> {
    let (own, api) = (config.replicas.as_ref()?, config.api.as_ref()?);
    let fingerprint = Fingerprint::of(config, &Protector::open(&api.store_key_file).ok()?);
    let store = Store::open_to_read(&api.store.url()).await.ok()??;
    let overview = store.replicas_overview(LEASE).await;
    store.close().await;
    let differs = |row: &Row| {
        let theirs = row.settings.as_deref().and_then(Fingerprint::parse);
        let groups = differences(&fingerprint, theirs.as_ref(), (own.stale_for, row.stale_for));
        let groups = groups.filter(|groups| row.alive && row.name != own.name && !groups.is_empty())?;
        Some(format!("from {}: {}", row.name, groups.join(", ")))
    };
    let differ: Vec<String> = overview.ok()?.rows.iter().filter_map(differs).collect();
    (!differ.is_empty()).then(|| format!("settings that replicas are to share differ {}", differ.join("; ")))
}

/// Groups in which another replica differs. How long it goes on without the database, replicas of all versions say.
fn differences(
    own: &Fingerprint,
    theirs: Option<&Fingerprint>,
    (stale_for, other): (Duration, Option<Duration>),
) -> Option<Vec<String>> {
    let compared = theirs.and_then(|theirs| own.differences(theirs));
    compared.or_else(|| (other? != stale_for).then(|| vec!["replicas.stale_for".to_owned()]))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Time since the machine started, suspension included: a lease ends while a virtual machine is frozen, too.
pub fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use types::ids::ClusterId;

    use super::*;
    use crate::config::replicas::LISTEN;

    fn settings(stale_for: Duration) -> Settings {
        Settings { name: "a".to_owned(), listen: LISTEN.parse().unwrap(), address: None, stale_for }
    }

    fn seen(name: &str, generation: i64, renewed_ms: i64, alive: bool) -> Seen {
        let (address, version) = (format!("{name}:8444"), "1.0.0".to_owned());
        let (name, stale_for, fingerprint) = (name.to_owned(), Some(Duration::ZERO), None);
        Seen {
            name,
            generation,
            address,
            version,
            applied: 1,
            renewed_ms,
            alive,
            serves: alive,
            stale_for,
            fingerprint,
        }
    }

    fn key(name: &str) -> ClusterKey {
        let id = format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}");
        id.parse::<ClusterId>().unwrap().key()
    }

    fn names(replicas: &[Arc<Replica>]) -> Vec<&str> {
        replicas.iter().map(|replica| replica.name.as_str()).collect()
    }

    const ONE: Count = Count { users: 1, others: 0 };

    #[test]
    fn t7_holders_are_alive_replicas_with_a_tunnel_for_users() {
        let replicas = Replicas::new(settings(Duration::ZERO), None);
        replicas.learn(&[seen("b", 1, 1, true), seen("c", 1, 1, true)]);
        let others = replicas.others();
        assert_eq!(names(&others), ["b", "c"]);
        replicas.holds(&others[0], key("x"), ONE);
        replicas.holds(&others[1], key("x"), Count { users: 2, others: 1 });
        replicas.holds(&others[1], key("y"), Count { users: 0, others: 1 });
        assert_eq!(names(&replicas.holders(&key("x"))), ["b", "c"]);
        assert_eq!((replicas.holders(&key("y")).len(), replicas.tunnels_elsewhere(&key("y"))), (0, 1));
        assert_eq!(replicas.tunnels_elsewhere(&key("x")), 4);

        // A refused connection counts until the next renewal.
        replicas.failed(&others[0]);
        assert_eq!(names(&replicas.holders(&key("x"))), ["c"]);
        assert!(replicas.is_between(&key("x")));
        replicas.reached(&others[0]);
        assert_eq!(names(&replicas.holders(&key("x"))), ["b", "c"], "or until a connection comes up");
        assert!(!replicas.is_between(&key("x")));
        replicas.failed(&others[0]);
        replicas.learn(&[seen("b", 1, 2, true), seen("c", 1, 1, false)]);
        assert_eq!(names(&replicas.holders(&key("x"))), ["b"], "the lease of c has ended");
        replicas.learn(&[seen("b", 1, 3, true), seen("c", 1, 3, true)]);
        assert_eq!(names(&replicas.holders(&key("x"))), ["b", "c"], "c renewed it, and has what it had");

        // Another start has nothing of what the one before it had.
        replicas.learn(&[seen("b", 2, 4, true), seen("c", 1, 4, true)]);
        assert_eq!(names(&replicas.holders(&key("x"))), ["c"]);
        replicas.holds(&others[0], key("z"), ONE);
        assert_eq!(replicas.clusters_elsewhere(), 2, "what is told of a start that has ended is not kept");
        replicas.learn(&[]);
        assert_eq!((replicas.clusters_elsewhere(), replicas.others().len()), (0, 0));
    }

    #[test]
    fn t12_a_replica_that_goes_on_without_the_database_keeps_its_tunnels_while_a_link_to_it_is_up() {
        let replicas = Replicas::new(settings(Duration::from_secs(60)), None);
        replicas.learn(&[seen("b", 1, 1, true)]);
        let b = Arc::clone(&replicas.others()[0]);
        replicas.holds(&b, key("x"), ONE);
        let cut_off = Seen { serves: true, ..seen("b", 1, 1, false) };
        replicas.learn(std::slice::from_ref(&cut_off));
        assert!(replicas.holders(&key("x")).is_empty(), "without a link it may have ended");
        replicas.reached(&b);
        assert_eq!((names(&replicas.holders(&key("x"))), replicas.tunnels_elsewhere(&key("x"))), (vec!["b"], 1));
        assert_eq!((replicas.count(), names(&replicas.serving().borrow())), (1, vec!["b"]), "it counts no more");
        replicas.failed(&b);
        assert!(replicas.holders(&key("x")).is_empty() && replicas.tunnels_elsewhere(&key("x")) == 0);
        replicas.reached(&b);
        replicas.learn(&[seen("b", 1, 1, false)]);
        assert!(
            replicas.holders(&key("x")).is_empty() && replicas.serving().borrow().is_empty(),
            "it is fenced by now"
        );
    }

    #[test]
    fn t7_watchers_hear_of_starts_and_ends_alone() {
        let replicas = Replicas::new(settings(Duration::ZERO), None);
        let mut watch = replicas.watch();
        let mut heard = |rows: &[Seen]| {
            replicas.learn(rows);
            let changed = watch.has_changed().unwrap();
            watch.mark_unchanged();
            changed
        };
        assert!(heard(&[seen("b", 1, 1, true)]));
        assert!(!heard(&[seen("b", 1, 2, true)]), "a renewal");
        assert!(heard(&[seen("b", 1, 2, false)]) && heard(&[seen("b", 1, 5, true)]) && heard(&[seen("b", 2, 6, true)]));
    }

    #[test]
    fn t12_a_replica_admits_nothing_once_its_lease_and_the_grace_have_ended() {
        for stale_for in [Duration::ZERO, Duration::from_secs(300)] {
            let now = Arc::new(AtomicU64::new(1_000_000));
            let clock = Arc::clone(&now);
            let uptime: Uptime = Arc::new(move || Duration::from_millis(clock.load(Ordering::Relaxed)));
            let replicas = Replicas::new(settings(stale_for), Some(uptime));
            assert!(!replicas.admits() && !replicas.has_begun(), "before its first lease");
            replicas.renewed(1, replicas.uptime());
            assert!(replicas.admits());
            let life = u64::try_from((LEASE + stale_for).as_millis()).unwrap();
            now.fetch_add(life - 1, Ordering::Relaxed);
            assert!(replicas.admits());
            now.fetch_add(1, Ordering::Relaxed);
            assert!(!replicas.admits() && replicas.has_begun());
            replicas.renewed(1, replicas.uptime());
            assert!(replicas.admits(), "once it can renew its lease again");
            replicas.superseded();
            replicas.renewed(1, replicas.uptime());
            assert!(!replicas.admits(), "a later start has its name");
            replicas.superseded();
            replicas.begun(3);
            assert!(!replicas.admits(), "before it knows what was written meanwhile");
            replicas.renewed(3, replicas.uptime());
            assert!(replicas.admits() && !replicas.is_superseded(), "once it has a lease again");
        }
    }

    #[test]
    fn t12_a_replica_serves_for_as_long_as_it_says_itself() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        for (own, told, serves) in [
            (minutes(0), Some(minutes(10)), minutes(10)),
            (minutes(10), Some(minutes(0)), minutes(0)),
            // It does not say: the safe one.
            (minutes(0), None, STALE_FOR),
            (minutes(10), None, minutes(10)),
        ] {
            let replicas = Replicas::new(settings(own), None);
            assert_eq!(replicas.serves_for(told), LEASE + serves, "{own:?} {told:?}");
            replicas.learn(&[Seen { stale_for: told, ..seen("b", 1, 1, true) }]);
            let differs = told.is_some_and(|told| told != own);
            assert_eq!(replicas.others_than(own), if differs { vec!["b".to_owned()] } else { Vec::new() });
        }
    }

    fn fingerprint(hashes: &[(&str, &str)]) -> Fingerprint {
        let hashes: serde_json::Map<_, _> =
            hashes.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).into())).collect();
        let text = serde_json::json!({"version": "1.0.0", "key": "k", "hashes": hashes});
        Fingerprint::parse(&text.to_string()).unwrap()
    }

    #[test]
    fn t12_settings_that_differ_are_told_once_for_each_replica() {
        let replicas = Replicas::new(settings(Duration::ZERO), None);
        let noticed = || {
            assert_eq!(replicas.news(), [], "what is noticed is told no more");
            let mut noticed: Vec<_> = replicas.noticed.lock().unwrap().clone().into_iter().collect();
            noticed.sort();
            noticed.into_iter().map(|(name, groups)| format!("{name}: {}", groups.join(" "))).collect::<Vec<_>>()
        };
        let (one, two) =
            (fingerprint(&[("api.url", "1"), ("egress", "1")]), fingerprint(&[("api.url", "1"), ("egress", "2")]));
        let says = |name: &str, generation: i64, fingerprint: Option<&Fingerprint>| Seen {
            fingerprint: fingerprint.cloned(),
            ..seen(name, generation, 1, true)
        };
        let rows = [says("b", 1, Some(&two)), says("c", 1, Some(&one)), says("d", 1, None)];
        replicas.learn(&rows);
        assert_eq!((replicas.differing(), noticed()), (0, vec![]), "it does not know its own yet");
        replicas.set_fingerprint(one.clone());
        assert_eq!((replicas.differing(), noticed()), (1, vec!["b: egress".to_owned(), "c: ".to_owned()]));
        let differences: Vec<_> = replicas.known().iter().map(|replica| replicas.differences(replica)).collect();
        assert_eq!(differences, [Some(vec!["egress".to_owned()]), Some(vec![]), None]);
        replicas.learn(&rows);
        // It starts again, and says so a moment later.
        replicas.learn(&[says("b", 2, None)]);
        assert_eq!((replicas.differing(), noticed()), (0, vec!["b: egress".to_owned()]));
        replicas.learn(&[says("b", 2, Some(&two))]);
        assert_eq!((replicas.differing(), noticed()), (1, vec!["b: egress".to_owned()]));
        let ended = Seen { alive: false, ..says("b", 2, Some(&two)) };
        replicas.learn(&[ended]);
        assert_eq!(replicas.differing(), 0, "what has ended does no work");
        replicas.learn(&[says("b", 2, Some(&two))]);
        replicas.set_fingerprint(two);
        assert_eq!((replicas.differing(), noticed()), (0, vec!["b: ".to_owned()]), "a reload brought its own in line");
        replicas.learn(&[]);
        assert_eq!(noticed(), Vec::<String>::new());
    }

    #[test]
    fn t12_rows_are_old_by_the_own_uptime_whatever_the_databases_clock_says() {
        let now = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&now);
        let uptime: Uptime = Arc::new(move || Duration::from_millis(clock.load(Ordering::Relaxed)));
        let replicas = Replicas::new(settings(Duration::ZERO), Some(uptime));
        let after = Duration::from_secs(600);
        let old = |rows: &[Seen]| {
            replicas.learn(rows);
            replicas.unrenewed(|_| after).into_iter().map(|row| (row.name, row.renewed_ms)).collect::<Vec<_>>()
        };
        // By the database's clock the lease of b has ended long ago.
        assert_eq!(old(&[seen("b", 1, 5, false)]), []);
        now.fetch_add(599_999, Ordering::Relaxed);
        assert_eq!(old(&[seen("b", 1, 5, false)]), []);
        now.fetch_add(1, Ordering::Relaxed);
        assert_eq!(old(&[seen("b", 1, 5, false)]), [("b".to_owned(), 5)]);
        // A renewal after that clock was put back.
        assert_eq!(old(&[seen("b", 1, 4, true)]), []);
    }
}
