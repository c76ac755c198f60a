//! `towline flux`: what a cluster takes from a Git repository or another source, and keeps so with Flux
//! (docs/gitops.md; docs/features.md G1-G11).
//!
//! | part | what it does |
//! |---|---|
//! | [`assignment`] | one configuration for many clusters, by their tags |
//! | [`source`] | options of a source as what the API is sent |
//! | [`kustomization`] | kustomizations as typed, and one by one |
//! | [`deployed_object`] | what a configuration made in its cluster |
//! | [`logs`] | what the controllers log of a configuration |
//! | [`progress`] | what is told while a cluster is waited for |
//! | [`source_control`] | configurations of the time of Flux 1 |
//! | [`typed`] | spans, lists, and secrets from files |

mod assignment;
mod deployed_object;
mod kustomization;
mod logs;
mod progress;
mod source;
pub(super) mod source_control;
mod typed;

use std::{process::ExitCode, time::Duration};

use ::types::api::ResourceId;
use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use daemon::settings::positive_duration;
use http::StatusCode;
use serde_json::{Map, Value, json};

use self::{
    assignment::{ApplyArgs, AssignmentAction},
    deployed_object::ObjectAction,
    kustomization::{KustomizationAction, Kustomizations},
    logs::LogsArgs,
    source::{Kind, Source, give_way},
    source_control::SourceControlAction,
};
use super::{
    CommonArgs, confirm, names,
    on_cluster::{OnCluster, followed, is_missing, is_of_operation},
    replacing,
};
use crate::{
    api::{Answer, Api, ApiError, ResourceType, TimedOut, Wait, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column, Format},
    terminal::say,
};

/// The provider and the type.
pub(super) const CONFIGURATIONS: ResourceType =
    ResourceType { provider: "Microsoft.KubernetesConfiguration", name: "fluxConfigurations" };
/// What az calls the kustomization of a configuration that is created without one.
const DEFAULT_KUSTOMIZATION: &str = "kustomization-1";
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("Namespace", "/properties/namespace"),
    ("Compliance", "/properties/complianceState"),
    ("Commit", "/properties/sourceSyncedCommitId"),
    ("State", "/properties/provisioningState"),
    ("Error", "/properties/errorMessage"),
];
const DETAILS: &[Column] = &[
    ("Name", "/name"),
    ("Id", "/id"),
    ("Namespace", "/properties/namespace"),
    ("Scope", "/properties/scope"),
    ("State", "/properties/provisioningState"),
    ("Compliance", "/properties/complianceState"),
    ("Commit", "/properties/sourceSyncedCommitId"),
    ("SourceUpdated", "/properties/sourceUpdatedAt"),
    ("StatusUpdated", "/properties/statusUpdatedAt"),
    ("Suspended", "/properties/suspend"),
    ("Source", "/properties/sourceKind"),
    ("Url", "/properties/gitRepository/url"),
    ("Reference", "/properties/gitRepository/repositoryRef"),
    ("Interval", "/properties/gitRepository/syncIntervalInSeconds"),
    ("Bucket", "/properties/bucket"),
    ("AzureBlob", "/properties/azureBlob"),
    ("OCIRepository", "/properties/ociRepository"),
    ("ThroughGateway", "/properties/throughGateway"),
    ("Kustomizations", "/properties/kustomizations"),
    ("PublicKey", "/properties/repositoryPublicKey"),
    ("ManagedBy", "/managedBy"),
    ("Error", "/properties/errorMessage"),
    ("LastError", "/lastError"),
];

