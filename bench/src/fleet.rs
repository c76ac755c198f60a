//! What is done with many: agents that idle, agents that come back all at once, watches, a cluster beside a noisy one,
//! and what an agent and its gateway say to each other beside bulk.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep};

use crate::{
    accounting,
    agents::{Ask, control},
    latency::Latency,
    ledger::Ledger,
    link::Seat,
    load::{Load, Outcome, meanwhile::Seen, watch},
    path::{Also, Bench, Running, towline::fleet::Fleet},
    program::{Dialogue, Program},
    statistics::Middle,
    users::{Around, User, alone_and_beside, beside, load_of},
};

/// The agents' certificates are made within this.
const MADE: Duration = Duration::from_secs(120);
/// All must have a tunnel within this, from when the last began to dial.
const UP_S: f64 = 60.0;
/// An agent that is not back within this many seconds counts as away for as long.
const BACK_S: f64 = 120.0;
/// More than what is asked for takes, for the answer itself.
const ANSWER: Duration = Duration::from_secs(30);
/// Requests of users that say something of their 99th percentile, where a storm is shorter.
const ENOUGH: u64 = 100;
/// What was sent by its end is over within this, and those that were still to come.
const LAST: Duration = Duration::from_secs(90);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Time after the arrival of a crowd from which on it counts as steady.
const SETTLE: Duration = Duration::from_secs(2);
/// Connections of the user with many watches.
const CONNECTIONS: usize = 100;
/// Between two events of a watch.
const INTERVAL_MS: u64 = 1000;

/// Agents with nothing to do but to probe: what their gateway holds for each, and its processor time.
pub async fn idle(bench: &Bench, path: &mut Running, seconds: f64) -> anyhow::Result<Outcome> {
    let fleet = path.also.fleet.as_mut().context("a gateway with a fleet")?;
    let before = resident(&[pid(&fleet.gateway)?])?;
    let (mut agents, mut outcome) = up(bench, fleet, &path.also.ledgers).await?;
    sleep(SETTLE).await;
    let gateway = pid(&fleet.gateway)?;
    let used = accounting::usage(gateway).context("the gateway has ended")?;
    let (begin, memory) = (Instant::now(), steady(&[gateway], seconds).await?);
    let used = accounting::usage(gateway).context("the gateway has ended")? - used;
    outcome.extra.insert("cpu_percent".to_owned(), 100.0 * used.cpu_s / begin.elapsed().as_secs_f64());
    if outcome.requests > 0 {
        outcome.extra.insert("kib_per_tunnel".to_owned(), each(memory - before, outcome.requests));
        let each_us = each(1e6 * used.cpu_s, outcome.requests) / begin.elapsed().as_secs_f64();
        outcome.extra.insert("cpu_us_per_tunnel_s".to_owned(), each_us);
    }
    outcome.extra.insert("gateway_kib".to_owned(), memory);
    // Who lost it meanwhile has failed too.
    let now: Outcome = agents.ask(&Ask::Now, ANSWER).await?;
    let lost = now.failed.saturating_sub(outcome.failed);
    if lost > 0 {
        outcome.failed += lost;
        outcome.errors.insert("lost the tunnel while idle".to_owned(), lost);
    }
    agents.stop().await;
    Ok(outcome)
}

/// The agents, all of them up or failed. What memory was while they came is not steady.
pub async fn up(bench: &Bench, fleet: &Fleet, ledgers: &[Ledger]) -> anyhow::Result<(Dialogue, Outcome)> {
    let (mut agents, plan) = fleet.dialogue(bench)?;
    agents.ask::<Outcome>(&plan, MADE).await?;
    let within = f64::from(plan.agents) / plan.rate + UP_S;
    let outcome = agents.ask(&Ask::Up { within }, Duration::from_secs_f64(within) + ANSWER).await?;
    ledgers.iter().for_each(Ledger::look_anew);
    Ok((agents, outcome))
}

/// The gateway is killed and started again: how long each agent is away, and what users of a cluster see from when its
/// own agent is back until all are. `users` is the open loop that they are.
pub async fn storm(bench: &Bench, path: &mut Running, users: Load) -> anyhow::Result<Outcome> {
    let (user, mut fleet) = (User::of(path), path.also.fleet.take().context("a gateway with a fleet")?);
    let stormed = storm_of(bench, &user, &mut fleet, &mut path.also, users).await;
    path.also.fleet = Some(fleet);
    stormed
}

