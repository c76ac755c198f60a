//! What both programs need to be a process: open files, signals, shutdown, task groups, telemetry, backoff.
//!
//! A `main.rs` is a list: [`telemetry::init`], configuration, [`TaskGroup::new`], [`Shutdown::new`], [`signals`], run until
//! [`Shutdown::draining`], drain up to a grace, [`Shutdown::close`], [`TaskGroup::join`], exit code.

mod backoff;
mod files;
mod shutdown;
mod signals;
mod tasks;
pub mod telemetry;

pub use backoff::{Backoff, BackoffPolicy, random_unit};
pub use files::raise_open_files;
pub use shutdown::{Phase, Shutdown};
pub use signals::{Signals, signals};
pub use tasks::{Panicked, Task, TaskEnded, TaskGroup};
