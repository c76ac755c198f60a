//! What is kept of a resource that the agents of its cluster follow, beside what clients wrote: which generation of it
//! is wanted, by which operation, and which protected settings it has. It is a member of the resource's body that no
//! schema knows, and so nobody is shown.

use serde_json::{Map, Value, json};

use crate::random;

/// Name of the member of a stored body that holds an [`Object`].
const MEMBER: &str = "object";

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// Rises with each change of what is wanted, and is the instant of it in milliseconds since 1970 at least: what was
    /// told of a resource that was deleted is never about its successor.
    pub generation: i64,
    /// The operation that made the last one.
    pub operation: Option<String>,
    /// Names its protected settings.
    pub protected: Option<String>,
    /// Whether it is to be taken down: also when that has failed, until somebody wants it again.
    pub deleting: bool,
}

impl Object {
    /// What is kept in a body.
    pub fn of(body: &Value) -> Self {
        let text = |name: &str| body.get(MEMBER)?.get(name)?.as_str().map(str::to_owned);
        let generation = body.get(MEMBER).and_then(|kept| kept.get("generation")?.as_i64()).unwrap_or_default();
        let deleting = body.get(MEMBER).and_then(|kept| kept.get("deleting")?.as_bool()).unwrap_or_default();
        Self { generation, operation: text("operation"), protected: text("protected"), deleting }
    }

    /// What follows it: wanted by an operation.
    #[must_use]
    pub fn next(self, operation: &str, now_ms: i64) -> Self {
        let generation = now_ms.max(self.generation + 1);
        Self { generation, operation: Some(operation.to_owned()), deleting: false, ..self }
    }

    /// With other protected settings, or none.
    #[must_use]
    pub fn protecting(self, any: bool) -> Self {
        Self { protected: any.then(random::guid), ..self }
    }

    /// Takes it out of a body.
    pub fn forget(body: &mut Map<String, Value>) {
        body.remove(MEMBER);
    }

    /// Keeps it in a body.
    pub fn keep(&self, body: &mut Map<String, Value>) {
        let Self { generation, operation, protected, deleting } = self;
        let kept =
            json!({"generation": generation, "operation": operation, "protected": protected, "deleting": deleting});
        body.insert(MEMBER.to_owned(), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_makes_a_higher_generation() {
        let mut body = Map::new();
        let first = Object::of(&Value::Object(body.clone())).next("a", 7).protecting(true);
        first.keep(&mut body);
        let kept = Object::of(&Value::Object(body.clone()));
        assert_eq!((kept.generation, kept.operation.as_deref(), kept.protected.is_some()), (7, Some("a"), true));
        // Also where the clock was set back.
        let second = kept.clone().next("b", 3);
        assert_eq!((second.generation, &second.protected), (8, &kept.protected));
        assert_eq!(second.protecting(false).protected, None);
    }
}
