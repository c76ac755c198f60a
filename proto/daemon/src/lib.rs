#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! What a program needs that runs until it is told to stop, whatever it serves. Stands on `types` alone.
//!
//! | module or type | what it holds |
//! |---|---|
//! | [`TaskGroup`], [`Shutdown`], [`signals`] | tasks with an owner, phases, what the system asks for |
//! | [`telemetry`] | logs, and what is kept out of them |
//! | [`redact`] | takes out of what others logged what looks like a secret |
//! | [`admin`] | the listener for operators and probes |
//! | [`release`] | the version of this program |
//! | [`settings`] | settings files: every fault of one at once; durations |
//! | [`atomic`] | files that are replaced or made at once |
//! | [`memory`] | how much of it this process may have |
//! | [`stdout`] | what is printed: the whole of it, or why not |
//! | [`shares`] | bounded tables that nobody keeps others out of |
//! | [`tcp`] | names to addresses, and to the first that answers (Happy Eyeballs) |
//! | [`Backoff`] | waits between attempts |
//!
//! A `main.rs` is a list: [`telemetry::init`], configuration, [`TaskGroup::new`], [`Shutdown::new`], [`signals`], run
//! until [`Shutdown::draining`], drain up to a grace, [`Shutdown::close`], [`TaskGroup::join`], exit code.

pub mod admin;
pub mod atomic;
mod backoff;
mod files;
mod latch;
pub mod memory;
pub mod redact;
pub mod release;
pub mod settings;
pub mod shares;
mod shutdown;
mod signals;
pub mod stdout;
mod tasks;
pub mod tcp;
pub mod telemetry;

use std::io;

use tokio::runtime::{Builder, Runtime};

pub use backoff::{Backoff, BackoffPolicy, random_unit};
pub use files::raise_open_files;
pub use latch::Latch;
pub use shutdown::{Phase, Shutdown};
pub use signals::{Signals, signals};
pub use tasks::{Panicked, Task, TaskEnded, TaskGroup};

/// Tasks that run until the runtime looks at its sockets, and until those have their turn that let the others go first
/// (`tunnel::transport::cork`); tokio's own 61 are all requests of a busy connection, which then go from hop to hop in
/// one lump.
const TASKS_IN_A_ROW: u32 = 31;

/// The runtime of a program that serves: a worker for each processor.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().event_interval(TASKS_IN_A_ROW).enable_all().build()
}

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
