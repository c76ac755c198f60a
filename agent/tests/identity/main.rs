#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]
//! The identity of a cluster: what the agent asks its gateway, when, and what it makes of the answers.

mod enrolment;
mod gateway;
mod issuer_keys;
mod operator;
mod roles;
mod tokens;
