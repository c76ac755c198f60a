//! Carrier 1: QUIC on UDP, ALPN `towline/1`, native streams. Flow control of QUIC itself is set so wide that the
//! session's credit always decides first; stop with a code is QUIC's own.

mod congestion;
mod endpoint;
mod keep_alive;
mod streams;

#[cfg(test)]
pub(crate) use endpoint::carriers_over;
pub(crate) use endpoint::connect;
pub use endpoint::{Connecting, Listener, QuicOptions, ResetSecret, bare_connect, bare_listener};
pub(crate) use keep_alive::Peer;
pub(crate) use streams::{Link, QuicRecv, QuicSend};
