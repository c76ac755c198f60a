//! A document as JSON, by the core schema of YAML 1.2 (section 10.3): `no`, `on` and `1:30` without quotes are texts there.

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Number, Value};

use super::{Content, Node};

/// What a part of a document is.
///
/// # Errors
/// A map has a key that is no text, or a number has none in JSON. The error quotes nothing: it may be a secret.
pub fn json(node: &Node) -> anyhow::Result<Value> {
    Ok(match &node.content {
        Content::Text(text) => text.as_str().into(),
        Content::Plain(_) if node.is_null() => Value::Null,
        Content::Plain(text) => plain(text)?,
        Content::List(items) => Value::Array(items.iter().map(json).collect::<anyhow::Result<_>>()?),
        Content::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                let key = key.as_str().ok_or_else(|| anyhow!("it has a key that is not text"))?;
                map.insert(key.to_owned(), json(value).with_context(|| format!("the value of {key} cannot be JSON"))?);
            }
            Value::Object(map)
        }
    })
}

fn plain(text: &str) -> anyhow::Result<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let all = |text: &str, digit: fn(&char) -> bool| !text.is_empty() && text.chars().all(|c| digit(&c));
    Ok(match text {
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ if all(unsigned, char::is_ascii_digit) => {
            let text = text.strip_prefix('+').unwrap_or(text);
            let number = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
            number
                .map_err(|_| anyhow!("it has a whole number of more than 64 bits; put quotes around what is a text"))?
                .into()
        }
        _ if text.strip_prefix("0o").is_some_and(|digits| all(digits, |c| matches!(c, '0'..='7'))) => {
            i64::from_str_radix(&text[2..], 8).map_err(|_| anyhow!("it has a number of more than 64 bits"))?.into()
        }
        _ if text.strip_prefix("0x").is_some_and(|digits| all(digits, char::is_ascii_hexdigit)) => {
            i64::from_str_radix(&text[2..], 16).map_err(|_| anyhow!("it has a number of more than 64 bits"))?.into()
        }
        _ if is_float(unsigned) => {
            let number = text.parse::<f64>().ok().and_then(Number::from_f64);
            match number {
                Some(number) => number.into(),
                None => bail!("it has a number that JSON cannot have"),
            }
        }
        _ => text.into(),
    })
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`, behind the sign.
fn is_float(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (number, power) = match text.split_once(['e', 'E']) {
        Some((number, power)) => (number, Some(power.strip_prefix(['-', '+']).unwrap_or(power))),
        None => (text, None),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let any = !whole.is_empty() || !part.is_empty();
    any && digits(whole) && digits(part) && power.is_none_or(|power| !power.is_empty() && digits(power))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::read, *};

    #[test]
    fn plain_scalars_are_what_yaml_1_2_says() {
        for (text, value) in [
            ("no", json!("no")),
            ("on", json!("on")),
            ("1:30", json!("1:30")),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("017", json!(17)),
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("-7", json!(-7)),
            ("1_000", json!("1_000")),
            ("True", json!(true)),
            ("~", Value::Null),
            ("'5'", json!("5")),
            ("!!str 5", json!("5")),
            (".", json!(".")),
            ("e5", json!("e5")),
        ] {
            let read = read(text.as_bytes()).unwrap().root.unwrap();
            assert_eq!(json(&read).unwrap(), value, "{text}");
        }
        for bad in ["99999999999999999999999", "1e999", "[1, {[a]: 1}]"] {
            assert!(json(&read(bad.as_bytes()).unwrap().root.unwrap()).is_err(), "{bad}");
        }
    }
}
