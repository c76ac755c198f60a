//! The in-cluster authenticating proxy, stage by stage: [`admit`] the request, [`authenticate`] its token, [`authorize`] the
//! call where roles and assignments are asked, [`review`] what it asks to impersonate, [`impersonate`] the identity, [`dial`] the apiserver, [`exchange`] request and answer.

pub mod admit;
pub mod authenticate;
pub mod authorize;
pub mod dial;
pub mod exchange;
pub mod impersonate;
pub mod review;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use proto::{
    exchange::Status,
    ids::RequestId,
    transport::{SendStream, Stream},
    wire::head::{RequestHead, ResponseHead},
};

use self::{
    authenticate::{Authenticated, Authenticator},
    authorize::Authorizer,
    dial::Apiserver,
    exchange::{Begun, Bounds, Exchange, Outcome, Refused},
    impersonate::{Names, Principal, Subject, UpstreamHead},
    review::Reviews,
};
use super::{Role, Visit, sessions::Sessions};
use crate::metrics;

/// How long an answer may take to begin when the gateway names no deadline.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
/// The longest deadline that a gateway may name, and that of requests which Kubernetes itself lets take their time.
const ANSWER_DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Why a request goes no further. What the caller is told and what the log says are kept apart.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{stage}: {message}")]
pub struct Refusal {
    /// The stage that refused.
    pub stage: &'static str,
    /// HTTP status.
    pub code: StatusCode,
    /// Kubernetes reason.
    pub reason: &'static str,
    /// For the caller.
    pub message: String,
    /// For the log; never a token.
    pub detail: Option<String>,
    /// Seconds.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal with these words.
    pub fn new(stage: &'static str, code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { stage, code, reason, message: message.into(), detail: None, retry_after: None }
    }

