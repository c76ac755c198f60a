//! A certificate for a cluster: for the onboarding key's signature over a fresh challenge, or
//! for the certificate at hand (R8). Before possession is proved nothing tells whether there is such a cluster.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use certs::{AgentName, AgentRequest, Peer, Signed, Validity};
use http::{StatusCode, header};
use types::{
    agent_api::{CONNECT_AGAIN, Certificate, Enrolment, Renewal, codes, decode, enrolment_message, enrolment_paths},
    ids::ClusterId,
    instants::{instant, milliseconds},
};

use super::{Agent, Call, DEAR, OF_ADDRESS, Reply, Visitor, challenge::cluster_id};
use crate::{
    api_error::ApiError,
    cluster::{Gone, Named},
    config::agents::LONGEST_CERTIFICATE,
    control::{Control, tell},
    metrics::Enrolled,
    resources::connected_cluster::{self as cluster, fingerprint, key_name},
    skew,
    store::{
        agents::{Certified, Kept},
        resources::Stored,
    },
    stored::last_name,
};

/// Characters of a namespace's UID at most.
const UID_BYTES: usize = 64;
/// A gateway that is set up to issue nothing is not asked again soon, in seconds.
const NOT_SET_UP: &str = "300";

/// A public key of 4096 bits that nobody has the private half of: who names a cluster that is not there waits as long.
static NOBODY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // RSAPublicKey (RFC 8017 appendix A.1.1): SEQUENCE of the modulus, odd and of full length, and 65537.
    let mut modulus = crate::random::bytes::<512>();
    modulus[0] |= 0x80;
    modulus[511] |= 1;
    [&[0x30, 0x82, 0x02, 0x0a, 0x02, 0x82, 0x02, 0x01, 0x00][..], &modulus, &[0x02, 0x03, 0x01, 0x00, 0x01]].concat()
});

/// Answers an enrolment, and counts what became of it.
pub async fn enrol(call: &Call, visitor: &Visitor) -> Result<Reply, ApiError> {
    let outcome = enrolled(call, visitor).await;
    call.core.metrics.enrolled(match &outcome {
        Ok(_) => Enrolled::Issued,
        Err(error) => Enrolled::Refused(error.status),
    });
    outcome
}

async fn enrolled(call: &Call, visitor: &Visitor) -> Result<Reply, ApiError> {
    let control = &call.control;
    let counted = call.core.agents.by_address(visitor.peer, enrolment_paths::CERTIFICATE, OF_ADDRESS);
    let message: Enrolment = call.message().await?;
    let id = cluster_id(&message.cluster_id)?;
    // A flood of others from their address shuts nobody out who has a fresh challenge. Each is good for one try then,
    // so that no address has more judged than it may have challenges.
    let has_place = match counted {
        Err(too_often) if !control.challenges.is_first_try(control, &id, &message.challenge, visitor.peer) => {
            return Err(too_often);
        }
        counted => counted.is_ok(),
    };
    let csr = binary("csr", &message.csr)?;
    let signature = binary("signature", &message.signature)?;
    let uid = uid(&message.kube_system_uid)?;
    was_deleted(call, visitor, &id)?;
    let found = control.store.get_with_agent(id.as_str()).await?;
    let found = found.filter(|_| control.decides_about(&id));
    let key = found.as_ref().and_then(|(stored, _)| cluster::onboarding_key(stored));
    let signed = enrolment_message(&id, &message.challenge, &message.csr, uid);
    proved(control, &id, &message.challenge, key.as_ref(), &signed, &signature).await?;
    // Who proved what they are is counted as that, and not by their address.
    if has_place {
        call.core.agents.not_of_address(visitor.peer, enrolment_paths::CERTIFICATE);
    }
    call.core.agents.by_cluster(id.key(), enrolment_paths::CERTIFICATE, DEAR)?;
    let (Some(key), Some((stored, row))) = (key, found) else { return Err(not_proved()) };
    if stored.is_deleting() {
        return Err(deleted(&id));
    }
    if let Some(code) = skew::judge(&message.agent_version).refused() {
        tell::of_version(control, &id, &message.agent_version).await;
        let message = skew::refusal(&message.agent_version);
        return Err(ApiError::bad_request(code, message).at("agentVersion"));
    }
    let Some(principal) = cluster::principal(&stored) else {
        let message = format!("The resource {id} has no identity; write it with identity.type SystemAssigned.");
        return Err(ApiError::of(StatusCode::CONFLICT, codes::IDENTITY_MISSING, message));
    };
    let request = request(&csr, &id, principal)?;
    let fingerprint = fingerprint(&key);
    if let Some(row) = &row {
        let last = row.certificate.as_ref().filter(|last| last.key == fingerprint);
        if last.is_some_and(|last| last.ends_ms <= control.now_ms()) {
            return Err(expired(&stored.id));
        }
        // With the same key in another Kubernetes cluster the key was copied; a new key says that it is meant.
        if let (Some(_), Some(known)) = (last, row.kube_system_uid.as_deref().filter(|known| *known != uid)) {
            return Err(other_kubernetes(&stored.id, known, uid));
        }
    }
    issue(call, &stored, principal, &request, &key, Some(uid)).await
}

