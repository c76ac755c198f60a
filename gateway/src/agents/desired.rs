//! What the control plane wants of a cluster's agents (`GET /v1/desired`): told at once where it is news to them, else
//! as soon as it is (docs/features.md K9, Z9, X1).

use std::time::Duration;

use types::agent_api::Desired;

use super::{Agent, Call, Reply, certificate::refused};
use crate::{api_error::ApiError, cluster::wanted::Wanted};

/// How long an answer waits for news. The agent allows a minute.
const PATIENCE: Duration = Duration::from_secs(55);

/// Answers once the desired revision differs from the agent's, or when the long poll times out.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let after = call.after("revision")?;
    let mut changes = call.core.snapshots.watch();
    let news = async {
        loop {
            changes.borrow_and_update();
            let wanted = wanted(call, agent)?;
            // Also where it is older: the gateway's database was restored.
            if after != Some(wanted.revision) {
                return Ok::<_, ApiError>(wanted);
            }
            if changes.changed().await.is_err() {
                return Ok(wanted);
            }
        }
    };
    let wanted = match tokio::time::timeout(PATIENCE, news).await {
        Ok(news) => news?,
        Err(_) => wanted(call, agent)?,
    };
    Reply::json(&Desired {
        revision: wanted.revision,
        cluster_connect: wanted.cluster_connect,
        azure_rbac: wanted.azure_rbac,
        agent_version: wanted.agent_version,
        auto_upgrade: wanted.auto_upgrade,
    })
}

/// What is wanted of this agent now.
pub fn wanted(call: &Call, agent: &Agent) -> Result<Wanted, ApiError> {
    let snapshot = call.core.snapshots.load();
    let cluster = snapshot.serves(&agent.cluster.id, &agent.names).map_err(|gone| refused(&gone))?;
    Ok(cluster.wanted.clone())
}
