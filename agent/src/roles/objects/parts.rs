//! What is told of the parts of objects, such as the Kubernetes objects of a flux configuration: the gateway is told
//! those that have changed since the last message, and all of them after a start, with a new generation, and when it says
//! that it has lost something ([`Parts`]). In memory alone.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use types::agent_api::{PART_BYTES, PART_NAME_BYTES, PARTS_OF_AN_OBJECT, Parts};

/// What a part adds to a message beside its name and value: quotes, a colon, a comma.
const PUNCTUATION: usize = 8;
/// Parts of all objects together, and their bytes: the gateway has no room for more, and memory is bounded.
const PARTS_OF_ALL: usize = 20_000;
const BYTES_OF_ALL: usize = 16 * 1024 * 1024;
/// Waits until an object is told anew after the gateway said that it has lost something: the first, which doubles each
/// time until it takes something, and the longest.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// What is known and what was told of the parts of every object, by the object's name.
pub struct Ledger {
    books: Mutex<BTreeMap<String, Book>>,
    /// The last position; the first one is later than those of all processes before.
    position: Mutex<u64>,
}

#[derive(Default)]
struct Book {
    /// The generation that was told.
    generation: i64,
    /// The message that the gateway has; none: the next one begins anew.
    position: Option<u64>,
    parts: BTreeMap<String, Part>,
    /// How often in a row everything was asked for again, and when it is told.
    agains: u32,
    due: Option<Instant>,
}

#[derive(Default)]
struct Part {
    /// JSON; none: it is gone.
    value: Option<Box<str>>,
    /// Digest of what the gateway has.
    told: Option<u64>,
}

/// What a message tells of the parts of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct PartsMessage {
    /// In the message.
    pub parts: Parts,
    /// Of which generation.
    generation: i64,
    /// Digests of its values.
    digests: Vec<(String, Option<u64>)>,
}

fn digest(value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Part {
    fn is_news(&self) -> bool {
        self.value.as_deref().map(digest) != self.told
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::after(SystemTime::now())
    }
}

impl Ledger {
    /// Positions rise from this time.
    pub fn after(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { books: Mutex::default(), position: Mutex::new(since.as_micros().try_into().unwrap_or(0)) }
    }

    fn books(&self) -> MutexGuard<'_, BTreeMap<String, Book>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the parts of an object now; whether that is a change. Parts beyond [`PARTS_OF_AN_OBJECT`], and
    /// names and values that are too long, are left out, and so are those for which there is no room beside the parts of
    /// all other objects.
    pub fn set(&self, object: &str, parts: BTreeMap<String, Value>) -> bool {
        let mut books = self.books();
        let (mut room, mut bytes) = (PARTS_OF_ALL, BYTES_OF_ALL);
        for (_, other) in books.iter().filter(|(name, _)| *name != object) {
            room = room.saturating_sub(other.parts.len());
            bytes = bytes.saturating_sub(other.bytes());
        }
        let book = books.entry(object.to_owned()).or_default();
        let fits = |(name, value): (String, Value)| {
            let value = value.to_string();
            (name.len() <= PART_NAME_BYTES && value.len() <= PART_BYTES).then(|| (name, value.into_boxed_str()))
        };
        let has_room = |(name, value): &(String, Box<str>)| {
            let left = bytes.checked_sub(name.len() + value.len());
            bytes = left.unwrap_or(0);
            left.is_some()
        };
        let parts = parts.into_iter().filter_map(fits).take(PARTS_OF_AN_OBJECT.min(room));
        let now: BTreeMap<String, Box<str>> = parts.take_while(has_room).collect();
        let mut changed = false;
        for (name, part) in &mut book.parts {
            if !now.contains_key(name) {
                changed |= part.value.take().is_some();
            }
        }
        for (name, value) in now {
            let part = book.parts.entry(name).or_default();
            if part.value.as_ref() != Some(&value) {
                (part.value, changed) = (Some(value), true);
            }
        }
        book.parts.retain(|_, part| part.value.is_some() || part.told.is_some());
        changed
    }

    /// What is to be told next of an object, in about `bytes` at most; none: nothing, or its parts are not known yet.
    pub fn next(&self, object: &str, generation: i64, bytes: usize) -> Option<PartsMessage> {
        let mut books = self.books();
        let book = books.get_mut(object)?;
        if book.due.is_some_and(|due| Instant::now() < due) {
            return None;
        }
        if book.generation != generation {
            book.begin_anew();
        }
        let (mut values, mut digests, mut used) = (BTreeMap::new(), Vec::new(), 0);
        for (name, part) in book.parts.iter().filter(|(_, part)| part.is_news()) {
            used += name.len() + part.value.as_ref().map_or(4, |value| value.len()) + PUNCTUATION;
            if used > bytes && !values.is_empty() {
                break;
            }
            let value = part.value.as_deref().and_then(|value| serde_json::from_str(value).ok());
            values.insert(name.clone(), value);
            digests.push((name.clone(), part.value.as_deref().map(digest)));
        }
        if values.is_empty() && book.position.is_some() {
            return None;
        }
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        *position += 1;
        let parts = Parts { after: book.position, position: *position, values };
        drop(position);
        Some(PartsMessage { parts, generation, digests })
    }

    /// The gateway has answered this.
    pub fn taken(&self, object: &str, told: PartsMessage) {
        let mut books = self.books();
        let Some(book) = books.get_mut(object) else { return };
        (book.agains, book.due) = (0, None);
        book.generation = told.generation;
        book.position = Some(told.parts.position);
        for (name, digest) in told.digests {
            if let Some(part) = book.parts.get_mut(&name) {
                part.told = digest;
            }
        }
        book.parts.retain(|_, part| part.value.is_some() || part.told.is_some());
    }

    /// The gateway has lost something of an object: everything is told again, later and later where it says so again and
    /// again.
    pub fn again(&self, object: &str) {
        if let Some(book) = self.books().get_mut(object) {
            book.begin_anew();
            let wait = AGAIN_FIRST.saturating_mul(1 << book.agains.min(12)).min(AGAIN_MAX);
            (book.agains, book.due) = (book.agains.saturating_add(1), Some(Instant::now() + wait));
        }
    }

    /// How long until an object is told anew; none: no object waits for that.
    pub fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let waits = |book: &Book| Some(book.due?.checked_duration_since(now)?.max(Duration::from_millis(10)));
        self.books().values().filter_map(waits).min()
    }

    /// Forgets every object but these.
    pub fn keep(&self, objects: &[&str]) {
        self.books().retain(|object, _| objects.contains(&object.as_str()));
    }
}

