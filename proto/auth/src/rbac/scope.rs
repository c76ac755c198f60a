//! Where a role holds: an ARM id, in lower case. A scope holds for everything below it.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use types::{
    api::{InvalidId, ResourceId},
    ids::ClusterId,
};

/// Characters of the name of a Kubernetes namespace at most.
const NAMESPACE_BYTES: usize = 63;

/// An ARM id as a scope: `/`, `/subscriptions/<s>`, `.../resourcegroups/<g>`, a resource below it, and
/// `<cluster>/namespaces/<namespace>` (feature Z6). Lower-cased, so that equal scopes are equal texts. Every
/// [`ResourceId`] is one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

/// Why a text is no [`Scope`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a scope: {0}; expected /subscriptions/<id>, a resource group, a resource or a namespace of a cluster below it"
)]
pub struct InvalidScope(#[from] InvalidId);

impl Scope {
    /// The root scope `/`, which contains every other one.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// The scope of a connected cluster.
    pub fn cluster(id: &ClusterId) -> Self {
        Self(id.as_str().into())
    }

    /// A namespace of a cluster, as a caller names it. What no namespace can be called (RFC 1123 label) is the whole
    /// cluster: who has a role in one namespace only has none there.
    pub fn namespace(id: &ClusterId, namespace: &str) -> Self {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if (1..=NAMESPACE_BYTES).contains(&namespace.len()) && namespace.bytes().all(known) {
            Self(format!("{id}/namespaces/{namespace}").into())
        } else {
            Self::cluster(id)
        }
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
        if text == "/" { Ok(Self::root()) } else { Ok(Self::from(&ResourceId::parse(text)?)) }
    }
}

impl From<&ResourceId> for Scope {
    fn from(id: &ResourceId) -> Self {
        Self(id.key().into())
    }
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
    use proptest::prelude::*;

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
    fn z6_what_is_no_namespace_needs_the_whole_cluster() {
        let id: ClusterId = CLUSTER.parse().unwrap();
        for odd in ["", "dev/x", "DEV", "..", "dev.x", "dev%2f", "d\u{e9}v", &"x".repeat(64)] {
            assert_eq!(Scope::namespace(&id, odd), Scope::cluster(&id), "{odd}");
        }
    }

    proptest! {
        /// Upwards is the way that ids go, whatever names there are.
        #[test]
        fn z2_the_parent_of_a_scope_is_that_of_the_id(
            group in prop::bool::ANY,
            tail in "(/(providers/(providers|a)/)?(providers|b|c d)/(providers|x|y)){0,4}",
        ) {
            let text = format!("/subscriptions/providers{}{tail}", if group { "/resourceGroups/providers" } else { "" });
            if let Ok(id) = ResourceId::parse(&text) {
                let scope = Scope::from(&id);
                let parents: Vec<_> = scope.with_parents().collect();
                prop_assert_eq!(parents[0], id.key());
                prop_assert_eq!(parents[1], if id.parent_key().is_empty() { "/" } else { id.parent_key() });
                prop_assert_eq!(parents.last(), Some(&"/"));
                prop_assert_eq!(text.parse::<Scope>().unwrap(), scope);
            }
        }
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
            "/subscriptions/s/resourceGroups/a\tb",
            "/subscriptions/s/resourceGroups/g/x/y",
            "/subscriptions/s/subscriptions/t",
            "/subscriptions/s/providers/Microsoft.Kubernetes",
            "/subscriptions/s/resourceGroups/%2e%2e",
        ] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
    }
}
