//! Files that are replaced or made at once: a reader finds the old content or the new one, never a part of it, also
//! after the machine has lost its power.
//!
//! The content is written to a new file in the same folder, and synced; a rename puts it in place; then the folder is
//! synced, because a rename that is only in memory can be lost together with the file. Every state file of Towline's
//! programs is written by this module, so that no program leaves a step out.
//!
//! A path that is a symbolic link is replaced itself; its target stays as it was. The new file belongs to the user of
//! the process, and has the mode that the caller gives, less the process's umask.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use types::{ids::hex, random};

/// Mode of a file that only its owner may read and write.
pub const PRIVATE: u32 = 0o600;
/// Mode of a file that everybody may read and its owner may write.
pub const PUBLIC: u32 = 0o644;

/// A file could not be replaced or made: the step that failed, its path, and what the operating system reported.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", path.display())]
pub struct AtomicError {
    /// The step that failed, such as `write`.
    pub step: &'static str,
    /// The file or the folder of that step.
    pub path: PathBuf,
    /// What the operating system reported.
    #[source]
    pub source: io::Error,
}

impl AtomicError {
    fn at(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { step, path: path.to_owned(), source }
    }
}

/// Replaces the file at `path`, or makes it if there is none. Others may do the same at the same time: the last one
/// counts, whole.
///
/// # Errors
/// [`AtomicError`]. The file is then as it was, and nothing is left beside it; only if the folder could not be synced,
/// the new content is in place and may be lost with the machine's power.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), AtomicError> {
    let beside = write_beside(path, content, mode)?;
    rename(&beside, path).inspect_err(|_| remove(&beside))
}

/// As [`replace`], of the file `name` in a folder, which is made for its owner only if it is not there.
///
/// # Errors
/// As [`replace`]; also if the folder cannot be made.
pub fn replace_in(folder: &Path, name: &str, content: &[u8], mode: u32) -> Result<(), AtomicError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(AtomicError::at("create the folder", folder))?;
    replace(&folder.join(name), content, mode)
}

/// Makes the file at `path`, unless there is one.
///
/// # Errors
/// [`AtomicError`], whose source is [`io::ErrorKind::AlreadyExists`] if there is a file; it is then as it was. Nothing
/// is left beside it.
pub fn create(path: &Path, content: &[u8], mode: u32) -> Result<(), AtomicError> {
    let beside = write_beside(path, content, mode)?;
    let linked = fs::hard_link(&beside, path).map_err(AtomicError::at("create", path));
    remove(&beside);
    linked?;
    sync_folder(path)
}

/// Writes a file that is not there yet, and syncs it, but not its folder: the first half of [`replace`], for a caller
/// who puts several files in place together by [`rename`] and must find them again by name if that is interrupted.
///
/// # Errors
/// [`AtomicError`], whose source is [`io::ErrorKind::AlreadyExists`] if there is a file. One that could not be written
/// whole is removed.
pub fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), AtomicError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(AtomicError::at("create", path))?;
    let written = file.write_all(content).map_err(AtomicError::at("write", path));
    written.and_then(|()| file.sync_all().map_err(AtomicError::at("sync", path))).inspect_err(|_| remove(path))
}

/// Gives a file or a folder another name in the same folder, in place of what had that name, and syncs the folder.
///
/// # Errors
/// [`AtomicError`].
pub fn rename(from: &Path, to: &Path) -> Result<(), AtomicError> {
    fs::rename(from, to).map_err(AtomicError::at("replace", to))?;
    sync_folder(to)
}

/// Syncs the folder that `path` is in, so that names given or removed there outlast a loss of power.
///
/// # Errors
/// [`AtomicError`].
pub fn sync_folder(path: &Path) -> Result<(), AtomicError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|open| open.sync_all()).map_err(AtomicError::at("sync the folder", folder))
}

/// Writes the new content of the file at `path` under a name that no other writer of it has, in this process or another
/// one. An error names the file itself: nobody knows the other name.
fn write_beside(path: &Path, content: &[u8], mode: u32) -> Result<PathBuf, AtomicError> {
    let random = random::bytes::<8>().map_err(io::Error::other).map_err(AtomicError::at("write", path))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", hex(&random)));
    let beside = path.with_file_name(name);
    match write_new(&beside, content, mode) {
        Ok(()) => Ok(beside),
        Err(AtomicError { source, .. }) => Err(AtomicError { step: "write", path: path.to_owned(), source }),
    }
}

/// The error that is under way says more than one of this would.
fn remove(beside: &Path) {
    let _ = fs::remove_file(beside);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn replaced_file_has_the_new_content_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace(&path, b"first", PUBLIC).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path) & !PUBLIC), (b"first".to_vec(), 0));
        replace(&path, b"second", PRIVATE).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"second".to_vec(), 0o600));
        assert_eq!(names(dir.path()), ["state"]);
    }

    #[test]
    fn open_reader_keeps_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace(&path, b"first", PRIVATE).unwrap();
        let open = File::open(&path).unwrap();
        replace(&path, b"second", PRIVATE).unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "first");
    }

    #[test]
    fn symbolic_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, path) = (dir.path().join("target"), dir.path().join("state"));
        fs::write(&target, "old").unwrap();
        symlink(&target, &path).unwrap();
        replace(&path, b"new", PRIVATE).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
    }

    #[test]
    fn failed_replacement_says_what_failed_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("kept"), "").unwrap();
        let error = replace(&folder, b"new", PRIVATE).unwrap_err();
        assert_eq!((error.step, &error.path), ("replace", &folder));
        assert_eq!(error.to_string(), format!("cannot replace {}", folder.display()));
        assert_eq!(names(dir.path()), ["state"]);
        let missing = dir.path().join("no/state");
        let error = replace(&missing, b"new", PRIVATE).unwrap_err();
        assert_eq!((error.step, &error.path, error.source.kind()), ("write", &missing, io::ErrorKind::NotFound));
    }

    #[test]
    fn missing_folder_is_made_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        replace_in(&folder, "state", b"new", PRIVATE).unwrap();
        replace_in(&folder, "state", b"newer", PRIVATE).unwrap();
        assert_eq!((fs::read_to_string(folder.join("state")).unwrap().as_str(), mode(&folder)), ("newer", 0o700));
        let error = replace_in(&folder.join("state"), "below", b"", PRIVATE).unwrap_err();
        assert_eq!(error.step, "create the folder");
    }

    #[test]
    fn created_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path, b"first", PRIVATE).unwrap();
        let error = create(&path, b"second", PRIVATE).unwrap_err();
        assert_eq!((error.step, error.source.kind()), ("create", io::ErrorKind::AlreadyExists));
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"first".to_vec(), 0o600));
        assert_eq!(names(dir.path()), ["key"]);
    }

    #[test]
    fn concurrent_writers_leave_one_whole_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let contents: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 100_000]).collect();
        std::thread::scope(|scope| {
            for content in &contents {
                scope.spawn(|| replace(&path, content, PRIVATE).unwrap());
            }
        });
        assert!(contents.contains(&fs::read(&path).unwrap()));
        assert_eq!(names(dir.path()), ["state"]);
    }

    #[test]
    fn halves_of_several_files_are_put_in_place_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (new, path) = (dir.path().join("a.new"), dir.path().join("a"));
        write_new(&new, b"half", PRIVATE).unwrap();
        assert_eq!(write_new(&new, b"other", PRIVATE).unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&new).unwrap(), "half");
        rename(&new, &path).unwrap();
        assert_eq!(names(dir.path()), ["a"]);
        assert!(rename(&new, &path).is_err());
    }
}
