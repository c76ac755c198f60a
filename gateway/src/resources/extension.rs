//! Extensions: helm charts of the signed catalogue, which the agents of a cluster install, upgrade and remove:
//! `Microsoft.KubernetesConfiguration/extensions` (docs/features.md E1-E13, D4). What is written here is what is wanted;
//! how far it is, the cluster tells, and that is shown with it.

use ::catalogue::{
    choice::{self, ChoiceError, Cluster},
    index::{Index, Scope as CatalogueScope},
    version::Version,
};
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::{
    agent_api::deployments,
    api::ErrorDetail,
    window::{self, HOURS_MAX, Schedule},
};

use super::{
    Acting, Kind, Place, Showing, Writing,
    followed::{self, is_label},
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError,
    cluster::upgrade,
    control::objects::Followed,
    directory::Decides,
    random,
    resources::filter,
    store::resources::Stored,
    stored::{properties, properties_mut},
};

/// The kind of extensions.
pub struct Extensions;

/// The full type.
pub const NAME: &str = types::api::id::EXTENSIONS;
/// The name of an extension is that of its helm release, which has no more characters.
const LONGEST_NAME: usize = 53;
/// Characters of the name of a namespace, and of a type.
const LABEL: usize = 63;
const TYPE: usize = 253;
/// The type whose chart is installed in one namespace alone: the cluster knows Flux's controllers by it, and keeps the
/// rights of a namespace away from them.
const PLACED: (&str, &str) = ("microsoft.flux", "flux-system");
/// What an agent says of the distribution that does not know it.
const UNKNOWN: &str = "generic";
/// Types that a refusal names at most.
const NAMED: usize = 20;

const LEVELS: &[&str] = &["Error", "Warning", "Information"];
const MODES: &[&str] = &["none", "patch", "compatible"];
const RECONCILE: &[&str] = &["repair", "report"];

const OF_CLUSTER: &[Property] = &[Property::new("releaseNamespace", Type::Checked(namespace))];
const OF_NAMESPACE: &[Property] = &[Property::new("targetNamespace", Type::Checked(namespace))];
const SCOPE: &[Property] =
    &[Property::new("cluster", Type::Object(OF_CLUSTER)), Property::new("namespace", Type::Object(OF_NAMESPACE))];
const WINDOW: &[Property] = &[
    Property::new("schedule", Type::Checked(schedule)).required(),
    Property::new("durationHours", Type::Number(1, HOURS_MAX)).required(),
    Property::new("timeZone", Type::Checked(time_zone)).or("UTC"),
];
const STATUS: &[Property] = &[
    Property::read_only("code", Type::Text),
    Property::read_only("displayStatus", Type::Text),
    Property::read_only("level", Type::Words(LEVELS)),
    Property::read_only("message", Type::Text),
    Property::read_only("time", Type::Instant),
];
const ERROR: &[Property] = &[Property::read_only("code", Type::Text), Property::read_only("message", Type::Text)];
const PROPERTIES: &[Property] = &[
    Property::new("extensionType", Type::Checked(extension_type)).required(),
    Property::new("autoUpgradeMode", Type::Words(MODES)),
    Property::new("autoUpgradeMinorVersion", Type::Bool),
    Property::new("releaseTrain", Type::Checked(word)),
    Property::new("version", Type::Checked(word)),
    Property::new("scope", Type::Object(SCOPE)),
    Property::new(SETTINGS, Type::Settings),
    Property::new(PROTECTED, Type::Settings).write_only(),
    // Ours: what is done about a release that somebody else changed in the cluster.
    Property::new("reconcile", Type::Words(RECONCILE)).or("repair"),
    // Ours: when automatic upgrades begin; the cluster keeps to it.
    Property::new(WINDOW_NAME, Type::Object(WINDOW)),
    Property::read_only("currentVersion", Type::Text),
    // Written by clients that send back what they read.
    Property::new("provisioningState", Type::Text),
    Property::read_only("errorInfo", Type::Object(ERROR)),
    Property::read_only("statuses", Type::List(&Type::Object(STATUS))),
    Property::read_only("customLocationSettings", Type::Texts),
    Property::read_only("packageUri", Type::Text),
    Property::read_only("isSystemExtension", Type::Bool),
    // Sent back by clients that have them from elsewhere, and never shown: none of them says anything here.
    Property::read_only("aksAssignedIdentity", Type::Object(IDENTITY)),
    Property::read_only("managementDetails", Type::Object(&[])),
    Property::read_only("additionalDetails", Type::Object(&[])),
    Property::read_only("extensionState", Type::Text),
];
const IDENTITY: &[Property] = &[
    Property::new("type", Type::Words(&["SystemAssigned"])),
    Property::read_only("principalId", Type::Text),
    Property::read_only("tenantId", Type::Text),
];
const PLAN: &[Property] = &[
    Property::new("name", Type::Text).required(),
    Property::new("publisher", Type::Text).required(),
    Property::new("product", Type::Text).required(),
    Property::new("promotionCode", Type::Text),
    Property::new("version", Type::Text),
];
const SCHEMA: &[Property] = &[
    Property::new("identity", Type::Object(IDENTITY)),
    Property::new("plan", Type::Object(PLAN)),
    // Shown of what a fleet assignment made.
    Property::read_only("managedBy", Type::Text),
    Property::new("properties", Type::Object(PROPERTIES)).required().merged(),
];
const WINDOW_NAME: &str = "autoUpgradeWindow";
const SETTINGS: &str = "configurationSettings";
const PROTECTED: &str = "configurationProtectedSettings";

