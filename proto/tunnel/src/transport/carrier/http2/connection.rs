//! The two ends of an HTTP/2 session, each with the task that drives it.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use daemon::{Latch, TaskGroup};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use h2::{client, server};
use http::{
    Method, Request, Uri, Version,
    uri::{Authority, PathAndQuery, Scheme},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, Notify, mpsc},
    time::Instant,
};
use types::limits;

use super::{
    STREAMS,
    body::Body,
    shelf::{Shelf, Shelves},
    streams::{self, Graves, Kept},
};
use crate::{
    transport::{
        Closed,
        carrier::{self, Carrier, CarrierError, Facts, RawError, RawStream},
        cork::cork,
    },
    wire::close::CloseCode,
};

/// What one stream may have in flight before the session's credit is looked at: head and the largest window.
const STREAM_WINDOW_BYTES: u32 = (limits::WINDOW_MAX as u32) + 2 * (limits::HEAD_BYTES as u32);
/// h2's allowance for small DATA frames. [`Shelves`] bound what it keeps of them; and it never forgets what it was
/// charged for frames that came behind the end of their reader.
const SMALL_FRAMES: usize = usize::MAX;
/// Pause before streams are parked in the place of those that the agent reset.
const PARK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Bytes of a request's or answer's header list: ours are empty.
const HEADER_LIST_BYTES: u32 = 1024;

const PATH_STREAM: &str = "/s";
const PATH_PARKED: &str = "/p";

pub(crate) struct Link {
    side: Side,
    closed: Arc<Latch<Closed>>,
    /// For the driver to set.
    window: Arc<Window>,
    /// Bytes of heads that were queued without room and are not sent yet.
    queued: Arc<AtomicUsize>,
    /// What drives the session; ends with the link.
    tasks: TaskGroup,
}

