//! Which keys of a built-in issuer follow the pinned ones, and when each of them ends.
//!
//! Keys form a line: each vouches for the one that replaces it (`towline_attestation`). **Only the newest key of a line
//! vouches, and the first successor that is heard of stays**: whoever has an older private key cannot have another key
//! follow it where the true successor is known.
//!
//! A key ends by a statement of a key that follows it in its line (`towline_ended`): a compact JWS (RFC 7515) of type
//! `towline-key-ended+jws` with the payload `{"key":"<thumbprint>","until":<seconds since 1970>}`. A token that the key
//! signed and that expires later is refused; `until` 0 revokes the key. The earliest end counts, and no statement takes
//! another one back. A key says nothing about itself or about keys that follow it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde_json::{Value, json};

use crate::token::{
    jwk::{Algorithm, CHAIN, JwkError, Key, KeySet},
    jws,
};

/// `typ` of an attestation.
const ATTESTATION: &str = "towline-key+jws";
/// `typ` of a statement that a key ends.
const ENDED: &str = "towline-key-ended+jws";
/// `until` of a revoked key.
const REVOKED: u64 = 0;

/// The accepted keys of one issuer.
pub(super) struct Chain {
    /// Each from its oldest key to its newest.
    lines: Vec<Vec<Arc<Key>>>,
    /// Thumbprints of the keys that were accepted from the start.
    pinned: HashSet<String>,
    /// When keys end, and what says so, by thumbprint.
    ends: HashMap<String, End>,
    version: u64,
}

struct End {
    /// Seconds since 1970.
    until: u64,
    /// The signed statement that says so.
    statement: String,
}

impl Chain {
    /// Accepts all keys of a set from the start, and what they say of each other.
    pub(super) fn of(pinned: &KeySet) -> Self {
        let all: Vec<_> = pinned.keys.iter().chain(&pinned.former).cloned().collect();
        let followed = |key: &Arc<Key>| all.iter().any(|other| vouches(other, key));
        let (mut waiting, first): (Vec<_>, Vec<_>) = all.iter().cloned().partition(followed);
        let pinned_keys = all.iter().map(|key| key.thumbprint.clone()).collect();
        let lines = first.into_iter().map(|key| vec![key]).collect();
        let mut this = Self { lines, pinned: pinned_keys, ends: HashMap::new(), version: 0 };
        this.follow(&mut waiting);
        this.lines.extend(waiting.into_iter().map(|key| vec![key]));
        this.obey(&pinned.statements);
        this
    }

    /// A set of which every key is accepted: only its ends are worked out.
    pub(super) fn judge(set: KeySet) -> KeySet {
        if set.statements.is_empty() {
            return set;
        }
        Self::of(&set).accept(set)
    }

    /// The keys of a set that are accepted, with their ends; learns from the set. Statements count once the keys are
    /// known.
    pub(super) fn accept(&mut self, mut set: KeySet) -> KeySet {
        let mut waiting: Vec<_> = set.keys.iter().chain(&set.former).filter(|key| !self.has(key)).cloned().collect();
        self.follow(&mut waiting);
        self.obey(&set.statements);
        let mut left_out = Vec::new();
        set.keys.retain(|key| {
            let why = match self.ends.get(&key.thumbprint) {
                _ if !self.has(key) && self.is_full() => JwkError::ChainTooLong,
                _ if !self.has(key) => JwkError::NotAttested,
                Some(end) if end.until == REVOKED => JwkError::Revoked,
                _ => return true,
            };
            left_out.push(why);
            false
        });
        left_out.into_iter().for_each(|why| set.leave_out(why));
        let end = |key: &Arc<Key>| Some((key.thumbprint.clone(), self.ends.get(&key.thumbprint)?.until));
        set.ends = set.keys.iter().filter_map(end).collect();
        let revoked = self.ends.iter().filter(|(_, end)| end.until == REVOKED);
        set.revoked = revoked.map(|(thumbprint, _)| thumbprint.clone()).collect();
        set
    }

    /// Changes with every key or end that is learned.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// What follows from the pinned keys and is not pinned, as a key set; `None` if there is nothing.
    pub(super) fn learned(&self) -> Option<Value> {
        let keys: Vec<&Value> = self.followers().filter_map(|key| key.entry.as_ref()).collect();
        let ends: Vec<&str> = self.ends.values().map(|end| end.statement.as_str()).collect();
        let something = !keys.is_empty() || !ends.is_empty();
        something.then(|| json!({"keys": keys, "towline_ended": ends}))
    }

    /// Whether a kept set has all keys and ends of [`Self::learned`]. Signatures of it are not checked: they are when
    /// it is read again.
    pub(super) fn is_kept(&self, kept: &KeySet) -> bool {
        let has_key = |key: &Arc<Key>| kept.keys.iter().any(|other| other.thumbprint == key.thumbprint);
        let ends: Vec<(String, u64)> =
            kept.statements.iter().filter_map(|text| read(&jws::parts(text).ok()?)).collect();
        let has_end = |(key, end): (&String, &End)| ends.iter().any(|(k, until)| k == key && *until <= end.until);
        self.followers().all(has_key) && self.ends.iter().all(has_end)
    }

