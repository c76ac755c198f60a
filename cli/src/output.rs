//! What commands print: results to standard output as a table, JSON, YAML or tab-separated values, after `--query`;
//! everything else to standard error. Colour only on a terminal, and never with `NO_COLOR`.

mod query;
mod table;

use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

use anyhow::Context as _;
use serde_json::Value;

pub use self::table::Column;
use crate::{
    args::{Format, OutputArgs},
    failure::Outcome,
};

/// A line for people, to standard error.
pub fn say(text: &str) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
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
        Format::Json => serde_json::to_string_pretty(value).context("JSON")?,
        Format::Yaml => serde_yaml::to_string(value).context("YAML")?.trim_end().to_owned(),
        Format::Tsv => table::tsv(value, columns),
        Format::Table => table::table(value, columns, crate::environment::colour()),
        Format::None => return Ok(()),
    };
    // As kubectl and az: nothing found is nothing printed in the forms for people and for cut(1).
    if text.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // `towline list | head -1`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
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
                "\r\x1b[K{} ... {state} ({} s)",
                self.what,
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