/// Goes on only for who signed a message with the cluster's onboarding key and a fresh challenge, which is used up by
/// it. Takes as long where there is no such cluster.
pub async fn proved(
    control: &Control,
    id: &ClusterId,
    challenge: &str,
    key: Option<&Vec<u8>>,
    signed: &[u8],
    signature: &[u8],
) -> Result<(), ApiError> {
    let fresh = control.challenges.read(control, id, challenge);
    let holds =
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.unwrap_or(&NOBODY)).verify(signed, signature).is_ok();
    let fresh = fresh.filter(|_| holds && key.is_some()).ok_or_else(not_proved)?;
    if control.challenges.spend(control, &id.key(), fresh).await? { Ok(()) } else { Err(not_proved()) }
}

/// Answers an agent that asks for the next certificate with the one at hand.
pub async fn renew(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let Renewal { csr } = call.message().await?;
    let id = &agent.cluster.id;
    call.core.snapshots.load().serves(id, &agent.names).map_err(|gone| refused(&gone))?;
    let Some(principal) = agent.cluster.agents.principal() else {
        let message = format!(
            "The certificates of cluster {id}, which the gateway's configuration names, are made by who runs it."
        );
        return Err(ApiError::of(StatusCode::FORBIDDEN, codes::FOREIGN_REQUEST, message));
    };
    let request = request(&binary("csr", &csr)?, id, principal)?;
    let found = call.control.store.get(id.as_str()).await?;
    // The resource may be another one by now, which decisions will know in a moment.
    let stored = found.filter(|stored| cluster::principal(stored) == Some(principal)).ok_or_else(|| later(id))?;
    if stored.is_deleting() {
        return Err(deleted(id));
    }
    // Who proved possession of a key that the cluster has no more goes no further than the certificate at hand.
    let key = cluster::onboarding_key(&stored).filter(|key| agent.names.onboarding == Some(key_name(key)));
    let key = key.ok_or_else(|| refused(&Gone::Replaced(id.clone())))?;
    issue(call, &stored, principal, &request, &key, None).await
}

/// Signs, keeps that it was issued, and only then hands it out.
async fn issue(
    call: &Call,
    stored: &Stored,
    principal: &str,
    request: &AgentRequest,
    key: &[u8],
    uid: Option<&str>,
) -> Result<Reply, ApiError> {
    let id = cluster_id(&stored.id)?;
    let agents = call.core.trust.agents();
    let authority = call.core.trust.authority().ok_or_else(not_set_up)?;
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(call.control.now_ms().unsigned_abs());
    let onboarding = key_name(key);
    let name = AgentName { cluster_id: id.as_str(), principal, onboarding: &onboarding };
    let validity = Validity::at(now, agents.certificate_lifetime, LONGEST_CERTIFICATE);
    let signed = authority.sign_agent(request, name, validity).map_err(ApiError::internal)?;
    let Signed { certificate_pem, validity, serial } = signed;
    let (begins_ms, ends_ms) = (milliseconds(validity.not_before), milliseconds(validity.not_after));
    let certified = Certified { begins_ms, ends_ms, serial, key: fingerprint(key) };
    match call.control.store.put_certificate(&stored.key, Some(principal), &certified, uid).await? {
        Kept::Done => {}
        Kept::Gone => return Err(later(&id)),
        Kept::Other { id: other } => return Err(connected_already(&stored.id, &other)),
    }
    if let Some(uid) = uid
        && let Some(other) = call.control.store.other_of_uid(uid, &stored.key).await?
    {
        // For the operator alone: an agent must not learn what others have, nor be kept out by what they say.
        tracing::warn!(cluster.id = %id, other, "two resources say that they are the same Kubernetes cluster, and were created by different principals");
    }
    tracing::info!(cluster.id = %id, serial = certified.serial, ends = instant(ends_ms), renewed = uid.is_none(), "certificate issued");
    Reply::json(&Certificate {
        certificate: certificate_pem,
        roots: call.core.trust.gateway_ca(),
        not_before: instant(begins_ms),
        not_after: instant(ends_ms),
        principal_id: principal.to_owned(),
        tenant_id: call.control.settings.tenant.clone(),
    })
}

