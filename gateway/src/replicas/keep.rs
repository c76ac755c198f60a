//! Keeps the own lease and tunnels in the store, and follows those of the others.
//!
//! Three tasks: one renews the lease and reads all rows with the same statement, one writes and reads tunnels, one
//! hears what the database tells at once. What is not heard is found by the next renewal. While the database is away
//! everything that is known of the others stays as it is.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{LEASE, RENEW_EVERY, Replica, Replicas, Seen, holders::Count};
use crate::{
    config::common::Fingerprint,
    fleet::registry::Registry,
    metrics::{Metrics, ReplicaFigures},
    sessions::{EndReason, Sessions},
    store::{
        Store, StoreError,
        replicas::{Ear, Held, Line, Renewal, Row, Start, TUNNELS_AT_ONCE, Told},
    },
};

/// How long tunnels that come and go are gathered before they are written together.
const GATHER: Duration = Duration::from_millis(25);
/// Before what failed is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How long the row of a cluster without a tunnel is kept, so that the others read that it has none.
const KEEP_GONE: Duration = Duration::from_secs(60);
/// How long the row of a replica is kept that does not renew it, and admits nothing by what it knows any more.
const KEEP_ENDED: Duration = Duration::from_secs(600);
/// How often such rows are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// The longest time between two looks at whether this replica is fenced.
const FENCE_LOOK: Duration = Duration::from_secs(1);
/// Between two looks at the rows that others asked for.
const LOOK_GAP: Duration = Duration::from_millis(20);
/// How long a replica that starts waits for links to the others.
const LINKS_WITHIN: Duration = Duration::from_secs(2);
/// How long a renewal waits until everything is read anew. The lease ends meanwhile if that takes longer.
const READ_ANEW: Duration = Duration::from_secs(30);
/// How long giving the lease back may take at the end.
const LEAVE: Duration = Duration::from_secs(2);

/// What this needs of a running gateway.
pub struct Keeper {
    /// What is known of the replicas.
    pub replicas: Arc<Replicas>,
    /// The store, which is told what others have written.
    pub store: Store,
    /// The own tunnels.
    pub tunnels: Arc<Registry>,
    /// The revision that decisions know.
    pub known: watch::Receiver<i64>,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// Open sessions, which end when this replica is fenced.
    pub sessions: Arc<Sessions>,
    /// Statements that were sent.
    pub statements: Arc<AtomicU64>,
    /// Reads all that decisions need anew, and completes when they know it.
    pub read_anew: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Completes when there are links to the others.
    pub linked: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

/// What the tasks tell one another.
#[derive(Default)]
struct Calls {
    /// Tunnels of others may have changed.
    read: Notify,
    /// The rows of the others were read once.
    learned: AtomicBool,
    /// And all of their tunnels.
    loaded: watch::Sender<bool>,
    /// The number of the last change of the own tunnels that the database has confirmed.
    confirmed: AtomicI64,
    /// The versions of all documents together, at the last renewal.
    documents: AtomicI64,
    /// What the row says of the own settings, and the start whose row it is.
    written: Mutex<Option<(i64, Arc<Fingerprint>)>>,
}

impl Keeper {
    /// Runs until the gateway is closed. The lease is given back by [`Self::leave`].
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let calls = Calls::default();
        self.tunnels.share();
        tokio::select! {
            biased;
            () = shutdown.closed() => {}
            _ = async { tokio::join!(self.lease(&calls), self.share(&calls), self.hear(&calls), self.fence()) } => {}
        }
    }

