//! The resource API: one request's way through it. Shaped like Azure Resource Manager, so that its SDKs and `az` are
//! clients.
//!
//! | module | what it holds |
//! |---|---|
//! | [`route`] | path to what is meant |
//! | [`body`] | a JSON body, bounded and strict |
//! | [`judged`] | what a request is judged by, before and after its body |
//! | [`read`] | one resource, lists, pages |
//! | [`write`] | create, change, delete, actions |
//! | [`operations`] | long-running operations |
//! | [`fixed`] | where everything is, providers |
//! | [`open_api`] | the OpenAPI document |
//! | [`events`] | what happens to clusters: a list, a stream |
//! | [`extension_types`] | what the catalogue of extensions offers |
//! | [`service_principals`] | the built-in issuer's service principals |
//! | [`sessions`] | open sessions |
//! | [`graph`] | what `az` asks Microsoft Graph |
//! | [`throttle`] | how often everybody may ask |
//!
//! Access is decided before anything is looked up, so that who may not read a scope cannot tell what exists there.

pub mod body;
pub mod events;
pub mod extension_types;
pub mod fixed;
pub mod graph;
pub mod judged;
pub mod open_api;
pub mod operations;
pub mod read;
pub mod route;
pub mod service_principals;
pub mod sessions;
pub mod throttle;
pub mod write;

use std::{sync::Arc, time::SystemTime};

use auth::{
    rbac::{Action, Plane, Scope, policy::Asker},
    token::Identity,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use serde_json::Value;
use types::{api::ResourceId, ids::RequestId};

use self::{
    judged::{Basis, Judged},
    route::Route,
    throttle::{Counted, Remaining},
};
use crate::{
    admission::unproven::Place,
    answers::{self, Body},
    api_error::ApiError,
    aside::{self, aside},
    audit::Record,
    control::{Control, confirming},
    hop::Hops,
    identity::{AuthenticateError, Caller, Credential},
    issuer::Issuer,
    resources::Kind,
    sessions::Sessions,
    snapshot::Snapshot,
};

/// Names the request, for ARM's clients.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
/// Names what several requests belong to.
const CORRELATION_ID: HeaderName = HeaderName::from_static("x-ms-correlation-request-id");
/// The client's own name for the request,
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");
/// and whether it wants that back.
const RETURN_CLIENT_REQUEST_ID: &str = "x-ms-return-client-request-id";
/// Bytes of a query at most: of a filter, and of the place where a list goes on.
const QUERY_BYTES: usize = 16 * 1024;
/// Characters of a client's own id at most.
const CLIENT_ID: usize = 128;

/// What a handler knows of a request.
pub struct Call<'a> {
    /// Store and settings.
    pub control: &'a Arc<Control>,
    /// The rights and clusters that decisions are made by.
    pub judged: Judged,
    /// The user or service principal that sent the request.
    pub caller: Caller,
    /// The request's method.
    pub method: Method,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The path as written.
    pub path: &'a str,
    /// The query, decoded.
    pub query: Vec<(String, String)>,
    /// The built-in issuer, which knows its users by name.
    pub issuer: Option<Arc<Issuer>>,
    /// The users' sessions that are open at this replica.
    pub sessions: Option<Arc<Sessions>>,
    /// The way to other replicas, which have open sessions too.
    pub hops: Option<Arc<Hops>>,
}

