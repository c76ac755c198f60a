//! Many watches on few connections: how long events take from when they were due, by the clock of the machine, which
//! the upstream shares. What is due and does not arrive has failed.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};
use daemon::TaskGroup;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    Connections, Outcome,
    client::{Client, Target},
    meter::Meter,
};
use crate::{
    told::{self, Asks},
    upstream::events::{self, Reader},
};

/// Watches that begin in a second.
pub const OPENED_PER_SECOND: f64 = 2000.0;
/// All must have begun within this.
const OPEN: Duration = Duration::from_secs(60);
/// What is due arrives within this, or has failed.
const LATE: Duration = Duration::from_secs(10);

/// The first line of standard input. All watches are opened, and the answer says how many began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Base of the requests' URLs, `https://host:port/prefix`.
    pub url: String,
    /// The authority to trust.
    pub ca: PathBuf,
    /// Bearer token for each request; absent if the server asks for none.
    pub token: Option<String>,
    /// Number of HTTP/2 connections.
    pub connections: usize,
    /// Watches, spread over them.
    pub watches: u32,
    /// Between two events of one.
    pub interval_ms: u64,
}

/// The second line: reads for a time. Every event that is due within it counts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Seconds; whole intervals of them are measured.
    pub seconds: f64,
}

/// Does what standard input says.
///
/// # Errors
/// A plan that cannot be read, a fault of this program.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let (mut asks, plan): (_, Plan) = Asks::begin().await?;
    let watches = Watches::open(&plan).await?;
    told::tell(&watches.opened())?;
    while let Some(ask) = asks.next::<Ask>().await? {
        told::tell(&watches.read(Duration::from_secs_f64(ask.seconds)).await)?;
    }
    Ok(())
}

/// Watches that are under way.
struct Watches {
    count: u32,
    interval: Duration,
    board: Arc<Board>,
    tasks: TaskGroup,
}

impl Watches {
    /// Opens all of them; those that do not begin are told by [`Self::opened`].
    async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let target = Arc::new(Target::new(&plan.url, &plan.ca, plan.token.as_deref())?);
        let client = Arc::new(Client::new(target, Connections::Http2(plan.connections)));
        let (board, tasks) = (Arc::new(Board::default()), TaskGroup::new("watches"));
        let (interval, start) = (Duration::from_millis(plan.interval_ms), Instant::now());
        for number in 0..plan.watches {
            sleep_until(start + Duration::from_secs_f64(f64::from(number) / OPENED_PER_SECOND)).await;
            let (client, board, begun) = (Arc::clone(&client), Arc::clone(&board), Instant::now());
            tasks.spawn("watch", async move {
                let Err(error) = watch(&client, interval, &board, begun).await;
                board.broke(begun, error);
            });
        }
        let this = Self { count: plan.watches, interval, board, tasks };
        // Those that have not begun by then are counted.
        let _ = timeout_at(start + OPEN, this.board.begun(this.count)).await;
        Ok(this)
    }

    /// How many began, and how long each took to.
    fn opened(&self) -> Outcome {
        let seen = self.board.seen();
        let mut outcome = seen.opening.outcome(0.0);
        outcome.failed = u64::from(self.count).saturating_sub(outcome.requests);
        outcome
    }

    /// What is due from now on, for `seconds`.
    async fn read(&self, seconds: Duration) -> Outcome {
        let from = SystemTime::now();
        let intervals = u32::try_from(seconds.as_millis() / self.interval.as_millis().max(1)).unwrap_or(u32::MAX);
        let until = from + self.interval * intervals;
        self.board.seen().window = Some(Window { from, until, meter: Meter::default(), read: 0 });
        let wanted = u64::from(intervals) * u64::from(self.count);
        sleep(self.interval * intervals).await;
        let end = Instant::now() + LATE;
        // What has not arrived by then has failed.
        let _ = timeout_at(end, self.board.arrived(wanted)).await;
        let window = self.board.seen().window.take();
        window.map_or_else(Outcome::default, |window| self.judged(window, wanted))
    }

    /// What came of `wanted` events.
    fn judged(&self, window: Window, wanted: u64) -> Outcome {
        let seconds = window.until.duration_since(window.from).unwrap_or_default();
        let mut outcome = window.meter.outcome(seconds.as_secs_f64());
        outcome.bytes = window.read;
        outcome.failed = wanted.saturating_sub(outcome.requests);
        outcome.errors = self.board.seen().opening.outcome(0.0).errors;
        if outcome.failed > 0 {
            outcome.errors.insert("events that did not arrive in time".to_owned(), outcome.failed);
        }
        outcome
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

/// One, which does not end by itself.
async fn watch(
    client: &Client,
    interval: Duration,
    board: &Board,
    begun: Instant,
) -> anyhow::Result<std::convert::Infallible> {
    let answer = client.get(&events::path(interval)).await?;
    ensure!(answer.status().is_success(), "status {}", answer.status().as_u16());
    board.opened(begun);
    let (mut body, mut reader) = (answer.into_body(), Reader::default());
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.context("a watch broke off")?.data_ref() {
            let now = SystemTime::now();
            reader.read(data, |due| board.event(due, now, data.len() as u64))?;
        }
    }
    anyhow::bail!("a watch ended")
}

