//! The control plane of a running gateway: the store, what is in memory of it, and what goes on in the background.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use certs::{Issued, Validity};
use proto::{
    api::ResourceId,
    ids::{ClusterId, ClusterKey},
    process::Shutdown,
};
use serde_json::json;
use tokio::sync::{Notify, watch};

use crate::{
    agents::challenge::Challenges,
    api::{Caller, body::Turns, error::ApiError, throttle::Throttle},
    config::api::Api,
    core::Trust,
    directory::{DELETED, Directory},
    events::Notices,
    request::authenticate::{Access, Holder, Principal},
    resources::{connected_cluster, is_deleting, role_assignment, role_definition},
    snapshot::{Snapshot, Snapshots},
    store::{
        Store, StoreError,
        batch::{Batch, Ended, Expect, Refused},
        changes::Changes,
        operations::{Operation, Status},
        protect::Protector,
        resources::{PAGE_ROWS, Stored},
    },
    tunnels::registry::Registry,
};

/// How often another replica's writes are looked for, and operations that nobody goes on with.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an answer to a write waits until decisions know of it.
const CATCH_UP: Duration = Duration::from_secs(2);
/// The same at most, while none of them can be ended.
const PAUSE_MOST: Duration = Duration::from_secs(15);
/// Operations that are taken up at once.
const OPERATIONS_AT_ONCE: u32 = 64;
/// How long an operation that has ended is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// How long agents of a deleted cluster are told that it was: longer than any certificate of it holds.
const DELETED_REMEMBERED: Duration = Duration::from_secs(100 * 24 * 3600);
/// A replica that is further behind than this reads everything anew.
const FOLLOWED_REVISIONS: i64 = 100_000;
/// How often what has ended long ago is forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// Groups of somebody that such a certificate names at most; each of them gives the right.
const HELD_GROUPS: usize = 8;
/// Life of a certificate that lets somebody reach a cluster with a service account's token.
pub const ACCESS_LIFE: Duration = Duration::from_secs(3600);

/// What came of operations that were taken up at once.
#[derive(Default)]
struct Round {
    done: u32,
    failed: u32,
    /// The first failure: one line of a log for all of them.
    error: Option<String>,
}

impl Round {
    /// Whether there may be more that wait, and some hope.
    fn more(&self) -> bool {
        self.done > 0 && self.done + self.failed == OPERATIONS_AT_ONCE
    }

    /// How long to wait after it, if it was `before` the last time: longer while nothing works.
    fn pause(&self, before: Duration) -> Duration {
        if self.error.is_some() && self.done == 0 { (before * 2).min(PAUSE_MOST) } else { LOOK_EVERY }
    }
}

/// Tells the time; tests bring their own.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The control plane.
pub struct Control {
    /// What it is told.
    pub settings: Api,
    /// What is kept.
    pub store: Store,
    /// Whose bodies are read now.
    pub bodies: Turns,
    /// Challenges of clusters that ask for certificates.
    pub challenges: Challenges,
    /// News of events, and who listens to them.
    pub notices: Notices,
    /// How much everybody has asked.
    pub throttle: Throttle,
    trust: OnceLock<Arc<Trust>>,
    protector: Protector,
    clock: Clock,
    snapshots: Arc<Snapshots>,
    tunnels: Arc<Registry>,
    revision: watch::Sender<i64>,
    decided: watch::Sender<i64>,
    operations: Notify,
}

impl Control {
    /// Reads everything that decisions need; the snapshots have it from then on.
    pub async fn open(
        settings: Api,
        store: Store,
        protector: Protector,
        clock: Clock,
        snapshots: Arc<Snapshots>,
        tunnels: Arc<Registry>,
    ) -> Result<Arc<Self>, StoreError> {
        let control = Self {
            settings,
            store,
            bodies: Turns::default(),
            challenges: Challenges::since(milliseconds(clock())),
            notices: Notices::default(),
            throttle: Throttle::default(),
            trust: OnceLock::new(),
            protector,
            clock,
            snapshots,
            tunnels,
            revision: watch::Sender::new(0),
            decided: watch::Sender::new(0),
            operations: Notify::new(),
        };
        control.keep_subscriptions().await?;
        control.read_all().await?;
        Ok(Arc::new(control))
    }