impl Call<'_> {
    /// The name of this gateway among its replicas.
    pub fn replica(&self) -> Option<&str> {
        self.hops.as_ref().map(|hops| hops.replicas.name())
    }

    /// A parameter of the query, by its name in any case; refuses one that is there twice.
    pub fn parameter(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut found = self.query.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        match (found.next(), found.next()) {
            (_, Some(_)) => {
                let message = format!("The query parameter '{name}' is there more than once.");
                Err(ApiError::bad_request("InvalidQueryParameterValue", message).at(name))
            }
            (one, None) => Ok(one.map(|(_, value)| value.as_str())),
        }
    }

    /// The api-version, one of `kind`.
    pub fn version(&self, kind: &dyn Kind) -> Result<&'static str, ApiError> {
        let asked = self.any_version()?;
        let known = kind.api_versions();
        known.iter().find(|version| version.eq_ignore_ascii_case(asked)).copied().ok_or_else(|| {
            let message = format!(
                "The api-version '{asked}' is not supported for type '{}'. The supported api-versions are '{}'.",
                kind.name(),
                known.join(", ")
            );
            ApiError::bad_request("NoRegisteredProviderFound", message).at("api-version")
        })
    }

    /// An api-version that at least looks like one.
    pub fn any_version(&self) -> Result<&str, ApiError> {
        let Some(asked) = self.parameter("api-version")?.filter(|version| !version.is_empty()) else {
            let message = "The api-version query parameter (?api-version=) is required for all requests.";
            return Err(ApiError::bad_request("MissingApiVersionParameter", message).at("api-version"));
        };
        if is_version(asked) {
            return Ok(asked);
        }
        let shown: String = asked.chars().take(64).collect();
        let message = format!(
            "The api-version '{shown}' is invalid; it must be a date such as 2024-01-01, possibly with -preview."
        );
        Err(ApiError::bad_request("InvalidApiVersionParameter", message).at("api-version"))
    }

    /// The rights and clusters that decisions are made by.
    pub fn snapshot(&self) -> &Snapshot {
        &self.judged.basis().snapshot
    }

    /// The time of the request, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.judged.basis().now_ms
    }

    /// The time of the request.
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(self.now_ms().unsigned_abs())
    }

    /// The caller as their token says.
    pub fn identity(&self) -> Result<&Arc<Identity>, ApiError> {
        self.caller.shared_identity().ok_or_else(|| ApiError::internal("no user is signed in"))
    }

    /// Goes on only if the caller may do `action` on what `id` names. Asked again when the body has come.
    pub fn authorize(&self, action: &str, id: &ResourceId) -> Result<(), ApiError> {
        if !self.may(action, &Scope::from(id)) {
            return Err(self.forbidden(action, id.as_str()));
        }
        self.judged.note(action, id);
        Ok(())
    }

    /// Whether the caller may do `action` at a scope.
    pub fn may(&self, action: &str, scope: &Scope) -> bool {
        self.may_by(self.judged.basis(), action, scope)
    }

    fn may_by(&self, basis: &Basis, action: &str, scope: &Scope) -> bool {
        let directory = &basis.snapshot.directory;
        let (principals, now) = (self.caller.principals(), basis.now_ms / 1000);
        directory.decide(principals, Plane::Control, &Action::new(action), scope, now).is_ok()
    }

    /// Whether the caller may do `action` at some place below a scope.
    pub fn may_below(&self, action: &str, scope: &Scope) -> bool {
        let directory = &self.snapshot().directory;
        directory.decide_below(self.caller.principals(), &Action::new(action), scope, self.now_ms() / 1000)
    }

    /// One question about many scopes.
    pub fn asker(&self, action: &str) -> Asker<'_> {
        let directory = &self.snapshot().directory;
        directory.asker(self.caller.principals(), Plane::Control, Action::new(action), self.now_ms() / 1000)
    }

    /// The refusal of an action at a scope.
    pub fn forbidden(&self, action: &str, scope: &str) -> ApiError {
        ApiError::forbidden(self.caller.name(), self.caller.object_id(), action, scope)
    }

    /// An absolute address on this gateway.
    pub fn url(&self, path_and_query: &str) -> String {
        format!("{}{path_and_query}", self.control.settings.url)
    }
}

/// Whether a text looks like an api-version: a date, and possibly what kind of preview it is.
fn is_version(text: &str) -> bool {
    let (date, rest) = text.split_at_checked(10).unwrap_or((text, "-"));
    let digits = date.bytes().enumerate().all(|(i, b)| if matches!(i, 4 | 7) { b == b'-' } else { b.is_ascii_digit() });
    let known = ["", "-preview", "-alpha", "-beta", "-rc", "-privatepreview"];
    digits && known.iter().any(|known| rest.eq_ignore_ascii_case(known))
}

