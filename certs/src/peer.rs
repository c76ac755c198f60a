//! The strict reading of a peer's certificate. What is not exactly one role of ours is refused with the reason; a
//! certificate that only looks like one (another name beside, one purpose more, an authority) is refused too.

use std::time::SystemTime;

use rustls::CertificateError;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{ExtendedKeyUsage, GeneralName},
};

use crate::{
    facts::{
        ACCESS, AGENT, GATEWAY, HOLDER_BYTES, common_name, end_of, is_id, is_replica, last_second, not_after, serial,
        the_one,
    },
    roots::Roots,
    tls::{self, CHAIN},
};

/// The role that a certificate proves. Cluster ids are as in the certificate; the caller parses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The agent of this cluster: a tunnel.
    Agent(String),
    /// The right to reach this cluster with a service-account token.
    Access {
        /// ARM id of the cluster, not parsed yet.
        id: String,
        /// For whom it was issued, for the audit record.
        name: String,
    },
    /// A replica of the gateway, by its name: requests and questions of another replica.
    Gateway(String),
}

/// A verified certificate: its role and what an observer needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What the certificate is for, and for which cluster.
    pub identity: PeerIdentity,
    /// Of an agent: the object id of its cluster's identity, which is the certificate's one common name. A cluster that
    /// was deleted and created again has another. Certificates that were made by hand say something else there, or
    /// nothing.
    pub principal: Option<String>,
    /// Of an agent: which onboarding key of its cluster it rests on, which is the certificate's one organisational
    /// unit.
    pub onboarding: Option<String>,
    /// Of an access certificate that a gateway's API issued: for whom, as that wrote it; the certificate's one
    /// organisational unit. Those that were made by hand have none, and are a right by themselves.
    pub holder: Option<String>,
    /// When the certificate ends; a session that rests on it must not live longer than its owner allows.
    pub not_after: SystemTime,
    /// The serial number in lower-case hex, for logs.
    pub serial: String,
}

/// Why a certificate proves no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No certificate was shown.
    #[error("no client certificate was shown")]
    Missing,
    /// More than eight certificates.
    #[error("the chain has {0} certificates, more than {CHAIN}")]
    TooMany(usize),
    /// Not X.509, or an extension in it is broken or twice there.
    #[error("the certificate cannot be read: {0}")]
    Malformed(&'static str),
    /// The certificate's validity has ended.
    #[error("the certificate has expired")]
    Expired,
    /// It has not begun; usually a wrong clock.
    #[error("the certificate is not valid yet; check the clocks")]
    NotYetValid,
    /// An authority as a client.
    #[error("the certificate is a certificate authority's")]
    IsAuthority,
    /// No trusted authority issued it.
    #[error("no trusted authority issued the certificate")]
    UnknownIssuer,
    /// The chain does not hold for another reason.
    #[error("the chain does not verify: {0}")]
    Chain(String),
    /// The extended key usage is not exactly `clientAuth`.
    #[error("the certificate is not for clients alone: its extended key usage must be exactly clientAuth")]
    Usage,
    /// Not exactly one name, or that one is no URI.
    #[error(
        "the certificate must have exactly one subject alternative name, and that a URI; it has {uris} URIs and {others} others"
    )]
    Names {
        /// Number of names that are URIs.
        uris: usize,
        /// Number of names of other types.
        others: usize,
    },
    /// The URI is of no role of ours.
    #[error("the certificate's URI name is not a role of Towline")]
    UnknownRole,
    /// The id or the person's name after it is empty, too long, or has characters that no id has.
    #[error("the certificate's {0} is empty, too long or has forbidden characters")]
    BadName(&'static str),
    /// A role, but not the one that this place needs.
    #[error("the certificate is one of role {found}, here one of role {wanted} is needed")]
    Role {
        /// The role that the certificate has.
        found: &'static str,
        /// The role that is needed.
        wanted: &'static str,
    },
}

