//! Every metric of the agent, named and described once. Labels are words of ours, never a peer's text.

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
