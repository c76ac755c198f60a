//! Proof of possession as Azure Arc's clients show it: a JWS (`typ: pop`, `RS256`) around an access token, signed with
//! a key that the access token names, for one cluster, for a short time (docs/features.md A5).
//!
//! A nonce that was seen before is no fault: gateway and agent both check one proof, and kubectl shows it more than
//! once.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use types::instants::timestamp;

use super::{
    claims,
    error::PopError,
    jwk::{Algorithm, Key},
    jws::Compact,
};

/// The `typ` of a proof.
pub(super) const TYPE: &str = "pop";

/// The access token in a proof, unproved: to find its issuer.
pub(super) fn access_token<'a>(outer: &'a Compact<'_>) -> Result<&'a str, PopError> {
    outer.payload.get("at").and_then(Value::as_str).ok_or(PopError::AccessToken)
}

/// Checks everything in a proof except its access token. Returns the instant at which the proof expires.
pub(super) fn check(
    outer: &Compact<'_>,
    inner: Result<&Compact<'_>, PopError>,
    host: &str,
    validity: Duration,
    skew: Duration,
    now: SystemTime,
) -> Result<SystemTime, PopError> {
    if outer.header.kid.is_none() {
        return Err(PopError::NoKeyId);
    }
    if outer.header.alg != Algorithm::Rs256.name() {
        return Err(PopError::Algorithm);
    }
    let shown = claims::time(&outer.payload, "ts").ok().flatten().ok_or(PopError::Timestamp)?;
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(shown.unsigned_abs()) + validity;
    if end <= now {
        return Err(PopError::Expired);
    }
    if shown > timestamp(now + skew) {
        return Err(PopError::Future);
    }
    if !outer.payload.get("u").and_then(Value::as_str).is_some_and(|u| u.eq_ignore_ascii_case(host)) {
        return Err(PopError::Host);
    }
    let jwk = outer.payload.get("cnf").and_then(|cnf| cnf.get("jwk")).and_then(Value::as_object);
    let key = jwk.and_then(|jwk| Key::read(jwk).ok()).filter(|key| key.supports(Algorithm::Rs256));
    let key = key.ok_or(PopError::Key)?;
    let bound = inner?.payload.get("cnf").and_then(|cnf| cnf.get("kid")).and_then(Value::as_str);
    if bound != Some(key.thumbprint.as_str()) {
        return Err(PopError::Binding);
    }
    key.verify(Algorithm::Rs256, outer.signed, &outer.signature).map_err(|_| PopError::Signature)?;
    Ok(end)
}
