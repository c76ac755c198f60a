//! A run: scenarios over paths, in interleaved repeats, so that what the machine does meanwhile falls on all paths
//! alike.

mod turns;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use daemon::{Shutdown, TaskGroup};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::{
    commands::{self, Task},
    failover, fleet, h2load,
    ledger::Ledger,
    link::{Link, Way},
    load::{Load, Outcome},
    machine,
    path::{ANSWERS, Bench, Kind, Missing, Running},
    plan::{self, Plan, Stop, Wanted},
    record::{self, Record, Writer},
    relay,
    scenario::{
        self, Scenario, Size, Work,
        fleets::{self, Many},
    },
    scene::{Crowd, Scene, Server},
    tokens,
    users::{Around, User, alone_and_beside, load_of},
};

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// Scenarios, with commas; without, what targets need and a few that are shown once.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Paths, with commas; without, all of them, or what targets need where no scenario is named either.
    #[arg(long, value_delimiter = ',')]
    path: Vec<Kind>,
    /// How often each, interleaved; at most so often, where no scenario is named.
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
    /// Train a program that was built to count what runs (`rustc -C profile-generate`): its processes are asked to end
    /// before they are killed, as they write down then what they have counted.
    #[arg(long)]
    train: bool,
    /// Exit code 1 if any request failed, or something broke.
    #[arg(long)]
    strict: bool,
    /// The targets, which say what is measured where no scenario is named.
    #[arg(long, default_value = crate::targets::TARGETS)]
    targets: PathBuf,
}

/// What stands in the place of a path where there is none.
const VERIFIER: &str = "verifier";
/// A scenario that is not over by then is broken.
const PATIENCE: Duration = Duration::from_secs(600);
/// Seconds of a run that say nothing yet of how long the rest takes.
const FIRST_S: f64 = 20.0;
/// How often memory is looked at while a load runs.
const LOOK: Duration = Duration::from_millis(100);
/// A program that was killed has let go of its ports within this.
const DYING: Duration = Duration::from_secs(1);
/// What a shell says of a program that was interrupted.
const INTERRUPTED: u8 = 130;

