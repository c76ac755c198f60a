//! `--query`: JMESPath.

use anyhow::{Context as _, anyhow};
use serde_json::Value;

use crate::failure::{Failure, Outcome};

/// Characters of a query at most.
const QUERY_BYTES: usize = 4096;

/// What the query makes of a document.
///
/// # Errors
/// Usage: when it is no query, or fails on this document.
pub fn apply(query: &str, value: &Value) -> Outcome<Value> {
    if query.len() > QUERY_BYTES {
        return Err(Failure::usage(anyhow!("--query has {QUERY_BYTES} characters at most")));
    }
    let wrong = |error: jmespath::JmespathError| {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default().to_owned();
        Failure::usage(anyhow!("--query {query:?}: {why}"))
            .hint("jmespath.org; such as \"[].name\" or \"[?tags.team=='x'].{name:name}\"")
    };
    let expression = jmespath::compile(query).map_err(wrong)?;
    let found = expression.search(value).map_err(wrong)?;
    Ok(serde_json::to_value(&*found).context("--query")?)
}
