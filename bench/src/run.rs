//! A run: scenarios over paths, in interleaved repeats, so that what the machine does meanwhile falls on all paths alike.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use proto::process::{Shutdown, TaskGroup};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    accounting,
    link::{Link, Seat},
    load::{Load, Outcome, Plan},
    machine,
    path::{ANSWERS, Bench, Kind, Running},
    program::{Program, output},
    record::{Hop, Record, Writer},
    scenario::{self, Scenario, Size},
    statistics::Middle,
};

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// Scenarios, with commas; all of them without.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Paths, with commas; all of them without.
    #[arg(long, value_delimiter = ',')]
    path: Vec<Kind>,
    /// How often each, interleaved.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Short ones, which show that all of it works; their figures decide nothing.
    #[arg(long)]
    quick: bool,
    /// Over loopback, without namespaces: every path looks better than it is.
    #[arg(long)]
    loopback: bool,
    /// Where every figure is kept, a line of JSON each; a new file in target/bench without this.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Folder of towline and towline-agent; that of this program without it.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Exit code 1 if any request failed.
    #[arg(long)]
    strict: bool,
}

/// How often memory is looked at while a load runs.
const LOOK: Duration = Duration::from_millis(100);
/// What a shell says of a program that was interrupted.
const INTERRUPTED: u8 = 130;

/// Runs.
///
/// # Errors
/// An unknown name, a path that does not start, a load that could not be run.
#[tokio::main(flavor = "current_thread")]
pub async fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let (tasks, shutdown) = (TaskGroup::new("bench"), Shutdown::new());
    // Programs and namespaces go with the run, so that an interrupted one leaves nothing.
    let _signals = proto::process::signals(&tasks, &shutdown)?;
    tokio::select! {
        biased;
        () = shutdown.draining() => Ok(ExitCode::from(INTERRUPTED)),
        outcome = run(args) => outcome,
    }
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenarios = scenario::chosen(&args.scenario)?;
    let paths = if args.path.is_empty() { Kind::value_variants() } else { &args.path };
    let link = if args.loopback { Link::Loopback } else { Link::veth()? };
    let facts = machine::facts(args.quick, link.name());
    let own = std::env::current_exe()?.parent().map(Path::to_owned).context("the folder of this program")?;
    let bench = Bench::start(link, args.programs.clone().unwrap_or(own)).await?;
    let out = args.out.clone().unwrap_or_else(|| Path::new(crate::KEPT).join(facts.file_name()));
    let mut writer = Writer::create(&out, &facts)?;
    let mut failed = 0;
    for repeat in 0..args.repeat {
        for kind in paths {
            // Fresh processes for each round: what one leaves behind is not carried through the whole run.
            let mut path = bench.path(*kind).await?;
            answers(&bench, &mut path).await.with_context(|| format!("{} does not answer", kind.name()))?;
            for scenario in &scenarios {
                let record = measure(&bench, &path, (*kind, repeat), scenario, Size::new(args.quick)).await?;
                failed += record.outcome.all_failed();
                crate::progress(&record.line());
                writer.write(&record)?;
            }
            path.stop().await;
        }
    }
    crate::progress(&format!("figures are in {}; `bench report {0}` makes a table of them", out.display()));
    if failed > 0 {
        crate::progress(&format!("{failed} requests failed"));
    }
    Ok(if args.strict && failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Waits until a request gets through.
async fn answers(bench: &Bench, path: &mut Running) -> anyhow::Result<()> {
    let until = Instant::now() + ANSWERS;
    loop {
        let outcome = load(bench, path, (scenario::probe(), None)).await?;
        if outcome.requests == 1 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "within {ANSWERS:?}: {:?}\n{}", outcome.errors, path.state());
        tokio::time::sleep(LOOK).await;
    }
}

async fn measure(
    bench: &Bench,
    path: &Running,
    (kind, repeat): (Kind, u32),
    scenario: &Scenario,
    size: Size,
) -> anyhow::Result<Record> {
    load(bench, path, (scenario::warm(), None)).await?;
    let before: Vec<_> = path.hops.iter().map(Looked::new).collect();
    let mut memory = vec![Vec::new(); before.len()];
    let loaded = load(bench, path, scenario.load(size));
    tokio::pin!(loaded);
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let outcome = loop {
        tokio::select! {
            outcome = &mut loaded => break outcome.with_context(|| format!("{} over {}", scenario.name, kind.name()))?,
            _ = ticks.tick() => before.iter().zip(&mut memory).for_each(|(hop, seen)| seen.extend(hop.memory_kib())),
        }
    };
    let hops = before.into_iter().zip(memory).map(|(hop, memory)| hop.used(memory)).collect::<anyhow::Result<_>>()?;
    Ok(Record { scenario: scenario.name.to_owned(), path: kind.name().to_owned(), repeat, outcome, hops })
}

/// A hop before a load.
struct Looked<'a> {
    hop: &'a Program,
    before: accounting::Usage,
}

impl<'a> Looked<'a> {
    fn new(hop: &'a Program) -> Self {
        hop.pid().into_iter().for_each(accounting::reset_peak);
        Self { hop, before: hop.pid().and_then(accounting::usage).unwrap_or_default() }
    }

    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 KiB")]
    fn memory_kib(&self) -> Option<f64> {
        Some(accounting::memory_kib(self.hop.pid()?)? as f64)
    }

    /// What it used since.
    fn used(self, memory_kib: Vec<f64>) -> anyhow::Result<Hop> {
        let now = self.hop.pid().and_then(accounting::usage);
        let mut used = now.with_context(|| format!("{} has ended meanwhile", self.hop.name))? - self.before;
        if let Some(steady) = Middle::of(memory_kib) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it was one of the kernel's numbers"
            )]
            let kib = steady.median as u64;
            used.memory_kib = kib;
        }
        Ok(Hop { name: self.hop.name.clone(), used })
    }
}

async fn load(bench: &Bench, path: &Running, (load, beside): (Load, Option<Load>)) -> anyhow::Result<Outcome> {
    let plan = Plan { url: path.url.clone(), ca: path.ca.clone(), token: path.token.clone(), load, beside };
    let mut command = bench.link.command(Seat::Load, &std::env::current_exe()?);
    command.arg("load");
    Ok(serde_json::from_str(&output(command, &serde_json::to_vec(&plan)?).await?)?)
}
