//! Version constraints of Kubernetes as helm reads them (`kubeVersion` of a `Chart.yaml`; Masterminds/semver v3): `>=1.28`,
//! `>= 1.25.0-0, < 1.33`, `~1.30 || ^1.32.1`, `1.28.x`, `1.28 - 1.31`. A version of Kubernetes is three numbers here
//! ([`KubernetesVersion`]), so that each comparison is an interval.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    limits::{COMPARISONS, RANGE_CHARS},
    version::KubernetesVersion,
};

/// Which versions of Kubernetes are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    text: String,
    any_of: Vec<Vec<Comparison>>,
}

/// A text that is no version constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version constraint such as \">=1.28\" or \"1.28.x || ~1.30\"")]
pub struct NoRange(String);

type Triple = (u64, u64, u64);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison {
    from: Triple,
    /// The upper bound, which is not in the range; `None`: there is none.
    to: Option<Triple>,
    /// Whether all other versions are meant.
    not: bool,
}

impl Comparison {
    fn contains(&self, version: Triple) -> bool {
        (self.from <= version && self.to.is_none_or(|to| version < to)) != self.not
    }
}

impl Range {
    /// Whether a version is meant.
    pub fn contains(&self, version: KubernetesVersion) -> bool {
        let version = (version.major, version.minor, version.patch);
        self.any_of.iter().any(|all| all.iter().all(|one| one.contains(version)))
    }
}

impl FromStr for Range {
    type Err = NoRange;

