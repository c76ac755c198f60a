//! Files of a tar archive compressed with gzip, read in memory. All archives of a chart share one [`Budget`], so that a small
//! archive in which another one unpacks to gigabytes ends where its budget ends.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashSet},
    io::{self, Read},
    ops::Range,
};

use flate2::bufread::GzDecoder;
use tar::{Archive, Entry, EntryType, Header};

use super::ChartError;
use crate::limits::{ENTRIES, FILE_BYTES, PATH_BYTES, PAX_BYTES, PAX_RECORDS, UNPACKED_BYTES};

/// Where a header of ustar has the front of a long path, and others have other fields.
const PREFIX: Range<usize> = 345..500;
/// Where a header of star has its mark.
const STAR_MARK: Range<usize> = 508..512;

/// What may still be unpacked.
pub(super) struct Budget {
    bytes: Cell<u64>,
    entries: Cell<usize>,
    /// Whether more was asked for.
    exceeded: Cell<bool>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { bytes: Cell::new(UNPACKED_BYTES), entries: Cell::new(ENTRIES), exceeded: Cell::new(false) }
    }

    /// What a failed read means.
    fn error(&self, error: &io::Error) -> ChartError {
        if self.exceeded.get() { ChartError::Unpacked } else { ChartError::Damaged(error.to_string()) }
    }
}

/// Unpacks as long as the budget lasts.
struct Bounded<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.bytes.get();
        // With nothing left one byte more tells the end from too much.
        let wanted = buffer.len().min(usize::try_from(left.max(1)).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..wanted])?;
        match left.checked_sub(read as u64) {
            Some(left) => {
                self.budget.bytes.set(left);
                Ok(read)
            }
            None => {
                self.budget.exceeded.set(true);
                Err(io::Error::other("too large"))
            }
        }
    }
}

/// Files by their path below the top folder, in order; the content of those that are kept.
pub(super) struct Files(BTreeMap<String, Option<Vec<u8>>>);

impl Files {
    /// Of a file that is there and kept.
    pub(super) fn content(&self, path: &str) -> Option<&[u8]> {
        self.0.get(path)?.as_deref()
    }

    /// Paths of files below a folder, whose path ends with a slash.
    pub(super) fn below(&self, folder: &str) -> impl Iterator<Item = &str> {
        let paths = self.0.range(folder.to_owned()..).map(|(path, _)| path.as_str());
        paths.take_while(move |path| path.starts_with(folder))
    }
}

/// Reads an archive. The content of files that `keep` names is kept.
pub(super) fn read(archive: &[u8], budget: &Budget, keep: impl Fn(&str) -> bool) -> Result<Files, ChartError> {
    let mut archive = Archive::new(Bounded { inner: GzDecoder::new(archive), budget });
    let mut files = BTreeMap::new();
    let mut folders = BTreeSet::new();
    let mut top: Option<String> = None;
    for entry in archive.entries().map_err(|error| budget.error(&error))? {
        let mut entry = entry.map_err(|error| budget.error(&error))?;
        let left = budget.entries.get().checked_sub(1).ok_or(ChartError::Entries)?;
        budget.entries.set(left);
        // A comment on the whole archive, as `git archive` writes it; helm passes over it too.
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            continue;
        }
        let path = path(&mut entry)?;
        let is_folder = is_folder(&entry, &path)?;
        let (folder, below) = inside(&path, is_folder)?;
        match &top {
            None => top = Some(folder.to_owned()),
            Some(top) if top == folder => {}
            Some(top) => return Err(ChartError::Folders(top.clone(), folder.to_owned())),
        }
        let Some(below) = below else { continue };
        if is_folder {
            if !folders.insert(below.to_owned()) {
                return Err(ChartError::Twice(path));
            }
            continue;
        }
        let content = if keep(below) { Some(content(&mut entry, &path, budget)?) } else { None };
        if files.insert(below.to_owned(), content).is_some() {
            return Err(ChartError::Twice(path));
        }
    }
    end(archive.into_inner(), budget)?;
    if let Some(path) = file_and_folder(&files, &folders) {
        return Err(ChartError::Twice(path.to_owned()));
    }
    Ok(Files(files))
}

/// A path that is a file, and a folder by an entry of its own or by what lies in it.
fn file_and_folder<'a, T>(files: &'a BTreeMap<String, T>, folders: &'a BTreeSet<String>) -> Option<&'a str> {
    let parents = files.keys().chain(folders).flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at]));
    folders.iter().map(String::as_str).chain(parents).find(|path| files.contains_key(*path))
}

