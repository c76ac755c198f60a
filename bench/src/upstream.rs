//! An upstream that answers at line rate, so that the upstream is not what is measured: small answers, bodies of any
//! length, a sink for uploads, watches, upgraded connections that send back what they get. HTTP/1.1 and HTTP/2 over
//! TLS.

pub mod echo;
pub mod events;
pub mod tally;

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use anyhow::Context;
use bytes::Bytes;
use daemon::TaskGroup;
use events::Events;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Either};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ConfigBuilder, ServerConfig, WantsVerifier,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What a path asks for: `/bench/bytes/<n>` is a body of `n` bytes, all else is small.
const BYTES: &str = "/bench/bytes/";
/// About what a small object of Kubernetes has.
const SMALL: &[u8] = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","message":"a small answer of an upstream that has nothing to do but to answer, of about the length of a small object","code":200}"#;
const CHUNK: usize = 64 << 10;
/// Streams of a connection, more than any scenario opens.
const STREAMS: u32 = 20_000;
/// Bytes that a stream, and a connection, may send before they are read: what Go's client, and so an apiserver's, have.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// The server behind a path, as the site reaches it.
#[derive(Clone)]
pub struct Upstream {
    /// `host:port`, as the site reaches it.
    pub address: String,
    /// The name in its certificate.
    pub name: &'static str,
    /// The authority of its certificate.
    pub ca: PathBuf,
    /// What users show to it.
    pub token: Option<String>,
    /// The kubeconfig that an agent is given.
    pub admin: PathBuf,
}

/// Arguments of the upstream's process.
#[derive(clap::Args)]
pub struct Args {
    /// Where to listen; the first line of standard output is the address.
    #[arg(long)]
    listen: SocketAddr,
    /// Certificate chain, PEM.
    #[arg(long)]
    certificate: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
}

/// Serves until it is killed.
///
/// # Errors
/// Files that cannot be read, an address that cannot be listened on.
#[tokio::main(flavor = "current_thread")]
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let acceptor = acceptor(&args.certificate, &args.key)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen at {}", args.listen))?;
    crate::print::say(&listener.local_addr()?.to_string());
    serve(&listener, &acceptor).await
}

/// TLS of a server, for HTTP/1.1 and HTTP/2.
///
/// # Errors
/// Files that cannot be read.
pub fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let mut tls = tls(rustls::ServerConfig::builder(), certificate, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

/// TLS of a server that asks nobody who they are.
///
/// # Errors
/// Files that cannot be read.
pub fn tls(
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
    certificate: &Path,
    key: &Path,
) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    Ok(builder.with_no_client_auth().with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?)
}

async fn serve(listener: &TcpListener, acceptor: &TlsAcceptor) -> anyhow::Result<()> {
    let tasks = TaskGroup::new("upstream");
    loop {
        let (tcp, _) = listener.accept().await?;
        let (acceptor, streams) = (acceptor.clone(), tasks.clone());
        tasks.spawn("connection", async move {
            // A peer that goes away ends its connection and nothing else.
            let _ = connection(tcp, &acceptor, streams).await;
        });
    }
}

async fn connection(tcp: TcpStream, acceptor: &TlsAcceptor, streams: TaskGroup) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let tls = acceptor.accept(tcp).await?;
    let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let (io, tasks) = (TokioIo::new(tls), streams.clone());
    let service = service_fn(move |request| answer(request, tasks.clone()));
    if h2 {
        let mut builder = http2::Builder::new(streams);
        builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        builder.serve_connection(io, service).await?;
    } else {
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(io, service).with_upgrades().await?;
    }
    Ok(())
}

async fn answer(
    mut request: Request<Incoming>,
    tasks: TaskGroup,
) -> Result<Response<Either<Repeated, Events>>, Infallible> {
    if let Some(asked) = echo::asked(&mut request) {
        return Ok(echo::switch(asked, &tasks, Response::new(Either::Left(Repeated::zeros(0)))));
    }
    let watch = Events::asked(request.uri().query());
    let length = request.uri().path().strip_prefix(BYTES).map(str::parse::<u64>);
    let reads = request.method() == Method::GET;
    let tallied = tally::number(request.uri().path());
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { break };
        if let (Some(number), Some(data)) = (tallied, frame.data_ref()) {
            tally::add(number, data.len() as u64);
        }
    }
    let told = tallied.map(|number| serde_json::to_vec(&tally::arrived(number)).unwrap_or_default());
    let (status, kind, body) = match length {
        None if told.is_some() => (StatusCode::OK, "application/json", Repeated::once(told.unwrap_or_default().into())),
        Some(Ok(length)) if reads => (StatusCode::OK, "application/octet-stream", Repeated::zeros(length)),
        Some(Err(_)) => (StatusCode::BAD_REQUEST, "application/json", Repeated::once(Bytes::from_static(b"{}"))),
        _ => (StatusCode::OK, "application/json", Repeated::once(Bytes::from_static(SMALL))),
    };
    let mut response = Response::new(watch.map_or(Either::Left(body), Either::Right));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    Ok(response)
}

/// A body that repeats one chunk, without a copy, until its length is reached.
pub struct Repeated {
    chunk: Bytes,
    left: u64,
}

impl Repeated {
    /// A body of `length` zeros.
    pub fn zeros(length: u64) -> Self {
        static ZEROS: [u8; CHUNK] = [0; CHUNK];
        Self { chunk: Bytes::from_static(&ZEROS), left: length }
    }

    fn once(chunk: Bytes) -> Self {
        Self { left: chunk.len() as u64, chunk }
    }
}

impl Body for Repeated {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let size = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.chunk.len());
        self.left -= size as u64;
        Poll::Ready(Some(Ok(Frame::data(self.chunk.slice(..size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An upstream of a test at a port of its own, with its certificate in `dir`.
    pub async fn start(dir: &Path, tasks: &TaskGroup) -> SocketAddr {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        crate::certificates::write(dir, &[("upstream", vec!["127.0.0.1".to_owned()])]).unwrap();
        let acceptor = acceptor(&dir.join("upstream.crt"), &dir.join("upstream.key")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn("upstream", async move { serve(&listener, &acceptor).await.unwrap() });
        address
    }

    #[tokio::test]
    async fn a_body_has_the_length_that_was_asked_for() {
        for length in [0, 1, CHUNK as u64, CHUNK as u64 + 1, 1_000_000] {
            let read = Repeated::zeros(length).collect().await.unwrap().to_bytes();
            assert_eq!(read.len() as u64, length);
        }
    }
}
