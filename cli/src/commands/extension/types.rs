//! `towline extension types`: what the gateway's catalogue offers, in all or for one cluster (docs/features.md E2).

use anyhow::anyhow;
use clap::Subcommand;
use gateway::api::extension_types::NAME as TYPES;

use super::super::{CommonArgs, names};
use crate::{
    api::{Api, at, encoded, versions},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column},
};

const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("Publisher", "/properties/publisher"),
    ("Trains", "/properties/releaseTrains"),
    ("Scope", "/properties/supportedScopes/defaultScope"),
    ("Description", "/properties/description"),
];
const DETAILS: &[Column] = &[
    ("Name", "/name"),
    ("Publisher", "/properties/publisher"),
    ("Description", "/properties/description"),
    ("Trains", "/properties/releaseTrains"),
    ("DefaultScope", "/properties/supportedScopes/defaultScope"),
    ("Scopes", "/properties/supportedScopes/scopes"),
    ("ReleaseNamespace", "/properties/supportedScopes/clusterScopeSettings/properties/defaultReleaseNamespace"),
    ("SeveralInstances", "/properties/supportedScopes/clusterScopeSettings/properties/allowMultipleInstances"),
];
const VERSION_COLUMNS: &[Column] = &[
    ("Version", "/properties/version"),
    ("Trains", "/properties/releaseTrains"),
    ("Deprecated", "/properties/deprecated"),
    ("Kubernetes", "/properties/kubeVersion"),
    ("Platforms", "/properties/platforms"),
    ("Distributions", "/properties/supportedDistributions"),
];

/// What the catalogue offers, or what of it works on a cluster.
#[derive(Debug, clap::Args, Clone)]
pub struct Where {
    /// Only what works on this cluster
    #[arg(short = 'c', long, alias = "cluster-name", value_name = "NAME", value_parser = names::cluster, requires = "resource_group")]
    pub cluster: Option<String>,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, requires = "cluster")]
    pub resource_group: Option<String>,
    /// The location, if no cluster is named; every one has the same catalogue
    #[arg(short = 'l', long, value_name = "LOCATION", value_parser = names::location, default_value = "global")]
    pub location: String,
}

/// `towline extension types <action>`.
#[derive(Debug, Subcommand)]
pub enum TypesAction {
    /// The extension types
    #[command(aliases = ["list-by-cluster", "list-by-location"])]
    List {
        /// The cluster or location that the types are for.
        #[command(flatten)]
        at: Where,
        /// Only those with a version in this release train
        #[arg(long, alias = "release-train", value_name = "TRAIN", value_parser = names::word)]
        train: Option<String>,
        /// Only those of this publisher
        #[arg(long, value_name = "NAME")]
        publisher: Option<String>,
    },
    /// One extension type
    #[command(aliases = ["show-by-cluster", "show-by-location"])]
    Show {
        /// Which one
        #[arg(long = "type", alias = "extension-type", value_name = "TYPE", value_parser = names::extension_type)]
        kind: String,
        /// The cluster or location that the type is for.
        #[command(flatten)]
        at: Where,
    },
    /// The versions of an extension type, newest first
    #[command(aliases = ["list-versions-by-cluster", "list-versions-by-location"])]
    Versions {
        /// Of which one
        #[arg(long = "type", alias = "extension-type", value_name = "TYPE", value_parser = names::extension_type)]
        kind: String,
        /// The cluster or location that the versions are for.
        #[command(flatten)]
        at: Where,
        /// Only those in this release train
        #[arg(long, alias = "release-train", value_name = "TRAIN", value_parser = names::word)]
        train: Option<String>,
        /// Only those of this major version
        #[arg(long, alias = "major-version", value_name = "NUMBER")]
        major: Option<u64>,
        /// Only the newest of these
        #[arg(long, alias = "show-latest", value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
        latest: Option<bool>,
    },
    /// One version of an extension type
    #[command(aliases = ["show-version-by-cluster", "show-version-by-location"])]
    Version {
        /// Of which one
        #[arg(long = "type", alias = "extension-type", value_name = "TYPE", value_parser = names::extension_type)]
        kind: String,
        /// The version
        #[arg(long, value_name = "VERSION", value_parser = names::word)]
        version: String,
        /// The cluster or location that the version is for.
        #[command(flatten)]
        at: Where,
    },
}

/// `towline extension types <action>`.
pub async fn run(action: TypesAction, common: &CommonArgs) -> Outcome<()> {
    let context = Context::open(&common.context).await?;
    let api = Api::of(&context)?;
    match action {
        TypesAction::List { at: place, train, publisher } => {
            let target = target(&context, &place, "")?
                + &filter("releaseTrain", train.as_deref())
                + &filter("publisherId", publisher.as_deref());
            let nothing = match &place.cluster {
                Some(_) => "no extension type works on this cluster; towline extension types list without -c shows all",
                None => "no extension types; the gateway's catalogue is a folder that its configuration names",
            };
            output::print_list(api.list(&target).await?, &common.output, COLUMNS, nothing)
        }
        TypesAction::Show { kind, at: place } => {
            let found = api.get(&target(&context, &place, &format!("/{kind}"))?).await.map_err(hinted)?;
            output::print(&found, &common.output, DETAILS)
        }
        TypesAction::Versions { kind, at: place, train, major, latest } => {
            let target = target(&context, &place, &format!("/{kind}/versions"))?
                + &filter("releaseTrain", train.as_deref())
                + &filter("majorVersion", major.map(|major| major.to_string()).as_deref())
                + &filter("showLatest", latest.filter(|latest| *latest).map(|_| "true"));
            let rows = api.list(&target).await.map_err(hinted)?;
            output::print_list(rows, &common.output, VERSION_COLUMNS, "no such versions")
        }
        TypesAction::Version { kind, version, at: place } => {
            let found = api.get(&target(&context, &place, &format!("/{kind}/versions/{version}"))?).await;
            output::print(&found.map_err(hinted)?, &common.output, VERSION_COLUMNS)
        }
    }
}

fn target(context: &Context, place: &Where, rest: &str) -> Outcome<String> {
    let base = match (&place.cluster, &place.resource_group) {
        (Some(cluster), Some(group)) => format!("{}/providers/{TYPES}", context.cluster(group, cluster)?),
        (None, None) => {
            let location = place.location.replace(' ', "").to_ascii_lowercase();
            let (provider, name) = TYPES.split_once('/').unwrap_or_default();
            format!("{}/providers/{provider}/locations/{location}/{name}", context.subscription()?)
        }
        _ => return Err(Failure::usage(anyhow!("--cluster and --resource-group belong together"))),
    };
    Ok(at(format!("{base}{rest}"), versions::EXTENSION_TYPES))
}

fn filter(name: &str, value: Option<&str>) -> String {
    value.map(|value| format!("&{name}={}", encoded(value))).unwrap_or_default()
}

fn hinted(failure: Failure) -> Failure {
    use crate::api::ApiError;
    match ApiError::behind(&failure).map(|error| error.code.as_str()) {
        Some("ExtensionTypeNotFound") => failure.hint("see which there are: towline extension types list"),
        _ => failure,
    }
}
