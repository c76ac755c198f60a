#![cfg_attr(test, allow(clippy::unwrap_used))]
//! placeholder

pub mod issuer;
