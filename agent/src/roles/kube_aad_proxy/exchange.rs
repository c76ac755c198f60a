//! Sends the request and streams the answer: every chunk as soon as it is there, both directions at once, an upgraded
//! connection byte for byte with half-close. When the user stops or the session ends, the apiserver's side is dropped
//! at once.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::task::coop::unconstrained;
use tunnel::{
    exchange::{self, Counters, Room, SendBodyError, Sent, StreamBody},
    transport::{RecvStream, SendStream, StreamError},
    wire::{close::StreamCode, head::ResponseHead},
};
use types::limits;

use super::{
    Refusal,
    authorize::Right,
    dial::{Apiserver, DialError, answer::AnswerBody, body::Outgoing},
    impersonate::UpstreamHead,
};
use crate::roles::sessions::Session;

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "exchange";

/// How long the switch to the upgraded protocol may take once 101 has arrived.
const SWITCH_DEADLINE: Duration = Duration::from_secs(10);

/// One exchange with the apiserver.
pub struct Exchange<'a> {
    /// The cluster's apiserver.
    pub apiserver: &'a Apiserver,
    /// Method, target and headers as the apiserver receives them.
    pub head: UpstreamHead,
    /// The request's `Content-Length`, if it has one.
    pub content_length: Option<u64>,
    /// When an answer must have begun.
    pub deadline: Instant,
    /// What bounds it in time.
    pub bounds: Bounds,
}

/// What bounds an exchange in time.
pub struct Bounds {
    /// None for a token that the agent cannot judge.
    pub session: Option<Session>,
    /// What it was allowed by, where roles and assignments were asked.
    pub right: Option<Box<Right>>,
}

/// What has become of an exchange once its answer has begun.
pub enum Begun {
    /// The answer is to be handed on.
    Answer(Box<Answering>),
    /// The exchange has ended without an answer to hand on.
    Over(Outcome),
}

/// An answer that has begun. Apart from the [`Exchange`] and its future, so that a watch does not hold for hours what
/// the request needed on its way.
pub struct Answering {
    answer: Answer,
    /// Ends with the answer.
    _outgoing: Outgoing,
    bounds: Bounds,
    /// Last, so that the apiserver's side is gone before this one.
    send: SendStream,
}

/// An answer as it is handed on.
pub struct Answer {
    status: StatusCode,
    head: BytesMut,
    body: AnswerBody,
}

/// How an exchange ended, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// What the user saw, if anything.
    pub status: Option<StatusCode>,
    /// Which end it came to.
    pub end: End,
    /// Bytes towards the user.
    pub sent_bytes: u64,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The whole answer was handed on.
    Whole,
    /// The user wanted no more.
    Stopped,
    /// The apiserver broke off within the answer.
    Upstream,
    /// The stream or the tunnel broke.
    Downstream,
    /// The session is over: its token is too old, or its right was withdrawn.
    Session,
}

impl End {
    /// The value of a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Stopped => "stopped",
            Self::Upstream => "upstream",
            Self::Downstream => "downstream",
            Self::Session => "session",
        }
    }
}

/// A refusal instead of an answer, with the half to say it on.
pub struct Refused {
    /// The half of the stream on which the refusal goes back to the gateway.
    pub send: SendStream,
    /// The refusal that the caller gets.
    pub refusal: Refusal,
}

impl Begun {
    /// With an answer to hand on.
    pub fn answer(send: SendStream, answer: Answer, outgoing: Outgoing, bounds: Bounds) -> Self {
        Self::Answer(Box::new(Answering { answer, _outgoing: outgoing, bounds, send }))
    }
}

