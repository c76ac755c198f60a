//! `towline extension`: helm charts of the catalogue in a connected cluster (docs/extensions.md; docs/features.md E1).
//!
//! | part | what it does |
//! |---|---|
//! | [`settings`] | settings as typed, and from files |
//! | [`wanted`] | options as what the API is sent |
//! | [`follow`] | waits for the cluster, and what to do when it failed |
//! | [`events`] | what happened to an extension |
//! | [`rollout`] | a version for many clusters |
//! | [`types`] | what the catalogue offers |

mod events;
mod follow;
mod rollout;
mod settings;
mod types;
mod wanted;

use std::process::ExitCode;

use ::types::api::ResourceId;
use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use http::StatusCode;
use serde_json::json;

pub use self::follow::lines;
use self::{
    events::EventsArgs,
    rollout::RolloutAction,
    types::TypesAction,
    wanted::{Change, Placement, Plan},
};
use super::{
    CommonArgs, confirm, names,
    on_cluster::{OnCluster, is_missing},
    replacing,
};
use crate::{
    api::{Api, ResourceType, WaitArgs, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column},
    terminal::say,
};

/// The provider and the type.
pub const EXTENSIONS: ResourceType = ResourceType { provider: "Microsoft.KubernetesConfiguration", name: "extensions" };
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("Type", "/properties/extensionType"),
    ("Version", "/properties/currentVersion"),
    ("State", "/properties/provisioningState"),
    ("Train", "/properties/releaseTrain"),
    ("AutoUpgrade", "/properties/autoUpgradeMode"),
    ("Error", "/properties/errorInfo/message"),
];
const DETAILS: &[Column] = &[
    ("Name", "/name"),
    ("Id", "/id"),
    ("Type", "/properties/extensionType"),
    ("State", "/properties/provisioningState"),
    ("Version", "/properties/currentVersion"),
    ("WantedVersion", "/properties/version"),
    ("Train", "/properties/releaseTrain"),
    ("AutoUpgrade", "/properties/autoUpgradeMode"),
    ("UpgradeWindow", "/properties/autoUpgradeWindow"),
    ("Scope", "/properties/scope"),
    ("Settings", "/properties/configurationSettings"),
    ("Reconcile", "/properties/reconcile"),
    ("Error", "/properties/errorInfo/message"),
    ("Statuses", "/properties/statuses"),
    ("PrincipalId", "/identity/principalId"),
];

