//! The keys of one issuer over time.
//!
//! - One fetch at a time; whoever needs it polls the same future, so that a request that goes away does not waste it.
//! - An unknown `kid` asks the issuer, but not more often than every [`REFETCH`]: a flood of made-up ids is one fetch.
//!   Where a fetch brought other keys than before, the next unknown one is asked for at once, because keys are replaced
//!   and revoked in a row; [`AT_ONCE`] times in a while, so that an issuer that answers differently each time is not
//!   asked without end.
//! - After a failure the next attempt waits longer each time, up to [`BACKOFF_MAX`]; what was read stays in use for
//!   `keys_max_age`.
//! - [`IssuerKeys::refresh_if_older`] keeps them fresh beside the requests; where nobody calls it, one request in
//!   [`STALE`] waits for at most [`STALE_WAIT`].
//! - Pinned: keys are accepted from the start or because the newest accepted one vouches for them ([`chain`]); whoever
//!   answers at the issuer's address can withhold keys but not bring its own. What was learned can be kept
//!   ([`IssuerKeys::learned`]) and given to the next process ([`IssuerKeys::learn`]).
//! - Whoever has the issuer in the same process gives its keys as they change ([`IssuerKeys::take`]). What is fetched is
//!   added to them: who answers at the issuer's address may be another gateway that does not have them yet.
//! - A replaced key verifies tokens until the last one that it signed has expired, a revoked key none.

mod chain;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::{FutureExt as _, future::Shared};
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use url::Url;

use self::chain::Chain;
use super::{
    config::{Issuer, KeySource, acceptable_url},
    error::{FETCH_DEADLINE, FetchError, KeySetError, TokenError},
    fetch::{Boxed, Fetch},
    jwk::{Algorithm, CHAIN, Key, KeySet},
};

/// Least time between two fetches that bring the same keys, however many unknown key ids are presented.
pub const REFETCH: Duration = Duration::from_secs(15);
/// Fetches without a pause before them at most, in [`FRESH`].
const AT_ONCE: u32 = 3;
/// The longest pause after failures.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How old keys become when somebody keeps them fresh.
pub const FRESH: Duration = Duration::from_secs(300);
/// How old keys become when nobody does.
pub const STALE: Duration = Duration::from_secs(600);
/// How long a request waits to renew keys that still serve.
const STALE_WAIT: Duration = Duration::from_secs(1);

/// What came of asking one issuer for its keys.
#[derive(Debug)]
pub struct Probe {
    /// The issuer's name.
    pub issuer: String,
    /// URL of the issuer, as configured.
    pub url: String,
    /// Its keys come from a file, and nobody is asked.
    pub fixed: bool,
    /// Some of its keys are known from the start, so that tokens hold while it cannot be reached.
    pub pinned: bool,
    /// How many keys are of use, or why they could not be read.
    pub keys: Result<usize, FetchError>,
}

/// The keys of one issuer.
#[derive(Clone)]
pub(super) struct IssuerKeys(Arc<Inner>);

struct Inner {
    issuer: String,
    url: String,
    jwks_url: Option<Url>,
    http_loopback: bool,
    max_age: Duration,
    /// `None`: a fixed set.
    fetch: Option<Arc<dyn Fetch>>,
    /// Pinned keys and those that followed them; `None`: every key of the issuer is accepted.
    chain: Option<Mutex<Chain>>,
    /// Counts what the chains of all issuers of the verifier have learned.
    learning: watch::Sender<u64>,
    current: ArcSwapOption<Snapshot>,
    state: Mutex<State>,
}

struct Snapshot {
    set: KeySet,
    read: Instant,
    generation: u64,
    /// Whether the issuer said so: not so for keys from a file.
    fetched: bool,
}

/// The key that a header means.
pub(super) struct Found {
    pub(super) key: Arc<Key>,
    /// When the last token of a replaced key expires, in seconds since 1970.
    pub(super) end: Option<u64>,
    /// Of the set that the key is in.
    pub(super) generation: u64,
    age: Duration,
}

struct State {
    /// What the issuer itself gave last.
    given: Option<KeySet>,
    in_flight: Option<Shared<Boxed<()>>>,
    next_attempt: Instant,
    /// Fetches that were allowed at once, and since when they are counted.
    at_once: (u32, Instant),
    failures: u32,
    error: Option<FetchError>,
}

