//! The deletion of something that is in a cluster: its agents take it down, tell so, and then the resource goes
//! (docs/features.md E10). Where no agent was ever seen nothing can be there.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use types::{agent_api::ObjectState, api::ResourceId};

use super::{
    Step, Work,
    converge::{AGENT_MISSING, Nobody, TIMED_OUT, agent, error, failed, generation, nobody, state, within},
};
use crate::{
    control::{Control, objects::mark_deleting},
    object::Object,
    store::{
        batch::{Batch, Expect},
        operations::Operation,
        resources::Stored,
    },
};

/// Waits until the agents of a cluster have taken a resource down, and deletes it then.
pub struct TakeDown;

/// The word at `kind` of such work.
pub const NAME: &str = "take-down";

/// What is to be done: the generation by which it is to be gone.
pub fn work(by: &str, generation: i64) -> Value {
    json!({"kind": NAME, "by": by, "generation": generation})
}

fn late(control: &Control, operation: &Operation) -> String {
    let (agent, within) = (agent(control, operation), within(operation));
    format!(
        "The cluster has not said within {within} that it is gone from it: it is offline, or its {agent} does not run. Delete it again when the cluster is back, or with forceDelete=true, which leaves behind what is in the cluster while it is offline."
    )
}

/// It is there on, because its deletion failed.
fn stays(mut stored: Stored) -> Batch {
    let revision = stored.revision;
    mark_deleting(&mut stored, false);
    Batch { puts: vec![(stored, Expect::Revision(revision))], ..Batch::default() }
}

impl Work for TakeDown {
    fn name(&self) -> &'static str {
        NAME
    }

    fn waits_for(&self, control: &Control, operation: &Operation) -> String {
        late(control, operation)
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            let chain = |error| daemon::chain(&error);
            let stored = control.store.get(&operation.resource).await.map_err(chain)?;
            // Gone, or wanted again since.
            let is_meant = |stored: &Stored| {
                let object = Object::of(&stored.body);
                object.deleting && object.generation == generation(operation)
            };
            let Some(stored) = stored.filter(is_meant) else { return Ok(Step::Ends(Batch::default())) };
            let told = control.store.told(&stored.key).await.map_err(chain)?;
            let cluster = ResourceId::parse(&stored.key).map_err(|error| error.to_string())?.parent_key().to_owned();
            let never = match &told {
                Some(_) => false,
                None => control
                    .store
                    .agent(&cluster)
                    .await
                    .map_err(chain)?
                    .is_none_or(|agent| agent.first_seen_ms.is_none()),
            };
            match state(told.as_ref(), generation(operation)) {
                Some(ObjectState::Failed) => {
                    let unsaid = "The cluster says that it could not be taken down, and not why.";
                    let error = error(told, control.followed(&stored.kind), unsaid);
                    Ok(Step::FailsWith(stays(stored), error))
                }
                state if never || state == Some(ObjectState::Deleted) => {
                    let deletes = vec![(stored.key, Expect::Revision(stored.revision))];
                    Ok(Step::Ends(Batch { deletes, ..Batch::default() }))
                }
                None => match nobody(control, operation, &stored)? {
                    Nobody::Waits(until_ms) => Ok(Step::Waits(until_ms)),
                    Nobody::Missing(why) => {
                        let why = format!(
                            "{why} Or delete it with forceDelete=true, which does not wait for the cluster to take it down."
                        );
                        failed(control, operation, AGENT_MISSING, &why).await?;
                        let error = json!({"code": AGENT_MISSING, "message": why});
                        Ok(Step::FailsWith(stays(stored), error))
                    }
                },
                Some(_) => Ok(Step::Waits(i64::MAX)),
            }
        })
    }

    fn gives_up<'a>(&'a self, control: &'a Control, operation: &'a Operation) -> BoxFuture<'a, Result<Batch, String>> {
        Box::pin(async move {
            failed(control, operation, TIMED_OUT, &late(control, operation)).await?;
            let stored = control.store.get(&operation.resource).await.map_err(|error| daemon::chain(&error))?;
            Ok(stored.filter(Stored::is_deleting).map(stays).unwrap_or_default())
        })
    }
}
