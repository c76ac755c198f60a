//! Settings files of both programs: TOML that is read key by key, so that every fault is reported at once, each with
//! its key and what is allowed there. Keys that nobody asked for are faults too.

mod duration;
pub mod reference;
mod section;

use std::{
    fmt,
    io::Read as _,
    path::{Path, PathBuf},
};

pub use self::{
    duration::{BadDuration, duration, positive_duration, spell},
    section::{Asked, Section},
};

/// The most bytes of a settings file, and of a file with a secret that one names.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// One fault in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The dotted key, such as `grants[2].cluster`; empty for the file as a whole.
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
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Adds a fault of a key.
    pub fn push(&mut self, key: impl Into<String>, problem: impl fmt::Display) {
        self.0.push(Fault { key: key.into(), problem: problem.to_string() });
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Why `file` cannot be used.
    pub fn of(self, file: &Path) -> BadFile {
        BadFile { file: file.to_owned(), faults: self.0 }
    }
}

/// Why a file cannot be used: all its faults, each on a line of its own with the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    /// Path of the settings file.
    pub file: PathBuf,
    /// What is wrong with it, never empty.
    pub faults: Vec<Fault>,
}

impl std::error::Error for BadFile {}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, count) = (self.file.display(), self.faults.len());
        write!(f, "{file} has {count} fault{}", if count == 1 { "" } else { "s" })?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {file}: {fault}"))
    }
}

/// Reads `file` as settings; relative paths in it are relative to its folder.
pub fn read(file: &Path) -> Result<Section, BadFile> {
    let text = read_bounded(file).map_err(|error| {
        let mut faults = Faults::default();
        faults.push("", format_args!("cannot be read: {error}; --config names another file"));
        faults.of(file)
    })?;
    let base = file.parent().filter(|base| !base.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Section::parse(&text, base).map_err(|faults| faults.of(file))
}

/// Reads a text file of at most [`FILE_BYTES_MAX`].
pub fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_file_and_key() {
        let mut faults = Faults::default();
        faults.push("a.b", "is missing");
        faults.push("", "is not TOML");
        let text = faults.of(Path::new("x/y.toml")).to_string();
        assert_eq!(text, "x/y.toml has 2 faults\n  x/y.toml: a.b: is missing\n  x/y.toml: is not TOML");
    }

    #[test]
    fn a_file_that_is_not_there_is_a_fault_with_its_name() {
        let bad = read(Path::new("/nonexistent/agent.toml")).err().unwrap();
        assert!(bad.to_string().starts_with("/nonexistent/agent.toml has 1 fault\n"), "{bad}");
    }
}
