//! Answers that the gateway writes itself: JSON documents, and bodies that are whole or told as it happens. What a
//! cluster answers is not among them.

use std::{
    any::Any,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderName, HeaderValue, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::Full;

/// Names the request in every answer, whoever made it, as in logs and audit records. A name of our own: services behind
/// an apiserver's proxy send `X-Request-Id` themselves, and the apiserver's `Audit-Id` is another id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-towline-request-id");

/// The body of an answer.
pub enum Body {
    /// Known to be whole.
    Full(Full<Bytes>),
    /// Told as it happens.
    Live(Box<Live>),
}

impl Body {
    /// A complete body without any bytes.
    pub fn empty() -> Self {
        Self::Full(Full::default())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(body) => Pin::new(body).poll_frame(cx),
            Self::Live(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Live(_) => SizeHint::default(),
        }
    }
}

/// A body that is told as it happens.
pub struct Live {
    chunks: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Live {
    /// Of what is told, in its order.
    pub fn new(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self { chunks: Box::pin(chunks), held: None }
    }

    /// Keeps `what` until the body is dropped: a connection that is held is not taken for idle.
    pub fn hold(&mut self, what: Arc<dyn Any + Send + Sync>) {
        self.held = Some(what);
    }

    /// The next frame.
    pub fn poll<E>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        self.chunks.as_mut().poll_next(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// A JSON document.
pub fn json(value: &serde_json::Value) -> Response<Body> {
    document(value).map(Body::Full)
}

/// The same, its body known to be whole.
pub fn document(value: &serde_json::Value) -> Response<Full<Bytes>> {
    written(value.to_string())
}

/// The same of one that is written already.
pub fn written(document: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(document.into()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
