//! The keys of one issuer over time.
//!
//! - One fetch at a time; whoever needs it polls the same future, so that a request that goes away does not waste it.
//! - An unknown `kid` asks the issuer, but not more often than every [`REFETCH`]: a flood of made-up ids is one fetch.
//! - After a failure the next attempt waits longer each time, up to [`BACKOFF_MAX`]; what was read stays in use for
//!   `keys_max_age`.
//! - [`IssuerKeys::refresh_if_older`] keeps them fresh beside the requests; where nobody calls it, one request in
//!   [`STALE`] waits for at most [`STALE_WAIT`].
//! - Pinned: keys are accepted from the start or because an accepted one vouches for them; an issuer that is taken over
//!   can withhold keys but not bring its own (DESIGN.md section 2).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::{FutureExt as _, future::Shared};
use tokio::time::{Instant, timeout};
use url::Url;

use super::{
    config::{Issuer, KeySource, acceptable_url},
    error::TokenError,
    fetch::{Boxed, FETCH_DEADLINE, Fetch, FetchError},
    jwk::{Algorithm, JwkError, Key, KeySet},
    jws,
};

/// At least so long between two fetches, however many unknown key ids are shown.
pub const REFETCH: Duration = Duration::from_secs(15);
/// The longest pause after failures.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How old keys become when somebody keeps them fresh.
pub const FRESH: Duration = Duration::from_secs(300);
/// How old keys become when nobody does.
pub const STALE: Duration = Duration::from_secs(600);
/// How long a request waits to renew keys that still serve.
const STALE_WAIT: Duration = Duration::from_secs(1);
/// Keys that may vouch for others, over the life of the process.
const ATTESTORS: usize = 256;
/// `typ` of an attestation.
const ATTESTATION: &str = "towline-key+jws";

/// What came of asking one issuer for its keys.
#[derive(Debug)]
pub struct Probe {
    /// The issuer's name.
    pub issuer: String,
    /// Its address.
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
    /// Pinned keys and those they vouched for; `None`: every key of the issuer is accepted.
    attestors: Option<Mutex<Vec<Arc<Key>>>>,
    current: ArcSwapOption<Snapshot>,
    state: Mutex<State>,
}

struct Snapshot {
    set: KeySet,
    read: Instant,
    generation: u64,
}

struct State {
    in_flight: Option<Shared<Boxed<()>>>,
    next_attempt: Instant,
    failures: u32,
    error: Option<FetchError>,
}

impl IssuerKeys {
    pub(super) fn new(issuer: &Issuer, fetch: Arc<dyn Fetch>) -> Self {
        let now = Instant::now();
        let (initial, fetch, attestors) = match &issuer.keys {
            KeySource::Static(set) => (Some(set.clone()), None, None),
            KeySource::Discovered => (None, Some(fetch), None),
            KeySource::Pinned(set) => (Some(set.clone()), Some(fetch), Some(Mutex::new(set.keys.clone()))),
        };
        let snapshot = initial.map(|set| Arc::new(Snapshot { set, read: now, generation: 1 }));
        Self(Arc::new(Inner {
            issuer: issuer.name.clone(),
            url: issuer.url.clone(),
            jwks_url: issuer.jwks_url.clone(),
            http_loopback: issuer.http_loopback,
            max_age: issuer.keys_max_age,
            fetch,
            attestors,
            current: ArcSwapOption::new(snapshot),
            state: Mutex::new(State { in_flight: None, next_attempt: now, failures: 0, error: None }),
        }))
    }

    /// Changes with the set of keys: a decision made under another one is made again.
    pub(super) fn generation(&self) -> u64 {
        self.0.current.load().as_ref().map_or(0, |snapshot| snapshot.generation)
    }

