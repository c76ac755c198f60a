//! A new key and the request for its certificate. The key is P-256, because a storm of reconnecting agents pays for
//! signatures; the request names nobody: whose certificate it is is for the gateway to say.

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use secrecy::SecretString;

/// A key was not made, or not its request.
#[derive(Debug, thiserror::Error)]
#[error("a key and the request for its certificate cannot be made")]
pub struct RequestError(#[from] rcgen::Error);

/// A new key with its request. The key does not print.
pub struct KeyRequest {
    /// The private key, PKCS#8 in PEM.
    pub key: SecretString,
    /// Base64 of the DER of the PKCS#10 request.
    pub csr: String,
}

impl KeyRequest {
    /// Makes a new P-256 key, and a request without a subject that is signed with it.
    pub fn new() -> Result<Self, RequestError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key)?;
        Ok(Self { key: key.serialize_pem().into(), csr: types::agent_api::encode(request.der()) })
    }
}