impl Exchange<'_> {
    /// Sends a plain request and waits for its answer. The parts are borrowed, so that the future stays small (decision
    /// 13).
    pub async fn plain(&mut self, send: &mut SendStream, recv: &mut Option<RecvStream>) -> Waited<(Answer, Outgoing)> {
        let Self { apiserver, head, content_length, deadline, bounds } = self;
        let asked = async {
            let outgoing = request_body(head, *content_length, recv, apiserver.room()).await?;
            let mut answer = apiserver.send(head, &outgoing).await.map_err(refuse_dial)?;
            apiserver.shorten_location(answer.headers_mut());
            Ok((Answer::to_plain(answer)?, outgoing))
        };
        waited_for(pin!(asked), send, bounds, *deadline).await
    }

    /// Asks for an upgrade and runs it to its end. `Err` while nothing was answered yet.
    pub async fn upgrade(mut self, mut send: SendStream, recv: RecvStream) -> Result<Begun, Refused> {
        let asked = async { self.apiserver.upgrade(&mut self.head).await.map_err(refuse_dial) };
        let answer = match waited_for(pin!(asked), &mut send, &self.bounds, self.deadline).await {
            Waited::Answer(answer) => answer,
            Waited::Refused(refusal) => return Err(Refused { send, refusal }),
            Waited::Gone(outcome) => return Ok(Begun::Over(outcome)),
        };
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            // Refused: an ordinary answer, and the connection ends with it (CVE-2018-1002105).
            let mut answer = answer.map(AnswerBody::alone);
            self.apiserver.shorten_location(answer.headers_mut());
            return match Answer::of(answer) {
                Ok(answer) => Ok(Begun::answer(send, answer, Outgoing::empty(), self.bounds)),
                Err(refusal) => Err(Refused { send, refusal }),
            };
        }
        if !switches_as_asked(self.head.headers(), answer.headers()) {
            let refusal = bad_answer("the apiserver switched to another protocol than was asked for");
            return Err(Refused { send, refusal });
        }
        self.switch(send, recv, answer).await.map(Begun::Over)
    }

    /// Hands the 101 on and carries bytes both ways, those first that were glued to it.
    async fn switch(
        self,
        mut send: SendStream,
        recv: RecvStream,
        answer: Response<Incoming>,
    ) -> Result<Outcome, Refused> {
        let mut headers = answer.headers().clone();
        exchange::strip_hop_by_hop(&mut headers, true);
        let head = match encode(StatusCode::SWITCHING_PROTOCOLS, headers) {
            Ok(head) => head,
            Err(refusal) => return Err(Refused { send, refusal }),
        };
        let upgraded = match tokio::time::timeout(SWITCH_DEADLINE, hyper::upgrade::on(answer)).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(_)) | Err(_) => {
                let refusal = bad_answer("the apiserver broke off after its protocol switch");
                return Err(Refused { send, refusal });
            }
        };
        let status = Some(StatusCode::SWITCHING_PROTOCOLS);
        if let Err(end) = send.send(head.freeze()).await {
            return Ok(gone(&end, None, 0));
        }
        let counters = Counters::default();
        // Dropping the splice drops both halves unfinished, which resets the stream.
        let end = tokio::select! {
            biased;
            result = exchange::splice_counted(TokioIo::new(upgraded), send, recv, &counters) => match result {
                Ok(()) => End::Whole,
                Err(err) => {
                    tracing::debug!(error = %err, "an upgraded connection broke off");
                    End::Downstream
                }
            },
            () = self.bounds.ended() => End::Session,
        };
        Ok(Outcome { status, end, sent_bytes: counters.sent() })
    }
}

/// Waits for `asked` until the deadline, the user's going away, or the session's end.
async fn waited_for<T>(
    asked: Pin<&mut impl Future<Output = Result<T, Refusal>>>,
    send: &mut SendStream,
    bounds: &Bounds,
    deadline: Instant,
) -> Waited<T> {
    tokio::select! {
        biased;
        answer = asked => match answer {
            Ok(answer) => Waited::Answer(answer),
            Err(refusal) => Waited::Refused(refusal),
        },
        end = send.stopped() => Waited::Gone(gone(&end, None, 0)),
        () = bounds.ended() => {
            Waited::Refused(Refusal::unauthorized(STAGE, "the token's time is over, or the right was withdrawn"))
        }
        // As the bounds are.
        () = unconstrained(tokio::time::sleep_until(deadline.into())) => Waited::Refused(Refusal::new(
            STAGE,
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            "the apiserver did not answer in time",
        )),
    }
}

impl Answer {
    /// To a plain request.
    fn to_plain(answer: Response<AnswerBody>) -> Result<Self, Refusal> {
        if answer.status().is_informational() {
            // 101 to a request that asked for no upgrade: what follows is no HTTP that anybody has judged.
            return Err(bad_answer("the apiserver switched protocols without a request to do so"));
        }
        Self::of(answer)
    }

    fn of(answer: Response<AnswerBody>) -> Result<Self, Refusal> {
        let (parts, body) = answer.into_parts();
        let (status, mut headers) = (parts.status, parts.headers);
        // The body was read by its chunks, and a length beside them is not to go on (RFC 9112 section 6.3).
        if headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::CONTENT_LENGTH);
        }
        exchange::strip_hop_by_hop(&mut headers, false);
        Ok(Self { status, head: encode(status, headers)?, body })
    }
}

impl Bounds {
    /// Completes when the session is over, or the right to this call is withdrawn. Not held to the task's share of a
    /// turn, which a peer that sends without a pause uses up each time.
    fn ended(&self) -> impl Future<Output = ()> {
        unconstrained(async {
            match (&self.session, &self.right) {
                (None, None) => std::future::pending().await,
                (Some(session), None) => session.ended().await,
                (None, Some(right)) => Box::pin(right.withdrawn()).await,
                // Boxed: most clusters ask no roles and assignments.
                (Some(session), Some(right)) => {
                    Box::pin(async {
                        tokio::select! {
                            () = session.ended() => {}
                            () = right.withdrawn() => {}
                        }
                    })
                    .await;
                }
            }
        })
    }
}

