//! `towline group`: resource groups, in which clusters are. They are made, listed and deleted as with `az group`; a
//! deletion takes what is in the group with it, so it asks first.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CommonArgs, confirm, names, tags::TagArgs};
use crate::{
    api::{Api, TimedOut, WaitArgs, at, versions},
    context::Context,
    failure::Outcome,
    output::{self, Column},
    terminal::say,
};

const COLUMNS: &[Column] =
    &[("Name", "/name"), ("Location", "/location"), ("State", "/properties/provisioningState"), ("Tags", "/tags")];

/// Resource groups
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: GroupAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline group <action>`.
#[derive(Debug, Subcommand)]
pub enum GroupAction {
    /// Make a resource group, or give one other tags
    Create {
        /// Name of the resource group.
        #[command(flatten)]
        group: GroupName,
        /// Where it is said to be
        #[arg(short = 'l', long, value_name = "LOCATION", value_parser = names::location)]
        location: String,
        /// Tags of the resource group.
        #[command(flatten)]
        tags: TagArgs,
    },
    /// The resource groups of the subscription
    List,
    /// One resource group
    Show {
        /// Name of the resource group.
        #[command(flatten)]
        group: GroupName,
    },
    /// Delete a resource group and all that is in it
    Delete {
        /// Name of the resource group.
        #[command(flatten)]
        group: GroupName,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Print true or false
    Exists {
        /// Name of the resource group.
        #[command(flatten)]
        group: GroupName,
    },
}

/// The name of a resource group.
#[derive(Debug, clap::Args)]
pub struct GroupName {
    /// The resource group
    #[arg(short = 'g', short_alias = 'n', long = "name", visible_alias = "resource-group", value_name = "GROUP", value_parser = names::group)]
    pub name: String,
}

/// `towline group <action>`.
pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let (api, output) = (Api::of(&context)?, &args.common.output);
    let target = |name: &str| Ok::<_, crate::failure::Failure>(at(context.group(name)?, versions::RESOURCES));
    match &args.action {
        GroupAction::Create { group, location, tags } => {
            let mut body = json!({"location": location});
            if let Some(tags) = tags.json() {
                body["tags"] = tags;
            }
            let made = api.put(&target(&group.name)?, &body).await?;
            output::print(&made.body, output, COLUMNS)?;
        }
        GroupAction::List => {
            let groups = format!("{}/resourceGroups", context.subscription()?);
            output::print_list(
                api.list(&at(groups, versions::RESOURCES)).await?,
                output,
                COLUMNS,
                "no resource groups; towline group create makes one",
            )?;
        }
        GroupAction::Show { group } => {
            output::print(&api.get(&target(&group.name)?).await?, output, COLUMNS)?;
        }
        GroupAction::Delete { group, yes, wait } => {
            let what = format!("deleting resource group {}", group.name);
            confirm(&format!("Delete resource group {} and all that is in it?", group.name), *yes).await?;
            let answer = api.delete(&target(&group.name)?).await?;
            if answer.status == http::StatusCode::NO_CONTENT {
                say(&format!("there was no resource group {}", group.name));
            }
            let show = format!("towline group show -n {}", group.name);
            let ended = api.follow(&answer, &what, wait.wait()).await;
            ended.map_err(|failure| TimedOut::advised(failure, "--timeout", &show))?;
        }
        GroupAction::Exists { group } => {
            let there = api.find(&target(&group.name)?).await?.is_some();
            output::print(&Value::Bool(there), output, COLUMNS)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
