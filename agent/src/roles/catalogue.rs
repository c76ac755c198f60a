//! The catalogue as this cluster accepts it, for the roles that install from it: extension-manager and upgrader. What
//! is trusted is kept in the cluster ([`Trusts`]), before anything of an index is used: a gateway that plays an old one
//! back later is refused even after a restart.

pub mod gateway;

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use catalogue::{
    digest::Sha256,
    index::{CatalogueId, Release},
    key::{KeyError, PublicKey},
    verify::{Trust, Verified, VerifiedChart},
};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use types::agent_api::{codes, decode};

use self::gateway::Library;
use super::objects::state::{Fault, Problem};
use crate::{chain, identity::clock::SharedClock};

/// Where a role keeps what it trusts.
pub trait Trusts: Send + Sync {
    /// The object that it is kept in, as a message names it.
    fn object(&self) -> &'static str;
    /// What pins the first keys of this role, as a message names it.
    fn pins(&self) -> &'static str;
    /// What is trusted, as it was kept.
    fn trust(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;
    /// Keeps what is trusted.
    fn keep_trust<'a>(&'a self, trust: &'a Value) -> BoxFuture<'a, Result<(), String>>;
}

/// A place that charts come from in place of the gateway.
pub trait Charts: Send + Sync {
    /// As messages name it.
    fn name(&self) -> &str;
    /// The archive of a version, not verified.
    fn chart<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<Bytes, Problem>>;
}

/// How soon the index is fetched again when that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// Between two looks, however many wait.
const PAUSE: Duration = Duration::from_secs(2);
/// Charts that are kept for repairs while the link is down, in bytes.
const KEPT_BYTES: usize = 48 * 1024 * 1024;

/// What the operator pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Keys that may sign the catalogue until an accepted index names others.
    pub keys: Vec<PublicKey>,
    /// The only catalogue whose index is accepted; absent if the operator pinned none.
    pub catalogue: Option<CatalogueId>,
}

/// A file of a pinned key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("cannot read the catalogue's key {}", .path.display())]
    File {
        /// The file, as the settings name it.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It holds no key.
    #[error("{} does not hold a key of a catalogue", .path.display())]
    Key {
        /// The file, as the settings name it.
        path: PathBuf,
        /// What is wrong with its content.
        #[source]
        source: KeyError,
    },
}

/// The pinned keys of the settings: given there, and in files.
///
/// # Errors
/// When a file holds no key.
pub fn read_keys(given: &[PublicKey], files: &[PathBuf]) -> Result<Vec<PublicKey>, KeysError> {
    let mut keys = given.to_vec();
    for path in files {
        let pem = std::fs::read(path).map_err(|source| KeysError::File { path: path.clone(), source })?;
        keys.push(PublicKey::from_pem(&pem).map_err(|source| KeysError::Key { path: path.clone(), source })?);
    }
    Ok(keys)
}

/// As it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    /// What the operator pinned when it was kept: other pins begin anew.
    pinned: Pinned,
    trust: Trust,
}

/// The index in use.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The last index that was verified; absent before the first one.
    pub verified: Option<Arc<Verified>>,
    /// Why the last one that came is not used, or why none came.
    pub problem: Option<Problem>,
}

/// Looks after the index and the charts.
pub struct Catalogue<'a, G> {
    gateway: &'a G,
    /// Where charts come from; none: from the gateway.
    registry: Option<&'a dyn Charts>,
    store: &'a dyn Trusts,
    pinned: Pinned,
    clock: SharedClock,
    /// How often the index is fetched.
    interval: Duration,
    known: watch::Sender<Known>,
    charts: Mutex<VecDeque<(Sha256, Arc<VerifiedChart>)>>,
    /// The digest of the index in use.
    digest: Mutex<Option<Sha256>>,
    wanted: Notify,
}

impl<'a, G: Library> Catalogue<'a, G> {
    /// Of the gateway, by what is pinned; its index is fetched so often.
    pub fn new(gateway: &'a G, store: &'a dyn Trusts, pinned: Pinned, clock: SharedClock, interval: Duration) -> Self {
        let (known, charts) = (watch::Sender::default(), Mutex::default());
        let (digest, wanted) = (Mutex::default(), Notify::new());
        Self { gateway, registry: None, store, pinned, clock, interval, known, charts, digest, wanted }
    }

    /// With charts from elsewhere. The index stays the gateway's.
    #[must_use]
    pub fn with_charts(mut self, registry: Option<&'a dyn Charts>) -> Self {
        self.registry = registry;
        self
    }

