//! OIDC verification, the same code at the gateway and in the cluster (each with its own configuration: the agent
//! trusts nothing that the gateway says about a user).
//!
//! The way of a token: the decisions already made (`decisions`); its syntax, before any cryptography (`jws`,
//! `json`); a proof of possession around it (`pop`); its issuer, byte for byte (`config`); the key (`keys`,
//! `jwk`, `fetch`) and the signature; its kind, times and audience (`claims`); who it speaks for (`identity`,
//! `names`). Every check that fails is one [`TokenError`].
//!
//! A token that is no JWT, or of an issuer that is not configured, is [`TokenError::is_foreign`]: it may be a service
//! account's, which the cluster alone can judge. Every other refusal is final.

mod claims;
mod config;
mod decisions;
mod ends;
mod error;
mod fetch;
mod identity;
mod jwk;
mod jws;
mod keys;
mod names;
mod pop;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use certs::Roots;
use serde_json::{Map, Value};
use tokio::sync::watch;

pub use self::{
    config::{
        Fault, Faults, ISSUER_KEYS, Issuer, IssuerKind, OWN_ISSUER_PATH, ObjectId, OneOrMore, Pop, RawIssuer, Tokens,
    },
    decisions::KEEP,
    ends::{Ends, TokenEnd},
    error::{DOCUMENT_BYTES, FETCH_DEADLINE, FetchError, KeySetError, PopError, TokenError},
    fetch::{Boxed, Connect, Direct, Fetch, HttpsFetch, Socket},
    identity::{CREDENTIAL, Details, GroupsResolver, Identity, Overage, SignIn},
    jwk::Algorithm,
    keys::{BACKOFF_MAX, FRESH, Probe, REFETCH, STALE},
};
use self::{
    decisions::{Decision, Decisions},
    jws::Compact,
    keys::{Found, IssuerKeys},
};

/// What the audience of a cluster begins with ([`types::ids::ClusterId::audience`]); the rest is the ARM id, which is
/// what `u` of a proof of possession must be.
const CLUSTER_AUDIENCE: &str = "towline:cluster:";

/// Whose token it is, read from `iss` without trust: to choose a way, never to allow anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKind {
    /// The configured issuer of this name.
    Issuer(String),
    /// No JWT, or of no configured issuer: perhaps a service account's.
    Foreign,
}

/// Verifies tokens of a set of issuers. Cheap to share in an `Arc`; a changed configuration is a new one.
pub struct Verifier {
    issuers: Vec<Trusted>,
    decisions: Decisions,
    groups: Option<Arc<dyn GroupsResolver>>,
    learning: watch::Sender<u64>,
}

struct Trusted {
    config: Issuer,
    keys: IssuerKeys,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.issuers.iter().map(|issuer| &issuer.config.name)).finish()
    }
}

impl TokenKind {
    /// Which issuer of the verifier a token names.
    ///
    /// # Errors
    /// For a token that can be nobody's: broken, or hostile.
    pub fn of(verifier: &Verifier, token: &str) -> Result<Self, TokenError> {
        let place = jws::parse(token).and_then(|compact| match compact.header.typ.as_deref() {
            Some(pop::TYPE) => verifier.issuer_of(&jws::parse(pop::access_token(&compact)?)?),
            _ => verifier.issuer_of(&compact),
        });
        match place {
            Ok(place) => Ok(Self::Issuer(verifier.issuers[place].config.name.clone())),
            Err(error) if error.is_foreign() => Ok(Self::Foreign),
            Err(error) => Err(error),
        }
    }
}

