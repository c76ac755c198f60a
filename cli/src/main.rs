#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The `towline` command.
//!
//! | module | what it holds |
//! |---|---|
//! | [`args`] | the words as typed |
//! | [`commands`] | one file a command |
//! | [`context`] | gateways and accounts: who is signed in where |
//! | [`oauth`] | how somebody signs in |
//! | [`api`] | typed calls of the resource API |
//! | [`output`] | table, json, yaml, tsv, and `--query` |
//! | [`client`] | HTTPS to a gateway, also from behind a proxy |
//! | [`credential`] | where a user's token comes from |
//! | [`kubeconfig`] | merges entries into a kubeconfig |
//! | [`kubernetes`] | the cluster of the user's kubeconfig |
//! | [`local_proxy`] | what `towline proxy` serves |
//! | [`manifests`] | the agents' objects, as `connect` applies them |
//! | [`state`] | the folder of `towline dev` |
//! | [`environment`] | the environment variables that are read |

mod api;
mod args;
mod client;
mod commands;
mod context;
mod credential;
mod environment;
mod failure;
mod kubeconfig;
mod kubernetes;
mod local_proxy;
mod manifests;
mod oauth;
mod output;
mod state;

use std::process::ExitCode;

use clap::Parser;
use proto::process::telemetry::{self, LogFormat};

fn main() -> ExitCode {
    let args = args::Args::parse();
    let format = if args.log_json { LogFormat::Json } else { LogFormat::Text };
    let log_level = match telemetry::init(format, &args.log) {
        Ok(log_level) => log_level,
        Err(error) => return failure::Failure::usage(error).report(),
    };
    let runtime = match proto::process::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failure::Failure::from(anyhow::Error::from(error)).report(),
    };
    let result = runtime.block_on(commands::run(args.command, log_level));
    // What still waits for a peer must not keep the command from ending.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
