//! Every field of an index is within its bounds and of its form.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChartReference, ExtensionType, Index, IndexError, Release, Scope, SupportedScopes};
use crate::{
    digest::Sha256,
    limits::{ARCHIVE_BYTES, DESCRIPTION_CHARS, KEYS, LIST, SETTINGS, TEXT_CHARS, TYPES, VERSIONS},
};

type Result<T = (), E = IndexError> = std::result::Result<T, E>;

fn invalid(place: impl Into<String>, reason: impl Into<String>) -> IndexError {
    IndexError::Invalid { place: place.into(), reason: reason.into() }
}

fn require(holds: bool, place: &str, reason: &str) -> Result {
    if holds { Ok(()) } else { Err(invalid(place, reason)) }
}

pub(super) fn index(index: &Index) -> Result {
    require(index.format == super::FORMAT, "format", "must be 1")?;
    require(index.expires.is_none_or(|end| end > index.made), "expires", "must be later than made")?;
    count(index.keys.len(), 1, KEYS, "keys")?;
    require(index.keys.iter().collect::<BTreeSet<_>>().len() == index.keys.len(), "keys", "holds a key twice")?;
    count(index.types.len(), 0, TYPES, "types")?;
    let mut names = BTreeSet::new();
    let mut charts = BTreeMap::new();
    for (at, one) in index.types.iter().enumerate() {
        let place = format!("types[{at}]");
        require(names.insert(&one.name), &place, &format!("the type {:?} is there twice", one.name))?;
        extension_type(one, &place, &mut charts)?;
    }
    Ok(())
}

fn extension_type<'a>(one: &'a ExtensionType, place: &str, charts: &mut BTreeMap<&'a str, Sha256>) -> Result {
    let at = |field: &str| format!("{place}.{field}");
    let named = one.name.split('.').all(is_label) && one.name.len() <= 63;
    require(named, &at("name"), "1 to 63 lower-case letters, digits, - and .")?;
    text(&one.publisher, TEXT_CHARS, &at("publisher"))?;
    text(&one.description, DESCRIPTION_CHARS, &at("description"))?;
    scopes(&one.supported_scopes, &at("supportedScopes"))?;
    for (index, rule) in one.allowed_settings.iter().flatten().enumerate() {
        let place = format!("{}[{index}]", at("allowedSettings"));
        count(index + 1, 1, SETTINGS, &at("allowedSettings"))?;
        require(!rule.key.is_empty() && rule.key != ".*", &place, "a key is not empty")?;
        text(&rule.key, TEXT_CHARS, &place)?;
        count(rule.values.as_ref().map_or(1, Vec::len), 1, SETTINGS, &place)?;
        for value in rule.values.iter().flatten() {
            text(&value.to_string(), DESCRIPTION_CHARS, &place)?;
        }
    }
    count(one.versions.len(), 0, VERSIONS, &at("versions"))?;
    for (index, version) in one.versions.iter().enumerate() {
        release(version, &format!("{}[{index}]", at("versions")), charts)?;
    }
    let mut sorted: Vec<_> = one.versions.iter().map(|release| &release.version).collect();
    sorted.sort_by(|a, b| a.precedence(b));
    let twice = sorted.windows(2).find(|pair| pair[0].precedence(pair[1]).is_eq());
    twice.map_or(Ok(()), |pair| Err(invalid(at("versions"), format!("{} and {} are one version", pair[0], pair[1]))))
}

fn scopes(scopes: &SupportedScopes, place: &str) -> Result {
    count(scopes.scopes.len(), 1, 2, &format!("{place}.scopes"))?;
    let has = |scope| scopes.scopes.contains(&scope);
    require(has(scopes.default_scope), &format!("{place}.defaultScope"), "must be one of the scopes")?;
    let place = format!("{place}.clusterScopeSettings");
    require(
        has(Scope::Cluster) == scopes.cluster_scope_settings.is_some(),
        &place,
        "must be there if, and only if, the scope cluster is",
    )?;
    scopes.cluster_scope_settings.as_ref().map_or(Ok(()), |settings| {
        let namespace = &settings.default_release_namespace;
        require(namespace.len() <= 63 && is_label(namespace), &place, "the namespace is not a name of a namespace")
    })
}

fn release<'a>(release: &'a Release, place: &str, charts: &mut BTreeMap<&'a str, Sha256>) -> Result {
    let at = |field: &str| format!("{place}.{field}");
    chart(&release.chart, &at("chart"))?;
    let known = charts.entry(&release.chart.file).or_insert(release.chart.sha256);
    require(*known == release.chart.sha256, &at("chart"), "another version has this file with another digest")?;
    count(release.release_trains.len(), 1, LIST, &at("releaseTrains"))?;
    let mut trains = BTreeSet::new();
    for train in &release.release_trains {
        require(is_word(train), &at("releaseTrains"), "letters, digits, -, _ and ., at most 63")?;
        require(trains.insert(train.to_ascii_lowercase()), &at("releaseTrains"), "holds a train twice")?;
    }
    count(release.unsupported_kubernetes_versions.len(), 0, LIST, &at("unsupportedKubernetesVersions"))?;
    for one in &release.unsupported_kubernetes_versions {
        count(one.unsupported_versions.len(), 1, LIST, &at("unsupportedKubernetesVersions"))?;
        words(&one.distributions, &at("unsupportedKubernetesVersions"))?;
    }
    count(release.locked_settings.len(), 0, SETTINGS, &at("lockedSettings"))?;
    for key in &release.locked_settings {
        require(!key.is_empty(), &at("lockedSettings"), "a key is not empty")?;
        text(key, TEXT_CHARS, &at("lockedSettings"))?;
    }
    words(&release.supported_distributions, &at("supportedDistributions"))?;
    count(release.platforms.len(), 0, LIST, &at("platforms"))?;
    for platform in &release.platforms {
        let valid = platform.split('/').all(is_word) && platform.matches('/').count() == 1;
        require(valid, &at("platforms"), "a platform is such as linux/amd64")?;
    }
    Ok(())
}

fn chart(chart: &ChartReference, place: &str) -> Result {
    let named = chart.file.len() <= TEXT_CHARS && !chart.file.starts_with('.') && chart.file.ends_with(".tgz");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    require(named && chart.file.bytes().all(plain), &format!("{place}.file"), "no file name such as web-1.2.3.tgz")?;
    text(&chart.name, TEXT_CHARS, &format!("{place}.name"))?;
    require(!chart.name.is_empty(), &format!("{place}.name"), "is empty")?;
    let reason = format!("1 to {ARCHIVE_BYTES} bytes");
    require((1..=ARCHIVE_BYTES).contains(&chart.size), &format!("{place}.size"), &reason)
}

fn count(count: usize, least: usize, most: usize, place: &str) -> Result {
    require((least..=most).contains(&count), place, &format!("{count} entries; {least} to {most} are allowed"))
}

fn words(list: &[String], place: &str) -> Result {
    count(list.len(), 0, LIST, place)?;
    require(list.iter().all(|word| is_word(word)), place, "letters, digits, -, _ and ., at most 63")
}

fn text(text: &str, most: usize, place: &str) -> Result {
    let reason = format!("at most {most} characters, none of which is a control character");
    require(text.chars().take(most + 1).count() <= most && !text.chars().any(char::is_control), place, &reason)
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=63).contains(&text.len()) && text.bytes().all(plain)
}

/// Of a DNS name (RFC 1123).
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}
