//! What this process knows of clusters' agents while they are there. Nothing of it is kept beyond the process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`registry`] | the live tunnels by cluster |
//! | [`asked`] | how much agents ask |
//! | [`told`] | the metrics and log lines that they pushed last |

pub mod asked;
pub mod registry;
pub mod told;
pub mod ways_out;
