//! Where a role holds: an ARM id, in lower case. A scope holds for everything below it.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::ids::ClusterId;

/// The longest scope, in bytes.
const SCOPE_LENGTH: usize = 2048;

/// An ARM id as a scope: `/`, `/subscriptions/<s>`, `.../resourcegroups/<g>`, a resource below it, and
/// `<cluster>/namespaces/<namespace>` (feature Z6). Lower-cased, so that equal scopes are equal texts.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

/// Why a text is no [`Scope`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a scope: {0}; expected /subscriptions/<id>, a resource group, a resource or a namespace of a cluster below it"
)]
pub struct InvalidScope(&'static str);

impl Scope {
    /// Everything.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// A cluster.
    pub fn cluster(id: &ClusterId) -> Self {
        Self(id.as_str().into())
    }

    /// A namespace of a cluster. Kubernetes names are lower-case already.
    pub fn namespace(id: &ClusterId, namespace: &str) -> Self {
        Self(format!("{id}/namespaces/{}", namespace.to_ascii_lowercase()).into())
    }

    /// In lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scopes that hold for this one, itself first and `/` last.
    pub fn with_parents(&self) -> impl Iterator<Item = &str> {
        let mut next = Some(&*self.0);
        std::iter::from_fn(move || {
            let this = next?;
            next = parent(this);
            Some(this)
        })
    }
}

/// One step up: a pair of type and name, with the provider that it begins with.
fn parent(scope: &str) -> Option<&str> {
    if scope == "/" {
        return None;
    }
    let cut = |text: &str| text.rfind('/').unwrap_or(0);
    let kind = &scope[..cut(scope)];
    let mut above = &scope[..cut(kind)];
    // `.../providers/<namespace>` is no scope of its own.
    let provider = &above[..cut(above)];
    if let Some(scope) = provider.strip_suffix("/providers") {
        above = scope;
    }
    Some(if above.is_empty() { "/" } else { above })
}

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > SCOPE_LENGTH {
            return Err(InvalidScope("longer than 2048 bytes"));
        }
        if text == "/" {
            return Ok(Self::root());
        }
        let lower = text.to_ascii_lowercase();
        let Some(rest) = lower.strip_prefix('/') else { return Err(InvalidScope("does not begin with /")) };
        let mut segments = rest.split('/').peekable();
        let mut pairs = 0;
        while segments.peek().is_some() {
            let mut kind = name(segments.next())?;
            if kind == "providers" {
                name(segments.next())?;
                kind = name(segments.next())?;
            }
            name(segments.next())?;
            match (pairs, kind) {
                (0, "subscriptions") => {}
                (0, _) => return Err(InvalidScope("does not begin with /subscriptions/<id>")),
                (1.., "subscriptions") => return Err(InvalidScope("a subscription is not below anything")),
                _ => {}
            }
            pairs += 1;
        }
        Ok(Self(lower.into()))
    }
}

fn name(segment: Option<&str>) -> Result<&str, InvalidScope> {
    let segment = segment.ok_or(InvalidScope("it ends behind a type; a name is missing"))?;
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.()".contains(&b);
    if segment.is_empty() || segment == "." || segment == ".." || !segment.bytes().all(known) {
        return Err(InvalidScope("a segment is empty or has other characters than a-z 0-9 - _ . ( )"));
    }
    Ok(segment)
}

impl Borrow<str> for Scope {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "/subscriptions/S1/resourceGroups/G/providers/Microsoft.Kubernetes/connectedClusters/C";

    #[test]
    fn z2_scopes_inherit_from_above() {
        let scope: Scope = format!("{CLUSTER}/namespaces/dev").parse().unwrap();
        let parents: Vec<_> = scope.with_parents().collect();
        let cluster = CLUSTER.to_lowercase();
        let expected = [
            &format!("{cluster}/namespaces/dev"),
            &cluster,
            "/subscriptions/s1/resourcegroups/g",
            "/subscriptions/s1",
            "/",
        ];
        assert_eq!(parents, expected);
        assert_eq!(Scope::cluster(&CLUSTER.parse().unwrap()).as_str(), cluster);
        assert_eq!(Scope::namespace(&CLUSTER.parse().unwrap(), "dev"), scope);
    }

    #[test]
    fn scopes_of_nested_resources_skip_the_provider() {
        let scope: Scope =
            format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/e").parse().unwrap();
        assert_eq!(scope.with_parents().nth(1), Some(CLUSTER.to_lowercase().as_str()));
    }

    #[test]
    fn other_texts_are_no_scopes() {
        for bad in [
            "",
            "subscriptions/s",
            "/subscriptions",
            "/subscriptions/",
            "/subscriptions//",
            "/subscriptions/s/",
            "//",
            "/resourceGroups/g",
            "/subscriptions/s/resourceGroups/..",
            "/subscriptions/s/resourceGroups/a b",
            "/subscriptions/s/subscriptions/t",
            "/subscriptions/s/providers/Microsoft.Kubernetes",
            "/subscriptions/s/resourceGroups/%2e%2e",
        ] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
    }
}
