//! Names of operations, such as `Microsoft.Kubernetes/connectedClusters/read`, and patterns over them. ARM compares
//! both without case, so both are kept in lower case.

use std::{collections::HashSet, fmt};

use super::budget::{Budget, Exhausted};

/// The longest operation or pattern that is taken, in bytes.
pub const ACTION_LENGTH: usize = 512;

/// One operation, in lower case.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Action {
    name: Box<str>,
    /// What it is called as one of many. A pattern that matches either matches it: listed by one name and excepted by
    /// the other it is excepted.
    also: Option<Box<str>>,
}

/// Why a text is no [`Pattern`] (feature Z4: answered with 400).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an operation: {why}")]
pub struct InvalidPattern {
    text: String,
    why: &'static str,
}

impl Action {
    /// The operation of this name. What no pattern can match is simply never allowed.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_ascii_lowercase().into(), also: None }
    }

    /// The same, which patterns also know by another name.
    #[must_use]
    pub fn also(self, name: &str) -> Self {
        Self { also: Some(name.to_ascii_lowercase().into()), ..self }
    }

    /// In lower case.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.name).chain(self.also.as_deref())
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An operation, or several of them by `*`, which stands for any characters, also `/` and none (Azure RBAC).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// Reads one. At most [`ACTION_LENGTH`] bytes of `A-Z a-z 0-9 . - _ / * :`.
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        let fault = |why| InvalidPattern { text: text.chars().take(80).collect(), why };
        if text.is_empty() {
            return Err(fault("it is empty"));
        }
        if text.len() > ACTION_LENGTH {
            return Err(fault("it is longer than 512 bytes"));
        }
        let known = |b: u8| b.is_ascii_alphanumeric() || b".-_/*:".contains(&b);
        if !text.bytes().all(known) {
            return Err(fault("only letters, digits and . - _ / * : may be in it"));
        }
        if text.contains("**") {
            return Err(fault("one * stands for any characters; write one"));
        }
        if text != "*" && !text.contains('/') {
            return Err(fault("a provider and an operation are separated by /, as in Microsoft.Kubernetes/*/read"));
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// In lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for several operations.
    pub fn is_wild(&self) -> bool {
        self.0.contains('*')
    }

    /// Whether the operation is one of these.
    pub fn matches(&self, action: &Action) -> bool {
        action.names().any(|name| self.matches_name(name))
    }

    /// Each part between two `*` is taken where it is found first, which is never too late for those behind it. The
    /// search of the standard library is linear, so all of it takes time in proportion to the lengths of pattern and
    /// name, added.
    fn matches_name(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let begin = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(begin) else { return false };
        let Some(end) = parts.next_back() else { return rest.is_empty() };
        match rest.strip_suffix(end) {
            Some(middle) => rest = middle,
            None => return false,
        }
        parts.all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }

    /// Steps of [`Budget`] that a comparison with a name of `bytes` takes at most.
    fn steps(&self, bytes: usize) -> usize {
        const PATTERN: usize = 16;
        const PART: usize = 64;
        // A prefix or a suffix is refused at its first other byte; of most patterns that is all.
        match self.0.bytes().filter(|byte| *byte == b'*').count() {
            0 | 1 => PATTERN + self.0.len(),
            stars => PATTERN + self.0.len() + bytes + (stars - 1) * PART,
        }
    }
}

/// A pattern of a list, with what it costs.
#[derive(Debug, Clone)]
struct Wild {
    pattern: Pattern,
    /// [`Pattern::steps`] but for the name.
    steps: usize,
    /// Whether the whole name is looked at.
    searches: bool,
}

/// Patterns of one list of a role, ready to be asked often.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    exact: HashSet<Box<str>>,
    wild: Vec<Wild>,
}

impl Patterns {
    /// Whether one of them matches.
    ///
    /// # Errors
    /// When the budget does not suffice to know.
    pub fn any(&self, action: &Action, budget: &mut Budget) -> Result<bool, Exhausted> {
        for name in action.names() {
            if !self.exact.is_empty() {
                budget.spend(32 + name.len())?;
                if self.exact.contains(name) {
                    return Ok(true);
                }
            }
            for wild in &self.wild {
                budget.spend(if wild.searches { wild.steps + name.len() } else { wild.steps })?;
                if wild.pattern.matches_name(name) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Steps that [`any`](Self::any) takes at most for a name of [`ACTION_LENGTH`] bytes.
    pub fn steps(&self) -> usize {
        let wild = self.wild.iter().map(|wild| wild.steps + if wild.searches { ACTION_LENGTH } else { 0 });
        wild.sum()
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        let mut out = Self::default();
        for pattern in patterns {
            if pattern.is_wild() {
                let steps = pattern.steps(0);
                let searches = pattern.steps(1) > steps;
                out.wild.push(Wild { pattern, steps, searches });
            } else {
                out.exact.insert(pattern.0);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, action: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(&Action::new(action))
    }

    #[test]
    fn z4_patterns_match_as_in_arm() {
        assert!(matches("*", "Microsoft.Kubernetes/connectedClusters/read"));
        assert!(matches("*/read", "Microsoft.Kubernetes/connectedClusters/read"));
        assert!(!matches("*/read", "Microsoft.Kubernetes/connectedClusters/readiness"));
        assert!(matches(
            "microsoft.kubernetes/CONNECTEDCLUSTERS/*",
            "Microsoft.Kubernetes/connectedClusters/pods/exec/action"
        ));
        assert!(matches("Microsoft.Authorization/*/read", "Microsoft.Authorization/roleAssignments/read"));
        assert!(matches("a/*", "a/"));
        assert!(!matches("a/*", "a"));
        assert!(matches("a/b*b", "a/bb"));
        assert!(!matches("a/b*b", "a/b"));
    }

    #[test]
    fn z4_bad_wildcards_are_refused() {
        for bad in ["", "read", "a/**", "a b/read", "a/é", "a/?", &"a/".repeat(300)] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    /// The slow, obvious one.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| model(rest, &text[at..])),
            Some((first, rest)) => text.split_first().is_some_and(|(have, tail)| have == first && model(rest, tail)),
        }
    }

    proptest! {
        #[test]
        fn matching_equals_the_model(pattern in "[ab/]{0,3}(\\*[ab/]{1,2}){0,3}\\*?", text in "[ab/]{0,12}") {
            if let Ok(parsed) = Pattern::parse(&pattern) {
                prop_assert_eq!(parsed.matches(&Action::new(&text)), model(pattern.as_bytes(), text.as_bytes()));
            }
        }
    }
}