impl Answering {
    /// Hands the answer on.
    pub async fn run(mut self: Box<Self>) -> Outcome {
        let Self { answer: Answer { status, head, body }, bounds, send, .. } = &mut *self;
        let status = Some(*status);
        let counters = Counters::default();
        let sent = tokio::select! {
            biased;
            sent = exchange::respond_encoded(send, std::mem::take(head), body, &counters) => Some(sent),
            () = bounds.ended() => None,
        };
        let sent_bytes = counters.sent();
        let Some(result) = sent else {
            send.reset(StreamCode::Unauthorised);
            return Outcome { status, end: End::Session, sent_bytes };
        };
        let end = match result {
            Ok(Sent::Whole) => End::Whole,
            Ok(Sent::Stopped) => End::Stopped,
            Err(SendBodyError::Source(err)) => {
                tracing::debug!(error = %err, "the apiserver broke off within its answer");
                End::Upstream
            }
            Err(SendBodyError::Head(_)) => End::Upstream,
            Err(SendBodyError::Stream(err)) => return gone(&err, status, sent_bytes),
        };
        Outcome { status, end, sent_bytes }
    }
}

/// What waiting for the apiserver came to.
pub enum Waited<T> {
    /// The apiserver answered in time.
    Answer(T),
    /// It did not, or may not any more.
    Refused(Refusal),
    /// The user is gone.
    Gone(Outcome),
}

fn gone(err: &StreamError, status: Option<StatusCode>, sent_bytes: u64) -> Outcome {
    let end = if matches!(err, StreamError::Stopped(_) | StreamError::Reset(StreamCode::Cancelled)) {
        End::Stopped
    } else {
        End::Downstream
    };
    Outcome { status, end, sent_bytes }
}

/// The body as the apiserver shall see it; takes the stream that it comes on. Where no length was declared, methods
/// that hardly ever have a body wait for the first chunk: the end of an empty one is already on its way, and
/// `Transfer-Encoding` for nothing upsets servers.
async fn request_body(
    head: &UpstreamHead,
    length: Option<u64>,
    recv: &mut Option<RecvStream>,
    room: &Arc<Room>,
) -> Result<Outgoing, Refusal> {
    let bare = matches!(*head.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE);
    let mut first = None;
    if length == Some(0) {
        *recv = None;
    }
    if length.is_none() && bare {
        while let Some(stream) = recv.as_mut()
            && first.is_none()
        {
            match stream.recv().await {
                Ok(Some(chunk)) if chunk.is_empty() => {}
                Ok(Some(chunk)) => first = Some(chunk),
                Ok(None) => *recv = None,
                Err(err) => return Err(Refusal::bad_request(STAGE, format!("the request's body broke off: {err}"))),
            }
        }
    }
    let Some(recv) = recv.take() else { return Ok(Outgoing::empty()) };
    // A declared length is held to: a body that ends before it or goes on behind it is an error.
    let rest = if first.is_some() { StreamBody::new(recv) } else { StreamBody::of_request(recv, head.headers()) };
    if first.is_none() && rest.is_end_stream() {
        return Ok(Outgoing::empty());
    }
    Ok(Outgoing::stream(first, rest, room.part(&head.asks())))
}

/// A 101 counts only if it names the upgrade that was asked for.
fn switches_as_asked(asked: &HeaderMap, answer: &HeaderMap) -> bool {
    match (asked.get(header::UPGRADE), exchange::upgrade_of(answer)) {
        (Some(asked), Some(answer)) => asked.as_bytes().eq_ignore_ascii_case(&answer),
        _ => false,
    }
}

fn encode(status: StatusCode, headers: HeaderMap) -> Result<BytesMut, Refusal> {
    if headers.len() > limits::HEADER_COUNT {
        return Err(bad_answer("the apiserver's answer has too many headers"));
    }
    let head = ResponseHead { status, headers, refused_by: None };
    head.encode().map_err(|_| bad_answer("the apiserver's answer has headers that are too long"))
}

fn bad_answer(message: &str) -> Refusal {
    Refusal::new(STAGE, StatusCode::BAD_GATEWAY, "InternalError", message)
}

fn refuse_dial(err: DialError) -> Refusal {
    let detail = crate::chain(&err);
    match err {
        DialError::Credential(_) | DialError::Connect { .. } | DialError::Attempts(_) => {
            Refusal::unavailable("dial", "the cluster's agent cannot reach the apiserver; try again").because(detail)
        }
        DialError::NotProcessed(_) => Refusal::unavailable(
            "dial",
            "the apiserver ended the connection before it processed the request, and too much of the request's body was \
             sent for the agent to send it again; nothing was done, try again",
        )
        .because(detail),
        DialError::TooLong => {
            let message = "the request target is too long with the path of the kubeconfig's server before it";
            Refusal::new("dial", StatusCode::URI_TOO_LONG, "RequestURITooLong", message).because(detail)
        }
        DialError::Request(_) => Refusal::bad_request("dial", "the request cannot be written").because(detail),
        DialError::Broken(_) => {
            Refusal::new("dial", StatusCode::BAD_GATEWAY, "InternalError", "the apiserver broke off before it answered")
                .because(detail)
        }
    }
}
