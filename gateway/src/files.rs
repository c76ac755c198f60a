//! State files: private, replaced whole, edited by one process at a time, and read again when changed. Stands on
//! nothing of this crate.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use daemon::atomic::{self, AtomicError};
use rustix::fs::{Access, access};
use serde::{Serialize, de::DeserializeOwned};

/// The largest state file that is read, in bytes.
pub const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Why a state file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The step that failed, such as `read`.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the operating system reported.
        #[source]
        source: io::Error,
    },
    /// The file is not what it should be. Says nothing of its content: it holds secrets.
    #[error("{path} is not readable as the issuer's state: {reason}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, without any of the content.
        reason: String,
    },
}

impl From<AtomicError> for FileError {
    fn from(AtomicError { step, path, source }: AtomicError) -> Self {
        Self::Io { what: step, path, source }
    }
}

impl FileError {
    /// Whether the file is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the file can be read and is not what it should be.
    pub fn is_of_content(&self) -> bool {
        matches!(self, Self::Content { .. })
    }

    /// Makes an error of `path` from what the operating system reports, for `map_err`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

/// Makes a folder and those above it, for the owner only (0700).
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(FileError::io("create the folder", path))
}

/// Reads a whole file, up to [`FILE_BYTES`].
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let length = fs::metadata(path).map_err(FileError::io("read", path))?.len();
    if length > FILE_BYTES {
        return Err(FileError::Content {
            path: path.to_owned(),
            reason: format!("{length} bytes, at most {FILE_BYTES}"),
        });
    }
    fs::read(path).map_err(FileError::io("read", path))
}

/// Replaces a file at once by one that only its owner can read (0600): readers see the old or the new one, whole.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), FileError> {
    Ok(atomic::replace(path, content, atomic::PRIVATE)?)
}

/// The same for a file that is no secret (0644).
pub fn write_public(path: &Path, content: &[u8]) -> Result<(), FileError> {
    Ok(atomic::replace(path, content, atomic::PUBLIC)?)
}

/// Keeps other processes from editing `path` at the same time until it is dropped. The lock lies beside the file,
/// because the file itself is replaced.
pub struct EditLock {
    _file: File,
}

impl EditLock {
    /// Waits for the lock; editors hold it for an instant.
    pub fn take(path: &Path) -> Result<Self, FileError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let beside = path.with_file_name(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&beside)
            .map_err(FileError::io("open the lock", &beside))?;
        file.lock().map_err(FileError::io("lock", &beside))?;
        Ok(Self { _file: file })
    }
}

/// Changes a state file of JSON under its lock; makes folder and file where there are none. What did not change is not
/// written.
pub(super) fn edit<F, T, E>(
    path: &Path,
    parse: fn(&Path, &[u8]) -> Result<F, FileError>,
    change: impl FnOnce(&mut F) -> Result<T, E>,
) -> Result<T, E>
where
    F: Default + Serialize,
    E: From<FileError>,
{
    if let Some(folder) = path.parent() {
        create_private_dir(folder)?;
    }
    let _lock = EditLock::take(path)?;
    let before = if path.exists() { Some(read(path)?) } else { None };
    let mut content = before.as_ref().map_or_else(|| Ok(F::default()), |bytes| parse(path, bytes))?;
    let result = change(&mut content)?;
    let wrong = |reason: String| FileError::Content { path: path.to_owned(), reason };
    let after = serde_json::to_vec_pretty(&content).map_err(|error| wrong(error.to_string()))?;
    if after.len() as u64 > FILE_BYTES {
        return Err(wrong(format!("it would be larger than {FILE_BYTES} bytes")).into());
    }
    if before.as_deref() != Some(after.as_slice()) {
        write_private(path, &after)?;
    }
    Ok(result)
}

/// Reads JSON. The library's message may quote the content: only its place is told.
pub(super) fn parse_json<F: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<F, FileError> {
    serde_json::from_slice(bytes).map_err(|error| FileError::Content {
        path: path.to_owned(),
        reason: format!("not as expected at line {} column {}", error.line(), error.column()),
    })
}

/// What tells one state of a file from the next.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Stamp {
    content: Content,
    /// When its mode, its owner or its names changed: a key that others could read is taken once they cannot.
    changed: (i64, i64),
}

