//! Metrics and log lines that agents push. The latest are kept in memory, bounded for each cluster and
//! in all, for the admin listener; nothing of them is believed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use daemon::telemetry::RELAYED;
use http::{StatusCode, header};
use types::ids::ClusterKey;

use super::{Agent, Call, Reply};
use crate::api::error::ApiError;

/// Bytes of one push of log lines, and of one line.
pub const LOG_BYTES: usize = 512 * 1024;
const LINE_BYTES: usize = 32 * 1024;
/// Lines of one push; the agent's are of 128 KiB, which so many of the shortest of its own do not fill.
const LINES_AT_ONCE: usize = 4000;
/// Bytes that are read before others have their turn.
const TURN_BYTES: usize = 64 * 1024;
/// Bytes of the lines that are kept of one cluster, and of the metrics of one process.
const LOGS_KEPT_BYTES: usize = 128 * 1024;
/// Processes of one cluster whose metrics are kept.
const PROCESSES: usize = 4;
/// Characters of a process's name.
const NAME: usize = 64;
/// Bytes kept of all clusters; beyond it the one that has been silent for longest is forgotten.
const KEPT_BYTES: usize = 256 * 1024 * 1024;
/// Lines of one cluster in a minute; more are refused, and wait at the agent or are dropped there.
const LINES_PER_MINUTE: usize = 6000;
const MINUTE: Duration = Duration::from_secs(60);

/// What agents told last.
#[derive(Debug, Default)]
pub struct Told(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    clusters: HashMap<ClusterKey, OfCluster>,
    bytes: usize,
    turn: u64,
}

#[derive(Debug, Default)]
struct OfCluster {
    metrics: BTreeMap<String, String>,
    logs: VecDeque<String>,
    log_bytes: usize,
    /// Lines in the present minute, and when it began.
    lines: usize,
    since: Option<Instant>,
    turn: u64,
}

impl OfCluster {
    fn bytes(&self) -> usize {
        self.log_bytes + self.metrics.values().map(String::len).sum::<usize>()
    }
}

impl Told {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest metrics of a cluster's processes, Prometheus text, each behind a comment with its name.
    pub fn metrics(&self, cluster: &ClusterKey) -> Option<String> {
        let kept = self.kept();
        let metrics = &kept.clusters.get(cluster)?.metrics;
        Some(metrics.iter().map(|(name, text)| format!("# agent {name}\n{text}\n")).collect())
    }

    /// The latest log lines of a cluster's agents, oldest first, JSON.
    pub fn logs(&self, cluster: &ClusterKey) -> Option<String> {
        let kept = self.kept();
        Some(kept.clusters.get(cluster)?.logs.iter().map(|line| format!("{line}\n")).collect())
    }

    fn change<T>(&self, cluster: &ClusterKey, change: impl FnOnce(&mut OfCluster) -> T) -> T {
        let mut kept = self.kept();
        kept.turn += 1;
        let turn = kept.turn;
        let of = kept.clusters.entry(*cluster).or_default();
        let before = of.bytes();
        of.turn = turn;
        let done = change(of);
        let after = of.bytes();
        kept.bytes = kept.bytes + after - before;
        while kept.bytes > KEPT_BYTES {
            let oldest = kept.clusters.iter().min_by_key(|(_, of)| of.turn).map(|(key, _)| *key);
            let Some(gone) = oldest.and_then(|key| kept.clusters.remove(&key)) else { break };
            kept.bytes -= gone.bytes();
        }
        done
    }

    fn keep_metrics(&self, cluster: &ClusterKey, process: &str, text: &str) -> bool {
        self.change(cluster, |of| {
            let room = of.metrics.len() < PROCESSES || of.metrics.contains_key(process);
            if room {
                of.metrics.insert(process.to_owned(), text.to_owned());
            }
            room
        })
    }

    /// How many seconds to wait if there were too many.
    fn keep_logs(&self, cluster: &ClusterKey, lines: &[&str], now: Instant) -> Option<u64> {
        self.change(cluster, |of| {
            let since = of.since.filter(|since| now.duration_since(*since) < MINUTE);
            if since.is_none() {
                (of.since, of.lines) = (Some(now), 0);
            }
            if of.lines > 0 && of.lines + lines.len() > LINES_PER_MINUTE {
                let passed = since.map_or(Duration::ZERO, |since| now.duration_since(since));
                return Some((MINUTE - passed.min(MINUTE)).as_secs() + 1);
            }
            of.lines += lines.len();
            for line in lines {
                of.log_bytes += line.len();
                of.logs.push_back((*line).to_owned());
            }
            while of.log_bytes > LOGS_KEPT_BYTES {
                let Some(oldest) = of.logs.pop_front() else { break };
                of.log_bytes -= oldest.len();
            }
            None
        })
    }
}

