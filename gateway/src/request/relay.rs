//! Bodies, watches and upgraded bytes, both ways, half-close and back-pressure kept.
//!
//! The answer may begin, and end, while the request's body still flows. Whatever breaks off behind the gateway breaks
//! off in front of it: an incomplete answer never ends cleanly. When the user goes away everything here is dropped,
//! which resets the stream at once.

mod watch;

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use daemon::{Task, TaskGroup};
use futures_util::future::BoxFuture;
use http::{Method, Response, StatusCode, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};
use tracing::Instrument as _;
use tunnel::{
    exchange::{self, Resendable, Sending, StreamBody},
    transport::{MessageError, RecvStream, SendStream, Stream, StreamError},
    wire::{close::StreamCode, head::ResponseHead},
};
use types::limits;

use self::watch::Leaving;
use super::{
    Connection, Request,
    address::Endpoint,
    headers,
    open::{self, Opened, Place, Via, Ways},
    redirect,
    refusal::{BodyError, Kind, Refusal},
};
use crate::{
    audit::{self, Custody, Outcome, Record},
    core::Core,
    metrics::labels::Stage,
    sessions::{EndReason, SessionHandle, cut},
};

/// The agent says by itself that the time is over; one that does not is not waited for.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);
/// Streams opened for one request where agents refuse them.
const TRIES: u32 = 3;
/// How long a request body may go on after its answer was whole.
const UPLOAD_LINGER: Duration = Duration::from_secs(10);

/// Sends the request's body, waits for the answer's head and gives the answer back. The record goes to the answer once
/// that has begun; until then the stages have it for a refusal. A stream that the agent refused is opened again for
/// `head` on another tunnel, with the body from its beginning ([`Resendable`]).
pub fn relay(
    core: &Arc<Core>,
    mut request: Box<Request>,
    head: Bytes,
    opened: Opened,
    session: SessionHandle,
    custody: &mut Custody,
) -> impl Future<Output = Result<Response<Answered>, Refusal>> {
    let counted = Arc::clone(&custody.record().bytes);
    let Opened { stream: Stream { send, recv, .. }, via, place } = opened;
    let mut up = Up { head, body: None, sender: None, upload: None, unreadable: BodyReport::NeverComes };
    if request.upgrade.is_none()
        && let Some(body) = request.body.take().filter(|body| !body.is_end_stream())
    {
        let (report, reported) = oneshot::channel();
        let body = Upload { body, bytes: Arc::clone(&counted), unreadable: Some(report) };
        up.body = Some(Resendable::new(None, body, core.bodies.part(&place.user())));
        up.unreadable = BodyReport::MayCome(reported);
    }
    up.begin(core, &request, send);
    let down = Down { recv, via, place, counted };
    carry_out(core, request, up, down, session, custody).instrument(tracing::debug_span!("relay"))
}

/// What is on its way to the cluster.
struct Up {
    /// The request's head, encoded.
    head: Bytes,
    body: Option<Resendable<Upload>>,
    /// Of a request that wants to change protocols.
    sender: Option<SendStream>,
    /// Of one with a body, which is being sent.
    upload: Option<UploadGuard>,
    /// Says when the body cannot be read.
    unreadable: BodyReport,
}

impl Up {
    /// Sends what follows the head on a stream that was opened for it. Whether that is still there.
    fn begin(&mut self, core: &Arc<Core>, request: &Request, mut send: SendStream) -> bool {
        if request.upgrade.is_some() {
            // No body and no finish yet: after a 101 this half carries the upgraded bytes.
            self.sender = Some(send);
        } else if let Some(body) = &self.body {
            let Some(body) = body.send() else { return false };
            let (cancel, cancelled) = oneshot::channel();
            let span = tracing::error_span!("upload", request.id = %request.id);
            span.in_scope(|| core.tasks.spawn("upload", send_body(send, body, cancelled)));
            self.upload = Some(UploadGuard(Some(cancel)));
        } else {
            // Finished already, unless the end came since; a stream that is over says so where the answer is read.
            let _ = send.finish();
        }
        true
    }

