//! The in-cluster authenticating proxy, stage by stage: [`admit`] the request, [`authenticate`] its token,
//! [`authorize`] the call where roles and assignments are asked, [`review`] what it asks to impersonate,
//! [`impersonate`] the identity, [`dial`] the apiserver, [`exchange`] request and answer.

pub mod admit;
pub mod authenticate;
pub mod authorize;
pub mod dial;
pub mod exchange;
pub mod impersonate;
pub mod review;
pub mod target;
pub mod users;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use auth::{kubernetes::RequestInfo, token::Identity};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};
use tunnel::{
    exchange::Status,
    transport::{SendStream, Stream},
    wire::head::ResponseHead,
};
use types::ids::RequestId;

use self::{
    admit::Admitted,
    authenticate::{Authenticated, Authenticator},
    authorize::{Authorizer, Right},
    dial::Apiserver,
    exchange::{Begun, Bounds, Exchange, Outcome, Refused, Waited},
    impersonate::{Names, Principal, Subject, UpstreamHead},
    review::Reviews,
    users::Users,
};
use super::{
    Entry, Role, Serves, Visit,
    sessions::{Session, Sessions},
};
use crate::{config::Deployment, metrics};

/// This role's name.
pub const NAME: &str = tunnel::wire::roles::KUBE_AAD_PROXY;

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ClusterconnectAgent],
    build: |parts| Ok(parts.users.as_ref().map(|users| Arc::new(KubeAadProxy::of(users)) as Arc<dyn Role>)),
};

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
    /// HTTP status code of the answer.
    pub code: StatusCode,
    /// Reason in the Kubernetes `Status`, such as `Forbidden`.
    pub reason: &'static str,
    /// The sentence that the caller reads.
    pub message: String,
    /// For the log; never a token.
    pub detail: Option<String>,
    /// Seconds after which the caller may retry; absent if that would not help.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal with these words.
    pub fn new(stage: &'static str, code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { stage, code, reason, message: message.into(), detail: None, retry_after: None }
    }

    /// Status 400, reason `BadRequest`.
    pub fn bad_request(stage: &'static str, message: impl Into<String>) -> Self {
        Self::new(stage, StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: says no more than Kubernetes does; `detail` is for the log.
    pub fn unauthorized(stage: &'static str, detail: impl Into<String>) -> Self {
        Self::new(stage, StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized").because(detail)
    }

    /// Status 403, reason `Forbidden`.
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

/// Serves users' requests to the apiserver. Its sessions are shared with the role `refresh`.
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

    fn of(users: &Users) -> Self {
        let Users { apiserver, authenticator, authorizer, names, sessions } = users;
        Self::new(authenticator.clone(), authorizer.clone(), apiserver.clone(), names.clone(), sessions.clone())
    }

    /// In whose name an admitted request leaves, and what bounds it.
    async fn decide(&self, admitted: &mut Admitted, deadline: Instant) -> Result<Decided, Refusal> {
        let authenticated = self.authenticator.authenticate(admitted.credential.take()).await?;
        let now = SystemTime::now();
        let identity = match authenticated {
            Authenticated::Unjudged(token) => {
                let principal = Principal::PassThrough { token, asked: admitted.asked.take() };
                return Ok(Decided { principal, bounds: Bounds { session: None, right: None } });
            }
            Authenticated::User(identity) => identity,
        };
        let (session, whom) = self.begin_as(identity, admitted, now, deadline)?;
        let (subject, right) = match whom {
            Whom::Known(subject, right) => (subject, right),
            Whom::Reviewed(nested) => (nested.await?, None),
        };
        Ok(Decided { principal: Principal::Impersonated(subject), bounds: Bounds { session: Some(session), right } })
    }

    /// As whom this user's request goes on. No `async fn`, so that the future of a request stays small (decision 13).
    fn begin_as<'a>(
        &'a self,
        identity: Arc<Identity>,
        admitted: &'a mut Admitted,
        now: SystemTime,
        deadline: Instant,
    ) -> Result<(Session, Whom<'a>), Refusal> {
        // First, for a token that was shown extends what its principal has open, whatever becomes of this request.
        let session = self.sessions.begin(&identity);
        let real = Subject::of(&identity, &self.names)?;
        let Some(asked) = admitted.asked.take() else {
            let whom = match self.authorizer.right(&identity, admitted, now) {
                Some(right) => Whom::Known(real.with_verbs(right.verbs()), Some(right)),
                None => Whom::Known(real, None),
            };
            return Ok((session, whom));
        };
        // As whom it goes on, the cluster's own RBAC decides.
        if let Some(right) = self.authorizer.right_to_impersonate(&identity, &asked, now) {
            Subject::may_be_asked(&asked, &self.names)?;
            return Ok((session, Whom::Known(Subject::nested(asked, &real), Some(right))));
        }
        let Admitted { method, target, .. } = admitted;
        let nested = Box::pin(async move {
            let asking = review::Asking { real: &real, method, target, deadline };
            self.reviews.nested(&self.apiserver, &self.names, asking, asked).await
        });
        Ok((session, Whom::Reviewed(nested)))
    }

    /// Up to the answer. `None`: the user is gone. No `async fn`, and boxes: decision 13.
    fn begin(self: Arc<Self>, visit: Visit) -> impl Future<Output = Option<Result<Begun, Box<Refused>>>> + Send {
        let Visit { head, stream: Stream { mut send, recv, .. }, received } = visit;
        let named = head.deadline_ms.map(|ms| Duration::from_millis(ms).min(ANSWER_DEADLINE_MAX));
        // Judging it takes no longer for what may take its time to answer.
        let deadline = received + named.map_or(ANSWER_DEADLINE, |named| named.min(ANSWER_DEADLINE));
        let patient = received + named.unwrap_or_else(|| answer_deadline(&head.method, &head.target));
        let mut recv = Some(recv);
        let head = Box::new(head);
        async move {
            // In a block, so that what follows uses the same space.
            let (head, content_length, bounds) = {
                let mut admitted = match admit::admit(*head) {
                    Ok(admitted) => Box::new(admitted),
                    Err(refusal) => return Some(Err(Box::new(Refused { send, refusal }))),
                };
                let decided = tokio::select! {
                    biased;
                    decided = self.decide(&mut admitted, deadline) => decided,
                    _ = send.stopped() => return None,
                    () = tokio::time::sleep_until(deadline.into()) => Err(Refusal::new(
                        authenticate::STAGE, StatusCode::GATEWAY_TIMEOUT, "Timeout", "the request could not be judged in time",
                    )),
                };
                let content_length = admitted.content_length;
                let headed = decided.and_then(|Decided { principal, bounds }| {
                    Ok((UpstreamHead::new(*admitted, &principal)?, content_length, bounds))
                });
                match headed {
                    Ok(headed) => headed,
                    Err(refusal) => return Some(Err(Box::new(Refused { send, refusal }))),
                }
            };
            let mut exchange = Exchange { apiserver: &self.apiserver, head, content_length, deadline: patient, bounds };
            if let Some(recv) = recv.take_if(|_| exchange.head.is_upgrade()) {
                // Boxed: few requests are upgrades.
                return Some(Box::pin(exchange.upgrade(send, recv)).await.map_err(Box::new));
            }
            let answered = Box::pin(exchange.plain(&mut send, &mut recv)).await;
            Some(match answered {
                Waited::Answer((answer, outgoing)) => Ok(Begun::answer(send, answer, outgoing, exchange.bounds)),
                Waited::Refused(refusal) => Err(Box::new(Refused { send, refusal })),
                Waited::Gone(outcome) => Ok(Begun::Over(outcome)),
            })
        }
    }
}

/// Answers a request. `begun` is freed once the answer has begun: a watch holds a tenth of it.
async fn respond<F>(request_id: RequestId, method: Method, begun: Pin<Box<F>>)
where
    F: Future<Output = Option<Result<Begun, Box<Refused>>>>,
{
    // The answer is awaited outside of the match, so that the future reserves nothing for what may come instead.
    let answering = match begun.await {
        Some(Ok(Begun::Answer(answering))) => answering,
        Some(Ok(Begun::Over(outcome))) => return over(request_id, &method, outcome),
        Some(Err(refused)) => return Box::pin(say(request_id, &method, *refused)).await,
        None => return metrics::request_ended("stopped", None),
    };
    over(request_id, &method, answering.run().await);
}

fn over(request_id: RequestId, method: &Method, Outcome { status, end, sent_bytes }: Outcome) {
    metrics::request_ended(end.as_str(), status);
    tracing::debug!(request.id = %request_id, %method, status = status.map(|s| s.as_u16()), end = end.as_str(), sent_bytes, "request");
}

async fn say(request_id: RequestId, method: &Method, Refused { send, refusal }: Refused) {
    metrics::request_ended(refusal.stage, Some(refusal.code));
    tracing::debug!(
        request.id = %request_id, %method, stage = refusal.stage, status = refusal.code.as_u16(),
        message = refusal.message, detail = refusal.detail, "request refused"
    );
    refuse(send, &refusal, request_id).await;
}

/// How long an answer may take to begin where the gateway names no deadline. An apiserver ends most requests itself
/// after a minute, but not those that it calls long running.
fn answer_deadline(method: &Method, target: &[u8]) -> Duration {
    if RequestInfo::of_target(method, target).is_long_running() { ANSWER_DEADLINE_MAX } else { ANSWER_DEADLINE }
}

/// As whom a request goes on.
enum Whom<'a> {
    /// Known without asking, and the right that it goes on by.
    Known(Subject, Option<Box<Right>>),
    /// Whom the cluster lets this user be for this request.
    Reviewed(BoxFuture<'a, Result<Subject, Refusal>>),
}

struct Decided {
    principal: Principal,
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
    fn serves(&self) -> Serves {
        Serves::Users
    }

    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        let (request_id, method) = (visit.head.request_id, visit.head.method.clone());
        Box::pin(respond(request_id, method, Box::pin(self.begin(visit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is allocated and moved for every request: 7.3 KB until the answer and 4.1 KB with it, once. What is above
    /// 1,032 bytes misses glibc's cache for the thread, and has it tidy up its heap.
    #[test]
    fn the_futures_of_a_request_stay_small() {
        fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let begin = size(|(proxy, visit): (Arc<KubeAadProxy>, Visit)| proxy.begin(visit));
        let respond = size(|(id, method, begun)| {
            respond::<BoxFuture<'static, Option<Result<Begun, Box<Refused>>>>>(id, method, begun)
        });
        let plain = size(|(exchange, send, recv): (&mut Exchange<'static>, _, _)| exchange.plain(send, recv));
        assert!(begin <= 1032 && plain <= 1032 && respond <= 1032, "{begin}, {plain} and {respond}");
        assert!(size_of::<exchange::Answering>() <= 512, "{}", size_of::<exchange::Answering>());
    }

    /// A service behind the apiserver's proxy that thought for more than two minutes was cut off with 504.
    #[test]
    fn what_kubernetes_lets_take_its_time_is_waited_for() {
        for long in [
            "/api/v1/namespaces/n/services/s:80/proxy/slow",
            "/api/v1/namespaces/n/pods/p/log?follow=true",
            "/api/v1/namespaces/n/pods/p/l%6Fg",
            "/debug/pprof/profile?seconds=125",
        ] {
            assert_eq!(answer_deadline(&Method::GET, long.as_bytes()), ANSWER_DEADLINE_MAX, "{long}");
        }
        for short in ["/api/v1/pods", "/api/v1/namespaces/proxyless/pods?x=/proxy/"] {
            assert_eq!(answer_deadline(&Method::GET, short.as_bytes()), ANSWER_DEADLINE, "{short}");
        }
    }
}
