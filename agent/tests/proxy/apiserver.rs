//! A scripted apiserver: TCP and TLS, and the raw bytes of each request as they came. HTTP libraries normalise; tests
//! judge these bytes.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use agent::roles::kube_aad_proxy::dial::access::Access;
use certs::{Authority, Roots, ServerCertificate, Validity};
use daemon::TaskGroup;
use rustls::pki_types::ServerName;
use secrecy::SecretString;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The agent's own credential at this apiserver.
pub const OWN_TOKEN: &str = "agent-own-token";

/// What the apiserver does with a request.
pub enum Act {
    /// Writes these bytes.
    Write(Vec<u8>),
    /// Answers 200 with this body.
    Ok(&'static str),
    /// Gives back what comes, until the peer ends its direction; then ends its own.
    Echo,
    /// Waits until the test lets it go on.
    Wait(Arc<Notify>),
    /// Waits until the peer has gone.
    Hang,
    /// Closes the connection.
    Close,
}

impl Act {
    pub fn write(text: &str) -> Self {
        Self::Write(text.as_bytes().to_vec())
    }
}

/// What came on the connections, in the order of their acceptance.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// Head and body of each request: the connection's number and the bytes.
    pub requests: Vec<(usize, Vec<u8>)>,
    /// Heads, also of requests whose body is not whole yet.
    pub heads: usize,
    /// Connections that the peer closed or broke off.
    pub gone: usize,
}

pub struct Apiserver {
    pub address: SocketAddr,
    roots: Roots,
    seen: Arc<watch::Sender<Seen>>,
    tasks: TaskGroup,
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

type Script = Arc<Mutex<dyn FnMut(&str) -> Vec<Act> + Send>>;

impl Apiserver {
    /// HTTP/1.1 only; `script` is asked with each request's head.
    pub async fn start(script: impl FnMut(&str) -> Vec<Act> + Send + 'static) -> Self {
        let seen = Arc::new(watch::Sender::new(Seen::default()));
        let script: Script = Arc::new(Mutex::new(script));
        let records = seen.clone();
        let (address, roots, tasks) = listen(&[b"http/1.1"], move |stream, number| {
            let (script, records) = (script.clone(), records.clone());
            async move { serve(stream, number, &script, &records).await }
        })
        .await;
        Self { address, roots, seen, tasks }
    }

    pub fn access(&self) -> Access {
        access(self.address, &self.roots)
    }

    /// Each request so far, as text.
    pub fn requests(&self) -> Vec<String> {
        self.seen.borrow().requests.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// The connection of each request so far.
    pub fn connections(&self) -> Vec<usize> {
        self.seen.borrow().requests.iter().map(|(number, _)| *number).collect()
    }

    /// Waits until what was seen is as said.
    pub async fn until(&self, mut wanted: impl FnMut(&Seen) -> bool) {
        let waited = self.seen.subscribe();
        let mut waited = waited;
        tokio::time::timeout(std::time::Duration::from_secs(20), waited.wait_for(|seen| wanted(seen)))
            .await
            .expect("the apiserver saw it in time")
            .unwrap();
    }
}

/// A listener with a task for each connection whose handshake is done, which is given its number.
pub async fn listen<F>(
    alpn: &[&[u8]],
    serve: impl Fn(TlsStream<TcpStream>, usize) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, Roots, TaskGroup)
where
    F: Future<Output = ()> + Send,
{
    let (acceptor, roots) = tls(alpn);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = TaskGroup::new("apiserver");
    let spawner = tasks.clone();
    tasks.spawn("accept", async move {
        for number in 0.. {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, serve) = (acceptor.clone(), serve.clone());
            spawner.spawn("connection", async move {
                if let Ok(stream) = acceptor.accept(tcp).await {
                    serve(stream, number).await;
                }
            });
        }
    });
    (address, roots, tasks)
}

/// A fresh authority and a server of `127.0.0.1`.
pub fn tls(alpn: &[&[u8]]) -> (TlsAcceptor, Roots) {
    let authority = Authority::create("test", Validity::days(1)).unwrap();
    let issued = authority.issue_server(&["127.0.0.1"], Validity::days(1)).unwrap();
    let certificate = ServerCertificate::new(issued.credentials());
    let mut config = certs::tls::server_public(certificate, None).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), authority.roots().unwrap())
}

pub fn access(address: SocketAddr, roots: &Roots) -> Access {
    let tls = certs::tls::client_https(roots).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    Access::fixed("127.0.0.1", address.port(), name, tls, &SecretString::from(OWN_TOKEN)).unwrap()
}

async fn serve(mut stream: TlsStream<TcpStream>, number: usize, script: &Script, seen: &watch::Sender<Seen>) {
    let mut buffer = Vec::new();
    loop {
        let Some(head) = read_head(&mut stream, &mut buffer).await else { break };
        seen.send_modify(|seen| seen.heads += 1);
        let text = String::from_utf8_lossy(&head).into_owned();
        let mut whole = head;
        let Some(body) = body(&mut stream, &mut buffer, &text).await else { break };
        whole.extend_from_slice(&body);
        seen.send_modify(|seen| seen.requests.push((number, whole)));
        let acts = (script.lock().unwrap())(&text);
        for act in acts {
            match act {
                Act::Write(bytes) => {
                    if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                        break;
                    }
                }
                Act::Ok(text) => {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.flush().await;
                }
                Act::Echo => {
                    let (mut from, mut to) = tokio::io::split(&mut stream);
                    let _ = to.write_all(&std::mem::take(&mut buffer)).await;
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                    let _ = to.shutdown().await;
                    seen.send_modify(|seen| seen.gone += 1);
                    return;
                }
                Act::Wait(go) => go.notified().await,
                Act::Hang => {
                    while stream.read_buf(&mut buffer).await.is_ok_and(|got| got > 0) {}
                    seen.send_modify(|seen| seen.gone += 1);
                    return;
                }
                Act::Close => {
                    let _ = stream.shutdown().await;
                    return;
                }
            }
        }
    }
    seen.send_modify(|seen| seen.gone += 1);
}

/// The next request's head, whole; `buffer` keeps what came behind it.
pub async fn read_head(stream: &mut TlsStream<TcpStream>, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut seen = 0usize;
    loop {
        let from = seen.saturating_sub(3);
        if let Some(end) = buffer[from..].windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| from + at) {
            let rest = buffer.split_off(end + 4);
            return Some(std::mem::replace(buffer, rest));
        }
        seen = buffer.len();
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// The body as raw bytes, chunk framing included.
async fn body(stream: &mut TlsStream<TcpStream>, buffer: &mut Vec<u8>, head: &str) -> Option<Vec<u8>> {
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")).map(|text| text.trim().parse());
    let complete = |buffer: &[u8]| match length {
        Some(Ok(length)) => (buffer.len() >= length).then_some(length),
        Some(Err(_)) => Some(0),
        None if lower.contains("transfer-encoding: chunked") => {
            buffer.windows(5).position(|bytes| bytes == b"0\r\n\r\n").map(|at| at + 5)
        }
        None => Some(0),
    };
    loop {
        if let Some(end) = complete(buffer) {
            let rest = buffer.split_off(end);
            return Some(std::mem::replace(buffer, rest));
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
