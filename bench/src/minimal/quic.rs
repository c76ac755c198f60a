//! The way between both hops where it is QUIC: one connection of quinn's, set as Towline's is, and on it a stream for
//! each request, with HTTP/1.1 and nothing of Towline's.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    net::{SocketAddr, UdpSocket},
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use daemon::TaskGroup;
use hyper::{client::conn::http1, service::HttpService};
use hyper_util::rt::TokioIo;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::version::TLS13;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, interval},
};
use tunnel::transport::quic;
use types::limits;

use super::{Body, Bytes, Context, Incoming, Outer, Request, Response};
use crate::{certificates, cipher, upstream};

/// Interval at which Towline's gateway tells each idle agent that it is there: a tenth of a period before the agent
/// would ask,
const EVERY: Duration = limits::PROBE_PERIOD.saturating_sub(Duration::from_millis(800));
/// and on the beat, together with all whose time has come.
const BEAT: Duration = Duration::from_millis(64);
/// What is told. Nobody reads it: the carrier's acknowledgement is the answer.
const SIGN: Bytes = Bytes::from_static(b".");
/// Bytes of a connection that may be sent before they are read: what Towline's grows to.
const CONNECTION_WINDOW: u64 = limits::CARRIER_WINDOW_BASE + limits::WINDOW_GROWTH_PER_TUNNEL;

/// The outer hop's endpoint.
pub fn listen(args: &Outer) -> anyhow::Result<Endpoint> {
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(cipher::quic()));
    let tls = upstream::tls(builder.with_protocol_versions(&[&TLS13])?, &args.certificate, &args.key)?;
    let socket = UdpSocket::bind(args.tunnel).with_context(|| format!("cannot listen at {}", args.tunnel))?;
    Ok(quic::bare_listener(socket, &tls)?)
}

/// A connection that came in.
pub async fn accept(incoming: quinn::Incoming) -> anyhow::Result<Connection> {
    Ok(widened(incoming.await?))
}

/// All that have come in, each with when it is told next. One that is in no such list, nor used, is closed.
#[derive(Clone, Default)]
pub struct Peers(Arc<Mutex<VecDeque<(Instant, Connection)>>>);

impl Peers {
    /// Adds a connection, which is sent its first datagram after one interval.
    pub fn add(&self, connection: Connection) {
        self.held().push_back((Instant::now() + EVERY, connection));
    }

    /// Tells each of them that this hop is there, a datagram each, as often as Towline's gateway does. quinn's own
    /// keep-alive costs more: each connection's comes at a moment of its own, and wakes a processor that has nothing
    /// else to do.
    pub async fn tell(&self) {
        let mut beats = interval(BEAT);
        loop {
            self.tell_due(beats.tick().await);
        }
    }

