//! The time of day, given from outside: certificates live for months, and clocks are wrong.

use std::{fmt::Debug, sync::Arc, time::SystemTime};

/// Tells the time of day.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current time of day, which may be wrong and may jump.
    fn now(&self) -> SystemTime;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The clock of the operating system.
#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// One that goes with tokio's time, which tests can pause and advance.
#[derive(Debug)]
pub struct TokioClock {
    at: SystemTime,
    since: tokio::time::Instant,
}

impl TokioClock {
    /// It is `at` now.
    pub fn new(at: SystemTime) -> Self {
        Self { at, since: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> SystemTime {
        self.at + self.since.elapsed()
    }
}
