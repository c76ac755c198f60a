//! Keys, users and service principals as they are kept: files of one folder, or documents of a store that several
//! gateways share. What is kept is the same text; in the store it is sealed. Whoever changes them does it here, so that
//! commands, the API and the issuer itself change the same.
//!
//! A store takes over what the folder has at its first start ([`Vault::begin`]). The files stay as a copy, with a note
//! beside them, and are never read again: two places that both say who may sign in would differ one day.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Issuer, IssuerError, KEYS_FILE, PRINCIPALS_FILE, REFRESH_FILE, USERS_FILE,
    kept::KeptError,
    keys::{Keys, KeysError},
    principals::{Principals, PrincipalsError},
    refresh::Refresh,
    tickets::family_ticket,
    users::{Users, UsersError},
};
use crate::{
    files::{self, FILE_BYTES, FileError},
    store::{
        Store, StoreError,
        protect::{ProtectError, Protector},
    },
};

/// The documents of a store.
pub(super) const KEYS: &str = "issuer/keys";
pub(super) const USERS: &str = "issuer/users";
pub(super) const PRINCIPALS: &str = "issuer/principals";
/// The key of seals and of keyed hashes.
pub(super) const SECRET: &str = "issuer/secret";
/// Bytes of that key.
pub(super) const SECRET_BYTES: usize = 32;
const ALL: [&str; 4] = [KEYS, USERS, PRINCIPALS, SECRET];
/// The file that says that the others are a copy.
const NOTE_FILE: &str = "MOVED.txt";
const NOTE: &str = "The state of the built-in issuer was taken over by the PostgreSQL store of the gateway ([api] \
                    postgres_url_file). The files beside this one are as they were at that time, and are not read any \
                    more: keep them as a copy, or delete them, but leave this note.\n";

/// The issuer's part of a store.
#[derive(Clone)]
pub struct Vault {
    pub(super) store: Store,
    pub(super) protector: Arc<Protector>,
}

/// Where the documents of an issuer are.
#[derive(Clone)]
pub enum Documents {
    /// Files of one folder.
    Folder(PathBuf),
    /// A store that several gateways share.
    Store(Vault),
}

impl Vault {
    /// The issuer's part of `store`, sealed with `protector`.
    pub fn new(store: Store, protector: Arc<Protector>) -> Self {
        Self { store, protector }
    }

    /// Keeps the first documents where there are none: those of the files in `folder`, or new ones. Of several gateways
    /// that start at once one does. What is there stays.
    ///
    /// # Errors
    /// When the folder's files cannot be read, when they were taken over by another store, or when there is no key and
    /// clusters have pinned one (`used`).
    pub async fn begin(&self, folder: &Path, used: bool) -> Result<(), IssuerError> {
        let kept = self.store.document_versions().await.map_err(KeptError::from)?;
        let there = |name: &str| kept.iter().any(|(known, _)| known == name);
        if ALL.into_iter().any(there) {
            if let Some(lost) = ALL.into_iter().find(|name| !there(name)) {
                return Err(KeptError::Lost(lost).into());
            }
            leave_note(folder);
            return Ok(());
        }
        if is_moved(folder) {
            return Err(IssuerError::Moved { note: note(folder) });
        }
        let keys_file = folder.join(KEYS_FILE);
        let from_files = keys_file.exists();
        let (keys, users, principals, refresh) = if from_files {
            let keys = files::read(&keys_file).map_err(KeysError::from)?;
            Keys::parse(&keys_file, &keys).map_err(KeysError::from)?;
            let users = Users::read(&folder.join(USERS_FILE)).map_err(UsersError::from)?;
            let principals = Principals::read(&folder.join(PRINCIPALS_FILE)).map_err(PrincipalsError::from)?;
            (keys, users, principals, Refresh::read(&folder.join(REFRESH_FILE))?)
        } else if let Some(beside) = Issuer::began(folder) {
            return Err(IssuerError::Lost { keys: keys_file, beside });
        } else if used {
            return Err(IssuerError::NoKey { folder: folder.to_owned() });
        } else {
            (Keys::first()?.0, Users::default(), Principals::default(), Refresh::default())
        };
        let secret = secret()?;
        let documents = vec![
            (KEYS, self.seal(KEYS, &keys)?),
            (USERS, self.seal(USERS, &bytes(USERS, &users)?)?),
            (PRINCIPALS, self.seal(PRINCIPALS, &bytes(PRINCIPALS, &principals)?)?),
            (SECRET, self.seal(SECRET, &secret)?),
        ];
        let tickets = refresh.families.iter().map(|family| family_ticket(&self.protector, &secret, family));
        let tickets = tickets.collect::<Result<Vec<_>, _>>()?;
        let begun = self.store.begin_documents(documents, tickets).await.map_err(KeptError::from)?;
        if begun && from_files {
            tracing::info!(folder = %folder.display(), "the store has taken over the built-in issuer's files");
        }
        leave_note(folder);
        Ok(())
    }

    pub(super) fn seal(&self, name: &'static str, content: &[u8]) -> Result<Vec<u8>, KeptError> {
        self.protector.seal(name, content).map_err(|source| KeptError::Sealed { name, source })
    }

