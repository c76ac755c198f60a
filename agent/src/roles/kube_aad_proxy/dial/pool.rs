//! Connections to the apiserver that are open, and which of them a request gets.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use auth::kubernetes::{RequestInfo, percent_decode};
use http::Method;
use hyper::client::conn::{http1, http2};
use tokio::time::Instant;
use tunnel::transport::cork::Turns;

use super::{
    body::RequestBody,
    unread::{Dialling, Narrow, Width},
};
use crate::roles::kube_aad_proxy::impersonate::UpstreamHead;

/// Streams on one HTTP/2 connection, below what an apiserver allows (100).
pub(super) const STREAMS_PER_CONNECTION: usize = 64;
/// HTTP/2 connections at the most; together they carry what one cluster may have open.
const CONNECTIONS_MAX: usize = 256;
/// Idle HTTP/1.1 connections that are kept.
const IDLE_MAX: usize = 64;
/// How long an idle connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// A connection of HTTP/1.1 that is older is not kept again: it has no GOAWAY, by which apiservers spread their clients
/// anew.
const AGE_MAX: Duration = Duration::from_secs(300);
/// When a connection of HTTP/1.1 that was kept has been given up at the latest, but for the exchange that it has then.
pub(super) const LIFE_MAX: Duration = AGE_MAX.saturating_add(IDLE_TIME);
/// HTTP/1.1 connections for brief answers beside HTTP/2, busy ones counted. People and their tools ask one thing after
/// the other; where many ask at once, HTTP/2 carries several requests in one write.
const BRIEF_MAX: usize = 2;
/// Least time between two dials of these: a request that is given up ends its connection, and must not cost a handshake
/// each time...
const BRIEF_PERIOD: Duration = Duration::from_secs(1);
/// ...and after a dial of which nothing came: a front may speak HTTP/2 only, or close behind each answer.
const BRIEF_PAUSE: Duration = Duration::from_secs(60);

/// How long a request and the end of its connection may have crossed each other. What ends later had been looked at.
const CROSSING: Duration = Duration::from_secs(1);

/// Connections to the apiserver: all with the agent's client certificate, where it has one, or all without.
#[derive(Default)]
pub(super) struct Pool {
    connections: Mutex<Connections>,
    /// Who dials for all, unless that takes long.
    pub(super) dialling: Dialling,
}

#[derive(Default)]
struct Connections {
    http2: Vec<Http2>,
    /// Where HTTP/2 is not spoken.
    idle: Idle,
    idle_for_brief: Idle,
    brief: Brief,
    /// Dialled for answers in drops, and used for nothing else.
    idle_for_drops: Idle,
}

/// Connections of HTTP/1.1 that wait for another request, and since when.
#[derive(Default)]
struct Idle(Vec<(Box<Http1>, Instant)>);

/// Connections for brief answers, busy or idle.
#[derive(Default)]
struct Brief {
    /// Each holds a clone.
    open: Arc<()>,
    /// When the last one was dialled.
    dialled: Option<Instant>,
    /// Whether one has been taken for a second request since: it is of use.
    served: bool,
}

/// A place among the connections for brief answers, held as long as one lives.
pub(super) struct Place(#[expect(dead_code, reason = "held for its drop")] Arc<()>);

struct Http2 {
    send: http2::SendRequest<RequestBody>,
    load: Arc<Load>,
    /// Of each of its streams.
    width: Width,
    /// How many streams the apiserver allows now.
    allowed: Arc<AtomicUsize>,
}

/// Streams open on a connection.
struct Load {
    /// What is told of each request.
    turns: Turns,
    streams: AtomicUsize,
    idle_since: Mutex<Instant>,
}

/// What sends on a connection of HTTP/1.1, and what makes that narrow.
pub(super) type Http1Send = (http1::SendRequest<RequestBody>, Narrow);

/// A connection for one request.
pub(super) enum Sender {
    Http2(http2::SendRequest<RequestBody>, Claim),
    /// Boxed: each request moves it several times.
    Http1(Box<Http1>),
}

/// A connection of HTTP/1.1.
pub(super) struct Http1 {
    pub(super) send: http1::SendRequest<RequestBody>,
    /// None where a task drives it, and once it has ended.
    driver: Option<Driver>,
    /// Makes it narrow.
    narrow: Narrow,
    list: List,
    since: Instant,
    /// Whether it has answered a request.
    used: bool,
    /// Whether it was idle in the pool: the apiserver may be closing it.
    pub(super) kept: bool,
}

/// What reads and writes a connection, polled by who uses it and by nobody while it is idle: a task would have to be
/// woken for the request and to wake who waits for the answer, which leaves only when all else is done that a turn of
/// that one does.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a connection of HTTP/1.1 waits for another request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Usable for any answer but one that comes in small, slow writes.
    Any,
    /// Usable for brief answers alone.
    Brief,
    /// Usable for answers that come in small, slow writes.
    Drops,
}