/// Who shows a certificate of an identity that is gone learns that; nobody else does.
fn was_deleted(call: &Call, visitor: &Visitor, id: &ClusterId) -> Result<(), ApiError> {
    if visitor.certificates.is_empty() {
        return Ok(());
    }
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(call.control.now_ms().unsigned_abs());
    let Ok(peer) = Peer::verify(&visitor.certificates, &call.core.roots(), now) else { return Ok(()) };
    let same = peer.identity.agent().is_ok_and(|named| named.parse().as_ref() == Ok(id));
    match call.core.snapshots.load().serves(id, &Named::from(&peer)) {
        Err(gone @ Gone::Deleted(_)) if same => Err(refused(&gone)),
        _ => Ok(()),
    }
}

/// Base64 of a member of a message.
pub fn binary(name: &str, text: &str) -> Result<Vec<u8>, ApiError> {
    decode(text)
        .ok_or_else(|| ApiError::bad_request("InvalidRequestContent", format!("{name} must be base64.")).at(name))
}

fn uid(text: &str) -> Result<&str, ApiError> {
    let fine = (1..=UID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    fine.then_some(text).ok_or_else(|| {
        let message = "kubeSystemUid must be the UID of the namespace kube-system.";
        ApiError::bad_request("InvalidRequestContent", message).at("kubeSystemUid")
    })
}

fn request(der: &[u8], id: &ClusterId, principal: &str) -> Result<AgentRequest, ApiError> {
    AgentRequest::read(der, id.as_str(), &[last_name(id.as_str()), principal]).map_err(|error| {
        let message = format!("No certificate is issued for this: {error}.");
        ApiError::of(StatusCode::FORBIDDEN, codes::FOREIGN_REQUEST, message).at("csr")
    })
}

/// 401, the same for every reason.
pub fn not_proved() -> ApiError {
    let message = "The proof is not valid: there is no such cluster, or its public key is another one, or the challenge was used or has expired. Check that the onboarding key is the one that the resource was created with (`towline connect` makes a new one), and ask for a fresh challenge.";
    ApiError::of(StatusCode::UNAUTHORIZED, codes::INVALID_PROOF, message)
}

fn expired(id: &str) -> ApiError {
    let message =
        format!("The certificate of cluster {id} has ended, and with it the right to renew it; {CONNECT_AGAIN}.");
    ApiError::of(StatusCode::UNAUTHORIZED, codes::CERTIFICATE_EXPIRED, message)
}

/// 503: what is kept of the cluster is not what decisions know. In a moment they will say what it is.
pub fn later(id: &ClusterId) -> ApiError {
    let message = format!("Cluster {id} is being changed; ask again shortly.");
    ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).with(header::RETRY_AFTER, "5")
}

/// The cluster is on its way out.
pub fn deleted(id: &ClusterId) -> ApiError {
    refused(&Gone::Deleted(id.clone()))
}

/// Why whoever showed a certificate is no agent of its cluster (any more).
pub fn refused(gone: &Gone) -> ApiError {
    let (status, code) = match gone {
        Gone::Deleted(_) => (StatusCode::GONE, codes::RESOURCE_DELETED),
        Gone::Replaced(_) => (StatusCode::UNAUTHORIZED, codes::INVALID_PROOF),
        Gone::Unknown(_) | Gone::Foreign(_) | Gone::Configured(_) => (StatusCode::FORBIDDEN, codes::FOREIGN_REQUEST),
    };
    ApiError::of(status, code, format!("{gone}."))
}

fn connected_already(id: &str, other: &str) -> ApiError {
    let message = format!(
        "This Kubernetes cluster is already connected as {other}, so that it cannot be {id} too. Delete one of the two resources."
    );
    ApiError::of(StatusCode::CONFLICT, codes::ALREADY_CONNECTED, message)
}

fn other_kubernetes(id: &str, known: &str, uid: &str) -> ApiError {
    let message = format!(
        "The resource {id} corresponds to a different Kubernetes cluster: its namespace kube-system has the UID {known}, this one's {uid}. Connect this cluster under a name of its own, or {CONNECT_AGAIN}."
    );
    ApiError::of(StatusCode::CONFLICT, codes::ALREADY_CONNECTED, message)
}

fn not_set_up() -> ApiError {
    let message = "This gateway issues no certificates for agents: [agents] authority_dir is not in its configuration. Ask who runs it.";
    ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "AuthorityNotConfigured", message)
        .with(header::RETRY_AFTER, NOT_SET_UP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that cannot be read would fail at once, and tell.
    #[test]
    fn r6_nobodys_key_is_a_key() {
        assert!(UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &*NOBODY).parse().is_ok());
    }
}
