//! Users of many clusters behind several gateways: requests at a steady rate until the end, and on demand one request to
//! every cluster, repeated until the cluster answers.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use daemon::TaskGroup;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{
    Connections, Outcome,
    alarm::Alarm,
    client::{Client, Target},
    meter::Meter,
    pace::patiently,
};
use crate::told::{self, Asks};

/// Between two requests to a cluster that did not answer.
const AGAIN: Duration = Duration::from_millis(50);
/// How often the requests under way are counted while their end is waited for.
const LOOK: Duration = Duration::from_millis(10);
/// As in `record::FIGURES`.
pub const ASKED_AGAIN: &str = "asked_again";

/// The first line of standard input. The steady requests begin, without an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// `https://host:port` of each gateway.
    pub gateways: Vec<String>,
    /// The authority of their certificates.
    pub ca: PathBuf,
    /// Bearer token for each request.
    pub token: Option<String>,
    /// The key of each cluster.
    pub clusters: Vec<String>,
    /// Numbers of the clusters whose users are told apart.
    pub apart: Vec<u32>,
    /// Requests in a second to those, and as many to all others.
    pub rate: f64,
}

/// Every further line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Ask every cluster once, and again until it answers. The latencies are the times from `since_s` ago until each
    /// has answered.
    All {
        /// Seconds over which the first requests are spread evenly.
        spread_s: f64,
        /// When the time began that is measured, in seconds before now.
        since_s: f64,
        /// Seconds after which a cluster that has not answered has failed.
        within_s: f64,
    },
    /// Tell what users have seen since the last such line: two answers, one of the clusters apart, one of the others.
    Seen,
}

/// Does what standard input says, until that ends.
///
/// # Errors
/// A plan that cannot be read, a fault of this program.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let (mut asks, plan): (_, Plan) = Asks::begin().await?;
    let tasks = TaskGroup::new("users");
    let clusters = Arc::new(Clusters::connect(&plan).await?);
    let (apart, others) = split(clusters.paths.len(), &plan.apart);
    let users = [apart, others].map(|numbers| Arc::new(Users::new(Arc::clone(&clusters), numbers)));
    for users in &users {
        ensure!(!users.numbers.is_empty(), "there are no clusters apart, or no others");
        let users = Arc::clone(users);
        tasks.spawn("users", async move {
            // A timer that the system refuses is an error of the first `All` too.
            let _ = users.run(plan.rate).await;
        });
    }
    while let Some(ask) = asks.next().await? {
        match ask {
            Ask::All { spread_s, since_s, within_s } => {
                let [spread, since, within] = [spread_s, since_s, within_s].map(Duration::from_secs_f64);
                told::tell(&Arc::clone(&clusters).all(spread, since, within).await?)?;
            }
            Ask::Seen => {
                let [apart, others] = [users[0].seen(), users[1].seen()];
                told::tell(&[apart.outcome().await, others.outcome().await])?;
            }
        }
    }
    tasks.abort();
    Ok(())
}

/// Those apart, and all others.
fn split(clusters: usize, apart: &[u32]) -> (Vec<u32>, Vec<u32>) {
    (0..).take(clusters).partition(|number| apart.binary_search(number).is_ok())
}

/// How all clusters are reached.
struct Clusters {
    /// One of each gateway.
    clients: Vec<Client>,
    /// The path of each cluster.
    paths: Vec<String>,
}

impl Clusters {
    async fn connect(plan: &Plan) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        for gateway in &plan.gateways {
            let target = Target::new(gateway, &plan.ca, plan.token.as_deref())?;
            let client = Client::new(Arc::new(target), Connections::Http2(1));
            client.connect().await;
            clients.push(client);
        }
        ensure!(!clients.is_empty(), "there is no gateway");
        let paths = plan.clusters.iter().map(|key| format!("/{key}/bench/small")).collect();
        Ok(Self { clients, paths })
    }

    /// One request to a cluster, through one of the gateways.
    async fn ask(&self, number: u32, gateway: usize) -> anyhow::Result<u64> {
        let path = self.paths.get(number as usize).context("no such cluster")?;
        self.clients[gateway % self.clients.len()].read(path).await
    }

    /// Asks each cluster once, through one gateway, and again there until it answers.
    async fn all(self: Arc<Self>, spread: Duration, since: Duration, within: Duration) -> anyhow::Result<Outcome> {
        let (tasks, alarm, meter) = (TaskGroup::new("all"), Alarm::new()?, Arc::new(Meter::default()));
        let (begin, again, count) = (Instant::now(), Arc::new(AtomicU64::new(0)), self.paths.len());
        let measured = begin.checked_sub(since).unwrap_or(begin);
        for number in 0..u32::try_from(count)? {
            alarm.at(begin + spread.mul_f64(f64::from(number)) / u32::try_from(count)?).await?;
            let (this, meter, again) = (Arc::clone(&self), Arc::clone(&meter), Arc::clone(&again));
            tasks.spawn("cluster", async move {
                let outcome = loop {
                    let outcome = patiently(this.ask(number, entrance(number, this.clients.len()))).await;
                    if outcome.is_ok() || begin.elapsed() > within {
                        break outcome;
                    }
                    again.fetch_add(1, Ordering::Relaxed);
                    sleep(AGAIN).await;
                };
                meter.record(measured, outcome);
            });
        }
        tasks.join().await?;
        let mut outcome = meter.outcome(begin.elapsed().as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
        outcome.extra.insert(ASKED_AGAIN.to_owned(), again.load(Ordering::Relaxed) as f64);
        Ok(outcome)
    }
}

