//! Settings become a chart's values: dotted keys as `helm --set` reads them, each text of the type that the chart's
//! schema says, and of the type that `--set` would take it for where the schema says nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Keys in each other, as in helm; entries of a list.
const DEPTH_MAX: usize = 30;
const INDEX_MAX: usize = 1000;
/// Entries of all lists together: an index makes all entries before it.
const ENTRIES_MAX: usize = 65_536;
/// Settings of an extension.
pub const SETTINGS_MAX: usize = 10_000;
/// References followed in a schema for one key.
const REFERENCES_MAX: usize = 16;

/// A step of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Key(String),
    Index(usize),
}

/// The values of these settings. Nothing of a setting's value is in an error.
///
/// # Errors
/// Which key cannot be read, or contradicts another.
pub fn nested(settings: &BTreeMap<String, String>, schema: Option<&Value>) -> Result<Value, String> {
    if settings.len() > SETTINGS_MAX {
        return Err(format!("there are {} settings, at most {SETTINGS_MAX} are read", settings.len()));
    }
    let (mut root, mut room) = (Value::Object(Map::new()), ENTRIES_MAX);
    for (key, text) in settings {
        let steps = steps(key).map_err(|why| format!("the setting {key:?}: {why}"))?;
        let value = typed(text, schema.map(|schema| types(schema, &steps)).unwrap_or_default());
        put(&mut root, &steps, value, &mut room).map_err(|why| match why {
            Misfit::Contradiction => {
                format!("the setting {key:?} contradicts another one: one is a value, and the other is below it")
            }
            Misfit::Entries => {
                format!("the setting {key:?}: the lists of all settings have more than {ENTRIES_MAX} entries together")
            }
        })?;
    }
    Ok(root)
}

/// Whether a setting changes what is at `locked` or below it: one of the two keys leads to the other. A key that cannot be
/// read touches all.
pub fn touches(key: &str, locked: &str) -> bool {
    match (steps(key), steps(locked)) {
        (Ok(key), Ok(locked)) => key.iter().zip(&locked).all(|(a, b)| a == b),
        _ => true,
    }
}

/// `a.b[0].c\.d` is four steps.
fn steps(key: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut word = String::new();
    let mut chars = key.chars().peekable();
    // Whether a name may end here: after an index there is none.
    let mut after_index = false;
    let mut ended = false;
    while let Some(c) = chars.next() {
        ended = false;
        match c {
            '\\' => word.push(chars.next().ok_or("it ends with a backslash")?),
            '.' | '[' => {
                if !word.is_empty() {
                    if after_index {
                        return Err("a name follows an index without a dot".to_owned());
                    }
                    steps.push(Step::Key(std::mem::take(&mut word)));
                } else if !after_index {
                    return Err("a name is empty".to_owned());
                }
                after_index = false;
                if c == '[' {
                    let digits: String = std::iter::from_fn(|| chars.next_if(char::is_ascii_digit)).collect();
                    let index = digits.parse().ok().filter(|index| *index < INDEX_MAX);
                    let index = index.ok_or_else(|| format!("an index is not a number below {INDEX_MAX}"))?;
                    if chars.next() != Some(']') {
                        return Err("an index has no ]".to_owned());
                    }
                    steps.push(Step::Index(index));
                    after_index = true;
                } else {
                    ended = true;
                }
            }
            other => word.push(other),
        }
    }
    if ended || (word.is_empty() && !after_index) {
        return Err("a name is empty".to_owned());
    }
    if !word.is_empty() {
        if after_index {
            return Err("a name follows an index without a dot".to_owned());
        }
        steps.push(Step::Key(word));
    }
    if steps.len() > DEPTH_MAX {
        return Err(format!("it has more than {DEPTH_MAX} names"));
    }
    Ok(steps)
}

/// Why a setting cannot be put into the values.
enum Misfit {
    Contradiction,
    Entries,
}

fn put(at: &mut Value, steps: &[Step], value: Value, room: &mut usize) -> Result<(), Misfit> {
    let Some((first, rest)) = steps.split_first() else {
        *at = value;
        return Ok(());
    };
    let next = match first {
        Step::Key(key) => {
            if at.is_null() {
                *at = Value::Object(Map::new());
            }
            let map = at.as_object_mut().ok_or(Misfit::Contradiction)?;
            if rest.is_empty() && map.get(key).is_some_and(|old| !old.is_null()) {
                return Err(Misfit::Contradiction);
            }
            map.entry(key.clone()).or_insert(Value::Null)
        }
        Step::Index(index) => {
            if at.is_null() {
                *at = Value::Array(Vec::new());
            }
            let list = at.as_array_mut().ok_or(Misfit::Contradiction)?;
            if list.len() <= *index {
                *room = room.checked_sub(index + 1 - list.len()).ok_or(Misfit::Entries)?;
                list.resize(index + 1, Value::Null);
            }
            if rest.is_empty() && !list[*index].is_null() {
                return Err(Misfit::Contradiction);
            }
            &mut list[*index]
        }
    };
    put(next, rest, value, room)
}

