//! Parts of objects: what a PATCH leads to, and what must be said of the whole behind it.

use serde_json::{Map, Value};
use types::api::ErrorDetail;

use super::{Access, Property, Type, join, missing, refuse};

/// Puts a checked part into a kept object: what is merged member by member, `null` takes away, and all else is replaced
/// as a whole. `null` for what is write-only stays, because what is kept of that is not in the object.
pub fn merge(object: &'static [Property], kept: &mut Map<String, Value>, part: &Map<String, Value>) {
    for (name, value) in part {
        let Some(property) = object.iter().find(|property| property.name == name) else { continue };
        match (&property.kind, value) {
            (_, Value::Null) if property.access != Access::WriteOnly => drop(kept.remove(name)),
            (Type::Object(inner), Value::Object(part)) if property.merged => merge(inner, inside(kept, name), part),
            (Type::Map(entries), Value::Object(part)) if property.merged => {
                let map = inside(kept, name);
                for (name, value) in part {
                    match value {
                        Value::Object(part) => merge(entries.of, inside(map, name), part),
                        _ => drop(map.remove(name)),
                    }
                }
            }
            (Type::Texts, Value::Object(part)) if property.merged => {
                let texts = inside(kept, name);
                texts.extend(part.clone());
                texts.retain(|_, text| !text.is_null());
            }
            _ => drop(kept.insert(name.clone(), value.clone())),
        }
    }
}

/// The object at a name; made where there is none.
fn inside<'a>(kept: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = kept.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was made one above")
}

/// Fills in what nobody said of a whole object, which may have been merged; and says what is missing in it.
pub fn fill_in(object: &'static [Property], kept: &mut Map<String, Value>, at: &str, faults: &mut Vec<ErrorDetail>) {
    for property in object.iter().filter(|property| property.access != Access::ReadOnly) {
        let path = join(at, property.name);
        match (&property.kind, kept.get_mut(property.name)) {
            (_, None) => match property.default {
                Some(default) => drop(kept.insert(property.name.to_owned(), default.into())),
                None if property.required => refuse(faults, || missing(&path)),
                None => {}
            },
            (Type::Object(inner), Some(Value::Object(kept))) => fill_in(inner, kept, &path, faults),
            (Type::Map(entries), Some(Value::Object(map))) => {
                for (name, value) in map {
                    let Value::Object(kept) = value else { continue };
                    fill_in(entries.of, kept, &join(&path, name), faults);
                }
            }
            (Type::List(Type::Object(inner)), Some(Value::Array(list))) => {
                for (place, value) in list.iter_mut().enumerate() {
                    let Value::Object(kept) = value else { continue };
                    fill_in(inner, kept, &format!("{path}[{place}]"), faults);
                }
            }
            _ => {}
        }
    }
}

/// Puts what stays as it was created into a new form of an object, where that does not name it; and says what it names
/// otherwise.
pub fn keep_created(
    object: &'static [Property],
    old: &Map<String, Value>,
    new: &mut Map<String, Value>,
    at: &str,
    faults: &mut Vec<ErrorDetail>,
) {
    for property in object.iter().filter(|property| property.create_only) {
        let Some(kept) = old.get(property.name) else { continue };
        let named = new.entry(property.name).or_insert_with(|| kept.clone());
        if named != kept {
            let path = join(at, property.name);
            refuse(faults, || {
                let message = format!(
                    "The property '{path}' is {kept} and cannot be changed. Delete the resource and create it again."
                );
                ErrorDetail::new("PropertyChangeNotAllowed", message).at(&path)
            });
        }
    }
}

/// Takes out of a PATCH what the resource has and no PATCH changes: what only this service writes is dropped, and the rest
/// is returned, by its place. `whole`: the properties of the resource; `part`: those that a PATCH changes.
pub fn take_fixed(
    whole: &'static [Property],
    part: &'static [Property],
    raw: &mut Map<String, Value>,
) -> Map<String, Value> {
    let mut fixed = Map::new();
    let find = |object: &'static [Property], name: &str| object.iter().find(|property| property.name == name);
    for property in whole {
        let inner = raw.get_mut(property.name);
        match (find(part, property.name), &property.kind, inner) {
            (Some(Property { kind: Type::Object(part), .. }), Type::Object(whole), Some(Value::Object(inner))) => {
                let found = take_fixed(whole, part, inner);
                if !found.is_empty() {
                    fixed.insert(property.name.to_owned(), found.into());
                }
            }
            (None, kind, Some(_)) => {
                let value = raw.remove(property.name);
                if property.access != Access::ReadOnly {
                    fixed.extend(value.map(|value| (property.name.to_owned(), without_read_only(kind, value))));
                }
            }
            _ => {}
        }
    }
    fixed
}

