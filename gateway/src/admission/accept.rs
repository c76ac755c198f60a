//! The loop of a listener.

use std::{net::SocketAddr, time::Duration};

use tokio::net::{TcpListener, TcpStream};

/// A pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The next connection at `listener`, which is for `whom`; `None` if `end` completes first.
pub async fn next(
    end: impl Future<Output = ()>,
    listener: &TcpListener,
    whom: &str,
) -> Option<(TcpStream, SocketAddr)> {
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut end => return None,
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
