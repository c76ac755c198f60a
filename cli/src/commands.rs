//! One file a command; [`target`] is what several of them have in common.

mod dev;
mod kubeconfig;
mod proxy;
mod target;
mod token;
mod whoami;

use std::{io::Write, process::ExitCode};

use proto::process::telemetry::LogLevel;

use crate::{
    args::Command,
    failure::{INTERRUPTED, Outcome},
};

/// Runs a command.
pub async fn run(command: Command, log_level: LogLevel) -> Outcome {
    match command {
        Command::Dev(args) => dev::run(args, log_level).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Token(args) => interruptible(token::run(args)).await,
        Command::Whoami(args) => interruptible(whoami::run(args)).await,
        Command::Kubeconfig(args) => interruptible(kubeconfig::run(args)).await,
    }
}

/// Ctrl+C ends a command that has nothing to finish.
async fn interruptible(command: impl Future<Output = Outcome>) -> Outcome {
    tokio::select! {
        biased;
        outcome = command => outcome,
        Ok(()) = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Prints to standard output: what was asked for and nothing else.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}
