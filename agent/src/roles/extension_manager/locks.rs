//! Settings that the gateway may not give: those that a chart locks, and those that the operator of the cluster does. The
//! gateway chooses all others, so these are what a stolen gateway cannot touch.

use std::collections::BTreeMap;

use catalogue::index::Release as Offered;

use super::{state::Problem, values};
use crate::config::{Extensions, LockedSetting};

/// What a chart is told of the agents ([`super::agents`]), as a key.
const AGENTS: &str = "global.towline";

/// Whether settings keep away from all that is locked.
///
/// # Errors
/// Which setting does not. Nothing of its value is said.
pub fn judge(
    extension_type: &str,
    offered: &Offered,
    operator: &Extensions,
    settings: &BTreeMap<String, String>,
) -> Result<(), Problem> {
    let of_chart = offered.locked_settings.iter().map(|key| (key.as_str(), "the chart"));
    let of_agents = offered.agent_values.then_some((AGENTS, "the chart"));
    let own = operator.locked(extension_type);
    let of_operator = own.map(|one| (one.key.as_str(), "the operator of this cluster (locked_settings)"));
    let locked: Vec<_> = of_chart.chain(of_agents).chain(of_operator).collect();
    for key in settings.keys() {
        let Some((at, by)) = locked.iter().find(|(at, _)| values::touches(key, at)) else { continue };
        let message = format!("the setting {key:?} cannot be given: {by} has locked {at:?}, and what is below it");
        return Err(Problem::stays("SettingLocked", message));
    }
    Ok(())
}

/// The settings with the values that the operator gave.
pub fn fill_in(extension_type: &str, operator: &Extensions, settings: &mut BTreeMap<String, String>) {
    for LockedSetting { key, value, .. } in operator.locked(extension_type) {
        if let Some(value) = value {
            settings.insert(key.clone(), value.clone());
        }
    }
}