impl State {
    /// How long to wait after a fetch, which brought other keys or the same.
    fn pause(&mut self, changed: bool, now: Instant) -> Duration {
        if now.duration_since(self.at_once.1) >= FRESH {
            self.at_once = (0, now);
        }
        if !changed || self.at_once.0 >= AT_ONCE {
            return REFETCH;
        }
        self.at_once.0 += 1;
        Duration::ZERO
    }
}

impl IssuerKeys {
    pub(super) fn new(issuer: &Issuer, fetch: Arc<dyn Fetch>, learning: watch::Sender<u64>) -> Self {
        let now = Instant::now();
        let (initial, fetch, chain) = match &issuer.keys {
            KeySource::Static(set) => (Some(Chain::judge(set.clone())), None, None),
            KeySource::Discovered => (None, Some(fetch), None),
            KeySource::Pinned(set) => {
                let mut chain = Chain::of(set);
                (Some(chain.accept(set.clone())), Some(fetch), Some(Mutex::new(chain)))
            }
        };
        let snapshot = |set| Arc::new(Snapshot { set, read: now, generation: 1, fetched: false });
        let snapshot = initial.map(snapshot);
        Self(Arc::new(Inner {
            issuer: issuer.name.clone(),
            url: issuer.url.clone(),
            jwks_url: issuer.jwks_url.clone(),
            http_loopback: issuer.http_loopback,
            max_age: issuer.keys_max_age,
            fetch,
            chain,
            learning,
            current: ArcSwapOption::new(snapshot),
            state: Mutex::new(State {
                given: None,
                in_flight: None,
                next_attempt: now,
                at_once: (0, now),
                failures: 0,
                error: None,
            }),
        }))
    }

    /// Changes with the set of keys: a decision made under another one is made again.
    pub(super) fn generation(&self) -> u64 {
        self.0.current.load().as_ref().map_or(0, |snapshot| snapshot.generation)
    }

    /// Whether a key of the issuer, by its thumbprint, is known to be revoked.
    pub(super) fn has_revoked(&self, thumbprint: &str) -> bool {
        let current = self.0.current.load();
        current.as_ref().is_some_and(|snapshot| snapshot.set.revoked.iter().any(|revoked| revoked == thumbprint))
    }

