//! Constrained impersonation (KEP-5284): what an apiserver that has it asks its authorizers before it lets somebody be
//! another user for one call. Two rights are needed: `impersonate:<mode>` on each part of the identity, and
//! `impersonate-on:<mode>:<verb>` on the call itself. The plain verb `impersonate` still suffices by itself.
//!
//! The apiserver answers every question. Only which questions there are is repeated here, from the package
//! `endpoints/filters/impersonation` of k8s.io/apiserver.

use auth::kubernetes::{RequestInfo, parameter, percent_decode};
use http::Method;

use super::{AUTHENTICATION, Question};
use crate::roles::kube_aad_proxy::{
    admit::Asked,
    impersonate::{account_of, is_subdomain, node_of},
    target::Target,
};

/// From this many groups, or values of extras, on the apiserver asks for all of them at once first.
const MANY: usize = 4;

/// How somebody is impersonated, by what the user name is. `associated-node` is missing: it is for service accounts,
/// whose tokens the agent passes on, so that the apiserver decides by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The user name is that of a node, `system:node:<name>`.
    Node,
    /// A service account.
    Account,
    /// The user name is that of neither a node nor a service account.
    User,
}

/// What has to be allowed: each of some questions, or instead of these the one that stands for all.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Suffices if it is allowed.
    pub for_all: Option<Question>,
    /// All of them must be allowed otherwise.
    pub each: Vec<Question>,
}

impl Mode {
    /// The mode in which an apiserver would look at this; `None`: in no constrained one.
    pub fn of(asked: &Asked) -> Option<Self> {
        let name_alone = asked.uid.is_none() && asked.groups.is_empty() && asked.extra.is_empty();
        if node_of(&asked.user).is_some() {
            return name_alone.then_some(Self::Node);
        }
        if account_of(&asked.user).is_some() {
            return name_alone.then_some(Self::Account);
        }
        let privileged = asked.groups.iter().any(|group| group == "system:masters");
        (!privileged && asked.extra.keys().all(|key| is_extra_key(key))).then_some(Self::User)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Node => "arbitrary-node",
            Self::Account => "serviceaccount",
            Self::User => "user-info",
        }
    }

    /// What has to be allowed to somebody who asks for this with a request; `None` if the apiserver's reading of the
    /// request is not known.
    pub fn steps(self, asked: &Asked, method: &Method, target: &Target) -> Option<Vec<Step>> {
        let verb = &*format!("impersonate:{}", self.as_str());
        let part = |resource: &str, name: &str| Question::part(verb, AUTHENTICATION, resource, name);
        let user = match (node_of(&asked.user), account_of(&asked.user)) {
            (Some(node), _) => part("nodes", node),
            (_, Some((namespace, name))) => part("serviceaccounts", name).within(namespace),
            _ => part("users", &asked.user),
        };
        let uid = asked.uid.iter().map(|uid| part("uids", uid));
        let groups: Vec<Question> = asked.groups.iter().map(|group| part("groups", group)).collect();
        let extra = asked.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        let extra: Vec<Question> = extra.map(|(key, value)| part("userextras", value).below(key)).collect();
        let many = |each: Vec<Question>, all: Question| Step { for_all: (each.len() >= MANY).then_some(all), each };
        Some(vec![
            Step { for_all: None, each: vec![self.call(method, target)?] },
            Step { for_all: None, each: std::iter::once(user).chain(uid).collect() },
            many(groups, part("groups", "*")),
            many(extra, part("userextras", "*").below("*")),
        ])
    }

    /// The right to the call itself.
    fn call(self, method: &Method, target: &Target) -> Option<Question> {
        let path = String::from_utf8(percent_decode(target.path().as_bytes()).into_owned()).ok()?;
        let info = RequestInfo::parse(method, &path, target.query());
        let verb = format!("impersonate-on:{}:{}", self.as_str(), info.verb);
        if !info.is_resource {
            return Some(Question::path(&verb, &path));
        }
        let of_list = info.name.is_empty() && matches!(&*info.verb, "list" | "watch");
        if is_verb_in_path(&path) || !(of_list || info.verb == "deletecollection") {
            return Some(Question::call(&verb, &info, &info.name, [None, None]));
        }
        let query = target.query().unwrap_or_default();
        let selectors = ["fieldSelector", "labelSelector"].map(|name| parameter(query, name));
        let selectors = selectors.each_ref().map(|selector| selector.as_deref().filter(|text| !text.is_empty()));
        let name = if of_list { name_selected(query, selectors) } else { None };
        Some(Question::call(&verb, &info, name.unwrap_or_default(), selectors))
    }
}

