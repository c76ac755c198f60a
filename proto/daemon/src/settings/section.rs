//! One table of a settings file. Values are taken out by name, with their bounds; whatever is left in the end is a
//! fault, so that a misspelled key does not go unnoticed. It notes what it was asked for, from which the references of
//! the settings are made.

use std::{
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{Faults, duration, spell};

/// One table of the file. Values are taken out of it; [`Section::end`] complains about what is left.
pub struct Section {
    path: String,
    base: Arc<Path>,
    table: Table,
    allowed: Vec<&'static str>,
    /// What was asked for, where somebody wants to know.
    asked: Option<Recorder>,
}

/// What the code that reads a file asked it for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// The dotted key; `[]` stands for each of several tables.
    pub key: String,
    /// Type and bounds; empty where the table reads itself.
    pub kind: String,
    /// Whether it must be there.
    pub required: bool,
}

/// What was asked of a file.
pub(super) type Recorder = Arc<Mutex<Vec<Asked>>>;

impl Section {
    /// The text of a file in the folder `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Faults> {
        match text.parse::<Table>() {
            Ok(table) => Ok(Self { path: String::new(), base: base.into(), table, allowed: Vec::new(), asked: None }),
            Err(error) => {
                let mut faults = Faults::default();
                // Not the line itself, which may hold what is not for a log.
                let before = error.span().and_then(|span| text.get(..span.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                faults.push("", format_args!("is not TOML: line {line}: {}", error.message()));
                Err(faults)
            }
        }
    }

    /// The same, which notes what is asked for.
    pub(super) fn recording(text: &str, base: &Path) -> Result<(Self, Recorder), Faults> {
        let recorder = Recorder::default();
        let section = Self::parse(text, base)?;
        Ok((Self { asked: Some(Arc::clone(&recorder)), ..section }, recorder))
    }

    fn inner(&self, path: String, table: Table) -> Self {
        Self { path, base: Arc::clone(&self.base), table, allowed: Vec::new(), asked: self.asked.clone() }
    }

    /// Notes that a key is asked for, or more about it.
    fn note(&self, name: &str, change: impl FnOnce(&mut Asked)) {
        let Some(recorder) = &self.asked else { return };
        let mut key = String::new();
        // Of several tables each is as the first.
        for (n, part) in self.key(name).split('[').enumerate() {
            key += &if n == 0 {
                part.to_owned()
            } else {
                format!("[{}", part.trim_start_matches(|c: char| c.is_ascii_digit()))
            };
        }
        let mut asked = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        let at = asked.iter().position(|one| one.key == key).unwrap_or_else(|| {
            asked.push(Asked { key, kind: String::new(), required: false });
            asked.len() - 1
        });
        change(&mut asked[at]);
    }

    fn note_kind(&self, name: &str, kind: impl FnOnce() -> String) {
        self.note(name, |asked| asked.kind = kind());
    }

    /// The file's folder.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The dotted key of `name` in this section.
    pub fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the file has it.
    pub fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.allowed.push(name);
        self.note(name, |_| {});
        self.table.remove(name)
    }

    /// Notes that what was found under `name` is not what must be there.
    fn wrong(&self, name: &str, found: &Value, allowed: impl fmt::Display, faults: &mut Faults) {
        faults.push(self.key(name), format_args!("is {}, must be {allowed}", shown(found)));
    }

