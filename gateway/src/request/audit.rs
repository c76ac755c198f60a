//! One record per request, however it ends. [`Record`] is opened with the request and travels with it into the answer's
//! body or the upgraded connection; dropping it writes it. Writing is off the request's path and never waits: what does
//! not fit into the queue is counted and logged.
//!
//! No credential is ever put into a record, and no query: commands and selectors in it are the user's own business. Every
//! text that comes from outside is cut to [`TEXT_BYTES`] (attack D11).

mod writer;

use std::{
    borrow::Cow,
    fs::File,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use proto::{
    ids::RequestId,
    kubernetes::RequestInfo,
    process::{Shutdown, TaskGroup},
    transport::CarrierKind,
};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::{mpsc, oneshot};

use self::writer::Entry;
use super::Stage;
use crate::{config::AuditTo, metrics::Metrics};

/// The longest text of one field, in bytes.
pub const TEXT_BYTES: usize = 1024;
/// What the line of most records takes, in bytes.
const LINE_BYTES: usize = 768;
/// Records that may wait for the writer.
pub const QUEUE_RECORDS: usize = 16 * 1024;
/// How long the end of the process waits for records to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// How a request ended, beside its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer went out whole.
    Complete,
    /// A stage refused it.
    Refused,
    /// The user went away before the end.
    Cancelled,
    /// The answer broke off behind the gateway.
    BrokenOff,
    /// The session was ended by the gateway.
    Ended,
}

/// What is written, one JSON object a line.
#[derive(Debug, Serialize)]
struct Fields {
    time: String,
    request_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    user_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<String>,
    method: String,
    path: String,
    verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    stage: &'static str,
    status: u16,
    outcome: Outcome,
    bytes_up: u64,
    bytes_down: u64,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    carrier: Option<&'static str>,
}

/// Bytes of one request in both directions, counted while they flow.
#[derive(Debug, Default)]
pub struct Bytes {
    /// From the user.
    pub up: AtomicU64,
    /// To the user.
    pub down: AtomicU64,
}

/// The record of one request; dropping it writes it.
pub struct Record {
    log: Arc<AuditLog>,
    metrics: Arc<Metrics>,
    started: Instant,
    stage: Stage,
    /// Counted while they flow.
    pub bytes: Arc<Bytes>,
    /// Set once the answer's head is known; 0 before.
    status: AtomicU16,
    fields: Box<Fields>,
    _open: crate::metrics::OpenGuard,
}

impl Record {
    /// Opens the record of a request that has just arrived.
    pub fn open(log: Arc<AuditLog>, metrics: Arc<Metrics>, id: RequestId, user: SocketAddr, method: &str) -> Self {
        let fields = Box::new(Fields {
            time: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            request_id: id.to_string(),
            trace_id: String::new(),
            correlation_id: None,
            user_address: user.to_string(),
            user: None,
            issuer: None,
            impersonated_user: None,
            method: cut(method),
            path: String::new(),
            verb: String::new(),
            api_group: String::new(),
            resource: String::new(),
            namespace: String::new(),
            name: String::new(),
            upgrade: None,
            cluster: None,
            decision: "none",
            reason: None,
            stage: Stage::Address.as_str(),
            status: 0,
            outcome: Outcome::Cancelled,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            carrier: None,
        });
        let open = metrics.requests.enter();
        Self {
            log,
            metrics,
            started: Instant::now(),
            stage: Stage::Address,
            bytes: Arc::default(),
            status: AtomicU16::new(0),
            fields,
            _open: open,
        }
    }

    /// The stage that the request has reached.
    pub fn stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// The stage that the request has reached.
    pub fn stage_now(&self) -> Stage {
        self.stage
    }

    /// The path without its query.
    pub fn path(&mut self, path: &str) {
        self.fields.path = cut(path.split('?').next().unwrap_or_default());
    }

