//! Pulls the roles and assignments that concern this cluster from the gateway, for [`Authorizer`] to decide by: as soon
//! as they change, and again before their statement expires. While the gateway cannot be reached, the last snapshot
//! stays in use until its statement expires. Each process that decides by assignments runs this role.
//!
//! Guard answers the apiserver also while there is no tunnel. So it keeps the last snapshot in a Secret, which its next
//! pod reads when it starts ([`kept`]). `clusterconnect-agent` keeps none, for without a tunnel nobody asks it.

pub mod kept;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use auth::rbac::snapshot::{DOCUMENT_BYTES, Omitted, Signed};
use daemon::{Backoff, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use types::agent_api::paths;

use self::kept::{Kept, Store};
use super::{Entry, Role, health::Reporter, kube_aad_proxy::authorize::Authorizer, parts::Parts};
use crate::{
    chain,
    config::Deployment,
    tunnel::api::{AGAIN, AgentApi},
};

/// This role's name.
pub const NAME: &str = "assignment-sync-agent";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ClusterconnectAgent, Deployment::Guard],
    build: |parts| {
        let authorizer = parts.judges.as_ref().map(|judges| judges.authorizer.clone());
        // Only where the settings name who vouches for roles and assignments.
        let authorizer = authorizer.filter(|authorizer| authorizer.is_on());
        let sync = |authorizer| {
            let sync = AssignmentSync::new(parts.api.clone(), authorizer, parts.health.of(NAME));
            AssignmentSync { kept: kept_by(parts), ..sync }
        };
        Ok(authorizer.map(|authorizer| Arc::new(sync(authorizer)) as Arc<dyn Role>))
    },
};

/// A statement is fetched anew when it is so old, though nothing has changed; the gateway's hold for an hour.
const FRESH: Duration = Duration::from_secs(20 * 60);
/// Bytes of an answer at most: a document as JSON text in JSON, where every quote is two bytes.
const ANSWER_BYTES: usize = 2 * DOCUMENT_BYTES + 64 * 1024;
/// Between two questions, however soon the gateway answers.
const PAUSE: Duration = Duration::from_millis(200);

/// Where guard keeps its snapshot: beside its certificates.
fn kept_by(parts: &Parts) -> Option<Kept> {
    let store = match &parts.config.guard.as_ref()?.directory {
        Some(directory) => Store::Directory(directory.clone()),
        None => Store::Cluster(parts.kubernetes.clone()?),
    };
    Some(Kept::new(store, parts.clock.clone()))
}

/// Asks the gateway for the roles and assignments of this cluster, and hands them to the authorizer.
pub struct AssignmentSync {
    api: AgentApi,
    authorizer: Arc<Authorizer>,
    health: Reporter,
    kept: Option<Kept>,
    warnings: Mutex<Warnings>,
}

/// What people are told beside how the role fares.
#[derive(Default)]
struct Warnings {
    omitted: Option<String>,
    kept: Option<String>,
}

impl AssignmentSync {
    /// Asks over the tunnel.
    pub fn new(api: AgentApi, authorizer: Arc<Authorizer>, health: Reporter) -> Self {
        Self { api, authorizer, health, kept: None, warnings: Mutex::default() }
    }

    fn warn(&self, change: impl FnOnce(&mut Warnings)) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut warnings);
        self.health.warnings(warnings.omitted.iter().chain(&warnings.kept).cloned().collect());
    }

    async fn keep(&self) {
        if let Some(kept) = &self.kept {
            kept.keep(&self.authorizer, |warning| self.warn(|warnings| warnings.kept = warning)).await;
        }
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(AGAIN);
        let mut known: Option<(String, Instant)> = None;
        loop {
            self.api.up().await;
            let after = known.as_ref().filter(|(_, taken)| taken.elapsed() < FRESH).map(|(etag, _)| etag.as_str());
            let path = match after {
                Some(etag) => format!("{}?after={etag}", paths::POLICY),
                None => paths::POLICY.to_owned(),
            };
            let wait = match self.ask(&path).await {
                Ok(None) => PAUSE,
                Ok(Some(etag)) => {
                    backoff.reset();
                    self.health.running();
                    known = Some((etag, Instant::now()));
                    PAUSE
                }
                Err(fault) => {
                    tracing::warn!(error = fault.message, "roles and assignments are not known anew");
                    self.health.failing(fault.reason, &fault.message);
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                    fault.retry_after.unwrap_or(wait).max(wait)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// The etag of what was taken.
    async fn ask(&self, path: &str) -> Result<Option<String>, Fault> {
        let unreachable = |err: crate::tunnel::api::ApiError| Fault {
            reason: "Unreachable",
            message: chain(&err),
            retry_after: err.retry_after(),
        };
        let Some(signed) = self.api.poll::<Signed>(path, ANSWER_BYTES).await.map_err(unreachable)? else {
            return Ok(None);
        };
        let etag: String = signed.etag.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
        let taken = self.authorizer.take(&signed, SystemTime::now()).await.map_err(|err| Fault {
            reason: "NotTaken",
            message: chain(&err),
            retry_after: None,
        })?;
        tracing::debug!(revision = self.authorizer.revision(), "roles and assignments are known");
        let warning = signed.omitted.as_ref().map(warning);
        if let Some(warning) = &warning {
            tracing::warn!(warning, "the roles of this cluster are not complete");
        }
        self.health.running();
        self.warn(|warnings| warnings.omitted = warning);
        if let Some(kept) = &self.kept {
            kept.offer(signed, taken).await;
        }
        Ok(Some(etag))
    }
}

/// What a gateway says that it left out. Nobody has signed it: it makes up no line of a log, and no long one.
fn warning(omitted: &Omitted) -> String {
    const CHARS: usize = 1000;
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    omitted.to_string().chars().take(CHARS).map(plain).collect()
}

struct Fault {
    reason: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl Role for AssignmentSync {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(async { tokio::join!(self.work(), self.keep()) }).await;
            if let Some(kept) = &self.kept {
                kept.last(&self.authorizer).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_told_in_one_plain_line() {
        let omitted = Omitted { assignments: 7, scopes: vec!["/a\nERROR \u{202e}x".to_owned(), "y".repeat(100_000)] };
        let told = warning(&omitted);
        assert!(told.starts_with("7 role assignments give no right"), "{told}");
        assert!(told.contains("/a?ERROR ?x") && told.len() <= 1000 && told.bytes().all(|b| (b' '..=b'~').contains(&b)));
    }
}
