//! What the issuer answers: documents, tokens, and errors as RFC 6749 section 5.2 has them.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

/// How long a client may keep the key set and the discovery document, in seconds.
const DOCUMENT_SECONDS: u32 = 60;

/// When a client is told to try again while the store does not answer, in seconds.
const AWAY_SECONDS: u64 = 5;

/// What a sign-in yields.
pub struct Minted {
    pub token: String,
    pub life: Duration,
    /// For users, whose clients may want one.
    pub id_token: Option<String>,
    /// For users, where the grant gives one: the next token of the family.
    pub refresh_token: Option<String>,
    /// Whose account it is, in the words of the Microsoft identity platform.
    pub client_info: Option<String>,
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
    /// A code or refresh token that is worth nothing, or a user who may not sign in any more.
    Code(&'static str),
    /// Another response type than `code`.
    ResponseType,
    /// `prompt=none`: nobody stays signed in here.
    LoginRequired,
    /// The user said no.
    Denied,
    /// RFC 8628 section 3.5: the user has not decided.
    Pending,
    /// The same: the device asks too often.
    SlowDown,
    /// The same: the device's time is over.
    ExpiredCode,
    /// A form that was looked at too long, or that another browser was shown.
    Stale,
    /// RFC 8707: not an audience of ours.
    Target,
    /// Too many failures, or too many sign-ins at once.
    TryLater(&'static str, Duration),
    /// What has to be known or kept for a sign-in cannot be asked or written now.
    Away,
    /// We could not sign.
    Internal,
}

/// How a refusal is answered.
struct Words {
    status: StatusCode,
    /// The OAuth 2 parameter `error`.
    error: &'static str,
    /// The OAuth 2 parameter `error_description`.
    description: Cow<'static, str>,
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

    /// The status of an answer that says so.
    pub fn status(&self) -> StatusCode {
        self.words().status
    }

    /// The OAuth 2 parameter `error`, a code that programs compare.
    pub fn error(&self) -> &'static str {
        self.words().error
    }

    /// The OAuth 2 parameter `error_description`, a sentence for people.
    pub fn description(&self) -> Cow<'static, str> {
        self.words().description
    }

    fn words(&self) -> Words {
        let words = |status, error, description| Words { status, error, description };
        let bad = |error, description: &'static str| words(StatusCode::BAD_REQUEST, error, description.into());
        match self {
            Self::Request(what) => bad("invalid_request", what),
            Self::Grant => bad("invalid_grant", "wrong user name or password, or user disabled"),
            Self::Client { why, .. } => words(StatusCode::UNAUTHORIZED, "invalid_client", (*why).into()),
            Self::Tenant(tenant) => {
                words(StatusCode::BAD_REQUEST, "invalid_tenant", format!("there is no tenant {tenant} here").into())
            }
            Self::Scope(why) => bad("invalid_scope", why),
            Self::GrantType => bad("unsupported_grant_type", "this grant_type is not one of grant_types_supported"),
            Self::Code(why) => bad("invalid_grant", why),
            Self::ResponseType => bad("unsupported_response_type", "response_type must be code"),
            Self::LoginRequired => bad("login_required", "nobody stays signed in here"),
            Self::Denied => bad("access_denied", "the user refused"),
            Self::Pending => bad("authorization_pending", "the user has not decided yet"),
            Self::SlowDown => bad("slow_down", "asked too often: wait 5 seconds longer from now on"),
            Self::ExpiredCode => bad("expired_token", "the time of the device code is over"),
            Self::Stale => bad("invalid_request", "start the sign-in again; this page needs a cookie of its own"),
            Self::Target => bad(
                "invalid_target",
                "the audience must be the gateway's URL or towline:cluster:/subscriptions/<s>/resourcegroups/<g>/providers/microsoft.kubernetes/connectedclusters/<name>",
            ),
            Self::TryLater(why, _) => words(StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable", (*why).into()),
            Self::Away => words(
                StatusCode::SERVICE_UNAVAILABLE,
                "temporarily_unavailable",
                "the store of sign-ins does not answer: try again in a moment".into(),
            ),
            Self::Internal => {
                words(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "the issuer could not sign".into())
            }
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
    let more = [
        ("id_token", &minted.id_token),
        ("refresh_token", &minted.refresh_token),
        ("client_info", &minted.client_info),
    ];
    for (member, value) in more {
        if let Some(value) = value {
            body[member] = Value::from(value.as_str());
        }
    }
    no_store(json_response(StatusCode::OK, &body))
}

pub fn refusal(refusal: &Refusal) -> Response<Full<Bytes>> {
    let Words { status, error, description } = refusal.words();
    let mut response = json_response(status, &json!({ "error": error, "error_description": description }));
    match refusal {
        Refusal::TryLater(_, after) => {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        Refusal::Away => {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(AWAY_SECONDS));
        }
        Refusal::Client { basic: true, .. } => {
            let scheme = HeaderValue::from_static("Basic realm=\"towline\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        _ => {}
    }
    no_store(response)
}

/// An answer that is for one client alone.
pub fn private(value: &Value) -> Response<Full<Bytes>> {
    no_store(json_response(StatusCode::OK, value))
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

/// Nobody between keeps it.
pub fn no_store(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}
