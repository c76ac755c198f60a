//! A compact JWS (RFC 7515) read before any cryptography: exactly three base64url parts without padding, a header and a
//! payload that are strict JSON objects, and nothing in the header that would change what is verified. `jku`, `jwk`,
//! `x5u` and `x5c` are not even looked at: keys come from the issuer's configuration alone.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};
use types::{
    json::{self, JsonError},
    limits::TOKEN_BYTES,
};

use super::error::{KID_BYTES, TokenError};

/// The parts of a JWS that was read and not verified, its payload as JSON.
#[derive(Debug)]
pub(super) struct Compact<'a> {
    /// What the signature is over.
    pub(super) signed: &'a [u8],
    pub(super) header: Header,
    pub(super) payload: Map<String, Value>,
    pub(super) signature: Vec<u8>,
}

/// The header's members that are used.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    /// Lower-case, without `application/`.
    pub(super) typ: Option<String>,
}

/// The parts of a JWS whose payload need not be JSON.
pub(super) struct Parts<'a> {
    pub(super) signed: &'a [u8],
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

/// Reads a token. [`TokenError::Opaque`] for what is no JWT at all; every other error is of a broken or hostile one.
pub(super) fn parse(token: &str) -> Result<Compact<'_>, TokenError> {
    let Parts { signed, header, payload, signature } = parts(token)?;
    let payload = json::object(&payload).map_err(|e| match e {
        JsonError::Duplicate { .. } => TokenError::DuplicateKey("payload"),
        JsonError::Syntax { .. } | JsonError::Depth { .. } => TokenError::Malformed("its payload is not a JSON object"),
    })?;
    Ok(Compact { signed, header, payload, signature })
}

/// As [`parse`], leaving the payload as bytes.
pub(super) fn parts(token: &str) -> Result<Parts<'_>, TokenError> {
    if token.len() > TOKEN_BYTES {
        return Err(TokenError::TooLarge { size: token.len(), limit: TOKEN_BYTES });
    }
    // RFC 6750 section 2.1, so that no space or line break reaches a header or a log.
    if !token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b)) {
        return Err(TokenError::BadCharacter);
    }
    let mut dots = token.match_indices('.').map(|(at, _)| at);
    let (first, second, third) = (dots.next(), dots.next(), dots.next());
    let header = first.and_then(|end| header_object(&token[..end]).transpose());
    let (Some(header), Some(first), Some(second)) = (header.transpose()?, first, second) else {
        return Err(TokenError::Opaque);
    };
    if header.contains_key("enc") || header.contains_key("zip") {
        return Err(TokenError::Encrypted);
    }
    if third.is_some() {
        return Err(TokenError::Malformed("it has more than three parts"));
    }
    let part = |text: &str, wrong| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Malformed(wrong));
    Ok(Parts {
        signed: &token.as_bytes()[..second],
        header: Header::read(&header)?,
        payload: part(&token[first + 1..second], "its payload is not base64url without padding")?,
        signature: part(&token[second + 1..], "its signature is not base64url without padding")?,
    })
}

/// `None`: no object, hence no JWT.
fn header_object(part: &str) -> Result<Option<Map<String, Value>>, TokenError> {
    let Ok(bytes) = URL_SAFE_NO_PAD.decode(part) else { return Ok(None) };
    match json::object(&bytes) {
        Ok(object) => Ok(Some(object)),
        Err(JsonError::Syntax { .. } | JsonError::Depth { .. }) => Ok(None),
        Err(JsonError::Duplicate { .. }) => Err(TokenError::DuplicateKey("header")),
    }
}

impl Header {
    fn read(object: &Map<String, Value>) -> Result<Self, TokenError> {
        if object.contains_key("crit") {
            return Err(TokenError::Critical);
        }
        if object.contains_key("b64") {
            return Err(TokenError::Unencoded);
        }
        if object.contains_key("cty") {
            return Err(TokenError::Nested);
        }
        let Some(Value::String(alg)) = object.get("alg") else {
            return Err(TokenError::Malformed("its header has no alg"));
        };
        let kid = match object.get("kid") {
            None => None,
            Some(Value::String(kid)) if is_plain(kid) => Some(kid.clone()),
            Some(_) => return Err(TokenError::BadKeyId),
        };
        let typ = match object.get("typ") {
            None => None,
            Some(Value::String(typ)) => {
                let typ = typ.to_ascii_lowercase();
                Some(typ.strip_prefix("application/").map_or(typ.clone(), str::to_owned))
            }
            Some(_) => return Err(TokenError::Malformed("its typ is not text")),
        };
        Ok(Self { alg: alg.clone(), kid, typ })
    }
}

fn is_plain(kid: &str) -> bool {
    (1..=KID_BYTES).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_graphic())
}

/// The SHA-256 of a text, for keys of caches.
pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}