    pub(super) fn open(&self, name: &'static str, sealed: &[u8]) -> Result<Vec<u8>, KeptError> {
        self.protector.unseal(name, sealed).map_err(|source| KeptError::Sealed { name, source })
    }

    /// A document with its version.
    pub(super) async fn read(&self, name: &'static str) -> Result<(i64, Vec<u8>), KeptError> {
        let document = self.store.document(name).await?.ok_or(KeptError::NotStarted)?;
        Ok((document.version, self.open(name, &document.sealed)?))
    }

    /// Changes a document under the store's lock; `change` gets what is there.
    async fn change<T, E: From<KeptError>>(
        &self,
        name: &'static str,
        change: impl FnOnce(Vec<u8>) -> Result<(Option<Vec<u8>>, T), E>,
    ) -> Result<T, E> {
        let changed = self.store.change_document(name, |sealed| {
            let sealed = sealed.ok_or(KeptError::NotStarted).map_err(|error| Changed::Said(error.into()))?;
            let old = self.open(name, sealed).map_err(|error| Changed::Said(error.into()))?;
            let (new, value) = change(old).map_err(Changed::Said)?;
            let new = new.map(|new| self.seal(name, &new)).transpose().map_err(|error| Changed::Said(error.into()))?;
            Ok((new, value))
        });
        match changed.await {
            Ok((_, value)) => Ok(value),
            Err(Changed::Said(error)) => Err(error),
            Err(Changed::Store(error)) => Err(KeptError::from(error).into()),
        }
    }

    async fn edit<F: Default + Serialize + DeserializeOwned, T, E: From<KeptError>>(
        &self,
        name: &'static str,
        change: impl FnOnce(&mut F) -> Result<T, E>,
    ) -> Result<T, E> {
        self.change(name, |old| {
            let mut content: F = files::parse_json(&place(name), &old).map_err(KeptError::from)?;
            let value = change(&mut content)?;
            let new = bytes(name, &content)?;
            Ok(((new != old).then_some(new), value))
        })
        .await
    }

    /// Makes another signing key where there is none that can be used, and the other documents where they are missing.
    ///
    /// # Errors
    /// The store's; also that a key is there and sealed with another key of the key file, which is to be put right.
    async fn replace_lost_key(&self) -> Result<Option<Keys>, KeysError> {
        let (made, keys) = Keys::first()?;
        let mut news = vec![(KEYS, made)];
        for (name, content) in [
            (USERS, bytes(USERS, &Users::default())?),
            (PRINCIPALS, bytes(PRINCIPALS, &Principals::default())?),
            (SECRET, secret()?.to_vec()),
        ] {
            news.push((name, content));
        }
        for (name, content) in news {
            let done = self.store.change_document(name, |sealed| {
                let usable = match sealed.map(|sealed| self.open(name, sealed)) {
                    None | Some(Err(KeptError::Sealed { source: ProtectError::Damaged, .. })) => false,
                    Some(Err(error)) => return Err(Changed::Said(error)),
                    Some(Ok(old)) => name != KEYS || Keys::parse(&place(name), &old).is_ok(),
                };
                let new = if usable { None } else { Some(self.seal(name, &content).map_err(Changed::Said)?) };
                Ok((new, usable))
            });
            match done.await {
                Ok((_, true)) if name == KEYS => return Ok(None),
                Ok(_) => {}
                Err(Changed::Said(error)) => return Err(error.into()),
                Err(Changed::Store(error)) => return Err(KeptError::from(error).into()),
            }
        }
        Ok(Some(keys))
    }
}

/// Why a document was not changed.
enum Changed<E> {
    Said(E),
    Store(StoreError),
}