/// `POST /v1/metrics?agent=<name>`.
pub async fn metrics(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let process = call.parameter("agent").unwrap_or("agent");
    if process.is_empty() || process.len() > NAME || !process.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        let message = format!("The query parameter 'agent' must be a name of at most {NAME} letters, digits and '-'.");
        return Err(ApiError::bad_request("InvalidQueryParameterValue", message).at("agent"));
    }
    let text = text(call)?;
    if !call.core.told.keep_metrics(&agent.cluster.key, process, text) {
        let message = format!("Metrics of {PROCESSES} processes of a cluster are kept, the limit.");
        return Err(ApiError::bad_request("TooManyProcesses", message));
    }
    Ok(Reply::empty())
}

/// `POST /v1/logs`: one JSON object a line.
pub async fn logs(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let lines: Vec<&str> = text(call)?.lines().filter(|line| !line.is_empty()).take(LINES_AT_ONCE + 1).collect();
    if lines.len() > LINES_AT_ONCE {
        let message = format!("More than {LINES_AT_ONCE} log lines in one request, the limit.");
        return Err(ApiError::bad_request("InvalidRequestContent", message));
    }
    let mut turn = 0;
    for (at, line) in lines.iter().enumerate() {
        turn += line.len();
        if turn > TURN_BYTES {
            turn = 0;
            tokio::task::yield_now().await;
        }
        let is_object = line.len() <= LINE_BYTES && serde_json::from_str::<serde_json::Map<_, _>>(line).is_ok();
        if !is_object {
            let message = format!("Line {} is no JSON object of at most {LINE_BYTES} bytes.", at + 1);
            return Err(ApiError::bad_request("InvalidRequestContent", message));
        }
    }
    if let Some(seconds) = call.core.told.keep_logs(&agent.cluster.key, &lines, Instant::now()) {
        let message = format!("More than {LINES_PER_MINUTE} log lines of this cluster in a minute, the limit.");
        let refusal = ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        return Err(refusal.with(header::RETRY_AFTER, &seconds.to_string()));
    }
    for line in lines {
        tracing::debug!(target: RELAYED, { cluster.id = %agent.cluster.id, line }, "an agent's log");
    }
    Ok(Reply::empty())
}

fn text(call: &Call) -> Result<&str, ApiError> {
    std::str::from_utf8(&call.body)
        .map_err(|_| ApiError::bad_request("InvalidRequestContent", "The body is no UTF-8 text."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_hex(format!("{byte:02x}").repeat(32).as_bytes()).unwrap()
    }

    #[test]
    fn d1_the_latest_metrics_of_each_process_are_kept() {
        let told = Told::default();
        assert!(told.keep_metrics(&key(1), "a", "one 1"));
        assert!(told.keep_metrics(&key(1), "a", "one 2"));
        assert!(told.keep_metrics(&key(1), "b", "two 1"));
        assert_eq!(told.metrics(&key(1)).unwrap(), "# agent a\none 2\n# agent b\ntwo 1\n");
        assert_eq!(told.metrics(&key(2)), None);
        assert!(told.keep_metrics(&key(1), "c", "") && told.keep_metrics(&key(1), "d", ""));
        assert!(!told.keep_metrics(&key(1), "e", ""));
        assert_eq!(told.kept().bytes, 10);
    }

    #[test]
    fn d2_the_oldest_lines_give_way_and_a_flood_is_told_to_wait() {
        let told = Told::default();
        let (now, line) = (Instant::now(), "x".repeat(1024));
        let lines = vec![line.as_str(); 1000];
        for _ in 0..6 {
            assert_eq!(told.keep_logs(&key(1), &lines, now), None);
        }
        assert_eq!(told.kept().bytes, LOGS_KEPT_BYTES);
        assert_eq!(told.keep_logs(&key(1), &lines, now + MINUTE / 2), Some(31));
        assert_eq!(told.keep_logs(&key(2), &lines, now), None);
        assert_eq!(told.keep_logs(&key(1), &lines, now + MINUTE), None);
    }
}