/// What a request is answered of.
pub struct Site<'a> {
    /// Store and settings.
    pub control: &'a Arc<Control>,
    /// The rights and clusters of when the request came.
    pub snapshot: Arc<Snapshot>,
    /// The built-in issuer, if there is one.
    pub issuer: Option<Arc<Issuer>>,
    /// Open sessions, if there are any here.
    pub sessions: Option<Arc<Sessions>>,
    /// The way to other replicas, if this gateway is one of several.
    pub hops: Option<Arc<Hops>>,
}

/// Serves one request. Never fails: every outcome is an answer.
pub async fn serve<B>(
    site: Site<'_>,
    id: RequestId,
    path: &str,
    request: Request<B>,
    record: &mut Record,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let echo = echoed(request.headers(), id);
    if let Some(correlation) = correlation(request.headers()) {
        record.correlation(correlation);
    }
    let head = request.method() == Method::HEAD;
    let (parts, body) = request.into_parts();
    let (mut body, expecting) = (std::pin::pin!(body), parts.headers.contains_key(header::EXPECT));
    let answered = answer(site, path, parts, body.as_mut(), record);
    // Boxed: a scope would hold the large future of an answer a second time.
    let (Answered { outcome, remaining }, unconfirmed) = Box::pin(confirming(answered)).await;
    let given_up = [StatusCode::REQUEST_TIMEOUT, StatusCode::PAYLOAD_TOO_LARGE];
    // Who waits for a word before the body does not send it behind a refusal.
    if !expecting && !matches!(&outcome, Err(error) if given_up.contains(&error.status)) {
        crate::bodies::leave(body).await;
    }
    let mut response = outcome.unwrap_or_else(|error| {
        if let Some(why) = &error.log {
            tracing::error!(request.id = %id, error = why, "a request to the resource API failed");
        }
        record.reason(&error.detail.code);
        error.answer()
    });
    if head {
        *response.body_mut() = Body::empty();
    }
    response.headers_mut().extend(echo);
    if !unconfirmed.is_empty()
        && let Ok(names) = HeaderValue::try_from(unconfirmed.into_iter().collect::<Vec<_>>().join(", "))
    {
        response.headers_mut().insert(types::api::UNCONFIRMED_BY, names);
    }
    if let Some(Remaining { header, requests }) = remaining {
        response.headers_mut().insert(header, HeaderValue::from(requests));
    }
    response
}

/// What the client says that several requests belong to, if it is a GUID: what it is not, is nothing to look for in a
/// log.
fn correlation(headers: &HeaderMap) -> Option<&str> {
    headers.get(&CORRELATION_ID)?.to_str().ok().filter(|id| crate::guid::is_guid(id))
}

