//! The last snapshot of roles and assignments, kept for guard's next pod: one that starts while the gateway is away goes
//! on by it until its statement expires.
//!
//! A snapshot that is read there is verified like one that the gateway has just sent. So somebody who can write there can
//! remove it, or put back an older one whose statement has not expired, but cannot forge one. All pods of guard share one
//! kept snapshot: each reads it before it writes, writes only a newer one, and only if no other pod has written meanwhile.

use std::{
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use auth::{
    rbac::snapshot::{DOCUMENT_BYTES, Signed},
    token::TokenError,
};
use daemon::{Backoff, atomic, random_unit};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::watch, time};

use crate::{
    chain,
    identity::{clock::SharedClock, spell},
    roles::{
        kube_aad_proxy::authorize::{Authorizer, Judged, SnapshotError},
        kubernetes::problem,
    },
    tunnel::api::AGAIN,
};

/// The Secret of the agents' namespace that keeps it; the chart makes it, empty.
pub const SECRET: &str = "towline-guard-snapshot";
/// The key in the Secret, and the file in a folder: a [`Signed`] as JSON, compressed (RFC 1952).
pub const FILE: &str = "snapshot.json.gz";
/// Who writes it, in its managed fields.
const MANAGER: &str = super::NAME;
/// Bytes that are kept at most: a Secret has 1 MiB. Twelve thousand assignments fit, to users whose names are hashes.
const KEPT_BYTES: usize = 1_000_000;
/// Bytes that become of it at most.
const UNPACKED_BYTES: usize = super::ANSWER_BYTES;
/// Between two writes, however often assignments change.
const PAUSE: Duration = Duration::from_secs(15);
/// Between two attempts to read it at the start, at most.
const TRIES: Duration = Duration::from_secs(30);
/// The same document is written again once its statement is so much newer: guard gets one each twenty minutes.
const NEWER: Duration = Duration::from_secs(10 * 60);
/// How long a process that ends tries to keep what it has not kept yet.
const LAST: Duration = Duration::from_secs(3);

/// Where it is kept.
pub enum Store {
    /// In [`SECRET`].
    Cluster(Client),
    /// In a folder.
    Directory(PathBuf),
}

/// Keeps the last snapshot.
pub struct Kept {
    store: Store,
    clock: SharedClock,
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// What of it was seen to be kept.
    done: Mutex<Option<Arc<Wanted>>>,
}

/// What is to be kept.
struct Wanted {
    judged: Judged,
    /// Nothing: it is too large.
    packed: Option<Vec<u8>>,
}

impl Kept {
    /// In `store`.
    pub fn new(store: Store, clock: SharedClock) -> Self {
        Self { store, clock, wanted: watch::Sender::new(None), done: Mutex::default() }
    }

    /// Has this snapshot kept, which the gateway gave.
    pub async fn offer(&self, signed: Signed, judged: Judged) {
        let packed = tokio::task::spawn_blocking(move || pack(&signed)).await.unwrap_or_default();
        self.wanted.send_replace(Some(Arc::new(Wanted { judged, packed })));
    }

    /// Gives `authorizer` what is kept, and keeps what is offered from then on, for ever. `tell`: what people should know.
    pub async fn keep(&self, authorizer: &Authorizer, tell: impl Fn(Option<String>)) {
        self.resume(authorizer, &tell).await;
        let mut wanted = self.wanted.subscribe();
        wanted.mark_changed();
        let mut backoff = Backoff::new(AGAIN);
        while wanted.changed().await.is_ok() {
            let Some(latest) = wanted.borrow_and_update().clone() else { continue };
            let wait = match self.save(authorizer, &latest).await {
                Ok(warning) => {
                    backoff.reset();
                    tell(warning);
                    PAUSE
                }
                Err(problem) => {
                    let warning = format!("roles and assignments are not kept for the next pod: {problem}");
                    tracing::warn!(warning, "a pod that starts while the gateway is away may lack what is new");
                    tell(Some(warning));
                    wanted.mark_changed();
                    backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0)
                }
            };
            time::sleep(wait).await;
        }
    }

    /// Keeps what was offered last, if it is not kept yet, as the process ends.
    pub async fn last(&self, authorizer: &Authorizer) {
        let latest = self.wanted.borrow().clone();
        let Some(latest) = latest.filter(|latest| !self.is_done(latest)) else { return };
        match time::timeout(LAST, self.save(authorizer, &latest)).await {
            Ok(Ok(_)) => {}
            Ok(Err(problem)) => tracing::warn!(error = problem, "roles and assignments were not kept at the end"),
            Err(_) => {
                tracing::warn!("roles and assignments were not kept at the end: the store did not answer in time")
            }
        }
    }

    /// Once is enough: who takes away what is kept does not want it back before there is something new.
    fn is_done(&self, latest: &Arc<Wanted>) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.as_ref().is_some_and(|done| Arc::ptr_eq(done, latest))
    }

    /// Tries until it has read what is kept, or the gateway has said something.
    async fn resume(&self, authorizer: &Authorizer, tell: &impl Fn(Option<String>)) {
        let mut wanted = self.wanted.subscribe();
        let mut backoff = Backoff::new(AGAIN);
        while let Err(problem) = self.resume_once(authorizer).await {
            let warning = format!("the roles and assignments that an earlier pod kept are not used: {problem}");
            tracing::warn!(warning, "nobody has rights by assignments before the gateway has been heard");
            tell(Some(warning));
            let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0).min(TRIES);
            if time::timeout(wait, wanted.wait_for(Option::is_some)).await.is_ok() {
                return;
            }
        }
        tell(None);
    }

    /// Reads what is kept and gives it to `authorizer`, if it holds.
    ///
    /// # Errors
    /// What may be otherwise a little later: it could not be read, or the keys to verify it are not known yet.
    pub async fn resume_once(&self, authorizer: &Authorizer) -> Result<(), String> {
        let (kept, _) = self.store.load().await?;
        let Some(kept) = kept else { return Ok(()) };
        let now = self.clock.now();
        match judged(authorizer, kept, now).await {
            Ok(judged) => {
                let (revision, until) = (judged.revision(), spell(judged.ends()));
                if authorizer.resume(&judged, now) {
                    tracing::info!(revision, until, "roles and assignments are those that an earlier pod kept");
                }
                Ok(())
            }
            Err(Unfit::Refused(SnapshotError::Statement(err)))
                if err.is_unavailable() || matches!(err, TokenError::UnknownKey) =>
            {
                Err(chain(&err))
            }
            Err(Unfit::Refused(SnapshotError::Statement(TokenError::Expired { .. }))) => {
                tracing::info!("the roles and assignments that an earlier pod kept have expired");
                Ok(())
            }
            Err(unfit) => {
                let error = unfit.to_string();
                tracing::warn!(error, "what is kept as roles and assignments is refused; the gateway is waited for");
                Ok(())
            }
        }
    }

    /// Keeps this one unless a newer one is kept, or the same. What people should know.
    async fn save(&self, authorizer: &Authorizer, latest: &Arc<Wanted>) -> Result<Option<String>, String> {
        let warning = latest.packed.is_none().then(|| {
            format!(
                "the roles and assignments of this cluster take more than {KEPT_BYTES} bytes, compressed, and are not kept: a pod that starts while the gateway is away denies its users; assign fewer or smaller roles"
            )
        });
        let (kept, version) = self.store.load().await?;
        let nothing = kept.is_none();
        let known = match kept {
            Some(kept) => judged(authorizer, kept, self.clock.now()).await.ok(),
            None => None,
        };
        let suffices = known.is_some_and(|known| known.stands_for(&latest.judged, NEWER));
        // An older one must not come back where this one is too large.
        let same = latest.packed.is_none() && nothing;
        if !suffices && !same {
            self.store.save(latest.packed.as_deref(), version).await?;
            tracing::debug!(revision = latest.judged.revision(), "roles and assignments are kept for the next pod");
        }
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest.clone());
        Ok(warning)
    }
}

