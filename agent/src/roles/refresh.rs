//! A principal shows a newer token of the same sign-in, and its open sessions live on with that.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::json;
use types::instants::rfc3339;

use super::{
    Entry, Role, Serves, Visit, answer_json,
    kube_aad_proxy::{
        Refusal, admit,
        authenticate::{Authenticated, Authenticator},
        refuse,
        users::Users,
    },
    sessions::Sessions,
};
use crate::config::Deployment;

/// This role's name.
pub const NAME: &str = tunnel::wire::roles::REFRESH;

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ClusterconnectAgent],
    build: |parts| {
        let refresh = |users: &Users| Refresh::new(users.authenticator.clone(), users.sessions.clone());
        Ok(parts.users.as_ref().map(|users| Arc::new(refresh(users)) as Arc<dyn Role>))
    },
};

/// Extends a principal's open sessions with a newer token of the same sign-in.
pub struct Refresh {
    authenticator: Arc<Authenticator>,
    sessions: Arc<Sessions>,
}

impl Refresh {
    /// A role that extends `sessions` with tokens that `authenticator` accepts.
    pub fn new(authenticator: Arc<Authenticator>, sessions: Arc<Sessions>) -> Self {
        Self { authenticator, sessions }
    }
}

impl Role for Refresh {
    fn serves(&self) -> Serves {
        Serves::Users
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
                    let answer = json!({ "user": identity.username, "expires": rfc3339(identity.expires), "extended": extended });
                    answer_json(visit.stream.send, StatusCode::OK, &answer).await;
                }
                Err(refusal) => refuse(visit.stream.send, &refusal, request_id).await,
            }
        })
    }
}
