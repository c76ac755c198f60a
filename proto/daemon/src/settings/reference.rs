//! The commented reference of a settings file. What keys there are, of which type and within which bounds, is asked of
//! the code that reads the file; what they are for, and what holds without them, is said in a table beside that code,
//! which a test compares with it both ways.

use std::{fmt::Write as _, path::Path};

use super::{Asked, Faults, Section};

/// Columns of a comment.
const WIDTH: usize = 118;

/// What the value beside a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// An example; the key must be there.
    Required,
    /// What holds without the key.
    Default,
    /// An example; without the key there is none, or what the meaning says.
    Example,
}

/// One key of a table.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    name: &'static str,
    literal: &'static str,
    value: Value,
    meaning: &'static str,
}

impl Key {
    /// One that must be there; `literal` is TOML.
    pub const fn required(name: &'static str, literal: &'static str, meaning: &'static str) -> Self {
        Self { name, literal, value: Value::Required, meaning }
    }

    /// One with a default, which `literal` is.
    pub const fn default(name: &'static str, literal: &'static str, meaning: &'static str) -> Self {
        Self { name, literal, value: Value::Default, meaning }
    }

    /// One without a default; `literal` is an example in TOML.
    pub const fn example(name: &'static str, literal: &'static str, meaning: &'static str) -> Self {
        Self { name, literal, value: Value::Example, meaning }
    }

    /// The key's name in its table.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What holds without the key, as TOML; `None` where nothing does, or what the meaning says.
    pub const fn default_literal(&self) -> Option<&'static str> {
        match self.value {
            Value::Default => Some(self.literal),
            Value::Required | Value::Example => None,
        }
    }
}

/// One table of the file, or what stands before all tables.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Its dotted name; empty before all tables.
    pub name: &'static str,
    /// Whether there may be several, written `[[name]]`.
    pub many: bool,
    /// Whether the file needs it.
    pub needed: bool,
    /// What it is for.
    pub meaning: &'static str,
    /// What may be in it.
    pub keys: &'static [Key],
}

impl Table {
    /// One that may be there once.
    pub const fn once(name: &'static str, needed: bool, meaning: &'static str, keys: &'static [Key]) -> Self {
        Self { name, many: false, needed, meaning, keys }
    }

    /// One that may be there several times; it does without.
    pub const fn many(name: &'static str, meaning: &'static str, keys: &'static [Key]) -> Self {
        Self { name, many: true, needed: false, meaning, keys }
    }

    fn key(&self, name: &str) -> String {
        match (self.name, self.many) {
            ("", _) => name.to_owned(),
            (table, true) => format!("{table}[].{name}"),
            (table, false) => format!("{table}.{name}"),
        }
    }
}

/// The reference: valid TOML whose optional keys and tables stand behind `#`, without a space.
pub fn reference(title: &str, tables: &[Table], read: impl FnOnce(Section, &mut Faults)) -> String {
    let asked = asked(tables, read);
    let mut text = String::new();
    comment(&mut text, title);
    for table in tables {
        text.push('\n');
        comment(&mut text, table.meaning);
        if !table.name.is_empty() {
            let off = if table.needed { "" } else { "#" };
            let (open, close) = if table.many { ("[[", "]]") } else { ("[", "]") };
            let _ = writeln!(text, "{off}{open}{}{close}", table.name);
        }
        for key in table.keys {
            let path = table.key(key.name);
            let kind =
                asked.iter().find(|asked| asked.key == path).map(|asked| asked.kind.as_str()).unwrap_or_default();
            let state = match key.value {
                Value::Required => "required",
                Value::Default => "this is the default",
                Value::Example => "optional",
            };
            let between = if kind.is_empty() { "" } else { "; " };
            comment(&mut text, &format!("{} ({kind}{between}{state})", key.meaning));
            let off = if table.needed && key.value == Value::Required { "" } else { "#" };
            let _ = writeln!(text, "{off}{} = {}", key.name, key.literal);
        }
    }
    text
}

