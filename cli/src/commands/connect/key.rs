//! The onboarding key: RSA 4096, made in memory, kept in the cluster's Secret and nowhere else (docs/features.md R6).

use anyhow::{Context, anyhow};
use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_SHA256},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};

const LABEL: &str = "PRIVATE KEY";
const PEM_LINE: usize = 64;

/// A pair. Does not print.
pub struct OnboardingKey {
    /// PKCS#8 as PEM.
    pub private: SecretString,
    /// PKCS#1 as base64 of DER: the resource's `agentPublicKeyCertificate`.
    pub public: String,
}

impl OnboardingKey {
    /// A new pair. Takes a second or more.
    pub async fn generate() -> anyhow::Result<Self> {
        tokio::task::spawn_blocking(|| {
            let pair = KeyPair::generate(KeySize::Rsa4096).map_err(|_| anyhow!("no RSA key could be made"))?;
            let der: Pkcs8V1Der = pair.as_der().map_err(|_| anyhow!("the key has no PKCS#8 form"))?;
            Ok(Self { private: pem(der.as_ref()), public: BASE64.encode(pair.public_key().as_ref()) })
        })
        .await?
    }

    /// Of a private key that is there.
    ///
    /// # Errors
    /// When it is no RSA key of 2048 bits or more in PKCS#8. Says nothing of its content.
    pub fn parse(private: SecretString) -> anyhow::Result<Self> {
        let pair = pair(&private)?;
        Ok(Self { public: BASE64.encode(pair.public_key().as_ref()), private })
    }

    /// An RSA signature (PKCS#1 v1.5, SHA-256) in base64.
    ///
    /// # Errors
    /// When the key does not sign.
    pub fn sign(&self, message: &[u8]) -> anyhow::Result<String> {
        let pair = pair(&self.private)?;
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
            .map_err(|_| anyhow!("the onboarding key does not sign"))?;
        Ok(BASE64.encode(signature))
    }

    /// Whether a resource's `agentPublicKeyCertificate` is the public half, alone or within a certificate.
    pub fn is_half_of(&self, known: &str) -> bool {
        let bytes = |text: &str| BASE64.decode(text.split_whitespace().collect::<String>()).unwrap_or_default();
        let (own, known) = (bytes(&self.public), bytes(known));
        !own.is_empty() && known.windows(own.len()).any(|part| part == own)
    }
}

fn pair(private: &SecretString) -> anyhow::Result<KeyPair> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(private.expose_secret().as_bytes())
        .map_err(|_| anyhow!("it is not a PKCS#8 private key in PEM"))
        .context("cannot use the onboarding key")?;
    KeyPair::from_pkcs8(der.secret_pkcs8_der())
        .map_err(|_| anyhow!("it is not an RSA private key of 2048 to 8192 bits"))
        .context("cannot use the onboarding key")
}

fn pem(der: &[u8]) -> SecretString {
    let body = BASE64.encode(der);
    let mut text = format!("-----BEGIN {LABEL}-----\n");
    for line in body.as_bytes().chunks(PEM_LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text += &format!("-----END {LABEL}-----\n");
    SecretString::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r6_a_key_is_read_as_it_was_written() {
        let made = OnboardingKey::generate().await.unwrap();
        let read = OnboardingKey::parse(made.private).unwrap();
        assert_eq!(read.public, made.public);
        // DER of two integers, of which the first has 4096 bits.
        assert!(BASE64.decode(&read.public).unwrap().len() > 512);
        for wrong in ["", "x", "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n"] {
            assert!(OnboardingKey::parse(SecretString::from(wrong)).is_err());
        }
    }
}