impl Kind for Extensions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &["2022-03-01", "2022-07-01", "2022-11-01", "2023-05-01", "2024-11-01", "2025-03-01"]
    }

    fn place(&self) -> Place {
        Place::Cluster
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
            agent: deployments::EXTENSION_MANAGER,
            code: "ExtensionOperationFailed",
            show: "towline extension show",
            renew: "towline extension update --protected",
            missing: Some(
                "extensions are off there (towline enable-features --features extensions turns them on), or its pod does not run (towline troubleshoot)",
            ),
            details: None,
            parts: None,
        })
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    /// Its identity is in force from the write that makes it to the deletion.
    fn decides(&self) -> Option<Decides> {
        Some(Decides::Identities(|stored| principal(stored).map(str::to_owned)))
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        if is_label(name, LONGEST_NAME) {
            return Ok(());
        }
        let message = format!(
            "The name of an extension must have 1 to {LONGEST_NAME} characters: lower-case letters, digits and '-', the first and the last a letter or digit. It is the name of its helm release."
        );
        Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
    }

    fn matches(&self, text: &str, stored: &Stored, _: &crate::identity::Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
    }

    /// Settings one by one, and `null` takes one away; protected ones are replaced as a whole. A version pins, and
    /// automatic upgrades take the pin away.
    fn merge(&self, body: &mut Map<String, Value>, part: &Map<String, Value>) {
        for name in ["identity", "plan"] {
            if let Some(new) = part.get(name).filter(|new| !new.is_null()) {
                body.insert(name.to_owned(), new.clone());
            }
        }
        let Some(new) = properties(part) else { return };
        let own = properties_mut(body);
        // `null` takes a window away; elsewhere it is as if it were not there.
        if new.get(WINDOW_NAME).is_some_and(Value::is_null) {
            own.remove(WINDOW_NAME);
        }
        let new: &Map<String, Value> = &new
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for (name, value) in new {
            match (name.as_str(), value, own.get_mut(name)) {
                (SETTINGS, Value::Object(new), Some(Value::Object(kept))) => kept.extend(new.clone()),
                _ => drop(own.insert(name.clone(), value.clone())),
            }
        }
        if let Some(Value::Object(settings)) = own.get_mut(SETTINGS) {
            settings.retain(|_, value| !value.is_null());
        }
        let upgrades = |of: &Map<String, Value>| {
            of.get("autoUpgradeMinorVersion") == Some(&Value::Bool(true))
                || of.get("autoUpgradeMode").is_some_and(|mode| mode != "none")
        };
        // Each of the two says what the other does.
        match (new.contains_key("autoUpgradeMode"), new.contains_key("autoUpgradeMinorVersion")) {
            (true, false) => drop(own.remove("autoUpgradeMinorVersion")),
            (false, true) => drop(own.remove("autoUpgradeMode")),
            _ => {}
        }
        match new.contains_key("version") {
            true if !upgrades(new) => {
                own.insert("autoUpgradeMinorVersion".to_owned(), false.into());
                own.insert("autoUpgradeMode".to_owned(), "none".into());
            }
            false if upgrades(new) => drop(own.remove("version")),
            _ => {}
        }
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let old = writing.old.and_then(|old| old.body.as_object());
            let kept = |name: &str| old.and_then(properties).and_then(|old| old.get(name));
            let own = properties_mut(body);
            own.remove("provisioningState");
            for name in [SETTINGS, PROTECTED] {
                if let Some(Value::Object(settings)) = own.get_mut(name) {
                    settings.retain(|_, value| !value.is_null());
                }
            }
            // Who names no namespace means the one that is there.
            let is_open = own.get("scope").is_none_or(|scope| *scope == json!({"cluster": {}}));
            let is_meant = |there: &&Value| is_open && (!own.contains_key("scope") || there.get("cluster").is_some());
            let meant = kept("scope").filter(is_meant).cloned();
            own.extend(meant.map(|meant| ("scope".to_owned(), meant)));
            if let Some(old) = old.and_then(properties) {
                same_type(old, own, writing)?;
            }
            // What it was before stays possible, also where the catalogue has withdrawn it since.
            let same = ["extensionType", "version", "releaseTrain"].iter().all(|name| own.get(*name) == kept(name));
            if let Some(index) = writing.control.catalogue().filter(|_| !same) {
                let agent = writing.control.store.agent(writing.id.parent_key()).await?;
                let told = |name: &str| agent.as_ref()?.facts.get(name)?.as_str().filter(|text| !text.is_empty());
                let kubernetes = told("kubernetesVersion").and_then(|text| text.parse().ok());
                let distribution = told("distribution").filter(|told| *told != UNKNOWN);
                let platforms = agent.as_ref().map(|agent| platforms(&agent.facts)).unwrap_or_default();
                catalogued(own, &index, &Cluster { kubernetes, distribution, platforms: &platforms })?;
            }
            scope(own)?;
            if old.is_none() {
                placed(own)?;
            }
            upgrades(own)?;
            if let Some(old) = old.and_then(properties) {
                same_scope(old, own)?;
            }
            followed::room(writing, NAME, "extensions").await?;
            identity(body, old, &writing.control.settings.tenant);
            Ok(())
        })
    }

    fn show(&self, shown: &mut Map<String, Value>, id: &str, showing: &Showing<'_>) {
        let properties = properties_mut(shown);
        let deleting = properties.get("provisioningState").is_some_and(|state| state == "Deleting");
        let was_there = showing.told.is_some_and(|told| told.status["currentVersion"].is_string());
        let state = followed::provisioning_state(showing.told, showing.object.generation, deleting, was_there);
        properties.insert("provisioningState".to_owned(), state.into());
        properties.insert("isSystemExtension".to_owned(), false.into());
        let nobody = self.follows().and_then(|kind| followed::nobody(id, &kind, showing));
        if let Some(line) = &nobody {
            properties.insert("statuses".to_owned(), json!([line]));
        }
        let Some(told) = showing.told else { return };
        let status = &told.status;
        let is_newest = told.generation == showing.object.generation;
        // An error of something that is not wanted any more is none.
        let error = if is_newest { status["error"].clone() } else { Value::Null };
        let mut statuses = status["statuses"].clone();
        if let (Some(line), Value::Array(lines)) = (nobody, &mut statuses) {
            lines.insert(0, line);
        }
        for (name, value) in [
            ("currentVersion", status["currentVersion"].clone()),
            ("statuses", statuses),
            ("extensionState", status["state"].clone()),
            ("errorInfo", error),
        ] {
            properties.insert(name.to_owned(), value);
        }
    }

    fn actions(&self) -> &'static [&'static str] {
        &["listEvents"]
    }

    fn permission(&self, _: &str) -> Option<&'static str> {
        Some("Microsoft.KubernetesConfiguration/extensions/read")
    }

    fn describe_action(&self, _: &str) -> (Value, Value) {
        let text = json!({"type": "string"});
        let event = json!({"type": "object", "properties": {
            "number": {"type": "integer"}, "operation": text, "phase": text, "level": text, "reason": text, "message": text,
            "object": text, "first": {"type": "string", "format": "date-time"},
            "last": {"type": "string", "format": "date-time"}, "count": {"type": "integer"},
        }});
        let answer = json!({"type": "object", "properties": {"value": {"type": "array", "items": event}}});
        (json!({"type": "object"}), answer)
    }

    /// What happened to it in the cluster, the oldest first (D4).
    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(async move { Ok(json!({"value": acting.control.store.events_told(&acting.resource.key).await?})) })
    }
}

