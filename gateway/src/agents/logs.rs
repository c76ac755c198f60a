//! What controllers in a cluster logged of what is wanted there (`GET` and `POST /v1/objects/logs`; docs/features.md D5).
//! An agent tells of the objects of its own cluster alone: the one that its certificate names.

use super::{Agent, Call, Reply, desired::wanted, objects::key};
use crate::api_error::ApiError;

/// `GET /v1/objects/logs`.
pub async fn positions(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    Reply::json(&call.control.store.log_positions(&key(agent)?).await?)
}

/// `POST /v1/objects/logs`.
pub async fn tell(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    call.control.lines_told(&key(agent)?, call.message().await?).await?;
    Ok(Reply::empty())
}
