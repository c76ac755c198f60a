//! The document that is signed: one JSON object. Fields that this version does not know are refused, because one of them
//! could be a restriction. Names follow `extensionTypes` of the resource provider Microsoft.KubernetesConfiguration.

mod check;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Number, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use types::instants;
use types::{ids::hex, random};

use crate::{
    digest::Sha256,
    key::{KeyError, PublicKey},
    limits::INDEX_BYTES,
    range::Range,
    version::Version,
};

/// The format that is written, and the newest that is read.
pub const FORMAT: u32 = 1;

/// Why bytes are no index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Larger than any index that is read; its size in bytes.
    #[error("the index has {0} bytes, at most {INDEX_BYTES} are read")]
    TooLarge(usize),
    /// Not JSON, or not of these fields.
    #[error("the index is not readable: {0}")]
    Syntax(String),
    /// Written by a newer version.
    #[error("the index has format {0}, this program reads up to {FORMAT}: a newer towline wrote it")]
    Newer(u32),
    /// A field is not as it should be.
    #[error("the index is not valid: {place}: {reason}")]
    Invalid {
        /// Which field, such as `types[0].versions[2].platforms`.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The index of a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Index {
    /// Version of the file's format, [`FORMAT`].
    pub format: u32,
    /// Which catalogue this is. It never changes.
    pub catalogue: CatalogueId,
    /// Grows with each signature; a cluster takes none that is lower than the last one.
    pub revision: u64,
    /// When it was made, for people.
    pub made: Timestamp,
    /// From then on no cluster takes it: a gateway cannot withhold newer ones for longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Who may sign from now on.
    pub keys: Vec<PublicKey>,
    /// What can be installed.
    pub types: Vec<ExtensionType>,
}

/// A kind of extension, such as an ingress controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtensionType {
    /// Lower-case letters, digits, `-` and `.`, such as `example.ingress`.
    pub name: String,
    /// Who answers for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub publisher: String,
    /// What the extension does, in a sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Where it can be installed.
    pub supported_scopes: SupportedScopes,
    /// Settings that a user may give; all without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_settings: Option<Vec<AllowedSetting>>,
    /// What can be installed.
    pub versions: Vec<Release>,
}

/// Where an extension works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// For the whole cluster, in a release namespace.
    Cluster,
    /// In one namespace, with rights in it alone.
    Namespace,
}

/// Where a type can be installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SupportedScopes {
    /// Every scope that it can be installed in.
    pub scopes: Vec<Scope>,
    /// Where without a user's choice.
    pub default_scope: Scope,
    /// How for a whole cluster; there if the scope is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_scope_settings: Option<ClusterScopeSettings>,
}

/// How a type is installed for a whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterScopeSettings {
    /// Whether a cluster may have several.
    #[serde(default)]
    pub allow_multiple_instances: bool,
    /// The namespace without a user's choice.
    pub default_release_namespace: String,
}

/// A setting that a user may give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedSetting {
    /// Its dotted key, such as `controller.replicaCount`; with `.*` at its end everything below.
    pub key: String,
    /// The values that it may have; any without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<SettingValue>>,
}

/// A value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// `true` or `false`.
    Boolean(bool),
    /// A JSON number.
    Number(Number),
    /// A JSON string.
    Text(String),
}

/// A version of a type, and the chart that it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// That of the chart.
    pub version: Version,
    /// File, size and digest of the chart.
    pub chart: ChartReference,
    /// Where it is offered, such as `Stable` and `Preview`.
    pub release_trains: Vec<String>,
    /// Whether it is no longer chosen unless a user names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// The versions of Kubernetes that the chart itself asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_version: Option<Range>,
    /// Where else it does not work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported_kubernetes_versions: Vec<UnsupportedVersions>,
    /// Where it works, such as `k3s`; on all without an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supported_distributions: Vec<String>,
    /// For which nodes there are images, such as `linux/arm64`; for all without an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
    /// Dotted keys that no setting may touch, at them or below or with what is above, as the chart asks
    /// (`towline.io/locked-settings`): they decide which programs run, and with which rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locked_settings: Vec<String>,
    /// The chart is given `global.towline`, which says where the agents run and what from (`towline.io/agent-values`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_values: bool,
}

