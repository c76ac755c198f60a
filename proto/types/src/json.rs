//! JSON read strictly: an object, each key once at every depth, and nothing after it. Two readers of one token must not
//! be able to read two identities, nor two readers of a resource two resources.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, error::Category};

/// Why a text is no strict JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Something else, or nothing that can be read.
    #[error("it is not a JSON object (line {line} column {column})")]
    Syntax {
        /// Where reading ended, from 1.
        line: usize,
        /// Column in that line where reading ended.
        column: usize,
    },
    /// Deeper than a reader should follow: the stack of each is bounded.
    #[error("objects and lists are nested too deep (line {line} column {column})")]
    Depth {
        /// Where reading ended, from 1.
        line: usize,
        /// Column in that line where reading ended.
        column: usize,
    },
    /// Readers differ about which of the two holds.
    #[error("a key is there twice (the second at line {line} column {column})")]
    Duplicate {
        /// Behind the second one, from 1.
        line: usize,
        /// Column in that line, behind the second one.
        column: usize,
    },
}

/// Reads one object.
///
/// # Errors
/// Where it is not one, or has a key twice. No part of the text is in them.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, JsonError> {
    match serde_json::from_slice::<Strict>(bytes) {
        Ok(Strict(Value::Object(map))) => Ok(map),
        Ok(_) => Err(JsonError::Syntax { line: 1, column: 1 }),
        // The visitor takes every value, so that a fault of data can only be its own.
        Err(e) if e.classify() == Category::Data => Err(JsonError::Duplicate { line: e.line(), column: e.column() }),
        // The library tells it by its words alone; a test holds them.
        Err(e) if e.to_string().starts_with("recursion limit") => {
            Err(JsonError::Depth { line: e.line(), column: e.column() })
        }
        Err(e) => Err(JsonError::Syntax { line: e.line(), column: e.column() }),
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without duplicate keys")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
            if out.insert(key, value).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_once_at_every_depth() {
        assert!(object(br#"{"a":1,"b":{"a":[{"a":null}]},"c":1.5,"d":"x","e":true,"f":-1}"#).is_ok());
        for twice in [&br#"{"a":1,"a":1}"#[..], br#"{"x":{"a":1,"a":2}}"#, br#"{"x":[{"a":1,"\u0061":2}]}"#] {
            assert!(matches!(object(twice), Err(JsonError::Duplicate { line: 1, .. })));
        }
    }

    #[test]
    fn only_an_object_and_nothing_after_it() {
        let deep = "[".repeat(100_000);
        assert!(matches!(object(deep.as_bytes()), Err(JsonError::Depth { line: 1, .. })));
        for bad in ["", "[]", "1", "\"a\"", "{", "{}x", "{}{}", "{'a':1}", "{\"a\":1,}", "\u{feff}{}", "{\"a\":1e999}"]
        {
            assert!(matches!(object(bad.as_bytes()), Err(JsonError::Syntax { .. })), "{bad:.20}");
        }
        assert!(matches!(object(b"{\"a\":\"\xff\"}"), Err(JsonError::Syntax { .. })));
        assert!(matches!(object(br#"{"a":"\ud800"}"#), Err(JsonError::Syntax { .. })));
    }
}
