//! A document as text, in the layout of kubectl: two spaces a level, lists as far left as their key.

use std::fmt::Write as _;

use serde_json::Number;

use super::{Content, Node};
use crate::terminal::steers;

/// Bytes of a key at most before it is written in the long form: YAML's short one ends at 1,024 characters.
const KEY_BYTES: usize = 512;
/// Bytes at most of a text without quotes.
const PLAIN_BYTES: usize = 1024;
/// Texts that some version takes for a truth value, a number or nothing, whatever their case.
const WORDS: &[&str] =
    &["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nil", "nan", "inf", "infinity"];

/// What `!!null` stands for.
const NULL: &str = "tag:yaml.org,2002:null";

/// The document, which ends with a line break.
pub fn document(node: &Node) -> String {
    let mut out = String::new();
    match &node.content {
        Content::Map(entries) if !entries.is_empty() && node.tag.is_none() => map(entries, 0, false, &mut out),
        Content::List(items) if !items.is_empty() && node.tag.is_none() => list(items, 0, false, &mut out),
        _ => value(node, 0, false, &mut out),
    }
    out
}

/// A number that every version takes for one: what has an exponent has a point and a sign too.
pub fn number(number: &Number) -> String {
    let text = number.to_string();
    let Some((mantissa, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

fn map(entries: &[(Node, Node)], indent: usize, mut is_begun: bool, out: &mut String) {
    for (key, content) in entries {
        if !std::mem::take(&mut is_begun) {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        let name = match key.as_str() {
            Some(_) => scalar(key),
            None => flow(key),
        };
        if name.len() > KEY_BYTES {
            let _ = write!(out, "? {name}\n{:indent$}", "");
        } else {
            out.push_str(&name);
        }
        out.push(':');
        value(content, indent, true, out);
    }
}

fn list(items: &[Node], indent: usize, mut is_begun: bool, out: &mut String) {
    for item in items {
        if !std::mem::take(&mut is_begun) {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push('-');
        match &item.content {
            Content::Map(entries) if !entries.is_empty() && item.tag.is_none() => {
                out.push(' ');
                map(entries, indent + 2, true, out);
            }
            Content::List(items) if !items.is_empty() && item.tag.is_none() => {
                out.push(' ');
                list(items, indent + 2, true, out);
            }
            _ => value(item, indent, true, out),
        }
    }
}

/// What stands behind a key, behind the dash of a list or alone, with the line break at its end.
fn value(node: &Node, indent: usize, is_behind: bool, out: &mut String) {
    if is_behind && node.tag.is_none() {
        match &node.content {
            Content::Map(entries) if !entries.is_empty() => {
                out.push('\n');
                return map(entries, indent + 2, false, out);
            }
            Content::List(items) if !items.is_empty() => {
                out.push('\n');
                return list(items, indent, false, out);
            }
            _ => {}
        }
    }
    if is_behind {
        out.push(' ');
    }
    match &node.content {
        Content::Text(text) if is_block(text) && node.tag.is_none() => block(text, indent + 2, out),
        Content::Text(_) | Content::Plain(_) => out.push_str(&scalar(node)),
        Content::List(_) | Content::Map(_) => out.push_str(&flow(node)),
    }
    out.push('\n');
}

/// On one line, for what is a key, has a tag, or is empty.
fn flow(node: &Node) -> String {
    let tag = node.tag.as_ref().map_or_else(String::new, |tag| format!("!<{tag}> "));
    match &node.content {
        // These would end it here. Whoever has one has a text.
        Content::Plain(text) if text.contains([',', '[', ']', '{', '}']) => format!("{tag}{}", quoted(text)),
        Content::Text(_) | Content::Plain(_) => scalar(node),
        Content::List(items) => format!("{tag}[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Content::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{}: {}", flow(key), flow(value)));
            format!("{tag}{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

fn scalar(node: &Node) -> String {
    let text = match &node.content {
        // With a tag it is the tag's empty value; `null` would be a text to most of them.
        Content::Plain(text) if text.is_empty() && node.tag.as_deref().is_some_and(|tag| tag != NULL) => quoted(text),
        Content::Plain(text) if text.is_empty() => "null".to_owned(),
        // With a line break in it no reader takes it for anything but a text.
        Content::Plain(text) if !text.contains(['\n', '\r']) => text.clone(),
        Content::Text(text) if is_plain(text) => text.clone(),
        Content::Text(text) | Content::Plain(text) => quoted(text),
        Content::List(_) | Content::Map(_) => flow(node),
    };
    match &node.tag {
        Some(tag) => format!("!<{tag}> {text}"),
        None => text,
    }
}

/// Whether no version of YAML can take the text for anything else. Numbers, dates and what else readers make of a text
/// begin with a digit, a sign or a point, or are words of a known list.
fn is_plain(text: &str) -> bool {
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+' | '=' | '@' | ':' | ' ');
    text.len() <= PLAIN_BYTES
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(allowed)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether a text of several lines is written as such.
fn is_block(text: &str) -> bool {
    let lines = || text.strip_suffix('\n').unwrap_or(text).split('\n');
    text.contains('\n')
        && lines().next().is_some_and(|first| !first.is_empty())
        && lines().all(|line| !line.starts_with(' ') || !line.trim().is_empty())
        && !text.starts_with([' ', '\t'])
        && !text.ends_with("\n\n")
        && text.chars().all(|c| matches!(c, '\n' | '\t') || is_shown(c))
}

fn block(text: &str, indent: usize, out: &mut String) {
    out.push_str(if text.ends_with('\n') { "|" } else { "|-" });
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            let _ = write!(out, "{:indent$}{line}", "");
        }
    }
}

/// Whether a character stands for itself: no control character, no line break of any version, nothing that turns text
/// around.
fn is_shown(c: char) -> bool {
    !steers(c) && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Between double quotes, with the escapes that JSON has too.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_shown(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}
