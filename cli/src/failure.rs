//! How a command fails: what was tried, why it failed, and, where there is something to type, what to type next.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use proto::process::chain;

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

    /// Says what to type next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints it to standard error.
    pub fn report(&self) -> ExitCode {
        let mut out = io::stderr().lock();
        // With standard error closed there is nobody to tell.
        let _ = writeln!(out, "error: {}", chain(self.error.as_ref()));
        if let Some(hint) = &self.hint {
            let _ = writeln!(out, "hint: {hint}");
        }
        ExitCode::from(self.code)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: FAILED, error: error.into(), hint: None }
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
