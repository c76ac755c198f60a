//! Keys: the closed list of algorithms, one JSON Web Key (RFC 7517), and a set of them.
//!
//! A key is usable only for what its kind, its `alg` and its `use` say. Keys that are not (for encryption, too small,
//! of an unknown kind, private, symmetric) are left out of the set, with the reason kept for a log; one `kid` for two
//! different keys leaves both out, for nobody can tell which is meant.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    rsa,
    signature::{
        self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey, RsaParameters,
        VerificationAlgorithm,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::error::{KEYS, KeySetError, TokenError};

/// Keys of one pinned issuer at most, over its life: the pinned ones and those that followed.
pub(super) const CHAIN: usize = 256;
/// Statements of one key set at most, and the length of each statement and attestation in bytes.
const STATEMENTS: usize = CHAIN;
const STATEMENT_BYTES: usize = 2048;

/// Signature algorithms that can be allowed. `none` and `HS*` are not expressible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// EdDSA on Ed25519 (RFC 8037).
    EdDsa,
}

impl Algorithm {
    /// Every algorithm that is accepted.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// The name in `alg`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Reads the name as RFC 7518 spells it, no other case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Self::Es256 | Self::Es384 | Self::EdDsa => return None,
        })
    }
}

/// The word for a refused `alg` in an error: ours, never the token's.
pub(super) fn refused(alg: &str) -> TokenError {
    TokenError::Algorithm(match Algorithm::from_name(alg) {
        Some(known) => known.name(),
        None if alg.eq_ignore_ascii_case("none") => "none",
        None if alg.starts_with("HS") => "HS*",
        None => "(unknown)",
    })
}

/// Why a key of a set is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum JwkError {
    #[error("a member is missing or malformed")]
    Malformed,
    #[error("its kind or curve is not supported")]
    Kind,
    #[error("it is not for signatures")]
    Use,
    #[error("its algorithm is not supported or of another kind of key")]
    Algorithm,
    #[error("it holds a private or symmetric key")]
    Private,
    #[error("its RSA modulus has not 2048 to 8192 bits, or its exponent is unusable")]
    Size,
    #[error("another key has the same id")]
    SameId,
    #[error("no accepted key vouches for it")]
    NotAttested,
    #[error("it has been revoked")]
    Revoked,
    #[error("more than {CHAIN} keys have followed the pinned one; pin the newest key")]
    ChainTooLong,
}

/// A public key for signatures.
pub(super) struct Key {
    pub(super) kid: Option<String>,
    /// RFC 7638, base64url.
    pub(super) thumbprint: String,
    /// By which key before it is vouched for (built-in issuer).
    pub(super) attestation: Option<String>,
    /// The `kid` of the attestation's header, unverified: no other key is tried.
    pub(super) attested_by: Option<String>,
    /// The entry of the set that this was read from, for keys with an attestation: its members that are read here.
    pub(super) entry: Option<Value>,
    verifiers: Vec<(Algorithm, ParsedPublicKey)>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("thumbprint", &self.thumbprint).finish_non_exhaustive()
    }
}

impl Key {
    /// Reads one entry of a key set.
    pub(super) fn read(jwk: &Map<String, Value>) -> Result<Self, JwkError> {
        if ["d", "p", "q", "k"].iter().any(|private| jwk.contains_key(*private)) {
            return Err(JwkError::Private);
        }
        for_signatures(jwk)?;
        let alg = match jwk.get("alg") {
            None => None,
            Some(Value::String(name)) => Some(Algorithm::from_name(name).ok_or(JwkError::Algorithm)?),
            Some(_) => return Err(JwkError::Malformed),
        };
        let kid = match jwk.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err(JwkError::Malformed),
        };
        let (canonical, mut verifiers) = match text(jwk, "kty")? {
            "RSA" => rsa(jwk)?,
            "EC" => elliptic(jwk)?,
            "OKP" => edwards(jwk)?,
            _ => return Err(JwkError::Kind),
        };
        verifiers.retain(|(a, _)| alg.is_none_or(|only| only == *a));
        if verifiers.is_empty() {
            return Err(JwkError::Algorithm);
        }
        let thumbprint = URL_SAFE_NO_PAD.encode(super::jws::sha256(&[canonical.as_bytes()]));
        let attestation = jwk.get("towline_attestation").and_then(Value::as_str);
        let attestation = attestation.filter(|text| text.len() <= STATEMENT_BYTES).map(str::to_owned);
        let attested_by = attestation.as_deref().and_then(|text| super::jws::parts(text).ok()?.header.kid);
        let entry = attestation.as_ref().map(|_| {
            let members = MEMBERS.iter().filter_map(|name| Some(((*name).to_owned(), jwk.get(*name)?.clone())));
            members.collect::<Map<_, _>>().into()
        });
        Ok(Self { kid, thumbprint, attestation, attested_by, entry, verifiers })
    }

    pub(super) fn supports(&self, algorithm: Algorithm) -> bool {
        self.verifiers.iter().any(|(a, _)| *a == algorithm)
    }

    pub(super) fn verify(&self, algorithm: Algorithm, signed: &[u8], signature: &[u8]) -> Result<(), TokenError> {
        let (_, key) = self.verifiers.iter().find(|(a, _)| *a == algorithm).ok_or(TokenError::KeyAlgorithm)?;
        key.verify_sig(signed, signature).map_err(|_| TokenError::Signature)
    }
}

