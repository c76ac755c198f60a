//! One HTTP exchange on one stream: bodies to chunks and back without a copy, hop-by-hop headers, upgraded bytes both
//! ways, and the Kubernetes `Status` that both ends answer errors with.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::transport::{RecvStream, SendStream, StreamError};

/// The rest of a receive half as an HTTP body. A reset or a lost tunnel is an error, never a clean end.
pub struct StreamBody {
    _recv: RecvStream,
}

impl StreamBody {
    /// Wraps what is left of `recv`.
    pub fn new(recv: RecvStream) -> Self {
        Self { _recv: recv }
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, StreamError>>> {
        todo!()
    }
}

/// How a body transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// All of it was given and the half is finished.
    Whole,
    /// The reader wanted no more; nothing is wrong.
    Stopped,
}

/// Why a body could not be sent whole.
#[derive(Debug, thiserror::Error)]
pub enum SendBodyError<E> {
    /// The source broke off; the stream was reset with [`crate::wire::close::StreamCode::Upstream`].
    #[error("the body's source broke off")]
    Source(#[source] E),
    /// The stream broke off.
    #[error(transparent)]
    Stream(StreamError),
}

/// Sends `body` chunk by chunk, each as soon as it is there (watch events do not wait), then finishes; returns the bytes
/// sent. Trailers are dropped. Notices a stop, reset or lost tunnel also while the source is silent.
pub async fn send_body<B>(_send: &mut SendStream, _body: B) -> (u64, Result<Sent, SendBodyError<B::Error>>)
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    todo!()
}

/// Bytes that an upgraded connection carried.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spliced {
    /// From `io` to the stream.
    pub sent: u64,
    /// From the stream to `io`.
    pub received: u64,
}

/// Carries upgraded bytes both ways until both directions have ended, keeping half-close: an EOF of one side becomes
/// finish (or a shutdown of the write half) of the other, and all bytes are flushed before a side is closed. `activity`
/// is called with the byte counts as they grow.
pub async fn splice<T>(_io: T, _send: SendStream, _recv: RecvStream) -> (Spliced, Result<(), std::io::Error>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    todo!()
}

/// The upgrade that a request or a 101 names.
pub fn upgrade_of(_headers: &HeaderMap) -> Option<Bytes> {
    todo!()
}

/// Removes hop-by-hop headers (RFC 9110 section 7.6.1): those that `Connection` names, then the fixed list. For an upgrade,
/// `connection: upgrade` and the `upgrade` header are put back. Done on the client's own headers before anything of ours
/// is added (attack I2: `Connection: Impersonate-User`).
pub fn strip_hop_by_hop(_headers: &mut HeaderMap, _keep_upgrade: bool) {
    todo!()
}

/// A Kubernetes `Status` object, the error body that kubectl prints.
#[derive(Debug, Clone)]
pub struct Status {
    /// HTTP status.
    pub code: StatusCode,
    /// Kubernetes reason, such as `Forbidden` or `ServiceUnavailable`.
    pub reason: &'static str,
    /// For people: what was tried, why it failed, what to do.
    pub message: String,
    /// The stage that refused, for 403, 429 and 503.
    pub stage: Option<&'static str>,
    /// The request's id.
    pub request_id: crate::ids::RequestId,
    /// Seconds, at least 1.
    pub retry_after: Option<u32>,
}

impl Status {
    /// The body as JSON; `details.causes` carry stage and request id.
    pub fn body(&self) -> Bytes {
        todo!()
    }

    /// `content-type`, `retry-after`, `www-authenticate` for 401, `cache-control`.
    pub fn headers(&self) -> HeaderMap {
        todo!()
    }
}
