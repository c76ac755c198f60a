#![cfg_attr(test, allow(clippy::unwrap_used))]
//! The agent in a cluster: dials out to the gateway, keeps a tunnel up, and serves the streams that come through it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | valid settings |

pub mod config;
