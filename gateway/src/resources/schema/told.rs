//! What clusters tell, which is no request of a client: what of it fits a table is kept and all else left out, so that a
//! newer agent, or one that somebody else has taken over, changes nothing that clients rely on.

use serde_json::{Map, Value};
use types::instants;

use super::{Property, Type};

/// How much is kept of what is told.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Characters of a text; longer ones are cut.
    pub text: usize,
    /// Entries of a list; the first are kept.
    pub entries: usize,
}

/// What is kept of something told.
pub fn told(object: &'static [Property], told: &Map<String, Value>, bounds: Bounds) -> Map<String, Value> {
    let known = object.iter().filter_map(|property| Some((property, told.get(property.name)?)));
    let kept =
        known.filter_map(|(property, value)| Some((property.name.to_owned(), kept(&property.kind, value, bounds)?)));
    kept.collect()
}

fn kept(kind: &Type, value: &Value, bounds: Bounds) -> Option<Value> {
    match (kind, value) {
        // Clients refuse the whole of an answer for one that they cannot read.
        (Type::Instant, Value::String(text)) => instants::parse(text).ok().map(|_| Value::from(text.as_str())),
        (Type::Text | Type::Checked(_) | Type::Shaped(..), Value::String(text)) => {
            // A column of PostgreSQL takes any other character.
            Some(text.chars().filter(|c| *c != '\0').take(bounds.text).collect::<String>().into())
        }
        (Type::Words(words), Value::String(text)) => {
            words.iter().find(|word| **word == text).map(|word| (*word).into())
        }
        (Type::Bool, Value::Bool(_)) => Some(value.clone()),
        (Type::Count, Value::Number(number)) => number.as_u64().filter(|n| i32::try_from(*n).is_ok()).map(Value::from),
        (Type::List(kind), Value::Array(list)) => {
            Some(list.iter().take(bounds.entries).filter_map(|value| kept(kind, value, bounds)).collect())
        }
        (Type::Object(object), Value::Object(inner)) => Some(told(object, inner, bounds).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_and_what_is_long_is_cut() {
        const INNER: &[Property] = &[Property::read_only("type", Type::Text)];
        const OBJECT: &[Property] = &[
            Property::read_only("state", Type::Words(&["Good", "Bad"])),
            Property::read_only("message", Type::Text),
            Property::read_only("failures", Type::Count),
            Property::read_only("since", Type::Instant),
            Property::read_only("until", Type::Instant),
            Property::read_only("list", Type::List(&Type::Object(INNER))),
        ];
        let said = json!({
            "state": "Splendid", "message": "ä\0".repeat(100), "failures": -1, "since": "yesterday", "until": "2030-01-31T12:00:00Z",
            "html": "<script>",
            "list": [{"type": "a", "b": 1}, 7, {"type": 7}, {"type": "d"}],
        });
        let said = said.as_object().unwrap();
        let kept = told(OBJECT, said, Bounds { text: 5, entries: 3 });
        let wanted = json!({"message": "äääää", "until": "2030-01-31T12:00:00Z", "list": [{"type": "a"}, {}]});
        assert_eq!(Value::Object(kept), wanted);
    }
}
