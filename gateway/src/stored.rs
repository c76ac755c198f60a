//! What is the same in the JSON and the ids of kept resources of all kinds.

use serde_json::{Map, Value};

/// The object at `properties`.
pub fn properties(body: &Map<String, Value>) -> Option<&Map<String, Value>> {
    body.get("properties")?.as_object()
}

/// The same, for changing; made where there is none.
pub fn properties_mut(body: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let properties = body.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if !properties.is_object() {
        *properties = Value::Object(Map::new());
    }
    properties.as_object_mut().expect("it was made one above")
}

/// The last name of an id or key.
pub fn last_name(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}
