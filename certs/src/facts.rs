//! What a certificate says, as it is read without a judgement, and the words that roles are told by.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use types::ids::hex;
use x509_parser::{
    certificate::X509Certificate,
    oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION},
    prelude::FromDer,
    public_key::RSAPublicKey,
    time::ASN1Time,
    x509::{AttributeTypeAndValue, SubjectPublicKeyInfo},
};

/// What the URI name of an agent's certificate begins with; the cluster id follows.
pub const AGENT: &str = "urn:towline:agent:";
/// What the URI name of an access certificate begins with; the cluster id follows.
pub const ACCESS: &str = "urn:towline:access:";
/// What the URI name of a gateway's own certificate begins with, by which replicas know each other; the replica's name
/// follows.
pub const GATEWAY: &str = "urn:towline:gateway:";

/// Bytes of a cluster id in a certificate.
pub(crate) const ID_BYTES: usize = 1024;
/// Bytes of a replica's name.
const REPLICA_BYTES: usize = 63;
/// Bytes of a person's name in an access certificate.
pub(crate) const NAME_BYTES: usize = 256;
/// Bytes of what an access certificate says of its holder.
pub const HOLDER_BYTES: usize = 8 * 1024;

/// Certificates begin this much before they are issued, for clocks that are behind.
const BACKDATED: Duration = Duration::from_secs(300);

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first instant at which the certificate is valid.
    pub not_before: SystemTime,
    /// The last instant at which the certificate is valid.
    pub not_after: SystemTime,
}

impl Validity {
    /// From five minutes ago, for clocks that are behind, until `duration` from now.
    pub fn for_duration(duration: Duration) -> Self {
        let now = SystemTime::now();
        Self { not_before: now - BACKDATED, not_after: now + duration }
    }

    /// From five minutes before `now`, for clocks that are behind, until `duration` after it, and in all no longer than
    /// `longest`. The five minutes are at most a tenth of `duration`, so that a certificate that is renewed from half
    /// of its life on is not due at once.
    pub fn at(now: SystemTime, duration: Duration, longest: Duration) -> Self {
        let not_before = now - BACKDATED.min(duration / 10);
        Self { not_before, not_after: (now + duration).min(not_before + longest) }
    }

    /// From now until `days` days from now.
    pub fn days(days: u32) -> Self {
        Self::for_duration(Duration::from_secs(u64::from(days) * 86_400))
    }
}

/// Visible characters; those of ASCII without `%`, which begins an encoded byte in a URI.
pub(crate) fn is_id(id: &str) -> bool {
    let visible =
        |c: char| if c.is_ascii() { c.is_ascii_graphic() && c != '%' } else { !c.is_control() && !c.is_whitespace() };
    (1..=ID_BYTES).contains(&id.len()) && id.chars().all(visible)
}

/// Whether a text can name a replica of the gateway: 1 to 63 characters, lower-case letters, digits, `-` and `.`.
pub fn is_replica(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=REPLICA_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

pub(crate) fn is_name(name: &str) -> bool {
    is_text(name, NAME_BYTES)
}

pub(crate) fn is_text(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// The last second in which a certificate holds that ends then.
pub(crate) fn last_second(end: SystemTime) -> SystemTime {
    const LAST: Duration = Duration::from_secs(1);
    end.checked_sub(LAST).unwrap_or(end)
}

/// The common name of a certificate, such as an authority's, and when it ends.
pub fn authority_facts(certificate: &CertificateDer<'_>) -> (Option<String>, SystemTime) {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    let name = parsed.ok().and_then(|(_, parsed)| common_name(&parsed));
    (name, not_after(std::slice::from_ref(certificate)))
}

/// The one common name, if there is exactly one and it is a name.
pub(crate) fn common_name(parsed: &X509Certificate<'_>) -> Option<String> {
    the_one(parsed.subject().iter_common_name(), NAME_BYTES)
}

pub(crate) fn the_one<'a>(
    mut names: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>,
    longest: usize,
) -> Option<String> {
    match (names.next().map(AttributeTypeAndValue::as_str), names.next()) {
        (Some(Ok(name)), None) if is_text(name, longest) => Some(name.to_owned()),
        _ => None,
    }
}

pub(crate) fn serial(parsed: &X509Certificate<'_>) -> String {
    let bytes = parsed.raw_serial();
    hex(&bytes[..bytes.len().min(32)])
}

pub(crate) fn end_of(parsed: &X509Certificate<'_>) -> SystemTime {
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
