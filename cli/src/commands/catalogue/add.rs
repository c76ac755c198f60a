//! `towline catalogue add` and `remove`: put a version of a chart into a catalogue's folder and its index, and take one
//! out. The chart is checked as a cluster would check it. The index has to be signed again afterwards (`sign`).

use std::{fs, path::PathBuf};

use anyhow::{Context as _, anyhow};
use catalogue::{
    chart::Chart,
    digest::Sha256,
    index::{
        AllowedSetting, ChartReference, ClusterScopeSettings, ExtensionType, Index, Release, Scope, SettingValue,
        SupportedScopes, UnsupportedVersions,
    },
    limits::DESCRIPTION_CHARS,
    range::Range,
    version::Version,
};
use clap::ValueEnum;
use gateway::files;
use serde_json::Value;

use super::{find, folder, folder::Folder, row};
use crate::{
    failure::{Failure, Outcome},
    terminal::{line, say},
};

/// A scope as typed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScopeWord {
    /// For the whole cluster.
    Cluster,
    /// In one namespace.
    Namespace,
}

/// `towline catalogue add`. What is said of the type is kept by later versions, until it is said again.
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The chart, as helm package makes it
    #[arg(value_name = "CHART.tgz")]
    chart: PathBuf,
    /// The extension type, such as example.ingress; made if the catalogue does not have it
    #[arg(long = "type", value_name = "NAME")]
    kind: String,
    /// A release train, such as Stable or Preview; repeat for more
    #[arg(long = "train", value_name = "TRAIN", required = true)]
    trains: Vec<String>,
    /// Choose it no longer, unless a user names it
    #[arg(long)]
    deprecated: bool,
    /// A platform that it has images for, such as linux/arm64; repeat for more, all without this
    #[arg(long = "platform", value_name = "OS/ARCH")]
    platforms: Vec<String>,
    /// A distribution that it works on, such as k3s; repeat for more, all without this
    #[arg(long = "distribution", value_name = "NAME")]
    distributions: Vec<String>,
    /// Versions of Kubernetes that it does not work with, such as "<1.28", beside what the chart says; repeat for more
    #[arg(long = "unsupported-kubernetes", value_name = "RANGE")]
    unsupported: Vec<Range>,
    /// Who answers for the type
    #[arg(long, value_name = "TEXT", help_heading = "Of the type")]
    publisher: Option<String>,
    /// What the type is; that of the chart without this
    #[arg(long, value_name = "TEXT", help_heading = "Of the type")]
    description: Option<String>,
    /// Where it can be installed; repeat for both. The first is the default; cluster without this
    #[arg(long = "scope", value_enum, value_name = "SCOPE", help_heading = "Of the type")]
    scopes: Vec<ScopeWord>,
    /// The namespace for a whole cluster, unless a user names one; that of the type's name without this
    #[arg(long, value_name = "NAMESPACE", help_heading = "Of the type")]
    release_namespace: Option<String>,
    /// Let a cluster have several
    #[arg(long, help_heading = "Of the type")]
    multiple_instances: bool,
    /// A setting that users may give, and its values if they may not give any; repeat for more, all without this
    #[arg(long = "setting", value_name = "KEY[=VALUE,...]", value_parser = setting, help_heading = "Of the type")]
    settings: Vec<AllowedSetting>,
}

impl AddArgs {
    /// Checks the chart, copies it and notes it in the index.
    pub fn run(self, folder: &Folder) -> Outcome<Value> {
        let (_lock, mut index) = folder.edit()?;
        let bytes = folder::read_chart(&self.chart)?;
        let chart = Chart::read(&bytes).with_context(|| self.chart.display().to_string())?;
        let reference = ChartReference {
            file: format!("{}-{}.tgz", chart.name, chart.version),
            name: chart.name.clone(),
            size: bytes.len() as u64,
            sha256: Sha256::of(&bytes),
        };
        changed(&index, &self.kind, &chart, &reference)?;
        let path = folder.chart(&reference);
        let at = match index.types.iter().position(|one| one.name.eq_ignore_ascii_case(&self.kind)) {
            Some(at) => at,
            None => {
                index.types.push(new_type(&self.kind, &chart));
                index.types.len() - 1
            }
        };
        let kind = &mut index.types[at];
        self.describe(kind);
        kind.versions.retain(|known| !known.version.is(&chart.version));
        let release = self.release(chart, reference);
        let added = row(kind, &release)?;
        kind.versions.push(release);
        kind.versions.sort_by(|a, b| b.version.precedence(&a.version));
        index.types.sort_by(|a, b| a.name.cmp(&b.name));
        // Checks all of it before anything is written.
        index.to_bytes().map_err(Failure::usage)?;
        files::write_public(&path, &bytes)?;
        folder.write_index(&index)?;
        say("hint: no cluster takes it before it is signed: towline catalogue sign --key FILE");
        Ok(added)
    }

