//! `towline list`: connected clusters.

use std::process::ExitCode;

use serde_json::Value;

use super::{CommonArgs, clusters::with_group, names};
use crate::{
    api::{Api, at, versions},
    context::{CLUSTERS, Context},
    failure::Outcome,
    output::{self, Column},
};

/// What is shown of each cluster of a list.
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("Location", "/location"),
    ("Status", "/properties/connectivityStatus"),
    ("LastSeen", "/properties/lastConnectivityTime"),
    ("Kubernetes", "/properties/kubernetesVersion"),
    ("Nodes", "/properties/totalNodeCount"),
    ("Distribution", "/properties/distribution"),
    ("Agent", "/properties/agentVersion"),
    ("AgentIs", "/properties/miscellaneousProperties/agentVersionState"),
    ("Tags", "/tags"),
];

/// Connected clusters
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let scope = match &args.resource_group {
        Some(group) => context.group(group)?,
        None => context.subscription()?,
    };
    let target = at(format!("{scope}/providers/{}/{}", CLUSTERS.0, CLUSTERS.1), versions::CLUSTERS);
    let rows: Vec<Value> = Api::of(&context)?.list(&target).await?.into_iter().map(with_group).collect();
    output::print_list(rows, &args.common.output, COLUMNS, "no connected clusters; towline connect makes one")?;
    Ok(ExitCode::SUCCESS)
}
