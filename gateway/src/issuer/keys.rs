//! The issuer's signing keys: ECDSA P-256 (`ES256`), the newest signs, and each is vouched for by the one before it.
//!
//! A rotated key's entry in the key set carries `"towline_attestation"`: a compact JWS (RFC 7515) whose payload is the
//! key's RFC 7638 SHA-256 thumbprint as base64url text, whose header is
//! `{"alg":"ES256","kid":"<the signing key>","typ":"towline-key+jws"}`, made by the key before it. Who has pinned some key
//! follows the chain upwards from there and accepts nothing else (DESIGN.md section 2). A key's id is its thumbprint.
//!
//! The private half of a key is forgotten the moment it is replaced. The public halves stay, so that tokens signed just
//! before remain good and a verifier that slept through some rotations finds the whole chain; up to [`KEYS_KEPT`] of
//! them, after which such a verifier must pin anew.

use std::{path::Path, time::SystemTime};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::files::{self, EditLock, FileError};

/// The one algorithm of this issuer.
pub const ALGORITHM: &str = "ES256";
/// `typ` of an attestation, so that it is no token and a token is no attestation.
pub const ATTESTATION_TYPE: &str = "towline-key+jws";
/// The member of a key's entry that vouches for it.
pub const ATTESTATION_MEMBER: &str = "towline_attestation";
/// Keys in the published set at most.
pub const KEYS_KEPT: usize = 16;

/// Why keys could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The cryptographic library refused; there is nothing to learn from it.
    #[error("cannot make or use a P-256 key")]
    Crypto,
}

/// The public half of a key, as published.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    kid: String,
    x: String,
    y: String,
    /// Seconds since 1970.
    created: u64,
    /// By the key before; none for the first.
    attestation: Option<String>,
}

/// As in the file: newest first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    /// PKCS #8 of the newest, base64url.
    private: String,
    keys: Vec<Published>,
}

/// The keys of an issuer; at least one.
pub struct Keys {
    signer: EcdsaKeyPair,
    keys: Vec<Published>,
}

impl Keys {
    /// Reads the keys of `path`; makes the folder and the first key where there is none.
    pub fn load_or_create(path: &Path) -> Result<Self, KeysError> {
        if let Some(folder) = path.parent() {
            files::create_private_dir(folder)?;
        }
        let _lock = EditLock::take(path)?;
        if path.exists() {
            return Ok(Self::parse(path, &files::read(path)?)?);
        }
        let (raw, keys) = Self::with_new_key(None)?;
        files::write_private(path, &raw)?;
        Ok(keys)
    }

    /// Adds a key that the current one vouches for, and forgets the current one's private half. A running issuer signs
    /// with it from its next token on.
    pub fn rotate(path: &Path) -> Result<Self, KeysError> {
        let _lock = EditLock::take(path)?;
        let old = Self::parse(path, &files::read(path)?)?;
        let (raw, keys) = Self::with_new_key(Some(old))?;
        files::write_private(path, &raw)?;
        Ok(keys)
    }

    /// Reads what [`Keys::rotate`] and [`Keys::load_or_create`] write.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        let content = |reason: &str| FileError::Content { path: path.to_owned(), reason: reason.to_owned() };
        // The JSON library's message may quote the content: only its place is told.
        let raw: RawKeys = serde_json::from_slice(bytes)
            .map_err(|error| content(&format!("not as expected at line {} column {}", error.line(), error.column())))?;
        let private = BASE64.decode(&raw.private).map_err(|_| content("the private key is not base64url"))?;
        let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &private)
            .map_err(|_| content("the private key is not a P-256 key in PKCS #8"))?;
        let newest = raw.keys.first().ok_or_else(|| content("no key"))?;
        if Some((newest.x.clone(), newest.y.clone())) != coordinates(&signer) {
            return Err(content("the private key is not the newest key's"));
        }
        Ok(Self { signer, keys: raw.keys })
    }

    fn with_new_key(old: Option<Self>) -> Result<(Vec<u8>, Self), KeysError> {
        let random = SystemRandom::new();
        let private =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).map_err(|_| KeysError::Crypto)?;
        let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref())
            .map_err(|_| KeysError::Crypto)?;
        let (x, y) = coordinates(&signer).ok_or(KeysError::Crypto)?;
        let kid = thumbprint(&x, &y);
        let attestation = match &old {
            Some(old) => Some(old.sign(ATTESTATION_TYPE, kid.as_bytes())?),
            None => None,
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut keys = vec![Published { kid, x, y, created, attestation }];
        keys.extend(old.into_iter().flat_map(|old| old.keys).take(KEYS_KEPT - 1));
        let raw = RawKeys { private: BASE64.encode(private.as_ref()), keys: keys.clone() };
        let raw = serde_json::to_vec_pretty(&raw).map_err(|_| KeysError::Crypto)?;
        Ok((raw, Self { signer, keys }))
    }

    /// The id of the key that signs.
    pub fn newest(&self) -> &str {
        self.keys.first().map_or("", |key| key.kid.as_str())
    }

    /// The published set: a JWKS document (RFC 7517 section 5), newest first. Also what an agent pins.
    pub fn key_set(&self) -> Value {
        let keys: Vec<Value> = self
            .keys
            .iter()
            .map(|key| {
                let mut entry = json!({
                    "kty": "EC", "crv": "P-256", "x": key.x, "y": key.y,
                    "use": "sig", "alg": ALGORITHM, "kid": key.kid,
                });
                if let Some(attestation) = &key.attestation {
                    entry[ATTESTATION_MEMBER] = Value::String(attestation.clone());
                }
                entry
            })
            .collect();
        json!({ "keys": keys })
    }

    /// Signs `payload` with the newest key: a compact JWS.
    pub(super) fn sign(&self, kind: &str, payload: &[u8]) -> Result<String, KeysError> {
        let header = json!({ "alg": ALGORITHM, "kid": self.newest(), "typ": kind }).to_string();
        let mut out = format!("{}.{}", BASE64.encode(header), BASE64.encode(payload));
        let signature = self.signer.sign(&SystemRandom::new(), out.as_bytes()).map_err(|_| KeysError::Crypto)?;
        out.push('.');
        BASE64.encode_string(signature.as_ref(), &mut out);
        Ok(out)
    }
}

