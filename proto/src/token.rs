//! OIDC verification, the same code at the gateway and in the cluster (each with its own configuration: the agent trusts
//! nothing that the gateway says about a user).

use std::{collections::BTreeMap, path::PathBuf, time::SystemTime};

/// Who a verified token speaks for. There is no other way to make one outside this module but from a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User name with the issuer's prefix.
    pub username: String,
    /// `uid` for `Impersonate-Uid`.
    pub uid: Option<String>,
    /// Groups with the issuer's prefix, in the token's order.
    pub groups: Vec<String>,
    /// Extra, keys lower-case (`oid` for Entra users, features row A2).
    pub extra: BTreeMap<String, Vec<String>>,
    /// The configured name of the issuer.
    pub issuer: String,
    /// `sub` as in the token.
    pub subject: String,
    /// When the token ends.
    pub expires: SystemTime,
}

/// Why a token was refused. `Display` is for logs and `towline whoami`; a 401 says no more than Kubernetes does. Never
/// holds the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// To be filled in: one variant per check.
    #[error("token refused")]
    Refused,
}

/// One issuer in a configuration file, the same table at gateway and agent.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RawIssuer {
    /// Its name in logs, audit and grants.
    pub name: String,
    /// `iss`, compared byte for byte; discovery is read below it.
    pub url: String,
    /// Accepted `aud` values, beside the cluster's own audience.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// CA file for discovery and key set.
    pub ca_file: Option<PathBuf>,
}

/// Verifies tokens of a set of issuers.
pub struct Verifier {
    _todo: (),
}

impl Verifier {
    /// The whole check of one token: syntax, issuer, signature, times, audience, claims.
    pub async fn verify(
        &self,
        _token: &str,
        _audience: &str,
        _now: SystemTime,
    ) -> Result<std::sync::Arc<Identity>, TokenError> {
        todo!()
    }
}
