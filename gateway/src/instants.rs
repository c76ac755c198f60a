//! Instants as the store, tokens and documents have them.

pub use types::instants::{instant, milliseconds, unix_seconds};
