//! The other end of a dialogue: what this program is told on standard input while it runs, and what it answers.

use std::io::Write;

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

/// What this program is told, a line of JSON each.
pub struct Asks(mpsc::Receiver<String>);

impl Asks {
    /// From standard input, whose first line is the plan.
    ///
    /// # Errors
    /// No plan, or one that cannot be read.
    pub async fn begin<T: DeserializeOwned>() -> anyhow::Result<(Self, T)> {
        // Without a change of the limit there is what was there.
        let _ = daemon::raise_open_files();
        let mut this = Self::listen();
        let plan = this.next().await?.context("standard input has no plan")?;
        Ok((this, plan))
    }

    fn listen() -> Self {
        let (sender, receiver) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        });
        Self(receiver)
    }

    /// Of these lines.
    #[cfg(test)]
    pub fn of(lines: impl IntoIterator<Item = String>) -> Self {
        let lines: Vec<_> = lines.into_iter().collect();
        let (sender, receiver) = mpsc::channel(lines.len().max(1));
        lines.into_iter().for_each(|line| sender.try_send(line).expect("there is room for all"));
        Self(receiver)
    }

    /// The next; `None` once the other end lets go.
    ///
    /// # Errors
    /// A line that is none of these.
    pub async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        let line = self.0.recv().await;
        line.map(|line| serde_json::from_str(&line).with_context(|| format!("what to do: {line}"))).transpose()
    }
}

/// Answers with a line, at once.
///
/// # Errors
/// Standard output that cannot be written.
pub fn tell(answer: &impl Serialize) -> anyhow::Result<()> {
    crate::print::say(&serde_json::to_string(answer)?);
    Ok(std::io::stdout().flush()?)
}
