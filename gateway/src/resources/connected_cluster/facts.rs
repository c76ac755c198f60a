//! What a cluster's agent told of it, as the resource shows it. What a person wrote goes before
//! what an agent found out by heuristics.

use serde_json::{Map, Value, json};
use types::agent_api::{deployments, upgrade_states};

use super::OLD;
use crate::{cluster::upgrade::PROPERTY, skew};

/// What a client says, or this service for it, who does not know.
const UNKNOWN: &str = "generic";

/// Puts facts (a heartbeat's, as it was kept) into shown properties. What the agent does not know stays `null`.
pub fn show(properties: &mut Map<String, Value>, facts: &Value, version: &str) {
    let Some(facts) = facts.as_object() else { return };
    let told = |name: &str| facts.get(name).filter(|value| !value.is_null());
    for name in ["kubernetesVersion", "totalNodeCount", "totalCoreCount", "agentVersion"] {
        if let Some(value) = told(name) {
            properties.insert(name.to_owned(), value.clone());
        }
    }
    let is_unknown = |properties: &Map<String, Value>, name: &str| {
        properties.get(name).is_none_or(|value| value.is_null() || *value == UNKNOWN)
    };
    if let (true, Some(found)) = (is_unknown(properties, "infrastructure"), told("infrastructure")) {
        properties.insert("infrastructure".to_owned(), found.clone());
    }
    if let (true, Some(found)) = (is_unknown(properties, "distribution"), told("distribution")) {
        properties.insert("distribution".to_owned(), found.clone());
    }
    // A version is one of what it is the version of.
    if is_unknown(properties, "distributionVersion")
        && properties.get("distribution") == told("distribution")
        && let Some(found) = told("distributionVersion")
    {
        properties.insert("distributionVersion".to_owned(), found.clone());
    }
    let upgrade = told("upgrade");
    if let Some(agents) = told("agentVersion").and_then(Value::as_str) {
        let mut more = properties.get(PROPERTY).and_then(Value::as_object).cloned().unwrap_or_default();
        more.insert("agentVersionState".to_owned(), skew::judge(agents).as_str().into());
        if let Some(upgrade) = upgrade {
            more.insert("upgradeVersion".to_owned(), upgrade["version"].clone());
            more.insert("upgradeState".to_owned(), upgrade["state"].clone());
        }
        properties.insert(PROPERTY.to_owned(), more.into());
    }
    if version >= OLD {
        let profile = properties.entry("arcAgentProfile").or_insert_with(|| json!({}));
        if let Some(profile) = profile.as_object_mut() {
            let mut errors = told("errors").and_then(Value::as_array).cloned().unwrap_or_default();
            // Somebody has upgraded by hand meanwhile: what failed before is of no interest any more.
            let open = upgrade.filter(|upgrade| Some(&upgrade["version"]) != told("agentVersion"));
            errors.splice(0..0, open.and_then(upgrade_error));
            profile.insert("agentErrors".to_owned(), errors.into());
            profile.insert("agentState".to_owned(), state(facts).into());
        }
    }
}

/// What does not work of an upgrade, as an error of the agents; nothing where all is well.
fn upgrade_error(upgrade: &Value) -> Option<Value> {
    let severity = match upgrade["state"].as_str()? {
        upgrade_states::ROLLED_BACK | upgrade_states::FAILED => "Error",
        upgrade_states::WAITING => "Warning",
        _ => return None,
    };
    let text = |name: &str| upgrade[name].as_str().unwrap_or_default();
    let message =
        format!("upgrade to {}: {} ({}): {}", text("version"), text("state"), text("reason"), text("message"));
    Some(json!({"message": message, "severity": severity, "component": deployments::UPGRADER, "time": upgrade["time"]}))
}

/// A client that sends back what it read has not written what an agent found: that stays unknown, and what is found
/// later is shown. `old` are the properties as they were kept.
pub fn unwrite(properties: &mut Map<String, Value>, old: &Map<String, Value>, facts: &Value) {
    for name in ["distribution", "distributionVersion", "infrastructure"] {
        let found = facts.get(name).filter(|found| !found.is_null());
        let repeats = found.is_some() && properties.get(name) == found;
        let kept = old.get(name);
        if repeats && kept.is_none_or(|kept| kept.is_null() || *kept == UNKNOWN) {
            properties.insert(name.to_owned(), kept.cloned().unwrap_or_default());
        }
    }
}

