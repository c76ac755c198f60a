//! Flux configurations: a source of Kubernetes manifests, and kustomizations of it, which Flux applies in a cluster and
//! keeps as they are there: `Microsoft.KubernetesConfiguration/fluxConfigurations` (docs/features.md G1-G11). What is
//! written here is what is wanted; how far it is and what complies, the cluster tells, and that is shown with it.

mod logs;
pub mod rules;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value};
use types::{
    agent_api::{compliance, deployments},
    api::ErrorDetail,
};

use self::rules::Before;
use super::{
    Acting, Brought, Kind, Place, Showing, Writing,
    flux_extension::{self, Needing},
    followed::{self, is_label},
    schema::{self, Bounds, Entries, Property, Type},
};
use crate::{
    api_error::ApiError,
    config::egress::Destination,
    control::{
        Control,
        objects::{Followed, Parted},
    },
    object::Object,
    resources::filter,
    store::resources::Stored,
    stored::{last_name, properties, properties_mut},
};

/// The kind of flux configurations.
pub struct FluxConfigurations;

/// The full type.
pub const NAME: &str = types::api::id::FLUX_CONFIGURATIONS;
/// What they say where they need Flux.
const NEEDING: Needing = Needing { kind: NAME, plural: ("flux configurations", "Flux configurations") };
/// Characters of the name of a configuration, also with that of a kustomization: with the hyphen between both they are the
/// value of a label in the cluster, which has 63 at most.
const LONGEST_NAME: usize = 62;
/// Kustomizations of a configuration, and others that one depends on, at most.
const KUSTOMIZATIONS: usize = 100;
const DEPENDENCIES: usize = 100;
/// Conditions of the status of an object at most.
const CONDITIONS: usize = 16;
/// Faults that one answer tells at most.
const FAULTS: usize = 50;

/// The api-versions that know the source kind `OCIRepository`.
const OCI_VERSIONS: &[&str] = &["2024-04-01-preview", "2025-04-01"];
const OCI: &str = "OCIRepository";
/// The first api-version that knows the source kind `AzureBlob`.
const BLOB_SINCE: &str = "2022-07-01";
const BLOB_KIND: &str = "AzureBlob";
/// Each source kind with the property that has its settings.
const SOURCES: &[(&str, &str)] =
    &[("GitRepository", "gitRepository"), ("Bucket", "bucket"), ("AzureBlob", "azureBlob"), (OCI, "ociRepository")];
const SOURCE_KINDS: &[&str] = &["GitRepository", "Bucket", "AzureBlob", OCI];
const PROTECTED: &str = "configurationProtectedSettings";
const THROUGH_GATEWAY: &str = "throughGateway";

/// An interval or a timeout, in seconds.
const fn seconds(name: &'static str) -> Property {
    Property::new(name, Type::Number(1, i32::MAX))
}