    /// Opens another stream instead of the one that the agent or the other replica refused, on another tunnel or by
    /// another replica. `None`: there is none, or more of the body was sent than is kept.
    async fn again(&mut self, core: &Arc<Core>, request: &Request, refused: Down) -> Option<Down> {
        let Down { via: refused_by, place, counted, .. } = refused;
        let cluster = &request.address.key;
        let mut tunnels = core.tunnels.of(cluster);
        if let Via::Own(refused_by) = &refused_by {
            tunnels.retain(|tunnel| !Arc::ptr_eq(tunnel, refused_by));
        }
        let bodiless = request.upgrade.is_none() && self.body.is_none();
        let ways = Ways { cluster, tunnels, refused_by: Some(&refused_by) };
        let opened = open::open(core, ways, self.head.clone(), bodiless, place.into_slot()).await.ok()?;
        let Opened { stream: Stream { send, recv, .. }, via, place } = opened;
        self.begin(core, request, send).then_some(Down { recv, via, place, counted })
    }
}

/// What comes from there.
struct Down {
    recv: RecvStream,
    via: Via,
    place: Place,
    counted: Arc<audit::Bytes>,
}

/// Waits for the answer.
#[expect(clippy::manual_async_fn, reason = "an async fn has room for what it is given twice")]
fn carry_out(
    core: &Arc<Core>,
    request: Box<Request>,
    mut up: Up,
    mut down: Down,
    session: SessionHandle,
    custody: &mut Custody,
) -> impl Future<Output = Result<Response<Answered>, Refusal>> {
    async move {
        // An upgrade runs a command.
        let repeatable = request.method.is_safe() && request.upgrade.is_none();
        let mut tries = 0;
        let mut head = loop {
            let read = tokio::select! {
                biased;
                reason = session.ended() => {
                    down.recv.stop(StreamCode::Unauthorised);
                    return Err(ended(reason, repeatable));
                }
                () = up.unreadable.came() => {
                    down.recv.stop(StreamCode::NoMore);
                    return Err(Refusal::new(
                        Stage::Relay,
                        Kind::BadRequest("the request's body broke off or cannot be read"),
                    ));
                }
                head = read_head(&mut down.recv, repeatable) => head,
                () = tokio::time::sleep_until((request.deadline + ANSWER_MARGIN).into()) => {
                    down.recv.stop(StreamCode::Cancelled);
                    return Err(Refusal::new(Stage::Relay, Kind::AnswerTimeout));
                }
            };
            let refusal = match read {
                Ok(head) => break head,
                Err(refusal) => refusal,
            };
            tries += 1;
            if !matches!(refusal.kind, Kind::NotTaken { .. }) || tries >= TRIES {
                return Err(refusal);
            }
            // Boxed, so that this rare case does not enlarge the future of every request.
            let Some(again) = Box::pin(up.again(core, &request, down)).await else { return Err(refusal) };
            down = again;
            custody.record().handed_to("");
            down.via.note(custody.record());
        };
        if let Some(body) = up.body.take() {
            body.let_go();
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(asked), Some(send), Some(on_upgrade)) = (&request.upgrade, up.sender, request.on_upgrade) else {
                return Err(bad_answer("the cluster switched protocols without a request to do so"));
            };
            check_switch(asked, &head)?;
            let record = custody.hand_over();
            let upgraded = Upgraded { on_upgrade, send, recv: down.recv, session, record, _place: down.place };
            let span = tracing::error_span!("upgraded", request.id = %request.id);
            return Ok(span.in_scope(|| switch(core, upgraded, head)));
        }
        let left = announced(&head)?;
        // The connection stays HTTP; whatever the client sends next is a new request (CVE-2018-1002105).
        if let Some(mut send) = up.sender {
            let _ = send.finish();
        }
        let mut record = custody.hand_over();
        record.answered(head.status);
        if let Some(stage) = &head.refused_by {
            record.reason(&format!("refused by the agent at {}", String::from_utf8_lossy(stage)));
        }
        let bodiless = request.method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || left == Some(0);
        let watch = head.status == StatusCode::OK
            && matches!(&request.address.endpoint, Endpoint::Kubernetes(info) if info.verb == "watch");
        let mut relayed = Relayed {
            // An answer shorter than it announced is broken off, not complete.
            body: StreamBody::of_response(down.recv, &request.method, head.status, &head.headers),
            left,
            ended: Box::pin(session.ended()),
            over: bodiless,
            whole: false,
            record: Some(record),
            bytes: down.counted,
            upload: up.upload,
            cut: None,
            tasks: core.tasks.clone(),
            leaving: if watch { Leaving::of(core, down.via, &head.headers) } else { None },
            session,
            _place: down.place,
            _connection: request.connection,
        };
        if bodiless || relayed.body.is_end_stream() {
            relayed.whole();
        } else if request.http1 {
            // Not even asked for its first bytes while nobody reads the answers before it.
            relayed.watch_over();
        }
        redirect::adapt(&request.address, &mut head.headers);
        Ok(answer(head, relayed))
    }
}

