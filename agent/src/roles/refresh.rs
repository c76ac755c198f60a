//! A principal shows a newer token of the same sign-in, and its open sessions live on with that.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    Role, Visit, answer_json,
    kube_aad_proxy::{
        Refusal, admit,
        authenticate::{Authenticated, Authenticator},
        refuse,
    },
    sessions::Sessions,
};

/// The role.
pub struct Refresh {
    authenticator: Arc<Authenticator>,
    sessions: Arc<Sessions>,
}

impl Refresh {
    /// Extends `sessions`.
    pub fn new(authenticator: Arc<Authenticator>, sessions: Arc<Sessions>) -> Self {
        Self { authenticator, sessions }
    }
}

impl Role for Refresh {
    fn is_for_users(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "refresh"
    }

    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let request_id = visit.head.request_id;
            let judged = async {
                let credential = admit::admit(visit.head)?.credential;
                match self.authenticator.authenticate(credential).await? {
                    Authenticated::User(identity) => Ok(identity),
                    Authenticated::Unjudged(_) => {
                        Err(Refusal::unauthorized("authenticate", "the token is of no configured issuer"))
                    }
                }
            };
            match judged.await {
                Ok(identity) => {
                    let extended = self.sessions.shown(&identity) > 0;
                    let expires = OffsetDateTime::from(identity.expires).format(&Rfc3339).ok();
                    let answer = json!({ "user": identity.username, "expires": expires, "extended": extended });
                    answer_json(visit.stream.send, StatusCode::OK, &answer).await;
                }
                Err(refusal) => refuse(visit.stream.send, &refusal, request_id).await,
            }
        })
    }
}
