//! The data action that a Kubernetes call needs (feature Z5), as the guard of Arc names them:
//! `Microsoft.Kubernetes/connectedClusters[/<group>]/<resource>/<read|write|delete|...>`.

use types::api::id::CONNECTED_CLUSTERS as PREFIX;

use super::Action;

/// Subresources that open a connection into a pod, a service or a node. The apiserver calls them `get` when a websocket
/// asks and `create` when SPDY does; to read is not what they do, whatever the verb.
pub(super) const CONNECTS: [&str; 4] = ["exec", "attach", "portforward", "proxy"];

/// What the call is about, as Kubernetes authorisation sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// An object or a list of them.
    Resource {
        /// The API group; empty for the core.
        group: &'a str,
        /// The resource in plural, such as `pods`.
        resource: &'a str,
        /// Empty, or such as `log`.
        subresource: &'a str,
        /// Whether the request can be one that only reads ([`super::call::is_safe`]). Another one is no reading,
        /// whatever its verb is.
        safe: bool,
    },
    /// Anything else, by path: `/healthz`.
    Path(&'a str),
}

/// Longest name of an API group, a DNS subdomain (RFC 1123), in bytes.
const GROUP_BYTES: usize = 253;
/// Longest name of a resource or a subresource, a DNS label (RFC 1123), in bytes.
const RESOURCE_BYTES: usize = 63;
/// Longest path that is not of a resource, in bytes.
const PATH_BYTES: usize = 253;

/// The action of a call, or `None` for a verb that Kubernetes does not have, or for a name that is none: then nobody
/// may. Names come from a caller; one with a `/` in it could pass for another resource, one with a `*` for many. What
/// is longer than Kubernetes allows is no name either: every pattern of a role is compared with it.
pub fn data_action(verb: &str, target: Target<'_>) -> Option<Action> {
    let name = match target {
        Target::Resource { group, resource, subresource, safe } => {
            let fits = group.len() <= GROUP_BYTES && resource.len().max(subresource.len()) <= RESOURCE_BYTES;
            if !(fits && is_name(resource) && [group, subresource].iter().all(|name| name.is_empty() || is_name(name)))
            {
                return None;
            }
            let does = if resource == "pods" && subresource == "exec" {
                "exec/action"
            } else {
                match operation(verb)? {
                    "read" if !safe || !is_read(group, resource, subresource) => "write",
                    // A proxy hands on any method, and may read it in a way of its own.
                    "delete" if CONNECTS.contains(&subresource) => "write",
                    does => does,
                }
            };
            if is_custom(group) {
                let one = Action::new(&format!("{PREFIX}/{group}/{resource}/{does}"));
                return Some(one.also(&format!("{PREFIX}/customresources/{does}")));
            }
            let group = if group.is_empty() { String::new() } else { format!("/{group}") };
            format!("{PREFIX}{group}/{resource}/{does}")
        }
        Target::Path(path) => {
            let path = path.strip_prefix('/').unwrap_or(path);
            let path = path.strip_suffix('/').unwrap_or(path);
            if path.len() > PATH_BYTES || !path.split('/').all(is_name) {
                return None;
            }
            format!("{PREFIX}/{path}/{}", operation(verb)?)
        }
    };
    Some(Action::new(&name))
}

/// Whether a `get` of this subresource returns data and does nothing else. A closed list: any other subresource may be
/// the way into a running machine (`virtualmachineinstances/console` of KubeVirt), so a `get` of it needs the right to
/// write. Kubernetes itself gives every custom resource `status` and `scale`, and no other subresource.
fn is_read(group: &str, resource: &str, subresource: &str) -> bool {
    matches!(
        (group, resource, subresource),
        (_, _, "" | "status" | "scale")
            | ("", "pods", "log" | "ephemeralcontainers" | "resize")
            | ("certificates.k8s.io", "certificatesigningrequests", "approval")
    )
}

/// Whether a group is none of Kubernetes' own, which have no dot or end in `.k8s.io`: a role may name its resources one
/// by one, or all such as `customresources`.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !group.to_ascii_lowercase().ends_with(".k8s.io")
}

/// A segment of a path that means itself.
fn is_name(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    !text.is_empty() && !matches!(text, "." | "..") && text.bytes().all(known)
}

/// What everybody who reaches the cluster may read: discovery, without which no client works. Below `/api` and `/apis`
/// these are the lists of groups, versions and kinds; what is deeper are objects.
pub fn is_discovery(verb: &str, path: &str) -> bool {
    const DEEPEST: usize = 4;
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    let root = segments.next().unwrap_or_default();
    let below: Vec<_> = segments.take(DEEPEST + 1).collect();
    // What a client or a proxy could read in another way is none of these.
    let plain = below.iter().all(|s| !s.is_empty() && !s.starts_with('.') && !s.contains(['%', ';', '\\']));
    let depth = match root {
        "api" => 1,
        "apis" => 2,
        "openapi" => DEEPEST,
        "healthz" | "livez" | "readyz" | "version" => 0,
        _ => return false,
    };
    // HEAD is GET without the answer's body, and an apiserver asks about it by its own name.
    matches!(verb, "get" | "head") && plain && below.len() <= depth
}