/// The session was ended while the request was at the cluster already. Where that says nothing about the right to it,
/// only what is `repeatable` is answered so that clients repeat it by themselves.
fn ended(reason: EndReason, repeatable: bool) -> Refusal {
    let kind = match (reason, repeatable) {
        (EndReason::Fenced | EndReason::Superseded | EndReason::Shutdown, false) => Kind::BrokenOff,
        (EndReason::Fenced, true) => Kind::Fenced,
        (EndReason::Superseded, true) => Kind::Superseded,
        (EndReason::Shutdown, true) => Kind::Draining,
        (reason, _) => Kind::Ended(reason),
    };
    Refusal::new(Stage::Relay, kind).because(reason.text())
}

fn bad_answer(why: &'static str) -> Refusal {
    Refusal::new(Stage::Relay, Kind::BadAnswer(why))
}

/// Sends the request's body. It is broken off when the exchange is; after a whole answer it may go on for a while,
/// until the agent stops it, so that the user's connection stays good for the next request.
async fn send_body(mut send: SendStream, body: Sending<Upload>, cancelled: oneshot::Receiver<()>) {
    let broken_off = async {
        if cancelled.await.is_err() {
            tokio::time::sleep(UPLOAD_LINGER).await;
        }
    };
    let result = tokio::select! {
        biased;
        () = broken_off => None,
        (sent, result) = exchange::send_body(&mut send, body) => Some((sent, result)),
    };
    match result {
        None => send.reset(StreamCode::Cancelled),
        Some((_, Ok(_))) => {}
        Some((sent, Err(error))) => tracing::debug!(sent, %error, "request body not sent whole"),
    }
}

/// Whether the sender of the request's body reports that it cannot read the body. The user is told so, and not that the
/// cluster broke off.
enum BodyReport {
    /// The body is being read.
    MayCome(oneshot::Receiver<()>),
    /// There is no body, or it was read to its end.
    NeverComes,
}

impl BodyReport {
    /// Completes when the report comes; never if none comes. Cancel-safe.
    async fn came(&mut self) {
        if let Self::MayCome(report) = self
            && report.await.is_ok()
        {
            return;
        }
        // The sender was dropped with the body: it was read.
        *self = Self::NeverComes;
        std::future::pending().await
    }
}

/// Breaks the sending of a request body off when dropped before the answer was whole.
struct UploadGuard(Option<oneshot::Sender<()>>);

impl UploadGuard {
    /// The answer is whole.
    fn release(mut self) {
        drop(self.0.take());
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            let _ = cancel.send(());
        }
    }
}

