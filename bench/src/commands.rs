//! Work that is done by a program of users, such as kubectl, before a real apiserver: how long it takes from its start
//! to its end, or until a line that it was given comes back.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout},
};

use crate::{
    apiserver::{Apiserver, NAME},
    link::{Link, Seat},
    load::{Outcome, count},
    path::Running,
    program::output,
};

/// What does not end within this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// `kubectl get` a number of times, one after the other, each a process with a connection of its own.
    Get {
        /// Number of `kubectl get` processes.
        count: u32,
    },
    /// Lines through `kubectl exec -i` of one session into a pod, each sent when the one before is back.
    Echo {
        /// By which protocol kubectl asks for the session.
        upgrade: Upgrade,
        /// Number of lines, sent one after the other.
        lines: u32,
    },
}

impl Task {
    /// About how long it takes, in seconds.
    pub fn seconds(self) -> f64 {
        match self {
            Self::Get { count } => 0.12 * f64::from(count),
            Self::Echo { lines, .. } => 1.0 + 0.003 * f64::from(lines),
        }
    }
}

/// How kubectl asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Upgrade {
    /// SPDY/3.1, of all kubectl up to 1.30.
    Spdy,
    /// WebSocket, of kubectl from 1.31 on.
    Websocket,
}

/// One program and what is measured of it; run by `bench commands` where users are, so that nothing but the program
/// itself is in the time.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Of this path alone: where kubectl keeps what it knows of a server.
    cache: PathBuf,
    task: Task,
}

/// Does it over a path.
///
/// # Errors
/// A fault of this program; what goes wrong on the path is in the outcome.
pub async fn run(link: &Link, server: &Apiserver, path: &Running, dir: &Path, task: Task) -> anyhow::Result<Outcome> {
    let kubeconfig = dir.join("user.kubeconfig");
    std::fs::write(&kubeconfig, kubeconfig_of(path).to_string())?;
    let plan = Plan { program: server.kubectl.clone(), kubeconfig, cache: dir.join("kubectl-cache"), task };
    let mut command = link.command(Seat::Load, &std::env::current_exe()?);
    command.arg("commands");
    Ok(serde_json::from_str(&output(command, &serde_json::to_vec(&plan)?).await?)?)
}

fn kubeconfig_of(path: &Running) -> serde_json::Value {
    let mut cluster = json!({"server": path.url, "certificate-authority": path.ca});
    if let Some(name) = path.name {
        cluster["tls-server-name"] = name.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": path.token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
    })
}

/// Reads a plan from standard input and writes an [`Outcome`] to standard output.
///
/// # Errors
/// A plan that cannot be read.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan")?;
    let outcome = match plan.task {
        Task::Get { count } => get(&plan, count).await,
        Task::Echo { upgrade, lines } => echo(&plan, upgrade, lines).await,
    };
    crate::print::say(&serde_json::to_string(&outcome)?);
    Ok(())
}

impl Plan {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let flag = |name: &str, path: &Path| {
            let mut flag = OsString::from(name);
            flag.push(path);
            flag
        };
        command.arg(flag("--kubeconfig=", &self.kubeconfig)).arg(flag("--cache-dir=", &self.cache)).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// What was seen so far.
struct Seen {
    outcome: Outcome,
    begin: Instant,
}

impl Seen {
    fn new() -> Self {
        Self { outcome: Outcome::default(), begin: Instant::now() }
    }

    fn record(&mut self, since: Instant, done: anyhow::Result<()>) {
        match done {
            Ok(()) => {
                self.outcome.latency.record(since.elapsed());
            }
            Err(error) => count(&mut self.outcome.errors, format!("{error:#}")),
        }
    }