/// The types that a schema allows at a key; empty: it does not say.
fn types(schema: &Value, steps: &[Step]) -> BTreeSet<String> {
    let mut at = resolved(schema, schema);
    for step in steps {
        let below = match step {
            Step::Key(key) => match &at["properties"][key] {
                Value::Null => &at["additionalProperties"],
                found => found,
            },
            Step::Index(index) => match &at["items"] {
                Value::Array(items) => items.get(*index).unwrap_or(&Value::Null),
                items => items,
            },
        };
        at = resolved(schema, below);
    }
    match &at["type"] {
        Value::String(one) => [one.clone()].into(),
        Value::Array(many) => many.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => BTreeSet::new(),
    }
}

/// What a local reference refers to.
fn resolved<'a>(schema: &'a Value, mut at: &'a Value) -> &'a Value {
    for _ in 0..REFERENCES_MAX {
        let Some(pointer) = at["$ref"].as_str().and_then(|text| text.strip_prefix('#')) else { return at };
        let Some(found) = schema.pointer(pointer) else { return &Value::Null };
        at = found;
    }
    &Value::Null
}

/// A text as one of these types; a text that is of none stays one, for the schema to refuse.
fn typed(text: &str, types: BTreeSet<String>) -> Value {
    let is = |name: &str| types.contains(name);
    let as_text = || Value::String(text.to_owned());
    if types.is_empty() {
        return as_set(text);
    }
    if is("boolean")
        && let Ok(value) = text.to_ascii_lowercase().parse::<bool>()
    {
        return value.into();
    }
    if is("integer")
        && let Ok(value) = text.parse::<i64>()
    {
        return value.into();
    }
    if is("number")
        && let Some(value) = number(text)
    {
        return value;
    }
    if is("null") && text == "null" {
        return Value::Null;
    }
    if is("array") || is("object") {
        match serde_json::from_str(text) {
            Ok(value @ Value::Array(_)) if is("array") => return value,
            Ok(value @ Value::Object(_)) if is("object") => return value,
            _ => {}
        }
        let list = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        if let Some(list) = list.filter(|_| is("array")) {
            let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
            return Value::Array(items.map(as_set).collect());
        }
    }
    as_text()
}

fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite())?;
    serde_json::Number::from_f64(number).map(Value::Number)
}

/// As `--set` types a text.
fn as_set(text: &str) -> Value {
    items(text).unwrap_or_else(|| scalar(text))
}

/// As `--set` types a text that is no list.
fn scalar(text: &str) -> Value {
    match text.to_ascii_lowercase().as_str() {
        "true" => return true.into(),
        "false" => return false.into(),
        "null" => return Value::Null,
        "0" => return 0.into(),
        _ => {}
    }
    if !text.starts_with(['0', '+'])
        && let Ok(whole) = text.parse::<i64>()
    {
        return whole.into();
    }
    Value::String(text.to_owned())
}

