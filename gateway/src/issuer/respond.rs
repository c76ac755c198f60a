//! What the issuer answers: documents, tokens, and errors as RFC 6749 section 5.2 has them.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

/// How long a client may keep the key set and the discovery document, in seconds.
const DOCUMENT_SECONDS: u32 = 60;

/// What a sign-in yields.
pub struct Minted {
    pub token: String,
    pub life: Duration,
    /// For users, whose clients may want one.
    pub id_token: Option<String>,
}

/// Why no token was minted. The description says nothing that helps to guess.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is not one.
    Request(&'static str),
    /// Wrong name or password, or the user is disabled: all alike.
    Grant,
    /// A client that did not prove which it is; `basic`: it tried by the header of HTTP.
    Client { why: &'static str, basic: bool },
    /// Not a tenant of ours; spelled as a GUID.
    Tenant(String),
    /// RFC 6749 section 5.2: a scope that names nothing of ours.
    Scope(&'static str),
    /// Another grant type than ours.
    GrantType,
    /// RFC 8707: not an audience of ours.
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

impl Refusal {
    /// One answer for an unknown client, a wrong secret and a disabled one.
    pub fn wrong_client(basic: bool) -> Self {
        Self::Client { why: "unknown client, wrong secret, or client disabled", basic }
    }

    /// Status, `error` and `error_description`.
    fn words(&self) -> (StatusCode, &'static str, Cow<'static, str>) {
        let bad = |error, description: &'static str| (StatusCode::BAD_REQUEST, error, description.into());
        match self {
            Self::Request(what) => bad("invalid_request", what),
            Self::Grant => bad("invalid_grant", "wrong user name or password, or user disabled"),
            Self::Client { why, .. } => (StatusCode::UNAUTHORIZED, "invalid_client", (*why).into()),
            Self::Tenant(tenant) => {
                (StatusCode::BAD_REQUEST, "invalid_tenant", format!("there is no tenant {tenant} here").into())
            }
            Self::Scope(why) => bad("invalid_scope", why),
            Self::GrantType => bad("unsupported_grant_type", "grant_type must be 'password' or 'client_credentials'"),
            Self::Target => bad(
                "invalid_target",
                "the audience must be the gateway's URL or towline:cluster:/subscriptions/<s>/resourcegroups/<g>/providers/microsoft.kubernetes/connectedclusters/<name>",
            ),
            Self::TryLater(why, _) => (StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable", (*why).into()),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "the issuer could not sign".into()),
        }
    }
}

/// RFC 6749 section 5.1; `ext_expires_in` is what clients of the Microsoft identity platform expect beside.
pub fn token(minted: &Minted) -> Response<Full<Bytes>> {
    let life = minted.life.as_secs();
    let mut body = json!({
        "token_type": "Bearer",
        "expires_in": life,
        "ext_expires_in": life,
        "access_token": minted.token,
    });
    if let Some(token) = &minted.id_token {
        body["id_token"] = Value::from(token.as_str());
    }
    no_store(json_response(StatusCode::OK, &body))
}

pub fn refusal(refusal: &Refusal) -> Response<Full<Bytes>> {
    let (status, error, description) = refusal.words();
    let mut response = json_response(status, &json!({ "error": error, "error_description": description }));
    match refusal {
        Refusal::TryLater(_, after) => {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        Refusal::Client { basic: true, .. } => {
            let scheme = HeaderValue::from_static("Basic realm=\"towline\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        _ => {}
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
