//! The load generator. An open loop keeps a fixed schedule and measures each request from the moment it was due, so
//! that a stall is counted for all that it holds up (no coordinated omission); a closed loop keeps so many under way
//! and measures what gets through.

mod alarm;
mod client;
pub mod clusters;
pub mod meanwhile;
pub mod meter;
pub mod pace;
mod pipe;
mod pour;
pub mod register;
pub mod watch;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::bail;
use client::{Client, Target};
use daemon::TaskGroup;
use meter::Meter;
use serde::{Deserialize, Serialize};

use crate::{
    latency::Latency,
    told::{self, Asks},
};

/// What to send and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Base of the requests' URLs, `https://host:port/prefix`.
    pub url: String,
    /// The authority to trust.
    pub ca: PathBuf,
    /// Bearer token for each request; absent if the server asks for none.
    pub token: Option<String>,
    /// What is sent.
    pub load: Load,
    /// When it ends.
    pub until: Until,
}

/// When a load ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Until {
    /// By its pace.
    Done,
    /// With standard input: it goes on beside what is measured, and says `begun` when it is under way.
    Told,
    /// It goes on and off on connections that are kept: each line on standard input is a [`Turn`], and has an
    /// [`Outcome`] for an answer.
    InTurns,
    /// With a line on standard input, by which something is over that users shall be seen during; not before this many
    /// requests. The answer is a [`meanwhile::Seen`].
    Over {
        /// The least number of requests before the end.
        least: u64,
    },
}

/// One turn of a load that is asked for in turns, at its rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// Seconds in which the caches, which others have used meanwhile, are filled again: what is sent then is counted,
    /// and is in no latency.
    pub warm_s: f64,
    /// Seconds that are measured.
    pub seconds: f64,
}

/// One kind of requests.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Load {
    /// How users are connected.
    pub connections: Connections,
    /// What each request does.
    pub request: Request,
    /// How they follow each other.
    pub pace: Pace,
}

/// How users are connected.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Connections {
    /// A number of connections of HTTP/2 that are kept.
    Http2(usize),
    /// At most this many connections of HTTP/1.1 that are kept, a request at a time on each.
    Http1(usize),
    /// At most this many connections of HTTP/1.1 that are upgraded once and kept, a message at a time on each.
    Upgraded(usize),
    /// Each request has a connection of its own, HTTP/2 with a full handshake.
    Fresh,
}

/// What one request does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A small answer.
    Small,
    /// A body of this many bytes is read.
    Download(u64),
    /// A body of this many bytes is sent.
    Upload(u64),
    /// A body without end is sent, by this number; how much of it arrives is told by who receives it.
    Pour(u64),
    /// A body of this many bytes is asked for, and never read.
    Stall(u64),
    /// A message of this many bytes is sent through an upgraded connection, and comes back.
    Echo(u64),
}

/// How requests follow each other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Pace {
    /// Requests at a fixed rate, whatever becomes of those before.
    Open {
        /// Requests in a second.
        rate: f64,
        /// Duration of the load, in seconds.
        seconds: f64,
    },
    /// A fixed number of requests under way at any time.
    Closed {
        /// Requests that are under way at the same time.
        concurrent: usize,
        /// Duration of the load, in seconds.
        seconds: f64,
    },
    /// A fixed number of requests under way at any time, until all are done.
    Count {
        /// Requests that are under way at the same time.
        concurrent: usize,
        /// Requests until the end.
        requests: u64,
    },
    /// One request, which is cut after a number of seconds and has succeeded if anything came.
    Within {
        /// Time until the request is cut, in seconds.
        seconds: f64,
    },
}

impl Load {
    /// Seconds that it takes about at `bytes_per_s`.
    pub fn seconds(&self, bytes_per_s: f64) -> f64 {
        match (self.pace, self.request) {
            (Pace::Open { seconds, .. } | Pace::Closed { seconds, .. } | Pace::Within { seconds }, _) => seconds,
            #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 bytes")]
            (
                Pace::Count { requests, .. },
                Request::Download(bytes) | Request::Upload(bytes) | Request::Echo(bytes),
            ) => requests as f64 * bytes as f64 / bytes_per_s,
            (Pace::Count { .. }, Request::Small | Request::Pour(_) | Request::Stall(_)) => 0.0,
        }
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests that ended well.
    pub requests: u64,
    /// Requests that did not.
    pub failed: u64,
    /// What went on beside, where something did.
    pub beside: Option<Beside>,
    /// Why, with how many of each; bounded.
    pub errors: BTreeMap<String, u64>,
    /// Bytes of bodies, both ways.
    pub bytes: u64,
    /// From the first request to the end of the last.
    pub seconds: f64,
    /// Of those that ended well.
    pub latency: Latency,
    /// Figures that only some scenarios have, by their names in `record::FIGURES`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, f64>,
}

/// Kinds of errors that are told apart at most.
pub const ERRORS: usize = 16;

/// Counts an error among those of its kind.
pub fn count(errors: &mut BTreeMap<String, u64>, text: String) {
    count_times(errors, text, 1);
}

fn count_times(errors: &mut BTreeMap<String, u64>, text: String, times: u64) {
    let known = errors.len() < ERRORS || errors.contains_key(&text);
    *errors.entry(if known { text } else { "others".to_owned() }).or_default() += times;
}

/// What went on beside a load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Beside {
    /// Requests that failed, and those that did not even begin.
    pub failed: u64,
    /// Bytes of bodies that were read from when it was under way.
    pub bytes: u64,
    /// The time that that took; of older runs zero: about the time of the load.
    #[serde(default)]
    pub seconds: f64,
}

