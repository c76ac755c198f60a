//! A request of the apiserver and its answer, and what bounds them.

use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    access::Access,
    review::{self, Kind, Malformed, Question},
    token::Tokens,
};
use crate::{identity::clock::SharedClock, metrics};

/// Whose a token is.
pub const TOKENS: &str = "/tokenreviews";
/// What somebody may do.
pub const ACCESS: &str = "/subjectaccessreviews";
/// Bytes of a question at most. The largest that an apiserver makes has a user with 10,000 groups.
pub const BODY_BYTES: usize = 1024 * 1024;
/// Questions that are read and judged at once: they hold their bodies meanwhile.
const AT_ONCE: usize = 64;
/// How long a question may wait for its turn, and take in all: an apiserver asks again after ten seconds.
const TURN: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(8);

/// Where questions are asked and answered.
pub struct Desk {
    tokens: Tokens,
    access: Access,
    clock: SharedClock,
    turns: Semaphore,
}

/// Why there is no review.
struct Refused(StatusCode, String);

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self(StatusCode::BAD_REQUEST, malformed.to_string())
    }
}

impl Desk {
    /// Answers by both.
    pub fn new(tokens: Tokens, access: Access, clock: SharedClock) -> Self {
        Self { tokens, access, clock, turns: Semaphore::new(AT_ONCE) }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let kind = match (request.method(), request.uri().path()) {
            (&Method::GET, "/healthz" | "/readyz") => return respond(StatusCode::OK, &json!({"status": "ok"})),
            (&Method::POST, TOKENS) => Kind::Token,
            (&Method::POST, ACCESS) => Kind::Access,
            (_, TOKENS | ACCESS) => return refuse(StatusCode::METHOD_NOT_ALLOWED, "a review is asked by POST"),
            _ => return refuse(StatusCode::NOT_FOUND, "there are reviews at /tokenreviews and /subjectaccessreviews"),
        };
        let judged = timeout(DEADLINE, self.judge(kind, request.into_body())).await;
        match judged
            .unwrap_or_else(|_| Err(Refused(StatusCode::GATEWAY_TIMEOUT, "the review took too long".to_owned())))
        {
            Ok((review, outcome)) => {
                metrics::reviewed(kind.as_str(), outcome);
                respond(StatusCode::OK, &review)
            }
            Err(Refused(status, message)) => {
                metrics::reviewed(
                    kind.as_str(),
                    if status == StatusCode::BAD_REQUEST { "bad_request" } else { "failed" },
                );
                tracing::debug!(kind = kind.as_str(), status = status.as_u16(), message, "no review");
                refuse(status, &message)
            }
        }
    }

    async fn judge<B>(&self, kind: Kind, body: B) -> Result<(Value, &'static str), Refused>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let busy =
            |_| Refused(StatusCode::SERVICE_UNAVAILABLE, format!("{AT_ONCE} reviews are judged at once; ask again"));
        let _turn = timeout(TURN, self.turns.acquire()).await.map_err(busy)?;
        let body = Limited::new(body, BODY_BYTES).collect().await.map_err(|err| {
            if err.downcast_ref::<LengthLimitError>().is_some() {
                Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("a review has at most {BODY_BYTES} bytes"))
            } else {
                Refused(StatusCode::BAD_REQUEST, "the body of the review cannot be read".to_owned())
            }
        })?;
        let body = body.to_bytes();
        let (version, spec) = kind.read(&body)?;
        let (status, outcome) = match kind {
            Kind::Token => self.tokens.review(review::token(&spec)?).await,
            Kind::Access => {
                let question = Question::read(version, spec)?;
                let decision = self.access.decide(&question, sha256(&body), self.clock.now());
                (decision.status(), decision.as_str())
            }
        };
        Ok((kind.answer(version, &status), outcome))
    }
}

fn sha256(body: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(digest::digest(&digest::SHA256, body).as_ref());
    digest
}

fn refuse(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let status_object = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": message,
        "code": status.as_u16(),
    });
    respond(status, &status_object)
}

fn respond(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
