//! The two ends of an HTTP/2 session, each with the task that drives it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use h2::{client, server};
use http::{Method, Request, Version};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, mpsc, watch},
};

use super::streams::{self, Body, RawPair};
use crate::{
    limits,
    process::{TaskGroup, Told},
    transport::{
        Closed,
        carrier::{self, Carrier, CarrierError, Facts, RawError},
        cork::cork,
    },
    wire::close::CloseCode,
};

/// What one stream may have in flight before the session's credit is looked at: head and the largest window.
const STREAM_WINDOW_BYTES: u32 = (limits::WINDOW_MAX as u32) + 2 * (limits::HEAD_BYTES as u32);
/// Streams that one session bears: users', parked, control.
const STREAMS: u32 = limits::STREAMS_PER_TUNNEL + limits::PARKED_STREAMS_MAX as u32 + 1;
/// Reset streams remembered, and reset streams not accepted yet: 10,000 requests may be cancelled at once. h2's default
/// of 20 closes the connection; without a bound it is open to rapid reset (CVE-2023-44487).
const RESET_STREAMS: usize = 16 * 1024;
/// How long frames that crossed a reset on the wire are forgiven, and how long a stopped writer may take to end.
const RESET_REMEMBERED: Duration = Duration::from_secs(30);
/// h2's allowance for small DATA frames not read yet, in bytes of overhead: the heads of all streams at once.
const SMALL_FRAMES_BYTES: usize = 2 * 256 * STREAMS as usize;
/// Pause before streams are parked in the place of those that the agent reset.
const PARK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Bytes of a request's or answer's header list: ours are empty.
const HEADER_LIST_BYTES: u32 = 1024;

const PATH_STREAM: &str = "/s";
const PATH_PARKED: &str = "/p";

pub(crate) struct Link {
    opener: Opener,
    /// In boxes: a channel has room for 32 from the beginning.
    accepted: Mutex<mpsc::Receiver<Box<RawPair>>>,
    closed: Arc<Told<Closed>>,
    /// The connection's window, for the driver to set.
    window: watch::Sender<u32>,
    /// Bytes of heads that were queued without room and are not sent yet.
    queued: Arc<AtomicUsize>,
    /// What drives the session; ends with the link.
    tasks: TaskGroup,
}

/// Tells that the connection is over, also where what drives it was aborted.
struct End(Arc<Told<Closed>>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.tell_first(lost(None));
    }
}

