//! Who asks for a token, and whether they may: the apiserver says both.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::{GroupVersionKind, ObjectMeta},
};
use serde_json::Value;

use crate::roles::kubernetes::problem;

/// The audience of service-account tokens that ask here: one that was made for the apiserver, or for anybody else, is
/// nothing.
pub const AUDIENCE: &str = "towline.io/identity";
/// What has to be allowed, in the agents' namespace; the object's name is the audience that is asked for.
pub const GROUP: &str = "towline.io";
/// The resource in [`GROUP`] on which the right is needed.
pub const RESOURCE: &str = "identitytokens";
/// The verb on [`RESOURCE`] that is needed.
pub const VERB: &str = "create";

/// What helm writes on every object of a release, service accounts among them.
const RELEASE: &str = "meta.helm.sh/release-name";
/// The annotation with the namespace of the release that [`RELEASE`] names.
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// The longest name of an extension, which is that of its release.
const EXTENSION_CHARS: usize = 53;

/// A service account that the apiserver knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user name, `system:serviceaccount:<namespace>:<name>`.
    pub user: String,
    /// UID of the service account.
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

    /// The object id of this extension's identity, where they are a service account of its release in its namespace
    /// (docs/features.md E11); empty where it has no identity.
    fn of_extension<'a>(
        &'a self,
        caller: &'a Caller,
        extension: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>>;
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

    fn of_extension<'a>(
        &'a self,
        caller: &'a Caller,
        extension: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            let Some((namespace, account)) = caller.account().filter(|_| is_name(extension)) else { return Ok(None) };
            let kind = GroupVersionKind::gvk(GROUP, "v1alpha1", "ExtensionConfig");
            let api: Api<DynamicObject> = Api::default_namespaced_with(
                self.0.clone(),
                &ApiResource::from_gvk_with_plural(&kind, "extensionconfigs"),
            );
            let found = api.get_opt(extension).await;
            let found = found.map_err(|err| problem("whether there is such an extension", &err))?;
            let installed = found.filter(|found| installed_in(&found.data).as_deref() == Some(namespace));
            let Some(installed) = installed else { return Ok(None) };
            let api: Api<ServiceAccount> = Api::namespaced(self.0.clone(), namespace);
            let found = api.get_metadata_opt(account).await;
            let found = found.map_err(|err| problem("whose the service account is", &err))?;
            let is_its = found.is_some_and(|found| is_of_release(&found.metadata, namespace, extension));
            Ok(is_its.then(|| installed.data["spec"]["principalId"].as_str().unwrap_or_default().to_owned()))
        })
    }
}

impl Caller {
    /// Namespace and name.
    fn account(&self) -> Option<(&str, &str)> {
        self.user.strip_prefix("system:serviceaccount:")?.split_once(':')
    }
}

/// Nothing else becomes a part of a path.
pub fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= EXTENSION_CHARS && text.chars().all(is_part)
}

/// Where an extension is installed, as the extension-manager left it, unless it is on its way out.
fn installed_in(extension: &Value) -> Option<String> {
    let is_leaving = extension["spec"]["deleting"].as_bool().unwrap_or_default();
    let namespace = extension["status"]["record"]["installed"]["namespace"].as_str().filter(|_| !is_leaving)?;
    Some(namespace.to_owned())
}

/// Whether helm made it for that release. Who may write service accounts in the namespace may write these too; but they
/// may as well run a pod as the one that is there.
fn is_of_release(meta: &ObjectMeta, namespace: &str, release: &str) -> bool {
    let says = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    (says(RELEASE), says(RELEASE_NAMESPACE)) == (Some(release), Some(namespace))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn e11_service_accounts_of_the_release_in_its_own_namespace_alone_are_the_extensions() {
        let meta = |annotations: Value| serde_json::from_value(json!({"annotations": annotations})).unwrap();
        let of = |name: &str, namespace: &str| meta(json!({RELEASE: name, RELEASE_NAMESPACE: namespace}));
        assert!(is_of_release(&of("shop", "apps"), "apps", "shop"));
        assert!(!is_of_release(&of("shop", "other"), "apps", "shop"), "of a release of that name elsewhere");
        assert!(!is_of_release(&of("other", "apps"), "apps", "shop"));
        assert!(!is_of_release(&meta(json!({})), "apps", "shop"), "the namespace's default account");
        let extension = |deleting: bool, installed: Value| {
            installed_in(&json!({"spec": {"deleting": deleting}, "status": {"record": {"installed": installed}}}))
        };
        assert_eq!(extension(false, json!({"namespace": "apps"})).as_deref(), Some("apps"));
        assert_eq!(extension(true, json!({"namespace": "apps"})), None);
        assert_eq!(extension(false, Value::Null), None);
        for bad in ["", "..", "a/b", "A", "a%2Fb", &"a".repeat(54)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

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
