//! Versions of charts (SemVer 2.0.0) and of Kubernetes, parsed once. The order of versions decides what a cluster
//! upgrades to, so a text that is not a version is refused.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::limits::VERSION_CHARS;

/// A chart's version: Semantic Versioning 2.0.0. Some charts write a `v` before it; the text keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    text: String,
    number: semver::Version,
}

/// A text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version such as 1.2.3 or 1.2.3-rc.1 (semver.org)")]
pub struct NoVersion(String);

impl Version {
    /// Without the `v`.
    pub fn number(&self) -> &semver::Version {
        &self.number
    }

    /// Whether both are the same version, with or without a `v`.
    pub fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Which is newer, by the rules of Semantic Versioning: build metadata does not count.
    pub fn precedence(&self, other: &Self) -> Ordering {
        self.number.cmp_precedence(&other.number)
    }
}

impl FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let wrong = || NoVersion(text.chars().take(VERSION_CHARS).collect());
        if text.len() > VERSION_CHARS {
            return Err(wrong());
        }
        let number = semver::Version::parse(text.strip_prefix('v').unwrap_or(text)).map_err(|_| wrong())?;
        Ok(Self { text: text.to_owned(), number })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A version of Kubernetes as an apiserver tells it, such as `v1.34.1+k3s1` or `v1.33.4-gke.1245000`. What vendors append
/// does not count, as in helm 4: `-gke.1` is no version before 1.33.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion {
    /// The first number.
    pub major: u64,
    /// The second number.
    pub minor: u64,
    /// The third number.
    pub patch: u64,
}

impl FromStr for KubernetesVersion {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let wrong = || NoVersion(text.chars().take(VERSION_CHARS).collect());
        let plain = text.strip_prefix('v').unwrap_or(text);
        let end = plain.find(['-', '+']).unwrap_or(plain.len());
        let number = semver::Version::parse(&plain[..end]).map_err(|_| wrong())?;
        Ok(Self { major: number.major, minor: number.minor, patch: number.patch })
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_version_is_strict_but_for_a_v() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert_eq!(version("v1.2.3").to_string(), "v1.2.3");
        assert!(version("v1.2.3").is(&version("1.2.3")) && !version("1.2.3+a").is(&version("1.2.3")));
        assert_eq!(version("1.2.3+a").precedence(&version("1.2.3+b")), Ordering::Equal);
        assert_eq!(version("1.10.0-rc.1").precedence(&version("1.10.0")), Ordering::Less);
        assert_eq!(version("1.10.0").precedence(&version("1.9.0")), Ordering::Greater);
        for bad in ["", "1", "1.2", "vv1.2.3", "V1.2.3", "01.2.3", "1.2.3 ", "1.2.3-", "99999999999999999999.0.0"] {
            assert!(bad.parse::<Version>().is_err(), "{bad:?}");
        }
        assert!(format!("1.2.3-{}", "a".repeat(VERSION_CHARS)).parse::<Version>().is_err());
    }

    #[test]
    fn vendors_suffix_of_kubernetes_does_not_count() {
        for text in ["1.33.4", "v1.33.4", "v1.33.4-gke.1245000", "v1.33.4+k3s1", "v1.33.4-eks-1+x"] {
            assert_eq!(text.parse::<KubernetesVersion>().unwrap().to_string(), "1.33.4", "{text}");
        }
        for bad in ["", "v", "1.33", "x1.33.4", "1.33.4.5"] {
            assert!(bad.parse::<KubernetesVersion>().is_err(), "{bad:?}");
        }
    }
}
