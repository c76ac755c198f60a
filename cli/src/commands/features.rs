//! `towline enable-features` and `disable-features` (docs/features.md K9).

use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::{
    CommonArgs,
    clusters::{DETAILS, NamedCluster, rewrite, with_group},
    confirm,
    connect::{CatalogueArgs, TypedExtensions, Update, update_agents},
};
use crate::{
    api::{Api, WaitArgs},
    context::Context,
    failure::{Failure, Outcome},
    kubernetes::KubeArgs,
    output,
    terminal::say,
};

/// Which features, and of which cluster.
#[derive(Debug, clap::Args)]
pub struct FeaturesArgs {
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which features
    #[arg(long, value_enum, required = true, num_args = 1.., value_delimiter = ',', value_name = "FEATURE")]
    pub features: Vec<Feature>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Where the agents are, for extensions.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// How long to wait for agents that change.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A feature of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Feature {
    /// People reach the cluster through the gateway.
    ClusterConnect,
    /// Roles of the gateway decide each call.
    AzureRbac,
    /// Helm charts of the catalogue are installed; the kubeconfig has to reach the cluster itself.
    Extensions,
    /// The agents answer the apiserver about tokens and rights; the kubeconfig has to reach the cluster itself.
    Guard,
}

/// Turns them on or off.
pub async fn turn(args: FeaturesArgs, catalogue: &CatalogueArgs, on: bool) -> Outcome {
    let changes = |feature| args.features.contains(&feature).then_some(on);
    let (changes_extensions, guard) = (args.features.contains(&Feature::Extensions), changes(Feature::Guard));
    let extensions = TypedExtensions::read(changes(Feature::Extensions), catalogue)?;
    if !changes_extensions && !extensions.is_nothing() {
        return Err(Failure::usage(anyhow!("a catalogue is for --features extensions")));
    }
    if guard == Some(false) {
        let why = format!(
            "Take guard out of {}? An apiserver that was started with its files no longer knows the gateway's users; start it without them.",
            args.cluster.name
        );
        confirm(&why, args.yes).await?;
    }
    if !on && changes_extensions {
        let stays = format!(
            "Take extension-manager out of {}? What it installed stays, and is no longer upgraded or removed.",
            args.cluster.name
        );
        confirm(&stays, args.yes).await?;
    }
    if !on && args.features.contains(&Feature::ClusterConnect) {
        confirm(&format!("Block all access to {} through the gateway?", args.cluster.name), args.yes).await?;
    }
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    if changes_extensions || guard.is_some() {
        let update = Update::of_features(&args.kube, guard, extensions, args.wait.wait());
        update_agents(update, &context, &id).await?;
    }
    let shown = rewrite(&Api::of(&context)?, &id, |cluster| {
        for feature in &args.features {
            match feature {
                // Only the cluster knows: who has the gateway does not turn it on.
                Feature::Extensions | Feature::Guard => {}
                Feature::AzureRbac => cluster["properties"]["aadProfile"]["enableAzureRBAC"] = on.into(),
                Feature::ClusterConnect => set_agentry(cluster, "cluster-connect", on),
            }
        }
    })
    .await?;
    if on && args.features.contains(&Feature::AzureRbac) {
        say("hint: the cluster must be told to ask roles and assignments too: towline connect ... --azure-rbac (once)");
    }
    if guard == Some(true) {
        say("hint: start the apiserver with the files of Secret towline-guard-manifests in kube-system: docs/guard.md");
        if shown["properties"]["aadProfile"]["enableAzureRBAC"] != true {
            say(
                "hint: roles and assignments decide nothing in this cluster yet, and guard has no opinion of what users may do: towline connect ... --azure-rbac --guard",
            );
        }
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