fn without_read_only(kind: &Type, value: Value) -> Value {
    match (kind, value) {
        (Type::Object(object), Value::Object(map)) => {
            let find = |name: &str| object.iter().find(|property| property.name == name);
            let kept = map.into_iter().filter_map(|(name, value)| match find(&name) {
                Some(property) if property.access == Access::ReadOnly => None,
                Some(property) => Some((name, without_read_only(&property.kind, value))),
                None => Some((name, value)),
            });
            Value::Object(kept.collect())
        }
        (Type::List(kind), Value::Array(list)) => {
            list.into_iter().map(|value| without_read_only(kind, value)).collect()
        }
        (_, value) => value,
    }
}

/// The place of the first value that is another one where a resource is shown. `null` says nothing.
pub fn differs(said: &Map<String, Value>, shown: &Value) -> Option<String> {
    said.iter().find_map(|(name, value)| differs_at(value, shown.get(name).unwrap_or(&Value::Null), name))
}

fn differs_at(said: &Value, shown: &Value, at: &str) -> Option<String> {
    match (said, shown) {
        (Value::Null, _) => None,
        (Value::Object(said), Value::Object(_)) => {
            let inner = |(name, value): (&String, &Value)| {
                differs_at(value, shown.get(name).unwrap_or(&Value::Null), &join(at, name))
            };
            said.iter().find_map(inner)
        }
        (Value::Array(said), Value::Array(shown)) if said.len() == shown.len() => {
            said.iter().zip(shown).find_map(|(said, shown)| differs_at(said, shown, at))
        }
        _ => (said != shown).then(|| at.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{Entries, Type, check, check_part, show, split_protected},
        *,
    };

    fn name(text: &str) -> Result<(), String> {
        if text.bytes().all(|b| b.is_ascii_lowercase()) { Ok(()) } else { Err("lower-case letters".to_owned()) }
    }

    const ITEM: &[Property] = &[
        Property::read_only("name", Type::Text),
        Property::new("path", Type::Text).or(""),
        Property::new("wait", Type::Bool).or_bool(true).since("2023-01-01"),
        Property::new("seconds", Type::Number(1, 60)).or_number(10),
        Property::new("after", Type::List(&Type::Text)),
    ];
    const ITEMS: &Entries = &Entries { name, most: 3, of: ITEM };
    const SOURCE: &[Property] = &[
        Property::new("url", Type::Text).required(),
        Property::new("user", Type::Text),
        Property::new("key", Type::Text).write_only(),
    ];
    const OWN: &[Property] = &[
        Property::new("scope", Type::Words(&["cluster", "namespace"])).or("cluster").create_only(),
        Property::new("source", Type::Object(SOURCE)).merged(),
        Property::new("items", Type::Map(ITEMS)).merged(),
    ];
    const SCHEMA: &[Property] = &[Property::new("properties", Type::Object(OWN)).required().merged()];

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { unreachable!("tests give objects") };
        map
    }

    fn merged(kept: Value, part: Value) -> Value {
        let part = check_part(SCHEMA, &map(json!({ "properties": part }))).unwrap();
        let mut body = map(json!({ "properties": kept }));
        merge(SCHEMA, &mut body, &part);
        body["properties"].clone()
    }

    #[test]
    fn a_part_changes_what_it_names_and_null_takes_away() {
        let kept = json!({"source": {"url": "u", "user": "me"}, "items": {"a": {"path": "p", "seconds": 5}, "b": {}}});
        let part = json!({"source": {"user": null, "key": null}, "items": {"a": {"path": "q"}, "b": null, "c": {}}});
        let wanted = json!({
            "source": {"url": "u", "key": null}, "items": {"a": {"path": "q", "seconds": 5}, "c": {}},
        });
        assert_eq!(merged(kept.clone(), part), wanted);
        assert_eq!(merged(kept.clone(), json!({"source": null}))["source"], Value::Null);
        assert_eq!(merged(kept.clone(), json!({})), kept);
    }

    #[test]
    fn what_a_part_leads_to_is_filled_in_and_what_is_missing_is_said() {
        let mut own = map(json!({"source": {"user": "me"}, "items": {"a": {"seconds": 5}}}));
        let mut faults = Vec::new();
        fill_in(OWN, &mut own, "properties", &mut faults);
        assert_eq!(faults.pop().unwrap().target.as_deref(), Some("properties.source.url"));
        assert_eq!(own["items"], json!({"a": {"path": "", "wait": true, "seconds": 5}}));
        assert_eq!(own["scope"], "cluster");
    }

    #[test]
    fn entries_of_a_map_are_checked_with_their_names() {
        let faults = |items: Value| {
            let error = check(SCHEMA, &map(json!({"properties": {"items": items}}))).unwrap_err();
            error.target.unwrap_or_default()
        };
        assert_eq!(faults(json!({"A": {}})), "properties.items.A");
        assert_eq!(faults(json!({"a": {"seconds": 0}})), "properties.items.a.seconds");
        assert_eq!(faults(json!({"a": 1})), "properties.items.a");
        assert_eq!(faults(json!({"a": {}, "b": {}, "c": {}, "d": {}})), "properties.items");
        let whole = check(SCHEMA, &map(json!({"properties": {"items": {"a": {"name": "x"}, "b": null}}}))).unwrap();
        assert_eq!(whole["properties"], json!({"items": {"a": {"path": "", "seconds": 10}}}));
        let shown = show(SCHEMA, whole, "2022-01-01");
        assert_eq!(shown["properties"]["items"], json!({"a": {"name": null, "path": "", "seconds": 10}}));
    }

    #[test]
    fn what_no_patch_changes_is_dropped_or_compared_with_what_is_shown() {
        const INNER: &[Property] = &[Property::new("a", Type::Text), Property::read_only("state", Type::Text)];
        const WHOLE: &[Property] = &[
            Property::new("location", Type::Text),
            Property::new("own", Type::Object(&[Property::new("key", Type::Text), Property::new("list", LIST)])),
            Property::read_only("seen", Type::Text),
        ];
        const LIST: Type = Type::List(&Type::Object(INNER));
        const PART: &[Property] = &[Property::new("own", Type::Object(&[Property::new("other", Type::Text)]))];
        let mut raw = map(json!({
            "location": "x", "seen": "y", "new": 1, "own": {"key": "k", "other": "o", "list": [{"a": "b", "state": "s"}]},
        }));
        let fixed = take_fixed(WHOLE, PART, &mut raw);
        assert_eq!(Value::Object(raw), json!({"new": 1, "own": {"other": "o"}}));
        let shown = json!({"location": "x", "own": {"key": "k", "list": [{"a": "b", "state": "t"}], "more": 1}});
        assert_eq!(differs(&fixed, &shown), None);
        for (name, value) in
            [("key", json!("l")), ("key", json!({})), ("list", json!([])), ("list", json!([{"a": "c"}]))]
        {
            let mut fixed = fixed.clone();
            fixed["own"][name] = value;
            assert_eq!(
                differs(&fixed, &shown),
                Some(format!("own.{name}{}", if fixed["own"][name] == json!([{"a": "c"}]) { ".a" } else { "" }))
            );
        }
    }

    #[test]
    fn what_stays_as_it_was_created_is_kept_or_refused() {
        let old = map(json!({"scope": "namespace"}));
        let (mut new, mut faults) = (map(json!({})), Vec::new());
        keep_created(OWN, &old, &mut new, "properties", &mut faults);
        assert_eq!((new["scope"].as_str(), faults.len()), (Some("namespace"), 0));
        new.insert("scope".to_owned(), "cluster".into());
        keep_created(OWN, &old, &mut new, "properties", &mut faults);
        assert_eq!(faults[0].target.as_deref(), Some("properties.scope"));
    }

    #[test]
    fn null_in_a_part_takes_away_what_is_protected() {
        let kept = map(json!({"properties.source.key": "old"}));
        let after = |part: Value| {
            let mut body = map(json!({"properties": merged(json!({"source": {"url": "u"}}), part)}));
            let protected = split_protected(SCHEMA, &mut body);
            assert!(!Value::Object(body).to_string().contains("key"));
            (protected.replaces(&kept), Value::Object(protected.with_kept(kept.clone())))
        };
        assert_eq!(after(json!({"source": {"user": "me"}})), (false, json!({"properties.source.key": "old"})));
        assert_eq!(after(json!({"source": {"key": "new"}})), (true, json!({"properties.source.key": "new"})));
        assert_eq!(after(json!({"source": {"key": null}})), (true, json!({})));
        assert_eq!(after(json!({"source": null})), (true, json!({})));
    }
}
