//! What a cluster has to do so that something is there as it is wanted: its agents follow it and tell when it is so, or
//! why not (docs/features.md E1, E8). A newer write takes the place of an older one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use types::{agent_api::ObjectState, api::ResourceId};

use super::{Step, Work};
use crate::{
    control::{
        Control,
        objects::{Followed, NOBODY_MS},
    },
    object::Object,
    store::{batch::Batch, operations::Operation, resources::Stored, statuses::ReportedStatus},
};

/// Waits until the agents of a cluster have done what a write wants there.
pub struct Converge;

/// The code of what a cluster has not done in time.
pub(super) const TIMED_OUT: &str = "OperationTimedOut";
/// The code of what nobody in the cluster does.
pub const AGENT_MISSING: &str = "AgentMissing";
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
pub(super) fn state(told: Option<&ReportedStatus>, generation: i64) -> Option<ObjectState> {
    let told = told.filter(|told| told.generation >= generation)?;
    serde_json::from_value(told.status["state"].clone()).ok()
}

/// Why it failed, as the cluster told it.
pub(super) fn error(told: Option<ReportedStatus>, kind: Option<&Followed>, unsaid: &str) -> Value {
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
                // Somebody there is at it, or was.
                Some(_) => Ok(Step::Waits(i64::MAX)),
                // The cluster goes on with it all the same.
                None => match nobody(control, operation, &stored)? {
                    Nobody::Waits(until_ms) => Ok(Step::Waits(until_ms)),
                    Nobody::Missing(why) => {
                        failed(control, operation, AGENT_MISSING, &why).await?;
                        Ok(Step::Fails(json!({"code": AGENT_MISSING, "message": why})))
                    }
                },
            }
        })
    }

    fn gives_up<'a>(&'a self, control: &'a Control, operation: &'a Operation) -> BoxFuture<'a, Result<Batch, String>> {
        Box::pin(async move {
            failed(control, operation, TIMED_OUT, &late(control, operation)).await?;
            Ok(Batch::default())
        })
    }
}

/// Whether somebody in a cluster may still do something.
pub(super) enum Nobody {
    /// It is looked again then, milliseconds since 1970.
    Waits(i64),
    /// Nobody there does it, and why.
    Missing(String),
}

/// Looks whether anybody in the cluster does it: nobody is to wait for 48 hours for what is switched off there.
pub(super) fn nobody(control: &Control, operation: &Operation, stored: &Stored) -> Result<Nobody, String> {
    let (now_ms, look_ms) = (control.now_ms(), operation.begun_ms + NOBODY_MS);
    if now_ms < look_ms {
        return Ok(Nobody::Waits(look_ms));
    }
    let cluster = ResourceId::parse(&stored.key).map_err(|error| error.to_string())?.parent_key().to_owned();
    let Some(kind) = control.followed(&stored.kind) else { return Ok(Nobody::Waits(i64::MAX)) };
    Ok(match control.nobody_follows(&cluster, kind, now_ms) {
        Some((since_ms, why)) if now_ms - since_ms >= NOBODY_MS => Nobody::Missing(why),
        Some((since_ms, _)) => Nobody::Waits(since_ms + NOBODY_MS),
        None if kind.missing.is_some() => Nobody::Waits(now_ms + NOBODY_MS),
        None => Nobody::Waits(i64::MAX),
    })
}

fn late(control: &Control, operation: &Operation) -> String {
    let (agent, within) = (agent(control, operation), within(operation));
    format!(
        "The cluster has not said within {within} that it is done: it is offline, or its {agent} does not run. It continues when it is back."
    )
}

/// How long an operation was given, for people.
pub(super) fn within(operation: &Operation) -> String {
    let minutes = operation.due_ms.map_or(0, |due| (due - operation.begun_ms) / 60_000);
    match (minutes / 60, minutes % 60) {
        (1, 0) => "1 hour".to_owned(),
        (hours, 0) => format!("{hours} hours"),
        (_, _) => format!("{minutes} minutes"),
    }
}

/// Has a resource say that what an operation wanted has failed, unless the cluster has told something newer.
pub(super) async fn failed(control: &Control, operation: &Operation, code: &str, message: &str) -> Result<(), String> {
    let chain = |error| daemon::chain(&error);
    let old = control.store.told(&operation.resource).await.map_err(chain)?;
    let mut status = old.as_ref().map_or_else(|| json!({}), |old| old.status.clone());
    status["state"] = json!(ObjectState::Failed);
    status["error"] = json!({"code": code, "message": message});
    let new = ReportedStatus { generation: generation(operation), told_ms: control.now_ms(), status };
    control.store.keep_told(&operation.resource, &new, |events| events).await.map_err(chain)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::operations::Status;

    #[test]
    fn x4_how_long_an_operation_was_given_is_told_in_words() {
        let of = |minutes: i64| {
            let (id, resource, status) = (String::new(), String::new(), Status::InProgress);
            let due_ms = Some(1000 + minutes * 60_000);
            let (ended_ms, work, error) = (None, Value::Null, None);
            within(&Operation { id, resource, status, begun_ms: 1000, ended_ms, work, due_ms, error })
        };
        assert_eq!([of(48 * 60), of(60), of(30), of(90)], ["48 hours", "1 hour", "30 minutes", "90 minutes"]);
    }
}
