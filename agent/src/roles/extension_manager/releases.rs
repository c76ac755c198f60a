//! Releases as helm keeps them: Secrets whose labels say name, revision and state. One list of their metadata shows what
//! somebody removed or changed, without a process for each release. A release of ours has labels of ours, which helm takes
//! along from revision to revision.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::ListParams};

use crate::chain;

/// On releases of ours: the extension's name.
pub const OWNER: &str = "towline.io/extension";
/// On releases of ours: what they were made of.
pub const FINGERPRINT: &str = "towline.io/fingerprint";
/// On releases of ours: the chart's version, `+` as `_`.
pub const VERSION: &str = "towline.io/version";
/// Secrets of one page.
const PAGE: u32 = 500;
/// Releases that are looked at.
const PAGES: usize = 20;

/// A revision's state, as helm calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is what runs.
    Deployed,
    /// Another one followed.
    Superseded,
    /// Its installation, upgrade or rollback failed.
    Failed,
    /// helm works at it, or was killed while it did.
    Pending,
    /// It is being taken down, or that was killed.
    Uninstalling,
    /// It was taken down and its history kept.
    Uninstalled,
    /// A word of a newer helm.
    Other,
}

impl Stage {
    fn of(word: &str) -> Self {
        match word {
            "deployed" => Self::Deployed,
            "superseded" => Self::Superseded,
            "failed" => Self::Failed,
            "uninstalling" => Self::Uninstalling,
            "uninstalled" => Self::Uninstalled,
            word if word.starts_with("pending-") => Self::Pending,
            _ => Self::Other,
        }
    }
}

/// A revision of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Helm's number of the revision; the newest has the largest.
    pub number: u64,
    /// The state in Helm's label `status`.
    pub stage: Stage,
    /// What it was made of, if we made it.
    pub fingerprint: Option<String>,
    /// The chart's version, if we made it.
    pub version: Option<String>,
    /// When it came to its state.
    pub begun: Option<SystemTime>,
}

/// A Helm release, put together from the Secrets of its revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Namespace of the Secrets that hold the release.
    pub namespace: String,
    /// The extension that it is of; none: it is not ours.
    pub owner: Option<String>,
    /// The newest first; never empty.
    pub revisions: Vec<Revision>,
}

impl Release {
    /// The newest revision.
    pub fn last(&self) -> &Revision {
        &self.revisions[0]
    }

    /// The newest revision, if it runs and is made of what the revision `good` was: helm went back to that.
    pub fn back_to(&self, good: u64) -> Option<u64> {
        let last = self.last();
        let same = |one: &&Revision| one.number == good && one.fingerprint == last.fingerprint;
        (last.stage == Stage::Deployed && self.revisions.iter().find(same).is_some()).then_some(last.number)
    }

    /// The last revision that ran, as its labels say.
    pub fn ran(&self) -> Option<&Revision> {
        let ran = |stage| self.revisions.iter().find(|revision| revision.stage == stage);
        ran(Stage::Deployed).or_else(|| ran(Stage::Superseded))
    }
}

/// By namespace and name.
pub type Releases = BTreeMap<(String, String), Release>;

fn gather(secrets: impl Iterator<Item = kube::core::ObjectMeta>) -> Releases {
    let mut found = Releases::new();
    for meta in secrets {
        let labels = meta.labels.unwrap_or_default();
        let read = || {
            let number = labels.get("version")?.parse().ok()?;
            let (namespace, name) = (meta.namespace.clone()?, labels.get("name")?.clone());
            let (stage, fingerprint) = (Stage::of(labels.get("status")?), labels.get(FINGERPRINT).cloned());
            let version = labels.get(VERSION).map(|text| text.replace('_', "+"));
            let seconds = labels.get("modifiedAt").and_then(|text| text.parse().ok());
            let changed = seconds.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at)));
            let begun = changed.or_else(|| Some(SystemTime::from(meta.creation_timestamp.as_ref()?.0)));
            Some((namespace, name, Revision { number, stage, fingerprint, version, begun }))
        };
        let Some((namespace, name, revision)) = read() else { continue };
        let release = found.entry((namespace.clone(), name)).or_insert_with(|| Release {
            namespace,
            owner: None,
            revisions: Vec::new(),
        });
        let newest = release.revisions.iter().all(|known| known.number < revision.number);
        if newest {
            release.owner = labels.get(OWNER).cloned();
        }
        release.revisions.push(revision);
    }
    for release in found.values_mut() {
        release.revisions.sort_by_key(|revision| std::cmp::Reverse(revision.number));
    }
    found
}

/// The releases that these labels select, in one namespace or in all.
///
/// # Errors
/// What the apiserver says.
pub async fn list(client: &Client, namespace: Option<&str>, labels: &str) -> Result<Releases, String> {
    let found = selected(client, namespace, labels).await;
    found.map_err(|err| format!("helm's releases cannot be read: {}", chain(&err)))
}

/// As [`list`], with the error as it came.
///
/// # Errors
/// What the apiserver says.
pub async fn selected(client: &Client, namespace: Option<&str>, labels: &str) -> Result<Releases, kube::Error> {
    let api: Api<Secret> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut params = ListParams::default().labels(&format!("owner=helm{labels}")).limit(PAGE);
    let mut all = Vec::new();
    for _ in 0..PAGES {
        let page = api.list_metadata(&params).await?;
        all.extend(page.items.into_iter().map(|secret| secret.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(gather(all.into_iter()))
}

/// Reads one release from the apiserver; `None` if it has no revision.
///
/// # Errors
/// What the apiserver says.
pub async fn one(client: &Client, namespace: &str, name: &str) -> Result<Option<Release>, String> {
    let found = list(client, Some(namespace), &format!(",name={name}")).await?;
    Ok(found.into_values().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(namespace: &str, name: &str, version: u64, status: &str, owner: Option<&str>) -> kube::core::ObjectMeta {
        let mut labels: BTreeMap<String, String> = [("name", name), ("status", status), ("owner", "helm")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        labels.insert("version".to_owned(), version.to_string());
        labels.extend(owner.map(|owner| (OWNER.to_owned(), owner.to_owned())));
        kube::core::ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            ..kube::core::ObjectMeta::default()
        }
    }

    #[test]
    fn release_is_the_newest_of_its_revisions_and_goes_back_to_the_last_that_ran() {
        let all = gather(
            [
                meta("a", "web", 9, "superseded", Some("web")),
                meta("a", "web", 11, "pending-upgrade", Some("web")),
                meta("a", "web", 10, "deployed", Some("web")),
                meta("b", "web", 1, "pending-install", None),
            ]
            .into_iter(),
        );
        let web = &all[&("a".to_owned(), "web".to_owned())];
        let ran = |release: &Release| release.ran().map(|revision| revision.number);
        assert_eq!((web.last().number, web.last().stage, ran(web)), (11, Stage::Pending, Some(10)));
        assert_eq!(web.owner.as_deref(), Some("web"));
        let other = &all[&("b".to_owned(), "web".to_owned())];
        assert_eq!((ran(other), other.owner.as_deref()), (None, None));
    }
}