/// The platforms of a cluster's nodes, as its agents told them; none of agents that do not tell them.
pub fn platforms(facts: &Value) -> Vec<String> {
    let told = facts.get("platforms").and_then(Value::as_array);
    told.into_iter().flatten().filter_map(|one| Some(one.as_str()?.to_owned())).collect()
}

/// Refuses early what no version of the gateway's catalogue is, or what does not work on what is known of the cluster; that
/// looks at its own, verified copy again. Fills in the scope of the type where none is named.
fn catalogued(own: &mut Map<String, Value>, index: &Index, cluster: &Cluster<'_>) -> Result<(), ApiError> {
    let text = |name: &str| own.get(name).and_then(Value::as_str).map(str::to_owned);
    let wrong = |code: &str, message: String, at: &str| {
        Err(ApiError::bad_request(code, message).at(format!("properties.{at}")))
    };
    let name = &text("extensionType").unwrap_or_default();
    // As an extension they would be a second installation beside the agents that install it.
    if name.eq_ignore_ascii_case(upgrade::TYPE) {
        let message = format!(
            "'{name}' is the cluster's agents, and no extension: properties.arcAgentProfile of the cluster says which version they have."
        );
        return wrong("ExtensionTypeNotSupported", message, "extensionType");
    }
    let Some(kind) = index.extension_type(name) else {
        let known: Vec<_> = index.types.iter().map(|one| one.name.as_str()).take(NAMED).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("The catalogue has no extension type '{name}'; it has {known}.");
        return wrong("ExtensionTypeNotFound", message, "extensionType");
    };
    if let Some(version) = text("version") {
        let known = version.parse::<Version>().ok().and_then(|version| kind.release(&version));
        let Some(known) = known else {
            let message =
                format!("The catalogue has no version '{version}' of {name}; see towline extension types versions.");
            return wrong("ExtensionVersionNotFound", message, "version");
        };
        if let Err(why) = known.fits(cluster) {
            let message = format!("The version {version} of {name} does not work on this cluster: {why}.");
            return wrong("VersionNotSupported", message, "version");
        }
    }
    // A version that is named needs no train, and one that is named with it is one of the type.
    let train = text("releaseTrain").or_else(|| (!own.contains_key("version")).then(|| "Stable".to_owned()));
    let chosen = train.map(|train| choice::newest(kind, &train, cluster).map(drop));
    match chosen {
        Some(Err(why @ ChoiceError::UnknownTrain { .. })) => {
            let message = format!("The version of {name} cannot be chosen: {why}.");
            return wrong("ReleaseTrainNotFound", message, "releaseTrain");
        }
        Some(Err(why @ ChoiceError::Unfit { .. })) if !own.contains_key("version") => {
            return wrong(
                "VersionNotSupported",
                format!("The version of {name} cannot be chosen: {why}."),
                "releaseTrain",
            );
        }
        _ => {}
    }
    let scopes = &kind.supported_scopes;
    let default = || match scopes.default_scope {
        CatalogueScope::Cluster => Some(json!({"cluster": {}})),
        CatalogueScope::Namespace => None,
    };
    match (own.get("scope"), default()) {
        (None, Some(scope)) => drop(own.insert("scope".to_owned(), scope)),
        (None, None) => {
            let message = format!(
                "{name} is installed for a namespace, which must be named: properties.scope.namespace.targetNamespace."
            );
            return wrong("InvalidExtensionScope", message, "scope");
        }
        _ => {}
    }
    let wanted = own.get("scope").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    for wanted in wanted {
        if !scopes.scopes.iter().any(|known| known.to_string() == *wanted) {
            let known: Vec<_> = scopes.scopes.iter().map(ToString::to_string).collect();
            let message = format!("{name} cannot be installed for a {wanted}; its scopes are: {}.", known.join(", "));
            return wrong("InvalidExtensionScope", message, "scope");
        }
    }
    Ok(())
}

