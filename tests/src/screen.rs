//! A program on a terminal of its own (tmux): keys go in, and what its screen shows is waited for.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context;

use crate::programs::{eventually, run};

/// How long something may take to be shown.
const SHOWN: Duration = Duration::from_secs(60);

/// Whether there is a tmux.
pub fn available() -> bool {
    Command::new("tmux").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|code| code.success())
}

/// A program on a screen of 180 by 50; ended on drop.
pub struct Screen {
    socket: std::path::PathBuf,
}

impl Screen {
    /// Starts a shell command there; `environment` is added to ours.
    ///
    /// # Errors
    /// When tmux cannot start it.
    pub fn start(dir: &Path, command: &str, environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let this = Self { socket: dir.join("tmux") };
        let mut tmux = this.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "180", "-y", "50"]);
        tmux.arg(command).env("TERM", "xterm-256color").env_remove("TMUX");
        for (key, value) in environment {
            tmux.env(key, value);
        }
        run(&mut tmux, Duration::from_secs(10))?.ok()?;
        Ok(this)
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).args(args);
        tmux
    }

    /// Presses keys by tmux's names, such as `Enter`, or types a text.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn press(&self, keys: &[&str]) -> anyhow::Result<()> {
        run(self.tmux(&["send-keys"]).args(keys), Duration::from_secs(10))?.ok().context("press keys")?;
        Ok(())
    }

    /// What the screen shows.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn text(&self) -> anyhow::Result<String> {
        run(&mut self.tmux(&["capture-pane", "-p"]), Duration::from_secs(10))?.ok().context("the program has ended")
    }

    /// Waits until the screen is as wanted.
    ///
    /// # Errors
    /// With the screen when it is not in time, or when the program has ended.
    pub fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> anyhow::Result<String> {
        let mut last = String::new();
        let outcome = eventually(&format!("the screen shows {what}"), SHOWN, || {
            last = self.text()?;
            Ok(wanted(&last))
        });
        outcome.with_context(|| format!("the screen:\n{last}"))?;
        Ok(last)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = run(&mut self.tmux(&["kill-server"]), Duration::from_secs(10));
    }
}