/// The answer's head, which the agent owes. Only what changes nothing is `repeatable`: where it is lost with its tunnel
/// it is answered so that clients repeat it by themselves, and client-go repeats whatever method it is told to.
pub async fn read_head(recv: &mut RecvStream, repeatable: bool) -> Result<ResponseHead, Refusal> {
    match recv.recv_message(limits::HEAD_BYTES).await {
        Ok(message) => ResponseHead::decode(message)
            .map_err(|error| bad_answer("the cluster's answer cannot be read").because(error)),
        Err(MessageError::Wire(error)) => Err(bad_answer("the cluster's answer cannot be read").because(error)),
        Err(MessageError::Stream(error @ StreamError::Reset(code))) if code.is_refusal() => {
            Err(Refusal::new(Stage::Relay, Kind::NotTaken { passing: code.is_passing() }).because(error))
        }
        Err(error @ MessageError::Stream(StreamError::Lost(_) | StreamError::Reset(StreamCode::TunnelLost)))
            if repeatable =>
        {
            Err(Refusal::new(Stage::Relay, Kind::TunnelLost).because(error))
        }
        Err(error) => Err(Refusal::new(Stage::Relay, Kind::BrokenOff).because(error)),
    }
}

/// The length that an answer announces, if it does. One that readers could take for different numbers would let a
/// cluster make up the next answer on a connection that others may share.
fn announced(head: &ResponseHead) -> Result<Option<u64>, Refusal> {
    let length = exchange::content_length(&head.headers);
    if length.is_none() && head.headers.contains_key(header::CONTENT_LENGTH) {
        return Err(bad_answer("the cluster's answer has a length that cannot be read, or more than one"));
    }
    Ok(length)
}