/// One scope, and the cluster where none is named.
fn scope(own: &mut Map<String, Value>) -> Result<(), ApiError> {
    let scope = own.entry("scope").or_insert_with(|| json!({"cluster": {}}));
    let (cluster, namespace) = (scope.get("cluster").is_some(), scope.get("namespace").is_some());
    let wrong = |message: &str| Err(ApiError::bad_request("InvalidExtensionScope", message).at("properties.scope"));
    match (cluster, namespace) {
        (true, true) => wrong("An extension has one scope, 'cluster' or 'namespace', not both."),
        (false, false) => wrong("The scope must be 'cluster' or 'namespace'."),
        (false, true) if scope["namespace"].get("targetNamespace").is_none() => {
            wrong("The scope 'namespace' needs the name of the namespace: properties.scope.namespace.targetNamespace.")
        }
        _ => Ok(()),
    }
}

/// Refuses early another namespace than the chart takes.
fn placed(own: &Map<String, Value>) -> Result<(), ApiError> {
    let (name, namespace) = PLACED;
    let is_it = own.get("extensionType").and_then(Value::as_str).is_some_and(|kind| kind.eq_ignore_ascii_case(name));
    let named = own.get("scope").and_then(|scope| scope.get("cluster")?.get("releaseNamespace")?.as_str());
    if is_it && named.is_some_and(|named| named != namespace) {
        let message = format!("{name} is installed in the namespace {namespace} and in no other.");
        let at = "properties.scope.cluster.releaseNamespace";
        return Err(ApiError::bad_request("InvalidExtensionScope", message).at(at));
    }
    Ok(())
}

