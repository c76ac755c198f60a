#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! What the gateway and the agent agree on: the wire format, the tunnel and its carriers, the mapping of an HTTP
//! exchange onto a stream, the verification of tokens, and what both programs need to be a process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`agent_api`] | what an agent asks its gateway beside users' requests: certificate, heartbeat, desired state |
//! | [`api`] | what the resource API is made of: ids, errors |
//! | [`ids`] | cluster ids and addresses, stream and request ids, parsed once |
//! | [`limits`] | every bound on the wire, by name |
//! | [`version`] | versions and features that hello negotiates |
//! | [`wire`] | the bytes: hello, head, control, endings; no IO, no clock |
//! | [`transport`] | the `Tunnel` trait, the session that all carriers share, and the carriers |
//! | [`exchange`] | one HTTP exchange on one stream |
//! | [`kubernetes`] | what an apiserver makes of a request |
//! | [`json`] | JSON objects that every reader reads alike |
//! | [`rbac`] | role definitions, assignments, and the decision over them |
//! | [`token`] | OIDC verification: issuers, key sets, claims to identity |
//! | [`process`] | signals, shutdown, task groups, telemetry, backoff |
//! | [`shares`] | bounded tables that nobody keeps others out of |
//! | [`settings`] | settings files: every fault of one at once; durations |

pub mod agent_api;
pub mod api;
pub mod exchange;
pub mod ids;
pub mod json;
pub mod kubernetes;
pub mod limits;
pub mod process;
pub mod rbac;
pub mod settings;
pub mod shares;
pub mod token;
pub mod transport;
pub mod version;
pub mod wire;
