//! The mark of a resource that a fleet assignment made and keeps ([`crate::resources::fleet_assignment`]). Clients see who
//! manages it (`managedBy`, as in Azure Resource Manager); which of its templates it is of, nobody is shown.

use serde_json::{Map, Value};
use types::api::id::fold;

/// The members of the resource's body.
const BY: &str = "managedBy";
const TEMPLATE: &str = "managedTemplate";

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
