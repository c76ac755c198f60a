//! Sends this process's log lines to the gateway: JSON, one object a line. While there is no tunnel they
//! wait in a bounded buffer; the oldest are dropped, and counted.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Notify;
use types::{
    agent_api::paths,
    ids::{ClusterId, RequestId},
};

use super::{
    ALL, Entry, Role, clusterconnect_agent, clusteridentityoperator, controller_manager, health::Reporter,
    resource_sync_agent,
};
use crate::{
    chain,
    config::{Deployment, RoleSet},
    metrics,
    tunnel::api::AgentApi,
};

/// This role's name.
pub const NAME: &str = "logcollector";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: Deployment::ALL,
    build: |parts| {
        let Some(logs) = parts.logs.clone() else { return Ok(None) };
        let (cluster, health) = (parts.cluster.clone(), parts.health.of(NAME));
        Ok(Some(Arc::new(LogCollector::new(parts.api.clone(), logs, cluster, parts.config.roles, health))))
    },
};

/// Bytes of lines that wait, and of one line; a longer one is not sent.
const BUFFER_BYTES: usize = 2 * 1024 * 1024;
const LINE_BYTES: usize = 16 * 1024;
/// Bytes of one push, before what is added to each line.
const BATCH_BYTES: usize = 128 * 1024;
/// Lines wait this long for others, or until `ENOUGH_BYTES` are there.
const TOGETHER: Duration = Duration::from_secs(10);
const ENOUGH_BYTES: usize = 64 * 1024;
/// What a line of this role, and of what it sends with, begins its target with: it must not feed on its own lines.
const OWN: [&str; 2] = [module_path!(), "agent::tunnel::api"];
/// Modules beside the roles' own that do a role's work.
const HELPERS: [(&str, &str); 6] = [
    ("agent::identity", clusteridentityoperator::NAME),
    ("agent::roles::controller_manager", controller_manager::NAME),
    ("agent::roles::health", controller_manager::NAME),
    ("agent::roles::resource", resource_sync_agent::NAME),
    ("agent::roles::serve", clusterconnect_agent::NAME),
    ("agent::tunnel", clusterconnect_agent::NAME),
];
/// Waits after a push that did not arrive.
const AGAIN: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(2),
    quick_cap: Duration::from_secs(10),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(300),
    steady_after: Duration::from_secs(60),
};

/// Lines that wait. A writer of log lines; clones share the lines.
#[derive(Clone, Default)]
pub struct LogBuffer {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
}

impl LogBuffer {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        let mut dropped = 0;
        if line.len() > LINE_BYTES {
            dropped = 1;
        } else {
            waiting.bytes += line.len();
            waiting.lines.push_back(line.to_vec());
            while waiting.bytes > BUFFER_BYTES {
                let Some(oldest) = waiting.lines.pop_front() else { break };
                waiting.bytes -= oldest.len();
                dropped += 1;
            }
        }
        waiting.dropped += dropped;
        let enough = waiting.bytes >= ENOUGH_BYTES;
        drop(waiting);
        if dropped > 0 {
            metrics::log_lines_dropped(dropped);
        }
        if enough {
            self.inner.more.notify_one();
        }
    }

    /// The oldest lines, as many as fit into one push.
    fn take(&self) -> Vec<Vec<u8>> {
        let mut waiting = self.waiting();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = waiting.lines.front().map(Vec::len)
            && bytes + next <= BATCH_BYTES
        {
            bytes += next;
            taken.extend(waiting.lines.pop_front());
        }
        waiting.bytes -= bytes;
        taken
    }

    /// Puts lines back that did not arrive; as far as there is still room.
    fn put_back(&self, lines: Vec<Vec<u8>>) {
        let mut waiting = self.waiting();
        let mut dropped = 0;
        for line in lines.into_iter().rev() {
            if waiting.bytes + line.len() > BUFFER_BYTES {
                dropped += 1;
                continue;
            }
            waiting.bytes += line.len();
            waiting.lines.push_front(line);
        }
        waiting.dropped += dropped;
        drop(waiting);
        if dropped > 0 {
            metrics::log_lines_dropped(dropped);
        }
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.waiting().dropped
    }

    fn is_empty(&self) -> bool {
        self.waiting().lines.is_empty()
    }
}

impl Write for LogBuffer {
    /// One line at a time, as the formatter hands it over.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the buffered log lines of this process to the gateway.
pub struct LogCollector {
    api: AgentApi,
    buffer: LogBuffer,
    cluster: ClusterId,
    agent: RoleSet,
    /// Joins the lines of one life of the process that belong to no request.
    correlation: String,
    health: Reporter,
}

impl LogCollector {
    /// Sends what is in `buffer`.
    pub fn new(api: AgentApi, buffer: LogBuffer, cluster: ClusterId, agent: RoleSet, health: Reporter) -> Self {
        let correlation = RequestId::random().map(|id| id.to_string()).unwrap_or_default();
        Self { api, buffer, cluster, agent, correlation, health }
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(AGAIN);
        self.health.running();
        loop {
            let _ = tokio::time::timeout(TOGETHER, self.buffer.inner.more.notified()).await;
            while !self.buffer.is_empty() {
                self.api.up().await;
                let lines = self.buffer.take();
                let body = self.batch(&lines);
                if body.is_empty() {
                    continue;
                }
                match self.api.bulk(paths::LOGS, "application/x-ndjson", body).await {
                    Ok(()) => {
                        metrics::pushed("logs", true);
                        backoff.reset();
                        self.health.running();
                    }
                    Err(err) => {
                        metrics::pushed("logs", false);
                        self.buffer.put_back(lines);
                        self.health.failing("Unreachable", &chain(&err));
                        let wait = backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0);
                        tokio::time::sleep(err.retry_after().unwrap_or(wait).max(wait)).await;
                    }
                }
            }
        }
    }

