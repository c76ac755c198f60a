//! Every metric of the gateway, named and described once. Labels are enums of ours, never a caller's text, so that
//! nobody can make their number grow. Each gateway has a registry of its own: a process may hold several.

pub mod labels;

use std::sync::{
    OnceLock,
    atomic::{AtomicI64, Ordering},
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tunnel::transport::CarrierKind;

use self::labels::{Cause, Stage};
use crate::skew::{self, Skew};

/// A number of open things. Goes back to 0 when all are closed.
pub struct Open {
    gauge: Gauge,
    now: AtomicI64,
}

impl Open {
    /// Counts one up until the guard drops.
    pub fn enter(self: &std::sync::Arc<Self>) -> OpenGuard {
        self.gauge.increment(1.0);
        self.now.fetch_add(1, Ordering::Relaxed);
        OpenGuard(std::sync::Arc::clone(self))
    }

    /// How many are open.
    pub fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }
}

/// One open thing.
pub struct OpenGuard(std::sync::Arc<Open>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.gauge.decrement(1.0);
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of an enrolment.
#[derive(Debug, Clone, Copy)]
pub enum Enrolled {
    /// A certificate was issued.
    Issued,
    /// It was refused with this status.
    Refused(http::StatusCode),
}

/// What a replica knows of itself and the others.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaFigures {
    /// Replicas whose leases last.
    pub alive: usize,
    /// Time since the own lease was renewed.
    pub lease_age: std::time::Duration,
    /// Revisions that the slowest has not applied.
    pub lag: i64,
    /// Clusters with tunnels elsewhere.
    pub clusters_elsewhere: usize,
    /// Whether this one admits requests.
    pub admits: bool,
    /// Other living replicas whose settings differ from this one's, of those that all share.
    pub settings_differ: usize,
}

/// The gateway's metrics.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// User connections that are open.
    pub connections: std::sync::Arc<Open>,
    /// User requests from head to the last byte.
    pub requests: std::sync::Arc<Open>,
    /// Streams opened for users.
    pub streams: std::sync::Arc<Open>,
    /// Sessions in the registry.
    pub sessions: std::sync::Arc<Open>,
    /// Connections that this replica keeps to others.
    pub links: std::sync::Arc<Open>,
    /// Connections that others keep to this replica.
    pub peers: std::sync::Arc<Open>,
    /// Requests that other replicas handed to this one, which has the tunnel.
    pub hops: std::sync::Arc<Open>,
    /// Handshakes (TLS, hello) going on.
    pub handshakes: std::sync::Arc<Open>,
    /// Tunnels by carrier, in the order of [`CARRIERS`].
    tunnels: [std::sync::Arc<Open>; CARRIERS.len()],
    /// Tunnels by the versions of their agents, in the order of [`Skew::ALL`].
    tunnels_of: [std::sync::Arc<Open>; Skew::ALL.len()],
    /// Time from a request's head to its answer's head, in seconds.
    pub answer_seconds: Histogram,
    /// Bytes from users to clusters.
    pub bytes_up: Counter,
    /// Bytes from clusters to users.
    pub bytes_down: Counter,
    /// Audit records that could not be written.
    pub audit_dropped: Counter,
    /// Requests without an identity that were refused and have no audit record.
    pub audit_unrecorded: Counter,
    /// Reloads that failed.
    pub reloads_failed: Counter,
    /// Writes that not every replica confirmed in time.
    pub unconfirmed_writes: Counter,
    /// Connections of clusters to hosts that this gateway reaches.
    pub egress: std::sync::Arc<Open>,
    /// Bytes of these, from clusters.
    pub egress_bytes_up: Counter,
    /// Bytes of these, to clusters.
    pub egress_bytes_down: Counter,
    /// Requests that ended, by stage and [`CLASSES`].
    requests_ended: [[OnceLock<Counter>; CLASSES.len()]; Stage::Relay as usize + 1],
}

/// Kinds of status by which requests are counted.
const CLASSES: [&str; 11] = ["1xx", "2xx", "3xx", "401", "403", "429", "4xx", "502", "503", "5xx", "none"];

const CARRIERS: [CarrierKind; 4] = [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket, CarrierKind::Memory];

const METADATA: Metadata<'static> = Metadata::new("gateway", Level::INFO, None);