fn operation(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "get" | "list" | "watch" => "read",
        "create" | "update" | "patch" => "write",
        "delete" | "deletecollection" => "delete",
        "bind" => "bind/action",
        "escalate" => "escalate/action",
        "use" => "use/action",
        "impersonate" => "impersonate/action",
        // Of signers of certificates (certificates.k8s.io).
        "approve" => "approve/action",
        "sign" => "sign/action",
        "attest" => "attest/action",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac::{Plane, Role, role::RawPermission};

    fn resource(verb: &str, group: &str, resource: &str, subresource: &str) -> Option<String> {
        action(verb, Target::Resource { group, resource, subresource, safe: true })
    }

    fn action(verb: &str, target: Target<'_>) -> Option<String> {
        data_action(verb, target)
            .map(|action| action.as_str().strip_prefix("microsoft.kubernetes/connectedclusters/").unwrap().to_owned())
    }

    #[test]
    fn z5_verbs_become_data_actions() {
        for (verb, group, kind, sub, action) in [
            ("get", "", "pods", "", "pods/read"),
            ("list", "", "pods", "", "pods/read"),
            ("watch", "apps", "deployments", "", "apps/deployments/read"),
            ("create", "apps", "deployments", "", "apps/deployments/write"),
            ("update", "apps", "deployments", "scale", "apps/deployments/write"),
            ("patch", "", "configmaps", "", "configmaps/write"),
            ("delete", "batch", "jobs", "", "batch/jobs/delete"),
            ("deletecollection", "batch", "jobs", "", "batch/jobs/delete"),
            ("get", "", "pods", "log", "pods/read"),
            ("create", "", "pods", "exec", "pods/exec/action"),
            (
                "bind",
                "rbac.authorization.k8s.io",
                "clusterroles",
                "",
                "rbac.authorization.k8s.io/clusterroles/bind/action",
            ),
            ("escalate", "rbac.authorization.k8s.io", "roles", "", "rbac.authorization.k8s.io/roles/escalate/action"),
            ("use", "policy", "podsecuritypolicies", "", "policy/podsecuritypolicies/use/action"),
            ("impersonate", "", "users", "", "users/impersonate/action"),
        ] {
            assert_eq!(resource(verb, group, kind, sub).as_deref(), Some(action), "{verb} {group} {kind} {sub}");
        }
        assert_eq!(resource("*", "", "pods", ""), None);
        assert_eq!(resource("GET", "", "pods", ""), None);
    }

    #[test]
    fn z5_a_websocket_into_a_pod_is_no_reading() {
        assert_eq!(resource("get", "", "pods", "exec").as_deref(), Some("pods/exec/action"));
        assert_eq!(resource("get", "", "pods", "attach").as_deref(), Some("pods/write"));
        assert_eq!(resource("get", "", "pods", "portforward").as_deref(), Some("pods/write"));
        assert_eq!(resource("get", "", "services", "proxy").as_deref(), Some("services/write"));
        assert_eq!(resource("get", "", "nodes", "proxy").as_deref(), Some("nodes/write"));
    }

    #[test]
    fn get_of_an_unknown_subresource_needs_write() {
        for (group, kind, sub, action) in [
            ("subresources.kubevirt.io", "virtualmachineinstances", "console", "virtualmachineinstances/write"),
            ("subresources.kubevirt.io", "virtualmachineinstances", "vnc", "virtualmachineinstances/write"),
            ("example.com", "widgets", "log", "widgets/write"),
            ("apps", "deployments", "approval", "deployments/write"),
            ("", "nodes", "log", "nodes/write"),
            ("", "pods", "Log", "pods/write"),
            ("", "pods", "log", "pods/read"),
            ("", "pods", "ephemeralcontainers", "pods/read"),
            ("", "namespaces", "status", "namespaces/read"),
            ("apps", "deployments", "scale", "deployments/read"),
            ("example.com", "widgets", "status", "widgets/read"),
            ("certificates.k8s.io", "certificatesigningrequests", "approval", "certificatesigningrequests/read"),
        ] {
            let action = if group.is_empty() { action.to_owned() } else { format!("{group}/{action}") };
            for verb in ["get", "list", "watch"] {
                assert_eq!(resource(verb, group, kind, sub), Some(action.clone()), "{verb} {group} {kind} {sub}");
            }
        }
    }

    #[test]
    fn upgrade_of_any_resource_needs_more_than_read() {
        for (group, resource, subresource, expected) in [
            ("", "pods", "", "pods/write"),
            ("", "pods", "log", "pods/write"),
            ("", "pods", "exec", "pods/exec/action"),
            ("apps", "deployments", "status", "apps/deployments/write"),
            ("example.com", "widgets", "console", "example.com/widgets/write"),
        ] {
            for verb in ["get", "list", "watch"] {
                let target = Target::Resource { group, resource, subresource, safe: false };
                assert_eq!(action(verb, target).as_deref(), Some(expected), "{verb} {group} {resource} {subresource}");
            }
        }
    }

    #[test]
    fn z5_custom_resources_are_named_one_by_one_or_all_at_once() {
        let role = |listed: &str, excepted: &str| {
            let texts = |text: &str| text.split_whitespace().map(|name| format!("{PREFIX}/{name}")).collect();
            let raw = RawPermission {
                data_actions: texts(listed),
                not_data_actions: texts(excepted),
                ..RawPermission::default()
            };
            Role::new("r", &[raw]).unwrap()
        };
        let asked = |verb, group, resource| {
            data_action(verb, Target::Resource { group, resource, subresource: "", safe: true }).unwrap()
        };
        let widgets = asked("list", "example.com", "widgets");
        for (listed, excepted, allowed) in [
            ("example.com/widgets/read", "", true),
            ("example.com/gadgets/read", "", false),
            ("customresources/read", "", true),
            ("customresources/write", "", false),
            ("*", "", true),
            // Excepted by either name.
            ("*", "example.com/*", false),
            ("customresources/read", "example.com/widgets/read", false),
            ("example.com/widgets/read", "customresources/*", false),
        ] {
            let role = role(listed, excepted);
            assert_eq!(role.allows(Plane::Data, &widgets), allowed, "{listed} less {excepted}");
        }
        let all = role("customresources/*", "");
        for (group, resource) in
            [("", "secrets"), ("apps", "deployments"), ("rbac.authorization.k8s.io", "roles"), ("X.K8S.IO", "y")]
        {
            assert!(!all.allows(Plane::Data, &asked("get", group, resource)), "{group}/{resource} is Kubernetes' own");
        }
    }

    #[test]
    fn z5_a_name_cannot_pass_for_another() {
        for (group, kind, sub) in [
            ("", "pods/read", ""),
            ("", "*", ""),
            ("", "", ""),
            ("", "..", ""),
            ("", "pods%2fexec", ""),
            ("apps/deployments", "x", ""),
            ("*", "pods", ""),
            ("", "pods", "a/exec"),
            ("", "p\u{f6}ds", ""),
        ] {
            assert_eq!(resource("get", group, kind, sub), None, "{group} {kind} {sub}");
        }
        for path in ["", "/", "//", "/a//b", "/a/../b", "/*", "/a%2fb", "/a b"] {
            assert_eq!(data_action("get", Target::Path(path)), None, "{path}");
        }
        assert!(data_action("get", Target::Path("/.well-known/openid-configuration/")).is_some());
    }

    /// What Kubernetes cannot call anything is compared with no pattern.
    #[test]
    fn names_longer_than_kubernetes_has_need_a_right_that_nobody_has() {
        let of = |bytes: usize| "a".repeat(bytes);
        assert!(resource("get", &of(253), &of(63), &of(63)).is_some());
        for (group, kind, sub) in [(254, 63, 0), (253, 64, 0), (0, 4, 64), (31 * 1024, 4, 0), (0, 31 * 1024, 0)] {
            assert_eq!(resource("get", &of(group), &of(kind), &of(sub)), None, "{group} {kind} {sub}");
        }
        assert!(data_action("get", Target::Path(&format!("/{}", of(253)))).is_some());
        assert_eq!(data_action("get", Target::Path(&format!("/{}", of(254)))), None);
    }

    #[test]
    fn z7_discovery_is_open_and_nothing_beside_it() {
        for path in ["/api", "/apis", "/apis/apps/v1", "/openapi/v3", "/version", "/healthz"] {
            assert!(is_discovery("get", path), "{path}");
        }
        for path in [
            "/metrics",
            "/apiserver",
            "/api/v1/secrets",
            "/apis/apps/v1/deployments",
            "/logs",
            "/healthz/../metrics",
            "/api//v1",
            "/api/%2e%2e/metrics",
        ] {
            assert!(!is_discovery("get", path), "{path}");
        }
        assert!(is_discovery("head", "/api") && !is_discovery("create", "/api"));
        let metrics = data_action("get", Target::Path("/metrics")).unwrap();
        assert_eq!(metrics.as_str(), "microsoft.kubernetes/connectedclusters/metrics/read");
    }
}