impl Book {
    fn bytes(&self) -> usize {
        let bytes = |(name, part): (&String, &Part)| name.len() + part.value.as_ref().map_or(0, |value| value.len());
        self.parts.iter().map(bytes).sum()
    }

    fn begin_anew(&mut self) {
        self.position = None;
        self.parts.retain(|_, part| part.value.is_some());
        self.parts.values_mut().for_each(|part| part.told = None);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BYTES: usize = 190 * 1024;

    fn ledger() -> Ledger {
        Ledger::after(UNIX_EPOCH)
    }

    fn parts(names: &[(&str, i64)]) -> BTreeMap<String, Value> {
        names.iter().map(|(name, value)| ((*name).to_owned(), json!({"n": value}))).collect()
    }

    #[test]
    fn g6_parts_of_all_objects_together_are_bounded() {
        let ledger = ledger();
        let many = |name: &str| (0..9000).map(|n| (format!("{name}{n}"), json!({"n": n}))).collect();
        for name in ["a", "b", "c"] {
            ledger.set(name, many(name));
        }
        let count = |name: &str| ledger.books().get(name).map_or(0, |book| book.parts.len());
        assert_eq!((count("a"), count("b"), count("c")), (9000, 9000, 2000));
        // Those of an object that went make room.
        ledger.keep(&["b", "c"]);
        assert!(ledger.set("c", many("c")));
        assert_eq!(count("c"), 9000);
        ledger.keep(&["d"]);
        let long = (0..9000).map(|n| (format!("d{n}"), json!("x".repeat(4000)))).collect();
        ledger.set("d", long);
        let bytes: usize = ledger.books().values().map(Book::bytes).sum();
        assert!(bytes <= BYTES_OF_ALL && (1..9000).contains(&count("d")), "{bytes}");
    }

    #[test]
    fn g6_gateway_that_asks_for_everything_again_and_again_waits_longer_and_longer() {
        let ledger = ledger();
        ledger.set("a", parts(&[("x", 1)]));
        assert_eq!(ledger.wait(), None);
        for wait in [1, 2, 4, 8] {
            ledger.again("a");
            assert_eq!(ledger.next("a", 1, BYTES), None);
            let left = ledger.wait().unwrap();
            assert!(left <= Duration::from_secs(wait) && left > Duration::from_secs(wait) / 2, "{left:?}");
        }
        (0..50).for_each(|_| ledger.again("a"));
        assert!(ledger.wait().unwrap() <= AGAIN_MAX);
        ledger.books().get_mut("a").unwrap().due = None;
        let told = ledger.next("a", 1, BYTES).unwrap();
        ledger.taken("a", told);
        ledger.again("a");
        assert!(ledger.wait().unwrap() <= AGAIN_FIRST);
    }

    #[test]
    fn g6_only_changed_parts_are_told() {
        let ledger = ledger();
        assert_eq!(ledger.next("a", 1, BYTES), None, "nothing is known yet");
        assert!(ledger.set("a", parts(&[("x", 1), ("y", 1)])));
        let first = ledger.next("a", 1, BYTES).unwrap();
        assert_eq!((first.parts.after, first.parts.values.len()), (None, 2));
        ledger.taken("a", first.clone());
        assert_eq!(ledger.next("a", 1, BYTES), None);
        assert!(!ledger.set("a", parts(&[("x", 1), ("y", 1)])));
        assert!(ledger.set("a", parts(&[("x", 2), ("z", 1)])));
        let second = ledger.next("a", 1, BYTES).unwrap();
        assert_eq!(second.parts.after, Some(first.parts.position));
        assert_eq!(
            serde_json::to_value(&second.parts.values).unwrap(),
            json!({"x": {"n": 2}, "y": null, "z": {"n": 1}})
        );
        // It changes while the message is on its way.
        ledger.set("a", parts(&[("x", 3), ("y", 1), ("z", 1)]));
        ledger.taken("a", second);
        let third = ledger.next("a", 1, BYTES).unwrap();
        assert_eq!(serde_json::to_value(&third.parts.values).unwrap(), json!({"x": {"n": 3}, "y": {"n": 1}}));
        ledger.taken("a", third);
        assert_eq!(ledger.next("a", 1, BYTES), None);
    }

    #[test]
    fn g6_all_parts_are_told_again_where_the_gateway_wants_them() {
        let ledger = ledger();
        ledger.set("a", parts(&[("x", 1), ("y", 1)]));
        let first = ledger.next("a", 1, BYTES).unwrap();
        ledger.taken("a", first.clone());
        ledger.set("a", parts(&[("x", 1)]));
        for (generation, why) in [(1, "it was lost"), (2, "a new generation")] {
            if generation == 1 {
                ledger.again("a");
                ledger.books().get_mut("a").unwrap().due = None;
            }
            let whole = ledger.next("a", generation, BYTES).unwrap();
            assert_eq!((whole.parts.after, whole.parts.values.len()), (None, 1), "{why}");
            assert_ne!(whole.parts.position, first.parts.position);
            ledger.taken("a", whole);
            assert_eq!(ledger.next("a", generation, BYTES), None, "{why}");
        }
    }

    #[test]
    fn g6_five_thousand_parts_go_in_bounded_messages() {
        let ledger = ledger();
        let all: BTreeMap<_, _> = (0..5000)
            .map(|n| (format!("team_config-{n:05}_apps_Deployment"), json!({"kind": "Deployment", "name": n})))
            .collect();
        ledger.set("a", all);
        let (mut told, mut after) = (0, None);
        while let Some(next) = ledger.next("a", 1, BYTES) {
            assert_eq!(next.parts.after, after);
            assert!(serde_json::to_vec(&next.parts).unwrap().len() < BYTES + 1024);
            told += next.parts.values.len();
            after = Some(next.parts.position);
            ledger.taken("a", next);
        }
        assert_eq!(told, 5000);
        ledger.set("a", BTreeMap::from([("long".to_owned(), json!("x".repeat(2 * PART_BYTES)))]));
        while let Some(next) = ledger.next("a", 1, BYTES) {
            assert!(next.parts.values.values().all(Option::is_none), "a value that is too long is left out");
            ledger.taken("a", next);
        }
        ledger.keep(&[]);
        assert_eq!(ledger.next("a", 1, BYTES), None);
    }
}
