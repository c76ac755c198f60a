//! The steps of a command that takes its time: each with the time (UTC) at which it began and how long it took, on
//! standard error (docs/features.md I3).

use std::time::{Instant, SystemTime};
use types::instants::rfc3339_seconds;

use crate::{failure::Outcome, terminal::say};

/// One step after the other. What is written is a whole line each time: log lines come in between, and off a terminal
/// nothing could be written over.
#[derive(Default)]
pub struct Steps {
    open: Option<Instant>,
}

impl Steps {
    /// Begins a step.
    pub fn begin(&mut self, what: &str) {
        self.end("");
        let now = rfc3339_seconds(SystemTime::now());
        say(&format!("Step: {now}: {what} ..."));
        self.open = Some(Instant::now());
    }

    /// Ends it, with what came of it.
    pub fn end(&mut self, result: &str) {
        if let Some(begun) = self.open.take() {
            let gap = if result.is_empty() { "" } else { " " };
            say(&format!("  {result}{gap}({:.1} s)", begun.elapsed().as_secs_f32()));
        }
    }

    /// A line below the step at hand, which goes on.
    pub fn note(&mut self, text: &str) {
        say(&format!("  {}", text.replace('\n', "\n  ")));
    }

    /// A whole step.
    pub async fn run<T>(&mut self, what: &str, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.begin(what);
        let result = work.await;
        self.end(if result.is_ok() { "done" } else { "failed" });
        result
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.end("not ended");
    }
}
