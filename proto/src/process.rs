//! What both programs need to be a process: open files, signals, shutdown, task groups, telemetry, backoff.
//!
//! A `main.rs` is a list: [`telemetry::init`], configuration, [`TaskGroup::new`], [`Shutdown::new`], [`signals`], run until
//! [`Shutdown::draining`], drain up to a grace, [`Shutdown::close`], [`TaskGroup::join`], exit code.

pub mod admin;
mod backoff;
mod files;
mod shutdown;
mod signals;
mod tasks;
pub mod telemetry;
mod told;

pub use backoff::{Backoff, BackoffPolicy, random_unit};
pub use files::raise_open_files;
pub use shutdown::{Phase, Shutdown};
pub use signals::{Signals, signals};
pub use tasks::{Panicked, Task, TaskEnded, TaskGroup};
pub use told::Told;

/// An error with its causes on one line.
pub fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