/// What all of them have seen.
#[derive(Default)]
struct Board {
    seen: Mutex<Seen>,
    changed: Notify,
}

#[derive(Default)]
struct Seen {
    /// The beginnings, and why watches broke.
    opening: Meter,
    over: u32,
    window: Option<Window>,
}

struct Window {
    from: SystemTime,
    until: SystemTime,
    meter: Meter,
    read: u64,
}

impl Board {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, begun: Instant) {
        let mut seen = self.seen();
        seen.opening.record(begun, Ok(0));
        seen.over += 1;
        drop(seen);
        self.changed.notify_one();
    }

    fn broke(&self, begun: Instant, error: anyhow::Error) {
        let mut seen = self.seen();
        seen.opening.record(begun, Err(error));
        seen.over += 1;
        drop(seen);
        self.changed.notify_one();
    }

    fn event(&self, due: SystemTime, now: SystemTime, bytes: u64) {
        let mut seen = self.seen();
        let Some(window) = seen.window.as_mut().filter(|window| (window.from..window.until).contains(&due)) else {
            return;
        };
        window.meter.took(now.duration_since(due).unwrap_or_default());
        window.read += bytes;
        drop(seen);
        self.changed.notify_one();
    }

    /// Completes when `count` have begun, or will not.
    async fn begun(&self, count: u32) {
        while self.seen().over < count {
            self.changed.notified().await;
        }
    }

    /// Completes when `count` events are here.
    async fn arrived(&self, count: u64) {
        while self.seen().window.as_ref().is_some_and(|window| window.meter.over() < count) {
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream;

    /// Six watches of an upstream of their own, behind `prefix`, with an event each 50 ms.
    async fn open(prefix: &str, tasks: &TaskGroup) -> Watches {
        let dir = tempfile::tempdir().unwrap();
        let address = upstream::tests::start(dir.path(), tasks).await;
        let (url, ca) = (format!("https://{address}{prefix}"), dir.path().join("ca.crt"));
        Watches::open(&Plan { url, ca, token: None, connections: 2, watches: 6, interval_ms: 50 }).await.unwrap()
    }

    #[tokio::test]
    async fn every_event_that_is_due_counts_once() {
        let tasks = TaskGroup::new("test");
        let watches = open("", &tasks).await;
        assert_eq!((watches.opened().requests, watches.opened().failed), (6, 0));
        let seen = watches.read(Duration::from_millis(220)).await;
        // Four whole intervals of 50 ms, of each.
        assert_eq!((seen.requests, seen.failed, seen.latency.len()), (24, 0, 24), "{:?}", seen.errors);
        assert!(seen.bytes > 24 * 800 && seen.latency.at(1.0) < Some(5_000_000), "{seen:?}");
        tasks.abort();
    }

    #[tokio::test]
    async fn events_of_watches_that_are_refused_have_failed() {
        let tasks = TaskGroup::new("test");
        let watches = open("/bench/bytes", &tasks).await;
        assert_eq!((watches.opened().requests, watches.opened().failed), (0, 6));
        // Nothing will come: no need to wait for what is late.
        let window = Window { from: SystemTime::now(), until: SystemTime::now(), meter: Meter::default(), read: 0 };
        let seen = watches.judged(window, 12);
        assert_eq!((seen.requests, seen.failed), (0, 12));
        assert!(seen.errors.contains_key("status 400"), "{:?}", seen.errors);
        tasks.abort();
    }
}
