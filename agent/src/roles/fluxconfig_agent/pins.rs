//! What the owner of the cluster lets flux configurations do (`[gitops]` of the settings): a gateway that was taken over
//! can point a configuration anywhere, but not past this.

use super::{
    render::repository,
    spec::{Properties, Scope},
};
use crate::{
    config::Gitops,
    roles::objects::{namespace, state::Problem},
};

/// The namespace of Flux's controllers. An administrator of it can use their service accounts, and so has their rights.
pub const FLUX: &str = "flux-system";

/// The code of what the owner of the cluster does not allow.
pub const NOT_ALLOWED: &str = "NotAllowedInCluster";

/// Whether a configuration is allowed here.
///
/// # Errors
/// Why not, and which setting says so.
pub fn judge(gitops: &Gitops, properties: &Properties, own: &str) -> Result<(), Problem> {
    judge_place(gitops, properties.scope()?, properties.namespace(), own)?;
    judge_source(gitops, || repository(properties))
}

fn not(what: String, key: &str, allowed: &[String]) -> Result<(), Problem> {
    let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
    let message = format!(
        "{what} is not allowed in this cluster; its owner allows: {allowed} (`{key}` in table `gitops` of the settings of fluxconfig-agent)"
    );
    Err(Problem::stays(NOT_ALLOWED, message))
}

/// Whether a configuration may have these rights there.
///
/// # Errors
/// The scope or the namespace is not allowed; the problem names the setting if one says so.
pub fn judge_place(gitops: &Gitops, scope: Scope, namespace: &str, own: &str) -> Result<(), Problem> {
    judge_namespace(namespace, scope, own)?;
    if let Some(allowed) = &gitops.allowed_scopes
        && !allowed.iter().any(|one| one == scope.as_str())
    {
        return not(format!("the scope {}", scope.as_str()), "allowed_scopes", allowed);
    }
    if let Some(allowed) = &gitops.allowed_namespaces
        && !allowed.iter().any(|one| one == namespace)
    {
        return not(format!("the namespace {namespace}"), "allowed_namespaces", allowed);
    }
    Ok(())
}

/// Whether a configuration may pull from there.
///
/// # Errors
/// The repository is not in `allowed_repositories`, or `source` fails.
pub fn judge_source(gitops: &Gitops, source: impl FnOnce() -> Result<String, Problem>) -> Result<(), Problem> {
    if let Some(allowed) = &gitops.allowed_repositories {
        let url = source()?;
        if !allowed.iter().any(|pattern| matches(pattern, &url)) {
            return not(format!("the repository {}", shown(&url)), "allowed_repositories", allowed);
        }
    }
    Ok(())
}

/// Whether configurations can be in a namespace, whatever the owner of the cluster allows.
///
/// # Errors
/// The namespace belongs to the agents, to Kubernetes or to Flux's controllers, or is no valid name.
pub fn judge_namespace(namespace: &str, scope: Scope, own: &str) -> Result<(), Problem> {
    match namespace::refusal(namespace, own) {
        Some(why) => Err(Problem::stays(NOT_ALLOWED, format!("the namespace {namespace:?} {why}; choose another one"))),
        None if namespace == FLUX && scope == Scope::Namespace => Err(of_controllers(namespace)),
        None => Ok(()),
    }
}

/// Why no configuration of scope namespace is where Flux's controllers run.
pub fn of_controllers(namespace: &str) -> Problem {
    let why = "is that of Flux's controllers, whose rights its administrator has";
    Problem::stays(NOT_ALLOWED, format!("the namespace {namespace:?} {why}; choose another one"))
}

/// An address without the user, who may have a password there.
fn shown(url: &str) -> String {
    Parts::of(url).map_or_else(|| "of the configuration".to_owned(), |parts| parts.text())
}

/// The parts of a URL. One with what programs read in different ways has none: dot segments, escapes, queries.
#[derive(PartialEq)]
struct Parts<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: String,
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let odd = |c: char| !c.is_ascii_graphic() || matches!(c, '\\' | '%' | '?' | '#' | '"' | '<' | '>');
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let dots = path.split('/').any(|segment| matches!(segment, "." | ".."));
        if url.contains(odd) || dots || path.contains("//") || path.contains('@') || host.is_empty() {
            return None;
        }
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path);
        Some(Self { scheme: scheme.to_ascii_lowercase(), user, host: host.to_ascii_lowercase(), path })
    }

    fn text(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host, self.path)
    }
}

