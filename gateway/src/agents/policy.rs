//! The roles and assignments that an agent decides calls by (`GET /v1/policy`, feature Z9): the built-in issuer states that
//! they are right, for that cluster and for an hour. Waits while nothing changes.

use std::time::Duration;

use http::{StatusCode, header};
use proto::rbac::snapshot::{self, DOCUMENT_BYTES, STATEMENT_TYPE, Signed};
use serde_json::json;

use super::{Agent, Call, Reply};
use crate::api::error::ApiError;

/// How long a question waits for news.
const WAIT: Duration = Duration::from_secs(55);
/// How long a statement holds. Whoever keeps newer ones from an agent keeps a withdrawn right alive for so long at most.
const LIFE: Duration = Duration::from_secs(3600);

/// The answer.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let Some(issuer) = call.core.issuer.load_full() else {
        let message = "This gateway has no issuer of its own whose keys agents could have pinned, so nobody vouches for roles and assignments; remove azure_rbac from the agent's settings, or run the built-in issuer.";
        return Err(ApiError::of(StatusCode::NOT_FOUND, "PolicyNotAvailable", message));
    };
    let cluster = &agent.cluster.id;
    let mut decided = call.control.decided();
    let until = tokio::time::Instant::now() + WAIT;
    let mut seen = None;
    let (document, etag) = loop {
        decided.mark_unchanged();
        let directory = call.control.directory();
        let about = Some(directory.decided_about(cluster));
        // Where nothing that concerns it has changed nothing is put together and compared.
        if seen != about {
            let document = directory.document(cluster);
            let etag = document.etag();
            if call.parameter("after") != Some(&etag) {
                break (document, etag);
            }
            seen = about;
        }
        drop(directory);
        tokio::select! {
            () = tokio::time::sleep_until(until) => return Ok(Reply::empty()),
            changed = decided.changed() => if changed.is_err() { return Ok(Reply::empty()) },
        }
    };
    let document = serde_json::to_string(&document).map_err(ApiError::internal)?;
    if document.len() > DOCUMENT_BYTES {
        let error = ApiError::internal(format!(
            "the roles and assignments of {cluster} are {} bytes, more than {DOCUMENT_BYTES}; assign roles to groups in place of users",
            document.len()
        ));
        return Err(error.with(header::RETRY_AFTER, "60"));
    }
    let claims = json!({"sha256": snapshot::digest_of(&document)});
    let statement = issuer
        .state(STATEMENT_TYPE, claims, &snapshot::audience(cluster), LIFE)
        .ok_or_else(|| ApiError::internal("the issuer cannot sign"))?;
    Reply::json(&Signed { document, etag, statement })
}
