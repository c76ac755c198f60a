//! Fresh challenges (docs/features.md R6). A challenge is sealed, so that asking for many costs no memory;
//! it is good for one cluster, for two minutes, and once: those that were used are remembered until they end, with
//! PostgreSQL in the store, so that a challenge of one gateway is answered at another, and at one of them.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use daemon::shares::{Shared, network};
use http::{StatusCode, header};
use serde_json::{Value, json};
use types::{
    agent_api::{decode, encode},
    ids::{ClusterId, ClusterKey, hex},
};

use super::Control;
use crate::{api_error::ApiError, random};

/// How long a challenge is good for.
pub const LIFE_MS: i64 = 120_000;
/// Enrolments of one cluster within that time.
const OF_ONE_CLUSTER: usize = 32;
/// Between two looks at those of all clusters at least.
const SWEEP_EVERY_MS: i64 = 1000;
/// Challenges that are remembered at most, for each of two such times, because they were tried by addresses that ask
/// too often.
const TRIED_MAX: usize = 100_000;
/// Bytes of a challenge, as text, at most.
const TEXT_BYTES: usize = 1024;

/// Challenges that were used.
pub struct Challenges {
    /// Older ones are not taken: a process with SQLite does not know which were used before it started.
    since_ms: i64,
    /// By cluster; only those who proved possession of a cluster's key are in it.
    used: Mutex<Used>,
    tried: Mutex<Tried>,
}

#[derive(Default)]
struct Used {
    of: HashMap<ClusterKey, VecDeque<Fresh>>,
    swept_ms: i64,
}

impl Used {
    /// Forgets challenges that have ended: of all clusters now and then, for there may be as many as clusters that
    /// enrol at once, each of which would look at all others.
    fn sweep(&mut self, now_ms: i64) {
        if (0..SWEEP_EVERY_MS).contains(&(now_ms - self.swept_ms)) {
            return;
        }
        self.swept_ms = now_ms;
        self.of.retain(|_, of_one| {
            of_one.retain(|one| one.ends_ms > now_ms);
            !of_one.is_empty()
        });
    }
}

/// Nonces of challenges that were tried, in vain or not; each is remembered for at least as long as a challenge is
/// good.
struct Tried {
    since_ms: i64,
    now: Shared<String, ()>,
    before: Shared<String, ()>,
}

impl Default for Tried {
    fn default() -> Self {
        Self { since_ms: 0, now: Shared::new(TRIED_MAX), before: Shared::new(TRIED_MAX) }
    }
}

impl Tried {
    /// Whether this is the first time. Of so many that not all can be remembered those are forgotten first that the
    /// network tried that tries most.
    fn is_first(&mut self, of: IpAddr, nonce: String, now_ms: i64) -> bool {
        if now_ms - self.since_ms >= LIFE_MS {
            self.before = std::mem::replace(&mut self.now, Shared::new(TRIED_MAX));
            self.since_ms = now_ms;
        }
        let first = [&self.before, &self.now].iter().all(|tried| tried.get(&nonce).is_none());
        if first {
            self.now.insert(of, nonce, ());
        }
        first
    }
}

/// A challenge of ours that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    nonce: String,
    ends_ms: i64,
}

impl Challenges {
    /// None used; older ones are not taken.
    pub fn since(now_ms: i64) -> Self {
        Self { since_ms: now_ms, used: Mutex::default(), tried: Mutex::default() }
    }

    /// A challenge for a cluster.
    ///
    /// # Errors
    /// When it cannot be sealed.
    pub fn make(&self, control: &Control, cluster: &ClusterId) -> Result<String, ApiError> {
        let nonce = hex(&random::bytes::<16>());
        let begun = control.now_ms();
        Ok(encode(&control.seal(&label(cluster), &json!({"nonce": nonce, "begun": begun}))?))
    }

    /// What a text is, if it is a challenge that was made for this cluster and has not ended. It may have been used.
    pub fn read(&self, control: &Control, cluster: &ClusterId, text: &str) -> Option<Fresh> {
        let sealed = (text.len() <= TEXT_BYTES).then(|| decode(text)).flatten()?;
        let opened = control.unseal(&label(cluster), &sealed)?;
        let begun = opened.get("begun").and_then(Value::as_i64)?;
        let ends_ms = begun + LIFE_MS;
        let nonce = opened.get("nonce").and_then(Value::as_str)?.to_owned();
        (begun >= self.since_ms && control.now_ms() < ends_ms).then_some(Fresh { nonce, ends_ms })
    }

