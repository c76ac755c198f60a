//! `towline delete`: deletes a cluster's resource and removes its agents, and leaves the cluster as it was before
//! (docs/features.md I6).

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use http::StatusCode;
use serde_json::Value;
use types::api::{ResourceId, id::is_same};

use super::{
    CommonArgs, clusters::NamedCluster, confirm, extension::EXTENSIONS, flux::CONFIGURATIONS, interrupt::Interrupt,
    steps::Steps,
};
use crate::{
    api::{Api, ApiError, Wait, at, versions},
    context::Context,
    failure::{Failure, Hint, Outcome},
    kubernetes::{
        KubeArgs, Kubernetes, Place,
        installed::{Installed, is_elsewhere},
        place::NAMESPACE,
        turn::Turn,
    },
    terminal::say,
};

/// What there is to delete.
struct Found {
    api: Api,
    id: ResourceId,
    resource: Option<Value>,
    /// The cluster with its agents; none where they are not removed.
    cluster: Option<(Kubernetes, Installed)>,
    /// Whether there may be agents that are not removed.
    leaves_agents: bool,
}

/// Delete a connected cluster, and remove its agents
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The connected cluster to delete, by name and resource group.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// Delete the resource also where its agents cannot be removed, and remove what keeps them from going away
    #[arg(long)]
    pub force: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Do not wait until everything is gone
    #[arg(long)]
    pub no_wait: bool,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let mut steps = Steps::default();
    let found = look(&args, &context, &mut steps).await?;
    if found.resource.is_none() && found.cluster.is_none() {
        say(&format!("there is no connected cluster {}, and no agents of it in this cluster", args.cluster.name));
        return Ok(ExitCode::SUCCESS);
    }
    let agents = found.cluster.as_ref().map_or_else(
        || "; agents are not removed".to_owned(),
        |(cluster, there)| format!(" and remove its agents from {} (namespace {})", cluster.context, there.namespace),
    );
    // Who is not asked has no time to do something first.
    let advice = |what: &str| match args.yes {
        true => "to remove them later, connect the cluster again, which prints how".to_owned(),
        false => format!(
            "remove them first: towline {what} delete -g {} -c {} -n NAME",
            args.cluster.resource_group, args.cluster.name
        ),
    };
    let configurations = configurations(&found).await;
    if !configurations.is_empty() {
        say(&format!(
            "Flux continues to apply these configurations, which can no longer be managed from here: {}; {}",
            configurations.join(", "),
            advice("flux")
        ));
    }
    let extensions = extensions(&found).await?;
    if !extensions.is_empty() {
        say(&format!(
            "these extensions stay in the cluster as helm releases, which can no longer be managed from here: {}; {}",
            extensions.join(", "),
            advice("extension")
        ));
    }
    confirm(&format!("Delete the connected cluster {}{agents}?", args.cluster.name), args.yes).await?;
    let mut interrupt = Interrupt::listen()?;
    let mut turn = match &found.cluster {
        Some((cluster, there)) => Some(Turn::new(cluster, &there.namespace, format!("delete {}", args.cluster.name))?),
        None => None,
    };
    let ended = interrupt.unless_heard(all(&found, &args, turn.as_mut(), &mut steps)).await;
    if let Some(turn) = &mut turn {
        turn.give_up().await;
    }
    drop(steps);
    match ended {
        Some(ended) => ended.map(|()| ExitCode::SUCCESS),
        None => {
            say("interrupted: run the same command again to continue from here");
            Err(Failure::interrupted())
        }
    }
}

/// Names of the cluster's flux configurations. Where they cannot be read there is nothing to say.
async fn configurations(found: &Found) -> Vec<String> {
    if found.resource.is_none() {
        return Vec::new();
    }
    let target = at(format!("{}/providers/{CONFIGURATIONS}", found.id), versions::FLUX);
    let listed = found.api.list(&target).await.unwrap_or_default();
    listed.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect()
}

/// Names of the cluster's extensions: deleting the cluster takes away who looks after them. Where they cannot be read
/// there is nothing to say.
async fn extensions(found: &Found) -> Outcome<Vec<String>> {
    if found.resource.is_none() {
        return Ok(Vec::new());
    }
    let target = at(format!("{}/providers/{EXTENSIONS}", found.id), versions::EXTENSIONS);
    let listed = found.api.list(&target).await.unwrap_or_default();
    let name =
        |one: &Value| Some(format!("{} ({})", one["name"].as_str()?, one["properties"]["extensionType"].as_str()?));
    Ok(listed.iter().filter_map(name).collect())
}

/// The turn comes first: a run that has to wait has deleted nothing.
async fn all(found: &Found, args: &Args, turn: Option<&mut Turn>, steps: &mut Steps) -> Outcome<()> {
    if let (Some((cluster, there)), Some(turn)) = (&found.cluster, turn) {
        take(turn, cluster, &there.namespace, args.force).await?;
    }
    if found.resource.is_some() {
        delete(found, args.no_wait).await?;
    }
    if found.leaves_agents {
        say(&format!(
            "running agents are left in their cluster and can no longer connect; remove them from there: towline delete --force -n {} -g {} --kube-config FILE",
            args.cluster.name, args.cluster.resource_group
        ));
    }
    let Some((cluster, there)) = &found.cluster else { return Ok(()) };
    let removal = async { Outcome::Ok(cluster.uninstall(&there.namespace, !args.no_wait, args.force).await?) };
    let left = steps.run("Removing the agents", removal).await.map_err(|failure| {
        failure.hint(format!(
            "run it again, with --force if something does not go away: towline delete --force -n {} -g {}",
            args.cluster.name, args.cluster.resource_group
        ))
    })?;
    if let Some(first) = left.first() {
        say(&format!("namespace {} stays: it holds what others made, such as {first}", there.namespace));
    }
    Ok(())
}