/// A chart in the catalogue's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChartReference {
    /// The file's name in the folder of charts.
    pub file: String,
    /// The chart's name.
    pub name: String,
    /// Bytes of the file.
    pub size: u64,
    /// The file's digest.
    pub sha256: Sha256,
}

/// Versions of Kubernetes that a release does not work with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnsupportedVersions {
    /// On these alone; on all without an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<String>,
    /// Which versions, such as `<1.28`.
    pub unsupported_versions: Vec<Range>,
}

impl Index {
    /// A catalogue without types, that has not been signed yet.
    pub fn new(catalogue: CatalogueId, made: OffsetDateTime, keys: Vec<PublicKey>) -> Self {
        let (revision, made) = (0, Timestamp(made));
        Self { format: FORMAT, catalogue, revision, made, expires: None, keys, types: Vec::new() }
    }

    /// Reads an index and checks every field.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, IndexError> {
        if bytes.len() > INDEX_BYTES {
            return Err(IndexError::TooLarge(bytes.len()));
        }
        let syntax = |error: serde_json::Error| IndexError::Syntax(error.to_string());
        let Header { format } = serde_json::from_slice(bytes).map_err(syntax)?;
        if format > FORMAT {
            return Err(IndexError::Newer(format));
        }
        let index: Self = serde_json::from_slice(bytes).map_err(syntax)?;
        check::index(&index)?;
        Ok(index)
    }

    /// As a file, after the checks of [`Index::parse`].
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn to_bytes(&self) -> Result<Vec<u8>, IndexError> {
        check::index(self)?;
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|error| IndexError::Syntax(error.to_string()))?;
        bytes.push(b'\n');
        if bytes.len() > INDEX_BYTES {
            return Err(IndexError::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// A type by its name, in any case.
    pub fn extension_type(&self, name: &str) -> Option<&ExtensionType> {
        self.types.iter().find(|one| one.name.eq_ignore_ascii_case(name))
    }
}

/// Read before all else: the fields of a newer format are not known.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl ExtensionType {
    /// A version, with or without a `v` before it.
    pub fn release(&self, version: &Version) -> Option<&Release> {
        self.versions.iter().find(|release| release.version.is(version))
    }

    /// Whether a user may give this setting this value. Texts are compared with what a value would be as a text, because
    /// the resource API knows settings as texts only.
    pub fn allows(&self, key: &str, value: &Value) -> bool {
        let Some(rules) = &self.allowed_settings else { return true };
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        rules.iter().filter(|rule| rule.is_of(key)).any(|rule| match &rule.values {
            None => true,
            Some(values) => values.iter().any(|one| one.to_string() == shown(value)),
        })
    }
}

impl AllowedSetting {
    fn is_of(&self, key: &str) -> bool {
        match self.key.strip_suffix(".*") {
            Some(parent) => key.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.') && rest.len() > 1),
            None => key == self.key,
        }
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Namespace => "namespace",
        })
    }
}

/// Names a catalogue: 32 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CatalogueId(String);

/// A text that is no catalogue's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a catalogue is 32 lower-case hex digits")]
pub struct NoCatalogueId;

impl CatalogueId {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let bytes = random::bytes::<16>().map_err(|_| KeyError::Random)?;
        Ok(Self(hex(&bytes)))
    }
}

impl FromStr for CatalogueId {
    type Err = NoCatalogueId;

    fn from_str(text: &str) -> Result<Self, NoCatalogueId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 32 && text.bytes().all(is_digit) { Ok(Self(text.to_owned())) } else { Err(NoCatalogueId) }
    }
}

impl fmt::Display for CatalogueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CatalogueId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An instant as RFC 3339 writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub OffsetDateTime);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        instants::parse(&text).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
