//! `towline enable-features` and `disable-features` (docs/features.md K9).

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    clusters::{DETAILS, rewrite, with_group},
    confirm,
};
use crate::{
    api::Api,
    args::{Feature, FeaturesArgs},
    context::Context,
    failure::Outcome,
    output,
    terminal::say,
};

/// Turns them on or off.
pub async fn run(args: FeaturesArgs, on: bool) -> Outcome {
    if !on && args.features.contains(&Feature::ClusterConnect) {
        confirm(&format!("Let nobody reach {} through the gateway any more?", args.cluster.name), args.yes).await?;
    }
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let shown = rewrite(&Api::of(&context)?, &id, |cluster| {
        for feature in &args.features {
            match feature {
                Feature::AzureRbac => cluster["properties"]["aadProfile"]["enableAzureRBAC"] = on.into(),
                Feature::ClusterConnect => set_agentry(cluster, "cluster-connect", on),
            }
        }
    })
    .await?;
    if on && args.features.contains(&Feature::AzureRbac) {
        say("hint: the cluster must be told to ask roles and assignments too: towline connect ... --azure-rbac (once)");
    }
    output::print(&with_group(shown), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}

/// `arcAgentryConfigurations` is a list of features with settings that are texts; others in it stay.
fn set_agentry(cluster: &mut Value, feature: &str, on: bool) {
    let list = &mut cluster["properties"]["arcAgentryConfigurations"];
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    let word = if on { "true" } else { "false" };
    match list.iter_mut().find(|entry| entry["feature"].as_str().is_some_and(|is| is.eq_ignore_ascii_case(feature))) {
        Some(entry) if entry["settings"].is_object() => entry["settings"]["enabled"] = word.into(),
        Some(entry) => entry["settings"] = json!({"enabled": word}),
        None => list.push(json!({"feature": feature, "settings": {"enabled": word}})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k9_a_feature_is_switched_and_what_is_beside_it_stays() {
        let mut cluster = json!({"properties": {}});
        set_agentry(&mut cluster, "cluster-connect", false);
        let list = &cluster["properties"]["arcAgentryConfigurations"];
        assert_eq!(*list, json!([{"feature": "cluster-connect", "settings": {"enabled": "false"}}]));
        cluster["properties"]["arcAgentryConfigurations"] =
            json!([{"feature": "x"}, {"feature": "Cluster-Connect", "settings": {"enabled": "false", "y": "z"}}]);
        set_agentry(&mut cluster, "cluster-connect", true);
        let list = &cluster["properties"]["arcAgentryConfigurations"];
        assert_eq!(list[1]["settings"], json!({"enabled": "true", "y": "z"}));
        assert_eq!(list.as_array().unwrap().len(), 2);
    }
}