/// What is asked of a file that has all that the tables name.
pub fn asked(tables: &[Table], read: impl FnOnce(Section, &mut Faults)) -> Vec<Asked> {
    let text = sample(tables, |_| true);
    // Files that it names are not there: only what is asked for counts.
    let mut faults = Faults::default();
    let Ok((section, recorder)) = Section::recording(&text, Path::new("/nonexistent")) else { return Vec::new() };
    read(section, &mut faults);
    let mut asked = recorder.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    asked.sort();
    asked.dedup_by(|a, b| a.key == b.key);
    asked
}

/// A file with all tables and those keys that are chosen.
pub fn sample(tables: &[Table], chosen: impl Fn(Value) -> bool) -> String {
    let mut text = String::new();
    for table in tables {
        let (open, close) = if table.many { ("[[", "]]") } else { ("[", "]") };
        if !table.name.is_empty() {
            let _ = writeln!(text, "{open}{}{close}", table.name);
        }
        for key in table.keys.iter().filter(|key| chosen(key.value)) {
            let _ = writeln!(text, "{} = {}", key.name, key.literal);
        }
    }
    text
}

/// What is wrong with tables: keys that are read and not described or the other way round, and a different word on
/// whether they must be there. `either` names required ones that another key may stand in for.
pub fn faults(tables: &[Table], either: &[&str], read: impl FnOnce(Section, &mut Faults)) -> Vec<String> {
    let asked = asked(tables, read);
    let is_table = |key: &str| tables.iter().any(|table| table.name == key.trim_end_matches("[]"));
    let described =
        |key: &str| tables.iter().find_map(|table| table.keys.iter().find(|one| table.key(one.name) == key));
    let mut faults = Vec::new();
    for one in &asked {
        match described(&one.key) {
            None if !is_table(&one.key) => faults.push(format!("{} is read and not described", one.key)),
            Some(key) if one.required != (key.value == Value::Required) && !either.contains(&one.key.as_str()) => {
                faults.push(format!("{}: required is {}", one.key, one.required));
            }
            _ => {}
        }
    }
    for table in tables {
        let keys = table.keys.iter().map(|key| table.key(key.name));
        let unread = keys.filter(|key| !asked.iter().any(|one| one.key == *key));
        faults.extend(unread.map(|key| format!("{key} is described and not read")));
    }
    faults
}

fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[Key] = &[
        Key::required("name", "\"x\"", "What it is called."),
        Key::default("count", "3", "How many."),
        Key::example("file", "\"f\"", "Where."),
    ];
    const TABLES: &[Table] = &[
        Table { name: "one", many: false, needed: true, meaning: "The one.", keys: KEYS },
        Table { name: "more", many: true, needed: false, meaning: "Others.", keys: KEYS },
    ];

    fn read(mut root: Section, faults: &mut Faults) {
        let one = root.section("one", faults);
        for mut section in root.sections("more", faults).into_iter().chain([one]) {
            section.required("name", "a name", faults);
            section.number("count", 1..=9, faults);
            section.path("file", faults);
            section.end(faults);
        }
        root.end(faults);
    }

    #[test]
    fn a_reference_says_type_bounds_and_default_of_each_key() {
        assert_eq!(faults(TABLES, &[], read), [""; 0]);
        let text = reference("All of it.", TABLES, read);
        let expected = "# All of it.\n\n# The one.\n[one]\n# What it is called. (text; required)\nname = \"x\"\n\
            # How many. (whole number from 1 to 9; this is the default)\n#count = 3\n# Where. (path; optional)\n#file = \"f\"\n\n\
            # Others.\n#[[more]]\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn what_is_not_described_is_found_and_so_is_what_is_not_read() {
        const MORE: &[Key] = &[KEYS[0], KEYS[1], KEYS[2], Key::default("gone", "1", "")];
        const LESS: &[Key] = &[KEYS[1], KEYS[2]];
        let some = &[Table { keys: LESS, ..TABLES[0] }, Table { keys: MORE, ..TABLES[1] }];
        assert_eq!(
            faults(some, &[], read),
            ["one.name is read and not described", "more[].gone is described and not read"]
        );
    }
}
