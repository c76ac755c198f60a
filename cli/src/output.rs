//! What commands print: results to standard output as a table, JSON, YAML or tab-separated values, after `--query`;
//! everything else to standard error. Colour only on a terminal, and never with `NO_COLOR`.

mod query;
mod table;
mod text;

use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

use anyhow::Context as _;
use serde_json::Value;

pub use self::{
    table::Column,
    text::{line, lines, steers},
};
use crate::{
    args::{Format, OutputArgs},
    failure::{Failure, Outcome},
    yaml,
};

/// A line for people, to standard error.
pub fn say(text: &str) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{}", lines(text));
}

/// Prints a result. `columns` are what a table and tab-separated values show without `--query`.
///
/// # Errors
/// When the query cannot be read, or standard output is closed.
pub fn print(value: &Value, args: &OutputArgs, columns: &[Column]) -> Outcome<()> {
    let (value, columns) = match &args.query {
        Some(query) => (&query::apply(query, value)?, None),
        None => (value, Some(columns)),
    };
    let text = match args.output {
        Format::Json => json(value)?,
        Format::Yaml => yaml::to_string(value).trim_end_matches('\n').to_owned(),
        Format::Tsv => table::tsv(value, columns),
        Format::Table => table::table(value, columns, crate::environment::colour()),
        Format::None => return Ok(()),
    };
    // As kubectl and az: nothing found is nothing printed in the forms for people and for cut(1).
    if text.is_empty() {
        return Ok(());
    }
    to_stdout(&text)
}

/// Prints a text to standard output as it is, but for what could steer a terminal.
///
/// # Errors
/// When standard output is closed: as with other programs, a reader that has had enough ends the command without a word.
pub fn print_text(text: &str) -> Outcome<()> {
    to_stdout(&lines(text))
}

fn to_stdout(text: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::unread(error),
        _ => error.into(),
    })
}

/// A value as JSON of several lines, which steers no terminal.
///
/// # Errors
/// When a map has keys that are no texts.
pub fn json(value: &Value) -> anyhow::Result<String> {
    Ok(text::json(&serde_json::to_string_pretty(value).context("JSON")?))
}

/// A value as JSON on one line, which steers no terminal.
pub fn json_line(value: &Value) -> String {
    text::json(&value.to_string())
}

/// Prints a list. That there is nothing in it is said to people, `nothing` being how; scripts read nothing.
///
/// # Errors
/// As [`print`].
pub fn print_list(rows: Vec<Value>, args: &OutputArgs, columns: &[Column], nothing: &str) -> Outcome<()> {
    if rows.is_empty() && args.query.is_none() && args.output == Format::Table {
        say(nothing);
    }
    print(&rows.into(), args, columns)
}

/// What is going on, on standard error: one line that changes on a terminal, a line for each change elsewhere.
pub struct Progress {
    what: String,
    begun: Instant,
    terminal: bool,
    last: std::sync::Mutex<String>,
}

impl Progress {
    /// Begins.
    pub fn new(what: &str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let this = Self { what: what.to_owned(), begun: Instant::now(), terminal, last: std::sync::Mutex::default() };
        if !terminal {
            say(&format!("{what} ..."));
        }
        this
    }

    /// Says how far it is.
    pub fn note(&self, state: &str) {
        if self.terminal {
            let _ = write!(
                std::io::stderr().lock(),
                "\r\x1b[K{} ... {} ({} s)",
                self.what,
                line(state),
                self.begun.elapsed().as_secs()
            );
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last != state {
            state.clone_into(&mut last);
            say(&format!("{} ... {state}", self.what));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}