const GIT_REFERENCE: &[Property] = &[
    Property::new("branch", Type::Checked(rules::git_name)),
    Property::new("tag", Type::Checked(rules::git_name)),
    Property::new("semver", Type::Checked(rules::range)),
    Property::new("commit", Type::Checked(rules::commit)),
];
const GIT: &[Property] = &[
    Property::new("url", Type::Checked(rules::git_url)).required(),
    seconds("timeoutInSeconds").or_number(600),
    seconds("syncIntervalInSeconds").or_number(600),
    Property::new("repositoryRef", Type::Object(GIT_REFERENCE)),
    Property::new("sshKnownHosts", Type::Checked(rules::hosts)),
    Property::new("httpsUser", Type::Text),
    Property::new("httpsCACert", Type::Checked(rules::base64)),
    Property::new("localAuthRef", Type::Checked(rules::object_name)),
    Property::new("provider", Type::Words(&["Azure", "GitHub", "Generic"])).since("2024-11-01"),
];
const BUCKET: &[Property] = &[
    Property::new("url", Type::Checked(rules::http_url)).required(),
    Property::new("bucketName", Type::Checked(rules::reference)).required(),
    Property::new("insecure", Type::Bool).or_bool(true),
    seconds("timeoutInSeconds").or_number(600),
    seconds("syncIntervalInSeconds").or_number(600),
    Property::new("accessKey", Type::Text),
    Property::new("localAuthRef", Type::Checked(rules::object_name)),
];
const SERVICE_PRINCIPAL: &[Property] = &[
    Property::new("clientId", Type::Text),
    Property::new("tenantId", Type::Text),
    Property::new("clientSecret", Type::Text).write_only(),
    Property::new("clientCertificate", Type::Checked(rules::base64)).write_only(),
    Property::new("clientCertificatePassword", Type::Text).write_only(),
    Property::new("clientCertificateSendChain", Type::Bool).or_bool(false),
];
const BLOB: &[Property] = &[
    Property::new("url", Type::Checked(rules::http_url)).required(),
    Property::new("containerName", Type::Checked(rules::reference)).required(),
    seconds("timeoutInSeconds").or_number(600),
    seconds("syncIntervalInSeconds").or_number(600),
    Property::new("servicePrincipal", Type::Object(SERVICE_PRINCIPAL)).merged(),
    Property::new("accountKey", Type::Text).write_only(),
    Property::new("sasToken", Type::Text).write_only(),
    Property::new("managedIdentity", Type::Object(&[Property::new("clientId", Type::Text)])),
    Property::new("localAuthRef", Type::Checked(rules::object_name)),
];
const OCI_REFERENCE: &[Property] = &[
    Property::new("tag", Type::Checked(rules::oci_tag)),
    Property::new("semver", Type::Checked(rules::range)),
    Property::new("digest", Type::Checked(rules::digest)),
];
const LAYER: &[Property] = &[
    Property::new("mediaType", Type::Text),
    Property::new("operation", Type::Words(&["extract", "copy"])).or("extract"),
];
const OIDC: &[Property] = &[Property::new("issuer", Type::Text), Property::new("subject", Type::Text)];
const VERIFY: &[Property] = &[
    Property::new("provider", Type::Words(&["cosign", "notation"])),
    Property::new("verificationConfig", Type::Texts),
    Property::new("matchOidcIdentity", Type::List(&Type::Object(OIDC))),
];
const TLS: &[Property] = &[
    Property::new("clientCertificate", Type::Checked(rules::base64)),
    Property::new("privateKey", Type::Checked(rules::base64)).write_only(),
    Property::new("caCertificate", Type::Checked(rules::base64)),
];
const OCI_SOURCE: &[Property] = &[
    Property::new("url", Type::Checked(rules::oci_url)).required(),
    seconds("timeoutInSeconds").or_number(600),
    seconds("syncIntervalInSeconds").or_number(600),
    Property::new("repositoryRef", Type::Object(OCI_REFERENCE)),
    Property::new("layerSelector", Type::Object(LAYER)),
    Property::new("verify", Type::Object(VERIFY)),
    Property::new("insecure", Type::Bool).or_bool(false),
    Property::new("useWorkloadIdentity", Type::Bool),
    Property::new("serviceAccountName", Type::Checked(rules::object_name)),
    Property::new("tlsConfig", Type::Object(TLS)).merged(),
    Property::new("localAuthRef", Type::Checked(rules::object_name)),
];
const SUBSTITUTE_FROM: &[Property] = &[
    Property::new("kind", Type::Words(&["ConfigMap", "Secret"])).required(),
    Property::new("name", Type::Checked(rules::object_name)).required(),
    Property::new("optional", Type::Bool).or_bool(false),
];
const POST_BUILD: &[Property] = &[
    Property::new("substitute", Type::Texts).merged(),
    Property::new("substituteFrom", Type::List(&Type::Object(SUBSTITUTE_FROM))),
];
const KUSTOMIZATION: &[Property] = &[
    Property::read_only("name", Type::Text),
    Property::new("path", Type::Checked(rules::path)).or(""),
    Property::new("dependsOn", Type::List(&Type::Checked(rules::label))),
    seconds("timeoutInSeconds").or_number(600),
    seconds("syncIntervalInSeconds").or_number(600),
    seconds("retryIntervalInSeconds"),
    Property::new("prune", Type::Bool).or_bool(false),
    Property::new("force", Type::Bool).or_bool(false),
    Property::new("wait", Type::Bool).or_bool(true).since("2023-05-01"),
    Property::new("postBuild", Type::Object(POST_BUILD)).merged().since("2023-05-01"),
];
const NAMED_KUSTOMIZATIONS: &Entries = &Entries { name: rules::label, most: KUSTOMIZATIONS, of: KUSTOMIZATION };

