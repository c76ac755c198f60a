//! `$filter`, as far as clients use it: conditions joined by `and`, each `name eq 'value'` or `call('value')`.

use http::StatusCode;

use super::error::ApiError;

/// Bytes of a filter at most.
const BYTES: usize = 1024;

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// `name eq 'value'`.
    Equal(&'a str, &'a str),
    /// `name('value')`, or `name()`.
    Call(&'a str, &'a str),
}

/// Whether all conditions hold; `holds` says `None` to one that it does not know, which refuses the request: a condition
/// that is ignored would show more than was asked for.
pub fn all(text: &str, holds: impl Fn(Condition<'_>) -> Option<bool>) -> Result<bool, ApiError> {
    let refuse = || {
        let shown: String = text.chars().take(200).collect();
        let message = format!("The filter '{shown}' is not supported here.");
        ApiError::of(StatusCode::BAD_REQUEST, "InvalidFilter", message).at("$filter")
    };
    let conditions = parse(text).ok_or_else(refuse)?;
    conditions.into_iter().try_fold(true, |all, condition| Ok(all & holds(condition).ok_or_else(refuse)?))
}

/// The conditions of a filter.
fn parse(text: &str) -> Option<Vec<Condition<'_>>> {
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
            (value, rest) = if inner.starts_with('\'') { quoted(inner)? } else { ("", inner) };
            rest = rest.trim_start().strip_prefix(')')?;
            conditions.push(Condition::Call(name, value));
        } else {
            (value, rest) = quoted(word(after, "eq")?)?;
            conditions.push(Condition::Equal(name, value));
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

/// A value without quotes in it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (value, rest) = text.strip_prefix('\'')?.split_once('\'')?;
    // A doubled quote is OData's way to write one; no name here has any.
    (!rest.starts_with('\'')).then_some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::{Condition::*, *};

    #[test]
    fn what_clients_send_is_read_and_all_else_refused() {
        assert_eq!(parse("atScope()"), Some(vec![Call("atScope", "")]));
        assert_eq!(
            parse("atScope() and assignedTo('a-b')"),
            Some(vec![Call("atScope", ""), Call("assignedTo", "a-b")])
        );
        assert_eq!(
            parse("roleName eq 'A B'  and  type eq 'X'"),
            Some(vec![Equal("roleName", "A B"), Equal("type", "X")])
        );
        for bad in [
            "",
            "a",
            "a eq",
            "a eq b",
            "a eq 'b",
            "a ne 'b'",
            "a eq 'b' or c eq 'd'",
            "a eq 'b''c'",
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
