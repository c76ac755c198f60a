//! Source control configurations (`Microsoft.KubernetesConfiguration/sourceControlConfigurations`, docs/features.md G10):
//! the configurations of Flux 1, with one Git repository and the parameters of its operator. Who has scripts for them goes
//! on with these; in the cluster Flux 2 does what they say. They are followed there and told of as flux configurations are.

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::{agent_api::deployments, api::ErrorDetail, operator_params::OperatorParams};

use super::{
    Brought, Kind, Place, Showing, Writing, filter,
    flux_configuration::rules,
    flux_extension::{self, Needing},
    followed::{self, is_label},
    schema::{self, Bounds, Property, Type},
};
use crate::{
    api_error::ApiError,
    control::{Control, objects::Followed},
    store::resources::Stored,
    stored::{properties, properties_mut},
};

/// The kind of source control configurations.
pub struct SourceControlConfigurations;

/// The full type.
pub const NAME: &str = types::api::id::SOURCE_CONTROL_CONFIGURATIONS;
/// What they say where they need Flux.
const NEEDING: Needing =
    Needing { kind: NAME, plural: ("source control configurations", "Source control configurations") };
/// Characters of a name at most: with what the agent puts before and behind it, it is the value of a label in the cluster,
/// which has 63.
const LONGEST_NAME: usize = 50;
/// Characters of the name of the operator's instance.
const LONGEST_INSTANCE: usize = 63;
/// Characters of the values of the Helm operator's chart.
const CHART_VALUES: usize = 16 * 1024;
/// Faults that one answer tells at most.
const FAULTS: usize = 50;
const PROTECTED: &str = "configurationProtectedSettings";
/// Protected settings that mean something.
const SETTINGS: &[&str] = &["sshPrivateKey", "httpsUser", "httpsKey"];

fn operator_params(text: &str) -> Result<(), String> {
    OperatorParams::read(text).map(drop)
}

fn instance(text: &str) -> Result<(), String> {
    if is_label(text, LONGEST_INSTANCE) {
        return Ok(());
    }
    Err(format!("1 to {LONGEST_INSTANCE} lower-case letters, digits and '-', the first and the last a letter or digit"))
}

/// Clients send an empty text along.
fn known_hosts(text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Ok(()) } else { rules::hosts(text) }
}

fn chart_values(text: &str) -> Result<(), String> {
    if text.chars().count() <= CHART_VALUES {
        return Ok(());
    }
    Err(format!("a text of at most {CHART_VALUES} characters"))
}

const HELM_OPERATOR: &[Property] =
    &[Property::new("chartVersion", Type::Text), Property::new("chartValues", Type::Checked(chart_values))];
const COMPLIANCE: &[Property] = &[
    Property::read_only(
        "complianceState",
        Type::Words(&["Pending", "Compliant", "Noncompliant", "Installed", "Failed"]),
    ),
    Property::read_only("lastConfigApplied", Type::Instant),
    Property::read_only("message", Type::Text),
    Property::read_only("messageLevel", Type::Words(&["Error", "Warning", "Information"])),
];
/// What a cluster tells beside how far it is.
const DETAILS: &[Property] = &[
    Property::read_only("repositoryPublicKey", Type::Text),
    Property::read_only("complianceStatus", Type::Object(COMPLIANCE)),
];
const PROPERTIES: &[Property] = &[
    Property::new("repositoryUrl", Type::Checked(rules::git_url)).required(),
    Property::new("operatorNamespace", Type::Checked(rules::label)).or("default").create_only(),
    Property::new("operatorInstanceName", Type::Checked(instance)),
    Property::new("operatorType", Type::Words(&["Flux"])).or("Flux"),
    Property::new("operatorParams", Type::Text),
    Property::new(PROTECTED, Type::Settings).write_only(),
    Property::new("operatorScope", Type::Words(&["cluster", "namespace"])).or("cluster").create_only(),
    Property::new("sshKnownHostsContents", Type::Checked(known_hosts)),
    Property::new("enableHelmOperator", Type::Bool).or_bool(false),
    Property::new("helmOperatorProperties", Type::Object(HELM_OPERATOR)),
    DETAILS[0],
    DETAILS[1],
    Property::read_only("provisioningState", Type::Text),
];
const SCHEMA: &[Property] = &[Property::new("properties", Type::Object(PROPERTIES)).required()];

