//! `values.schema.json`. Another document that it names would be read by helm in the cluster, from a file or an address
//! (CVE-2025-55199); here it is refused.

use serde_json::{Map, Value};

/// What `$schema` may name, below `json-schema.org`: readers have these in them.
const DRAFTS: [&str; 5] =
    ["draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema"];

pub(super) fn read(bytes: &[u8]) -> Result<Value, String> {
    let schema: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match foreign_in_map(&schema, true) {
        Some(reference) => Err(format!("it refers to another document: {reference:?}")),
        None => Ok(Value::Object(schema)),
    }
}

/// As deep as the reader of JSON goes.
fn foreign_reference(value: &Value) -> Option<&str> {
    match value {
        Value::Array(list) => list.iter().find_map(foreign_reference),
        Value::Object(map) => foreign_in_map(map, false),
        _ => None,
    }
}

fn foreign_in_map(map: &Map<String, Value>, is_top: bool) -> Option<&str> {
    map.iter().find_map(|(key, value)| match value {
        Value::String(text) => is_foreign(key, text, is_top).then_some(text.as_str()),
        other => foreign_reference(other),
    })
}

fn is_foreign(key: &str, text: &str, is_top: bool) -> bool {
    let is_fragment = text.starts_with('#');
    let has_fragment = text.split_once('#').is_some_and(|(_, fragment)| !fragment.is_empty());
    match key {
        "$schema" => !is_draft(text),
        "$ref" | "$dynamicRef" | "$recursiveRef" => !is_fragment,
        // The document's own name. Further down it would change what document a `#` is in. Of draft 4 is `id`, which may
        // also be a key of a default value.
        "$id" | "id" if is_top => has_fragment && !is_fragment,
        "$id" => !is_fragment,
        "id" => text.contains(':'),
        _ => false,
    }
}

fn is_draft(text: &str) -> bool {
    let text = text.strip_suffix('#').unwrap_or(text);
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.and_then(|host| host.strip_prefix("json-schema.org/")).is_some_and(|path| DRAFTS.contains(&path))
}
