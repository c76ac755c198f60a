//! What commands print to standard output: results as a table, JSON, YAML or tab-separated values, after `--query`.
//! Colour only on a terminal, and never with `NO_COLOR`.

mod query;
mod table;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use daemon::stdout;
use serde_json::Value;

pub use self::table::Column;
use crate::{
    environment::colour,
    failure::{Failure, Outcome},
    terminal::{escape_json, lines, say},
    yaml,
};

/// A form of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum Format {
    /// A table with titles, for people.
    #[default]
    Table,
    /// All of it.
    Json,
    /// All of it, as YAML.
    Yaml,
    /// Values between tabs, without titles.
    Tsv,
    /// Prints no result.
    None,
}

/// How results are printed.
#[derive(Debug, Args, Clone, Default)]
pub struct OutputArgs {
    /// How results are printed
    #[arg(
        short = 'o',
        long,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        global = true,
        help_heading = "Output"
    )]
    pub output: Format,
    /// Print what this JMESPath query makes of the result, such as "[].name"
    #[arg(long, value_name = "JMESPATH", global = true, help_heading = "Output")]
    pub query: Option<String>,
}

/// Prints a result. `columns` are what a table and tab-separated values show without `--query`.
///
/// # Errors
/// When the query cannot be read, or standard output is closed.
pub fn print(value: &Value, args: &OutputArgs, columns: &[Column]) -> Outcome<()> {
    let found = args.query.as_ref().map(|query| query::apply(query, value)).transpose()?;
    let named = found.as_ref().map(|found| table::named(&found.order)).unwrap_or_default();
    let named: Vec<(&str, &str)> = named.iter().map(|(title, at)| (title.as_str(), at.as_str())).collect();
    let (value, columns): (_, Option<&[(&str, &str)]>) = match &found {
        Some(found) => (&found.value, (!named.is_empty()).then_some(&named)),
        None => (value, Some(columns)),
    };
    let text = match args.output {
        Format::Json => json(value)?,
        Format::Yaml => yaml::to_string(value).trim_end_matches('\n').to_owned(),
        Format::Tsv => table::tsv(value, columns),
        Format::Table => table::table(value, columns, colour()),
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
/// When standard output is closed: as with other programs, a reader that has had enough ends the command without a
/// word.
pub fn print_text(text: &str) -> Outcome<()> {
    to_stdout(&lines(text))
}

fn to_stdout(text: &str) -> Outcome<()> {
    stdout::print(text).map_err(|error| match stdout::failed(&error) {
        (_, None) => Failure::unread(error),
        (_, Some(_)) => error.into(),
    })
}

/// A value as JSON of several lines, which steers no terminal.
///
/// # Errors
/// When a map has keys that are no texts.
pub fn json(value: &Value) -> anyhow::Result<String> {
    Ok(escape_json(&serde_json::to_string_pretty(value).context("cannot write the answer as JSON")?))
}

/// A value as JSON on one line, which steers no terminal.
pub fn json_line(value: &Value) -> String {
    escape_json(&value.to_string())
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