    fn batch(&self, lines: &[Vec<u8>]) -> Bytes {
        let mut body = Vec::new();
        for line in lines {
            let Some(line) = self.line(line) else { continue };
            body.extend_from_slice(line.to_string().as_bytes());
            body.push(b'\n');
        }
        body.into()
    }

    /// A line as it is sent; `None` for one of this role's own.
    fn line(&self, line: &[u8]) -> Option<Value> {
        let mut value: Value = serde_json::from_slice(line).ok()?;
        let object = value.as_object_mut()?;
        let target = object.get("target").and_then(Value::as_str).unwrap_or_default();
        if OWN.iter().any(|own| target.starts_with(own)) {
            return None;
        }
        let role =
            object.get("role").and_then(Value::as_str).or_else(|| role_of(target)).unwrap_or(self.agent.as_str());
        let correlation = object.get("request.id").and_then(Value::as_str).unwrap_or(&self.correlation);
        let added = [
            ("Role", role.to_owned()),
            ("CorrelationId", correlation.to_owned()),
            ("ArmId", self.cluster.as_str().to_owned()),
            ("AgentName", self.agent.as_str().to_owned()),
            ("AgentVersion", daemon::release::version().to_owned()),
        ];
        for (name, value) in added {
            object.insert(name.to_owned(), value.into());
        }
        for (ours, theirs) in [("level", "LogLevel"), ("timestamp", "Timestamp")] {
            if let Some(value) = object.remove(ours) {
                object.insert(theirs.to_owned(), value);
            }
        }
        Some(value)
    }
}

/// The role whose module this is, or a part of it.
fn role_of(target: &str) -> Option<&'static str> {
    let is_in =
        |module: &str| target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let own = ALL.iter().map(|entry| (entry.module, entry.name));
    own.chain(HELPERS).find(|(module, _)| is_in(module)).map(|(_, name)| name)
}

impl Role for LogCollector {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(self.work()).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::health::Health;

    const CLUSTER: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/c";

    fn collector() -> LogCollector {
        let (_, current) = tokio::sync::watch::channel(None);
        let cluster = CLUSTER.parse().unwrap();
        LogCollector::new(
            AgentApi::new(current),
            LogBuffer::default(),
            cluster,
            RoleSet::All,
            Health::default().of(NAME),
        )
    }

    #[test]
    fn d2_a_full_buffer_drops_the_oldest_and_counts_them() {
        let buffer = LogBuffer::default();
        let line = |n: usize| format!("{{\"n\":{n},\"fill\":\"{}\"}}\n", "x".repeat(1000));
        for n in 0..3000 {
            buffer.push(line(n).as_bytes());
        }
        assert!(buffer.waiting().bytes <= BUFFER_BYTES);
        let dropped = buffer.dropped();
        assert!(dropped > 900, "{dropped}");
        let first = buffer.take();
        assert_eq!(first[0], line(usize::try_from(dropped).unwrap()).into_bytes());
        // What did not arrive goes back to where it was.
        buffer.put_back(first.clone());
        assert_eq!(buffer.take(), first);
        buffer.push(&vec![b'x'; LINE_BYTES + 1]);
        assert_eq!(buffer.dropped(), dropped + 1);
    }

    #[test]
    fn d2_a_line_has_what_names_its_origin_and_none_of_its_own_is_sent() {
        let collector = collector();
        let line = |target: &str| {
            format!("{{\"timestamp\":\"t\",\"level\":\"INFO\",\"message\":\"m\",\"target\":\"{target}\"}}")
        };
        let sent = collector.line(line("agent::roles::kube_aad_proxy::dial").as_bytes()).unwrap();
        for (name, value) in [
            ("ArmId", CLUSTER),
            ("Role", "kube-aad-proxy"),
            ("AgentName", "all"),
            ("LogLevel", "INFO"),
            ("Timestamp", "t"),
            ("message", "m"),
        ] {
            assert_eq!(sent[name], value, "{sent}");
        }
        assert!(sent["AgentVersion"].is_string() && sent["CorrelationId"].as_str().unwrap().len() == 32, "{sent}");
        for own in OWN {
            assert!(collector.line(line(own).as_bytes()).is_none());
        }
        assert!(collector.line(b"no JSON").is_none());
        let named = br#"{"target":"agent","request.id":"abc"}"#;
        assert_eq!(collector.line(named).unwrap()["CorrelationId"], "abc");
    }
}
