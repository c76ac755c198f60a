//! The small built-in OIDC issuer, mounted at `/.towline/issuer`: one machine needs nothing else (DESIGN.md section 4).
//!
//! Everything it knows lies in one folder and is read again when it changes, so that `towline dev add-user` and
//! `rotate-keys` reach a running issuer without a signal:
//!
//! | file | what it holds |
//! |---|---|
//! | `keys.json` | the signing key, and the public halves of earlier ones, each vouched for by the one before |
//! | `users.json` | local users: stable id, groups, hashed password, disabled or not |
//!
//! What it mints is for one audience: a cluster ([`ClusterId::audience`]), so that a token shown for cluster A is nothing
//! at B. Agents pin its key set when they are enrolled and accept a further key only when one they accept has signed it
//! ([`keys`]); a gateway that is taken over therefore cannot bring its own.

mod failures;
pub mod files;
mod grant;
pub mod keys;
mod respond;
pub mod users;

use std::{net::IpAddr, path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use proto::ids::ClusterId;

pub use self::{
    files::FileError,
    keys::{Keys, KeysError},
    users::{User, Users, UsersError},
};

/// Path below a gateway's address where it is mounted.
pub const MOUNT: &str = "/.towline/issuer";
/// Default and longest life of a token.
pub const TTL_DEFAULT: Duration = Duration::from_secs(3600);
/// The file with the keys, in the issuer's folder.
pub const KEYS_FILE: &str = "keys.json";
/// The file with the users, in the issuer's folder.
pub const USERS_FILE: &str = "users.json";

/// What an issuer needs to know.
#[derive(Debug, Clone)]
pub struct IssuerSettings {
    /// `iss`, the address below which discovery is read, without a slash at the end:
    /// `https://gateway.example.org/.towline/issuer`.
    pub url: String,
    /// Its folder.
    pub state: PathBuf,
    /// How long a token lives, and the longest that a request may ask for.
    pub ttl: Duration,
    /// Audiences that it mints for beside those of clusters.
    pub audiences: Vec<String>,
}

/// Why an issuer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The keys could not be read or made.
    #[error("the built-in issuer's keys")]
    Keys(#[from] KeysError),
    /// The users could not be read.
    #[error("the built-in issuer's users")]
    Users(#[from] UsersError),
}

/// A running issuer. Shared by reference; all methods take `&self`.
pub struct Issuer {
    settings: IssuerSettings,
    /// Path of `settings.url`, which requests may carry in front.
    prefix: String,
    keys: files::Watched<Keys>,
    users: files::Watched<Users>,
    checks: grant::PasswordChecks,
    failures: failures::Failures,
}

impl Issuer {
    /// Opens the issuer in `settings.state`; makes the folder, the first key and an empty user file where there are none.
    pub fn open(settings: IssuerSettings) -> Result<Self, IssuerError> {
        let keys_file = settings.state.join(KEYS_FILE);
        let users_file = settings.state.join(USERS_FILE);
        Keys::load_or_create(&keys_file)?;
        Users::edit(&users_file, |_| Ok(()))?;
        let prefix = path_of(&settings.url).trim_end_matches('/').to_owned();
        Ok(Self {
            keys: files::Watched::open(keys_file, Keys::parse).map_err(KeysError::from)?,
            users: files::Watched::open(users_file, Users::parse).map_err(UsersError::from)?,
            checks: grant::PasswordChecks::new(),
            failures: failures::Failures::new(),
            prefix,
            settings,
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &IssuerSettings {
        &self.settings
    }

    /// The key set as published: a JWKS document (RFC 7517 section 5).
    pub fn key_set(&self) -> serde_json::Value {
        self.keys.current().key_set()
    }

    /// Answers one request to the issuer from a client at `peer`. The path may carry the prefix or not.
    pub async fn handle<B>(&self, peer: IpAddr, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path();
        let path = path.strip_prefix(self.prefix.as_str()).unwrap_or(path).to_owned();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match (path.as_str(), reads) {
            ("/.well-known/openid-configuration", true) => respond::document(&self.discovery()),
            ("/keys", true) => respond::document(&self.key_set()),
            ("/token", false) if request.method() == Method::POST => match self.token(peer, request).await {
                Ok(minted) => respond::token(&minted),
                Err(refusal) => respond::refusal(&refusal),
            },
            ("/.well-known/openid-configuration" | "/keys", _) => respond::method_not_allowed("GET, HEAD"),
            ("/token", _) => respond::method_not_allowed("POST"),
            _ => respond::plain(StatusCode::NOT_FOUND, "the issuer has no such path"),
        }
    }

    /// OpenID Connect Discovery 1.0 section 3, as far as there is something behind it.
    fn discovery(&self) -> serde_json::Value {
        let url = &self.settings.url;
        serde_json::json!({
            "issuer": url,
            "jwks_uri": format!("{url}/keys"),
            "token_endpoint": format!("{url}/token"),
            "grant_types_supported": ["password"],
            "response_types_supported": ["token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [keys::ALGORITHM],
            "token_endpoint_auth_methods_supported": ["none"],
            "claims_supported": ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "groups", "preferred_username"],
        })
    }

    /// The audience that a token may be minted for, in its one spelling; `None` if this issuer does not know it.
    fn audience(&self, asked: &str) -> Option<String> {
        if self.settings.audiences.iter().any(|known| known == asked) {
            return Some(asked.to_owned());
        }
        let id: ClusterId = asked.strip_prefix("towline:cluster:")?.parse().ok()?;
        Some(id.audience())
    }
}

fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |at| &rest[at..])
}

#[cfg(test)]
mod tests;