    /// The start that this process is; of generation 0 while it has no lease.
    fn start(&self) -> Start<'_> {
        Start { name: self.replicas.name(), generation: self.replicas.generation() }
    }

    /// Gives the lease back, so that nobody waits for its end.
    pub async fn leave(&self) {
        let own = self.start();
        let left = async {
            if own.generation != 0 && !self.replicas.is_superseded() {
                Line::new(self.store.address())?.leave(own).await?;
            }
            Ok::<_, StoreError>(())
        };
        if !matches!(tokio::time::timeout(LEAVE, left).await, Ok(Ok(()))) {
            tracing::warn!("this replica's lease could not be given back: the others notice its end by themselves");
        }
    }

    /// Renews the lease.
    async fn lease(&self, calls: &Calls) {
        let Ok(mut line) = Line::new(self.store.address()) else { return };
        line.statements = Arc::clone(&self.statements);
        let (mut known, mut failing, mut swept) = (self.known.clone(), false, Instant::now());
        let mut superseded = false;
        loop {
            let next = Instant::now() + RENEW_EVERY;
            let asked = self.replicas.uptime();
            match self.renew(&mut line, calls, asked).await {
                Ok(true) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("this replica's lease is renewed again");
                    }
                    superseded = self.replicas.is_superseded();
                }
                // It is looked at again each time: once that process has ended, this one has the name again.
                Ok(false) => {
                    if !std::mem::replace(&mut superseded, true) {
                        tracing::error!(
                            replica = self.replicas.name(),
                            "another process has started with this replica's name: this process admits no more requests until that one has ended. Give each replica a name of its own"
                        );
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(%error, stale_for = ?self.replicas.settings().stale_for, "this replica's lease cannot be renewed; what is known stays");
                    }
                }
            }
            self.figures();
            if swept.elapsed() > SWEEP_EVERY && self.is_first() {
                swept = Instant::now();
                let serves = |replica: &Replica| self.replicas.serves_for(replica.stale_for);
                let old = self.replicas.unrenewed(|replica| serves(replica).saturating_add(KEEP_ENDED));
                if let Err(error) = line.sweep(&old).await {
                    tracing::debug!(%error, "rows of replicas that have ended cannot be deleted");
                }
            }
            loop {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(next) => break,
                    () = self.replicas.look.notified() => {
                        tokio::time::sleep(LOOK_GAP).await;
                        break;
                    }
                    changed = known.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let applied = *known.borrow_and_update();
                        self.tell(&mut line, applied).await;
                    }
                }
            }
        }
    }

    /// Of the living the first by name: one of them does what need be done once.
    fn is_first(&self) -> bool {
        self.replicas.others().iter().all(|other| other.name.as_str() > self.replicas.name())
    }

    /// Tells the others what is applied, where there are any who may wait for it.
    async fn tell(&self, line: &mut Line, applied: i64) {
        let own = self.start();
        if own.generation == 0 || self.replicas.is_superseded() || self.replicas.others().is_empty() {
            return;
        }
        if let Err(error) = line.tell(own, 0, applied).await {
            tracing::debug!(%error, "the others cannot be told what is applied here");
        }
    }

    /// Takes or renews the lease and reads all rows. Whether no later start that is alive has this replica's name.
    async fn renew(&self, line: &mut Line, calls: &Calls, asked: Duration) -> Result<bool, StoreError> {
        let replicas = &self.replicas;
        if replicas.generation() == 0 {
            let address = replicas.settings().address.clone().unwrap_or_default();
            let stale_for = replicas.settings().stale_for;
            let generation = line.join(replicas.name(), &address, env!("CARGO_PKG_VERSION"), stale_for).await?;
            replicas.begun(generation);
            // Everything is told anew, for the start before took its rows along.
            self.tunnels.share();
            tracing::info!(replica = replicas.name(), generation, address, "this replica has a lease");
        }
        let own = self.start();
        let (applied, confirmed) = (*self.known.borrow(), calls.confirmed.load(Ordering::Acquire));
        let renewal = line.renew(own, applied, LEASE).await?;
        if line.was_promoted() || renewal.revision < applied {
            return self.begin_anew(line, renewal.revision).await;
        }
        if !renewal.renewed {
            let later = renewal.rows.iter().find(|row| row.name == own.name && row.generation > own.generation);
            if let Some(later) = later {
                replicas.superseded();
                if later.alive {
                    return Ok(false);
                }
                tracing::warn!(
                    replica = own.name,
                    "the process that had this replica's name has ended: this one takes it again"
                );
            }
            // Its row was deleted: for too long it was not renewed, or the database is an older one.
            replicas.joined(0);
            replicas.look.notify_one();
            return Ok(true);
        }
        self.learn(&renewal, calls);
        let row = renewal.rows.iter().find(|row| row.start() == own);
        if row.is_some_and(|row| row.changed < confirmed) {
            tracing::warn!("the database lacks tunnels of this replica that it had confirmed: they are written again");
            self.tunnels.share();
        }
        self.store.written_elsewhere(renewal.revision);
        // What was not heard is found here.
        if calls.documents.swap(renewal.documents, Ordering::AcqRel) != renewal.documents {
            self.store.documents_changed();
        }
        if replicas.admits() || self.is_current(renewal.revision, calls).await {
            replicas.renewed(own.generation, asked);
        }
        self.write_settings(line, calls).await;
        Ok(true)
    }

    /// Has the row say what the others compare of the own settings, where it does not yet. After a failure the next
    /// renewal tries again: a lease does not wait for it.
    async fn write_settings(&self, line: &mut Line, calls: &Calls) {
        let Some(fingerprint) = self.replicas.fingerprint() else { return };
        let own = self.start();
        let written = Some((own.generation, Arc::clone(&fingerprint)));
        if *calls.written.lock().unwrap_or_else(PoisonError::into_inner) == written {
            return;
        }
        match line.write_settings(own, &fingerprint.text()).await {
            Ok(()) => *calls.written.lock().unwrap_or_else(PoisonError::into_inner) = written,
            Err(error) => tracing::debug!(%error, "the others cannot be told the settings here"),
        }
    }

    /// The database lacks what it had confirmed: another one was promoted, or it was restored. Its revisions stand for
    /// other writes than the same numbers did, so that everything is read anew, and told anew under a new start.
    async fn begin_anew(&self, line: &mut Line, revision: i64) -> Result<bool, StoreError> {
        tracing::error!(
            revision,
            known = *self.known.borrow(),
            "the database is another one, or lacks what was written last: everything is read anew"
        );
        if tokio::time::timeout(READ_ANEW, (self.read_anew)()).await.is_err() {
            return Err(sqlx::Error::PoolTimedOut.into());
        }
        line.caught_up();
        self.replicas.joined(0);
        self.replicas.look.notify_one();
        Ok(true)
    }

    fn learn(&self, renewal: &Renewal, calls: &Calls) {
        let others = renewal.rows.iter().filter(|row| row.name != self.replicas.name());
        let rows: Vec<Seen> = others.map(|row| seen(row, self.replicas.serves_for(row.stale_for))).collect();
        self.replicas.learn(&rows);
        for replica in self.replicas.known().iter() {
            let row = renewal.rows.iter().find(|row| row.name == replica.name && row.generation == replica.generation);
            if let Some(row) = row {
                replica.changed.fetch_max(row.changed, Ordering::AcqRel);
                replica.forgotten.fetch_max(row.forgotten, Ordering::AcqRel);
            }
        }
        calls.learned.store(true, Ordering::Release);
        calls.read.notify_one();
    }

    /// Whether decisions know what was written while this replica had no lease, so that nobody waited for it, and the
    /// others' tunnels are known.
    async fn is_current(&self, revision: i64, calls: &Calls) -> bool {
        let (mut known, mut loaded) = (self.known.clone(), calls.loaded.subscribe());
        let current = async {
            let known = known.wait_for(|known| *known >= revision).await.is_ok();
            known && loaded.wait_for(|loaded| *loaded).await.is_ok()
        };
        let current = tokio::time::timeout(RENEW_EVERY, current).await.unwrap_or(false);
        if current {
            // A first request is not to wait for a link. One that takes longer is waited for by whoever needs it.
            let _ = tokio::time::timeout(LINKS_WITHIN, (self.linked)()).await;
        }
        if !current {
            tracing::warn!(revision, "nothing is admitted yet: what was written meanwhile is not read yet");
        }
        current
    }

    /// Writes own tunnels and reads those of others.
    async fn share(&self, calls: &Calls) {
        let Ok(mut line) = Line::new(self.store.address()) else { return };
        line.statements = Arc::clone(&self.statements);
        let (mut own, mut others) = (Own::default(), HashMap::new());
        loop {
            let forget = own.forget_at();
            tokio::select! {
                biased;
                () = calls.read.notified() => {}
                () = self.tunnels.moves() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep_until(forget.unwrap_or_else(Instant::now)), if forget.is_some() => {}
            }
            let learned = calls.learned.load(Ordering::Acquire);
            let done = async {
                self.write(&mut line, &mut own, calls).await?;
                self.read(&mut line, &mut others).await
            };
            match done.await {
                Ok(()) if learned => _ = calls.loaded.send_replace(true),
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "tunnels of replicas cannot be read or written; it is tried again");
                    tokio::time::sleep(RETRY).await;
                    calls.read.notify_one();
                }
            }
        }
    }

    async fn write(&self, line: &mut Line, own: &mut Own, calls: &Calls) -> Result<(), StoreError> {
        let start = self.start();
        if start.generation == 0 || self.replicas.is_superseded() {
            return Ok(());
        }
        if own.generation != start.generation {
            *own = Own { generation: start.generation, ..Own::default() };
            calls.confirmed.store(0, Ordering::Release);
        }
        let moved = self.tunnels.take_moved(TUNNELS_AT_ONCE as usize);
        let count = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let rows: Vec<Held> = moved
            .iter()
            .zip(own.changed + 1..)
            .map(|((key, users, others), changed)| Held {
                key: *key,
                users: count(*users),
                others: count(*others),
                changed,
            })
            .collect();
        // Also where the write fails: it may have been done all the same, and who has read it reads beyond it only.
        own.changed = rows.last().map_or(own.changed, |row| row.changed);
        let applied = *self.known.borrow();
        let written = line.write_tunnels(start, applied, &rows).await;
        if !matches!(written, Ok(true)) {
            self.tunnels.put_back(moved.into_iter().map(|(key, ..)| key));
            written?;
            // The row is another start's, or gone: the next renewal tells.
            self.replicas.look.notify_one();
            return Err(StoreError::Row { table: "replicas", reason: "this replica has none".to_owned() });
        }
        calls.confirmed.fetch_max(own.changed, Ordering::AcqRel);
        if rows.iter().any(|row| row.users == 0 && row.others == 0) {
            own.gone.get_or_insert((own.changed, Instant::now() + KEEP_GONE));
        }
        if let Some((upto, at)) = own.gone
            && at <= Instant::now()
        {
            own.gone = None;
            line.forget_tunnels(start, upto).await?;
            if own.changed > upto {
                own.gone = Some((own.changed, Instant::now() + KEEP_GONE));
            }
        }
        Ok(())
    }

    async fn read(&self, line: &mut Line, read: &mut HashMap<super::Number, Read>) -> Result<(), StoreError> {
        let known = self.replicas.known();
        read.retain(|number, _| known.iter().any(|replica| replica.number == *number));
        for replica in known.iter() {
            let forgotten = replica.forgotten.load(Ordering::Acquire);
            let at = read.entry(replica.number).or_insert(Read { since: 0, forgotten });
            self.read_one(line, replica, at).await?;
        }
        Ok(())
    }

    async fn read_one(&self, line: &mut Line, replica: &Replica, at: &mut Read) -> Result<(), StoreError> {
        loop {
            let forgotten = replica.forgotten.load(Ordering::Acquire);
            if forgotten > at.since.max(at.forgotten) {
                // What went meanwhile is in no row any more.
                self.replicas.holders.forget(replica.number);
                *at = Read { since: 0, forgotten };
            }
            let changed = replica.changed.load(Ordering::Acquire);
            if changed <= at.since {
                return Ok(());
            }
            let start = Start { name: &replica.name, generation: replica.generation };
            let page = line.tunnels(start, at.since).await?;
            for held in &page {
                let count = Count { users: held.users, others: held.others };
                self.replicas.holds(replica, held.key, count);
            }
            let whole = page.len() < TUNNELS_AT_ONCE as usize;
            at.since = match page.last() {
                Some(last) if !whole => last.changed,
                last => last.map_or(changed, |last| last.changed.max(changed)),
            };
        }
    }

    /// Hears what the database tells.
    async fn hear(&self, calls: &Calls) {
        loop {
            match Ear::open(self.store.address()).await {
                Ok(mut ear) => {
                    self.replicas.look.notify_one();
                    loop {
                        match ear.hear().await {
                            Ok(told) => self.heard(told, calls),
                            Err(error) => {
                                tracing::debug!(%error, "what the database tells is not heard");
                                break;
                            }
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "what the database tells is not heard"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn heard(&self, told: Told, calls: &Calls) {
        match told {
            Told::Revision(revision) => self.store.written_elsewhere(revision),
            Told::Replica { name, generation, changed, applied } => {
                if !self.replicas.told(&name, generation, changed, applied) {
                    self.replicas.look.notify_one();
                } else if changed > 0 && name != self.replicas.name() {
                    calls.read.notify_one();
                }
            }
            Told::Documents => self.store.documents_changed(),
            Told::Look => self.replicas.look.notify_one(),
        }
    }

    /// Ends sessions once this replica is fenced.
    async fn fence(&self) {
        let mut admitted = false;
        loop {
            let admits = self.replicas.look_at_admission();
            if admits != admitted {
                admitted = admits;
                if admits {
                    tracing::info!("this replica admits requests");
                } else if self.replicas.is_superseded() {
                    tracing::error!(sessions = self.sessions.count(), "this replica's sessions are ended");
                    self.sessions.end_all(EndReason::Superseded);
                } else {
                    tracing::error!(
                        sessions = self.sessions.count(),
                        "this replica is fenced: its lease has ended, and it admits nothing until it can renew it"
                    );
                    self.sessions.end_all(EndReason::Fenced);
                }
            }
            let look = self.replicas.left().clamp(Duration::from_millis(100), FENCE_LOOK);
            // Or when another start takes the name.
            let _ = tokio::time::timeout(look, self.replicas.admission(!admits)).await;
        }
    }

    fn figures(&self) {
        let others = self.replicas.others();
        let newest = *self.store.watch().borrow();
        let applied = others.iter().map(|other| other.applied()).chain([*self.known.borrow()]);
        let lag = applied.min().map_or(0, |least| newest.saturating_sub(least).max(0));
        let life = LEASE.saturating_add(self.replicas.settings().stale_for);
        let age = life.saturating_sub(self.replicas.left());
        self.metrics.replicas(&ReplicaFigures {
            alive: others.len() + 1,
            lease_age: age,
            lag,
            clusters_elsewhere: self.replicas.clusters_elsewhere(),
            admits: self.replicas.admits(),
            settings_differ: self.replicas.differing(),
        });
    }
}

/// What of the own tunnels is in the store.
#[derive(Default)]
struct Own {
    /// Which start's rows these are.
    generation: i64,
    /// The number of the last change.
    changed: i64,
    /// Rows of clusters without a tunnel: up to which number they are deleted, and when.
    gone: Option<(i64, Instant)>,
}

impl Own {
    fn forget_at(&self) -> Option<Instant> {
        self.gone.map(|(_, at)| at)
    }
}

/// How far another replica's tunnels were read.
struct Read {
    since: i64,
    /// What was forgotten when the reading began.
    forgotten: i64,
}

/// A row of another replica, which goes on for so long from each renewal of its lease.
fn seen(row: &Row, serves: Duration) -> Seen {
    Seen {
        name: row.name.clone(),
        generation: row.generation,
        address: row.address.clone(),
        version: row.version.clone(),
        applied: row.applied,
        renewed_ms: row.renewed_ms,
        alive: row.alive,
        serves: row.alive || u128::from(row.age_ms.unsigned_abs()) < serves.as_millis(),
        stale_for: row.stale_for,
        fingerprint: row.settings.as_deref().and_then(Fingerprint::parse),
    }
}
