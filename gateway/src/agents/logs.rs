//! What controllers in a cluster logged of what is wanted there (`GET` and `POST /v1/objects/logs`; docs/features.md D5).
//! An agent tells of the objects of its own cluster alone: the one that its certificate names.

use types::agent_api::LogPositions;

use super::{Agent, Call, Reply, desired::wanted, objects::stored_key};
use crate::api_error::ApiError;

/// Answers `GET /v1/objects/logs`: the last position of each source that the gateway has.
pub async fn positions(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    let positions = match stored_key(call, agent)? {
        Some(cluster) => call.control.store.log_positions(&cluster).await?,
        None => LogPositions::default(),
    };
    Reply::json(&positions)
}

/// Answers `POST /v1/objects/logs`: keeps the lines.
pub async fn tell(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    let told = call.message().await?;
    if let Some(cluster) = stored_key(call, agent)? {
        call.control.lines_told(&cluster, told).await?;
    }
    Ok(Reply::empty())
}
