//! What the resources of each resource group and of each subscription take of the store, and that it is no more than they
//! may: else whoever may create clusters in one group could fill the memory that all share with them, and the database.
//! What agents tell of their cluster is bounded for each cluster (docs/resource-api.md), and is not counted here.
//!
//! Nothing is listed for that. The number of bytes of each resource is in memory, by a hash of its key, and follows the
//! store as the directory does. A write that is under way has its room until it is known here, so that writes of the same
//! moment at one gateway pass no bound together. What other replicas write at that moment is known a little later:
//! they may pass a bound by as much as they write until then, and the next write is refused.
//!
//! Long-running operations are bounded too, by how many begin within 24 hours. The store counts those itself, in the
//! transaction of the write, so that all gateways together pass no bound.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;
use serde_json::Value;
use types::instants::instant;

use crate::{
    api_error::{ApiError, QUOTA_EXCEEDED},
    config::quotas::{self, Quota},
    store::{
        Store, StoreError,
        batch::Batch,
        changes::Change,
        operations::BeginsAtMost,
        resources::{SIZES_AT_ONCE, Stored},
    },
    stored::last_name,
};

/// What all resource groups and subscriptions take, and may take.
pub struct Quotas {
    limits: quotas::Quotas,
    hasher: RandomState,
    used: Arc<Mutex<Used>>,
}

#[derive(Default)]
struct Used {
    kept: Kept,
    coming: Coming,
}

/// What writes add that are under way.
#[derive(Default)]
struct Coming {
    rooms: u64,
    /// By a hash of the resource's key and the number of the room: the key, and what is added.
    writes: BTreeMap<(u64, u64), (Box<str>, Amount)>,
    /// By the key of the resource group or the subscription.
    places: HashMap<Box<str>, Amount>,
}

impl Coming {
    fn begin(&mut self, hash: u64, room: u64, key: &str, more: Amount) {
        self.writes.insert((hash, room), (key.into(), more));
        places(key).for_each(|(_, place)| change(&mut self.places, place, more));
    }

    fn end(&mut self, write: (u64, u64)) {
        let Some((key, more)) = self.writes.remove(&write) else { return };
        places(&key).for_each(|(_, place)| change(&mut self.places, place, more.minus()));
    }

    /// A resource was written: it counts as what it is.
    fn is_kept(&mut self, hash: u64) {
        while let Some((write, _)) = self.writes.range((hash, 0)..=(hash, u64::MAX)).next() {
            self.end(*write);
        }
    }
}

/// What the store has.
#[derive(Default)]
struct Kept {
    /// Bytes of each resource, by a hash of its key: keys themselves would take ten times as much.
    sizes: HashMap<u64, u32>,
    /// By the key of the resource group or the subscription.
    places: HashMap<Box<str>, Amount>,
}

/// A number of resources, and bytes of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    resources: i64,
    bytes: i64,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.resources += other.resources;
        self.bytes += other.bytes;
    }

    fn minus(self) -> Self {
        Self { resources: -self.resources, bytes: -self.bytes }
    }
}

/// A resource that is there may grow to this, however full its group is: a right is ended, a feature switched off, a
/// rollout paused by a few more bytes.
const ALWAYS_BYTES: u32 = 8 * 1024;

/// What has a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Subscription,
    Group,
}

impl Level {
    /// What it is called, and how its settings begin.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Group => ("resource group", "group"),
            Self::Subscription => ("subscription", "subscription"),
        }
    }
}

impl quotas::Quotas {
    fn of(&self, level: Level) -> Quota {
        match level {
            Level::Group => self.group,
            Level::Subscription => self.subscription,
        }
    }
}

/// The refusal of what would have begun more operations than may within 24 hours at a place (its key), where there is
/// room again at an instant. `tried`: what is not done, as a sentence without its full stop.
pub fn too_many_operations(tried: &str, place: &str, most: u64, room_ms: i64) -> ApiError {
    let level = if place.contains("/resourcegroups/") { Level::Group } else { Level::Subscription };
    let ((what, name), of) = (level.names(), last_name(place));
    let message = format!(
        "{tried}: more than {most} operations of the {what} '{of}' would have begun within 24 hours, which is the limit. There is room again at {} at the earliest. Until then use another {what}, or ask whoever runs this gateway to raise {name}_operations of [api.quotas].",
        instant(room_ms)
    );
    ApiError::of(StatusCode::CONFLICT, QUOTA_EXCEEDED, message)
}

/// The room of a write, until it is dropped.
#[must_use]
pub struct Room {
    used: Arc<Mutex<Used>>,
    writes: Vec<(u64, u64)>,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut used = locked(&self.used);
        self.writes.iter().for_each(|write| used.coming.end(*write));
    }
}

