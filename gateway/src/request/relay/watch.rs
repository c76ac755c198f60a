//! A watch may end at any time between two of its messages: clients then watch on from where they were, and an
//! apiserver that shuts down does the same. So a drain of the gateway, or of the agent behind it, need not wait for
//! watches. Nothing else ends early: the clean end of `logs -f` would be taken for the container's, and an exec is
//! somebody's work.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use daemon::random_unit;
use futures_util::future::BoxFuture;
use http::{HeaderMap, header};
use tunnel::wire::close::CloseCode;

use super::Via;
use crate::core::Core;

/// Watches end spread over this share of the drain's grace, so that clients do not all list again at once,
const SPREAD_SHARE: u32 = 4;
/// and at most over this long.
const SPREAD_MAX: Duration = Duration::from_secs(10);
/// For the record of one that was ended.
pub const WHY: &str = "ended between two messages, because the gateway or the agent drains";

/// What ends a watch early.
pub struct Leaving {
    messages: Messages,
    due: Option<BoxFuture<'static, ()>>,
}

impl Leaving {
    /// For the answer to a watch on this tunnel or link; `None` where its messages cannot be told apart.
    pub fn of(core: &Arc<Core>, via: Via, headers: &HeaderMap) -> Option<Self> {
        let messages = Messages::of(headers)?;
        let core = Arc::clone(core);
        let due = async move {
            tokio::select! {
                () = core.shutdown.draining() => {}
                () = other_end_stops(&via) => {}
            }
            let spread = (core.limits().drain_grace / SPREAD_SHARE).min(SPREAD_MAX);
            tokio::time::sleep(spread.mul_f64(random_unit())).await;
        };
        Some(Self { messages, due: Some(Box::pin(due)) })
    }

    /// These bytes go to the user.
    pub fn passed(&mut self, bytes: &[u8]) {
        self.messages.passed(bytes);
    }

    /// Whether it is to end now.
    pub fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        if self.due.as_mut().is_some_and(|due| Pin::new(due).poll(cx) == Poll::Ready(())) {
            self.due = None;
        }
        self.due.is_none() && self.messages.between()
    }
}

/// Completes when the agent, or the replica that has its tunnel, stops. One that only moves to another carrier disturbs
/// nobody: what is open stays.
async fn other_end_stops(via: &Via) {
    if via.handle().draining().await.code != CloseCode::Shutdown {
        std::future::pending().await
    }
}

/// Where in the messages of a watch the bytes are that went by.
#[derive(Debug, PartialEq, Eq)]
enum Messages {
    /// JSON objects behind each other.
    Json { depth: u32, text: bool, escaped: bool },
    /// Each behind its length, four bytes, the highest first.
    Prefixed { prefix: u32, digits: u8, left: u32 },
}

impl Messages {
    fn of(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(header::CONTENT_ENCODING) {
            return None;
        }
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
        match kind {
            "application/json" => Some(Self::Json { depth: 0, text: false, escaped: false }),
            "application/vnd.kubernetes.protobuf" => Some(Self::Prefixed { prefix: 0, digits: 0, left: 0 }),
            _ => None,
        }
    }

    fn between(&self) -> bool {
        match self {
            Self::Json { depth, text, .. } => *depth == 0 && !text,
            Self::Prefixed { digits, left, .. } => *digits == 0 && *left == 0,
        }
    }

    fn passed(&mut self, mut bytes: &[u8]) {
        match self {
            Self::Json { depth, text, escaped } => {
                for byte in bytes {
                    match byte {
                        _ if *escaped => *escaped = false,
                        b'\\' if *text => *escaped = true,
                        b'"' => *text = !*text,
                        b'{' | b'[' if !*text => *depth += 1,
                        b'}' | b']' if !*text => *depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
            Self::Prefixed { prefix, digits, left } => {
                while let Some(byte) = bytes.first() {
                    if *left > 0 {
                        let taken = bytes.len().min(*left as usize);
                        *left -= taken as u32;
                        bytes = &bytes[taken..];
                        continue;
                    }
                    *prefix = *prefix << 8 | u32::from(*byte);
                    *digits += 1;
                    bytes = &bytes[1..];
                    if *digits == 4 {
                        (*left, *prefix, *digits) = (*prefix, 0, 0);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn messages(kind: &'static str) -> Option<Messages> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        Messages::of(&headers)
    }

    /// Where a watch may end, after each byte of it.
    fn ends(kind: &'static str, bytes: &[u8]) -> Vec<usize> {
        let mut messages = messages(kind).unwrap();
        let mut ends = Vec::new();
        for (index, byte) in bytes.iter().enumerate() {
            messages.passed(&[*byte]);
            if messages.between() {
                ends.push(index + 1);
            }
        }
        let mut whole = self::messages(kind).unwrap();
        whole.passed(bytes);
        assert_eq!(whole, messages, "the same in one piece");
        ends
    }

    #[test]
    fn a_watch_may_end_between_its_messages_and_nowhere_else() {
        let json = b"{\"a\":{\"b\":\"}\\\"{\\\\\"}}\n{\n  \"c\": [{}]\n}\n";
        let first = json.iter().position(|b| *b == b'\n').unwrap();
        assert_eq!(ends("application/json", json), [first, first + 1, json.len() - 1, json.len()]);
        let prefixed = b"\0\0\0\x02ab\0\0\x01\0".iter().copied().chain([7; 256]).collect::<Vec<u8>>();
        assert_eq!(ends("application/vnd.kubernetes.protobuf;stream=watch", &prefixed), [6, prefixed.len()]);
        assert!(messages("application/json;stream=watch").unwrap().between(), "before the first");
    }

    #[test]
    fn what_cannot_be_read_does_not_end_early() {
        assert_eq!(messages("application/cbor-seq"), None);
        assert_eq!(messages("text/plain"), None);
        let mut headers = HeaderMap::new();
        assert_eq!(Messages::of(&headers), None);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(Messages::of(&headers), None);
    }
}