/// Behind the archive there is nothing but the padding of its last record, and behind that nothing.
fn end(mut rest: Bounded<'_, GzDecoder<&[u8]>>, budget: &Budget) -> Result<(), ChartError> {
    let mut buffer = [0; 8192];
    loop {
        let read = rest.read(&mut buffer).map_err(|error| budget.error(&error))?;
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Err(ChartError::Trailing);
        }
        if read == 0 {
            break;
        }
    }
    if rest.inner.into_inner().is_empty() { Ok(()) } else { Err(ChartError::Trailing) }
}

fn content<R: Read>(entry: &mut Entry<'_, R>, path: &str, budget: &Budget) -> Result<Vec<u8>, ChartError> {
    let mut content = Vec::new();
    entry.take(FILE_BYTES + 1).read_to_end(&mut content).map_err(|error| budget.error(&error))?;
    if content.len() as u64 != entry.size() {
        return Err(ChartError::Damaged(format!("it ends in the middle of {path:?}")));
    }
    Ok(content)
}

/// The path of an entry. Of two paths or sizes in its headers readers take different ones (CVE-2026-33055).
fn path<R: Read>(entry: &mut Entry<'_, R>) -> Result<String, ChartError> {
    let damaged = |error: io::Error| ChartError::Damaged(error.to_string());
    let shown = entry.path_bytes().into_owned();
    let wrong = |reason| ChartError::Path { path: String::from_utf8_lossy(&shown).into_owned(), reason };
    let two_ways = || wrong("has headers that readers understand in two ways");
    let size = entry.size();
    if !has_one_prefix(entry.header()) || entry.header().entry_size().ok() != Some(size) {
        return Err(two_ways());
    }
    let size = size.to_string();
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for extension in entry.pax_extensions().map_err(damaged)?.into_iter().flatten() {
        let extension = extension.map_err(damaged)?;
        let (key, value) = (extension.key_bytes(), extension.value_bytes());
        bytes += key.len() + value.len();
        if bytes > PAX_BYTES || seen.len() == PAX_RECORDS {
            return Err(wrong("has too many or too long headers"));
        }
        let other = key == b"path" && value != shown || key == b"size" && value != size.as_bytes();
        if other || key.starts_with(b"GNU.sparse") || !seen.insert(key) {
            return Err(two_ways());
        }
    }
    String::from_utf8(shown).map_err(|error| ChartError::Path {
        path: String::from_utf8_lossy(error.as_bytes()).into_owned(),
        reason: "is not UTF-8",
    })
}

/// Whether every reader takes the same front of a path from a header. Go takes one also from a ustar header of another
/// version, a part of it from one of star, and one from a GNU header whose times it cannot read.
fn has_one_prefix(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let ustar = header.as_ustar().is_some() && bytes[STAR_MARK] != *b"tar\0";
    let gnu = header.as_gnu().is_some() && bytes[PREFIX].iter().all(|byte| *byte == 0);
    ustar || gnu
}

fn is_folder<R: Read>(entry: &Entry<'_, R>, path: &str) -> Result<bool, ChartError> {
    let kind = match entry.header().entry_type() {
        // What lies in it Go reads as further entries.
        EntryType::Directory if entry.size() > 0 => "a folder with content",
        EntryType::Directory => return Ok(true),
        EntryType::Regular if entry.size() > FILE_BYTES => return Err(ChartError::File(path.to_owned())),
        EntryType::Regular => return Ok(false),
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a named pipe",
        _ => "of an unknown kind",
    };
    Err(ChartError::Kind { path: path.to_owned(), kind })
}

/// The top folder and the path below it, which only the top folder itself does not have.
fn inside(path: &str, is_folder: bool) -> Result<(&str, Option<&str>), ChartError> {
    let wrong = |reason| Err(ChartError::Path { path: path.chars().take(PATH_BYTES).collect(), reason });
    if path.len() > PATH_BYTES {
        return wrong("is too long");
    }
    if path.starts_with('/') {
        return wrong("is absolute");
    }
    // helm takes a backslash for a separator.
    if path.contains('\\') || path.chars().any(char::is_control) {
        return wrong("has a backslash or a control character in it");
    }
    let plain = if is_folder { path.strip_suffix('/').unwrap_or(path) } else { path };
    if plain.split('/').any(|part| part == "..") {
        return wrong("leaves the chart's folder");
    }
    if plain.split('/').any(|part| part.is_empty() || part == ".") {
        return wrong("has an empty part or a dot in it");
    }
    match plain.split_once('/') {
        // A drive of Windows, which helm refuses too.
        Some((_, below)) if below.as_bytes().get(1) == Some(&b':') => wrong("begins with a drive"),
        Some((top, below)) => Ok((top, Some(below))),
        None if is_folder => Ok((plain, None)),
        None => wrong("is not in the chart's folder"),
    }
}
