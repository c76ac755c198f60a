//! What a cluster has to do so that something is there as it is wanted: its agents follow it and tell when it is so, or
//! why not (docs/features.md E1, E8). A newer write takes the place of an older one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use types::agent_api::ObjectState;

use super::{Step, Work};
use crate::{
    control::{Control, objects::Followed},
    object::Object,
    store::{batch::Batch, operations::Operation, statuses::Told},
};

/// The work.
pub struct Converge;

/// The word at `kind` of such work.
pub const NAME: &str = "converge";

/// What is to be done: which generation of the resource is to be there.
pub fn work(by: &str, generation: i64) -> Value {
    json!({"kind": NAME, "by": by, "generation": generation})
}

/// Which generation an operation is about.
pub(super) fn generation(operation: &Operation) -> i64 {
    operation.work.get("generation").and_then(Value::as_i64).unwrap_or_default()
}

/// How far a generation is, if anything was told of it.
pub(super) fn state(told: Option<&Told>, generation: i64) -> Option<ObjectState> {
    let told = told.filter(|told| told.generation >= generation)?;
    serde_json::from_value(told.status["state"].clone()).ok()
}

/// Why it failed, as the cluster told it.
pub(super) fn error(told: Option<Told>, kind: Option<&Followed>, unsaid: &str) -> Value {
    let error = told.map(|told| told.status["error"].clone()).filter(Value::is_object);
    error.unwrap_or_else(|| json!({"code": kind.map_or("OperationFailed", |kind| kind.code), "message": unsaid}))
}

/// The role of agents that an operation waits for, in messages.
pub(super) fn agent(control: &Control, operation: &Operation) -> &'static str {
    control.followed_at(&operation.resource).map_or("agent", |kind| kind.agent)
}

impl Work for Converge {
    fn name(&self) -> &'static str {
        NAME
    }

    fn waits_for(&self, control: &Control, operation: &Operation) -> String {
        late(control, operation)
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            let stored = control.store.get(&operation.resource).await.map_err(|error| daemon::chain(&error))?;
            let wanted = generation(operation);
            let Some(stored) = stored.filter(|stored| Object::of(&stored.body).generation == wanted) else {
                let message = "The resource was changed or deleted by a newer request before the cluster had done what this one asked for.";
                return Ok(Step::Cancels(json!({"code": "OperationPreempted", "message": message})));
            };
            let told = control.store.told(&stored.key).await.map_err(|error| daemon::chain(&error))?;
            match state(told.as_ref(), wanted) {
                Some(ObjectState::Succeeded) => Ok(Step::Ends(Batch::default())),
                Some(ObjectState::Failed) => {
                    let kind = control.followed(&stored.kind);
                    let show = kind.map_or("", |kind| kind.show);
                    let unsaid = format!("The cluster says that it failed, and not why; see {show}.");
                    Ok(Step::Fails(error(told, kind, &unsaid)))
                }
                _ => Ok(Step::Waits(i64::MAX)),
            }
        })
    }

    fn gives_up<'a>(&'a self, control: &'a Control, operation: &'a Operation) -> BoxFuture<'a, Result<Batch, String>> {
        Box::pin(async move {
            failed(control, operation, &late(control, operation)).await?;
            Ok(Batch::default())
        })
    }
}

fn late(control: &Control, operation: &Operation) -> String {
    let agent = agent(control, operation);
    format!(
        "The cluster has not said within 48 hours that it is done: it is offline, or its {agent} does not run. It goes on with it when it is back."
    )
}

/// Has a resource say that what an operation wanted has failed, unless the cluster has told something newer.
pub(super) async fn failed(control: &Control, operation: &Operation, message: &str) -> Result<(), String> {
    let chain = |error| daemon::chain(&error);
    let old = control.store.told(&operation.resource).await.map_err(chain)?;
    let mut status = old.as_ref().map_or_else(|| json!({}), |old| old.status.clone());
    status["state"] = json!(ObjectState::Failed);
    status["error"] = json!({"code": "OperationTimedOut", "message": message});
    let new = Told { generation: generation(operation), told_ms: control.now_ms(), status };
    control.store.keep_told(&operation.resource, &new, |events| events).await.map_err(chain)?;
    Ok(())
}
