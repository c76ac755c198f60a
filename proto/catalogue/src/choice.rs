//! Which version is installed on a cluster, and which one a version is upgraded to by itself. A release that is deprecated
//! is never chosen; a user can still name it.

use std::fmt;

use crate::{
    index::{ExtensionType, Release},
    version::{KubernetesVersion, Version},
};

/// What a cluster is. What is not known keeps no version out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cluster<'a> {
    /// The version of Kubernetes.
    pub kubernetes: Option<KubernetesVersion>,
    /// The distribution, such as `k3s`.
    pub distribution: Option<&'a str>,
    /// Platforms of its nodes, such as `linux/arm64`.
    pub platforms: &'a [String],
}

/// How far an extension is upgraded by itself (`autoUpgradeMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpgradeMode {
    /// Not at all.
    None,
    /// To newer patch versions.
    Patch,
    /// To newer minor and patch versions, never to another major one.
    #[default]
    Compatible,
    /// To newer patch versions, and to those of the next minor version: none is left out.
    NextMinor,
}

/// Why a release does not work on a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// The chart asks for other versions of Kubernetes.
    KubeVersion {
        /// What it asks for.
        range: String,
        /// What the cluster has.
        kubernetes: KubernetesVersion,
    },
    /// The catalogue excludes the version of Kubernetes.
    Unsupported {
        /// The range of versions that the catalogue excludes.
        range: String,
        /// What the cluster has.
        kubernetes: KubernetesVersion,
    },
    /// The catalogue names other distributions.
    Distribution {
        /// The distributions that the release supports.
        supported: Vec<String>,
        /// What the cluster is.
        distribution: String,
    },
    /// No node has a platform that there are images for.
    Platform {
        /// For which there are.
        supported: Vec<String>,
        /// What the nodes are.
        platforms: Vec<String>,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubeVersion { range, kubernetes } => {
                write!(f, "it needs Kubernetes {range}, and the cluster has {kubernetes}")
            }
            Self::Unsupported { range, kubernetes } => {
                write!(f, "it does not support Kubernetes {range}, and the cluster has {kubernetes}")
            }
            Self::Distribution { supported, distribution } => {
                write!(f, "it supports the distributions {}, and the cluster is {distribution}", supported.join(", "))
            }
            Self::Platform { supported, platforms } => {
                let (supported, platforms) = (supported.join(", "), platforms.join(", "));
                write!(f, "it runs on {supported}, and the cluster's nodes are {platforms}")
            }
        }
    }
}

/// Why no version is chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// No version is in this train.
    #[error("there is no release train {train:?}; there are: {}", .known.join(", "))]
    UnknownTrain {
        /// The one that was asked for.
        train: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// All versions of the train are deprecated.
    #[error("every version in the release train {0:?} is deprecated; name one to install it nevertheless")]
    Deprecated(String),
    /// No version of the train works on the cluster.
    #[error("no version in the release train {train:?} works here; of {newest}: {why}")]
    Unfit {
        /// Name of the release train.
        train: String,
        /// The newest version of the train.
        newest: Version,
        /// Why that one does not.
        why: Box<Unfit>,
    },
}

impl Release {
    /// Whether it works on a cluster.
    ///
    /// # Errors
    /// The first requirement that the cluster does not meet.
    pub fn fits(&self, cluster: &Cluster<'_>) -> Result<(), Unfit> {
        if let Some(kubernetes) = cluster.kubernetes {
            if let Some(range) = self.kube_version.as_ref().filter(|range| !range.contains(kubernetes)) {
                return Err(Unfit::KubeVersion { range: range.to_string(), kubernetes });
            }
            let excluded = self.unsupported_kubernetes_versions.iter().filter(|one| {
                one.distributions.is_empty() || cluster.distribution.is_some_and(|own| has(&one.distributions, own))
            });
            let mut ranges = excluded.flat_map(|one| &one.unsupported_versions);
            if let Some(range) = ranges.find(|range| range.contains(kubernetes)) {
                return Err(Unfit::Unsupported { range: range.to_string(), kubernetes });
            }
        }
        let supported = &self.supported_distributions;
        if let Some(own) = cluster.distribution.filter(|own| !supported.is_empty() && !has(supported, own)) {
            return Err(Unfit::Distribution { supported: supported.clone(), distribution: own.to_owned() });
        }
        let known = !self.platforms.is_empty() && !cluster.platforms.is_empty();
        if known && !cluster.platforms.iter().any(|own| has(&self.platforms, own)) {
            return Err(Unfit::Platform { supported: self.platforms.clone(), platforms: cluster.platforms.to_vec() });
        }
        Ok(())
    }

    /// Whether a train has it; case does not matter.
    pub fn is_in(&self, train: &str) -> bool {
        has(&self.release_trains, train)
    }
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|one| one.eq_ignore_ascii_case(word))
}

