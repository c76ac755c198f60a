//! The properties of a flux configuration, as the gateway gives them with its defaults filled in, and the settings that
//! are secret.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use types::agent_api::decode;

use crate::roles::objects::{hidden::Hidden, state::Problem};

/// How long a configuration waits to become compliant, where `waitForReconciliation` is set without a duration.
const WAIT: Duration = Duration::from_secs(600);
/// Seconds between two pulls, and a pull at most, where the configuration says nothing.
const SECONDS: u64 = 600;
/// Bounds, which the gateway has too: a gateway that was taken over must not stop this role or Flux's controllers with a
/// number that they cannot count with.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
const SECONDS_MAX: u64 = i32::MAX as u64;
const ADDRESS_CHARS: usize = 2048;

/// A flux configuration's properties.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Properties {
    /// `cluster` or `namespace`.
    pub scope: Option<String>,
    /// Where Flux's objects go.
    pub namespace: Option<String>,
    /// `GitRepository`, `Bucket`, `AzureBlob` or `OCIRepository`.
    pub source_kind: Option<String>,
    /// Whether nothing is pulled and applied.
    pub suspend: Option<bool>,
    /// Whether the source is reached through the gateway.
    pub through_gateway: Option<bool>,
    /// The source, where it is this kind.
    pub git_repository: Option<Git>,
    /// The source, where it is this kind.
    pub bucket: Option<Bucket>,
    /// The source, where it is this kind.
    pub azure_blob: Option<AzureBlob>,
    /// The source, where it is this kind.
    pub oci_repository: Option<Oci>,
    /// Kustomizations by their names; one that is `null` does not count.
    pub kustomizations: Option<BTreeMap<String, Option<Kustomization>>>,
    /// Whether it has succeeded only when it is compliant.
    pub wait_for_reconciliation: Option<bool>,
    /// For how long, ISO 8601.
    pub reconciliation_wait_duration: Option<String>,
}

/// How often and how long is pulled.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pull {
    /// Seconds that a pull may take.
    pub timeout_in_seconds: Option<u64>,
    /// Seconds between two pulls.
    pub sync_interval_in_seconds: Option<u64>,
    /// A Secret of the namespace that is used instead of one made from the configuration.
    pub local_auth_ref: Option<String>,
}

/// A Git repository.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Git {
    /// Where it is.
    pub url: String,
    /// How it is pulled.
    #[serde(flatten)]
    pub pull: Pull,
    /// What of it.
    pub repository_ref: Option<GitRef>,
    /// The lines of `known_hosts`, in base64.
    pub ssh_known_hosts: Option<String>,
    /// The user of HTTPS.
    pub https_user: Option<String>,
    /// Base64 of PEM.
    #[serde(rename = "httpsCACert")]
    pub https_ca_cert: Option<String>,
    /// `Azure`, `GitHub` or `Generic`.
    pub provider: Option<String>,
}

/// What of a Git repository.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GitRef {
    /// The branch that is pulled.
    pub branch: Option<String>,
    /// A tag, before the branch.
    pub tag: Option<String>,
    /// A range of versions, before the tag.
    pub semver: Option<String>,
    /// A commit, before the range.
    pub commit: Option<String>,
}

/// An S3 bucket.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bucket {
    /// Where it is served.
    pub url: String,
    /// Its name there.
    pub bucket_name: String,
    /// Whether HTTP will do.
    pub insecure: Option<bool>,
    /// How it is pulled.
    #[serde(flatten)]
    pub pull: Pull,
    /// The id of the key.
    pub access_key: Option<String>,
}

/// A container of Azure Blob storage.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureBlob {
    /// The storage account.
    pub url: String,
    /// The container in the storage account.
    pub container_name: String,
    /// How it is pulled.
    #[serde(flatten)]
    pub pull: Pull,
    /// The service principal that the source is read as.
    pub service_principal: Option<ServicePrincipal>,
    /// The managed identity that the source is read as.
    pub managed_identity: Option<ManagedIdentity>,
}

/// A service principal; its secrets are protected settings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePrincipal {
    /// Its client id.
    pub client_id: Option<String>,
    /// Id of the service principal's tenant.
    pub tenant_id: Option<String>,
    /// Whether the chain of its certificate is sent.
    pub client_certificate_send_chain: Option<bool>,
}

