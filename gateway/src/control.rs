//! The control plane of a running gateway: the store, what is in memory of it, and what goes on in the background.

pub mod alone;
pub mod challenges;
pub mod logs;
pub mod objects;
pub mod quotas;
pub mod tell;
pub mod throttle;
pub mod turns;
pub mod unread;
pub mod work;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use certs::{HOLDER_BYTES, Issued, Validity};
use daemon::Shutdown;
use tokio::sync::watch;
use types::{
    ids::{ClusterId, ClusterKey},
    instants::milliseconds,
};

use self::{
    challenges::Challenges,
    objects::{Followed, Followers},
    quotas::Quotas,
    throttle::Throttle,
    turns::{Bodies, Turns},
    unread::Unread,
};
use crate::{
    api_error::ApiError,
    aside::following,
    catalogue::Catalogue,
    config::{Config, api::Api, common::Fingerprint},
    directory::{DELETED, Deciding, Directory},
    events::Notices,
    fleet::registry::Registry,
    identity::{Access, Caller, Holder, Principal},
    metrics::Metrics,
    replicas::Replicas,
    snapshot::{Snapshot, Snapshots},
    store::{
        Backend, Store, StoreError,
        batch::{Batch, Expect, Refused},
        changes::Changes,
        held::RightsTurn,
        protect::Protector,
        resources::{PAGE_ROWS, Stored},
    },
    trust::Trust,
};

/// How often another replica's writes are looked for, and operations that nobody goes on with.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The same, where the database tells at once what others write, and a lease's renewal what was not heard.
const LOOK_AS_REPLICA: Duration = Duration::from_secs(30);
/// How long the question for what is new may take.
const CHANGES_WITHIN: Duration = Duration::from_secs(15);
/// How long an answer to a write waits until decisions know of it, at every replica.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How a gateway that is no replica is named among those that have not confirmed a write.
const ONLY: &str = "gateway";

tokio::task_local! {
    /// Who has not confirmed the writes of a request.
    static UNCONFIRMED: RefCell<BTreeSet<String>>;
}

/// Does something, and gathers which replicas have not confirmed in time what it wrote.
pub async fn confirming<T>(work: impl Future<Output = T>) -> (T, BTreeSet<String>) {
    let gathered = async {
        let done = work.await;
        (done, UNCONFIRMED.with(RefCell::take))
    };
    UNCONFIRMED.scope(RefCell::default(), gathered).await
}

/// Groups of somebody that such a certificate names at most; each of them gives the right.
const HELD_GROUPS: usize = 8;
/// Life of a certificate that lets somebody reach a cluster with a service account's token.
pub const ACCESS_LIFE: Duration = Duration::from_secs(3600);

/// Tells the time; tests bring their own.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What the control plane is told of the kinds of resources.
pub struct Kinds {
    /// Those that decisions look at.
    pub deciding: Deciding,
    /// Resources that a configuration gives.
    pub configured: fn(&Api) -> Vec<Stored>,
    /// Those that agents of their clusters follow.
    pub followed: Vec<Followed>,
    /// About what operations are looked at again once the resource of a key was written, or deleted.
    pub woken_by: fn(&str, bool) -> Vec<String>,
    /// Whether nobody is to look again for what has been written (the second) in place of what was there.
    pub wakes_nobody: fn(&Stored, &Stored) -> bool,
}

/// What a control plane is made of.
pub struct Parts {
    /// What it is told.
    pub settings: Api,
    /// What is kept.
    pub store: Store,
    /// Encrypts what nobody may see.
    pub protector: Protector,
    /// Tells the time.
    pub clock: Clock,
    /// Where decisions look.
    pub snapshots: Arc<Snapshots>,
    /// The live tunnels.
    pub tunnels: Arc<Registry>,
    /// The kinds of resources.
    pub kinds: Kinds,
}

