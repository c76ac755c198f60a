//! A token, and what it says of itself: nothing of it is verified here.

use std::time::{Duration, SystemTime};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use secrecy::SecretString;
use serde_json::Value;

/// A token and what is known of it without judging it.
#[derive(Clone)]
pub struct Token {
    /// The token as it is sent.
    pub secret: SecretString,
    /// When it ends; none if it is no JWT or does not say.
    pub expires: Option<SystemTime>,
    /// When it was made, as far as we know.
    pub obtained: SystemTime,
}

impl Token {
    /// Reads the times of a JWT; what is no JWT has none.
    pub fn new(secret: SecretString, obtained: SystemTime) -> Self {
        use secrecy::ExposeSecret;
        let expires = claims(secret.expose_secret())
            .and_then(|claims| claims["exp"].as_f64())
            .filter(|seconds| seconds.is_finite() && (0.0..253_402_300_800.0).contains(seconds))
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds));
        Self { secret, expires, obtained }
    }
}

/// The claims of a JWT, not verified: only to tell kinds of token and times apart.
pub fn claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else { return None };
    serde_json::from_slice(&BASE64.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &str) -> SecretString {
        format!("e30.{}.c2ln", BASE64.encode(claims)).into()
    }

    #[test]
    fn the_end_of_a_token_is_read_and_odd_ones_have_none() {
        let now = SystemTime::now();
        let end = |claims: &str| Token::new(jwt(claims), now).expires;
        assert_eq!(end(r#"{"exp":60}"#), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(60)));
        for odd in ["{}", r#"{"exp":"60"}"#, r#"{"exp":-1}"#, r#"{"exp":1e300}"#, "x"] {
            assert_eq!(end(odd), None, "{odd}");
        }
        assert_eq!(Token::new("opaque".into(), now).expires, None);
    }
}
