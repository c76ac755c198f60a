//! What agents pushed last, metrics and log lines: kept in memory, bounded for each cluster and in all, for the admin
//! listener. Nothing of it is believed. Where all is taken, the resource group gives way that has most: whoever may connect
//! clusters in one has as many as they like.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use types::{
    api::id::fold,
    ids::{ClusterId, ClusterKey},
};

/// Bytes of the lines that are kept of one cluster, and of the metrics of one process.
const LOGS_KEPT_BYTES: usize = 128 * 1024;
/// Processes of one cluster whose metrics are kept.
pub const PROCESSES: usize = 4;
/// Bytes kept of all clusters; beyond it, of the resource group that has most, the cluster is forgotten that has been
/// silent for longest.
const KEPT_BYTES: usize = 256 * 1024 * 1024;
/// Lines of one cluster in a minute; more are refused, and wait at the agent or are dropped there.
pub const LINES_PER_MINUTE: usize = 6000;
const MINUTE: Duration = Duration::from_secs(60);

/// What agents told last.
#[derive(Debug)]
pub struct AgentReports {
    kept: Mutex<Kept>,
    most: usize,
}

impl Default for AgentReports {
    fn default() -> Self {
        Self { kept: Mutex::default(), most: KEPT_BYTES }
    }
}

#[derive(Debug, Default)]
struct Kept {
    clusters: HashMap<ClusterKey, OfCluster>,
    /// Of the clusters of each resource group.
    group_bytes: HashMap<Arc<str>, usize>,
    bytes: usize,
    turn: u64,
}

impl Kept {
    /// The cluster that gives way.
    fn first_to_go(&self) -> Option<ClusterKey> {
        let (heaviest, _) = self.group_bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
        let of_group = self.clusters.iter().filter(|(_, of)| of.group == *heaviest);
        of_group.min_by_key(|(_, of)| of.turn).map(|(key, _)| *key)
    }

    fn weigh(&mut self, group: &Arc<str>, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        let of_group = self.group_bytes.entry(Arc::clone(group)).or_default();
        *of_group = *of_group + after - before;
        if *of_group == 0 {
            self.group_bytes.remove(group);
        }
    }
}

#[derive(Debug, Default)]
struct OfCluster {
    group: Arc<str>,
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
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn change<T>(&self, cluster: &ClusterId, change: impl FnOnce(&mut OfCluster) -> T) -> T {
        let mut kept = self.kept();
        kept.turn += 1;
        let turn = kept.turn;
        let new = || OfCluster { group: group(cluster), ..OfCluster::default() };
        let of = kept.clusters.entry(cluster.key()).or_insert_with(new);
        let (before, group) = (of.bytes(), Arc::clone(&of.group));
        of.turn = turn;
        let done = change(of);
        let after = of.bytes();
        kept.weigh(&group, before, after);
        while kept.bytes > self.most {
            let Some(gone) = kept.first_to_go().and_then(|key| kept.clusters.remove(&key)) else { break };
            kept.weigh(&gone.group, gone.bytes(), 0);
        }
        done
    }

    /// Keeps the metrics of a process, in the place of those before. False: metrics of as many others are kept.
    pub fn keep_metrics(&self, cluster: &ClusterId, process: &str, text: &str) -> bool {
        self.change(cluster, |of| {
            let room = of.metrics.len() < PROCESSES || of.metrics.contains_key(process);
            if room {
                of.metrics.insert(process.to_owned(), text.to_owned());
            }
            room
        })
    }

    /// Keeps log lines; `Some`: nothing, for there were too many in a minute, and how many seconds to wait.
    pub fn keep_logs(&self, cluster: &ClusterId, lines: &[&str], now: Instant) -> Option<u64> {
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

/// The key of a cluster's resource group.
fn group(cluster: &ClusterId) -> Arc<str> {
    fold(cluster.as_str()).split("/providers/").next().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_in(group: &str, name: usize) -> ClusterId {
        let id =
            format!("/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Kubernetes/connectedClusters/c{name}");
        id.parse().unwrap()
    }

    fn id(name: usize) -> ClusterId {
        id_in("g", name)
    }

    #[test]
    fn d1_the_latest_metrics_of_each_process_are_kept() {
        let told = AgentReports::default();
        assert!(told.keep_metrics(&id(1), "a", "one 1"));
        assert!(told.keep_metrics(&id(1), "a", "one 2"));
        assert!(told.keep_metrics(&id(1), "b", "two 1"));
        assert_eq!(told.metrics(&id(1).key()).unwrap(), "# agent a\none 2\n# agent b\ntwo 1\n");
        assert_eq!(told.metrics(&id(2).key()), None);
        assert!(told.keep_metrics(&id(1), "c", "") && told.keep_metrics(&id(1), "d", ""));
        assert!(!told.keep_metrics(&id(1), "e", ""));
        assert_eq!(told.kept().bytes, 10);
    }

    #[test]
    fn d2_the_oldest_lines_give_way_and_a_flood_is_told_to_wait() {
        let told = AgentReports::default();
        let (now, line) = (Instant::now(), "x".repeat(1024));
        let lines = vec![line.as_str(); 1000];
        for _ in 0..6 {
            assert_eq!(told.keep_logs(&id(1), &lines, now), None);
        }
        assert_eq!(told.kept().bytes, LOGS_KEPT_BYTES);
        assert_eq!(told.keep_logs(&id(1), &lines, now + MINUTE / 2), Some(31));
        assert_eq!(told.keep_logs(&id(2), &lines, now), None);
        assert_eq!(told.keep_logs(&id(1), &lines, now + MINUTE), None);
    }

    /// The clusters of one group pushed out what all others had told.
    #[test]
    fn d2_the_group_that_has_most_gives_way() {
        const BYTES: usize = 1000;
        const MOST: usize = 20;
        let told = AgentReports { most: MOST * BYTES, ..AgentReports::default() };
        let line = "x".repeat(BYTES);
        let keep = |cluster: &ClusterId| told.keep_logs(cluster, &[&line], Instant::now());
        let quiet = id_in("quiet", 0);
        for cluster in std::iter::once(quiet.clone()).chain((0..MOST).map(|n| id_in("loud", n))) {
            assert_eq!(keep(&cluster), None);
        }
        assert!(told.logs(&quiet.key()).is_some());
        assert!(told.logs(&id_in("LOUD", 0).key()).is_none(), "the one that was silent for longest of the heaviest");
        assert!(told.logs(&id_in("loud", 1).key()).is_some());
        assert_eq!(told.kept().bytes, MOST * BYTES);
        assert_eq!(told.kept().group_bytes.values().sum::<usize>(), MOST * BYTES);
    }
}
