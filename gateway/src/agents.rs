//! What agents ask of their gateway beside carrying users' requests (docs/agent.md; `types::agent_api`): plain HTTP
//! exchanges in the shapes of the resource API's errors.
//!
//! | module | what it holds |
//! |---|---|
//! | [`tunnel`] | exchanges on streams that an agent opens: the cluster is the one of the tunnel's certificate |
//! | [`listener`] | exchanges at the public listener, below `/.towline/agent`: nobody has proved anything yet |
//! | [`egress`] | connections to hosts that this gateway reaches for an agent |
//!
//! The rest is one file for each question. A new one is a file and a line in [`OF_TUNNELS`] or [`OF_VISITORS`].

pub mod catalogue;
pub mod certificate;
pub mod challenge;
pub mod desired;
pub mod egress;
pub mod enrol;
pub mod heartbeat;
pub mod listener;
pub mod logs;
pub mod objects;
pub mod policy;
pub mod settings;
pub mod telemetry;
pub mod token;
pub mod tunnel;

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{Serialize, de::DeserializeOwned};
use types::agent_api::{BODY_BYTES, enrolment_paths, paths};

use crate::{
    answers::{Body, Live},
    api_error::ApiError,
    aside::aside,
    cluster::{ClusterRef, Named},
    control::Control,
    core::Core,
    rate::Rate,
};

/// Bytes of a message that holds a key, a request for a certificate or a signature; of others it is read on a thread of
/// its own if it is longer.
const SHORT_BYTES: usize = 32 * 1024;
/// How long a body may take to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// How long a handler may take; a question that waits for news waits less.
const DEADLINE: Duration = Duration::from_secs(90);

/// A request of an agent or a visitor, with what a handler needs to answer it.
pub struct Call {
    /// The state that all connections share.
    pub core: Arc<Core>,
    /// The control plane of the gateway.
    pub control: Arc<Control>,
    /// The query, decoded.
    pub query: Vec<(String, String)>,
    /// The body, at most as long as the table says.
    pub body: Bytes,
}

/// The agent at the other end of a tunnel. All of it is proved by its certificate.
pub struct Agent {
    /// The cluster that the certificate names.
    pub cluster: ClusterRef,
    /// What its certificate names beside the cluster.
    pub names: Named,
    /// Which authority its certificate is of.
    pub authority: Option<String>,
    /// The tunnel's name.
    pub tunnel: String,
}

/// Somebody at the public listener.
pub struct Visitor {
    /// The client's address.
    pub peer: IpAddr,
    /// What they showed, unverified but for possession of its key.
    pub certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
}

/// The answer of a handler.
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Body,
}

impl Reply {
    /// 200 with a JSON document.
    pub fn json(document: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(document).map_err(ApiError::internal)?;
        Ok(Self::bytes("application/json", body.into()))
    }

    /// 200 with these bytes.
    pub fn bytes(content_type: &'static str, body: Bytes) -> Self {
        Self { status: StatusCode::OK, content_type, body: Body::Full(body.into()) }
    }

    /// 200 with what is read while it is sent.
    pub fn live(content_type: &'static str, body: Live) -> Self {
        Self { status: StatusCode::OK, content_type, body: Body::Live(Box::new(body)) }
    }

    /// 204 without a body.
    pub fn empty() -> Self {
        Self { status: StatusCode::NO_CONTENT, content_type: "", body: Body::empty() }
    }