/// A managed identity.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedIdentity {
    /// Its client id.
    pub client_id: Option<String>,
}

/// An OCI repository.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Oci {
    /// Where it is, `oci://`.
    pub url: String,
    /// How it is pulled.
    #[serde(flatten)]
    pub pull: Pull,
    /// What of it.
    pub repository_ref: Option<OciRef>,
    /// The layer of the artifact that is taken.
    pub layer_selector: Option<LayerSelector>,
    /// Whose signature it must have.
    pub verify: Option<Verify>,
    /// Whether HTTP will do.
    pub insecure: Option<bool>,
    /// Whether Azure's workload identity asks.
    pub use_workload_identity: Option<bool>,
    /// The service account whose pull secrets are used.
    pub service_account_name: Option<String>,
    /// Certificates for the connection to the registry.
    pub tls_config: Option<TlsConfig>,
}

/// What of an OCI repository.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OciRef {
    /// The tag that is pulled.
    pub tag: Option<String>,
    /// A range of versions, before the tag.
    pub semver: Option<String>,
    /// A digest, before the range.
    pub digest: Option<String>,
}

/// Which layer of an OCI artifact.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerSelector {
    /// The first one of this type.
    pub media_type: Option<String>,
    /// `extract` or `copy`.
    pub operation: Option<String>,
}

/// Whose signature an OCI artifact must have.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Verify {
    /// `cosign` or `notation`.
    pub provider: Option<String>,
    /// Files by name, base64.
    pub verification_config: Option<BTreeMap<String, String>>,
    /// Identities of keyless signatures.
    #[serde(rename = "matchOidcIdentity")]
    pub identities: Option<Vec<OidcIdentity>>,
}

/// The identity that a keyless signature must be of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OidcIdentity {
    /// A regular expression for the issuer of the identity.
    pub issuer: String,
    /// A regular expression for the subject of the identity.
    pub subject: String,
}

/// Certificates for a registry; the private key may be a protected setting.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsConfig {
    /// Base64 of PEM.
    pub client_certificate: Option<String>,
    /// Base64 of PEM.
    pub ca_certificate: Option<String>,
}

/// A part of the source that is applied.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kustomization {
    /// A folder of the source.
    pub path: Option<String>,
    /// Kustomizations of the configuration that come first.
    pub depends_on: Option<Vec<String>>,
    /// Seconds that an attempt may take.
    pub timeout_in_seconds: Option<u64>,
    /// Seconds between two attempts.
    pub sync_interval_in_seconds: Option<u64>,
    /// Seconds until the next attempt after a failure.
    pub retry_interval_in_seconds: Option<u64>,
    /// Whether objects that left the source are removed.
    pub prune: Option<bool>,
    /// Whether objects are made anew where a change is refused.
    pub force: Option<bool>,
    /// Whether objects must become healthy.
    pub wait: Option<bool>,
    /// Variables that are replaced in the manifests.
    pub post_build: Option<PostBuild>,
}

/// Variables that Flux replaces in the manifests of a kustomization.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PostBuild {
    /// Values by the names of the variables.
    pub substitute: Option<BTreeMap<String, String>>,
    /// Objects that hold more.
    pub substitute_from: Option<Vec<Value>>,
}

/// The rights of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of an administrator of the cluster.
    Cluster,
    /// Those of an administrator of its namespace.
    Namespace,
}

impl Scope {
    /// By its name.
    pub fn of(text: &str) -> Option<Self> {
        [Self::Cluster, Self::Namespace].into_iter().find(|one| text.eq_ignore_ascii_case(one.as_str()))
    }

    /// As in properties and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Namespace => "namespace",
        }
    }
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::stays("InvalidConfiguration", message)
}

impl Properties {
    /// Reads them.
    ///
    /// # Errors
    /// What does not fit.
    pub fn read(value: &Value) -> Result<Self, Problem> {
        let read: Self = serde_json::from_value(value.clone())
            .map_err(|err| invalid(format!("the properties cannot be read: {err}")))?;
        read.bounded()?;
        Ok(read)
    }