fn answer(mut head: ResponseHead, body: Relayed) -> Response<Answered> {
    headers::strip_response(&mut head.headers, false);
    let mut response = Response::new(Some(Box::new(body)));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

/// A 101 must be to the protocol that was asked for.
fn check_switch(asked: &Bytes, head: &ResponseHead) -> Result<(), Refusal> {
    match exchange::upgrade_of(&head.headers) {
        Some(got) if got.eq_ignore_ascii_case(asked) => Ok(()),
        _ => Err(bad_answer("the cluster changed to another protocol than was asked for")),
    }
}

struct Upgraded {
    on_upgrade: hyper::upgrade::OnUpgrade,
    send: SendStream,
    recv: RecvStream,
    session: SessionHandle,
    record: Record,
    _place: Place,
}

fn switch(core: &Arc<Core>, mut upgraded: Upgraded, mut head: ResponseHead) -> Response<Answered> {
    headers::strip_response(&mut head.headers, true);
    upgraded.record.answered(head.status);
    core.tasks.spawn("upgraded", carry(upgraded));
    let mut response = Response::new(None);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

/// Carries upgraded bytes until both directions have ended or the session is ended.
async fn carry(upgraded: Upgraded) {
    let Upgraded { on_upgrade, send, recv, session, mut record, _place } = upgraded;
    let io = match on_upgrade.await {
        Ok(io) => TokioIo::new(io),
        Err(error) => return tracing::debug!(%error, "the user went away before the upgrade"),
    };
    let io = Counted { io, bytes: Arc::clone(&record.bytes) };
    let outcome = tokio::select! {
        biased;
        reason = session.ended() => {
            record.reason(reason.text());
            Outcome::Ended
        }
        (_, result) = exchange::splice(io, send, recv) => match result {
            Ok(()) => Outcome::Complete,
            Err(error) => {
                record.reason(&error.to_string());
                Outcome::BrokenOff
            }
        }
    };
    record.outcome(outcome);
}

/// The request's body, counted.
struct Upload {
    body: Incoming,
    bytes: Arc<audit::Bytes>,
    /// Told before whoever sends the body learns of it: they reset the stream, and the answer ends with it.
    unreadable: Option<oneshot::Sender<()>>,
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.bytes.up.fetch_add(length as u64, Ordering::Relaxed);
        }
        if let Some(Err(_)) = &frame
            && let Some(unreadable) = self.unreadable.take()
        {
            // Nobody listens once the answer has begun.
            let _ = unreadable.send(());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The body of what is given back; none behind a change of protocol.
pub type Answered = Option<Box<Relayed>>;

/// An answer's body on its way to the user, with everything that must live as long as it does.
pub struct Relayed {
    body: StreamBody,
    /// Bytes still to come, where the answer announced them.
    left: Option<u64>,
    ended: BoxFuture<'static, EndReason>,
    over: bool,
    /// The last byte was given; nobody asks for the end.
    whole: bool,
    record: Option<Record>,
    bytes: Arc<audit::Bytes>,
    upload: Option<UploadGuard>,
    /// Ends a reader that has stopped reading when the session is over: from the first bytes on that are not the last,
    /// so that a small answer costs no task.
    cut: Option<Task<()>>,
    tasks: TaskGroup,
    /// Ends a watch early where something drains.
    leaving: Option<Leaving>,
    session: SessionHandle,
    _place: Place,
    /// A connection with an answer under way is not idle.
    _connection: Arc<Connection>,
}

impl Relayed {
    fn end(&mut self, outcome: Outcome, reason: Option<&str>) {
        self.over = true;
        self.cut = None;
        if let (Outcome::Complete, Some(upload)) = (outcome, self.upload.take()) {
            upload.release();
        }
        if let Some(mut record) = self.record.take() {
            if let Some(reason) = reason {
                record.reason(reason);
            }
            record.outcome(outcome);
        }
    }
}

impl Relayed {
    /// Ends its reader if that does not read once the session is over.
    fn watch_over(&mut self) {
        self.cut = cut::once_ended(&self.tasks, &self.session);
    }

    /// The last announced byte is there; nobody will ask for the end.
    fn whole(&mut self) {
        self.whole = true;
        if let Some(record) = &mut self.record {
            record.outcome(Outcome::Complete);
        }
        if let Some(upload) = self.upload.take() {
            upload.release();
        }
        self.cut = None;
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        // A reader that was cut did not ask for the end.
        if !(self.over || self.whole)
            && let Poll::Ready(reason) = self.ended.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.body.stop(StreamCode::Unauthorised);
            self.end(Outcome::Ended, Some(reason.text()));
        }
    }
}

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(reason) = this.ended.as_mut().poll(cx) {
            this.body.stop(StreamCode::Unauthorised);
            this.end(Outcome::Ended, Some(reason.text()));
            return Poll::Ready(Some(Err(BodyError::Ended(reason))));
        }
        if this.leaving.as_mut().is_some_and(|leaving| leaving.is_due(cx)) {
            this.body.stop(StreamCode::NoMore);
            this.end(Outcome::Ended, Some(watch::WHY));
            return Poll::Ready(None);
        }
        match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                if let (Some(leaving), Some(data)) = (&mut this.leaving, frame.data_ref()) {
                    leaving.passed(data);
                }
                this.bytes.down.fetch_add(length, Ordering::Relaxed);
                this.left = this.left.map(|left| left.saturating_sub(length));
                // hyper does not ask again after the last announced byte, so the record ends here.
                if this.left == Some(0) || this.body.is_end_stream() {
                    this.whole();
                } else if this.cut.is_none() {
                    this.watch_over();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.end(Outcome::BrokenOff, Some(&error.to_string()));
                Poll::Ready(Some(Err(BodyError::BrokenOff(error))))
            }
            None => {
                this.end(Outcome::Complete, None);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Upgraded bytes, counted.
struct Counted<T> {
    io: T,
    bytes: Arc<audit::Bytes>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.bytes.up.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.bytes.down.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
