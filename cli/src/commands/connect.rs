//! `towline connect`: makes a cluster's resource and installs the agents, in the order of `az connectedk8s connect`
//! (docs/features.md I3-I5, R1-R3, R13, R14, S3).
//!
//! | part | what it does |
//! |---|---|
//! | [`precheck`] | everything that can be known before anything is made; changes nothing |
//! | [`resource`] | what there is of the resource |
//! | [`put`] | makes the resource with the cluster's public key |
//! | [`token`] | the same by a one-time token in place of a sign-in |
//! | [`extensions`] | whether helm charts are installed there, and which catalogue is trusted |
//! | [`values`] | the manifests' values, of what was typed and what the gateway says |
//! | [`network`] | whether pods in the cluster reach the gateway, before anything is made there |
//! | [`install`] | applies, and takes back what a failed run made |
//! | [`wait`] | until the new pods are connected |
//! | [`update`] | other settings for agents that are there, which `towline update` is about |

mod extensions;
mod image;
mod install;
mod key;
mod network;
mod precheck;
mod proxy;
mod put;
mod resource;
mod token;
mod update;
mod values;
mod wait;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use daemon::settings::positive_duration;
use serde_json::Value;

pub use self::{
    extensions::{CatalogueArgs, Typed as TypedExtensions},
    proxy::AgentProxyArgs,
    update::{Update, has_upgrader, update_agents},
    values::{fit, values_again},
};
use self::{install::Stopped, token::EnrolmentArgs, values::AgentArgs};
use super::{CommonArgs, interrupt::Interrupt, left, names, print, steps::Steps, tags::TagArgs};
use crate::{
    context::Context,
    failure::{INTERRUPTED, Outcome},
    kubernetes::KubeArgs,
    manifests, output,
    terminal::say,
    yaml,
};

/// What is shown of the result.
const COLUMNS: &[output::Column] = &[
    ("Name", "/name"),
    ("Location", "/location"),
    ("Status", "/properties/connectivityStatus"),
    ("Kubernetes", "/properties/kubernetesVersion"),
    ("Id", "/id"),
];

/// Connect a Kubernetes cluster: make its resource and install its agents
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The resource that is made.
    #[command(flatten)]
    pub cluster: ConnectedCluster,
    /// What stands in for a sign-in.
    #[command(flatten)]
    pub enrolment: EnrolmentArgs,
    /// Where the resource is said to be; that of its group without this
    #[arg(short = 'l', long, value_name = "LOCATION", value_parser = names::location)]
    pub location: Option<String>,
    /// Tags of the connected cluster's resource.
    #[command(flatten)]
    pub tags: TagArgs,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// What is installed. Boxed, so that no command carries the room for it.
    #[command(flatten)]
    pub agent: Box<AgentArgs>,
    /// Attach this cluster to a resource that exists already
    #[arg(long)]
    pub existing: bool,
    /// PEM file (PKCS#8) of the private key whose public half the resource has, instead of a new key
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Replace agents that belong to another gateway, or with --token to a cluster that may still be there; their
    /// resource is left without agents
    #[arg(long)]
    pub force: bool,
    /// Do not try first, by a job in the cluster, whether pods reach the gateway
    #[arg(long)]
    pub skip_network_check: bool,
    /// How long the agents may take to connect, and the check of the network until it runs
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "20m")]
    pub onboarding_timeout: Duration,
    /// Do not wait until they have
    #[arg(long)]
    pub no_wait: bool,
    /// Print the manifests as YAML, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The cluster's resource; a one-time token tells its group.
#[derive(Debug, clap::Args, Clone)]
pub struct ConnectedCluster {
    /// The cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::new_cluster)]
    pub name: String,
    /// Its resource group; an enrolment token tells it
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, required_unless_present_any = ["token", "token_file"])]
    pub resource_group: Option<String>,
}

pub async fn run(args: Args) -> Outcome {
    let mut interrupt = Interrupt::listen()?;
    let mut steps = Steps::default();
    let mut prepared = tokio::select! {
        biased;
        () = interrupt.heard() => return Ok(ExitCode::from(INTERRUPTED)),
        prepared = prepare(&args, &mut steps) => prepared?,
    };
    if args.dry_run {
        print(&documents(&prepared))?;
        return Ok(ExitCode::SUCCESS);
    }
    // What agents of this run install is none of a former connection.
    let looking = prepared.cluster.managed(&prepared.namespace);
    let Some(there) = interrupt.unless_heard(looking).await else { return Ok(ExitCode::from(INTERRUPTED)) };
    let mut made = install::Made::default();
    let result = install::run(&args, &mut prepared, &mut made, &mut steps, &mut interrupt).await;
    drop(steps);
    match result {
        Ok(resource) => {
            made.give_up_turn().await;
            output::print(&resource, &args.common.output, COLUMNS)?;
            let api = prepared.token.is_none().then_some(&prepared.api);
            let is_new = prepared.before.resource.is_none() && prepared.enrolled.is_none();
            left::told(api, &prepared.id, there, is_new, &prepared.namespace).await.iter().for_each(|line| say(line));
            Ok(ExitCode::SUCCESS)
        }
        Err(stopped) => {
            let left = install::take_back(&prepared, &mut made, &mut interrupt).await;
            made.give_up_turn().await;
            match (stopped, left) {
                (Stopped::Interrupted, None) => Ok(ExitCode::from(INTERRUPTED)),
                (Stopped::Interrupted, Some(left)) => {
                    say(&left);
                    Ok(ExitCode::from(INTERRUPTED))
                }
                (Stopped::Failed(failure), None) => Err(failure),
                (Stopped::Failed(failure), Some(left)) => {
                    say(&left);
                    Err(failure)
                }
            }
        }
    }
}

/// Checks, and the values that follow from them.
async fn prepare(args: &Args, steps: &mut Steps) -> Outcome<precheck::Prepared> {
    let proxy = proxy::Typed::read(&args.agent.proxy)?;
    let extensions = extensions::Typed::read(args.agent.extensions, &args.agent.catalogue)?;
    let token = token::OneTime::read(args)?;
    let context = match &token {
        Some(token) => token.context(&args.enrolment, &args.common.context)?,
        None => Context::open(&args.common.context).await?,
    };
    precheck::run(args, context, token, proxy, &extensions, steps).await
}

/// As `kubectl apply -f -` takes it. The private key is in it only where it was typed.
fn documents(prepared: &precheck::Prepared) -> String {
    let mut all: Vec<Value> = Vec::new();
    if prepared.makes_namespace {
        all.push(manifests::namespace(&prepared.namespace));
    }
    all.extend(manifests::objects(&prepared.values, &prepared.namespace));
    yaml::all_to_string(&all).trim_end().to_owned()
}
