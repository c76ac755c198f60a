//! The files of a kubeconfig, as kubectl finds, locks and writes them.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use gateway::files;

use super::{CLUSTERS, CONTEXTS, Entry, Parts, USERS, has, merge, read};
use crate::failure::{Failure, Outcome};

/// How often, and how long between, a file is tried that another program is writing.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Links that are followed from one to the next at most, as Linux does.
const LINKS: usize = 40;

/// A merged kubeconfig.
pub struct Merged {
    /// The file that has the context now, links followed.
    pub path: PathBuf,
    /// Those of the files that others could read before.
    pub were_open: Vec<PathBuf>,
}

/// Merges into the files of a kubeconfig, of which the first that exists is the default one, and the last if none does.
/// Entries are changed in the file that has them. Files become private (0600) and are replaced at once; links stay, and
/// kubectl's own locks (`<file>.lock`) are held.
///
/// # Errors
/// When a file is no kubeconfig, or cannot be read or written.
pub async fn merge_files(files: &[PathBuf], entry: &Entry) -> Outcome<Merged> {
    let exists = |file: &&PathBuf| fs::metadata(file).is_ok();
    let default = files.iter().find(exists).or(files.last()).context("no kubeconfig is named")?;
    let mut used: Vec<&PathBuf> = files.iter().filter(|file| exists(file) || *file == default).collect();
    used.dedup();
    if let Some(folder) = target(default)?.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        files::create_private_dir(folder)?;
    }
    let _locks = lock(&used).await?;
    let mut opened = Vec::new();
    for file in used {
        let one = File::open(file)?;
        let (root, _) = read(&one.text).with_context(|| format!("cannot merge into {}", file.display()))?;
        opened.push((file == default, one, root));
    }
    let default = opened.iter().position(|(is_default, ..)| *is_default).unwrap_or(0);
    let home = |list, name: &str| opened.iter().position(|(_, _, root)| has(root, list, name)).unwrap_or(default);
    let (cluster, context) = (home(CLUSTERS, &entry.cluster), home(CONTEXTS, &entry.context));
    let user = home(USERS, &entry.user);
    let mut were_open = Vec::new();
    for (at, (_, file, _)) in opened.iter().enumerate() {
        let parts = Parts { cluster: at == cluster, context: at == context, user: at == user, current: at == default };
        if parts == Parts::default() {
            continue;
        }
        let merged = merge(&file.text, entry, parts);
        file.write(&merged.with_context(|| format!("cannot merge into {}", file.path.display()))?)?;
        if file.is_open() {
            were_open.push(file.path.clone());
        }
    }
    Ok(Merged { path: opened[context].1.path.clone(), were_open })
}

/// A file of a kubeconfig.
struct File {
    /// Path of the file itself: symbolic links are followed.
    path: PathBuf,
    text: Vec<u8>,
    before: Option<fs::Metadata>,
}

impl File {
    fn open(file: &Path) -> Outcome<Self> {
        let path = target(file)?;
        let failed = || format!("cannot read {}", path.display());
        let before = match fs::metadata(&path) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(anyhow!(error).context(failed()).into()),
        };
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            let error = anyhow!("{} is not a file that a kubeconfig can be kept in", file.display());
            return Err(Failure::usage(error).hint("-f - prints the kubeconfig"));
        }
        let text = match &before {
            Some(_) => files::read(&path).with_context(failed)?,
            None => Vec::new(),
        };
        Ok(Self { path, text, before })
    }

    fn is_open(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.permissions().mode() & 0o077 != 0)
    }

    /// Replaces the file, whose owner stays; where it cannot be replaced, as one that is mounted by itself, it is
    /// written over.
    fn write(&self, text: &str) -> Outcome<()> {
        match files::write_private(&self.path, text.as_bytes()) {
            Ok(()) => {}
            Err(files::FileError::Io { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
                let failed = || format!("cannot write {}", self.path.display());
                fs::set_permissions(&self.path, fs::Permissions::from_mode(0o600)).with_context(failed)?;
                fs::write(&self.path, text).with_context(failed)?;
            }
            Err(error) => return Err(error.into()),
        }
        let owner = |data: &fs::Metadata| (data.uid(), data.gid());
        if let Some(before) = self.before.as_ref().map(owner)
            && fs::metadata(&self.path).map(|now| owner(&now)).is_ok_and(|now| now != before)
            && let Err(error) = std::os::unix::fs::chown(&self.path, Some(before.0), Some(before.1))
        {
            tracing::warn!("{} is no longer its former owner's: {error}", self.path.display());
        }
        Ok(())
    }
}

/// What a path leads to, whether that exists or not: a link stays one, also where its file has to be made.
fn target(path: &Path) -> anyhow::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().map_or_else(|| next.clone(), |folder| folder.join(&next)),
            // No link, or nothing.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => return Ok(path),
            Err(error) => return Err(anyhow!(error).context(format!("cannot read {}", path.display()))),
        }
    }
    Err(anyhow!(io::Error::from(ErrorKind::InvalidInput)).context(format!("{} leads to itself", path.display())))
}

/// Locks files under the names by which kubectl would, and under those that their links lead to. In one order for
/// everybody.
async fn lock(files: &[&PathBuf]) -> Outcome<Vec<FileLock>> {
    let mut names: Vec<PathBuf> = Vec::new();
    for file in files {
        names.extend([(*file).clone(), target(file)?]);
    }
    names.sort();
    names.dedup();
    let mut locks = Vec::new();
    for name in names {
        locks.push(FileLock::take(&name).await?);
    }
    Ok(locks)
}

/// kubectl's own lock on a kubeconfig: a file beside it that exists only once.
struct FileLock {
    path: PathBuf,
}

impl FileLock {
    async fn take(kubeconfig: &Path) -> Outcome<Self> {
        let mut name = kubeconfig.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let path = kubeconfig.with_file_name(name);
        for _ in 0..LOCK_TRIES {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Self { path }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => tokio::time::sleep(LOCK_PAUSE).await,
                Err(error) => return Err(anyhow!(error).context(format!("cannot make {}", path.display())).into()),
            }
        }
        let error = anyhow!("{} is being written by another program: {} exists", kubeconfig.display(), path.display());
        Err(Failure::from(error).hint(format!("if none is running: rm {}", path.display())))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If it is gone already there is nothing to undo.
        let _ = fs::remove_file(&self.path);
    }
}