/// Why what is kept is not used.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("it is no compressed snapshot of at most {UNPACKED_BYTES} bytes")]
    Unreadable,
    #[error(transparent)]
    Refused(SnapshotError),
}

async fn judged(authorizer: &Authorizer, kept: Vec<u8>, now: std::time::SystemTime) -> Result<Judged, Unfit> {
    let signed = tokio::task::spawn_blocking(move || unpack(&kept)).await.ok().flatten().ok_or(Unfit::Unreadable)?;
    authorizer.judge(&signed, now).await.map_err(Unfit::Refused)
}

/// Nothing if it is too large.
fn pack(signed: &Signed) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(signed).ok()?;
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(&text).ok()?;
    packer.finish().ok().filter(|packed| packed.len() <= KEPT_BYTES)
}

/// Nothing if it is no snapshot, or a larger one than any is.
fn unpack(packed: &[u8]) -> Option<Signed> {
    let mut text = Vec::new();
    let bound = u64::try_from(UNPACKED_BYTES).unwrap_or(u64::MAX);
    GzDecoder::new(packed).take(bound + 1).read_to_end(&mut text).ok()?;
    let signed: Signed = (text.len() <= UNPACKED_BYTES).then(|| serde_json::from_slice(&text).ok()).flatten()?;
    (signed.document.len() <= DOCUMENT_BYTES).then_some(signed)
}

impl Store {
    /// What is kept, and its version.
    async fn load(&self) -> Result<(Option<Vec<u8>>, Option<String>), String> {
        match self {
            Self::Cluster(client) => {
                let secret = Api::<Secret>::default_namespaced(client.clone()).get(SECRET).await;
                let secret = secret.map_err(|err| problem(&format!("Secret {SECRET}"), &err))?;
                let kept = secret.data.unwrap_or_default().remove(FILE);
                Ok((kept.map(|ByteString(bytes)| bytes), secret.metadata.resource_version))
            }
            Self::Directory(dir) => {
                let path = dir.join(FILE);
                let kept = read_file(&path).map_err(|err| format!("{} cannot be read: {err}", path.display()))?;
                Ok((kept, None))
            }
        }
    }

    /// Keeps this, or nothing, if nobody has kept anything since `version`.
    async fn save(&self, packed: Option<&[u8]>, version: Option<String>) -> Result<(), String> {
        match self {
            Self::Cluster(client) => {
                let patch = json!({
                    "metadata": {"resourceVersion": version},
                    "data": {FILE: packed.map(types::agent_api::encode)},
                });
                let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                let secrets = Api::<Secret>::default_namespaced(client.clone());
                match secrets.patch(SECRET, &params, &Patch::Merge(&patch)).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        Err(format!("another pod has written Secret {SECRET} meanwhile; it is read again"))
                    }
                    Err(err) => Err(format!("Secret {SECRET} cannot be written: {}", chain(&err))),
                }
            }
            Self::Directory(dir) => {
                let path = dir.join(FILE);
                match packed {
                    Some(packed) => atomic::replace_in(dir, FILE, packed, atomic::PRIVATE).map_err(|err| chain(&err)),
                    None => match std::fs::remove_file(&path) {
                        Err(err) if err.kind() != io::ErrorKind::NotFound => {
                            Err(format!("{} cannot be removed: {err}", path.display()))
                        }
                        _ => Ok(()),
                    },
                }
            }
        }
    }
}

/// A larger file than is ever written is read as far as shows that.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(u64::try_from(KEPT_BYTES).unwrap_or(u64::MAX) + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
