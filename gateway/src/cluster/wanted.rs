//! What the resource says of its cluster's agents: features and version. The gateway holds to it,
//! and agents ask for it (`types::agent_api::Desired`).

use serde_json::{Map, Value};
use types::api::ErrorDetail;

use super::upgrade::{self, Noted};
use crate::{store::resources::Stored, stored::properties};

/// The feature that lets users through; its setting `enabled` is `"true"` or `"false"`.
pub const CLUSTER_CONNECT: &str = "cluster-connect";

/// What is wanted of a cluster's agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The revision of the resource that says so. Of two that differ in nothing else the older one is kept.
    pub revision: i64,
    /// Whether users may come through.
    pub cluster_connect: bool,
    /// Whether calls are decided by roles and assignments.
    pub azure_rbac: bool,
    /// The version that agents should have.
    pub agent_version: Option<String>,
    /// Whether the gateway chooses that version; none of a cluster that has no resource.
    pub auto_upgrade: Option<bool>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { revision: 0, cluster_connect: true, azure_rbac: false, agent_version: None, auto_upgrade: None }
    }
}

impl Wanted {
    /// Of a kept resource. A private link switches cluster connect off, as in Azure.
    pub fn of(stored: &Stored) -> Self {
        let none = Map::new();
        let properties = stored.body.as_object().and_then(properties).unwrap_or(&none);
        let within = |object: &str, name: &str| properties.get(object).and_then(|object| object.get(name));
        let private = properties.get("privateLinkState").is_some_and(|state| state == "Enabled");
        let is_automatic = upgrade::is_automatic(properties);
        let off = setting(properties).is_some_and(|(_, value)| value.eq_ignore_ascii_case("false"));
        Self {
            revision: stored.revision,
            cluster_connect: !private && !off && !stored.is_deleting(),
            azure_rbac: within("aadProfile", "enableAzureRBAC").is_some_and(|on| *on == true),
            agent_version: if is_automatic {
                Noted::of(properties).target
            } else {
                upgrade::desired(properties).map(str::to_owned)
            },
            auto_upgrade: Some(is_automatic),
        }
    }

    /// This one, or `known` if it says the same: its revision is when that began.
    #[must_use]
    pub fn or_known(self, known: Option<&Self>) -> Self {
        let revision = known.filter(|known| Self { revision: known.revision, ..self.clone() } == **known);
        Self { revision: revision.map_or(self.revision, |known| known.revision), ..self }
    }
}

/// Where cluster connect is switched, and to what: the last entry counts.
fn setting(properties: &Map<String, Value>) -> Option<(usize, &str)> {
    let entries = properties.get("arcAgentryConfigurations")?.as_array()?;
    let named = |entry: &Value| {
        entry.get("feature").and_then(Value::as_str).is_some_and(|name| name.eq_ignore_ascii_case(CLUSTER_CONNECT))
    };
    let (at, entry) = entries.iter().enumerate().rfind(|(_, entry)| named(entry))?;
    Some((at, entry.get("settings")?.get("enabled")?.as_str()?))
}

/// A switch that is neither on nor off would be read as one of them.
pub fn check(properties: &Map<String, Value>) -> Result<(), ErrorDetail> {
    match setting(properties) {
        Some((at, value)) if !["true", "false"].iter().any(|word| word.eq_ignore_ascii_case(value)) => {
            let message =
                format!("The setting 'enabled' of feature '{CLUSTER_CONNECT}' must be \"true\" or \"false\".");
            let target = format!("properties.arcAgentryConfigurations[{at}].settings.enabled");
            Err(ErrorDetail::new("InvalidRequestContent", message).at(target))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(properties: Value) -> Wanted {
        Wanted::of(&Stored {
            key: String::new(),
            kind: String::new(),
            parent: String::new(),
            id: String::new(),
            revision: 7,
            body: json!({"properties": properties}),
            protected: None,
        })
    }

    fn switched(name: &str, enabled: &str) -> Value {
        json!({"arcAgentryConfigurations": [{"feature": name, "settings": {"enabled": enabled}}]})
    }

    #[test]
    fn k9_cluster_connect_is_on_unless_it_is_switched_off() {
        for (properties, on) in [
            (json!({}), true),
            (switched("cluster-connect", "false"), false),
            (switched("Cluster-Connect", "False"), false),
            (switched("cluster-connect", "true"), true),
            (switched("custom-locations", "false"), true),
            (json!({"privateLinkState": "Enabled"}), false),
            (json!({"privateLinkState": "Disabled"}), true),
            (json!({"provisioningState": "Deleting"}), false),
        ] {
            assert_eq!(wanted(properties.clone()).cluster_connect, on, "{properties}");
        }
        let last = json!({"arcAgentryConfigurations": [
            {"feature": "cluster-connect", "settings": {"enabled": "false"}},
            {"feature": "cluster-connect", "settings": {"enabled": "true"}},
        ]});
        assert!(wanted(last).cluster_connect);
        for (value, fine) in [("true", true), ("FALSE", true), ("off", false), ("", false)] {
            let properties = switched("cluster-connect", value);
            assert_eq!(check(properties.as_object().unwrap()).is_ok(), fine, "{value}");
        }
    }

    #[test]
    fn u2_a_person_or_the_gateway_says_which_version_agents_should_have_never_both() {
        let properties = |auto: &str| {
            json!({
                "arcAgentProfile": {"agentAutoUpgrade": auto, "desiredAgentVersion": "0.2.1"},
                "miscellaneousProperties": {"targetAgentVersion": "0.2.2"},
            })
        };
        assert_eq!(wanted(properties("Enabled")).agent_version.as_deref(), Some("0.2.2"));
        assert_eq!(wanted(properties("Disabled")).agent_version.as_deref(), Some("0.2.1"));
        let auto_upgrade = |auto: &str| wanted(properties(auto)).auto_upgrade;
        assert_eq!((auto_upgrade("Enabled"), auto_upgrade("Disabled")), (Some(true), Some(false)));
    }

    #[test]
    fn what_says_the_same_keeps_its_revision() {
        let wished = json!({"aadProfile": {"enableAzureRBAC": true}, "miscellaneousProperties": {"targetAgentVersion": "1.2.0"}});
        let now = wanted(wished);
        assert_eq!((now.azure_rbac, now.agent_version.as_deref()), (true, Some("1.2.0")));
        let known = Wanted { revision: 3, ..now.clone() };
        assert_eq!(now.clone().or_known(Some(&known)), known);
        let other = Wanted { azure_rbac: false, ..known };
        assert_eq!(now.clone().or_known(Some(&other)), now);
        assert_eq!(now.clone().or_known(None), now);
    }
}
