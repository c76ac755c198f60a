//! `towline show`: one connected cluster.

use std::process::ExitCode;

use super::{
    CommonArgs,
    clusters::{DETAILS, NamedCluster, with_group},
};
use crate::{
    api::{Api, at, versions},
    context::Context,
    failure::Outcome,
    output,
};

/// One connected cluster
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The connected cluster, by name and resource group.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let found = Api::of(&context)?.get(&at(id, versions::CLUSTERS)).await?;
    output::print(&with_group(found), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}