/// What clusters take from Git repositories, and keep so with Flux
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: FluxAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline flux <action>`.
#[derive(Debug, Subcommand)]
pub enum FluxAction {
    /// Let a cluster follow a source
    #[command(
        after_help = "The first configuration of a cluster brings the extension microsoft.flux with it, if the gateway's \
            catalogue has it. Keys and passwords are never shown again; the gateway keeps them for 48 hours at most, \
            the cluster in a Secret."
    )]
    Create(Box<CreateArgs>),
    /// Change a configuration: its source, kustomizations that are named, keys and passwords as a whole
    Update(Box<UpdateArgs>),
    /// Delete a configuration; what its kustomizations with prune created is deleted in the cluster
    Delete {
        #[command(flatten)]
        configuration: NamedConfiguration,
        /// Delete the resource alone and at once, whether or not the cluster can do its part
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: Waiting,
    },
    /// The configurations of a cluster
    List {
        /// Of which cluster.
        #[command(flatten)]
        cluster: OnCluster,
    },
    /// One configuration
    Show {
        #[command(flatten)]
        configuration: NamedConfiguration,
    },
    /// Give a configuration to every cluster that has some tags, now and later
    Apply(Box<ApplyArgs>),
    /// Configurations that are given to many clusters
    Assignment {
        /// What to do.
        #[command(subcommand)]
        action: AssignmentAction,
    },
    /// What Flux's controllers log of a configuration
    Logs(LogsArgs),
    /// Kustomizations of a configuration
    Kustomization {
        /// What to do.
        #[command(subcommand)]
        action: KustomizationAction,
    },
    /// What a configuration made in its cluster
    DeployedObject {
        /// What to do.
        #[command(subcommand)]
        action: ObjectAction,
    },
    /// Configurations of the time of Flux 1 (sourceControlConfigurations)
    #[command(
        after_help = "New ones are made with towline flux create. Scripts that still write these use towline rest or \
        an SDK."
    )]
    SourceControl {
        /// What to do.
        #[command(subcommand)]
        action: SourceControlAction,
    },
}

/// A configuration by its name.
#[derive(Debug, clap::Args, Clone)]
pub struct NamedConfiguration {
    /// The configuration
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::configuration)]
    pub name: String,
    #[command(flatten)]
    pub on: OnCluster,
}

impl NamedConfiguration {
    /// The options that name it, for hints.
    fn options(&self) -> String {
        format!("{} -n {}", self.on.options(), self.name)
    }
}

/// How long to wait: `--timeout` is the source's here.
#[derive(Debug, clap::Args, Clone)]
pub struct Waiting {
    /// Do not wait until it has ended
    #[arg(long)]
    pub no_wait: bool,
    /// Wait for so long at most, such as 90s or 20m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "20m")]
    pub wait_timeout: Duration,
}

/// `towline flux create`.
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub configuration: NamedConfiguration,
    /// With the rights of an administrator of the cluster, or of the namespace alone
    #[arg(short = 's', long, value_name = "cluster|namespace", value_parser = ["cluster", "namespace"],
        default_value = "cluster")]
    pub scope: String,
    /// The namespace of its own objects; made if it is not there
    #[arg(long, alias = "ns", value_name = "NAMESPACE", value_parser = names::namespace, default_value = "default")]
    pub namespace: String,
    /// Begin suspended
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub suspend: Option<bool>,
    /// What is applied.
    #[command(flatten)]
    pub kustomizations: Kustomizations,
    #[command(flatten)]
    pub source: Source,
    /// Do not ask whether one of that name is replaced
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// How long to wait.
    #[command(flatten)]
    pub wait: Waiting,
}

/// `towline flux update`.
#[derive(Debug, clap::Args)]
pub struct UpdateArgs {
    #[command(flatten)]
    pub configuration: NamedConfiguration,
    /// Suspend it, or resume it
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub suspend: Option<bool>,
    /// What is applied.
    #[command(flatten)]
    pub kustomizations: Kustomizations,
    #[command(flatten)]
    pub source: Source,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// How long to wait.
    #[command(flatten)]
    pub wait: Waiting,
}

/// `towline flux <action>`.
pub async fn run(args: Args) -> Outcome {
    let common = args.common;
    match args.action {
        FluxAction::Create(args) => create(*args, &common).await?,
        FluxAction::Update(args) => update(*args, &common).await?,
        FluxAction::Delete { configuration, force, yes, wait } => {
            delete(&configuration, force, yes, &wait, &common).await?;
        }
        FluxAction::List { cluster } => {
            let context = Context::open(&common.context).await?;
            let target = at(format!("{}/providers/{CONFIGURATIONS}", cluster.id(&context)?), versions::FLUX);
            let rows = Api::of(&context)?.list(&target).await?;
            output::print_list(rows, &common.output, COLUMNS, "no configurations; towline flux create makes one")?;
        }
        FluxAction::Show { configuration } => {
            let mut shown = Configuration::open(&configuration, &common).await?.get().await?;
            if common.output.output == Format::Table {
                shown["lastError"] = last_error(&shown);
            }
            output::print(&shown, &common.output, DETAILS)?;
        }
        FluxAction::Apply(args) => assignment::apply(&args, &common).await?,
        FluxAction::Assignment { action } => assignment::run(action, &common).await?,
        FluxAction::Logs(args) => logs::run(args, &common).await?,
        FluxAction::Kustomization { action } => kustomization::run(action, &common).await?,
        FluxAction::DeployedObject { action } => deployed_object::run(action, &common).await?,
        FluxAction::SourceControl { action } => source_control::run(action, &common).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A configuration at its gateway.
struct Configuration {
    api: Api,
    cluster: ResourceId,
    target: String,
    name: NamedConfiguration,
}

impl Configuration {
    async fn open(name: &NamedConfiguration, common: &CommonArgs) -> Outcome<Self> {
        let context = Context::open(&common.context).await?;
        let cluster = name.on.id(&context)?;
        let id = cluster.on(CONFIGURATIONS.provider, CONFIGURATIONS.name, &name.name);
        let target = at(id.context("--name").map_err(Failure::usage)?, versions::FLUX);
        Ok(Self { api: Api::of(&context)?, cluster, target, name: name.clone() })
    }

    async fn get(&self) -> Outcome<Value> {
        self.api.get(&self.target).await.map_err(|failure| self.advised(failure))
    }

    /// Changes it, and waits until the cluster has done it.
    async fn patch(&self, body: &Value, wait: &Waiting, what: &str) -> Outcome<Value> {
        let answer = self.api.patch(&self.target, body).await.map_err(|failure| self.advised(failure))?;
        self.ended(answer, what, wait).await
    }

    /// Waits until what an answer began has ended, and reads the configuration then.
    async fn ended(&self, answer: Answer, what: &str, wait: &Waiting) -> Outcome<Value> {
        if wait.no_wait {
            return Ok(answer.body);
        }
        self.wait_for(&answer, what, wait).await?;
        self.get().await
    }

    async fn wait_for(&self, answer: &Answer, what: &str, wait: &Waiting) -> Outcome<()> {
        let wait = Wait { none: wait.no_wait, limit: wait.wait_timeout };
        let known = progress::of_configuration(&answer.body);
        let ended = followed(&self.api, answer, what, wait, known, async || progress::lines(self).await).await;
        ended.map_err(|failure| {
            let show = format!("towline flux show {}", self.name.options());
            TimedOut::advised(self.advised(failure), "--wait-timeout", &show)
        })
    }

    /// A failure with where to look further.
    fn advised(&self, failure: Failure) -> Failure {
        if is_missing(&failure) {
            return failure.hint(format!("see which there are: towline flux list {}", self.name.on.options()));
        }
        if is_of_operation(&failure) {
            let options = self.name.options();
            return failure.hint(format!("see what its objects say: towline flux deployed-object list {options}"));
        }
        failure
    }
}

async fn create(args: CreateArgs, common: &CommonArgs) -> Outcome<()> {
    let kind = args.source.kind.unwrap_or(Kind::Git);
    args.source.check(kind)?;
    let mut properties = Map::new();
    args.source.fill(&mut properties, kind)?;
    over_https(&mut properties);
    let mut kustomizations = args.kustomizations.0;
    if kustomizations.is_empty() {
        say(&format!("no kustomization was given: {DEFAULT_KUSTOMIZATION} applies all of the source"));
        kustomizations.insert(DEFAULT_KUSTOMIZATION.to_owned(), json!({}));
    }
    for (name, value) in [
        ("scope", args.scope.into()),
        ("namespace", args.namespace.into()),
        ("sourceKind", kind.name().into()),
        ("suspend", args.suspend.unwrap_or_default().into()),
        ("kustomizations", Value::Object(kustomizations)),
    ] {
        properties.insert(name.to_owned(), value);
    }
    let open = Configuration::open(&args.configuration, common).await?;
    // Who may write and not read goes on.
    if open.api.find(&open.target).await.is_ok_and(|there| there.is_some()) {
        let name = &args.configuration.name;
        replacing(&format!("the configuration {name}"), "towline flux update", args.yes).await?;
    }
    let answer = open.api.put(&open.target, &json!({"properties": properties})).await;
    // What is missing is the cluster: the gateway's own hint says so.
    let answer = answer.map_err(|failure| if is_missing(&failure) { failure } else { open.advised(failure) })?;
    let made = open.ended(answer, &format!("creating {}", args.configuration.name), &args.wait).await?;
    output::print(&made, &common.output, DETAILS)
}

/// A new bucket is spoken to over https, as with az; the default of the API is http.
fn over_https(properties: &mut Map<String, Value>) {
    if let Some(bucket) = properties.get_mut("bucket").and_then(Value::as_object_mut) {
        bucket.entry("insecure").or_insert(false.into());
    }
}

async fn update(args: UpdateArgs, common: &CommonArgs) -> Outcome<()> {
    let open = Configuration::open(&args.configuration, common).await?;
    let there = open.get().await?;
    let now = Kind::of(there["properties"]["sourceKind"].as_str().unwrap_or_default());
    let kind = args.source.kind.or(now).unwrap_or(Kind::Git);
    let mut properties = Map::new();
    args.source.fill(&mut properties, kind)?;
    if now == Some(kind) {
        give_way(&mut properties, kind, &there["properties"]);
    }
    if let Some(now) = now.filter(|now| *now != kind) {
        args.source.check(kind)?;
        over_https(&mut properties);
        properties.insert("sourceKind".to_owned(), kind.name().into());
        let question = format!(
            "{} takes its content from {} instead of {}; its kustomizations may not fit. Continue?",
            args.configuration.name,
            kind.word(),
            now.word()
        );
        confirm(&question, args.yes).await?;
    }
    properties.extend(args.suspend.map(|suspend| ("suspend".to_owned(), suspend.into())));
    if !args.kustomizations.0.is_empty() {
        properties.insert("kustomizations".to_owned(), args.kustomizations.0.into());
    }
    if properties.is_empty() {
        return Err(Failure::usage(anyhow!("nothing to change was given"))
            .hint("such as --branch main; towline flux update --help"));
    }
    let body = json!({"properties": properties});
    let made = open.patch(&body, &args.wait, &format!("updating {}", args.configuration.name)).await?;
    output::print(&made, &common.output, DETAILS)
}

async fn delete(
    configuration: &NamedConfiguration,
    force: bool,
    yes: bool,
    wait: &Waiting,
    common: &CommonArgs,
) -> Outcome<()> {
    let open = Configuration::open(configuration, common).await?;
    let NamedConfiguration { name, on } = configuration;
    let absent = format!("there was no configuration {name}");
    let there = match open.get().await {
        Err(failure) if is_missing(&failure) && is_of_configuration(&failure) => {
            say(&absent);
            return Ok(());
        }
        there => there?,
    };
    let pruned = pruned(&there);
    let objects = if pruned.is_empty() {
        "; what it made in the cluster stays".to_owned()
    } else {
        format!("; what its kustomizations {} made is deleted in the cluster (prune)", pruned.join(", "))
    };
    let how = if force { " at once, without waiting for its cluster" } else { "" };
    confirm(&format!("Delete the configuration {name} of {}{how}{objects}?", on.cluster), yes).await?;
    let forced = if force { "&forceDelete=true" } else { "" };
    let answer = open.api.delete(&format!("{}{forced}", open.target)).await?;
    if answer.status == StatusCode::NO_CONTENT {
        say(&absent);
    }
    open.wait_for(&answer, &format!("deleting {name}"), wait).await
}

/// Whether what is missing is a configuration, and not its cluster.
fn is_of_configuration(failure: &Failure) -> bool {
    ApiError::behind(failure).is_some_and(|error| error.message.contains(CONFIGURATIONS.name))
}

/// Kustomizations that delete in the cluster what they made.
fn pruned(configuration: &Value) -> Vec<&str> {
    let all = configuration["properties"]["kustomizations"].as_object().into_iter().flatten();
    all.filter(|(_, one)| one["prune"] == true).map(|(name, _)| name.as_str()).collect()
}

/// The newest error that a controller logged of an object that does not comply.
fn last_error(configuration: &Value) -> Value {
    let statuses = configuration["properties"]["statuses"].as_array().into_iter().flatten();
    let conditions = statuses.filter_map(|status| status["statusConditions"].as_array()).flatten();
    let errors = conditions.filter(|condition| condition["type"] == "LastError");
    let newest = errors.max_by_key(|condition| condition["lastTransitionTime"].as_str().unwrap_or_default().to_owned());
    newest.map_or(Value::Null, |condition| condition["message"].clone())
}

/// What an object's condition `Ready` says, else its first one. While Flux is at it, `Reconciling` says with what, such
/// as a health check and how long that may take.
fn message(status: &Value) -> String {
    let conditions = status["statusConditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind);
    let ready = of("Ready").or(conditions.first());
    let is_under_way = ready.is_some_and(|ready| ready["type"] == "Ready" && ready["status"] == "Unknown");
    let says = of("Reconciling").filter(|at_it| is_under_way && at_it["status"] == "True").or(ready);
    says.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g11_question_names_what_is_pruned() {
        let shown = json!({"properties": {"kustomizations": {"a": {"prune": true}, "b": {"prune": false}, "c": null, "d": {}}}});
        assert_eq!(pruned(&shown), ["a"]);
        assert!(pruned(&json!({})).is_empty());
    }

    #[test]
    fn g9_message_is_that_of_ready() {
        let condition = |kind: &str, message: &str| json!({"type": kind, "message": message});
        let status = json!({"statusConditions": [condition("Healthy", "h"), condition("Ready", "r")]});
        assert_eq!(message(&status), "r");
        assert_eq!(message(&json!({"statusConditions": [condition("Healthy", "h")]})), "h");
        assert_eq!(message(&json!({})), "");
        let at_it = |ready: &str| {
            let reconciling = json!({"type": "Reconciling", "status": "True", "message": "running health checks"});
            json!({"statusConditions": [reconciling, {"type": "Ready", "status": ready, "message": "in progress"}]})
        };
        assert_eq!(message(&at_it("Unknown")), "running health checks");
        assert_eq!(message(&at_it("False")), "in progress");
    }
}