/// Whether the path itself says `watch`, as in `/api/v1/watch/pods`: of such requests nobody looks at selectors.
fn is_verb_in_path(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let at = if parts.next() == Some("api") { 1 } else { 2 };
    matches!(parts.nth(at), Some("watch" | "proxy"))
}

/// A key that may be asked for in this way: `<domain>/<path>`.
fn is_extra_key(key: &str) -> bool {
    let in_path = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    key.split_once('/').is_some_and(|(domain, path)| {
        is_subdomain(domain)
            && !path.is_empty()
            && path.bytes().all(in_path)
            && !path.bytes().any(|b| b.is_ascii_uppercase())
    })
}

/// The one object that a list is about, which the apiserver takes for the request's name. It takes none from options of
/// which it cannot read one; where this is not simple to say, the right to the whole list is asked for.
fn name_selected<'a>(query: &str, [fields, labels]: [Option<&'a str>; 2]) -> Option<&'a str> {
    let number = |name| parameter(query, name).is_none_or(|value| value.parse::<i64>().is_ok());
    let fields = fields.filter(|text| !text.contains('\\'))?;
    if labels.is_some() || !["limit", "timeoutSeconds"].into_iter().all(number) {
        return None;
    }
    let mut name = None;
    for term in fields.split(',').filter(|term| !term.is_empty()) {
        let (field, value) = term.split_once('=')?;
        if field == "metadata.name" {
            name = name.or(Some(value.strip_prefix('=').unwrap_or(value)));
        }
    }
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    name.filter(|name| !matches!(*name, "" | "." | "..") && name.bytes().all(known))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use http::uri::PathAndQuery;

    use super::*;

    fn asked(user: &str) -> Asked {
        Asked { user: user.to_owned(), ..Asked::default() }
    }

    fn call(method: Method, target: &str) -> Value {
        Mode::User.call(&method, &Target::Plain(target.parse().unwrap())).unwrap().attributes
    }

    #[test]
    fn call_is_asked_for_as_the_apiserver_reads_it() {
        let of = |verb: &str, resource: &str, namespace: &str| {
            json!({ "verb": format!("impersonate-on:user-info:{verb}"), "group": "", "version": "v1",
                    "resource": resource, "namespace": namespace })
        };
        let named = |mut attributes: Value, name: &str| {
            attributes["name"] = json!(name);
            attributes
        };
        let selected = |mut attributes: Value, by: &str, raw: &str| {
            attributes[by] = json!({ "rawSelector": raw });
            attributes
        };
        let (get, pods) = (Method::GET, "/api/v1/namespaces/n/pods");
        let list = || of("list", "pods", "n");
        assert_eq!(call(get.clone(), pods), list());
        assert_eq!(call(get.clone(), &format!("{pods}?watch=1")), of("watch", "pods", "n"));
        assert_eq!(call(get.clone(), &format!("{pods}/p")), named(of("get", "pods", "n"), "p"));
        assert_eq!(call(Method::DELETE, pods), of("deletecollection", "pods", "n"));
        let log = json!({ "verb": "impersonate-on:user-info:get", "group": "", "version": "v1", "resource": "pods",
                          "namespace": "n", "subresource": "log", "name": "p" });
        assert_eq!(call(get.clone(), &format!("{pods}/p/log?follow=true")), log);
        assert_eq!(
            call(get.clone(), "/version?x=1"),
            json!({ "verb": "impersonate-on:user-info:get", "path": "/version" })
        );
        let one = selected(named(list(), "p"), "fieldSelector", "metadata.name=p");
        assert_eq!(call(get.clone(), &format!("{pods}?fieldSelector=metadata.name%3Dp")), one);
        let by_label = selected(list(), "labelSelector", "a=b");
        assert_eq!(call(get.clone(), &format!("{pods}?labelSelector=a%3Db&limit=500")), by_label);
        let unnamed = selected(list(), "fieldSelector", "metadata.name=a/b");
        assert_eq!(call(get.clone(), &format!("{pods}?fieldSelector=metadata.name%3Da/b")), unnamed);
        assert_eq!(
            call(get, "/api/v1/watch/namespaces/n/pods?labelSelector=a"),
            of("watch", "pods", "n"),
            "nobody looks at it"
        );
    }

    /// With the right to list alone nobody may come to watch, in whatever spelling.
    #[test]
    fn watch_is_asked_for_in_each_spelling() {
        for query in ["%77atch=1", "watch", "watch=", "watch=yes", "wat%63h=%31", "a;b&watch=1", "watch=1&watch=0"] {
            let verb = call(Method::GET, &format!("/api/v1/pods?{query}"))["verb"].clone();
            assert_eq!(verb, "impersonate-on:user-info:watch", "{query}");
        }
        for query in ["watch=%30", "watch=FALSE", "watch=1;x", "watch=%zz", "wat+ch=1"] {
            let verb = call(Method::GET, &format!("/api/v1/pods?{query}"))["verb"].clone();
            assert_eq!(verb, "impersonate-on:user-info:list", "{query}");
        }
    }

    /// With the right to one object nobody may list more than that.
    #[test]
    fn name_is_that_of_the_one_object_a_list_is_about() {
        let name = |query: &str| {
            let asked = call(Method::GET, &format!("/api/v1/pods?{query}"));
            asked.get("name").map(|name| name.as_str().unwrap().to_owned())
        };
        for query in [
            "fieldSelector=metadata.name=p",
            "fieldSelector=metadata.name%3D%3Dp",
            "field%53elector=spec.nodeName=n,metadata.name=p&limit=500",
            "fieldSelector=metadata.name=p,metadata.name=q",
        ] {
            assert_eq!(name(query).as_deref(), Some("p"), "{query}");
        }
        for query in [
            "fieldSelector=metadata.name!=p",
            "fieldSelector=status.phase!=x%5C,metadata.name=p",
            "fieldSelector=metadata.name=p,x",
            "fieldSelector=metadata.name=a/b",
            "fieldSelector=metadata.name=..",
            "fieldSelector=metadata.name=p&limit=x",
            "fieldSelector=metadata.name=p&labelSelector=%2C%2C",
            "fieldSelector=metadata.name=p;x",
            "fieldSelector=&fieldSelector=metadata.name=p",
        ] {
            assert_eq!(name(query), None, "{query}");
        }
    }

    #[test]
    fn each_kind_of_user_has_its_mode() {
        assert_eq!(Mode::of(&asked("bob")), Some(Mode::User));
        assert_eq!(Mode::of(&asked("system:node:n1")), Some(Mode::Node));
        assert_eq!(Mode::of(&asked("system:node:N1")), Some(Mode::User));
        assert_eq!(Mode::of(&asked("system:serviceaccount:a:b")), Some(Mode::Account));
        assert_eq!(Mode::of(&asked("system:serviceaccount:a:b:c")), Some(Mode::User));
        for user in ["system:node:n1", "system:serviceaccount:a:b"] {
            assert_eq!(Mode::of(&Asked { groups: vec!["g".to_owned()], ..asked(user) }), None, "{user}");
        }
        assert_eq!(Mode::of(&Asked { groups: vec!["system:masters".to_owned()], ..asked("bob") }), None);
        let extra = |key: &str| Asked { extra: [(key.to_owned(), vec!["v".to_owned()])].into(), ..asked("bob") };
        assert_eq!(Mode::of(&extra("example.com/team")), Some(Mode::User));
        for key in ["team", "/team", "example.com/", "Example.com/x", "a b/c"] {
            assert_eq!(Mode::of(&extra(key)), None, "{key}");
        }
    }

    #[test]
    fn each_part_is_asked_for_and_many_at_once_first() {
        let steps = |asked: &Asked| {
            let mode = Mode::of(asked).unwrap();
            let steps = mode.steps(asked, &Method::GET, &Target::Plain(PathAndQuery::from_static("/api"))).unwrap();
            let line = |question: &Question| {
                let text = |field: &str| question.attributes[field].as_str().unwrap_or_default().to_owned();
                let (verb, resource, name) = (text("verb"), text("resource"), text("name"));
                format!("{verb} {resource} {} {} {name}", text("subresource"), text("namespace"))
            };
            steps[1..]
                .iter()
                .map(|step| (step.for_all.as_ref().map(line), step.each.iter().map(line).collect::<Vec<_>>()))
                .collect::<Vec<_>>()
        };
        let all = steps(&Asked {
            user: "bob".to_owned(),
            uid: Some("u".to_owned()),
            groups: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            extra: [("x.io/k".to_owned(), vec!["1".to_owned(), "2".to_owned()])].into(),
        });
        let of = |rest: &str| format!("impersonate:user-info {rest}");
        assert_eq!(all[0], (None, vec![of("users   bob"), of("uids   u")]));
        assert_eq!(all[1].0, Some(of("groups   *")));
        assert_eq!(all[1].1, ["a", "b", "c", "d"].map(|group| of(&format!("groups   {group}"))));
        assert_eq!(all[2], (None, vec![of("userextras x.io/k  1"), of("userextras x.io/k  2")]));
        let account = steps(&asked("system:serviceaccount:apps:web"));
        assert_eq!(account[0].1, ["impersonate:serviceaccount serviceaccounts  apps web"]);
        assert_eq!(steps(&asked("system:node:n1"))[0].1, ["impersonate:arbitrary-node nodes   n1"]);
    }
}