/// Whether a URL is one that a pattern means. In a pattern `*` is any text without a slash, and `**` any text; without
/// either it means itself and everything below it. A user in a URL counts where the pattern has one.
fn matches(pattern: &str, url: &str) -> bool {
    let Some(parts) = Parts::of(url) else { return false };
    if pattern == "**" {
        return true;
    }
    let Some(wanted) = Parts::of(pattern) else { return false };
    if wanted.user.is_some() && wanted.user != parts.user {
        return false;
    }
    // Host and path apart: no star of one reaches into the other.
    if !glob(wanted.scheme.as_bytes(), parts.scheme.as_bytes()) || !glob(wanted.host.as_bytes(), parts.host.as_bytes())
    {
        return false;
    }
    if wanted.path.contains('*') {
        return glob(wanted.path.as_bytes(), parts.path.as_bytes());
    }
    let below = parts.path.strip_prefix(wanted.path);
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a text fits a pattern with `*` and `**`. Each character of a text is tried once for each of the pattern.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // Whether what is left of the pattern from each place on fits the text from one place on.
    let mut fits = vec![false; pattern.len() + 1];
    for at in (0..=text.len()).rev() {
        let mut now = vec![false; pattern.len() + 1];
        now[pattern.len()] = at == text.len();
        for p in (0..pattern.len()).rev() {
            let is_deep = pattern[p] == b'*' && pattern.get(p + 1) == Some(&b'*');
            now[p] = if is_deep {
                now[p + 2] || (at < text.len() && fits[p])
            } else if pattern[p] == b'*' {
                now[p + 1] || (at < text.len() && text[at] != b'/' && fits[p])
            } else {
                at < text.len() && text[at] == pattern[p] && fits[p + 1]
            };
        }
        fits = now;
    }
    fits[0]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g7_repositories_are_matched_as_a_whole() {
        let all = [
            ("https://git.example.org/team", "https://git.example.org/team", true),
            ("https://git.example.org/team", "https://git.example.org/team/app.git", true),
            ("https://git.example.org/team/", "https://GIT.example.org/team/app", true),
            ("https://git.example.org/team", "https://git.example.org/team-b/app", false),
            ("https://git.example.org", "https://git.example.org/any", true),
            ("https://git.example.org", "https://git.example.org.evil.com/any", false),
            ("https://git.example.org/team", "https://git.example.org/team/../evil", false),
            ("https://git.example.org/team", "https://git.example.org/team/%2e%2e/evil", false),
            ("https://git.example.org/team", "https://git.example.org/team/..\\evil", false),
            ("https://git.example.org/team", "https://evil.com/https://git.example.org/team", false),
            ("https://git.example.org", "https://git.example.org@evil.com/", false),
            ("https://git.example.org", "https://git.example.org:8443/x", false),
            ("https://git.example.org", "https://evil.com#@git.example.org/", false),
            ("https://git.example.org", "https://evil.com?@git.example.org/", false),
            ("https://git.example.org", "http://git.example.org/x", false),
            ("https://git.example.org", "https://user@git.example.org/x", true),
            ("https://*.example.org/team/*", "https://git.example.org/team/app", true),
            ("https://*.example.org/team/*", "https://git.example.org/team/app/deep", false),
            ("https://*.example.org/team/**", "https://git.example.org/team/app/deep", true),
            ("https://*.example.org", "https://evil.com/x.example.org", false),
            ("https://**", "https://evil.com/x.example.org", true),
            ("ssh://git@git.example.org/apps/*", "ssh://git@git.example.org/apps/one", true),
            ("ssh://git@git.example.org/apps/*", "ssh://root@git.example.org/apps/one", false),
            ("**", "oci://registry.example.org/x", true),
        ];
        for (pattern, url, expected) in all {
            assert_eq!(matches(pattern, url), expected, "{pattern} {url}");
        }
    }

    #[test]
    fn g7_the_owner_of_the_cluster_decides() {
        let properties = |scope: &str, namespace: &str, url: &str| {
            Properties::read(&json!({"scope": scope, "namespace": namespace, "sourceKind": "GitRepository",
                "gitRepository": {"url": url}}))
            .unwrap()
        };
        let text = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let any = Gitops::default();
        let url = "https://git.example.org/team/app";
        let scoped = Gitops { allowed_scopes: text(&["namespace"]), ..Gitops::default() };
        let spaced = Gitops { allowed_namespaces: text(&["team-a"]), ..Gitops::default() };
        let pinned = Gitops { allowed_repositories: text(&["https://git.example.org/team"]), ..Gitops::default() };
        let none = Gitops { allowed_repositories: Some(Vec::new()), ..Gitops::default() };
        let all = [
            (&any, "cluster", "web", url, None),
            (&any, "cluster", "towline", url, Some("the agents' own")),
            (&any, "cluster", "kube-system", url, Some("the cluster's own")),
            (&any, "cluster", "a.b", url, Some("not a name")),
            (&any, "cluster", "flux-system", url, None),
            (&any, "namespace", "flux-system", url, Some("Flux's controllers")),
            (&scoped, "cluster", "web", url, Some("allowed_scopes")),
            (&scoped, "namespace", "web", url, None),
            (&spaced, "namespace", "web", url, Some("allowed_namespaces")),
            (&spaced, "namespace", "team-a", url, None),
            (&pinned, "cluster", "web", url, None),
            (&pinned, "cluster", "web", "https://u:pa55@evil.com/team", Some("allowed_repositories")),
            (&none, "cluster", "web", url, Some("allows: none")),
        ];
        for (gitops, scope, namespace, url, why) in all {
            let judged = judge(gitops, &properties(scope, namespace, url), "towline");
            match (judged, why) {
                (Ok(()), None) => {}
                (Err(problem), Some(why)) => {
                    assert_eq!(problem.code, NOT_ALLOWED);
                    assert!(problem.message.contains(why) && !problem.message.contains("pa55"), "{}", problem.message);
                }
                (judged, _) => panic!("{scope} {namespace} {url}: {judged:?}"),
            }
        }
    }
}
