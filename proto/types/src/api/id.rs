//! ARM ids of every kind, parsed once. They compare without case, by [`fold`]; the case in which they were written is
//! kept for showing. Names are not normalised: what Unicode writes in two ways is two names.
//!
//! ```text
//! /subscriptions/{s}
//! /subscriptions/{s}/resourceGroups/{g}
//! {scope}/providers/{namespace}/{type}/{name}[/{type}/{name}...][/providers/...]
//! ```

use std::fmt;

/// Bytes of an id at most.
pub const ID_BYTES: usize = 2048;
/// Characters of one name at most.
pub const NAME_CHARACTERS: usize = 260;
/// Characters of a resource group's name at most.
pub const GROUP_CHARACTERS: usize = 90;
/// Pairs of type and name at most, over all providers of an id.
const PAIRS: usize = 8;

/// Why a text is no id of a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Longer than any id may be.
    #[error("an id has {ID_BYTES} bytes at most")]
    TooLong,
    /// The text does not begin with `/subscriptions/<subscription>`.
    #[error("an id begins with /subscriptions/<subscription>")]
    NoSubscription,
    /// A segment that cannot be one.
    #[error(
        "{0:?} is not a name: 1 to {NAME_CHARACTERS} characters, no '/', '\\', '%', '?', '#', no control characters, not '.' or '..'"
    )]
    Name(String),
    /// A word that is not expected there.
    #[error("{found:?} where {expected} is expected")]
    Unexpected {
        /// The word that was found instead.
        found: String,
        /// What may stand there, in words.
        expected: &'static str,
    },
    /// A type without a name.
    #[error("the type {0:?} is not followed by a name")]
    NoName(String),
    /// More types below each other than an id may have.
    #[error("an id has {PAIRS} types at most")]
    TooDeep,
}

/// What names are compared and stored by, everywhere: each letter in lower case by itself, as Unicode's simple mapping
/// of Rust's standard library has it. A letter outside of ASCII whose lower case is within (the Kelvin sign) or is
/// several characters (`İ`) stays as it is: what is ASCII in a key was ASCII in the name.
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let lower = |c: char| {
        let mut lower = c.to_lowercase();
        match (lower.next(), lower.next()) {
            (Some(one), None) if one.is_ascii() == c.is_ascii() => one,
            _ => c,
        }
    };
    text.chars().map(lower).collect()
}

/// Whether two names, or ids, are the same without case.
pub fn is_same(one: &str, other: &str) -> bool {
    fold(one) == fold(other)
}

/// Whether it names a resource group as Azure Resource Manager has it: letters and digits of any script, `_`, `-`, `.`
/// and parentheses, and no `.` at the end.
pub fn is_group_name(name: &str) -> bool {
    let known = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '(' | ')');
    let characters = name.chars().count();
    (1..=GROUP_CHARACTERS).contains(&characters) && name.chars().all(known) && !name.ends_with('.')
}

/// The id of a subscription, a resource group, or a resource in one of them or on one of their resources.
#[derive(Clone)]
pub struct ResourceId {
    /// As written, with the fixed words in their usual case.
    text: String,
    /// Folded: the identity.
    key: String,
    /// The full type, `Microsoft.Kubernetes/connectedClusters`.
    kind: String,
    /// How many bytes of `text` are the id of what holds it; 0 at the top.
    parent: usize,
    /// How many bytes of `key` are the key of what holds it: a letter may have another length in lower case.
    parent_key: usize,
    /// How many bytes of `text` come before the last name.
    name: usize,
}