    /// Subscriptions come from the configuration; what is in one that is gone from there stays, out of reach.
    async fn keep_subscriptions(&self) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        for subscription in &self.settings.subscriptions {
            let id = format!("/subscriptions/{}", subscription.id);
            let body = json!({
                "subscriptionId": subscription.id,
                "tenantId": self.settings.tenant,
                "displayName": subscription.name,
                "state": "Enabled",
                "authorizationSource": "RoleBased",
            });
            let stored = Stored {
                key: id.to_ascii_lowercase(),
                kind: proto::api::id::SUBSCRIPTIONS.to_ascii_lowercase(),
                parent: String::new(),
                id,
                revision: 0,
                body,
                protected: None,
            };
            if self.store.get(&stored.key).await?.is_none_or(|kept| kept.body != stored.body) {
                batch.puts.push((stored, Expect::Any));
            }
        }
        if !batch.puts.is_empty() {
            // `Any` expects nothing, and nothing holds a subscription.
            let _ = self.store.apply(&batch).await?;
        }
        Ok(())
    }

    /// Whether a subscription is one of the configuration's.
    pub fn has_subscription(&self, id: &str) -> bool {
        self.settings.subscriptions.iter().any(|subscription| subscription.id.eq_ignore_ascii_case(id))
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

    /// Whether a tunnel of a cluster is up here.
    pub fn is_live(&self, key: &ClusterKey) -> bool {
        self.tunnels.count_of(key) > 0
    }

    /// Reads everything that decisions need.
    async fn read_all(&self) -> Result<(), StoreError> {
        let mut directory = Directory::with_owners(&self.settings.owners);
        // What is read may already be newer than this, and is then told again.
        let revision = self.store.revision().await?;
        for kind in [role_definition::NAME, role_assignment::NAME, connected_cluster::NAME] {
            let kind = kind.to_ascii_lowercase();
            let mut after = String::new();
            loop {
                let page = self.store.page(&kind, "", &after, PAGE_ROWS).await?;
                directory.load(&page, 0);
                match page.last() {
                    Some(last) if page.len() == PAGE_ROWS as usize => after.clone_from(&last.key),
                    _ => break,
                }
            }
        }
        directory.load_deleted(self.store.deleted_identities(DELETED).await?);
        directory.load(&[], revision);
        self.publish(directory);
        Ok(())
    }

    /// Takes what is new. Whether there was something.
    async fn read_new(&self) -> Result<bool, StoreError> {
        let known = self.directory();
        let changes = match self.store.changes(known.revision()).await? {
            Changes::Since(changes) if changes.is_empty() => return Ok(false),
            Changes::Since(changes) => changes,
            Changes::TooOld => {
                self.read_all().await?;
                return Ok(true);
            }
        };
        let mut directory = Directory::clone(&known);
        directory.apply(&changes);
        self.publish(directory);
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
        let mut written = self.store.watch();
        loop {
            match self.read_new().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "changes of the store cannot be read; what is known stays"),
            }
            tokio::select! {
                biased;
                () = shutdown.closed() => return,
                _ = written.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
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

    /// Waits until decisions know of a write, for a bounded time: who has just been given a right can use it.
    pub async fn caught_up(&self, revision: i64) {
        let mut known = self.revision.subscribe();
        let _ = tokio::time::timeout(CATCH_UP, known.wait_for(|known| *known >= revision)).await;
    }

    /// Writes, and waits until decisions know of it.
    pub async fn write(&self, batch: &Batch) -> Result<Result<i64, Refused>, StoreError> {
        let applied = self.store.apply(batch).await?;
        if let Ok(applied) = &applied {
            self.caught_up(applied.revision).await;
            if !batch.begins.is_empty() {
                self.operations.notify_one();
            }
        }
        Ok(applied.map(|applied| applied.revision))
    }

    /// Carries out long-running operations, also those that an earlier process began, until the gateway drains.
    pub async fn work(self: Arc<Self>, shutdown: Shutdown) {
        let mut forget = tokio::time::interval(FORGET_EVERY);
        forget.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pause = LOOK_EVERY;
        loop {
            let round = self.carry_out_some().await;
            if let Some(error) = &round.error {
                tracing::error!(failed = round.failed, error, "operations are not ended; they are tried again");
            }
            if round.more() {
                continue;
            }
            pause = round.pause(pause);
            tokio::select! {
                biased;
                () = shutdown.draining() => return,
                () = self.operations.notified() => {}
                () = tokio::time::sleep(pause) => {}
                _ = forget.tick() => self.forget().await,
            }
        }
    }

    /// Carries out those that wait longest.
    async fn carry_out_some(&self) -> Round {
        let mut round = Round::default();
        match self.store.operations_under_way(OPERATIONS_AT_ONCE).await {
            Ok(operations) => {
                for operation in &operations {
                    match self.carry_out(operation).await {
                        Ok(()) => round.done += 1,
                        Err(error) => {
                            round.failed += 1;
                            round.error.get_or_insert(format!("{}: {error}", operation.id));
                        }
                    }
                }
            }
            Err(error) => round.error = Some(proto::process::chain(&error)),
        }
        round
    }

    async fn forget(&self) {
        let before = self.now_ms() - i64::try_from(REMEMBERED.as_millis()).unwrap_or(i64::MAX);
        if let Err(error) = self.store.forget_operations(before).await {
            tracing::warn!(%error, "operations that ended long ago cannot be forgotten");
        }
        let before = self.now_ms() - i64::try_from(DELETED_REMEMBERED.as_millis()).unwrap_or(i64::MAX);
        if let Err(error) = self.store.forget_deleted_identities(self.now_ms(), before).await {
            tracing::warn!(%error, "clusters that were deleted long ago cannot be forgotten");
        }
        let before = self.directory().revision() - FOLLOWED_REVISIONS;
        if let Err(error) = self.store.forget_tombstones(before).await {
            tracing::warn!(%error, "deletions that all replicas know of cannot be forgotten");
        }
    }

    /// Does one operation and ends it, together or not at all.
    async fn carry_out(&self, operation: &Operation) -> Result<(), String> {
        let ended = Ended { id: operation.id.clone(), status: Status::Succeeded, error: None, now_ms: self.now_ms() };
        let mut batch = Batch { ends: vec![ended], ..Batch::default() };
        if operation.work.get("kind").is_some_and(|kind| kind == "delete") {
            match self.store.get(&operation.resource).await {
                Ok(Some(stored)) if is_deleting(&stored) => {
                    batch.deletes.push((stored.key, Expect::Revision(stored.revision)));
                }
                // Deleted by another operation; what is there now was created since.
                Ok(_) => {}
                Err(error) => return Err(proto::process::chain(&error)),
            }
        } else {
            batch.ends[0].status = Status::Failed;
            batch.ends[0].error = Some(json!({
                "code": "InternalServerError",
                "message": "The operation was begun by another version of the gateway, which this one cannot go on with.",
            }));
        }
        match self.write(&batch).await {
            Ok(Ok(_)) => {
                tracing::info!(operation = operation.id, resource = operation.resource, "operation ended");
                Ok(())
            }
            Ok(Err(refused)) => Err(refused.to_string()),
            Err(error) => Err(proto::process::chain(&error)),
        }
    }

    /// Issues with the gateway's authority from now on.
    pub fn set_trust(&self, trust: Arc<Trust>) {
        let _ = self.trust.set(trust);
    }

    /// Who somebody is to a cluster's access certificate: with those of their groups alone that give the right now.
    fn holder(&self, cluster: &ClusterId, caller: &Caller) -> Result<Holder, ApiError> {
        let identity = caller.identity().ok_or_else(|| ApiError::internal("nobody asks for access"))?;
        let snapshot = self.snapshot();
        let known = snapshot.cluster(&cluster.key());
        let holder = |groups| Holder {
            issuer: identity.issuer.clone(),
            subject: identity.subject.clone(),
            username: identity.username.clone(),
            principal: identity.principal.clone(),
            groups,
            cluster: known.and_then(|known| snapshot.principal_of(known)).map(str::to_owned),
        };
        let gives = |group: &&String| {
            let expires = SystemTime::UNIX_EPOCH;
            let holder = Some(holder(vec![(*group).clone()]));
            let access = Access { cluster: cluster.clone(), name: String::new(), holder, expires };
            snapshot.decide(&Principal::ServiceAccount(Arc::new(access)), known).is_ok()
        };
        Ok(holder(identity.groups.iter().filter(gives).take(HELD_GROUPS).cloned().collect()))
    }

    /// The right of somebody to reach a cluster with one of its own service accounts' tokens: a certificate of an hour, which
    /// holds as long as they have the right.
    pub fn access(&self, cluster: &ClusterId, caller: &Caller) -> Result<Issued, ApiError> {
        let authority = self.trust.get().and_then(|trust| trust.authority()).ok_or_else(|| {
            let message = "This gateway issues no certificates: [agents] authority_dir is not in its configuration. Ask who runs it for a certificate.";
            ApiError::bad_request("AuthenticationMethodNotSupported", message).at("authenticationMethod")
        })?;
        let validity = Validity::at((self.clock)(), ACCESS_LIFE, ACCESS_LIFE * 2);
        let holder = self.holder(cluster, caller)?.to_text().ok_or_else(|| ApiError::internal("no holder"))?;
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
        serde_json::from_slice(&self.protector.open(key, sealed).ok()?).ok()
    }

    /// The kept resource of an id, or what is built in.
    pub async fn get(&self, id: &ResourceId) -> Result<Option<Stored>, ApiError> {
        if let Some(kept) = self.store.get(id.key()).await? {
            return Ok(Some(kept));
        }
        let Some(kind) = crate::resources::kind(id.kind()) else { return Ok(None) };
        let subscription = format!("/subscriptions/{}", id.subscription());
        Ok(kind
            .built_in(&subscription)
            .into_iter()
            .find(|stored| stored.key.ends_with(&format!("/{}", id.name().to_ascii_lowercase()))))
    }
}

fn milliseconds(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_operations_that_all_fail_are_tried_again_after_pauses() {
        let round = |done, failed| Round { done, failed, error: (failed > 0).then(|| "locked".to_owned()) };
        assert!(!round(0, OPERATIONS_AT_ONCE).more(), "not at once");
        assert!(round(1, OPERATIONS_AT_ONCE - 1).more() && !round(1, 0).more());
        let pauses = (0..8).scan(LOOK_EVERY, |pause, _| {
            *pause = round(0, OPERATIONS_AT_ONCE).pause(*pause);
            Some(*pause)
        });
        let pauses: Vec<_> = pauses.map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 15, 15, 15, 15]);
        for fine in [round(0, 0), round(1, 2)] {
            assert_eq!(fine.pause(PAUSE_MOST), LOOK_EVERY);
        }
    }
}
