//! What a client's certificate costs: the chain to its authority and the strict reading of its role, which the gateway
//! does once for a connection, and what a request on such a connection still pays.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use auth::token::Verifier;
use certs::{Authority, Issued, Peer, PeerIdentity, Roots, Validity};
use serde_json::json;
use types::ids::ClusterId;

use super::{CLUSTER, Signer, audience, cold, kept};

/// The medians, by the names of their figures.
pub(super) async fn measure(
    verifier: &Verifier,
    signer: &Signer,
    count: u32,
) -> anyhow::Result<[(&'static str, f64); 3]> {
    let valid = Validity::for_duration(Duration::from_secs(3600));
    let authority = Authority::create("bench", valid)?;
    let roots = authority.roots()?;
    let agent = cold(count, |_| Ok(authority.issue_agent(CLUSTER, valid)?), async |shown| role(shown, &roots)).await?;
    let access = |n| Ok(authority.issue_access(CLUSTER, &format!("user-{n}"), valid)?);
    let access = cold(count, access, async |shown| role(shown, &roots)).await?;

    // The token beside an access certificate is the cluster's: nobody here can judge it, which has to be seen each
    // time.
    let token = signer.token(&json!({"iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:a:b"}))?;
    let (audience, judged_by) = (audience()?, roots.clone());
    let request = kept(count, async || {
        let verdict = verifier.verify(&token, &audience, SystemTime::now()).await;
        ensure!(verdict.is_err_and(|error| error.is_foreign()), "a token of the cluster's was judged here");
        ensure!(judged_by.is(&roots), "the authorities are other ones than before");
        Ok(())
    });
    Ok([
        ("cold_agent_certificate_us", agent),
        ("cold_access_certificate_us", access),
        ("kept_access_certificate_us", request.await?),
    ])
}

/// Reads a certificate as a peer's that has just connected.
fn role(shown: &Issued, roots: &Roots) -> anyhow::Result<()> {
    let peer = Peer::verify(shown.credentials().chain(), roots, SystemTime::now())?;
    let (PeerIdentity::Agent(id) | PeerIdentity::Access { id, .. }) = &peer.identity else {
        anyhow::bail!("a certificate of no cluster");
    };
    id.parse::<ClusterId>().map(drop).context("a certificate of no cluster")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_another_authority_is_no_measurement() {
        let valid = Validity::for_duration(Duration::from_secs(3600));
        let (own, other) = (Authority::create("own", valid).unwrap(), Authority::create("other", valid).unwrap());
        let shown = own.issue_agent(CLUSTER, valid).unwrap();
        assert!(role(&shown, &own.roots().unwrap()).is_ok());
        assert!(role(&shown, &other.roots().unwrap()).is_err());
    }
}
