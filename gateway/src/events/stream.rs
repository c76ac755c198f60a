//! Events as they happen: server-sent events (HTML Living Standard, 9.2). `Last-Event-ID` (or `after`) begins behind an event;
//! without it the stream begins with what happens next. Where events behind that one are forgotten, or it is not known, an
//! event of the type [`super::GAP`] comes first. It ends when the caller may no longer read anything there, when the
//! token ends and when the gateway drains; a client then asks again.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use auth::{
    rbac::{Action, Plane, Scope},
    token::Identity,
};
use bytes::Bytes;
use daemon::shares::share;
use futures_util::{Stream, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use tokio::sync::watch;
use types::api::ResourceId;

use super::{cloud_event, list};
use crate::{
    api::{Call, error::ApiError, is_in_force, read::ROWS_A_TURN},
    control::Control,
    identity::Caller,
    issuer::Issuer,
    request::{Connection, respond::Body},
    store::events::{Event, Of},
};

/// What a client accepts to be told as it happens.
pub const CONTENT_TYPE: &str = "text/event-stream";
/// Streams at once,
const STREAMS: u32 = 512;
/// and of one caller.
const OF_ONE_CALLER: u32 = 16;
/// How long a stream is silent at most: a comment then says that it lives, and the caller's right is looked at again.
const QUIET: Duration = Duration::from_secs(15);
/// How long a client waits before it asks again, in milliseconds.
const RETRY_MS: u32 = 3000;

/// Who listens: how many streams each caller has.
#[derive(Default)]
pub struct Places(Arc<Mutex<HashMap<String, u32>>>);

/// One stream's place.
struct Place {
    places: Arc<Mutex<HashMap<String, u32>>>,
    caller: String,
}

impl Places {
    fn take(&self, caller: &str) -> Result<Place, ApiError> {
        let full = |whose: &str, bound: u32| {
            let message = format!("{bound} streams of events{whose} are open, the limit; end one or try again.");
            ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "10")
        };
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = taken.values().sum();
        if all >= STREAMS {
            return Err(full("", STREAMS));
        }
        // The last ones are for those who have none.
        let allowed = OF_ONE_CALLER.min(share(STREAMS, all, 1));
        let own = taken.get(caller).copied().unwrap_or_default();
        if own >= allowed {
            return Err(full(" of yours", allowed));
        }
        taken.insert(caller.to_owned(), own + 1);
        Ok(Place { places: Arc::clone(&self.0), caller: caller.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

/// The answer to one who may listen.
pub async fn serve(call: &Call<'_>, scope: &ResourceId) -> Result<Response<Body>, ApiError> {
    let known = match call.headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().parse::<i64>()) {
        Some(Ok(number @ 0..)) => Some(number),
        Some(_) => {
            let message = "The header 'Last-Event-ID' must be the id of an event, a whole number.";
            return Err(ApiError::bad_request("InvalidHeaderValue", message).at("Last-Event-ID"));
        }
        None => list::after(call, "after")?,
    };
    let newest = call.control.notices.newest();
    let last = call.control.store.newest_event().await?;
    let (after, gap) = super::resume(known.unwrap_or(last), last);
    let mut waiting = VecDeque::from([Bytes::from(format!("retry: {RETRY_MS}\n\n"))]);
    waiting.extend(gap.map(|why| told_gap(scope, after, &why, call.control)));
    let listener = Listener {
        _place: call.control.notices.places.take(call.caller.object_id())?,
        ended: call.control.notices.ended(),
        control: Arc::clone(call.control),
        issuer: call.issuer.clone(),
        identity: Arc::clone(&call.identity),
        caller: call.caller.clone(),
        scope: scope.clone(),
        newest,
        after,
        waiting,
    };
    let lines = stream::unfold(listener, |mut listener| async move { Some((listener.next().await?, listener)) });
    let mut response = Response::new(Body::Live(Box::new(Live { lines: Box::pin(lines), _connection: None })));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The lines that tell of a gap.
fn told_gap(scope: &ResourceId, number: i64, why: &str, control: &Control) -> Bytes {
    let told = super::gap(scope, number, why, control.now_ms(), &control.settings.url);
    Bytes::from(format!("id: {number}\nevent: {}\ndata: {told}\n\n", super::GAP))
}

/// One who listens.
struct Listener {
    _place: Place,
    control: Arc<Control>,
    issuer: Option<Arc<Issuer>>,
    identity: Arc<Identity>,
    caller: Caller,
    scope: ResourceId,
    newest: watch::Receiver<i64>,
    ended: watch::Receiver<bool>,
    after: i64,
    waiting: VecDeque<Bytes>,
}

impl Listener {
    /// What to send next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if *self.ended.borrow() || !self.may_listen() {
                return None;
            }
            if let Some(line) = self.waiting.pop_front() {
                return Some(line);
            }
            self.newest.mark_unchanged();
            match self.control.store.events(Of::All, self.after, list::AT_ONCE).await {
                Ok(events) if !events.is_empty() => {
                    self.take(&events).await;
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "events cannot be read; a stream of them ends");
                    return None;
                }
            }
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() { return None },
                changed = self.ended.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep(QUIET) => self.waiting.push_back(Bytes::from_static(b": still here\n\n")),
            }
        }
    }

    async fn take(&mut self, events: &[Event]) {
        // Numbers have no gaps but where events were forgotten: this one was slow.
        if let Some(first) = events.first().map(|event| event.number).filter(|first| *first > self.after + 1) {
            let why = super::forgot(self.after, first - 1);
            self.waiting.push_back(told_gap(&self.scope, first - 1, &why, &self.control));
        }
        let (directory, now) = (self.control.directory(), self.control.now_ms() / 1000);
        let mut asker = directory.asker(self.caller.principals(), Plane::Control, Action::new(list::READ), now);
        for (at, event) in events.iter().enumerate() {
            if at % ROWS_A_TURN == ROWS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            self.after = event.number;
            if list::concerns(event, &self.scope) && event.key.parse().is_ok_and(|at| asker.may(&at)) {
                let told = cloud_event(event, &self.control.settings.url);
                let kind = crate::store::events::type_of(event.kind);
                self.waiting.push_back(Bytes::from(format!("id: {}\nevent: {kind}\ndata: {told}\n\n", event.number)));
            }
        }
    }

    fn may(&self, scope: &Scope) -> bool {
        let (directory, now) = (self.control.directory(), self.control.now_ms() / 1000);
        directory.decide(self.caller.principals(), Plane::Control, &Action::new(list::READ), scope, now).is_ok()
    }

    /// Whether the caller is still who they were, and may still read something there.
    fn may_listen(&self) -> bool {
        let snapshot = self.control.snapshot();
        let at = Scope::from(&self.scope);
        let below = |scope: &Scope| {
            let now = self.control.now_ms() / 1000;
            snapshot.directory.decide_below(self.caller.principals(), &Action::new(list::READ), scope, now)
        };
        SystemTime::now() < self.identity.expires
            && is_in_force(&snapshot, self.issuer.as_deref(), &self.identity)
            && (self.may(&at) || below(&at))
    }
}

/// The body of such an answer.
pub struct Live {
    lines: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    /// So that the connection is not idle.
    _connection: Option<Arc<Connection>>,
}

impl Live {
    /// Keeps the connection from being taken for idle.
    pub fn hold(&mut self, connection: Arc<Connection>) {
        self._connection = Some(connection);
    }

    /// The next frame.
    pub fn poll<E>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        self.lines.as_mut().poll_next(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
