//! Roles of the agent that the gateway opens streams to, as [`RequestHead::role`](super::head::RequestHead::role) names
//! them. Roles of the gateway that agents open streams to are in [`types::agent_api`].

/// Passes a user's request to the apiserver.
pub const KUBE_AAD_PROXY: &str = "kube-aad-proxy";
/// Extends a user's open sessions with a newer token.
pub const REFRESH: &str = "refresh";
/// Tells what the agent makes of a token.
pub const WHOAMI: &str = "whoami";