/// No other run is in the middle of installing what is removed here. A namespace that is on its way out takes no Lease,
/// and nothing else either.
async fn take(turn: &mut Turn, cluster: &Kubernetes, namespace: &str, force: bool) -> Outcome<()> {
    let there = cluster.get(&Place::of(NAMESPACE, namespace)).await?;
    if there.is_none_or(|there| !there["metadata"]["deletionTimestamp"].is_null()) {
        return Ok(());
    }
    match turn.take().await {
        Err(error) if force => {
            say(&format!("warning: {error:#}"));
            Ok(())
        }
        taken => Ok(taken?),
    }
}

async fn delete(found: &Found, no_wait: bool) -> Outcome<()> {
    let answer = found.api.delete(&at(&found.id, versions::CLUSTERS)).await?;
    found.api.follow(&answer, "deleting the resource", Wait { none: no_wait, ..Wait::default() }).await
}

async fn look(args: &Args, context: &Context, steps: &mut Steps) -> Outcome<Found> {
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let api = Api::of(context)?;
    let resource = steps.run("Looking for the resource", find(&api, &id)).await?;
    if resource.as_ref().is_some_and(|there| there["kind"] == "ProvisionedCluster") {
        let error = anyhow!("{} is a provisioned cluster: it is deleted by what provisioned it", id.name());
        return Err(error.into());
    }
    let mut leaves_agents = false;
    let cluster = match steps.run("Looking for its agents", agents(args, context, &id)).await {
        Ok(cluster) => cluster,
        Err(failure) if args.force => {
            say(&format!("warning: agents are not removed: {:#}", failure.into_error()));
            leaves_agents = true;
            None
        }
        Err(failure) => return Err(failure),
    };
    let connected = resource.as_ref().is_some_and(|one| one["properties"]["connectivityStatus"] == "Connected");
    if cluster.is_none() && connected && !args.force {
        let error = anyhow!(
            "The current context in the kubeconfig file does not correspond to the connected cluster resource specified: {} is connected, and this cluster has no agents of it",
            id.name()
        );
        return Err(Failure::from(error).hint(
            "choose its kubeconfig: --kube-config FILE, --kube-context NAME; --force deletes the resource alone",
        ));
    }
    Ok(Found { leaves_agents: leaves_agents || cluster.is_none() && connected, api, id, resource, cluster })
}

async fn find(api: &Api, id: &ResourceId) -> Outcome<Option<Value>> {
    match api.find(&at(id, versions::CLUSTERS)).await {
        Ok(found) => Ok(found.map(|answer| answer.body)),
        // Not even its group: there is nothing of it.
        Err(failure) if ApiError::behind(&failure).is_some_and(|error| error.status == StatusCode::NOT_FOUND) => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

async fn agents(args: &Args, context: &Context, id: &ResourceId) -> Outcome<Option<(Kubernetes, Installed)>> {
    let kube = &args.kube;
    let alone = || "--force deletes the resource alone; agents that run stop, and stay where they are".to_owned();
    let cluster = Kubernetes::open(kube.kube_config.as_deref(), kube.kube_context.as_deref()).await.hint(alone)?;
    if cluster.leads_through_a_gateway().await {
        let error = anyhow!("deleting is not supported when using the Cluster Connect kubeconfig ({})", cluster.server);
        return Err(Failure::usage(error).hint("use a kubeconfig that reaches the cluster itself: --kube-config FILE"));
    }
    let there = cluster
        .installed()
        .await
        .with_context(|| format!("cannot look for agents in the cluster of context {}", cluster.context));
    let there = there.hint(alone)?;
    let Some(there) = there else { return Ok(None) };
    if !is_same(&there.cluster_id, id.as_str()) {
        let choose = "choose the kubeconfig of the cluster: --kube-config FILE, --kube-context NAME";
        return Err(is_elsewhere(&there.cluster_id, choose));
    }
    // The same names at another gateway are another cluster's.
    let gateway = context.account();
    if !there.urls.is_empty() && !there.is_at(&[gateway.gateway.clone(), gateway.audience.clone()]) && !args.force {
        let error =
            anyhow!("the agents in namespace {} belong to another gateway: {}", there.namespace, there.urls.join(", "));
        return Err(Failure::from(error)
            .hint("use an account of that gateway: --account NAME; --force removes them all the same"));
    }
    if !there.is_ours() && !args.force {
        let error = anyhow!("the agents in namespace {} were installed by {}", there.namespace, there.managed_by);
        return Err(Failure::from(error).hint(format!(
            "remove them first: helm --namespace {} uninstall RELEASE; --force removes them without helm",
            there.namespace
        )));
    }
    Ok(Some((cluster, there)))
}
