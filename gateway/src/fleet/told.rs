//! What agents pushed last, metrics and log lines: kept in memory, bounded for each cluster and in all, for the admin
//! listener. Nothing of it is believed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use types::ids::ClusterKey;

/// Bytes of the lines that are kept of one cluster, and of the metrics of one process.
const LOGS_KEPT_BYTES: usize = 128 * 1024;
/// Processes of one cluster whose metrics are kept.
pub const PROCESSES: usize = 4;
/// Bytes kept of all clusters; beyond it the one that has been silent for longest is forgotten.
const KEPT_BYTES: usize = 256 * 1024 * 1024;
/// Lines of one cluster in a minute; more are refused, and wait at the agent or are dropped there.
pub const LINES_PER_MINUTE: usize = 6000;
const MINUTE: Duration = Duration::from_secs(60);

/// What agents told last.
#[derive(Debug, Default)]
pub struct AgentReports(Mutex<Kept>);

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

impl AgentReports {
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

    /// Keeps the metrics of a process, in the place of those before. False: metrics of as many others are kept.
    pub fn keep_metrics(&self, cluster: &ClusterKey, process: &str, text: &str) -> bool {
        self.change(cluster, |of| {
            let room = of.metrics.len() < PROCESSES || of.metrics.contains_key(process);
            if room {
                of.metrics.insert(process.to_owned(), text.to_owned());
            }
            room
        })
    }

    /// Keeps log lines; `Some`: nothing, for there were too many in a minute, and how many seconds to wait.
    pub fn keep_logs(&self, cluster: &ClusterKey, lines: &[&str], now: Instant) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_hex(format!("{byte:02x}").repeat(32).as_bytes()).unwrap()
    }

    #[test]
    fn d1_the_latest_metrics_of_each_process_are_kept() {
        let told = AgentReports::default();
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
        let told = AgentReports::default();
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
