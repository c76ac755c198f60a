//! `towline extension events`: what happened to an extension in its cluster (docs/features.md D4).

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::{Value, json};

use super::{super::CommonArgs, NamedExtension, missing};
use crate::{
    api::{Api, Following, at, versions},
    context::Context,
    failure::Outcome,
    output::{self, Column, Format},
};

/// Between two questions for more.
const AGAIN: Duration = Duration::from_secs(2);
const COLUMNS: &[Column] = &[
    ("Time", "/last"),
    ("Phase", "/phase"),
    ("Level", "/level"),
    ("Reason", "/reason"),
    ("Object", "/object"),
    ("Message", "/message"),
    ("Count", "/count"),
];

/// `towline extension events`.
#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    /// Of which one.
    #[command(flatten)]
    pub extension: NamedExtension,
    /// Go on with what happens, until Ctrl+C
    #[arg(short = 'f', long)]
    pub follow: bool,
}

/// `towline extension events`.
pub async fn run(args: EventsArgs, common: &CommonArgs) -> Outcome<()> {
    let context = Context::open(&common.context).await?;
    let api = Api::of(&context)?;
    let target = at(format!("{}/listEvents", args.extension.id(&context)?), versions::EXTENSIONS);
    let rows = ask(&api, &target, &args.extension).await?;
    if !args.follow {
        return output::print_list(rows, &common.output, COLUMNS, "no events yet");
    }
    let mut output = common.output.clone();
    // A table has no titles when it has no end.
    if output.output == Format::Table {
        output.output = Format::Tsv;
    }
    let (mut known, mut rows, mut following) = (Known::default(), rows, Following::default());
    loop {
        for row in rows.iter().filter(|row| known.is_new(row)) {
            output::print(row, &output, COLUMNS)?;
        }
        known.keep(&rows);
        tokio::time::sleep(AGAIN).await;
        rows = loop {
            let looked = ask(&api, &target, &args.extension).await;
            if let Some(rows) = following.found(looked).await? {
                break rows;
            }
        };
    }
}

async fn ask(api: &Api, target: &str, extension: &NamedExtension) -> Outcome<Vec<Value>> {
    let mut answer = api.post(target, &json!({})).await.map_err(|failure| missing(failure, extension))?.body;
    Ok(answer["value"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// How often each event had happened when it was told last, by its number and when it first happened: agents that were
/// installed anew count from one.
#[derive(Default)]
struct Known(HashMap<(u64, String), u64>);

impl Known {
    /// Forgets events that are no longer in the list.
    fn keep(&mut self, rows: &[Value]) {
        let listed: HashSet<_> = rows.iter().map(key).collect();
        self.0.retain(|one, _| listed.contains(one));
    }

    /// Notes a row, and whether it is new or has happened again.
    fn is_new(&mut self, row: &Value) -> bool {
        let count = row["count"].as_u64().unwrap_or(1);
        self.0.insert(key(row), count) != Some(count)
    }
}

fn key(row: &Value) -> (u64, String) {
    (row["number"].as_u64().unwrap_or_default(), row["first"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d4_event_is_told_again_when_it_happens_again() {
        let mut known = Known::default();
        assert!(known.is_new(&json!({"number": 1, "count": 1})));
        assert!(!known.is_new(&json!({"number": 1, "count": 1})));
        assert!(known.is_new(&json!({"number": 1, "count": 2})));
        assert!(known.is_new(&json!({"number": 2, "count": 1})));
        assert!(known.is_new(&json!({"number": 2, "count": 1, "first": "t9"})), "of agents that begin anew");
        known.keep(&[json!({"number": 2, "first": "t9"})]);
        assert_eq!(known.0.len(), 1);
    }
}