/// The newest version of a train for a cluster: what is installed where no version is named.
///
/// # Errors
/// Why there is none.
pub fn newest<'a>(kind: &'a ExtensionType, train: &str, cluster: &Cluster<'_>) -> Result<&'a Release, ChoiceError> {
    let offered = in_train(kind, train)?;
    let mut current = offered.iter().copied().filter(|release| !release.deprecated).peekable();
    let first = *current.peek().ok_or_else(|| ChoiceError::Deprecated(train.to_owned()))?;
    match current.find(|release| release.fits(cluster).is_ok()) {
        Some(release) => Ok(release),
        None => Err(ChoiceError::Unfit {
            train: train.to_owned(),
            newest: first.version.clone(),
            why: match first.fits(cluster) {
                Err(why) => why.into(),
                Ok(()) => unreachable!("none was found that fits"),
            },
        }),
    }
}

/// What a version is upgraded to by itself; nothing where it is the newest that may be.
///
/// # Errors
/// When the train is not known.
pub fn upgrade<'a>(
    kind: &'a ExtensionType,
    train: &str,
    cluster: &Cluster<'_>,
    current: &Version,
    mode: UpgradeMode,
) -> Result<Option<&'a Release>, ChoiceError> {
    let offered = in_train(kind, train)?;
    let from = current.number();
    let reachable = |release: &&Release| {
        let to = release.version.number();
        let within = match mode {
            UpgradeMode::None => false,
            UpgradeMode::Patch => (to.major, to.minor) == (from.major, from.minor),
            UpgradeMode::Compatible => to.major == from.major,
            UpgradeMode::NextMinor => to.major == from.major && to.minor <= from.minor.saturating_add(1),
        };
        within && release.version.precedence(current).is_gt() && !release.deprecated
    };
    Ok(offered.into_iter().filter(reachable).find(|release| release.fits(cluster).is_ok()))
}

/// Which versions are listed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Of this train alone.
    pub train: Option<&'a str>,
    /// Of this major version alone.
    pub major: Option<u64>,
    /// The newest of those alone (`showLatest`).
    pub show_latest: bool,
    /// Those that work on this cluster alone.
    pub cluster: Cluster<'a>,
}

/// Versions of a type, newest first.
///
/// # Errors
/// When the train is not known.
pub fn list<'a>(kind: &'a ExtensionType, filter: &Filter<'_>) -> Result<Vec<&'a Release>, ChoiceError> {
    let mut found = match filter.train {
        Some(train) => in_train(kind, train)?,
        None => newest_first(kind.versions.iter()),
    };
    let matches = |release: &Release| {
        let major = release.version.number().major;
        filter.major.is_none_or(|asked| asked == major) && release.fits(&filter.cluster).is_ok()
    };
    found.retain(|release| matches(release));
    if filter.show_latest {
        let latest = found.iter().position(|release| !release.deprecated).unwrap_or_default();
        found = found.into_iter().skip(latest).take(1).collect();
    }
    Ok(found)
}

fn in_train<'a>(kind: &'a ExtensionType, train: &str) -> Result<Vec<&'a Release>, ChoiceError> {
    let found = newest_first(kind.versions.iter().filter(|release| release.is_in(train)));
    if found.is_empty() {
        let mut known: Vec<_> = kind.versions.iter().flat_map(|release| release.release_trains.clone()).collect();
        known.sort_unstable();
        known.dedup();
        return Err(ChoiceError::UnknownTrain { train: train.to_owned(), known });
    }
    Ok(found)
}

