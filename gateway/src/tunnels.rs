//! Tunnels that agents dialled: listeners per carrier, the hello, and the registry that requests look into.
//!
//! Who an agent is comes from its certificate alone: the cluster in it must be registered, and nothing that
//! the agent says about itself counts.

pub mod accept;
pub mod handshake;
pub mod registry;
pub mod session;
pub mod websocket;
