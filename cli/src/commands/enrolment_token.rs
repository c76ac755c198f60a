//! `towline enrolment-token`: one-time tokens with which a cluster is connected by somebody without an account
//! (docs/features.md R14). Who may write clusters in a resource group makes them there.

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use daemon::settings::positive_duration;
use serde_json::{Value, json};

use super::{
    CommonArgs, names,
    sp::{keep, reserve, settle},
    tags::tag,
};
use crate::{
    api::{Api, at, versions},
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
    ("Tags", "/tags"),
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

/// One-time tokens, with which a cluster is connected without an account
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: EnrolmentTokenAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline enrolment-token <action>`.
#[derive(Debug, Subcommand)]
pub enum EnrolmentTokenAction {
    /// Make a token that connects one cluster in a resource group; it is shown this once
    Create {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
        /// The only name that the cluster may have
        #[arg(short = 'n', long, value_name = "NAME", value_parser = names::new_cluster)]
        name: Option<String>,
        /// How long it is good for, such as 30m or 3d; an hour without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Tags of the cluster, KEY=VALUE each, whatever connect says: they choose what it gets
        #[arg(long, value_name = "KEY=VALUE", num_args = 1.., value_parser = tag)]
        tags: Vec<(String, String)>,
        /// Write the token to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// The tokens of a resource group that are good, without their secrets
    List {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
    },
    /// End a token before its time
    Withdraw {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
        /// Its id, as `create` and `list` say it
        #[arg(value_name = "ID", required = true, num_args = 1..)]
        ids: Vec<String>,
    },
}

/// `towline enrolment-token <action>`.
pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let (api, output) = (Api::of(&context)?, &args.common.output);
    match args.action {
        EnrolmentTokenAction::Create { resource_group, name, ttl, tags, secret_file } => {
            let group = context.group(&resource_group)?;
            let file = secret_file.as_deref().map(reserve).transpose()?;
            let mut body = json!({});
            if let Some(name) = &name {
                body["name"] = name.as_str().into();
            }
            if let Some(ttl) = ttl {
                body["expiresInSeconds"] = ttl.as_secs().max(1).into();
            }
            if !tags.is_empty() {
                let tags = tags.into_iter().map(|(key, value)| (key, Value::from(value)));
                body["tags"] = tags.collect::<serde_json::Map<_, _>>().into();
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
            output::print_list(rows, output, COLUMNS, "no valid enrolment tokens")?;
        }
        EnrolmentTokenAction::Withdraw { resource_group, ids } => {
            let target = at(format!("{}/withdrawEnrolmentToken", context.group(&resource_group)?), versions::RESOURCES);
            for id in ids {
                let withdrawn = api.post(&target, &json!({"id": id})).await;
                withdrawn.hint(|| format!("list the valid ones: towline enrolment-token list -g {resource_group}"))?;
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
