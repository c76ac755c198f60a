//! `towline troubleshoot`: the checks of arc-reference.md 3.5 that apply, each Passed, Failed or Incomplete with what to do,
//! and a zip archive of what they found, without secrets (features rows B1-B3).
//!
//! | part | what it holds |
//! |---|---|
//! | [`checks`] | one check after the other |
//! | [`diagnoser`] | the network as the agents see it, by a job in the cluster |
//! | [`known`] | faults that are known by their words, with cause and remedy |
//! | [`bundle`] | the archive |

mod bundle;
mod checks;
mod diagnoser;
mod known;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use self::bundle::Bundle;
use crate::{
    args::TroubleshootArgs,
    context::Context,
    failure::{FAILED, Outcome},
    kubernetes::Kubernetes,
    output::{self, say},
};

const COLUMNS: &[output::Column] = &[("Check", "/check"), ("State", "/state"), ("Detail", "/detail")];

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Passed,
    Failed,
    /// It could not be tried.
    Incomplete,
}

/// One check.
struct Finding {
    check: &'static str,
    state: State,
    detail: String,
    /// What to do, one line each.
    remedies: Vec<String>,
}

impl Finding {
    fn new(check: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self { check, state, detail: detail.into(), remedies: Vec::new() }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    fn json(&self) -> Value {
        json!({"check": self.check, "state": format!("{:?}", self.state), "detail": self.detail, "remedies": self.remedies})
    }
}

/// `towline troubleshoot`.
pub async fn run(args: TroubleshootArgs) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let api = context.api()?;
    let cluster = Kubernetes::open(args.kube.kube_config.as_deref(), args.kube.kube_context.as_deref()).await?;
    let mut bundle = Bundle::default();
    let mut findings = checks::run(&api, &id, &cluster, &mut bundle).await;
    let file = args.file.clone().unwrap_or_else(|| default_file(&args.cluster.name));
    let results: Vec<Value> = findings.iter().map(Finding::json).collect();
    bundle.put("checks.json", &format!("{:#}", json!(results)));
    const STORING: &str = "storing_diagnoser_results_logs";
    findings.push(match bundle.write(&file) {
        Ok(()) => Finding::new(STORING, State::Passed, file.display().to_string()),
        // What was found is printed all the same.
        Err(error) => Finding::new(STORING, State::Failed, format!("{}: {error}", file.display()))
            .remedy("make room there, or name another file: --file FILE"),
    });
    let shown: Vec<Value> = findings.iter().map(Finding::json).collect();
    output::print(&shown.into(), &args.common.output, COLUMNS)?;
    for finding in findings.iter().filter(|finding| finding.state != State::Passed) {
        finding.remedies.iter().for_each(|remedy| say(&format!("hint: {}: {remedy}", finding.check)));
    }
    let failed = findings.iter().any(|finding| finding.state == State::Failed);
    Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

fn default_file(name: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("towline-{name}-{seconds}.zip").into()
}
