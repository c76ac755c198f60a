//! Every metric of the agent, named and described once. Labels are words of ours, never a peer's text.

use std::time::Instant;

use http::StatusCode;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use proto::transport::CarrierKind;

/// Says what each metric means; once, at the start.
pub fn describe() {
    describe_counter!("agent_requests_total", "Requests by how they ended and by the class of their status");
    describe_gauge!("agent_streams_open", "Streams being served");
    describe_gauge!("agent_tunnels_open", "Tunnels that are up, by carrier");
    describe_counter!("agent_tunnel_dials_total", "Attempts to dial the gateway, by carrier and result");
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
    describe_counter!("agent_pushes_total", "Pushes to the gateway, by kind and result");
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
    counter!("agent_requests_total", "end" => end, "status" => class).increment(1);
}

/// A stream is being served; dropping the guard says that it is over.
pub fn stream_opened() -> StreamGuard {
    gauge!("agent_streams_open").increment(1);
    StreamGuard(())
}

/// Counts an open stream.
pub struct StreamGuard(());

impl Drop for StreamGuard {
    fn drop(&mut self) {
        gauge!("agent_streams_open").decrement(1);
    }
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
    let seconds = at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    gauge!("agent_certificate_not_after_seconds").set(seconds as f64);
}

/// Log lines were lost.
pub fn log_lines_dropped(lines: u64) {
    counter!("agent_log_lines_dropped_total").increment(lines);
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
    let busy = gauge!("agent_role_busy_seconds_total", "role" => role);
    let mut task = std::pin::pin!(task);
    std::future::poll_fn(|cx| {
        let begun = Instant::now();
        let polled = task.as_mut().poll(cx);
        busy.increment(begun.elapsed().as_secs_f64());
        polled
    })
    .await
}