const COMPLIANCE: &[&str] = &[
    compliance::COMPLIANT,
    compliance::NON_COMPLIANT,
    compliance::PENDING,
    compliance::SUSPENDED,
    compliance::UNKNOWN,
];
const REFERENCE: &[Property] = &[Property::read_only("name", Type::Text), Property::read_only("namespace", Type::Text)];
const CONDITION: &[Property] = &[
    Property::read_only("lastTransitionTime", Type::Instant),
    Property::read_only("message", Type::Text),
    Property::read_only("reason", Type::Text),
    Property::read_only("status", Type::Text),
    Property::read_only("type", Type::Text),
];
const HELM_RELEASE: &[Property] = &[
    Property::read_only("lastRevisionApplied", Type::Count),
    Property::read_only("helmChartRef", Type::Object(REFERENCE)),
    Property::read_only("failureCount", Type::Count),
    Property::read_only("installFailureCount", Type::Count),
    Property::read_only("upgradeFailureCount", Type::Count),
];
const STATUS: &[Property] = &[
    Property::read_only("name", Type::Text),
    Property::read_only("namespace", Type::Text),
    Property::read_only("kind", Type::Text),
    Property::read_only("complianceState", Type::Words(COMPLIANCE)),
    Property::read_only("appliedBy", Type::Object(REFERENCE)),
    Property::read_only("statusConditions", Type::List(&Type::Object(CONDITION))),
    Property::read_only("helmReleaseProperties", Type::Object(HELM_RELEASE)),
];
/// What a cluster may tell beside how far it is, by the names of the properties that show it.
const DETAILS: &[Property] = &[
    Property::read_only("repositoryPublicKey", Type::Text),
    Property::read_only("sourceSyncedCommitId", Type::Text),
    Property::read_only("sourceUpdatedAt", Type::Instant),
    Property::read_only("statusUpdatedAt", Type::Instant),
    Property::read_only("complianceState", Type::Words(COMPLIANCE)),
    Property::read_only("errorMessage", Type::Text),
];
const PROPERTIES: &[Property] = &[
    Property::new("scope", Type::Words(&["cluster", "namespace"])).or("cluster").create_only(),
    Property::new("namespace", Type::Checked(rules::label)).or("default").create_only(),
    Property::new("sourceKind", Type::Words(SOURCE_KINDS)),
    Property::new("suspend", Type::Bool).or_bool(false),
    // Not Azure's: whether the source is reached through the gateway.
    Property::new(THROUGH_GATEWAY, Type::Bool),
    Property::new("gitRepository", Type::Object(GIT)).merged(),
    Property::new("bucket", Type::Object(BUCKET)).merged(),
    Property::new("azureBlob", Type::Object(BLOB)).merged().since(BLOB_SINCE),
    Property::new("ociRepository", Type::Object(OCI_SOURCE)).merged().only_in(OCI_VERSIONS),
    Property::new("kustomizations", Type::Map(NAMED_KUSTOMIZATIONS)).merged(),
    Property::new(PROTECTED, Type::Settings).write_only(),
    Property::new("waitForReconciliation", Type::Bool).since("2023-05-01"),
    Property::new("reconciliationWaitDuration", Type::Checked(rules::duration)).since("2023-05-01"),
    Property::read_only("statuses", Type::List(&Type::Object(STATUS))),
    DETAILS[0],
    DETAILS[1],
    DETAILS[2],
    DETAILS[3],
    DETAILS[4],
    DETAILS[5],
    Property::read_only("provisioningState", Type::Text),
];
const SCHEMA: &[Property] = &[
    Property::new("properties", Type::Object(PROPERTIES)).required().merged(),
    // The fleet assignment that made it, and alone changes it.
    Property::read_only("managedBy", Type::Text),
];

