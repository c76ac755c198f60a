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

use std::io;

use tokio::runtime::{Builder, Runtime};

pub use backoff::{Backoff, BackoffPolicy, random_unit};
pub use files::raise_open_files;
pub use shutdown::{Phase, Shutdown};
pub use signals::{Signals, signals};
pub use tasks::{Panicked, Task, TaskEnded, TaskGroup};
pub use told::Told;

/// Tasks that run until the runtime looks at its sockets, and until those have their turn that let the others go first
/// ([`crate::transport::cork`]); tokio's own 61 are all requests of a busy connection, which then go from hop to hop in
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
