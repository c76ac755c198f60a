//! What an agent asks a certificate with: a PKCS#10 request (RFC 2986). It proves possession of a P-256 key and may say
//! of whom it is, if that is nobody else; everything that a certificate says is written by the authority, nothing is
//! copied.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256, OID_X509_COMMON_NAME},
    prelude::FromDer,
};

use crate::facts::AGENT;

/// Bytes of a request at most.
pub const REQUEST_BYTES: usize = 8 * 1024;
/// Bytes of an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// A request that may be answered with a certificate of the cluster that it was read for.
#[derive(Clone)]
pub struct AgentRequest {
    /// DER of the SubjectPublicKeyInfo.
    pub(crate) public_key: Vec<u8>,
}

/// Why a request is not answered with a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The text or its DER is not a PKCS#10 request (RFC 2986).
    #[error("the certificate request cannot be read: {0}")]
    Malformed(&'static str),
    /// Not ECDSA P-256 with SHA-256.
    #[error("the certificate request's key or signature is not ECDSA P-256 with SHA-256")]
    KeyKind,
    /// Not signed by the key in it.
    #[error("the certificate request is not signed by its own key")]
    Signature,
    /// It names somebody else.
    #[error("the certificate request names a subject that is not this cluster; leave the subject empty")]
    Subject,
    /// It asks for names that are not the cluster's.
    #[error("the certificate request asks for names that are not this cluster's; ask for none")]
    Names,
    /// It asks for something that only the authority says.
    #[error("the certificate request asks for more than a key and a name: {0}; leave it out")]
    More(&'static str),
}

impl AgentRequest {
    /// Reads a request for the agent of a cluster. Its subject is empty or one common name of `own`; its one name is
    /// the cluster's URI, or there is none.
    ///
    /// # Errors
    /// One [`RequestError`] per check.
    pub fn read(der: &[u8], cluster_id: &str, own: &[&str]) -> Result<Self, RequestError> {
        if der.len() > REQUEST_BYTES {
            return Err(RequestError::Malformed("too long"));
        }
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| RequestError::Malformed("not PKCS#10"))?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed("bytes after the request"));
        }
        possession(&request)?;
        subject(&request, own)?;
        attributes(&request, cluster_id)?;
        Ok(Self { public_key: request.certification_request_info.subject_pki.raw.to_vec() })
    }
}

fn possession(request: &X509CertificationRequest<'_>) -> Result<(), RequestError> {
    let key = &request.certification_request_info.subject_pki;
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    let point = &*key.subject_public_key.data;
    let fits = key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(OID_EC_P256)
        && key.subject_public_key.unused_bits == 0
        && point.len() == POINT_BYTES
        && point[0] == 4
        && request.signature_algorithm.algorithm == OID_SIG_ECDSA_WITH_SHA256
        && request.signature_algorithm.parameters.is_none();
    if !fits {
        return Err(RequestError::KeyKind);
    }
    let signed = request.certification_request_info.raw;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
        .verify(signed, &request.signature_value.data)
        .map_err(|_| RequestError::Signature)
}

fn subject(request: &X509CertificationRequest<'_>, own: &[&str]) -> Result<(), RequestError> {
    let mut parts = request.certification_request_info.subject.iter_attributes();
    match (parts.next(), parts.next()) {
        (None, None) => Ok(()),
        (Some(one), None) => {
            let name = one.as_str().map_err(|_| RequestError::Subject)?;
            let known = *one.attr_type() == OID_X509_COMMON_NAME && own.contains(&name);
            if known { Ok(()) } else { Err(RequestError::Subject) }
        }
        _ => Err(RequestError::Subject),
    }
}

fn attributes(request: &X509CertificationRequest<'_>, cluster_id: &str) -> Result<(), RequestError> {
    let extensions = match request.certification_request_info.attributes() {
        [] => return Ok(()),
        [one] => match one.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(asked) => asked.extensions.as_slice(),
            _ => return Err(RequestError::More("an attribute other than extensionRequest")),
        },
        _ => return Err(RequestError::More("several attributes")),
    };
    match extensions {
        [] => Ok(()),
        [one] => match one.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => match names.general_names.as_slice() {
                [GeneralName::URI(uri)] if uri.strip_prefix(AGENT) == Some(&*crate::uri::encoded(cluster_id)) => Ok(()),
                _ => Err(RequestError::Names),
            },
            _ => Err(RequestError::More("an extension other than subjectAltName")),
        },
        _ => Err(RequestError::More("several extensions")),
    }
}

#[cfg(test)]
mod tests;
