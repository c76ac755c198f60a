//! What both programs need to be a process: signals, shutdown, task groups, telemetry, backoff.
//!
//! A `main.rs` is a list: [`telemetry::init`], configuration, [`TaskGroup::new`], [`Shutdown::new`], [`signals`], run until
//! [`Shutdown::draining`], drain up to a grace, [`Shutdown::close`], [`TaskGroup::join`], exit code.

mod backoff;
mod shutdown;
mod signals;
mod tasks;
pub mod telemetry;

pub use backoff::{Backoff, BackoffPolicy, random_unit};
pub use shutdown::{Phase, Shutdown};
pub use signals::{Signals, signals};
pub use tasks::{Panicked, Task, TaskEnded, TaskGroup};