    /// Whether a kept set has another successor of a key of a line than the one that is known here. One of the two is
    /// somebody's who has an older private key, and nobody can say which.
    pub(super) fn is_forked_by(&self, kept: &KeySet) -> bool {
        let known = || self.lines.iter().flatten();
        !self.is_full() && kept.keys.iter().any(|key| !self.has(key) && known().any(|other| vouches(other, key)))
    }

    fn followers(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.lines.iter().flatten().filter(|key| !self.pinned.contains(&key.thumbprint))
    }

    fn has(&self, key: &Key) -> bool {
        self.lines.iter().flatten().any(|known| known.thumbprint == key.thumbprint)
    }

    fn is_full(&self) -> bool {
        self.lines.iter().map(Vec::len).sum::<usize>() >= CHAIN
    }

    /// Puts each waiting key behind the newest key of a line, where that one vouches for it; takes it from `waiting`.
    fn follow(&mut self, waiting: &mut Vec<Arc<Key>>) {
        let mut room = CHAIN.saturating_sub(self.lines.iter().map(Vec::len).sum());
        for line in &mut self.lines {
            while room > 0
                && let Some(newest) = line.last()
                && let Some(at) = waiting.iter().position(|key| vouches(newest, key))
            {
                line.push(waiting.remove(at));
                self.version += 1;
                room -= 1;
            }
        }
    }

    fn obey(&mut self, statements: &[String]) {
        for text in statements {
            let Ok(parts) = jws::parts(text) else { continue };
            let Some((target, until)) = read(&parts) else { continue };
            let known = |end: &End| end.until <= until;
            if self.ends.get(&target).is_some_and(known) {
                continue;
            }
            // Of the keys of its line, those that follow it alone.
            let after = self.lines.iter().find_map(|line| {
                let at = line.iter().position(|key| key.thumbprint == target)?;
                line.get(at + 1..)
            });
            if !after.unwrap_or_default().iter().any(|key| is_signed_by(key, &parts, ENDED)) {
                continue;
            }
            if until == REVOKED && REVOCATIONS.is_first(&target) {
                tracing::warn!(key = target, "a key of the issuer was revoked");
            }
            self.ends.insert(target, End { until, statement: text.clone() });
            self.version += 1;
        }
    }
}

/// Of which revoked keys this process has told. Sets are judged anew at every reading, and who reads the log would look
/// for another revocation.
static REVOCATIONS: LazyLock<Seen> = LazyLock::new(Seen::default);

/// Thumbprints that are kept. Further ones are told of each time.
const TOLD: usize = 16 * CHAIN;

#[derive(Default)]
struct Seen(Mutex<HashSet<String>>);

impl Seen {
    /// Whether nothing was told of this key yet.
    fn is_first(&self, thumbprint: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !told.contains(thumbprint) && (told.len() >= TOLD || told.insert(thumbprint.to_owned()))
    }
}

/// What a statement says, unverified: the key's thumbprint and when it ends.
fn read(parts: &jws::Parts<'_>) -> Option<(String, u64)> {
    let said = types::json::object(&parts.payload).ok()?;
    Some((said.get("key")?.as_str()?.to_owned(), said.get("until")?.as_u64()?))
}

/// Whether `attestor` signed the thumbprint of `key`.
fn vouches(attestor: &Key, key: &Key) -> bool {
    let named = key.attested_by.is_some()
        && (key.attested_by == attestor.kid || key.attested_by.as_ref() == Some(&attestor.thumbprint));
    let attestation = key.attestation.as_deref().filter(|_| named && attestor.thumbprint != key.thumbprint);
    let Some(parts) = attestation.and_then(|jws| jws::parts(jws).ok()) else { return false };
    parts.payload == key.thumbprint.as_bytes() && is_signed_by(attestor, &parts, ATTESTATION)
}

fn is_signed_by(key: &Key, parts: &jws::Parts<'_>, kind: &str) -> bool {
    let Some(algorithm) = Algorithm::from_name(&parts.header.alg) else { return false };
    parts.header.typ.as_deref() == Some(kind)
        && parts.header.kid.is_some()
        && (parts.header.kid == key.kid || parts.header.kid.as_ref() == Some(&key.thumbprint))
        && key.verify(algorithm, parts.signed, &parts.signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_key_is_told_of_once_and_beyond_the_bound_each_time() {
        let told = Seen::default();
        assert!(told.is_first("a") && !told.is_first("a") && told.is_first("b"));
        for n in 2..TOLD {
            assert!(told.is_first(&n.to_string()));
        }
        assert!(told.is_first("c") && told.is_first("c") && !told.is_first("a"));
        assert_eq!(told.0.lock().unwrap().len(), TOLD);
    }
}
