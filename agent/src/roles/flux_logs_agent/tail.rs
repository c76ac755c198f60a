//! Reads the log of one pod for as long as it is there: over restarts of its container, rotation, and connections that
//! break. A stream that was broken is opened again at the second of the last line, and what was read before is skipped.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daemon::{Backoff, BackoffPolicy, random_unit};
use futures_util::AsyncReadExt as _;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, api::LogParams};
use types::agent_api::LogPosition;

use super::{
    FLUX_NAMESPACE, FluxLogsAgent,
    line::{Splitter, timed},
    pods::Controller,
};

/// How many of its newest lines are read first of a pod that was never read before.
const FIRST_LINES: i64 = 2000;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 16 * 1024;
const NANOS: i64 = 1_000_000_000;
/// How far the clock of a node may be ahead of this process's. An instant beyond that is not believed: whatever it was
/// counted as, all lines until then would have to give way to it.
const AHEAD: Duration = Duration::from_secs(5);
/// A stream that says nothing for so long is opened again: a connection may be gone without a word.
const QUIET: Duration = Duration::from_secs(300);
/// How long opening one may take.
const OPENING: Duration = Duration::from_secs(60);
/// Waits between two streams of one pod.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(500),
    quick_cap: Duration::from_secs(5),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(30),
    steady_after: Duration::from_secs(60),
};

/// Up to where the lines of a pod were read.
#[derive(Debug, Default)]
pub struct Cursor {
    last: Option<LogPosition>,
    /// After a stream was opened again: how many lines of the last instant came once more.
    again: Option<u32>,
    /// The newest instant that was not believed. After a stream was opened again, such lines up to it are not new.
    unbelieved: Option<i64>,
}

impl Cursor {
    /// Behind that line; `None`: nothing was read.
    pub fn new(last: Option<LogPosition>) -> Self {
        Self { last, again: None, unbelieved: None }
    }

    /// The second at which a stream is to begin, since 1970: Kubernetes takes no smaller parts.
    pub fn since(&self) -> Option<i64> {
        self.last.map(|last| last.nanos.div_euclid(NANOS))
    }

    /// A stream begins at [`Self::since`].
    pub fn opened(&mut self) {
        self.again = self.last.map(|_| 0);
    }

    /// The position of a line of this instant; `None` if it was read before. Positions rise also where a clock is set
    /// back, and none is beyond `latest`.
    pub fn next(&mut self, nanos: i64, latest: i64) -> Option<LogPosition> {
        if nanos > latest {
            if self.again.is_some() && self.unbelieved >= Some(nanos) {
                return None;
            }
            self.unbelieved = self.unbelieved.max(Some(nanos));
        }
        let nanos = nanos.min(latest);
        let Some(last) = self.last else { return Some(*self.last.insert(LogPosition { nanos, nth: 1 })) };
        if let Some(again) = &mut self.again {
            if nanos < last.nanos {
                return None;
            }
            if nanos == last.nanos && *again < last.nth {
                *again += 1;
                return None;
            }
            self.again = None;
        }
        let next = match nanos > last.nanos {
            true => LogPosition { nanos, nth: 1 },
            false => LogPosition { nanos: last.nanos, nth: last.nth.saturating_add(1) },
        };
        self.last = Some(next);
        self.last
    }
}

/// The latest instant that is believed at this time of day.
fn latest(now: SystemTime) -> i64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default() + AHEAD;
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Reads a pod until it is gone.
pub async fn run(agent: &FluxLogsAgent, uid: &str) {
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), FLUX_NAMESPACE);
    let mut cursor = Cursor::new(agent.taken_of(uid));
    let mut restarts = cursor.last.map(|_| 0);
    let mut backoff = Backoff::new(AGAIN);
    while let Some(controller) = agent.pods.get(uid) {
        // What the container logged behind the last line before it ended.
        if restarts.is_some_and(|before| before < controller.restarts) {
            read(agent, &api, &controller, &mut cursor, true).await;
        }
        restarts = Some(controller.restarts);
        let begun = Instant::now();
        if read(agent, &api, &controller, &mut cursor, false).await > 0 {
            backoff.reset();
        }
        backoff.lived(begun.elapsed());
        let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
        tokio::time::sleep(wait).await;
    }
}

/// Reads a stream to its end; how many lines were new. `previous`: of the container that was there before.
async fn read(
    agent: &FluxLogsAgent,
    api: &Api<Pod>,
    controller: &Controller,
    cursor: &mut Cursor,
    previous: bool,
) -> usize {
    let since = cursor.since();
    let params = LogParams {
        container: Some(controller.container.clone()),
        follow: !previous,
        previous,
        since_time: since.and_then(|since| Timestamp::from_second(since).ok()),
        tail_lines: since.is_none().then_some(FIRST_LINES),
        timestamps: true,
        ..LogParams::default()
    };
    cursor.opened();
    let opened = tokio::time::timeout(OPENING, api.log_stream(&controller.pod, &params)).await;
    let mut stream = match opened {
        Ok(Ok(stream)) => Box::pin(stream),
        Err(_) => {
            tracing::debug!(pod = controller.pod, "the log of a pod is not answered");
            return 0;
        }
        Ok(Err(err)) => {
            tracing::debug!(pod = controller.pod, error = crate::chain(&err), "the log of a pod cannot be read");
            return 0;
        }
    };
    let (mut splitter, mut piece, mut new) = (Splitter::default(), vec![0; PIECE_BYTES], 0);
    loop {
        let count = match tokio::time::timeout(QUIET, stream.read(&mut piece)).await {
            Ok(Ok(0)) | Err(_) => return new,
            Ok(Ok(count)) => count,
            Ok(Err(err)) => {
                tracing::debug!(pod = controller.pod, error = crate::chain(&err), "the log of a pod broke off");
                return new;
            }
        };
        let latest = latest(agent.clock.now());
        splitter.push(&piece[..count], |line| {
            if let Some((nanos, line)) = timed(line)
                && let Some(position) = cursor.next(nanos, latest)
            {
                new += 1;
                agent.take(controller, position, line);
            }
        });
    }
}
