//! The agent's own exchanges with its gateway (docs/agent.md): plain HTTP over streams of role `agent-api` on whatever
//! tunnel is up. What steers the cluster goes before bulk: while it is on its way, logs and metrics wait.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use daemon::BackoffPolicy;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Semaphore, watch};
use tunnel::{
    transport::{Stream, TunnelHandle},
    wire::head::{RequestHead, ResponseHead},
};
use types::{
    agent_api::{BODY_BYTES, EGRESS_PATH, EGRESS_ROLE, ROLE},
    ids::RequestId,
    limits,
};

/// How long an exchange waits for a tunnel.
const TUNNEL_WAIT: Duration = Duration::from_secs(30);
/// How long an answer may take from when the request began to be sent.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// What a gateway may hold a question for something newer, beyond what it says; see `paths::DESIRED`.
const POLL_DEADLINE: Duration = Duration::from_secs(90);
/// Bulk is sent in pieces of this size, in bytes, and looks for more urgent exchanges between two of them.
const BULK_PIECE_BYTES: usize = 16 * 1024;
/// How long one piece waits for more urgent exchanges: they are small.
const BULK_YIELD: Duration = Duration::from_secs(5);
/// How long a host that the gateway reaches may take, with the wait for a tunnel: a look-up, a connection, and both ways.
const REACH_DEADLINE: Duration = Duration::from_secs(40);
/// Seconds of a `Retry-After` that are respected.
const RETRY_AFTER_MAX: u64 = 24 * 3600;
/// Characters of a gateway's message that are kept.
const MESSAGE_CHARS: usize = 1000;

/// Waits of whoever asks over and over, after a question without an answer.
pub const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(5),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(300),
    steady_after: Duration::from_secs(60),
};

/// What the gateway said instead of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the gateway answers {status} {code}: {message}")]
pub struct Refused {
    /// HTTP status code of the answer.
    pub status: u16,
    /// As in `types::agent_api::codes`; empty if it said none.
    pub code: String,
    /// The gateway's explanation, meant for a person.
    pub message: String,
    /// When to ask again.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// From an answer; its body is the resource API's error envelope or anything.
    pub fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let envelope: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        let text = |key: &str| {
            let value = envelope.as_ref().and_then(|envelope| envelope["error"][key].as_str());
            value.unwrap_or_default().chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect::<String>()
        };
        let retry_after = headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok())
            .map(|seconds| Duration::from_secs(seconds.min(RETRY_AFTER_MAX)));
        Self { status: status.as_u16(), code: text("code"), message: text("message"), retry_after }
    }
}

/// Why an exchange with the gateway came to nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// No tunnel came up in time.
    #[error("no tunnel to the gateway came up within {} s", .0.as_secs())]
    NoTunnel(Duration),
    /// The tunnel or the connection broke, or there was none.
    #[error("the gateway cannot be reached: {0}")]
    Unreachable(String),
    /// It answered something else.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Its answer is not what it must be.
    #[error("the gateway's answer cannot be read: {0}")]
    Unreadable(String),
    /// A fault at this end.
    #[error("{0}")]
    Local(String),
}

impl ApiError {
    /// When the gateway wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refused) => refused.retry_after,
            _ => None,
        }
    }

    /// The refusal, if it is one.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            _ => None,
        }
    }
}

/// The tunnel in use, if one is up.
pub type CurrentTunnel = watch::Receiver<Option<TunnelHandle>>;

/// The client. Clones share what goes first.
#[derive(Clone)]
pub struct AgentApi {
    current: CurrentTunnel,
    urgent: watch::Sender<usize>,
    bulk: Arc<Semaphore>,
}

/// Bounds of an answer.
#[derive(Clone, Copy)]
struct Bounds {
    /// From when the request begins to be sent.
    deadline: Duration,
    /// Bytes of the answer's body at most.
    bytes: usize,
}

/// While one of these lives, bulk waits.
struct Urgent(watch::Sender<usize>);

impl Urgent {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl AgentApi {
    /// Over that tunnel.
    pub fn new(current: CurrentTunnel) -> Self {
        Self { current, urgent: watch::Sender::new(0), bulk: Arc::new(Semaphore::new(1)) }
    }

    /// Whether a tunnel is up.
    pub fn is_up(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Waits until a tunnel is up, however long.
    pub async fn up(&self) {
        let mut current = self.current.clone();
        if current.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Sends JSON and reads JSON: what steers the cluster, before all else.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|err| ApiError::Local(err.to_string()))?;
        let urgent = Urgent::new(&self.urgent);
        let bounds = Bounds { deadline: ANSWER_DEADLINE, bytes: BODY_BYTES };
        let answer = self.exchange(Method::POST, path, Some("application/json"), body.into(), bounds).await?;
        drop(urgent);
        read(&answer)
    }

    /// Asks for something newer, of at most `limit` bytes, which may take its time; `None` where nothing newer came.
    pub async fn poll<T: DeserializeOwned>(&self, path: &str, limit: usize) -> Result<Option<T>, ApiError> {
        let bounds = Bounds { deadline: POLL_DEADLINE, bytes: limit };
        let answer = self.exchange(Method::GET, path, None, Bytes::new(), bounds).await?;
        if answer.is_empty() { Ok(None) } else { read(&answer).map(Some) }
    }

    /// Asks for bytes as they are, at most `limit` of them.
    pub async fn bytes(&self, path: &str, limit: usize) -> Result<Bytes, ApiError> {
        let bounds = Bounds { deadline: POLL_DEADLINE, bytes: limit };
        self.exchange(Method::GET, path, None, Bytes::new(), bounds).await
    }

