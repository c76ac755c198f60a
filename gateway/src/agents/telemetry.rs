//! Metrics and log lines that agents push, kept by [`crate::fleet::told`].

use std::time::Instant;

use daemon::telemetry::RELAYED;
use http::{StatusCode, header};

use super::{Agent, Call, Reply};
use crate::{
    api_error::ApiError,
    fleet::told::{LINES_PER_MINUTE, PROCESSES},
};

/// Bytes of one push of log lines, and of one line.
pub const LOG_BYTES: usize = 512 * 1024;
const LINE_BYTES: usize = 32 * 1024;
/// Lines of one push at most. The agent's pushes are of 128 KiB, which this many of its shortest lines do not fill.
const LINES_AT_ONCE: usize = 4000;
/// Bytes that are read before others have their turn.
const TURN_BYTES: usize = 64 * 1024;
/// Characters of a process's name.
const NAME: usize = 64;
/// Answers `POST /v1/metrics?agent=<name>`: keeps the metrics of one process of the agents.
pub async fn metrics(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let process = call.parameter("agent").unwrap_or("agent");
    if process.is_empty() || process.len() > NAME || !process.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        let message = format!("The query parameter 'agent' must be a name of at most {NAME} letters, digits and '-'.");
        return Err(ApiError::bad_request("InvalidQueryParameterValue", message).at("agent"));
    }
    let text = text(call)?;
    if !call.core.told.keep_metrics(&agent.cluster.id, process, text) {
        let message = format!("Metrics of {PROCESSES} processes of a cluster are kept, the limit.");
        return Err(ApiError::bad_request("TooManyProcesses", message));
    }
    Ok(Reply::empty())
}

/// `POST /v1/logs`: one JSON object a line.
pub async fn logs(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let lines: Vec<&str> = text(call)?.lines().filter(|line| !line.is_empty()).take(LINES_AT_ONCE + 1).collect();
    if lines.len() > LINES_AT_ONCE {
        let message = format!("More than {LINES_AT_ONCE} log lines in one request, the limit.");
        return Err(ApiError::bad_request("InvalidRequestContent", message));
    }
    let mut turn = 0;
    for (at, line) in lines.iter().enumerate() {
        turn += line.len();
        if turn > TURN_BYTES {
            turn = 0;
            tokio::task::yield_now().await;
        }
        let is_object = line.len() <= LINE_BYTES && serde_json::from_str::<serde_json::Map<_, _>>(line).is_ok();
        if !is_object {
            let message = format!("Line {} is not a JSON object of at most {LINE_BYTES} bytes.", at + 1);
            return Err(ApiError::bad_request("InvalidRequestContent", message));
        }
    }
    if let Some(seconds) = call.core.told.keep_logs(&agent.cluster.id, &lines, Instant::now()) {
        let message = format!("More than {LINES_PER_MINUTE} log lines of this cluster in a minute, the limit.");
        let refusal = ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        return Err(refusal.with(header::RETRY_AFTER, &seconds.to_string()));
    }
    for line in lines {
        tracing::debug!(target: RELAYED, { cluster.id = %agent.cluster.id, line }, "an agent's log");
    }
    Ok(Reply::empty())
}

fn text(call: &Call) -> Result<&str, ApiError> {
    std::str::from_utf8(&call.body)
        .map_err(|_| ApiError::bad_request("InvalidRequestContent", "The body is not UTF-8 text."))
}