fn newest_first<'a>(releases: impl Iterator<Item = &'a Release>) -> Vec<&'a Release> {
    let mut all: Vec<_> = releases.collect();
    all.sort_by(|a, b| b.version.precedence(&a.version));
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{index::UnsupportedVersions, testing};

    fn kind(versions: &[(&str, &[&str])]) -> ExtensionType {
        testing::index(versions).types.remove(0)
    }

    fn shown(release: &Release) -> String {
        release.version.to_string()
    }

    fn upgraded(kind: &ExtensionType, train: &str, current: &str, mode: UpgradeMode) -> Option<String> {
        upgrade(kind, train, &Cluster::default(), &current.parse().unwrap(), mode).unwrap().map(shown)
    }

    #[test]
    fn newest_of_a_train_is_chosen_by_precedence() {
        let kind = kind(&[
            ("1.9.0", &["Stable"]),
            ("1.10.0", &["Stable"]),
            ("v2.0.0-rc.1", &["Preview"]),
            ("1.11.0", &["Preview"]),
        ]);
        let any = Cluster::default();
        assert_eq!(shown(newest(&kind, "stable", &any).unwrap()), "1.10.0");
        assert_eq!(shown(newest(&kind, "Preview", &any).unwrap()), "v2.0.0-rc.1");
        let unknown = newest(&kind, "Nightly", &any).unwrap_err();
        assert_eq!(unknown.to_string(), r#"there is no release train "Nightly"; there are: Preview, Stable"#);
        assert!(upgrade(&kind, "x", &any, &"1.9.0".parse().unwrap(), UpgradeMode::None).is_err());
    }

    #[test]
    fn upgrade_stays_within_its_mode_and_its_major() {
        let kind = kind(&[
            ("1.0.0", &["Stable"]),
            ("1.0.3", &["Stable"]),
            ("1.2.0", &["Stable"]),
            ("1.3.0", &["Preview"]),
            ("2.0.0", &["Stable"]),
            ("0.1.0", &["Stable"]),
            ("0.2.0", &["Stable"]),
        ]);
        assert_eq!(upgraded(&kind, "Stable", "1.0.0", UpgradeMode::None), None);
        assert_eq!(upgraded(&kind, "Stable", "1.0.0", UpgradeMode::Patch).as_deref(), Some("1.0.3"));
        assert_eq!(upgraded(&kind, "Stable", "1.0.0", UpgradeMode::Compatible).as_deref(), Some("1.2.0"));
        assert_eq!(upgraded(&kind, "Stable", "1.2.0", UpgradeMode::Compatible), None);
        assert_eq!(upgraded(&kind, "Stable", "1.3.0", UpgradeMode::Compatible), None, "never back");
        assert_eq!(upgraded(&kind, "Stable", "0.1.0", UpgradeMode::Compatible).as_deref(), Some("0.2.0"));
        assert_eq!(upgraded(&kind, "Stable", "1.0.0", UpgradeMode::NextMinor).as_deref(), Some("1.0.3"));
        assert_eq!(upgraded(&kind, "Stable", "1.1.0", UpgradeMode::NextMinor).as_deref(), Some("1.2.0"));
        assert_eq!(upgraded(&kind, "Stable", "0.0.9", UpgradeMode::NextMinor).as_deref(), Some("0.1.0"));
    }

    #[test]
    fn deprecated_version_is_not_chosen() {
        let mut kind = kind(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])]);
        kind.versions[1].deprecated = true;
        let any = Cluster::default();
        assert_eq!(shown(newest(&kind, "Stable", &any).unwrap()), "1.0.0");
        assert_eq!(upgraded(&kind, "Stable", "1.0.0", UpgradeMode::Compatible), None);
        let latest = list(&kind, &Filter { show_latest: true, ..Filter::default() }).unwrap();
        assert_eq!(latest.into_iter().map(shown).collect::<Vec<_>>(), ["1.0.0"]);
        kind.versions[0].deprecated = true;
        assert_eq!(newest(&kind, "Stable", &any).unwrap_err(), ChoiceError::Deprecated("Stable".to_owned()));
    }

    #[test]
    fn release_that_does_not_fit_is_passed_over_with_a_reason() {
        let mut kind = kind(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])]);
        let arm = ["linux/arm64".to_owned()];
        let cluster = |kubernetes: &str| Cluster {
            kubernetes: Some(kubernetes.parse().unwrap()),
            distribution: Some("K3s"),
            platforms: &arm,
        };
        let newer = &mut kind.versions[1];
        newer.kube_version = Some(">=1.30".parse().unwrap());
        newer.unsupported_kubernetes_versions = vec![
            UnsupportedVersions {
                distributions: vec!["aks".to_owned()],
                unsupported_versions: vec!["*".parse().unwrap()],
            },
            UnsupportedVersions {
                distributions: vec!["k3s".to_owned()],
                unsupported_versions: vec!["1.33".parse().unwrap()],
            },
        ];
        assert_eq!(shown(newest(&kind, "Stable", &cluster("v1.31.0+k3s1")).unwrap()), "1.1.0");
        assert_eq!(shown(newest(&kind, "Stable", &cluster("v1.29.9+k3s1")).unwrap()), "1.0.0");
        assert_eq!(shown(newest(&kind, "Stable", &cluster("v1.33.1+k3s1")).unwrap()), "1.0.0");
        assert_eq!(shown(newest(&kind, "Stable", &Cluster::default()).unwrap()), "1.1.0");
        for (change, why) in [
            ((|_: &mut Release| ()) as fn(&mut Release), "it needs Kubernetes >=1.30, and the cluster has 1.29.0"),
            (
                |release| release.kube_version = Some("*".parse().unwrap()),
                "it supports the distributions aks, and the cluster is K3s",
            ),
            (
                |release| release.supported_distributions.clear(),
                "it runs on linux/amd64, and the cluster's nodes are linux/arm64",
            ),
        ] {
            kind.versions.truncate(2);
            kind.versions[0].deprecated = true;
            let newer = &mut kind.versions[1];
            newer.platforms = vec!["linux/amd64".to_owned()];
            if newer.kube_version.as_ref().unwrap().to_string() == ">=1.30" {
                newer.supported_distributions = vec!["aks".to_owned()];
            }
            change(newer);
            let error = newest(&kind, "Stable", &cluster("1.29.0")).unwrap_err();
            assert!(error.to_string().ends_with(&format!("of 1.1.0: {why}")), "{error}");
        }
    }

    #[test]
    fn list_is_newest_first_and_filtered() {
        let kind = kind(&[("1.0.0", &["Stable"]), ("2.0.0", &["Stable"]), ("1.5.0", &["Preview", "Stable"])]);
        let versions = |filter: &Filter<'_>| list(&kind, filter).unwrap().into_iter().map(shown).collect::<Vec<_>>();
        assert_eq!(versions(&Filter::default()), ["2.0.0", "1.5.0", "1.0.0"]);
        assert_eq!(versions(&Filter { major: Some(1), ..Filter::default() }), ["1.5.0", "1.0.0"]);
        assert_eq!(versions(&Filter { major: Some(1), show_latest: true, ..Filter::default() }), ["1.5.0"]);
        assert_eq!(versions(&Filter { train: Some("preview"), ..Filter::default() }), ["1.5.0"]);
        assert!(versions(&Filter { major: Some(3), show_latest: true, ..Filter::default() }).is_empty());
        assert!(list(&kind, &Filter { train: Some("x"), ..Filter::default() }).is_err());
    }

    /// Releases with any of two trains, deprecation and a constraint on Kubernetes.
    fn kinds() -> impl Strategy<Value = ExtensionType> {
        let release = (0u64..3, 0u64..3, 0u64..3, 1usize..4, any::<bool>(), any::<bool>());
        proptest::collection::vec(release, 1..12).prop_map(|all| {
            let mut kind = kind(&[]);
            for (major, minor, patch, trains, deprecated, newer) in all {
                let version = format!("{major}.{minor}.{patch}");
                if kind.release(&version.parse().unwrap()).is_some() {
                    continue;
                }
                let trains = [&["Stable"][..], &["Preview"], &["Stable", "Preview"]][trains - 1];
                let mut release = testing::release(&version, trains);
                release.deprecated = deprecated;
                release.kube_version = newer.then(|| ">=1.30".parse().unwrap());
                kind.versions.push(release);
            }
            kind
        })
    }

    proptest! {
        #[test]
        fn upgrade_is_the_newest_that_may_be(
            kind in kinds(), old in any::<bool>(), patch in any::<bool>(), from in (0u64..3, 0u64..3, 0u64..3)
        ) {
            let kubernetes = if old { "1.29.0" } else { "1.31.0" };
            let cluster = Cluster { kubernetes: Some(kubernetes.parse().unwrap()), ..Cluster::default() };
            let current: Version = format!("{}.{}.{}", from.0, from.1, from.2).parse().unwrap();
            let mode = if patch { UpgradeMode::Patch } else { UpgradeMode::Compatible };
            let Ok(chosen) = upgrade(&kind, "Stable", &cluster, &current, mode) else {
                prop_assert!(kind.versions.iter().all(|release| !release.is_in("Stable")));
                return Ok(());
            };
            let may = |release: &Release| {
                let to = release.version.number();
                release.is_in("Stable") && !release.deprecated && release.fits(&cluster).is_ok()
                    && to > current.number() && to.major == from.0 && (!patch || to.minor == from.1)
            };
            match chosen {
                None => prop_assert!(!kind.versions.iter().any(may)),
                Some(chosen) => {
                    prop_assert!(may(chosen));
                    let newer = |release: &&Release| may(release) && release.version.precedence(&chosen.version).is_gt();
                    prop_assert!(kind.versions.iter().find(newer).is_none());
                    // An upgraded version stays.
                    let again = upgrade(&kind, "Stable", &cluster, &chosen.version, mode).unwrap();
                    prop_assert!(again.is_none());
                }
            }
            let none = upgrade(&kind, "Stable", &cluster, &current, UpgradeMode::None).unwrap();
            prop_assert!(none.is_none());
        }

        #[test]
        fn newest_fits_and_nothing_newer_does(kind in kinds(), old in any::<bool>()) {
            let kubernetes = if old { "1.29.0" } else { "1.31.0" };
            let cluster = Cluster { kubernetes: Some(kubernetes.parse().unwrap()), ..Cluster::default() };
            let may = |release: &&Release| {
                release.is_in("Stable") && !release.deprecated && release.fits(&cluster).is_ok()
            };
            let best = kind.versions.iter().filter(may).max_by(|a, b| a.version.precedence(&b.version));
            prop_assert_eq!(newest(&kind, "Stable", &cluster).ok().map(shown), best.map(shown));
        }
    }
}
