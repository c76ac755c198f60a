//! How a command fails: what was tried, why it failed, and, where there is something to type, what to type next.

use std::{io, process::ExitCode};

use daemon::{chain, stdout::UNREAD};

/// Exit code of a failure.
pub const FAILED: u8 = 1;
/// Exit code of wrong usage, also clap's.
pub const USAGE: u8 = 2;
/// Exit code after Ctrl+C, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: anyhow::Error,
    hint: Option<String>,
}

/// What a command returns.
pub type Outcome<T = ExitCode> = Result<T, Failure>;

impl Failure {
    /// The command was typed wrongly or its input cannot be right.
    pub fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: USAGE, error: error.into(), hint: None }
    }

    /// Standard output was closed by who read it, such as head(1): nothing is said of it.
    pub fn unread(error: io::Error) -> Self {
        Self { code: UNREAD, error: error.into(), hint: None }
    }

    /// Ctrl+C, where all that there is to say is said.
    pub fn interrupted() -> Self {
        Self { code: INTERRUPTED, error: anyhow::anyhow!("interrupted"), hint: None }
    }

    /// Says what to type next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The error with its chain of causes.
    pub fn error(&self) -> &anyhow::Error {
        &self.error
    }

    /// What to type next, where the command or an [`Advised`] said it.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The error alone, with the hint in it.
    pub fn into_error(self) -> anyhow::Error {
        let Some(hint) = self.hint else { return self.error };
        // What has the hint already says it again where it is reported; said in a context, its text would stand there
        // twice.
        let known = Self::from(self.error);
        if known.hint.as_ref() == Some(&hint) {
            return known.error;
        }
        Advised::new(chain(known.error.as_ref()), hint).into()
    }
}

/// An error that knows what to type next, for code that is below commands.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Advised {
    /// What was tried and why it failed.
    pub what: String,
    /// What to type next.
    pub hint: String,
}

impl Advised {
    /// An error with a hint.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        // Of a context, too, which a walk over the causes does not see.
        let hint = error.downcast_ref::<Advised>().map(|advised| advised.hint.clone());
        Self { code: FAILED, error, hint }
    }
}

/// Adds a hint to a failed result.
pub trait Hint<T> {
    /// Says what to type next if this failed.
    fn hint(self, hint: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Into<Failure>> Hint<T> for Result<T, E> {
    fn hint(self, hint: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| error.into().hint(hint()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_as_an_error_says_its_reason_once_and_keeps_its_hint() {
        let cause = anyhow::anyhow!("connection refused");
        let advised = cause.context(Advised::new("gw was not reached", "is it running?"));
        for failure in [
            Failure::from(advised),
            Failure::from(anyhow::anyhow!("connection refused").context("gw was not reached")).hint("is it running?"),
        ] {
            let error = failure.into_error();
            let shown = format!("{error:#}");
            assert_eq!(shown.matches("was not reached").count(), 1, "{shown}");
            assert!(shown.contains("connection refused"), "{shown}");
            assert_eq!(Failure::from(error).hint.as_deref(), Some("is it running?"));
        }
    }
}