    fn outcome(mut self) -> Outcome {
        self.outcome.requests = self.outcome.latency.len();
        self.outcome.failed = self.outcome.errors.values().sum();
        self.outcome.seconds = self.begin.elapsed().as_secs_f64();
        self.outcome
    }
}

/// Each from the start of the process to its end.
async fn get(plan: &Plan, times: u32) -> Outcome {
    let mut seen = Seen::new();
    for _ in 0..times {
        let due = Instant::now();
        let done = once(plan.command(&["get", "pods", "--namespace", "default"])).await;
        seen.record(due, done);
    }
    seen.outcome()
}

async fn once(mut command: Command) -> anyhow::Result<()> {
    let output = timeout(PATIENCE, command.output()).await.context("not within a minute")??;
    ensure!(output.status.success(), "{}", last_line(&output.stderr));
    ensure!(String::from_utf8_lossy(&output.stdout).contains(NAME), "the pod is not in the answer");
    Ok(())
}

/// The first line is not measured: it waits for the session. A session that breaks takes with it what it had still to
/// echo.
async fn echo(plan: &Plan, upgrade: Upgrade, lines: u32) -> Outcome {
    let mut seen = Seen::new();
    let mut session = match Session::start(plan, upgrade).await {
        Ok(session) => session,
        Err(error) => {
            seen.record(Instant::now(), Err(error));
            return seen.outcome();
        }
    };
    seen.begin = Instant::now();
    for number in 0..lines {
        let due = Instant::now();
        let done = session.echo(number).await;
        let over = done.is_err();
        seen.record(due, done);
        if over {
            break;
        }
    }
    seen.outcome()
}

/// `cat` in a pod.
struct Session {
    child: Child,
    told: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Session {
    async fn start(plan: &Plan, upgrade: Upgrade) -> anyhow::Result<Self> {
        let mut command = plan.command(&["exec", "--stdin", "--namespace", "default", NAME, "--", "cat"]);
        let websocket = if upgrade == Upgrade::Websocket { "true" } else { "false" };
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket).stdin(Stdio::piped());
        let mut child = command.spawn().context("cannot start kubectl")?;
        let told = child.stdin.take().context("standard input is piped")?;
        let lines = BufReader::new(child.stdout.take().context("standard output is piped")?).lines();
        let mut this = Self { child, told, lines };
        this.echo(u32::MAX).await?;
        Ok(this)
    }

    /// About what a person types at once.
    async fn echo(&mut self, number: u32) -> anyhow::Result<()> {
        let line = format!("line {number} of a session");
        let back = async {
            // Where kubectl has ended, there is nothing to read either.
            let _ = self.told.write_all(format!("{line}\n").as_bytes()).await;
            self.lines.next_line().await
        };
        let back = timeout(PATIENCE, back).await.context("no echo within a minute")??;
        let Some(back) = back else { return Err(self.complaint().await) };
        ensure!(back == line, "another line came back");
        Ok(())
    }

    async fn complaint(&mut self) -> anyhow::Error {
        let mut said = Vec::new();
        if let Some(mut out) = self.child.stderr.take() {
            let _ = timeout(PATIENCE, out.read_to_end(&mut said)).await;
        }
        anyhow::anyhow!("kubectl has ended: {}", last_line(&said))
    }
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A plan whose program is a script in place of kubectl.
    fn plan(dir: &Path, script: &str, task: Task) -> Plan {
        let program = dir.join("kubectl");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Plan { program, kubeconfig: dir.join("kubeconfig"), cache: dir.join("cache"), task }
    }

    #[tokio::test]
    async fn a_command_is_measured_to_its_end_and_one_that_fails_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let seen = get(&plan(dir.path(), "sleep 0.05; echo bench", Task::Get { count: 2 }), 2).await;
        assert_eq!((seen.requests, seen.failed), (2, 0), "{:?}", seen.errors);
        assert!(seen.latency.at(0.0) >= Some(50_000), "{:?}", seen.latency.at(0.0));
        let seen = get(&plan(dir.path(), "echo first; echo refused >&2; exit 1", Task::Get { count: 2 }), 2).await;
        assert_eq!((seen.requests, seen.errors.get("refused")), (0, Some(&2)), "{:?}", seen.errors);
        let seen = get(&plan(dir.path(), "echo 'No resources found'", Task::Get { count: 1 }), 1).await;
        assert_eq!((seen.requests, seen.failed), (0, 1));
    }

    #[tokio::test]
    async fn each_line_is_measured_until_it_is_back_and_the_end_of_a_session_fails_one() {
        let task = Task::Echo { upgrade: Upgrade::Spdy, lines: 5 };
        let dir = tempfile::tempdir().unwrap();
        let seen = echo(&plan(dir.path(), "exec cat", task), Upgrade::Spdy, 5).await;
        assert_eq!((seen.requests, seen.failed), (5, 0), "{:?}", seen.errors);
        let seen = echo(
            &plan(dir.path(), "for n in 1 2 3; do read -r line; echo \"$line\"; done; echo cut >&2", task),
            Upgrade::Spdy,
            5,
        )
        .await;
        assert!(seen.requests <= 2 && seen.failed == 1, "{seen:?}");
        assert!(seen.errors.keys().all(|text| text.contains("cut")), "{:?}", seen.errors);
        let seen = echo(&plan(dir.path(), "echo no upgrade >&2; exit 1", task), Upgrade::Spdy, 5).await;
        assert_eq!(
            (seen.requests, seen.errors.get("kubectl has ended: no upgrade")),
            (0, Some(&1)),
            "{:?}",
            seen.errors
        );
    }
}
