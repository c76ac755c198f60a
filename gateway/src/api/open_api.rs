//! The OpenAPI 3.1 document, made of the table of kinds, of what the API answers beside ([`others`]) and of the
//! built-in issuer ([`sign_in`]). It is served at `/openapi.json` and kept as `gateway/openapi.json`,
//! which the test `write_the_open_api_file`, ignored otherwise, writes anew (CONTRIBUTING.md).

mod others;
mod sign_in;

use serde_json::{Map, Value, json};

use crate::resources::{KINDS, Kind, Place, schema};

/// Refusals that every operation can answer with, beside `default`.
const REFUSALS: &[(&str, &str)] = &[
    ("400", "the request is wrong; target and details say where"),
    ("401", "not signed in, or by a token that is not for this gateway"),
    ("403", "no role of the caller allows it; the same for what does not exist"),
    ("404", "it does not exist"),
    ("405", "not with this method"),
];
/// The same of operations that write.
const WRITE_REFUSALS: &[(&str, &str)] = &[
    ("409", "what is there is in the way"),
    ("412", "it is not as If-Match or If-None-Match says"),
    ("413", "the body is too long"),
    ("415", "the body is not application/json, or compressed"),
];

/// The whole document, as `gateway/openapi.json` keeps it.
pub fn document() -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for kind in KINDS {
        let name = kind.name().rsplit('/').next().unwrap_or_default();
        schemas.insert(name.to_owned(), described(*kind));
        let (items, lists) = places(*kind);
        for (n, item) in items.iter().enumerate() {
            for action in kind.actions() {
                paths.insert(format!("{item}/{action}"), action_operation(*kind, item, &numbered(name, n), action));
            }
            paths.insert(item.clone(), item_operations(*kind, item, &numbered(name, n)));
            if kind.is_followed() {
                let path = format!("{item}/operations/{{operationId}}");
                paths.insert(path.clone(), operation_of(*kind, &path, &numbered(name, n)));
            }
        }
        for (n, list) in lists.iter().enumerate() {
            paths.insert(list.clone(), list_operation(*kind, list, &numbered(name, n)));
        }
    }
    schemas.insert("Error".to_owned(), error_schema());
    paths.extend(others::paths());
    paths.extend(sign_in::paths());
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Towline resource API", "version": env!("CARGO_PKG_VERSION"), "description": "Shaped like Azure Resource Manager."},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// Ids of operations are told apart by where they are.
fn numbered(name: &str, n: usize) -> String {
    if n == 0 { name.to_owned() } else { format!("{name}-{}", n + 1) }
}

/// Where one resource of a kind is, and where lists of them are.
fn places(kind: &dyn Kind) -> (Vec<String>, Vec<String>) {
    const SUBSCRIPTION: &str = "/subscriptions/{subscriptionId}";
    let group = format!("{SUBSCRIPTION}/resourceGroups/{{resourceGroupName}}");
    let cluster = format!("{group}/providers/{}/{{clusterName}}", crate::resources::connected_cluster::NAME);
    let within = |scope: &str| format!("{scope}/providers/{}", kind.name());
    let one = |lists: &[String]| lists.iter().map(|list| format!("{list}/{{name}}")).collect();
    match kind.place() {
        Place::Top => (vec![SUBSCRIPTION.to_owned()], vec!["/subscriptions".to_owned()]),
        Place::Subscription => (vec![group], vec![format!("{SUBSCRIPTION}/resourceGroups")]),
        Place::ResourceGroup => (one(&[within(&group)]), vec![within(&group), within(SUBSCRIPTION)]),
        Place::Cluster => (one(&[within(&cluster)]), vec![within(&cluster)]),
        Place::Scope => {
            let lists = [SUBSCRIPTION, &group].map(within).to_vec();
            (one(&lists), lists)
        }
        Place::Anywhere => {
            let namespace = format!("{cluster}/namespaces/{{namespace}}");
            let lists = [SUBSCRIPTION, &group, &cluster, &namespace].map(within).to_vec();
            (one(&lists), lists)
        }
    }
}