    /// Whether a text is a challenge as [`Self::read`] takes it, and was not asked about before.
    pub fn is_first_try(&self, control: &Control, cluster: &ClusterId, text: &str, peer: IpAddr) -> bool {
        let fresh = self.read(control, cluster, text);
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.is_some_and(|fresh| tried.is_first(network(peer), fresh.nonce, control.now_ms()))
    }

    /// Uses a challenge, by whom it was made for. `Ok(false)`: it was used before, here or at another gateway.
    ///
    /// # Errors
    /// 429: too many in a short time. Or the store cannot be written.
    pub async fn spend(&self, control: &Control, cluster: &ClusterKey, fresh: Fresh) -> Result<bool, ApiError> {
        let name = format!("challenge/{}", fresh.nonce);
        if !self.consume(cluster, fresh, control.now_ms())? {
            return Ok(false);
        }
        // Twice as long as it is good: clocks of gateways differ.
        let life = Duration::from_millis(LIFE_MS.unsigned_abs() * 2);
        control.store.hold(&name, &random::guid(), life).await.map_err(ApiError::internal)
    }

    /// The same, as far as is known here.
    fn consume(&self, cluster: &ClusterKey, fresh: Fresh, now_ms: i64) -> Result<bool, ApiError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.sweep(now_ms);
        let of_one = used.of.entry(*cluster).or_default();
        of_one.retain(|one| one.ends_ms > now_ms);
        if of_one.iter().any(|one| one.nonce == fresh.nonce) {
            return Ok(false);
        }
        if of_one.len() >= OF_ONE_CLUSTER {
            let message = format!("The cluster asked for {OF_ONE_CLUSTER} certificates within two minutes; wait.");
            return Err(
                ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "60")
            );
        }
        of_one.push_back(fresh);
        Ok(true)
    }
}

fn label(cluster: &ClusterId) -> String {
    format!("challenge/{}", cluster.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(nonce: &str, ends_ms: i64) -> Fresh {
        Fresh { nonce: nonce.to_owned(), ends_ms }
    }

    fn key(name: &str) -> ClusterKey {
        let id = format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}");
        id.parse::<ClusterId>().unwrap().key()
    }

    #[test]
    fn r6_a_challenge_is_used_once_and_forgotten_when_it_has_ended() {
        let challenges = Challenges::since(0);
        let (a, b) = (key("a"), key("b"));
        let second = SWEEP_EVERY_MS;
        assert!(challenges.consume(&a, fresh("x", second), second).unwrap());
        assert!(challenges.consume(&a, fresh("x", 3 * second), second).unwrap(), "the one that has ended is forgotten");
        assert!(!challenges.consume(&a, fresh("x", 3 * second), 3 * second - 1).unwrap());
        let known = || challenges.used.lock().unwrap().of.len();
        assert!(challenges.consume(&b, fresh("y", 9 * second), 3 * second).unwrap());
        assert_eq!(known(), 2, "of others it is forgotten within a second");
        assert!(challenges.consume(&b, fresh("z", 9 * second), 4 * second).unwrap());
        assert_eq!(known(), 1);
    }

    #[test]
    fn r6_a_challenge_is_tried_once_as_long_as_it_is_good_and_memory_is_bounded() {
        let (mut tried, here) = (Tried::default(), IpAddr::from([192, 0, 2, 0]));
        assert!(tried.is_first(here, "x".to_owned(), 1));
        assert!(!tried.is_first(here, "x".to_owned(), LIFE_MS - 1));
        assert!(!tried.is_first(here, "x".to_owned(), LIFE_MS));
        assert!(tried.is_first(here, "y".to_owned(), LIFE_MS));
        assert!(tried.is_first(here, "x".to_owned(), 2 * LIFE_MS), "it has ended by then");
        let flood = IpAddr::from([198, 51, 100, 0]);
        for n in 0..=TRIED_MAX {
            assert!(tried.is_first(flood, n.to_string(), 2 * LIFE_MS));
        }
        assert_eq!(tried.now.len(), TRIED_MAX);
        assert!(!tried.is_first(here, "x".to_owned(), 2 * LIFE_MS), "others are remembered");
        assert!(tried.is_first(here, "z".to_owned(), 2 * LIFE_MS), "and have a place");
    }

    #[test]
    fn r6_the_holder_of_one_key_cannot_fill_memory() {
        let challenges = Challenges::since(0);
        let key = key("a");
        for n in 0..OF_ONE_CLUSTER {
            assert!(challenges.consume(&key, fresh(&n.to_string(), 10), 0).unwrap());
        }
        let refused = challenges.consume(&key, fresh("more", 10), 0).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(challenges.consume(&key, fresh("later", 20), 10).unwrap());
    }
}
