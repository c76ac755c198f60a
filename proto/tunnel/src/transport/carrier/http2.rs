//! Carriers 2 and 3: one HTTP/2 session over any byte stream. The gateway is the HTTP/2 client. The agent opens streams
//! from a stock of parked ones that the gateway keeps filled.
//!
//! A raw stream is one request (`POST /s`) and its answer; the answer's headers leave with its first bytes. A parked
//! stream is a request (`POST /p`) whose answer begins when the agent opens it. HTTP/2 has no stop, so stop travels as
//! a control message; when both halves of a stream were dropped, h2 flushes what is queued and sends `RST_STREAM` with
//! NO_ERROR or CANCEL, which says "no more" to the writer at the other end.

mod body;
mod connection;
mod shelf;
mod streams;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use connection::Link;
pub use connection::{client_side, server_side};
pub(crate) use streams::{H2Recv, H2Send};
use tokio::net::TcpStream;
use types::limits;

/// The ALPN name of carriers 1 and 2.
pub const ALPN: &[u8] = b"towline/1";

/// What to give `set_buffer_limit` of a tunnel's TLS connection, in bytes: one large frame in one go.
pub const TLS_BUFFER_BYTES: usize = 2 * limits::CHUNK_BYTES;

/// Streams that one session bears: users', parked, control.
const STREAMS: u32 = limits::STREAMS_PER_TUNNEL + limits::PARKED_STREAMS_MAX as u32 + 1;
/// How long a stopped writer may take to end.
const STOPPED: Duration = Duration::from_secs(30);

/// Bytes queued unsent in the kernel above which a socket takes no more: what has been handed to the kernel delays
/// control messages and other streams.
const UNSENT_BYTES: u32 = 128 * 1024;

/// Socket options of a tunnel's TCP connection: no delay, little queued unsent in the kernel.
pub fn tune_tcp(socket: &TcpStream) {
    // Each is an optimisation; a system that refuses one still works.
    let _ = socket.set_nodelay(true);
    let socket = socket2::SockRef::from(socket);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES);
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, UNSENT_BYTES);
}
