//! The decision about one Kubernetes call by roles and assignments (feature Z9), before it is impersonated. Pure.
//!
//! What is allowed is not given to the caller for good: the call goes to the apiserver with one group for each
//! Kubernetes verb that it needs ([`verb_group`]), and a ClusterRole gives that group that verb and nothing else. So
//! whatever the apiserver checks besides (that an update may create, that a role is not made larger than its author,
//! that a signer may be approved) still says no, unless the assignments say yes to that too. What no assignment allows
//! goes on without such a group, and the cluster's own RBAC decides, as with the authorizer chain `Node,RBAC,Webhook`
//! of Arc.

use http::Method;
use types::ids::ClusterId;

use super::{
    Plane, Policy, Scope,
    kubernetes::{CONNECTS, Target, data_action, is_discovery},
};
use crate::kubernetes::RequestInfo;

/// The prefix of names that only the agent may give to a request.
pub const RESERVED_PREFIX: &str = "towline.io:";

/// Kubernetes verbs that a call can be given. Each has a ClusterRole and a binding of its own in the agent's chart.
pub const VERBS: [&str; 13] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "bind",
    "escalate",
    "approve",
    "sign",
    "attest",
];

const RBAC: &str = "rbac.authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

/// The group that carries one verb.
pub fn verb_group(verb: &str) -> String {
    format!("{RESERVED_PREFIX}rbac:{verb}")
}

/// Who asks, and by what it is decided.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Roles and assignments.
    pub policy: &'a Policy,
    /// Somebody and their groups ([`super::principal::principals`]).
    pub principals: &'a [String],
    /// The cluster that the request is for.
    pub cluster: &'a ClusterId,
    /// Seconds since 1970.
    pub now: i64,
}

/// The decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An assignment allows it; the verbs that it needs in the cluster.
    Allowed(Vec<&'static str>),
    /// No assignment says anything: the cluster's own RBAC decides.
    NoOpinion,
}

/// Whether a request can be one that only reads: GET or HEAD (the safe methods of RFC 9110 §9.2.1 that Kubernetes has),
/// and without an upgrade of its connection. The verb alone does not say so: it is `get` for a WebSocket into a
/// machine, and `watch` for any method below `/api/v1/watch/`.
pub fn is_safe(method: &Method, upgrade: bool) -> bool {
    !upgrade && matches!(*method, Method::GET | Method::HEAD)
}

