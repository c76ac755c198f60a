#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]
//! The gateway on real sockets with real TLS; agents and users are played by hand. Heads are judged as they arrived at
//! the agent's end of the tunnel.

mod admin;
mod bad_input;
mod carriers;
mod enrolment;
mod hop;
mod hostile;
mod http2;
mod identity;
mod lifecycle;
mod liveness;
mod names;
mod paths;
mod placement;
mod process;
mod refused;
mod request;
mod sessions;
mod smuggling;
mod upgrade;
mod world;