impl Outcome {
    /// With what went on beside it.
    pub fn beside(mut self, beside: Self) -> Self {
        self.beside = Some(Beside { failed: beside.failed, bytes: beside.bytes, seconds: beside.seconds });
        self.errors.extend(beside.errors.into_iter().map(|(text, count)| (format!("beside: {text}"), count)));
        self
    }

    /// With what came after it.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        self.requests += later.requests;
        self.failed += later.failed;
        self.bytes += later.bytes;
        self.seconds += later.seconds;
        self.latency.merge(&later.latency);
        for (text, times) in later.errors {
            count_times(&mut self.errors, text, times);
        }
        self.extra.extend(later.extra);
        self
    }

    /// All that failed, what went on beside included.
    pub fn all_failed(&self) -> u64 {
        self.failed + self.beside.map_or(0, |beside| beside.failed)
    }
}

/// How long what goes on beside has for windows and buffers to fill before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);
/// What goes on beside must have begun within this.
const BEGIN: Duration = Duration::from_secs(30);

/// Reads a [`Plan`] from standard input, a line, and writes an [`Outcome`] to standard output.
///
/// # Errors
/// A plan that cannot be read, a fault of this program.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let (told, plan) = Asks::begin::<Plan>().await?;
    match plan.until {
        Until::Done => told::tell(&execute(&plan).await?),
        Until::Told => told::tell(&aside(&plan, SETTLE, || crate::print::say("begun"), over(told)).await?),
        Until::InTurns => in_turns(&plan, told, told::tell).await,
        Until::Over { least } => told::tell(&meanwhile::run(&plan, least, over(told)).await?),
    }
}

/// Completes with the next line or without any more: whatever comes there or not, it is over.
async fn over(mut told: Asks) {
    let _ = told.next::<serde_json::Value>().await;
}

async fn execute(plan: &Plan) -> anyhow::Result<Outcome> {
    let target = Arc::new(Target::new(&plan.url, &plan.ca, plan.token.as_deref())?);
    let meter = Arc::new(Meter::default());
    let seconds = run(&plan.load, &target, &meter).await?;
    Ok(meter.outcome(seconds))
}

/// Turn after turn, on connections that are kept, until there is no more line.
async fn in_turns(
    plan: &Plan,
    mut told: Asks,
    mut answer: impl FnMut(&Outcome) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Pace::Open { rate, .. } = plan.load.pace else { bail!("turns are for an open loop") };
    let target = Arc::new(Target::new(&plan.url, &plan.ca, plan.token.as_deref())?);
    let client = Arc::new(Client::new(target, plan.load.connections));
    client.connect().await;
    while let Some(Turn { warm_s, seconds }) = told.next().await? {
        let send = async |seconds| {
            let (meter, load) = (Arc::new(Meter::default()), Load { pace: Pace::Open { rate, seconds }, ..plan.load });
            let seconds = paced(&load, &client, &meter).await?;
            anyhow::Ok(meter.outcome(seconds))
        };
        let warm = send(warm_s).await?;
        let measured = send(seconds).await?;
        let outcome = Outcome { latency: Latency::default(), ..warm }.and(measured);
        answer(&outcome)?;
    }
    Ok(())
}

/// Goes on until it is told to end, and says when it is under way. What did not even begin has failed.
async fn aside(
    plan: &Plan,
    settle: Duration,
    begun: impl FnOnce(),
    told: impl Future<Output = ()>,
) -> anyhow::Result<Outcome> {
    let target = Arc::new(Target::new(&plan.url, &plan.ca, plan.token.as_deref())?);
    let (tasks, meter, load) = (TaskGroup::new("beside"), Arc::new(Meter::default()), plan.load);
    let kept = Arc::clone(&meter);
    tasks.spawn("load", async move {
        // What went wrong is in the meter.
        let _ = run(&load, &target, &kept).await;
    });
    let concurrent = load.pace.concurrent();
    // Those that do not begin are counted below.
    let _ = tokio::time::timeout(BEGIN, meter.begun(concurrent)).await;
    tokio::time::sleep(settle).await;
    let (start, before) = (tokio::time::Instant::now(), meter.read());
    begun();
    told.await;
    let mut outcome = meter.outcome(start.elapsed().as_secs_f64());
    outcome.failed += (concurrent as u64).saturating_sub(meter.begins() + outcome.failed);
    outcome.bytes = meter.read() - before;
    tasks.abort();
    Ok(outcome)
}