fn item_operations(kind: &dyn Kind, path: &str, name: &str) -> Value {
    let schema = kind.name().rsplit('/').next().unwrap_or_default();
    let one = || reference(schema);
    let mut item = json!({
        "parameters": parameters(kind, path, &[]),
        "get": {"operationId": format!("get-{name}"), "parameters": [condition("If-None-Match")], "responses": responses(&[("200", one()), ("304", json!({}))], false)},
        "head": {"operationId": format!("head-{name}"), "responses": headers_only()},
    });
    if kind.is_writable() {
        let conditions = || json!([condition("If-Match"), condition("If-None-Match")]);
        let how = if kind.is_followed() { force_delete() } else { only_if_empty() };
        let deleted = || json!([condition("If-Match"), condition("If-None-Match"), how]);
        let written = |good: &[(&str, Value)]| responses(good, true);
        item["put"] = json!({"operationId": format!("put-{name}"), "parameters": conditions(), "requestBody": content(&one()), "responses": written(&[("200", one()), ("201", one())])});
        let gone = [("200", json!({})), ("202", json!({})), ("204", json!({}))];
        item["delete"] =
            json!({"operationId": format!("delete-{name}"), "parameters": deleted(), "responses": written(&gone)});
        if let Some(part) = kind.patch_schema() {
            // What agents do takes its time.
            let begun = ("202", one());
            let good: Vec<_> = [("200", one())].into_iter().chain(kind.is_followed().then_some(begun)).collect();
            let patched = written(&good);
            item["patch"] = json!({"operationId": format!("patch-{name}"), "parameters": conditions(), "requestBody": content(&schema::open_api_part(part)), "responses": patched});
        }
    }
    item
}

/// How far an operation on a resource of this kind is.
fn operation_of(kind: &dyn Kind, path: &str, name: &str) -> Value {
    json!({
        "parameters": parameters(kind, path, &[]),
        "get": {"operationId": format!("get-operation-{name}"), "responses": responses(&[("200", others::operation_status())], false)},
    })
}

fn list_operation(kind: &dyn Kind, path: &str, name: &str) -> Value {
    let schema = kind.name().rsplit('/').next().unwrap_or_default();
    let list = json!({"type": "object", "required": ["value"], "properties": {
        "value": {"type": "array", "items": reference(schema)},
        "nextLink": {"type": "string", "format": "uri"},
    }});
    let filter = json!({"name": "$filter", "in": "query", "schema": {"type": "string"}});
    let query: Vec<Value> = paging().into_iter().chain([filter]).collect();
    json!({
        "parameters": parameters(kind, path, &query),
        "get": {"operationId": format!("list-{name}"), "responses": responses(&[("200", list)], false)},
    })
}

/// Which page of an answer.
fn paging() -> [Value; 2] {
    [
        json!({"name": "$top", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": u32::MAX}}),
        json!({"name": "$skipToken", "in": "query", "schema": {"type": "string"}, "description": "as nextLink has it"}),
    ]
}

fn action_operation(kind: &dyn Kind, path: &str, name: &str, action: &str) -> Value {
    let (asked, answer) = kind.describe_action(action);
    let query = if kind.is_paged(action) { paging().to_vec() } else { Vec::new() };
    json!({
        "parameters": parameters(kind, path, &query),
        "post": {"operationId": format!("{action}-{name}"), "requestBody": content(&asked), "responses": responses(&[("200", answer)], true)},
    })
}

/// Those of a path's names, and what every request has.
fn parameters(kind: &dyn Kind, path: &str, more: &[Value]) -> Value {
    let version = json!({"name": "api-version", "in": "query", "required": true, "schema": {"type": "string", "enum": kind.api_versions()}});
    names(path).into_iter().chain([version]).chain(more.iter().cloned()).collect()
}

/// The names in a path.
fn names(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let named = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1, "maxLength": types::api::id::NAME_CHARACTERS}});
    names.map(named).collect()
}

fn condition(header: &str) -> Value {
    json!({"name": header, "in": "header", "schema": {"type": "string"}, "description": "RFC 9110 section 13.1"})
}

