//! One record per request, however it ends. [`Record`] is opened with the request and travels with it into the answer's
//! body or the upgraded connection; dropping it writes it. Writing, and spelling out what is written, is off the
//! request's path. No request waits for it: a record for which the queue has no room is dropped, counted and logged.
//! When the queue is nearly full, users who have many records in it lose further ones first (`audit/waiting.rs`).
//!
//! No credential is ever put into a record, and no query: commands and selectors in it are the user's own business.
//! Every text that comes from outside is cut to [`TEXT_BYTES`].

mod line;
pub mod sampled;
mod waiting;
mod writer;

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use auth::kubernetes::RequestInfo;
use daemon::{Shutdown, TaskGroup};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tunnel::transport::CarrierKind;
use types::{
    ids::{ClusterId, ClusterKey, RequestId},
    instants::rfc3339,
};

use self::{
    line::{Known, Text},
    sampled::Sampled,
    waiting::Waiting,
    writer::{Entry, Next},
};
use crate::{
    config::AuditTo,
    metrics::{Metrics, labels::Stage},
};

/// The longest text of one field, in bytes.
pub const TEXT_BYTES: usize = 1024;
/// Records that may wait for the writer.
pub const QUEUE_RECORDS: usize = 16 * 1024;
/// Of these, the last ones are for records that name a user, and what the gateway did by itself.
const KEPT_RECORDS: usize = QUEUE_RECORDS / 2;
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

/// Bytes of one request in both directions, counted while they flow.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Bytes from the user to the cluster.
    pub up: AtomicU64,
    /// Bytes from the cluster to the user.
    pub down: AtomicU64,
}

/// The record of one request; dropping it writes it.
pub struct Record {
    log: Arc<AuditLog>,
    metrics: Arc<Metrics>,
    started: Instant,
    /// Counted while they flow.
    pub bytes: Arc<Bytes>,
    /// Gone to the writer once dropped.
    known: Option<Box<Known>>,
    _open: crate::metrics::OpenGuard,
}

/// The record of a request that is under way, by who ends it.
pub enum Custody {
    /// The stages do, with a refusal or with an answer of the gateway's own.
    Stages(Record),
    /// The relayed answer does, which has taken the record along.
    Answer,
}

/// Why the stages have the record.
const HELD: &str = "relay hands the record over, after all other stages";

impl Custody {
    /// The record, for a stage.
    pub fn record(&mut self) -> &mut Record {
        self.kept().expect(HELD)
    }

    /// The record, where no answer has taken it along.
    pub fn kept(&mut self) -> Option<&mut Record> {
        match self {
            Self::Stages(record) => Some(record),
            Self::Answer => None,
        }
    }

    /// Hands the record over to the answer.
    pub fn hand_over(&mut self) -> Record {
        match std::mem::replace(self, Self::Answer) {
            Self::Stages(record) => Some(record),
            Self::Answer => None,
        }
        .expect(HELD)
    }
}

impl Record {
    /// Opens the record of a request that has just arrived.
    pub fn open(log: Arc<AuditLog>, metrics: Arc<Metrics>, id: RequestId, user: SocketAddr, method: &str) -> Self {
        let mut known = Box::new(Known::begin(id, user));
        known.set(Text::Method, method);
        let open = metrics.requests.enter();
        Self { log, metrics, started: Instant::now(), bytes: Arc::default(), known: Some(known), _open: open }
    }

    fn known(&mut self) -> &mut Known {
        self.known.as_mut().expect("only drop takes it")
    }

    /// The stage that the request has reached.
    pub fn stage(&mut self, stage: Stage) {
        self.known().stage = stage;
    }

    /// The stage that the request has reached.
    pub fn stage_now(&self) -> Stage {
        self.known.as_ref().map_or(Stage::Relay, |known| known.stage)
    }

    /// The path without its query.
    pub fn path(&mut self, path: &str) {
        self.known().set(Text::Path, path.split('?').next().unwrap_or_default());
    }

