//! The roles and assignments that an agent decides calls by (`GET /v1/policy`, feature Z9): the built-in issuer states
//! that they are right, for that cluster and for a time (`agents.statement_lifetime`). Waits while nothing changes.

use std::{sync::Arc, time::Duration};

use auth::rbac::snapshot::{self, Omitted, STATEMENT_TYPE, Signed};
use http::StatusCode;
use serde_json::json;
use types::ids::ClusterId;

use super::{Agent, Call, Reply};
use crate::{api_error::ApiError, aside, snapshot::Snapshot};

/// How long a question waits for news.
const WAIT: Duration = Duration::from_secs(55);

/// What is told of one moment.
struct PolicyDocument {
    document: String,
    digest: String,
    etag: String,
    omitted: Option<Omitted>,
}

/// Puts together what concerns a cluster. What does not fit is left out, so that all else arrives, withdrawals first of
/// all.
async fn told(snapshot: Arc<Snapshot>, cluster: &ClusterId) -> Result<PolicyDocument, ApiError> {
    let cluster = cluster.clone();
    let made = aside::document(move || {
        let mut document = snapshot.document(&cluster);
        let (omitted, etag) = (document.fit(), document.etag());
        let document = serde_json::to_string(&document)?;
        Ok::<_, serde_json::Error>(PolicyDocument { digest: snapshot::digest_of(&document), document, etag, omitted })
    });
    made.await?.map_err(ApiError::internal)
}

/// Answers with the cluster's roles and assignments, signed; waits for news if the agent has the current ones.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let Some(issuer) = call.core.issuer.load_full() else {
        let message = "This gateway has no issuer of its own whose keys agents could have pinned, so roles and assignments cannot be verified; remove azure_rbac from the agent's settings, or run the built-in issuer.";
        return Err(ApiError::of(StatusCode::NOT_FOUND, "PolicyNotAvailable", message));
    };
    let cluster = &agent.cluster.id;
    let mut decided = call.control.decided();
    let until = tokio::time::Instant::now() + WAIT;
    let mut seen = None;
    let PolicyDocument { document, digest, etag, omitted } = loop {
        decided.mark_unchanged();
        let snapshot = call.control.snapshot();
        let about = Some(snapshot.directory.decided_about(cluster));
        // Where nothing that concerns it has changed nothing is put together and compared.
        if seen != about {
            let told = told(snapshot, cluster).await?;
            if call.parameter("after") != Some(&told.etag) {
                break told;
            }
            seen = about;
        }
        tokio::select! {
            () = tokio::time::sleep_until(until) => return Ok(Reply::empty()),
            changed = decided.changed() => if changed.is_err() { return Ok(Reply::empty()) },
        }
    };
    if let Some(omitted) = &omitted {
        tracing::warn!(cluster.id = %cluster, assignments = omitted.assignments, %omitted, "the roles of a cluster do not fit");
    }
    let claims = json!({"sha256": digest});
    let life = call.core.trust.agents().statement_lifetime;
    let statement = issuer
        .state(STATEMENT_TYPE, claims, &snapshot::audience(cluster), life)
        .ok_or_else(|| ApiError::internal("the issuer cannot sign"))?;
    let signed = Signed { document, etag, statement, omitted };
    aside::document(move || Reply::json(&signed)).await?
}
