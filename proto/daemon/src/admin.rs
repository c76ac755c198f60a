//! Serves a program's admin listener: plain HTTP/1.1, small answers, few clients.
//!
//! It asks for no credential, and its connections count against the files that the whole process may open. So they are
//! bounded, and where all places are taken the oldest connection goes: whoever holds every place keeps out neither a
//! probe nor an operator, and takes nothing from users and tunnels.

use std::{collections::VecDeque, convert::Infallible, error::Error, time::Duration};

use bytes::Bytes;
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::HttpService};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::{Task, TaskGroup, chain};

/// Connections at once.
pub const CONNECTIONS: usize = 64;
/// How long a request head may take, and a connection be idle.
const HEAD: Duration = Duration::from_secs(30);
/// A pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until dropped; what is open then ends with it.
pub async fn serve<S, B>(listener: TcpListener, service: S)
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let tasks = TaskGroup::new("admin");
    // The oldest first.
    let mut open: VecDeque<Task<()>> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin listener");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == CONNECTIONS {
            // Dropped, and so aborted.
            open.pop_front();
        }
        let service = service.clone();
        open.push_back(tasks.spawn_task("connection", async move {
            if let Err(error) = connection(socket, service).await {
                tracing::debug!(error = %chain(&error), "a connection to the admin listener broke off");
            }
        }));
    }
}

async fn connection<S, B>(socket: TcpStream, service: S) -> hyper::Result<()>
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(socket), service)
        .await
}

#[cfg(test)]
mod tests {
    use std::{io, net::SocketAddr};

    use http::Response;
    use http_body_util::Full;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn start(tasks: &TaskGroup) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = service_fn(async |_| Ok(Response::new(Full::new(Bytes::from_static(b"ok")))));
        tasks.spawn("admin", serve(listener, service));
        address
    }

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// They had no bound: a few thousand took the process's last open file, and with it its users' connections.
    #[tokio::test]
    async fn who_holds_every_place_keeps_nobody_out_and_no_files() {
        let tasks = TaskGroup::new("test");
        let address = start(&tasks).await;
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS * 3 {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(b"GET /hea").await.unwrap();
            held.push(socket);
        }
        assert!(ask(address).await.unwrap().starts_with("HTTP/1.1 200"));
        // Accepted in turn, so all but the last ones are gone by now.
        for socket in &mut held[..CONNECTIONS * 2] {
            assert!(matches!(socket.read(&mut [0; 64]).await, Ok(0) | Err(_)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_ends_the_connection() {
        let tasks = TaskGroup::new("test");
        let mut socket = TcpStream::connect(start(&tasks).await).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx:").await.unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2"));
    }
}
