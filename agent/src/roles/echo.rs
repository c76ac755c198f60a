//! Gives back what it gets: a probe through the whole path, and a target for measurements.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use tunnel::{
    exchange::{StreamBody, send_body},
    transport::Stream,
    wire::head::ResponseHead,
};

use super::{Entry, Role, Serves, Visit};
use crate::config::Deployment;

/// This role's name.
pub const NAME: &str = "echo";

/// In the list of roles.
pub const ENTRY: Entry =
    Entry { name: NAME, module: module_path!(), runs_in: Deployment::ALL, build: |_| Ok(Some(Arc::new(Echo))) };

/// Answers each stream with status 200 and the bytes that it receives. Holds no state.
pub struct Echo;

impl Role for Echo {
    fn serves(&self) -> Serves {
        Serves::Everybody
    }

    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Stream { mut send, recv, .. } = visit.stream;
            let head = ResponseHead { status: StatusCode::OK, headers: HeaderMap::new(), refused_by: None };
            let Ok(head) = head.encode() else { return };
            if send.send(head.freeze()).await.is_ok() {
                let (_, result) = send_body(&mut send, StreamBody::new(recv)).await;
                if let Err(err) = result {
                    tracing::debug!(error = %err, "an echo broke off");
                }
            }
        })
    }
}
