//! Reads a chart: the archive that `helm package` makes (`.tgz`). It is never unpacked to a disk. What helm would read in
//! another way, or could take for another chart, is refused.
//!
//! | part | what it does |
//! |---|---|
//! | [`archive`] | files of an archive, within bounds |
//! | [`metadata`] | `Chart.yaml` |
//! | [`schema`] | `values.schema.json` |

mod archive;
mod metadata;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::{
    archive::{Budget, Files},
    metadata::Metadata,
};
use crate::{
    limits::{ARCHIVE_BYTES, CHART_DEPTH, ENTRIES, FILE_BYTES, UNPACKED_BYTES},
    range::Range,
    version::Version,
};

const METADATA: &str = "Chart.yaml";
const SCHEMA: &str = "values.schema.json";
/// Where charts of `apiVersion: v1` name their dependencies.
const REQUIREMENTS: &str = "requirements.yaml";
/// Where a chart has the charts that it depends on.
const CHARTS: &str = "charts/";
const CRDS: &str = "crds/";

/// Before the names of annotations of a chart that are for us.
const ANNOTATIONS: &str = "towline.io/";
/// Dotted keys with commas between: no setting of an extension may touch what is at or below one. For what decides which
/// programs run, and with which rights.
const LOCKED_SETTINGS: &str = "towline.io/locked-settings";
/// `"true"`: the chart wants to know where the agents run and what from (`global.towline` in its values).
const AGENT_VALUES: &str = "towline.io/agent-values";
/// `NAME=DIGEST` with commas between, of a chart of the agents: the image of each program, which is known by that digest
/// alone. Names are `agent` and `extension-manager`.
const IMAGE_DIGESTS: &str = "towline.io/image-digests";

/// What a chart is.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Name in `Chart.yaml`.
    pub name: String,
    /// Version in `Chart.yaml`.
    pub version: Version,
    /// What it is, in its own words.
    pub description: Option<String>,
    /// The version of what it installs, in its own words.
    pub app_version: Option<String>,
    /// The versions of Kubernetes that it asks for.
    pub kube_version: Option<Range>,
    /// Whether its author deprecated it.
    pub deprecated: bool,
    /// Names of the charts that it depends on; each is in the archive.
    pub dependencies: Vec<String>,
    /// The JSON schema of its values, if it has one.
    pub values_schema: Option<Value>,
    /// Files with definitions of custom resources, those of dependencies included.
    pub crd_files: usize,
    /// Dotted keys that no setting may touch (`towline.io/locked-settings`).
    pub locked_settings: Vec<String>,
    /// Whether it wants to know of the agents (`towline.io/agent-values`).
    pub agent_values: bool,
    /// Digests of images by the program's name (`towline.io/image-digests`).
    pub image_digests: BTreeMap<String, String>,
}