/// Makes a run. A signal ends it, with the programs and namespaces that it started.
///
/// # Errors
/// An unknown name, programs of Towline that are missing, a load that could not be run.
#[tokio::main(flavor = "current_thread")]
pub async fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let (tasks, shutdown) = (TaskGroup::new("bench"), Shutdown::new());
    // Programs and namespaces go with the run, so that an interrupted one leaves nothing.
    let _signals = daemon::signals(&tasks, &shutdown)?;
    tokio::select! {
        biased;
        () = shutdown.draining() => Ok(ExitCode::from(INTERRUPTED)),
        outcome = run(args) => outcome,
    }
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { scenario, path, targets, .. } = args;
    let plan = Plan::new(&Wanted { scenarios: scenario, paths: path, repeat: args.repeat, targets })?;
    let (stops, size) = (plan.stops(), Size::new(args.quick));
    let mut progress = Progress::new(plan::seconds(&stops, size));
    let link = if args.loopback { Link::Loopback } else { Link::veth()? };
    let facts = machine::facts(args.quick, link.name());
    let own = std::env::current_exe()?.parent().map(Path::to_owned).context("the folder of this program")?;
    let bench = Bench::start(link, args.programs.clone().unwrap_or(own), args.train).await?;
    bench.has_programs(&plan.paths())?;
    let out = args.out.clone().unwrap_or_else(|| Path::new(crate::record::KEPT).join(facts.file_name()));
    let mut writer = Writer::create(&out, &facts)?;
    let (mut failed, mut broken) = (0, 0);
    let mut keep = |record: Record| {
        failed += record.outcome.all_failed();
        crate::print::progress(&record.line());
        writer.write(&record)
    };
    for stop in &stops {
        crate::print::progress(&progress.at(stop));
        let round = |kind| Round { bench: &bench, kind, repeat: stop.repeat, size };
        match stop.kinds.as_slice() {
            [] => {
                for scenario in &stop.scenarios {
                    broken += keep_alone(&bench, scenario, stop.repeat, size, &mut keep).await?;
                }
            }
            kinds if stop.scene.together => {
                let rounds: Vec<_> = kinds.iter().copied().map(round).collect();
                for scenario in &stop.scenarios {
                    broken += turns::run(&rounds, scenario, &mut keep).await?;
                }
            }
            kinds => {
                for kind in kinds {
                    broken += round(*kind).run(stop.scene, &stop.scenarios, &mut keep).await?;
                }
            }
        }
        progress.done(stop, size);
    }
    crate::print::progress(&format!("figures are in {}; `bench report {0}` makes a table of them", out.display()));
    if failed > 0 {
        crate::print::progress(&format!("{failed} requests failed"));
    }
    if broken > 0 {
        crate::print::progress(&format!(
            "{broken} times something broke: those scenarios have no figures in that repeat"
        ));
    }
    Ok(if args.strict && (failed > 0 || broken > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// How far a run is, and how long it may still take by what it took so far.
struct Progress {
    begin: Instant,
    all_s: f64,
    done_s: f64,
}

impl Progress {
    fn new(all_s: f64) -> Self {
        crate::print::progress(&format!("this takes about {}", time(all_s)));
        Self { begin: Instant::now(), all_s, done_s: 0.0 }
    }

    fn at(&self, stop: &Stop) -> String {
        let left = (self.all_s - self.done_s) * pace(self.begin.elapsed().as_secs_f64(), self.done_s);
        let paths = match stop.kinds.as_slice() {
            [] => "no path".to_owned(),
            [kind] => kind.name().to_owned(),
            kinds => format!("{} paths in turns", kinds.len()),
        };
        format!("-- repeat {} {paths}, about {} left", stop.repeat, time(left))
    }

    fn done(&mut self, stop: &Stop, size: Size) {
        self.done_s += stop.seconds(size);
    }
}

/// How much longer than estimated it takes; nobody knows at the beginning.
fn pace(took_s: f64, estimated_s: f64) -> f64 {
    if estimated_s < FIRST_S { 1.0 } else { took_s / estimated_s }
}

fn time(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// A path in one repeat.
struct Round<'a> {
    bench: &'a Bench,
    kind: Kind,
    repeat: u32,
    size: Size,
}

impl Round<'_> {
    /// Scenarios of a scene, over a path that is started for them: what one round leaves behind is not carried through
    /// the whole run. One that breaks has no figures, and the next one has the path started anew. How often something
    /// broke; what is missing on this machine does not count.
    async fn run(
        &self,
        scene: Scene,
        scenarios: &[&Scenario],
        mut keep: impl FnMut(Record) -> anyhow::Result<()>,
    ) -> anyhow::Result<u32> {
        let crowd = fleets::fewer(scene.crowd, self.size);
        let cannot = self.bench.link.cannot(scene.shape).map(str::to_owned);
        if let Some(why) = cannot.or_else(|| self.bench.cannot(self.kind, crowd)) {
            scenarios.iter().try_for_each(|scenario| keep(self.without(scenario, &why)))?;
            return Ok(0);
        }
        let (mut broken, mut left) = (0, scenarios);
        while !left.is_empty() {
            match self.some(Scene { crowd, ..scene }, &mut left, &mut keep).await? {
                End::Done => {}
                End::NoStart(error) => {
                    broken += u32::from(error.downcast_ref::<Missing>().is_none());
                    let why = why(&error);
                    left.iter().try_for_each(|scenario| keep(self.without(scenario, &why)))?;
                    left = &[];
                }
                End::Broke(error) => {
                    broken += 1;
                    if let [first, rest @ ..] = left {
                        keep(self.without(first, &why(&error)))?;
                        left = rest;
                    }
                }
            }
        }
        Ok(broken)
    }

    /// One start of the path, until all are measured or one breaks. Those that are kept are taken off `left`.
    async fn some(
        &self,
        scene: Scene,
        left: &mut &[&Scenario],
        mut keep: impl FnMut(Record) -> anyhow::Result<()>,
    ) -> anyhow::Result<End> {
        // Repeats differ in what is lost, paths of one repeat as little as can be.
        let mut way = match Way::start(&self.bench.link, scene.shape, self.repeat).await {
            Ok(way) => way,
            Err(error) => return Ok(End::NoStart(error)),
        };
        let mut path = match self.start(scene).await {
            Ok(path) => path,
            Err(error) => {
                way.stop().await;
                return Ok(End::NoStart(error));
            }
        };
        let mut end = End::Done;
        while let [first, rest @ ..] = *left {
            let measured =
                match first.work.needs().and_then(|ability| path.lacks(ability)).or_else(|| first.work.missing()) {
                    Some(why) => Ok(self.without(first, why)),
                    None => self.measure_in_time(&mut way, &mut path, first, scene).await,
                };
            match measured {
                Ok(record) => keep(record)?,
                Err(error) => {
                    // The hops' logs end with the path.
                    crate::print::progress(&path.state());
                    end = End::Broke(error);
                    break;
                }
            }
            *left = rest;
        }
        path.stop(self.bench.train).await;
        way.stop().await;
        Ok(end)
    }

    async fn measure_in_time(
        &self,
        way: &mut Way,
        path: &mut Running,
        scenario: &Scenario,
        scene: Scene,
    ) -> anyhow::Result<Record> {
        let measured = timeout(PATIENCE, self.measure(way, path, scenario, scene)).await;
        measured.unwrap_or_else(|_| bail!("not over within {PATIENCE:?}"))
    }

    /// The path, once a request gets through.
    async fn start(&self, scene: Scene) -> anyhow::Result<Running> {
        let mut path = match self.bench.path(self.kind, scene).await {
            Ok(path) => path,
            Err(error) => {
                // What of it was started is killed, but nobody waited for its end; the next path has the same ports.
                tokio::time::sleep(DYING).await;
                return Err(error);
            }
        };
        match answers(self.bench, &mut path, scene).await {
            Ok(()) => Ok(path),
            Err(error) => {
                path.stop(self.bench.train).await;
                Err(error.context(format!("{} does not answer", self.kind.name())))
            }
        }
    }

    fn without(&self, scenario: &Scenario, why: &str) -> Record {
        Record::without(scenario.name, self.kind.name(), self.repeat, why)
    }

    /// One scenario, once.
    async fn measure(
        &self,
        way: &mut Way,
        path: &mut Running,
        scenario: &Scenario,
        scene: Scene,
    ) -> anyhow::Result<Record> {
        let ledgers = self.ready(path, scenario.scene).await?;
        // What was lost before counts for nothing, too.
        way.told().await?;
        let work = work(self.bench, path, scenario.work, scene.crowd, self.size);
        let mut outcome = looked_at(&ledgers, work).await?;
        // All that failed since then would count as if the path had refused it.
        if let Some(why) = path.ended() {
            bail!(why);
        }
        outcome.extra.extend(way.told().await?.iter().flat_map(relay::figures));
        self.record(path, scenario, outcome, &ledgers).await
    }

    /// Warms the path; what its hops used and dropped before counts for nothing.
    async fn ready(&self, path: &mut Running, scene: Scene) -> anyhow::Result<Vec<Ledger>> {
        warm(self.bench, path, scene).await?;
        if let Some(audit) = &mut path.also.audit {
            audit.begins(&self.bench.link).await?;
        }
        path.ledgers()
    }

    /// What becomes of an outcome once it is whole.
    async fn record(
        &self,
        path: &Running,
        scenario: &Scenario,
        mut outcome: Outcome,
        ledgers: &[Ledger],
    ) -> anyhow::Result<Record> {
        let hops = ledgers.iter().map(Ledger::close).collect::<anyhow::Result<_>>()?;
        if let Some(audit) = &path.also.audit {
            audit.tell(&self.bench.link, &mut outcome).await?;
        }
        if let Some(name) = outcome.extra.keys().find(|name| record::figure(name).is_none()) {
            bail!("there is a figure {name:?} that record::FIGURES does not name");
        }
        let (scenario, path) = (scenario.name.to_owned(), self.kind.name().to_owned());
        Ok(Record { scenario, path, repeat: self.repeat, no: None, outcome, hops })
    }
}

/// What comes of it, while the memory of hops is looked at.
async fn looked_at<T>(ledgers: &[Ledger], work: impl Future<Output = T>) -> T {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => ledgers.iter().for_each(Ledger::look),
        }
    }
}

