//! What the user may do in the cluster, asked before anything is done (docs/features.md I3).

use anyhow::Context;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

use super::{
    Error, Kubernetes, installed,
    place::{self, RBAC},
};
use crate::manifests::CLUSTER_ADMIN;

/// Something that has to be allowed.
#[derive(Debug, Clone)]
pub struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    /// Empty for none.
    subresource: &'static str,
    /// The one object that it is about; empty for all.
    name: &'static str,
    namespace: Option<String>,
}

/// Of nothing, in all namespaces.
const EVERYWHERE: Right = Right { verb: "", group: "", resource: "", subresource: "", name: "", namespace: None };

impl Right {
    /// What it is about, without the verb, for people.
    fn object(&self) -> String {
        let part = |before: &str, text: &str| if text.is_empty() { String::new() } else { format!("{before}{text}") };
        format!(
            "{}{}{}{}{}",
            self.resource,
            part("/", self.subresource),
            part(".", self.group),
            part(" ", self.name),
            part(" in namespace ", self.namespace.as_deref().unwrap_or_default())
        )
    }
}

/// Rights for people: the verbs of one kind of object together.
pub fn listed(rights: &[Right]) -> String {
    let mut grouped: Vec<(String, Vec<&str>)> = Vec::new();
    for right in rights {
        let object = right.object();
        match grouped.iter_mut().find(|(known, _)| *known == object) {
            Some((_, verbs)) => verbs.push(right.verb),
            None => grouped.push((object, vec![right.verb])),
        }
    }
    let one = |(object, verbs): &(String, Vec<&str>)| format!("{} {object}", verbs.join(", "));
    grouped.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What it takes to see whether there are agents, and where.
pub fn to_look() -> Vec<Right> {
    [("list", place::CONFIG_MAP), ("list", place::CLUSTER_ROLE_BINDING), ("get", place::NAMESPACE)]
        .map(|(verb, kind)| Right { verb, group: kind.group, resource: kind.plural, ..EVERYWHERE })
        .to_vec()
}

/// All that installing the agents in a namespace takes, and their removal. RBAC lets nobody give rights that they do
/// not have: impersonation is one of them.
pub fn to_install(namespace: &str, makes_namespace: bool) -> Vec<Right> {
    let mut needed = Vec::new();
    let mut put = |verb, kind: &place::Kind| {
        let namespace = kind.namespaced.then(|| namespace.to_owned());
        needed.push(Right { verb, group: kind.group, resource: kind.plural, namespace, ..EVERYWHERE });
    };
    for kind in installed::kinds() {
        ["get", "create", "patch", "delete"].into_iter().for_each(|verb| put(verb, kind));
    }
    if makes_namespace {
        ["create", "patch", "delete"].into_iter().for_each(|verb| put(verb, &place::NAMESPACE));
    }
    put("list", &place::POD);
    // Runs take turns by one.
    ["get", "create", "patch", "delete"].into_iter().for_each(|verb| put(verb, &place::LEASE));
    for resource in ["users", "groups", "serviceaccounts"] {
        needed.push(Right { verb: "impersonate", resource, ..EVERYWHERE });
    }
    for (group, resource) in
        [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")]
    {
        needed.push(Right { verb: "create", group, resource, ..EVERYWHERE });
    }
    needed
}

/// What extensions take beside that: their agent becomes an administrator.
pub fn to_make_an_administrator() -> Vec<Right> {
    vec![Right { verb: "bind", group: RBAC, resource: "clusterroles", name: CLUSTER_ADMIN, ..EVERYWHERE }]
}

/// What the check of the network takes.
pub fn to_run_a_job(namespace: &str) -> Vec<Right> {
    let right = |verb, kind: &place::Kind, subresource| Right {
        verb,
        group: kind.group,
        resource: kind.plural,
        subresource,
        namespace: Some(namespace.to_owned()),
        ..EVERYWHERE
    };
    let mut needed: Vec<Right> =
        ["get", "create", "patch", "delete"].into_iter().map(|verb| right(verb, &place::JOB, "")).collect();
    // What it says is read there.
    needed.push(right("get", &place::POD, "log"));
    needed
}

/// What the apiserver's authorizers said of somebody whom none of them allows anything.
pub struct Opinions {
    /// Reasons that the authorizers gave; empty where none did.
    pub reason: String,
    /// Why some of them could not be asked; empty where all could.
    pub error: String,
}

impl Kubernetes {
    /// Has the apiserver ask all of its authorizers about a user whom nobody knows, and who asks for what nobody gives.
    pub async fn opinions_of(&self, user: &str) -> Result<Opinions, Error> {
        let attributes = NonResourceAttributes { path: Some("/towline-troubleshoot".into()), verb: Some("get".into()) };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        Ok(Opinions { reason: status.reason.unwrap_or_default(), error: status.evaluation_error.unwrap_or_default() })
    }

    /// What the apiserver says why a token is nobody's, after it has asked all of its authenticators.
    pub async fn refusal_of(&self, token: &str) -> Result<String, Error> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api = Api::<TokenReview>::all(self.client.clone());
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        Ok(status.error.unwrap_or_default())
    }

    /// Those of `needed` that the user has not.
    pub async fn missing_rights(&self, needed: Vec<Right>) -> anyhow::Result<Vec<Right>> {
        let api = Api::<SelfSubjectAccessReview>::all(self.client.clone());
        let mut missing = Vec::new();
        for right in needed {
            let attributes = ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                group: Some(right.group.to_owned()),
                resource: Some(right.resource.to_owned()),
                subresource: Some(right.subresource.to_owned()).filter(|name| !name.is_empty()),
                name: Some(right.name.to_owned()).filter(|name| !name.is_empty()),
                namespace: right.namespace.clone(),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let answer = api.create(&PostParams::default(), &review).await.map_err(Error::from);
            let answer = answer.context("cannot ask what may be done here")?;
            if !answer.status.is_some_and(|status| status.allowed) {
                missing.push(right);
            }
        }
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_told_by_the_kind_of_object() {
        let right = |verb, namespace: Option<&str>| Right {
            verb,
            group: "apps",
            resource: "deployments",
            namespace: namespace.map(str::to_owned),
            ..EVERYWHERE
        };
        let missing = [right("get", Some("towline")), right("patch", Some("towline")), right("get", None)];
        assert_eq!(listed(&missing), "get, patch deployments.apps in namespace towline; get deployments.apps");
        let sub = Right { verb: "get", resource: "pods", subresource: "log", name: "p", ..EVERYWHERE };
        assert_eq!(listed(&[sub]), "get pods/log p");
        assert_eq!(listed(&to_install("towline", true)).matches("secrets in namespace towline").count(), 1);
    }
}