/// Tells that the connection is over, also where what drives it was aborted.
struct End(Arc<Latch<Closed>>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.set_first(lost(None));
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

enum Side {
    /// Sends requests, and parks some for the agent.
    Gateway { requests: client::SendRequest<Bytes>, kept: Kept, parker: Mutex<Box<Parker>> },
    /// Takes them. Boxed: a channel allocates 32 places at once.
    Agent { accepted: Mutex<mpsc::Receiver<Box<RawStream>>>, parked: Mutex<mpsc::Receiver<Box<RawStream>>> },
}

/// The connection's window that the session wants, and the driver that it is told.
#[derive(Default)]
struct Window {
    bytes: AtomicU32,
    changed: Notify,
}

/// The gateway's end. `io` is the TLS stream after its handshake.
pub async fn client_side<T>(io: T, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shelves = Shelves::default();
    let (io, cork) = cork(shelves.metered(io));
    let (requests, connection) = deadline(client_builder().handshake(io)).await?;
    // Boxed, so that the futures that it is moved to stay small (decision 13).
    let connection = Box::new(connection);
    let closed = Arc::new(Latch::default());
    let end = End(Arc::clone(&closed));
    let window = Arc::<Window>::default();
    let wanted = Arc::clone(&window);
    let looks = shelves.clone();
    let tasks = TaskGroup::new("h2");
    tasks.spawn("driver", async move {
        let error = cork.drive(drive(connection, wanted, looks)).await;
        end.0.set_first(lost(error));
    });
    let kept = Kept { shelves, graves: Graves(tasks.clone()) };
    let parker = Mutex::new(Box::new(Parker::new(requests.clone(), kept.clone())));
    let link = Link { side: Side::Gateway { requests, kept, parker }, closed, window, tasks, queued: Arc::default() };
    Ok(Carrier { facts, link: carrier::Link::Http2(link) })
}

/// The agent's end.
pub async fn server_side<T>(io: T, facts: Facts) -> Result<Carrier, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shelves = Shelves::default();
    let (io, cork) = cork(shelves.metered(io));
    let connection = Box::new(deadline(server_builder().handshake(io)).await?);
    let (accept, accepted) = mpsc::channel(limits::STREAMS_PER_TUNNEL as usize);
    let (park, parked) = mpsc::channel(STREAMS as usize);
    let closed = Arc::new(Latch::default());
    let end = End(Arc::clone(&closed));
    let window = Arc::<Window>::default();
    let wanted = Arc::clone(&window);
    let tasks = TaskGroup::new("h2");
    tasks.spawn("driver", async move {
        let error = cork.drive(serve(connection, wanted, shelves, accept, park)).await;
        end.0.set_first(lost(error));
    });
    let link = Link {
        side: Side::Agent { accepted: Mutex::new(accepted), parked: Mutex::new(parked) },
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

/// Sets what both ends set alike; h2's two builders have no trait in common.
macro_rules! set_alike {
    ($builder:ident) => {
        $builder
            .initial_window_size(STREAM_WINDOW_BYTES)
            .max_frame_size(limits::CHUNK_BYTES as u32)
            .max_header_list_size(HEADER_LIST_BYTES)
            .max_send_buffer_size(limits::CARRIER_QUEUE_BYTES)
            .max_concurrent_reset_streams(limits::RESET_STREAMS)
            .max_pending_accept_reset_streams(limits::RESET_STREAMS)
            .max_local_error_reset_streams(Some(limits::RESET_STREAMS))
            .reset_stream_duration(limits::RESET_REMEMBERED)
            .data_frame_budget(SMALL_FRAMES)
    };
}

fn client_builder() -> client::Builder {
    let mut builder = client::Builder::new();
    set_alike!(builder).initial_max_send_streams(STREAMS as usize).max_concurrent_streams(0).enable_push(false);
    builder
}

fn server_builder() -> server::Builder {
    let mut builder = server::Builder::new();
    set_alike!(builder).max_concurrent_streams(STREAMS);
    builder
}

fn request(path: &'static str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    // Of constants, which are not copied: each exchange opens a stream.
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(Authority::from_static("t"));
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| unreachable!("constant parts"));
    request
}

async fn send(
    requests: &client::SendRequest<Bytes>,
    path: &'static str,
) -> Result<(client::ResponseFuture, h2::SendStream<Bytes>), h2::Error> {
    requests.clone().ready().await?.send_request(request(path), false)
}

/// A parked stream, until the agent opens it.
struct Parked(Option<(h2::SendStream<Bytes>, Shelf)>);

impl Future for Parked {
    type Output = Result<(h2::SendStream<Bytes>, Shelf), RawError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (_, answer) = self.0.as_ref().expect("a future is not polled after its end");
        ready!(answer.poll_begun(cx))?;
        Poll::Ready(Ok(self.0.take().expect("there until now")))
    }
}

/// The streams that the gateway keeps parked for its agent. Nothing is parked before the first is asked for: that is
/// the session's word that the peer's hello was accepted.
struct Parker {
    requests: client::SendRequest<Bytes>,
    kept: Kept,
    parked: FuturesUnordered<Parked>,
    /// Streams that are kept parked; grows while the agent takes them faster than one at a time.
    stock: usize,
    /// Taken since the stock was filled, and whether one of them was reset.
    taken: usize,
    reset: bool,
    /// Nothing is parked until then.
    again: Option<Instant>,
}

impl Parker {
    fn new(requests: client::SendRequest<Bytes>, kept: Kept) -> Self {
        let parked = FuturesUnordered::new();
        Self { requests, kept, parked, stock: limits::PARKED_STREAMS, taken: 0, reset: false, again: None }
    }

    /// The next stream that the agent opens. Cancel-safe.
    async fn next(&mut self) -> Result<RawStream, RawError> {
        loop {
            // All that the agent has taken, before others are parked in their place.
            let taken = match self.parked.next().now_or_never().flatten() {
                Some(taken) => taken,
                None => {
                    self.fill().await?;
                    self.parked.next().await.ok_or(RawError::Lost)?
                }
            };
            self.taken += 1;
            match taken {
                Ok((body, answer)) => return Ok(streams::parked_pair(body, answer, &self.kept)),
                Err(RawError::Reset(_)) => self.reset = true,
                Err(_) => return Err(RawError::Lost),
            }
        }
    }