/// A version pins; what is upgraded by itself has none. What nobody said is filled in.
fn schedule(text: &str) -> Result<(), String> {
    text.parse::<Schedule>().map(drop).map_err(|error| format!("a schedule: {error}"))
}

fn time_zone(text: &str) -> Result<(), String> {
    window::zone(text).map(drop).map_err(|error| format!("a time zone: {error}"))
}

fn upgrades(own: &mut Map<String, Value>) -> Result<(), ApiError> {
    let minor = own.get("autoUpgradeMinorVersion").and_then(Value::as_bool);
    let mode = own.get("autoUpgradeMode").and_then(Value::as_str).map(str::to_owned);
    let wrong = |message: &str, at: &str| {
        Err(ApiError::bad_request("InvalidExtensionVersion", message).at(format!("properties.{at}")))
    };
    if own.contains_key("version") {
        if minor == Some(true) {
            return wrong(
                "A version can be given only where autoUpgradeMinorVersion is false: it pins the extension to that version.",
                "autoUpgradeMinorVersion",
            );
        }
        if mode.is_some_and(|mode| mode != "none") {
            return wrong(
                "A version can be given only where autoUpgradeMode is 'none': it pins the extension to that version.",
                "autoUpgradeMode",
            );
        }
        own.insert("autoUpgradeMode".to_owned(), "none".into());
        own.insert("autoUpgradeMinorVersion".to_owned(), false.into());
        return Ok(());
    }
    let mode = match (mode, minor) {
        (Some(mode), Some(true)) if mode == "none" => {
            return wrong("autoUpgradeMode 'none' contradicts autoUpgradeMinorVersion true.", "autoUpgradeMode");
        }
        (Some(mode), Some(false)) if mode == "compatible" => {
            return wrong("autoUpgradeMode 'compatible' contradicts autoUpgradeMinorVersion false.", "autoUpgradeMode");
        }
        (Some(mode), _) => mode,
        (None, Some(false)) => "none".to_owned(),
        (None, _) => "compatible".to_owned(),
    };
    own.insert("autoUpgradeMinorVersion".to_owned(), (mode == "compatible").into());
    own.insert("autoUpgradeMode".to_owned(), mode.into());
    own.entry("releaseTrain").or_insert_with(|| "Stable".into());
    Ok(())
}