    /// Whether numbers, durations and addresses are within their bounds.
    pub(super) fn bounded(&self) -> Result<(), Problem> {
        let text = self.reconciliation_wait_duration.as_deref().filter(|text| !text.is_empty());
        if text.is_some_and(|text| iso_duration(text).is_none_or(|wait| wait > WAIT_MAX)) {
            return Err(invalid("reconciliationWaitDuration is not a duration of ISO 8601 of at most a day"));
        }
        let git = self.git_repository.as_ref().map(|one| ([one.url.as_str(), ""], &one.pull));
        let bucket = self.bucket.as_ref().map(|one| ([one.url.as_str(), one.bucket_name.as_str()], &one.pull));
        let blob = self.azure_blob.as_ref().map(|one| ([one.url.as_str(), one.container_name.as_str()], &one.pull));
        let oci = self.oci_repository.as_ref().map(|one| ([one.url.as_str(), ""], &one.pull));
        let mut seconds = Vec::new();
        for (texts, pull) in [git, bucket, blob, oci].into_iter().flatten() {
            if texts.iter().any(|text| text.chars().count() > ADDRESS_CHARS) {
                return Err(invalid(format!("the address of the source has more than {ADDRESS_CHARS} characters")));
            }
            seconds.extend([pull.timeout_in_seconds, pull.sync_interval_in_seconds]);
        }
        for (_, one) in self.kustomizations() {
            seconds.extend([one.timeout_in_seconds, one.sync_interval_in_seconds, one.retry_interval_in_seconds]);
        }
        if seconds.into_iter().flatten().any(|seconds| seconds > SECONDS_MAX) {
            return Err(invalid(format!("an interval or timeout has more than {SECONDS_MAX} seconds")));
        }
        Ok(())
    }

    /// The scope; `cluster` unless it says otherwise.
    ///
    /// # Errors
    /// A word that is no scope.
    pub fn scope(&self) -> Result<Scope, Problem> {
        let Some(text) = self.scope.as_deref() else { return Ok(Scope::Cluster) };
        Scope::of(text).ok_or_else(|| invalid(format!("the scope {text:?} is not known: cluster or namespace")))
    }

    /// The namespace; `default` unless it says otherwise.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or("default")
    }

    /// The kustomizations by name.
    pub fn kustomizations(&self) -> impl Iterator<Item = (&String, &Kustomization)> {
        self.kustomizations.iter().flatten().filter_map(|(name, one)| Some((name, one.as_ref()?)))
    }

    /// How long it may wait to become compliant before it has succeeded; none: it does not wait.
    pub fn wait(&self) -> Option<Duration> {
        let duration = self.reconciliation_wait_duration.as_deref().and_then(iso_duration);
        self.wait_for_reconciliation.unwrap_or(false).then(|| duration.unwrap_or(WAIT))
    }
}

/// A duration of ISO 8601 in days, hours, minutes and seconds, such as `PT1H30M` or `P1D`.
fn iso_duration(text: &str) -> Option<Duration> {
    let (days, times) = text.strip_prefix('P')?.split_once('T').unwrap_or((text.strip_prefix('P')?, ""));
    let mut seconds = 0_u64;
    for (part, units) in [(days, &[('W', 604_800), ('D', 86_400)][..]), (times, &[('H', 3600), ('M', 60), ('S', 1)])] {
        let mut number = String::new();
        for c in part.chars() {
            if c.is_ascii_digit() {
                number.push(c);
                continue;
            }
            let (_, unit) = units.iter().find(|(unit, _)| *unit == c)?;
            seconds = seconds.checked_add(number.parse::<u64>().ok()?.checked_mul(*unit)?)?;
            number.clear();
        }
        if !number.is_empty() {
            return None;
        }
    }
    Some(Duration::from_secs(seconds))
}

impl Pull {
    /// Between two pulls, as Flux has it.
    pub fn interval(&self) -> String {
        seconds(self.sync_interval_in_seconds)
    }

    /// A pull at most, as Flux has it.
    pub fn timeout(&self) -> String {
        seconds(self.timeout_in_seconds)
    }

    /// The Secret that the configuration names.
    pub fn auth(&self) -> Option<&str> {
        self.local_auth_ref.as_deref().filter(|name| !name.is_empty())
    }
}