/// A claim on a connection; held until the answer's body is dropped.
pub(super) enum Lease {
    /// One stream of an HTTP/2 connection, held for its drop.
    Stream(#[expect(dead_code, reason = "held for its drop")] Claim),
    /// A whole HTTP/1.1 connection, given back when the answer was read to its end.
    Connection(Box<Http1>, Arc<Pool>),
}

/// One stream of a connection.
pub(super) struct Claim(Arc<Load>);

/// How an answer comes, and so on which connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As the apiserver makes it.
    Flows,
    /// At once as a rule: to a GET without a body that is no watch. Go's server, and hyper's, answer over HTTP/1.1 with
    /// less ado, so that a request which comes alone has its answer a tenth of a millisecond sooner: one of few
    /// connections of that kind if any is idle, else as what flows.
    Brief,
    /// In drops, at whatever pace a pod likes: a log that is followed, what is proxied to a service. The apiserver
    /// makes a frame of each, and of what their reader leaves unread h2 keeps every frame: hundreds of bytes for one,
    /// and beyond an allowance it ends the connection, with all that others have on it. HTTP/1.1 leaves it to the
    /// socket.
    Drips,
    /// The same while a body may still be on its way, which Go's HTTP/1.1 reads before it answers: HTTP/2, and no
    /// others on the connection.
    DripsBothWays,
}

impl Connections {
    /// Takes out what is closed or has been idle for long; what is to be ended of it, without the lock.
    #[must_use]
    fn retire(&mut self) -> Vec<Http1> {
        self.http2.retain(|connection| !connection.send.is_closed() && !connection.load.idle_for(IDLE_TIME));
        let mut old = Vec::new();
        for idle in [&mut self.idle, &mut self.idle_for_brief, &mut self.idle_for_drops] {
            idle.retire(&mut old);
        }
        old
    }

    fn take(&mut self, pace: Pace, kept_too: bool, width: Width) -> Option<Sender> {
        match pace {
            Pace::Brief if kept_too => {
                self.brief().or_else(|| self.http2(width)).or_else(|| self.idle.take().map(Sender::Http1))
            }
            Pace::Flows if kept_too => self.http2(width).or_else(|| self.idle.take().map(Sender::Http1)),
            Pace::Brief | Pace::Flows => self.http2(width),
            Pace::Drips if kept_too => self.idle_for_drops.take().map(Sender::Http1),
            Pace::Drips | Pace::DripsBothWays => None,
        }
    }

    fn idle(&mut self, list: List) -> &mut Idle {
        match list {
            List::Any => &mut self.idle,
            List::Brief => &mut self.idle_for_brief,
            List::Drops => &mut self.idle_for_drops,
        }
    }

    /// An idle connection for brief answers. What comes beside it has HTTP/2, which is not to be dialled anew for that.
    fn brief(&mut self) -> Option<Sender> {
        let connection = self.idle_for_brief.take()?;
        self.brief.served |= connection.used;
        if let Some(beside) = self.http2_with_room(Width::Wide) {
            beside.load.touch();
        }
        Some(Sender::Http1(connection))
    }

    fn http2_with_room(&self, width: Width) -> Option<&Http2> {
        self.http2.iter().find(|connection| {
            let most = connection.allowed.load(Ordering::Relaxed).min(STREAMS_PER_CONNECTION);
            connection.width == width && connection.load.streams() < most
        })
    }

    /// The first HTTP/2 connection of this width with room, so that the last ones become idle; when all are full, the
    /// least loaded, of this width if there is one.
    fn http2(&self, width: Width) -> Option<Sender> {
        let chosen = if self.http2.len() >= CONNECTIONS_MAX {
            self.http2.iter().min_by_key(|connection| (connection.width != width, connection.load.streams()))
        } else {
            self.http2_with_room(width)
        };
        chosen.map(|connection| Sender::Http2(connection.send.clone(), connection.load.claim()))
    }
}

impl Idle {
    fn retire(&mut self, into: &mut Vec<Http1>) {
        let old = |(connection, since): &mut (Box<Http1>, Instant)| {
            connection.send.is_closed() || since.elapsed() >= IDLE_TIME
        };
        into.extend(self.0.extract_if(.., old).map(|(connection, _)| *connection));
    }

