//! Tokens: who signed in -> claims -> a signed JWT. The only place where claims are written.

use std::time::{Duration, SystemTime};

use auth::token::CREDENTIAL;
use serde_json::{Value, json};
use types::{ids::hex, instants::unix_seconds, random};

use super::{
    Issuer, TTL_DEFAULT,
    principals::{Principal, hash},
    respond::Refusal,
    users::User,
};

/// A clock of another machine may be so far behind ours, in seconds.
const NOT_BEFORE_SLACK_SECONDS: u64 = 30;

/// The key could not sign.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the issuer's key could not sign")]
pub struct NotSigned;

/// The user or service principal that a token is issued to.
#[derive(Clone)]
pub enum Subject {
    /// A local user.
    User(User),
    /// A service principal.
    Principal(Principal),
}

impl Subject {
    /// What a token says of them. `preferred_username` is their user name in a cluster: of a service principal its
    /// object id (docs/features.md A3), which no local user can be called.
    fn claims(&self) -> Value {
        match self {
            Self::User(user) => json!({
                "sub": user.id,
                "oid": user.id,
                "groups": user.groups,
                "preferred_username": user.name,
                CREDENTIAL: user.credential(),
            }),
            Self::Principal(principal) => json!({
                "sub": principal.object_id,
                "oid": principal.object_id,
                "appid": principal.client_id,
                "azp": principal.client_id,
                "idtyp": "app",
                "preferred_username": principal.object_id,
            }),
        }
    }
}

/// What tokens call the sign-in that they came of. The family itself is half of a refresh token: whoever sees a token
/// must not be able to show it.
fn sid(sign_in: &str) -> String {
    hex(&hash(b"towline sign-in", sign_in)[..16])
}

impl Issuer {
    /// Signs an access token of `life` for `subject`, which came of a sign-in that it names, if it is one of several
    /// that will: the family of a user's refresh tokens, or the id of a service principal's secret.
    pub(super) fn mint(
        &self,
        subject: &Subject,
        sign_in: Option<&str>,
        audience: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        let mut claims = subject.claims();
        if let Some(sign_in) = sign_in {
            claims["sid"] = Value::from(sid(sign_in));
            if let Subject::Principal(_) = subject {
                claims[CREDENTIAL] = Value::from(sign_in);
            }
        }
        self.sign(claims, audience, life, now)
    }

    /// Signs an access token of the identity of a cluster or an extension, with its end in seconds since 1970.
    /// `xms_mirid` names the resource, as Azure's tokens of managed identities do.
    pub fn mint_for_resource(
        &self,
        principal: &str,
        resource: &str,
        audience: &str,
    ) -> Result<(String, u64), NotSigned> {
        let (life, now) = (self.settings.ttl.min(TTL_DEFAULT), self.now());
        let claims = json!({
            "sub": principal,
            "oid": principal,
            "appid": principal,
            "azp": principal,
            "idtyp": "app",
            "preferred_username": principal,
            "xms_mirid": resource,
        });
        let token = self.sign(claims, audience, life, now).map_err(|_| NotSigned)?;
        Ok((token, unix_seconds(now) + life.as_secs()))
    }

    /// Signs an ID token (OpenID Connect Core 1.0 section 2) for a client: its audience is the client's id, which is no
    /// audience of a cluster or of the API.
    pub(super) fn mint_id(
        &self,
        user: &User,
        client: &str,
        nonce: Option<&str>,
        signed_in: u64,
        life: Duration,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        let mut claims = json!({
            "sub": user.id,
            "oid": user.id,
            "preferred_username": user.name,
            "name": user.name,
            "auth_time": signed_in,
        });
        if let Some(nonce) = nonce {
            claims["nonce"] = Value::from(nonce);
        }
        self.sign(claims, client, life, now)
    }

    /// Signs a statement that is no token: of another `kind` than tokens are.
    pub fn state(&self, kind: &str, claims: Value, audience: &str, life: Duration) -> Option<String> {
        self.sign_as(kind, claims, audience, life, (self.clock)()).ok()
    }

    fn sign(&self, claims: Value, audience: &str, life: Duration, now: SystemTime) -> Result<String, Refusal> {
        self.sign_as("JWT", claims, audience, life, now)
    }

    fn sign_as(
        &self,
        kind: &str,
        mut claims: Value,
        audience: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        let now = unix_seconds(now);
        let jti = random::bytes::<16>().map_err(|_| Refusal::Internal)?;
        for (claim, value) in [
            ("iss", json!(self.settings.url)),
            ("tid", json!(self.settings.tenant)),
            ("aud", json!(audience)),
            ("iat", json!(now)),
            ("nbf", json!(now.saturating_sub(NOT_BEFORE_SLACK_SECONDS))),
            ("exp", json!(now + life.as_secs())),
            ("jti", json!(hex(&jti))),
        ] {
            claims[claim] = value;
        }
        self.state.keys().sign(kind, claims.to_string().as_bytes()).map_err(|_| Refusal::Internal)
    }
}