impl Kept {
    /// A resource has so many bytes from now on; none: it is gone.
    fn set(&mut self, hash: u64, key: &str, bytes: Option<u32>) {
        let before = match bytes {
            Some(bytes) => self.sizes.insert(hash, bytes),
            None => self.sizes.remove(&hash),
        };
        let amount = |bytes: Option<u32>| {
            bytes.map_or_else(Amount::default, |bytes| Amount { resources: 1, bytes: bytes.into() })
        };
        let mut more = amount(bytes);
        more.add(amount(before).minus());
        for (_, place) in places(key) {
            change(&mut self.places, place, more);
        }
    }
}

impl Quotas {
    /// None are known to take anything before [`Self::read`].
    pub fn new(limits: quotas::Quotas) -> Self {
        Self { limits, hasher: RandomState::new(), used: Arc::default() }
    }

    /// Reads what everybody takes. What changes meanwhile is told of afterwards ([`Self::apply`]).
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn read(&self, store: &Store) -> Result<(), StoreError> {
        let (mut kept, mut after) = (Kept::default(), String::new());
        loop {
            let sizes = store.sizes(&after).await?;
            for (key, bytes) in &sizes {
                kept.set(self.hasher.hash_one(key.as_str()), key, Some(*bytes));
            }
            match sizes.into_iter().nth(SIZES_AT_ONCE - 1) {
                Some((last, _)) => after = last,
                None => break,
            }
            tokio::task::yield_now().await;
        }
        locked(&self.used).kept = kept;
        Ok(())
    }

    /// Takes changes, oldest first.
    pub fn apply(&self, changes: &[Change]) {
        for change in changes {
            let bytes = match change {
                Change::Put(stored) => Some(bytes_of(stored)),
                Change::Deleted { .. } => None,
            };
            let (key, mut used) = (change.key(), locked(&self.used));
            let hash = self.hasher.hash_one(key);
            used.coming.is_kept(hash);
            used.kept.set(hash, key, bytes);
        }
    }

    /// Takes the room of a batch, for as long as it is under way.
    ///
    /// # Errors
    /// 409 where its resource group or its subscription would have more resources than it may, or larger ones. What makes
    /// neither more is never refused, and neither is a change of what is there and stays small ([`ALWAYS_BYTES`]).
    pub fn take(&self, batch: &Batch) -> Result<Room, ApiError> {
        let sizes = batch.puts.iter().map(|(stored, _)| (stored.key.as_str(), Some(bytes_of(stored))));
        let sizes: Vec<_> = sizes.chain(batch.deletes.iter().map(|(key, _)| (key.as_str(), None))).collect();
        let mut used = locked(&self.used);
        let mut more: BTreeMap<(Level, &str), Amount> = BTreeMap::new();
        let mut adds = Vec::new();
        for (key, bytes) in sizes {
            let hash = self.hasher.hash_one(key);
            let before = used.kept.sizes.get(&hash).copied();
            let amount = Amount {
                resources: i64::from(bytes.is_some()) - i64::from(before.is_some()),
                bytes: i64::from(bytes.unwrap_or_default()) - i64::from(before.unwrap_or_default()),
            };
            let is_small = before.is_some() && bytes.is_some_and(|bytes| bytes <= ALWAYS_BYTES);
            let judged = if is_small { Amount { bytes: amount.bytes.min(0), ..amount } } else { amount };
            places(key).for_each(|place| more.entry(place).or_default().add(judged));
            let adds_at_most = Amount { resources: amount.resources.max(0), bytes: amount.bytes.max(0) };
            if adds_at_most != Amount::default() {
                adds.push((hash, key, adds_at_most));
            }
        }
        for ((level, place), amount) in &more {
            let mut now = used.kept.places.get(*place).copied().unwrap_or_default();
            now.add(used.coming.places.get(*place).copied().unwrap_or_default());
            self.check(*level, place, now, *amount)?;
        }
        used.coming.rooms += 1;
        let room = used.coming.rooms;
        let mut writes = Vec::with_capacity(adds.len());
        for (hash, key, amount) in adds {
            used.coming.begin(hash, room, key, amount);
            writes.push((hash, room));
        }
        drop(used);
        Ok(Room { used: Arc::clone(&self.used), writes })
    }

    /// Has a batch refused with which more operations begin than may where their resources are.
    pub fn bound_operations(&self, batch: &mut Batch) {
        let places: BTreeSet<_> = batch.begins.iter().flat_map(|operation| places(&operation.resource)).collect();
        let bounds = places.into_iter().map(|(level, place)| BeginsAtMost {
            place: place.to_owned(),
            count: self.limits.of(level).operations.into(),
        });
        let bounds = bounds.collect();
        batch.begins_at_most = bounds;
    }