    fn tell_due(&self, now: Instant) {
        let mut peers = self.held();
        while peers.front().is_some_and(|(due, _)| *due <= now) {
            // Whom nothing can be sent any more is gone.
            let told = peers.pop_front().filter(|(_, peer)| peer.send_datagram(SIGN).is_ok());
            peers.extend(told.map(|(_, peer)| (now + EVERY, peer)));
        }
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(Instant, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// TLS of those who dial.
pub fn tls(ca: &Path) -> anyhow::Result<rustls::ClientConfig> {
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(cipher::quic()));
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    Ok(builder.with_root_certificates(certificates::roots(ca)?).with_no_client_auth())
}

/// Dials the outer hop. The endpoint has to live as long as its connection.
pub async fn dial(address: &str, tls: &rustls::ClientConfig) -> anyhow::Result<(Endpoint, Connection)> {
    let address: SocketAddr = address.parse().context("address:port")?;
    let (endpoint, connection) = quic::bare_connect(address, &address.ip().to_string(), tls).await?;
    Ok((endpoint, widened(connection)))
}

/// What Towline's session does once it knows its peer.
fn widened(connection: Connection) -> Connection {
    connection.set_receive_window(VarInt::from_u64(CONNECTION_WINDOW).unwrap_or(VarInt::MAX));
    connection
}

/// Asks over a stream of its own.
pub async fn ask(
    connection: &Connection,
    tasks: &TaskGroup,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Incoming>> {
    let (send, recv) = connection.open_bi().await?;
    let (mut sender, exchange) = http1::handshake(TokioIo::new(Stream { send, recv })).await?;
    tasks.spawn("exchange", async move {
        // The request tells how it ended.
        let _ = exchange.await;
    });
    Ok(sender.send_request(request).await?)
}

/// Answers what comes over a connection, until that ends.
pub async fn carry<S, B>(connection: &Connection, tasks: &TaskGroup, service: S) -> anyhow::Result<()>
where
    S: HttpService<Incoming, ResBody = B, Error = anyhow::Error> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error = hyper::Error> + Send + 'static,
{
    loop {
        let (send, recv) = connection.accept_bi().await?;
        let service = service.clone();
        tasks.spawn("exchange", async move {
            // A request that goes away ends its stream and nothing else.
            let _ = super::serve(Stream { send, recv }, false, service).await;
        });
    }
}

/// Both halves of a stream as one.
struct Stream {
    send: SendStream,
    recv: RecvStream,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }

    /// All that is there: what is copied for quinn is then copied only once, and its driver finds many packets to send.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut written = 0;
        for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
            match AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf) {
                Poll::Ready(Ok(count)) => {
                    written += count;
                    if count < buf.len() {
                        break;
                    }
                }
                // What was written counts; the rest is tried again.
                _ if written > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Over, *};

    async fn pair(dir: &Path) -> (Connection, (Endpoint, Connection)) {
        certificates::write(dir, &[("outer", vec!["127.0.0.1".to_owned()])]).unwrap();
        let any = ([127, 0, 0, 1], 0).into();
        let (certificate, key) = (dir.join("outer.crt"), dir.join("outer.key"));
        let listening = listen(&Outer { listen: any, tunnel: any, certificate, key, over: Over::Quic }).unwrap();
        let (address, tls) = (listening.local_addr().unwrap().to_string(), tls(&dir.join("ca.crt")).unwrap());
        let accepted = async { accept(listening.accept().await.unwrap()).await.unwrap() };
        let (accepted, dialled) = tokio::join!(accepted, dial(&address, &tls));
        (accepted, dialled.unwrap())
    }

    #[tokio::test]
    async fn who_has_gone_is_told_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (accepted, (_endpoint, dialled)) = pair(dir.path()).await;
        let peers = Peers::default();
        peers.add(accepted.clone());
        peers.tell_due(Instant::now());
        let due = peers.held()[0].0;
        peers.tell_due(due);
        assert_eq!(peers.held()[0].0, due + EVERY);
        assert_eq!(dialled.read_datagram().await.unwrap(), SIGN);
        dialled.close(VarInt::from_u32(0), b"");
        accepted.closed().await;
        peers.tell_due(due + EVERY);
        assert!(peers.held().is_empty());
    }

    #[tokio::test]
    async fn all_that_is_written_at_once_arrives_in_order() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let dir = tempfile::tempdir().unwrap();
        let (accepted, (_endpoint, dialled)) = pair(dir.path()).await;
        let wanted: Vec<u8> = (0..=250).cycle().take(1_000_000).collect();
        let given = wanted.clone();
        let write = async {
            let (send, recv) = accepted.open_bi().await.unwrap();
            let (mut stream, mut left) = (Stream { send, recv }, &given[..]);
            while !left.is_empty() {
                let parts: Vec<_> = left.chunks(40_000).map(IoSlice::new).collect();
                let written = stream.write_vectored(&parts).await.unwrap();
                left = &left[written..];
            }
            stream.shutdown().await.unwrap();
            stream
        };
        let read = async {
            let (send, recv) = dialled.accept_bi().await.unwrap();
            let (mut stream, mut seen) = (Stream { send, recv }, Vec::new());
            stream.read_to_end(&mut seen).await.unwrap();
            seen
        };
        let (_stream, seen) = tokio::join!(write, read);
        assert!(seen == wanted, "{} bytes", seen.len());
    }
}
