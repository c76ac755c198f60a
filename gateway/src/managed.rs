//! The mark of a resource that a fleet assignment made and keeps ([`crate::resources::fleet_assignment`]). Clients see who
//! manages it (`managedBy`, as in Azure Resource Manager); which of its templates it is of, nobody is shown.

use serde_json::{Map, Value};
use types::{
    agent_api::{ObjectState, compliance},
    api::id::fold,
};

use crate::store::statuses::ReportedStatus;

/// The members of the resource's body.
const BY: &str = "managedBy";
const TEMPLATE: &str = "managedTemplate";

/// The member of what is kept of its told status that says [`has_finished`].
pub const FINISHED: &str = "finished";

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    /// The id of the assignment.
    pub by: String,
    /// The generation of its template.
    pub template: i64,
}

impl Managed {
    /// What is kept in a body.
    pub fn of(body: &Value) -> Option<Self> {
        let by = body.get(BY)?.as_str()?.to_owned();
        Some(Self { by, template: body.get(TEMPLATE).and_then(Value::as_i64).unwrap_or_default() })
    }

    /// The key of the assignment.
    pub fn key(&self) -> String {
        fold(&self.by)
    }

    /// Keeps it in a body.
    pub fn keep(&self, body: &mut Map<String, Value>) {
        body.insert(BY.to_owned(), self.by.as_str().into());
        body.insert(TEMPLATE.to_owned(), self.template.into());
    }

    /// Takes it out of a body.
    pub fn forget(body: &mut Map<String, Value>) {
        [BY, TEMPLATE].iter().for_each(|name| drop(body.remove(*name)));
    }
}

/// Whether a cluster has come to an end with a generation that it was given, now or before: what it gets from a source
/// later is no part of a rollout. `old`: what it told before.
pub fn has_finished(new: &Value, generation: i64, old: Option<&ReportedStatus>) -> bool {
    let is_end = |status: &Value| {
        let state = status["details"]["complianceState"].as_str();
        serde_json::from_value(status["state"].clone()).is_ok_and(|state: ObjectState| state == ObjectState::Failed)
            || matches!(state, Some(compliance::COMPLIANT | compliance::NON_COMPLIANT | compliance::SUSPENDED))
    };
    let old = old.filter(|old| old.generation == generation).map(|old| &old.status);
    is_end(new) || old.is_some_and(|old| old[FINISHED] == true || is_end(old))
}