    fn check(&self, level: Level, place: &str, now: Amount, more: Amount) -> Result<(), ApiError> {
        let ((what, name), quota) = (level.names(), self.limits.of(level));
        let Quota { resources, mib, .. } = quota;
        let bytes = i64::try_from(quota.bytes()).unwrap_or(i64::MAX);
        let of = last_name(place);
        let (full, setting) = if more.resources > 0 && now.resources + more.resources > i64::from(resources) {
            let full = format!("holds {} resources, and {resources} is the limit", now.resources);
            (full, format!("{name}_resources"))
        } else if more.bytes > 0 && now.bytes + more.bytes > bytes {
            let full = format!(
                "holds resources of {} bytes, this write would add {}, and {bytes} ({mib} MiB) is the limit",
                now.bytes, more.bytes
            );
            (full, format!("{name}_mib"))
        } else {
            return Ok(());
        };
        let message = format!(
            "The {what} '{of}' {full}. Delete resources there or make them smaller, use another {what}, or ask whoever runs this gateway to raise {setting} of [api.quotas]."
        );
        Err(ApiError::of(StatusCode::CONFLICT, QUOTA_EXCEEDED, message))
    }
}

/// The subscription and the resource group that what has this key is in, by their keys.
fn places(key: &str) -> impl Iterator<Item = (Level, &str)> {
    let mut slashes = key.match_indices('/').map(|(at, _)| at).skip(2);
    let (third, fourth, fifth) = (slashes.next(), slashes.next(), slashes.next());
    let subscription = third.map(|end| (Level::Subscription, &key[..end]));
    let is_group = third.zip(fourth).is_some_and(|(from, to)| &key[from..to] == "/resourcegroups");
    let group = fifth.filter(|_| is_group).map(|end| (Level::Group, &key[..end]));
    subscription.into_iter().chain(group)
}

/// Changes what is noted of a place; of what takes nothing nothing is noted.
fn change(all: &mut HashMap<Box<str>, Amount>, place: &str, more: Amount) {
    if let Some(noted) = all.get_mut(place) {
        noted.add(more);
        if *noted == Amount::default() {
            all.remove(place);
        }
    } else if more != Amount::default() {
        all.insert(place.into(), more);
    }
}

/// Bytes that the store keeps of a resource.
fn bytes_of(stored: &Stored) -> u32 {
    let protected = stored.protected.as_ref().map_or(0, Vec::len);
    u32::try_from(text_bytes(&stored.body) + protected).unwrap_or(u32::MAX)
}

