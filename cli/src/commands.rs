//! The commands: one file and one line of the table each. What several of them have in common is in files of its own:
//!
//! | part | what it holds |
//! |---|---|
//! | [`target`], [`address`] | a cluster at a gateway, as whom, and how it is addressed |
//! | [`clusters`], [`features`] | resources of clusters |
//! | [`on_cluster`] | resources of a cluster that its agents follow |
//! | [`names`], [`tags`] | names and tags as typed |
//! | [`diagnoser`], [`known`] | what is wrong with agents |
//! | [`left`] | what former agents left in a cluster |
//! | [`steps`], [`interrupt`] | commands that take their time |

mod account;
mod address;
mod catalogue;
mod clusters;
mod completion;
mod connect;
mod delete;
mod dev;
mod diagnoser;
mod disable_features;
mod enable_features;
mod enrolment_token;
mod events;
mod extension;
mod features;
mod fleet;
mod flux;
mod group;
mod interrupt;
mod known;
mod kubeconfig;
mod left;
mod list;
mod login;
mod logout;
mod names;
mod on_cluster;
mod proxy;
mod rest;
mod role;
mod sessions;
mod show;
mod sp;
mod steps;
mod tags;
mod target;
mod token;
mod troubleshoot;
mod update;
mod upgrade;
mod whoami;

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};
use daemon::telemetry::LogLevel;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    context::ContextArgs,
    failure::{Failure, INTERRUPTED, Outcome},
    output::{OutputArgs, print_text as print},
};

#[cfg(test)]
pub use self::connect::values_again;
pub use self::upgrade::job::{WORD as UPGRADE_JOB, main as upgrade_job};

/// Kubernetes clusters behind firewalls, reached through a gateway.
#[derive(Debug, Parser)]
#[command(
    name = "towline",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 failed; 2 the command was typed wrongly; 130 ended by Ctrl+C; 141 nobody reads\n\
        its output any more.\n\
        Results go to standard output, all else to standard error."
)]
pub struct Cli {
    /// What to log to standard error: a level, or target=level,...; info without this, and of libraries errors alone
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Log JSON instead of text.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Makes the commands of lines `Name = module, how;`. `Args` of the module are the command's options, their comment is
/// its help, and `run` of the module is what it does. Ctrl+C meets a command in one of these ways:
///
/// | how | what happens |
/// |---|---|
/// | `interruptible` | it ends at once: it leaves nothing half done |
/// | `alone` | it listens for Ctrl+C itself, or has ended before anybody can type it, or the system ends it: it does not yield |
/// | `gateway` | as `alone`, and it can change what this process logs |
macro_rules! commands {
    ($($name:ident = $module:ident, $how:ident;)*) => {
        /// What to do.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($name($module::Args),)*
        }

        /// Runs a command.
        pub async fn run(command: Command, log_level: LogLevel) -> Outcome {
            match command {
                $(Command::$name(args) => commands!(@$how $module, args, log_level),)*
            }
        }
    };
    (@interruptible $module:ident, $args:ident, $log_level:ident) => { interruptible($module::run($args)).await };
    (@alone $module:ident, $args:ident, $log_level:ident) => { $module::run($args).await };
    (@gateway $module:ident, $args:ident, $log_level:ident) => { $module::run($args, $log_level).await };
}

// The order is that of `towline --help`.
commands! {
    Dev = dev, gateway;
    Token = token, interruptible;
    Whoami = whoami, interruptible;
    Kubeconfig = kubeconfig, interruptible;
    Login = login, interruptible;
    Logout = logout, interruptible;
    Account = account, interruptible;
    Group = group, interruptible;
    EnrolmentToken = enrolment_token, interruptible;
    List = list, interruptible;
    Show = show, interruptible;
    Update = update, interruptible;
    Upgrade = upgrade, interruptible;
    Connect = connect, alone;
    Delete = delete, interruptible;
    Troubleshoot = troubleshoot, alone;
    EnableFeatures = enable_features, interruptible;
    DisableFeatures = disable_features, interruptible;
    Role = role, interruptible;
    Sp = sp, interruptible;
    Sessions = sessions, interruptible;
    Events = events, interruptible;
    Extension = extension, interruptible;
    Flux = flux, interruptible;
    Rest = rest, interruptible;
    Completion = completion, alone;
    Proxy = proxy, alone;
    Catalogue = catalogue, alone;
}

/// What every command of the resource API takes.
#[derive(Debug, clap::Args, Clone, Default)]
pub struct CommonArgs {
    /// As which account.
    #[command(flatten)]
    pub context: ContextArgs,
    /// How results are printed.
    #[command(flatten)]
    pub output: OutputArgs,
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

/// Asks for a yes on the terminal; without a terminal the answer must have been given as `--yes`. Ctrl+C is heard while
/// it waits: the thread that reads ends with the program.
///
/// # Errors
/// When the answer is no, or nobody can be asked.
async fn confirm(question: &str, yes: bool) -> Outcome<()> {
    use std::io::{BufRead, IsTerminal};
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(anyhow::anyhow!(
            "{question} This is not a terminal, so the question cannot be asked"
        ))
        .hint("--yes"));
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

/// Says that all of something that is there is replaced, and asks on a terminal whether it may be. Scripts go on, as with
/// az, whose `create` replaces too.
async fn replacing(what: &str, update: &str, yes: bool) -> Outcome<()> {
    use std::io::IsTerminal;
    crate::terminal::say(&format!("{what} exists already: all of it is replaced ({update} changes a part of it)"));
    confirm("Replace it?", yes || !std::io::stdin().is_terminal()).await
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }
}
