//! `towline flux source-control`: configurations of the time of Flux 1 (docs/features.md G10), which az lists, shows and
//! deletes too, and creates no more.

use ::types::api::ResourceId;
use anyhow::Context as _;
use clap::Subcommand;
use http::StatusCode;

use super::{
    super::{
        CommonArgs, confirm,
        on_cluster::{OnCluster, is_missing},
    },
    NamedConfiguration, Waiting,
};
use crate::{
    api::{Api, ResourceType, TimedOut, Wait, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column},
    terminal::say,
};

/// The provider and the type.
pub const CONFIGURATIONS: ResourceType =
    ResourceType { provider: "Microsoft.KubernetesConfiguration", name: "sourceControlConfigurations" };
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("Namespace", "/properties/operatorNamespace"),
    ("Repository", "/properties/repositoryUrl"),
    ("Compliance", "/properties/complianceStatus/complianceState"),
    ("State", "/properties/provisioningState"),
    ("Message", "/properties/complianceStatus/message"),
];
const DETAILS: &[Column] = &[
    ("Name", "/name"),
    ("Id", "/id"),
    ("Namespace", "/properties/operatorNamespace"),
    ("Scope", "/properties/operatorScope"),
    ("Repository", "/properties/repositoryUrl"),
    ("Parameters", "/properties/operatorParams"),
    ("State", "/properties/provisioningState"),
    ("Compliance", "/properties/complianceStatus/complianceState"),
    ("Applied", "/properties/complianceStatus/lastConfigApplied"),
    ("Level", "/properties/complianceStatus/messageLevel"),
    ("Message", "/properties/complianceStatus/message"),
    ("PublicKey", "/properties/repositoryPublicKey"),
];

/// `towline flux source-control <action>`.
#[derive(Debug, Subcommand)]
pub enum SourceControlAction {
    /// The source control configurations of a cluster
    List {
        /// Of which cluster.
        #[command(flatten)]
        cluster: OnCluster,
    },
    /// One of them
    Show {
        #[command(flatten)]
        configuration: NamedConfiguration,
    },
    /// Delete a source control configuration
    Delete {
        #[command(flatten)]
        configuration: NamedConfiguration,
        /// Delete the resource alone and at once, whether or not the cluster can do its part
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: Waiting,
    },
}

/// `towline flux source-control <action>`.
pub async fn run(action: SourceControlAction, common: &CommonArgs) -> Outcome<()> {
    let context = Context::open(&common.context).await?;
    let api = Api::of(&context)?;
    match action {
        SourceControlAction::List { cluster } => {
            let target = at(format!("{}/providers/{CONFIGURATIONS}", cluster.id(&context)?), versions::SOURCE_CONTROL);
            let rows = api.list(&target).await?;
            output::print_list(rows, &common.output, COLUMNS, "no source control configurations")
        }
        SourceControlAction::Show { configuration } => {
            let target = target(&configuration, &configuration.on.id(&context)?)?;
            let shown = api.get(&target).await.map_err(|failure| advised(failure, &configuration.on))?;
            output::print(&shown, &common.output, DETAILS)
        }
        SourceControlAction::Delete { configuration, force, yes, wait } => {
            let NamedConfiguration { name, on } = &configuration;
            let target = target(&configuration, &on.id(&context)?)?;
            confirm(&format!("Delete the source control configuration {name} of {}?", on.cluster), yes).await?;
            let forced = if force { "&forceDelete=true" } else { "" };
            let answer = api.delete(&format!("{target}{forced}")).await?;
            if answer.status == StatusCode::NO_CONTENT {
                say(&format!("there was no source control configuration {name}"));
            }
            let wait = Wait { none: wait.no_wait, limit: wait.wait_timeout };
            let ended = api.follow(&answer, &format!("deleting {name}"), wait).await;
            let show = format!("towline flux source-control show {} -n {name}", on.options());
            ended.map_err(|failure| TimedOut::advised(failure, "--wait-timeout", &show))
        }
    }
}

fn target(configuration: &NamedConfiguration, cluster: &ResourceId) -> Outcome<String> {
    let id = cluster.on(CONFIGURATIONS.provider, CONFIGURATIONS.name, &configuration.name);
    Ok(at(id.context("--name").map_err(Failure::usage)?, versions::SOURCE_CONTROL))
}

fn advised(failure: Failure, on: &OnCluster) -> Failure {
    if is_missing(&failure) {
        return failure.hint(format!("see which there are: towline flux source-control list {}", on.options()));
    }
    failure
}
