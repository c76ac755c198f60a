//! The strict reading of a peer's certificate. What is not exactly one role of ours is refused with the reason; a
//! certificate that only looks like one (another name beside, one purpose more, an authority) is refused too.

use std::time::{Duration, SystemTime};

use rustls::CertificateError;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{ExtendedKeyUsage, GeneralName},
    oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION},
    prelude::FromDer,
    public_key::RSAPublicKey,
    time::ASN1Time,
    x509::{AttributeTypeAndValue, SubjectPublicKeyInfo},
};

use crate::{
    authority::Validity,
    roots::Roots,
    tls::{self, CHAIN},
};

/// What the URI name of an agent's certificate begins with; the cluster id follows.
pub const AGENT: &str = "urn:towline:agent:";
/// What the URI name of an access certificate begins with; the cluster id follows.
pub const ACCESS: &str = "urn:towline:access:";

/// Bytes of a cluster id in a certificate.
pub(crate) const ID_BYTES: usize = 1024;
/// Bytes of a person's name in an access certificate.
pub(crate) const NAME_BYTES: usize = 256;
/// Bytes of what an access certificate says of its holder.
pub const HOLDER_BYTES: usize = 8 * 1024;

/// The role that a certificate proves. Cluster ids are as in the certificate; the caller parses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The agent of this cluster: a tunnel.
    Agent(String),
    /// The right to reach this cluster with a service-account token.
    Access {
        /// The cluster.
        id: String,
        /// For whom it was issued, for the audit record.
        name: String,
    },
}

/// A verified certificate: its role and what an observer needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The role.
    pub identity: PeerIdentity,
    /// Of an agent: the object id of its cluster's identity, which is the certificate's one common name. A cluster that was
    /// deleted and created again has another. Certificates that were made by hand say something else there, or nothing.
    pub principal: Option<String>,
    /// Of an agent: which onboarding key of its cluster it rests on, which is the certificate's one organisational unit.
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
    /// It ended.
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
        /// URI names.
        uris: usize,
        /// Other names.
        others: usize,
    },
    /// The URI is of no role of ours.
    #[error("the certificate's URI name is no role of Towline")]
    UnknownRole,
    /// The id or the person's name after it is empty, too long, or has characters that no id has.
    #[error("the certificate's {0} is empty, too long or has forbidden characters")]
    BadName(&'static str),
    /// A role, but not the one that this place needs.
    #[error("the certificate is an {found} certificate, here an {wanted} certificate is needed")]
    Role {
        /// What it is.
        found: &'static str,
        /// What is needed.
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
            Self::Access { .. } => Err(PeerError::Role { found: "access", wanted: "agent" }),
        }
    }

    /// Cluster id and person, if this is an access certificate.
    ///
    /// # Errors
    /// [`PeerError::Role`].
    pub fn access(&self) -> Result<(&str, &str), PeerError> {
        match self {
            Self::Access { id, name } => Ok((id, name)),
            Self::Agent(_) => Err(PeerError::Role { found: "agent", wanted: "access" }),
        }
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
        let (onboarding, holder) = if is_agent { (unit, None) } else { (None, unit) };
        Ok(Self { identity, principal, onboarding, holder, not_after: end_of(&parsed), serial: serial(&parsed) })
    }
}

/// Whether authorities vouch for a client's chain, though it may have ended meanwhile: what rests on it is then asked for its
/// end by itself.
pub fn is_still_of(chain: &[CertificateDer<'_>], roots: &Roots, now: SystemTime) -> bool {
    let Some((own, intermediates)) = chain.split_first() else { return false };
    verify_chain(own, intermediates, roots, now.min(last_second(not_after(chain)))).is_ok()
}

/// The last second in which a certificate holds that ends then.
pub(crate) fn last_second(end: SystemTime) -> SystemTime {
    const LAST: Duration = Duration::from_secs(1);
    end.checked_sub(LAST).unwrap_or(end)
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
    } else {
        Err(PeerError::UnknownRole)
    }
}

fn cluster_id(id: &str) -> Result<String, PeerError> {
    crate::uri::decoded(id).filter(|id| is_id(id)).ok_or(PeerError::BadName("cluster id"))
}