async fn storm_of(
    bench: &Bench,
    user: &User,
    fleet: &mut Fleet,
    also: &mut Also,
    users: Load,
) -> anyhow::Result<Outcome> {
    let (mut agents, first) = up(bench, fleet, &also.ledgers).await?;
    ensure!(first.failed == 0, "{} of {} agents have no tunnel: {:?}", first.failed, fleet.agents(), first.errors);
    let before = load_of(bench, user, users, None).await?;
    ensure!(before.failed == 0, "{} requests failed before: {:?}", before.failed, before.errors);
    if let Some(audit) = &mut also.audit {
        audit.ends(&bench.link).await?;
    }
    fleet.kill().await?;
    agents.ask::<Outcome>(&Ask::Lost, ANSWER).await?;
    let killed = Instant::now();
    fleet.again(bench).await?;
    let back = agents.ask::<Outcome>(&Ask::Up { within: BACK_S }, Duration::from_secs_f64(BACK_S) + ANSWER);
    let (back, served) = tokio::join!(back, async {
        let Some(away) = served(bench, user, killed).await? else { return Ok(None) };
        anyhow::Ok(Some((away, user.meanwhile(bench, users, ENOUGH).await?)))
    });
    let (mut outcome, served) = (back?, served?);
    // An agent that is not back is away at least for this time.
    (0..outcome.failed).for_each(|_| outcome.latency.record(Duration::from_secs_f64(BACK_S)));
    match served {
        Some((away, mut users)) => {
            let seen = users.ask(&(), LAST).await?;
            users.stop().await;
            tell(&before.latency, away, seen, &mut outcome);
        }
        None => {
            outcome.failed += 1;
            outcome.errors.insert("users' cluster was not served again".to_owned(), 1);
        }
    }
    agents.stop().await;
    Ok(outcome)
}

/// Waits until a request gets through; how long that took since the gateway was killed, if it ever did.
async fn served(bench: &Bench, user: &User, killed: Instant) -> anyhow::Result<Option<Duration>> {
    while killed.elapsed().as_secs_f64() < 2.0 * BACK_S {
        if load_of(bench, user, crate::scenario::probe(), None).await?.requests > 0 {
            return Ok(Some(killed.elapsed()));
        }
        sleep(LOOK).await;
    }
    Ok(None)
}

/// What users were served again after, and what they saw from then on.
#[expect(clippy::cast_precision_loss, reason = "far less than 2^52 microseconds")]
fn tell(before: &Latency, away: Duration, seen: Seen, outcome: &mut Outcome) {
    let mut tell = |name: &str, value: Option<f64>| outcome.extra.extend(value.map(|value| (name.to_owned(), value)));
    let p99 = |latency: &Latency| latency.at(0.99).map(|us| us as f64);
    let (before, now) = (p99(before), p99(&seen.outcome.latency));
    tell("users_away_s", Some(away.as_secs_f64()));
    tell("users_connect_us", Some(seen.connect_us));
    tell("users_requests", Some(seen.within as f64));
    tell("users_p99_us_before", before);
    tell("users_p99_us", now);
    tell("users_p99_ratio", now.zip(before).filter(|(_, before)| *before > 0.0).map(|(now, before)| now / before));
    outcome.failed += seen.outcome.failed;
    let errors = seen.outcome.errors.into_iter();
    outcome.errors.extend(errors.map(|(text, count)| (format!("users while agents came back: {text}"), count)));
}

/// Many watches of one user: how long events take, and what the hops hold for each.
pub async fn watches(bench: &Bench, path: &mut Running, watches: u32, seconds: f64) -> anyhow::Result<Outcome> {
    let hops = path.hops.iter().map(pid).collect::<anyhow::Result<Vec<_>>>()?;
    let before = resident(&hops)?;
    let (url, ca, token) = (path.url.clone(), path.ca.clone(), path.token.clone());
    let plan = watch::Plan { url, ca, token, connections: CONNECTIONS, watches, interval_ms: INTERVAL_MS };
    let mut command = bench.link.command(Seat::Load, &std::env::current_exe()?);
    command.arg("watches");
    let mut reader = Dialogue::start("watches", command)?;
    let opened: Outcome = reader.ask(&plan, MADE).await?;
    ensure!(opened.requests > 0, "not one watch began: {:?}", opened.errors);
    path.also.ledgers.iter().for_each(Ledger::look_anew);
    sleep(SETTLE).await;
    let ask = watch::Ask { seconds };
    let (outcome, memory) =
        tokio::join!(reader.ask::<Outcome>(&ask, Duration::from_secs_f64(seconds) + ANSWER), steady(&hops, seconds));
    let mut outcome = outcome?;
    if !hops.is_empty() {
        outcome.extra.insert("kib_per_watch".to_owned(), each(memory? - before, opened.requests));
    }
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 microseconds")]
    outcome.extra.extend(opened.latency.at(0.99).map(|us| ("open_p99_us".to_owned(), us as f64)));
    reader.stop().await;
    Ok(outcome)
}

