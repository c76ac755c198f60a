//! Merges entries into a kubeconfig: what others put there stays as it is and where it is, unknown keys included.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use gateway::issuer::files;
use serde_yaml::{Mapping, Value};

use crate::failure::{Failure, Outcome};

/// How often, and how long between, a file is tried that another program is writing.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// How a user proves who they are.
pub enum UserEntry {
    /// A token.
    Token {
        /// The token.
        token: String,
        /// PEM of a client certificate and its key beside it.
        certificate: Option<(String, String)>,
    },
    /// A command that prints a token.
    Exec {
        /// `client.authentication.k8s.io/v1` or `v1beta1`.
        api_version: &'static str,
        /// The program.
        command: String,
        /// What it is called with.
        args: Vec<String>,
        /// What it finds in its environment beside kubectl's own.
        env: Vec<(String, String)>,
    },
}

/// One cluster, one user and one context.
pub struct Entry {
    /// Name of the cluster entry.
    pub cluster: String,
    /// Name of the user entry.
    pub user: String,
    /// Name of the context.
    pub context: String,
    /// URL.
    pub server: String,
    /// PEM; none for the system's authorities.
    pub ca: Option<String>,
    /// A proxy for kubectl itself, without a password.
    pub proxy_url: Option<String>,
    /// The user.
    pub credential: UserEntry,
}

/// Puts the entry into the text of a kubeconfig (empty for a new one) and makes its context the current one. Entries of
/// the same names are replaced where they stand.
pub fn merge(text: &str, entry: &Entry) -> anyhow::Result<String> {
    let mut root = match serde_yaml::from_str::<Value>(text) {
        Ok(Value::Null) => Mapping::new(),
        Ok(Value::Mapping(root)) => root,
        Ok(_) => bail!("it is no kubeconfig: a mapping was expected"),
        // The library's message may quote the file, which holds secrets.
        Err(error) => match error.location() {
            Some(place) => bail!("it is not YAML: line {} column {}", place.line(), place.column()),
            None => bail!("it is not YAML"),
        },
    };
    if root.get("kind").is_some_and(|kind| kind.as_str() != Some("Config")) {
        bail!("it is no kubeconfig: its kind is not Config");
    }
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if !root.contains_key(key) {
            root.insert(key.into(), value.into());
        }
    }
    put(&mut root, "clusters", "cluster", &entry.cluster, cluster(entry))?;
    put(
        &mut root,
        "contexts",
        "context",
        &entry.context,
        mapping([("cluster", &entry.cluster), ("user", &entry.user)]),
    )?;
    put(&mut root, "users", "user", &entry.user, user(&entry.credential))?;
    root.insert("current-context".into(), entry.context.as_str().into());
    Ok(serde_yaml::to_string(&root)?)
}

fn mapping<'a>(entries: impl IntoIterator<Item = (&'a str, &'a String)>) -> Mapping {
    entries.into_iter().map(|(key, value)| (key.into(), value.as_str().into())).collect()
}

fn cluster(entry: &Entry) -> Mapping {
    let ca = entry.ca.as_ref().map(|ca| BASE64.encode(ca));
    let mut cluster = mapping([("server", &entry.server)]);
    cluster.extend(mapping(ca.iter().map(|ca| ("certificate-authority-data", ca))));
    cluster.extend(mapping(entry.proxy_url.iter().map(|url| ("proxy-url", url))));
    cluster
}

fn user(credential: &UserEntry) -> Mapping {
    match credential {
        UserEntry::Token { token, certificate } => {
            let mut user = mapping([("token", token)]);
            if let Some((certificate, key)) = certificate {
                user.insert("client-certificate-data".into(), BASE64.encode(certificate).into());
                user.insert("client-key-data".into(), BASE64.encode(key).into());
            }
            user
        }
        UserEntry::Exec { api_version, command, args, env } => {
            let mut exec = mapping([("apiVersion", &(*api_version).to_owned()), ("command", command)]);
            exec.insert("args".into(), args.iter().map(|arg| Value::from(arg.as_str())).collect::<Vec<_>>().into());
            let env = env.iter().map(|(name, value)| Value::from(mapping([("name", name), ("value", value)])));
            let env: Vec<Value> = env.collect();
            exec.insert("env".into(), if env.is_empty() { Value::Null } else { env.into() });
            exec.insert("interactiveMode".into(), "Never".into());
            exec.insert("provideClusterInfo".into(), false.into());
            [(Value::from("exec"), Value::from(exec))].into_iter().collect()
        }
    }
}

fn put(root: &mut Mapping, list: &str, key: &str, name: &str, content: Mapping) -> anyhow::Result<()> {
    let entries = root.entry(list.into()).or_insert(Value::Null);
    if entries.is_null() {
        *entries = Value::Sequence(Vec::new());
    }
    let Value::Sequence(entries) = entries else { bail!("it is no kubeconfig: {list} is no list") };
    let mut fresh = Mapping::new();
    fresh.insert("name".into(), name.into());
    fresh.insert(key.into(), content.into());
    match entries.iter_mut().find(|entry| entry["name"].as_str() == Some(name)) {
        Some(old) => *old = fresh.into(),
        None => entries.push(fresh.into()),
    }
    Ok(())
}

/// A merged kubeconfig.
pub struct Merged {
    /// The file itself, links followed.
    pub path: PathBuf,
    /// It could be read by others before.
    pub was_open: bool,
}

/// Merges into a file: 0600, replaced at once, under the lock that kubectl uses (`<file>.lock`).
pub async fn merge_file(path: &Path, entry: &Entry) -> Outcome<Merged> {
    // A link stays a link: what it points to is replaced.
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(_) => path.to_owned(),
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        files::create_private_dir(folder)?;
    }
    let _lock = FileLock::take(&path).await?;
    let (text, was_open) = match fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), false),
        Err(error) => return Err(anyhow!(error).context(format!("cannot read {}", path.display())).into()),
        Ok(data) => {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            (text, data.permissions().mode() & 0o077 != 0)
        }
    };
    let merged = merge(&text, entry).with_context(|| format!("cannot merge into {}", path.display()))?;
    files::write_private(&path, merged.as_bytes())?;
    Ok(Merged { path, was_open })
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
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => tokio::time::sleep(LOCK_PAUSE).await,
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

#[cfg(test)]
mod tests;
