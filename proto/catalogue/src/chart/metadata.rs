//! `Chart.yaml`. helm ignores the case of keys and takes one of two; here both are refused, so that no two readers read two
//! charts.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, de::DeserializeOwned};
use serde_yaml::{Mapping, Value};

use crate::{
    limits::{DEPENDENCIES, METADATA_BYTES},
    range::Range,
    version::Version,
};

/// What a chart says of itself.
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) description: Option<String>,
    pub(super) app_version: Option<String>,
    pub(super) kube_version: Option<Range>,
    pub(super) deprecated: bool,
    pub(super) dependencies: Vec<String>,
    /// Those that are for us ([`super::ANNOTATIONS`]).
    pub(super) annotations: BTreeMap<String, String>,
    /// Empty is an application.
    pub(super) kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    api_version: Option<String>,
    name: Option<String>,
    version: Option<String>,
    description: Option<String>,
    app_version: Option<String>,
    kube_version: Option<String>,
    deprecated: Option<bool>,
    #[serde(rename = "type")]
    kind: Option<String>,
    dependencies: Option<Vec<Dependency>>,
    annotations: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct Requirements {
    dependencies: Option<Vec<Dependency>>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

impl Metadata {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let written: Written = yaml(bytes)?;
        match written.api_version.as_deref() {
            Some("v1" | "v2") => {}
            Some(other) => return Err(format!("the apiVersion is {other:?}; v1 and v2 are known")),
            None => return Err("there is no apiVersion".to_owned()),
        }
        let name = written.name.ok_or("there is no name")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let valid = (1..=128).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-']);
        if !valid {
            return Err(format!("{name:?} is not a name of a chart"));
        }
        let version = written.version.ok_or("there is no version")?.parse();
        let kube_version = written.kube_version.filter(|range| !range.trim().is_empty());
        let kube_version = kube_version.map(|range| range.parse()).transpose();
        Ok(Self {
            name,
            version: version.map_err(|error| format!("version: {error}"))?,
            description: written.description,
            app_version: written.app_version,
            kube_version: kube_version.map_err(|error| format!("kubeVersion: {error}"))?,
            deprecated: written.deprecated.unwrap_or_default(),
            dependencies: names(written.dependencies)?,
            annotations: annotations(written.annotations.unwrap_or_default())?,
            kind: written.kind.unwrap_or_default(),
        })
    }
}

/// Those of our prefix; what others write for other programs is theirs.
fn annotations(all: BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, String> {
    let ours = all.into_iter().filter(|(name, _)| name.starts_with(super::ANNOTATIONS));
    ours.map(|(name, value)| match value {
        Value::String(text) => Ok((name, text)),
        _ => Err(format!("the annotation {name} is not a text")),
    })
    .collect()
}

/// Names of dependencies in a `requirements.yaml`.
pub(super) fn requirements(bytes: &[u8]) -> Result<Vec<String>, String> {
    names(yaml::<Requirements>(bytes)?.dependencies)
}

fn names(dependencies: Option<Vec<Dependency>>) -> Result<Vec<String>, String> {
    let dependencies = dependencies.unwrap_or_default();
    if dependencies.len() > DEPENDENCIES {
        return Err(format!("there are more than {DEPENDENCIES} dependencies"));
    }
    Ok(dependencies.into_iter().map(|one| one.name).collect())
}

fn yaml<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() as u64 > METADATA_BYTES {
        return Err(format!("it has more than {METADATA_BYTES} bytes"));
    }
    // A map without a key twice; of one that is of no known field the reader below would not tell.
    let map: Mapping = serde_yaml::from_slice(bytes).map_err(|error| error.to_string())?;
    keys_of_one_reading(&map)?;
    // From the text again: `version: 1.10` without quotes is a text here.
    serde_yaml::from_slice(bytes).map_err(|error| error.to_string())
}

/// helm takes `verſion` for `version` (a long s) and what `<<` names for keys of the map that it is in.
fn keys_of_one_reading(map: &Mapping) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (key, value) in map {
        let key = match key {
            Value::String(key) if key.is_ascii() && key != "<<" => key,
            Value::String(key) => return Err(format!("the key {key:?} is not plain ASCII")),
            _ => return Err("a key is not a text".to_owned()),
        };
        let folded = key.to_ascii_lowercase();
        if seen.contains(&folded) {
            return Err(format!("the key {folded:?} is there twice, in different case"));
        }
        seen.insert(folded);
        // A map of what its author likes, to helm too.
        if key != "annotations" {
            values_of_one_reading(value)?;
        }
    }
    Ok(())
}

/// As deep as the reader of YAML goes.
fn values_of_one_reading(value: &Value) -> Result<(), String> {
    match value {
        Value::Sequence(list) => list.iter().try_for_each(values_of_one_reading),
        Value::Mapping(map) => keys_of_one_reading(map),
        Value::Tagged(_) => Err("a value has a tag of its own".to_owned()),
        _ => Ok(()),
    }
}