    async fn fill(&mut self) -> Result<(), RawError> {
        if std::mem::take(&mut self.taken) * 2 > self.stock {
            self.stock = (self.stock * 2).min(limits::PARKED_STREAMS_MAX);
        }
        if std::mem::take(&mut self.reset) {
            // An agent seldom resets what it was given; one that always does would keep both ends busy.
            self.again = Some(Instant::now() + PARK_AGAIN_AFTER);
        }
        if let Some(again) = self.again {
            // Boxed, so that this rare case does not enlarge the future of every stream.
            Box::pin(tokio::time::sleep_until(again)).await;
            self.again = None;
        }
        while self.parked.len() < self.stock {
            let (answer, body) = send(&self.requests, PATH_PARKED).await.map_err(|_| RawError::Lost)?;
            self.parked.push(Parked(Some((body, self.kept.shelves.place(Body::Waiting(answer))))));
        }
        Ok(())
    }
}

/// Drives the gateway's end until the connection is over, at the window that is wanted.
async fn drive<T>(
    mut connection: Box<client::Connection<T, Bytes>>,
    wanted: Arc<Window>,
    shelves: Shelves,
) -> Option<h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        tokio::select! {
            biased;
            () = wanted.changed.notified() => connection.set_target_window_size(wanted.bytes.load(Ordering::Acquire)),
            result = shelves.drive(&mut connection) => return result.err(),
        }
    }
}

/// Sorts what the gateway sends into streams it opens and streams it parks; ends with the connection.
async fn serve<T>(
    mut connection: Box<server::Connection<T, Bytes>>,
    wanted: Arc<Window>,
    shelves: Shelves,
    accept: mpsc::Sender<Box<RawStream>>,
    park: mpsc::Sender<Box<RawStream>>,
) -> Option<h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let accepted = tokio::select! {
            biased;
            () = wanted.changed.notified() => {
                connection.set_target_window_size(wanted.bytes.load(Ordering::Acquire));
                continue;
            }
            accepted = shelves.drive(connection.accept()) => accepted,
        };
        match accepted {
            None => return None,
            Some(Err(error)) => return Some(error),
            Some(Ok((request, mut respond))) => {
                let queue = if request.uri().path() == PATH_PARKED { &park } else { &accept };
                match queue.try_reserve() {
                    Ok(slot) => slot.send(Box::new(streams::accepted_pair(respond, request.into_body(), &shelves))),
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
    pub(crate) async fn open(&self) -> Result<RawStream, RawError> {
        match &self.side {
            Side::Gateway { requests, kept, .. } => {
                let (answer, body) = send(requests, PATH_STREAM).await.map_err(|_| RawError::Lost)?;
                Ok(streams::opened_pair(body, answer, kept))
            }
            Side::Agent { parked, .. } => parked.lock().await.recv().await.map(|pair| *pair).ok_or(RawError::Lost),
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

    pub(crate) async fn accept(&self) -> Result<RawStream, RawError> {
        match &self.side {
            Side::Gateway { parker, .. } => parker.lock().await.next().await,
            Side::Agent { accepted, .. } => accepted.lock().await.recv().await.map(|pair| *pair).ok_or(RawError::Lost),
        }
    }

    pub(crate) async fn closed(&self) -> Closed {
        self.closed.wait().await
    }

    pub(crate) fn allow(&self, bytes: u64) {
        let bytes = u32::try_from(bytes).map_or(MAX_WINDOW, |bytes| bytes.min(MAX_WINDOW));
        self.window.bytes.store(bytes, Ordering::Release);
        self.window.changed.notify_one();
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