/// The type of subscriptions.
pub const SUBSCRIPTIONS: &str = "Microsoft.Resources/subscriptions";
/// The type of resource groups.
pub const RESOURCE_GROUPS: &str = "Microsoft.Resources/resourceGroups";
/// The type of connected clusters.
pub const CONNECTED_CLUSTERS: &str = "Microsoft.Kubernetes/connectedClusters";
/// The type of cluster extensions.
pub const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
/// The type of flux configurations.
pub const FLUX_CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/fluxConfigurations";
/// The type of source control configurations.
pub const SOURCE_CONTROL_CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/sourceControlConfigurations";

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

    /// The id of a subscription, `/subscriptions/<subscription>`.
    pub fn top(subscription: &str) -> Result<Self, InvalidId> {
        check(subscription)?;
        Ok(Self::made(format!("/subscriptions/{subscription}"), SUBSCRIPTIONS.to_owned(), None))
    }

    /// A resource group of this subscription.
    pub fn group(&self, name: &str) -> Result<Self, InvalidId> {
        check(name)?;
        Ok(Self::made(format!("{self}/resourceGroups/{name}"), RESOURCE_GROUPS.to_owned(), Some(self)))
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
        Ok(Self::made(text, full, Some(self)))
    }

    /// A child of this resource, of its provider.
    pub fn child(&self, kind: &str, name: &str) -> Result<Self, InvalidId> {
        check_word(kind)?;
        check(name)?;
        Ok(Self::made(format!("{self}/{kind}/{name}"), format!("{}/{kind}", self.kind), Some(self)))
    }

    fn made(text: String, kind: String, parent: Option<&Self>) -> Self {
        let name = text.rfind('/').map_or(0, |at| at + 1);
        // Letter by letter, so that the key of the whole begins with that of its parent.
        let (parent, parent_key) = parent.map_or((0, 0), |parent| (parent.text.len(), parent.key.len()));
        Self { key: fold(&text), text, kind, parent, parent_key, name }
    }

    /// The id as it was written, in its own letter case.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Folded: what is compared and stored.
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
        &self.key[..self.parent_key]
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
    let good = !segment.is_empty()
        && segment.chars().count() <= NAME_CHARACTERS
        && !matches!(segment, "." | "..")
        && !segment.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | '%' | '?' | '#'));
    if good { Ok(()) } else { Err(InvalidId::Name(segment.chars().take(NAME_CHARACTERS).collect())) }
}

/// A segment that is no name: in ASCII, so that its key is no other's. `providers` begins a provider wherever it
/// stands: an id can be read from either end.
fn check_word(segment: &str) -> Result<(), InvalidId> {
    if segment.eq_ignore_ascii_case("providers") || !segment.is_ascii() {
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

    /// What is in a key once stays there: a key that is read again is its own key.
    #[test]
    fn every_character_folds_by_itself_to_what_stays() {
        for c in '\0'..=char::MAX {
            let folded = fold(&c.to_string());
            assert_eq!(folded.chars().count(), 1, "{c:?}");
            assert_eq!((fold(&folded), folded.is_ascii()), (folded.clone(), c.is_ascii()), "{c:?}");
            assert_eq!(is_group_name(&format!("g{c}")), is_group_name(&format!("g{folded}")), "{c:?}");
        }
        assert_eq!(fold("ÄÖÜ ΣΑΣ Ж \u{212a}\u{130}K"), "äöü σασ ж \u{212a}\u{130}k");
    }

    #[test]
    fn groups_of_any_alphabet_compare_without_case_and_are_found_as_parents() {
        // `Ⱥ` has two bytes, its lower case three; `ẞ` three, and two.
        for (name, other) in [("Entwicklung-Ü", "ENTWICKLUNG-ü"), ("ȺȺẞ", "ⱥⱥß"), ("ΣΑΣ", "σασ"), ("開発", "開発")]
        {
            let id = |name: &str| {
                let group = ResourceId::parse(&format!("/subscriptions/S/resourceGroups/{name}")).unwrap();
                (group.clone(), group.on("Microsoft.Kubernetes", "connectedClusters", "One").unwrap())
            };
            let ((group, cluster), (other_group, other_cluster)) = (id(name), id(other));
            assert_eq!((&group, &cluster), (&other_group, &other_cluster), "{name}");
            assert_eq!((cluster.parent_key(), cluster.parent_text()), (group.key(), group.as_str()), "{name}");
            assert_eq!((cluster.resource_group(), cluster.name()), (Some(name), "One"));
            assert_eq!(ResourceId::parse(cluster.key()).unwrap().key(), cluster.key());
        }
        let group = |name: &str| ResourceId::parse(&format!("/subscriptions/s/resourceGroups/{name}")).unwrap();
        assert_ne!(group("u\u{308}"), group("ü"), "names are not normalised");
        assert_ne!(group("\u{212a}"), group("k"), "the Kelvin sign is no k");
    }

    #[test]
    fn group_names_are_those_of_resource_manager() {
        for good in ["g", "Entwicklung-ü", "開発", "(a)_b.c", "_", "-x", &"ü".repeat(90), "проект1"] {
            assert!(is_group_name(good), "{good}");
        }
        for bad in ["", "a.", ".", "..", "a b", "a/b", "a%62", "u\u{308}", "a\u{202e}b", "a:b", &"ü".repeat(91)] {
            assert!(!is_group_name(bad), "{bad:?}");
        }
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
            "/subscriptions/s/providers/Microsoft.\u{212a}ubernetes/t/a",
            "/subscriptions/s/providers/n/ü/a",
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
