//! Connections to the gateway: HTTP/2 ones that many requests share, one HTTP/1.1 connection for each upgrade.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::anyhow;
use daemon::TaskGroup;
use http::{HeaderValue, Request, Response, Uri, Version, header, uri::PathAndQuery};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Mutex;
use tunnel::exchange::{Resendable, Room, Sending, was_not_processed};
use types::limits;

use super::{body::AnswerBody, slot::Slot};
use crate::client::Client;

/// Requests open at once on one HTTP/2 connection; a further one gets a further connection. Less than the 100 that many
/// servers allow, so that none waits for another to end.
const STREAMS_PER_CONNECTION: usize = 64;
/// Idle HTTP/1.1 connections that are kept, where the gateway does not speak HTTP/2.
const IDLE_CONNECTIONS: usize = 32;
/// Window of one stream, in bytes.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Window of a whole connection: room for every stream's, so that stalled ones hold up no others; and many times that,
/// for h2 makes of half of it what small frames may cost it beside their bytes, over which it ends the connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// A silent connection is asked for a sign of life, and given up without one.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections tried for one request.
const TRIES: usize = 4;

struct Shared {
    sender: http2::SendRequest<Outgoing>,
    open: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Pool {
    shared: Vec<Shared>,
    idle: Vec<http1::SendRequest<Outgoing>>,
}

/// A connection to send one request on.
enum Sender {
    Http2(http2::SendRequest<Outgoing>, Slot),
    Http1(http1::SendRequest<Outgoing>),
}

impl Sender {
    /// What tells a shared connection apart.
    fn connection(&self) -> Option<Arc<AtomicUsize>> {
        match self {
            Self::Http2(_, slot) => Some(Arc::clone(&slot.0)),
            Self::Http1(_) => None,
        }
    }
}

/// The way to the gateway.
pub struct Upstream {
    plain: Client,
    upgrades: Client,
    pool: Arc<Mutex<Pool>>,
    /// For what is kept of request bodies.
    room: Arc<Room>,
    tasks: TaskGroup,
}

/// A request's body on its way.
type Outgoing = Sending<Incoming>;

/// Why a request got no answer.
#[derive(Debug)]
pub enum Failure {
    /// The gateway did not process it: it may be repeated.
    NotDone(anyhow::Error),
    /// It was sent, and may have been carried out.
    Unknown(anyhow::Error),
}

impl Upstream {
    /// Dials nothing yet.
    pub fn new(client: &Client, tasks: TaskGroup) -> Arc<Self> {
        Arc::new(Self {
            plain: client.with_alpn(&[certs::tls::ALPN_H2, certs::tls::ALPN_HTTP11]),
            upgrades: client.with_alpn(&[certs::tls::ALPN_HTTP11]),
            pool: Arc::default(),
            room: Arc::default(),
            tasks,
        })
    }

    /// `host:port` of the gateway.
    pub fn authority(&self) -> String {
        self.plain.address().authority()
    }

    /// Sends a request that is no upgrade. It is sent again, whatever its method, where it is proved that the gateway
    /// did not process it: no byte of it left, or the gateway said so when it closed the connection
    /// ([`was_not_processed`]). Its body is kept for that within the bounds of [`Resendable`].
    pub async fn send(&self, request: Request<Incoming>) -> Result<Response<AnswerBody>, Failure> {
        let (head, body) = request.into_parts();
        let body = Resendable::new(None, body, self.room.part(""));
        let mut last = anyhow!("no connection to the gateway");
        for _ in 0..TRIES {
            let Some(sending) = body.send() else {
                let too_long =
                    "too much of the request's body was sent for this proxy to send it again; nothing was done";
                return Err(Failure::NotDone(last.context(too_long)));
            };
            let request = Request::from_parts(head.clone(), sending);
            let sender = self.sender().await.map_err(Failure::NotDone)?;
            let used = sender.connection();
            let error = match self.send_on(sender, request).await {
                Ok((answer, slot)) => {
                    body.release();
                    return Ok(answer.map(|answer| AnswerBody::Upstream {
                        body: answer,
                        _slot: slot,
                        _request: Some(body),
                    }));
                }
                Err(error) => error,
            };
            let unprocessed = error.message().is_some() || was_not_processed(error.error());
            last = anyhow!(error.into_error()).context("the gateway broke the exchange off");
            if !unprocessed {
                return Err(Failure::Unknown(last));
            }
            tracing::debug!("the gateway did not process a request: {last:#}");
            // It may take a while until this connection counts as closed.
            if let Some(used) = used {
                self.pool.lock().await.shared.retain(|shared| !Arc::ptr_eq(&shared.open, &used));
            }
        }
        Err(Failure::NotDone(last))
    }

    async fn send_on(
        &self,
        sender: Sender,
        request: Request<Outgoing>,
    ) -> Result<(Response<Incoming>, Option<Slot>), TrySendError<Request<Outgoing>>> {
        match sender {
            Sender::Http2(mut sender, slot) => {
                let answer = sender.try_send_request(self.for_http2(request));
                // A request that is handed over while the connection ends may lie in their channel until the last
                // sender is gone, and is handed back then: nobody may keep one while they wait.
                drop(sender);
                Ok((answer.await?, Some(slot)))
            }
            Sender::Http1(mut sender) => {
                let request = self.for_http1(request);
                let response = sender.try_send_request(request).await?;
                self.keep_idle(sender);
                Ok((response, None))
            }
        }
    }

    /// Sends an upgrade on a connection of its own. Without a 101 the answer is an answer like any other.
    pub async fn upgrade(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        let dialled = async { Ok(builder1().handshake(TokioIo::new(self.upgrades.connect().await?)).await?) };
        let (mut sender, connection) = dialled.await.map_err(Failure::NotDone)?;
        let connection = connection.with_upgrades();
        self.tasks.spawn("upgrade", async move {
            // Whoever reads the body or the upgraded bytes sees the same error.
            let _ = connection.await;
        });
        sender.send_request(self.for_http1(request)).await.map_err(|error| Failure::Unknown(anyhow!(error)))
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
        let senders = self.pool.clone();
        self.tasks.spawn("http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the gateway ended");
            }
            senders.lock().await.shared.retain(|shared| !shared.sender.is_closed());
        });
        let open = Arc::new(AtomicUsize::new(0));
        let slot = Slot::take(&open);
        pool.shared.push(Shared { sender: sender.clone(), open });
        Ok(Sender::Http2(sender, slot))
    }

    /// Puts an HTTP/1.1 connection back once its answer has been read.
    fn keep_idle(&self, mut sender: http1::SendRequest<Outgoing>) {
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

    fn for_http2<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(http::uri::Scheme::HTTPS);
        parts.authority = self.authority().parse().ok();
        // Scheme, authority and path together always make an address; a path alone is what it was before.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(header::HOST);
        request
    }

    fn for_http1<B>(&self, mut request: Request<B>) -> Request<B> {
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
