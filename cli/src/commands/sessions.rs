//! `towline sessions`: what is open through the gateway, and ending it.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::{CommonArgs, names};
use crate::{
    api::{Api, at, encoded, versions},
    context::Context,
    failure::Outcome,
    output::{self, Column},
    terminal::say,
};

const SESSIONS: &str = "/providers/Microsoft.Kubernetes/sessions";
const COLUMNS: &[Column] = &[
    ("Id", "/id"),
    ("User", "/user"),
    ("Cluster", "/name"),
    ("What", "/what"),
    ("Started", "/started"),
    ("Ends", "/ends"),
    ("Own", "/own"),
    ("Replica", "/replica"),
];

/// What is open through the gateway
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: SessionsAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline sessions <action>`.
#[derive(Debug, Subcommand)]
pub enum SessionsAction {
    /// Open sessions: your own, and those at clusters where you may see others'
    List {
        /// Only at this cluster
        #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group")]
        name: Option<String>,
        /// Its resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, requires = "name")]
        resource_group: Option<String>,
    },
    /// End a session
    End {
        /// Its id, as `list` says it
        #[arg(value_name = "ID", required = true, num_args = 1..)]
        ids: Vec<String>,
    },
}

/// `towline sessions <action>`.
pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let api = Api::of(&context)?;
    match args.action {
        SessionsAction::List { name, resource_group } => {
            let mut target = at(SESSIONS, versions::CLUSTERS);
            if let (Some(name), Some(group)) = (name, resource_group) {
                target = format!("{target}&cluster={}", encoded(context.cluster(&group, &name)?.as_str()));
            }
            let mut page = api.get(&target).await?;
            for missing in page["incomplete"].as_array().into_iter().flatten() {
                let text = |key: &str| missing[key].as_str().unwrap_or_default();
                say(&format!(
                    "warning: sessions at the gateway {} may be missing: {}",
                    text("replica"),
                    text("reason")
                ));
            }
            let mut rows = match page["value"].take() {
                Value::Array(rows) => rows,
                _ => Vec::new(),
            };
            for row in &mut rows {
                let name = row["cluster"].as_str().and_then(|id| id.rsplit('/').next()).map(str::to_owned);
                row["name"] = name.map_or(Value::Null, Value::from);
            }
            output::print_list(rows, &args.common.output, COLUMNS, "no sessions are open")?;
        }
        SessionsAction::End { ids } => {
            for id in ids {
                api.delete(&at(format!("{SESSIONS}/{}", encoded(&id)), versions::CLUSTERS)).await?;
                say(&format!("ended {id}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