    /// 400.
    pub fn bad_request(stage: &'static str, message: impl Into<String>) -> Self {
        Self::new(stage, StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: says no more than Kubernetes does; `detail` is for the log.
    pub fn unauthorized(stage: &'static str, detail: impl Into<String>) -> Self {
        Self::new(stage, StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized").because(detail)
    }

    /// 403.
    pub fn forbidden(stage: &'static str, message: impl Into<String>) -> Self {
        Self::new(stage, StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 503, to be tried again.
    pub fn unavailable(stage: &'static str, message: impl Into<String>) -> Self {
        let refusal = Self::new(stage, StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        Self { retry_after: Some(1), ..refusal }
    }

    /// With a reason for the log.
    #[must_use]
    pub fn because(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn status(&self, request_id: RequestId) -> Status {
        Status {
            code: self.code,
            reason: self.reason,
            message: self.message.clone(),
            // A 401 names no stage.
            stage: (self.code != StatusCode::UNAUTHORIZED).then_some(self.stage),
            request_id,
            retry_after: self.retry_after,
        }
    }
}

/// The role.
pub struct KubeAadProxy {
    authenticator: Arc<Authenticator>,
    authorizer: Arc<Authorizer>,
    apiserver: Arc<Apiserver>,
    names: Names,
    reviews: Reviews,
    sessions: Arc<Sessions>,
}

impl KubeAadProxy {
    /// Serves requests to `apiserver`.
    pub fn new(
        authenticator: Arc<Authenticator>,
        authorizer: Arc<Authorizer>,
        apiserver: Arc<Apiserver>,
        names: Names,
        sessions: Arc<Sessions>,
    ) -> Self {
        Self { authenticator, authorizer, apiserver, names, reviews: Reviews::default(), sessions }
    }

    /// The pipeline up to a request that may leave.
    async fn decide(&self, head: RequestHead, deadline: Instant) -> Result<Decided, Refusal> {
        let mut admitted = admit::admit(head)?;
        let asked = admitted.asked.take();
        let content_length = admitted.content_length;
        let authenticated = self.authenticator.authenticate(admitted.credential.take()).await?;
        let now = SystemTime::now();
        let (principal, session, right) = match authenticated {
            Authenticated::Unjudged(token) => (Principal::PassThrough { token, asked }, None, None),
            Authenticated::User(identity) => {
                self.sessions.shown(&identity);
                let real = Subject::of(&identity, &self.names)?;
                let session = Some(self.sessions.begin(&identity));
                let (subject, right) = match asked {
                    None => match self.authorizer.right(&identity, &admitted, now) {
                        Some(right) => (real.with_verbs(right.verbs()), Some(right)),
                        None => (real, None),
                    },
                    // As whom it goes on, the cluster's own RBAC decides.
                    Some(asked) => match self.authorizer.right_to_impersonate(&identity, &asked, now) {
                        Some(right) => {
                            Subject::may_be_asked(&asked, &self.names)?;
                            (Subject::nested(asked, &real), Some(right))
                        }
                        None => {
                            let nested = self.reviews.nested(&self.apiserver, &self.names, &real, asked, deadline);
                            (Box::pin(nested).await?, None)
                        }
                    },
                };
                (Principal::Impersonated(subject), session, right)
            }
        };
        let bounds = Bounds { session, right };
        Ok(Decided { head: UpstreamHead::new(admitted, &principal)?, content_length, bounds })
    }

    /// Up to the answer. `None`: the user is gone.
    async fn begin(&self, visit: Visit) -> Option<Result<Begun, Refused>> {
        let Visit { head, stream, received, .. } = visit;
        let named = head.deadline_ms.map(|ms| Duration::from_millis(ms).min(ANSWER_DEADLINE_MAX));
        // Judging it takes no longer for what may take its time to answer.
        let deadline = received + named.map_or(ANSWER_DEADLINE, |named| named.min(ANSWER_DEADLINE));
        let patient = received + named.unwrap_or_else(|| answer_deadline(&head.target));
        let Stream { mut send, recv, .. } = stream;
        let decided = tokio::select! {
            biased;
            decided = self.decide(head, deadline) => decided,
            _ = send.stopped() => return None,
            () = tokio::time::sleep_until(deadline.into()) => Err(Refusal::new(
                authenticate::STAGE, StatusCode::GATEWAY_TIMEOUT, "Timeout", "the request could not be judged in time",
            )),
        };
        Some(match decided {
            Ok(Decided { head, content_length, bounds }) => {
                let exchange = Exchange { apiserver: &self.apiserver, head, content_length, deadline: patient, bounds };
                exchange.run(send, recv).await
            }
            Err(refusal) => Err((send, refusal)),
        })
    }

    async fn respond(&self, visit: Visit) {
        let (request_id, method) = (visit.head.request_id, visit.head.method.clone());
        // In a box of its own, which is gone once the answer has begun: a watch holds a tenth of it.
        let result = match Box::pin(self.begin(visit)).await {
            None => return metrics::request_ended("stopped", None),
            Some(Ok(Begun::Answer(answering))) => answering.run().await,
            Some(Ok(Begun::Over(outcome))) => Ok(outcome),
            Some(Err(refused)) => Err(refused),
        };
        match result {
            Ok(Outcome { status, end, sent_bytes }) => {
                metrics::request_ended(end.as_str(), status);
                tracing::debug!(request.id = %request_id, %method, status = status.map(|s| s.as_u16()), end = end.as_str(), sent_bytes, "request");
            }
            Err((send, refusal)) => {
                metrics::request_ended(refusal.stage, Some(refusal.code));
                tracing::debug!(
                    request.id = %request_id, %method, stage = refusal.stage, status = refusal.code.as_u16(),
                    message = refusal.message, detail = refusal.detail, "request refused"
                );
                refuse(send, &refusal, request_id).await;
            }
        }
    }
}

/// How long an answer may take to begin. An apiserver ends most requests after a minute, but not those that it calls long
/// running: what is proxied to a service or node may take as long to answer as that likes, and so may logs.
fn answer_deadline(target: &[u8]) -> Duration {
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    let long = path.split(|b| *b == b'/').any(|part| matches!(part, b"proxy" | b"log" | b"watch"));
    if long { ANSWER_DEADLINE_MAX } else { ANSWER_DEADLINE }
}

struct Decided {
    head: UpstreamHead,
    content_length: Option<u64>,
    bounds: Bounds,
}

/// Answers with a Kubernetes `Status`.
pub async fn refuse(send: SendStream, refusal: &Refusal, request_id: RequestId) {
    let status = refusal.status(request_id);
    let head = ResponseHead {
        status: refusal.code,
        headers: status.headers(),
        refused_by: Some(Bytes::from_static(refusal.stage.as_bytes())),
    };
    super::answer(send, head, status.body()).await;
}

impl Role for KubeAadProxy {
    fn is_for_users(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "kube-aad-proxy"
    }

    fn serve(&self, visit: Visit) -> BoxFuture<'_, ()> {
        Box::pin(self.respond(visit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service behind the apiserver's proxy that thought for more than two minutes was cut off with 504.
    #[test]
    fn what_kubernetes_lets_take_its_time_is_waited_for() {
        for long in ["/api/v1/namespaces/n/services/s:80/proxy/slow", "/api/v1/namespaces/n/pods/p/log?follow=true"] {
            assert_eq!(answer_deadline(long.as_bytes()), ANSWER_DEADLINE_MAX, "{long}");
        }
        for short in ["/api/v1/pods", "/api/v1/namespaces/proxyless/pods?x=/proxy/"] {
            assert_eq!(answer_deadline(short.as_bytes()), ANSWER_DEADLINE, "{short}");
        }
    }
}
