//! Paths that are up together and take turns of a second, so that what the machine does meanwhile, which lasts longer,
//! falls on all of them: latencies of small requests differ twofold between one minute and the next where other
//! machines share the processor's caches.

use std::time::Duration;

use anyhow::bail;

use super::{Ledger, Missing, Outcome, Record, Round, Running, Scenario, looked_at, why};
use crate::{
    load::{Load, Pace, Turn, Until},
    plan::{TURN_WARM_S, TURNS, begin_with_another},
    program::Dialogue,
    scenario::Work,
    users::User,
};

/// Time after which a turn that is not over is broken.
const PATIENCE: Duration = Duration::from_secs(90);

/// One scenario over paths, all in one repeat; how often something broke. One that breaks has no figures, and the
/// others go on.
pub(super) async fn run(
    rounds: &[Round<'_>],
    scenario: &Scenario,
    keep: &mut impl FnMut(Record) -> anyhow::Result<()>,
) -> anyhow::Result<u32> {
    let Some(&Round { size, .. }) = rounds.first() else { return Ok(0) };
    let Work::Load(of) = scenario.work else { bail!("{} cannot be measured in turns", scenario.name) };
    let (load, _) = of(size);
    let Pace::Open { seconds, .. } = load.pace else { bail!("{} has no rate to keep in turns", scenario.name) };
    let (mut up, mut broken) = (Vec::new(), 0);
    for round in rounds {
        match Up::start(round, scenario, load).await {
            Ok(path) => up.push(path),
            Err(error) => {
                broken += u32::from(error.downcast_ref::<Missing>().is_none());
                keep(round.without(scenario, &why(&error)))?;
            }
        }
    }
    let turn = Turn { warm_s: TURN_WARM_S, seconds: seconds / f64::from(TURNS) };
    for number in 0..TURNS {
        let mut order: Vec<&mut Up> = up.iter_mut().collect();
        begin_with_another(&mut order, number);
        for path in order {
            path.turn(turn).await;
        }
    }
    for path in up {
        let (record, is_broken) = path.end(scenario).await;
        broken += u32::from(is_broken);
        keep(record)?;
    }
    Ok(broken)
}

/// A path that is up, with the users that it has.
struct Up<'a> {
    round: &'a Round<'a>,
    path: Running,
    users: Dialogue,
    ledgers: Vec<Ledger>,
    /// What was seen in all turns until now.
    seen: anyhow::Result<Outcome>,
}

impl<'a> Up<'a> {
    async fn start(round: &'a Round<'a>, scenario: &Scenario, load: Load) -> anyhow::Result<Self> {
        let mut path = round.start(scenario.scene).await?;
        match begin(round, &mut path, scenario, load).await {
            Ok((users, ledgers)) => Ok(Self { round, path, users, ledgers, seen: Ok(Outcome::default()) }),
            Err(error) => {
                path.stop(round.bench.train).await;
                Err(error)
            }
        }
    }

    /// One turn, unless an earlier one broke.
    async fn turn(&mut self, turn: Turn) {
        let Ok(seen) = &mut self.seen else { return };
        let within = Duration::from_secs_f64(turn.warm_s + turn.seconds) + PATIENCE;
        match looked_at(&self.ledgers, self.users.ask::<Outcome>(&turn, within)).await {
            Ok(outcome) => *seen = std::mem::take(seen).and(outcome),
            Err(error) => self.seen = Err(error),
        }
    }

    /// What came of it, and whether it broke.
    async fn end(mut self, scenario: &Scenario) -> (Record, bool) {
        self.users.stop().await;
        let seen = match (self.seen, self.path.ended()) {
            (Ok(_), Some(why)) => Err(anyhow::Error::msg(why)),
            (seen, _) => seen,
        };
        let measured = match seen {
            Ok(outcome) => self.round.record(&self.path, scenario, outcome, &self.ledgers).await,
            Err(error) => Err(error),
        };
        if measured.is_err() {
            // The hops' logs end with the path.
            crate::print::progress(&self.path.state());
        }
        self.path.stop(self.round.bench.train).await;
        match measured {
            Ok(record) => (record, false),
            Err(error) => (self.round.without(scenario, &why(&error)), true),
        }
    }
}

/// Users on connections of their own, once the path is ready.
async fn begin(
    round: &Round<'_>,
    path: &mut Running,
    scenario: &Scenario,
    load: Load,
) -> anyhow::Result<(Dialogue, Vec<Ledger>)> {
    let ledgers = round.ready(path, scenario.scene).await?;
    let (command, plan) = User::of(path).start(round.bench, load, Until::InTurns)?;
    let mut users = Dialogue::start("users", command)?;
    users.tell(&plan).await?;
    Ok((users, ledgers))
}
