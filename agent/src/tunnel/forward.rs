//! Takes TCP connections and copies their bytes to the gateway and back, and to nothing else: one pod alone of a
//! cluster needs a way out. TLS on them is end to end with the gateway, so nothing is seen here and nothing is gained
//! by whoever reaches this listener that they would not have at the gateway itself.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use daemon::{Shutdown, TaskGroup};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::connect::{Connect as _, Connector};
use crate::{chain, metrics, peers::Peers};

/// Connections at once: one for each agent of the cluster's other Deployment, and those that they leave.
const CONNECTIONS_MAX: usize = 64;
/// From one address: a pod has one tunnel, those that drain beside it (8 at most), and an exchange for a certificate.
const CONNECTIONS_PER_PEER: usize = 16;
/// A connection on which nothing moves either way is closed: a tunnel's probes are far more frequent.
const IDLE: Duration = Duration::from_secs(300);
/// Bytes read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// After a failed accept, such as without free files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The listener, bound.
pub struct Forward {
    listener: TcpListener,
    connector: Arc<Connector>,
    peers: Peers,
}

impl Forward {
    /// Binds the listener; the connector opens a TCP connection to the gateway for each that is accepted.
    pub async fn bind(address: SocketAddr, connector: Arc<Connector>) -> std::io::Result<Self> {
        let peers = Peers::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER);
        Ok(Self { listener: TcpListener::bind(address).await?, connector, peers })
    }

    /// The bound address, with the real port if the setting says 0.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process is closed: while this agent drains, others still go through it.
    pub async fn run(&self, shutdown: Shutdown) {
        let tasks = TaskGroup::new("forward");
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.closed() => break,
                accepted = self.listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(err) => {
                    tracing::warn!(error = %err, "cannot accept a connection for the gateway");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Some(place) = self.peers.take(peer.ip()) else {
                metrics::forwarded("limit");
                tracing::warn!(
                    peer = %peer.ip(),
                    limit = CONNECTIONS_MAX,
                    limit_per_peer = CONNECTIONS_PER_PEER,
                    "too many connections go through this agent: one more is closed"
                );
                continue;
            };
            let connector = self.connector.clone();
            tasks.spawn("connection", async move {
                forward(socket, &connector).await;
                drop(place);
            });
        }
        tasks.abort();
    }
}

async fn forward(socket: TcpStream, connector: &Connector) {
    let mut last = None;
    for endpoint in 0..connector.endpoints() {
        match connector.open_gateway(endpoint).await {
            Ok((gateway, ..)) => {
                metrics::forwarded("open");
                let _ = socket.set_nodelay(true);
                copy(socket, gateway, IDLE).await;
                return;
            }
            Err(err) => last = Some(chain(&err)),
        }
    }
    metrics::forwarded("unreachable");
    tracing::warn!(error = last, "a connection for the gateway cannot be forwarded");
}

/// Copies both ways until both have ended, either broke, or nothing moved for `idle`.
async fn copy<A, B>(one: A, other: B, idle: Duration)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let ((from_one, to_one), (from_other, to_other)) = (tokio::io::split(one), tokio::io::split(other));
    let moved = AtomicU64::new(0);
    let both = async { tokio::try_join!(pipe(from_one, to_other, &moved), pipe(from_other, to_one, &moved)) };
    let silence = async {
        let mut seen = None;
        while seen != Some(moved.load(Ordering::Relaxed)) {
            seen = Some(moved.load(Ordering::Relaxed));
            tokio::time::sleep(idle).await;
        }
    };
    tokio::select! {
        biased;
        _ = both => {}
        () = silence => tracing::debug!("a forwarded connection was idle"),
    }
}

async fn pipe<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut from: R,
    mut to: W,
    moved: &AtomicU64,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut piece).await?;
        moved.fetch_add(1, Ordering::Relaxed);
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..read]).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_go_both_ways_and_each_end_ends_alone() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut gateway) = tokio::io::duplex(64);
        let copying = copy(near, far, IDLE);
        let talking = async {
            client.write_all(b"hello").await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = Vec::new();
            gateway.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"hello");
            gateway.write_all(b"well").await.unwrap();
            gateway.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"well");
        };
        tokio::join!(copying, talking);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_let_go() {
        let (_client, near) = tokio::io::duplex(64);
        let (far, _gateway) = tokio::io::duplex(64);
        let begun = tokio::time::Instant::now();
        copy(near, far, IDLE).await;
        assert_eq!(begun.elapsed(), IDLE);
    }
}
