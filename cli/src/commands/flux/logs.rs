//! `towline flux logs`: what Flux's controllers log of a configuration (docs/features.md D5). Lines come from the gateway,
//! which keeps the newest of each configuration: they are there also while the cluster is not.

use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    super::{CommonArgs, names},
    Configuration, NamedConfiguration, OnCluster,
};
use crate::{
    api::Following,
    failure::{Failure, Outcome},
    output::{self, Column, Format, OutputArgs},
    terminal::line,
};

/// Between two questions for more.
const AGAIN: Duration = Duration::from_secs(2);
const COLUMNS: &[Column] = &[
    ("Time", "/time"),
    ("Level", "/level"),
    ("Controller", "/controller"),
    ("Kind", "/kind"),
    ("Namespace", "/namespace"),
    ("Name", "/name"),
    ("Message", "/message"),
];

/// `towline flux logs`.
#[derive(Debug, clap::Args)]
pub struct LogsArgs {
    /// The configuration
    #[arg(value_name = "NAME", value_parser = names::configuration, required_unless_present = "named")]
    pub configuration: Option<String>,
    /// The configuration, as the other commands have it
    #[arg(id = "named", short = 'n', long = "name", value_name = "NAME", value_parser = names::configuration,
        conflicts_with = "configuration")]
    pub named: Option<String>,
    #[command(flatten)]
    pub on: OnCluster,
    /// Go on with what is logged, until Ctrl+C
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Lines of this level and worse
    #[arg(long, value_enum, default_value = "info")]
    pub level: Level,
    /// Lines of one kustomization alone
    #[arg(short = 'k', long, value_name = "NAME", value_parser = names::configuration)]
    pub kustomization: Option<String>,
    /// The newest lines, so many of them; without it all that the gateway has
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u32>,
}

/// How bad what a line says is.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Level {
    /// All lines.
    Debug,
    /// What was done, and what could not be done.
    Info,
    /// What could not be done.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Error => "error",
        }
    }
}

/// `towline flux logs`.
pub async fn run(args: LogsArgs, common: &CommonArgs) -> Outcome<()> {
    let name = args.configuration.clone().or_else(|| args.named.clone()).unwrap_or_default();
    let open = Configuration::open(&NamedConfiguration { name, on: args.on.clone() }, common).await?;
    let first = ask(&open, &args, 0, args.tail).await?;
    if let Some(name) = args.kustomization.as_deref().filter(|_| first.0.is_empty()) {
        has(&open.get().await?, name)?;
    }
    if !args.follow {
        return print_all(first.0, &common.output);
    }
    let mut output = common.output.clone();
    let (mut lines, mut last) = first;
    let mut following = Following::default();
    loop {
        for one in &lines {
            print_one(one, &output)?;
        }
        // Titles of columns do not come again.
        if output.output == Format::Table && output.query.is_some() {
            output.output = Format::Tsv;
        }
        tokio::time::sleep(AGAIN).await;
        let looked = ask(&open, &args, last, None).await;
        (lines, last) = match following.found(looked).await? {
            // The numbers have begun anew: the gateway is another one, or was restored.
            Some((_, now)) if now < last => (Vec::new(), 0),
            Some(more) => more,
            None => (Vec::new(), last),
        };
    }
}

/// A name that was mistyped would be that of a kustomization that logs nothing.
fn has(configuration: &Value, name: &str) -> Outcome<()> {
    let all = configuration["properties"]["kustomizations"].as_object();
    let known: Vec<&str> = all.into_iter().flatten().map(|(known, _)| known.as_str()).collect();
    if known.contains(&name) {
        return Ok(());
    }
    Err(Failure::from(anyhow!("the configuration has no kustomization {name}"))
        .hint(format!("its kustomizations are {}", known.join(", "))))
}

/// Lines behind a number, and the number of the last one of the configuration.
async fn ask(open: &Configuration, args: &LogsArgs, after: i64, newest: Option<u32>) -> Outcome<(Vec<Value>, i64)> {
    let question = json!({
        "after": after, "level": args.level.name(), "kustomization": args.kustomization, "newest": newest,
    });
    let target = open.target.replacen('?', "/listLogs?", 1);
    let mut answer = open.api.post(&target, &question).await.map_err(|failure| open.advised(failure))?.body;
    let lines = answer["value"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok((lines, answer["last"].as_i64().unwrap_or_default()))
}

fn is_plain(output: &OutputArgs) -> bool {
    output.output == Format::Table && output.query.is_none()
}

fn print_all(lines: Vec<Value>, output: &OutputArgs) -> Outcome<()> {
    if !is_plain(output) || lines.is_empty() {
        return output::print_list(lines, output, COLUMNS, "no lines yet");
    }
    lines.iter().try_for_each(|one| print_one(one, output))
}

fn print_one(one: &Value, output: &OutputArgs) -> Outcome<()> {
    match output.output {
        Format::Table if is_plain(output) => output::print_text(&spelled(one)),
        Format::Json if output.query.is_none() => output::print_text(&output::json_line(one)),
        _ => output::print(one, output, COLUMNS),
    }
}

/// A line as people read it: nothing in it steers a terminal, or passes for another line.
fn spelled(one: &Value) -> String {
    let word = |name: &str| line(one[name].as_str().unwrap_or_default());
    let object = format!("{}/{}/{}", word("kind"), word("namespace"), word("name"));
    let left_out = match one["leftOut"].as_u64().unwrap_or_default() {
        0 => String::new(),
        1 => "(1 line left out) ".to_owned(),
        count => format!("({count} lines left out) "),
    };
    format!("{} {:5} {object} {left_out}{}", word("time"), word("level"), word("message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_kustomization_that_is_not_there_is_no_silence() {
        let shown = json!({"properties": {"kustomizations": {"apps": {}, "infra": {}}}});
        assert!(has(&shown, "apps").is_ok());
        let refused = has(&shown, "nope").unwrap_err();
        assert!(refused.error().to_string().contains("nope") && refused.advice().unwrap().ends_with("apps, infra"));
    }

    #[test]
    fn d5_line_is_one_line_and_steers_no_terminal() {
        let mut one = json!({
            "time": "t", "level": "error", "kind": "Kustomization", "namespace": "n", "name": "shop-apps",
            "message": "bad\n2026 info\u{1b}[2J\u{202e}", "leftOut": 3,
        });
        let text = spelled(&one);
        assert_eq!(text, "t error Kustomization/n/shop-apps (3 lines left out) bad 2026 info\u{fffd}[2J\u{fffd}");
        one["leftOut"] = Value::Null;
        assert!(!spelled(&one).contains("left out"));
    }
}