impl Kind for FluxConfigurations {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &["2022-03-01", "2022-07-01", "2022-11-01", "2023-05-01", "2024-04-01-preview", "2024-11-01", "2025-04-01"]
    }

    fn place(&self) -> Place {
        Place::Cluster
    }

    fn is_tracked(&self) -> bool {
        false
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn patch_schema(&self) -> Option<&'static [Property]> {
        Some(SCHEMA)
    }

    fn follows(&self) -> Option<Followed> {
        Some(Followed {
            name: NAME,
            agent: deployments::FLUXCONFIG_AGENT,
            code: "FluxConfigurationOperationFailed",
            show: "towline flux show",
            renew: "towline flux update",
            // It comes with an extension, which may take its time.
            missing: None,
            details: Some(|told, text| schema::told(DETAILS, told, Bounds { text, entries: 0 })),
            parts: Some(Parted { shown_as: "statuses", kept: status, logged: Some(logs::LOGGED) }),
        })
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    fn sends_secrets_to(&self, body: &Map<String, Value>) -> Option<String> {
        Some(rules::origin(rules::address(properties(body)?)?))
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        if is_label(name, LONGEST_NAME) {
            return Ok(());
        }
        let message = format!(
            "The name of a flux configuration must have 1 to {LONGEST_NAME} characters: lower-case letters, digits and '-', the first and the last a letter or digit. Its objects in the cluster are named after it."
        );
        Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
    }

    fn matches(&self, text: &str, stored: &Stored, _: &crate::identity::Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
    }

    /// The source and each kustomization one property after the other, where `null` takes away; protected settings are
    /// replaced as a whole. Another kind of source takes the place of the former one.
    fn merge(&self, body: &mut Map<String, Value>, part: &Map<String, Value>) {
        let changed = properties(part).and_then(|new| new.get("sourceKind")).cloned();
        let own = properties_mut(body);
        if let Some(kind) = changed
            && own.get("sourceKind") != Some(&kind)
        {
            own.retain(|name, _| !SOURCES.iter().any(|(_, property)| property == name));
        }
        schema::merge(SCHEMA, body, part);
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let old = writing.old.and_then(|old| old.body.as_object()).and_then(properties);
            let mut faults = Vec::new();
            let own = properties_mut(body);
            if let Some(old) = old {
                schema::keep_created(PROPERTIES, old, own, "properties", &mut faults);
            }
            rules::source(own, old, writing.version, &mut faults);
            schema::fill_in(PROPERTIES, own, "properties", &mut faults);
            rules::references(own, &mut faults);
            rules::protected(own, &mut faults);
            rules::verification(own, &mut faults);
            if let Some(said) = properties(writing.said) {
                rules::take_places(own, said, old);
            }
            // A source that is written again as it is was judged when it was written: else nothing else could be changed.
            let is_as_before = old.is_some_and(|old| {
                let mut names = std::iter::once("sourceKind").chain(SOURCES.iter().map(|(_, name)| *name));
                !own.contains_key(PROTECTED) && names.all(|name| old.get(name) == own.get(name))
            });
            if !is_as_before {
                rules::credentials(own, before(writing.old, old), &mut faults);
            }
            rules::through_gateway(own, old, &writing.control.snapshot().egress, &mut faults);
            rules::kustomizations(writing.id.name(), own, &mut faults);
            faults.truncate(FAULTS);
            if let Some(fault) = ErrorDetail::all(faults) {
                return Err(fault.into());
            }
            one_name(writing, own, old).await?;
            followed::room(writing, NAME, "flux configurations").await
        })
    }

    fn brings<'a>(&'a self, writing: &'a Writing<'a>) -> BoxFuture<'a, Result<Option<Brought>, ApiError>> {
        Box::pin(flux_extension::brought(writing, NEEDING))
    }

    fn keeps<'a>(
        &'a self,
        deleted: &'a Stored,
        control: &'a Control,
    ) -> BoxFuture<'a, Result<Option<(String, String)>, ApiError>> {
        Box::pin(flux_extension::kept_by(deleted, control, NEEDING))
    }

    fn actions(&self) -> &'static [&'static str] {
        &[logs::LIST]
    }

    /// What the controllers log of it says nothing that the conditions of its objects do not say: who reads the one may
    /// read the other.
    fn permission(&self, _: &str) -> Option<&'static str> {
        Some("Microsoft.KubernetesConfiguration/fluxConfigurations/read")
    }

    fn describe_action(&self, _: &str) -> (Value, Value) {
        logs::describe()
    }

    /// The log lines about it (D5).
    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(logs::list(acting))
    }

    fn show(&self, shown: &mut Map<String, Value>, _: &str, showing: &Showing<'_>) {
        let properties = properties_mut(shown);
        let deleting = properties.get("provisioningState").is_some_and(|state| state == "Deleting");
        let generation = showing.object.generation;
        let was_there = showing.told.is_some_and(|told| told.generation < generation);
        let state = followed::provisioning_state(showing.told, generation, deleting, was_there);
        properties.insert("provisioningState".to_owned(), state.into());
        for (name, kustomization) in
            properties.get_mut("kustomizations").and_then(Value::as_object_mut).into_iter().flatten()
        {
            kustomization["name"] = name.as_str().into();
        }
        properties.insert("complianceState".to_owned(), "Pending".into());
        let Some(told) = showing.told else { return };
        if let Some(Value::Object(details)) = told.status.get("details") {
            properties.extend(details.clone());
        }
        // Why it failed, where the cluster could say nothing of the source or of what is applied.
        let error = &told.status["error"]["message"];
        if error.is_string() && state == "Failed" && properties.get("errorMessage").is_none_or(Value::is_null) {
            properties.insert("errorMessage".to_owned(), error.clone());
        }
    }
}

