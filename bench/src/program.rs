//! Programs under measurement: started at a seat, ended with the run.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Lines of a log that an error shows.
const SHOWN: usize = 5;
/// A program must be ready within this.
pub const READY: Duration = Duration::from_secs(30);

/// How often a log is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// A tool must answer within this.
const ANSWER: Duration = Duration::from_secs(60);
/// A program that is asked to end is given this long: more than a gateway's drain takes (`drain_grace`), which has
/// agents to wait for that were killed.
const ENDING: Duration = Duration::from_secs(40);
/// A program that has ended says so within this.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
        let child = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
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

    /// That it has ended, if so.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{} has ended ({status})", self.name))
    }

    /// Waits until its log has this.
    ///
    /// # Errors
    /// A program that does not say it in time, with the end of the log.
    pub async fn says(&mut self, text: &str) -> anyhow::Result<()> {
        let until = tokio::time::Instant::now() + READY;
        while !std::fs::read_to_string(&self.log)?.contains(text) {
            if tokio::time::Instant::now() > until || self.child.try_wait()?.is_some() {
                bail!("not said: {text:?}; {}", self.state());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it and waits for its end, so that its addresses are free.
    pub async fn stop(mut self) {
        self.kill().await;
    }

    /// The same, but asks it to first, as an operator would: what it keeps until its end it can write then.
    pub async fn end(mut self) {
        let asked = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let asked = asked.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        if asked && tokio::time::timeout(ENDING, self.child.wait()).await.is_err() {
            crate::print::progress(&format!("{} does not end when it is asked to, and is killed", self.name));
        }
        self.kill().await;
    }

    /// The same as [`Self::stop`] of one that something else takes the place of.
    pub async fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().await;
    }
}

/// A tool of ours that answers on standard output what it is told on standard input, a line each; killed when dropped.
pub struct Dialogue {
    name: String,
    child: Child,
    told: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Dialogue {
    /// Starts it; what goes wrong is in the first line that it does not say.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn start(name: &str, command: std::process::Command) -> anyhow::Result<Self> {
        let mut command = Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        let told = Some(child.stdin.take().context("standard input is piped")?);
        let lines = BufReader::new(child.stdout.take().context("standard output is piped")?).lines();
        Ok(Self { name: name.to_owned(), child, told, lines })
    }

    /// Tells it a line, end included.
    ///
    /// # Errors
    /// A program that has ended, with what it said.
    pub async fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let told = self.told.as_mut().context("standard input is open until the last line")?;
        if told.write_all(line.as_bytes()).await.is_err() {
            bail!("{}", self.complaint().await);
        }
        Ok(())
    }

    /// The next line that it says.
    ///
    /// # Errors
    /// None in time, a program that has ended, with what it said.
    pub async fn line(&mut self) -> anyhow::Result<String> {
        self.line_within(ANSWER).await
    }

    async fn line_within(&mut self, within: Duration) -> anyhow::Result<String> {
        match tokio::time::timeout(within, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => bail!("{}", self.complaint().await),
            Err(_) => bail!("{} has said nothing for {within:?}", self.name),
        }
    }

    /// Tells it something and waits for the answer, at most `within`.
    ///
    /// # Errors
    /// As [`Self::line`]; an answer that cannot be read.
    pub async fn ask<T: DeserializeOwned>(&mut self, what: &impl Serialize, within: Duration) -> anyhow::Result<T> {
        self.tell(&(serde_json::to_string(what)? + "\n")).await?;
        let answer = self.line_within(within).await?;
        serde_json::from_str(&answer).with_context(|| format!("{} answers {answer}", self.name))
    }

    /// Lets go of its standard input, which lets it end, and takes the next line that it says.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub async fn last_line(mut self) -> anyhow::Result<String> {
        self.told = None;
        self.line().await
    }

    /// Ends it and waits for its end.
    pub async fn stop(mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().await;
    }

    /// What a program says that has ended.
    async fn complaint(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut out) = self.child.stderr.take() {
            // Of a program that closed its standard output and lives on, nothing is known.
            let _ = tokio::time::timeout(LAST_WORDS, out.read_to_string(&mut said)).await;
        }
        format!("{} has ended: {}", self.name, said.trim())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is built to count writes down what it has counted only then.
    #[tokio::test]
    async fn a_program_that_is_asked_to_end_has_its_last_word() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        let mut command = std::process::Command::new("sh");
        let script = "trap 'kill $!; echo counted >\"$0\"; exit' TERM; tail -f /dev/null & echo ready; wait";
        command.args(["-c", script]).arg(&kept);
        let (program, line) = Program::start_with_line("sh", command, &dir.path().join("log")).await.unwrap();
        assert_eq!(line, "ready");
        program.end().await;
        assert_eq!(std::fs::read_to_string(kept).unwrap(), "counted\n");
    }
}