fn only_if_empty() -> Value {
    json!({
        "name": "onlyIfEmpty", "in": "query", "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "true: 409 ResourceNotEmpty where it holds something, else it is gone at once",
    })
}

fn force_delete() -> Value {
    json!({
        "name": "forceDelete", "in": "query", "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "true: it is gone at once, whether or not its cluster has taken it down",
    })
}

fn content(schema: &Value) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

fn described(kind: &dyn Kind) -> Value {
    let mut schema = schema::open_api(kind.schema());
    for name in ["id", "name", "type"] {
        schema["properties"][name] = json!({"type": "string", "readOnly": true});
    }
    schema["properties"]["systemData"] = json!({"type": "object", "readOnly": true});
    schema
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn responses(good: &[(&str, Value)], writes: bool) -> Value {
    let mut all = Map::new();
    for (status, schema) in good {
        let mut response = json!({"description": "done"});
        if schema.as_object().is_some_and(|schema| !schema.is_empty()) {
            response["content"] = json!({"application/json": {"schema": schema}});
        }
        all.insert((*status).to_owned(), response);
    }
    let refused =
        |why: &str| json!({"description": why, "content": {"application/json": {"schema": reference("Error")}}});
    let of_writes = WRITE_REFUSALS.iter().filter(|_| writes);
    all.extend(REFUSALS.iter().chain(of_writes).map(|(status, why)| ((*status).to_owned(), refused(why))));
    all.insert("default".to_owned(), refused("refused"));
    Value::Object(all)
}

/// HEAD: a status, and never a body.
fn headers_only() -> Value {
    let mut all = Map::from_iter([("204".to_owned(), json!({"description": "it exists"}))]);
    all.extend(REFUSALS.iter().map(|(status, why)| ((*status).to_owned(), json!({"description": why}))));
    all.insert("default".to_owned(), json!({"description": "refused"}));
    Value::Object(all)
}

fn error_schema() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": text, "message": text, "target": text, "details": {"type": "array", "items": {"type": "object"}}},
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

    #[test]
    fn the_kept_open_api_file_is_what_is_served() {
        let kept = std::fs::read_to_string(FILE).unwrap();
        let kept: Value = serde_json::from_str(&kept).unwrap();
        assert!(kept == document(), "write it: run this test binary with --ignored write_the_open_api_file");
    }

    #[test]
    #[ignore = "writes the file"]
    fn write_the_open_api_file() {
        std::fs::write(FILE, format!("{:#}\n", document())).unwrap();
    }

    #[test]
    fn e1_g1_g10_what_agents_follow_is_described_with_its_operations_and_its_forced_deletion() {
        let document = document();
        for kind in KINDS.iter().filter(|kind| kind.is_writable()) {
            let item = &places(*kind).0[0];
            let at = &document["paths"][item];
            let deleted = at["delete"]["parameters"].to_string();
            let followed = kind.is_followed();
            assert_eq!(
                (deleted.contains("forceDelete"), deleted.contains("onlyIfEmpty")),
                (followed, !followed),
                "{item}"
            );
            let begun = |method: &str| at[method]["responses"].get("202").is_some();
            assert!(begun("delete") && (kind.patch_schema().is_none() || begun("patch") == followed), "{item}");
            let status = &document["paths"][format!("{item}/operations/{{operationId}}")]["get"]["responses"]["200"];
            assert_eq!(status.to_string().contains("InProgress"), followed, "{item}");
        }
    }

    #[test]
    fn every_name_of_a_path_is_a_parameter_and_operations_have_names_of_their_own() {
        let document = document();
        let mut ids = std::collections::HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let names: Vec<_> = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
            let listed = item["parameters"].as_array().unwrap();
            let listed: Vec<_> =
                listed.iter().filter(|one| one["in"] == "path").map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(names, listed, "{path}");
            for operation in item.as_object().unwrap().values().filter_map(|value| value.get("operationId")) {
                assert!(ids.insert(operation.as_str().unwrap().to_owned()), "{operation}");
            }
        }
    }
}
