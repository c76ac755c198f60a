//! Every metric of the agent, named and described once. Labels are words of ours, never a peer's text.

use std::{
    sync::{OnceLock, PoisonError, RwLock},
    time::Instant,
};

use http::StatusCode;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use tunnel::transport::CarrierKind;
use types::instants::unix_seconds;

/// Handles of what every stream counts. To register one builds its labels and looks them up, a dozen allocations for
/// each stream. None before [`describe`]: a handle that is made before the recorder is there counts nowhere, for ever.
static KEPT: OnceLock<Kept> = OnceLock::new();

#[derive(Default)]
struct Kept {
    requests: Handles<(&'static str, &'static str), Counter>,
    streams_open: OnceLock<Gauge>,
    busy: Handles<&'static str, Gauge>,
}

/// Handles by labels. As many as there are words of ours; the first made are the first found.
struct Handles<K, H>(RwLock<Vec<(K, H)>>);

impl<K, H> Default for Handles<K, H> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: PartialEq, H: Clone> Handles<K, H> {
    /// The handle of these labels, made once: a metric shows from its first use on.
    fn get(&self, labels: K, make: impl FnOnce(&K) -> H) -> H {
        let find = |made: &[(K, H)]| made.iter().find(|(known, _)| *known == labels).map(|(_, handle)| handle.clone());
        if let Some(handle) = find(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return handle;
        }
        let mut made = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = find(&made) {
            return handle;
        }
        let handle = make(&labels);
        made.push((labels, handle.clone()));
        handle
    }
}

/// Says what each metric means; once, at the start, when the recorder is there.
pub fn describe() {
    KEPT.get_or_init(Kept::default);
    describe_counter!("agent_requests_total", "Requests by how they ended and by the class of their status");
    describe_gauge!("agent_streams_open", "Streams being served");
    describe_gauge!("agent_tunnels_open", "Tunnels that are up, by carrier");
    describe_counter!("agent_tunnel_dials_total", "Attempts to dial the gateway, by carrier and result");
    describe_counter!(
        "agent_objects_refused_total",
        "Objects that the gateway wanted here and that were not taken, by kind and reason"
    );
    describe_counter!("agent_streams_refused_total", "Streams refused, by reason");
    describe_counter!("agent_forwarded_connections_total", "Connections of other agents for the gateway, by result");
    describe_gauge!("agent_role_running", "Whether a role does its work: 1, or 0 while it starts or fails");
    describe_counter!(
        "agent_role_restarts_total",
        "Times that a role was started again after it had ended or panicked"
    );
    describe_gauge!("agent_role_busy_seconds_total", "Time that a role's tasks have been at work on a thread");
    describe_gauge!("agent_process_cpu_seconds_total", "Processor time that the process has taken");
    describe_gauge!("agent_process_resident_bytes", "Memory that the process holds");
    describe_gauge!("agent_certificate_not_after_seconds", "When the cluster's certificate ends, seconds since 1970");
    describe_counter!(
        "agent_log_lines_dropped_total",
        "Log lines that were not sent to the gateway because the buffer was full"
    );
    describe_counter!("guard_reviews_total", "Questions of the apiserver that guard answered, by kind and outcome");
    describe_counter!("guard_cache_total", "Questions about rights that the cache was asked for, by result");
    describe_counter!("guard_connections_refused_total", "Connections to guard that came to nothing, by reason");
    describe_gauge!("guard_certificate_not_after_seconds", "When a certificate of guard ends, seconds since 1970");
    describe_counter!(
        "agent_flux_log_lines_total",
        "Log lines of Flux's controllers that were read, by what became of them"
    );
    describe_counter!(
        "agent_egress_connections_total",
        "Connections to sources that the gateway reaches, by what became of them"
    );
    describe_counter!("agent_pushes_total", "Pushes to the gateway, by kind and result");
}

/// A log line of Flux was read: `taken`, `nobodys`, `too_many` or `unreadable`.
pub fn flux_log_line(what: &'static str) {
    counter!("agent_flux_log_lines_total", "result" => what).increment(1);
}

/// A connection to a source that the gateway reaches was opened, or refused.
pub fn egress(result: &'static str) {
    counter!("agent_egress_connections_total", "result" => result).increment(1);
}

/// A request ended.
pub fn request_ended(end: &'static str, status: Option<StatusCode>) {
    let class = match status.map(|status| status.as_u16() / 100) {
        Some(1) => "1xx",
        Some(2) => "2xx",
        Some(3) => "3xx",
        Some(4) => "4xx",
        Some(5) => "5xx",
        _ => "none",
    };
    requests_total(KEPT.get(), end, class).increment(1);
}

fn requests_total(kept: Option<&Kept>, end: &'static str, class: &'static str) -> Counter {
    let make = |&(end, class): &(&'static str, &'static str)| counter!("agent_requests_total", "end" => end, "status" => class);
    match kept {
        Some(kept) => kept.requests.get((end, class), make),
        None => make(&(end, class)),
    }
}

/// A stream is being served; dropping the guard says that it is over.
pub fn stream_opened() -> StreamGuard {
    let open = streams_open(KEPT.get());
    open.increment(1);
    StreamGuard(open)
}

fn streams_open(kept: Option<&Kept>) -> Gauge {
    let make = || gauge!("agent_streams_open");
    kept.map_or_else(make, |kept| kept.streams_open.get_or_init(make).clone())
}

/// Counts an open stream.
pub struct StreamGuard(Gauge);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// An object of the gateway was not taken: its kind, and why.
pub fn object_refused(kind: &'static str, reason: &'static str) {
    counter!("agent_objects_refused_total", "kind" => kind, "reason" => reason).increment(1);
}

