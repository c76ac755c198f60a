//! What the issuer answers: documents, tokens, and errors as RFC 6749 section 5.2 has them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

/// How long a client may keep the key set and the discovery document, in seconds.
const DOCUMENT_SECONDS: u32 = 60;

/// A minted token.
pub struct Minted {
    pub token: String,
    pub life: Duration,
}

/// Why no token was minted. The description says nothing that helps to guess.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is not one.
    Request(&'static str),
    /// Wrong name or password, or the user is disabled: all alike.
    Grant,
    /// Another grant type than ours.
    GrantType,
    /// RFC 8707: not a cluster's audience.
    Target,
    /// Too many failures, or too many sign-ins at once.
    TryLater(&'static str, Duration),
    /// We could not sign.
    Internal,
}

pub fn document(value: &Value) -> Response<Full<Bytes>> {
    let mut response = json_response(StatusCode::OK, value);
    let age = format!("public, max-age={DOCUMENT_SECONDS}");
    if let Ok(age) = HeaderValue::try_from(age) {
        response.headers_mut().insert(header::CACHE_CONTROL, age);
    }
    response
}

pub fn token(minted: &Minted) -> Response<Full<Bytes>> {
    let body = json!({
        "access_token": minted.token,
        "id_token": minted.token,
        "token_type": "Bearer",
        "expires_in": minted.life.as_secs(),
    });
    no_store(json_response(StatusCode::OK, &body))
}

pub fn refusal(refusal: &Refusal) -> Response<Full<Bytes>> {
    let (status, error, description) = match refusal {
        Refusal::Request(what) => (StatusCode::BAD_REQUEST, "invalid_request", *what),
        Refusal::Grant => (StatusCode::BAD_REQUEST, "invalid_grant", "wrong user name or password, or user disabled"),
        Refusal::GrantType => (StatusCode::BAD_REQUEST, "unsupported_grant_type", "grant_type must be 'password'"),
        Refusal::Target => (
            StatusCode::BAD_REQUEST,
            "invalid_target",
            "audience must be towline:cluster:/subscriptions/<s>/resourcegroups/<g>/providers/microsoft.kubernetes/connectedclusters/<name>",
        ),
        Refusal::TryLater(why, _) => (StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable", *why),
        Refusal::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "the issuer could not sign"),
    };
    let mut response = json_response(status, &json!({ "error": error, "error_description": description }));
    if let Refusal::TryLater(_, after) = refusal {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
    }
    no_store(response)
}

pub fn method_not_allowed(allowed: &'static str) -> Response<Full<Bytes>> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "not with this method");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

pub fn plain(status: StatusCode, description: &str) -> Response<Full<Bytes>> {
    no_store(json_response(status, &json!({ "error": "invalid_request", "error_description": description })))
}

fn json_response(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn no_store(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}
