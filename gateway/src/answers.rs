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
use serde_json::{Map, Value};

/// Names the request in every answer, whoever made it, as in logs and audit records. A name of our own: services behind
/// an apiserver's proxy send `X-Request-Id` themselves, and the apiserver's `Audit-Id` is another id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-towline-request-id");

/// Bytes of a document, about, that is written where its request is served: a tenth of a millisecond.
const AT_ONCE_BYTES: usize = 64 * 1024;
/// Of these, what each name and each value takes beside its text: a comma, quotes, a number.
const EACH_BYTES: usize = 8;

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
            Self::Live(body) => body.size_hint(),
        }
    }
}

/// A body that is told as it happens.
pub struct Live {
    chunks: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    held: Option<Arc<dyn Any + Send + Sync>>,
    length: Option<u64>,
    is_whole: bool,
}

impl Live {
    /// Of what is told, in its order.
    pub fn new(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self { chunks: Box::pin(chunks), held: None, length: None, is_whole: false }
    }

    /// The same of what has so many bytes.
    #[must_use]
    pub fn of_length(self, bytes: u64) -> Self {
        Self { length: Some(bytes), ..self }
    }

    /// The same of what is there as a whole, and waits for nothing but its reader.
    #[must_use]
    pub fn whole(self, bytes: u64) -> Self {
        Self { length: Some(bytes), is_whole: true, ..self }
    }

    /// Whether it waits for nothing but its reader.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How long it is, as far as that is known.
    pub fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
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
pub fn json(value: &Value) -> Response<Body> {
    document(value).map(Body::Full)
}

/// The same, its body known to be whole.
pub fn document(value: &Value) -> Response<Full<Bytes>> {
    written(value.to_string())
}

/// Whether a document is short enough to be written on the thread that serves its request. Once it is too long, the rest
/// of it is not counted.
pub fn is_short(value: &Value) -> bool {
    left(value, AT_ONCE_BYTES).is_some()
}

/// Whether an object is of at most so many bytes, by and large: without what escapes take.
pub fn is_within(object: &Map<String, Value>, bytes: usize) -> bool {
    left_by(object, bytes).is_some()
}

/// The same of an object.
pub fn is_short_object(object: &Map<String, Value>) -> bool {
    left_by(object, AT_ONCE_BYTES).is_some()
}

/// What is left of `room` behind a document.
fn left(value: &Value, room: usize) -> Option<usize> {
    let room = room.checked_sub(EACH_BYTES)?;
    match value {
        Value::String(text) => room.checked_sub(text.len()),
        Value::Array(list) => list.iter().try_fold(room, |room, value| left(value, room)),
        Value::Object(object) => left_by(object, room),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(room),
    }
}

fn left_by(object: &Map<String, Value>, room: usize) -> Option<usize> {
    object.iter().try_fold(room, |room, (name, value)| left(value, room.checked_sub(name.len() + EACH_BYTES)?))
}

/// The same of one that is written already.
pub fn written(document: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(document.into()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_is_long_by_its_texts_and_by_its_number_of_values() {
        assert!(is_short(&json!({"value": [{"a": "b"}, null, 1, true]})));
        assert!(!is_short(&json!({"value": "a".repeat(AT_ONCE_BYTES)})));
        assert!(!is_short(&json!({"a".repeat(AT_ONCE_BYTES): 1})));
        assert!(!is_short(&json!(vec![0; AT_ONCE_BYTES / EACH_BYTES])));
        assert!(!is_short(&json!([["a".repeat(AT_ONCE_BYTES / 2)], ["b".repeat(AT_ONCE_BYTES / 2)]])));
    }
}
