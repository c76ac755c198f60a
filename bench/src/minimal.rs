//! What the libraries that Towline is made of cost by themselves: two reverse proxies in a row made of hyper and
//! rustls, of which the second one dials out, and all requests cross on that one HTTP/2 connection, a stream each, in
//! messages of a WebSocket or without; or on one of quinn's, an exchange of HTTP/1.1 on each stream. Nobody is asked
//! who they are, nothing is recorded, and nothing has a bound. Started by `run`; no gateway that is built alike and
//! does more can cost less.

mod idle;
mod inner;
mod outer;
mod quic;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use http::{HeaderValue, Request, Response, Version, header, uri::PathAndQuery};
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::{http1, http2},
    service::HttpService,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::certificates;

/// Frames of the connection between both, as large as Towline's.
const FRAME: u32 = 256 << 10;
/// Streams of a connection, more than any scenario opens.
const STREAMS: u32 = 20_000;
/// Bytes that a stream, and a connection, may send before they are read: as load and upstream.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// One of both.
#[derive(clap::Subcommand)]
pub enum Hop {
    /// Ends the TLS of users, and sends on what they ask.
    Outer(Outer),
    /// Dials the first one, and asks the upstream.
    Inner(Inner),
    /// Many who dial the first one over QUIC and have nothing to do; what they are told comes on standard input.
    Idle,
}

/// The one that users reach.
#[derive(clap::Args)]
pub struct Outer {
    /// Where users come in.
    #[arg(long)]
    listen: SocketAddr,
    /// Where the site dials in.
    #[arg(long)]
    tunnel: SocketAddr,
    /// Certificate chain, PEM.
    #[arg(long)]
    certificate: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// What the site dials in over.
    #[arg(long)]
    over: Over,
}

/// The one at the site.
#[derive(clap::Args)]
pub struct Inner {
    /// Where to dial in.
    #[arg(long)]
    connect: String,
    /// The authority of who answers there.
    #[arg(long)]
    ca: PathBuf,
    /// `host:port`.
    #[arg(long)]
    upstream: String,
    /// The name in the upstream's certificate.
    #[arg(long)]
    upstream_name: String,
    /// The authority of it.
    #[arg(long)]
    upstream_ca: PathBuf,
    /// Ask the upstream over one connection of HTTP/2, as Towline's agent does; over HTTP/1.1 without, as nginx does.
    #[arg(long)]
    h2: bool,
    /// What to dial in over.
    #[arg(long)]
    over: Over,
}

/// What is between both.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// HTTP/2 over TLS.
    Http2,
    /// The same in messages of a WebSocket.
    Websocket,
    /// An exchange of HTTP/1.1 on each stream of a QUIC connection.
    Quic,
}

/// Serves until it is killed.
///
/// # Errors
/// Files that cannot be read, an address that cannot be listened on.
#[tokio::main(flavor = "current_thread")]
pub async fn run(hop: Hop) -> anyhow::Result<()> {
    match hop {
        Hop::Outer(args) => outer::run(&args).await,
        Hop::Inner(args) => inner::run(args).await,
        Hop::Idle => idle::run().await,
    }
}

/// Answers what comes over a connection, until that ends.
async fn serve<S, B>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    h2: bool,
    service: S,
) -> anyhow::Result<()>
where
    S: HttpService<Incoming, ResBody = B, Error = anyhow::Error> + Clone,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error = hyper::Error> + Send + 'static,
{
    let (io, timer) = (TokioIo::new(io), TokioTimer::new());
    if h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(timer).max_concurrent_streams(STREAMS).max_frame_size(FRAME);
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        Ok(builder.serve_connection(io, service).await?)
    } else {
        Ok(http1::Builder::new().timer(timer).serve_connection(io, service).await?)
    }
}

/// Dials and proves who answers, over a protocol.
async fn dial(address: &str, name: &str, ca: &Path, protocol: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned())?;
    let mut tls =
        rustls::ClientConfig::builder().with_root_certificates(certificates::roots(ca)?).with_no_client_auth();
    tls.alpn_protocols = vec![protocol.to_vec()];
    let tcp = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    tcp.set_nodelay(true)?;
    TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.context("TLS")
}

/// HTTP/2 that asks over a connection.
async fn ask<B>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<(hyper::client::conn::http2::SendRequest<B>, impl Future<Output = hyper::Result<()>>)>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.max_frame_size(FRAME);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    Ok(builder.handshake(TokioIo::new(io)).await?)
}

/// The same request to another host, as HTTP/2 spells it.
fn readdress<B>(request: &mut Request<B>, authority: &str) -> anyhow::Result<()> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("https://{authority}{path}").parse()?;
    request.headers_mut().remove(header::HOST);
    Ok(())
}

/// The same as HTTP/1.1 spells it.
fn readdress_http1<B>(request: &mut Request<B>, authority: &str) -> anyhow::Result<()> {
    *request.version_mut() = Version::HTTP_11;
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = path.into();
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(authority)?);
    Ok(())
}
