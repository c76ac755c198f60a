//! Tokens of a cluster's identity: short-lived, for one audience, for whatever runs in the cluster and may
//! ask its agent. What they may at the gateway's own API is for role assignments to the identity's object id to say.

use http::{StatusCode, header};
use types::agent_api::{Token, TokenRequest};

use super::{Agent, Call, Reply};
use crate::api_error::ApiError;

/// When to ask again while there is no issuer, in seconds.
const NOT_READY: &str = "10";

/// Answers with a token.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let TokenRequest { audience } = call.message().await?;
    let audience = allowed(call, &audience)?;
    let Some(principal) = agent.cluster.agents.principal() else {
        let message =
            "The cluster is one of the gateway's configuration and has no identity; connect it as a resource.";
        return Err(ApiError::of(StatusCode::CONFLICT, "IdentityMissing", message));
    };
    let Some(issuer) = call.core.issuer.load_full() else {
        let message = "The gateway's issuer is not ready; try again.";
        return Err(ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .with(header::RETRY_AFTER, NOT_READY));
    };
    let minted = issuer.mint_for_cluster(principal, &agent.cluster.id, &audience);
    let (token, expires_on) = minted.map_err(|_| ApiError::internal("a cluster's token could not be signed"))?;
    Reply::json(&Token { token, expires_on })
}

/// The audience in its one spelling. A token for a cluster is a user's, so that none is given for one.
fn allowed(call: &Call, asked: &str) -> Result<String, ApiError> {
    let url = &call.control.settings.url;
    if asked.trim_end_matches('/').eq_ignore_ascii_case(url) {
        return Ok(url.clone());
    }
    let known = call.core.trust.agents().token_audiences;
    if known.iter().any(|known| known == asked) {
        return Ok(asked.to_owned());
    }
    let message = format!(
        "No tokens are given for the audience '{}'; known here: {}. Who runs the gateway adds others to [agents] token_audiences.",
        asked.chars().take(200).collect::<String>(),
        std::iter::once(url).chain(&known).map(String::as_str).collect::<Vec<_>>().join(", "),
    );
    Err(ApiError::bad_request("InvalidAudience", message).at("audience"))
}
