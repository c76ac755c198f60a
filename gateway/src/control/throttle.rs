//! What everybody has asked of the resource API, counted for its bounds.

use tokio::time::Instant;

use crate::rate::{Rate, Rates};

/// What is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// GET and HEAD.
    Reads,
    /// PUT, PATCH and POST.
    Writes,
    /// DELETE, which has a bound of its own.
    Deletes,
}

/// By subscription (or tenant) with the principal, and class; all of a principal count as theirs.
#[derive(Default)]
pub struct Throttle(Rates<(String, Class), String>);

impl Throttle {
    /// Counts a request of `who` under `key`. How many more there may be at once; `Err`: none, and how many seconds to
    /// wait.
    ///
    /// # Errors
    /// There were too many.
    pub fn take(&self, who: &String, key: &(String, Class), rate: Rate, now: Instant) -> Result<u32, u64> {
        self.0.take(who, key, rate, now)
    }
}
