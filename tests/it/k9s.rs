//! k9s through the tunnel, on a terminal, with its keys: list, describe, logs, shell. It takes minutes to build, so
//! `make test` runs it where it is built already (`tests/cluster/cluster build k9s`), and `make test-full` builds it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, case, full},
    cluster::cluster,
    kubectl::pod,
    programs::{root, run, scratch},
    screen::{self, Screen},
    stack::{CARRIERS, shared},
};

use crate::kubectl::namespace;

pub fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (place, carrier) in CARRIERS.into_iter().enumerate() {
        if full() || place == 2 {
            let name = format!("k9s::list_describe_logs_shell::{carrier}");
            let there = screen::available() && (full() || program().is_ok_and(|path| path.exists()));
            let trial = case(name, Needs::Pods, move || keys(carrier));
            trials.push(if there { trial } else { trial.with_ignored_flag(true) });
        }
    }
    trials
}

fn script(words: &[&str], within: Duration) -> anyhow::Result<String> {
    run(Command::new(root().join("tests/cluster/cluster")).args(words), within)?.ok()
}

fn program() -> anyhow::Result<PathBuf> {
    Ok(script(&["program", "k9s"], Duration::from_secs(10))?.trim().into())
}

fn keys(carrier: &'static str) -> anyhow::Result<()> {
    script(&["build", "k9s"], Duration::from_secs(1800))?;
    let name = namespace("k9s", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("looked-at", "echo a line of the log; exec sleep 100000"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/looked-at", "--timeout=180s"])?;

    let dir = scratch("k9s");
    let screen = start(&dir, &stack.kubeconfig("admin")?, &name)?;
    screen.shows("the pod", |text| text.contains("looked-at") && text.contains("Running"))?;
    // It watches: what is made now is shown by itself.
    kubectl.apply(&pod("made-later", "exec sleep 100000"))?;
    screen.shows("the pod that was made later", |text| {
        text.lines().any(|line| line.contains("made-later") && line.contains("Running"))
    })?;
    kubectl.ok(&["delete", "pod", "made-later", "--wait=false"])?;
    screen.shows("one pod", |text| text.contains("looked-at") && !text.contains("made-later"))?;

    screen.press(&["d"])?;
    screen.shows("the description", |text| text.contains("Service Account:") && text.contains("looked-at"))?;
    screen.press(&["Escape"])?;
    screen.shows("the list again", |text| text.contains("Running") && !text.contains("Service Account:"))?;

    screen.press(&["l"])?;
    // It may show the last minutes only, for which the line may be too old: `0` asks for everything.
    screen.shows("the log's view", |text| text.contains("Autoscroll"))?;
    screen.press(&["0"])?;
    screen.shows("the log", |text| text.contains("a line of the log"))?;
    screen.press(&["Escape"])?;
    screen.shows("the list again", |text| text.contains("Running") && !text.contains("Autoscroll"))?;

    screen.press(&["s"])?;
    screen.shows("the shell's prompt", |text| text.contains("/ #"))?;
    screen.press(&["echo $((6 * 7)) $HOSTNAME", "Enter"])?;
    screen.shows("the shell's answer", |text| text.contains("42 looked-at"))?;
    screen.press(&["exit", "Enter"])?;
    screen.shows("the list after the shell", |text| text.contains("Running") && !text.contains("/ #"))?;
    Ok(())
}

/// k9s calls the kubectl of the path for a shell.
fn start(dir: &Path, kubeconfig: &Path, namespace: &str) -> anyhow::Result<Screen> {
    let kubectl = Path::new(cluster().get("CLUSTER_KUBECTL")).parent().context("kubectl has no folder")?;
    let path = format!("{}:{}", kubectl.display(), std::env::var("PATH")?);
    let (home, program) = (dir.display().to_string(), program()?.display().to_string());
    ensure!(Path::new(&program).exists(), "k9s was not built");
    let command = format!(
        "{program} --kubeconfig {} --namespace {namespace} --command pods --logoless --splashless --refresh 2 --logFile {home}/k9s.log 2>{home}/k9s.err",
        kubeconfig.display()
    );
    let environment = [("HOME", home.as_str()), ("K9S_CONFIG_DIR", home.as_str()), ("PATH", path.as_str())];
    Screen::start(dir, &command, &environment)
}
