//! `values.schema.json`. A reference to another document would be read by helm in the cluster, from a file or an address
//! (CVE-2025-55199); here it is refused.

use serde_json::{Map, Value};

pub(super) fn read(bytes: &[u8]) -> Result<Value, String> {
    let schema: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let schema = Value::Object(schema);
    match foreign_reference(&schema) {
        Some(reference) => Err(format!("it refers to another document: {reference:?}")),
        None => Ok(schema),
    }
}

/// As deep as the reader of JSON goes.
fn foreign_reference(value: &Value) -> Option<&str> {
    match value {
        Value::Array(list) => list.iter().find_map(foreign_reference),
        Value::Object(map) => map.iter().find_map(|(key, value)| match value {
            Value::String(text) if ["$ref", "$dynamicRef", "$recursiveRef"].contains(&key.as_str()) => {
                (!text.starts_with('#')).then_some(text.as_str())
            }
            other => foreign_reference(other),
        }),
        _ => None,
    }
}
