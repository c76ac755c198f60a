//! What is known of an upgrade of a cluster's agents: what the gateway noted in the resource
//! (`properties.miscellaneousProperties`, which clients read and never write), and what the agents tell of it.

use serde_json::{Map, Value};
use types::agent_api::{Upgrade, upgrade_states};

/// The type of the catalogue whose versions are the agents'.
pub const TYPE: &str = types::agent_api::AGENTS_TYPE;
/// The property of the resource that has what the gateway noted.
pub const PROPERTY: &str = "miscellaneousProperties";
/// The version that the agents are to have by themselves.
const TARGET: &str = "targetAgentVersion";
/// Since when, RFC 3339.
const SINCE: &str = "targetAgentVersionSince";
/// Since when they are at work on it, RFC 3339.
const BEGUN: &str = "targetAgentVersionBegun";
/// A version that these agents do not get again: an upgrade to it was rolled back, failed, or never began.
const LEFT: &str = "failedAgentVersion";
/// The cause for [`LEFT`].
const WHY: &str = "failedAgentVersionReason";

/// The property of the resource about its agents, and in it the version that a person wants.
const PROFILE: &str = "arcAgentProfile";
const DESIRED: &str = "desiredAgentVersion";

/// How far an upgrade is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Something must be done before it begins.
    Waiting,
    /// The upgrade has begun and has not ended.
    Running,
    /// The agents have the new version.
    Succeeded,
    /// The agents have the old version again.
    RolledBack,
    /// Neither came to an end.
    Failed,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Running, Self::Succeeded, Self::RolledBack, Self::Failed];

    /// The word in messages, events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => upgrade_states::WAITING,
            Self::Running => upgrade_states::RUNNING,
            Self::Succeeded => upgrade_states::SUCCEEDED,
            Self::RolledBack => upgrade_states::ROLLED_BACK,
            Self::Failed => upgrade_states::FAILED,
        }
    }

    /// Of what agents told; a word that is not known counts as running.
    pub fn of(upgrade: &Upgrade) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == upgrade.state).unwrap_or(Self::Running)
    }

    /// Whether the agents do not get this version again.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::RolledBack | Self::Failed)
    }
}

/// What is remembered as told of an upgrade: its version and its state.
pub fn mark(upgrade: &Upgrade) -> String {
    format!("{} {}", upgrade.version, State::of(upgrade).as_str())
}

/// What agents told last of an upgrade, of facts as they are kept.
pub fn told(facts: &Value) -> Option<Upgrade> {
    serde_json::from_value(facts.get("upgrade")?.clone()).ok()
}

/// What the gateway noted of the automatic upgrade of a cluster's agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// The version that they are to have.
    pub target: Option<String>,
    /// Since when, RFC 3339.
    pub since: Option<String>,
    /// Since when they are at work on it, RFC 3339.
    pub begun: Option<String>,
    /// The version that they do not get again.
    pub left: Option<String>,
    /// The cause for `left`.
    pub why: Option<String>,
}

impl Noted {
    /// Of the properties of a kept resource.
    pub fn of(properties: &Map<String, Value>) -> Self {
        let text = |name: &str| {
            let text = properties.get(PROPERTY)?.get(name)?.as_str()?;
            Some(text.to_owned()).filter(|text| !text.is_empty())
        };
        Self { target: text(TARGET), since: text(SINCE), begun: text(BEGUN), left: text(LEFT), why: text(WHY) }
    }

    /// Writes it into the properties of a resource, beside what else is there.
    pub fn keep(&self, properties: &mut Map<String, Value>) {
        let mut all = properties.get(PROPERTY).and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, value) in
            [(TARGET, &self.target), (SINCE, &self.since), (BEGUN, &self.begun), (LEFT, &self.left), (WHY, &self.why)]
        {
            match value {
                Some(value) => drop(all.insert(name.to_owned(), value.as_str().into())),
                None => drop(all.remove(name)),
            }
        }
        if all.is_empty() {
            properties.remove(PROPERTY);
        } else {
            properties.insert(PROPERTY.to_owned(), all.into());
        }
    }

    /// The same without a version that they are to have.
    #[must_use]
    pub fn without_target(&self) -> Self {
        Self { target: None, since: None, begun: None, ..self.clone() }
    }
}

/// Whether the agents of a cluster are upgraded by themselves, by the properties of its resource.
pub fn is_automatic(properties: &Map<String, Value>) -> bool {
    properties.get(PROFILE).and_then(|profile| profile.get("agentAutoUpgrade")).is_none_or(|on| on != "Disabled")
}

/// The version that a person wants the agents to have (`desiredAgentVersion`). It counts while they are not upgraded by
/// themselves.
pub fn desired(properties: &Map<String, Value>) -> Option<&str> {
    let version = properties.get(PROFILE)?.get(DESIRED)?.as_str()?;
    Some(version).filter(|version| !version.is_empty() && !is_automatic(properties))
}

/// Whether what a client sent names a version for the agents.
pub fn names_version(said: Option<&Map<String, Value>>) -> bool {
    said.and_then(|said| said.get(PROFILE)?.get(DESIRED)).is_some()
}

/// Takes the version that a person wants out of the properties of a resource.
pub fn forget_desired(properties: &mut Map<String, Value>) {
    if let Some(profile) = properties.get_mut(PROFILE).and_then(Value::as_object_mut) {
        profile.remove(DESIRED);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn u1_notes_leave_what_else_is_there_and_go_without_a_trace() {
        let mut properties = map(json!({"miscellaneousProperties": {"other": "x"}}));
        let noted = Noted { target: Some("0.3.0".to_owned()), since: Some("t".to_owned()), ..Noted::default() };
        noted.keep(&mut properties);
        assert_eq!(Noted::of(&properties), noted);
        assert_eq!(properties["miscellaneousProperties"]["other"], "x");
        Noted::default().keep(&mut properties);
        assert_eq!(Value::Object(properties), json!({"miscellaneousProperties": {"other": "x"}}));
        let mut properties = map(json!({"a": 1}));
        Noted::default().keep(&mut properties);
        assert_eq!(Value::Object(properties), json!({"a": 1}));
    }

    #[test]
    fn u2_u3_a_version_is_wanted_by_a_person_only_while_auto_upgrade_is_off() {
        for (profile, automatic, wanted) in [
            (json!({}), true, None),
            (json!({"desiredAgentVersion": "0.3.0"}), true, None),
            (json!({"desiredAgentVersion": "0.3.0", "agentAutoUpgrade": "Enabled"}), true, None),
            (json!({"desiredAgentVersion": "0.3.0", "agentAutoUpgrade": "Disabled"}), false, Some("0.3.0")),
            (json!({"desiredAgentVersion": "", "agentAutoUpgrade": "Disabled"}), false, None),
        ] {
            let properties = map(json!({"arcAgentProfile": profile}));
            assert_eq!((is_automatic(&properties), desired(&properties)), (automatic, wanted), "{profile}");
        }
        assert!(is_automatic(&Map::new()));
    }
}
