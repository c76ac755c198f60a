//! Reads a JSON body: bounded in bytes, time and depth, with no name twice (readers differ about which one holds). How
//! many are read at once is bounded ([`crate::control::turns`]).

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};

use super::Call;
use crate::{
    api_error::ApiError,
    aside::aside,
    bodies::{BYTES, TooLong, take},
};

/// Bytes of a body that is read where its request is served: about 2 ms, whatever is in it
/// (`cargo bench -p bench --bench worst`).
const AT_ONCE_BYTES: usize = 32 * 1024;
/// How long one may take to arrive.
const DEADLINE: Duration = Duration::from_secs(30);
/// Objects and lists in each other at most.
const DEPTH: usize = 32;

/// Reads the object in a body.
pub async fn read<B>(call: &Call<'_>, body: B) -> Result<Map<String, Value>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    read_as(call, body, |object| object).await
}

/// The same of an action, whose body may be missing: clients send neither one nor its type where they have nothing to say.
pub async fn read_or_nothing<B>(call: &Call<'_>, body: B) -> Result<Map<String, Value>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let announced = call.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    let chunked = call.headers.contains_key(header::TRANSFER_ENCODING);
    if !call.headers.contains_key(header::CONTENT_TYPE) && !announced && !chunked && body.is_end_stream() {
        call.body_arrived().await?;
        return Ok(Map::new());
    }
    read(call, body).await
}

/// The same, and what `then` makes of it: of a long one on the thread where it is read.
pub async fn read_as<B, T: Send + 'static>(
    call: &Call<'_>,
    body: B,
    then: impl FnOnce(Map<String, Value>) -> T + Send + 'static,
) -> Result<T, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    json_in(call.headers)?;
    let party = party(call);
    // What is written is answered in any case.
    call.control.unread.room(&party)?;
    let mut place = call.control.bodies.take(call.caller.object_id(), party).await?;
    let bytes = place.keep(bytes(body)).await?;
    call.body_arrived().await?;
    if bytes.len() <= AT_ONCE_BYTES {
        return parse(&bytes).map(then);
    }
    aside(move || parse(&bytes).map(then)).await?
}

/// Who shares places of bodies, lists and answers with the caller: all identities of clusters in one resource group, and of what is in them,
/// because who may connect clusters there has as many as they like.
pub fn party(call: &Call<'_>) -> String {
    let caller = call.caller.object_id();
    let group = call.snapshot().group_of_identity(caller);
    group.unwrap_or_else(|| caller.to_owned())
}

/// Goes on only if the headers announce JSON as it is.
fn json_in(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("?")).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !matches!(essence.as_str(), "application/json" | "text/json" | "application/merge-patch+json") {
        let message = format!(
            "The content type '{}' is not supported; send application/json.",
            kind.chars().take(100).collect::<String>()
        );
        return Err(
            ApiError::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message).at("Content-Type")
        );
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "A compressed body is not supported; send it as it is.";
        return Err(
            ApiError::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message).at("Content-Encoding")
        );
    }
    Ok(())
}

/// Takes in a body that is not needed and keeps none of it, so that the connection stays of use.
pub async fn discard<B>(call: &Call<'_>, body: B) -> Result<(), ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    in_time(take(body, false)).await?;
    call.body_arrived().await
}

async fn bytes<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    in_time(take(body, true)).await
}

async fn in_time<T>(
    body: impl Future<Output = Result<T, Box<dyn std::error::Error + Send + Sync>>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(DEADLINE, body).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<TooLong>() => {
            let message = format!("The body has more than {BYTES} bytes.");
            Err(ApiError::of(StatusCode::PAYLOAD_TOO_LARGE, "RequestContentTooLarge", message))
        }
        Ok(Err(_)) => Err(ApiError::bad_request("InvalidRequestContent", "The body broke off.")),
        Err(_) => {
            let message = format!("The body did not arrive within {} seconds.", DEADLINE.as_secs());
            Err(ApiError::of(StatusCode::REQUEST_TIMEOUT, "RequestTimeout", message))
        }
    }
}

/// The object in a text.
pub fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let refuse = |why: &dyn fmt::Display| {
        ApiError::bad_request("InvalidRequestContent", format!("The body cannot be taken: {why}."))
    };
    let object = types::json::object(bytes).map_err(|error| refuse(&error))?;
    object.iter().try_for_each(|(name, value)| plain(name, value, 1)).map_err(|why| refuse(&why))?;
    Ok(object)
}

/// No deeper than [`DEPTH`], and no NUL: no name or text of a resource has one, and not every store can keep it.
fn plain(name: &str, value: &Value, depth: usize) -> Result<(), String> {
    if name.contains('\0') || value.as_str().is_some_and(|text| text.contains('\0')) {
        return Err("a name or text holds a NUL character".to_owned());
    }
    match value {
        Value::Array(_) | Value::Object(_) if depth == DEPTH => {
            Err(format!("objects and lists are nested more than {DEPTH} deep"))
        }
        Value::Array(list) => list.iter().try_for_each(|value| plain("", value, depth + 1)),
        Value::Object(object) => object.iter().try_for_each(|(name, value)| plain(name, value, depth + 1)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_readers_could_differ_about_is_refused() {
        for bad in [
            "",
            "[]",
            "7",
            "{",
            "{} {}",
            r#"{"a":1,"a":2}"#,
            r#"{"a":{"b":1,"b":1}}"#,
            r#"{"a":"x\u0000"}"#,
            "{\"a\":NaN}",
            &format!("{}{}", r#"{"a":"#.repeat(DEPTH + 1), "1"),
            &format!("{{\"a\":{}", "[".repeat(100_000)),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.detail.code.as_str()),
                (400, "InvalidRequestContent"),
                "{}",
                bad.len()
            );
        }
        assert!(parse(br#"{"a":[1,-2,3.5,true,null,"\ud83d\ude00"]}"#).is_ok());
    }

    /// A client that sends all of its body before it reads saw a broken connection in place of the refusal.
    #[tokio::test]
    async fn a_body_that_is_too_long_is_taken_in_before_it_is_refused() {
        use futures_util::StreamExt;
        use http_body_util::StreamBody;
        let send = async |chunks: usize| {
            let sent = std::cell::Cell::new(0);
            let chunks = futures_util::stream::iter(0..chunks).map(|_| {
                sent.set(sent.get() + 1);
                Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![b' '; BYTES])))
            });
            let read = bytes(StreamBody::new(chunks)).await.map_err(|error| error.status.as_u16());
            (read.map(|bytes| bytes.len()), sent.get())
        };
        assert_eq!(send(1).await, (Ok(BYTES), 1));
        assert_eq!(send(20).await, (Err(413), 20));
        let (refused, sent) = send(1000).await;
        assert_eq!(refused, Err(413));
        assert!(sent < 100, "{sent}: no more than a bounded part");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_read_is_what_serde_json_reads(text in r#"\{("[ab]":(1|true|null|"x"|\[1\]|\{\}),?){0,3}\}"#) {
            if let Ok(read) = parse(text.as_bytes()) {
                prop_assert_eq!(Value::Object(read), serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
