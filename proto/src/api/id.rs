//! ARM ids of every kind, parsed once. They compare without case (features row R2); the case in which they were written is
//! kept for showing.
//!
//! ```text
//! /subscriptions/{s}
//! /subscriptions/{s}/resourceGroups/{g}
//! {scope}/providers/{namespace}/{type}/{name}[/{type}/{name}...][/providers/...]
//! ```

use std::fmt;

/// Characters of an id at most.
pub const ID_BYTES: usize = 2048;
/// Characters of one name at most.
pub const NAME_BYTES: usize = 260;
/// Pairs of type and name at most, over all providers of an id.
const PAIRS: usize = 8;

/// Why a text is no id of a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Too long.
    #[error("an id has {ID_BYTES} characters at most")]
    TooLong,
    /// Not `/subscriptions/...`.
    #[error("an id begins with /subscriptions/<subscription>")]
    NoSubscription,
    /// A segment that cannot be one.
    #[error(
        "{0:?} is no name: 1 to {NAME_BYTES} characters, no '/', '\\', '%', '?', '#', no control characters, not '.' or '..'"
    )]
    Name(String),
    /// A word that is not expected there.
    #[error("{found:?} where {expected} is expected")]
    Unexpected {
        /// What stands there.
        found: String,
        /// What may.
        expected: &'static str,
    },
    /// A type without a name.
    #[error("the type {0:?} is not followed by a name")]
    NoName(String),
    /// Too deep.
    #[error("an id has {PAIRS} types at most")]
    TooDeep,
}

/// The id of a subscription, a resource group, or a resource in one of them or on one of their resources.
#[derive(Clone)]
pub struct ResourceId {
    /// As written, with the fixed words in their usual case.
    text: String,
    /// In lower case: the identity.
    key: String,
    /// The full type, `Microsoft.Kubernetes/connectedClusters`.
    kind: String,
    /// How many bytes of `text` are the id of what holds it; 0 at the top.
    parent: usize,
    /// How many bytes of `text` come before the last name.
    name: usize,
}

/// The type of subscriptions.
pub const SUBSCRIPTIONS: &str = "Microsoft.Resources/subscriptions";
/// The type of resource groups.
pub const RESOURCE_GROUPS: &str = "Microsoft.Resources/resourceGroups";