/// Headers that every answer has.
fn echoed(headers: &HeaderMap, id: RequestId) -> Vec<(HeaderName, HeaderValue)> {
    let own = || HeaderValue::try_from(id.to_string()).ok();
    let sent = |name: &HeaderName| headers.get(name).filter(|value| value.len() <= CLIENT_ID).cloned();
    let wanted = headers.get(RETURN_CLIENT_REQUEST_ID).is_some_and(|yes| yes.as_bytes().eq_ignore_ascii_case(b"true"));
    let client = sent(&CLIENT_REQUEST_ID).filter(|_| wanted);
    [
        (REQUEST_ID, own()),
        (CORRELATION_ID, correlation(headers).and_then(|id| id.parse().ok()).or_else(own)),
        (CLIENT_REQUEST_ID, client),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// What became of a request.
struct Answered {
    outcome: Result<Response<Body>, ApiError>,
    /// What is left to the caller; nothing of a request that was answered or refused before it was counted.
    remaining: Option<Remaining>,
}

/// What a request is before it is looked at in detail.
enum Admission {
    /// It needs no caller, and this is its answer.
    Open(Response<Body>),
    /// It has a caller, and was counted.
    Signed(Box<Signed>),
}

/// A request whose caller is known.
struct Signed {
    route: Route,
    query: Option<String>,
    identity: Arc<Identity>,
    /// What shows who the caller is.
    credential: Credential,
    counted: Counted,
}

async fn answer<B>(
    site: Site<'_>,
    path: &str,
    mut parts: http::request::Parts,
    body: B,
    record: &mut Record,
) -> Answered
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match admit(&site, path, &mut parts, record).await {
        Err(error) => Answered { outcome: Err(error), remaining: None },
        Ok(Admission::Open(response)) => Answered { outcome: Ok(response), remaining: None },
        Ok(Admission::Signed(signed)) => {
            let Signed { route, query, identity, credential, counted: Counted { remaining, allowed } } = *signed;
            let outcome = match allowed {
                Ok(()) => dispatch(site, route, query, (&identity, credential), parts, body, record).await,
                Err(error) => Err(error),
            };
            Answered { outcome, remaining: Some(remaining) }
        }
    }
}

/// Finds out what a request asks for and who its caller is, and counts it.
async fn admit(
    Site { control, snapshot, issuer, .. }: &Site<'_>,
    path: &str,
    parts: &mut http::request::Parts,
    record: &mut Record,
) -> Result<Admission, ApiError> {
    let route = route::parse(&parts.method, path)?.ok_or_else(|| ApiError::not_found_at(path))?;
    if let Some(open) = fixed::open(control, &route, &parts.headers) {
        return is_read(&parts.method).then_some(Admission::Open(open)).ok_or_else(only_read);
    }
    let query = parts.uri.query().map(str::to_owned);
    if query.as_ref().is_some_and(|query| query.len() > QUERY_BYTES) {
        let message = format!("The query has more than {QUERY_BYTES} bytes.");
        return Err(ApiError::of(StatusCode::URI_TOO_LONG, "InvalidUri", message));
    }
    let credential =
        Credential::take(&mut parts.headers, query.as_deref()).map_err(|error| refused(control, &error))?;
    let now = SystemTime::now();
    let identity = credential.verify_for_api(&snapshot.verifier, &control.settings.url, now).await;
    let identity = identity.map_err(|error| refused(control, &error))?;
    record.user(&identity.username, &identity.issuer);
    parts.extensions.remove::<Place>();
    if !snapshot.is_welcome(issuer.as_deref(), &identity) {
        return Err(refused(control, &AuthenticateError::Disabled));
    }
    let counted = throttle::count(control, &route, &parts.method, &identity);
    Ok(Admission::Signed(Box::new(Signed { route, query, identity, credential, counted })))
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Hands a request to the part of the API that serves its route.
async fn dispatch<B>(
    Site { control, snapshot, issuer, sessions, hops }: Site<'_>,
    route: Route,
    query: Option<String>,
    (identity, credential): (&Arc<Identity>, Credential),
    parts: http::request::Parts,
    body: B,
    record: &mut Record,
) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let reads = is_read(&parts.method);
    let began = Basis { snapshot, now_ms: control.now_ms() };
    let call = Call {
        control,
        judged: Judged::new(began, Some(credential)),
        caller: Caller::of(identity),
        method: parts.method,
        headers: &parts.headers,
        path: parts.uri.path(),
        query: url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect(),
        issuer,
        sessions,
        hops,
    };
    let party = body::party(&call);
    // Boxed, as above.
    let result = Box::pin(aside::by(&party, routed(&call, &route, reads, body))).await;
    let result = result.and_then(|response| control.unread.hold(&party, response, reads));
    match &result {
        Err(error) if error.status == StatusCode::FORBIDDEN => record.decision(false, Some("no_role")),
        _ => record.decision(true, None),
    }
    result
}

/// What is asked, by its route.
async fn routed<B>(call: &Call<'_>, route: &Route, reads: bool, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match (route, reads) {
        (Route::Resource(id), true) => read::resource(call, id).await,
        (Route::Resource(id), false) => match call.method {
            Method::PUT => write::put(call, id, body).await,
            Method::PATCH => write::patch(call, id, body).await,
            Method::DELETE => {
                body::discard(call, body).await?;
                write::delete(call, id).await
            }
            _ => Err(ApiError::method_not_allowed("a resource has GET, HEAD, PUT, PATCH and DELETE")
                .with(header::ALLOW, "GET, HEAD, PUT, PATCH, DELETE")),
        },
        (Route::Graph(question), true) => graph::answer(call, *question, &serde_json::Map::new()),
        (Route::Graph(question), false) => {
            // A body takes a place and time: of who may ask nothing none is read.
            graph::authorize(call, *question)?;
            graph::answer(call, *question, &body::read(call, body).await?)
        }
        (Route::ServicePrincipals(question), _) => service_principals::serve(call, question, body).await,
        (Route::Sessions(id), _) => {
            body::discard(call, body).await?;
            sessions::serve(call, id.as_deref()).await
        }
        (Route::Action(id, action), _) => write::act(call, id, action, body).await,
        (Route::Register { subscription, namespace, registered }, _) => {
            body::discard(call, body).await?;
            fixed::register(call, subscription, namespace, *registered).await
        }
        (_, false) => Err(only_read()),
        (Route::Collection { scope, kind }, true) => read::list(call, scope.as_ref(), kind).await,
        (Route::Events(scope), true) => events::serve(call, scope).await,
        (Route::ExtensionTypes(question), true) => extension_types::serve(call, question).await,
        (Route::Everything(scope), true) => read::everything(call, scope).await,
        (Route::OperationStatus(subscription, id), true) => operations::status(call, subscription, id).await,
        (Route::OperationOf(resource, id), true) => operations::status_of(call, resource, id).await,
        (Route::OperationResult(subscription, id), true) => operations::result(call, subscription, id).await,
        (route, true) => fixed::serve(call, route).await,
    }
}