/// What an extension is does not change: that would be another one.
fn same_type(old: &Map<String, Value>, new: &Map<String, Value>, writing: &Writing<'_>) -> Result<(), ApiError> {
    let text = |of: &Map<String, Value>| of.get("extensionType").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !text(old).eq_ignore_ascii_case(&text(new)) {
        let message = format!(
            "The extension '{}' exists and is of type '{}'. Choose another name, or delete it first.",
            writing.id.name(),
            text(old)
        );
        let error = ApiError::of(StatusCode::CONFLICT, "ExtensionTypeMismatch", message);
        return Err(error.at("properties.extensionType"));
    }
    Ok(())
}

/// Nor does where it is.
fn same_scope(old: &Map<String, Value>, new: &Map<String, Value>) -> Result<(), ApiError> {
    if old.get("scope") != new.get("scope") {
        let message = "The scope of an extension cannot be changed. Delete the extension and create it again.";
        return Err(ApiError::of(StatusCode::CONFLICT, "ExtensionScopeImmutable", message).at("properties.scope"));
    }
    Ok(())
}

/// The key of an extension of a cluster; none for what is no name of one.
pub fn key_of(cluster: &str, name: &str) -> Option<String> {
    is_label(name, LONGEST_NAME).then(|| format!("{cluster}/providers/{}/{name}", NAME.to_ascii_lowercase()))
}

/// The object id of an extension's identity, if it has one (E11).
pub fn principal(stored: &Stored) -> Option<&str> {
    stored.body.get("identity")?.get("principalId")?.as_str()
}

/// A system-assigned identity is made once and stays (E11).
fn identity(body: &mut Map<String, Value>, old: Option<&Map<String, Value>>, tenant: &str) {
    let kept = old.and_then(|old| old.get("identity")).filter(|kept| kept.get("principalId").is_some()).cloned();
    if let Some(kept) = kept {
        body.insert("identity".to_owned(), kept);
    } else if let Some(identity) = body.get_mut("identity").and_then(Value::as_object_mut)
        && identity.get("type").is_some()
    {
        identity.insert("principalId".to_owned(), random::guid().into());
        identity.insert("tenantId".to_owned(), tenant.into());
    }
}

fn namespace(text: &str) -> Result<(), String> {
    if !is_label(text, LABEL) {
        return Err(format!(
            "the name of a Kubernetes namespace: 1 to {LABEL} lower-case letters, digits and '-', the first and the last a letter or digit"
        ));
    }
    if text.starts_with("kube-") {
        return Err("a namespace that is not Kubernetes' own (kube-...)".to_owned());
    }
    Ok(())
}

fn extension_type(text: &str) -> Result<(), String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if (1..=TYPE).contains(&text.len()) && text.bytes().all(known) {
        return Ok(());
    }
    Err(format!("the name of an extension type: 1 to {TYPE} letters, digits and . - _"))
}

