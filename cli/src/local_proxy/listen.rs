//! The local listener: TLS with a certificate of this run's own, HTTP/1.1 and HTTP/2.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use certs::{Authority, ServerCertificate, Validity};
use daemon::{Shutdown, TaskGroup};
use hyper::{server::conn, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use types::limits;

use super::{
    forward::Forward,
    places::{Guest, Places},
};
use crate::failure::{Failure, Outcome};

/// Where the first proxy of a machine listens, as Arc's does (docs/features.md K3).
pub const FIRST_PORT: u16 = 47011;
/// Ports tried from there on.
const PORTS: u16 = 100;
/// Local connections at once.
const CONNECTIONS: usize = 2048;
/// How long a client's TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a request's head may take on HTTP/1.1.
const HEAD: Duration = Duration::from_secs(30);
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 1000;
/// After a failed accept (no file descriptors): time for others to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Life of this run's certificate.
const CERTIFICATE_DAYS: u32 = 365;

/// Binds the asked port, or 47011 or the next one that is free.
pub async fn bind(asked: Option<u16>) -> Outcome<TcpListener> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Some(port) = asked {
        return TcpListener::bind(at(port)).await.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Failure::from(anyhow!(
                "The proxy port {port} is already in use, potentially by another proxy instance."
            ))
            .hint("select a different port with --port option, or leave it out for one that is free"),
            _ => Failure::from(anyhow!(error).context(format!("cannot listen on 127.0.0.1:{port}"))),
        });
    }
    for port in FIRST_PORT..FIRST_PORT + PORTS {
        match TcpListener::bind(at(port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(anyhow!(error).context(format!("cannot listen on 127.0.0.1:{port}")).into()),
        }
    }
    let last = FIRST_PORT + PORTS - 1;
    Err(Failure::from(anyhow!("The proxy ports {FIRST_PORT} to {last} are all in use."))
        .hint("select a different port with --port option"))
}

/// A listener with its certificate.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    ca: String,
}

impl Listener {
    /// Makes the certificate.
    pub fn new(tcp: TcpListener) -> anyhow::Result<Self> {
        let authority = Authority::create("towline proxy", Validity::days(CERTIFICATE_DAYS))?;
        let own = authority.issue_server(&["127.0.0.1", "localhost"], Validity::days(CERTIFICATE_DAYS))?;
        let mut tls = certs::tls::server_public(ServerCertificate::new(own.credentials()), None)?;
        tls.alpn_protocols = vec![certs::tls::ALPN_H2.to_vec(), certs::tls::ALPN_HTTP11.to_vec()];
        let ca = authority.certificate_pem().to_owned();
        Ok(Self { tcp, tls: TlsAcceptor::from(Arc::new(tls)), ca })
    }

    /// PEM of the authority that clients must trust; its key is forgotten already.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// The TCP port that the listener is bound to.
    pub fn port(&self) -> anyhow::Result<u16> {
        Ok(self.tcp.local_addr()?.port())
    }

    /// Accepts until draining.
    pub async fn run(self, forward: Arc<Forward>, tasks: TaskGroup, shutdown: Shutdown) {
        let mut places = Places::new(CONNECTIONS);
        loop {
            let stream = match shutdown.until_draining(self.tcp.accept()).await {
                None => return,
                Some(Ok((stream, _))) => stream,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a local connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(Some((place, guest))) = shutdown.until_draining(places.take()).await else { return };
            let (tls, forward, shutdown, inner) = (self.tls.clone(), forward.clone(), shutdown.clone(), tasks.clone());
            tasks.spawn("connection", async move {
                let _place = place;
                let serving = async {
                    if let Some(stream) = handshake(tls, stream).await {
                        serve(stream, forward, guest.clone(), inner, shutdown).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = guest.leaving() => tracing::debug!("a local connection that showed no token made room"),
                    () = serving => {}
                }
            });
        }
    }
}

async fn handshake(tls: TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    // Without it small writes of an interactive session wait; with it they only cost packets.
    let _ = stream.set_nodelay(true);
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS with a local client failed");
            None
        }
        Err(_) => None,
    }
}

async fn serve(
    stream: TlsStream<TcpStream>,
    forward: Arc<Forward>,
    guest: Arc<Guest>,
    tasks: TaskGroup,
    shutdown: Shutdown,
) {
    let h2 = stream.get_ref().1.alpn_protocol() == Some(certs::tls::ALPN_H2);
    let service = service_fn(move |request| {
        let (forward, guest) = (forward.clone(), guest.clone());
        async move { Ok::<_, std::convert::Infallible>(forward.serve(request, &guest).await) }
    });
    let io = TokioIo::new(stream);
    let result = if h2 {
        let mut builder = conn::http2::Builder::new(tasks);
        builder
            .timer(TokioTimer::new())
            .adaptive_window(true)
            // As the gateway has them: what is over its limits is its to refuse, and not a broken connection here.
            .max_frame_size(limits::USER_FRAME_BYTES)
            .max_concurrent_streams(STREAMS)
            // The library's 20 are what a starved proxy reads at once of a program that gives up.
            .max_pending_accept_reset_streams(limits::RESET_STREAMS)
            .max_header_list_size(limits::USER_HEADER_LIST_BYTES);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        tokio::select! {
            result = connection.as_mut() => result,
            () = shutdown.draining() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let mut builder = conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_headers(limits::HEADER_COUNT)
            .max_buf_size(limits::HEADER_LIST_BYTES + limits::CHUNK_BYTES)
            .half_close(true);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
        tokio::select! {
            result = connection.as_mut() => result,
            () = shutdown.draining() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a local connection broke off");
    }
}