/// Small requests to one cluster, beside which others are registered: at a rate, and then as many as get through. Only
/// the latter are in what hops used.
pub async fn registered(bench: &Bench, path: &Running, rate: Load, most: Load) -> anyhow::Result<Outcome> {
    let user = User::of(path);
    let at_rate = load_of(bench, &user, rate, None).await?;
    path.also.ledgers.iter().try_for_each(Ledger::begin_anew)?;
    let mut outcome = load_of(bench, &user, most, None).await?;
    outcome.failed += at_rate.failed;
    outcome.errors.extend(at_rate.errors.into_iter().map(|(text, count)| (format!("at a rate: {text}"), count)));
    for (name, part) in [("at_100_p50_us", 0.5), ("at_100_p99_us", 0.99)] {
        #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 microseconds")]
        outcome.extra.extend(at_rate.latency.at(part).map(|us| (name.to_owned(), us as f64)));
    }
    Ok(outcome)
}

/// Users of a quiet cluster, alone, and then beside those of another one of the same gateway.
pub async fn noisy(bench: &Bench, path: &mut Running, quiet: Load, noise: Load) -> anyhow::Result<Outcome> {
    let (url, token) = path.also.beside.clone().context("a second cluster")?;
    let user = User { url, token, ..User::of(path) };
    alone_and_beside(bench, &user, quiet, Around { user: User::of(path), load: noise }).await
}

/// What the agent says to its gateway, beside bulk on the same tunnel.
pub async fn control(bench: &Bench, path: &mut Running, bulk: Load, ask: control::Ask) -> anyhow::Result<Outcome> {
    let mut agent = path.also.control.take().context("an agent that can be asked")?;
    let user = User::of(path);
    let asked = beside(bench, &user, bulk, async {
        agent.ask::<Outcome>(&ask, Duration::from_secs_f64(ask.seconds) + MADE).await
    });
    let asked = asked.await;
    path.also.control = Some(agent);
    asked
}

fn pid(program: &Program) -> anyhow::Result<u32> {
    program.pid().with_context(|| format!("{} has ended", program.name))
}

/// Resident memory of these together now, in KiB.
fn resident(pids: &[u32]) -> anyhow::Result<f64> {
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 KiB")]
    let of = |pid: &u32| accounting::memory_kib(*pid).map(|kib| kib as f64).context("a hop has ended");
    pids.iter().map(of).sum()
}

/// The median of it over a time.
async fn steady(pids: &[u32], seconds: f64) -> anyhow::Result<f64> {
    let (until, mut seen) = (Instant::now() + Duration::from_secs_f64(seconds), vec![resident(pids)?]);
    while Instant::now() < until {
        sleep(LOOK).await;
        seen.push(resident(pids)?);
    }
    Ok(Middle::of(seen).map_or(0.0, |middle| middle.median))
}

#[expect(clippy::cast_precision_loss, reason = "far less than 2^52 of anything")]
fn each(all: f64, count: u64) -> f64 {
    all.max(0.0) / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_see_meanwhile_is_compared_with_before_and_their_failures_count() {
        let outcome = Outcome {
            failed: 3,
            errors: [("x".to_owned(), 3)].into(),
            latency: vec![(900, 99), (6000, 9)].into(),
            ..Outcome::default()
        };
        let seen = Seen { outcome, within: 40, connect_us: 1e6 };
        let mut storm = Outcome { failed: 1, ..Outcome::default() };
        tell(&vec![(1000, 100)].into(), Duration::from_secs(2), seen, &mut storm);
        let told = |name: &str| storm.extra[name].round();
        assert_eq!((told("users_away_s"), told("users_requests"), told("users_connect_us")), (2.0, 40.0, 1e6));
        assert_eq!((told("users_p99_ratio"), storm.failed), (6.0, 4));
        assert_eq!(storm.errors["users while agents came back: x"], 3);
        // Nobody was answered.
        let mut storm = Outcome::default();
        tell(&vec![(1000, 100)].into(), Duration::ZERO, Seen::default(), &mut storm);
        assert!(!storm.extra.contains_key("users_p99_ratio"), "{:?}", storm.extra);
    }
}