fn word(text: &str) -> Result<(), String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b'_');
    if (1..=LABEL).contains(&text.len()) && text.bytes().all(known) {
        return Ok(());
    }
    Err(format!("1 to {LABEL} letters, digits and . - + _"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { unreachable!("tests give objects") };
        map
    }

    fn upgraded(value: Value) -> Result<Value, String> {
        let mut own = map(value);
        upgrades(&mut own).map_err(|error| error.detail.target.unwrap_or_default())?;
        Ok(json!([own.get("autoUpgradeMode"), own.get("autoUpgradeMinorVersion"), own.get("version")]))
    }

    #[test]
    fn e1_a_version_pins_and_what_is_upgraded_by_itself_has_none() {
        assert_eq!(upgraded(json!({})).unwrap(), json!(["compatible", true, null]));
        assert_eq!(upgraded(json!({"autoUpgradeMinorVersion": false})).unwrap(), json!(["none", false, null]));
        assert_eq!(upgraded(json!({"autoUpgradeMode": "patch"})).unwrap(), json!(["patch", false, null]));
        assert_eq!(upgraded(json!({"version": "1.2.3"})).unwrap(), json!(["none", false, "1.2.3"]));
        for (bad, at) in [
            (json!({"version": "1", "autoUpgradeMinorVersion": true}), "autoUpgradeMinorVersion"),
            (json!({"version": "1", "autoUpgradeMode": "patch"}), "autoUpgradeMode"),
            (json!({"autoUpgradeMode": "none", "autoUpgradeMinorVersion": true}), "autoUpgradeMode"),
            (json!({"autoUpgradeMode": "compatible", "autoUpgradeMinorVersion": false}), "autoUpgradeMode"),
        ] {
            assert_eq!(upgraded(bad.clone()), Err(format!("properties.{at}")), "{bad}");
        }
    }

    #[test]
    fn e5_settings_are_changed_one_by_one_and_a_version_and_upgrades_exclude_each_other() {
        let mut body =
            map(json!({"properties": {"configurationSettings": {"a": "1", "b": "2"}, "autoUpgradeMode": "none",
            "autoUpgradeMinorVersion": false, "version": "1.0.0"}}));
        let part = map(
            json!({"properties": {"configurationSettings": {"a": null, "c": "3"}, "autoUpgradeMinorVersion": true}}),
        );
        Extensions.merge(&mut body, &part);
        let own = properties_mut(&mut body);
        upgrades(own).unwrap();
        assert_eq!(own["configurationSettings"], json!({"b": "2", "c": "3"}));
        assert_eq!((own.get("version"), &own["autoUpgradeMode"]), (None, &json!("compatible")));
        Extensions.merge(&mut body, &map(json!({"properties": {"version": "2.0.0"}})));
        let own = properties_mut(&mut body);
        upgrades(own).unwrap();
        assert_eq!((&own["version"], &own["autoUpgradeMode"]), (&json!("2.0.0"), &json!("none")));
    }

    #[test]
    fn e7_scopes_and_names_are_those_of_kubernetes() {
        for good in ["a", "web", "ingress-nginx", &"x".repeat(53)] {
            assert!(Extensions.check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Web", "-a", "a-", "a.b", "a_b", "ä", &"x".repeat(54), "a b"] {
            assert!(Extensions.check_name(bad).is_err(), "{bad}");
        }
        assert!(namespace("kube-system").is_err() && namespace("Web").is_err() && namespace("web").is_ok());
        for bad in [
            json!({"scope": {}}),
            json!({"scope": {"cluster": {}, "namespace": {}}}),
            json!({"scope": {"namespace": {}}}),
        ] {
            assert!(scope(&mut map(bad.clone())).is_err(), "{bad}");
        }
        let flux = |namespace: &str| json!({"extensionType": "Microsoft.Flux", "scope": {"cluster": {"releaseNamespace": namespace}}});
        assert!(placed(&map(flux("flux-system"))).is_ok() && placed(&map(flux("gitops"))).is_err());
        assert!(placed(&map(json!({"extensionType": "microsoft.flux", "scope": {"cluster": {}}}))).is_ok());
        let mut own = map(json!({}));
        scope(&mut own).unwrap();
        assert_eq!(own["scope"], json!({"cluster": {}}));
    }
}
