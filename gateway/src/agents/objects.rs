//! What is wanted in a cluster beside its agents, as they follow it, and what they tell of it (`GET /v1/objects`,
//! `POST /v1/objects/protected`, `POST /v1/objects/statuses`; docs/features.md E1, E6, E9, D4). An agent is told of the
//! objects of its own cluster alone: the one that its certificate names.

use std::time::Duration;

use types::agent_api::{ObjectStatuses, ObjectStatusesAnswer, Objects};

use super::{Agent, Call, Reply, desired::wanted};
use crate::{api_error::ApiError, aside::aside, control::objects::unknown_object};

/// How long an answer waits for news. The agent allows a minute.
const PATIENCE: Duration = Duration::from_secs(55);

/// `GET /v1/objects?after=<position>&kind=<full type>`.
pub async fn follow(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let after = call.after("position")?;
    let mut changes = call.control.followers.follow(&key(agent)?);
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        changes.mark_unchanged();
        // Whether it is served at all, each time anew.
        wanted(call, agent)?;
        let page = page(call, agent, after).await?;
        let is_news = after.is_none() || page.whole || page.more || !page.objects.is_empty();
        if is_news || tokio::time::Instant::now() >= until {
            if page.objects.is_empty() {
                return Reply::json(&page);
            }
            return aside(move || Reply::json(&page)).await?;
        }
        let _ = tokio::time::timeout_at(until, changes.changed()).await;
    }
}

async fn page(call: &Call, agent: &Agent, after: Option<i64>) -> Result<Objects, ApiError> {
    let Some(cluster) = stored_key(call, agent)? else {
        return Ok(Objects {
            position: after.unwrap_or_default(),
            identity: None,
            whole: after.is_none(),
            more: false,
            objects: Vec::new(),
        });
    };
    let mut page = call.control.objects(&cluster, call.parameter("kind"), after).await?;
    page.identity = agent.cluster.agents.resource().map(str::to_owned);
    Ok(page)
}

/// Answers `POST /v1/objects/protected` with the protected settings of one object.
pub async fn protected(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    let question = call.message().await?;
    let cluster = stored_key(call, agent)?.ok_or_else(unknown_object)?;
    Reply::json(&call.control.protected_of(&cluster, &question).await?)
}

/// Answers `POST /v1/objects/statuses`: keeps what the agent reports of its objects.
pub async fn tell(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    wanted(call, agent)?;
    let told: ObjectStatuses = call.message().await?;
    let Some(cluster) = stored_key(call, agent)? else {
        let unknown = told.objects.into_iter().map(|object| object.id).collect();
        return Reply::json(&ObjectStatusesAnswer { unknown, ..ObjectStatusesAnswer::default() });
    };
    Reply::json(&call.control.objects_told(&cluster, told).await?)
}

/// The key of the agent's cluster in the store. None for a cluster of the configuration file: its agents were let in by
/// who runs the gateway, and what the store has of the same id belongs to somebody else.
pub fn stored_key(call: &Call, agent: &Agent) -> Result<Option<String>, ApiError> {
    call.control.snapshot().stored(&agent.cluster.key).map(|_| key(agent)).transpose()
}

fn key(agent: &Agent) -> Result<String, ApiError> {
    let id = types::api::ResourceId::parse(agent.cluster.id.as_str())?;
    Ok(id.key().to_owned())
}
