//! The issuer's signing keys: ECDSA P-256 (`ES256`), the newest signs, and each is vouched for by the one before it.
//!
//! A rotated key's entry in the key set carries `"towline_attestation"`: a compact JWS (RFC 7515) whose payload is the
//! key's RFC 7638 SHA-256 thumbprint as base64url text, whose header is
//! `{"alg":"ES256","kid":"<the signing key>","typ":"towline-key+jws"}`, made by the key before it. Who has pinned some
//! key follows the chain upwards from there and accepts nothing else (docs/identity.md). A key's id is its thumbprint.
//!
//! The private half of a key is deleted when the key is replaced. The public halves stay, so that tokens signed just
//! before remain valid and a verifier that missed some rotations finds the whole chain; up to [`KEYS_KEPT`] of
//! them, after which such a verifier must pin anew.
//!
//! Of each replaced key the newest one states when the last token that it signed expires, in `"towline_ended"`: compact
//! JWSs of type [`ENDED_TYPE`] with the payload `{"key":"<thumbprint>","until":<seconds since 1970>}`; 0 for a revoked
//! key. Revoked keys are published in `"towline_former"` instead of `"keys"`: they link older keys to newer ones, and a
//! verifier that does not know these members no longer takes their tokens.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::instants::{rfc3339, unix_seconds};

use super::{TTL_LONGEST, kept::KeptError};
use crate::files::{self, EditLock, FileError};

/// The one algorithm of this issuer.
pub const ALGORITHM: &str = "ES256";
/// `typ` of an attestation, so that it is no token and a token is no attestation.
pub const ATTESTATION_TYPE: &str = "towline-key+jws";
/// The member of a key's entry that vouches for it.
pub const ATTESTATION_MEMBER: &str = "towline_attestation";
/// `typ` of a statement that a key has ended.
pub const ENDED_TYPE: &str = "towline-key-ended+jws";
/// The member of the key set with such statements.
pub const ENDED_MEMBER: &str = "towline_ended";
/// The member of the key set with the revoked keys.
pub const FORMER_MEMBER: &str = "towline_former";
/// Keys in the published set at most.
pub const KEYS_KEPT: usize = 16;
/// How long a replaced key can still have signed tokens, in seconds: other processes read the new key within this time.
const TAKEN_UP_SECONDS: u64 = 60;

