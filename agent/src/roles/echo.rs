//! Gives back what it gets: a probe through the whole path, and a target for measurements.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use tunnel::{
    exchange::{StreamBody, send_body},
    transport::Stream,
    wire::head::ResponseHead,
};

use super::{Role, Visit};

/// The role.
pub struct Echo;

impl Role for Echo {
    fn name(&self) -> &'static str {
        "echo"
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
