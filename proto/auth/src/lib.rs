#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! Who calls, and what they may do: the same code decides at the gateway and at the agent. Stands on `types`, `daemon`
//! (settings, connections) and `certs`; knows no tunnel.
//!
//! | module | what it holds |
//! |---|---|
//! | [`token`] | OIDC verification: issuers, key sets, claims to identity |
//! | [`kubernetes`] | what an apiserver makes of a request |
//! | [`rbac`] | role definitions, assignments, and the decision over them |

pub mod kubernetes;
pub mod rbac;
pub mod token;
