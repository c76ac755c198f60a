//! One of several gateways on one database is killed: how long until all clusters are reached through the others, and
//! what users see meanwhile whose clusters had no tunnel at the killed one.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::{Instant, sleep_until};
use types::ids::ClusterId;

use crate::{
    agents, fleet,
    latency::Latency,
    link::Seat,
    load::{Outcome, clusters},
    path::{
        Bench, Running,
        towline::{fleet::Fleet, replicas::NAMES},
    },
    program::Dialogue,
    users::User,
};

/// Requests of users in a second to clusters without a tunnel at the gateway that is killed, and as many to all others.
const RATE: f64 = 100.0;
/// The first requests to all clusters are spread over this many seconds: at once they would be a load of their own.
const SPREAD_S: f64 = 1.0;
/// A cluster that does not answer within this many seconds after the kill has failed.
const WITHIN_S: f64 = 60.0;
/// All agents have two tunnels within this many seconds.
const TWO_S: f64 = 120.0;
/// More than what is asked for takes, for the answer itself.
const ANSWER: Duration = Duration::from_secs(90);

/// Kills the first gateway. Before and after, users are looked at for `seconds` at least, and all clusters are asked.
pub async fn run(bench: &Bench, path: &mut Running, seconds: f64) -> anyhow::Result<Outcome> {
    let (user, mut fleet) = (User::of(path), path.also.fleet.take().context("gateways with a fleet")?);
    let (mut agents, first) = fleet::up(bench, &fleet, &path.also.ledgers).await?;
    ensure!(first.failed == 0, "{} of {} agents have no tunnel: {:?}", first.failed, fleet.agents(), first.errors);
    let outcome = killed(bench, &user, &mut fleet, &mut agents, Duration::from_secs_f64(seconds)).await;
    agents.stop().await;
    path.also.fleet = Some(fleet);
    outcome
}

async fn killed(
    bench: &Bench,
    user: &User,
    fleet: &mut Fleet,
    agents: &mut Dialogue,
    least: Duration,
) -> anyhow::Result<Outcome> {
    let up = two(agents, None).await?;
    ensure!(up.failed == 0, "{} of {} agents do not have two tunnels", up.failed, fleet.agents());
    let apart = agents.ask(&agents::Ask::Without(NAMES[0].to_owned()), ANSWER).await?;
    let mut users = begin(bench, user, fleet, apart).await?;
    // What was never asked before is in no cache.
    all(&mut users, Duration::ZERO).await?;
    users.ask::<[Outcome; 2]>(&clusters::Ask::Seen, ANSWER).await?;
    let begun = Instant::now();
    let asked = all(&mut users, Duration::ZERO).await?;
    sleep_until(begun + least).await;
    let before: [Outcome; 2] = users.ask(&clusters::Ask::Seen, ANSWER).await?;
    for outcome in before.iter().chain([&asked]) {
        ensure!(outcome.failed == 0, "{} requests failed before: {:?}", outcome.failed, outcome.errors);
    }
    let killed = Instant::now();
    fleet.kill().await?;
    let back = async {
        let up = two(agents, Some(NAMES[0])).await?;
        anyhow::Ok((up, killed.elapsed()))
    };
    let (outcome, back, ()) = tokio::join!(all(&mut users, killed.elapsed()), back, sleep_until(killed + least));
    let (mut outcome, (up, took)) = (outcome?, back?);
    let after = users.ask(&clusters::Ask::Seen, ANSWER).await?;
    users.stop().await;
    // What it used counts, and one that has ended is no hop.
    fleet.again(bench).await?;
    tell(&before[0].latency, after, &mut outcome);
    outcome.extra.insert("two_tunnels_s".to_owned(), took.as_secs_f64());
    if up.failed > 0 {
        outcome.failed += up.failed;
        outcome.errors.insert("agents that do not have two tunnels again".to_owned(), up.failed);
    }
    Ok(outcome)
}

/// Waits until all agents have tunnels to two gateways besides `but`.
async fn two(agents: &mut Dialogue, but: Option<&str>) -> anyhow::Result<Outcome> {
    let ask = agents::Ask::Two { but: but.map(str::to_owned), within: TWO_S };
    agents.ask(&ask, Duration::from_secs_f64(TWO_S) + ANSWER).await
}

/// Users at the gateways that stay, who send from now on.
async fn begin(bench: &Bench, user: &User, fleet: &Fleet, apart: Vec<u32>) -> anyhow::Result<Dialogue> {
    let gateways = fleet.others().to_vec();
    let (ca, token) = (user.ca.clone(), user.token.clone());
    let key = |number| anyhow::Ok(agents::cluster(number).parse::<ClusterId>()?.key().to_string());
    let clusters = (0..fleet.agents()).map(key).collect::<anyhow::Result<_>>()?;
    let plan = clusters::Plan { gateways, ca, token, clusters, apart, rate: RATE };
    let mut command = bench.link.command(Seat::Load, &std::env::current_exe()?);
    command.arg("clusters");
    let mut users = Dialogue::start("users", command)?;
    users.tell(&(serde_json::to_string(&plan)? + "\n")).await?;
    Ok(users)
}

/// Every cluster is asked until it answers; how long that took since `since` ago.
async fn all(users: &mut Dialogue, since: Duration) -> anyhow::Result<Outcome> {
    let ask = clusters::Ask::All { spread_s: SPREAD_S, since_s: since.as_secs_f64(), within_s: WITHIN_S };
    users.ask(&ask, Duration::from_secs_f64(WITHIN_S) + ANSWER).await
}

/// What users saw after the kill: how long it took at clusters without a tunnel there, and what failed at any.
#[expect(clippy::cast_precision_loss, reason = "far less than 2^52 microseconds")]
fn tell(before: &Latency, [apart, others]: [Outcome; 2], outcome: &mut Outcome) {
    let mut tell = |name: &str, value: Option<f64>| outcome.extra.extend(value.map(|value| (name.to_owned(), value)));
    let p99 = |latency: &Latency| latency.at(0.99).map(|us| us as f64);
    let (before, now) = (p99(before), p99(&apart.latency));
    tell("users_requests", Some(apart.requests as f64));
    tell("users_p99_us_before", before);
    tell("users_p99_us", now);
    tell("users_p99_ratio", now.zip(before).filter(|(_, before)| *before > 0.0).map(|(now, before)| now / before));
    for (seen, whose) in [(apart, "without a tunnel at the killed gateway"), (others, "with a tunnel there")] {
        outcome.failed += seen.failed;
        let errors = seen.errors.into_iter();
        outcome.errors.extend(errors.map(|(text, count)| (format!("users of clusters {whose}: {text}"), count)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t11_failures_of_all_users_count_after_a_gateway_is_killed() {
        let seen = |failed, us| Outcome {
            requests: 100,
            failed,
            errors: [("x".to_owned(), failed)].into(),
            latency: vec![(us, 100)].into(),
            ..Outcome::default()
        };
        let mut outcome = Outcome { failed: 1, ..Outcome::default() };
        tell(&vec![(1000, 100)].into(), [seen(2, 1500), seen(3, 90_000)], &mut outcome);
        assert_eq!(outcome.failed, 6);
        let told = |name: &str| (outcome.extra[name] * 10.0).round();
        assert_eq!((told("users_p99_ratio"), told("users_requests")), (15.0, 1000.0));
        assert_eq!(outcome.errors["users of clusters with a tunnel there: x"], 3);
    }
}