/// What there is of the credentials of a configuration.
fn before<'a>(stored: Option<&Stored>, own: Option<&'a Map<String, Value>>) -> Before<'a> {
    let is_kept = stored.is_some_and(|old| old.protected.is_some());
    let is_there = is_kept || stored.is_some_and(|old| Object::of(&old.body).protected.is_some());
    Before { own, is_kept, is_there }
}

/// Refuses a kustomization whose object in the cluster would have the name of another configuration's: `a-b` and `c` name
/// the same one as `a` and `b-c`.
async fn one_name(
    writing: &Writing<'_>,
    own: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
) -> Result<(), ApiError> {
    let names = |of: &Map<String, Value>| -> Vec<String> {
        of.get("kustomizations").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
    };
    let before = old.map(names).unwrap_or_default();
    let configuration = writing.id.name();
    // By the key of another configuration: its kustomizations that would have such a name, and ours.
    let mut others: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for name in names(own).into_iter().filter(|name| !before.contains(name)) {
        let full = format!("{configuration}-{name}");
        for (at, _) in full.match_indices('-').filter(|(at, _)| *at != configuration.len()) {
            let (other, its) = (&full[..at], &full[at + 1..]);
            if is_label(other, LONGEST_NAME) && is_label(its, LONGEST_NAME) {
                let key = format!("{}/providers/{}/{other}", writing.id.parent_key(), NAME.to_ascii_lowercase());
                others.entry(key).or_default().push((its.to_owned(), name.clone()));
            }
        }
    }
    // Most of these keys name nothing. A configuration may have 256 KiB, so that one is read at a time.
    for key in writing.taken(others.keys().cloned().collect()).await? {
        let Some(other) = writing.control.store.get(&key).await? else { continue };
        let Some(theirs) = other.body.as_object().and_then(properties) else { continue };
        if theirs.get("namespace") != own.get("namespace") {
            continue;
        }
        let all = names(theirs);
        let same = others.get(&other.key).into_iter().flatten().find(|(its, _)| all.contains(its));
        if let Some((its, name)) = same {
            let message = format!(
                "The kustomization '{name}' would be '{configuration}-{name}' in the cluster, and so is '{its}' of the configuration '{}' in the same namespace. Give it another name.",
                last_name(&other.id)
            );
            let at = format!("properties.kustomizations.{name}");
            return Err(ApiError::of(StatusCode::CONFLICT, "KustomizationNameTaken", message).at(at));
        }
    }
    Ok(())
}

/// Where the source of a kept configuration is, if it is to be reached through the gateway.
pub fn goes_through_gateway(body: &Value) -> Option<Destination> {
    let own = properties(body.as_object()?)?;
    let goes = own.get(THROUGH_GATEWAY).is_some_and(|goes| *goes == true);
    rules::destination(own).filter(|_| goes)
}

/// What is kept of the status of an object in the cluster, and its rank: those that do not comply are shown first.
fn status(told: &Map<String, Value>, text: usize) -> (i64, Map<String, Value>) {
    let kept = schema::told(STATUS, told, Bounds { text, entries: CONDITIONS });
    let complies = kept.get("complianceState").is_none_or(|state| state != compliance::NON_COMPLIANT);
    (i64::from(complies), kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_names_are_labels_and_leave_room_for_those_of_kustomizations() {
        for good in ["a", "shop", "cluster-config", &"x".repeat(62)] {
            assert!(FluxConfigurations.check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Shop", "-a", "a-", "a.b", "a_b", "ä", &"x".repeat(63), "a b"] {
            assert!(FluxConfigurations.check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_source_kind_has_its_property() {
        let kinds: Vec<_> = SOURCES.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, SOURCE_KINDS);
        assert!(SOURCES.iter().all(|(_, name)| PROPERTIES.iter().any(|property| property.name == *name)));
    }
}
