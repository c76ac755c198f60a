//! When requests are sent: the schedule of an open loop, the workers of a closed one.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use daemon::TaskGroup;
use tokio::time::{Instant, timeout};

use super::{Pace, alarm::Alarm, meter::Meter};

/// An open loop that falls this far behind has lost: what is due then fails without being sent.
const UNDER_WAY: usize = 20_000;
/// What does not end within this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

impl Pace {
    /// How many are under way at once; of an open loop nobody knows.
    pub fn concurrent(self) -> usize {
        match self {
            Self::Open { .. } => 0,
            Self::Within { .. } => 1,
            Self::Closed { concurrent, .. } | Self::Count { concurrent, .. } => concurrent,
        }
    }
}

/// Sends at this pace until its end; each request and its outcome is counted.
///
/// # Errors
/// A fault of this program, or no timer of the system's.
pub async fn run<F>(
    pace: Pace,
    meter: &Arc<Meter>,
    send: impl Fn(Arc<Meter>) -> F + Clone + Send + Sync + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let tasks = TaskGroup::new("load");
    match pace {
        Pace::Open { rate, seconds } => {
            let alarm = &Alarm::new()?;
            open(&tasks, schedule(rate, seconds), meter, &send, |due| alarm.at(due)).await?;
        }
        Pace::Closed { concurrent, seconds } => {
            let until = Instant::now() + Duration::from_secs_f64(seconds);
            closed(&tasks, concurrent, meter, &send, move || Instant::now() < until);
        }
        Pace::Count { concurrent, requests } => {
            let left = Arc::new(AtomicU64::new(requests));
            let take =
                move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
            closed(&tasks, concurrent, meter, &send, take);
        }
        Pace::Within { seconds } => {
            let (meter, request) = (Arc::clone(meter), send(Arc::clone(meter)));
            tasks.spawn("request", async move { within(Duration::from_secs_f64(seconds), request, &meter).await });
        }
    }
    Ok(tasks.join().await?)
}

/// A request that is cut when the time is over has done well if anything came.
async fn within(time: Duration, request: impl Future<Output = anyhow::Result<u64>>, meter: &Meter) {
    let due = Instant::now();
    let outcome = timeout(time, request).await.unwrap_or_else(|_| match meter.read() {
        0 => Err(anyhow::anyhow!("nothing came within {time:?}")),
        read => Ok(read),
    });
    meter.record(due, outcome);
}

/// When requests are due, from the start: evenly, `rate` in a second.
fn schedule(rate: f64, seconds: f64) -> impl Iterator<Item = Duration> {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    (0_u64..).map(move |number| number as f64 / rate).take_while(move |due| *due < seconds).map(Duration::from_secs_f64)
}

/// An open loop by a schedule, from now on. What it sent may still be under way at its end.
///
/// # Errors
/// Of what waits for the time of each.
pub async fn open<F, W>(
    tasks: &TaskGroup,
    schedule: impl Iterator<Item = Duration>,
    meter: &Arc<Meter>,
    send: &(impl Fn(Arc<Meter>) -> F + Clone),
    until: impl Fn(Instant) -> W,
) -> io::Result<()>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
    W: Future<Output = io::Result<()>>,
{
    let start = Instant::now();
    for after in schedule {
        let due = start + after;
        until(due).await?;
        if tasks.running() >= UNDER_WAY {
            meter.record(due, Err(anyhow::anyhow!("not sent: {UNDER_WAY} are under way")));
            continue;
        }
        let (meter, request) = (Arc::clone(meter), send(Arc::clone(meter)));
        tasks.spawn("request", async move { meter.record(due, patiently(request).await) });
    }
    Ok(())
}

fn closed<F>(
    tasks: &TaskGroup,
    concurrent: usize,
    meter: &Arc<Meter>,
    send: &(impl Fn(Arc<Meter>) -> F + Clone + Send + Sync + 'static),
    more: impl Fn() -> bool + Clone + Send + Sync + 'static,
) where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    for _ in 0..concurrent {
        let (meter, send, more) = (Arc::clone(meter), send.clone(), more.clone());
        tasks.spawn("worker", async move {
            while more() {
                let due = Instant::now();
                meter.record(due, patiently(send(Arc::clone(&meter))).await);
            }
        });
    }
}

/// One request, which has failed if it does not end in time.
pub async fn patiently(request: impl Future<Output = anyhow::Result<u64>>) -> anyhow::Result<u64> {
    timeout(PATIENCE, request).await.context("not within a minute")?
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep_until;

    use super::*;

    #[test]
    fn a_schedule_is_even_and_ends_in_time() {
        let due: Vec<_> = schedule(4.0, 1.0).collect();
        assert_eq!(due, [0, 250, 500, 750].map(Duration::from_millis));
        assert_eq!(schedule(100.0, 6.0).count(), 600);
    }

    // Whoever measures from when a request is sent sees one slow request here; the schedule sees a hundred.
    #[tokio::test(start_paused = true)]
    async fn a_stall_counts_for_all_that_it_holds_up() {
        let meter = Arc::new(Meter::default());
        let stalled_until = Instant::now() + Duration::from_secs(1);
        let send = move |_| async move {
            sleep_until(stalled_until).await;
            Ok(0)
        };
        let tasks = TaskGroup::new("test");
        let until = async |due| {
            sleep_until(due).await;
            Ok(())
        };
        open(&tasks, schedule(100.0, 2.0), &meter, &send, until).await.unwrap();
        tasks.join().await.unwrap();
        let seen = meter.outcome(2.0);
        let (p10, p50, p75) = (seen.latency.at(0.1), seen.latency.at(0.505), seen.latency.at(0.75));
        assert_eq!(seen.requests, 200);
        assert!(p10 < Some(2_000) && p50 < Some(20_000), "{p10:?} {p50:?}");
        assert!((Some(490_000)..Some(520_000)).contains(&p75) && seen.latency.at(1.0) >= Some(1_000_000), "{p75:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_ends_has_failed_after_a_minute() {
        let meter = Arc::new(Meter::default());
        run(Pace::Count { concurrent: 2, requests: 3 }, &meter, |_| std::future::pending()).await.unwrap();
        let seen = meter.outcome(1.0);
        assert_eq!((seen.requests, seen.failed, seen.errors.len()), (0, 3, 1), "{:?}", seen.errors);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_cut_in_time_counts_what_came_and_nothing_is_a_failure() {
        for (bytes, failed) in [(5, 0), (0, 1)] {
            let meter = Arc::new(Meter::default());
            let start = Instant::now();
            let send = move |meter: Arc<Meter>| async move {
                meter.reads(bytes);
                std::future::pending().await
            };
            run(Pace::Within { seconds: 3.0 }, &meter, send).await.unwrap();
            let seen = meter.outcome(3.0);
            assert_eq!((seen.requests, seen.failed, seen.bytes), (1 - failed, failed, bytes), "{:?}", seen.errors);
            assert_eq!(start.elapsed(), Duration::from_secs(3));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_sends_for_its_time_and_no_more_at_once_than_it_may() {
        let meter = Arc::new(Meter::default());
        let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let seen = Arc::clone(&most);
        let send = move |_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok(7)
            }
        };
        run(Pace::Closed { concurrent: 5, seconds: 1.0 }, &meter, send).await.unwrap();
        let outcome = meter.outcome(1.0);
        assert_eq!((seen.load(Ordering::Relaxed), outcome.bytes), (5, 7 * outcome.requests));
        assert!((400..=505).contains(&outcome.requests), "{}", outcome.requests);
    }
}
