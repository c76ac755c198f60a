#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! Values and bounds that every program knows: ids, errors of the resource API, messages between agent and gateway,
//! limits. No IO, no task, no clock. Stands on no other crate of this workspace; all others stand on it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`agent_api`] | what an agent asks its gateway beside users' requests: certificate, heartbeat, desired state |
//! | [`api`] | what the resource API is made of: ids, errors |
//! | [`bearer`] | the bytes that tokens consist of |
//! | [`ids`] | cluster ids and addresses, stream and request ids, parsed once |
//! | [`instants`] | instants as numbers and as RFC 3339 |
//! | [`json`] | JSON objects that every reader reads alike |
//! | [`known_hosts`] | keys of SSH servers, and those that everybody knows |
//! | [`limits`] | every bound on the wire, by name |
//! | [`operator_params`] | parameters of Flux 1, as far as Flux 2 knows what they mean |
//! | [`random`] | random bytes of the operating system |
//! | [`ssh_private`] | whether a text is a private key of SSH that can be used |
//! | [`version`] | versions and features that hello negotiates |
//! | [`window`] | maintenance windows |

pub mod agent_api;
pub mod api;
pub mod bearer;
pub mod ids;
pub mod instants;
pub mod json;
pub mod known_hosts;
pub mod limits;
pub mod operator_params;
pub mod random;
pub mod ssh_private;
pub mod version;
pub mod window;
