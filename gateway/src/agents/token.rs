//! Tokens of the identities of a cluster and of its extensions: short-lived, for one audience, for whatever runs in the
//! cluster and may ask its agent. What they may at the gateway's own API is for role assignments to the identity's object
//! id to say. Who asks for an extension is known in the cluster alone: a cluster whose agent was taken over has the
//! identities of its extensions, and no other's.

use http::{StatusCode, header};
use types::agent_api::{Token, TokenRequest, codes};

use super::{Agent, Call, Reply, objects::stored_key};
use crate::{api_error::ApiError, resources::extension};

/// When to ask again while there is no issuer, in seconds.
const NOT_READY: &str = "10";

/// Answers with a token.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let TokenRequest { audience, extension } = call.message().await?;
    let audience = allowed(call, &audience)?;
    let Some(principal) = agent.cluster.agents.principal() else {
        let message =
            "The cluster is one of the gateway's configuration and has no identity; connect it as a resource.";
        return Err(ApiError::of(StatusCode::CONFLICT, codes::IDENTITY_MISSING, message));
    };
    let (principal, resource) = match extension {
        Some(name) => of_extension(call, agent, &name).await?,
        None => (principal.to_owned(), agent.cluster.id.as_str().to_owned()),
    };
    let Some(issuer) = call.core.issuer.load_full() else {
        let message = "The gateway's issuer is not ready; try again.";
        return Err(ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .with(header::RETRY_AFTER, NOT_READY));
    };
    let minted = issuer.mint_for_resource(&principal, &resource, &audience);
    let (token, expires_on) = minted.map_err(|_| ApiError::internal("a cluster's token could not be signed"))?;
    Reply::json(&Token { token, expires_on })
}

/// The object id and the resource's id of an extension in the agent's own cluster.
async fn of_extension(call: &Call, agent: &Agent, name: &str) -> Result<(String, String), ApiError> {
    let shown: String = name.chars().take(100).collect();
    let cluster = stored_key(call, agent)?;
    let found = match cluster.and_then(|cluster| extension::key_of(&cluster, name)) {
        Some(key) => call.control.store.get(&key).await?,
        None => None,
    };
    let Some(stored) = found.filter(|stored| !stored.is_deleting()) else {
        let message = format!("The cluster has no extension '{shown}'.");
        return Err(ApiError::of(StatusCode::NOT_FOUND, "ExtensionNotFound", message).at("extension"));
    };
    let Some(principal) = extension::principal(&stored) else {
        let message = format!(
            "The extension '{shown}' has no identity: write it with \"identity\": {{\"type\": \"SystemAssigned\"}}."
        );
        return Err(ApiError::of(StatusCode::CONFLICT, codes::IDENTITY_MISSING, message).at("extension"));
    };
    Ok((principal.to_owned(), stored.id))
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
