//! `towline update`: changes a connected cluster, and what its agents were told.

use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::{
    CommonArgs,
    clusters::{DETAILS, NamedCluster, with_group},
    connect::{AgentProxyArgs, Update, update_agents},
    tags::TagArgs,
    upgrade::refuse_beside_automatic,
};
use crate::{
    api::{Api, Wait, WaitArgs, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    kubernetes::KubeArgs,
    output,
};

/// Change a connected cluster: tags, what it runs on
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The connected cluster, by name and resource group.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Tags that replace those of the resource.
    #[command(flatten)]
    pub tags: TagArgs,
    /// The distribution, such as k3s
    #[arg(long, value_name = "NAME")]
    pub distribution: Option<String>,
    /// Its version
    #[arg(long, value_name = "VERSION")]
    pub distribution_version: Option<String>,
    /// Whether agents may be upgraded by themselves
    #[arg(long, value_name = "true|false")]
    pub auto_upgrade: Option<bool>,
    /// How its agents get to the gateway.
    #[command(flatten)]
    pub proxy: AgentProxyArgs,
    /// Give its agents this program's version; while they upgrade themselves only with --auto-upgrade false
    #[arg(long)]
    pub upgrade: bool,
    /// Where the agents are, for changes of their proxy and version.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// How long to wait for agents that change.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

pub async fn run(args: Args) -> Outcome {
    let mut body = json!({});
    if let Some(tags) = args.tags.json() {
        body["tags"] = tags;
    }
    for (name, value) in [("distribution", &args.distribution), ("distributionVersion", &args.distribution_version)] {
        if let Some(value) = value {
            body["properties"][name] = value.as_str().into();
        }
    }
    if let Some(on) = args.auto_upgrade {
        body["properties"]["arcAgentProfile"]["agentAutoUpgrade"] = if on { "Enabled" } else { "Disabled" }.into();
    }
    let agents = Update::read(&args.kube, &args.proxy, args.upgrade, args.wait.wait())?;
    if body == json!({}) && agents.is_none() {
        return Err(Failure::usage(anyhow!("nothing to change was given"))
            .hint("such as --tags team=web; towline update --help"));
    }
    let context = Context::open(&args.common.context).await?;
    let (api, id) = (Api::of(&context)?, context.cluster(&args.cluster.resource_group, &args.cluster.name)?);
    let target = at(&id, versions::CLUSTERS);
    if args.upgrade && args.auto_upgrade != Some(false) {
        let command = "towline update --upgrade";
        refuse_beside_automatic(&api.get(&target).await?, command, "the same command with --auto-upgrade false")?;
    }
    let mut shown = Value::Null;
    let change = async || -> Outcome<Value> {
        let answer = api.patch(&target, &body).await?;
        api.followed(answer, &target, &format!("updating {}", args.cluster.name), Wait::default()).await
    };
    // Before their version is changed by hand they must not change it by themselves.
    let goes_first = args.auto_upgrade == Some(false);
    if goes_first {
        shown = change().await?;
    }
    if let Some(agents) = agents {
        update_agents(agents, &context, &id).await?;
    }
    if !goes_first && body != json!({}) {
        shown = change().await?;
    }
    if shown.is_null() {
        shown = api.get(&target).await?;
    }
    output::print(&with_group(shown), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}
