//! Pushes this process's metrics to the gateway every five minutes, with the processor time and the
//! memory that it takes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusHandle;
use types::agent_api::{BODY_BYTES, paths};

use super::{Entry, Role, health::Reporter};
use crate::{
    chain,
    config::{Deployment, RoleSet},
    metrics,
    tunnel::api::AgentApi,
};

/// This role's name.
pub const NAME: &str = "metrics-agent";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: Deployment::ALL,
    build: |parts| {
        let health = parts.health.of(NAME);
        Ok(Some(Arc::new(MetricsAgent::new(parts.api.clone(), parts.metrics.clone(), parts.config.roles, health))))
    },
};

/// Between two pushes; the first comes soon.
const PERIOD: Duration = Duration::from_secs(300);
const FIRST: Duration = Duration::from_secs(5);
/// Ticks of a second in `/proc/self/stat`: what Linux shows to programs on every architecture (`USER_HZ`).
const TICKS: f64 = 100.0;
/// Waits after a push that did not arrive.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(5),
    quick_cap: Duration::from_secs(30),
    quick_for: Duration::from_secs(60),
    cap: PERIOD,
    steady_after: PERIOD,
};

/// Pushes the metrics of this process to the gateway. Without a recorder there is nothing to push.
pub struct MetricsAgent {
    api: AgentApi,
    recorder: Option<PrometheusHandle>,
    agent: RoleSet,
    health: Reporter,
}

impl MetricsAgent {
    /// Pushes what `recorder` has.
    pub fn new(api: AgentApi, recorder: Option<PrometheusHandle>, agent: RoleSet, health: Reporter) -> Self {
        Self { api, recorder, agent, health }
    }

    async fn work(&self) {
        let Some(recorder) = &self.recorder else {
            self.health.running();
            return std::future::pending().await;
        };
        let mut backoff = Backoff::new(AGAIN);
        tokio::time::sleep(FIRST).await;
        loop {
            self.api.up().await;
            measure();
            let text = cut(recorder.render(), BODY_BYTES);
            let path = format!("{}?agent={}", paths::METRICS, self.agent.as_str());
            let wait = match self.api.bulk(&path, "text/plain", text.into()).await {
                Ok(()) => {
                    metrics::pushed("metrics", true);
                    backoff.reset();
                    self.health.running();
                    PERIOD
                }
                Err(err) => {
                    metrics::pushed("metrics", false);
                    let error = chain(&err);
                    tracing::debug!(error, "metrics were not pushed");
                    self.health.failing("Unreachable", &error);
                    let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                    err.retry_after().unwrap_or(wait).max(wait)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }
}

impl Role for MetricsAgent {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(self.work()).await;
        })
    }
}

/// Whole lines of at most `limit` bytes.
fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let end = text.as_bytes()[..limit].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(end);
    }
    text
}

/// Notes what the process takes of the machine. Nothing where the system does not tell.
pub fn measure() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(seconds) = cpu_seconds(&stat) {
        metrics::process_cpu(seconds);
    }
    if let Some(bytes) = resident_bytes(&status) {
        metrics::process_memory(bytes);
    }
}

/// User and system time, fields 14 and 15; the name in field 2 may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_processor_time_and_memory_are_read_from_the_system() {
        let stat = "7 (a) b) S 1 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 100 1000000 200";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2048 * 1024));
        assert_eq!((cpu_seconds(""), resident_bytes("")), (None, None));
        measure();
    }

    #[test]
    fn what_is_too_long_is_cut_between_lines() {
        assert_eq!(cut("a 1\nb 2\nc 3\n".to_owned(), 9), "a 1\nb 2\n");
        assert_eq!(cut("a 1\n".to_owned(), 4), "a 1\n");
    }
}