/// What tells one content of a file from the next: it is replaced, so its inode changes.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Content {
    inode: u64,
    length: u64,
    written: (i64, i64),
}

impl Stamp {
    /// Of the file that is there now.
    ///
    /// # Errors
    /// When there is none, or it may not be looked at.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        fs::metadata(path).map(|data| Self::from(&data)).map_err(FileError::io("read", path))
    }

    /// Of an open file.
    ///
    /// # Errors
    /// When it may not be looked at.
    pub fn of_open(file: &File) -> io::Result<Self> {
        file.metadata().map(|data| Self::from(&data))
    }

    /// The file's bytes.
    pub fn length(&self) -> u64 {
        self.content.length
    }

    /// Whether the content is the same, whatever else has changed.
    pub fn is_same_content(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

impl From<&fs::Metadata> for Stamp {
    fn from(data: &fs::Metadata) -> Self {
        let content = Content { inode: data.ino(), length: data.len(), written: (data.mtime(), data.mtime_nsec()) };
        Self { content, changed: (data.ctime(), data.ctime_nsec()) }
    }
}

/// A parsed file that is read again when it changed. One `stat` per use; a version that does not parse is reported once
/// and the last good one stays.
pub struct Watched<T> {
    path: PathBuf,
    parse: fn(&Path, &[u8]) -> Result<T, FileError>,
    current: ArcSwap<(Stamp, Arc<T>)>,
}

impl<T> Watched<T> {
    /// Reads the file for the first time.
    pub fn open(path: PathBuf, parse: fn(&Path, &[u8]) -> Result<T, FileError>) -> Result<Self, FileError> {
        let stamp = Stamp::of(&path)?;
        let value = parse(&path, &read(&path)?)?;
        Ok(Self { path, parse, current: ArcSwap::from_pointee((stamp, Arc::new(value))) })
    }

    /// The newest version that could be read.
    pub fn current(&self) -> Arc<T> {
        let held = self.current.load_full();
        let stamp = match Stamp::of(&self.path) {
            Ok(stamp) if stamp != held.0 => stamp,
            _ => return held.1.clone(),
        };
        match read(&self.path).and_then(|bytes| (self.parse)(&self.path, &bytes)) {
            Ok(value) => {
                let value = Arc::new(value);
                self.current.store(Arc::new((stamp, value.clone())));
                value
            }
            Err(error) => {
                tracing::warn!(error = %error, "a changed file of the issuer is not usable; the one before stays");
                self.current.store(Arc::new((stamp, held.1.clone())));
                held.1.clone()
            }
        }
    }
}

/// Whether a file can be appended to, or made where it is not there yet.
///
/// # Errors
/// The system's.
pub fn writable(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            writable_folder(folder)
        }
        Err(error) => Err(error),
    }
}

/// Whether files can be made in a folder.
///
/// # Errors
/// The system's.
pub fn writable_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !std::fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_for_the_owner_only_even_where_a_wider_file_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_change_of_the_mode_is_seen_and_leaves_the_content_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_public(&path, b"key").unwrap();
        let before = Stamp::of(&path).unwrap();
        let changed = fs::File::open(&path).unwrap();
        // Until the clock of the file system has gone on.
        let after = loop {
            changed.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
            let now = Stamp::of_open(&changed).unwrap();
            if now != before {
                break now;
            }
        };
        assert!(after.is_same_content(&before));
        write_public(&path, b"key").unwrap();
        assert!(!Stamp::of(&path).unwrap().is_same_content(&before), "another file, though it holds the same");
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        let parse = |path: &Path, bytes: &[u8]| {
            std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse::<u32>().ok())
                .ok_or_else(|| FileError::Content { path: path.to_owned(), reason: "no number".to_owned() })
        };
        write_private(&path, b"1").unwrap();
        let watched = Watched::open(path.clone(), parse).unwrap();
        assert_eq!(*watched.current(), 1);
        write_private(&path, b"2").unwrap();
        assert_eq!(*watched.current(), 2);
        write_private(&path, b"x").unwrap();
        assert_eq!(*watched.current(), 2);
        write_private(&path, b"3").unwrap();
        assert_eq!(*watched.current(), 3);
    }
}
