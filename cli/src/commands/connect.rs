//! `towline connect`: makes a cluster's resource and installs the agents, in the order of `az connectedk8s connect` (docs/features.md
//! I3-I5, R1-R3, R13, R14, S3).
//!
//! | part | what it does |
//! |---|---|
//! | [`precheck`] | everything that can be known before anything is made; changes nothing |
//! | [`resource`] | the resource with the cluster's public key |
//! | [`token`] | the same by a one-time token in place of a sign-in |
//! | [`values`] | the manifests' values, of what was typed and what the gateway says |
//! | [`network`] | whether pods in the cluster reach the gateway, before anything is made there |
//! | [`install`] | applies, and takes back what a failed run made |
//! | [`wait`] | until the new pods are connected |
//! | [`update`] | other settings for agents that are there, which `towline update` is about |

mod install;
mod key;
mod network;
mod precheck;
mod proxy;
mod resource;
mod token;
mod update;
mod values;
mod wait;

use std::process::ExitCode;

use serde_json::Value;

use self::install::Stopped;
pub use self::update::{Update, update_agents};
use super::{interrupt::Interrupt, print, steps::Steps};
use crate::{
    args::ConnectArgs,
    context::Context,
    failure::{INTERRUPTED, Outcome},
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

/// `towline connect`.
pub async fn run(args: ConnectArgs) -> Outcome {
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
    let mut made = install::Made::default();
    let result = install::run(&args, &mut prepared, &mut made, &mut steps, &mut interrupt).await;
    drop(steps);
    match result {
        Ok(resource) => {
            made.give_up_turn().await;
            output::print(&resource, &args.common.output, COLUMNS)?;
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
async fn prepare(args: &ConnectArgs, steps: &mut Steps) -> Outcome<precheck::Prepared> {
    let proxy = proxy::Typed::read(&args.agent.proxy)?;
    let token = token::OneTime::read(args)?;
    let context = match &token {
        Some(token) => token.context(&args.enrolment, &args.common.context)?,
        None => Context::open(&args.common.context).await?,
    };
    precheck::run(args, context, token, proxy, steps).await
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
