//! Every outcome to HTTP: the only file that writes a Kubernetes `Status`.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tunnel::exchange::Status;
use types::ids::RequestId;

use super::{
    refusal::{Answer, BodyError, Kind, Refusal},
    relay::Relayed,
};
use crate::{
    admission::limit::UnreadAnswer,
    answers::{self, Live},
    audit,
};

/// What goes anywhere, by RFC 9110 section 15.5.6 said wherever a method does not; each address has its own among them.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// In whose words a refusal is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// A Kubernetes `Status`.
    Kubernetes,
    /// ARM's error envelope.
    Arm,
}

/// The refusal as an answer, noted in the record.
pub fn refuse(
    refusal: &Refusal,
    id: RequestId,
    http1: bool,
    words: Words,
    record: &mut audit::Record,
) -> Response<Body> {
    let Answer { status: code, reason, message, retry_after, close } = refusal.answer();
    let message = message.into_owned();
    record.stage(refusal.stage);
    record.reason(&refusal.summary());
    record.outcome(audit::Outcome::Refused);
    record.answered(code);
    tracing::debug!(
        request.id = %id,
        stage = refusal.stage.as_str(),
        status = code.as_u16(),
        detail = refusal.detail.as_deref(),
        message,
        "request refused"
    );
    let named = matches!(code.as_u16(), 403 | 429 | 431 | 502 | 503);
    let stage = named.then(|| refusal.stage.as_str());
    let status = Status { code, reason, message, stage, request_id: id, retry_after };
    let body = match words {
        Words::Kubernetes => status.body(),
        Words::Arm => serde_json::json!({"error": {"code": reason, "message": status.message}}).to_string().into(),
    };
    let mut response = Response::new(Body::Full(Full::new(body)));
    *response.status_mut() = code;
    *response.headers_mut() = status.headers();
    if words == Words::Arm
        && let Ok(id) = HeaderValue::try_from(id.to_string())
    {
        response.headers_mut().insert("x-ms-request-id", id);
    }
    if matches!(refusal.kind, Kind::Method) {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(METHODS));
    }
    if http1 && close {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An answer's body.
pub enum Body {
    /// Made by the gateway, and complete.
    Full(Full<Bytes>),
    /// Ours, counted until it was taken.
    Counted(Full<Bytes>, UnreadAnswer),
    /// The body of a cluster's answer.
    Relayed(Box<Relayed>),
    /// Ours, told as it happens.
    Live(Box<Live>),
}

impl From<answers::Body> for Body {
    fn from(body: answers::Body) -> Self {
        match body {
            answers::Body::Full(body) => Self::Full(body),
            answers::Body::Live(body) => Self::Live(body),
        }
    }
}

impl From<Option<Box<Relayed>>> for Body {
    fn from(body: Option<Box<Relayed>>) -> Self {
        body.map_or_else(Self::empty, Self::Relayed)
    }
}

impl Body {
    /// A complete body without any bytes.
    pub fn empty() -> Self {
        Self::Full(Full::default())
    }

    /// Counts an answer of ours until its reader has taken it. Over the bound it goes without its body, which needs no
    /// window: who opens none would make us hold thousands of answers on each connection, without a credential.
    pub fn counted(response: Response<Self>, place: impl FnOnce() -> Option<UnreadAnswer>) -> Response<Self> {
        let (mut head, body) = response.into_parts();
        let body = match body {
            Self::Full(body) if !http_body::Body::is_end_stream(&body) => match place() {
                Some(place) => Self::Counted(body, place),
                None => {
                    head.headers.remove(header::CONTENT_LENGTH);
                    Self::empty()
                }
            },
            body => body,
        };
        Response::from_parts(head, body)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Full(body) | Self::Counted(body, _) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Relayed(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Live(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) | Self::Counted(body, _) => body.is_end_stream(),
            Self::Relayed(body) => body.is_end_stream(),
            Self::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) | Self::Counted(body, _) => body.size_hint(),
            Self::Relayed(body) => body.size_hint(),
            Self::Live(body) => body.size_hint(),
        }
    }
}

/// Reads a small body whole.
pub async fn read_small<B>(body: B, limit: usize) -> Option<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    http_body_util::Limited::new(body, limit).collect().await.ok().map(http_body_util::Collected::to_bytes)
}