/// The worst of all roles' states, `None` before any is known.
fn state(facts: &Map<String, Value>) -> Option<&'static str> {
    let roles = facts.get("roles")?.as_object()?;
    let is = |state: &str| roles.values().any(|value| value == state);
    match roles.is_empty() {
        true => None,
        false if is("Failing") => Some("Failing"),
        false if is("Starting") => Some("Starting"),
        false => Some("Running"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(written: Value, facts: Value, version: &str) -> Value {
        let mut properties = written.as_object().unwrap().clone();
        show(&mut properties, &facts, version);
        Value::Object(properties)
    }

    #[test]
    fn m1_m2_what_an_agent_told_is_shown_and_zero_is_a_fact() {
        let facts =
            json!({"kubernetesVersion": "1.36.0", "totalNodeCount": 0, "totalCoreCount": 8, "agentVersion": "1"});
        let properties = shown(json!({"totalNodeCount": null}), facts, "2024-01-01");
        let expected = json!({
            "kubernetesVersion": "1.36.0", "totalNodeCount": 0, "totalCoreCount": 8, "agentVersion": "1",
            "miscellaneousProperties": {"agentVersionState": "Unknown"},
        });
        assert_eq!(properties, expected);
    }

    #[test]
    fn m3_what_a_person_wrote_goes_before_what_an_agent_found() {
        let facts = json!({"distribution": "k3s", "distributionVersion": "1.36", "infrastructure": "aws"});
        let unknown = json!({"distribution": "generic", "infrastructure": "generic"});
        let found = json!({"distribution": "k3s", "distributionVersion": "1.36", "infrastructure": "aws"});
        assert_eq!(shown(unknown, facts.clone(), "2024-01-01"), found);
        let written = json!({"distribution": "openshift", "infrastructure": "azure"});
        assert_eq!(shown(written.clone(), facts.clone(), "2024-01-01"), written);
        let same = shown(json!({"distribution": "k3s", "infrastructure": "azure"}), facts, "2024-01-01");
        assert_eq!(same["distributionVersion"], "1.36");
    }

    #[test]
    fn m5_what_a_limited_agent_may_not_see_stays_null_and_it_says_why() {
        let error = json!({"message": "nodes: forbidden", "severity": "Warning", "component": "c", "time": "t"});
        let facts = json!({"kubernetesVersion": "1.36", "totalNodeCount": null, "errors": [error]});
        let properties = shown(json!({"totalNodeCount": null}), facts, "2026-05-01");
        assert_eq!(properties["totalNodeCount"], Value::Null);
        assert_eq!(properties["arcAgentProfile"]["agentErrors"], json!([error]));
        assert_eq!(properties["arcAgentProfile"]["agentState"], Value::Null);
    }

    #[test]
    fn u1_u4_an_old_version_and_an_upgrade_that_did_not_come_to_its_end_are_shown() {
        let upgrade = |state: &str| json!({"version": "0.3.0", "state": state, "reason": "ImagePull", "message": "no such image", "time": "t"});
        let noted = json!({"miscellaneousProperties": {"targetAgentVersion": "0.3.0"}});
        for (state, severity) in [("RolledBack", "Error"), ("Failed", "Error"), ("Waiting", "Warning")] {
            let facts = json!({"agentVersion": "0.1.0", "upgrade": upgrade(state), "errors": [{"message": "other"}]});
            let properties = shown(noted.clone(), facts, "2026-05-01");
            let expected = json!({
                "targetAgentVersion": "0.3.0", "agentVersionState": "Outdated", "upgradeVersion": "0.3.0",
                "upgradeState": state,
            });
            assert_eq!(properties["miscellaneousProperties"], expected);
            let errors = &properties["arcAgentProfile"]["agentErrors"];
            assert_eq!(
                (&errors[0]["severity"], &errors[0]["component"]),
                (&json!(severity), &json!(deployments::UPGRADER))
            );
            let message = errors[0]["message"].as_str().unwrap();
            assert_eq!(message, format!("upgrade to 0.3.0: {state} (ImagePull): no such image"));
            assert_eq!(errors[1], json!({"message": "other"}));
        }
        for state in ["Succeeded", "RolledBack"] {
            let facts = json!({"agentVersion": "0.3.0", "upgrade": upgrade(state)});
            let fine = shown(noted.clone(), facts, "2026-05-01");
            assert_eq!(fine["arcAgentProfile"]["agentErrors"], json!([]), "{state} before, and the version runs now");
            assert_eq!(fine["miscellaneousProperties"]["agentVersionState"], "Newer");
        }
    }

    #[test]
    fn d7_the_worst_role_is_the_agents_state_and_old_versions_do_not_know_it() {
        for (roles, state) in [
            (json!({"a": "Running", "b": "Failing", "c": "Starting"}), json!("Failing")),
            (json!({"a": "Running", "c": "Starting"}), json!("Starting")),
            (json!({"a": "Running"}), json!("Running")),
            (json!({}), Value::Null),
        ] {
            let profile = json!({"arcAgentProfile": {"agentAutoUpgrade": "Enabled"}});
            let properties = shown(profile.clone(), json!({"roles": roles}), "2026-05-01");
            assert_eq!(properties["arcAgentProfile"]["agentState"], state, "{roles}");
            assert_eq!(shown(profile.clone(), json!({"roles": roles}), "2024-01-01"), profile);
        }
    }
}
