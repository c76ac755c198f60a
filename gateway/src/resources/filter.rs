//! `$filter`, as far as clients use it: conditions joined by `and`, each `name eq 'value'` or `call('value')`. Names
//! are the same in any case (docs/features.md R2).

use std::borrow::Cow;

use http::StatusCode;
use serde_json::Value;
use types::api::{ResourceId, id::is_same};

use crate::{api_error::ApiError, store::resources::Stored, stored::last_name};

/// Bytes of a filter at most.
const BYTES: usize = 1024;

/// One condition; its name is in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// `name eq 'value'`.
    Equal(&'a str, &'a str),
    /// `name('value')`, or `name()`.
    Call(&'a str, &'a str),
}

/// A condition as written.
#[derive(Debug, PartialEq, Eq)]
struct Parsed<'a> {
    name: String,
    value: Cow<'a, str>,
    is_call: bool,
}

impl Parsed<'_> {
    fn condition(&self) -> Condition<'_> {
        if self.is_call { Condition::Call(&self.name, &self.value) } else { Condition::Equal(&self.name, &self.value) }
    }
}

fn unsupported(text: &str) -> ApiError {
    let shown: String = text.chars().take(200).collect();
    let message = format!("The filter '{shown}' is not supported here.");
    ApiError::of(StatusCode::BAD_REQUEST, "InvalidFilter", message).at("$filter")
}

/// Whether all conditions hold; `holds` says `None` to one that it does not know, which refuses the request: a
/// condition that is ignored would show more than was asked for.
pub fn all(text: &str, holds: impl Fn(Condition<'_>) -> Option<bool>) -> Result<bool, ApiError> {
    let conditions = parse(text).ok_or_else(|| unsupported(text))?;
    conditions
        .iter()
        .try_fold(true, |all, condition| Ok(all & holds(condition.condition()).ok_or_else(|| unsupported(text))?))
}

/// Whether a tracked resource is asked for: by name, type, resource group, location, or by a tag, whose name and value
/// are two conditions.
pub fn resource(text: &str, stored: &Stored) -> Result<bool, ApiError> {
    let conditions = parse(text).ok_or_else(|| unsupported(text))?;
    let tag = |name: &str| {
        let mut found = conditions.iter().filter(|one| !one.is_call && one.name == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(unsupported(text)),
            (one, None) => Ok(one.map(|one| &*one.value)),
        }
    };
    let tags = stored.body.get("tags").and_then(Value::as_object);
    let tagged = match (tag("tagname")?, tag("tagvalue")?) {
        (None, None) => true,
        (None, Some(_)) => return Err(unsupported(text)),
        (Some(name), value) => tags.into_iter().flatten().any(|(known, is)| {
            known.eq_ignore_ascii_case(name) && value.is_none_or(|value| is.as_str() == Some(value))
        }),
    };
    all(text, |condition| {
        let Condition::Equal(name, wanted) = condition else { return None };
        Some(match name {
            "tagname" | "tagvalue" => tagged,
            "resourcetype" => wanted.eq_ignore_ascii_case(&stored.kind),
            "name" => is_same(wanted, last_name(&stored.id)),
            "location" => {
                let plain = |name: &str| name.replace(' ', "").to_ascii_lowercase();
                stored.body.get("location").and_then(Value::as_str).is_some_and(|is| plain(is) == plain(wanted))
            }
            "resourcegroup" => {
                let id = ResourceId::parse(&stored.id).ok();
                let group = id.as_ref().and_then(ResourceId::resource_group);
                group.is_some_and(|group| is_same(group, wanted))
            }
            _ => return None,
        })
    })
}

/// The conditions of a filter.
fn parse(text: &str) -> Option<Vec<Parsed<'_>>> {
    if text.len() > BYTES {
        return None;
    }
    let mut rest = text.trim();
    let mut conditions = Vec::new();
    loop {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() {
            return None;
        }
        let after = after.trim_start();
        let value;
        if let Some(inner) = after.strip_prefix('(') {
            let inner = inner.trim_start();
            (value, rest) = if inner.starts_with('\'') { quoted(inner)? } else { (Cow::Borrowed(""), inner) };
            rest = rest.trim_start().strip_prefix(')')?;
            conditions.push(Parsed { name: name.to_ascii_lowercase(), value, is_call: true });
        } else {
            (value, rest) = quoted(word(after, "eq")?)?;
            conditions.push(Parsed { name: name.to_ascii_lowercase(), value, is_call: false });
        }
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(conditions);
        }
        rest = word(rest, "and")?;
    }
}

fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (found, rest) = text.split_at_checked(word.len())?;
    (found.eq_ignore_ascii_case(word) && rest.starts_with(' ')).then(|| rest.trim_start())
}

/// A value; a quote in it is written twice.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let (mut value, mut rest) =
        text.strip_prefix('\'')?.split_once('\'').map(|(value, rest)| (Cow::from(value), rest))?;
    while let Some(more) = rest.strip_prefix('\'') {
        let (next, after) = more.split_once('\'')?;
        value = format!("{value}'{next}").into();
        rest = after;
    }
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::{Condition::*, *};

    #[test]
    fn what_clients_send_is_read_and_all_else_refused() {
        let read = |text: &str, expected: &[Condition<'_>]| {
            let parsed = parse(text).unwrap();
            assert_eq!(parsed.iter().map(Parsed::condition).collect::<Vec<_>>(), expected, "{text}");
        };
        read("atScope()", &[Call("atscope", "")]);
        read("atScope() and assignedTo('a-b')", &[Call("atscope", ""), Call("assignedto", "a-b")]);
        read("roleName eq 'A B'  and  type eq 'X'", &[Equal("rolename", "A B"), Equal("type", "X")]);
        read("a eq 'b''c'", &[Equal("a", "b'c")]);
        for bad in [
            "",
            "a",
            "a eq",
            "a eq b",
            "a eq 'b",
            "a ne 'b'",
            "a eq 'b' or c eq 'd'",
            "a eq 'b''c",
            "f('x'",
            "f(x)",
            "' eq 'x'",
            "a eq 'b' and ",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert!(all("x eq '1'", |_| None).is_err());
        assert!(!all("x eq '1' and y eq '2'", |c| Some(c == Equal("x", "1"))).unwrap());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = parse(&text);
        }
    }
}