/// Visible characters; those of ASCII without `%`, which begins an encoded byte in a URI.
pub(crate) fn is_id(id: &str) -> bool {
    let visible =
        |c: char| if c.is_ascii() { c.is_ascii_graphic() && c != '%' } else { !c.is_control() && !c.is_whitespace() };
    (1..=ID_BYTES).contains(&id.len()) && id.chars().all(visible)
}

pub(crate) fn is_name(name: &str) -> bool {
    is_text(name, NAME_BYTES)
}

pub(crate) fn is_text(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn person(parsed: &X509Certificate<'_>) -> Result<String, PeerError> {
    common_name(parsed).ok_or(PeerError::BadName("common name"))
}

/// The common name of an authority, and when it ends.
pub fn authority_facts(certificate: &CertificateDer<'static>) -> (Option<String>, SystemTime) {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    let name = parsed.ok().and_then(|(_, parsed)| common_name(&parsed));
    (name, not_after(std::slice::from_ref(certificate)))
}

/// The one common name, if there is exactly one and it is a name.
fn common_name(parsed: &X509Certificate<'_>) -> Option<String> {
    the_one(parsed.subject().iter_common_name(), NAME_BYTES)
}

fn the_one<'a>(mut names: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>, longest: usize) -> Option<String> {
    match (names.next().map(AttributeTypeAndValue::as_str), names.next()) {
        (Some(Ok(name)), None) if is_text(name, longest) => Some(name.to_owned()),
        _ => None,
    }
}

fn serial(parsed: &X509Certificate<'_>) -> String {
    let bytes = parsed.raw_serial();
    hex(&bytes[..bytes.len().min(32)])
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn end_of(parsed: &X509Certificate<'_>) -> SystemTime {
    instant(&parsed.validity().not_after)
}

fn instant(time: &ASN1Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

/// When a certificate is valid, and its serial number in hex.
pub(crate) fn facts(der: &[u8]) -> Option<(Validity, String)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
    let validity = Validity { not_before: instant(&parsed.validity().not_before), not_after: end_of(&parsed) };
    Some((validity, serial(&parsed)))
}

/// When the first certificate of a chain ends; one that cannot be read has ended.
pub(crate) fn not_after(chain: &[CertificateDer<'_>]) -> SystemTime {
    let parsed = chain.first().and_then(|own| x509_parser::parse_x509_certificate(own).ok());
    parsed.map_or(SystemTime::UNIX_EPOCH, |(_, parsed)| end_of(&parsed))
}

/// The public key of a chain's first certificate, if it is a point of P-256.
pub(crate) fn p256_point(chain: &[CertificateDer<'_>]) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let key = parsed.public_key();
    let curve = key.algorithm.parameters.as_ref()?.as_oid().ok()?;
    (key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == OID_EC_P256)
        .then(|| key.subject_public_key.data.to_vec())
}

/// The RSA public key (PKCS#1, DER) in some DER: that itself, a SubjectPublicKeyInfo, or an X.509 certificate.
pub fn rsa_key(der: &[u8]) -> Option<Vec<u8>> {
    let rsa = |key: &SubjectPublicKeyInfo<'_>| {
        (key.algorithm.algorithm == OID_PKCS1_RSAENCRYPTION).then(|| key.subject_public_key.data.to_vec())
    };
    if let Ok((rest, parsed)) = x509_parser::parse_x509_certificate(der) {
        return if rest.is_empty() { rsa(parsed.public_key()) } else { None };
    }
    if let Ok((rest, key)) = SubjectPublicKeyInfo::from_der(der) {
        return if rest.is_empty() { rsa(&key) } else { None };
    }
    rsa_bits(der).map(|_| der.to_vec())
}

/// Bits of the modulus of an RSA public key (PKCS#1, DER); `None` for anything else.
pub fn rsa_bits(der: &[u8]) -> Option<usize> {
    let (rest, key) = RSAPublicKey::from_der(der).ok()?;
    let modulus = key.modulus.iter().position(|byte| *byte != 0).map(|at| &key.modulus[at..])?;
    let bits = modulus.len() * 8 - usize::try_from(modulus[0].leading_zeros()).ok()?;
    rest.is_empty().then_some(bits)
}

#[cfg(test)]
mod tests;