    /// The index in use, and changes of it.
    pub fn known(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// The index in use, unless it has expired: a gateway may withhold newer ones no longer than that.
    pub fn usable(&self) -> Known {
        if !self.has_expired() {
            return self.known.borrow().clone();
        }
        let message = "the catalogue's index has expired, and no newer one came: sign the catalogue again";
        Known { verified: None, problem: Some(Problem::passes("CatalogueExpired", message)) }
    }

    /// Somebody waits for a newer index.
    pub fn look_soon(&self) {
        self.wanted.notify_one();
    }

    /// Fetches the index over and over.
    pub async fn run(&self) {
        loop {
            self.gateway.up().await;
            let begun = Instant::now();
            let problem = self.look().await.err();
            if let Some(problem) = &problem {
                tracing::debug!(code = problem.code, problem = problem.message, "the catalogue's index is not used");
            }
            let wait = if problem.is_some() { LOOK_AGAIN.min(self.interval) } else { self.interval };
            self.known.send_if_modified(|known| {
                let changed = known.problem != problem;
                known.problem = problem;
                changed
            });
            tokio::time::sleep(PAUSE.saturating_sub(begun.elapsed())).await;
            let _ = tokio::time::timeout(wait, self.wanted.notified()).await;
        }
    }

    /// Fetches the index once.
    ///
    /// # Errors
    /// Why it is not used.
    pub async fn look(&self) -> Result<(), Problem> {
        if self.pinned.keys.is_empty() {
            let message = format!(
                "no key of a catalogue is pinned in this cluster: set the chart's {}, or connect the cluster again with a gateway that has a catalogue",
                self.store.pins()
            );
            return Err(Problem::stays("NoCatalogueKey", message));
        }
        let trust = self.trust().await?;
        let unreachable = |err: &dyn std::error::Error| Problem::of(Fault::Gateway, "CatalogueUnreachable", chain(err));
        let none =
            || Problem::passes(codes::NO_CATALOGUE, "the gateway has no catalogue; set catalogue in its configuration");
        let known = *self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match self.gateway.catalogue(known).await {
            Ok(Some(index)) => index,
            // Still the one in use, unless that has expired: then it is judged again.
            Ok(None) if known.is_some() && !self.has_expired() => return Ok(()),
            Ok(None) => {
                *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return Err(none());
            }
            Err(err) if err.refused().is_some_and(|refused| refused.status == 404) => return Err(none()),
            Err(err) => return Err(unreachable(&err)),
        };
        let (bytes, signatures) = (decode(&index.index), decode(&index.signatures));
        let refused = |why: String| {
            let message = format!("the gateway's catalogue is refused: {why}");
            Problem::passes("CatalogueRefused", message)
        };
        let (bytes, signatures) = bytes.zip(signatures).ok_or_else(|| refused("it is not base64".to_owned()))?;
        let verified = trust.verify(&bytes, &signatures, self.clock.now().into());
        let verified = verified.map_err(|err| refused(chain(&err)))?;
        if *verified.trust() != trust {
            self.keep(verified.trust()).await?;
        }
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Sha256::of(&bytes));
        let revision = verified.index().revision;
        self.known.send_if_modified(|known| {
            if known.verified.as_ref().is_some_and(|old| old.index().revision == revision) {
                return false;
            }
            known.verified = Some(Arc::new(verified));
            true
        });
        Ok(())
    }

    fn has_expired(&self) -> bool {
        let end = self.known.borrow().verified.as_ref().and_then(|verified| verified.index().expires);
        end.is_some_and(|end| std::time::SystemTime::from(end.0) <= self.clock.now())
    }

    async fn trust(&self) -> Result<Trust, Problem> {
        let not_read = |message: String| Problem::passes("TrustNotRead", message);
        let unread = |message: String| Problem::of(Fault::Cluster, "TrustNotRead", message);
        let Some(kept) = self.store.trust().await.map_err(unread)? else {
            return Ok(Trust::new(self.pinned.keys.clone(), self.pinned.catalogue.clone()));
        };
        let kept: Kept = serde_json::from_slice(&kept).map_err(|err| {
            let message = format!(
                "the {} cannot be understood ({err}): delete it to begin from the pinned keys; an older index may be played back then",
                self.store.object()
            );
            not_read(message)
        })?;
        if kept.pinned == self.pinned {
            return Ok(kept.trust);
        }
        tracing::warn!("other keys of a catalogue are pinned than before: they hold from now on");
        Ok(kept.trust.pinned_anew(self.pinned.keys.clone(), self.pinned.catalogue.clone()))
    }

    async fn keep(&self, trust: &Trust) -> Result<(), Problem> {
        let kept = json!({ "pinned": self.pinned, "trust": trust });
        let not_kept = |message| Problem::of(Fault::Cluster, "TrustNotKept", message);
        self.store.keep_trust(&kept).await.map_err(not_kept)
    }

    /// The chart of a version, from here or from the gateway.
    pub async fn chart(
        &self,
        verified: &Verified,
        extension_type: &str,
        release: &Release,
    ) -> Result<Arc<VerifiedChart>, Problem> {
        let digest = release.chart.sha256;
        if let Some(kept) = self.kept(digest) {
            return Ok(kept);
        }
        let what = format!("the chart {} {}", release.chart.name, release.version);
        let bytes = match self.registry {
            Some(registry) => registry.chart(release).await?,
            None => self.gateway.chart(digest).await.map_err(|err| {
                let fault = match err.refused() {
                    Some(refused) if matches!(refused.status, 400 | 404 | 410) => Fault::Object,
                    // It may be on its way to the gateway, and then comes soon; else somebody must do something.
                    Some(refused) if refused.code == codes::CHART_UNAVAILABLE => Fault::Cluster,
                    _ => Fault::Gateway,
                };
                Problem::of(fault, "ChartNotFetched", format!("{what} could not be fetched: {}", chain(&err)))
            })?,
        };
        let opened = verified.open(extension_type, &release.version, bytes.to_vec());
        let opened = opened.map_err(|err| {
            let sender = self.registry.map_or("the gateway", |registry| registry.name());
            Problem::passes("ChartRefused", format!("{what} that {sender} sent is refused: {}", chain(&err)))
        })?;
        let chart = Arc::new(opened);
        let mut charts = self.charts.lock().unwrap_or_else(PoisonError::into_inner);
        charts.push_back((digest, chart.clone()));
        while charts.len() > 1 && charts.iter().map(|(_, chart)| chart.bytes().len()).sum::<usize>() > KEPT_BYTES {
            charts.pop_front();
        }
        drop(charts);
        Ok(chart)
    }

    fn kept(&self, digest: Sha256) -> Option<Arc<VerifiedChart>> {
        let charts = self.charts.lock().unwrap_or_else(PoisonError::into_inner);
        charts.iter().find(|(of, _)| *of == digest).map(|(_, chart)| chart.clone())
    }
}
