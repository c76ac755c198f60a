//! Events as they happen: server-sent events (HTML Living Standard, 9.2). `Last-Event-ID` (or `after`) begins behind an
//! event; without it the stream begins with what happens next. Where events behind that one are forgotten, or it is not
//! known, an event of the type [`crate::events::GAP`] comes first. It ends when the caller may no longer read anything
//! there, when the token ends and when the gateway drains; a client then asks again.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::{
    rbac::{Action, Plane, Scope},
    token::Identity,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use tokio::sync::watch;
use types::api::ResourceId;

use crate::{
    answers::{Body, Live},
    api::{Call, read::ROWS_A_TURN},
    api_error::ApiError,
    control::Control,
    events::{self, Listening, cloud_event},
    identity::Caller,
    issuer::Issuer,
    store::events::{Event, Of, type_of},
};

/// What a client accepts to be told as it happens.
pub const CONTENT_TYPE: &str = "text/event-stream";
/// How long a stream is silent at most: a comment then says that it lives, and the caller's right is looked at again.
const QUIET: Duration = Duration::from_secs(15);
/// How long a client waits before it asks again, in milliseconds.
const RETRY_MS: u32 = 3000;

/// The answer to one who may listen.
pub async fn serve(call: &Call<'_>, scope: &ResourceId) -> Result<Response<Body>, ApiError> {
    let known = match call.headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().parse::<i64>()) {
        Some(Ok(number @ 0..)) => Some(number),
        Some(_) => {
            let message = "The header 'Last-Event-ID' must be the id of an event, a whole number.";
            return Err(ApiError::bad_request("InvalidHeaderValue", message).at("Last-Event-ID"));
        }
        None => super::after(call, "after")?,
    };
    let newest = call.control.notices.newest();
    let last = call.control.store.newest_event().await?;
    let forgotten = call.control.store.forgotten(super::of(scope)).await?;
    let (after, gap) = events::resume(known.unwrap_or(last), last, forgotten);
    // The number is that of no event: a stream that breaks off before its first one goes on from here, too.
    let mut waiting = VecDeque::from([Bytes::from(format!("id: {after}\nretry: {RETRY_MS}\n\n"))]);
    waiting.extend(gap.map(|why| told_gap(scope, after, &why, call.control)));
    let listener = Listener {
        _place: call.control.notices.listeners.enter(call.caller.object_id())?,
        ended: call.control.notices.ended(),
        control: Arc::clone(call.control),
        issuer: call.issuer.clone(),
        identity: Arc::clone(call.identity()?),
        caller: call.caller.clone(),
        scope: scope.clone(),
        newest,
        after,
        waiting,
    };
    let lines = stream::unfold(listener, |mut listener| async move { Some((listener.next().await?, listener)) });
    let mut response = Response::new(Body::Live(Box::new(Live::new(lines))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The lines that tell of a gap.
fn told_gap(scope: &ResourceId, number: i64, why: &str, control: &Control) -> Bytes {
    let told = events::gap(scope, number, why, control.now_ms(), &control.settings.url);
    Bytes::from(format!("id: {number}\nevent: {}\ndata: {told}\n\n", events::GAP))
}

/// One who listens.
struct Listener {
    _place: Listening,
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
            match self.control.store.events(Of::All, self.after, super::AT_ONCE).await {
                Ok(events) if !events.is_empty() => {
                    let forgotten = self.forgotten(&events).await;
                    self.take(&events, forgotten).await;
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

    /// The number up to which events that concern the scope may be missing among these, which are those behind what was
    /// told. Numbers have no gaps but where events were forgotten: this one was slow, or a group was over its share.
    async fn forgotten(&self, events: &[Event]) -> i64 {
        let of = super::of(&self.scope);
        let numbers = std::iter::once(self.after).chain(events.iter().map(|event| event.number));
        if numbers.clone().zip(numbers.skip(1)).all(|(one, next)| next == one + 1) {
            return i64::MAX;
        }
        // Where it cannot be known they are missing.
        self.control.store.forgotten(of).await.unwrap_or(i64::MAX)
    }

    async fn take(&mut self, events: &[Event], forgotten: i64) {
        let (directory, now) = (self.control.directory(), self.control.now_ms() / 1000);
        let mut asker = directory.asker(self.caller.principals(), Plane::Control, Action::new(super::READ), now);
        for (at, event) in events.iter().enumerate() {
            if at % ROWS_A_TURN == ROWS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            let last = event.number - 1;
            if last > self.after && self.after < forgotten {
                let why = events::forgot(self.after, last);
                self.waiting.push_back(told_gap(&self.scope, last, &why, &self.control));
            }
            self.after = event.number;
            if super::concerns(event, &self.scope) && event.key.parse().is_ok_and(|at| asker.may(&at)) {
                let told = cloud_event(event, &self.control.settings.url);
                let kind = type_of(event.kind);
                self.waiting.push_back(Bytes::from(format!("id: {}\nevent: {kind}\ndata: {told}\n\n", event.number)));
            }
        }
    }

    fn may(&self, scope: &Scope) -> bool {
        let (directory, now) = (self.control.directory(), self.control.now_ms() / 1000);
        directory.decide(self.caller.principals(), Plane::Control, &Action::new(super::READ), scope, now).is_ok()
    }

    /// Whether the caller is still who they were, and may still read something there.
    fn may_listen(&self) -> bool {
        let snapshot = self.control.snapshot();
        let at = Scope::from(&self.scope);
        let below = |scope: &Scope| {
            let now = self.control.now_ms() / 1000;
            snapshot.directory.decide_below(self.caller.principals(), &Action::new(super::READ), scope, now)
        };
        SystemTime::now() < self.identity.expires
            && snapshot.is_welcome(self.issuer.as_deref(), &self.identity)
            && (self.may(&at) || below(&at))
    }
}
