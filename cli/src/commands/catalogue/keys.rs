//! Files of keys, and who may sign. A private key is never printed.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use catalogue::{
    index::Index,
    key::{PublicKey, SigningKey},
    limits::KEY_FILE_BYTES,
};
use clap::Subcommand;
use daemon::atomic;
use rustix::process::geteuid;
use secrecy::{ExposeSecret, ExposeSecretMut, SecretBox, SecretString};
use serde_json::{Value, json};

use super::{folder, folder::Folder};
use crate::{
    failure::{Failure, Hint, Outcome},
    output::{self, Column, OutputArgs},
    terminal::say,
};

const COLUMNS: &[Column] = &[("Id", "/id"), ("Algorithm", "/algorithm"), ("Key", "/key")];
const MADE: &[Column] = &[("Id", "/id"), ("PrivateKey", "/privateKey"), ("PublicKey", "/publicKey")];
/// Digits of an id that name a key.
const ID_DIGITS: usize = 8;

/// `towline catalogue keys <action>`.
#[derive(Debug, Subcommand)]
pub enum KeysAction {
    /// The keys that may sign
    List,
    /// Make a key: the private one in FILE (0600), the public one in FILE.pub
    New {
        /// A file that is not there, outside of the catalogue
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Let a key sign, from the next signature on
    Add {
        /// The public key's file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Let a key sign no longer, from the next signature on
    Remove {
        /// Its id, or the first 8 digits of it or more
        #[arg(value_name = "ID")]
        id: String,
    },
}

impl KeysAction {
    /// Runs the action on the catalogue in `folder`.
    pub fn run(self, folder: &Folder, output: &OutputArgs) -> Outcome<()> {
        match self {
            Self::List => output::print_list(rows(&folder.index()?)?, output, COLUMNS, "no keys"),
            Self::New { file } => {
                let key = make(&file, folder)?;
                let made = json!({
                    "id": key.public().id(),
                    "privateKey": file.display().to_string(),
                    "publicKey": public_file(&file).display().to_string(),
                });
                output::print(&made, output, MADE)
            }
            Self::Add { file } => {
                let key = read_public(&file)?;
                let (_lock, mut index) = folder.edit()?;
                if index.keys.contains(&key) {
                    say(&format!("the key {} may sign already", key.id()));
                } else {
                    index.keys.push(key);
                    folder.write_index(&index)?;
                    say(
                        "hint: clusters accept it when it and a key that they know have signed: towline catalogue sign --key OLD --key NEW",
                    );
                }
                output::print(&rows(&index)?.into(), output, COLUMNS)
            }
            Self::Remove { id } => {
                let (_lock, mut index) = folder.edit()?;
                let named = |key: &PublicKey| id.len() >= ID_DIGITS && key.id().to_string().starts_with(&id);
                let found: Vec<_> = index.keys.iter().copied().filter(named).collect();
                let [key] = found[..] else {
                    return Err(
                        Failure::usage(anyhow!("{id:?} is not the id of one key")).hint("towline catalogue keys list")
                    );
                };
                index.keys.retain(|one| *one != key);
                folder.write_index(&index)?;
                say(
                    "hint: sign once more with this key and with another one, so that clusters that know only this key accept the change",
                );
                output::print(&rows(&index)?.into(), output, COLUMNS)
            }
        }
    }
}

fn rows(index: &Index) -> Outcome<Vec<Value>> {
    Ok(index.keys.iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}

/// A private key's file; made where there is none.
pub fn read_or_make(path: &Path, folder: &Folder) -> Outcome<SigningKey> {
    let exists = path.try_exists().with_context(|| format!("cannot read {}", path.display()))?;
    if exists { read_private(path, folder) } else { make(path, folder) }
}

/// Makes a key and both of its files, or none.
fn make(path: &Path, folder: &Folder) -> Outcome<SigningKey> {
    outside(path, folder)?;
    let key = SigningKey::generate()?;
    let pem = SecretString::from(key.to_pem()?);
    create(path, pem.expose_secret(), atomic::PRIVATE)?;
    if let Err(failure) = create(&public_file(path), &key.public().to_pem(), atomic::PUBLIC) {
        // It would be in the way of the next try.
        let _ = fs::remove_file(path);
        return Err(failure);
    }
    Ok(key)
}

fn create(path: &Path, text: &str, mode: u32) -> Outcome<()> {
    // Not by a link, which a memory stick's file system may not have.
    let written = atomic::write_new(path, text.as_bytes(), mode).and_then(|()| atomic::sync_folder(path));
    let written = written.with_context(|| format!("cannot write the key {}", path.display()));
    written.hint(|| "no file is written over: name one that is not there, in a folder that is".to_owned())
}

/// Beside the private key.
fn public_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// Reads a private key, which nobody else may read. What is judged is the open file: its path may name another one at once.
pub fn read_private(path: &Path, folder: &Folder) -> Outcome<SigningKey> {
    outside(path, folder)?;
    let what = || format!("the private key {}", path.display());
    let file = File::open(path).with_context(what)?;
    let facts = file.metadata().with_context(what)?;
    if facts.uid() != geteuid().as_raw() {
        return Err(Failure::from(anyhow!("{} is another user's (uid {})", what(), facts.uid()))
            .hint("sign as its owner; if others have read it, make another key"));
    }
    let mode = facts.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::from(anyhow!("others may read {} (mode {:o})", what(), mode & 0o777))
            .hint(format!("chmod 600 {}; if others have read it, make another key", path.display())));
    }
    // Wiped when it is dropped; with room for all of it, as one that grows leaves copies behind.
    let mut pem: SecretBox<Vec<u8>> = SecretBox::new(Box::new(Vec::with_capacity(KEY_FILE_BYTES + 64)));
    file.take(KEY_FILE_BYTES as u64 + 1).read_to_end(pem.expose_secret_mut()).with_context(what)?;
    Ok(SigningKey::from_pem(pem.expose_secret()).with_context(what)?)
}

/// Reads a public key.
pub fn read_public(path: &Path) -> Outcome<PublicKey> {
    let pem = folder::read(path, KEY_FILE_BYTES as u64)?;
    let key = PublicKey::from_pem(&pem).with_context(|| format!("{} is not a public key", path.display()));
    key.hint(|| "towline catalogue keys new FILE makes FILE.pub".to_owned())
}

/// Whoever serves the catalogue would serve the key with it.
fn outside(path: &Path, folder: &Folder) -> Outcome<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent =
        parent.canonicalize().with_context(|| format!("cannot find the folder of the key {}", path.display()))?;
    let inside = folder.path().canonicalize().is_ok_and(|folder| parent.starts_with(folder));
    if inside {
        return Err(Failure::usage(anyhow!(
            "the key {} would be in the catalogue, and served with it",
            path.display()
        ))
        .hint("keep it outside, on a machine that is not the gateway"));
    }
    Ok(())
}