/// A stream was refused.
pub fn stream_refused(reason: &'static str) {
    counter!("agent_streams_refused_total", "reason" => reason).increment(1);
}

/// A tunnel is up; dropping the guard says that it is over.
pub fn tunnel_opened(carrier: CarrierKind) -> TunnelGuard {
    gauge!("agent_tunnels_open", "carrier" => carrier.as_str()).increment(1);
    TunnelGuard(carrier)
}

/// Counts an open tunnel.
pub struct TunnelGuard(CarrierKind);

impl Drop for TunnelGuard {
    fn drop(&mut self) {
        gauge!("agent_tunnels_open", "carrier" => self.0.as_str()).decrement(1);
    }
}

/// The gateway was dialled.
pub fn dialled(carrier: CarrierKind, up: bool) {
    let result = if up { "up" } else { "failed" };
    counter!("agent_tunnel_dials_total", "carrier" => carrier.as_str(), "result" => result).increment(1);
}

/// A connection for the gateway was taken, or not.
pub fn forwarded(result: &'static str) {
    counter!("agent_forwarded_connections_total", "result" => result).increment(1);
}

/// How a role fares.
pub fn role(name: &'static str, running: bool) {
    gauge!("agent_role_running", "role" => name).set(if running { 1.0 } else { 0.0 });
}

/// A role was started again.
pub fn role_restarted(name: &'static str) {
    counter!("agent_role_restarts_total", "role" => name).increment(1);
}

/// When the certificate ends.
pub fn certificate_ends(at: std::time::SystemTime) {
    gauge!("agent_certificate_not_after_seconds").set(unix_seconds(at) as f64);
}

/// Log lines were lost.
pub fn log_lines_dropped(lines: u64) {
    counter!("agent_log_lines_dropped_total").increment(lines);
}

/// Guard answered the apiserver.
pub fn reviewed(kind: &'static str, outcome: &'static str) {
    counter!("guard_reviews_total", "kind" => kind, "outcome" => outcome).increment(1);
}

/// Guard looked into its cache of decisions.
pub fn review_cached(hit: bool) {
    counter!("guard_cache_total", "result" => if hit { "hit" } else { "miss" }).increment(1);
}

/// A connection to guard came to nothing.
pub fn guard_refused(reason: &'static str) {
    counter!("guard_connections_refused_total", "reason" => reason).increment(1);
}

/// When a certificate of guard ends.
pub fn guard_certificate_ends(certificate: &'static str, at: std::time::SystemTime) {
    gauge!("guard_certificate_not_after_seconds", "certificate" => certificate).set(unix_seconds(at) as f64);
}

/// Something was pushed to the gateway.
pub fn pushed(kind: &'static str, sent: bool) {
    counter!("agent_pushes_total", "kind" => kind, "result" => if sent { "sent" } else { "failed" }).increment(1);
}

/// What the process takes: processor time, in seconds.
pub fn process_cpu(seconds: f64) {
    gauge!("agent_process_cpu_seconds_total").set(seconds);
}

/// What the process holds: memory, in bytes.
pub fn process_memory(bytes: u64) {
    gauge!("agent_process_resident_bytes").set(bytes as f64);
}

/// Counts the time that `task` is at work for a role: between two of its waits.
pub async fn timed<F: Future>(role: &'static str, task: F) -> F::Output {
    let busy = busy_seconds(KEPT.get(), role);
    let mut task = std::pin::pin!(task);
    std::future::poll_fn(|cx| {
        let begun = Instant::now();
        let polled = task.as_mut().poll(cx);
        busy.increment(begun.elapsed().as_secs_f64());
        polled
    })
    .await
}

fn busy_seconds(kept: Option<&Kept>, role: &'static str) -> Gauge {
    let make = |role: &&'static str| gauge!("agent_role_busy_seconds_total", "role" => *role);
    match kept {
        Some(kept) => kept.busy.get(role, make),
        None => make(&role),
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// A kept handle counts where the first did, under the names and labels that dashboards know, and a metric that was
    /// not used does not show.
    #[test]
    fn kept_handles_count_under_their_names_and_labels() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let kept = Kept::default();
        metrics::with_local_recorder(&recorder, || {
            assert_eq!(shown.render(), "");
            for _ in 0..2 {
                requests_total(Some(&kept), "whole", "2xx").increment(1);
            }
            requests_total(Some(&kept), "whole", "4xx").increment(1);
            requests_total(Some(&kept), "stopped", "2xx").increment(1);
            requests_total(None, "stopped", "2xx").increment(1);
            streams_open(Some(&kept)).increment(2);
            streams_open(Some(&kept)).decrement(1);
            busy_seconds(Some(&kept), "echo").increment(0.5);
            busy_seconds(Some(&kept), "kube-aad-proxy").increment(0.25);
            busy_seconds(Some(&kept), "echo").increment(0.5);
        });
        let text = shown.render();
        for line in [
            r#"agent_requests_total{end="whole",status="2xx"} 2"#,
            r#"agent_requests_total{end="whole",status="4xx"} 1"#,
            r#"agent_requests_total{end="stopped",status="2xx"} 2"#,
            "agent_streams_open 1",
            r#"agent_role_busy_seconds_total{role="echo"} 1"#,
            r#"agent_role_busy_seconds_total{role="kube-aad-proxy"} 0.25"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count(), 6, "{text}");
    }

    /// The recorder comes after whatever counted before it.
    #[test]
    fn a_handle_made_without_a_recorder_is_not_kept() {
        requests_total(None, "early", "2xx").increment(1);
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, || requests_total(None, "early", "2xx").increment(1));
        assert!(shown.render().contains(r#"agent_requests_total{end="early",status="2xx"} 1"#), "{}", shown.render());
    }
}
