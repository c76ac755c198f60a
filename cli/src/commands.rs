//! One file a command; [`target`] is what several of them have in common.

mod account;
mod address;
mod clusters;
mod completion;
mod connect;
mod delete;
mod dev;
mod diagnoser;
mod enrolment_token;
mod events;
mod features;
mod group;
mod interrupt;
mod known;
mod kubeconfig;
mod login;
mod proxy;
mod rest;
mod role;
mod sessions;
mod sp;
mod steps;
mod target;
mod token;
mod troubleshoot;
mod whoami;

use std::{io::Write, process::ExitCode};

use daemon::telemetry::LogLevel;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::Command,
    failure::{Failure, INTERRUPTED, Outcome},
    output::print_text as print,
};

/// Runs a command.
pub async fn run(command: Command, log_level: LogLevel) -> Outcome {
    match command {
        Command::Dev(args) => dev::run(args, log_level).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Connect(args) => connect::run(args).await,
        Command::Delete(args) => interruptible(delete::run(args)).await,
        Command::Troubleshoot(args) => troubleshoot::run(args).await,
        Command::Login(args) => interruptible(login::run(args)).await,
        Command::Logout(args) => interruptible(account::logout(args)).await,
        Command::Account(args) => interruptible(account::run(args)).await,
        Command::Group(args) => interruptible(group::run(args)).await,
        Command::EnrolmentToken(args) => interruptible(enrolment_token::run(args)).await,
        Command::List(args) => interruptible(clusters::list(args)).await,
        Command::Show(args) => interruptible(clusters::show(args)).await,
        Command::Update(args) => interruptible(clusters::update(args)).await,
        Command::EnableFeatures(args) => interruptible(features::run(args, true)).await,
        Command::DisableFeatures(args) => interruptible(features::run(args, false)).await,
        Command::Role(args) => interruptible(role::run(args)).await,
        Command::Sp(args) => interruptible(sp::run(args)).await,
        Command::Sessions(args) => interruptible(sessions::run(args)).await,
        Command::Events(args) => interruptible(events::run(args)).await,
        Command::Rest(args) => interruptible(rest::run(args)).await,
        Command::Completion(args) => completion::run(&args),
        Command::Token(args) => interruptible(token::run(args)).await,
        Command::Whoami(args) => interruptible(whoami::run(args)).await,
        Command::Kubeconfig(args) => interruptible(kubeconfig::run(args)).await,
    }
}

/// Ctrl+C ends a command that has nothing to finish. It is listened for before the command begins: a question may be
/// answered with it at once.
async fn interruptible(command: impl Future<Output = Outcome>) -> Outcome {
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        biased;
        outcome = command => outcome,
        Some(()) = interrupt.recv() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Asks for a yes on the terminal; without a terminal the answer must have been given as `--yes`. Ctrl+C is heard while it
/// waits: the thread that reads ends with the program.
///
/// # Errors
/// When the answer is no, or nobody can be asked.
async fn confirm(question: &str, yes: bool) -> Outcome<()> {
    use std::io::{BufRead, IsTerminal};
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(anyhow::anyhow!("{question} Nobody can be asked here")).hint("--yes"));
    }
    write!(std::io::stderr().lock(), "{question} [y/N] ")?;
    let read = || {
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).map(|_| answer)
    };
    let answer = tokio::task::spawn_blocking(read).await??;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(anyhow::anyhow!("nothing was changed").into()),
    }
}
