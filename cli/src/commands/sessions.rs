//! `towline sessions`: what is open through the gateway, and ending it.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::Value;

use super::{CommonArgs, names};
use crate::{
    api::{Api, ApiError, at, encoded, versions},
    context::Context,
    failure::Outcome,
    output::{self, Column},
    terminal::say,
};

const SESSIONS: &str = "/providers/Microsoft.Kubernetes/sessions";
/// How often the list is looked at while a user's sessions are ended.
const LOOKS: usize = 16;
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
    /// End sessions
    End {
        /// Their ids, as `list` says them
        #[arg(value_name = "ID", required_unless_present = "user", num_args = 1..)]
        ids: Vec<String>,
        /// All of this user instead, at every replica of the gateway, of those that `list` shows
        #[arg(long, value_name = "USER", conflicts_with = "ids")]
        user: Option<String>,
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
            missing(&page).iter().for_each(|missing| say(&format!("warning: {missing}")));
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
        SessionsAction::End { user: Some(user), .. } => end_all_of(&api, &user).await?,
        SessionsAction::End { ids, user: None } => {
            for id in ids {
                api.delete(&at(format!("{SESSIONS}/{}", encoded(&id)), versions::CLUSTERS)).await?;
                say(&format!("ended {id}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gateways whose sessions may be missing in a list, each in a sentence.
fn missing(page: &Value) -> Vec<String> {
    let missing = page["incomplete"].as_array().into_iter().flatten();
    let text = |missing: &Value, key: &str| missing[key].as_str().unwrap_or_default().to_owned();
    let said = |missing| {
        format!("sessions at the gateway {} may be missing: {}", text(missing, "replica"), text(missing, "reason"))
    };
    missing.map(said).collect()
}

/// Ends what is listed of a user, and looks again, until the list has nothing more.
async fn end_all_of(api: &Api, user: &str) -> Outcome<()> {
    let mut ended = BTreeSet::new();
    let listed = format!("{}&user={}", at(SESSIONS, versions::CLUSTERS), encoded(user));
    for _ in 0..LOOKS {
        let page = api.get(&listed).await?;
        // A gateway of the previous version lists those of all users.
        let rows = page["value"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_user = rows.iter().filter(|row| row["user"] == user).filter_map(|row| row["id"].as_str());
        let open: Vec<&str> = of_user.filter(|id| !ended.contains(*id)).collect();
        if open.is_empty() {
            say(&format!("ended {} sessions of {user}", ended.len()));
            let mut unseen = missing(&page);
            if page["total"].as_u64().is_some_and(|total| total > rows.len() as u64) {
                unseen.push(format!("{} are open, and the list has {} of them", page["total"], rows.len()));
            }
            if unseen.is_empty() {
                return Ok(());
            }
            return Err(anyhow!("not all sessions of {user} may be ended; run it again: {}", unseen.join("; ")).into());
        }
        for id in open {
            match api.delete(&at(format!("{SESSIONS}/{}", encoded(id)), versions::CLUSTERS)).await {
                Ok(_) => {}
                // It has ended by itself.
                Err(failure) if ApiError::behind(&failure).is_some_and(|error| error.code == "SessionNotFound") => {}
                Err(failure) => return Err(failure),
            }
            ended.insert(id.to_owned());
        }
    }
    Err(anyhow!("{user} opens sessions as fast as they are ended: withdraw the user's rights, or disable the user")
        .into())
}
