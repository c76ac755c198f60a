//! Takes the identity that another process looks after, as soon as it is there and whenever it is exchanged.

use std::time::{Duration, Instant};

use daemon::{Backoff, BackoffPolicy, random_unit};
use types::ids::ClusterId;

use super::{Identities, Identity, store::Store};
use crate::{chain, metrics};

/// Waits after the apiserver could not be asked. A watch that ends as watches do is begun again at once.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(500),
    quick_cap: Duration::from_secs(5),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(60),
    steady_after: Duration::from_secs(60),
};

/// Follows `store` for ever. What is no identity of this cluster changes nothing, and is said in the log.
pub async fn follow(store: &Store, identities: &Identities, cluster: &ClusterId) {
    let mut backoff = Backoff::new(AGAIN);
    loop {
        let begun = Instant::now();
        let mut heard = false;
        let followed = store
            .follow(|kept| {
                heard = true;
                take(kept, identities, cluster);
            })
            .await;
        backoff.lived(begun.elapsed());
        match followed {
            Ok(()) if heard => backoff.reset(),
            Ok(()) => {}
            Err(err) => tracing::warn!(error = chain(&err), "the cluster's certificate cannot be followed"),
        }
        tokio::time::sleep(backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0)).await;
    }
}

fn take(kept: Result<Option<super::Stored>, super::store::StoreError>, identities: &Identities, cluster: &ClusterId) {
    let stored = match kept {
        Ok(Some(stored)) => stored,
        Ok(None) if identities.current().is_some() => {
            tracing::warn!("the cluster's certificate is gone; the last one stays in use");
            return;
        }
        Ok(None) => return,
        Err(err) => {
            tracing::warn!(error = chain(&err), "the cluster's certificate cannot be read");
            return;
        }
    };
    match Identity::new(stored, cluster) {
        Ok(identity) => {
            let ends = identity.stored.not_after;
            if identities.publish(identity) {
                metrics::certificate_ends(ends);
                tracing::info!(until = super::spell(ends), "the cluster has a certificate");
            }
        }
        Err(err) => {
            tracing::warn!(
                error = chain(&err),
                "what is kept as the cluster's certificate is none; the last one stays"
            );
        }
    }
}