impl Asking<'_> {
    /// Decides a call: `info`, `path` (percent-decoded, without query) and [`is_safe`] of the same request.
    pub fn call(&self, info: &RequestInfo, path: &str, safe: bool) -> Verdict {
        if !info.is_resource {
            let verb = if info.verb == "head" { "get" } else { &*info.verb };
            let allowed = !is_discovery(verb, path)
                && verb == "get"
                && safe
                && self.may(verb, Target::Path(path), &Scope::cluster(self.cluster));
            return if allowed { Verdict::Allowed(vec!["get"]) } else { Verdict::NoOpinion };
        }
        let Some(verb) = VERBS[..8].iter().find(|verb| **verb == info.verb) else { return Verdict::NoOpinion };
        let target = Target::Resource {
            group: &info.api_group,
            resource: &info.resource,
            subresource: &info.subresource,
            safe: safe && !info.below_subresource,
        };
        let scope = if info.namespace.is_empty() {
            Scope::cluster(self.cluster)
        } else {
            Scope::namespace(self.cluster, &info.namespace)
        };
        if !self.may(verb, target, &scope) {
            return Verdict::NoOpinion;
        }
        // What needs the right to write because it may do more than read may still do no more than read: an apiserver
        // answers a `get` that asks for an upgrade in vain with the object. So it needs both rights.
        let reads = matches!(*verb, "get" | "list" | "watch") && !CONNECTS.contains(&&*info.subresource);
        let only_reads = safe && info.subresource.is_empty();
        if reads && !only_reads && !self.may_on(verb, &info.api_group, &info.resource, &scope) {
            return Verdict::NoOpinion;
        }
        let mut verbs = vec![*verb];
        // An update may create what is not there, and a websocket into a pod asks for what SPDY creates: the same
        // action.
        if matches!(*verb, "update" | "patch") || (*verb == "get" && CONNECTS.contains(&&*info.subresource)) {
            verbs.push("create");
        }
        let writes = matches!(*verb, "create" | "update" | "patch");
        let also = |verbs: &[&'static str], on: &[&str], group: &str| -> Vec<&'static str> {
            verbs.iter().copied().filter(|verb| on.iter().all(|on| self.may_on(verb, group, on, &scope))).collect()
        };
        let further: Vec<&'static str> = match (&*info.api_group, &*info.resource) {
            // Who may write every role by one verb holds that verb on everything in the apiserver's eyes, and could
            // pass it on: so it takes the right to, whatever is in the role.
            (RBAC, "roles" | "clusterroles") if writes => match also(&["escalate"], &[&info.resource], RBAC) {
                none if none.is_empty() => return Verdict::NoOpinion,
                escalate => escalate,
            },
            (RBAC, "rolebindings" | "clusterrolebindings") if writes => {
                match also(&["bind"], &["roles", "clusterroles"], RBAC) {
                    none if none.is_empty() => return Verdict::NoOpinion,
                    bind => bind,
                }
            }
            // The groups of whoever asks are written into a certificate signing request (and on OpenShift into others),
            // and a controller decides by them later: a verb on everything would be there for good.
            (CERTIFICATES, _) if writes => match also(&["approve", "sign", "attest"], &["signers"], CERTIFICATES) {
                some if some.contains(&"approve") => some,
                _ => return Verdict::NoOpinion,
            },
            ("authorization.openshift.io" | "template.openshift.io", _) if writes => return Verdict::NoOpinion,
            _ => Vec::new(),
        };
        verbs.extend(further);
        Verdict::Allowed(verbs)
    }

    /// Decides what an apiserver asks by a SubjectAccessReview: `info`, and for what is no resource its `path`. A verb of
    /// a call is decided as [`Self::call`] decides the call itself, so that the answer is the same on either way; the
    /// apiserver asks for the verbs besides it (`escalate`, `bind`, `sign`) by further reviews. Of `impersonate` this says
    /// only whether a role names the kind: which names may be asked for is for the caller to say.
    ///
    /// A review does not say whether a `get` is an upgrade. It is taken for one that only reads, as the cluster's own
    /// RBAC takes it; subresources that connect need the right to write all the same ([`data_action`]).
    ///
    /// `*` is what `kubectl auth can-i '*' pods` asks: every verb of the resource. Every resource (`'*' '*'`) may only be
    /// had by a role that leaves nothing out.
    pub fn review(&self, info: &RequestInfo, path: &str) -> bool {
        if info.is_resource && info.resource == "*" {
            return self.policy.decide_everything(self.principals, &self.scope(info), self.now);
        }
        if info.is_resource && info.verb == "*" {
            return VERBS.iter().all(|verb| self.may_do(verb, info));
        }
        if !info.is_resource || VERBS[..8].iter().any(|verb| **verb == info.verb) {
            return self.call(info, path, true) != Verdict::NoOpinion;
        }
        self.may_do(&info.verb, info)
    }

    fn may_do(&self, verb: &str, info: &RequestInfo) -> bool {
        let subresource = if verb == "impersonate" { "" } else { &*info.subresource };
        let target = Target::Resource { group: &info.api_group, resource: &info.resource, subresource, safe: true };
        self.may(verb, target, &self.scope(info))
    }

    fn scope(&self, info: &RequestInfo) -> Scope {
        match &*info.namespace {
            "" => Scope::cluster(self.cluster),
            namespace => Scope::namespace(self.cluster, namespace),
        }
    }

    /// Whether a part of what `kubectl --as` asks for may be impersonated: `resource` is `users`, `groups`,
    /// `serviceaccounts` (in a namespace), `uids` or `userextras`.
    pub fn impersonate(&self, group: &str, resource: &str, namespace: Option<&str>) -> bool {
        let scope = namespace.map_or_else(|| Scope::cluster(self.cluster), |name| Scope::namespace(self.cluster, name));
        self.may_on("impersonate", group, resource, &scope)
    }

    fn may_on(&self, verb: &str, group: &str, resource: &str, scope: &Scope) -> bool {
        self.may(verb, Target::Resource { group, resource, subresource: "", safe: true }, scope)
    }

    fn may(&self, verb: &str, target: Target<'_>, scope: &Scope) -> bool {
        data_action(verb, target)
            .is_some_and(|action| self.policy.decide(self.principals, Plane::Data, &action, scope, self.now).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rbac::{
        Assignment, Role, Window,
        principal::user_key,
        role::{RawPermission, built_in},
    };

    const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

    fn policy(of: &[(&str, &str)]) -> Policy {
        let role = |name: &str| {
            built_in().iter().find(|role| role.name == name).map_or_else(
                || {
                    let data_actions = name
                        .split_whitespace()
                        .map(|a| format!("Microsoft.Kubernetes/connectedClusters/{a}"))
                        .collect();
                    Arc::new(Role::new("r", &[RawPermission { data_actions, ..RawPermission::default() }]).unwrap())
                },
                |role| Arc::clone(&role.role),
            )
        };
        let assignment = |(at, (name, scope)): (usize, &(&str, &str))| Assignment {
            id: at.to_string().into(),
            principal: user_key("ann").into(),
            scope: format!("{CLUSTER}{scope}").parse().unwrap(),
            role: role(name),
            window: Window::default(),
        };
        of.iter().enumerate().map(assignment).collect()
    }

    fn decide(policy: &Policy, method: &Method, target: &str, upgrade: bool) -> Verdict {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        let info = RequestInfo::parse(method, path, query);
        let cluster = CLUSTER.parse().unwrap();
        let principals = [user_key("ann")];
        Asking { policy, principals: &principals, cluster: &cluster, now: 0 }.call(
            &info,
            path,
            is_safe(method, upgrade),
        )
    }

    fn verbs(policy: &Policy, method: &Method, target: &str) -> String {
        verbs_of(decide(policy, method, target, false))
    }

    fn verbs_of(verdict: Verdict) -> String {
        match verdict {
            Verdict::Allowed(verbs) => verbs.join(" "),
            Verdict::NoOpinion => "-".to_owned(),
        }
    }

    #[test]
    fn z9_a_viewer_of_a_namespace_reads_there_and_nowhere_else() {
        let policy = policy(&[("Azure Arc Kubernetes Viewer", "/namespaces/dev")]);
        let (get, post) = (Method::GET, Method::POST);
        for (method, target, expected) in [
            (&get, "/api/v1/namespaces/dev/pods", "list"),
            (&get, "/api/v1/namespaces/dev/pods?watch=1", "watch"),
            (&get, "/api/v1/namespaces/dev/pods/p", "get"),
            (&get, "/apis/apps/v1/namespaces/dev/deployments", "list"),
            (&get, "/api/v1/namespaces/dev/secrets", "-"),
            (&get, "/api/v1/namespaces/other/pods", "-"),
            (&get, "/api/v1/namespaces/DEV/pods", "-"),
            (&get, "/api/v1/pods", "-"),
            (&post, "/api/v1/namespaces/dev/pods", "-"),
            (&get, "/api/v1/namespaces/dev/pods/p/exec?command=sh", "-"),
            (&post, "/api/v1/namespaces/dev/pods/p/exec?command=sh", "-"),
            (&get, "/api/v1/namespaces/dev/services/s/proxy/", "-"),
            (&get, "/api", "-"),
            (&get, "/metrics", "-"),
        ] {
            assert_eq!(verbs(&policy, method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn upgrade_is_not_allowed_by_the_right_to_read() {
        let reader = policy(&[("*/read", "")]);
        let writer = policy(&[("*/write", "")]);
        let both = policy(&[("*/read */write", "")]);
        let kubevirt = "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/x";
        for (target, read, read_by_upgrade, both_by_upgrade) in [
            (format!("{kubevirt}/console"), "-", "-", "get"),
            (kubevirt.to_owned(), "get", "-", "get"),
            (format!("{kubevirt}/status"), "get", "-", "get"),
            (format!("{kubevirt}/status/console"), "-", "-", "get"),
            ("/api/v1/namespaces/n/pods/p/log".to_owned(), "get", "-", "get"),
            ("/api/v1/namespaces/n/pods/p/log/x".to_owned(), "-", "-", "get"),
            ("/api/v1/namespaces/n/pods/p/attach".to_owned(), "-", "-", "get create"),
            ("/api/v1/namespaces/n/services/s/proxy/a/b".to_owned(), "-", "-", "get create"),
            ("/api/v1/namespaces/n/pods?watch=1".to_owned(), "watch", "-", "watch"),
            ("/metrics".to_owned(), "get", "-", "-"),
        ] {
            let decided = |policy, upgrade| verbs_of(decide(policy, &Method::GET, &target, upgrade));
            assert_eq!(decided(&reader, false), read, "{target}");
            assert_eq!(decided(&reader, true), read_by_upgrade, "{target}, upgraded");
            assert_eq!(decided(&both, true), both_by_upgrade, "{target}, upgraded by who may read and write");
            // Without the upgrade that was asked for, the apiserver answers with the object.
            let write_by_upgrade = if both_by_upgrade.contains("create") { both_by_upgrade } else { "-" };
            assert_eq!(decided(&writer, true), write_by_upgrade, "{target}, upgraded by who may only write");
        }
        let secret = "/api/v1/namespaces/n/secrets/s";
        let all_but_secrets = RawPermission {
            data_actions: vec!["Microsoft.Kubernetes/connectedClusters/*".to_owned()],
            not_data_actions: vec!["Microsoft.Kubernetes/connectedClusters/secrets/read".to_owned()],
            ..RawPermission::default()
        };
        let no_secrets: Policy = std::iter::once(Assignment {
            id: "0".into(),
            principal: user_key("ann").into(),
            scope: CLUSTER.parse().unwrap(),
            role: Arc::new(Role::new("r", &[all_but_secrets]).unwrap()),
            window: Window::default(),
        })
        .collect();
        assert_eq!(verbs_of(decide(&no_secrets, &Method::GET, secret, false)), "-");
        assert_eq!(verbs_of(decide(&no_secrets, &Method::GET, secret, true)), "-");
        // Its verb is `watch`.
        let watch = "/apis/example.com/v1/watch/namespaces/n/widgets/w";
        assert_eq!(verbs(&reader, &Method::GET, watch), "watch");
        assert_eq!(verbs(&reader, &Method::POST, watch), "-");
    }

    #[test]
    fn z9_what_is_allowed_comes_with_the_verbs_that_it_needs_and_no_more() {
        let admin = policy(&[("Azure Arc Kubernetes Cluster Admin", "")]);
        let (get, put, patch, post) = (Method::GET, Method::PUT, Method::PATCH, Method::POST);
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        for (method, target, expected) in [
            (&put, "/api/v1/namespaces/n/configmaps/c".to_owned(), "update create"),
            (&patch, "/api/v1/namespaces/n/configmaps/c".to_owned(), "patch create"),
            (&get, "/api/v1/namespaces/n/pods/p/exec".to_owned(), "get create"),
            (&post, "/api/v1/namespaces/n/pods/p/exec".to_owned(), "create"),
            (&Method::DELETE, "/api/v1/namespaces/n/pods".to_owned(), "deletecollection"),
            (&post, format!("{rbac}/clusterroles"), "create escalate"),
            (&put, format!("{rbac}/namespaces/n/rolebindings/r"), "update create bind"),
            (&Method::DELETE, format!("{rbac}/clusterrolebindings/r"), "delete"),
            (
                &put,
                "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval".to_owned(),
                "update create approve sign attest",
            ),
            (&get, "/metrics".to_owned(), "get"),
            (&post, "/metrics".to_owned(), "-"),
            (&Method::OPTIONS, "/api/v1/pods".to_owned(), "-"),
            (&get, "/api/v1/proxy/nodes/n/x".to_owned(), "-"),
        ] {
            assert_eq!(verbs(&admin, method, &target), expected, "{method} {target}");
        }
    }

    /// A group that may create everything would else let its bearer create a role that creates everything.
    #[test]
    fn z9_who_writes_roles_passes_on_nothing_without_the_right_to() {
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/n";
        let writer = policy(&[("rbac.authorization.k8s.io/roles/write rbac.authorization.k8s.io/rolebindings/*", "")]);
        assert_eq!(verbs(&writer, &Method::POST, &format!("{rbac}/roles")), "-");
        assert_eq!(verbs(&writer, &Method::POST, &format!("{rbac}/rolebindings")), "-");
        assert_eq!(verbs(&writer, &Method::DELETE, &format!("{rbac}/rolebindings/r")), "delete");
        let binder =
            policy(&[("rbac.authorization.k8s.io/rolebindings/write rbac.authorization.k8s.io/roles/bind/action", "")]);
        assert_eq!(verbs(&binder, &Method::POST, &format!("{rbac}/rolebindings")), "-", "cluster roles too");
    }

    /// kube-controller-manager asks whether the groups in a request for a certificate may create one of a node.
    #[test]
    fn z9_what_keeps_its_authors_groups_is_not_written_with_these() {
        let csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let writer = policy(&[("certificates.k8s.io/certificatesigningrequests/*", "")]);
        assert_eq!(verbs(&writer, &Method::POST, csrs), "-");
        assert_eq!(verbs(&writer, &Method::GET, csrs), "list");
        let admin = policy(&[("Azure Arc Kubernetes Cluster Admin", "")]);
        assert_eq!(verbs(&admin, &Method::POST, csrs), "create approve sign attest");
        for resource in ["authorization.openshift.io/v1/rolebindings", "template.openshift.io/v1/templateinstances"] {
            assert_eq!(verbs(&admin, &Method::POST, &format!("/apis/{resource}")), "-", "{resource}");
        }
    }

    #[test]
    fn z1_reviews_are_decided_as_the_calls_themselves() {
        let viewer = policy(&[("Azure Arc Kubernetes Viewer", "/namespaces/dev")]);
        let admin = policy(&[("Azure Arc Kubernetes Cluster Admin", "")]);
        let may = |policy: &Policy, verb: &str, group: &str, resource: &str, namespace: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let info = RequestInfo {
                verb: verb.to_owned().into(),
                is_resource: true,
                api_group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                ..RequestInfo::default()
            };
            let cluster = CLUSTER.parse().unwrap();
            let principals = [user_key("ann")];
            Asking { policy, principals: &principals, cluster: &cluster, now: 0 }.review(&info, "")
        };
        for (verb, group, resource, namespace, viewed, administered) in [
            ("list", "", "pods", "dev", true, true),
            ("get", "", "pods/log", "dev", true, true),
            ("get", "", "pods/exec", "dev", false, true),
            ("create", "", "pods/exec", "dev", false, true),
            ("get", "", "secrets", "dev", false, true),
            ("list", "", "pods", "", false, true),
            ("list", "example.com", "widgets", "dev", false, true),
            ("impersonate", "", "users", "", false, true),
            ("impersonate", "authentication.k8s.io", "userextras/scopes", "", false, true),
            ("escalate", RBAC, "clusterroles", "", false, true),
            ("bind", RBAC, "clusterroles", "", false, true),
            ("approve", CERTIFICATES, "signers", "", false, true),
            ("use", "policy", "podsecuritypolicies", "", false, true),
            ("*", "", "pods", "dev", false, true),
            ("*", "", "pods/exec", "dev", false, true),
            ("list", "", "*", "dev", false, true),
            ("*", "*", "*", "", false, true),
            ("*", "*", "pods", "", false, false),
            ("proxy", "", "nodes", "", false, false),
        ] {
            assert_eq!(may(&viewer, verb, group, resource, namespace), viewed, "viewer: {verb} {group} {resource}");
            assert_eq!(may(&admin, verb, group, resource, namespace), administered, "{verb} {group} {resource}");
        }
    }

    #[test]
    fn z9_impersonation_is_an_action_of_its_own() {
        let cluster = CLUSTER.parse().unwrap();
        let principals = [user_key("ann")];
        let may = |policy: &Policy, resource: &str, namespace: Option<&str>| {
            Asking { policy, principals: &principals, cluster: &cluster, now: 0 }.impersonate("", resource, namespace)
        };
        assert!(may(&policy(&[("Azure Arc Kubernetes Cluster Admin", "")]), "users", None));
        assert!(!may(&policy(&[("Azure Arc Kubernetes Viewer", "")]), "users", None));
        let one = policy(&[("serviceaccounts/impersonate/action", "/namespaces/dev")]);
        assert!(may(&one, "serviceaccounts", Some("dev")));
        assert!(!may(&one, "serviceaccounts", Some("prod")));
        assert!(!may(&one, "users", None));
    }
}