    /// The key that a header means, and the generation of its set; asks the issuer where it must and may.
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<(Arc<Key>, u64), TokenError> {
        match self.look(kid, algorithm) {
            Ok((key, generation, age)) => {
                if age > STALE && self.0.fetch.is_some() {
                    self.refresh_beside().await;
                    return self.look(kid, algorithm).map(|(key, generation, _)| (key, generation));
                }
                Ok((key, generation))
            }
            Err(TokenError::UnknownKey | TokenError::KeysUnavailable(_)) if self.0.fetch.is_some() => {
                if let Some((fetching, _)) = self.0.begin_soon().await {
                    fetching.await;
                }
                match self.look(kid, algorithm) {
                    Err(TokenError::UnknownKey) => Err(self.0.unknown()),
                    other => other.map(|(key, generation, _)| (key, generation)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the keys again if they are older than this; returns when that ended, either way.
    pub(super) async fn refresh_if_older(&self, than: Duration) {
        let fresh = self.0.current.load().as_ref().is_some_and(|s| s.generation > 1 && s.read.elapsed() < than);
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
            pinned: self.0.attestors.is_some(),
            keys: error.map_or(Ok(keys), Err),
        }
    }

    /// Only who began it waits, and not for long: the keys at hand serve.
    async fn refresh_beside(&self) {
        if let Some((fetching, true)) = self.0.begin() {
            let _ = timeout(STALE_WAIT, fetching).await;
        }
    }

    fn look(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<(Arc<Key>, u64, Duration), TokenError> {
        let current = self.0.current.load();
        let Some(snapshot) = current.as_ref() else { return Err(self.0.unavailable()) };
        let age = snapshot.read.elapsed();
        if age > self.0.max_age && self.0.fetch.is_some() && self.0.attestors.is_none() {
            return Err(self.0.unavailable());
        }
        snapshot.set.find(kid, algorithm).map(|key| (key.clone(), snapshot.generation, age))
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
        let document = crate::json::object(&self.fetch(&url).await?)
            .map_err(|_| FetchError::Discovery("it is no JSON object, or an object in it has a key twice"))?;
        if document.get("issuer").and_then(|v| v.as_str()) != Some(self.url.as_str()) {
            return Err(FetchError::Discovery("its issuer is not the configured url, byte for byte"));
        }
        let jwks_uri = document.get("jwks_uri").and_then(|v| v.as_str()).unwrap_or_default();
        acceptable_url(jwks_uri, self.http_loopback).map_err(|_| FetchError::Discovery("its jwks_uri is not https"))
    }

    fn finish(&self, result: Result<KeySet, FetchError>) {
        let result = result.map(|set| self.accept(set));
        let mut state = self.state();
        let now = Instant::now();
        state.in_flight = None;
        match result {
            Ok(set) => {
                (state.failures, state.error, state.next_attempt) = (0, None, now + REFETCH);
                let old = self.current.load();
                let changed = old.as_ref().is_none_or(|old| !old.set.same(&set));
                let generation = old.as_ref().map_or(1, |old| old.generation) + u64::from(changed);
                if let (true, (count, Some(why))) = (changed, set.left_out) {
                    tracing::warn!(issuer = self.issuer, count, %why, "keys of the issuer are not used");
                }
                if changed {
                    tracing::info!(issuer = self.issuer, keys = set.keys.len(), "read the issuer's keys");
                }
                // The first set that was fetched has generation 2, so that a pinned one counts as never fetched.
                let generation = generation.max(2);
                self.current.store(Some(Arc::new(Snapshot { set, read: now, generation })));
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

    /// What of a fetched set is accepted: all of it, or, where keys are pinned, what is pinned or vouched for.
    fn accept(&self, mut set: KeySet) -> KeySet {
        let Some(attestors) = &self.attestors else { return set };
        let mut attestors = attestors.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, mut accepted) = (std::mem::take(&mut set.keys), Vec::new());
        loop {
            let before = waiting.len();
            waiting.retain(|key| {
                let known = attestors.iter().any(|a| a.thumbprint == key.thumbprint);
                let ok = known || attestors.iter().any(|attestor| vouches(attestor, key));
                if ok {
                    accepted.push(key.clone());
                    if !known && attestors.len() < ATTESTORS {
                        attestors.push(key.clone());
                    }
                }
                !ok
            });
            if waiting.len() == before || waiting.is_empty() {
                break;
            }
        }
        waiting.iter().for_each(|_| set.leave_out(JwkError::NotAttested));
        set.keys = accepted;
        set
    }
}

/// Whether `attestor` signed the thumbprint of `key`.
fn vouches(attestor: &Key, key: &Key) -> bool {
    let Some(parts) = key.attestation.as_deref().and_then(|jws| jws::parts(jws).ok()) else { return false };
    let Some(algorithm) = Algorithm::from_name(&parts.header.alg) else { return false };
    parts.header.typ.as_deref() == Some(ATTESTATION)
        && parts.header.kid.is_some()
        && (parts.header.kid == attestor.kid || parts.header.kid.as_ref() == Some(&attestor.thumbprint))
        && parts.payload == key.thumbprint.as_bytes()
        && attestor.verify(algorithm, parts.signed, &parts.signature).is_ok()
}