/// A head that was queued without room; counted for as long as h2 keeps it, whatever becomes of its stream.
struct QueuedHead {
    head: Bytes,
    queued: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for QueuedHead {
    fn as_ref(&self) -> &[u8] {
        &self.head
    }
}

impl Drop for QueuedHead {
    fn drop(&mut self) {
        self.queued.fetch_sub(self.head.len(), Ordering::Relaxed);
    }
}

enum Opener {
    /// The gateway sends requests.
    Request(client::SendRequest<Bytes>, mpsc::Sender<Box<Body>>),
    /// The agent takes parked ones.
    Parked(Mutex<mpsc::Receiver<Box<RawPair>>>),
}

/// The gateway's end. `io` is the TLS stream after its handshake.
pub async fn client_side<T>(io: T, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (io, cork) = cork(io);
    let (requests, connection) = deadline(client_builder().handshake(io)).await?;
    // In a box, or each future that it is handed on to has room for it.
    let connection = Box::new(connection);
    let (park, accepted) = mpsc::channel(limits::STREAMS_PER_TUNNEL as usize);
    let closed = Arc::new(Told::default());
    let end = End(Arc::clone(&closed));
    let (window, wanted) = watch::channel(0);
    let mut known = wanted.clone();
    let tasks = TaskGroup::new("h2");
    tasks.spawn("driver", async move {
        let error = cork.drive(drive(connection, wanted)).await;
        end.0.tell_first(lost(error));
    });
    let (bury, buried) = mpsc::channel(STREAMS as usize);
    let (requests_of_parker, bury_of_parker) = (requests.clone(), bury.clone());
    tasks.spawn("parker", async move {
        // A larger window is the session's word that the peer's hello was accepted; before that it gets nothing.
        if known.changed().await.is_ok() {
            keep_parked(requests_of_parker, park, bury_of_parker).await;
        }
    });
    tasks.spawn("digger", read_out(buried));
    let link = Link {
        opener: Opener::Request(requests, bury),
        accepted: Mutex::new(accepted),
        closed,
        window,
        tasks,
        queued: Arc::default(),
    };
    Ok(Carrier { facts, link: carrier::Link::Http2(link) })
}

/// The agent's end.
pub async fn server_side<T>(io: T, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (io, cork) = cork(io);
    let connection = Box::new(deadline(server_builder().handshake(io)).await?);
    let (accept, accepted) = mpsc::channel(limits::STREAMS_PER_TUNNEL as usize);
    let (park, parked) = mpsc::channel(STREAMS as usize);
    let closed = Arc::new(Told::default());
    let end = End(Arc::clone(&closed));
    let (window, wanted) = watch::channel(0);
    let tasks = TaskGroup::new("h2");
    tasks.spawn("driver", async move {
        let error = cork.drive(serve(connection, wanted, accept, park)).await;
        end.0.tell_first(lost(error));
    });
    let link = Link {
        opener: Opener::Parked(Mutex::new(parked)),
        accepted: Mutex::new(accepted),
        closed,
        window,
        tasks,
        queued: Arc::default(),
    };
    Ok(Carrier { facts, link: carrier::Link::Http2(link) })
}

async fn deadline<T>(handshake: impl Future<Output = Result<T, h2::Error>>) -> Result<T, CarrierError> {
    match tokio::time::timeout(limits::HELLO_DEADLINE, handshake).await {
        Err(_) => Err(CarrierError::Timeout),
        Ok(Err(error)) if error.is_io() => Err(CarrierError::Lost(error.to_string())),
        Ok(Err(error)) => Err(CarrierError::Protocol(error.to_string())),
        Ok(Ok(done)) => Ok(done),
    }
}

/// RFC 9113 section 6.9.1.
const MAX_WINDOW: u32 = (1 << 31) - 1;

fn client_builder() -> client::Builder {
    let mut builder = client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .max_frame_size(limits::CHUNK_BYTES as u32)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_send_buffer_size(limits::CARRIER_QUEUE_BYTES)
        .initial_max_send_streams(STREAMS as usize)
        .max_concurrent_streams(0)
        .enable_push(false)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(Some(RESET_STREAMS))
        .reset_stream_duration(RESET_REMEMBERED)
        .data_frame_budget(SMALL_FRAMES_BYTES);
    builder
}

fn server_builder() -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .max_frame_size(limits::CHUNK_BYTES as u32)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_send_buffer_size(limits::CARRIER_QUEUE_BYTES)
        .max_concurrent_streams(STREAMS)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(Some(RESET_STREAMS))
        .reset_stream_duration(RESET_REMEMBERED)
        .data_frame_budget(SMALL_FRAMES_BYTES);
    builder
}

fn request(path: &'static str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = http::Uri::builder()
        .scheme("https")
        .authority("t")
        .path_and_query(path)
        .build()
        .unwrap_or_else(|_| unreachable!("constant parts"));
    request
}

async fn send(
    requests: &client::SendRequest<Bytes>,
    path: &'static str,
) -> Result<(client::ResponseFuture, h2::SendStream<Bytes>), h2::Error> {
    requests.clone().ready().await?.send_request(request(path), false)
}

/// Keeps the stock of parked streams filled; it grows while the agent takes them faster than one at a time.
async fn keep_parked(
    requests: client::SendRequest<Bytes>,
    accepted: mpsc::Sender<Box<RawPair>>,
    bury: mpsc::Sender<Box<Body>>,
) {
    let mut parked = FuturesUnordered::new();
    let mut stock = limits::PARKED_STREAMS;
    loop {
        while parked.len() < stock {
            let Ok((answer, body)) = send(&requests, PATH_PARKED).await else { return };
            parked.push(answer.map(|answer| (answer, body)));
        }
        let (mut taken, mut reset) = (0, false);
        let mut next = parked.next().await;
        while let Some((answer, body)) = next.take() {
            taken += 1;
            match answer {
                // The queue has room for every stream that a tunnel may have; dropping one over it resets it.
                Ok(answer) => {
                    let _ = accepted.try_send(Box::new(streams::parked_pair(body, answer.into_body(), bury.clone())));
                }
                Err(error) if error.is_reset() => reset = true,
                Err(_) => return,
            }
            next = parked.next().now_or_never().flatten();
        }
        if reset {
            // An agent seldom resets what it was given; one that always does would keep both ends busy.
            tokio::time::sleep(PARK_AGAIN_AFTER).await;
        }
        if taken * 2 > stock {
            stock = (stock * 2).min(limits::PARKED_STREAMS_MAX);
        }
    }
}

