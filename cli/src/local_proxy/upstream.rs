//! Connections to the gateway: HTTP/2 ones that many requests share, one HTTP/1.1 connection for each upgrade.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::anyhow;
use http::{HeaderValue, Request, Response, Uri, Version, header, uri::PathAndQuery};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::{limits, process::TaskGroup};
use tokio::sync::Mutex;

use super::body::AnswerBody;
use crate::client::Client;

/// Requests open at once on one HTTP/2 connection; a further one gets a further connection. Less than the 100 that many
/// servers allow, so that none waits for another to end.
const STREAMS_PER_CONNECTION: usize = 64;
/// Idle HTTP/1.1 connections that are kept, where the gateway does not speak HTTP/2.
const IDLE_CONNECTIONS: usize = 32;
/// Window of one stream, in bytes.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Window of a whole connection: room for every stream's, so that stalled ones hold up no others; and many times that, for h2
/// makes of half of it what small frames may cost it beside their bytes, over which it ends the connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// A silent connection is asked for a sign of life, and given up without one.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections tried for one request, when those that were open turn out to be closed.
const TRIES: usize = 3;

/// Counts one request on a connection, until it is dropped.
pub struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Shared {
    sender: http2::SendRequest<Incoming>,
    open: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Pool {
    shared: Vec<Shared>,
    idle: Vec<http1::SendRequest<Incoming>>,
}

/// A connection to send one request on.
enum Sender {
    Http2(http2::SendRequest<Incoming>, Slot),
    Http1(http1::SendRequest<Incoming>),
}

/// The way to the gateway.
pub struct Upstream {
    plain: Client,
    upgrades: Client,
    pool: Arc<Mutex<Pool>>,
    tasks: TaskGroup,
}

impl Upstream {
    /// Dials nothing yet.
    pub fn new(client: &Client, tasks: TaskGroup) -> Arc<Self> {
        Arc::new(Self {
            plain: client.with_alpn(&[certs::tls::ALPN_H2, certs::tls::ALPN_HTTP11]),
            upgrades: client.with_alpn(&[certs::tls::ALPN_HTTP11]),
            pool: Arc::default(),
            tasks,
        })
    }

    /// `host:port` of the gateway.
    pub fn authority(&self) -> String {
        self.plain.address().authority()
    }

    /// Sends a request that is no upgrade. Nothing is sent twice: another connection is tried only when the one at hand
    /// turned out to be closed before a byte of the request left.
    pub async fn send(&self, mut request: Request<Incoming>) -> anyhow::Result<Response<AnswerBody>> {
        for attempt in 1.. {
            let sender = self.sender().await?;
            match self.send_on(sender, request).await {
                Ok(response) => return Ok(response),
                Err((error, Some(unsent))) if attempt < TRIES => {
                    tracing::debug!(%error, "a connection to the gateway was closed before the request left");
                    request = unsent;
                }
                Err((error, _)) => return Err(anyhow!(error).context("the gateway broke the exchange off")),
            }
        }
        Err(anyhow!("no connection to the gateway"))
    }

    async fn send_on(
        &self,
        sender: Sender,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, (hyper::Error, Option<Request<Incoming>>)> {
        match sender {
            Sender::Http2(mut sender, slot) => {
                let request = self.for_http2(request);
                let result = sender.try_send_request(request).await;
                let mut error = match result {
                    Ok(response) => return Ok(response.map(|body| AnswerBody::Upstream { body, _slot: Some(slot) })),
                    Err(error) => error,
                };
                let unsent = error.take_message();
                Err((error.into_error(), unsent))
            }
            Sender::Http1(mut sender) => {
                let request = self.for_http1(request);
                let result = sender.try_send_request(request).await;
                let mut error = match result {
                    Ok(response) => {
                        self.keep_idle(sender);
                        return Ok(response.map(|body| AnswerBody::Upstream { body, _slot: None }));
                    }
                    Err(error) => error,
                };
                let unsent = error.take_message();
                Err((error.into_error(), unsent))
            }
        }
    }

    /// Sends an upgrade on a connection of its own. Without a 101 the answer is an answer like any other.
    pub async fn upgrade(&self, request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
        let stream = self.upgrades.connect().await?;
        let (mut sender, connection) = builder1().handshake(TokioIo::new(stream)).await?;
        let connection = connection.with_upgrades();
        self.tasks.spawn("upgrade", async move {
            // Whoever reads the body or the upgraded bytes sees the same error.
            let _ = connection.await;
        });
        Ok(sender.send_request(self.for_http1(request)).await?)
    }

    async fn sender(&self) -> anyhow::Result<Sender> {
        // Held while dialling: requests that come together share the connection instead of dialling one each.
        let mut pool = self.pool.lock().await;
        pool.shared.retain(|shared| !shared.sender.is_closed());
        while let Some(sender) = pool.idle.pop() {
            if !sender.is_closed() && sender.is_ready() {
                return Ok(Sender::Http1(sender));
            }
        }
        let free = |shared: &&Shared| shared.open.load(Ordering::Relaxed) < STREAMS_PER_CONNECTION;
        if let Some(shared) = pool.shared.iter().find(free) {
            return Ok(Sender::Http2(shared.sender.clone(), Slot::take(&shared.open)));
        }
        let stream = self.plain.connect().await?;
        if stream.get_ref().1.alpn_protocol() != Some(certs::tls::ALPN_H2) {
            drop(pool);
            let (sender, connection) = builder1().handshake(TokioIo::new(stream)).await?;
            self.tasks.spawn("http1", async move {
                let _ = connection.await;
            });
            return Ok(Sender::Http1(sender));
        }
        let (sender, connection) = builder2(self.tasks.clone()).handshake(TokioIo::new(stream)).await?;
        self.tasks.spawn("http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the gateway ended");
            }
        });
        let open = Arc::new(AtomicUsize::new(0));
        let slot = Slot::take(&open);
        pool.shared.push(Shared { sender: sender.clone(), open });
        Ok(Sender::Http2(sender, slot))
    }

    /// Puts an HTTP/1.1 connection back once its answer has been read.
    fn keep_idle(&self, mut sender: http1::SendRequest<Incoming>) {
        let pool = self.pool.clone();
        self.tasks.spawn("idle", async move {
            if sender.ready().await.is_ok() {
                let mut pool = pool.lock().await;
                if pool.idle.len() < IDLE_CONNECTIONS {
                    pool.idle.push(sender);
                }
            }
        });
    }

    fn for_http2(&self, mut request: Request<Incoming>) -> Request<Incoming> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(http::uri::Scheme::HTTPS);
        parts.authority = self.authority().parse().ok();
        // Scheme, authority and path together always make an address; a path alone is what it was before.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(header::HOST);
        request
    }

    fn for_http1(&self, mut request: Request<Incoming>) -> Request<Incoming> {
        let path = std::mem::take(request.uri_mut()).into_parts().path_and_query;
        *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
        *request.version_mut() = Version::HTTP_11;
        if let Ok(host) = HeaderValue::try_from(self.authority()) {
            request.headers_mut().insert(header::HOST, host);
        }
        request
    }
}

fn builder1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(limits::HEADER_COUNT).max_buf_size(limits::HEADER_LIST_BYTES + limits::CHUNK_BYTES);
    builder
}

fn builder2(tasks: TaskGroup) -> http2::Builder<TaskGroup> {
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(Some(256 * 1024))
        .max_header_list_size(u32::try_from(limits::HEADER_LIST_BYTES).unwrap_or(u32::MAX))
        .max_concurrent_reset_streams(limits::RESET_STREAMS)
        .max_local_error_reset_streams(limits::RESET_STREAMS)
        .reset_stream_duration(limits::RESET_REMEMBERED)
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