impl Kind for SourceControlConfigurations {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &["2021-03-01", "2022-03-01", "2022-07-01", "2022-11-01", "2023-05-01"]
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

    fn follows(&self) -> Option<Followed> {
        Some(Followed {
            name: NAME,
            agent: deployments::FLUXCONFIG_AGENT,
            code: "SourceControlConfigurationOperationFailed",
            show: "towline flux source-control show",
            renew: "towline rest --method put",
            // It comes with an extension, which may take its time.
            missing: None,
            details: Some(|told, text| schema::told(DETAILS, told, Bounds { text, entries: 0 })),
            parts: None,
        })
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    /// Microsoft's clients of this type know no 202; they follow the operation that the answer's headers name.
    fn deletion_begins_with(&self) -> StatusCode {
        StatusCode::OK
    }

    fn sends_secrets_to(&self, body: &Map<String, Value>) -> Option<String> {
        Some(rules::origin(text(properties(body)?, "repositoryUrl")))
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        if is_label(name, LONGEST_NAME) {
            return Ok(());
        }
        let message = format!(
            "The name of a source control configuration must have 1 to {LONGEST_NAME} characters: lower-case letters, digits and '-', the first and the last a letter or digit. Its objects in the cluster are named after it."
        );
        Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
    }

    fn matches(&self, text: &str, stored: &Stored, _: &crate::identity::Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
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
            schema::fill_in(PROPERTIES, own, "properties", &mut faults);
            own.entry("operatorInstanceName").or_insert_with(|| writing.id.name().into());
            texts(own, &mut faults);
            protected(own, &mut faults);
            credentials(own, &mut faults);
            faults.truncate(FAULTS);
            if let Some(fault) = ErrorDetail::all(faults) {
                return Err(fault.into());
            }
            followed::room(writing, NAME, NEEDING.plural.0).await
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

    fn show(&self, shown: &mut Map<String, Value>, _: &str, showing: &Showing<'_>) {
        let properties = properties_mut(shown);
        let deleting = properties.get("provisioningState").is_some_and(|state| state == "Deleting");
        let generation = showing.object.generation;
        let is_begun = showing.told.is_some_and(|told| told.generation == generation);
        // This type has words of its own.
        let state = match followed::provisioning_state(showing.told, generation, deleting, false) {
            "Creating" | "Updating" if is_begun => "Running",
            "Creating" | "Updating" => "Accepted",
            other => other,
        };
        properties.insert("provisioningState".to_owned(), state.into());
        properties.insert("complianceStatus".to_owned(), json!({"complianceState": "Pending"}));
        let Some(told) = showing.told else { return };
        if let Some(Value::Object(details)) = told.status.get("details") {
            properties.extend(details.clone());
        }
        // What an agent said of what was wanted before says nothing of what is wanted now.
        if !is_begun {
            let applied = properties["complianceStatus"]["lastConfigApplied"].take();
            properties["complianceStatus"] = json!({"complianceState": "Pending"});
            if !applied.is_null() {
                properties["complianceStatus"]["lastConfigApplied"] = applied;
            }
        }
        // Why it failed, where the cluster has not said that itself.
        let error = &told.status["error"]["message"];
        let compliance = &mut properties["complianceStatus"];
        if state == "Failed" && compliance["complianceState"] != "Failed" {
            compliance["complianceState"] = "Failed".into();
            compliance["message"] = error.clone();
            compliance["messageLevel"] = "Error".into();
        }
    }
}

fn text<'a>(own: &'a Map<String, Value>, name: &str) -> &'a str {
    own.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn fault(faults: &mut Vec<ErrorDetail>, code: &str, message: impl Into<String>, at: &str) {
    faults.push(ErrorDetail::new(code, message.into()).at(format!("properties.{at}")));
}

/// Takes out empty texts, which clients send along, and reads the operator's parameters.
fn texts(own: &mut Map<String, Value>, faults: &mut Vec<ErrorDetail>) {
    for name in ["operatorParams", "sshKnownHostsContents"] {
        if text(own, name).trim().is_empty() {
            own.remove(name);
        }
    }
    if let Err(why) = operator_params(text(own, "operatorParams")) {
        fault(faults, "InvalidOperatorParams", why, "operatorParams");
    }
}

/// Protected settings that mean something, as base64.
fn protected(own: &mut Map<String, Value>, faults: &mut Vec<ErrorDetail>) {
    let Some(Value::Object(settings)) = own.get_mut(PROTECTED) else { return };
    settings.retain(|_, value| !value.is_null());
    for (name, value) in settings {
        let shown: String = name.chars().take(64).collect();
        let at = format!("{PROTECTED}.{shown}");
        if !SETTINGS.contains(&name.as_str()) {
            let message = format!("The protected setting '{shown}' is not known; known are {}.", SETTINGS.join(", "));
            fault(faults, "UnknownProperty", message, &at);
        } else if let Err(wanted) = rules::setting(name, value.as_str().unwrap_or_default()) {
            fault(faults, "InvalidRequestContent", format!("The property 'properties.{at}' must be {wanted}."), &at);
        }
    }
}

/// Credentials that the repository's address can use.
fn credentials(own: &Map<String, Value>, faults: &mut Vec<ErrorDetail>) {
    let url = text(own, "repositoryUrl").to_ascii_lowercase();
    let settings = own.get(PROTECTED).and_then(Value::as_object);
    let given = |name: &str| settings.is_some_and(|settings| settings.contains_key(name));
    let mut refuse = |at: &str, why: &str| {
        let message = format!("The property 'properties.{at}' cannot be used: {why}.");
        fault(faults, "InvalidCredentials", message, at);
    };
    let protected = |name: &str| format!("{PROTECTED}.{name}");
    if url.starts_with("https://") || url.starts_with("http://") {
        let why = "the repository's address is not one of ssh";
        if given("sshPrivateKey") {
            refuse(&protected("sshPrivateKey"), why);
        }
        if own.contains_key("sshKnownHostsContents") {
            refuse("sshKnownHostsContents", why);
        }
        let clear = url.starts_with("http://");
        for (name, other) in [("httpsUser", "httpsKey"), ("httpsKey", "httpsUser")] {
            if given(name) && clear {
                let why = "it would be sent in clear text; give the repository's https:// address";
                refuse(&protected(name), why);
            } else if given(name) && !given(other) {
                refuse(&protected(name), &format!("it needs the protected setting {other} too"));
            }
        }
    } else {
        let why = "the repository's address is not one of https";
        ["httpsUser", "httpsKey"].iter().filter(|name| given(name)).for_each(|name| refuse(&protected(name), why));
        if let Some(why) = rules::unknown_host(&url).filter(|_| !own.contains_key("sshKnownHostsContents")) {
            refuse("sshKnownHostsContents", &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g10_addresses_have_a_scheme_a_host_and_a_port() {
        for (one, other, is_same) in [
            ("https://example.com/a", "https://EXAMPLE.com:443/b?x", true),
            ("git@example.com:org/a", "ssh://git@example.com:22/org/b", true),
            ("https://example.com/a", "https://example.com:8443/a", false),
            ("https://example.com/a", "http://example.com/a", false),
            ("https://example.com/a", "https://example.com.evil.net/a", false),
            ("git@example.com:a", "git@evil.net:a", false),
        ] {
            assert_eq!(rules::origin(one) == rules::origin(other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn g10_names_are_labels_that_leave_room_for_what_the_agent_adds() {
        for good in ["a", "shop", "cluster-config", &"x".repeat(50)] {
            assert!(SourceControlConfigurations.check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Shop", "-a", "a-", "a.b", "a_b", "ä", &"x".repeat(51), "a b"] {
            assert!(SourceControlConfigurations.check_name(bad).is_err(), "{bad}");
        }
    }
}