/// Why keys could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The key file cannot be read, parsed or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store that has them.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The cryptographic library refused; there is nothing to learn from it.
    #[error("cannot make or use a P-256 key")]
    Crypto,
    /// There is no such key.
    #[error("the issuer has no key {kid:?}; it has {known}")]
    Unknown {
        /// The requested id.
        kid: String,
        /// All ids, the newest first.
        known: String,
    },
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
    /// Whether an operator has revoked it. Not written while it is not, so that an older program reads the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    revoked: bool,
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
    /// The newest key's statements about the others.
    ended: Vec<String>,
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

    /// Reads a file that must be there.
    ///
    /// # Errors
    /// When it is not, cannot be read, or is damaged.
    pub fn load(path: &Path) -> Result<Self, KeysError> {
        Ok(Self::parse(path, &files::read(path)?)?)
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

    /// Revokes a key: a new key states that nothing that it signed is valid any more. It is new whichever key is
    /// revoked, so that its first token has every verifier read the statement. Does nothing to a key that is revoked
    /// already.
    ///
    /// # Errors
    /// When there is no such key, or the file cannot be read or written.
    pub fn revoke(path: &Path, kid: &str) -> Result<Self, KeysError> {
        let _lock = EditLock::take(path)?;
        let (bytes, keys) = Self::parse(path, &files::read(path)?)?.without(kid)?;
        if let Some(bytes) = bytes {
            files::write_private(path, &bytes)?;
        }
        Ok(keys)
    }

    /// The first key, and what is kept of it.
    pub(super) fn first() -> Result<(Vec<u8>, Self), KeysError> {
        Self::with_new_key(None)
    }

    /// The keys with one more, and what is kept of them.
    pub(super) fn with_one_more(self) -> Result<(Vec<u8>, Self), KeysError> {
        Self::with_new_key(Some(self))
    }

    /// The keys with one of them revoked, and what is kept of them; nothing where it was revoked before.
    pub(super) fn without(self, kid: &str) -> Result<(Option<Vec<u8>>, Self), KeysError> {
        let Some(found) = self.keys.iter().find(|key| key.kid == kid) else {
            let known = self.keys.iter().map(|key| key.kid.as_str()).collect::<Vec<_>>().join(", ");
            return Err(KeysError::Unknown { kid: kid.chars().take(100).collect(), known });
        };
        if found.revoked {
            return Ok((None, self));
        }
        let (bytes, keys) = Self::with_new_key(Some(self))?;
        let mut raw: RawKeys = serde_json::from_slice(&bytes).map_err(|_| KeysError::Crypto)?;
        raw.keys.iter_mut().filter(|key| key.kid == kid).for_each(|key| key.revoked = true);
        let bytes = serde_json::to_vec_pretty(&raw).map_err(|_| KeysError::Crypto)?;
        let keys = Self::of(keys.signer, raw.keys)?;
        Ok((Some(bytes), keys))
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
        Self::of(signer, raw.keys).map_err(|_| content("the private key cannot sign"))
    }

    fn of(signer: EcdsaKeyPair, keys: Vec<Published>) -> Result<Self, KeysError> {
        let mut this = Self { signer, keys, ended: Vec::new() };
        let said = (1..this.keys.len()).map(|at| {
            let ended = json!({"key": this.keys[at].kid, "until": this.until(at)});
            this.sign(ENDED_TYPE, ended.to_string().as_bytes())
        });
        this.ended = said.collect::<Result<_, _>>()?;
        Ok(this)
    }

    /// When the last token that a key signed expires, in seconds since 1970: `None` for the newest, 0 for a revoked
    /// one.
    fn until(&self, at: usize) -> Option<u64> {
        let newer = &self.keys[at.checked_sub(1)?];
        let last = newer.created.saturating_add(TAKEN_UP_SECONDS + TTL_LONGEST.as_secs());
        Some(if self.keys[at].revoked { 0 } else { last })
    }

    /// What an operator is told of each key, the newest first.
    pub fn told(&self) -> Value {
        let told = |at: usize| {
            let (key, until) = (&self.keys[at], self.until(at));
            let state = match until {
                None => "signs",
                Some(0) => "revoked",
                Some(_) => "replaced",
            };
            let mut told = json!({"kid": key.kid, "state": state, "created": spell(key.created)});
            if let Some(until) = until.filter(|until| *until > 0) {
                told["verifiesUntil"] = spell(until).into();
            }
            told
        };
        json!({"keys": (0..self.keys.len()).map(told).collect::<Vec<_>>()})
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
        let created = unix_seconds(SystemTime::now());
        let mut keys = vec![Published { kid, x, y, created, attestation, revoked: false }];
        keys.extend(old.into_iter().flat_map(|old| old.keys).take(KEYS_KEPT - 1));
        let raw = RawKeys { private: BASE64.encode(private.as_ref()), keys: keys.clone() };
        let raw = serde_json::to_vec_pretty(&raw).map_err(|_| KeysError::Crypto)?;
        Ok((raw, Self::of(signer, keys)?))
    }

    /// The id of the key that signs.
    pub fn newest(&self) -> &str {
        self.keys.first().map_or("", |key| key.kid.as_str())
    }

    /// What a new agent pins: a JWKS document with the newest key alone. It accepts no older one, revoked or not.
    pub fn pinned(&self) -> Value {
        json!({ "keys": self.keys.first().map(Published::entry).into_iter().collect::<Vec<_>>() })
    }

    /// The published set: a JWKS document (RFC 7517 section 5), newest first.
    pub fn key_set(&self) -> Value {
        let (former, keys): (Vec<_>, Vec<_>) = self.keys.iter().partition(|key| key.revoked);
        let entries = |keys: Vec<&Published>| keys.into_iter().map(Published::entry).collect::<Vec<_>>();
        let mut set = json!({ "keys": entries(keys) });
        if !former.is_empty() {
            set[FORMER_MEMBER] = entries(former).into();
        }
        if !self.ended.is_empty() {
            set[ENDED_MEMBER] = self.ended.clone().into();
        }
        set
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

impl Published {
    /// As in a key set.
    fn entry(&self) -> Value {
        let mut entry = json!({
            "kty": "EC", "crv": "P-256", "x": self.x, "y": self.y, "use": "sig", "alg": ALGORITHM, "kid": self.kid,
        });
        if let Some(attestation) = &self.attestation {
            entry[ATTESTATION_MEMBER] = Value::String(attestation.clone());
        }
        entry
    }
}

fn spell(seconds: u64) -> String {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map(rfc3339).unwrap_or_default()
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

    /// Key and time of each statement, and who signed it.
    fn ended(set: &Value) -> Vec<(String, u64, String)> {
        let decode = |part: &str| serde_json::from_slice::<Value>(&BASE64.decode(part).unwrap()).unwrap();
        let statements = set[ENDED_MEMBER].as_array().unwrap().iter();
        let parts = statements.map(|jws| jws.as_str().unwrap().split('.').map(str::to_owned).collect::<Vec<_>>());
        let said = parts.map(|parts| {
            let (header, payload) = (decode(&parts[0]), decode(&parts[1]));
            assert_eq!(header["typ"], ENDED_TYPE);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&payload["key"]), payload["until"].as_u64().unwrap(), text(&header["kid"]))
        });
        said.collect()
    }

    #[test]
    fn replaced_key_ends_with_its_last_token_and_revoked_key_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let first = Keys::load_or_create(&path).unwrap().newest().to_owned();
        let second = Keys::rotate(&path).unwrap();
        let newest = second.newest().to_owned();
        let last = second.keys[0].created + TTL_LONGEST.as_secs() + TAKEN_UP_SECONDS;
        assert_eq!(ended(&second.key_set()), [(first.clone(), last, newest.clone())]);
        // Whichever key is revoked, a new one says so, and repeats what was said of the others.
        let third = Keys::revoke(&path, &first).unwrap();
        let by = |key: &str, until: u64, keys: &Keys| (key.to_owned(), until, keys.newest().to_owned());
        let set = third.key_set();
        let last = third.keys[0].created + TTL_LONGEST.as_secs() + TAKEN_UP_SECONDS;
        assert_eq!(ended(&set), [by(&newest, last, &third), by(&first, 0, &third)]);
        let kids = |member: &str| {
            set[member].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((kids("keys"), kids(FORMER_MEMBER)), (vec![third.newest(), &newest], vec![first.as_str()]));
        assert_eq!(Keys::revoke(&path, &first).unwrap().newest(), third.newest(), "it is revoked already");
        Keys::revoke(&path, &newest).unwrap();
        let fourth = Keys::load(&path).unwrap();
        let signed = third.newest();
        let last = fourth.keys[0].created + TTL_LONGEST.as_secs() + TAKEN_UP_SECONDS;
        let wanted = [by(signed, last, &fourth), by(&newest, 0, &fourth), by(&first, 0, &fourth)];
        assert_eq!(ended(&fourth.key_set()), wanted);
        let states: Vec<Value> =
            fourth.told()["keys"].as_array().unwrap().iter().map(|key| key["state"].clone()).collect();
        assert_eq!(states, ["signs", "replaced", "revoked", "revoked"]);
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Keys::revoke(&path, "none"), Err(KeysError::Unknown { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn new_agent_pins_the_newest_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        Keys::load_or_create(&path).unwrap();
        Keys::rotate(&path).unwrap();
        let keys = Keys::rotate(&path).unwrap();
        let pinned = keys.pinned();
        assert_eq!((pinned["keys"].as_array().unwrap().len(), &pinned["keys"][0]["kid"]), (1, &json!(keys.newest())));
        assert_eq!(keys.key_set()["keys"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn file_without_revoked_keys_is_as_older_programs_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        Keys::load_or_create(&path).unwrap();
        Keys::rotate(&path).unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("revoked"));
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