    /// What Kubernetes will take it for.
    pub fn info(&mut self, info: &RequestInfo) {
        self.fields.verb = cut(&*info.verb);
        self.fields.api_group = cut(&info.api_group);
        self.fields.resource = cut(info.resource_path());
        self.fields.namespace = cut(&info.namespace);
        self.fields.name = cut(&info.name);
    }

    /// The protocol that the user wants to change to.
    pub fn upgrade(&mut self, upgrade: &[u8]) {
        self.fields.upgrade = Some(cut(String::from_utf8_lossy(upgrade)));
    }

    /// Who it is.
    pub fn user(&mut self, name: &str, issuer: &str) {
        self.fields.user = Some(cut(name));
        self.fields.issuer = Some(cut(issuer));
    }

    /// Who the user wants to be.
    pub fn impersonated(&mut self, name: &[u8]) {
        self.fields.impersonated_user = Some(cut(String::from_utf8_lossy(name)));
    }

    /// The trace that it belongs to (W3C), in hex.
    pub fn trace(&mut self, id: String) {
        self.fields.trace_id = id;
    }

    /// What several requests of one command belong to (features row D6); a GUID of the client's.
    pub fn correlation(&mut self, id: &str) {
        self.fields.correlation_id = Some(cut(id));
    }

    /// The cluster, as its id or, if there is none, its key.
    pub fn cluster<'a>(&mut self, cluster: impl Into<Cow<'a, str>>) {
        self.fields.cluster = Some(cut(cluster));
    }

    /// The gateway's decision, and why if it is no.
    pub fn decision(&mut self, allowed: bool, reason: Option<&str>) {
        self.fields.decision = if allowed { "allow" } else { "deny" };
        self.fields.reason = reason.map(cut);
    }

    /// Why it ended, for a person who reads the record.
    pub fn reason(&mut self, reason: &str) {
        self.fields.reason = Some(cut(reason));
    }

    /// The carrier that took it.
    pub fn carrier(&mut self, kind: CarrierKind) {
        self.fields.carrier = Some(kind.as_str());
    }

    /// The answer's head is on its way.
    pub fn answered(&mut self, status: http::StatusCode) {
        self.status.store(status.as_u16(), Ordering::Relaxed);
        self.metrics.answer_seconds.record(self.started.elapsed().as_secs_f64());
    }

    /// How it ended; without this it counts as cancelled.
    pub fn outcome(&mut self, outcome: Outcome) {
        self.fields.outcome = outcome;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let fields = &mut self.fields;
        fields.stage = self.stage.as_str();
        fields.status = self.status.load(Ordering::Relaxed);
        fields.bytes_up = self.bytes.up.load(Ordering::Relaxed);
        fields.bytes_down = self.bytes.down.load(Ordering::Relaxed);
        fields.duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.metrics.bytes_up.increment(fields.bytes_up);
        self.metrics.bytes_down.increment(fields.bytes_down);
        self.metrics.request_ended(self.stage, fields.status);
        tracing::debug!(
            request.id = fields.request_id,
            cluster.id = fields.cluster.as_deref(),
            stage = fields.stage,
            status = fields.status,
            outcome = ?fields.outcome,
            duration_ms = fields.duration_ms,
            "request ended"
        );
        let mut line = Vec::with_capacity(LINE_BYTES);
        if serde_json::to_writer(&mut line, &**fields).is_ok() {
            line.push(b'\n');
            self.log.write(line, &self.metrics);
        }
    }
}

