//! What another replica asks of this one's sessions: whoever asks any replica is answered for all of them.

use std::{sync::Arc, time::Duration};

use auth::token::TokenEnd;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::Full;
use serde_json::json;
use tokio::sync::Semaphore;
use tunnel::{
    exchange::{Counters, respond},
    transport::Incoming,
    wire::{
        close::StreamCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::ids::{ClusterKey, RequestId, lower_hex};

use crate::{
    aside::aside,
    core::Core,
    hop::ask::{ROLE, SESSIONS, SHOWN},
    sessions::{EndReason, Sessions, told::Wanted},
};

/// How long an answer may take to be read.
const DEADLINE: Duration = Duration::from_secs(30);
/// Characters of a key's thumbprint at most (RFC 7638 with SHA-256, in base64url).
const THUMBPRINT: usize = 43;
/// Lists of sessions that are in memory at once, each of up to 16 MiB. Another one waits; who asked waits no longer than
/// [`crate::hop::ask::DEADLINE`].
static LISTS: Semaphore = Semaphore::const_new(4);

/// Answers one question.
pub async fn answer(core: Arc<Core>, replica: Arc<str>, incoming: Incoming) {
    let Incoming { head, mut stream } = incoming;
    let head = match RequestHead::decode(head) {
        Ok(head) if head.role == ROLE => head,
        Ok(_) => return stream.send.reset(StreamCode::UnknownRole),
        Err(_) => return stream.send.reset(StreamCode::BadHead),
    };
    let target = String::from_utf8_lossy(&head.target);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let is_list = (path, &head.method) == (SESSIONS, &Method::GET);
    // Lists have turns, and are written on a thread of their own: one has up to 5,000 rows.
    let _turn = if is_list { LISTS.acquire().await.ok() } else { None };
    let (status, body) = if is_list {
        let (sessions, method) = (Arc::clone(&core.sessions), head.method.clone());
        let (path, query) = (path.to_owned(), query.to_owned());
        let written = aside(move || answered(&sessions, &method, &path, &query)).await;
        written.unwrap_or((StatusCode::INTERNAL_SERVER_ERROR, Bytes::new()))
    } else {
        answered(&core.sessions, &head.method, path, query)
    };
    tracing::debug!(%replica, path, status = status.as_u16(), "another replica's question answered");
    let head = ResponseHead { status, headers: HeaderMap::new(), refused_by: None };
    let counters = Counters::default();
    let answering = respond(&mut stream.send, &head, Full::new(body), &counters);
    // Who asked and does not read is not waited for.
    let _ = tokio::time::timeout(DEADLINE, answering).await;
}

fn answered(sessions: &Sessions, method: &Method, path: &str, query: &str) -> (StatusCode, Bytes) {
    let parameter = |name: &str| {
        let mut pairs = url::form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let nothing = |status| (status, Bytes::new());
    if let Some(id) = path.strip_prefix(SESSIONS).and_then(|rest| rest.strip_prefix('/')) {
        let session = RequestId::from_hex(id).and_then(|id| sessions.get(id));
        return match (session, method) {
            (None, _) => nothing(StatusCode::NOT_FOUND),
            (Some(session), &Method::GET) => (StatusCode::OK, json!(session.row()).to_string().into()),
            (Some(session), &Method::DELETE) => {
                session.end(EndReason::Operator);
                nothing(StatusCode::NO_CONTENT)
            }
            _ => nothing(StatusCode::METHOD_NOT_ALLOWED),
        };
    }
    match (path, method) {
        (SESSIONS, &Method::GET) => {
            let of = (parameter("issuer").unwrap_or_default(), parameter("subject").unwrap_or_default());
            let (cluster, user) = (parameter("cluster"), parameter("user"));
            let wanted = Wanted { cluster: cluster.as_deref(), user: user.as_deref() };
            let told = sessions.told(&wanted, &of.0, &of.1);
            (StatusCode::OK, json!(told).to_string().into())
        }
        (SHOWN, &Method::POST) => {
            let sign_in = parameter("sign_in").and_then(|text| lower_hex(text.as_bytes()));
            let cluster = parameter("cluster").and_then(|text| ClusterKey::from_hex(text.as_bytes()));
            let until = parameter("until").and_then(|text| text.parse().ok());
            let (Some(sign_in), Some(cluster), Some(until)) = (sign_in, cluster, until) else {
                return nothing(StatusCode::BAD_REQUEST);
            };
            // A replica of the version before names no key.
            let key = parameter("key").filter(|key| key.len() <= THUMBPRINT).map(Into::into);
            sessions.extend(sign_in, cluster, TokenEnd { until, key });
            nothing(StatusCode::NO_CONTENT)
        }
        _ => nothing(StatusCode::NOT_FOUND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn t12_a_replica_answers_what_it_is_asked_and_nothing_else() {
        let sessions = Sessions::new(Arc::new(Metrics::new()));
        let ask = |method: Method, target: &str| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let (status, body) = answered(&sessions, &method, path, query);
            (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
        };
        let none = r#"{"left_out":0,"rows":[]}"#.to_owned();
        assert_eq!(ask(Method::GET, "/v1/sessions?issuer=i&subject=s&cluster=c"), (200, none));
        let one = format!("{SESSIONS}/{}", RequestId([1; 16]));
        for method in [Method::GET, Method::DELETE, Method::PUT] {
            assert_eq!(ask(method, &one).0, 404);
        }
        let (sign_in, cluster) = ("0".repeat(32), "0".repeat(64));
        let shown = format!("{SHOWN}?sign_in={sign_in}&cluster={cluster}");
        for more in ["", "&key=of-this"] {
            assert_eq!(ask(Method::POST, &format!("{shown}&until=5{more}")).0, 204);
        }
        for wrong in [shown.as_str(), &format!("{shown}&until=x"), "/v1/shown?sign_in=0&until=5"] {
            assert_eq!(ask(Method::POST, wrong).0, 400, "{wrong}");
        }
        for (method, target) in
            [(Method::GET, SHOWN), (Method::POST, SESSIONS), (Method::GET, "/v1"), (Method::GET, "")]
        {
            assert_eq!(ask(method, target).0, 404, "{target}");
        }
    }
}