/// Helm charts of the gateway's catalogue in a connected cluster
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: ExtensionAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline extension <action>`.
#[derive(Debug, Subcommand)]
pub enum ExtensionAction {
    /// Install an extension in a cluster
    #[command(
        after_help = "Settings are dotted keys, as helm's --set reads them. Protected settings are never shown again; \
            the gateway keeps them for 48 hours at most, the cluster in a Secret."
    )]
    Create(Box<CreateArgs>),
    /// Change an extension: settings one by one, protected settings as a whole
    Update(Box<UpdateArgs>),
    /// Remove an extension from its cluster
    Delete {
        /// The extension that is removed.
        #[command(flatten)]
        extension: NamedExtension,
        /// Delete the resource alone and at once, whether or not the cluster can remove the release
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// The extensions of a cluster
    List {
        /// Of which cluster.
        #[command(flatten)]
        cluster: OnCluster,
    },
    /// One extension
    Show {
        /// The extension that is shown.
        #[command(flatten)]
        extension: NamedExtension,
    },
    /// What happened to an extension in its cluster, oldest first
    Events(EventsArgs),
    /// A version of the catalogue for many clusters, in stages
    Rollout {
        /// What to do.
        #[command(subcommand)]
        action: RolloutAction,
    },
    /// The extension types that the gateway's catalogue offers
    #[command(alias = "extension-types")]
    Types {
        /// What to do.
        #[command(subcommand)]
        action: TypesAction,
    },
}

/// An extension by its name.
#[derive(Debug, clap::Args, Clone)]
pub struct NamedExtension {
    /// The extension, which is also the name of its helm release
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::extension)]
    pub name: String,
    /// The cluster that the extension is on.
    #[command(flatten)]
    pub on: OnCluster,
}

impl NamedExtension {
    fn id(&self, context: &Context) -> Outcome<ResourceId> {
        self.on
            .id(context)?
            .on(EXTENSIONS.provider, EXTENSIONS.name, &self.name)
            .context("--name")
            .map_err(Failure::usage)
    }

    fn target(&self, context: &Context) -> Outcome<String> {
        Ok(at(self.id(context)?, versions::EXTENSIONS))
    }

    /// The options that name it, for hints.
    fn options(&self) -> String {
        format!("{} -n {}", self.on.options(), self.name)
    }
}

/// `towline extension create`.
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// Name of the new extension, and its cluster.
    #[command(flatten)]
    pub extension: NamedExtension,
    /// The extension type, as towline extension types list says it
    #[arg(long = "type", alias = "extension-type", value_name = "TYPE", value_parser = names::extension_type)]
    pub kind: String,
    /// Where in the cluster.
    #[command(flatten)]
    pub placement: Placement,
    /// Versions and settings.
    #[command(flatten)]
    pub change: Change,
    /// What was bought of it.
    #[command(flatten)]
    pub plan: Plan,
    /// Do not ask whether one of that name is replaced
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// How long to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `towline extension update`.
#[derive(Debug, clap::Args)]
pub struct UpdateArgs {
    /// The extension that is changed.
    #[command(flatten)]
    pub extension: NamedExtension,
    /// Versions and settings.
    #[command(flatten)]
    pub change: Change,
    /// Take a setting away
    #[arg(long, value_name = "KEY", value_parser = settings::key)]
    pub unset: Vec<String>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// How long to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `towline extension <action>`.
pub async fn run(args: Args) -> Outcome {
    let common = args.common;
    match args.action {
        ExtensionAction::Create(args) => create(*args, &common).await?,
        ExtensionAction::Update(args) => update(*args, &common).await?,
        ExtensionAction::Delete { extension, force, yes, wait } => {
            delete(&extension, force, yes, &wait, &common).await?;
        }
        ExtensionAction::List { cluster } => {
            let context = Context::open(&common.context).await?;
            let id = cluster.id(&context)?;
            let target = at(format!("{id}/providers/{EXTENSIONS}"), versions::EXTENSIONS);
            let rows = Api::of(&context)?.list(&target).await?;
            output::print_list(rows, &common.output, COLUMNS, "no extensions; towline extension create makes one")?;
        }
        ExtensionAction::Show { extension } => {
            let context = Context::open(&common.context).await?;
            let found = Api::of(&context)?.get(&extension.target(&context)?).await;
            output::print(&found.map_err(|failure| missing(failure, &extension))?, &common.output, DETAILS)?;
        }
        ExtensionAction::Events(args) => events::run(args, &common).await?,
        ExtensionAction::Rollout { action } => rollout::run(action, &common).await?,
        ExtensionAction::Types { action } => types::run(action, &common).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: CreateArgs, common: &CommonArgs) -> Outcome<()> {
    let mut body = args.change.body(&[])?;
    body["identity"] = json!({"type": "SystemAssigned"});
    body["properties"]["extensionType"] = args.kind.as_str().into();
    if let Some(scope) = args.placement.json()? {
        body["properties"]["scope"] = scope;
    }
    if let Some(plan) = args.plan.json() {
        body["plan"] = plan;
    }
    let context = Context::open(&common.context).await?;
    let (api, target) = (Api::of(&context)?, args.extension.target(&context)?);
    // Who may write and not read goes on.
    if api.find(&target).await.is_ok_and(|there| there.is_some()) {
        replacing(&format!("the extension {}", args.extension.name), "towline extension update", args.yes).await?;
    }
    let answer = api.put(&target, &body).await;
    let answer = answer.map_err(|failure| follow::advised(failure, &args.extension))?;
    let what = format!("installing {}", args.extension.name);
    let made = follow::ended(&api, &target, answer, &what, &args.extension, args.wait.wait()).await?;
    output::print(&made, &common.output, DETAILS)
}

async fn update(args: UpdateArgs, common: &CommonArgs) -> Outcome<()> {
    let body = args.change.body(&args.unset)?;
    if body == json!({"properties": {}}) {
        return Err(Failure::usage(anyhow!("nothing to change was given"))
            .hint("such as --set KEY=VALUE; towline extension update --help"));
    }
    if args.change.replaces_protected() {
        let question = format!(
            "The protected settings of {} are replaced as a whole: those that are not given now are deleted. Continue?",
            args.extension.name
        );
        confirm(&question, args.yes).await?;
    }
    let context = Context::open(&common.context).await?;
    let (api, target) = (Api::of(&context)?, args.extension.target(&context)?);
    let answer = api.patch(&target, &body).await.map_err(|failure| missing(failure, &args.extension))?;
    let what = format!("updating {}", args.extension.name);
    let made = follow::ended(&api, &target, answer, &what, &args.extension, args.wait.wait()).await?;
    output::print(&made, &common.output, DETAILS)
}

async fn delete(
    extension: &NamedExtension,
    force: bool,
    yes: bool,
    wait: &WaitArgs,
    common: &CommonArgs,
) -> Outcome<()> {
    let left = if force {
        " at once, without waiting for its cluster to remove it"
    } else {
        " and remove it from its cluster"
    };
    let question = format!("Delete the extension {} of {}{left}?", extension.name, extension.on.cluster);
    confirm(&question, yes).await?;
    let context = Context::open(&common.context).await?;
    let (api, target) = (Api::of(&context)?, extension.target(&context)?);
    let forced = if force { "&forceDelete=true" } else { "" };
    let answer = api.delete(&format!("{target}{forced}")).await?;
    if answer.status == StatusCode::NO_CONTENT {
        say(&format!("there was no extension {}", extension.name));
    }
    follow::gone(&api, &target, &answer, extension, wait.wait()).await
}

/// A failure with what to type next if the extension is not there.
fn missing(failure: Failure, extension: &NamedExtension) -> Failure {
    if !is_missing(&failure) {
        return follow::advised(failure, extension);
    }
    failure.hint(format!("see which there are: towline extension list {}", extension.on.options()))
}