    /// The last one that may be ready: of one that no task drives nobody knows until it is driven.
    fn take(&mut self) -> Option<Box<Http1>> {
        let driven = |connection: &Http1| connection.driver.is_some();
        let ready = self.0.iter().rposition(|(connection, _)| driven(connection) || connection.send.is_ready())?;
        Some(self.0.swap_remove(ready).0)
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection with room, if there is one; one of HTTP/1.1, which was kept idle, only if `kept_too`.
    pub(super) fn take(&self, pace: Pace, kept_too: bool, width: Width) -> Option<Sender> {
        self.retire();
        loop {
            let taken = self.lock().take(pace, kept_too, width);
            match taken {
                // Without the lock, for this reads and writes.
                Some(Sender::Http1(mut connection)) => {
                    if connection.is_ready() {
                        return Some(Sender::Http1(connection));
                    }
                }
                taken => return taken,
            }
        }
    }

    /// Ends what is closed or has been idle for long.
    pub(super) fn retire(&self) {
        let old = self.lock().retire();
        old.into_iter().for_each(Http1::end);
    }

    /// Of HTTP/2, with one stream taken.
    pub(super) fn add(
        &self,
        send: http2::SendRequest<RequestBody>,
        allowed: Arc<AtomicUsize>,
        turns: Turns,
        width: Width,
    ) -> Sender {
        let load = Load::new(turns);
        let claim = load.claim();
        self.lock().http2.push(Http2 { send: send.clone(), load, width, allowed });
        Sender::Http2(send, claim)
    }

    /// Of HTTP/1.1; it is taken again once it has nothing on it.
    pub(super) fn give_back(&self, mut connection: Box<Http1>) {
        let mut connections = self.lock();
        let Idle(idle) = connections.idle(connection.list);
        if !connection.send.is_closed() && idle.len() < IDLE_MAX && connection.since.elapsed() < AGE_MAX {
            connection.kept = true;
            idle.push((connection, Instant::now()));
            return;
        }
        drop(connections);
        connection.end();
    }

    /// A place for another connection for brief answers, if one may be dialled now.
    pub(super) fn place_for_brief(&self) -> Option<Place> {
        let Brief { open, dialled, served } = &mut self.lock().brief;
        let pause = if *served { BRIEF_PERIOD } else { BRIEF_PAUSE };
        if Arc::strong_count(open) > BRIEF_MAX || dialled.is_some_and(|dialled| dialled.elapsed() < pause) {
            return None;
        }
        (*dialled, *served) = (Some(Instant::now()), false);
        Some(Place(open.clone()))
    }

    /// HTTP/2 connections, and streams on them.
    pub(super) fn open(&self) -> (usize, usize) {
        let connections = self.lock();
        (connections.http2.len(), connections.http2.iter().map(|connection| connection.load.streams()).sum())
    }
}

impl Sender {
    /// A connection of HTTP/2 that no other request gets.
    pub(super) fn alone(send: http2::SendRequest<RequestBody>, turns: Turns) -> Self {
        Self::Http2(send, Load::new(turns).claim())
    }
}

impl Http1 {
    /// Dialled just now.
    pub(super) fn fresh((send, narrow): Http1Send, driver: Option<Driver>, list: List) -> Box<Self> {
        Box::new(Self { send, driver, narrow, list, since: Instant::now(), used: false, kept: false })
    }

    /// How much it may hold of the next answer.
    pub(super) fn set_width(&self, width: Width) {
        self.narrow.set(width);
    }

    /// Ends it as TLS asks for, which nobody else does where no task drives it.
    fn end(self) {
        let Self { send, driver, .. } = self;
        drop(send);
        if let Some(mut driver) = driver {
            let _ended = driver.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Has it read and write what it can, where no task does; whoever drives it last is woken for more.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        // Taken out meanwhile: what panics is not polled again.
        if let Some(mut driver) = self.driver.take()
            && driver.as_mut().poll(cx).is_pending()
        {
            self.driver = Some(driver);
        }
    }

    /// Whether it takes a request now; not if the apiserver has closed it while it was idle.
    fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.send.is_ready()
    }

    /// Whether a request that is safe and was sent at `sent` may go to another connection after `error`: this one ended
    /// before the answer's head had come whole, and may have been ending when it was taken, or had no room for that
    /// head.
    pub(super) fn asks_again(&self, error: &hyper::Error, sent: Instant) -> bool {
        let by_socket = || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>());
        let ended = error.is_incomplete_message() || by_socket();
        let crossed = self.kept && ended && sent.elapsed() < CROSSING;
        crossed || (self.list == List::Brief && error.is_parse_too_large())
    }
}

