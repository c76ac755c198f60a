//! Reads a JSON body: bounded in bytes, time and depth, with no name twice (readers differ about which one holds).

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use super::error::ApiError;

/// Bytes of a body at most.
pub const BYTES: usize = 1024 * 1024;
/// How long one may take to arrive.
const DEADLINE: Duration = Duration::from_secs(30);
/// Objects and lists in each other at most.
const DEPTH: usize = 32;

/// Reads the object in a body.
pub async fn read<B>(headers: &HeaderMap, body: B) -> Result<Map<String, Value>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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
    parse(&bytes(body).await?)
}

/// Takes in a body that is not needed, so that the connection stays of use.
pub async fn bytes<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let body = std::pin::pin!(Limited::new(body, BYTES).collect());
    match tokio::time::timeout(DEADLINE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
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
    let object = proto::json::object(bytes).map_err(|error| refuse(&error))?;
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
