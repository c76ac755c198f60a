//! The loop of a listener.

use std::{net::SocketAddr, time::Duration};

use daemon::Shutdown;
use tokio::net::{TcpListener, TcpStream};

/// A pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The next connection at `listener`, which is for `whom`; none any more once the gateway drains.
pub async fn next(shutdown: &Shutdown, listener: &TcpListener, whom: &str) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.draining() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => return Some(accepted),
            Err(error) => {
                tracing::warn!(%error, whom, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