/// The audiences that a token names, **not verified**: for choosing what to verify it against, never for deciding
/// anything. A proof of possession names the cluster in its `u`. Empty for what is no JWT.
pub fn claimed_audiences(token: &str) -> Vec<String> {
    let Ok(compact) = jws::parse(token) else { return Vec::new() };
    if compact.header.typ.as_deref() == Some(pop::TYPE) {
        let host = compact.payload.get("u").and_then(serde_json::Value::as_str);
        return host.map(|host| format!("{CLUSTER_AUDIENCE}{}", host.to_ascii_lowercase())).into_iter().collect();
    }
    match compact.payload.get("aud") {
        Some(serde_json::Value::String(audience)) => vec![audience.clone()],
        Some(serde_json::Value::Array(several)) => {
            several.iter().filter_map(|audience| audience.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

/// A statement of an issuer that holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Statement {
    /// What it says.
    pub claims: serde_json::Map<String, serde_json::Value>,
    /// Thumbprint (RFC 7638) of the key that signed it ([`Verifier::has_revoked`]).
    pub key: String,
}

impl Verifier {
    /// Reads keys over HTTPS; `connect` opens the connections ([`Direct`], or through a proxy).
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(issuers: Vec<Issuer>, connect: Arc<dyn Connect>) -> Result<Self, certs::tls::TlsError> {
        let public = std::sync::LazyLock::new(Roots::public);
        let mut fetching = Vec::with_capacity(issuers.len());
        for issuer in issuers {
            let roots = issuer.roots.clone().unwrap_or_else(|| public.clone());
            let tls = Arc::new(certs::tls::client_https(&roots)?);
            let fetch: Arc<dyn Fetch> = Arc::new(HttpsFetch::new(tls, connect.clone()));
            fetching.push((issuer, fetch));
        }
        Ok(Self::build(fetching))
    }

    /// Reads keys of all issuers through `fetch`.
    pub fn with_fetch(issuers: Vec<Issuer>, fetch: &Arc<dyn Fetch>) -> Self {
        Self::build(issuers.into_iter().map(|issuer| (issuer, fetch.clone())).collect())
    }

    fn build(issuers: Vec<(Issuer, Arc<dyn Fetch>)>) -> Self {
        let learning = watch::Sender::new(0);
        let trusted = |(config, fetch)| Trusted { keys: IssuerKeys::new(&config, fetch, learning.clone()), config };
        let issuers = issuers.into_iter().map(trusted).collect();
        Self { issuers, decisions: Decisions::new(), groups: None, learning }
    }

    /// What was learned of issuers whose keys are pinned: keys that followed, and ends of keys. A JSON text that
    /// [`Self::learn`] reads; `None` if nothing was learned. A restarted process without it would believe revoked keys
    /// again until an issuer tells it.
    pub fn learned(&self) -> Option<String> {
        let learned =
            self.issuers.iter().filter_map(|issuer| Some((issuer.keys.url().to_owned(), issuer.keys.learned()?)));
        let learned: Map<String, Value> = learned.collect();
        (!learned.is_empty()).then(|| Value::Object(learned).to_string())
    }

    /// Takes what [`Self::learned`] told, of this process or another. Everything in it is signed, and counts only as
    /// far as it follows from the pinned keys.
    ///
    /// # Errors
    /// When it is no such text. What could be read of it counts.
    pub fn learn(&self, kept: &str) -> Result<(), KeySetError> {
        let kept = types::json::object(kept.as_bytes()).map_err(|_| KeySetError::Json)?;
        let of = |issuer: &Trusted| kept.get(issuer.keys.url()).map(|kept| (kept.as_object(), issuer.keys.clone()));
        let each = self.issuers.iter().filter_map(of);
        each.map(|(kept, keys)| keys.learn(kept.ok_or(KeySetError::Shape)?)).fold(Ok(()), Result::and)
    }

    /// Takes the keys that the issuer at `url` publishes now, where they are at hand without asking it: a JWKS document,
    /// and the newest that there is. A key that is revoked in it verifies nothing from now on. Nothing happens where the
    /// issuer's keys come from a file, or it is none of this verifier's.
    ///
    /// # Errors
    /// When it is no key set.
    pub fn take_keys(&self, url: &str, published: &Value) -> Result<(), KeySetError> {
        let set = jwk::KeySet::read(published.to_string().as_bytes())?;
        self.issuers.iter().filter(|issuer| issuer.keys.url() == url).for_each(|issuer| issuer.keys.take(set.clone()));
        Ok(())
    }

    /// Whether a key of the issuer of this name, by its thumbprint ([`Details::key`]), is known to be revoked: what a token
    /// of it opened counts no longer. A key that was only replaced is not: its tokens are good until they end.
    pub fn has_revoked(&self, issuer: &str, key: &str) -> bool {
        self.issuers.iter().any(|trusted| trusted.config.name == issuer && trusted.keys.has_revoked(key))
    }

    /// Whether a kept text has everything that [`Self::learned`] has.
    pub fn is_kept(&self, kept: &str) -> bool {
        let kept = types::json::object(kept.as_bytes()).unwrap_or_default();
        let of = |issuer: &Trusted| kept.get(issuer.keys.url()).and_then(Value::as_object).cloned();
        self.issuers.iter().all(|issuer| issuer.keys.is_kept(of(issuer).as_ref()))
    }

    /// The issuer of which a kept text has another successor of a key than [`Self::learned`]: somebody who has an older
    /// private key has deceived this process, or the one that kept the text. What was kept first must stay.
    pub fn forked_by(&self, kept: &str) -> Option<&str> {
        let kept = types::json::object(kept.as_bytes()).ok()?;
        let is_forked = |keys: &IssuerKeys| {
            let kept = kept.get(keys.url()).and_then(Value::as_object);
            kept.is_some_and(|kept| keys.is_forked_by(kept))
        };
        self.issuers.iter().map(|issuer| &issuer.keys).find(|keys| is_forked(keys)).map(|keys| keys.url())
    }

    /// Changes when there is more to keep.
    pub fn learning(&self) -> watch::Receiver<u64> {
        self.learning.subscribe()
    }

    /// Looks up groups that an issuer left out; without it such tokens are refused.
    #[must_use]
    pub fn with_groups_resolver(mut self, resolver: Arc<dyn GroupsResolver>) -> Self {
        self.groups = Some(resolver);
        self
    }

    /// Keeps all issuers' keys fresh, and no decisions that have ended; runs until dropped. Whoever owns the verifier
    /// runs it beside, so that no request waits for an issuer; without it requests read keys when they need them.
    pub async fn keep_fresh(&self) {
        let mut tick = tokio::time::interval(Duration::from_secs(30));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.decisions.sweep(SystemTime::now());
            futures_util::future::join_all(self.issuers.iter().map(|issuer| issuer.keys.refresh_if_older(FRESH))).await;
        }
    }

    /// Asks every issuer for its keys now: whether tokens could be verified at all.
    pub async fn probe(&self) -> Vec<Probe> {
        futures_util::future::join_all(self.issuers.iter().map(|issuer| issuer.keys.probe())).await
    }

    /// The whole check of one token: syntax, issuer, signature, times, audience, claims; and of a proof of possession
    /// around it. `audience` is what the token must be for, beside the issuer's configured audiences: for a cluster
    /// [`types::ids::ClusterId::audience`], whose ARM id a proof must name.
    ///
    /// # Errors
    /// One [`TokenError`] per check.
    pub async fn verify(&self, token: &str, audience: &str, now: SystemTime) -> Result<Arc<Identity>, TokenError> {
        if token.len() > types::limits::TOKEN_BYTES {
            return jws::parse(token).and(Err(TokenError::Opaque));
        }
        let digest = jws::sha256(&[&audience.len().to_be_bytes(), audience.as_bytes(), token.as_bytes()]);
        let kept = || self.decisions.kept(&digest, now).filter(|decision| self.is_current(decision));
        if let Some(decision) = kept() {
            return Ok(decision.identity.clone());
        }
        // Boxed: it is large, because it may have to read keys over HTTPS, and most requests do not get here.
        let deciding = Box::pin(self.decisions.decide(digest, async {
            // Somebody may have decided it between the look above and the claim to do so here.
            match kept() {
                Some(decision) => Ok(decision),
                None => self.decide(token, audience, now).await,
            }
        }));
        Ok(deciding.await?.identity.clone())
    }

    /// Whether [`Self::verify`] has to ask an issuer for its keys before it can judge this token: it may wait for long, and
    /// whoever makes up a key's name has it wait.
    pub fn must_ask(&self, token: &str) -> bool {
        let asks = |compact: &Compact<'_>| {
            let Trusted { config, keys } = &self.issuers[self.issuer_of(compact)?];
            let algorithm = Algorithm::from_name(&compact.header.alg).filter(|known| config.algorithms.contains(known));
            Ok(algorithm.is_some_and(|algorithm| keys.must_ask(compact.header.kid.as_deref(), algorithm)))
        };
        let asks = jws::parse(token).and_then(|compact| match compact.header.typ.as_deref() {
            Some(pop::TYPE) => asks(&jws::parse(pop::access_token(&compact)?)?),
            _ => asks(&compact),
        });
        asks.unwrap_or(false)
    }

    /// A statement that an issuer signed beside its tokens: a compact JWS of type `kind` for `audience`, in its time.
    /// `kind` must be none of a token's, so that neither passes for the other.
    ///
    /// # Errors
    /// One [`TokenError`] per check, as for tokens.
    pub async fn verify_statement(
        &self,
        statement: &str,
        issuer: &str,
        kind: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<Statement, TokenError> {
        let compact = jws::parse(statement)?;
        let place = self.issuer_of(&compact)?;
        let Trusted { config, keys } = &self.issuers[place];
        if config.name != issuer {
            return Err(TokenError::UnknownIssuer);
        }
        if compact.header.typ.as_deref() != Some(kind) {
            return Err(TokenError::Kind);
        }
        let algorithm = Algorithm::from_name(&compact.header.alg)
            .filter(|algorithm| config.algorithms.contains(algorithm))
            .ok_or_else(|| jwk::refused(&compact.header.alg))?;
        let Found { key, end, .. } = keys.find(compact.header.kid.as_deref(), algorithm).await?;
        key.verify(algorithm, compact.signed, &compact.signature)?;
        claims::before_end(claims::times(&compact.payload, config.skew, now)?, end)?;
        match compact.payload.get("aud").and_then(serde_json::Value::as_str) {
            Some(shown) if shown == audience => Ok(Statement { claims: compact.payload, key: key.thumbprint.clone() }),
            _ => Err(TokenError::Audience),
        }
    }

    fn is_current(&self, decision: &Decision) -> bool {
        self.issuers.get(decision.issuer).is_some_and(|issuer| issuer.keys.generation() == decision.generation)
    }

    async fn decide(&self, token: &str, audience: &str, now: SystemTime) -> Result<Arc<Decision>, TokenError> {
        let compact = jws::parse(token)?;
        if compact.header.typ.as_deref() == Some(pop::TYPE) {
            return self.with_proof(&compact, audience, now).await;
        }
        let place = self.issuer_of(&compact)?;
        // A token that names a key is worth nothing without its proof (RFC 7800), whatever is configured.
        if self.issuers[place].config.pop == Pop::Required || compact.payload.contains_key("cnf") {
            return Err(TokenError::PopRequired);
        }
        self.judge(&compact, place, audience, now, None).await
    }

    async fn with_proof(
        &self,
        outer: &Compact<'_>,
        audience: &str,
        now: SystemTime,
    ) -> Result<Arc<Decision>, TokenError> {
        let host = audience.strip_prefix(CLUSTER_AUDIENCE).unwrap_or(audience);
        let default = (Duration::from_secs(900), Duration::from_secs(30));
        let inner = match pop::access_token(outer) {
            Ok(token) => jws::parse(token).map_err(|e| match e {
                TokenError::Opaque => PopError::AccessToken.into(),
                other => other,
            })?,
            // The checks before that of the access token come first.
            Err(e) => return Err(pop::check(outer, Err(e), host, default.0, default.1, now).err().unwrap_or(e).into()),
        };
        if inner.header.typ.as_deref() == Some(pop::TYPE) {
            return Err(PopError::Nested.into());
        }
        let place = self.issuer_of(&inner)?;
        let config = &self.issuers[place].config;
        if config.pop == Pop::Off {
            return Err(TokenError::PopOff);
        }
        let until = pop::check(outer, Ok(&inner), host, config.pop_validity, config.skew, now)?;
        self.judge(&inner, place, audience, now, Some(until)).await
    }

    /// The issuer that a token names. No trust in it before the signature holds.
    fn issuer_of(&self, compact: &Compact<'_>) -> Result<usize, TokenError> {
        let iss = compact.payload.get("iss").and_then(serde_json::Value::as_str);
        let known = |iss| self.issuers.iter().position(|issuer| issuer.config.url == iss);
        iss.and_then(known).ok_or(TokenError::UnknownIssuer)
    }

    async fn judge(
        &self,
        compact: &Compact<'_>,
        place: usize,
        audience: &str,
        now: SystemTime,
        proof_until: Option<SystemTime>,
    ) -> Result<Arc<Decision>, TokenError> {
        let Trusted { config, keys } = &self.issuers[place];
        let algorithm = Algorithm::from_name(&compact.header.alg)
            .filter(|algorithm| config.algorithms.contains(algorithm))
            .ok_or_else(|| jwk::refused(&compact.header.alg))?;
        let Found { key, end, generation, .. } = keys.find(compact.header.kid.as_deref(), algorithm).await?;
        key.verify(algorithm, compact.signed, &compact.signature)?;
        let expires = claims::check(&compact.header, &compact.payload, config, audience, now)?;
        claims::before_end(expires, end)?;
        let resolved = match identity::overage(&compact.payload, config)? {
            None => None,
            Some(overage) => Some(self.resolve(overage).await?),
        };
        let identity = Arc::new(identity::identity(&compact.payload, config, resolved, expires, &key.thumbprint)?);
        let until = expires.min(now + KEEP).min(proof_until.unwrap_or(expires));
        let from = now - config.skew;
        Ok(Arc::new(Decision { identity, issuer: place, generation, made: Instant::now(), from, until }))
    }

    async fn resolve(&self, overage: Overage) -> Result<Vec<String>, TokenError> {
        let refused = TokenError::GroupsOverage { service_principal: overage.service_principal };
        match &self.groups {
            Some(resolver) => resolver.resolve(overage).await.ok_or(refused),
            None => Err(refused),
        }
    }
}

#[cfg(test)]
mod tests;