    /// What Kubernetes will take it for.
    pub fn info(&mut self, info: &RequestInfo) {
        for (which, text) in [
            (Text::Verb, &*info.verb),
            (Text::ApiGroup, &info.api_group),
            (Text::Resource, &info.resource_path()),
            (Text::Namespace, &info.namespace),
            (Text::Name, &info.name),
        ] {
            self.known().set(which, text);
        }
    }

    /// The protocol that the user wants to change to.
    pub fn upgrade(&mut self, upgrade: &[u8]) {
        self.known().set(Text::Upgrade, &String::from_utf8_lossy(upgrade));
    }

    /// Whether a credential of its user was accepted.
    pub fn is_named(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_named())
    }

    /// Whether it was refused, or went away, before anybody knew whose it is.
    pub fn is_nobodys(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_nobodys())
    }

    /// The user's name, and the configured name of their issuer.
    pub fn user(&mut self, name: &str, issuer: &str) {
        self.known().set(Text::User, name);
        self.known().set(Text::Issuer, issuer);
    }

    /// Who the user wants to be.
    pub fn impersonated(&mut self, name: &[u8]) {
        self.known().set(Text::ImpersonatedUser, &String::from_utf8_lossy(name));
    }

    /// The trace that it belongs to (W3C).
    pub fn trace(&mut self, id: [u8; 16]) {
        self.known().trace = Some(id);
    }

    /// What several requests of one command belong to (docs/features.md D6); a GUID of the client's.
    pub fn correlation(&mut self, id: &str) {
        self.known().set(Text::CorrelationId, id);
    }

    /// The key in the address, which is what stands in the record if there is no such cluster.
    pub fn key(&mut self, key: ClusterKey) {
        self.known().key = Some(key);
    }

    /// Notes the cluster that was asked for.
    pub fn cluster(&mut self, cluster: &ClusterId) {
        self.known().set(Text::Cluster, cluster.as_str());
    }

    /// The gateway's decision, and why if it is no.
    pub fn decision(&mut self, allowed: bool, reason: Option<&str>) {
        self.known().decision = if allowed { "allow" } else { "deny" };
        if let Some(reason) = reason {
            self.reason(reason);
        }
    }

    /// Why it ended, for a person who reads the record.
    pub fn reason(&mut self, reason: &str) {
        self.known().set(Text::Reason, reason);
    }

    /// The carrier that took it.
    pub fn carrier(&mut self, kind: CarrierKind) {
        self.known().carrier = Some(kind);
    }

    /// The other replica that the request was handed to; empty: none.
    pub fn handed_to(&mut self, replica: &str) {
        self.known().set(Text::HandedTo, replica);
    }

    /// The answer's head is on its way.
    pub fn answered(&mut self, status: http::StatusCode) {
        self.known().status = status.as_u16();
        self.metrics.answer_seconds.record(self.started.elapsed().as_secs_f64());
    }

    /// How it ended; without this it counts as cancelled.
    pub fn outcome(&mut self, outcome: Outcome) {
        self.known().outcome = outcome;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(mut known) = self.known.take() else { return };
        known.bytes_up = self.bytes.up.load(Ordering::Relaxed);
        known.bytes_down = self.bytes.down.load(Ordering::Relaxed);
        known.took = self.started.elapsed();
        self.metrics.bytes_up.increment(known.bytes_up);
        self.metrics.bytes_down.increment(known.bytes_down);
        self.metrics.request_ended(known.stage, known.status);
        tracing::debug!(
            request.id = %known.id,
            cluster.id = known.cluster().as_deref(),
            stage = known.stage.as_str(),
            status = known.status,
            outcome = ?known.outcome,
            duration_ms = u64::try_from(known.took.as_millis()).unwrap_or(u64::MAX),
            "request ended"
        );
        if known.is_named() {
            let whose = (known.get(Text::User), known.get(Text::Issuer));
            known.of = Some(self.log.waiting.slot(whose));
            self.log.write(Entry::Record(known), &self.metrics);
            return;
        }
        // What anybody can ask for takes no place that is kept for who is known.
        if !known.is_nobodys() {
            self.log.write_nobodys(Entry::Record(known), &self.metrics);
            return;
        }
        let (user, now) = (known.user_address.ip(), Instant::now());
        let Some(unrecorded) = self.log.sampled.place(user, now) else {
            return self.metrics.audit_unrecorded.increment(1);
        };
        known.unrecorded = unrecorded;
        if !self.log.write_nobodys(Entry::Record(known), &self.metrics) {
            self.log.sampled.give_back(user, unrecorded.saturating_add(1), now);
        }
    }
}

