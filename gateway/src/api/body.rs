//! Reads a JSON body: bounded in bytes, time and depth, with no name twice (readers differ about which one holds).

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

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
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { depth: 0 }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request("InvalidRequestContent", "The body must be a JSON object.")),
        Err(error) => {
            // The library's words hold no part of the body but a name that is there twice.
            let message = format!("The body is no JSON that can be read: {error}.");
            Err(ApiError::bad_request("InvalidRequestContent", message))
        }
    }
}

#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == DEPTH {
            return Err(E::custom(format_args!("objects and lists are nested more than {DEPTH} deep")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        // No name or text of a resource has one, and not every store can keep it.
        if value.contains('\0') { Err(E::custom("a text holds a NUL character")) } else { Ok(value.into()) }
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(value) = access.next_element_seed(inner)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if name.contains('\0') {
                return Err(A::Error::custom("a name holds a NUL character"));
            }
            if map.contains_key(&name) {
                let shown: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the name {shown:?} is there twice")));
            }
            map.insert(name, access.next_value_seed(inner)?);
        }
        Ok(Value::Object(map))
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
