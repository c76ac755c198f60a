//! How many requests a connection carries.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts one request on a connection, until it is dropped.
pub struct Slot(pub(super) Arc<AtomicUsize>);

impl Slot {
    /// One more of those that `open` counts.
    pub fn take(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
