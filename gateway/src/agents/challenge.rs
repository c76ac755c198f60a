//! Asks for a challenge, which an enrolment then signs ([`crate::control::challenges`]).

use types::{
    agent_api::{Challenge, ChallengeRequest},
    ids::ClusterId,
};

use super::{Call, Reply};
use crate::{api_error::ApiError, control::challenges::LIFE_MS};

/// The id that a message names.
pub fn cluster_id(text: &str) -> Result<ClusterId, ApiError> {
    text.parse().map_err(|error| {
        ApiError::bad_request("InvalidResourceId", format!("clusterId is not the id of a connected cluster: {error}."))
            .at("clusterId")
    })
}

/// Answers with a challenge, whether there is such a cluster or not.
pub async fn serve(call: &Call) -> Result<Reply, ApiError> {
    let ChallengeRequest { cluster_id: id } = call.message().await?;
    let challenge = call.control.challenges.make(&call.control, &cluster_id(&id)?)?;
    Reply::json(&Challenge { challenge, expires_in_seconds: LIFE_MS.unsigned_abs() / 1000 })
}