/// One load to its end; the seconds that it took.
async fn run(load: &Load, target: &Arc<Target>, meter: &Arc<Meter>) -> anyhow::Result<f64> {
    if let (Request::Pour(_), Pace::Within { seconds }) = (load.request, load.pace) {
        return Ok(pour::run(target, seconds, meter).await);
    }
    let client = Arc::new(Client::new(Arc::clone(target), load.connections));
    client.connect().await;
    paced(load, &client, meter).await
}

/// One load on connections that there are; the seconds that it took.
async fn paced(load: &Load, client: &Arc<Client>, meter: &Arc<Meter>) -> anyhow::Result<f64> {
    let client = Arc::clone(client);
    let (start, request) = (tokio::time::Instant::now(), load.request);
    pace::run(load.pace, meter, move |meter| {
        let client = Arc::clone(&client);
        async move { client.send(request, &meter).await }
    })
    .await?;
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::upstream;

    /// What this load sees at an upstream of its own, behind `prefix`.
    async fn outcome(prefix: &str, load: Load, beside: Option<Load>) -> Outcome {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let address = upstream::tests::start(dir.path(), &tasks).await;
        let url = format!("https://{address}{prefix}");
        let plan = |load, until| Plan {
            url: url.clone(),
            ca: dir.path().join("ca.crt"),
            token: Some("token".to_owned()),
            load,
            until,
        };
        let outcome = match beside {
            None => execute(&plan(load, Until::Done)).await.unwrap(),
            Some(beside) => {
                let ((begin, begun), (tell, told)) = (oneshot::channel(), oneshot::channel::<()>());
                let beside = plan(beside, Until::Told);
                let told = async { told.await.unwrap() };
                let beside = aside(&beside, Duration::ZERO, || begin.send(()).unwrap(), told);
                let measured = async {
                    begun.await.unwrap();
                    let outcome = execute(&plan(load, Until::Done)).await.unwrap();
                    tell.send(()).unwrap();
                    outcome
                };
                let (beside, measured) = tokio::join!(beside, measured);
                measured.beside(beside.unwrap())
            }
        };
        tasks.abort();
        outcome
    }

    // A turn is counted whole; only what is sent once the caches are filled again is in its latencies.
    #[tokio::test]
    async fn turns_go_over_a_connection_that_is_kept_and_leave_out_the_latencies_of_their_beginnings() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let address = upstream::tests::start(dir.path(), &tasks).await;
        let pace = Pace::Open { rate: 200.0, seconds: 1.0 };
        let plan = Plan {
            url: format!("https://{address}"),
            ca: dir.path().join("ca.crt"),
            token: None,
            load: Load { connections: Connections::Http2(1), request: Request::Small, pace },
            until: Until::InTurns,
        };
        let turn = serde_json::to_string(&Turn { warm_s: 0.05, seconds: 0.1 }).unwrap();
        let mut seen: Vec<Outcome> = Vec::new();
        let answer = |outcome: &Outcome| {
            seen.push(outcome.clone());
            Ok(())
        };
        in_turns(&plan, Asks::of([turn.clone(), turn]), answer).await.unwrap();
        tasks.abort();
        let counts: Vec<_> = seen.iter().map(|turn| (turn.requests, turn.failed, turn.latency.len())).collect();
        assert_eq!(counts, [(30, 0, 20); 2], "{seen:?}");
        let both = seen.into_iter().reduce(Outcome::and).unwrap();
        assert_eq!((both.requests, both.latency.len()), (60, 40));
    }

    #[test]
    fn errors_of_turns_are_added_and_stay_bounded() {
        let of = |texts: std::ops::Range<usize>| Outcome {
            failed: texts.len() as u64,
            errors: texts.map(|number| (format!("error {number}"), 1)).collect(),
            ..Outcome::default()
        };
        let both = of(0..ERRORS).and(of(1..ERRORS + 3));
        assert_eq!((both.failed, both.errors["error 0"], both.errors["error 1"]), (34, 1, 2));
        assert_eq!((both.errors["others"], both.errors.len()), (3, ERRORS + 1));
    }

    fn load(connections: Connections, request: Request) -> Load {
        Load { connections, request, pace: Pace::Count { concurrent: 3, requests: 6 } }
    }

    #[tokio::test]
    async fn every_kind_of_request_is_counted_over_every_kind_of_connection() {
        for connections in [Connections::Http2(2), Connections::Http1(2), Connections::Fresh] {
            for (request, bytes) in
                [(Request::Download(300_000), 300_000), (Request::Upload(300_000), 300_000), (Request::Small, 0)]
            {
                let seen = outcome("", load(connections, request), None).await;
                assert_eq!(
                    (seen.requests, seen.failed, seen.latency.len()),
                    (6, 0, 6),
                    "{connections:?} {:?}",
                    seen.errors
                );
                assert!(seen.bytes >= 6 * bytes && seen.seconds > 0.0, "{seen:?}");
            }
        }
    }

    #[tokio::test]
    async fn messages_through_upgraded_connections_come_back_whole() {
        for bytes in [1, 64, 300_000] {
            let seen = outcome("", load(Connections::Upgraded(2), Request::Echo(bytes)), None).await;
            assert_eq!((seen.requests, seen.failed, seen.bytes), (6, 0, 6 * bytes), "{:?}", seen.errors);
            assert_eq!(seen.latency.len(), 6);
        }
    }

    #[tokio::test]
    async fn what_is_not_upgraded_fails_every_message() {
        // Behind this the path is none that upgrades, and asks for a body whose length is no number.
        let seen = outcome("/bench/bytes", load(Connections::Upgraded(2), Request::Echo(64)), None).await;
        assert_eq!((seen.requests, seen.failed), (0, 6));
        assert_eq!(seen.errors.into_iter().collect::<Vec<_>>(), [("status 400 to an upgrade".to_owned(), 6)]);
        for connections in [Connections::Http2(1), Connections::Http1(1), Connections::Fresh] {
            let seen = outcome("", load(connections, Request::Echo(64)), None).await;
            assert_eq!((seen.requests, seen.failed), (0, 6), "{connections:?}");
        }
    }

    #[tokio::test]
    async fn what_arrives_of_an_upload_without_end_is_counted_where_it_arrives() {
        let poured =
            Load { connections: Connections::Http2(1), request: Request::Pour(0), pace: Pace::Within { seconds: 0.3 } };
        let seen = outcome("", poured, None).await;
        assert_eq!((seen.requests, seen.failed), (1, 0), "{:?}", seen.errors);
        assert!(seen.bytes > 1 << 20 && seen.seconds > 0.1, "{seen:?}");
        let seen = outcome("/bench/bytes", poured, None).await;
        assert_eq!((seen.requests, seen.failed), (0, 1), "{seen:?}");
    }

    #[tokio::test]
    async fn a_request_that_is_refused_is_counted_as_failed_and_has_no_latency() {
        // Behind this every path asks for a body whose length is no number.
        let seen = outcome("/bench/bytes", load(Connections::Http2(1), Request::Small), None).await;
        assert_eq!((seen.requests, seen.failed, seen.latency.len()), (0, 6, 0));
        assert_eq!(seen.errors.into_iter().collect::<Vec<_>>(), [("status 400".to_owned(), 6)]);
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_fails_its_request_and_the_next_ones() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let address = upstream::tests::start(dir.path(), &tasks).await;
        tasks.abort();
        tasks.join().await.unwrap();
        let plan = Plan {
            url: format!("https://{address}"),
            ca: dir.path().join("ca.crt"),
            token: None,
            load: load(Connections::Http1(2), Request::Small),
            until: Until::Done,
        };
        let seen = execute(&plan).await.unwrap();
        assert_eq!((seen.requests, seen.failed), (0, 6), "{:?}", seen.errors);
    }

    #[tokio::test]
    async fn what_is_read_beside_is_counted_while_it_is_read() {
        let endless = Load {
            pace: Pace::Closed { concurrent: 2, seconds: 3600.0 },
            ..load(Connections::Http2(1), Request::Download(1 << 40))
        };
        let seen = outcome("", load(Connections::Http2(1), Request::Download(1 << 20)), Some(endless)).await;
        assert_eq!((seen.requests, seen.all_failed()), (6, 0), "{:?}", seen.errors);
        assert!(seen.beside.unwrap().bytes > 0, "{seen:?}");
    }

    #[tokio::test]
    async fn readers_that_never_read_are_under_way_beside_and_do_not_fail() {
        let stalled = Load {
            pace: Pace::Count { concurrent: 4, requests: 4 },
            ..load(Connections::Http2(4), Request::Stall(64 << 20))
        };
        let seen = outcome("", load(Connections::Http2(1), Request::Small), Some(stalled)).await;
        assert_eq!((seen.requests, seen.failed, seen.all_failed()), (6, 0, 0), "{:?}", seen.errors);
        let seen = outcome("/bench/bytes", load(Connections::Http2(1), Request::Small), Some(stalled)).await;
        assert_eq!((seen.failed, seen.all_failed()), (6, 10), "{:?}", seen.errors);
    }
}