const REQUESTS: &str = "gateway_requests_total";
const ANSWER_SECONDS: &str = "gateway_answer_seconds";
/// Upper ends of its buckets: from what is answered here at once up to the deadline of an ordinary request. A summary's
/// quantiles cannot be added up over gateways, a histogram's buckets can.
const ANSWER_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];
const REFUSED: &str = "gateway_connections_refused_total";
const ENROLMENTS: &str = "gateway_enrolments_total";
const EGRESS: &str = "gateway_egress_total";
const OPEN_TUNNELS: &str = "gateway_tunnels_open";
const TUNNELS_OF_VERSION: &str = "gateway_tunnels_by_agent_version";
const HELLOS: &str = "gateway_hellos_total";
const BUILD: &str = "gateway_build_info";
const UPGRADES: &str = "gateway_agent_upgrades_total";
const UPGRADE_CLUSTERS: &str = "gateway_upgrade_clusters";
const REPLICA: &str = "gateway_replica_info";
const REPLICAS_ALIVE: &str = "gateway_replicas_alive";
const LEASE_AGE: &str = "gateway_replica_lease_age_seconds";
const REVISION_LAG: &str = "gateway_replica_revision_lag";
const CLUSTERS_ELSEWHERE: &str = "gateway_replica_clusters_elsewhere";
const ADMITS: &str = "gateway_replica_admits";
const SETTINGS_DIFFER: &str = "gateway_replicas_settings_differ";
const TASKS: &str = "gateway_tasks";

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry with all of them at 0.
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(ANSWER_SECONDS.to_owned()), &ANSWER_BUCKETS)
            .expect("there are buckets")
            .build_recorder();
        let open = |name: &'static str, labels: Vec<Label>| {
            let gauge = recorder.register_gauge(&Key::from_parts(name, labels), &METADATA);
            gauge.set(0.0);
            std::sync::Arc::new(Open { gauge, now: AtomicI64::new(0) })
        };
        let describe = |name: &'static str, text: &'static str| {
            recorder.describe_gauge(KeyName::from(name), Some(Unit::Count), text.into());
        };
        describe("gateway_connections_open", "User connections that are open");
        describe("gateway_requests_open", "User requests from their head to their last byte");
        describe("gateway_streams_open", "Tunnel streams opened for users");
        describe("gateway_sessions_open", "Sessions that are re-authorised");
        describe("gateway_links_open", "Connections that this replica keeps to others");
        describe("gateway_peers_open", "Connections that other replicas keep to this one");
        describe("gateway_hops_open", "Requests that other replicas handed to this one, which has the tunnel");
        describe("gateway_handshakes_open", "TLS and hello handshakes going on");
        describe("gateway_egress_open", "Connections of clusters to hosts that this gateway reaches");
        describe(OPEN_TUNNELS, "Tunnels that are up, by carrier");
        describe(TUNNELS_OF_VERSION, "Tunnels that are up, by how the version of their agents fits the gateway's");
        describe(BUILD, "1, with the version of the gateway");
        describe(TASKS, "Tasks that have not ended");
        describe(UPGRADE_CLUSTERS, "Clusters by how far the automatic upgrade of their agents is");
        let build = vec![Label::from_static_parts("version", skew::OWN)];
        recorder.register_gauge(&Key::from_parts(BUILD, build), &METADATA).set(1.0);
        let count = |name: &'static str, text: &'static str| {
            recorder.describe_counter(KeyName::from(name), None, text.into());
            recorder.register_counter(&Key::from_name(name), &METADATA)
        };
        recorder.describe_counter(
            REQUESTS.into(),
            None,
            "User requests by the stage that ended them and status".into(),
        );
        recorder.describe_counter(REFUSED.into(), None, "Connections that ended without a request, by cause".into());
        recorder.describe_counter(
            HELLOS.into(),
            None,
            "Agents that proved their cluster in a hello, by how their version fits the gateway's".into(),
        );
        recorder.describe_counter(
            UPGRADES.into(),
            None,
            "What clusters told of upgrades of their agents, by state".into(),
        );
        let text = "Connections of clusters to hosts that this gateway reaches, by what became of them";
        recorder.describe_counter(EGRESS.into(), None, text.into());
        recorder.describe_counter(ENROLMENTS.into(), None, "Clusters that asked for a certificate, by outcome".into());
        recorder.describe_histogram(ANSWER_SECONDS.into(), Some(Unit::Seconds), "Head to answer's head".into());
        Self {
            connections: open("gateway_connections_open", vec![]),
            requests: open("gateway_requests_open", vec![]),
            streams: open("gateway_streams_open", vec![]),
            sessions: open("gateway_sessions_open", vec![]),
            links: open("gateway_links_open", vec![]),
            peers: open("gateway_peers_open", vec![]),
            hops: open("gateway_hops_open", vec![]),
            handshakes: open("gateway_handshakes_open", vec![]),
            tunnels: CARRIERS.map(|kind| open(OPEN_TUNNELS, vec![Label::from_static_parts("carrier", kind.as_str())])),
            tunnels_of: Skew::ALL
                .map(|skew| open(TUNNELS_OF_VERSION, vec![Label::from_static_parts("state", skew.as_str())])),
            answer_seconds: recorder.register_histogram(&Key::from_name(ANSWER_SECONDS), &METADATA),
            bytes_up: count("gateway_bytes_up_total", "Body and upgraded bytes from users to clusters"),
            bytes_down: count("gateway_bytes_down_total", "Body and upgraded bytes from clusters to users"),
            audit_dropped: count("gateway_audit_dropped_total", "Audit records that could not be written"),
            audit_unrecorded: count(
                "gateway_audit_unrecorded_total",
                "Requests without an identity that were refused beyond the rate at which such are recorded",
            ),
            reloads_failed: count("gateway_reloads_failed_total", "Reloads that kept the old configuration"),
            unconfirmed_writes: count(
                "gateway_unconfirmed_writes_total",
                "Writes of the resource API that were answered before every replica had applied them",
            ),
            egress: open("gateway_egress_open", vec![]),
            egress_bytes_up: count("gateway_egress_bytes_up_total", "Bytes from clusters to hosts of [egress]"),
            egress_bytes_down: count("gateway_egress_bytes_down_total", "Bytes from hosts of [egress] to clusters"),
            requests_ended: Default::default(),
            handle: recorder.handle(),
            recorder,
        }
    }

    /// Counts a request that has ended.
    pub fn request_ended(&self, stage: Stage, status: u16) {
        let class = match status {
            100..=199 => 0,
            200..=299 => 1,
            300..=399 => 2,
            401 => 3,
            403 => 4,
            429 => 5,
            400..=499 => 6,
            502 => 7,
            503 => 8,
            500..=599 => 9,
            _ => 10,
        };
        // Known once it has counted: finding it by its labels would cost each request what it need not.
        let counter = self.requests_ended[stage as usize][class].get_or_init(|| {
            let labels = vec![
                Label::from_static_parts("stage", stage.as_str()),
                Label::from_static_parts("status", CLASSES[class]),
            ];
            self.recorder.register_counter(&Key::from_parts(REQUESTS, labels), &METADATA)
        });
        counter.increment(1);
    }

    /// Counts a connection that was refused.
    pub fn connection_refused(&self, cause: Cause) {
        let labels = vec![Label::from_static_parts("cause", cause.as_str())];
        self.recorder.register_counter(&Key::from_parts(REFUSED, labels), &METADATA).increment(1);
    }

    /// Counts a connection of a cluster to a host of `[egress]`.
    pub fn egress(&self, outcome: &'static str) {
        let labels = vec![Label::from_static_parts("outcome", outcome)];
        self.recorder.register_counter(&Key::from_parts(EGRESS, labels), &METADATA).increment(1);
    }

    /// Counts an enrolment.
    pub fn enrolled(&self, outcome: Enrolled) {
        let outcome = match outcome {
            Enrolled::Issued => "issued",
            Enrolled::Refused(status) => match status.as_u16() {
                400 => "unreadable",
                401 => "not_proved",
                403 => "foreign",
                409 => "connected_already",
                410 => "deleted",
                429 => "too_many",
                _ => "failed",
            },
        };
        let labels = vec![Label::from_static_parts("outcome", outcome)];
        self.recorder.register_counter(&Key::from_parts(ENROLMENTS, labels), &METADATA).increment(1);
    }

    /// The gauge of tunnels on a carrier.
    pub fn tunnels(&self, kind: CarrierKind) -> &std::sync::Arc<Open> {
        let index = CARRIERS.iter().position(|other| *other == kind).unwrap_or(0);
        &self.tunnels[index]
    }

    /// The gauge of tunnels whose agents' versions fit so.
    pub fn tunnels_of(&self, skew: Skew) -> &std::sync::Arc<Open> {
        &self.tunnels_of[skew as usize]
    }

    /// Counts a hello of an agent whose version fits so.
    pub fn hello(&self, skew: Skew) {
        let labels = vec![Label::from_static_parts("state", skew.as_str())];
        self.recorder.register_counter(&Key::from_parts(HELLOS, labels), &METADATA).increment(1);
    }

    /// Counts what a cluster told of an upgrade of its agents.
    pub fn upgrade_told(&self, state: &'static str) {
        let labels = vec![Label::from_static_parts("state", state)];
        self.recorder.register_counter(&Key::from_parts(UPGRADES, labels), &METADATA).increment(1);
    }

    /// Sets how many clusters are so far in the automatic upgrade of their agents.
    pub fn upgrade_clusters(&self, state: &'static str, count: usize) {
        let labels = vec![Label::from_static_parts("state", state)];
        #[expect(clippy::cast_precision_loss, reason = "far fewer clusters than 2^52")]
        self.recorder.register_gauge(&Key::from_parts(UPGRADE_CLUSTERS, labels), &METADATA).set(count as f64);
    }

    /// Says which of several gateways this is.
    pub fn replica_named(&self, name: &str) {
        self.recorder.describe_gauge(REPLICA.into(), None, "1, with the name of this replica".into());
        let labels = vec![Label::new("replica", name.to_owned())];
        self.recorder.register_gauge(&Key::from_parts(REPLICA, labels), &METADATA).set(1.0);
        let describe = |name: &'static str, unit, text: &'static str| {
            self.recorder.describe_gauge(KeyName::from(name), Some(unit), text.into());
        };
        describe(REPLICAS_ALIVE, Unit::Count, "Replicas whose leases last, this one among them");
        describe(LEASE_AGE, Unit::Seconds, "Seconds since this replica's lease was renewed");
        describe(REVISION_LAG, Unit::Count, "Revisions of the store that the slowest replica has not applied yet");
        describe(CLUSTERS_ELSEWHERE, Unit::Count, "Clusters with tunnels at other replicas");
        describe(ADMITS, Unit::Count, "1 while this replica admits requests, 0 while it is fenced");
        let text = "Other living replicas whose settings differ from this one's, of those that all are to share";
        describe(SETTINGS_DIFFER, Unit::Count, text);
    }

    /// Sets what is known of the replicas.
    pub fn replicas(&self, figures: &ReplicaFigures) {
        let set = |name: &'static str, value: f64| {
            self.recorder.register_gauge(&Key::from_name(name), &METADATA).set(value);
        };
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        {
            set(REPLICAS_ALIVE, figures.alive as f64);
            set(REVISION_LAG, figures.lag as f64);
            set(CLUSTERS_ELSEWHERE, figures.clusters_elsewhere as f64);
            set(SETTINGS_DIFFER, figures.settings_differ as f64);
        }
        set(LEASE_AGE, figures.lease_age.as_secs_f64());
        set(ADMITS, f64::from(u8::from(figures.admits)));
    }

    /// All tunnels that are up.
    pub fn tunnels_open(&self) -> i64 {
        self.tunnels.iter().map(|open| open.now()).sum()
    }

    /// The Prometheus text.
    pub fn render(&self) -> String {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tasks")]
            let tasks = runtime.metrics().num_alive_tasks() as f64;
            self.recorder.register_gauge(&Key::from_name(TASKS), &METADATA).set(tasks);
        }
        self.handle.run_upkeep();
        self.handle.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_return_to_zero_and_all_are_shown_from_the_start() {
        let metrics = Metrics::new();
        let guard = metrics.streams.enter();
        assert_eq!(metrics.streams.now(), 1);
        assert!(metrics.render().contains("gateway_streams_open 1"), "{}", metrics.render());
        drop(guard);
        metrics.request_ended(Stage::Relay, 200);
        let text = metrics.render();
        assert!(text.contains("gateway_streams_open 0"), "{text}");
        assert!(text.contains("gateway_tunnels_open{carrier=\"quic\"} 0"), "{text}");
        assert!(text.contains("stage=\"relay\""), "{text}");
    }

    /// It was a summary, whose quantiles say nothing about two gateways together.
    #[test]
    fn times_to_answer_are_a_histogram() {
        let metrics = Metrics::new();
        for seconds in [0.0004, 0.03, 300.0] {
            metrics.answer_seconds.record(seconds);
        }
        let text = metrics.render();
        for line in [
            "# TYPE gateway_answer_seconds histogram",
            "gateway_answer_seconds_bucket{le=\"0.001\"} 1",
            "gateway_answer_seconds_bucket{le=\"0.05\"} 2",
            "gateway_answer_seconds_bucket{le=\"120\"} 2",
            "gateway_answer_seconds_bucket{le=\"+Inf\"} 3",
            "gateway_answer_seconds_count 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("quantile"), "{text}");
    }
}
