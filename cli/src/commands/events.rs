//! `towline events`: what happened to clusters, and what happens (docs/features.md C8).

use std::{process::ExitCode, time::Duration};

use serde_json::Value;

use super::{CommonArgs, names};
use crate::{
    api::{Api, Following, at, versions},
    context::Context,
    failure::Outcome,
    output::{self, Column, Format},
};

/// Before a stream that ended is asked for again.
const AGAIN: Duration = Duration::from_secs(3);
/// Bytes of one event at most.
const EVENT_BYTES: usize = 256 * 1024;
const COLUMNS: &[Column] = &[
    ("Id", "/id"),
    ("Time", "/time"),
    ("Type", "/type"),
    ("Was", "/data/previousStatus"),
    ("Is", "/data/status"),
    ("Agent", "/data/agentVersion"),
    ("Cluster", "/subject"),
];

/// What happens to clusters
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
    /// Only of this cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group")]
    pub name: Option<String>,
    /// Begin behind the event of this id
    #[arg(long, value_name = "ID")]
    pub after: Option<u64>,
    /// Go on with what happens, until Ctrl+C
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let scope = match (&args.resource_group, &args.name) {
        (Some(group), Some(name)) => context.cluster(group, name)?,
        (Some(group), None) => context.group(group)?,
        (None, _) => context.subscription()?,
    };
    let api = Api::of(&context)?;
    let target = at(format!("{scope}/providers/Microsoft.Kubernetes/events"), versions::CLUSTERS);
    let after = args.after.map(|id| format!("&after={id}")).unwrap_or_default();
    if !args.follow {
        let rows = api.list(&format!("{target}{after}")).await?;
        output::print_list(rows, &args.common.output, COLUMNS, "no events")?;
        return Ok(ExitCode::SUCCESS);
    }
    follow(&api, &target, args).await
}

/// One event a line, until Ctrl+C; what happened while the connection was away is told too.
async fn follow(api: &Api, target: &str, args: Args) -> Outcome {
    let mut output = args.common.output;
    // A table has no titles when it has no end.
    if output.output == Format::Table {
        output.output = Format::Tsv;
    }
    let mut last = args.after.map(|id| id.to_string());
    let mut following = Following::default();
    loop {
        let opened = api.events(target, last.as_deref()).await;
        let Some(mut stream) = following.found(opened).await? else { continue };
        let mut text = Vec::new();
        while let Some(part) = stream.next().await {
            text.extend_from_slice(&part);
            while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                last = number(&event).or(last);
                if let Some(event) = data(&event) {
                    output::print(&event, &output, COLUMNS)?;
                }
            }
            if text.len() > EVENT_BYTES {
                break;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The number behind which a stream goes on after this event: the first one, which has no data, says where it begins.
fn number(event: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(event);
    text.lines().find_map(|line| line.strip_prefix("id:")).map(|id| id.trim_start().to_owned())
}

/// The `data` of an event; comments have none.
fn data(event: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(event);
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start).collect();
    serde_json::from_str(&lines.join("\n")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_the_data_of_an_event_is_read_and_comments_are_not() {
        assert_eq!(data(b"id: 7\nevent: x\ndata: {\"id\":\ndata: \"7\"}\n\n").unwrap()["id"], "7");
        assert_eq!((data(b": still here\n\n"), data(b"id: 9\nretry: 3000\n\n")), (None, None));
        let numbers = [&b"id: 9\nretry: 3000\n\n"[..], b"id:7\ndata: {}\n\n", b": still here\n\n"].map(number);
        assert_eq!(numbers, [Some("9".to_owned()), Some("7".to_owned()), None]);
    }
}