impl ResourceId {
    /// Reads an id. Percent-encoding is no part of an id: it must be undone before, and is refused here.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if text.len() > ID_BYTES {
            return Err(InvalidId::TooLong);
        }
        let mut segments = text.strip_prefix('/').ok_or(InvalidId::NoSubscription)?.split('/');
        if !segments.next().is_some_and(|word| word.eq_ignore_ascii_case("subscriptions")) {
            return Err(InvalidId::NoSubscription);
        }
        let mut id = Self::top(segments.next().ok_or(InvalidId::NoSubscription)?)?;
        let mut next = segments.next();
        if next.is_some_and(|word| word.eq_ignore_ascii_case("resourceGroups")) {
            let name = segments.next().ok_or_else(|| InvalidId::NoName("resourceGroups".to_owned()))?;
            id = id.group(name)?;
            next = segments.next();
        }
        let mut pairs = 0;
        while let Some(word) = next {
            if !word.eq_ignore_ascii_case("providers") {
                return Err(InvalidId::Unexpected { found: word.to_owned(), expected: "providers" });
            }
            let namespace = segments.next().unwrap_or_default();
            let mut segment = segments.next().ok_or_else(|| InvalidId::NoName(namespace.to_owned()))?;
            let mut first = true;
            loop {
                pairs += 1;
                if pairs > PAIRS {
                    return Err(InvalidId::TooDeep);
                }
                let name = segments.next().ok_or_else(|| InvalidId::NoName(segment.to_owned()))?;
                id = if first { id.on(namespace, segment, name)? } else { id.child(segment, name)? };
                first = false;
                next = segments.next();
                match next {
                    Some(word) if !word.eq_ignore_ascii_case("providers") => segment = word,
                    _ => break,
                }
            }
        }
        Ok(id)
    }

    /// A subscription.
    pub fn top(subscription: &str) -> Result<Self, InvalidId> {
        check(subscription)?;
        Ok(Self::made(format!("/subscriptions/{subscription}"), SUBSCRIPTIONS.to_owned(), 0))
    }

    /// A resource group of this subscription.
    pub fn group(&self, name: &str) -> Result<Self, InvalidId> {
        check(name)?;
        Ok(Self::made(format!("{self}/resourceGroups/{name}"), RESOURCE_GROUPS.to_owned(), self.text.len()))
    }

    /// A resource of a provider in this scope.
    pub fn on(&self, namespace: &str, kind: &str, name: &str) -> Result<Self, InvalidId> {
        check_word(namespace)?;
        check_word(kind)?;
        check(name)?;
        let full = format!("{namespace}/{kind}");
        // Their ids have a form of their own; a second one would be another key and another scope for such a resource.
        if [SUBSCRIPTIONS, RESOURCE_GROUPS].iter().any(|own| own.eq_ignore_ascii_case(&full)) {
            return Err(InvalidId::Unexpected { found: full, expected: "a type of another provider" });
        }
        let text = format!("{self}/providers/{namespace}/{kind}/{name}");
        Ok(Self::made(text, full, self.text.len()))
    }

    /// A child of this resource, of its provider.
    pub fn child(&self, kind: &str, name: &str) -> Result<Self, InvalidId> {
        check_word(kind)?;
        check(name)?;
        Ok(Self::made(format!("{self}/{kind}/{name}"), format!("{}/{kind}", self.kind), self.text.len()))
    }

    fn made(text: String, kind: String, parent: usize) -> Self {
        let name = text.rfind('/').map_or(0, |at| at + 1);
        Self { key: text.to_ascii_lowercase(), text, kind, parent, name }
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// In lower case: what is compared and stored.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The last name, as written.
    pub fn name(&self) -> &str {
        &self.text[self.name..]
    }

    /// The full type, as written.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether it is of a full type, without case.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.eq_ignore_ascii_case(kind)
    }

    /// The key of what holds it, empty for a subscription.
    pub fn parent_key(&self) -> &str {
        &self.key[..self.parent]
    }

    /// What holds it, as written; empty for a subscription.
    pub fn parent_text(&self) -> &str {
        &self.text[..self.parent]
    }

    /// What holds it, unless it is a subscription.
    pub fn parent(&self) -> Option<Self> {
        // A part of an id that was read is one.
        if self.parent == 0 { None } else { Self::parse(self.parent_text()).ok() }
    }

    /// The subscription, as written.
    pub fn subscription(&self) -> &str {
        self.text.split('/').nth(2).unwrap_or_default()
    }

    /// The resource group, as written, if it is one or lies in one.
    pub fn resource_group(&self) -> Option<&str> {
        let mut segments = self.text.split('/').skip(3);
        segments.next().filter(|word| *word == "resourceGroups").and_then(|_| segments.next())
    }
}

/// One segment: anything that cannot change what the others mean.
fn check(segment: &str) -> Result<(), InvalidId> {
    let good = (1..=NAME_BYTES).contains(&segment.len())
        && !matches!(segment, "." | "..")
        && !segment.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | '%' | '?' | '#'));
    if good { Ok(()) } else { Err(InvalidId::Name(segment.chars().take(NAME_BYTES).collect())) }
}

