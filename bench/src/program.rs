//! Programs under measurement: started at a seat, ended with the run.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

/// Lines of a log that an error shows.
const SHOWN: usize = 5;
/// A program must be ready within this.
const READY: Duration = Duration::from_secs(30);

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    log: PathBuf,
    /// What it is, in reports.
    pub name: String,
}

impl Program {
    /// Starts it with its output in `log`.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn start(name: &str, command: std::process::Command, log: &Path) -> anyhow::Result<Self> {
        Self::spawn(name, command, log, Stdio::from(file(log)?))
    }

    /// Starts it and waits for the first line that it prints.
    ///
    /// # Errors
    /// As [`Self::start`]; no line in time, with the end of the log.
    pub async fn start_with_line(
        name: &str,
        command: std::process::Command,
        log: &Path,
    ) -> anyhow::Result<(Self, String)> {
        let mut this = Self::spawn(name, command, log, Stdio::piped())?;
        let out = this.child.stdout.take().context("standard output is piped")?;
        let mut lines = BufReader::new(out).lines();
        match tokio::time::timeout(READY, lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok((this, line)),
            _ => bail!("{name} did not say that it is ready: {}", tail(log)),
        }
    }

    fn spawn(name: &str, command: std::process::Command, log: &Path, out: Stdio) -> anyhow::Result<Self> {
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(out).stderr(file(log)?).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self { child, log: log.to_owned(), name: name.to_owned() })
    }

    /// What it said last, and whether it has ended: for an error.
    pub fn state(&mut self) -> String {
        let state = match self.child.try_wait() {
            Ok(Some(status)) => format!("has ended ({status})"),
            _ => "runs".to_owned(),
        };
        format!("{} {state}; its log ends with:\n{}", self.name, tail(&self.log))
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it and waits for its end, so that its addresses are free.
    pub async fn stop(mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().await;
    }
}

/// Runs a command to its end with `input`; its standard output.
///
/// # Errors
/// A command that fails, with what it said.
pub async fn output(command: std::process::Command, input: &[u8]) -> anyhow::Result<String> {
    let mut command = Command::from(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    child.stdin.take().context("standard input is piped")?.write_all(input).await?;
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

fn file(log: &Path) -> anyhow::Result<File> {
    File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())
}
