//! One file a command; [`target`] is what several of them have in common.

mod dev;
mod kubeconfig;
mod proxy;
mod target;
mod token;
mod whoami;

use std::{
    io::Write,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use proto::process::{TaskGroup, telemetry::LogLevel};
use tokio::signal::unix::{SignalKind, signal};

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

/// Whether Ctrl+C was among what ended a command that runs until told: the exit code says so.
struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    fn watch(tasks: &TaskGroup) -> anyhow::Result<Self> {
        let heard = Arc::new(AtomicBool::new(false));
        let (mut interrupts, flag) = (signal(SignalKind::interrupt())?, heard.clone());
        tasks.spawn("interrupts", async move {
            while interrupts.recv().await.is_some() {
                flag.store(true, Ordering::Relaxed);
            }
        });
        Ok(Self(heard))
    }

    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
