//! Credential to [`Principal`]. Exactly one credential, or none: 401, which says no more than Kubernetes does.
//!
//! A token of a configured issuer is verified for the cluster's audience. Any other token may be a service-account
//! token of the cluster, which only the cluster can judge: the right to reach it is then an access certificate
//! (docs/identity.md). An agent's certificate is never a user's credential.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use tracing::Instrument as _;
use types::ids::{ClusterId, ClusterKey};

use crate::{
    cluster::ClusterRef,
    identity::{Access, AuthenticateError, Credential, Principal},
    snapshot::Snapshot,
};

/// Judges a credential for a cluster. For an unknown cluster the same work is done for the id that the token itself
/// names, if that is the id behind the address: whoever has a token for a cluster, real or guessed, then sees what a
/// stranger of a real one sees, and neither answer nor time tells which it is.
pub fn authenticate(
    snapshot: &Snapshot,
    credential: &Credential,
    access: Option<&Arc<Access>>,
    key: &ClusterKey,
    cluster: Option<&ClusterRef>,
    now: SystemTime,
) -> impl Future<Output = Result<Principal, AuthenticateError>> {
    judge(snapshot, credential, access, key, cluster, now).instrument(tracing::debug_span!("authenticate"))
}

async fn judge(
    snapshot: &Snapshot,
    credential: &Credential,
    access: Option<&Arc<Access>>,
    key: &ClusterKey,
    cluster: Option<&ClusterRef>,
    now: SystemTime,
) -> Result<Principal, AuthenticateError> {
    let token = credential.text()?;
    let audience = match cluster {
        Some(cluster) => Cow::Borrowed(cluster.audience.as_str()),
        None => Cow::Owned(audience_of_unknown(key, token)),
    };
    match snapshot.verifier.verify(token, &audience, now).await {
        Ok(identity) => Ok(Principal::User(identity)),
        Err(error) if credential.is_bearer() && error.is_foreign() => {
            // By the key, for a cluster that is not there must look like one that the certificate is not for.
            let access = access.filter(|access| access.cluster.key() == *key);
            let access = access.filter(|access| snapshot.vouches_for(access)).ok_or(AuthenticateError::NoAccess)?;
            if access.expires <= now {
                return Err(AuthenticateError::AccessExpired);
            }
            Ok(Principal::ServiceAccount(Arc::clone(access)))
        }
        Err(error) => Err(error.into()),
    }
}

/// The audience to check for an address that no cluster has: the one in the token that belongs to this very address,
/// else one that no token has.
fn audience_of_unknown(key: &ClusterKey, token: &str) -> String {
    let names_it = |audience: &String| {
        let id = audience.strip_prefix("towline:cluster:").and_then(|id| id.parse::<ClusterId>().ok());
        id.is_some_and(|id| id.key() == *key && id.audience() == *audience)
    };
    auth::token::claimed_audiences(token)
        .into_iter()
        .find(names_it)
        .unwrap_or_else(|| "towline:cluster:unknown".to_owned())
}
