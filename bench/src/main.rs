#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::float_cmp))]

//! Measures Towline beside what a user would pick instead, in one run on one machine. What each scenario means:
//! `docs/bench.md`; how to read it: `bench/README.md`.

mod accounting;
mod agents;
mod apiserver;
mod audit;
mod certificates;
mod cipher;
mod commands;
mod compare;
mod failover;
mod fleet;
mod h2load;
mod html;
mod latency;
mod ledger;
mod link;
mod load;
mod machine;
mod minimal;
mod path;
mod plan;
mod plot;
mod print;
mod program;
mod readme;
mod record;
mod relay;
mod report;
mod run;
mod scenario;
mod scene;
mod shape;
mod statistics;
mod targets;
mod tokens;
mod told;
mod upstream;
mod users;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Parser, Subcommand};

use self::{
    print::{progress, say},
    record::KEPT,
    targets::TARGETS,
};

/// Measures Towline beside its peers.
#[derive(Parser)]
#[command(name = "bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Scenarios and paths that there are.
    List,
    /// Run scenarios over paths and keep every figure as a line of JSON (needs root, for network namespaces).
    Run(run::Args),
    /// Markdown tables of a run, with ratios to nginx-chain and to the best peer.
    Report {
        /// The file that `run` wrote; the newest in target/bench without this.
        file: Option<PathBuf>,
        /// One page with plots in place of the tables: this file, which needs no network.
        #[arg(long)]
        html: Option<PathBuf>,
        /// In short, ready to paste: when, where and by which command, the main figures, the targets.
        #[arg(long, conflicts_with = "html")]
        readme: bool,
        /// The targets, for the page and for what is pasted.
        #[arg(long, default_value = TARGETS)]
        targets: PathBuf,
    },
    /// Two runs of one machine beside each other: what differs by more than the spread.
    Compare {
        /// The run before.
        old: PathBuf,
        /// The run after.
        new: PathBuf,
    },
    /// Compare a run with bench/targets.toml; exit code 1 and each miss by its name.
    Check {
        /// The file that `run` wrote; the newest in target/bench without this.
        file: Option<PathBuf>,
        /// File with the targets.
        #[arg(long, default_value = TARGETS)]
        targets: PathBuf,
    },
    /// The upstream that is fast enough not to be what is measured. Started by `run`.
    #[command(hide = true)]
    Upstream(upstream::Args),
    /// A hop that does nothing but what any must. Started by `run`.
    #[command(hide = true, subcommand)]
    Minimal(minimal::Hop),
    /// What kubectl does, as users would. Started by `run`; reads its plan from standard input.
    #[command(hide = true)]
    Commands,
    /// A long or bad way between two TUN devices. Started by `run`.
    #[command(hide = true)]
    Relay(relay::Args),
    /// How many audit records a gateway has dropped. Started by `run`.
    #[command(hide = true)]
    Audit(audit::Args),
    /// The load of one scenario. Started by `run`; reads its plan from standard input.
    #[command(hide = true)]
    Load,
    /// What a token check costs by itself. Started by `run`.
    #[command(hide = true)]
    Tokens(tokens::Args),
    /// Many watches. Started by `run`, which says on standard input what to do.
    #[command(hide = true)]
    Watches,
    /// Users of many clusters. Started by `run`, which says on standard input what to do.
    #[command(hide = true)]
    Clusters,
    /// Clusters that are registered at a gateway. Started by `run`; reads its plan from standard input.
    #[command(hide = true)]
    Register,
    /// Agents of many clusters. Started by `run`, which says on standard input what to do.
    #[command(hide = true)]
    Agents,
    /// One agent whose control exchanges are measured. Started by `run`, which says on standard input what to do.
    #[command(hide = true)]
    Agent,
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    let provider = match command {
        Command::Load | Command::Watches | Command::Clusters | Command::Upstream(_) | Command::Minimal(_) => {
            cipher::provider()
        }
        // Those that speak for Towline have its ciphers: QUIC begins with another one.
        _ => rustls::crypto::aws_lc_rs::default_provider(),
    };
    // An error means that there is one already, which is as good.
    let _ = provider.install_default();
    match execute(command) {
        Ok(code) => code,
        Err(error) => {
            progress(&format!("bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let kept = |file: Option<PathBuf>| file.map_or_else(|| record::newest(Path::new(KEPT)), Ok);
    match command {
        Command::List => scenario::list(),
        Command::Run(args) => return run::start(&args),
        Command::Report { file, html: None, readme: true, targets } => {
            let run = record::read(&kept(file)?)?;
            say(&readme::text(&run, verdict(&run, &targets)?.as_ref()));
        }
        Command::Report { file, html: None, .. } => say(&report::markdown(&record::read(&kept(file)?)?)),
        Command::Report { file, html: Some(page), targets, .. } => {
            let run = record::read(&kept(file)?)?;
            let text = html::page(&run, verdict(&run, &targets)?.as_ref())?;
            std::fs::write(&page, text).with_context(|| page.display().to_string())?;
            say(&page.display().to_string());
        }
        Command::Compare { old, new } => say(&compare::compare(&record::read(&old)?, &record::read(&new)?)),
        Command::Check { file, targets } => {
            let verdict = targets::check(&targets, &record::read(&kept(file)?)?)?;
            say(&verdict.text());
            return Ok(if verdict.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Upstream(args) => upstream::run(&args)?,
        Command::Minimal(hop) => minimal::run(hop)?,
        Command::Relay(args) => return relay::run(&args),
        Command::Audit(args) => audit::main(&args)?,
        Command::Load => load::main()?,
        Command::Tokens(args) => tokens::main(args)?,
        Command::Watches => load::watch::main()?,
        Command::Clusters => load::clusters::main()?,
        Command::Register => load::register::main()?,
        Command::Agents => agents::main()?,
        Command::Agent => agents::control::main()?,
        Command::Commands => commands::main()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What the targets say; figures that decide nothing need no list of targets that were not measured.
fn verdict(run: &record::Run, file: &Path) -> anyhow::Result<Option<targets::Verdict>> {
    let decides = run.facts.reservations().is_empty();
    decides.then(|| targets::check(file, run)).transpose()
}