    /// The key that a header means, and the generation of its set; asks the issuer where it must and may.
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Found, TokenError> {
        match self.look(kid, algorithm) {
            Ok(found) if found.age > STALE && self.0.fetch.is_some() => {
                self.refresh_beside().await;
                self.look(kid, algorithm)
            }
            Ok(found) => Ok(found),
            Err(TokenError::UnknownKey | TokenError::KeysUnavailable(_)) if self.0.fetch.is_some() => {
                if let Some((fetching, _)) = self.0.begin_soon().await {
                    fetching.await;
                }
                match self.look(kid, algorithm) {
                    Err(TokenError::UnknownKey) => Err(self.0.unknown()),
                    other => other,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether [`Self::find`] has to ask the issuer before it knows.
    pub(super) fn must_ask(&self, kid: Option<&str>, algorithm: Algorithm) -> bool {
        let found = self.look(kid, algorithm);
        self.0.fetch.is_some() && matches!(found, Err(TokenError::UnknownKey | TokenError::KeysUnavailable(_)))
    }

    /// Reads the keys again if they are older than this; returns when that ended, either way.
    pub(super) async fn refresh_if_older(&self, than: Duration) {
        let fresh = self.0.current.load().as_ref().is_some_and(|s| s.fetched && s.read.elapsed() < than);
        if self.0.fetch.is_none() || fresh {
            return;
        }
        if let Some((fetching, _)) = self.0.begin() {
            fetching.await;
        }
    }

    /// Reads the keys now, unless that was done or tried just before, and tells how many there are of use.
    pub(super) async fn probe(&self) -> Probe {
        let fixed = self.0.fetch.is_none();
        if !fixed && let Some((fetching, _)) = self.0.begin() {
            fetching.await;
        }
        let keys = self.0.current.load().as_ref().map_or(0, |snapshot| snapshot.set.keys.len());
        let error = self.0.state().error.clone();
        Probe {
            issuer: self.0.issuer.clone(),
            url: self.0.url.clone(),
            fixed,
            pinned: self.0.chain.is_some(),
            keys: error.map_or(Ok(keys), Err),
        }
    }

    /// Which issuer this is.
    pub(super) fn url(&self) -> &str {
        &self.0.url
    }

    /// What was learned beyond the pinned keys, as a key set that [`Self::learn`] reads; `None` if nothing was.
    pub(super) fn learned(&self) -> Option<Value> {
        self.0.chain.as_ref().and_then(|chain| lock(chain).learned())
    }

    /// Whether a kept key set has everything that [`Self::learned`] has.
    pub(super) fn is_kept(&self, kept: Option<&Map<String, Value>>) -> bool {
        let Some(chain) = &self.0.chain else { return true };
        let kept = kept.and_then(|kept| KeySet::of(kept, CHAIN).ok()).unwrap_or_default();
        lock(chain).is_kept(&kept)
    }

    /// Whether a kept key set has another successor of a key than the one that is known here.
    pub(super) fn is_forked_by(&self, kept: &Map<String, Value>) -> bool {
        let Some(chain) = &self.0.chain else { return false };
        KeySet::of(kept, CHAIN).is_ok_and(|kept| lock(chain).is_forked_by(&kept))
    }

    /// Takes what was learned before, by this process or another. It counts only as far as it follows from the pinned
    /// keys.
    ///
    /// # Errors
    /// When it is no key set.
    pub(super) fn learn(&self, kept: &Map<String, Value>) -> Result<(), KeySetError> {
        let mut kept = KeySet::of(kept, CHAIN)?;
        if self.0.chain.is_none() {
            return Ok(());
        }
        let state = self.0.state();
        let Some(current) = self.0.current.load_full() else { return Ok(()) };
        let new = |key: &Arc<Key>| !kept.keys.iter().any(|known| known.thumbprint == key.thumbprint);
        let more: Vec<_> = current.set.keys.iter().filter(|key| new(key)).cloned().collect();
        kept.keys.extend(more);
        let set = self.0.accept(state.given.as_ref(), kept);
        if !current.set.same(&set) {
            let generation = current.generation + 1;
            self.0.current.store(Some(Arc::new(Snapshot {
                set,
                generation,
                read: current.read,
                fetched: current.fetched,
            })));
        }
        Ok(())
    }

    /// Takes the keys that the issuer publishes now, from the issuer itself. They count at once.
    pub(super) fn take(&self, published: KeySet) {
        if self.0.fetch.is_none() {
            return;
        }
        let mut state = self.0.state();
        state.given = Some(published.clone());
        let set = self.0.accept(None, published);
        let current = self.0.current.load();
        let changed = current.as_ref().is_none_or(|current| !current.set.same(&set));
        let generation = current.as_ref().map_or(1, |current| current.generation + u64::from(changed));
        self.0.current.store(Some(Arc::new(Snapshot { set, read: Instant::now(), generation, fetched: true })));
    }

    /// Only who began it waits, and not for long: the keys at hand serve.
    async fn refresh_beside(&self) {
        if let Some((fetching, true)) = self.0.begin() {
            let _ = timeout(STALE_WAIT, fetching).await;
        }
    }

    fn look(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Found, TokenError> {
        let current = self.0.current.load();
        let Some(snapshot) = current.as_ref() else { return Err(self.0.unavailable()) };
        let age = snapshot.read.elapsed();
        if age > self.0.max_age && self.0.fetch.is_some() && self.0.chain.is_none() {
            return Err(self.0.unavailable());
        }
        let key = snapshot.set.find(kid, algorithm)?.clone();
        Ok(Found { end: snapshot.set.end_of(&key), key, generation: snapshot.generation, age })
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self) -> TokenError {
        TokenError::KeysUnavailable(self.state().error.clone().unwrap_or(FetchError::NotYet))
    }

    /// No such key as far as is known: whether that is the token's fault depends on whether the issuer answered.
    fn unknown(&self) -> TokenError {
        self.state().error.clone().map_or(TokenError::UnknownKey, TokenError::KeysUnavailable)
    }

    /// The fetch under way, or a new one if one is allowed now; and whether it is new.
    fn begin(self: &Arc<Self>) -> Option<(Shared<Boxed<()>>, bool)> {
        let mut state = self.state();
        if let Some(fetching) = &state.in_flight {
            return Some((fetching.clone(), false));
        }
        if Instant::now() < state.next_attempt {
            return None;
        }
        let this = self.clone();
        let fetching: Boxed<()> = Box::pin(async move {
            let result = timeout(FETCH_DEADLINE, this.load()).await.unwrap_or(Err(FetchError::Timeout));
            this.finish(result);
        });
        let fetching = fetching.shared();
        state.in_flight = Some(fetching.clone());
        Some((fetching, true))
    }

    /// As [`Inner::begin`]; after one failure without any keys it waits for the next attempt, which is near: programs
    /// that start together (the built-in issuer and its gateway) do not refuse their first users.
    async fn begin_soon(self: &Arc<Self>) -> Option<(Shared<Boxed<()>>, bool)> {
        let begun = self.begin();
        if begun.is_some() || self.current.load().is_some() {
            return begun;
        }
        let (failures, next) = {
            let state = self.state();
            (state.failures, state.next_attempt)
        };
        if failures == 1 {
            tokio::time::sleep_until(next).await;
        }
        self.begin()
    }

    async fn load(&self) -> Result<KeySet, FetchError> {
        let jwks_url = match &self.jwks_url {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let document = self.fetch(&jwks_url).await?;
        Ok(KeySet::read(&document)?)
    }

    async fn fetch(&self, url: &Url) -> Result<Bytes, FetchError> {
        match &self.fetch {
            Some(fetch) => fetch.fetch(url).await,
            None => Err(FetchError::NotYet),
        }
    }

    /// OpenID Connect Discovery 1.0 section 4: the document must be of this very issuer.
    async fn discover(&self) -> Result<Url, FetchError> {
        let below = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let url = Url::parse(&below).map_err(|_| FetchError::Discovery("its address is malformed"))?;
        let document = types::json::object(&self.fetch(&url).await?)
            .map_err(|_| FetchError::Discovery("it is not a JSON object, or an object in it has a key twice"))?;
        if document.get("issuer").and_then(|v| v.as_str()) != Some(self.url.as_str()) {
            return Err(FetchError::Discovery("its issuer is not the configured url, byte for byte"));
        }
        let jwks_uri = document.get("jwks_uri").and_then(|v| v.as_str()).unwrap_or_default();
        acceptable_url(jwks_uri, self.http_loopback).map_err(|_| FetchError::Discovery("its jwks_uri is not https"))
    }

    fn finish(&self, result: Result<KeySet, FetchError>) {
        let mut state = self.state();
        let result = result.map(|set| self.accept(state.given.as_ref(), set));
        let now = Instant::now();
        state.in_flight = None;
        match result {
            Ok(set) => {
                let old = self.current.load();
                let changed = old.as_ref().is_none_or(|old| !old.set.same(&set));
                let pause = state.pause(changed && old.is_some(), now);
                (state.failures, state.error, state.next_attempt) = (0, None, now + pause);
                let generation = old.as_ref().map_or(1, |old| old.generation) + u64::from(changed);
                if let (true, (count, Some(why))) = (changed, set.left_out) {
                    tracing::warn!(issuer = self.issuer, count, %why, "keys of the issuer are not used");
                }
                if changed {
                    tracing::info!(issuer = self.issuer, keys = set.keys.len(), "read the issuer's keys");
                }
                self.current.store(Some(Arc::new(Snapshot { set, read: now, generation, fetched: true })));
            }
            Err(error) => {
                let pause = Duration::from_secs(1 << state.failures.min(5)).min(BACKOFF_MAX);
                // Not one line per attempt: an issuer may be out of reach for days while pinned keys serve.
                if (state.failures + 1).is_power_of_two() {
                    let failures = state.failures + 1;
                    tracing::warn!(issuer = self.issuer, %error, failures, "cannot read the issuer's keys");
                }
                state.failures = (state.failures + 1).min(1 << 30);
                state.error = Some(error);
                state.next_attempt = now + pause;
            }
        }
    }

    /// What of a set is accepted: all of it, or, where keys are pinned, what is pinned or follows a pinned key; with what
    /// the issuer itself gave. Called with the state locked, so that no older decision replaces a newer one.
    fn accept(&self, given: Option<&KeySet>, mut set: KeySet) -> KeySet {
        if let Some(given) = given {
            set.add(given);
        }
        let Some(chain) = &self.chain else { return Chain::judge(set) };
        let mut chain = lock(chain);
        let before = chain.version();
        let accepted = chain.accept(set);
        if chain.version() != before {
            self.learning.send_modify(|count| *count += 1);
        }
        accepted
    }
}

fn lock(chain: &Mutex<Chain>) -> MutexGuard<'_, Chain> {
    chain.lock().unwrap_or_else(PoisonError::into_inner)
}
