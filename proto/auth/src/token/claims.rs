//! What a verified payload says about itself: of which kind the token is, from when to when, and for whom.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use types::instants::timestamp;

use super::CLUSTER_AUDIENCE;
use super::{
    config::{Issuer, Tokens},
    error::TokenError,
    jws::Header,
};

/// Audiences in one token at most.
const AUDIENCES: usize = 64;
/// 9999-12-31T23:59:59Z: times beyond are a fault, not a long life.
const TIME_MAX: i64 = 253_402_300_799;

type Claims = Map<String, Value>;

/// Checks kind, times, audience and required claims; returns when the token ends.
pub(super) fn check(
    header: &Header,
    claims: &Claims,
    issuer: &Issuer,
    audience: &str,
    now: SystemTime,
) -> Result<SystemTime, TokenError> {
    kind(header, claims, issuer.tokens)?;
    let expires = times(claims, issuer.skew, now)?;
    audience_and_party(claims, issuer, audience)?;
    for (claim, values) in &issuer.required {
        let held = match claims.get(claim) {
            None => return Err(TokenError::MissingClaim(claim.clone())),
            Some(Value::String(text)) => values.contains(text),
            Some(Value::Bool(flag)) => values.contains(&flag.to_string()),
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).any(|v| values.iter().any(|w| w == v)),
            Some(_) => false,
        };
        if !held {
            return Err(TokenError::RequiredClaim(claim.clone()));
        }
    }
    Ok(expires)
}

/// Id and access tokens only; of which use where configured. `typ` in the payload is Keycloak's, `token_use` Cognito's.
fn kind(header: &Header, claims: &Claims, wanted: Tokens) -> Result<(), TokenError> {
    let typ = header.typ.as_deref();
    let inner = match claims.get("typ") {
        None => None,
        Some(Value::String(word)) => Some(word.as_str()),
        Some(_) => return Err(TokenError::Kind),
    };
    // `events`: a logout token (OpenID Connect Back-Channel Logout 1.0) or another security event.
    let fits = matches!(typ, None | Some("jwt" | "at+jwt")) && matches!(inner, None | Some("Bearer" | "ID" | "JWT"));
    if !fits || claims.contains_key("events") {
        return Err(TokenError::Kind);
    }
    let said = claims.get("token_use").and_then(Value::as_str);
    let has = |names: &[&str]| names.iter().any(|name| claims.contains_key(*name));
    let access = typ == Some("at+jwt") || inner == Some("Bearer") || said == Some("access") || has(&["scp", "scope"]);
    let id = inner == Some("ID") || said == Some("id") || (!access && has(&["nonce", "at_hash", "c_hash"]));
    match wanted {
        Tokens::Access if id => Err(TokenError::Use { found: "an id", wanted: "access" }),
        Tokens::Id if access => Err(TokenError::Use { found: "an access", wanted: "id" }),
        _ => Ok(()),
    }
}

/// A time in whole seconds. Integral or fractional, never text.
pub(super) fn time(claims: &Claims, claim: &str) -> Result<Option<i64>, TokenError> {
    let wrong = || TokenError::BadClaim { claim: claim.to_owned(), wanted: "a time in seconds since 1970" };
    let seconds = match claims.get(claim) {
        None => return Ok(None),
        Some(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(seconds), _) => seconds,
            // The cast saturates, and what saturates is out of range below.
            #[allow(clippy::cast_possible_truncation)]
            (None, Some(float)) => float.floor() as i64,
            (None, None) => return Err(wrong()),
        },
        Some(_) => return Err(wrong()),
    };
    if (0..=TIME_MAX).contains(&seconds) { Ok(Some(seconds)) } else { Err(wrong()) }
}

/// Checks `exp`, `nbf` and `iat`; returns when it ends.
pub(super) fn times(claims: &Claims, skew: Duration, now: SystemTime) -> Result<SystemTime, TokenError> {
    let now = timestamp(now);
    let skew = i64::try_from(skew.as_secs()).unwrap_or(0);
    let exp = time(claims, "exp")?.ok_or_else(|| TokenError::MissingClaim("exp".to_owned()))?;
    if now >= exp + skew {
        return Err(TokenError::Expired { seconds: now.abs_diff(exp) });
    }
    if let Some(nbf) = time(claims, "nbf")?.filter(|nbf| now + skew < *nbf) {
        return Err(TokenError::NotYetValid { seconds: now.abs_diff(nbf) });
    }
    if let Some(iat) = time(claims, "iat")?.filter(|iat| now + skew < *iat) {
        return Err(TokenError::IssuedInFuture { seconds: now.abs_diff(iat) });
    }
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(exp.unsigned_abs()))
}

/// A key that was replaced has signed nothing that expires after its end: somebody who kept the key made such a token.
pub(super) fn before_end(expires: SystemTime, end: Option<u64>) -> Result<(), TokenError> {
    let after = |end: u64| expires > SystemTime::UNIX_EPOCH + Duration::from_secs(end.min(TIME_MAX.unsigned_abs()));
    if end.is_some_and(after) { Err(TokenError::RetiredKey) } else { Ok(()) }
}

/// One audience must be accepted here. Where the token has others beside, whoever it was issued to (`azp`) must be
/// accepted too: else another service that got it could use it here.
fn audience_and_party(claims: &Claims, issuer: &Issuer, audience: &str) -> Result<(), TokenError> {
    let wrong = || TokenError::BadClaim { claim: "aud".to_owned(), wanted: "a text or a short list of texts" };
    let shown: Vec<&str> = match claims.get("aud") {
        None => return Err(TokenError::MissingClaim("aud".to_owned())),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(list)) if (1..=AUDIENCES).contains(&list.len()) => {
            list.iter().map(|v| v.as_str().ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    // What several clusters share is for clusters: a token for one of them is nothing at the resource API, and the
    // reverse.
    let of_cluster = audience.starts_with(CLUSTER_AUDIENCE);
    let shared: &[String] = if of_cluster { &issuer.audiences } else { &issuer.api_audiences };
    let accepted = |name: &str| !name.is_empty() && (name == audience || shared.iter().any(|a| a == name));
    if !shown.iter().any(|name| accepted(name)) {
        return Err(TokenError::Audience);
    }
    let party = match claims.get("azp").or_else(|| claims.get("appid")) {
        None => None,
        Some(Value::String(party)) => Some(party.as_str()),
        Some(_) => return Err(TokenError::BadClaim { claim: "azp".to_owned(), wanted: "a text" }),
    };
    let listed = party.is_some_and(|party| issuer.authorized_parties.iter().any(|p| p == party));
    let all_ours = shown.iter().all(|name| accepted(name));
    let fits = if issuer.authorized_parties.is_empty() { all_ours || party.is_some_and(accepted) } else { listed };
    if fits { Ok(()) } else { Err(TokenError::AuthorizedParty) }
}
