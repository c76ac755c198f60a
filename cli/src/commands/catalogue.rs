//! `towline catalogue`: the signed catalogue of helm charts (docs/catalogue.md). It works on a folder and asks nobody.
//!
//! | part | what it does |
//! |---|---|
//! | [`folder`] | the files of a catalogue |
//! | [`add`] | puts a chart in, takes it out |
//! | [`keys`] | files of keys, and who may sign |
//! | [`sign`] | signs, and verifies as a cluster does |

mod add;
mod folder;
mod keys;
mod sign;

use std::{path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use catalogue::{
    choice::{Cluster, Filter, list},
    index::{CatalogueId, ExtensionType, Index, Release},
    version::{KubernetesVersion, Version},
};
use clap::Subcommand;
use serde_json::{Value, json};
use time::OffsetDateTime;

use self::{folder::Folder, keys::KeysAction};
use crate::{
    failure::{Failure, Outcome},
    output::{self, Column, OutputArgs},
};

const COLUMNS: &[Column] =
    &[("Catalogue", "/catalogue"), ("Revision", "/revision"), ("Folder", "/folder"), ("Keys", "/keys")];
const RELEASE_COLUMNS: &[Column] = &[
    ("Type", "/type"),
    ("Version", "/version"),
    ("Trains", "/releaseTrains"),
    ("Deprecated", "/deprecated"),
    ("Kubernetes", "/kubeVersion"),
    ("Platforms", "/platforms"),
    ("Chart", "/chart/file"),
];

/// The signed catalogue of helm charts
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    action: Action,
    /// The folder of the catalogue
    #[arg(long = "catalogue", value_name = "DIR", default_value = ".", global = true)]
    folder: PathBuf,
    /// How results are printed.
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a catalogue without charts, and the key that signs it
    Init {
        /// The private key, outside of the catalogue; made if it is not there (0600), with its public half in FILE.pub
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Check a chart and put it in as a version of an extension type
    Add(Box<add::AddArgs>),
    /// Take a version or a whole extension type out
    Remove {
        /// The extension type
        #[arg(long = "type", value_name = "NAME")]
        kind: String,
        /// The version; without this the whole type
        #[arg(long, value_name = "VERSION")]
        version: Option<Version>,
    },
    /// Check every chart and sign the next revision
    Sign(sign::SignArgs),
    /// Verify signatures, index and charts as a cluster does
    Verify(sign::VerifyArgs),
    /// The versions in the catalogue, newest first
    List(ListArgs),
    /// Who may sign
    Keys {
        /// What to do.
        #[command(subcommand)]
        action: KeysAction,
    },
}

/// `towline catalogue list`.
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Of this extension type alone
    #[arg(long = "type", value_name = "NAME")]
    kind: Option<String>,
    /// In this release train alone
    #[arg(long, value_name = "TRAIN")]
    train: Option<String>,
    /// Of this major version alone
    #[arg(long, value_name = "NUMBER")]
    major: Option<u64>,
    /// The newest of these of each type alone
    #[arg(long)]
    latest: bool,
    /// Those that support this version of Kubernetes alone
    #[arg(long, value_name = "VERSION")]
    kubernetes: Option<KubernetesVersion>,
    /// Those that support this distribution alone, such as k3s
    #[arg(long, value_name = "NAME")]
    distribution: Option<String>,
    /// Those that support nodes of this platform alone, such as linux/arm64; repeat for a cluster with several
    #[arg(long = "platform", value_name = "OS/ARCH")]
    platforms: Vec<String>,
}

/// `towline catalogue <action>`.
pub async fn run(args: Args) -> Outcome {
    let (folder, output) = (Folder::new(args.folder), &args.output);
    match args.action {
        Action::Init { key } => {
            let made = init(&folder, &key)?;
            output::print(&shown(&folder, &made), output, COLUMNS)?;
        }
        Action::Add(args) => {
            let added = args.run(&folder)?;
            output::print(&added, output, RELEASE_COLUMNS)?;
        }
        Action::Remove { kind, version } => add::remove(&folder, &kind, version.as_ref())?,
        Action::Sign(args) => {
            let signed = args.run(&folder)?;
            output::print(&signed, output, sign::COLUMNS)?;
        }
        Action::Verify(args) => {
            let verified = args.run(&folder)?;
            output::print(&verified, output, sign::COLUMNS)?;
        }
        Action::List(args) => {
            let rows = args.rows(&folder.index()?)?;
            output::print_list(rows, output, RELEASE_COLUMNS, "no versions; towline catalogue add makes one")?;
        }
        Action::Keys { action } => action.run(&folder, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(folder: &Folder, key: &std::path::Path) -> Outcome<Index> {
    folder.must_be_new()?;
    let key = keys::read_or_make(key, folder)?;
    let index = Index::new(CatalogueId::generate()?, now(), vec![key.public()]);
    folder.create(&index)?;
    Ok(index)
}

/// Without parts of a second, for people.
fn now() -> OffsetDateTime {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now)
}

fn shown(folder: &Folder, index: &Index) -> Value {
    json!({
        "catalogue": index.catalogue,
        "revision": index.revision,
        "folder": folder.path().display().to_string(),
        "keys": index.keys.iter().map(|key| key.id()).collect::<Vec<_>>(),
    })
}

/// A version with the name of its type.
fn row(kind: &ExtensionType, release: &Release) -> anyhow::Result<Value> {
    let mut row = json!({"type": kind.name, "publisher": kind.publisher, "deprecated": release.deprecated});
    if let (Some(row), Value::Object(release)) = (row.as_object_mut(), serde_json::to_value(release)?) {
        row.extend(release);
    }
    Ok(row)
}

impl ListArgs {
    fn rows(&self, index: &Index) -> Outcome<Vec<Value>> {
        let types = match &self.kind {
            Some(name) => std::slice::from_ref(find(index, name)?),
            None => &index.types,
        };
        let cluster = Cluster {
            kubernetes: self.kubernetes,
            distribution: self.distribution.as_deref(),
            platforms: &self.platforms,
        };
        let filter = Filter { train: self.train.as_deref(), major: self.major, show_latest: self.latest, cluster };
        let mut rows = Vec::new();
        for kind in types {
            let found = match list(kind, &filter) {
                // Of all types some may have no such train.
                Err(_) if self.kind.is_none() => continue,
                found => found?,
            };
            for release in found {
                rows.push(row(kind, release)?);
            }
        }
        Ok(rows)
    }
}

fn find<'a>(index: &'a Index, name: &str) -> Outcome<&'a ExtensionType> {
    index.extension_type(name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Failure {
    Failure::from(anyhow!("the catalogue has no extension type {name:?}")).hint("towline catalogue list")
}