/// The gateway through which a cluster is asked. Which gateways a cluster has tunnels to repeats with as many clusters
/// as there are gateways, the killed one included; so clusters of each kind are asked through each gateway.
fn entrance(number: u32, gateways: usize) -> usize {
    number as usize / (gateways + 1) % gateways
}

/// Users of some of the clusters, one after the other and through one gateway after the other.
struct Users {
    clusters: Arc<Clusters>,
    numbers: Vec<u32>,
    now: Mutex<Arc<Phase>>,
}

/// What they have seen in a time.
#[derive(Default)]
struct Phase {
    meter: Meter,
    sent: AtomicU64,
}

impl Users {
    fn new(clusters: Arc<Clusters>, numbers: Vec<u32>) -> Self {
        Self { clusters, numbers, now: Mutex::default() }
    }

    /// An open loop without an end.
    async fn run(&self, rate: f64) -> anyhow::Result<()> {
        let (tasks, alarm, begin) = (TaskGroup::new("requests"), Alarm::new()?, Instant::now());
        for (turn, number) in self.numbers.iter().cycle().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
            let due = begin + Duration::from_secs_f64(turn as f64 / rate);
            alarm.at(due).await?;
            let (clusters, number, phase) = (Arc::clone(&self.clusters), *number, Arc::clone(&self.now()));
            // A further round asks each cluster through another gateway.
            let gateway = turn + turn / self.numbers.len();
            phase.sent.fetch_add(1, Ordering::Relaxed);
            tasks.spawn("request", async move {
                phase.meter.record(due, patiently(clusters.ask(number, gateway)).await);
            });
        }
        Ok(())
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Arc<Phase>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they have seen until now, since they were asked last.
    fn seen(&self) -> Arc<Phase> {
        std::mem::take(&mut *self.now())
    }
}

impl Phase {
    /// All of it, once what was sent is over.
    async fn outcome(&self) -> Outcome {
        while self.meter.over() < self.sent.load(Ordering::Relaxed) {
            sleep(LOOK).await;
        }
        self.meter.outcome(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream;

    fn keys(count: u32) -> Vec<String> {
        (0..count).map(|number| format!("{number:064x}")).collect()
    }

    #[tokio::test]
    async fn every_cluster_is_asked_until_it_answers_and_time_counts_from_before() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let gateway = format!("https://{}", upstream::tests::start(dir.path(), &tasks).await);
        let plan = |gateways: &[&str]| Plan {
            gateways: gateways.iter().map(|gateway| (*gateway).to_owned()).collect(),
            ca: dir.path().join("ca.crt"),
            token: None,
            clusters: keys(9),
            apart: vec![1, 4],
            rate: 100.0,
        };
        let (second, none) = (Duration::from_secs(1), Duration::ZERO);
        let clusters = Arc::new(Clusters::connect(&plan(&[&gateway, &gateway])).await.unwrap());
        let seen = clusters.all(none, second, second).await.unwrap();
        assert_eq!((seen.requests, seen.failed, seen.extra[ASKED_AGAIN]), (9, 0, 0.0), "{:?}", seen.errors);
        assert!(seen.latency.at(0.1) >= Some(1_000_000), "{:?}", seen.latency.at(0.1));
        // Nobody listens at the second gateway, through which clusters 3, 4 and 5 are asked.
        let clusters = Arc::new(Clusters::connect(&plan(&[&gateway, "https://127.0.0.1:1"])).await.unwrap());
        let seen = clusters.all(none, none, Duration::from_millis(60)).await.unwrap();
        assert_eq!((seen.requests, seen.failed), (6, 3), "{:?}", seen.errors);
        assert!(seen.extra[ASKED_AGAIN] >= 3.0, "{:?}", seen.extra);
        tasks.abort();
    }

    #[tokio::test]
    async fn a_request_counts_in_the_time_in_which_it_was_due_whenever_it_ends() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let gateway = format!("https://{}", upstream::tests::start(dir.path(), &tasks).await);
        let (ca, apart) = (dir.path().join("ca.crt"), vec![2]);
        let plan = Plan { gateways: vec![gateway], ca, token: None, clusters: keys(3), apart, rate: 200.0 };
        let users = Users::new(Arc::new(Clusters::connect(&plan).await.unwrap()), split(3, &plan.apart).1);
        assert_eq!(users.numbers, [0, 1]);
        let asked = async {
            let phase = loop {
                tokio::task::yield_now().await;
                if users.now().sent.load(Ordering::Relaxed) > 2 {
                    break users.seen();
                }
            };
            (phase.sent.load(Ordering::Relaxed), phase.outcome().await)
        };
        let (sent, seen) = tokio::select! {
            _ = users.run(200.0) => panic!("it has no end"),
            asked = asked => asked,
        };
        assert_eq!((seen.requests, seen.failed), (sent, 0), "{:?}", seen.errors);
        tasks.abort();
    }

    #[test]
    fn clusters_of_each_kind_are_asked_through_each_gateway() {
        for kind in 0..3 {
            let through: Vec<_> = (0..4).map(|round| entrance(3 * round + kind, 2)).collect();
            assert_eq!(through, [0, 1, 0, 1]);
        }
    }
}
