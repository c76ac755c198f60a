//! Reads a TOML file key by key, so that every fault is reported at once, each with its key and what is allowed there.
//! Keys that nobody asked for are faults too.

use std::{fmt, path::PathBuf, time::Duration};

use toml::{Table, Value};

/// One fault in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The dotted key, such as `grants[2].cluster`.
    pub key: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { f.write_str(&self.problem) } else { write!(f, "{}: {}", self.key, self.problem) }
    }
}

/// The faults found so far.
#[derive(Debug, Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Notes one.
    pub fn push(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Fault { key: key.into(), problem: problem.into() });
    }
}

/// One table of the file. Values are taken out of it; [`Section::end`] complains about what is left.
pub struct Section {
    path: String,
    table: Table,
    allowed: Vec<&'static str>,
}

impl Section {
    /// The whole file.
    pub fn root(table: Table) -> Self {
        Self { path: String::new(), table, allowed: Vec::new() }
    }

    /// The dotted key of `name` in this section.
    pub fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a value out as it is.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.allowed.push(name);
        self.table.remove(name)
    }

    /// A table, empty if it is not there.
    pub fn section(&mut self, name: &'static str, faults: &mut Faults) -> Section {
        let path = self.key(name);
        let table = match self.take(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                faults.push(&path, format!("is {}, must be a table", kind(&other)));
                Table::new()
            }
        };
        Section { path, table, allowed: Vec::new() }
    }

    /// An array of tables.
    pub fn sections(&mut self, name: &'static str, faults: &mut Faults) -> Vec<Section> {
        let key = self.key(name);
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries
                .into_iter()
                .enumerate()
                .filter_map(|(index, entry)| {
                    let path = format!("{key}[{index}]");
                    match entry {
                        Value::Table(table) => Some(Section { path, table, allowed: Vec::new() }),
                        other => {
                            faults.push(path, format!("is {}, must be a table", kind(&other)));
                            None
                        }
                    }
                })
                .collect(),
            Some(other) => {
                faults.push(&key, format!("is {}, must be tables, each written [[{key}]]", kind(&other)));
                Vec::new()
            }
        }
    }

    /// A text.
    pub fn text(&mut self, name: &'static str, faults: &mut Faults) -> Option<String> {
        let key = self.key(name);
        match self.take(name)? {
            Value::String(text) if !text.is_empty() => Some(text),
            Value::String(_) => {
                faults.push(key, "is empty");
                None
            }
            other => {
                faults.push(key, format!("is {}, must be a text in quotes", kind(&other)));
                None
            }
        }
    }

    /// A text that must be there.
    pub fn required(&mut self, name: &'static str, what: &str, faults: &mut Faults) -> Option<String> {
        if !self.table.contains_key(name) {
            self.allowed.push(name);
            faults.push(self.key(name), format!("is missing; {what}"));
            return None;
        }
        self.text(name, faults)
    }

    /// A path that must be there.
    pub fn required_path(&mut self, name: &'static str, what: &str, faults: &mut Faults) -> Option<PathBuf> {
        self.required(name, what, faults).map(PathBuf::from)
    }

    /// A list of texts, empty if it is not there.
    pub fn texts(&mut self, name: &'static str, faults: &mut Faults) -> Vec<String> {
        let key = self.key(name);
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries
                .into_iter()
                .filter_map(|entry| match entry {
                    Value::String(text) if !text.is_empty() => Some(text),
                    other => {
                        faults.push(&key, format!("holds {}, must hold texts in quotes", kind(&other)));
                        None
                    }
                })
                .collect(),
            Some(other) => {
                faults.push(key, format!("is {}, must be a list of texts", kind(&other)));
                Vec::new()
            }
        }
    }

    /// A whole number within `allowed`, or `default`.
    pub fn number(
        &mut self,
        name: &'static str,
        default: u64,
        allowed: std::ops::RangeInclusive<u64>,
        faults: &mut Faults,
    ) -> u64 {
        let key = self.key(name);
        let Some(value) = self.take(name) else { return default };
        match value.as_integer().and_then(|n| u64::try_from(n).ok()) {
            Some(number) if allowed.contains(&number) => number,
            _ => {
                faults.push(
                    key,
                    format!("is {value}, must be a whole number from {} to {}", allowed.start(), allowed.end()),
                );
                default
            }
        }
    }

    /// A duration such as `"30s"` within `allowed`, or `default`.
    pub fn duration(
        &mut self,
        name: &'static str,
        default: Duration,
        allowed: std::ops::RangeInclusive<Duration>,
        faults: &mut Faults,
    ) -> Duration {
        let key = self.key(name);
        let Some(value) = self.take(name) else { return default };
        match value.as_str().and_then(parse_duration) {
            Some(duration) if allowed.contains(&duration) => duration,
            _ => {
                faults.push(
                    key,
                    format!(
                        "is {value}, must be a duration in quotes such as \"30s\", \"500ms\", \"5m\" or \"8h\", from {:?} to {:?}",
                        allowed.start(),
                        allowed.end()
                    ),
                );
                default
            }
        }
    }

    /// What is left of the table, for a type that reads itself; nothing is left here.
    pub fn rest(&mut self) -> Table {
        std::mem::take(&mut self.table)
    }

    /// Complains about keys that nobody asked for.
    pub fn end(self, faults: &mut Faults) {
        for name in self.table.keys() {
            faults.push(self.key(name), format!("is not known; known here: {}", self.allowed.join(", ")));
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// `0`, or a whole number and one of `ms`, `s`, `m`, `h`.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let millis = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_one_spelling() {
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("0"), Some(Duration::ZERO));
        assert_eq!(parse_duration("8h"), Some(Duration::from_secs(8 * 3600)));
        for bad in ["", "s", "1", "-1s", "1.5s", "1d", "99999999999999999999s", "1 s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