/// The control plane.
pub struct Control {
    /// What it is told.
    pub settings: Api,
    /// What is kept.
    pub store: Store,
    /// Whose bodies are read now.
    pub bodies: Bodies,
    /// Whose lists other replicas are asked for.
    pub lists: Turns,
    /// Whose long lists are put together.
    pub long_lists: Turns,
    /// Whose long answers are not read yet.
    pub unread: Unread,
    /// Challenges of clusters that ask for certificates.
    pub challenges: Challenges,
    /// News of events, and who listens to them.
    pub notices: Notices,
    /// How much resource groups and subscriptions hold.
    pub quotas: Arc<Quotas>,
    /// How much everybody has asked.
    pub throttle: Throttle,
    /// Who waits for changes of what is wanted in which cluster.
    pub followers: Followers,
    /// The catalogue that clusters install extensions from.
    pub catalogue: Option<Arc<Catalogue>>,
    /// Whoever writes roles or assignments, or takes an owner away, one at a time.
    pub rights: tokio::sync::Mutex<()>,
    /// Whoever does an action that is judged by what others did, one at a time.
    pub alone: tokio::sync::Mutex<()>,
    trust: OnceLock<Arc<Trust>>,
    metrics: OnceLock<Arc<Metrics>>,
    replicas: OnceLock<Arc<Replicas>>,
    protector: Protector,
    clock: Clock,
    snapshots: Arc<Snapshots>,
    pub(crate) tunnels: Arc<Registry>,
    kinds: Kinds,
    revision: watch::Sender<i64>,
    decided: watch::Sender<i64>,
    operations: watch::Sender<()>,
    anew: Anew,
}

/// How often everything was asked to be read anew, and which of these is done.
#[derive(Default)]
struct Anew {
    asked: watch::Sender<u64>,
    done: watch::Sender<u64>,
}

