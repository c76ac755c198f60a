//! The folder of accounts: private files, replaced whole, edited by one process at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use gateway::files;
use serde::{Deserialize, Serialize};

use crate::{
    account::Account,
    environment,
    failure::{Failure, Outcome},
};

/// How often, and how long between, an account is tried that another command signs in at this moment.
const LOCK_TRIES: u32 = 1800;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Accounts at most.
const ACCOUNTS: usize = 1000;
/// Characters of an account's name at most; a file is named by it.
const NAME_BYTES: usize = 80;

/// The content of `current.json`.
#[derive(Default, Serialize, Deserialize)]
struct Current {
    account: Option<String>,
}

/// Where accounts are kept.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: PathBuf,
}

/// Keeps other commands from changing an account until it is dropped.
pub struct AccountLock {
    _file: File,
}

impl Folder {
    /// The user's.
    ///
    /// # Errors
    /// When no environment variable tells where it is.
    pub fn open() -> Outcome<Self> {
        let dir = environment::config_dir().ok_or_else(|| {
            Failure::usage(anyhow!("where are accounts kept? Neither HOME nor XDG_CONFIG_HOME is set"))
                .hint(format!("{}=FOLDER towline ...", environment::CONFIG_DIR))
        })?;
        Ok(Self { dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join("accounts").join(format!("{}.json", file_name(name)))
    }

    /// The account of this name, or the current one.
    ///
    /// # Errors
    /// When there is none, with what to type.
    pub fn account(&self, name: Option<&str>) -> Outcome<Account> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self.current()?.ok_or_else(|| {
                Failure::from(anyhow!("no user is signed in"))
                    .hint("sign in: towline login https://GATEWAY [--ca FILE]")
            })?,
        };
        let file = self.file(&name);
        match files::read(&file) {
            Ok(bytes) => parse(&file, &bytes),
            Err(error) if !file.exists() => {
                tracing::debug!(%error, "no such account");
                let known = self.names()?;
                let error = anyhow!("there is no account {name:?}");
                Err(match known.is_empty() {
                    true => Failure::from(error).hint("sign in: towline login https://GATEWAY [--ca FILE]"),
                    false => Failure::from(error).hint(format!("towline account list; there are {}", known.join(", "))),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Which account is used without being named.
    pub fn current(&self) -> Outcome<Option<String>> {
        let file = self.dir.join("current.json");
        if !file.exists() {
            return Ok(None);
        }
        let bytes = files::read(&file)?;
        let current: Current = serde_json::from_slice(&bytes).map_err(|error| {
            Failure::from(anyhow!("{} cannot be read: {error}", file.display())).hint(format!("rm {}", file.display()))
        })?;
        Ok(current.account)
    }

    /// Uses this account from now on; none: nobody.
    pub fn set_current(&self, account: Option<&str>) -> Outcome<()> {
        files::create_private_dir(&self.dir)?;
        let current = Current { account: account.map(str::to_owned) };
        Ok(files::write_private(&self.dir.join("current.json"), &serde_json::to_vec_pretty(&current)?)?)
    }

    /// All accounts, by name.
    pub fn accounts(&self) -> Outcome<Vec<Account>> {
        let mut accounts = self.names()?.iter().map(|name| self.account(Some(name))).collect::<Outcome<Vec<_>>>()?;
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(accounts)
    }

    fn names(&self) -> Outcome<Vec<String>> {
        let entries = match std::fs::read_dir(self.dir.join("accounts")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(anyhow!(error).context(format!("cannot read {}", self.dir.display())).into()),
        };
        let mut names = Vec::new();
        for path in entries.take(4 * ACCOUNTS).filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_some_and(|end| end == "json")
                && let Ok(bytes) = files::read(&path)
            {
                names.push(parse(&path, &bytes)?.name);
            }
        }
        names.sort();
        names.truncate(ACCOUNTS);
        Ok(names)
    }

    /// Waits until no other command changes this account. Ctrl+C ends the wait.
    ///
    /// # Errors
    /// When it takes too long.
    pub async fn lock(&self, name: &str) -> Outcome<AccountLock> {
        let path = self.file(name).with_extension("lock");
        if let Some(folder) = path.parent() {
            files::create_private_dir(folder)?;
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(AccountLock { _file: file }),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
                Err(TryLockError::Error(error)) => {
                    return Err(anyhow!(error).context(format!("cannot lock {}", path.display())).into());
                }
            }
        }
        Err(anyhow!("another towline has been signing in as {name} for longer than {:?}", LOCK_PAUSE * LOCK_TRIES)
            .into())
    }

    /// Keeps an account whose lock is held.
    pub fn write(&self, account: &Account, _lock: &AccountLock) -> Outcome<()> {
        if account.name.is_empty() || file_name(&account.name).len() > 3 * NAME_BYTES {
            return Err(Failure::usage(anyhow!("an account's name has 1 to {NAME_BYTES} characters")));
        }
        Ok(files::write_private(&self.file(&account.name), &serde_json::to_vec_pretty(account)?)?)
    }

    /// Forgets an account. False: there was none.
    pub fn remove(&self, name: &str, _lock: &AccountLock) -> Outcome<bool> {
        match std::fs::remove_file(self.file(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(anyhow!(error).context(format!("cannot remove {}", self.file(name).display())).into()),
        }
    }
}

/// Never quotes the file: it holds secrets.
fn parse(file: &Path, bytes: &[u8]) -> Outcome<Account> {
    serde_json::from_slice(bytes).map_err(|error| {
        let error = anyhow!("{} is not an account: line {} column {}", file.display(), error.line(), error.column());
        Failure::from(error).hint(format!("remove it and sign in again: rm {}", file.display()))
    })
}

/// A name as a file's: what is special anywhere is written in hex.
fn file_name(name: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_' | b'@');
    let mut out = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match plain(byte) && !(at == 0 && byte == b'.') {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Account {
        Account { name: name.to_owned(), ..Account::at("gw.example", None).unwrap() }
    }

    #[tokio::test]
    async fn accounts_are_private_whole_and_locked() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { dir: dir.path().join("deep/er") };
        assert!(folder.accounts().unwrap().is_empty() && folder.current().unwrap().is_none());
        assert!(folder.account(None).is_err());
        let name = "Ann/../x@gw:1";
        let lock = folder.lock(name).await.unwrap();
        folder.write(&account(name), &lock).unwrap();
        folder.set_current(Some(name)).unwrap();
        assert_eq!(folder.account(None).unwrap().name, name);
        let file = folder.file(name);
        assert_eq!(file.parent().unwrap(), dir.path().join("deep/er/accounts"), "a name leads nowhere else");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let second = folder.lock(name);
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut second => panic!("locked twice"),
            () = tokio::time::sleep(LOCK_PAUSE) => {}
        }
        drop(lock);
        let lock = second.await.unwrap();
        assert!(folder.remove(name, &lock).unwrap() && !folder.remove(name, &lock).unwrap());
    }

    #[test]
    fn a_broken_account_is_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { dir: dir.path().to_owned() };
        std::fs::create_dir(dir.path().join("accounts")).unwrap();
        std::fs::write(folder.file("a"), "{\"signsIn\": \"geheim\"}").unwrap();
        assert!(!format!("{:?}", folder.account(Some("a")).err().unwrap()).contains("geheim"));
    }
}
