//! `towline troubleshoot`: the checks of `az connectedk8s troubleshoot` that apply, each Passed, Failed or Incomplete
//! with what to do, and a zip archive of what they found, without secrets (docs/features.md B1-B3).
//!
//! | part | what it holds |
//! |---|---|
//! | [`checks`] | one check after the other |
//! | [`guard`] | those of guard, where it is on |
//! | [`bundle`] | the archive |

mod bundle;
mod checks;
mod guard;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use serde_json::{Value, json};

use self::bundle::Bundle;
use types::instants::unix_seconds;

use super::{CommonArgs, clusters::NamedCluster, diagnoser::Diagnoser, interrupt::Interrupt, target::Target};
use crate::{
    api::Api,
    context::Context,
    failure::{FAILED, Failure, Hint, INTERRUPTED, Outcome},
    kubernetes::{self, KubeArgs, Kubernetes, turn::Turn},
    output,
    terminal::say,
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

/// What one check found.
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

    /// What the apiserver did not let it try, with what to do about that.
    fn untried(check: &'static str, error: &kubernetes::Error) -> Self {
        let mut finding = Self::new(check, State::Incomplete, error.to_string());
        finding.remedies.extend(error.hint());
        finding
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    fn json(&self) -> Value {
        json!({"check": self.check, "state": format!("{:?}", self.state), "detail": self.detail, "remedies": self.remedies})
    }
}

/// What has to be put right when it is interrupted.
#[derive(Default)]
struct Job {
    /// The job that may be in the cluster.
    diagnoser: Option<Diagnoser>,
    /// The turn in which it is there.
    turn: Option<Turn>,
}

impl Job {
    async fn give_up_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.give_up().await;
        }
    }
}

/// Find out why a cluster is not connected, and pack what was found
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// Where the archive of what is found goes; towline-<name>-<time>.zip here without this
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline troubleshoot`. Interrupted, it takes away the job that it may have made.
pub async fn run(args: Args) -> Outcome {
    let (mut interrupt, mut job) = (Interrupt::listen()?, Job::default());
    if let Some(outcome) = interrupt.unless_heard(look(args, &mut job)).await {
        return outcome;
    }
    if let Some(diagnoser) = &job.diagnoser {
        say("Taking the job in the cluster away; Ctrl+C again leaves it.");
        let removed = tokio::select! {
            biased;
            () = interrupt.insisted() => Ok(()),
            removed = Diagnoser::remove(diagnoser) => removed,
        };
        if let Err(error) = removed {
            say(&format!("warning: it is still there: {error:#}"));
        }
    }
    job.give_up_turn().await;
    Ok(ExitCode::from(INTERRUPTED))
}

async fn look(args: Args, job: &mut Job) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let api = Api::of(&context)?;
    let cluster = Kubernetes::open(args.kube.kube_config.as_deref(), args.kube.kube_context.as_deref()).await;
    let cluster = cluster
        .map_err(Failure::usage)
        .hint(|| "--kube-config FILE and --kube-context NAME choose the cluster".to_owned())?;
    let mut bundle = Bundle::default();
    let target = Target::of_context(&context, &id)?;
    let mut findings = checks::run(&api, &id, &cluster, &target, &mut bundle, job).await;
    let file = args.file.clone().unwrap_or_else(|| default_file(&args.cluster.name));
    let results: Vec<Value> = findings.iter().map(Finding::json).collect();
    bundle.put("checks.json", &format!("{:#}", json!(results)));
    findings.push(store(&bundle, &file));
    let shown: Vec<Value> = findings.iter().map(Finding::json).collect();
    output::print(&shown.into(), &args.common.output, COLUMNS)?;
    // What passed may still be told something of: what the agents warn of, and what is left behind.
    for finding in &findings {
        finding.remedies.iter().for_each(|remedy| say(&format!("hint: {}: {remedy}", finding.check)));
    }
    Ok(ExitCode::from(code(&findings)))
}

/// What could not be tried is not known to be right.
fn code(findings: &[Finding]) -> u8 {
    if findings.iter().all(|finding| finding.state == State::Passed) { 0 } else { FAILED }
}

/// Writes the archive. Where that fails what was found is printed all the same, with this beside it.
fn store(bundle: &Bundle, file: &Path) -> Finding {
    const STORING: &str = "storing_diagnoser_results_logs";
    match bundle.write(file) {
        Ok(()) => Finding::new(STORING, State::Passed, file.display().to_string()),
        Err(error) => Finding::new(STORING, State::Failed, format!("{error:#}"))
            .remedy("make room there, or name another file: --file FILE"),
    }
}

fn default_file(name: &str) -> PathBuf {
    format!("towline-{name}-{}.zip", unix_seconds(SystemTime::now())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_could_not_be_tried_is_no_success() {
        let of = |state| Finding::new("a", state, "");
        assert_eq!(code(&[of(State::Passed), of(State::Passed)]), 0);
        assert_eq!(code(&[of(State::Passed), of(State::Incomplete)]), FAILED);
        assert_eq!(code(&[of(State::Failed), of(State::Passed)]), FAILED);
    }

    #[test]
    fn b1_an_archive_without_a_place_is_a_finding_with_a_remedy_and_no_end_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut bundle = Bundle::default();
        bundle.put("a.txt", "text");
        let stored = store(&bundle, &dir.path().join("bundle.zip"));
        assert_eq!(stored.state, State::Passed);
        std::fs::write(dir.path().join("file"), "").unwrap();
        for place in ["none/bundle.zip", "file/bundle.zip", ""] {
            let failed = store(&bundle, &dir.path().join(place));
            assert_eq!(failed.state, State::Failed, "{place}: {}", failed.detail);
            assert!(failed.remedies[0].contains("--file"), "{place}");
            let reason = failed.detail.rsplit(": ").next().unwrap_or_default();
            assert!(reason.contains("os error") || reason.contains("name"), "{place}: {}", failed.detail);
            let shown = dir.path().join(place).display().to_string();
            assert_eq!(failed.detail.matches(&shown).count(), 1, "said once: {}", failed.detail);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no half of an archive is left");
    }
}
