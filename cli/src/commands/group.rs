//! `towline group`: resource groups.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::confirm;
use crate::{
    api::{Api, at, versions},
    args::{GroupAction, GroupArgs},
    context::Context,
    failure::Outcome,
    output::{self, Column},
    terminal::say,
};

const COLUMNS: &[Column] =
    &[("Name", "/name"), ("Location", "/location"), ("State", "/properties/provisioningState"), ("Tags", "/tags")];

/// `towline group <action>`.
pub async fn run(args: GroupArgs) -> Outcome {
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
            api.follow(&answer, &what, wait.wait()).await?;
        }
        GroupAction::Exists { group } => {
            let there = api.find(&target(&group.name)?).await?.is_some();
            output::print(&Value::Bool(there), output, COLUMNS)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
