//! `--query`: what a JMESPath expression makes of a command's answer, as in `az`. Queries are bounded in length and
//! depth, and answered on a thread with a stack of its own, because the library recurses as deep as a query is nested.

use anyhow::{Context as _, anyhow};
use jmespath::ast::Ast;
use serde_json::Value;

use crate::failure::{Failure, Outcome};

/// Characters of a query at most.
const QUERY_BYTES: usize = 4096;
/// Brackets of a query in each other at most.
const NESTED: usize = 64;
/// Bytes of the stack that a query is read and answered on: the library goes as deep as a query is long, and where the
/// stack ends the command would end without a word.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// What a query found.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// The value. Members of its objects are in the order of their names.
    pub value: Value,
    /// Names of the members of the objects that the query makes, in the order in which it names them; none where the objects
    /// are not made by it.
    pub order: Vec<String>,
}

/// What the query makes of a document.
///
/// # Errors
/// Usage: when it is no query, or fails on this document.
pub fn apply(query: &str, value: &Value) -> Outcome<Found> {
    if query.len() > QUERY_BYTES {
        return Err(Failure::usage(anyhow!("--query has {QUERY_BYTES} characters at most")));
    }
    if nested(query) > NESTED {
        return Err(Failure::usage(anyhow!("--query has {NESTED} brackets in each other at most")));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || answer(query, value));
        let answered = thread.context("--query: cannot start a thread for it")?.join();
        answered.unwrap_or_else(|_| Err(Failure::usage(anyhow!("--query {query:?} cannot be answered"))))
    })
}

fn answer(query: &str, value: &Value) -> Outcome<Found> {
    let wrong = |error: jmespath::JmespathError| {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default().to_owned();
        Failure::usage(anyhow!("--query {query:?}: {why}"))
            .hint("jmespath.org; such as \"[].name\" or \"[?tags.team=='x'].{name:name}\"")
    };
    let expression = jmespath::compile(query).map_err(wrong)?;
    let found = expression.search(value).map_err(wrong)?;
    let value = serde_json::to_value(&*found).context("--query: cannot show what was found as JSON")?;
    let order = order(expression.as_ast()).filter(|order| has_only(&value, order)).unwrap_or_default();
    Ok(Found { value, order })
}

/// Names of the members of the objects that come out of a query: those of the last `{name: ...}` that is not within another.
fn order(query: &Ast) -> Option<Vec<String>> {
    match query {
        Ast::MultiHash { elements, .. } => Some(elements.iter().map(|one| one.key.clone()).collect()),
        Ast::Subexpr { lhs, rhs, .. } | Ast::Projection { lhs, rhs, .. } => {
            if chooses(rhs) {
                order(lhs)
            } else {
                order(rhs)
            }
        }
        Ast::Condition { then, .. } => order(then),
        Ast::Flatten { node, .. } => order(node),
        // These give what they got, in another order or less of it.
        Ast::Function { name, args, .. } => match (name.as_str(), args.as_slice()) {
            ("sort_by" | "max_by" | "min_by" | "reverse", [list, ..]) => order(list),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a part of a query only chooses among what it gets.
fn chooses(part: &Ast) -> bool {
    match part {
        Ast::Identity { .. } | Ast::Index { .. } | Ast::Slice { .. } => true,
        Ast::Subexpr { lhs, rhs, .. } | Ast::Projection { lhs, rhs, .. } => chooses(lhs) && chooses(rhs),
        Ast::Condition { then, .. } => chooses(then),
        Ast::Flatten { node, .. } => chooses(node),
        _ => false,
    }
}

/// Whether a value is one object or a list of objects that have exactly these members.
fn has_only(value: &Value, order: &[String]) -> bool {
    let is_made = |one: &Value| {
        let members = one.as_object();
        members.is_some_and(|one| one.len() == order.len() && order.iter().all(|name| one.contains_key(name)))
    };
    match value {
        Value::Array(rows) => rows.iter().all(is_made),
        one => is_made(one),
    }
}

/// How many brackets are open at once; those in texts count too, of which nobody needs as many.
fn nested(query: &str) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for sign in query.bytes() {
        match sign {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn i2_members_have_the_order_in_which_a_query_names_them() {
        let value = json!([{"name": "a", "tags": {"team": "x"}}, {"name": "b", "tags": null}]);
        for query in [
            "[].{n:name,e:tags.team}",
            "[*].{n:name,e:tags}",
            "[?name=='a'].{n:name,e:{z:name,a:name}}",
            "[].{n:name,e:tags} | [0]",
            "sort_by([].{n:name,e:tags}, &n)",
            "[?name=='a'].{n:name,e:tags} | [0:1]",
            "[0].{n:name,e:tags}",
            "[].{e:tags,n:name} | [].{n:n,e:e}",
        ] {
            assert_eq!(apply(query, &value).unwrap().order, ["n", "e"], "{query}");
        }
        for query in ["[].name", "[]", "[].tags", "[].{n:name} | [0].n", "[].[{n:name}]", "{n:[0].name}.n"] {
            assert!(apply(query, &value).unwrap().order.is_empty(), "{query}");
        }
    }

    /// Whatever is typed gets an answer or a sentence, also where it is as deep as it is long.
    #[test]
    fn i2_any_query_is_answered_or_refused_as_usage() {
        let value = json!([{"name": "a", "tags": {"team": "x"}}]);
        assert_eq!(apply("[].name", &value).unwrap().value, json!(["a"]));
        assert_eq!(apply("[?tags.team=='x'].name | [0]", &value).unwrap().value, json!("a"));
        let parts = [
            "(",
            "[",
            "{a:",
            "!",
            "a.",
            "&",
            "*[",
            "[?",
            "not_null(",
            "a|",
            "`",
            "'",
            "\"",
            "[*].",
            "a||",
            "@.",
            "[0:",
            "é",
        ];
        for part in parts {
            for times in [1, 2, 3, 100, QUERY_BYTES / part.len(), QUERY_BYTES] {
                let query = part.repeat(times);
                let _ = apply(&query, &value);
                let _ = apply(&format!("{query}a"), &value);
            }
        }
        for bad in ["", "[", "name ==", "nothing(@)", "length(`7`)", "[].{", "sort(@)", &"x".repeat(QUERY_BYTES + 1)] {
            let error = apply(bad, &value).unwrap_err();
            assert!(format!("{error:?}").starts_with("Failure { code: 2,"), "{bad:.40}: {error:?}");
        }
    }
}
