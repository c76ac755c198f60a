//! Bodies of requests, taken in to their end and bounded in bytes and time: a connection with a request on it whose
//! body was not read is closed, and its client then sees a broken connection in place of the answer.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;

/// Bytes of a body at most. As values in memory it may be sixteen times as much.
pub const BYTES: usize = 256 * 1024;
/// What of a larger one is taken in and forgotten, so that its sender gets to read why it was refused: most send all of
/// it before they look for an answer, and see a broken connection where it is cut off.
const FORGOTTEN: u64 = 16 * 1024 * 1024;
/// How long the rest of one may take that nobody asked for.
const REST: Duration = Duration::from_secs(5);
/// Takes in what is left of a body behind an answer that did not need it, a bounded part and time. A connection with a
/// request on it that was not read to its end is closed, and the next request of its client meets that.
pub async fn leave<B>(body: B)
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if !body.is_end_stream() {
        drop(tokio::time::timeout(REST, take(body, false)).await);
    }
}

/// Reads a body to its end, and returns it if `keep` says so.
///
/// # Errors
/// [`TooLong`], when the body has been taken in; or the body broke off.
pub async fn take<B>(body: B, keep: bool) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = std::pin::pin!(body);
    let mut kept = Vec::new();
    let (mut bytes, announced) = (0, body.size_hint().lower());
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.map_err(Into::into)?.into_data() else { continue };
        bytes += chunk.len() as u64;
        if bytes > BYTES as u64 {
            kept = Vec::new();
        } else if keep {
            kept.extend_from_slice(&chunk);
        }
        if bytes.max(announced) > FORGOTTEN {
            break;
        }
    }
    if bytes.max(announced) > BYTES as u64 { Err(TooLong.into()) } else { Ok(kept.into()) }
}

/// A body has more than [`BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("the body is too long")]
pub struct TooLong;