/// How a start of a path ended.
enum End {
    /// All is measured.
    Done,
    /// It did not even start, or is missing on this machine.
    NoStart(anyhow::Error),
    /// The first scenario that is left broke.
    Broke(anyhow::Error),
}

/// What goes over no path; 1 if it broke.
async fn keep_alone(
    bench: &Bench,
    scenario: &Scenario,
    repeat: u32,
    size: Size,
    keep: &mut impl FnMut(Record) -> anyhow::Result<()>,
) -> anyhow::Result<u32> {
    match without_path(bench, scenario, repeat, size).await {
        Ok(record) => keep(record).map(|()| 0),
        Err(error) => keep(Record::without(scenario.name, VERIFIER, repeat, &why(&error))).map(|()| 1),
    }
}

/// In a line, why a path has no figures. Of one that is broken all is shown now: logs end with the run.
fn why(error: &anyhow::Error) -> String {
    if let Some(missing) = error.downcast_ref::<Missing>() {
        return missing.to_string();
    }
    let text = format!("{error:#}");
    crate::print::progress(&format!("warning: {text}"));
    text.lines().next().unwrap_or_default().to_owned()
}

/// Waits until a request gets through.
async fn answers(bench: &Bench, path: &mut Running, scene: Scene) -> anyhow::Result<()> {
    let until = Instant::now() + ANSWERS;
    loop {
        let outcome = probe(bench, path, scene).await?;
        if outcome.requests == 1 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "within {ANSWERS:?}: {:?}\n{}", outcome.errors, path.state());
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends one request, to see whether the path answers.
async fn probe(bench: &Bench, path: &Running, scene: Scene) -> anyhow::Result<Outcome> {
    match scene.server {
        Server::Synthetic => load(bench, path, scenario::probe(), None).await,
        Server::Apiserver => command(bench, path, Task::Get { count: 1 }).await,
    }
}

/// What comes before anything is measured.
async fn warm(bench: &Bench, path: &Running, scene: Scene) -> anyhow::Result<Outcome> {
    match scene.server {
        Server::Synthetic => load(bench, path, scenario::warm(scene), None).await,
        // With the first one kubectl learns what the server knows, and keeps it.
        Server::Apiserver => command(bench, path, Task::Get { count: 2 }).await,
    }
}

async fn command(bench: &Bench, path: &Running, task: Task) -> anyhow::Result<Outcome> {
    commands::run(&bench.link, bench.apiserver().await?, path, &bench.file(""), task).await
}

/// Does it, each kind by what knows how.
async fn work(bench: &Bench, path: &mut Running, work: Work, crowd: Crowd, size: Size) -> anyhow::Result<Outcome> {
    match (work, crowd) {
        (Work::Load(of), _) => {
            let (of, around) = of(size);
            load(bench, path, of, around).await
        }
        (Work::Beside(of), _) => {
            let (load, around) = of(size);
            let around = Around { user: User::of(path), load: around };
            alone_and_beside(bench, &User::of(path), load, around).await
        }
        (Work::Command(of), _) => command(bench, path, of(size)).await,
        (Work::H2load(seconds), _) => h2load::run(bench, path, seconds(size)).await,
        (Work::Tokens(_), _) => bail!("it goes over no path"),
        (Work::Many(Many::Idle), _) => fleet::idle(bench, path, size.crowd_s).await,
        (Work::Many(Many::Storm), _) => fleet::storm(bench, path, fleets::quiet(size)).await,
        (Work::Many(Many::Failover), _) => failover::run(bench, path, size.crowd_s).await,
        (Work::Many(Many::Registered), _) => {
            fleet::registered(bench, path, fleets::quiet(size), fleets::busy(size)).await
        }
        (Work::Many(Many::Noisy), _) => fleet::noisy(bench, path, fleets::quiet(size), fleets::noise()).await,
        (Work::Many(Many::Control), _) => fleet::control(bench, path, fleets::bulk(), fleets::exchanges(size)).await,
        (Work::Many(Many::Watches), Crowd::Watches(watches)) => {
            fleet::watches(bench, path, watches, size.crowd_s).await
        }
        (Work::Many(Many::Watches), _) => bail!("a path that has no room for watches"),
    }
}

/// A path's load.
async fn load(bench: &Bench, path: &Running, measured: Load, around: Option<Load>) -> anyhow::Result<Outcome> {
    let around = around.map(|load| Around { user: User::of(path), load });
    load_of(bench, &User::of(path), measured, around).await
}

/// What goes over no path, in place of whose name stands what was measured.
async fn without_path(bench: &Bench, scenario: &Scenario, repeat: u32, size: Size) -> anyhow::Result<Record> {
    let Work::Tokens(count) = scenario.work else { bail!("it goes over a path") };
    let outcome = tokens::run(bench, count(size)).await?;
    let (scenario, path) = (scenario.name.to_owned(), VERIFIER.to_owned());
    Ok(Record { scenario, path, repeat, no: None, outcome, hops: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_figures_says_why_in_a_line() {
        let missing =
            anyhow::Error::from(Missing("rathole is not installed".to_owned())).context("cannot start rathole");
        assert_eq!(why(&missing), "rathole is not installed");
        let broken =
            anyhow::anyhow!("within 30s: {{}}\ngateway runs; its log ends with:\nx").context("h2 does not answer");
        assert_eq!(why(&broken), "h2 does not answer: within 30s: {}");
    }

    #[test]
    fn the_time_that_is_left_follows_what_was_taken() {
        assert_eq!((pace(100.0, 1.0), pace(100.0, 50.0), pace(50.0, 100.0)), (1.0, 2.0, 0.5));
        assert_eq!((time(99.0), time(1800.0)), ("99 s".to_owned(), "30 min".to_owned()));
    }
}