fn only_read() -> ApiError {
    ApiError::method_not_allowed("it is only read").with(header::ALLOW, "GET, HEAD")
}

/// 401. Says where to sign in, and no more than that.
fn refused(control: &Control, error: &AuthenticateError) -> ApiError {
    tracing::debug!(%error, "a request to the resource API is not signed in");
    if error.is_unavailable() {
        let message = "The keys of the issuer of this token could not be read; try again shortly.";
        return ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .with(header::RETRY_AFTER, "2");
    }
    let settings = &control.settings;
    let sign_in = format!("Bearer authorization_uri=\"{0}/{1}\", resource_id=\"{0}\"", settings.url, settings.tenant);
    let (code, message) = match error {
        AuthenticateError::Missing => {
            ("AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        }
        _ => (
            "InvalidAuthenticationToken",
            "The access token is invalid, expired, or not for this audience. Sign in again.",
        ),
    };
    ApiError::of(StatusCode::UNAUTHORIZED, code, message).with(header::WWW_AUTHENTICATE, &sign_in)
}

/// An answer with a JSON document.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = answers::json(value);
    *response.status_mut() = status;
    response
}

/// The same of a document of any length: a long one is written on a thread of its own.
pub async fn long_json(status: StatusCode, value: Value) -> Result<Response<Body>, ApiError> {
    if answers::is_short(&value) {
        return Ok(json(status, &value));
    }
    let mut response = json_aside(move || Ok(value)).await?;
    *response.status_mut() = status;
    Ok(response)
}

/// 200 with a document that is made, written and dropped on a thread of its own.
async fn json_aside(
    document: impl FnOnce() -> Result<Value, ApiError> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    let written = aside(move || document().map(|value| value.to_string())).await??;
    Ok(answers::written(written).map(Body::Full))
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
