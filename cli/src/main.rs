#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The `towline` command; and all that ships, for `towline-gateway` and `towline-agent` are other names of the same file. So
//! there is one program to build, to train and to hand out, and two that run from one file share its code in memory and
//! caches.
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
//! | [`yaml`] | YAML as every reader takes it |
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
mod yaml;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Parser;
use daemon::telemetry::{self, LogFormat};

/// What is logged unless somebody says otherwise; a gateway's operator is told what libraries warn of too.
const GATEWAY_LOG: &str = "info";
/// See [`GATEWAY_LOG`]. What libraries warn of is for their callers: it comes back as an error of the command.
const COMMAND_LOG: &str =
    "error,towline=info,agent=info,gateway=info,types=info,daemon=info,auth=info,tunnel=info,certs=info";

/// What the one file is, by the name that it is called by.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    Command,
    Gateway,
    Agent,
}

impl Program {
    /// Also where something is appended to the name, such as a version.
    fn of(called: Option<OsString>) -> Self {
        let called = called.unwrap_or_default();
        let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("towline-gateway") {
            Self::Gateway
        } else if name.starts_with("towline-agent") {
            Self::Agent
        } else {
            Self::Command
        }
    }
}

fn main() -> ExitCode {
    match Program::of(std::env::args_os().next()) {
        Program::Command => command(),
        Program::Gateway => gateway::program::main(),
        Program::Agent => agent::program::main(),
    }
}

fn command() -> ExitCode {
    let args = args::Args::parse();
    let format = if args.log_json { LogFormat::Json } else { LogFormat::Text };
    let log = args.log.as_deref().unwrap_or(match args.command {
        args::Command::Dev(_) => GATEWAY_LOG,
        _ => COMMAND_LOG,
    });
    let log_level = match telemetry::init(format, log) {
        Ok(log_level) => log_level,
        Err(error) => return failure::Failure::usage(error).report(),
    };
    let runtime = match daemon::runtime() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_it_is_called_by_says_what_it_is() {
        for (called, program) in [
            ("towline", Program::Command),
            ("/usr/local/bin/towline", Program::Command),
            ("/srv/towline-agent/towline", Program::Command),
            ("towline-gateway", Program::Gateway),
            ("/usr/local/bin/towline-gateway", Program::Gateway),
            ("./towline-gateway-0.1.0", Program::Gateway),
            ("/towline-agent", Program::Agent),
            ("", Program::Command),
        ] {
            assert_eq!(Program::of(Some(called.into())), program, "{called}");
        }
        assert_eq!(Program::of(None), Program::Command);
    }
}