impl PeerIdentity {
    /// Verifies a chain, the peer's own certificate first, and reads its role. See [`Peer::verify`].
    ///
    /// # Errors
    /// One [`PeerError`] per check.
    pub fn from_der(chain: &[CertificateDer<'_>], roots: &Roots, now: SystemTime) -> Result<Self, PeerError> {
        Peer::verify(chain, roots, now).map(|peer| peer.identity)
    }

    /// The role that a program's own certificate claims, read as strictly as a peer's and not verified: whether others
    /// trust it is for them to say.
    ///
    /// # Errors
    /// One [`PeerError`] per check.
    pub fn claimed(chain: &[CertificateDer<'_>]) -> Result<Self, PeerError> {
        let own = chain.first().ok_or(PeerError::Missing)?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(own).map_err(|_| PeerError::Malformed("not an X.509 certificate"))?;
        not_an_authority(&parsed)?;
        for_clients_alone(&parsed)?;
        identity(&parsed)
    }

    /// The cluster id, if this is an agent.
    ///
    /// # Errors
    /// [`PeerError::Role`].
    pub fn agent(&self) -> Result<&str, PeerError> {
        match self {
            Self::Agent(id) => Ok(id),
            other => Err(other.is_not("agent")),
        }
    }

    /// Cluster id and person, if this is an access certificate.
    ///
    /// # Errors
    /// [`PeerError::Role`].
    pub fn access(&self) -> Result<(&str, &str), PeerError> {
        match self {
            Self::Access { id, name } => Ok((id, name)),
            other => Err(other.is_not("access")),
        }
    }

    /// The replica's name, if this is a gateway.
    ///
    /// # Errors
    /// [`PeerError::Role`].
    pub fn gateway(&self) -> Result<&str, PeerError> {
        match self {
            Self::Gateway(name) => Ok(name),
            other => Err(other.is_not("gateway")),
        }
    }

    fn is_not(&self, wanted: &'static str) -> PeerError {
        let found = match self {
            Self::Agent(_) => "agent",
            Self::Access { .. } => "access",
            Self::Gateway(_) => "gateway",
        };
        PeerError::Role { found, wanted }
    }
}

impl Peer {
    /// Verifies a chain against the roots, for client authentication, at `now`, and reads the role strictly: one URI
    /// name and no other, the extended key usage exactly `clientAuth`, no authority.
    ///
    /// # Errors
    /// One [`PeerError`] per check.
    pub fn verify(chain: &[CertificateDer<'_>], roots: &Roots, now: SystemTime) -> Result<Self, PeerError> {
        let (own, intermediates) = chain.split_first().ok_or(PeerError::Missing)?;
        if chain.len() > CHAIN {
            return Err(PeerError::TooMany(chain.len()));
        }
        let (rest, parsed) =
            x509_parser::parse_x509_certificate(own).map_err(|_| PeerError::Malformed("not an X.509 certificate"))?;
        if !rest.is_empty() {
            return Err(PeerError::Malformed("bytes after the certificate"));
        }
        not_an_authority(&parsed)?;
        verify_chain(own, intermediates, roots, now)?;
        for_clients_alone(&parsed)?;
        let identity = identity(&parsed)?;
        let is_agent = matches!(identity, PeerIdentity::Agent(_));
        let principal = is_agent.then(|| common_name(&parsed)).flatten();
        let unit = the_one(parsed.subject().iter_organizational_unit(), HOLDER_BYTES);
        let (onboarding, holder) = match &identity {
            PeerIdentity::Agent(_) => (unit, None),
            PeerIdentity::Access { .. } => (None, unit),
            PeerIdentity::Gateway(_) => (None, None),
        };
        Ok(Self { identity, principal, onboarding, holder, not_after: end_of(&parsed), serial: serial(&parsed) })
    }
}

/// Whether authorities vouch for a client's chain, though it may have ended meanwhile: what rests on it is then asked
/// for its end by itself.
pub fn is_still_of(chain: &[CertificateDer<'_>], roots: &Roots, now: SystemTime) -> bool {
    let Some((own, intermediates)) = chain.split_first() else { return false };
    verify_chain(own, intermediates, roots, now.min(last_second(not_after(chain)))).is_ok()
}

impl Roots {
    /// Which of these vouches for a client's chain that they vouch for together.
    pub fn signer_of(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Option<String> {
        let mut each = self.each();
        // Of one there is nothing to choose.
        let signer = if each.len() == 1 { each.next() } else { each.find(|(_, alone)| is_still_of(chain, alone, now)) };
        signer.map(|(id, _)| id)
    }
}

fn not_an_authority(parsed: &X509Certificate<'_>) -> Result<(), PeerError> {
    let constraints = parsed.basic_constraints().map_err(|_| PeerError::Malformed("basicConstraints"))?;
    let usage = parsed.key_usage().map_err(|_| PeerError::Malformed("keyUsage"))?;
    if constraints.is_some_and(|c| c.value.ca) || usage.is_some_and(|u| u.value.key_cert_sign()) {
        return Err(PeerError::IsAuthority);
    }
    Ok(())
}

fn verify_chain(
    own: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &Roots,
    now: SystemTime,
) -> Result<(), PeerError> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| PeerError::NotYetValid)?;
    let verifier = tls::client_verifier(roots, false).map_err(|e| PeerError::Chain(e.to_string()))?;
    let verified = verifier.verify_client_cert(own, intermediates, UnixTime::since_unix_epoch(since));
    verified.map(|_| ()).map_err(|e| match e {
        rustls::Error::InvalidCertificate(reason) => match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => PeerError::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => PeerError::NotYetValid,
            CertificateError::UnknownIssuer | CertificateError::BadSignature => PeerError::UnknownIssuer,
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => PeerError::Usage,
            other => PeerError::Chain(format!("{other:?}")),
        },
        other => PeerError::Chain(other.to_string()),
    })
}

fn for_clients_alone(parsed: &X509Certificate<'_>) -> Result<(), PeerError> {
    let usage = parsed.extended_key_usage().map_err(|_| PeerError::Malformed("extendedKeyUsage"))?;
    match usage.map(|u| u.value) {
        Some(ExtendedKeyUsage {
            client_auth: true,
            any: false,
            server_auth: false,
            code_signing: false,
            email_protection: false,
            time_stamping: false,
            ocsp_signing: false,
            other,
        }) if other.is_empty() => Ok(()),
        _ => Err(PeerError::Usage),
    }
}

fn identity(parsed: &X509Certificate<'_>) -> Result<PeerIdentity, PeerError> {
    let names = parsed.subject_alternative_name().map_err(|_| PeerError::Malformed("subjectAltName"))?;
    let names = names.map(|n| n.value.general_names.as_slice()).unwrap_or_default();
    let uri = match names {
        [GeneralName::URI(uri)] => *uri,
        other => {
            let uris = other.iter().filter(|n| matches!(n, GeneralName::URI(_))).count();
            return Err(PeerError::Names { uris, others: other.len() - uris });
        }
    };
    if let Some(id) = uri.strip_prefix(AGENT) {
        Ok(PeerIdentity::Agent(cluster_id(id)?))
    } else if let Some(id) = uri.strip_prefix(ACCESS) {
        Ok(PeerIdentity::Access { id: cluster_id(id)?, name: person(parsed)? })
    } else if let Some(name) = uri.strip_prefix(GATEWAY) {
        let name = Some(name).filter(|name| is_replica(name)).ok_or(PeerError::BadName("replica's name"))?;
        Ok(PeerIdentity::Gateway(name.to_owned()))
    } else {
        Err(PeerError::UnknownRole)
    }
}

fn cluster_id(id: &str) -> Result<String, PeerError> {
    crate::uri::decoded(id).filter(|id| is_id(id)).ok_or(PeerError::BadName("cluster id"))
}

fn person(parsed: &X509Certificate<'_>) -> Result<String, PeerError> {
    common_name(parsed).ok_or(PeerError::BadName("common name"))
}

#[cfg(test)]
mod tests;
