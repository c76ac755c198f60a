//! Signatures over the exact bytes of an index, in a file beside it. What is signed is DSSE's pre-authentication encoding
//! (github.com/secure-systems-lab/dsse, version 1): with the type of the document in it no signature of ours can be one of
//! another kind of document.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use crate::{
    digest::Sha256,
    key::{PublicKey, SigningKey},
    limits::{KEYS, SIGNATURE_BYTES},
};

/// The type of the signed document.
pub const PAYLOAD_TYPE: &str = "application/vnd.towline.catalogue.index.v1+json";

/// Why a file of signatures cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Larger than any file of signatures that is read; its size in bytes.
    #[error("the file of signatures has {0} bytes, at most {SIGNATURE_BYTES} are read")]
    TooLarge(usize),
    /// Not as it should be.
    #[error("the file of signatures is not readable: {0}")]
    Syntax(String),
    /// Of another kind of document.
    #[error("the signatures are of a document of the type {0:?}, not of a catalogue's index")]
    PayloadType(String),
    /// More signatures than a catalogue may have keys; their number.
    #[error("the file holds {0} signatures, at most {KEYS} are read")]
    TooMany(usize),
}

/// The signatures of one index.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signatures {
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    keyid: Sha256,
    sig: String,
}

impl Signatures {
    /// Signs an index with each of the keys.
    pub fn make(index: &[u8], keys: &[SigningKey]) -> Self {
        let message = pre_authentication(PAYLOAD_TYPE, index);
        let sign = |key: &SigningKey| Signature { keyid: key.public().id(), sig: STANDARD.encode(key.sign(&message)) };
        Self { payload_type: PAYLOAD_TYPE.to_owned(), signatures: keys.iter().map(sign).collect() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is too large or not as it should be.
    pub fn parse(bytes: &[u8]) -> Result<Self, SignatureError> {
        if bytes.len() > SIGNATURE_BYTES {
            return Err(SignatureError::TooLarge(bytes.len()));
        }
        let this: Self = serde_json::from_slice(bytes).map_err(|error| SignatureError::Syntax(error.to_string()))?;
        if this.payload_type != PAYLOAD_TYPE {
            return Err(SignatureError::PayloadType(this.payload_type.chars().take(100).collect()));
        }
        if this.signatures.len() > KEYS {
            return Err(SignatureError::TooMany(this.signatures.len()));
        }
        Ok(this)
    }

    /// As a file.
    ///
    /// # Errors
    /// Never: every part of it can be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SignatureError> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|error| SignatureError::Syntax(error.to_string()))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Ids of the keys that are said to have signed.
    pub fn key_ids(&self) -> impl Iterator<Item = Sha256> {
        self.signatures.iter().map(|signature| signature.keyid)
    }

    /// Whether one of these keys signed the index. Signatures of other keys do not matter.
    pub fn are_of_one_of(&self, keys: &[PublicKey], index: &[u8]) -> bool {
        let message = pre_authentication(PAYLOAD_TYPE, index);
        keys.iter().any(|key| {
            let id = key.id();
            let mut own = self.signatures.iter().filter(|signature| signature.keyid == id);
            own.any(|own| STANDARD.decode(&own.sig).is_ok_and(|bytes| key.verifies(&message, &bytes)))
        })
    }
}

fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pre_authentication_encoding_is_that_of_dsse() {
        assert_eq!(
            pre_authentication("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn signature_is_of_these_bytes_and_of_this_key_alone() {
        let [own, other] = [SigningKey::generate().unwrap(), SigningKey::generate().unwrap()];
        let public = [own.public()];
        let made = Signatures::make(b"index", &[other, own]);
        assert!(made.are_of_one_of(&public, b"index"));
        assert!(!made.are_of_one_of(&public, b"indeX"));
        assert!(!made.are_of_one_of(&[], b"index"));
        let read = Signatures::parse(&made.to_bytes().unwrap()).unwrap();
        assert!(read.are_of_one_of(&public, b"index") && read.key_ids().count() == 2);
        // A signature under the id of another key.
        let mut swapped = made.clone();
        swapped.signatures.remove(1);
        swapped.signatures[0].keyid = public[0].id();
        assert!(!swapped.are_of_one_of(&public, b"index"));
        // A broken one before the right one does no harm.
        let mut twice = made;
        twice.signatures.insert(0, Signature { keyid: public[0].id(), sig: "AAAA".to_owned() });
        assert!(twice.are_of_one_of(&public, b"index"));
    }

    #[test]
    fn signature_over_the_bare_bytes_is_none() {
        let key = SigningKey::generate().unwrap();
        let bare = Signature { keyid: key.public().id(), sig: STANDARD.encode(key.sign(b"index")) };
        let all = Signatures { payload_type: PAYLOAD_TYPE.to_owned(), signatures: vec![bare] };
        assert!(!all.are_of_one_of(&[key.public()], b"index"));
    }

    #[test]
    fn file_that_is_too_large_or_of_another_type_is_refused() {
        assert!(matches!(Signatures::parse(&vec![b' '; SIGNATURE_BYTES + 1]), Err(SignatureError::TooLarge(_))));
        assert!(matches!(Signatures::parse(b"[]"), Err(SignatureError::Syntax(_))));
        let other = br#"{"payloadType": "text/plain", "signatures": []}"#;
        assert!(matches!(Signatures::parse(other), Err(SignatureError::PayloadType(_))));
        let one = format!(r#"{{"keyid": "{}", "sig": ""}}"#, Sha256::of(b""));
        let many = vec![one; KEYS + 1].join(",");
        let many = format!(r#"{{"payloadType": "{PAYLOAD_TYPE}", "signatures": [{many}]}}"#);
        assert_eq!(Signatures::parse(many.as_bytes()).unwrap_err(), SignatureError::TooMany(KEYS + 1));
    }
}
