//! Charts, broken archives and an index, for tests.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, EntryType, Header};
use time::macros::datetime;

use crate::{
    digest::Sha256,
    index::{ChartReference, ClusterScopeSettings, ExtensionType, Index, Release, Scope, SupportedScopes},
    key::SigningKey,
};

/// A `Chart.yaml` of an application.
pub fn metadata(name: &str, version: &str) -> String {
    format!("apiVersion: v2\nname: {name}\nversion: {version}\ntype: application\n")
}

/// The archive of a chart with this `Chart.yaml` and these further files.
pub fn chart(metadata: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = vec![("web/Chart.yaml", metadata.as_bytes())];
    all.extend_from_slice(files);
    gzip(&archive(&all))
}

/// A tar archive of these files.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, content) in files {
        append(&mut builder, path, EntryType::Regular, content);
    }
    builder.into_inner().unwrap_or_default()
}

/// Adds an entry, whatever its path: the library's own ways refuse bad ones.
pub fn append(builder: &mut Builder<Vec<u8>>, path: &str, kind: EntryType, content: &[u8]) {
    let mut header = Header::new_gnu();
    let name = &mut header.as_old_mut().name;
    let length = path.len().min(name.len());
    name[..length].copy_from_slice(&path.as_bytes()[..length]);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    // A vector takes everything.
    let _ = builder.append(&header, content);
}

/// Bytes in a gzip archive.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // A vector takes everything.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// An index with the type `example.web` in these versions and trains, each of which is a chart called `web`.
pub fn index(versions: &[(&str, &[&str])]) -> Index {
    let keys = SigningKey::generate().map(|key| vec![key.public()]).unwrap_or_default();
    let id = "0123456789abcdef0123456789abcdef".parse();
    let Ok(id) = id else { unreachable!("it is 32 hex digits") };
    let mut index = Index::new(id, datetime!(2026-11-27 09:00 UTC), keys);
    let settings =
        ClusterScopeSettings { allow_multiple_instances: false, default_release_namespace: "web".to_owned() };
    index.types.push(ExtensionType {
        name: "example.web".to_owned(),
        publisher: "Example".to_owned(),
        description: "A web server".to_owned(),
        supported_scopes: SupportedScopes {
            scopes: vec![Scope::Cluster],
            default_scope: Scope::Cluster,
            cluster_scope_settings: Some(settings),
        },
        allowed_settings: None,
        versions: versions.iter().map(|(version, trains)| release(version, trains)).collect(),
    });
    index
}

/// A version and the chart that [`chart`] makes for it.
pub fn release(version: &str, trains: &[&str]) -> Release {
    let archive = chart(&metadata("web", version), &[]);
    let Ok(parsed) = version.parse() else { unreachable!("tests write versions") };
    Release {
        version: parsed,
        chart: ChartReference {
            file: format!("web-{version}.tgz"),
            name: "web".to_owned(),
            size: archive.len() as u64,
            sha256: Sha256::of(&archive),
        },
        release_trains: trains.iter().map(|&train| train.to_owned()).collect(),
        deprecated: false,
        kube_version: None,
        unsupported_kubernetes_versions: Vec::new(),
        supported_distributions: Vec::new(),
        platforms: Vec::new(),
        locked_settings: Vec::new(),
        agent_values: false,
    }
}
