//! Questions to all other replicas at once, over the links: which sessions are open there, the end of one, and that a
//! newer token was shown. Bounded in time and length; who did not answer is named.

use std::time::{Duration, Instant};

use auth::token::{SignIn, TokenEnd};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tunnel::{
    exchange::StreamBody,
    wire::head::{RequestHead, ResponseHead},
};
use types::{
    ids::{ClusterKey, RequestId, hex},
    limits,
};

use super::{Hops, links::Link};
use crate::random;

/// The role of streams that carry a question between replicas.
pub const ROLE: &str = "replica";
/// The path of open sessions; one of them is below it, by its id.
pub const SESSIONS: &str = "/v1/sessions";
/// The path that is told of a newer token.
pub const SHOWN: &str = "/v1/shown";
/// How long another replica may take to answer.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// The longest answer, in bytes.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Why another replica has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silent {
    /// No link to it is up, so that it was not even asked.
    #[error("there is no link to it")]
    Unlinked,
    /// It was asked, and the link or the answer failed.
    #[error("{0}")]
    Failed(&'static str),
    /// It was asked, and took too long.
    #[error("it did not answer within {} seconds", DEADLINE.as_secs())]
    Late,
}

/// What another replica said.
pub struct Said {
    /// Name of the replica.
    pub replica: String,
    /// Status and body of the answer, or why there is none.
    pub answer: Result<(StatusCode, Bytes), Silent>,
}

impl Hops {
    /// Asks all other replicas. One whose lease has ended, and that has not given it back, may still have sessions: it is
    /// among those that do not answer until its row is deleted.
    pub async fn ask_all(&self, method: &Method, target: &str) -> Vec<Said> {
        let known = self.replicas.known();
        let others = known.iter().filter(|other| other.name != self.replicas.name());
        join_all(others.map(|other| self.ask(&other.name, method, target))).await
    }

    /// Tells all others of the end of the newest token of a sign-in at a cluster, which extends sessions there too. The
    /// names of those that have not heard it.
    pub async fn tell_newest(&self, sign_in: SignIn, cluster: ClusterKey, end: &TokenEnd) -> Vec<String> {
        let (sign_in, cluster, until) = (hex(&sign_in), cluster.hex(), end.until);
        // A thumbprint is base64url, which needs no escaping.
        let key = end.key.as_ref().map(|key| format!("&key={key}")).unwrap_or_default();
        let target = format!("{SHOWN}?sign_in={sign_in}&cluster={cluster}&until={until}{key}");
        let said = self.ask_all(&Method::POST, &target).await;
        let heard = |said: &Said| matches!(said.answer, Ok((StatusCode::NO_CONTENT, _)));
        said.into_iter().filter(|said| !heard(said)).map(|said| said.replica).collect()
    }

    /// Asks one of them.
    pub async fn ask(&self, replica: &str, method: &Method, target: &str) -> Said {
        let link = self.peers.load().get(replica).and_then(|peer| peer.best());
        let asked = async {
            let link = link.ok_or(Silent::Unlinked)?;
            question(&link, method, target).await.map_err(Silent::Failed)
        };
        let answer = tokio::time::timeout_at((Instant::now() + DEADLINE).into(), asked).await;
        let answer = answer.unwrap_or(Err(Silent::Late));
        if let Err(why) = &answer {
            tracing::warn!(replica, %why, "another replica does not answer a question about sessions");
        }
        Said { replica: replica.to_owned(), answer }
    }
}

async fn question(link: &Link, method: &Method, target: &str) -> Result<(StatusCode, Bytes), &'static str> {
    let head = RequestHead {
        role: ROLE.to_owned(),
        request_id: RequestId(random::bytes()),
        method: method.clone(),
        target: Bytes::copy_from_slice(target.as_bytes()),
        headers: HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    let head = head.encode().map_err(|_| "the question cannot be written")?.freeze();
    let mut stream = link.handle.ask(head).await.map_err(|_| "it takes no stream")?;
    let message = stream.recv.recv_message(limits::HEAD_BYTES).await.map_err(|_| "its answer broke off")?;
    let head = ResponseHead::decode(message).map_err(|_| "its answer cannot be read")?;
    let body = Limited::new(StreamBody::new(stream.recv), ANSWER_BYTES).collect().await;
    let body = body.map_err(|_| "its answer is too long or broke off")?.to_bytes();
    Ok((head.status, body))
}