    /// A table, empty if it is not there.
    pub fn section(&mut self, name: &'static str, faults: &mut Faults) -> Section {
        let table = match self.take(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                self.wrong(name, &other, format_args!("a table, written [{}]", self.key(name)), faults);
                Table::new()
            }
        };
        self.inner(self.key(name), table)
    }

    /// The table at `name`, if there is one.
    pub fn optional_section(&mut self, name: &'static str, faults: &mut Faults) -> Option<Section> {
        let there = self.has(name);
        let section = self.section(name, faults);
        there.then_some(section)
    }

    /// An array of tables.
    pub fn sections(&mut self, name: &'static str, faults: &mut Faults) -> Vec<Section> {
        let key = self.key(name);
        let allowed = format!("tables, each written [[{key}]]");
        let entries = match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries,
            Some(other) => {
                self.wrong(name, &other, &allowed, faults);
                Vec::new()
            }
        };
        let mut sections = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            match entry {
                Value::Table(table) => sections.push(self.inner(format!("{key}[{index}]"), table)),
                other => self.wrong(name, &other, &allowed, faults),
            }
        }
        sections
    }

    /// Reads a text that is not empty. `None`: the key is missing, or a fault was added.
    pub fn text(&mut self, name: &'static str, faults: &mut Faults) -> Option<String> {
        self.note_kind(name, || "text".to_owned());
        match self.take(name)? {
            Value::String(text) if !text.is_empty() => Some(text),
            other => {
                self.wrong(name, &other, "a text in quotes that is not empty", faults);
                None
            }
        }
    }

    /// A text that must be there.
    pub fn required(&mut self, name: &'static str, what: &str, faults: &mut Faults) -> Option<String> {
        self.must(name, what, faults);
        self.text(name, faults)
    }

    fn must(&mut self, name: &'static str, what: &str, faults: &mut Faults) {
        self.note(name, |asked| asked.required = true);
        if !self.has(name) {
            faults.push(self.key(name), format_args!("is missing; {what}"));
        }
    }

    /// A text that `parse` understands; its error says what is allowed.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        faults: &mut Faults,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(name, faults)?;
        parse(&text).map_err(|error| faults.push(self.key(name), format_args!("is {:?}: {error}", hidden(&text)))).ok()
    }

    /// The same where it must be there.
    pub fn required_parsed<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        what: &str,
        faults: &mut Faults,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.must(name, what, faults);
        self.parsed(name, faults, parse)
    }

    /// Texts that are not empty; none at all if it is not there.
    pub fn texts(&mut self, name: &'static str, faults: &mut Faults) -> Option<Vec<String>> {
        const ALLOWED: &str = "a list of texts in quotes that are not empty";
        self.note_kind(name, || "list of texts".to_owned());
        let entries = match self.take(name)? {
            Value::Array(entries) => entries,
            other => {
                self.wrong(name, &other, ALLOWED, faults);
                return None;
            }
        };
        let mut texts = Vec::new();
        for entry in entries {
            match entry {
                Value::String(text) if !text.is_empty() => texts.push(text),
                other => faults.push(self.key(name), format_args!("holds {}, must be {ALLOWED}", shown(&other))),
            }
        }
        Some(texts)
    }

    /// A path, relative to the file's folder.
    pub fn path(&mut self, name: &'static str, faults: &mut Faults) -> Option<PathBuf> {
        let text = self.text(name, faults);
        self.note_kind(name, || "path".to_owned());
        text.map(|text| self.base.join(text))
    }

    /// A path that must be there.
    pub fn required_path(&mut self, name: &'static str, what: &str, faults: &mut Faults) -> Option<PathBuf> {
        self.must(name, what, faults);
        self.path(name, faults)
    }

    /// A whole number within `allowed`.
    pub fn number(&mut self, name: &'static str, allowed: RangeInclusive<u32>, faults: &mut Faults) -> Option<u32> {
        self.note_kind(name, || format!("whole number from {} to {}", allowed.start(), allowed.end()));
        let value = self.take(name)?;
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| allowed.contains(number)).or_else(|| {
            let text = format!("a whole number from {} to {}", allowed.start(), allowed.end());
            self.wrong(name, &value, text, faults);
            None
        })
    }

    /// A duration such as `"30s"` within `allowed`.
    pub fn duration(
        &mut self,
        name: &'static str,
        allowed: RangeInclusive<Duration>,
        faults: &mut Faults,
    ) -> Option<Duration> {
        self.note_kind(name, || format!("duration from {} to {}", spell(*allowed.start()), spell(*allowed.end())));
        let value = self.take(name)?;
        let read = value.as_str().and_then(|text| duration(text).ok());
        read.filter(|duration| allowed.contains(duration)).or_else(|| {
            let (least, most) = (spell(*allowed.start()), spell(*allowed.end()));
            let form = "a duration in quotes such as \"30s\" (ms, s, m, h or d)";
            self.wrong(name, &value, format_args!("{form}, from {least} to {most}"), faults);
            None
        })
    }

    /// True or false.
    pub fn flag(&mut self, name: &'static str, faults: &mut Faults) -> Option<bool> {
        self.note_kind(name, || "true or false".to_owned());
        let value = self.take(name)?;
        if value.as_bool().is_none() {
            self.wrong(name, &value, "true or false", faults);
        }
        value.as_bool()
    }

    /// What is in this table as a type that reads itself. Each key is read by itself, so that one fault hides no other;
    /// `required` are texts that must be there.
    pub fn into<T: DeserializeOwned>(self, required: &[(&'static str, &str)], faults: &mut Faults) -> Option<T> {
        let before = faults.0.len();
        let stand_in = || required.iter().map(|(name, _)| ((*name).to_owned(), Value::String((*name).to_owned())));
        for (name, what) in required {
            if !self.has(name) {
                faults.push(self.key(name), format_args!("is missing; {what}"));
            }
        }
        self.note_own::<T>(required);
        for (name, value) in &self.table {
            let mut alone: Table = stand_in().collect();
            alone.insert(name.clone(), value.clone());
            if let Err(error) = Value::Table(alone).try_into::<T>() {
                faults.push(self.key(name), error.message().replace('`', "\""));
            }
        }
        if faults.0.len() > before {
            return None;
        }
        let key = self.path.clone();
        Value::Table(self.table).try_into().map_err(|error: toml::de::Error| faults.push(key, error.message())).ok()
    }

    /// Notes the keys of a type that reads itself: it names them when it is shown one that it does not know.
    fn note_own<T: DeserializeOwned>(&self, required: &[(&'static str, &str)]) {
        if self.asked.is_none() {
            return;
        }
        let mut strange: Table =
            required.iter().map(|(name, _)| ((*name).to_owned(), Value::String((*name).to_owned()))).collect();
        strange.insert("?".to_owned(), Value::Boolean(true));
        let Err(error) = Value::Table(strange).try_into::<T>() else { return };
        let known = error.message().split_once("expected one of").map(|(_, known)| known).unwrap_or_default();
        for name in known.split('`').skip(1).step_by(2) {
            self.note(name, |asked| asked.required = required.iter().any(|(required, _)| *required == name));
        }
    }

    /// Complains about keys that nobody asked for.
    pub fn end(self, faults: &mut Faults) {
        for name in self.table.keys() {
            faults.push(self.key(name), format_args!("is not known; known here: {}", self.allowed.join(", ")));
        }
    }
}

/// A value in a message; texts are short there, and what holds others is named by its kind.
fn shown(value: &Value) -> String {
    const CHARS: usize = 60;
    match value {
        Value::String(text) if text.chars().count() > CHARS => "a longer text".to_owned(),
        Value::String(text) => format!("{:?}", hidden(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// Without the user and the password that an address may hold.
fn hidden(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://...{}", &text[..scheme], &text[at..]),
        (None, Some(at)) => format!("...{}", &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(text: &str, read: impl FnOnce(&mut Section, &mut Faults)) -> Vec<String> {
        let (mut section, mut faults) = (Section::parse(text, Path::new("/base")).unwrap(), Faults::default());
        read(&mut section, &mut faults);
        section.end(&mut faults);
        faults.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_fault_says_what_was_found_and_what_is_allowed() {
        let text = "t = 7\nlist = [1, \"\"]\nn = -1\nd = \"5\"\nf = \"no\"\ns = 1\nx = 1";
        let found = faults_of(text, |section, faults| {
            section.text("t", faults);
            section.texts("list", faults);
            section.number("n", 1..=9, faults);
            section.duration("d", Duration::from_millis(100)..=Duration::from_secs(3600), faults);
            section.flag("f", faults);
            section.section("s", faults).end(faults);
            section.required("gone", "it is needed", faults);
        });
        assert_eq!(
            found,
            [
                "t: is 7, must be a text in quotes that is not empty",
                "list: holds 1, must be a list of texts in quotes that are not empty",
                "list: holds \"\", must be a list of texts in quotes that are not empty",
                "n: is -1, must be a whole number from 1 to 9",
                "d: is \"5\", must be a duration in quotes such as \"30s\" (ms, s, m, h or d), from 100ms to 1h",
                "f: is \"no\", must be true or false",
                "s: is 1, must be a table, written [s]",
                "gone: is missing; it is needed",
                "x: is not known; known here: t, list, n, d, f, s, gone",
            ]
        );
    }

    #[test]
    fn one_fault_of_a_table_that_reads_itself_hides_no_other() {
        #[derive(serde::Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Thing {
            name: String,
            url: String,
            #[serde(default)]
            count: u8,
        }
        let text = "[[things]]\ncount = \"many\"\ncolour = 1\nname = 2\n";
        let found = faults_of(text, |section, faults| {
            for one in section.sections("things", faults) {
                assert!(one.into::<Thing>(&[("name", "a name"), ("url", "an address")], faults).is_none());
            }
        });
        assert_eq!(found.len(), 4, "{found:#?}");
        for key in ["things[0].url: is missing; an address", "things[0].count:", "things[0].colour:", "things[0].name:"]
        {
            assert!(found.iter().any(|fault| fault.starts_with(key)), "{key} in {found:#?}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        let found = faults_of("url = \"http://ann:geheim@proxy:1\"", |section, faults| {
            section.parsed("url", faults, |_| Err::<(), _>("no user here"));
        });
        assert_eq!(found, ["url: is \"http://...@proxy:1\": no user here"]);
    }

    #[test]
    fn paths_are_relative_to_the_files_folder() {
        let mut section = Section::parse("a = \"x\"\nb = \"/y\"", Path::new("/base")).unwrap();
        let mut faults = Faults::default();
        assert_eq!(section.path("a", &mut faults).unwrap(), Path::new("/base/x"));
        assert_eq!(section.path("b", &mut faults).unwrap(), Path::new("/y"));
    }
}
