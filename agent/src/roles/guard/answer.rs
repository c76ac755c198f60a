//! A request of the apiserver and its answer, and what bounds them.

use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};
use types::limits;

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
/// Bytes of a question about rights at most. The largest that an apiserver makes has a user with 10,000 groups.
pub const BODY_BYTES: usize = 1024 * 1024;
/// Bytes of a question about a token at most: one of the longest that is judged, and what is around it.
pub const TOKEN_BODY_BYTES: usize = limits::TOKEN_BYTES + 16 * 1024;
/// Questions about rights that are read at once: they hold their bodies meanwhile, and are decided as soon as they are
/// read.
const READ_AT_ONCE: usize = 64;
/// Questions about tokens that are read at once. Everybody who reaches the apiserver can have it ask about a token. So these
/// have turns of their own, fewer than there are connections of one apiserver ([`super::CONNECTIONS_PER_PEER`]), and
/// nobody waits for one with a connection in hand. A token whose key is known is judged as soon as it is read.
pub(super) const TOKENS_AT_ONCE: usize = 256;
/// Tokens with an unknown key that may wait at once until the issuer's keys are read. Anybody can send such tokens. While
/// the issuer does not answer, they must not take the turns of tokens whose key is known.
pub(super) const ASKING_AT_ONCE: usize = 128;
/// How long a question about rights may wait for its turn, and any may take in all: an apiserver asks again after ten
/// seconds.
const TURN: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(8);
/// `Retry-After` of an answer without a turn, in seconds. An apiserver retries 429 and answers with this header, but no
/// 503.
const AGAIN: HeaderValue = HeaderValue::from_static("1");

/// Where questions are asked and answered.
pub struct Desk {
    tokens: Tokens,
    access: Access,
    clock: SharedClock,
    reading: Semaphore,
    tokens_at_once: Semaphore,
    asking: Semaphore,
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
        let (reading, tokens_at_once) = (Semaphore::new(READ_AT_ONCE), Semaphore::new(TOKENS_AT_ONCE));
        Self { tokens, access, clock, reading, tokens_at_once, asking: Semaphore::new(ASKING_AT_ONCE) }
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
            || Refused(StatusCode::TOO_MANY_REQUESTS, "too many reviews are judged at once; ask again".to_owned());
        match kind {
            Kind::Token => {
                let turn = self.tokens_at_once.try_acquire().map_err(|_| busy())?;
                let (version, spec) = kind.read(&read(body, TOKEN_BODY_BYTES).await?)?;
                let token = review::token(&spec)?;
                let _turn = match self.tokens.authenticator.must_ask(&token) {
                    true => {
                        let asking = self.asking.try_acquire().map_err(|_| busy())?;
                        drop(turn);
                        asking
                    }
                    false => turn,
                };
                let (status, outcome) = self.tokens.review(token).await;
                Ok((kind.answer(version, &status), outcome))
            }
            Kind::Access => {
                let body = {
                    let _turn = timeout(TURN, self.reading.acquire()).await.map_err(|_| busy())?;
                    read(body, BODY_BYTES).await?
                };
                let (version, spec) = kind.read(&body)?;
                let question = Question::read(version, spec)?;
                let decision = self.access.decide(&question, sha256(&body), self.clock.now());
                Ok((kind.answer(version, &decision.status()), decision.as_str()))
            }
        }
    }
}

async fn read<B>(body: B, most: usize) -> Result<Bytes, Refused>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let read = Limited::new(body, most).collect().await.map_err(|err| {
        if err.downcast_ref::<LengthLimitError>().is_some() {
            Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("a review of this kind has at most {most} bytes"))
        } else {
            Refused(StatusCode::BAD_REQUEST, "the body of the review cannot be read".to_owned())
        }
    })?;
    Ok(read.to_bytes())
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
    let mut response = respond(status, &status_object);
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, AGAIN);
    }
    response
}

fn respond(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
