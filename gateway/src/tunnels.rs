//! Tunnels that agents dialled: listeners per carrier, the hello, and the session that owns a tunnel. Requests find
//! live tunnels in [`crate::fleet::registry`].
//!
//! Who an agent is comes from its certificate alone: the cluster in it must be registered, and nothing that
//! the agent says about itself counts.

pub mod accept;
pub mod handshake;
pub mod session;
pub mod spread;
pub mod websocket;