/// A segment that is no name. `providers` begins a provider wherever it stands: an id can be read from either end.
fn check_word(segment: &str) -> Result<(), InvalidId> {
    if segment.eq_ignore_ascii_case("providers") {
        return Err(InvalidId::Unexpected { found: segment.to_owned(), expected: "a namespace or a type" });
    }
    check(segment)
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for ResourceId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for ResourceId {}

impl std::hash::Hash for ResourceId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLUSTER: &str = "/subscriptions/S/resourcegroups/G/PROVIDERS/Microsoft.Kubernetes/connectedClusters/One";

    #[test]
    fn parts_are_found_and_case_does_not_matter() {
        let id = ResourceId::parse(CLUSTER).unwrap();
        assert_eq!(
            id.as_str(),
            "/subscriptions/S/resourceGroups/G/providers/Microsoft.Kubernetes/connectedClusters/One"
        );
        assert_eq!(id, ResourceId::parse(&CLUSTER.to_uppercase()).unwrap());
        assert_eq!((id.name(), id.subscription(), id.resource_group()), ("One", "S", Some("G")));
        assert!(id.is("microsoft.kubernetes/CONNECTEDCLUSTERS"));
        assert_eq!(id.parent_key(), "/subscriptions/s/resourcegroups/g");
        let group = ResourceId::parse("/subscriptions/S/resourceGroups/G").unwrap();
        assert_eq!((group.kind(), group.parent_key()), (RESOURCE_GROUPS, "/subscriptions/s"));
        let top = ResourceId::parse("/Subscriptions/S").unwrap();
        assert_eq!((top.kind(), top.parent_key(), top.resource_group()), (SUBSCRIPTIONS, "", None));
    }

    #[test]
    fn children_and_extensions_of_resources() {
        let id = ResourceId::parse(&format!(
            "{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/e/operations/o"
        ))
        .unwrap();
        assert_eq!(id.kind(), "Microsoft.KubernetesConfiguration/extensions/operations");
        assert!(id.parent_key().ends_with("/extensions/e"));
        let id = ResourceId::parse("/subscriptions/s/providers/Microsoft.Authorization/roleAssignments/x").unwrap();
        assert_eq!((id.parent_key(), id.resource_group()), ("/subscriptions/s", None));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let deep = format!("/subscriptions/s/providers/n{}", "/t/n".repeat(PAIRS + 1));
        for bad in [
            "",
            "/",
            "subscriptions/s",
            "/subscriptions",
            "/subscriptions/",
            "/subscriptions/s/",
            "/subscriptions/s//",
            "/subscriptions/s/resourceGroups",
            "/subscriptions/s/resourceGroups/",
            "/subscriptions/s/resourceGroups/..",
            "/subscriptions/s/resourceGroups/g/x",
            "/subscriptions/s/resourceGroups/g/providers",
            "/subscriptions/s/providers/n",
            "/subscriptions/s/providers/n/t",
            "/subscriptions/s/providers/n/t/",
            "/subscriptions/s/providers/n/Providers/a",
            "/subscriptions/s/providers/providers/t/a",
            "/subscriptions/s/providers/n/t/a%2Fb",
            "/subscriptions/s/providers/n/t/a\\b",
            "/subscriptions/s/providers/n/t/a\nb",
            "/subscriptions/s/providers/n/t/a/providers/m",
            "/subscriptions/s/providers/microsoft.resources/RESOURCEGROUPS/g",
            "/subscriptions/s/providers/Microsoft.Resources/subscriptions/t",
            &deep,
            &format!("/subscriptions/{}", "x".repeat(ID_BYTES)),
        ] {
            assert!(ResourceId::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_means_itself(text in "(/(subscriptions|resourceGroups|providers|a|B\\.c|\u{130}|[ -~]{0,3})){0,9}") {
            if let Ok(id) = ResourceId::parse(&text) {
                prop_assert!(id.as_str().eq_ignore_ascii_case(&text));
                prop_assert_eq!(&ResourceId::parse(id.as_str()).unwrap(), &id);
                let lower = ResourceId::parse(id.key()).unwrap();
                prop_assert_eq!(lower.key(), id.key());
                prop_assert!(id.key().starts_with(id.parent_key()));
            }
        }
    }
}
