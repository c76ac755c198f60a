//! What a file may say: a reader of TOML tables that collects every fault instead of stopping at the first, each with its
//! key and what is allowed there. Keys that nobody asked for are faults too.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use toml::{Table, Value};

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The file.
    pub file: PathBuf,
    /// Each fault as `key: what is wrong and what is allowed`.
    pub faults: Vec<String>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        write!(f, "{}: {count} fault{}", self.file.display(), if count == 1 { "" } else { "s" })?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Faults {}

/// Collects faults; shared by all tables of one file.
#[derive(Debug)]
pub struct Collector {
    base: PathBuf,
    faults: Vec<String>,
}

impl Collector {
    /// Relative paths in the file are relative to `base`, the file's own folder.
    pub fn new(base: &Path) -> Self {
        Self { base: base.to_owned(), faults: Vec::new() }
    }

    /// Notes a fault of `key`.
    pub fn fault(&mut self, key: &str, text: impl fmt::Display) {
        self.faults.push(format!("{key}: {text}"));
    }

    /// The faults so far.
    pub fn into_faults(self) -> Vec<String> {
        self.faults
    }
}

/// A value as a fault may show it: a user with a password in an address is not for a log.
fn without_user(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://<removed>@{host}"),
        (None, Some((_, host))) => format!("<removed>@{host}"),
        (_, None) => text.to_owned(),
    }
}

/// One table of the file.
pub struct Section {
    name: String,
    table: Table,
    known: BTreeSet<&'static str>,
}

impl Section {
    /// The whole file.
    pub fn root(table: Table) -> Self {
        Self { name: String::new(), table, known: BTreeSet::new() }
    }

    /// The key as written in messages.
    pub fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Whether the file has the key.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.insert(key);
        self.table.remove(key)
    }

    /// A sub-table; an absent one reads as empty.
    pub fn section(&mut self, key: &'static str, out: &mut Collector) -> Self {
        let name = self.key(key);
        let table = match self.take(key) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                out.fault(&name, format_args!("expected a table, found {}", other.type_str()));
                Table::new()
            }
        };
        Self { name, table, known: BTreeSet::new() }
    }

    /// An array of tables, each left to `read`.
    pub fn tables<T>(
        &mut self,
        key: &'static str,
        out: &mut Collector,
        mut read: impl FnMut(Table) -> Result<T, String>,
    ) -> Vec<T> {
        let name = self.key(key);
        let values = match self.take(key) {
            None => Vec::new(),
            Some(Value::Array(values)) => values,
            Some(other) => {
                out.fault(&name, format_args!("expected tables ([[{name}]]), found {}", other.type_str()));
                Vec::new()
            }
        };
        let mut items = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let result = match value {
                Value::Table(table) => read(table),
                other => Err(format!("expected a table, found {}", other.type_str())),
            };
            match result {
                Ok(item) => items.push(item),
                Err(text) => out.fault(&format!("{name}[{index}]"), text.trim()),
            }
        }
        items
    }

    /// A text.
    pub fn text(&mut self, key: &'static str, out: &mut Collector) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            other => {
                out.fault(&self.key(key), format_args!("expected text, found {}", other.type_str()));
                None
            }
        }
    }

    /// A text that `parse` understands.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        out: &mut Collector,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(key, out)?;
        parse(&text).map_err(|err| out.fault(&self.key(key), format_args!("{:?}: {err}", without_user(&text)))).ok()
    }

    /// Texts.
    pub fn texts(&mut self, key: &'static str, out: &mut Collector) -> Option<Vec<String>> {
        let Value::Array(values) = self.take(key)? else {
            out.fault(&self.key(key), "expected an array of texts");
            return None;
        };
        let mut texts = Vec::new();
        for value in values {
            match value {
                Value::String(text) => texts.push(text),
                other => out.fault(&self.key(key), format_args!("expected texts, found {}", other.type_str())),
            }
        }
        Some(texts)
    }

    /// A path, relative to the file's folder.
    pub fn path(&mut self, key: &'static str, out: &mut Collector) -> Option<PathBuf> {
        self.text(key, out).map(|text| out.base.join(text))
    }

    /// A whole number within `range`.
    pub fn integer(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<i64>,
        out: &mut Collector,
    ) -> Option<i64> {
        match self.take(key)? {
            Value::Integer(number) if range.contains(&number) => Some(number),
            other => {
                let allowed = format!("expected a whole number from {} to {}", range.start(), range.end());
                out.fault(&self.key(key), format_args!("{allowed}, found {other}"));
                None
            }
        }
    }

    /// True or false.
    pub fn flag(&mut self, key: &'static str, out: &mut Collector) -> Option<bool> {
        let name = self.key(key);
        match self.take(key)? {
            Value::Boolean(value) => Some(value),
            other => {
                out.fault(&name, format_args!("expected true or false, found {}", other.type_str()));
                None
            }
        }
    }

    /// A duration such as `30s`, `8h`, `0s`.
    pub fn duration(&mut self, key: &'static str, out: &mut Collector) -> Option<Duration> {
        self.parsed(key, out, parse_duration)
    }

    /// Notes keys that nobody asked for.
    pub fn end(self, out: &mut Collector) {
        for key in self.table.keys() {
            let known = self.known.iter().copied().collect::<Vec<_>>().join(", ");
            out.fault(&self.key(key), format_args!("unknown key; allowed here: {known}"));
        }
    }
}

/// Reads `250ms`, `30s`, `5m`, `8h` or `7d`; `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const ALLOWED: &str = "expected a number and a unit: ms, s, m, h or d, such as \"30s\"";
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| ALLOWED)?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        "" if number == 0 => Some(0),
        _ => return Err(ALLOWED),
    };
    millis.map(Duration::from_millis).ok_or("too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("8h"), Ok(Duration::from_secs(8 * 3600)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for bad in ["", "8", "h", "-1s", "1 s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