    /// The answer in HTTP.
    fn response(self) -> http::Response<Body> {
        let mut response = http::Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if !self.content_type.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

impl Call {
    /// The message in the body.
    pub async fn message<T: DeserializeOwned + Send + 'static>(&self) -> Result<T, ApiError> {
        // Objects only, for a list would pass for one whose members all have defaults; and where a library quotes what
        // it read, a secret would be in a log.
        let read = |body: &[u8]| {
            let object = types::json::object(body).map(serde_json::Value::Object);
            object.ok().and_then(|object| serde_json::from_value(object).ok())
        };
        let message = if self.body.len() <= SHORT_BYTES {
            read(&self.body)
        } else {
            let body = self.body.clone();
            aside(move || read(&body)).await?
        };
        message.ok_or_else(|| {
            let message = "The body is not the message that belongs here; see the agent's version.";
            ApiError::bad_request("InvalidRequestContent", message)
        })
    }

    /// The number in the query behind which news are asked for; `what` it is called.
    fn after(&self, what: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.parameter("after") else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            let message = format!("The query parameter 'after' must be a {what}, a whole number.");
            ApiError::bad_request("InvalidQueryParameterValue", message).at("after")
        })
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Answers an agent.
pub type ForAgents = for<'a> fn(&'a Call, &'a Agent) -> BoxFuture<'a, Result<Reply, ApiError>>;
/// Answers a visitor.
pub type ForVisitors = for<'a> fn(&'a Call, &'a Visitor) -> BoxFuture<'a, Result<Reply, ApiError>>;

/// A method and a path with the handler that answers them.
pub struct Route<H> {
    method: Method,
    path: &'static str,
    /// Bytes of a body at most.
    body_bytes: usize,
    /// How often one cluster, or one address, may ask this.
    rate: Rate,
    serve: H,
}

impl<H> Route<H> {
    const fn new(method: Method, path: &'static str, body_bytes: usize, rate: Rate, serve: H) -> Self {
        Self { method, path, body_bytes, rate, serve }
    }
}

/// What a gateway pays with a signature, or with a write of its own for one cluster.
const DEAR: Rate = Rate::new(30, 0.2);
/// Tokens, which whatever runs in a cluster asks for.
const TOKENS: Rate = Rate::new(120, 2.0);
/// What is told of objects: writes, of up to a hundred objects each.
const TOLD: Rate = Rate::new(30, 1.0);
/// Log lines: writes of up to 200 lines each. Those of a whole fleet come at once where a repository is away.
const LOGGED: Rate = Rate::new(10, 0.2);
/// Questions that wait for news, and what is pushed.
const CHEAP: Rate = Rate::new(120, 5.0);
/// Of an address without a certificate: a whole fleet may be behind one.
const OF_ADDRESS: Rate = Rate::new(2000, 20.0);
/// Challenges of an address, which cost next to nothing and without which no cluster behind it gets any further.
const CHALLENGES: Rate = Rate::new(20_000, 500.0);

/// What is answered on tunnels.
pub static OF_TUNNELS: &[Route<ForAgents>] = &[
    Route::new(Method::POST, paths::RENEW, SHORT_BYTES, DEAR, |call, agent| Box::pin(certificate::renew(call, agent))),
    Route::new(Method::POST, paths::TOKEN, SHORT_BYTES, TOKENS, |call, agent| Box::pin(token::serve(call, agent))),
    Route::new(Method::POST, paths::HEARTBEAT, BODY_BYTES, DEAR, |call, agent| Box::pin(heartbeat::serve(call, agent))),
    Route::new(Method::GET, paths::DESIRED, 0, CHEAP, |call, agent| Box::pin(desired::serve(call, agent))),
    Route::new(Method::POST, paths::METRICS, BODY_BYTES, CHEAP, |call, agent| {
        Box::pin(telemetry::metrics(call, agent))
    }),
    Route::new(Method::POST, paths::LOGS, telemetry::LOG_BYTES, CHEAP, |call, agent| {
        Box::pin(telemetry::logs(call, agent))
    }),
    Route::new(Method::GET, paths::CATALOGUE, 0, CHEAP, |call, _| Box::pin(catalogue::index(call))),
    Route::new(Method::GET, paths::CHART, 0, DEAR, |call, agent| Box::pin(catalogue::chart(call, agent))),
    Route::new(Method::GET, paths::POLICY, 0, CHEAP, |call, agent| Box::pin(policy::serve(call, agent))),
    Route::new(Method::GET, paths::OBJECTS, 0, CHEAP, |call, agent| Box::pin(objects::follow(call, agent))),
    Route::new(Method::POST, paths::PROTECTED, SHORT_BYTES, DEAR, |call, agent| {
        Box::pin(objects::protected(call, agent))
    }),
    Route::new(Method::POST, paths::STATUSES, BODY_BYTES, TOLD, |call, agent| Box::pin(objects::tell(call, agent))),
    Route::new(Method::GET, paths::OBJECT_LOGS, 0, DEAR, |call, agent| Box::pin(logs::positions(call, agent))),
    Route::new(Method::POST, paths::OBJECT_LOGS, BODY_BYTES, LOGGED, |call, agent| Box::pin(logs::tell(call, agent))),
];

/// What is answered at the public listener, below the prefix.
pub static OF_VISITORS: &[Route<ForVisitors>] = &[
    Route::new(Method::POST, enrolment_paths::CHALLENGE, SHORT_BYTES, CHALLENGES, |call, _| {
        Box::pin(challenge::serve(call))
    }),
    Route::new(Method::POST, enrolment_paths::CERTIFICATE, SHORT_BYTES, OF_ADDRESS, |call, visitor| {
        Box::pin(certificate::enrol(call, visitor))
    }),
    Route::new(Method::POST, enrolment_paths::ENROL, BODY_BYTES, OF_ADDRESS, |call, _| Box::pin(enrol::serve(call))),
    Route::new(Method::POST, enrolment_paths::ENROLLED, SHORT_BYTES, OF_ADDRESS, |call, _| {
        Box::pin(enrol::enrolled(call))
    }),
    Route::new(Method::GET, enrolment_paths::SETTINGS, 0, OF_ADDRESS, |call, _| Box::pin(settings::serve(call))),
];

/// The line of a table.
fn find<H>(table: &'static [Route<H>], method: &Method, path: &str) -> Result<&'static Route<H>, ApiError> {
    let here: Vec<_> = table.iter().filter(|route| route.path == path).collect();
    if here.is_empty() {
        return Err(ApiError::not_found_at(path));
    }
    here.iter().find(|route| route.method == *method).copied().ok_or_else(|| {
        let methods = here.iter().map(|route| route.method.as_str()).collect::<Vec<_>>().join(", ");
        ApiError::method_not_allowed("see Allow").with(header::ALLOW, &methods)
    })
}

fn query(text: Option<&str>) -> Vec<(String, String)> {
    url::form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect()
}

/// Reads a body, bounded in bytes and time.
async fn whole<B>(body: B, limit: usize) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match tokio::time::timeout(BODY_DEADLINE, Limited::new(body, limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("The body has more than {limit} bytes.");
            Err(ApiError::of(StatusCode::PAYLOAD_TOO_LARGE, "RequestContentTooLarge", message))
        }
        Ok(Err(_)) => Err(ApiError::bad_request("InvalidRequestContent", "The body broke off.")),
        Err(_) => {
            let message = format!("The body did not arrive within {} seconds.", BODY_DEADLINE.as_secs());
            Err(ApiError::of(StatusCode::REQUEST_TIMEOUT, "RequestTimeout", message))
        }
    }
}

/// Waits for a handler, a bounded time.
async fn in_time(handler: BoxFuture<'_, Result<Reply, ApiError>>) -> Result<Reply, ApiError> {
    tokio::time::timeout(DEADLINE, handler).await.unwrap_or_else(|_| {
        let message = "The gateway is too busy to answer in time; try again.";
        Err(ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).with(header::RETRY_AFTER, "5"))
    })
}

/// 429: a bound that the message names.
fn busy(what: &str) -> ApiError {
    let message = format!("{what} are being served at once, the limit; try again shortly.");
    ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "2")
}

/// What every answer has beside its own headers.
fn named<B>(mut response: http::Response<B>, id: types::ids::RequestId) -> http::Response<B> {
    const REQUEST_ID: HeaderName = crate::answers::REQUEST_ID;
    if let Ok(id) = HeaderValue::try_from(id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Logs why a refusal is ours.
fn answered(outcome: Result<Reply, ApiError>, path: &str) -> http::Response<Body> {
    outcome.map(Reply::response).unwrap_or_else(|error| {
        if let Some(why) = &error.log {
            tracing::error!(path, error = why, "an agent's request failed");
        } else {
            tracing::debug!(path, code = error.detail.code, "an agent's request refused");
        }
        error.response().map(Body::Full)
    })
}