/// A duration of Flux.
pub fn seconds(seconds: Option<u64>) -> String {
    format!("{}s", seconds.unwrap_or(SECONDS).max(1))
}

/// Bytes of base64; white space, which tools put into it, is ignored.
///
/// # Errors
/// Where it is none; the text is not told.
pub fn bytes(what: &str, text: &str) -> Result<Vec<u8>, Problem> {
    let text: String = text.split_whitespace().collect();
    decode(&text).ok_or_else(|| invalid(format!("{what} is not base64")))
}

/// Settings that are secret, by name.
#[derive(Default, Clone)]
pub struct Secrets(pub BTreeMap<String, String>);

impl Secrets {
    /// A value as it is.
    pub fn plain(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A value that is base64.
    ///
    /// # Errors
    /// Where it is none.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Problem> {
        self.plain(name).map(|value| bytes(name, value)).transpose()
    }

    /// Their values, as they were given and as Flux gets them.
    pub fn hidden(&self) -> Hidden {
        let mut all = self.0.clone();
        for (name, value) in &self.0 {
            if let Some(text) = bytes(name, value).ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                all.insert(format!("{name} decoded"), text);
            }
        }
        Hidden::of(&all)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g1_defaults_and_unknown_members() {
        let properties = Properties::read(&json!({"scope": "Namespace", "newer": {"x": 1}, "gitRepository": {
            "url": "https://g/r", "syncIntervalInSeconds": 30, "httpsCACert": "eA==" }}))
        .unwrap();
        assert_eq!((properties.scope().unwrap(), properties.namespace()), (Scope::Namespace, "default"));
        let git = properties.git_repository.unwrap();
        assert_eq!((git.pull.interval(), git.pull.timeout()), ("30s".to_owned(), "600s".to_owned()));
        assert_eq!(git.https_ca_cert.as_deref(), Some("eA=="));
        assert!(Properties::read(&json!({"scope": "world"})).unwrap().scope().is_err());
        assert!(Properties::read(&json!({"kustomizations": 1})).is_err());
    }

    #[test]
    fn g1_numbers_that_nobody_can_count_with_are_refused() {
        let git = |member: &str, value: Value| json!({ "gitRepository": { "url": "https://g/r", member: value } });
        let wait = |text: &str| json!({ "waitForReconciliation": true, "reconciliationWaitDuration": text });
        let kustomization = |member: &str| json!({ "kustomizations": { "a": { member: u64::MAX } } });
        for bad in [
            wait("PT10000000000000000000S"),
            wait("P1DT1S"),
            wait("soon"),
            git("syncIntervalInSeconds", json!(u64::MAX)),
            git("timeoutInSeconds", json!(2_147_483_648_u64)),
            git("url", json!(format!("https://g/{}", "x".repeat(2048)))),
            json!({ "bucket": { "url": "s", "bucketName": "x".repeat(2049) } }),
            kustomization("timeoutInSeconds"),
            kustomization("syncIntervalInSeconds"),
            kustomization("retryIntervalInSeconds"),
        ] {
            let problem = Properties::read(&bad).unwrap_err();
            assert_eq!((problem.code, problem.message.len() < 200), ("InvalidConfiguration", true), "{bad}");
        }
        for good in [wait("P1D"), wait(""), git("timeoutInSeconds", json!(i32::MAX))] {
            Properties::read(&good).unwrap();
        }
    }

    #[test]
    fn g1_secrets_are_hidden_as_given_and_as_flux_has_them() {
        let given = types::agent_api::encode(b"hunter22");
        let hidden = Secrets([("httpsKey".to_owned(), given.clone())].into()).hidden();
        assert_eq!(hidden.hide(&format!("u:hunter22 {given}")), "u:[protected] [protected]");
    }

    #[test]
    fn wait_durations_are_iso_8601() {
        let all = [("PT1H", 3600), ("PT5M", 300), ("P1D", 86_400), ("P1DT1H1M1S", 90_061), ("PT90S", 90)];
        for (text, seconds) in all {
            assert_eq!(iso_duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "1H", "PT1", "PTH", "PT1D", "P1M", "PT-1S", "PT99999999999999999999H"] {
            assert_eq!(iso_duration(bad), None, "{bad}");
        }
    }
}
