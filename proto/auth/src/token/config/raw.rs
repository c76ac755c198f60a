//! What a configuration file may say of an issuer, and what can be wrong with it.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// One issuer in a configuration file, the same table at gateway and agent. Only `name` and `url` are needed.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RawIssuer {
    /// Its name in logs, audit and grants.
    pub name: String,
    /// `iss`, compared byte for byte; discovery is read below it.
    pub url: String,
    /// `oidc` (default), or `entra` with Microsoft Entra ID's claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<IssuerKind>,
    /// Accepted `aud` values, beside the cluster's own audience. One that several clusters share lets a token shown at
    /// one of them be used at the others.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// Accepted `aud` values at the gateway's resource API, beside its URL; nothing at clusters. One that is in
    /// `audiences` too lets whoever runs a cluster use at the API what is shown to the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_audiences: Vec<String>,
    /// Accepted `azp`. Where this is set, `azp` must be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorized_parties: Vec<String>,
    /// Accepted `alg` (default `RS256` and `ES256`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
    /// CA file for discovery and key set; without it what the machine trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// A JWKS file instead of discovery: these keys and no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_file: Option<PathBuf>,
    /// A JWKS file of keys that are trusted from the start; keys found by discovery are accepted only if one of these
    /// vouches for them (`towline_attestation`), directly or through others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_keys_file: Option<PathBuf>,
    /// The key set's address, instead of what discovery says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Whether `http://` is allowed for an issuer on a loopback address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_http_loopback: bool,
    /// How long keys are used while the issuer cannot be reached (default `24h`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_max_age: Option<String>,
    /// The claim with the user name. Default: `sub`; for `entra`: `upn`, and `oid` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username_claim: Option<String>,
    /// What user names begin with (default: nothing). Among several issuers no prefix may begin with another one, and
    /// only a gateway's own issuer may have none; two with the same prefix must both say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username_prefix: Option<String>,
    /// The claim with the groups (default `groups`); empty: no groups are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
    /// What group names begin with (default: nothing); the rules are those of `username_prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_prefix: Option<String>,
    /// The claim for `Impersonate-Uid` (default `sub`: a user name may be given to somebody else one day, an id is
    /// not); empty: no uid is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid_claim: Option<String>,
    /// Extra key to claim; for `entra` also `oid = "oid"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
    /// Claims that must have this text, or one of these, or contain it in a list.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub required_claims: BTreeMap<String, OneOrMore>,
    /// By how much clocks may differ (default `30s`, at most `10m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew: Option<String>,
    /// Proof of possession (default `allowed`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pop: Option<Pop>,
    /// How old a proof may be (default `15m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pop_validity: Option<String>,
    /// Whether id tokens, access tokens or both are taken (default `any`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Resulting names beginning with `system:` that this issuer may give, exactly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_reserved: Vec<String>,
}

/// Presets for the settings of an issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IssuerKind {
    /// Any OpenID Connect issuer.
    #[default]
    Oidc,
    /// Microsoft Entra ID, one tenant.
    Entra,
}

/// Proof of possession.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pop {
    /// Tokens with a proof are refused.
    Off,
    /// Tokens with and without are taken; one that is bound to a key only with.
    #[default]
    Allowed,
    /// Only tokens with a proof are taken.
    Required,
}

/// Which tokens are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokens {
    /// Both; the audience decides.
    #[default]
    Any,
    /// Access tokens only.
    Access,
    /// ID tokens only (OpenID Connect Core).
    Id,
}

/// One text or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// A single text.
    One(String),
    /// A list of texts.
    More(Vec<String>),
}

/// One thing that is wrong with an issuer's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the issuer.
    pub issuer: String,
    /// Name of the key in its table.
    pub key: &'static str,
    /// What is wrong and what is expected.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "issuer {:?}: {}: {}", self.issuer, self.key, self.message)
    }
}

/// Everything that is wrong, at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Faults(pub Vec<Fault>);

impl RawIssuer {
    /// An issuer with defaults for everything else.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self { name: name.into(), url: url.into(), ..Self::default() }
    }

    /// The files that it names: when one of them changes, the issuer is to be read again.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.ca_file, &self.keys_file, &self.pinned_keys_file].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Makes relative paths relative to the folder of the configuration file.
    pub fn resolve_paths(&mut self, base: &Path) {
        for path in [&mut self.ca_file, &mut self.keys_file, &mut self.pinned_keys_file].into_iter().flatten() {
            *path = base.join(&*path);
        }
    }
}