/// Cuts a text at a character boundary.
fn cut<'a>(text: impl Into<Cow<'a, str>>) -> String {
    let text = text.into();
    if text.len() <= TEXT_BYTES {
        return text.into_owned();
    }
    let end = (0..=TEXT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// The queue to the writer.
pub struct AuditLog {
    queue: mpsc::Sender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the file and starts the writer.
    pub async fn open(to: &AuditTo, tasks: &TaskGroup, shutdown: &Shutdown) -> io::Result<Arc<Self>> {
        let sink = match to {
            AuditTo::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            AuditTo::File(path) => {
                let mut options = tokio::fs::OpenOptions::new();
                options.create(true).append(true).mode(0o600).open(path).await?.into_std().await
            }
        };
        Self::start(Box::new(sink), tasks, shutdown)
    }

    fn start(sink: Box<dyn io::Write + Send>, tasks: &TaskGroup, shutdown: &Shutdown) -> io::Result<Arc<Self>> {
        let (queue, entries) = mpsc::channel(QUEUE_RECORDS);
        let dropped = Arc::new(AtomicU64::new(0));
        tasks.spawn("audit", writer::start(sink, entries, Arc::clone(&dropped), shutdown.clone())?);
        Ok(Arc::new(Self { queue, dropped }))
    }

    fn write(&self, line: Vec<u8>, metrics: &Metrics) {
        if self.queue.try_send(Entry::Line(line)).is_err() {
            metrics.audit_dropped.increment(1);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A line about a connection that was refused before, or instead of, a request.
    pub fn connection_refused(&self, metrics: &Metrics, peer: SocketAddr, cause: &str, why: &str, unrecorded: u64) {
        let line = serde_json::json!({
            "time": OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            "event": "connection",
            "user_address": peer.to_string(),
            "stage": Stage::Accept.as_str(),
            "outcome": Outcome::Refused,
            "cause": cause,
            "reason": cut(why),
            // Others of which there is no line, because there were too many at once.
            "unrecorded": unrecorded,
        });
        self.write(format!("{line}\n").into_bytes(), metrics);
    }

    /// One whose lines nobody reads.
    #[cfg(test)]
    pub fn nowhere() -> Arc<Self> {
        Arc::new(Self { queue: mpsc::channel(1).0, dropped: Arc::default() })
    }

    /// Waits until all records so far are written, at the most [`FLUSH_DEADLINE`]: perhaps they cannot be.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flush = async {
            if self.queue.send(Entry::Flush(done)).await.is_ok() {
                let _ = written.await;
            }
        };
        let _ = tokio::time::timeout(FLUSH_DEADLINE, flush).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log: &Arc<AuditLog>, metrics: &Arc<Metrics>) -> Record {
        Record::open(Arc::clone(log), Arc::clone(metrics), RequestId([7; 16]), ([192, 0, 2, 1], 5).into(), "GET")
    }

    #[tokio::test]
    async fn k11_a_record_is_written_however_the_request_ends() {
        let file = std::env::temp_dir().join(format!("towline-audit-{}.json", std::process::id()));
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let log = AuditLog::open(&AuditTo::File(file.clone()), &tasks, &shutdown).await.unwrap();
        let mut cancelled = record(&log, &metrics);
        cancelled.path("/api/v1/pods?token=secret");
        cancelled.stage(Stage::Open);
        drop(cancelled);
        let mut complete = record(&log, &metrics);
        complete.user(&"u".repeat(5000), "dev");
        complete.answered(http::StatusCode::OK);
        complete.outcome(Outcome::Complete);
        complete.bytes.down.fetch_add(5, Ordering::Relaxed);
        assert_eq!(metrics.requests.now(), 1);
        drop(complete);
        log.flush().await;
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["outcome"], &lines[0]["stage"]), (&"cancelled".into(), &"open".into()));
        assert_eq!(
            (&lines[1]["outcome"], &lines[1]["status"], &lines[1]["bytes_down"]),
            (&"complete".into(), &200.into(), &5.into())
        );
        assert!(lines[1]["user"].as_str().unwrap().len() <= TEXT_BYTES + 3);
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(metrics.requests.now(), 0);
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts_and_never_waits() {
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        // A pipe that nobody reads.
        let (_reader, sink) = io::pipe().unwrap();
        let log = AuditLog::start(Box::new(sink), &tasks, &shutdown).unwrap();
        // The queue, and what the writer holds meanwhile.
        for _ in 0..QUEUE_RECORDS + 4096 {
            drop(record(&log, &metrics));
        }
        assert!(log.dropped.load(Ordering::Relaxed) >= 50);
        assert!(metrics.render().contains("gateway_audit_dropped_total"));
    }
}