/// Why an archive is no chart that can be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChartError {
    /// Larger than any archive that is read; its size in bytes.
    #[error("the archive has {0} bytes, a chart may have {ARCHIVE_BYTES}")]
    TooLarge(u64),
    /// Too large when it is unpacked.
    #[error("the archive unpacks to more than {UNPACKED_BYTES} bytes")]
    Unpacked,
    /// Too many files and folders.
    #[error("the archive holds more than {ENTRIES} files and folders")]
    Entries,
    /// Not a compressed archive, or a damaged one.
    #[error("it is not a tar archive compressed with gzip, or it is damaged: {0}")]
    Damaged(String),
    /// Bytes that no reader should see.
    #[error("bytes follow the end of the archive")]
    Trailing,
    /// A file that is too large.
    #[error("the file {0:?} has more than {FILE_BYTES} bytes")]
    File(String),
    /// Neither a file nor a folder.
    #[error("{path:?} is {kind}; a chart may hold files and folders alone")]
    Kind {
        /// Path of the entry in the archive.
        path: String,
        /// The kind of the entry, with its article.
        kind: &'static str,
    },
    /// A path that is not below the chart's folder, or that readers understand in two ways.
    #[error("the path {path:?} {reason}")]
    Path {
        /// The path as it is in the archive.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A path that is there twice.
    #[error("{0:?} is in the archive twice")]
    Twice(String),
    /// Several folders at the top.
    #[error("the archive holds the folders {0:?} and {1:?}; a chart is one folder")]
    Folders(String, String),
    /// There is no `Chart.yaml` at this path of the archive.
    #[error("there is no {0}; is it a chart?")]
    NoMetadata(String),
    /// Metadata that cannot be used.
    #[error("{path}: {reason}")]
    Metadata {
        /// Path of the metadata file in the archive.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The chart is of another type than `application`, such as a library.
    #[error("{METADATA}: the type is {0:?}; only an application can be installed")]
    NotApplication(String),
    /// A dependency that would have to be downloaded.
    #[error("the chart {chart} depends on {dependency}, which is not in its folder charts; run helm dependency build")]
    Dependency {
        /// Name of the chart that declares the dependency.
        chart: String,
        /// Name of the dependency.
        dependency: String,
    },
    /// Charts in charts.
    #[error("more than {CHART_DEPTH} charts are in each other")]
    Depth,
}

impl Chart {
    /// Reads an archive in bounded time and memory.
    ///
    /// # Errors
    /// Why it is no chart that can be installed.
    pub fn read(archive: &[u8]) -> Result<Self, ChartError> {
        let size = archive.len() as u64;
        if size > ARCHIVE_BYTES {
            return Err(ChartError::TooLarge(size));
        }
        let part = packed(archive, &Budget::new(), 1)?;
        let Part { metadata, values_schema, crd_files } = part;
        if !["", "application"].contains(&metadata.kind.as_str()) {
            return Err(ChartError::NotApplication(metadata.kind));
        }
        let Metadata { name, version, description, app_version, kube_version, deprecated, .. } = metadata;
        let note = |name: &str| metadata.annotations.get(name).map(String::as_str).unwrap_or_default();
        let image_digests = image_digests(note(IMAGE_DIGESTS))
            .map_err(|reason| ChartError::Metadata { path: METADATA.to_owned(), reason })?;
        let locked = note(LOCKED_SETTINGS).split(',').map(str::trim).filter(|key| !key.is_empty());
        Ok(Self {
            name,
            version,
            description,
            app_version,
            kube_version,
            deprecated,
            locked_settings: locked.map(str::to_owned).collect(),
            agent_values: note(AGENT_VALUES) == "true",
            image_digests,
            dependencies: metadata.dependencies,
            values_schema,
            crd_files,
        })
    }
}

/// Parses a list such as `agent=sha256:0123…,extension-manager=sha256:4567…`.
fn image_digests(text: &str) -> Result<BTreeMap<String, String>, String> {
    let is_digest = |digest: &str| {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let read = entries.map(|entry| match entry.split_once('=') {
        Some((name, digest)) if !name.is_empty() && is_digest(digest) => Ok((name.to_owned(), digest.to_owned())),
        _ => Err(format!("the annotation {IMAGE_DIGESTS}: {entry:?} is not NAME=sha256:<64 hex digits>")),
    });
    read.collect()
}

/// A chart or one that another depends on.
struct Part {
    metadata: Metadata,
    values_schema: Option<Value>,
    crd_files: usize,
}

fn packed(archive: &[u8], budget: &Budget, depth: usize) -> Result<Part, ChartError> {
    if depth > CHART_DEPTH {
        return Err(ChartError::Depth);
    }
    let files = archive::read(archive, budget, |path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        [METADATA, SCHEMA, REQUIREMENTS].contains(&name) || is_packed_dependency(path)
    })?;
    part(&files, "", budget, depth)
}

/// `charts/x.tgz`, in the chart or in one that it depends on.
fn is_packed_dependency(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    name.ends_with(".tgz") && (folder == "charts" || folder.ends_with("/charts"))
}

/// The chart in a folder of the archive; `at` ends with a slash or is empty.
fn part(files: &Files, at: &str, budget: &Budget, depth: usize) -> Result<Part, ChartError> {
    if depth > CHART_DEPTH {
        return Err(ChartError::Depth);
    }
    let path = format!("{at}{METADATA}");
    let content = files.content(&path).ok_or_else(|| ChartError::NoMetadata(path.clone()))?;
    let mut metadata = Metadata::read(content).map_err(|reason| ChartError::Metadata { path, reason })?;
    let path = format!("{at}{REQUIREMENTS}");
    if let Some(content) = files.content(&path) {
        let more = metadata::requirements(content).map_err(|reason| ChartError::Metadata { path, reason })?;
        metadata.dependencies.extend(more);
    }
    let path = format!("{at}{SCHEMA}");
    let values_schema = files.content(&path).map(schema::read).transpose();
    let values_schema = values_schema.map_err(|reason| ChartError::Metadata { path, reason })?;
    let mut crd_files = files.below(&format!("{at}{CRDS}")).filter(|path| is_manifest(path)).count();
    let mut there = BTreeSet::new();
    for (path, packed_chart) in dependencies(files, at) {
        let part = match packed_chart {
            Some(archive) => packed(archive, budget, depth + 1)?,
            None => part(files, &path, budget, depth + 1)?,
        };
        crd_files += part.crd_files;
        there.insert(part.metadata.name);
    }
    if let Some(missing) = metadata.dependencies.iter().find(|name| !there.contains(*name)) {
        return Err(ChartError::Dependency { chart: metadata.name, dependency: missing.clone() });
    }
    Ok(Part { metadata, values_schema, crd_files })
}

/// Charts in the folder `charts` of a chart: paths of folders with a slash at their end, and archives. As in helm, names
/// that begin with `_` or `.` and other files are left out.
fn dependencies<'a>(files: &'a Files, at: &str) -> Vec<(String, Option<&'a [u8]>)> {
    let folder = format!("{at}{CHARTS}");
    let mut found: Vec<(String, Option<&[u8]>)> = Vec::new();
    for path in files.below(&folder) {
        let rest = &path[folder.len()..];
        if rest.starts_with(['_', '.']) {
            continue;
        }
        match rest.split_once('/') {
            // Paths are sorted, so that those of a folder follow each other.
            Some((name, _)) => {
                let chart = format!("{folder}{name}/");
                if found.last().is_none_or(|(last, _)| *last != chart) {
                    found.push((chart, None));
                }
            }
            None if is_packed_dependency(path) => found.push((path.to_owned(), files.content(path))),
            None => {}
        }
    }
    found
}

fn is_manifest(path: &str) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|end| path.ends_with(end))
}

#[cfg(test)]
mod tests;