impl<E> From<StoreError> for Changed<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Documents {
    /// Changes the users.
    ///
    /// # Errors
    /// What `change` says, or that they cannot be read or written; then nothing has changed.
    pub async fn edit_users<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Users) -> Result<T, UsersError> + Send + 'static,
    ) -> Result<T, UsersError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(USERS_FILE);
                aside(move || Users::edit(&path, change)).await
            }
            Self::Store(vault) => vault.edit(USERS, change).await,
        }
    }

    /// Changes the service principals.
    ///
    /// # Errors
    /// As [`Self::edit_users`].
    pub async fn edit_principals<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Principals) -> Result<T, PrincipalsError> + Send + 'static,
    ) -> Result<T, PrincipalsError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(PRINCIPALS_FILE);
                aside(move || Principals::edit(&path, change)).await
            }
            Self::Store(vault) => vault.edit(PRINCIPALS, change).await,
        }
    }

    /// The users.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn users(&self) -> Result<Users, KeptError> {
        match self {
            Self::Folder(folder) => Ok(Users::read(&folder.join(USERS_FILE))?),
            Self::Store(vault) => Ok(Users::parse(&place(USERS), &vault.read(USERS).await?.1)?),
        }
    }

    /// The service principals.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn principals(&self) -> Result<Principals, KeptError> {
        match self {
            Self::Folder(folder) => Ok(Principals::read(&folder.join(PRINCIPALS_FILE))?),
            Self::Store(vault) => Ok(Principals::parse(&place(PRINCIPALS), &vault.read(PRINCIPALS).await?.1)?),
        }
    }

    /// Makes another signing key in place of one that is lost; none where it is not.
    ///
    /// # Errors
    /// When a key is there and only cannot be read now.
    pub async fn replace_lost_key(&self) -> Result<Option<Keys>, KeysError> {
        match self {
            Self::Folder(folder) => match Keys::load(&folder.join(KEYS_FILE)) {
                Ok(_) => Ok(None),
                Err(KeysError::File(error)) if error.is_missing() => {
                    Keys::load_or_create(&folder.join(KEYS_FILE)).map(Some)
                }
                Err(error) => Err(error),
            },
            Self::Store(vault) => vault.replace_lost_key().await,
        }
    }

    /// The keys.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn keys(&self) -> Result<Keys, KeysError> {
        match self {
            Self::Folder(folder) => Keys::load(&folder.join(KEYS_FILE)),
            Self::Store(vault) => {
                let bytes = vault.read(KEYS).await?.1;
                Ok(Keys::parse(&place(KEYS), &bytes).map_err(KeptError::from)?)
            }
        }
    }

    /// Signs with a new key from now on ([`Keys::rotate`]).
    ///
    /// # Errors
    /// When the keys cannot be read or written.
    pub async fn rotate_key(&self) -> Result<Keys, KeysError> {
        match self {
            Self::Folder(folder) => Keys::rotate(&folder.join(KEYS_FILE)),
            Self::Store(vault) => {
                let change = |old: Vec<u8>| {
                    let old = Keys::parse(&place(KEYS), &old).map_err(KeptError::from)?;
                    let (new, keys) = old.with_one_more()?;
                    Ok((Some(new), keys))
                };
                vault.change(KEYS, change).await
            }
        }
    }

    /// Revokes a key ([`Keys::revoke`]).
    ///
    /// # Errors
    /// When there is no such key, or they cannot be read or written.
    pub async fn revoke_key(&self, kid: &str) -> Result<Keys, KeysError> {
        match self {
            Self::Folder(folder) => Keys::revoke(&folder.join(KEYS_FILE), kid),
            Self::Store(vault) => {
                let change = |old: Vec<u8>| Keys::parse(&place(KEYS), &old).map_err(KeptError::from)?.without(kid);
                vault.change(KEYS, change).await
            }
        }
    }

    /// Ends what was opened for them.
    pub async fn close(&self) {
        if let Self::Store(vault) = self {
            vault.store.close().await;
        }
    }

    /// Whether what the store at `url` keeps can be opened with this key and read; the store is not changed. Nothing is
    /// wrong with a store that has no documents yet.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn look(url: &str, protector: &Protector) -> Result<bool, KeptError> {
        let documents = Store::documents_at(url).await?;
        let of = |name: &'static str| documents.iter().find(|document| document.name == name);
        for name in ALL {
            let Some(document) = of(name) else {
                match ALL.into_iter().any(|name| of(name).is_some()) {
                    true => return Err(KeptError::Lost(name)),
                    false => return Ok(false),
                }
            };
            let unsealed = protector.unseal(name, &document.sealed);
            let content = unsealed.map_err(|source| KeptError::Sealed { name, source })?;
            match name {
                KEYS => drop(Keys::parse(&place(name), &content)?),
                USERS => drop(Users::parse(&place(name), &content)?),
                PRINCIPALS => drop(Principals::parse(&place(name), &content)?),
                _ => {}
            }
        }
        Ok(true)
    }
}

/// Whether a store has taken over the files of a folder.
pub(super) fn is_moved(folder: &Path) -> bool {
    note(folder).exists()
}

/// The note of a folder whose files were taken over.
pub(super) fn note(folder: &Path) -> PathBuf {
    folder.join(NOTE_FILE)
}

/// Says beside files that they are a copy. Where there are none nothing has to be said.
fn leave_note(folder: &Path) {
    let note = note(folder);
    if !folder.join(KEYS_FILE).exists() || note.exists() {
        return;
    }
    if let Err(error) = files::write_private(&note, NOTE.as_bytes()) {
        tracing::warn!(%error, "the built-in issuer's files are no longer read, and no note in their folder says so");
    }
}

/// How errors name a document.
pub(super) fn place(name: &str) -> PathBuf {
    PathBuf::from(format!("the store's document {name}"))
}

fn bytes<F: Serialize>(name: &str, content: &F) -> Result<Vec<u8>, KeptError> {
    let wrong = |reason: String| FileError::Content { path: place(name), reason };
    let bytes = serde_json::to_vec(content).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(wrong(format!("it would be larger than {FILE_BYTES} bytes")).into());
    }
    Ok(bytes)
}

fn secret() -> Result<[u8; SECRET_BYTES], KeptError> {
    Ok(types::random::bytes()?)
}

/// Files are edited under a lock that other processes take too, away from the threads that answer.
async fn aside<T: Send + 'static, E: Send + 'static + From<FileError>>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(FileError::Content { path: PathBuf::new(), reason: error.to_string() }.into()),
    }
}
