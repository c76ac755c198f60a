//! `towline sessions`: what is open through the gateway, and ending it.

use std::process::ExitCode;

use serde_json::Value;

use crate::{
    api::{Api, at, encoded, versions},
    args::{SessionsAction, SessionsArgs},
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
];

/// `towline sessions <action>`.
pub async fn run(args: SessionsArgs) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let api = Api::of(&context)?;
    match args.action {
        SessionsAction::List { name, resource_group } => {
            let mut target = at(SESSIONS, versions::CLUSTERS);
            if let (Some(name), Some(group)) = (name, resource_group) {
                target = format!("{target}&cluster={}", encoded(context.cluster(&group, &name)?.as_str()));
            }
            let mut rows = api.list(&target).await?;
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
