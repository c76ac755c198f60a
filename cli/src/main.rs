#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The `towline` command; and all that ships, for `towline-gateway` and `towline-agent` are other names of the same
//! file. So there is one program to build, to train and to hand out, and two that run from one file share its code in
//! memory and caches.
//!
//! | module | what it holds |
//! |---|---|
//! | [`commands`] | the words as typed: one file a command |
//! | [`context`] | the account in use: its tokens, its subscription, the folder of accounts |
//! | [`account`] | what is known of an account at a gateway |
//! | [`oauth`] | how somebody signs in |
//! | [`api`] | typed calls of the resource API |
//! | [`output`] | results: table, json, yaml, tsv, and `--query` |
//! | [`terminal`] | what is said on standard error, and texts of others on a terminal |
//! | [`client`] | HTTPS to a gateway, also from behind a proxy |
//! | [`credential`] | where a user's token comes from |
//! | [`token`] | a token, and what it says of itself |
//! | [`secret`] | secrets that are read from a file |
//! | [`kubeconfig`] | merges entries into a kubeconfig |
//! | [`kubernetes`] | the cluster of the user's kubeconfig |
//! | [`local_proxy`] | what `towline proxy` serves |
//! | [`manifests`] | the agents' objects, as `connect` applies them |
//! | [`state`] | the folder of `towline dev` |
//! | [`yaml`] | YAML as every reader takes it |
//! | [`environment`] | the environment variables that are read |
//! | [`program`] | which of the three programs this is |
//! | [`failure`] | how a command fails |
//! | [`report`] | how a failure is shown |

mod account;
mod api;
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
mod program;
mod report;
mod secret;
mod state;
mod terminal;
mod token;
mod yaml;

use std::process::ExitCode;

use clap::Parser;
use daemon::telemetry::{self, LogFormat};

use self::{
    commands::{Cli, Command},
    failure::Failure,
    program::Program,
    report::report,
};

/// What is logged unless somebody says otherwise; a gateway's operator is told what libraries warn of too.
const GATEWAY_LOG: &str = "info";
/// See [`GATEWAY_LOG`]. What libraries warn of is for their callers: it comes back as an error of the command, and so
/// does what kube's client calls an error.
const COMMAND_LOG: &str = "error,kube_client=off,towline=info,agent=info,gateway=info,types=info,daemon=info,auth=info,tunnel=info,certs=info";

fn main() -> ExitCode {
    match Program::of(std::env::args_os().next()) {
        Program::Command => command(),
        Program::Gateway => gateway::program::main(),
        Program::Agent if std::env::args_os().nth(1).is_some_and(|word| word == commands::UPGRADE_JOB) => {
            commands::upgrade_job()
        }
        Program::Agent => agent::program::main(),
    }
}

fn command() -> ExitCode {
    let args = Cli::parse();
    let format = if args.log_json { LogFormat::Json } else { LogFormat::Text };
    let log = args.log.as_deref().unwrap_or(match args.command {
        Command::Dev(_) => GATEWAY_LOG,
        _ => COMMAND_LOG,
    });
    let log_level = match telemetry::init(format, log) {
        Ok(log_level) => log_level,
        Err(error) => return report(&Failure::usage(error)),
    };
    let runtime = match daemon::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::from(error).into()),
    };
    let result = runtime.block_on(commands::run(args.command, log_level));
    // What still waits for a peer must not keep the command from ending.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => report(&failure),
    }
}
