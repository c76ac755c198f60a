//! What the agent makes of a token and why not: the answer to `towline whoami`, which a 401 keeps to itself.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use types::instants::rfc3339;

use super::{
    Entry, Role, Serves, Visit, answer_json,
    kube_aad_proxy::{
        admit,
        authenticate::{Authenticator, is_unjudged},
        impersonate::{Names, Subject},
        users::Users,
    },
};
use crate::config::Deployment;

/// This role's name.
pub const NAME: &str = tunnel::wire::roles::WHOAMI;

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ClusterconnectAgent],
    build: |parts| {
        let whoami = |users: &Users| Whoami::new(users.authenticator.clone(), users.names.clone());
        Ok(parts.users.as_ref().map(|users| Arc::new(whoami(users)) as Arc<dyn Role>))
    },
};

/// Judges the caller's token as the proxy does, and answers with the result as JSON.
pub struct Whoami {
    authenticator: Arc<Authenticator>,
    names: Names,
}

impl Whoami {
    /// Judges as the proxy does.
    pub fn new(authenticator: Arc<Authenticator>, names: Names) -> Self {
        Self { authenticator, names }
    }

    async fn judge(&self, head: tunnel::wire::head::RequestHead) -> Value {
        let cluster = self.authenticator.cluster().as_str().to_owned();
        let answer = |kind: &str, accepted: bool, why: Option<String>| json!({ "by": "agent", "cluster": cluster, "credential": kind, "accepted": accepted, "why": why });
        let credential = match admit::admit(head) {
            Ok(admitted) => admitted.credential,
            Err(refusal) => return answer("none", false, Some(refusal.detail.unwrap_or(refusal.message))),
        };
        let Some(credential) = credential else { return answer("none", false, Some("no credential".to_owned())) };
        match self.authenticator.judge(&credential).await {
            Ok(identity) => {
                let refused = Subject::of(&identity, &self.names).err().map(|refusal| refusal.message);
                let mut value = answer("issuer", refused.is_none(), refused);
                value["issuer"] = json!(identity.issuer);
                value["subject"] = json!(identity.subject);
                value["user"] = json!(identity.username);
                value["uid"] = json!(identity.uid);
                value["groups"] = json!(identity.groups);
                value["extra"] = json!(identity.extra);
                value["expires"] = rfc3339(identity.expires).into();
                value
            }
            Err(err) if credential.scheme == admit::Scheme::Bearer && is_unjudged(&err) => answer(
                "service-account",
                true,
                Some(format!("passed to the apiserver unchanged: {}", crate::chain(&err))),
            ),
            Err(err) => answer("issuer", false, Some(crate::chain(&err))),
        }
    }
}

impl Role for Whoami {
    fn serves(&self) -> Serves {
        Serves::Users
    }

    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let answer = self.judge(visit.head).await;
            answer_json(visit.stream.send, StatusCode::OK, &answer).await;
        })
    }
}
