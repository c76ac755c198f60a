//! Connections and requests of a load: HTTP/1.1 and HTTP/2 over TLS. Connections are opened before the measurement, so
//! that no request waits for one; those that fail are tried again by the requests that need them.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use daemon::TaskGroup;
use futures_util::future::join_all;
use http::{HeaderValue, Method, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;
use rustls::{client::Resumption, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    sync::{Mutex, Semaphore},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Connections, Request, meter::Meter, pipe::Pipe};
use crate::{
    certificates,
    upstream::{Repeated, echo, tally},
};

/// Bytes that a stream, and a connection, may send before they are read: what Go's client, and so kubectl, allows.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// A connection that is not there within this is left to the request that needs it, which fails by itself.
const OPENING: Duration = Duration::from_secs(10);
/// Bytes of a body that nobody waits for the end of.
const ENDLESS: u64 = 1 << 40;

type Outgoing = Either<Full<Bytes>, Repeated>;

/// Where requests go.
pub struct Target {
    authority: String,
    prefix: String,
    name: ServerName<'static>,
    bearer: Option<HeaderValue>,
    h1: TlsConnector,
    h2: TlsConnector,
}

impl Target {
    /// Of an URL.
    ///
    /// # Errors
    /// An URL or an authority that cannot be read.
    pub fn new(url: &str, ca: &Path, token: Option<&str>) -> anyhow::Result<Self> {
        let uri: http::Uri = url.parse().with_context(|| url.to_owned())?;
        let authority = uri.authority().context("an URL without a host")?.to_string();
        let roots = certificates::roots(ca)?;
        let connector = |alpn: &[u8]| {
            let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots.clone()).with_no_client_auth();
            tls.alpn_protocols = vec![alpn.to_vec()];
            // A new connection is that of a new process, such as kubectl's.
            tls.resumption = Resumption::disabled();
            TlsConnector::from(Arc::new(tls))
        };
        let bearer = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose()?;
        Ok(Self {
            name: ServerName::try_from(uri.host().context("an URL without a host")?.to_owned())?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            h1: connector(b"http/1.1"),
            h2: connector(b"h2"),
            bearer,
            authority,
        })
    }

    async fn connect(&self, connector: &TlsConnector) -> anyhow::Result<TokioIo<TlsStream<TcpStream>>> {
        let tcp = TcpStream::connect(&self.authority).await.context("connect")?;
        tcp.set_nodelay(true)?;
        Ok(TokioIo::new(connector.connect(self.name.clone(), tcp).await.context("TLS")?))
    }

    /// A request of any kind over HTTP/2.
    fn other(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<http::Request<Outgoing>> {
        let Self { prefix, authority, bearer, .. } = self;
        let mut message = http::Request::builder().method(method).uri(format!("https://{authority}{prefix}{path}"));
        if let Some(bearer) = bearer {
            message = message.header(header::AUTHORIZATION, bearer);
        }
        Ok(message.body(Either::Left(Full::new(body)))?)
    }

    fn message(&self, request: Request, h2: bool) -> anyhow::Result<http::Request<Outgoing>> {
        let Self { prefix, authority, bearer, .. } = self;
        let (method, path, body) = match request {
            Request::Small => (Method::GET, "/bench/small".to_owned(), Either::Left(Full::default())),
            Request::Download(bytes) | Request::Stall(bytes) => {
                (Method::GET, format!("/bench/bytes/{bytes}"), Either::Left(Full::default()))
            }
            Request::Echo(_) => (Method::GET, echo::PATH.to_owned(), Either::Left(Full::default())),
            Request::Pour(number) => (Method::PUT, tally::path(number), Either::Right(Repeated::zeros(ENDLESS))),
            Request::Upload(bytes) => (Method::PUT, "/bench/sink".to_owned(), Either::Right(Repeated::zeros(bytes))),
        };
        let mut message = http::Request::builder().method(method);
        message = if h2 {
            message.uri(format!("https://{authority}{prefix}{path}"))
        } else {
            message.uri(format!("{prefix}{path}")).header(header::HOST, authority)
        };
        if let Some(bearer) = bearer {
            message = message.header(header::AUTHORIZATION, bearer);
        }
        Ok(message.body(body)?)
    }
}

/// A user, or many, with the connections of a load.
pub struct Client {
    target: Arc<Target>,
    tasks: TaskGroup,
    pool: Pool,
}

/// A connection, once it was needed.
type Slot = Mutex<Option<http2::SendRequest<Outgoing>>>;

enum Pool {
    Http2 { slots: Vec<Slot>, next: AtomicUsize },
    Http1(Kept<http1::SendRequest<Outgoing>>),
    Upgraded(Kept<Pipe>),
    Fresh,
}

/// Connections of which each has one thing under way at a time, and is given back after it.
struct Kept<T> {
    permits: Semaphore,
    idle: std::sync::Mutex<VecDeque<T>>,
}

impl<T> Kept<T> {
    /// Room for `count`.
    fn new(count: usize) -> Self {
        Self { permits: Semaphore::new(count.max(1)), idle: std::sync::Mutex::default() }
    }

    /// Opens all of them. Those that fail are missing.
    async fn fill<F: Future<Output = anyhow::Result<T>>>(&self, open: impl Fn() -> F) {
        let opened = join_all((0..self.permits.available_permits()).map(|_| timeout(OPENING, open()))).await;
        self.idle().extend(opened.into_iter().flatten().flatten());
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Connects when requests are sent.
    pub fn new(target: Arc<Target>, connections: Connections) -> Self {
        let pool = match connections {
            Connections::Http2(count) => {
                Pool::Http2 { slots: (0..count.max(1)).map(|_| Mutex::default()).collect(), next: AtomicUsize::new(0) }
            }
            Connections::Http1(count) => Pool::Http1(Kept::new(count)),
            Connections::Upgraded(count) => Pool::Upgraded(Kept::new(count)),
            Connections::Fresh => Pool::Fresh,
        };
        Self { target, tasks: TaskGroup::new("connections"), pool }
    }

    /// Opens the connections that are kept, so that no request waits for one. Those that fail are tried again by
    /// requests.
    pub async fn connect(&self) {
        match &self.pool {
            Pool::Http2 { slots, .. } => {
                let open = slots.iter().map(async |slot| *slot.lock().await = self.open_http2().await.ok());
                join_all(open).await;
            }
            Pool::Http1(kept) => kept.fill(|| self.open_http1()).await,
            Pool::Upgraded(kept) => kept.fill(|| self.open_upgraded()).await,
            Pool::Fresh => {}
        }
    }

    /// One request to the end of its answer; the bytes of the larger body.
    ///
    /// # Errors
    /// Whatever keeps it from ending with 200 and all that was asked for.
    pub async fn send(&self, request: Request, meter: &Meter) -> anyhow::Result<u64> {
        match &self.pool {
            Pool::Http2 { slots, next } => {
                let mut sender = self.kept_http2(slots, next).await?;
                exchange(sender.send_request(self.target.message(request, true)?), request, meter).await
            }
            Pool::Http1(kept) => {
                let _permit = kept.permits.acquire().await?;
                let idle = kept.idle().pop_front();
                let mut sender = match idle.filter(|sender| !sender.is_closed()) {
                    Some(sender) => sender,
                    None => self.open_http1().await?,
                };
                sender.ready().await.context("ready")?;
                let outcome =
                    exchange(sender.send_request(self.target.message(request, false)?), request, meter).await?;
                kept.idle().push_back(sender);
                Ok(outcome)
            }
            Pool::Upgraded(kept) => {
                let Request::Echo(bytes) = request else { bail!("no requests over upgraded connections") };
                let _permit = kept.permits.acquire().await?;
                let idle = kept.idle().pop_front();
                let mut pipe = match idle {
                    Some(pipe) => pipe,
                    None => self.open_upgraded().await?,
                };
                meter.begin();
                let outcome = pipe.echo(bytes, meter).await?;
                kept.idle().push_back(pipe);
                Ok(outcome)
            }
            Pool::Fresh => {
                let mut sender = self.open_http2().await?;
                sender.ready().await.context("ready")?;
                exchange(sender.send_request(self.target.message(request, true)?), request, meter).await
            }
        }
    }

    /// The head of an answer to a GET over the next HTTP/2 connection, whose body is the caller's to read.
    ///
    /// # Errors
    /// Whatever keeps it from coming; connections of another kind.
    pub async fn get(&self, path: &str) -> anyhow::Result<http::Response<Incoming>> {
        let Pool::Http2 { slots, next } = &self.pool else { bail!("only over kept connections of HTTP/2") };
        let mut sender = self.kept_http2(slots, next).await?;
        sender.send_request(self.target.other(Method::GET, path, Bytes::new())?).await.context("answer")
    }

    /// Reads the answer to a GET over the next HTTP/2 connection to its end; the bytes of its body.
    ///
    /// # Errors
    /// Whatever keeps it from coming with a status of success; connections of another kind.
    pub async fn read(&self, path: &str) -> anyhow::Result<u64> {
        Ok(whole(self.get(path).await?).await?.len() as u64)
    }

    /// Body of the answer to a request over the next HTTP/2 connection.
    ///
    /// # Errors
    /// Whatever keeps it from coming with a status of success; connections of another kind.
    pub async fn call(&self, method: Method, path: &str, kind: &'static str, body: String) -> anyhow::Result<Bytes> {
        let Pool::Http2 { slots, next } = &self.pool else { bail!("only over kept connections of HTTP/2") };
        let mut sender = self.kept_http2(slots, next).await?;
        let mut message = self.target.other(method, path, body.into())?;
        message.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        whole(sender.send_request(message).await.context("answer")?).await
    }

    /// The next connection, ready for a request.
    async fn kept_http2(&self, slots: &[Slot], next: &AtomicUsize) -> anyhow::Result<http2::SendRequest<Outgoing>> {
        let mut slot = slots[next.fetch_add(1, Ordering::Relaxed) % slots.len()].lock().await;
        let mut sender = match slot.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.open_http2().await?,
        };
        *slot = Some(sender.clone());
        drop(slot);
        sender.ready().await.context("ready")?;
        Ok(sender)
    }

    async fn open_http2(&self) -> anyhow::Result<http2::SendRequest<Outgoing>> {
        let io = self.target.connect(&self.target.h2).await?;
        let mut builder = http2::Builder::new(self.tasks.clone());
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (sender, connection) = builder.handshake(io).await.context("HTTP/2")?;
        self.tasks.spawn("connection", async move {
            // Its requests tell how it ended.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn open_http1(&self) -> anyhow::Result<http1::SendRequest<Outgoing>> {
        let io = self.target.connect(&self.target.h1).await?;
        let (sender, connection) = http1::handshake(io).await.context("HTTP/1.1")?;
        self.tasks.spawn("connection", async move {
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    /// One of HTTP/1.1 that is HTTP no more.
    async fn open_upgraded(&self) -> anyhow::Result<Pipe> {
        let mut message = self.target.message(Request::Echo(0), false)?;
        message.headers_mut().extend(echo::change(echo::PROTOCOL));
        let answer = self.open_http1().await?.send_request(message).await.context("answer")?;
        Pipe::new(answer).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

/// The body of an answer with a status of success.
async fn whole(answer: http::Response<Incoming>) -> anyhow::Result<Bytes> {
    let status = answer.status();
    let body = answer.into_body().collect().await.context("body")?.to_bytes();
    ensure!(status.is_success(), "status {}: {}", status.as_u16(), String::from_utf8_lossy(&body));
    Ok(body)
}

async fn exchange(
    answer: impl Future<Output = hyper::Result<http::Response<Incoming>>>,
    request: Request,
    meter: &Meter,
) -> anyhow::Result<u64> {
    let answer = answer.await.context("answer")?;
    let status = answer.status();
    ensure!(status.is_success(), "status {}", status.as_u16());
    meter.begin();
    let mut body = answer.into_body();
    if matches!(request, Request::Stall(_)) {
        std::future::pending::<()>().await;
    }
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let bytes = frame.context("body")?.data_ref().map_or(0, |data| data.len() as u64);
        meter.reads(bytes);
        read += bytes;
    }
    match request {
        Request::Download(bytes) => {
            ensure!(read == bytes, "{read} of {bytes} bytes");
            Ok(read)
        }
        Request::Upload(bytes) => Ok(bytes),
        Request::Echo(_) => bail!("only over upgraded connections"),
        Request::Small | Request::Pour(_) | Request::Stall(_) => Ok(read),
    }
}