    fn from_str(text: &str) -> Result<Self, NoRange> {
        let wrong = || NoRange(text.chars().take(RANGE_CHARS).collect());
        if text.len() > RANGE_CHARS {
            return Err(wrong());
        }
        let any_of: Vec<_> = text.split("||").map(all_of).collect::<Option<_>>().ok_or_else(wrong)?;
        if any_of.iter().map(Vec::len).sum::<usize>() > COMPARISONS {
            return Err(wrong());
        }
        Ok(Self { text: text.trim().to_owned(), any_of })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Comparisons between spaces, and a comma if one is there; there is one comparison at least.
fn all_of(text: &str) -> Option<Vec<Comparison>> {
    let separator = |c: char| c == ',' || c.is_ascii_whitespace();
    let mut text = text.trim();
    let mut out = Vec::new();
    loop {
        let (operator, rest) = split(text, |c| !"=!<>~^".contains(c));
        let (version, rest) = split(rest.trim_start(), separator);
        let lower = Partial::parse(version)?;
        // `1.28 - 1.31`: a dash between spaces.
        let upper = rest.trim_start().strip_prefix('-').filter(|upper| upper.starts_with(separator));
        if let (true, Some(upper)) = (operator.is_empty(), upper) {
            let (upper, rest) = split(upper.trim_start(), separator);
            out.push(lower.compared(">=")?);
            out.push(Partial::parse(upper)?.compared("<=")?);
            text = rest.trim_start();
        } else {
            out.push(lower.compared(operator)?);
            text = rest.trim_start();
        }
        if text.is_empty() {
            return Some(out);
        }
        // Of two commas in a row, and of one at the end, the next comparison is refused.
        text = text.strip_prefix(',').unwrap_or(text).trim_start();
    }
}

fn split(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

/// A version of which the last numbers may be left open: `1.28`, `1.x`, `*`.
struct Partial {
    numbers: Triple,
    /// How many numbers are there.
    precision: usize,
    /// Whether it is before the version with these numbers.
    prerelease: bool,
}

impl Partial {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (plain, suffix) = text.split_at(end);
        if !suffix.is_empty() {
            // Its form is that of a whole version's.
            semver::Version::parse(&format!("0.0.0{suffix}")).ok()?;
        }
        let mut numbers = [0; 3];
        let (mut precision, mut open) = (0, false);
        let mut parts = plain.split('.');
        for number in &mut numbers {
            match parts.next() {
                None | Some("x" | "X" | "*") => {
                    open = true;
                    if precision == 0 && plain.is_empty() {
                        return None;
                    }
                }
                Some(part) if !open && part.bytes().all(|byte| byte.is_ascii_digit()) => {
                    *number = part.parse().ok()?;
                    precision += 1;
                }
                Some(_) => return None,
            }
        }
        if parts.next().is_some() {
            return None;
        }
        let [major, minor, patch] = numbers;
        Some(Self { numbers: (major, minor, patch), precision, prerelease: precision == 3 && suffix.starts_with('-') })
    }

    /// The first version behind all that this can be.
    fn next(&self) -> Option<Triple> {
        let (major, minor, patch) = self.numbers;
        match self.precision {
            0 => None,
            1 => Some((major.saturating_add(1), 0, 0)),
            2 => Some((major, minor.saturating_add(1), 0)),
            // Nothing with three numbers is the version before them.
            _ if self.prerelease => Some(self.numbers),
            _ => Some((major, minor, patch.saturating_add(1))),
        }
    }

    fn compared(&self, operator: &str) -> Option<Comparison> {
        let (major, minor, _) = self.numbers;
        let (from, next) = (self.numbers, self.next());
        let within = |to: Option<Triple>| Some(Comparison { from, to, not: false });
        match operator {
            "" | "=" => within(next),
            ">=" | "=>" => within(None),
            "!=" => Some(Comparison { from, to: Some(next?), not: true }),
            ">" => Some(Comparison { from: next?, to: None, not: false }),
            "<" if self.precision > 0 => Some(Comparison { from: (0, 0, 0), to: Some(from), not: false }),
            "<=" | "=<" if self.precision > 0 => Some(Comparison { from: (0, 0, 0), to: next, not: false }),
            "~" | "~>" => match self.precision {
                0 | 1 => within(next),
                _ => within(Some((major, minor.saturating_add(1), 0))),
            },
            "^" => match self.precision {
                0 => within(None),
                _ if major > 0 || self.precision == 1 => within(Some((major.saturating_add(1), 0, 0))),
                _ if minor > 0 || self.precision == 2 => within(Some((0, minor.saturating_add(1), 0))),
                _ => within(Some((0, 0, self.numbers.2.saturating_add(1)))),
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(range: &str, version: &str) -> bool {
        let range: Range = range.parse().unwrap_or_else(|error| panic!("{error}"));
        range.contains(version.parse().unwrap())
    }

    #[test]
    fn constraint_holds_as_helm_decides_it() {
        for (range, inside, outside) in [
            (">=1.28", &["1.28.0", "1.40.1", "2.0.0"][..], &["1.27.9", "0.99.0"][..]),
            (">= 1.25.0-0, < 1.33", &["1.25.0", "1.32.9"], &["1.24.9", "1.33.0"]),
            (">=1.25-0", &["1.25.0"], &["1.24.17"]),
            ("<1.30.0-0", &["1.29.9"], &["1.30.0"]),
            ("<=1.30.0-0", &["1.29.9"], &["1.30.0"]),
            (">1.30.0-0", &["1.30.0"], &["1.29.9"]),
            (">1.30", &["1.31.0"], &["1.30.5"]),
            (">1.30.1", &["1.30.2"], &["1.30.1"]),
            ("<=1.30", &["1.30.9"], &["1.31.0"]),
            ("=< 1.30.1", &["1.30.1"], &["1.30.2"]),
            ("1.28", &["1.28.0", "1.28.7"], &["1.29.0", "1.27.9"]),
            ("=1.28.1", &["1.28.1"], &["1.28.2"]),
            ("1.28.1-rc.1", &[], &["1.28.1", "1.28.0"]),
            ("1.x", &["1.0.0", "1.99.0"], &["2.0.0"]),
            ("1.28.x || ~1.30.2", &["1.28.3", "1.30.2", "1.30.9"], &["1.29.0", "1.30.1", "1.31.0"]),
            ("~>1.30", &["1.30.9"], &["1.31.0"]),
            ("~1", &["1.99.0"], &["2.0.0"]),
            ("^1.30.2", &["1.30.2", "1.99.0"], &["1.30.1", "2.0.0"]),
            ("^0.2.3", &["0.2.9"], &["0.3.0"]),
            ("^0.0.3", &["0.0.3"], &["0.0.4"]),
            ("^0.0", &["0.0.9"], &["0.1.0"]),
            ("^0", &["0.9.0"], &["1.0.0"]),
            ("!=1.29", &["1.28.9", "1.30.0"], &["1.29.3"]),
            ("1.28 - 1.31", &["1.28.0", "1.31.9"], &["1.27.9", "1.32.0"]),
            ("1.28 - 1.30 !=1.29.1", &["1.29.0"], &["1.29.1"]),
            (">=v1.28.0 <v1.30.0", &["1.29.0"], &["1.30.0"]),
            ("*", &["0.0.0", "9.9.9"], &[]),
        ] {
            for version in inside {
                assert!(holds(range, version), "{version} is meant by {range}");
            }
            for version in outside {
                assert!(!holds(range, version), "{version} is not meant by {range}");
            }
        }
        assert_eq!(" >=1.28 ".parse::<Range>().unwrap().to_string(), ">=1.28");
    }

    #[test]
    fn text_that_is_no_constraint_is_refused() {
        let long = ">=1.28 ".repeat(50);
        let many = "* ".repeat(COMPARISONS + 1);
        for bad in [
            "",
            " ",
            "||",
            "1.28 ||",
            ">=1.28,",
            ",1.28",
            "1.28,,1.29",
            "<=*",
            ">=",
            "abc",
            "1.2.3.4",
            ">*",
            "<*",
            "!=*",
            "1.x.3",
            "==1.2",
            "><1",
            "1.28 -",
        ]
        .into_iter()
        .chain([long.as_str(), many.as_str(), "1..2", "1.28-", "-1", "99999999999999999999"])
        {
            assert!(bad.parse::<Range>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_alike(text in "[ ,0-9.xX*v<>=!~^|+-]{0,40}|.{0,40}") {
            if let Ok(range) = text.parse::<Range>() {
                prop_assert_eq!(range.to_string().parse::<Range>().unwrap(), range);
            }
        }

        #[test]
        fn version_is_within_what_its_own_numbers_say(major in 0u64..3, minor in 0u64..40, patch in 0u64..20) {
            let version = format!("{major}.{minor}.{patch}");
            for operator in ["", "=", ">=", "<=", "~", "^"] {
                let range = format!("{operator}{version}");
                prop_assert!(holds(&range, &version));
            }
            for operator in ["!=", "<", ">"] {
                let range = format!("{operator}{version}");
                prop_assert!(!holds(&range, &version));
            }
        }
    }
}
