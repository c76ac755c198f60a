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
    /// Whether the path goes on below the subresource.
    pub below_subresource: bool,
    /// Empty for cluster-wide ones.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Whether the apiserver's profiler answers (`/debug/pprof/`).
    pub profiler: bool,
}

/// Segments of a path that are looked at:
/// `apis/<group>/<version>/watch/namespaces/<namespace>/<resource>/<name>/<subresource>`, and one below that.
const PARTS: usize = 10;

impl RequestInfo {
    /// Of a request's target as it is on the wire: percent-encoded, the query behind `?`.
    pub fn of_target(method: &Method, target: &[u8]) -> Self {
        let mut parts = target.splitn(2, |byte| *byte == b'?');
        let path = percent_decode(parts.next().unwrap_or_default());
        let query = parts.next().map(String::from_utf8_lossy);
        Self::parse(method, &String::from_utf8_lossy(&path), query.as_deref())
    }

    /// As `RequestInfoFactory.NewRequestInfo` of k8s.io/apiserver does it, from the decoded path and
    /// the query as it is on the wire.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        let mut info = Self { verb: Cow::Owned(method.as_str().to_ascii_lowercase()), ..Self::default() };
        info.profiler = path.starts_with("/debug/pprof/");
        // Of no path more is looked at; a caller may send one of a mebibyte of slashes.
        let mut parts: &[&str] = &path.trim_matches('/').split('/').take(PARTS).collect::<Vec<_>>();
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
            info.below_subresource = parts.len() > 3;
        }
        info.verb_of_collection(query);
        info
    }

    fn verb_of_collection(&mut self, query: Option<&str>) {
        if !self.name.is_empty() {
            return;
        }
        if self.verb == "get" {
            let watch = query.and_then(|query| parameter(query, "watch"));
            let watch = watch.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
            self.verb = Cow::Borrowed(if watch { "watch" } else { "list" });
        } else if self.verb == "delete" {
            self.verb = Cow::Borrowed("deletecollection");
        }
    }

    /// Whether the apiserver lets it take its time (`BasicLongRunningRequestCheck` of k8s.io/apiserver, with
    /// kube-apiserver's verbs and subresources). The apiserver ends any other request itself (`--request-timeout`).
    pub fn is_long_running(&self) -> bool {
        self.profiler
            || matches!(&*self.verb, "watch" | "proxy")
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

/// Percent-decodes; what is no escape stays as it is.
pub fn percent_decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match escaped(*first, tail) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => out.push(*first),
        }
    }
    Cow::Owned(out)
}

/// The byte that `first` and the two behind it stand for, if they are an escape.
fn escaped(first: u8, behind: &[u8]) -> Option<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    match (first, behind) {
        (b'%', [high, low, ..]) => Some(hex(*high)? << 4 | hex(*low)?),
        _ => None,
    }
}

/// Whether a query has more parameters than Go's `url.ParseQuery` takes since CVE-2025-61726 ([`PARAMETERS_MAX`]).
/// Finding one takes time in proportion to them, and a target of a mebibyte has room for a million.
pub fn has_too_many_parameters(query: &str) -> bool {
    query.bytes().filter(|byte| *byte == b'&').take(PARAMETERS_MAX).count() == PARAMETERS_MAX
}

/// Parameters of a query at most: the default of Go's `urlmaxqueryparams`.
pub const PARAMETERS_MAX: usize = 10_000;

/// The first value of the parameter `name`, as Go's `url.ParseQuery` reads a query: it decodes names too, and leaves
/// out a pair with `;` or with a `%` that begins no escape.
pub fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    query.split('&').filter(|pair| !pair.contains(';')).find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // The name first: a value may be long.
        if unescape(key)? == name { unescape(value) } else { None }
    })
}

fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let bytes = spaced.as_bytes();
    let broken = |(at, byte): (usize, &u8)| *byte == b'%' && escaped(*byte, &bytes[at + 1..]).is_none();
    if bytes.iter().enumerate().any(broken) {
        return None;
    }
    Some(Cow::Owned(String::from_utf8_lossy(&percent_decode(bytes)).into_owned()))
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

    /// A profile of more than two minutes was cut off; so was a watch that was not written as `watch=true`.
    #[test]
    fn long_running_is_what_the_apiserver_takes_for_it() {
        let get = Method::GET;
        for long in [
            "/debug/pprof/profile?seconds=125",
            "/debug/pprof/trace",
            "/debug%2Fpprof/profile",
            "/api/v1/namespaces/n/services/s:80/proxy/slow",
            "/api/v1/namespaces/n/pods/p/log?follow=true",
            "/api/v1/namespaces/n/pods/p/l%6Fg",
            "/api/v1/namespaces/n/pods/p/attach",
            "/api/v1/namespaces/n/pods/p/portforward",
            "/api/v1/nodes/n/proxy/logs/",
            "/api/v1/proxy/nodes/n",
            "/api/v1/watch/pods",
            "/api/v1/pods?watch",
            "/api/v1/pods?watch=",
            "/api/v1/pods?a=b&watch=1",
            "/api/v1/pods?watch=yes",
            "/api/v1/pods?%77atch=%74rue",
            "/api/v1/pods?watch=true&watch=false",
            "/api/v1/pods?watch=%zz&watch=1",
        ] {
            assert!(RequestInfo::of_target(&get, long.as_bytes()).is_long_running(), "{long}");
        }
        for short in [
            "/api/v1/pods",
            "/debug/pprof",
            "/debug/flags/v",
            "/api/v1/namespaces/proxyless/pods?x=/proxy/",
            "/api/v1/namespaces/n/pods/log",
            "/api/v1/namespaces/n/pods/p?watch=1",
            "/api/v1/pods?watch=0",
            "/api/v1/pods?watch=FALSE",
            "/api/v1/pods?watch=fals%65",
            "/api/v1/pods?watch=false&watch=true",
            "/api/v1/pods?watch=1;a=b",
            "/api/v1/pods?watch+=1",
            "/logs/apiserver.log",
        ] {
            assert!(!RequestInfo::of_target(&get, short.as_bytes()).is_long_running(), "{short}");
        }
    }

    proptest! {
        /// No path makes it panic.
        #[test]
        fn any_path_is_read(path in "\\PC{0,80}", query in proptest::option::of("\\PC{0,20}")) {
            let _ = RequestInfo::parse(&Method::GET, &path, query.as_deref());
            let _ = RequestInfo::of_target(&Method::GET, path.as_bytes());
        }
    }
}