/// A connection of a cluster to a host that this gateway reaches, at its end.
pub struct Passed<'a> {
    /// When the connection began.
    pub time: SystemTime,
    /// The id of its stream.
    pub id: RequestId,
    /// ARM id of the cluster whose agent opened it.
    pub cluster: &'a str,
    /// The flux configuration that it is for.
    pub configuration: &'a str,
    /// Where it was to lead, `host:port`.
    pub to: &'a str,
    /// The address that was dialled.
    pub address: Option<SocketAddr>,
    /// How the connection ended.
    pub outcome: Outcome,
    /// Why, if somebody refused or ended it.
    pub reason: Option<&'a str>,
    /// Bytes from the cluster.
    pub up: u64,
    /// Bytes to the cluster.
    pub down: u64,
    /// How long it lasted.
    pub took: Duration,
}

/// The queue to the writer.
pub struct AuditLog {
    queue: mpsc::Sender<Entry>,
    sampled: Sampled,
    waiting: Arc<Waiting>,
    replica: Option<String>,
    /// Where there is a file.
    file: Option<OpenFile>,
    next: Next,
}

/// The file that records go to.
struct OpenFile {
    path: PathBuf,
    /// Device and inode of what is open.
    is: Mutex<(u64, u64)>,
}

/// Device and inode.
fn identity(of: &std::fs::Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

/// Opens a file to append to, and says which one that is.
async fn appended(path: &Path) -> io::Result<(File, (u64, u64))> {
    let mut options = tokio::fs::OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(path).await?;
    let is = identity(&file.metadata().await?);
    Ok((file.into_std().await, is))
}

impl AuditLog {
    /// Opens the file and starts the writer. Every record names the replica that wrote it, where there are several.
    pub async fn open(
        to: &AuditTo,
        replica: Option<String>,
        tasks: &TaskGroup,
        shutdown: &Shutdown,
    ) -> io::Result<Arc<Self>> {
        let (sink, file) = match to {
            AuditTo::Stdout => (File::from(io::stdout().as_fd().try_clone_to_owned()?), None),
            AuditTo::File(path) => {
                let (sink, is) = appended(path).await?;
                (sink, Some(OpenFile { path: path.clone(), is: Mutex::new(is) }))
            }
        };
        Self::start(Box::new(sink), file, replica, tasks, shutdown)
    }

    /// Opens the file again where another one, or none, has its name by now: it was rotated. Records that come from then
    /// on go there; where it cannot be opened, to the former one.
    pub async fn reopen(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let now = match tokio::fs::metadata(&file.path).await {
            Ok(now) => Some(identity(&now)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if now == Some(*file.is.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let (sink, is) = appended(&file.path).await?;
        *file.is.lock().unwrap_or_else(PoisonError::into_inner) = is;
        self.next.put(Box::new(sink));
        tracing::info!(path = %file.path.display(), "the file of audit records was opened again");
        Ok(())
    }

    fn start(
        sink: writer::Sink,
        file: Option<OpenFile>,
        replica: Option<String>,
        tasks: &TaskGroup,
        shutdown: &Shutdown,
    ) -> io::Result<Arc<Self>> {
        let (queue, entries) = mpsc::channel(QUEUE_RECORDS);
        let (waiting, next) = (Arc::<Waiting>::default(), Next::default());
        let counted = Arc::clone(&waiting);
        tasks.spawn("audit", writer::start(sink, next.clone(), replica.clone(), entries, counted, shutdown.clone())?);
        Ok(Arc::new(Self { queue, sampled: Sampled::default(), waiting, replica, file, next }))
    }

    /// Whether there was room for it, and whose it is had a place left; it is counted otherwise.
    fn write(&self, entry: Entry, metrics: &Metrics) -> bool {
        let of = entry.of();
        if of.is_none_or(|of| self.waiting.begin(of, self.queue.capacity())) {
            if self.queue.try_send(entry).is_ok() {
                return true;
            }
            of.into_iter().for_each(|of| self.waiting.end(of));
        }
        metrics.audit_dropped.increment(1);
        self.waiting.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Of what anybody can have written, without an identity: it leaves places for the rest.
    fn write_nobodys(&self, entry: Entry, metrics: &Metrics) -> bool {
        if self.queue.capacity() > KEPT_RECORDS {
            return self.write(entry, metrics);
        }
        metrics.audit_dropped.increment(1);
        self.waiting.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// A line about what the gateway did for a resource, which takes a place of its subscription's share.
    fn write_line(&self, line: serde_json::Value, resource: &str, metrics: &Metrics) {
        let end = resource.match_indices('/').nth(2).map_or(resource.len(), |(at, _)| at);
        let of = self.waiting.slot(resource[..end].to_lowercase());
        self.write(Entry::LineOf(of, self.bytes(line)), metrics);
    }

    fn line(&self, line: serde_json::Value) -> Entry {
        Entry::Line(self.bytes(line))
    }

    fn bytes(&self, mut line: serde_json::Value) -> Vec<u8> {
        if let (Some(replica), Some(line)) = (&self.replica, line.as_object_mut()) {
            line.insert("replica".to_owned(), replica.as_str().into());
        }
        format!("{line}\n").into_bytes()
    }

    /// A line about a connection that was refused before, or instead of, a request. Whether there was room for it.
    pub fn connection_refused(
        &self,
        metrics: &Metrics,
        peer: SocketAddr,
        cause: &str,
        why: &str,
        unrecorded: u64,
    ) -> bool {
        let (kept, mark) = line::cut(why);
        let line = serde_json::json!({
            "time": rfc3339(SystemTime::now()),
            "event": "connection",
            "user_address": peer.to_string(),
            "stage": Stage::Accept.as_str(),
            "outcome": Outcome::Refused,
            "cause": cause,
            "reason": format!("{kept}{mark}"),
            // Others of which there is no line, because there were too many at once.
            "unrecorded": unrecorded,
        });
        self.write_nobodys(self.line(line), metrics)
    }

    /// A line about what the gateway did by itself in the name of something: a method and what it was for, and the code of
    /// the refusal if it was refused.
    pub fn done_for(&self, metrics: &Metrics, by: &str, method: &str, path: &str, refused: Option<&str>) {
        let text = |text: &str| {
            let (kept, mark) = line::cut(text);
            format!("{kept}{mark}")
        };
        let outcome = if refused.is_some() { Outcome::Refused } else { Outcome::Complete };
        let line = serde_json::json!({
            "time": rfc3339(SystemTime::now()),
            "event": "fleet",
            "user": text(by),
            "method": method,
            "path": text(path),
            "outcome": outcome,
            "reason": refused,
        });
        self.write_line(line, path, metrics);
    }

    /// A line about a connection of a cluster to a host that this gateway reaches.
    pub fn egress(&self, metrics: &Metrics, passed: &Passed<'_>) {
        let text = |text: &str| {
            let (kept, mark) = line::cut(text);
            format!("{kept}{mark}")
        };
        let line = serde_json::json!({
            "time": rfc3339(passed.time),
            "event": "egress",
            "request_id": passed.id.to_string(),
            "cluster": passed.cluster,
            "name": text(passed.configuration),
            "method": "CONNECT",
            "path": text(passed.to),
            "address": passed.address.map(|address| address.to_string()),
            "outcome": passed.outcome,
            "reason": passed.reason.map(text),
            "bytes_up": passed.up,
            "bytes_down": passed.down,
            "duration_ms": u64::try_from(passed.took.as_millis()).unwrap_or(u64::MAX),
        });
        self.write_line(line, passed.cluster, metrics);
    }

    /// One whose lines nobody reads.
    #[cfg(test)]
    pub fn nowhere() -> Arc<Self> {
        let queue = mpsc::channel(1).0;
        let (sampled, waiting) = (Sampled::default(), Arc::default());
        Arc::new(Self { queue, sampled, waiting, replica: None, file: None, next: Next::default() })
    }

    /// The end of the log: lines for what has no record and is told by no later one, of requests and of so many refused
    /// connections. Then as [`Self::flush`].
    pub async fn finish(&self, connections: u64) {
        let untold = |of: &str, network: Option<IpAddr>, unrecorded: u64| {
            self.line(serde_json::json!({
                "time": rfc3339(SystemTime::now()),
                "event": "unrecorded",
                "of": of,
                "network": network.map(|network| network.to_string()),
                "unrecorded": unrecorded,
            }))
        };
        let requests = self.sampled.take_untold().into_iter();
        let mut lines: Vec<Entry> = requests.map(|(network, count)| untold("requests", Some(network), count)).collect();
        if connections > 0 {
            lines.push(untold("connections", None, connections));
        }
        let told = async {
            for line in lines {
                if self.queue.send(line).await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(FLUSH_DEADLINE, told).await.is_ok() {
            self.flush().await;
        }
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
        let log = AuditLog::open(&AuditTo::File(file.clone()), Some("gateway-0".to_owned()), &tasks, &shutdown)
            .await
            .unwrap();
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
        assert!(lines.iter().all(|line| line["replica"] == "gateway-0"), "{text}");
        assert_eq!(metrics.requests.now(), 0);
    }

    /// Records went to the file that was moved away, or deleted, for ever.
    #[tokio::test]
    async fn k11_a_file_that_is_moved_or_deleted_is_made_again_at_a_reload() {
        let dir = tempfile::tempdir().unwrap();
        let (file, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let log = AuditLog::open(&AuditTo::File(file.clone()), None, &tasks, &shutdown).await.unwrap();
        let write = async |path: &str| {
            record(&log, &metrics).path(path);
            log.flush().await;
        };
        let paths = |of: &Path| -> Vec<String> {
            let line = |line: &str| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["path"].as_str().unwrap().to_owned()
            };
            std::fs::read_to_string(of).unwrap().lines().map(line).collect()
        };
        write("/1").await;
        // Nothing has happened to it.
        log.reopen().await.unwrap();
        write("/2").await;
        std::fs::rename(&file, &old).unwrap();
        write("/3").await;
        log.reopen().await.unwrap();
        write("/4").await;
        assert_eq!((paths(&old), paths(&file)), (vec!["/1".into(), "/2".into(), "/3".into()], vec!["/4".into()]));
        let mode = std::fs::metadata(&file).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // One that somebody else has made in its place is appended to.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "{\"path\":\"/made\"}\n").unwrap();
        log.reopen().await.unwrap();
        write("/5").await;
        assert_eq!(paths(&file), ["/made", "/5"]);
        // Where none can be made, the former one stays.
        std::fs::rename(&file, &old).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(log.reopen().await.is_err());
        write("/6").await;
        assert_eq!(paths(&old), ["/made", "/5", "/6"]);
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts_and_never_waits() {
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        // A pipe that nobody reads.
        let (_reader, sink) = io::pipe().unwrap();
        let log = AuditLog::start(Box::new(sink), None, None, &tasks, &shutdown).unwrap();
        // The queue, and what the writer holds meanwhile.
        for _ in 0..QUEUE_RECORDS + 4096 {
            let mut record = record(&log, &metrics);
            record.user("ann", "dev");
            drop(record);
        }
        assert!(log.waiting.dropped.load(Ordering::Relaxed) >= 50);
        assert!(metrics.render().contains("gateway_audit_dropped_total"));
    }

    /// Whoever floods the gateway with tokens that do not hold had others' records dropped.
    #[tokio::test]
    async fn what_nobody_knows_whose_it_is_leaves_room_for_the_rest() {
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let (_reader, sink) = io::pipe().unwrap();
        let log = AuditLog::start(Box::new(sink), None, None, &tasks, &shutdown).unwrap();
        // From many networks: each has its share of records.
        for n in 0..u32::try_from(QUEUE_RECORDS).unwrap() + 4096 {
            let user = SocketAddr::new(std::net::Ipv4Addr::from(n << 8).into(), 5);
            let mut record = Record::open(Arc::clone(&log), Arc::clone(&metrics), RequestId([7; 16]), user, "GET");
            record.stage(Stage::Authenticate);
            record.answered(http::StatusCode::UNAUTHORIZED);
        }
        assert!(log.queue.capacity() >= KEPT_RECORDS);
        let dropped = log.waiting.dropped.load(Ordering::Relaxed);
        for _ in 0..KEPT_RECORDS / 2 {
            record(&log, &metrics).user("ann", "dev");
        }
        assert_eq!(log.waiting.dropped.load(Ordering::Relaxed), dropped);
    }

    /// One user's requests had everybody's records dropped while they came faster than they could be written.
    #[tokio::test]
    async fn records_of_a_user_or_subscription_that_has_many_cost_nobody_else_one() {
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let (_reader, sink) = io::pipe().unwrap();
        let log = AuditLog::start(Box::new(sink), None, None, &tasks, &shutdown).unwrap();
        let dropped = || log.waiting.dropped.load(Ordering::Relaxed);
        let did = |n: usize| {
            let path = format!("/subscriptions/NOISY/resourceGroups/g{n}/providers/p/t/n");
            log.done_for(&metrics, "all", "PUT", &path, None);
        };
        // Two that share a place by chance have one share together.
        let (user, subscription) = (
            |name: &str| log.waiting.slot((Some(name), Some("dev"))),
            |name: &str| log.waiting.slot(format!("/subscriptions/{name}")),
        );
        let noisy_slots = [user("ann"), subscription("noisy")];
        let names: Vec<String> = (0..)
            .map(|n| format!("quiet-{n}"))
            .filter(|name| !noisy_slots.contains(&user(name)) && !noisy_slots.contains(&subscription(name)))
            .take(3)
            .collect();
        let noisy: [(&str, &dyn Fn(usize)); 2] =
            [("user", &|_| record(&log, &metrics).user("ann", "dev")), ("subscription", &did)];
        for (who, write) in noisy {
            // More than the queue has, and what the writer holds meanwhile.
            for n in 0..QUEUE_RECORDS + 4096 {
                write(n);
            }
            let before = dropped();
            assert!(before > 0, "{who}");
            for name in &names {
                for _ in 0..100 {
                    record(&log, &metrics).user(name, "dev");
                }
                let path = format!("/subscriptions/{name}/resourceGroups/g");
                log.done_for(&metrics, "all", "PUT", &path, None);
            }
            assert_eq!(dropped(), before, "{who}");
        }
    }

    #[tokio::test]
    async fn records_that_were_written_count_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let file = AuditTo::File(dir.path().join("audit.jsonl"));
        let log = AuditLog::open(&file, None, &tasks, &shutdown).await.unwrap();
        for n in 0..1000 {
            record(&log, &metrics).user(&format!("user-{}", n % 7), "dev");
        }
        log.done_for(&metrics, "all", "PUT", "/subscriptions/s/resourceGroups/g", None);
        log.flush().await;
        assert_eq!((log.waiting.all(), log.waiting.dropped.load(Ordering::Relaxed)), (0, 0));
        // What found no room waits nowhere.
        let nowhere = AuditLog::nowhere();
        record(&nowhere, &metrics).user("ann", "dev");
        assert_eq!((nowhere.waiting.all(), nowhere.waiting.dropped.load(Ordering::Relaxed)), (0, 1));
    }

    /// A count was lost with the record that was to tell it, and at the end when no further record came.
    #[tokio::test]
    async fn every_request_of_nobody_is_recorded_or_counted_in_the_log() {
        let file = std::env::temp_dir().join(format!("towline-audit-counts-{}.json", std::process::id()));
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let log = AuditLog::open(&AuditTo::File(file.clone()), None, &tasks, &shutdown).await.unwrap();
        let refused = |log: &Arc<AuditLog>, network: u8| {
            let user = SocketAddr::from(([198, 51, network, 1], 5));
            let mut record = Record::open(Arc::clone(log), Arc::clone(&metrics), RequestId([7; 16]), user, "GET");
            record.stage(Stage::Authenticate);
            record.answered(http::StatusCode::UNAUTHORIZED);
            record.outcome(Outcome::Refused);
        };
        let (requests, networks) = (100, 3);
        for network in 0..networks {
            for _ in 0..requests {
                refused(&log, network);
            }
        }
        log.finish(7).await;
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (counts, records): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["event"] == "unrecorded");
        let all =
            |lines: &[&serde_json::Value]| lines.iter().filter_map(|line| line["unrecorded"].as_u64()).sum::<u64>();
        let (connections, of_requests): (Vec<_>, Vec<_>) =
            counts.iter().copied().partition(|line| line["of"] == "connections");
        assert_eq!((all(&connections), of_requests.len()), (7, usize::from(networks)), "{text}");
        assert!(of_requests.iter().any(|line| line["network"] == "198.51.1.0"), "{text}");
        let told = records.len() as u64 + all(&records) + all(&of_requests);
        assert_eq!(told, u64::from(networks) * requests, "{text}");

        // One that finds no room is told by the next.
        let nowhere = AuditLog::nowhere();
        for _ in 0..requests {
            refused(&nowhere, 0);
        }
        assert_eq!(nowhere.sampled.take_untold(), [([198, 51, 0, 0].into(), requests)]);
    }

    #[tokio::test]
    async fn requests_that_are_refused_before_anybody_knows_whose_they_are_are_written_at_a_bounded_rate() {
        let file = std::env::temp_dir().join(format!("towline-audit-nobody-{}.json", std::process::id()));
        let (tasks, shutdown, metrics) = (TaskGroup::new("test"), Shutdown::new(), Arc::new(Metrics::new()));
        let log = AuditLog::open(&AuditTo::File(file.clone()), None, &tasks, &shutdown).await.unwrap();
        let refused = |user: Option<&str>| {
            let mut record = record(&log, &metrics);
            record.stage(Stage::Authenticate);
            if let Some(user) = user {
                record.user(user, "dev");
            }
            record.answered(http::StatusCode::UNAUTHORIZED);
            record.outcome(Outcome::Refused);
            assert_eq!((record.is_named(), record.is_nobodys()), (user.is_some(), user.is_none()));
        };
        for _ in 0..1000 {
            refused(None);
        }
        for _ in 0..1000 {
            refused(Some("ann"));
        }
        log.flush().await;
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let named = text.lines().filter(|line| line.contains("ann")).count();
        // A second may end within.
        assert!(named == 1000 && text.lines().count() < 1000 + 500, "{} lines, {named} named", text.lines().count());
        assert!(metrics.render().contains("gateway_audit_unrecorded_total"));
    }
}