/// Bytes of a value as text, which is not put together for that.
fn text_bytes(value: &Value) -> usize {
    struct Counted(usize);
    impl io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    // What counts does not fail, and a value has nothing that is no JSON.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

fn locked(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::batch::Expect;

    const SUBSCRIPTION: &str = "/subscriptions/s";

    fn quotas(group: (u32, u32), subscription: (u32, u32)) -> Quotas {
        let quota = |(resources, mib)| Quota { resources, mib, operations: 1 };
        Quotas::new(quotas::Quotas { group: quota(group), subscription: quota(subscription) })
    }

    fn key(group: &str, name: &str) -> String {
        format!("{SUBSCRIPTION}/resourcegroups/{group}/providers/k/c/{name}")
    }

    fn stored(key: &str, bytes: usize) -> Stored {
        let empty = text_bytes(&json!({"a": ""}));
        Stored {
            key: key.to_owned(),
            kind: "k/c".to_owned(),
            parent: String::new(),
            id: key.to_owned(),
            revision: 1,
            body: json!({"a": "x".repeat(bytes.saturating_sub(empty))}),
            protected: None,
        }
    }

    fn put(key: &str, bytes: usize) -> Batch {
        Batch { puts: vec![(stored(key, bytes), Expect::Any)], ..Batch::default() }
    }

    fn deleted(key: &str) -> Change {
        Change::Deleted { key: key.to_owned(), kind: "k/c".to_owned(), revision: 2 }
    }

    fn used(quotas: &Quotas, place: &str) -> (i64, i64) {
        let used = locked(&quotas.used);
        used.kept.places.get(place).map_or((0, 0), |amount| (amount.resources, amount.bytes))
    }

    #[test]
    fn a_key_is_in_its_group_and_its_subscription() {
        let of = |key: &'static str| places(key).collect::<Vec<_>>();
        let (group, subscription) =
            ((Level::Group, "/subscriptions/s/resourcegroups/g"), (Level::Subscription, SUBSCRIPTION));
        assert_eq!(of("/subscriptions/s"), []);
        assert_eq!(of("/subscriptions/s/resourcegroups/g"), [subscription]);
        assert_eq!(of("/subscriptions/s/providers/p/t/n"), [subscription]);
        assert_eq!(of("/subscriptions/s/resourcegroups/g/providers/p/t/n"), [subscription, group]);
        assert_eq!(of("/subscriptions/s/resourcegroups/g/providers/p/t/n/providers/q/u/m"), [subscription, group]);
    }

    #[test]
    fn what_is_put_again_or_deleted_counts_once_and_then_not_at_all() {
        let quotas = quotas((9, 1), (9, 1));
        let (a, group) = (key("g", "a"), format!("{SUBSCRIPTION}/resourcegroups/g"));
        for (bytes, expected) in [(100, (1, 100)), (300, (1, 300)), (50, (1, 50))] {
            quotas.apply(&[Change::Put(stored(&a, bytes))]);
            assert_eq!((used(&quotas, &group), used(&quotas, SUBSCRIPTION)), (expected, expected));
        }
        let mut sealed = stored(&key("h", "b"), 10);
        sealed.protected = Some(vec![0; 5]);
        quotas.apply(&[Change::Put(sealed), deleted(&a), deleted(&a)]);
        assert_eq!((used(&quotas, &group), used(&quotas, SUBSCRIPTION)), ((0, 0), (1, 15)));
        assert_eq!(locked(&quotas.used).kept.places.len(), 2, "nothing is noted of what takes nothing");
    }

    #[test]
    fn writes_of_one_moment_pass_no_bound_together() {
        let quotas = quotas((2, 1), (3, 1));
        quotas.apply(&[Change::Put(stored(&key("g", "a"), 10))]);
        let room = quotas.take(&put(&key("g", "b"), 10)).unwrap();
        let refused = quotas.take(&put(&key("g", "c"), 10)).err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (409, "QuotaExceeded"));
        let message = &refused.detail.message;
        assert!(message.starts_with("The resource group 'g' holds 2 resources, and 2 is the limit."), "{message}");
        assert!(message.contains("group_resources of [api.quotas]"), "{message}");
        // Another group has room, until the subscription has none.
        let other = quotas.take(&put(&key("h", "d"), 10)).unwrap();
        let refused = quotas.take(&put(&key("i", "e"), 10)).err().unwrap();
        assert!(refused.detail.message.starts_with("The subscription 's' holds 3"), "{}", refused.detail.message);
        // What was not written in the end leaves its room to others.
        drop((room, other));
        assert!(locked(&quotas.used).coming.places.is_empty());
        // What was written counts once, as soon as that is known.
        let room = quotas.take(&put(&key("g", "c"), 10)).unwrap();
        quotas.apply(&[Change::Put(stored(&key("g", "c"), 10))]);
        assert!(quotas.take(&put(&key("h", "d"), 10)).is_ok(), "the third of the subscription");
        drop(room);
        assert_eq!(used(&quotas, SUBSCRIPTION), (2, 20));
    }

    #[test]
    fn what_is_over_a_quota_may_shrink_and_go_but_not_grow() {
        let quotas = quotas((1, 1), (9, 9));
        let (a, b) = (key("g", "a"), key("g", "b"));
        quotas.apply(&[Change::Put(stored(&a, 1_000_000)), Change::Put(stored(&b, 200_000))]);
        for bytes in [200_000, 199_999, 2] {
            assert!(quotas.take(&put(&b, bytes)).is_ok(), "{bytes}");
        }
        let refused = quotas.take(&put(&b, 200_001)).err().unwrap();
        let says = "The resource group 'g' holds resources of 1200000 bytes, this write would add 1, and 1048576 (1 MiB) is the limit.";
        assert!(refused.detail.message.starts_with(says), "{}", refused.detail.message);
        assert!(quotas.take(&put(&key("g", "c"), 2)).is_err(), "one more");
        // What is small may say a little more: that a right has an end, that a feature is off.
        let small = key("g", "small");
        quotas.apply(&[Change::Put(stored(&small, 100))]);
        assert!(quotas.take(&put(&small, 8 * 1024)).is_ok());
        assert!(quotas.take(&put(&small, 8 * 1024 + 1)).is_err());
        quotas.apply(&[deleted(&small)]);
        // A batch that takes one away may put another one in its place.
        let mut exchanged = put(&key("g", "c"), 2);
        exchanged.deletes.push((b, Expect::Any));
        assert!(quotas.take(&exchanged).is_ok());
        quotas.apply(&[deleted(&a)]);
        assert!(quotas.take(&put(&key("g", "b"), 200_001)).is_ok(), "there is room again");
    }

    #[test]
    fn bytes_are_those_of_the_text_that_is_kept() {
        for body in [json!({"a": ["ä\"\n", 1.5, null, true, -7]}), json!({}), json!("\u{1}")] {
            assert_eq!(text_bytes(&body), body.to_string().len());
        }
    }
}