    /// Sends what may wait: one at a time, in pieces, each only when nothing more urgent is on its way.
    pub async fn bulk(&self, path: &str, kind: &'static str, body: Bytes) -> Result<(), ApiError> {
        let _turn = self.bulk.acquire().await.map_err(|err| ApiError::Local(err.to_string()))?;
        let exchange = async {
            let mut stream = self.open(Method::POST, path, Some(kind), body.len()).await?;
            let mut rest = body;
            while !rest.is_empty() {
                let mut urgent = self.urgent.subscribe();
                let _ = tokio::time::timeout(BULK_YIELD, urgent.wait_for(|count| *count == 0)).await;
                let piece = rest.split_to(rest.len().min(BULK_PIECE_BYTES));
                // A gateway that has seen enough says why in its answer.
                if stream.send.send(piece).await.is_err() {
                    break;
                }
            }
            let _ = stream.send.finish();
            answer(&mut stream, BODY_BYTES).await
        };
        // A slow line is no fault of the gateway: a minute more than for what is urgent.
        let deadline = ANSWER_DEADLINE + POLL_DEADLINE;
        tokio::time::timeout(deadline, exchange).await.unwrap_or_else(|_| Err(late(deadline))).map(|_| ())
    }

    /// Opens a way to the source of a flux configuration of this cluster, which the gateway dials (`host:port`): the stream
    /// carries bytes both ways.
    pub async fn reach(&self, configuration: &str, to: &str) -> Result<Stream, ApiError> {
        let target = format!("{EGRESS_PATH}?configuration={configuration}&to={to}");
        let reached = async {
            let mut stream = self.open_as(EGRESS_ROLE, Method::CONNECT, &target, HeaderMap::new()).await?;
            let head = answer_head(&mut stream).await?;
            if head.status == StatusCode::OK {
                return Ok(stream);
            }
            let body = rest(&mut stream, BODY_BYTES).await?;
            Err(Refused::new(head.status, &head.headers, &body).into())
        };
        tokio::time::timeout(REACH_DEADLINE, reached).await.unwrap_or_else(|_| Err(late(REACH_DEADLINE)))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        kind: Option<&'static str>,
        body: Bytes,
        Bounds { deadline, bytes }: Bounds,
    ) -> Result<Bytes, ApiError> {
        if body.len() > BODY_BYTES {
            return Err(ApiError::Local(format!("a message of {} bytes, more than {BODY_BYTES}", body.len())));
        }
        let mut stream = self.open(method, path, kind, body.len()).await?;
        let exchange = async {
            if !body.is_empty() {
                let _ = stream.send.send(body).await;
            }
            let _ = stream.send.finish();
            answer(&mut stream, bytes).await
        };
        tokio::time::timeout(deadline, exchange).await.unwrap_or_else(|_| Err(late(deadline)))
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        kind: Option<&'static str>,
        length: usize,
    ) -> Result<Stream, ApiError> {
        let mut headers = HeaderMap::new();
        if let Some(kind) = kind {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        self.open_as(ROLE, method, path, headers).await
    }

    async fn open_as(&self, role: &str, method: Method, path: &str, headers: HeaderMap) -> Result<Stream, ApiError> {
        let head = RequestHead {
            role: role.to_owned(),
            request_id: RequestId::random().map_err(|_| ApiError::Local("no random numbers".to_owned()))?,
            method,
            target: Bytes::copy_from_slice(path.as_bytes()),
            headers,
            deadline_ms: None,
            traceparent: None,
            user_address: None,
        };
        let head = head.encode().map_err(|err| ApiError::Local(err.to_string()))?.freeze();
        let mut current = self.current.clone();
        let opened = async {
            loop {
                let tunnel = match current.wait_for(Option::is_some).await.map(|tunnel| tunnel.clone()) {
                    Ok(Some(tunnel)) => tunnel,
                    _ => std::future::pending().await,
                };
                match tunnel.open(head.clone()).await {
                    Ok(stream) => return stream,
                    // Nothing has reached the gateway: the next tunnel will do.
                    Err(err) => tracing::debug!(error = %err, "the tunnel takes no exchange"),
                }
                if current.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(TUNNEL_WAIT, opened).await.map_err(|_| ApiError::NoTunnel(TUNNEL_WAIT))
    }
}

fn late(deadline: Duration) -> ApiError {
    ApiError::Unreachable(format!("no answer within {} s", deadline.as_secs()))
}

/// Reads an answer to its end.
async fn answer(stream: &mut Stream, limit: usize) -> Result<Bytes, ApiError> {
    let head = answer_head(stream).await?;
    let body = rest(stream, limit).await?;
    if head.status.is_success() { Ok(body) } else { Err(Refused::new(head.status, &head.headers, &body).into()) }
}

async fn answer_head(stream: &mut Stream) -> Result<ResponseHead, ApiError> {
    let message = stream.recv.recv_message(limits::HEAD_BYTES).await.map_err(|err| lost(&err))?;
    ResponseHead::decode(message).map_err(|err| ApiError::Unreadable(err.to_string()))
}

/// Reads a body of at most `limit` bytes.
async fn rest(stream: &mut Stream, limit: usize) -> Result<Bytes, ApiError> {
    let mut body = Vec::new();
    while let Some(chunk) = stream.recv.recv().await.map_err(|err| lost(&err))? {
        if body.len() + chunk.len() > limit {
            return Err(ApiError::Unreadable(format!("an answer of more than {limit} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

fn lost(err: &dyn std::fmt::Display) -> ApiError {
    ApiError::Unreachable(err.to_string())
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|err| ApiError::Unreadable(format!("the gateway's answer: {err}")))
}