/// The members of an entry that [`Key::read`] reads.
const MEMBERS: [&str; 10] = ["kty", "crv", "x", "y", "n", "e", "use", "alg", "kid", "towline_attestation"];

fn for_signatures(jwk: &Map<String, Value>) -> Result<(), JwkError> {
    match jwk.get("use") {
        None => {}
        Some(Value::String(word)) if word == "sig" => {}
        Some(_) => return Err(JwkError::Use),
    }
    match jwk.get("key_ops") {
        None => Ok(()),
        Some(Value::Array(ops)) if ops.iter().any(|op| op == "verify") => Ok(()),
        Some(_) => Err(JwkError::Use),
    }
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Result<&'a str, JwkError> {
    jwk.get(name).and_then(Value::as_str).ok_or(JwkError::Malformed)
}

fn bytes(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, JwkError> {
    URL_SAFE_NO_PAD.decode(text(jwk, name)?).map_err(|_| JwkError::Malformed)
}

type Parts = (String, Vec<(Algorithm, ParsedPublicKey)>);

fn rsa(jwk: &Map<String, Value>) -> Result<Parts, JwkError> {
    let (n, e) = (bytes(jwk, "n")?, bytes(jwk, "e")?);
    let first = n.iter().position(|b| *b != 0).unwrap_or(n.len());
    let bits = (n.len() - first) * 8 - n.get(first).map_or(0, |b| b.leading_zeros() as usize);
    let odd = |number: &[u8]| number.last().is_some_and(|b| b & 1 == 1);
    if !(2048..=8192).contains(&bits) || !odd(&n) || !odd(&e) || e.len() > 4 || e == [1] {
        return Err(JwkError::Size);
    }
    let key = rsa::PublicKeyComponents { n: &n[first..], e: &e };
    let verifiers = Algorithm::ALL
        .into_iter()
        .filter_map(|a| a.rsa().map(|parameters| (a, parameters)))
        .map(|(a, parameters)| key.to_parsed_public_key(parameters).map(|parsed| (a, parsed)))
        .collect::<Result<_, _>>()
        .map_err(|_| JwkError::Size)?;
    let canonical = format!(r#"{{"e":"{}","kty":"RSA","n":"{}"}}"#, text(jwk, "e")?, text(jwk, "n")?);
    Ok((canonical, verifiers))
}

fn elliptic(jwk: &Map<String, Value>) -> Result<Parts, JwkError> {
    let curve = text(jwk, "crv")?;
    let (algorithm, library, size): (_, &'static dyn VerificationAlgorithm, _) = match curve {
        "P-256" => (Algorithm::Es256, &ECDSA_P256_SHA256_FIXED, 32),
        "P-384" => (Algorithm::Es384, &ECDSA_P384_SHA384_FIXED, 48),
        _ => return Err(JwkError::Kind),
    };
    let (x, y) = (bytes(jwk, "x")?, bytes(jwk, "y")?);
    if x.len() != size || y.len() != size {
        return Err(JwkError::Malformed);
    }
    // The library refuses a point that is not on the curve.
    let key = ParsedPublicKey::new(library, [&[4], &x[..], &y[..]].concat()).map_err(|_| JwkError::Malformed)?;
    let canonical = format!(r#"{{"crv":"{curve}","kty":"EC","x":"{}","y":"{}"}}"#, text(jwk, "x")?, text(jwk, "y")?);
    Ok((canonical, vec![(algorithm, key)]))
}

fn edwards(jwk: &Map<String, Value>) -> Result<Parts, JwkError> {
    if text(jwk, "crv")? != "Ed25519" {
        return Err(JwkError::Kind);
    }
    let key = ParsedPublicKey::new(&ED25519, bytes(jwk, "x")?).map_err(|_| JwkError::Malformed)?;
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, text(jwk, "x")?);
    Ok((canonical, vec![(Algorithm::EdDsa, key)]))
}

/// The usable keys of an issuer.
#[derive(Debug, Clone, Default)]
pub(super) struct KeySet {
    pub(super) keys: Vec<Arc<Key>>,
    /// How many were left out, and why one of them was.
    pub(super) left_out: (usize, Option<JwkError>),
    /// Keys that verify no tokens and only link others to a pinned one: revoked keys of the built-in issuer.
    pub(super) former: Vec<Arc<Key>>,
    /// Statements that keys have ended, unverified (built-in issuer; `keys::chain`).
    pub(super) statements: Vec<String>,
    /// Thumbprints of those of `keys` that have been replaced, with the time (seconds since 1970) at which the last
    /// token that such a key signed expires.
    pub(super) ends: Vec<(String, u64)>,
    /// Thumbprints of revoked keys, whether or not `keys` had them.
    pub(super) revoked: Vec<String>,
}

impl KeySet {
    /// Reads a JWKS document.
    pub(super) fn read(document: &[u8]) -> Result<Self, KeySetError> {
        Self::of(&types::json::object(document).map_err(|_| KeySetError::Json)?, KEYS)
    }

    /// Reads a JWKS document of at most `most` keys.
    pub(super) fn of(object: &Map<String, Value>, most: usize) -> Result<Self, KeySetError> {
        let Some(Value::Array(entries)) = object.get("keys") else { return Err(KeySetError::Shape) };
        let former = object.get("towline_former").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if entries.len() + former.len() > most {
            return Err(KeySetError::TooMany);
        }
        let mut this = Self::default();
        for entry in entries {
            let jwk = entry.as_object().ok_or(KeySetError::Shape)?;
            match Key::read(jwk) {
                Ok(key) if this.keys.iter().any(|k| k.thumbprint == key.thumbprint && k.kid == key.kid) => {}
                Ok(key) => this.keys.push(Arc::new(key)),
                Err(e) => this.leave_out(e),
            }
        }
        let ambiguous = |key: &Key, all: &[Arc<Key>]| {
            key.kid.is_some() && all.iter().any(|k| k.kid == key.kid && k.thumbprint != key.thumbprint)
        };
        let (out, keys): (Vec<_>, Vec<_>) = this.keys.iter().cloned().partition(|key| ambiguous(key, &this.keys));
        out.iter().for_each(|_| this.leave_out(JwkError::SameId));
        this.keys = keys;
        let former = former.iter().filter_map(|entry| Key::read(entry.as_object()?).ok());
        this.former = former.map(Arc::new).collect();
        if let Some(Value::Array(statements)) = object.get("towline_ended") {
            let texts = statements.iter().filter_map(Value::as_str).filter(|text| text.len() <= STATEMENT_BYTES);
            this.statements = texts.take(STATEMENTS).map(str::to_owned).collect();
        }
        Ok(this)
    }

    /// Adds the keys and statements of a set that is believed first: none of its keys that verify nothing stays.
    pub(super) fn add(&mut self, first: &Self) {
        let has = |keys: &[Arc<Key>], key: &Key| keys.iter().any(|known| known.thumbprint == key.thumbprint);
        self.keys.retain(|key| !has(&first.keys, key) && !has(&first.former, key));
        self.keys.splice(..0, first.keys.iter().cloned());
        let former: Vec<_> = first.former.iter().filter(|key| !has(&self.former, key)).cloned().collect();
        self.former.extend(former);
        let statements: Vec<_> =
            first.statements.iter().filter(|text| !self.statements.contains(text)).cloned().collect();
        self.statements.extend(statements);
    }

    pub(super) fn leave_out(&mut self, why: JwkError) {
        self.left_out = (self.left_out.0 + 1, Some(why));
    }

    /// The key that a header means.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<&Arc<Key>, TokenError> {
        match kid {
            Some(kid) => match self.keys.iter().find(|k| k.kid.as_deref() == Some(kid)) {
                Some(key) if key.supports(algorithm) => Ok(key),
                Some(_) => Err(TokenError::KeyAlgorithm),
                None => Err(TokenError::UnknownKey),
            },
            None => {
                let mut fitting = self.keys.iter().filter(|k| k.supports(algorithm));
                match (fitting.next(), fitting.next()) {
                    (Some(key), None) => Ok(key),
                    (None, _) => Err(TokenError::UnknownKey),
                    (Some(_), Some(_)) => Err(TokenError::NoKeyId),
                }
            }
        }
    }

    /// When the last token of a replaced key expires, in seconds since 1970.
    pub(super) fn end_of(&self, key: &Key) -> Option<u64> {
        self.ends.iter().find(|(thumbprint, _)| *thumbprint == key.thumbprint).map(|(_, end)| *end)
    }

    /// Whether both have the same keys, in any order, which end at the same time, and the same are revoked.
    pub(super) fn same(&self, other: &Self) -> bool {
        let revoked = |set: &Self| {
            let mut revoked = set.revoked.clone();
            revoked.sort();
            revoked
        };
        let names = |set: &Self| {
            let each = set.keys.iter().map(|k| (k.kid.clone(), k.thumbprint.clone(), set.end_of(k)));
            let mut names: Vec<_> = each.collect();
            names.sort();
            names
        };
        names(self) == names(other) && revoked(self) == revoked(other)
    }
}
