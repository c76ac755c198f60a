//! Carriers 2 and 3: one HTTP/2 session over any byte stream. The gateway is the HTTP/2 client. The agent opens streams
//! from a stock of parked ones that the gateway keeps filled.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::carrier::{Carrier, CarrierError, Facts};

/// The ALPN name of carriers 1 and 2.
pub const ALPN: &[u8] = b"towline/1";

/// The gateway's end. `io` is the TLS stream after its handshake.
pub async fn client_side<T>(_io: T, _facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    todo!()
}

/// The agent's end.
pub async fn server_side<T>(_io: T, _facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    todo!()
}

/// Socket options of a tunnel's TCP connection: no delay, little queued unsent in the kernel.
pub fn tune_tcp(_socket: &TcpStream) {
    todo!()
}
