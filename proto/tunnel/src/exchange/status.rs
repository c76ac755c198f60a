//! A Kubernetes `Status` object, the error body that kubectl prints.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WARNING, WWW_AUTHENTICATE},
};

/// A Kubernetes `Status` object, the error body that kubectl prints.
#[derive(Debug, Clone)]
pub struct Status {
    /// HTTP status code of the answer, which is also `code` in the object.
    pub code: StatusCode,
    /// Kubernetes reason, such as `Forbidden` or `ServiceUnavailable`.
    pub reason: &'static str,
    /// For people: what was tried, why it failed, what to do.
    pub message: String,
    /// The stage that refused, for 403, 429 and 503.
    pub stage: Option<&'static str>,
    /// The request's id.
    pub request_id: types::ids::RequestId,
    /// Seconds, at least 1.
    pub retry_after: Option<u32>,
}

/// The longest message in an error body, in bytes: an error may quote what a client sent.
const MESSAGE_BYTES: usize = 4096;
/// How much of it a `Warning` header repeats.
const WARNING_BYTES: usize = 512;

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: &'a str,
    reason: &'static str,
    details: Details<'a>,
    code: u16,
}

#[derive(serde::Serialize)]
struct Empty {}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'a> {
    causes: Vec<Cause<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

#[derive(serde::Serialize)]
struct Cause<'a> {
    reason: &'static str,
    message: &'a str,
}

impl Status {
    /// One with the reason that Kubernetes gives `code`, without stage and retry.
    pub fn new(code: StatusCode, request_id: types::ids::RequestId, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: Self::reason_of(code),
            message: message.into(),
            stage: None,
            request_id,
            retry_after: None,
        }
    }

    /// The reason that Kubernetes gives a status (`metav1.StatusReason`).
    pub fn reason_of(code: StatusCode) -> &'static str {
        match code.as_u16() {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            409 => "Conflict",
            410 => "Gone",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            // StatusReasonUnknown; kubectl then prints the message alone.
            _ => "",
        }
    }

    /// The body as JSON; `details.causes` carry stage and request id.
    pub fn body(&self) -> Bytes {
        let id = self.request_id.to_string();
        let stage = self.stage.map(|stage| Cause { reason: "Stage", message: stage });
        let causes = stage.into_iter().chain([Cause { reason: "RequestId", message: &id }]).collect();
        let end = self.message.floor_char_boundary(MESSAGE_BYTES);
        let body = Body {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: &self.message[..end],
            reason: self.reason,
            details: Details { causes, retry_after_seconds: self.retry_after() },
            code: self.code.as_u16(),
        };
        serde_json::to_vec(&body).unwrap_or_default().into()
    }

    /// `content-type`, `cache-control`; `retry-after` where set; `www-authenticate` for 401, `warning` for all others:
    /// where client-go reads which APIs there are it throws an error's body away, and kubectl would print "unknown".
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(5);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.code == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"towline\""));
        } else if let Ok(warning) = HeaderValue::from_bytes(warning(&self.message).as_bytes()) {
            headers.insert(WARNING, warning);
        }
        headers
    }

    /// The whole answer.
    pub fn response<B: From<Bytes>>(&self) -> http::Response<B> {
        let body = self.body();
        let mut response = http::Response::new(B::from(body.clone()));
        *response.status_mut() = self.code;
        *response.headers_mut() = self.headers();
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        response
    }

    fn retry_after(&self) -> Option<u32> {
        self.retry_after.map(|seconds| seconds.max(1))
    }
}

/// The value of a `Warning` header that kubectl prints: `299 - "<message>"`, with the message as a quoted string.
fn warning(message: &str) -> String {
    let mut text = String::with_capacity(message.len().min(WARNING_BYTES) + 16);
    text.push_str("299 - \"");
    for character in message[..message.floor_char_boundary(WARNING_BYTES)].chars().filter(|c| !c.is_control()) {
        if matches!(character, '"' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use types::ids::RequestId;

    use super::*;

    #[test]
    fn the_body_is_what_kubectl_reads() {
        let mut status =
            Status::new(StatusCode::SERVICE_UNAVAILABLE, RequestId([0xab; 16]), "cluster \"edge\" is offline");
        status.stage = Some("locate");
        status.retry_after = Some(0);
        let id = "ab".repeat(16);
        let expected = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "cluster \"edge\" is offline", "reason": "ServiceUnavailable",
            "details": {"causes": [{"reason": "Stage", "message": "locate"}, {"reason": "RequestId", "message": id}],
                "retryAfterSeconds": 1},
            "code": 503,
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&status.body()).unwrap(), expected);
        let headers = status.headers();
        assert_eq!(headers[RETRY_AFTER], "1");
        assert_eq!(headers[CONTENT_TYPE], "application/json");
        assert!(!headers.contains_key(WWW_AUTHENTICATE));
    }

    #[test]
    fn kubectl_prints_why_where_it_throws_the_body_away() {
        let warning = |code, message: &str| {
            let headers = Status::new(code, RequestId([0; 16]), message).headers();
            headers.get(WARNING).map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
        };
        let (refused, unavailable) = (StatusCode::FORBIDDEN, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(warning(unavailable, "no agent is connected").unwrap(), r#"299 - "no agent is connected""#);
        assert_eq!(warning(refused, r#"user "a\b" may not"#).unwrap(), r#"299 - "user \"a\\b\" may not""#);
        assert_eq!(warning(refused, "a\r\nSet-Cookie: ä\u{7f}").unwrap(), "299 - \"aSet-Cookie: ä\"", "one line");
        assert!(warning(refused, &"ä".repeat(10_000)).unwrap().len() <= WARNING_BYTES + 8, "bounded");
        assert_eq!(warning(StatusCode::UNAUTHORIZED, "Unauthorized"), None, "says no more than Kubernetes does");
    }

    #[test]
    fn a_401_names_the_scheme_and_a_quoted_message_is_cut_at_a_character() {
        let status = Status::new(StatusCode::UNAUTHORIZED, RequestId([0; 16]), "ä".repeat(10_000));
        assert_eq!(status.headers()[WWW_AUTHENTICATE], "Bearer realm=\"towline\"");
        let body: serde_json::Value = serde_json::from_slice(&status.body()).unwrap();
        assert_eq!(body["message"].as_str().unwrap().len(), MESSAGE_BYTES);
        assert_eq!(body["reason"], "Unauthorized");
    }
}
