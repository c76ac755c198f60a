//! What a Kubernetes apiserver makes of a request: the same reading wherever one is recorded or decided.

use std::borrow::Cow;

use http::Method;

/// What the apiserver will take the request for (its `RequestInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `deletecollection`, ..., or the method in lower case for non-resource paths.
    pub verb: Cow<'static, str>,
    /// Whether the rest below is filled.
    pub is_resource: bool,
    /// Empty for the core group.
    pub api_group: String,
    /// Such as `v1`.
    pub api_version: String,
    /// Such as `pods`.
    pub resource: String,
    /// Such as `exec`.
    pub subresource: String,
    /// Empty for cluster-wide ones.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
}

impl RequestInfo {
    /// As `RequestInfoFactory.NewRequestInfo` of k8s.io/apiserver does it, from the decoded path.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        let mut info = Self { verb: Cow::Owned(method.as_str().to_ascii_lowercase()), ..Self::default() };
        let mut parts: &[&str] = &path.trim_matches('/').split('/').collect::<Vec<_>>();
        if parts.len() < 3 || !matches!(parts[0], "api" | "apis") {
            return info;
        }
        let grouped = parts[0] == "apis";
        parts = &parts[1..];
        if grouped {
            if parts.len() < 3 {
                return info;
            }
            info.api_group = parts[0].to_owned();
            parts = &parts[1..];
        }
        info.is_resource = true;
        info.api_version = parts[0].to_owned();
        parts = &parts[1..];
        match parts.first() {
            Some(&verb @ ("proxy" | "watch")) if parts.len() >= 2 => {
                info.verb = Cow::Owned(verb.to_owned());
                parts = &parts[1..];
            }
            _ => info.verb = Cow::Borrowed(verb_of(method)),
        }
        if let ["namespaces", namespace, rest @ ..] = parts {
            info.namespace = (*namespace).to_owned();
            if rest.first().is_some_and(|first| !matches!(*first, "status" | "finalize")) {
                parts = rest;
            }
        }
        let part = |index: usize| parts.get(index).map(|part| (*part).to_owned()).unwrap_or_default();
        (info.resource, info.name) = (part(0), part(1));
        if info.verb != "proxy" {
            info.subresource = part(2);
        }
        info.verb_of_collection(query);
        info
    }

    fn verb_of_collection(&mut self, query: Option<&str>) {
        if !self.name.is_empty() {
            return;
        }
        if self.verb == "get" {
            let watch = query.unwrap_or_default().split('&').find_map(|pair| match pair.split_once('=') {
                Some(("watch", value)) => Some(value),
                None if pair == "watch" => Some(""),
                _ => None,
            });
            let watch = watch.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
            self.verb = Cow::Borrowed(if watch { "watch" } else { "list" });
        } else if self.verb == "delete" {
            self.verb = Cow::Borrowed("deletecollection");
        }
    }

    /// Whether the apiserver lets it take its time (`BasicLongRunningRequestCheck` of k8s.io/apiserver, with
    /// kube-apiserver's verbs and subresources).
    pub fn is_long_running(&self) -> bool {
        matches!(&*self.verb, "watch" | "proxy")
            || matches!(&*self.subresource, "attach" | "exec" | "proxy" | "log" | "portforward")
    }

    /// `resource/subresource`, for records.
    pub fn resource_path(&self) -> Cow<'_, str> {
        if self.subresource.is_empty() {
            Cow::Borrowed(&self.resource)
        } else {
            Cow::Owned(format!("{}/{}", self.resource, self.subresource))
        }
    }
}

fn verb_of(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info(method: &Method, target: &str) -> RequestInfo {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        RequestInfo::parse(method, path, query)
    }

    #[test]
    fn request_info_is_read_as_the_apiserver_reads_it() {
        let get = Method::GET;
        let row = |info: RequestInfo| {
            let resource = info.resource_path().into_owned();
            (info.verb.into_owned(), info.api_group, resource, info.namespace, info.name)
        };
        let text = |a: &str, b: &str, c: &str, d: &str, e: &str| {
            (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned(), e.to_owned())
        };
        for (method, target, expected) in [
            (&get, "/api/v1/pods", text("list", "", "pods", "", "")),
            (&get, "/api/v1/pods?watch=1", text("watch", "", "pods", "", "")),
            (&get, "/api/v1/pods?watch=false", text("list", "", "pods", "", "")),
            (&get, "/api/v1/watch/namespaces/n/pods", text("watch", "", "pods", "n", "")),
            (&get, "/api/v1/namespaces/n/pods/p", text("get", "", "pods", "n", "p")),
            (&get, "/api/v1/namespaces/n/pods/p/exec?command=a", text("get", "", "pods/exec", "n", "p")),
            (&Method::POST, "/api/v1/namespaces/n/pods/p/exec/", text("create", "", "pods/exec", "n", "p")),
            (
                &get,
                "/api/v1/namespaces/n/services/https:s:443/proxy/x",
                text("get", "", "services/proxy", "n", "https:s:443"),
            ),
            (&get, "/api/v1/nodes/n/proxy/exec/a/b/c", text("get", "", "nodes/proxy", "", "n")),
            (&get, "/api/v1/proxy/nodes/n/x", text("proxy", "", "nodes", "", "n")),
            (&get, "/api/v1/namespaces/n", text("get", "", "namespaces", "n", "n")),
            (&Method::PUT, "/api/v1/namespaces/n/finalize", text("update", "", "namespaces/finalize", "n", "n")),
            (
                &Method::DELETE,
                "/apis/apps/v1/namespaces/n/deployments",
                text("deletecollection", "apps", "deployments", "n", ""),
            ),
            (
                &Method::PATCH,
                "/apis/apps/v1/namespaces/n/deployments/d/scale",
                text("patch", "apps", "deployments/scale", "n", "d"),
            ),
            (&get, "/api/v1//pods", text("get", "", "", "", "pods")),
            (&get, "/healthz", text("get", "", "", "", "")),
            (&get, "/apis/apps/v1", text("get", "", "", "", "")),
            (&get, "/", text("get", "", "", "", "")),
        ] {
            assert_eq!(row(info(method, target)), expected, "{target}");
        }
    }

    proptest! {
        /// No path makes it panic.
        #[test]
        fn any_path_is_read(path in "\\PC{0,80}", query in proptest::option::of("\\PC{0,20}")) {
            let _ = RequestInfo::parse(&Method::GET, &path, query.as_deref());
        }
    }
}
