//! One request of a local client: is it ours, where does it go, with which token.

use std::sync::Arc;

use daemon::TaskGroup;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use tunnel::exchange::{Status, strip_hop_by_hop, upgrade_of};
use types::ids::RequestId;

use super::{
    body::AnswerBody,
    keeper::Keeper,
    places::Guest,
    upstream::{Failure, Upstream},
};

/// Bytes on their way in one direction of an upgraded connection.
const SPLICE_BYTES: usize = 64 * 1024;

/// Checks requests of local clients, and passes them to the gateway with the user's token.
pub struct Forward {
    /// What a local client must show.
    pub local_token: SecretString,
    /// What the paths of the one cluster that is served begin with: `/<key>`, or nothing where the gateway knows the
    /// cluster by the name of the connection.
    pub prefix: String,
    /// The user's token.
    pub keeper: Arc<Keeper>,
    /// The gateway that requests go to.
    pub upstream: Arc<Upstream>,
    /// Where upgraded connections run.
    pub tasks: TaskGroup,
}

impl Forward {
    /// Never fails: every outcome is an answer.
    pub async fn serve(&self, mut request: Request<Incoming>, guest: &Guest) -> Response<AnswerBody> {
        if !self.is_ours(request.headers()) {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "this towline proxy serves only the kubeconfig that it wrote: its token was not shown".to_owned(),
            );
        }
        guest.now_known();
        if !self.is_below(request.uri().path()) {
            let message = format!("this towline proxy serves {} and nothing else", self.prefix);
            return refusal(StatusCode::NOT_FOUND, message);
        }
        let authorization = match self.keeper.authorization() {
            Ok(authorization) => authorization,
            Err(why) => return refusal(StatusCode::UNAUTHORIZED, why),
        };
        let upgrade = upgrade_of(request.headers()).is_some();
        let downstream = upgrade.then(|| hyper::upgrade::on(&mut request));
        let headers = request.headers_mut();
        strip_hop_by_hop(headers, upgrade);
        // Answered here already, when the body was first asked for.
        headers.remove(header::EXPECT);
        headers.insert(header::AUTHORIZATION, authorization);
        let safe = request.method().is_safe() && downstream.is_none();
        let result = match downstream {
            None => self.upstream.send(request).await,
            Some(downstream) => self.upgrade(request, downstream).await,
        };
        let mut response = match result {
            Ok(response) => response,
            Err(failure) => return self.failed(failure, safe),
        };
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        strip_hop_by_hop(response.headers_mut(), switched);
        response
    }

    /// Clients repeat whatever has a `Retry-After`, also writes: only what was not carried out, or changes nothing, has
    /// one.
    fn failed(&self, failure: Failure, safe: bool) -> Response<AnswerBody> {
        let (code, error) = match failure {
            Failure::NotDone(error) => (StatusCode::SERVICE_UNAVAILABLE, error),
            Failure::Unknown(error) if safe => (StatusCode::SERVICE_UNAVAILABLE, error),
            Failure::Unknown(error) => {
                (StatusCode::BAD_GATEWAY, error.context("the request may have been carried out"))
            }
        };
        tracing::warn!("a request did not get through: {error:#}");
        let gateway = self.upstream.authority();
        refusal(code, format!("towline proxy got no answer from the gateway at {gateway}: {error:#}"))
    }

    /// Compared in constant time, by digest so that lengths do not matter.
    fn is_ours(&self, headers: &HeaderMap) -> bool {
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else { return false };
        let Some((scheme, token)) = shown.to_str().ok().and_then(|shown| shown.split_once(' ')) else { return false };
        let digest = |text: &str| aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let (shown, wanted) = (digest(token.trim()), digest(self.local_token.expose_secret()));
        scheme.eq_ignore_ascii_case("bearer")
            && aws_lc_rs::constant_time::verify_slices_are_equal(shown.as_ref(), wanted.as_ref()).is_ok()
    }

    fn is_below(&self, path: &str) -> bool {
        path.strip_prefix(self.prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    async fn upgrade(
        &self,
        request: Request<Incoming>,
        downstream: OnUpgrade,
    ) -> Result<Response<AnswerBody>, Failure> {
        let mut response = self.upstream.upgrade(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response.map(|body| AnswerBody::Upstream { body, _slot: None, _request: None }));
        }
        let upstream = hyper::upgrade::on(&mut response);
        self.tasks.spawn("upgraded", async move {
            match tokio::try_join!(downstream, upstream) {
                Ok((down, up)) => {
                    let (mut down, mut up) = (TokioIo::new(down), TokioIo::new(up));
                    // Half-close is kept: the end of one direction is passed on and the other goes on.
                    let result =
                        tokio::io::copy_bidirectional_with_sizes(&mut down, &mut up, SPLICE_BYTES, SPLICE_BYTES).await;
                    if let Err(error) = result {
                        tracing::debug!(%error, "an upgraded connection broke off");
                    }
                }
                Err(error) => tracing::debug!(%error, "a connection could not be handed over"),
            }
        });
        Ok(response.map(|_| AnswerBody::Own(None)))
    }
}

fn refusal(code: StatusCode, message: String) -> Response<AnswerBody> {
    // Without randomness the id is zeros; nothing depends on it here.
    let id = RequestId::random().unwrap_or(RequestId([0; 16]));
    let mut status = Status::new(code, id, message);
    if code == StatusCode::SERVICE_UNAVAILABLE {
        status.retry_after = Some(1);
    }
    let mut response: Response<AnswerBody> = status.response();
    response.headers_mut().insert(header::SERVER, HeaderValue::from_static("towline-proxy"));
    response
}
