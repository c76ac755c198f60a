//! Ed25519 keys (RFC 8032) and their files: PEM as `openssl genpkey -algorithm ed25519` writes it (RFC 8410).

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use serde::{Deserialize, Serialize};

use crate::{digest::Sha256, limits::KEY_FILE_BYTES};

/// What stands before the 32 bytes of a public key in its file (RFC 8410 section 4).
const PUBLIC_PREFIX: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const ALGORITHM: &str = "ed25519";

/// Why a key cannot be used. Says nothing of a key's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file is no public key of ours.
    #[error("it is not an Ed25519 public key in PEM (BEGIN PUBLIC KEY)")]
    Public,
    /// The file is no private key of ours.
    #[error("it is not an Ed25519 private key in PEM without a passphrase (BEGIN PRIVATE KEY)")]
    Private,
    /// The id in an index is not that of its key.
    #[error("the id of a key is not the SHA-256 digest of its 32 bytes")]
    Id,
    /// The system's random source failed.
    #[error("no key could be made: the system has no random numbers")]
    Random,
}

/// A public key. Its id is the SHA-256 digest of its 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "WrittenKey", into = "WrittenKey")]
pub struct PublicKey([u8; 32]);

/// As an index holds it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKey {
    id: Sha256,
    algorithm: String,
    key: String,
}

impl PublicKey {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no Ed25519 public key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        if pem.len() > KEY_FILE_BYTES {
            return Err(KeyError::Public);
        }
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_| KeyError::Public)?;
        let bytes = der.as_ref().strip_prefix(PUBLIC_PREFIX).ok_or(KeyError::Public)?;
        Ok(Self(bytes.try_into().map_err(|_| KeyError::Public)?))
    }

    /// The key as a PEM file.
    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &[PUBLIC_PREFIX, &self.0].concat())
    }

    /// The name of the key in an index and in a file of signatures.
    pub fn id(&self) -> Sha256 {
        Sha256::of(&self.0)
    }

    /// Whether this key made the signature of these bytes.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id())
    }
}

impl From<PublicKey> for WrittenKey {
    fn from(key: PublicKey) -> Self {
        Self { id: key.id(), algorithm: ALGORITHM.to_owned(), key: STANDARD.encode(key.0) }
    }
}

impl TryFrom<WrittenKey> for PublicKey {
    type Error = KeyError;

    fn try_from(written: WrittenKey) -> Result<Self, KeyError> {
        let bytes = STANDARD.decode(&written.key).map_err(|_| KeyError::Public)?;
        let key = Self(bytes.try_into().map_err(|_| KeyError::Public)?);
        if written.algorithm != ALGORITHM {
            return Err(KeyError::Public);
        }
        if written.id != key.id() {
            return Err(KeyError::Id);
        }
        Ok(key)
    }
}

/// A private key. It does not print.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl SigningKey {
    /// A new key.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        Self::of(Ed25519KeyPair::generate().map_err(|_| KeyError::Random)?).ok_or(KeyError::Random)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is no Ed25519 private key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        if pem.len() > KEY_FILE_BYTES {
            return Err(KeyError::Private);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| KeyError::Private)?;
        let pair = Ed25519KeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| KeyError::Private)?;
        Self::of(pair).ok_or(KeyError::Private)
    }

    fn of(pair: Ed25519KeyPair) -> Option<Self> {
        let public = PublicKey(pair.public_key().as_ref().try_into().ok()?);
        Some(Self { pair, public })
    }

    /// As a file, which only its owner may read.
    ///
    /// # Errors
    /// When the library cannot write it.
    pub fn to_pem(&self) -> Result<String, KeyError> {
        Ok(pem("PRIVATE KEY", self.pair.to_pkcs8v1().map_err(|_| KeyError::Private)?.as_ref()))
    }

    /// The public half, which an index names.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.id())
    }
}

/// A key of ours is at most 64 characters of base64: one line.
fn pem(label: &str, der: &[u8]) -> String {
    // Room for all of it: a text that grows leaves copies of a private key behind.
    let mut text = String::with_capacity(256);
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    STANDARD.encode_string(der, &mut text);
    text.push_str(&format!("\n-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8410 section 10.
    const RFC_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
    const RFC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

    #[test]
    fn key_files_are_those_of_rfc_8410() {
        let key = SigningKey::from_pem(RFC_PRIVATE.as_bytes()).unwrap();
        assert_eq!(key.public().to_pem(), RFC_PUBLIC);
        assert_eq!(PublicKey::from_pem(RFC_PUBLIC.as_bytes()), Ok(key.public()));
        assert_eq!(key.to_pem().unwrap(), RFC_PRIVATE);
        let made = SigningKey::generate().unwrap();
        assert_eq!(SigningKey::from_pem(made.to_pem().unwrap().as_bytes()).unwrap().public(), made.public());
    }

    #[test]
    fn other_files_are_no_keys_and_a_private_key_does_not_print() {
        let key = SigningKey::generate().unwrap();
        let private = key.to_pem().unwrap();
        let long = format!("{}{RFC_PUBLIC}", "x".repeat(KEY_FILE_BYTES));
        for bad in ["", "x", private.as_str(), &RFC_PUBLIC.replace("MCow", "MDow"), &long] {
            assert_eq!(PublicKey::from_pem(bad.as_bytes()), Err(KeyError::Public), "{bad:.60}");
        }
        for bad in ["", "x", RFC_PUBLIC, &private.replace("MC4C", "MC4D"), &"x".repeat(KEY_FILE_BYTES + 1)] {
            assert_eq!(SigningKey::from_pem(bad.as_bytes()).unwrap_err(), KeyError::Private, "{bad:.60}");
        }
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", key.public().id()));
    }

    #[test]
    fn key_in_an_index_has_the_id_of_its_bytes() {
        let key = SigningKey::generate().unwrap().public();
        let written = serde_json::to_value(key).unwrap();
        assert_eq!(serde_json::from_value::<PublicKey>(written.clone()).unwrap(), key);
        for (name, value) in [("id", "00".repeat(32)), ("algorithm", "rsa".into()), ("key", "AAAA".into())] {
            let mut wrong = written.clone();
            wrong[name] = value.into();
            assert!(serde_json::from_value::<PublicKey>(wrong).is_err(), "{name}");
        }
    }
}