/// The point of a public key, `x` and `y` as RFC 7518 section 6.2.1 spells them.
fn coordinates(pair: &EcdsaKeyPair) -> Option<(String, String)> {
    match pair.public_key().as_ref() {
        [4, point @ ..] if point.len() == 64 => {
            let (x, y) = point.split_at(32);
            Some((BASE64.encode(x), BASE64.encode(y)))
        }
        _ => None,
    }
}

/// RFC 7638: SHA-256 of the required members in the order of their names.
fn thumbprint(x: &str, y: &str) -> String {
    let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    BASE64.encode(digest(&SHA256, canonical.as_bytes()))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    fn public(key: &Value) -> Vec<u8> {
        let part = |name: &str| BASE64.decode(key[name].as_str().unwrap()).unwrap();
        [vec![4], part("x"), part("y")].concat()
    }

    #[test]
    fn rotated_keys_form_a_chain_of_attestations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("issuer/keys.json");
        let first = Keys::load_or_create(&path).unwrap();
        assert_eq!(Keys::load_or_create(&path).unwrap().newest(), first.newest(), "a second start keeps the key");
        for _ in 0..3 {
            Keys::rotate(&path).unwrap();
        }
        let set = Keys::load_or_create(&path).unwrap().key_set();
        let keys = set["keys"].as_array().unwrap();
        assert_eq!(keys.len(), 4);
        assert_eq!(keys[3]["kid"], first.newest());
        assert!(keys[3].get(ATTESTATION_MEMBER).is_none());
        for pair in keys.windows(2) {
            let jws = pair[0][ATTESTATION_MEMBER].as_str().unwrap();
            let (signed, signature) = jws.rsplit_once('.').unwrap();
            let (header, payload) = signed.split_once('.').unwrap();
            let header: Value = serde_json::from_slice(&BASE64.decode(header).unwrap()).unwrap();
            assert_eq!(header, json!({"alg": "ES256", "kid": pair[1]["kid"], "typ": ATTESTATION_TYPE}));
            assert_eq!(BASE64.decode(payload).unwrap(), pair[0]["kid"].as_str().unwrap().as_bytes());
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public(&pair[1]))
                .verify(signed.as_bytes(), &BASE64.decode(signature).unwrap())
                .unwrap();
        }
    }

    #[test]
    fn the_number_of_published_keys_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        Keys::load_or_create(&path).unwrap();
        for _ in 0..KEYS_KEPT + 3 {
            Keys::rotate(&path).unwrap();
        }
        let keys = Keys::load_or_create(&path).unwrap();
        assert_eq!(keys.key_set()["keys"].as_array().unwrap().len(), KEYS_KEPT);
    }

    #[test]
    fn a_private_key_is_never_part_of_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        Keys::load_or_create(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let raw: Value = serde_json::from_str(&text).unwrap();
        let private = raw["private"].as_str().unwrap();
        let broken = text.replace("\"private\"", "\"privat\"");
        let error = Keys::parse(&path, broken.as_bytes()).err().unwrap().to_string();
        assert!(!error.contains(private) && error.contains("line"), "{error}");
    }

    #[test]
    fn the_thumbprint_is_that_of_rfc_7638() {
        // The example key of RFC 7517 appendix A.1; the value was computed by an unrelated program.
        let (x, y) = ("MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM");
        assert_eq!(thumbprint(x, y), "cn-I_WNMClehiVp51i_0VpOENW1upEerA8sEam5hn-s");
    }
}