/// `{a,b}` is a list, and `\,` a comma in one of its entries. JSON and a template in braces stay the texts that they are:
/// `--set` makes something of them that nobody means.
fn items(text: &str) -> Option<Value> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    if inner.contains(['{', '}', '\n'])
        || (!inner.is_empty() && serde_json::from_str::<Map<String, Value>>(text).is_ok())
    {
        return None;
    }
    let (mut all, mut entry, mut chars) = (Vec::new(), String::new(), inner.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => entry.extend(chars.next()),
            ',' => all.push(std::mem::take(&mut entry)),
            other => entry.push(other),
        }
    }
    if !(all.is_empty() && entry.is_empty()) {
        all.push(entry);
    }
    Some(all.iter().map(|entry| scalar(entry)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(settings: &[(&str, &str)], schema: Option<Value>) -> Result<Value, String> {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        nested(&settings, schema.as_ref())
    }

    #[test]
    fn e5_dotted_keys_are_read_as_helm_set_reads_them() {
        let settings = [
            ("a.b", "true"),
            ("a.c", "007"),
            ("d[1].e", "x"),
            ("d[0]", "5"),
            ("annotations.example\\.org/name", "v"),
            ("n", "null"),
            ("list", "{a,2,c\\,d}"),
            ("none", "{}"),
            ("json", "{\"a\": 1}"),
            ("template", "{{ .Release.Name }}"),
            ("big", "99999999999999999999"),
        ];
        let expected = json!({
            "a": {"b": true, "c": "007"}, "d": [5, {"e": "x"}], "annotations": {"example.org/name": "v"}, "n": null,
            "list": ["a", 2, "c,d"], "none": [], "json": "{\"a\": 1}", "template": "{{ .Release.Name }}",
            "big": "99999999999999999999",
        });
        assert_eq!(of(&settings, None).unwrap(), expected);
    }

    #[test]
    fn e5_schema_decides_the_type() {
        let schema = json!({
            "properties": {
                "port": {"type": "string"}, "on": {"type": ["boolean", "null"]}, "ratio": {"$ref": "#/$defs/ratio"},
                "count": {"type": "integer"}, "hosts": {"type": "array"}, "either": {"type": ["integer", "string"]},
                "labels": {"additionalProperties": {"type": "string"}},
                "servers": {"items": {"properties": {"id": {"type": "string"}}}},
                "loop": {"$ref": "#/properties/loop"},
            },
            "$defs": {"ratio": {"type": "number"}},
        });
        let settings = [
            ("port", "8080"),
            ("on", "True"),
            ("ratio", "0.5"),
            ("count", "many"),
            ("hosts", "{a,1}"),
            ("either", "7"),
            ("labels.a", "true"),
            ("servers[0].id", "1"),
            ("loop", "1"),
        ];
        let expected = json!({
            "port": "8080", "on": true, "ratio": 0.5, "count": "many", "hosts": ["a", 1], "either": 7,
            "labels": {"a": "true"}, "servers": [{"id": "1"}], "loop": 1,
        });
        assert_eq!(of(&settings, Some(schema)).unwrap(), expected);
    }

    #[test]
    fn setting_touches_what_it_leads_to_and_what_leads_to_it() {
        for touching in ["image.tag", "image", "image.tag.x", "image\\.x", "image.ta\\g"] {
            let is_other_name = touching == "image\\.x";
            assert_eq!(touches(touching, "image.tag"), !is_other_name, "{touching}");
        }
        for other in ["images", "image.tags", "imag", "a.image.tag", "image[0]"] {
            assert!(!touches(other, "image.tag"), "{other}");
        }
        assert!(touches("images[3].name", "images") && touches("images", "images[3].name"));
        assert!(touches("a..b", "image") && touches("a", "b."), "what cannot be read touches all");
    }

    #[test]
    fn bad_keys_are_named_without_their_values() {
        for bad in ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a[1000]", "a[1", "a[0]b", "a\\", "[0]"] {
            let error = of(&[(bad, "secret")], None).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        for pair in [[("a", "1"), ("a.b", "2")], [("a[0]", "1"), ("a.b", "1")]] {
            let error = of(&pair, None).unwrap_err();
            assert!(error.contains("contradicts"), "{error}");
        }
        assert!(of(&[(&vec!["a"; 31].join("."), "1")], None).is_err());
    }

    #[test]
    fn entries_of_all_lists_together_are_bounded() {
        let deep = |n: usize| format!("a[{n}]{}", "[999]".repeat(28));
        let settings: Vec<_> = (0..1000).map(deep).collect();
        let settings: Vec<_> = settings.iter().map(|key| (key.as_str(), "1")).collect();
        let error = of(&settings, None).unwrap_err();
        assert!(error.contains("65536 entries"), "{error}");
        assert!(of(&settings[..2], None).is_ok());
    }

    proptest::proptest! {
        /// Whatever the keys are, nothing panics, and a plain key is found where it was put.
        #[test]
        fn every_plain_setting_is_found_again(
            settings in proptest::collection::btree_map("[a-c]{1,2}(\\.[a-c]{1,2}){0,3}", "[a-z]{1,5}z", 0..8)
        ) {
            if let Ok(values) = nested(&settings, None) {
                for (key, text) in &settings {
                    let pointer = format!("/{}", key.replace('.', "/"));
                    proptest::prop_assert_eq!(values.pointer(&pointer).and_then(Value::as_str), Some(text.as_str()));
                }
            }
        }

        #[test]
        fn any_key_is_read_or_refused(key in ".{0,40}", text in ".{0,20}") {
            let _ = nested(&[(key, text)].into(), None);
        }
    }
}
