//! `towline enrolment-token`: one-time tokens with which a cluster is connected by somebody without an account
//! (docs/features.md R14). Who may write clusters in a resource group makes them there.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::sp::{keep, reserve, settle};
use crate::{
    api::{Api, at, versions},
    args::{EnrolmentTokenAction, EnrolmentTokenArgs},
    context::Context,
    failure::{Hint, Outcome},
    output::{self, Column},
    terminal::say,
};

const COLUMNS: &[Column] = &[
    ("Id", "/id"),
    ("Name", "/name"),
    ("CreatedBy", "/createdBy"),
    ("CreatedOn", "/createdOn"),
    ("ExpiresOn", "/expiresOn"),
];
const MADE: &[Column] = &[
    ("Token", "/token"),
    ("Id", "/id"),
    ("ExpiresOn", "/expiresOn"),
    ("ResourceGroup", "/resourceGroup"),
    ("Name", "/name"),
    ("Gateway", "/gateway"),
];

/// `towline enrolment-token <action>`.
pub async fn run(args: EnrolmentTokenArgs) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let (api, output) = (Api::of(&context)?, &args.common.output);
    match args.action {
        EnrolmentTokenAction::Create { resource_group, name, ttl, secret_file } => {
            let group = context.group(&resource_group)?;
            let file = secret_file.as_deref().map(reserve).transpose()?;
            let mut body = json!({});
            if let Some(name) = &name {
                body["name"] = name.as_str().into();
            }
            if let Some(ttl) = ttl {
                body["expiresInSeconds"] = ttl.as_secs().max(1).into();
            }
            let made = api.post(&at(format!("{group}/createEnrolmentToken"), versions::RESOURCES), &body).await;
            let mut made = settle(made, secret_file.as_deref())?.body;
            keep(&mut made, "token", file)?;
            made["resourceGroup"] = group.name().into();
            made["gateway"] = context.account().gateway.as_str().into();
            output::print(&made, output, MADE)?;
            say(&next(&made, name.as_deref(), secret_file.as_deref()));
        }
        EnrolmentTokenAction::List { resource_group } => {
            let group = context.group(&resource_group)?;
            let listed = at(format!("{group}/listEnrolmentTokens"), versions::RESOURCES);
            let mut listed = api.post(&listed, &json!({})).await?.body;
            let rows = listed["value"].as_array_mut().map(std::mem::take).unwrap_or_default();
            output::print_list(rows, output, COLUMNS, "no enrolment tokens that are good")?;
        }
        EnrolmentTokenAction::Withdraw { resource_group, ids } => {
            let target = at(format!("{}/withdrawEnrolmentToken", context.group(&resource_group)?), versions::RESOURCES);
            for id in ids {
                let withdrawn = api.post(&target, &json!({"id": id})).await;
                withdrawn.hint(|| format!("see which are good: towline enrolment-token list -g {resource_group}"))?;
                say(&format!("withdrawn {id}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is typed with it.
fn next(made: &Value, name: Option<&str>, file: Option<&std::path::Path>) -> String {
    let file = file.map_or_else(|| "FILE".into(), |file| file.display().to_string());
    let gateway = made["gateway"].as_str().unwrap_or_default();
    format!("hint: towline connect -n {} --token-file {file} --server {gateway} [--ca FILE]", name.unwrap_or("NAME"))
}