impl Control {
    /// Reads everything that decisions need; the snapshots have it from then on.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn open(
        Parts { settings, store, protector, clock, snapshots, tunnels, kinds }: Parts,
    ) -> Result<Arc<Self>, StoreError> {
        let catalogue = settings.catalogue_dir.clone().map(Catalogue::open);
        let now_ms = milliseconds(clock());
        let control = Self {
            quotas: Arc::new(Quotas::new(settings.quotas.clone())),
            settings,
            catalogue,
            bodies: Bodies::of_requests(),
            lists: Turns::of_lists(),
            long_lists: Turns::of_long_lists(),
            unread: Unread::default(),
            // With PostgreSQL the store remembers which were used, also by other gateways and before.
            challenges: Challenges::since(if store.backend() == Backend::Sqlite { now_ms } else { 0 }),
            store,
            notices: Notices::default(),
            throttle: Throttle::default(),
            followers: Followers::since(now_ms),
            rights: tokio::sync::Mutex::default(),
            alone: tokio::sync::Mutex::default(),
            trust: OnceLock::new(),
            metrics: OnceLock::new(),
            replicas: OnceLock::new(),
            protector,
            clock,
            snapshots,
            tunnels,
            kinds,
            revision: watch::Sender::new(0),
            decided: watch::Sender::new(0),
            operations: watch::Sender::new(()),
            anew: Anew::default(),
        };
        control.keep_configured().await?;
        control.read_all().await?;
        Ok(Arc::new(control))
    }

    /// Keeps the resources that the configuration gives as it has them.
    async fn keep_configured(&self) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        for stored in (self.kinds.configured)(&self.settings) {
            if self.store.get(&stored.key).await?.is_none_or(|kept| kept.body != stored.body) {
                batch.puts.push((stored, Expect::Any));
            }
        }
        if !batch.puts.is_empty() {
            // `Any` expects nothing, and nothing holds them.
            let _ = self.store.apply(&batch).await?;
        }
        Ok(())
    }

    /// Whether a subscription is one of the configuration's.
    pub fn has_subscription(&self, id: &str) -> bool {
        self.settings.subscriptions.iter().any(|subscription| subscription.id.eq_ignore_ascii_case(id))
    }

    /// Whether what the store keeps of a cluster counts: its subscription is one of the configuration's, and the
    /// configuration does not name the cluster itself.
    pub fn decides_about(&self, id: &ClusterId) -> bool {
        self.has_subscription(id.subscription()) && !self.snapshots.load().is_configured(&id.key())
    }

    /// The index of the catalogue as it was read last; `None` if there is no catalogue, or none that can be used. Does
    /// not wait: after a change of the folder it is the old one for some seconds.
    pub fn catalogue(&self) -> Option<Arc<::catalogue::index::Index>> {
        Some(Arc::clone(&self.catalogue.as_ref()?.current()?.index))
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        milliseconds((self.clock)())
    }

    /// All that decisions know now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.load()
    }

    /// The store's part of it.
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.snapshots.load().directory)
    }

    /// Whether a tunnel of a cluster of the store is up, here or at another replica.
    pub fn is_live(&self, key: &ClusterKey) -> bool {
        (self.tunnels.count_of(key) > 0 || self.is_live_elsewhere(key)) && !self.snapshots.load().is_configured(key)
    }

    /// Whether another replica has a tunnel of a cluster.
    pub fn is_live_elsewhere(&self, key: &ClusterKey) -> bool {
        self.replicas.get().is_some_and(|replicas| replicas.tunnels_elsewhere(key) > 0)
    }

    /// Whether any cluster has a tunnel, here or at another replica.
    pub fn has_tunnels(&self) -> bool {
        !self.tunnels.is_empty() || self.replicas.get().is_some_and(|replicas| replicas.clusters_elsewhere() > 0)
    }

    /// Reads everything that decisions need.
    async fn read_all(&self) -> Result<(), StoreError> {
        let subscriptions = self.settings.subscriptions.iter().map(|subscription| subscription.id.as_str());
        let kinds = Arc::clone(&self.kinds.deciding);
        let mut directory = Directory::new(Arc::clone(&kinds), &self.settings.owners).within(subscriptions);
        // What is read may already be newer than this, and is then told again.
        let revision = self.store.revision().await?;
        for (kind, _) in kinds.iter() {
            let kind = kind.to_ascii_lowercase();
            let mut after = String::new();
            loop {
                let page = self.store.page(&kind, "", &after, PAGE_ROWS).await?;
                directory.load(&page, 0);
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
        directory.load_deleted(self.store.deleted_identities(DELETED).await?);
        self.quotas.read(&self.store).await?;
        directory.load(&[], revision);
        self.publish(directory);
        Ok(())
    }

    /// Reads everything anew, and completes when decisions know it: what is known has revisions of a database that went
    /// back, whose numbers now stand for other writes. It completes later if it is cancelled, and never if nobody
    /// follows the store.
    pub async fn read_anew(&self) {
        let mut asked = 0;
        self.anew.asked.send_modify(|count| {
            *count += 1;
            asked = *count;
        });
        // Held by this.
        let _ = self.anew.done.subscribe().wait_for(|done| *done >= asked).await;
    }

    /// Reads everything anew if that was asked for. Whether it was.
    async fn read_if_asked(&self) -> Result<bool, StoreError> {
        let asked = *self.anew.asked.borrow();
        if *self.anew.done.borrow() >= asked {
            return Ok(false);
        }
        self.store.went_back().await?;
        self.read_all().await?;
        self.tell_followers(None);
        self.anew.done.send_replace(asked);
        Ok(true)
    }

    /// Takes what is new. Whether there was something.
    async fn read_new(&self) -> Result<bool, StoreError> {
        if self.read_if_asked().await? {
            return Ok(true);
        }
        let known = self.directory();
        // A database that vanished without a word answers never, and another connection leads to its successor.
        let changes = tokio::time::timeout(CHANGES_WITHIN, self.store.changes(known.revision())).await;
        let changes = match changes.unwrap_or_else(|_| Err(sqlx::Error::PoolTimedOut.into()))? {
            Changes::Since(changes) if changes.is_empty() => return Ok(false),
            Changes::Since(changes) => changes,
            Changes::TooOld => {
                self.read_all().await?;
                self.tell_followers(None);
                return Ok(true);
            }
        };
        let quotas = Arc::clone(&self.quotas);
        // A role that changes is given anew wherever it is assigned.
        let applied = tokio::task::spawn_blocking(move || {
            let mut directory = Directory::clone(&known);
            directory.apply(&changes);
            quotas.apply(&changes);
            (directory, changes)
        });
        match applied.await {
            Ok((directory, changes)) => {
                self.publish(directory);
                self.tell_followers(Some(&changes));
            }
            // What was not taken is read again.
            Err(error) => {
                tracing::error!(%error, "changes of the store could not be taken");
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn publish(&self, directory: Directory) {
        let revision = directory.revision();
        let decided = directory.decided();
        self.snapshots.set_directory(Arc::new(directory));
        self.decided.send_if_modified(|known| std::mem::replace(known, decided) != decided);
        self.revision.send_replace(revision);
    }

    /// Keeps what is in memory up to date until the gateway stops.
    pub async fn follow(self: Arc<Self>, shutdown: Shutdown) {
        let (mut written, mut anew) = (self.store.watch(), self.anew.asked.subscribe());
        loop {
            let mut look_every = if self.replicas.get().is_some() { LOOK_AS_REPLICA } else { LOOK_EVERY };
            match following(self.read_new()).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, "changes of the store cannot be read; what is known stays");
                    look_every = LOOK_EVERY;
                }
            }
            tokio::select! {
                biased;
                () = shutdown.closed() => return,
                _ = written.changed() => {}
                _ = anew.changed() => {}
                () = tokio::time::sleep(look_every) => {}
            }
        }
    }

    /// Changes whenever what decisions know has changed.
    pub fn revisions(&self) -> watch::Receiver<i64> {
        self.revision.subscribe()
    }

    /// Changes when roles or assignments have changed, or who is decided about by them; other writes wake nobody here.
    pub fn decided(&self) -> watch::Receiver<i64> {
        self.decided.subscribe()
    }

    /// Waits until no other process on the store writes roles or assignments or takes owners away, and decisions here know
    /// what those before have done.
    ///
    /// # Errors
    /// The store's; also that it has what is not read in time.
    pub async fn rights_turn(&self) -> Result<RightsTurn, StoreError> {
        let turn = self.store.rights_turn().await?;
        let revision = self.store.revision().await?;
        let mut known = self.revision.subscribe();
        self.store.written_elsewhere(revision);
        match tokio::time::timeout(CATCH_UP, known.wait_for(|known| *known >= revision)).await {
            Ok(Ok(_)) => Ok(turn),
            _ => Err(StoreError::Database(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Waits until decisions know of a write, at every replica whose lease lasts, for a bounded time: who has just been
    /// given a right can use it, and whom it was taken from cannot. Those that have not confirmed it by then are named
    /// in the answer ([`confirming`]), counted and logged.
    pub async fn caught_up(&self, revision: i64) {
        let deadline = tokio::time::Instant::now() + CATCH_UP;
        let replicas = self.replicas.get();
        let mut known = self.revision.subscribe();
        let here = tokio::time::timeout_at(deadline, known.wait_for(|known| *known >= revision));
        let elsewhere = async {
            match replicas {
                Some(replicas) => replicas.unconfirmed(&self.store, revision, deadline).await,
                None => Vec::new(),
            }
        };
        let (here, mut missing) = tokio::join!(async { here.await.is_ok() }, elsewhere);
        if !here {
            missing.push(replicas.map_or(ONLY, |replicas| replicas.name()).to_owned());
        }
        if missing.is_empty() {
            return;
        }
        tracing::warn!(
            revision,
            replicas = missing.join(", "),
            "a write is answered that not every replica has applied"
        );
        if let Some(metrics) = self.metrics.get() {
            metrics.unconfirmed_writes.increment(1);
        }
        // Of what the gateway does by itself nobody is told.
        let _ = UNCONFIRMED.try_with(|unconfirmed| unconfirmed.borrow_mut().extend(missing));
    }

    /// Writes, and waits until decisions know of it.
    pub async fn write(&self, batch: &Batch) -> Result<Result<i64, Refused>, StoreError> {
        self.write_in_turn(batch, None::<()>).await
    }

    /// The same for who has their turn, which ends once it is kept: nobody's turn lasts until other replicas know.
    pub async fn write_in_turn<T>(&self, batch: &Batch, turn: Option<T>) -> Result<Result<i64, Refused>, StoreError> {
        let mut unmoved = Vec::new();
        for (new, expect) in &batch.puts {
            if let Expect::Revision(revision) = expect
                && !(self.kinds.woken_by)(&new.key, false).is_empty()
                && let Some(old) = self.store.get(&new.key).await?
                && old.revision == *revision
                && (self.kinds.wakes_nobody)(&old, new)
            {
                unmoved.push(&new.key);
            }
        }
        let applied = self.store.apply(batch).await?;
        drop(turn);
        if let Ok(applied) = &applied {
            self.caught_up(applied.revision).await;
            // What was begun before for the same resource is looked at too: this may take its place. It is written
            // whatever comes of that.
            let is_new = |key: &String| {
                batch.puts.iter().any(|(stored, expect)| stored.key == *key && *expect == Expect::Absent)
            };
            let begun = batch.begins.iter().filter(|begun| begun.ended_ms.is_none()).map(|begun| &begun.resource);
            let begun = begun.filter(|resource| !is_new(resource));
            let mut woken = !batch.begins.is_empty();
            let put = batch.puts.iter().map(|(stored, _)| &stored.key).filter(|key| !unmoved.contains(key));
            let put = put.flat_map(|key| (self.kinds.woken_by)(key, false));
            let gone = batch.deletes.iter().flat_map(|(key, _)| (self.kinds.woken_by)(key, true));
            let others: BTreeSet<String> = put.chain(gone).collect();
            for resource in begun.chain(batch.deletes.iter().map(|(key, _)| key)).chain(&others) {
                match self.store.wake_operations_of(resource, self.now_ms()).await {
                    Ok(count) => woken |= count > 0,
                    Err(error) => tracing::warn!(resource, %error, "operations about a resource cannot be woken"),
                }
            }
            if woken {
                self.operations.send_replace(());
            }
        }
        Ok(applied.map(|applied| applied.revision))
    }

    /// Is one of several, and counts.
    pub fn set_replicas(&self, metrics: Arc<Metrics>, replicas: Option<Arc<Replicas>>) {
        let _ = self.metrics.set(metrics);
        if let Some(replicas) = replicas {
            let _ = self.replicas.set(replicas);
        }
    }

    /// The other gateways that share the store, if this one is one of several.
    pub fn replicas(&self) -> Option<&Arc<Replicas>> {
        self.replicas.get()
    }

    /// Issues with the gateway's authority from now on.
    pub fn set_trust(&self, trust: Arc<Trust>) {
        let _ = self.trust.set(trust);
    }

    /// What the gateway's certificate is checked against now, PEM; empty: public authorities.
    pub fn gateway_ca(&self) -> String {
        self.trust.get().map(|trust| trust.gateway_ca()).or_else(|| self.settings.ca.clone()).unwrap_or_default()
    }

    /// Who somebody is to a cluster's access certificate: with those of their groups alone that give the right now,
    /// each by itself, and no more than a certificate holds.
    fn holder(&self, cluster: &ClusterId, caller: &Caller) -> Result<String, ApiError> {
        let identity = caller.identity().ok_or_else(|| ApiError::internal("nobody asks for access"))?;
        let snapshot = self.snapshot();
        let known = snapshot.cluster(&cluster.key());
        let mut holder = Holder {
            issuer: identity.issuer.clone(),
            subject: identity.subject.clone(),
            username: identity.username.clone(),
            principal: identity.principal.clone(),
            groups: Vec::new(),
            cluster: known.and_then(|known| known.agents.principal()).map(str::to_owned),
            credential: identity.credential.clone(),
        };
        let gives = |holder: Holder| {
            let expires = SystemTime::UNIX_EPOCH;
            let (name, holder) = (String::new(), Some(holder));
            let access = Access { cluster: cluster.clone(), name, holder, expires, proof: None };
            snapshot.decide(&Principal::ServiceAccount(Arc::new(access)), known).is_ok()
        };
        // Of nobody in particular: what the user has beside their groups gives nothing to these.
        let alone = |group: &String| {
            let (username, principal, groups) = (String::new(), String::new(), vec![group.clone()]);
            Holder { username, principal, groups, ..holder.clone() }
        };
        let groups: Vec<String> = identity.groups.iter().filter(|group| gives(alone(group))).cloned().collect();
        let fits = |holder: &Holder| holder.to_text().filter(|text| text.len() <= HOLDER_BYTES);
        for group in groups {
            holder.groups.push(group);
            if holder.groups.len() > HELD_GROUPS || fits(&holder).is_none() {
                holder.groups.pop();
            }
        }
        fits(&holder).filter(|_| gives(holder.clone())).ok_or_else(|| {
            let message = "An access certificate cannot hold who you are: your name, or the names of all groups that give you the right to reach this cluster, are too long for it. Use authenticationMethod AAD, or have a role assigned to you yourself.";
            ApiError::bad_request("AuthenticationMethodNotSupported", message).at("authenticationMethod")
        })
    }

    /// The right of somebody to reach a cluster with one of its own service accounts' tokens: a certificate of an hour,
    /// which holds as long as they have the right.
    pub fn access(&self, cluster: &ClusterId, caller: &Caller) -> Result<Issued, ApiError> {
        let authority = self.trust.get().and_then(|trust| trust.authority()).ok_or_else(|| {
            let message = "This gateway issues no certificates: [agents] authority_dir is not in its configuration. Ask who runs it for a certificate.";
            ApiError::bad_request("AuthenticationMethodNotSupported", message).at("authenticationMethod")
        })?;
        let validity = Validity::at((self.clock)(), ACCESS_LIFE, ACCESS_LIFE * 2);
        let holder = self.holder(cluster, caller)?;
        let issued = authority.issue_access_for(cluster.as_str(), caller.name(), &holder, validity);
        issued
            .or_else(|_| authority.issue_access_for(cluster.as_str(), caller.object_id(), &holder, validity))
            .map_err(ApiError::internal)
    }

    /// Encrypts what a resource holds and nobody may see.
    pub fn seal(&self, key: &str, value: &serde_json::Value) -> Result<Vec<u8>, ApiError> {
        self.protector.seal(key, value.to_string().as_bytes()).map_err(ApiError::internal)
    }

    /// Decrypts what was sealed under the same key; `None` if it was not.
    pub fn unseal(&self, key: &str, sealed: &[u8]) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.protector.unseal(key, sealed).ok()?).ok()
    }

    /// What other replicas compare of a configuration, with hashes by the store key.
    pub fn fingerprint(&self, config: &Config) -> Fingerprint {
        Fingerprint::of(config, &self.protector)
    }
}
