//! Possession of the key of the agent's certificate, shown in the hello over the gateway's challenge, where a middlebox
//! ends the TLS and the carrier itself shows no certificate.
//!
//! What is signed is bytes here; `tunnel::wire::hello::proof_message` makes them, with a label so that the signature
//! means nothing elsewhere (TLS 1.3 signs 64 spaces first, so neither can be taken for the other).

use std::time::SystemTime;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::SignatureScheme;
use rustls_pki_types::CertificateDer;

use crate::{
    credentials::Credentials,
    peer::{Peer, PeerError},
    roots::Roots,
};

/// Why a proof could not be made or does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The certificate's key is not ECDSA P-256.
    #[error("the agent's key is not ECDSA P-256, which a proof in the hello needs")]
    KeyKind,
    /// The own key refused to sign.
    #[error("the agent's key could not sign")]
    Sign,
    /// The certificate does not hold.
    #[error("the certificate in the proof does not hold")]
    Peer(#[from] PeerError),
    /// The signature does not hold.
    #[error("the signature in the proof does not hold for the certificate's key and this challenge")]
    Signature,
}

/// Signs with ECDSA P-256 and SHA-256; the signature is ASN.1.
///
/// # Errors
/// [`ProofError::KeyKind`], [`ProofError::Sign`].
pub fn sign_proof(own: &Credentials, message: &[u8]) -> Result<Vec<u8>, ProofError> {
    let key = own.certified_key();
    let signer = key.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).ok_or(ProofError::KeyKind)?;
    signer.sign(message).map_err(|_| ProofError::Sign)
}

/// Verifies the chain as [`Peer::verify`] does, then the signature by the key of its first certificate.
///
/// # Errors
/// Every variant but [`ProofError::Sign`].
pub fn verify_proof(
    chain: &[CertificateDer<'_>],
    message: &[u8],
    signature: &[u8],
    roots: &Roots,
    now: SystemTime,
) -> Result<Peer, ProofError> {
    let peer = Peer::verify(chain, roots, now)?;
    let point = crate::facts::p256_point(chain).ok_or(ProofError::KeyKind)?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
        .verify(message, signature)
        .map_err(|_| ProofError::Signature)?;
    Ok(peer)
}
