//! Who asks for a token, and whether they may: the apiserver says both.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use crate::roles::kubernetes::problem;

/// The audience of service-account tokens that ask here: one that was made for the apiserver, or for anybody else, is
/// nothing.
pub const AUDIENCE: &str = "towline.io/identity";
/// What has to be allowed, in the agents' namespace; the object's name is the audience that is asked for.
pub const GROUP: &str = "towline.io";
/// See [`GROUP`].
pub const RESOURCE: &str = "identitytokens";
/// See [`GROUP`].
pub const VERB: &str = "create";

/// A service account that the apiserver knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// `system:serviceaccount:<namespace>:<name>`.
    pub user: String,
    /// Its UID.
    pub uid: Option<String>,
    /// Groups of the service account, as the apiserver reports them.
    pub groups: Vec<String>,
    /// What else a token says, such as its pod.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Asks the apiserver; `Err` is why it could not be asked, for people.
pub trait Reviews: Send + Sync + 'static {
    /// Whose token that is; none for one that is nobody's, or of another audience, or no service account's.
    fn who<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, String>>;

    /// Whether they may have tokens for that audience.
    fn may<'a>(&'a self, caller: &'a Caller, audience: &'a str) -> BoxFuture<'a, Result<bool, String>>;
}

/// The cluster's own.
pub struct ClusterReviews(pub Client);

impl Reviews for ClusterReviews {
    fn who<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, String>> {
        Box::pin(async move {
            let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token: Some(token.to_owned()) };
            let review = TokenReview { spec, ..TokenReview::default() };
            let api = Api::<TokenReview>::all(self.0.clone());
            let answer = api.create(&PostParams::default(), &review).await;
            Ok(caller(answer.map_err(|err| problem("who asks (TokenReview)", &err))?))
        })
    }

    fn may<'a>(&'a self, caller: &'a Caller, audience: &'a str) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let attributes = ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(RESOURCE.to_owned()),
                verb: Some(VERB.to_owned()),
                namespace: Some(self.0.default_namespace().to_owned()),
                name: Some(audience.to_owned()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(caller.user.clone()),
                uid: caller.uid.clone(),
                groups: Some(caller.groups.clone()),
                extra: Some(caller.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let api = Api::<SubjectAccessReview>::all(self.0.clone());
            let answer = api.create(&PostParams::default(), &review).await;
            let status = answer.map_err(|err| problem("who may ask (SubjectAccessReview)", &err))?.status;
            Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
        })
    }
}

/// An apiserver that does not know of audiences answers without any: its yes is none for us.
fn caller(review: TokenReview) -> Option<Caller> {
    let status = review.status.filter(|status| status.authenticated == Some(true) && status.error.is_none())?;
    let ours = status.audiences.is_some_and(|audiences| audiences.iter().any(|audience| audience == AUDIENCE));
    let user = status.user.filter(|_| ours)?;
    let name = user.username.filter(|name| name.starts_with("system:serviceaccount:"))?;
    Some(Caller {
        user: name,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn r9_only_a_service_accounts_token_of_our_audience_says_who_asks() {
        let of = |status: Value| caller(serde_json::from_value(json!({"spec": {}, "status": status})).unwrap());
        let user = json!({"username": "system:serviceaccount:apps:backup", "uid": "u", "groups": ["g"]});
        let good = json!({"authenticated": true, "audiences": [AUDIENCE], "user": user});
        assert_eq!(of(good.clone()).unwrap().user, "system:serviceaccount:apps:backup");
        for (key, value) in [
            ("authenticated", json!(false)),
            ("audiences", json!([])),
            ("audiences", Value::Null),
            ("audiences", json!(["https://kubernetes.default.svc"])),
            ("user", json!({"username": "jane"})),
            ("error", json!("expired")),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(of(bad.clone()).is_none(), "{bad}");
        }
    }
}
