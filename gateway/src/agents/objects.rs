//! What is wanted in a cluster beside its agents, as they follow it, and what they tell of it (`GET /v1/objects`,
//! `POST /v1/objects/protected`, `POST /v1/objects/statuses`; docs/features.md E1, E6, E9, D4). An agent is told of the
//! objects of its own cluster alone: the one that its certificate names.

use std::time::Duration;

use types::agent_api::Objects;

use super::{Agent, Call, Reply, desired::wanted};
use crate::api_error::ApiError;

/// How long an answer waits for news. The agent allows a minute.
const PATIENCE: Duration = Duration::from_secs(55);

/// `GET /v1/objects?after=<position>&kind=<full type>`.
pub async fn follow(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let after = call.after("position")?;
    let cluster = key(agent)?;
    let mut changes = call.control.followers.follow(&cluster);
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        changes.mark_unchanged();
        // Whether it is served at all, each time anew.
        wanted(call, agent)?;
        let page = page(call, agent, &cluster, after).await?;
        let is_news = after.is_none() || page.whole || page.more || !page.objects.is_empty();
        if is_news || tokio::time::Instant::now() >= until {
            return Reply::json(&page);
        }
        let _ = tokio::time::timeout_at(until, changes.changed()).await;
    }
}

async fn page(call: &Call, agent: &Agent, cluster: &str, after: Option<i64>) -> Result<Objects, ApiError> {
    // Nothing is kept of a cluster of the configuration.
    if call.control.snapshot().stored(&agent.cluster.key).is_none() {
        return Ok(Objects {
            position: after.unwrap_or_default(),
            whole: after.is_none(),
            more: false,
            objects: Vec::new(),
        });
    }
    call.control.objects(cluster, call.parameter("kind"), after).await
}

/// `POST /v1/objects/protected`.
pub async fn protected(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    Reply::json(&call.control.protected_of(&key(agent)?, &call.message().await?).await?)
}

/// `POST /v1/objects/statuses`.
pub async fn tell(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    Reply::json(&call.control.objects_told(&key(agent)?, call.message().await?).await?)
}

/// The key of the agent's cluster in the store.
pub fn key(agent: &Agent) -> Result<String, ApiError> {
    let id = types::api::ResourceId::parse(agent.cluster.id.as_str())?;
    Ok(id.key().to_owned())
}
