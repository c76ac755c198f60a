//! Keeps what was learned of issuers' keys beside the cluster's certificate: a restarted agent must not believe a
//! revoked key again, nor follow a key of somebody who has an old one.
//!
//! All of it is signed by those keys and is checked again when it is read, so whoever writes there can take away but
//! not add. Several pods of one cluster write the same text: each reads it first, adds what it knows, and writes only
//! if nobody else wrote meanwhile. Of two successors of one key the first that was kept stays: a pod that was shown
//! another one keeps nothing, so that it cannot take the true one, nor a revocation by it, from the others.

use std::{sync::Arc, time::Duration};

use auth::token::Verifier;
use daemon::{Backoff, BackoffPolicy, random_unit};

use super::store::{Store, StoreError};
use crate::chain;

/// Waits after it could not be kept. A role that lacks the right to write (of an older chart) is reported once an hour.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(60),
    quick_for: Duration::from_secs(300),
    cap: Duration::from_secs(3600),
    steady_after: Duration::from_secs(60),
};

/// Keeps what `verifier` learns, for ever.
pub async fn keep(store: &Store, verifier: &Arc<Verifier>) {
    let mut learning = verifier.learning();
    let mut backoff = Backoff::new(AGAIN);
    loop {
        learning.mark_unchanged();
        match keep_now(store, verifier).await {
            Ok(()) => {
                backoff.reset();
                if learning.changed().await.is_err() {
                    return;
                }
            }
            Err(err) => {
                let error = chain(&err);
                tracing::warn!(
                    error,
                    "what was learned of the issuers' keys cannot be kept: a restarted agent does not know it"
                );
                tokio::time::sleep(backoff.failed(std::time::Instant::now(), 0.5 + random_unit() / 2.0)).await;
            }
        }
    }
}

/// Keeps what `verifier` has learned so far, and has it learn what is kept.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn keep_now(store: &Store, verifier: &Arc<Verifier>) -> Result<(), StoreError> {
    if verifier.learned().is_none() {
        return Ok(());
    }
    store
        .merge_issuer_keys(&|kept| {
            if !kept.is_empty()
                && let Err(error) = verifier.learn(kept)
            {
                tracing::warn!(%error, "what is kept of the issuers' keys is not readable and is replaced");
            }
            if let Some(issuer) = verifier.forked_by(kept) {
                tracing::error!(
                    issuer,
                    "another successor of a key of this issuer is kept than the gateway showed: one of them is not the \
                     issuer's; what was kept first stays; revoke the issuer's keys and connect the cluster again"
                );
                return None;
            }
            if verifier.is_kept(kept) { None } else { verifier.learned() }
        })
        .await
}
