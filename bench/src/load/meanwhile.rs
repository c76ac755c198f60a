//! An open loop for as long as something lasts that it is measured beside: without a gap, and with all that it sent.

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use daemon::TaskGroup;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Outcome, Pace, Plan,
    alarm::Alarm,
    client::{Client, Target},
    meter::Meter,
    pace,
};

/// What users saw meanwhile.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// All of it, what was sent after the end included where there was too little before.
    pub outcome: Outcome,
    /// Requests that were due before the end.
    pub within: u64,
    /// How long the first connection took, in microseconds; it is in no latency.
    pub connect_us: f64,
}

/// Sends what the plan says until `over`, and on until there are `least` requests; then waits for those under way.
pub async fn run(plan: &Plan, least: u64, over: impl Future<Output = ()>) -> anyhow::Result<Seen> {
    let Pace::Open { rate, .. } = plan.load.pace else { bail!("only an open loop says what users see meanwhile") };
    let target = Arc::new(Target::new(&plan.url, &plan.ca, plan.token.as_deref())?);
    let client = Arc::new(Client::new(target, plan.load.connections));
    let dialled = Instant::now();
    client.connect().await;
    let connect_us = dialled.elapsed().as_secs_f64() * 1e6;
    let (tasks, meter, alarm) = (TaskGroup::new("load"), Arc::new(Meter::default()), Alarm::new()?);
    let (start, request) = (Instant::now(), plan.load.request);
    let send = |meter: Arc<Meter>| {
        let client = Arc::clone(&client);
        async move { client.send(request, &meter).await }
    };
    let ends = Ends::default();
    let sent = pace::open(&tasks, ends.schedule(rate, least), &meter, &send, |due| alarm.at(due));
    let (sent, ()) = tokio::join!(sent, async {
        over.await;
        ends.now();
    });
    sent?;
    tasks.join().await?;
    Ok(Seen { outcome: meter.outcome(start.elapsed().as_secs_f64()), within: ends.within(), connect_us })
}

/// Until when a schedule goes on, and how much of it was due by then.
#[derive(Default)]
struct Ends {
    due: Cell<u64>,
    within: OnceCell<u64>,
}

impl Ends {
    /// When requests are due: evenly, until the end, and until there are `least`.
    fn schedule(&self, rate: f64, least: u64) -> impl Iterator<Item = Duration> {
        let more = move |number: &u64| self.within.get().is_none() || *number < least;
        // What is asked for next is not due yet; all before it is.
        let counted = (0_u64..).inspect(|number| self.due.set(*number));
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
        counted.take_while(more).map(move |number| Duration::from_secs_f64(number as f64 / rate))
    }

    fn now(&self) {
        // There is one end.
        let _ = self.within.set(self.due.get());
    }

    fn within(&self) -> u64 {
        self.within.get().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{Connections, Load, Request, Until},
        upstream,
    };

    #[tokio::test]
    async fn what_is_over_at_once_has_its_least_and_the_time_to_connect() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let address = upstream::tests::start(dir.path(), &tasks).await;
        let load = |pace| Load { connections: Connections::Http2(1), request: Request::Small, pace };
        let (url, ca, until) = (format!("https://{address}"), dir.path().join("ca.crt"), Until::Over { least: 5 });
        let mut plan = Plan { url, ca, token: None, load: load(Pace::Open { rate: 20.0, seconds: 3600.0 }), until };
        let seen = run(&plan, 5, async {}).await.unwrap();
        assert_eq!((seen.outcome.requests, seen.outcome.failed), (5, 0), "{:?}", seen.outcome.errors);
        // One was due at once, and those that a busy machine let become due before the end.
        assert!(seen.within < 5 && seen.connect_us > 0.0, "{seen:?}");
        plan.load = load(Pace::Count { concurrent: 1, requests: 1 });
        assert!(run(&plan, 5, async {}).await.is_err());
        tasks.abort();
    }

    #[test]
    fn it_goes_on_without_a_gap_until_the_end_and_until_there_are_enough() {
        for (end_at, least, sent) in [(250, 100, 250), (30, 100, 100), (0, 100, 100), (100, 100, 100)] {
            let ends = Ends::default();
            let mut schedule = ends.schedule(100.0, least);
            let mut due = Vec::new();
            loop {
                if due.len() == end_at {
                    ends.now();
                }
                let Some(next) = schedule.next() else { break };
                due.push(next);
            }
            assert!(due.len().abs_diff(sent) <= 1, "{} of {sent}", due.len());
            assert!(ends.within().abs_diff(end_at as u64) <= 1, "{} of {end_at}", ends.within());
            assert!(due.windows(2).all(|pair| (pair[1] - pair[0]).as_millis().abs_diff(10) <= 1), "{due:?}");
        }
    }
}
