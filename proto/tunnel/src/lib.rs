#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! How users' requests get from the gateway to an agent: the wire format, the tunnel and its carriers, and the mapping
//! of an HTTP exchange onto a stream. Stands on `types` and `daemon`; knows no tokens and no roles. A module uses only
//! those above it here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the bytes: hello, head, control, endings; no IO, no clock |
//! | [`transport`] | the `Tunnel` trait, the session that all carriers share, and the carriers |
//! | [`exchange`] | one HTTP exchange on one stream |

pub mod exchange;
#[doc(hidden)]
pub mod fuzz;
mod headers;
pub mod transport;
pub mod wire;