    fn release(&self, chart: Chart, reference: ChartReference) -> Release {
        let unsupported =
            UnsupportedVersions { distributions: Vec::new(), unsupported_versions: self.unsupported.clone() };
        Release {
            version: chart.version,
            chart: reference,
            release_trains: self.trains.clone(),
            deprecated: self.deprecated,
            kube_version: chart.kube_version,
            unsupported_kubernetes_versions: if self.unsupported.is_empty() { Vec::new() } else { vec![unsupported] },
            supported_distributions: self.distributions.clone(),
            platforms: self.platforms.clone(),
            locked_settings: chart.locked_settings,
            agent_values: chart.agent_values,
        }
    }

    /// What was typed of the type.
    fn describe(&self, kind: &mut ExtensionType) {
        if let Some(publisher) = &self.publisher {
            kind.publisher.clone_from(publisher);
        }
        if let Some(description) = &self.description {
            kind.description.clone_from(description);
        }
        if !self.settings.is_empty() {
            kind.allowed_settings = Some(self.settings.clone());
        }
        let scopes = &mut kind.supported_scopes;
        let mut settings = scopes.cluster_scope_settings.take().unwrap_or_else(|| ClusterScopeSettings {
            allow_multiple_instances: false,
            default_release_namespace: kind.name.replace('.', "-"),
        });
        if let Some(namespace) = &self.release_namespace {
            settings.default_release_namespace.clone_from(namespace);
        }
        settings.allow_multiple_instances |= self.multiple_instances;
        if let Some(first) = self.scopes.first() {
            scopes.default_scope = (*first).into();
            scopes.scopes.clear();
            for scope in self.scopes.iter().map(|word| Scope::from(*word)) {
                if !scopes.scopes.contains(&scope) {
                    scopes.scopes.push(scope);
                }
            }
        }
        scopes.cluster_scope_settings = scopes.scopes.contains(&Scope::Cluster).then_some(settings);
    }
}

impl From<ScopeWord> for Scope {
    fn from(word: ScopeWord) -> Self {
        match word {
            ScopeWord::Cluster => Self::Cluster,
            ScopeWord::Namespace => Self::Namespace,
        }
    }
}

/// Refuses a version whose chart would be another one from now on. Charts of other types have the same folder.
fn changed(index: &Index, name: &str, chart: &Chart, reference: &ChartReference) -> Outcome<()> {
    for kind in &index.types {
        let same = |one: &&Release| {
            one.chart.file == reference.file || kind.name.eq_ignore_ascii_case(name) && one.version.is(&chart.version)
        };
        let known = kind.versions.iter().filter(same).find(|one| one.chart.sha256 != reference.sha256);
        if let Some(known) = known {
            let what = format!("{} {} is in the catalogue with another chart {}", kind.name, known.version, chart.name);
            return Err(Failure::from(anyhow!("{what}, and a version never changes"))
                .hint("give the chart a new version: clusters may have installed this one"));
        }
    }
    Ok(())
}

/// A type with what its first chart says of it.
fn new_type(name: &str, chart: &Chart) -> ExtensionType {
    let description = chart.description.as_deref().unwrap_or_default();
    ExtensionType {
        name: name.to_owned(),
        publisher: String::new(),
        description: line(description).chars().take(DESCRIPTION_CHARS).collect(),
        supported_scopes: SupportedScopes {
            scopes: vec![Scope::Cluster],
            default_scope: Scope::Cluster,
            cluster_scope_settings: None,
        },
        allowed_settings: None,
        versions: Vec::new(),
    }
}

/// `KEY` or `KEY=VALUE,...`. Values are compared as texts, so that none needs another type.
fn setting(text: &str) -> Result<AllowedSetting, String> {
    let (key, values) = match text.split_once('=') {
        Some((key, values)) => (key, Some(values.split(',').map(|one| SettingValue::Text(one.to_owned())).collect())),
        None => (text, None),
    };
    if key.is_empty() {
        Err("expected KEY or KEY=VALUE,...".to_owned())
    } else {
        Ok(AllowedSetting { key: key.to_owned(), values })
    }
}

/// Takes a version out, or a type; charts that no version needs any longer go too.
pub fn remove(folder: &Folder, name: &str, version: Option<&Version>) -> Outcome<()> {
    let (_lock, mut index) = folder.edit()?;
    let kind = find(&index, name)?;
    let gone: Vec<_> =
        kind.versions.iter().filter(|one| version.is_none_or(|version| one.version.is(version))).collect();
    if let (Some(version), []) = (version, gone.as_slice()) {
        return Err(Failure::from(anyhow!("the catalogue has no version {version} of {}", kind.name))
            .hint(format!("towline catalogue list --type {}", kind.name)));
    }
    let (gone, name): (Vec<_>, _) = (gone.into_iter().cloned().collect(), kind.name.clone());
    for kind in index.types.iter_mut().filter(|kind| kind.name == name) {
        kind.versions.retain(|one| !gone.contains(one));
    }
    // A type without versions is nothing that could be installed.
    index.types.retain(|kind| kind.name != name || !kind.versions.is_empty());
    folder.write_index(&index)?;
    for release in &gone {
        let needed = index.types.iter().flat_map(|kind| &kind.versions).any(|one| one.chart.file == release.chart.file);
        let path = folder.chart(&release.chart);
        if !needed && path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        say(&format!("removed {name} {}", release.version));
    }
    say("hint: clusters learn of it when it is signed: towline catalogue sign --key FILE");
    Ok(())
}