/// Reads stopped halves out to their ends. If they were dropped instead, h2 as a client would reset the stream with
/// CANCEL and discard what is still queued in the other direction, though it was finished (h2 as a server resets with
/// NO_ERROR, which sends what is queued first). The peer's writer has been told to stop, so that this is short.
async fn read_out(mut buried: mpsc::Receiver<Box<Body>>) {
    let mut reading = FuturesUnordered::new();
    loop {
        tokio::select! {
            body = buried.recv() => match body {
                Some(body) => reading.push(tokio::time::timeout(RESET_REMEMBERED, body.read_out())),
                None => return,
            },
            Some(_) = reading.next() => {}
        }
    }
}

/// Drives the gateway's end until the connection is over, at the window that is wanted.
async fn drive<T>(
    mut connection: Box<client::Connection<T, Bytes>>,
    mut wanted: watch::Receiver<u32>,
) -> Option<h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        tokio::select! {
            biased;
            Ok(()) = wanted.changed() => connection.set_target_window_size(*wanted.borrow_and_update()),
            result = &mut connection => return result.err(),
        }
    }
}

/// Sorts what the gateway sends into streams it opens and streams it parks; ends with the connection.
async fn serve<T>(
    mut connection: Box<server::Connection<T, Bytes>>,
    mut wanted: watch::Receiver<u32>,
    accept: mpsc::Sender<Box<RawPair>>,
    park: mpsc::Sender<Box<RawPair>>,
) -> Option<h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let accepted = tokio::select! {
            biased;
            Ok(()) = wanted.changed() => {
                connection.set_target_window_size(*wanted.borrow_and_update());
                continue;
            }
            accepted = connection.accept() => accepted,
        };
        match accepted {
            None => return None,
            Some(Err(error)) => return Some(error),
            Some(Ok((request, mut respond))) => {
                let queue = if request.uri().path() == PATH_PARKED { &park } else { &accept };
                match queue.try_reserve() {
                    Ok(slot) => slot.send(Box::new(streams::accepted_pair(respond, request.into_body()))),
                    // Cannot be while the gateway keeps to the limit of streams.
                    Err(_) => respond.send_reset(h2::Reason::REFUSED_STREAM),
                }
            }
        }
    }
}

fn lost(error: Option<h2::Error>) -> Closed {
    let message = error.map_or_else(String::new, |error| error.to_string());
    Closed { code: CloseCode::Lost, message, by_peer: false }
}

impl Link {
    pub(crate) async fn open(&self) -> Result<RawPair, RawError> {
        match &self.opener {
            Opener::Request(requests, bury) => {
                let (answer, body) = send(requests, PATH_STREAM).await.map_err(|_| RawError::Lost)?;
                Ok(streams::opened_pair(body, answer, bury.clone()))
            }
            Opener::Parked(parked) => parked.lock().await.recv().await.map(|pair| *pair).ok_or(RawError::Lost),
        }
    }

    /// See [`carrier::Link::count_first`].
    pub(crate) fn count_first(&self, head: Bytes) -> Result<Bytes, Bytes> {
        let bytes = head.len();
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let counted = QueuedHead { head, queued: Arc::clone(&self.queued) };
        if queued <= limits::HEADS_QUEUED_BYTES { Ok(Bytes::from_owner(counted)) } else { Err(counted.head.clone()) }
    }

    /// Bytes of heads that wait for room.
    #[cfg(test)]
    pub(crate) fn queued_for_test(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(crate) async fn accept(&self) -> Result<RawPair, RawError> {
        self.accepted.lock().await.recv().await.map(|pair| *pair).ok_or(RawError::Lost)
    }

    pub(crate) async fn closed(&self) -> Closed {
        self.closed.wait().await
    }

    pub(crate) fn allow(&self, bytes: u64) {
        self.window.send_replace(u32::try_from(bytes).map_or(MAX_WINDOW, |bytes| bytes.min(MAX_WINDOW)));
    }

    pub(crate) fn close(&self, _code: CloseCode, _message: &str) {
        self.tasks.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(CloseCode::Lost, "");
    }
}