impl Load {
    fn new(turns: Turns) -> Arc<Self> {
        Arc::new(Self { turns, streams: AtomicUsize::new(0), idle_since: Mutex::new(Instant::now()) })
    }

    fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    fn idle_for(&self, time: Duration) -> bool {
        self.streams() == 0 && self.idle_since.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= time
    }

    /// As if it had carried a request.
    fn touch(&self) {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn claim(self: &Arc<Self>) -> Claim {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Claim(self.clone())
    }
}

impl Claim {
    /// What the connection is told of a request.
    pub(super) fn turns(&self) -> &Turns {
        &self.0.turns
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.touch();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    /// Has the connection bring more of the answer, where nobody else does.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Self::Connection(connection, _) = self {
            connection.drive(cx);
        }
    }

    /// The answer was read to its end.
    pub(super) fn finished(self) {
        if let Self::Connection(mut connection, pool) = self {
            connection.used = true;
            pool.give_back(connection);
        }
    }
}

impl Pace {
    /// Of the answer to a request; `repeatable` is one that changes nothing and has no body.
    pub(super) fn of(head: &UpstreamHead, repeatable: bool) -> Self {
        // As the apiserver reads it, which decodes.
        let path = percent_decode(head.target().path().as_bytes());
        let named = path.split(|byte| *byte == b'/').any(|part| matches!(part, b"log" | b"proxy"));
        if named && is_log_or_proxy(head, &path) {
            return if repeatable { Self::Drips } else { Self::DripsBothWays };
        }
        // A watch that is not seen to be one only holds its connection.
        let watch = |text: &str| text.contains("watch");
        let target = head.target();
        if repeatable && *head.method() == Method::GET && !watch(target.path()) && !target.query().is_some_and(watch) {
            Self::Brief
        } else {
            Self::Flows
        }
    }
}

/// Whether it asks for a log or through a proxy: others may be called so.
fn is_log_or_proxy(head: &UpstreamHead, path: &[u8]) -> bool {
    let info = RequestInfo::parse(head.method(), &String::from_utf8_lossy(path), head.target().query());
    info.verb == "proxy" || matches!(&*info.subresource, "log" | "proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_for_brief_answers_are_few_and_dialled_now_and_then() {
        let pool = Pool::default();
        let first = pool.place_for_brief().unwrap();
        // Nothing has come of it yet.
        tokio::time::advance(BRIEF_PERIOD).await;
        assert!(pool.place_for_brief().is_none());
        pool.lock().brief.served = true;
        let second = pool.place_for_brief().unwrap();
        pool.lock().brief.served = true;
        assert!(pool.place_for_brief().is_none());
        tokio::time::advance(BRIEF_PERIOD).await;
        assert!(pool.place_for_brief().is_none());
        drop(first);
        let third = pool.place_for_brief().unwrap();
        drop((second, third));
        tokio::time::advance(BRIEF_PERIOD).await;
        assert!(pool.place_for_brief().is_none());
        tokio::time::advance(BRIEF_PAUSE).await;
        assert!(pool.place_for_brief().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_is_not_kept_again() {
        let (near, _far) = tokio::io::duplex(1024);
        let (send, connection) = http1::handshake(hyper_util::rt::TokioIo::new(near)).await.unwrap();
        let _running = tokio::spawn(connection);
        tokio::task::yield_now().await;
        let pool = Pool::default();
        pool.give_back(Http1::fresh((send, Narrow::default()), None, List::Brief));
        for age in 1..=AGE_MAX.as_secs() / IDLE_TIME.as_secs() {
            let Some(Sender::Http1(connection)) = pool.take(Pace::Brief, true, Width::Wide) else {
                panic!("gone after {age} minutes")
            };
            tokio::time::advance(IDLE_TIME).await;
            pool.give_back(connection);
        }
        assert!(pool.take(Pace::Brief, true, Width::Wide).is_none());
    }

    /// Nobody drives it while it is idle.
    #[tokio::test]
    async fn a_connection_that_was_closed_while_it_was_idle_is_not_taken() {
        let (near, far) = tokio::io::duplex(1024);
        let (send, connection) = http1::handshake(hyper_util::rt::TokioIo::new(near)).await.unwrap();
        let driver: Driver = Box::pin(async move { drop(connection.await) });
        let pool = Pool::default();
        pool.give_back(Http1::fresh((send, Narrow::default()), Some(driver), List::Brief));
        let Some(Sender::Http1(connection)) = pool.take(Pace::Brief, true, Width::Wide) else { panic!("not ready") };
        pool.give_back(connection);
        drop(far);
        assert!(pool.take(Pace::Brief, true, Width::Wide).is_none());
        assert!(pool.lock().idle_for_brief.0.is_empty());
    }
}
