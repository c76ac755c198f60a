//! Where an identity is kept: a Secret of the pod's namespace, or a folder.

use std::{
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use daemon::{
    atomic::{self, AtomicError},
    settings::read_bounded,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;

use super::{IdentityError, Stored, parse, spell};

/// Names of what is kept, in the Secret and in the folder.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const ROOTS: &str = "ca.crt";
/// The times and the principal beside them, in the folder.
const FACTS: &str = "identity.json";
/// What was learned of issuers' keys. In the folder it is no part of one identity: certificates are exchanged without
/// it.
const ISSUER_KEYS: &str = "issuer-keys.json";
/// Attempts to write the issuers' keys while other processes change the Secret.
const CONFLICTS: u32 = 8;
/// The files of one identity are in a folder of their own below the folder, and this link names the one that counts, so
/// that they change all at once.
const CURRENT: &str = "..current";
/// Annotations of the Secret.
const NOT_BEFORE: &str = "towline.io/not-before";
const NOT_AFTER: &str = "towline.io/not-after";
const RECEIVED: &str = "towline.io/received";
const PRINCIPAL: &str = "towline.io/principal-id";
const TENANT: &str = "towline.io/tenant-id";
/// Who writes the Secret, in its managed fields.
const MANAGER: &str = super::OPERATOR;
/// Who writes the issuers' keys in it.
const KEYS_MANAGER: &str = tunnel::wire::roles::KUBE_AAD_PROXY;
/// How often a folder is looked at by those who do not write it.
const LOOK: Duration = Duration::from_secs(2);

/// Why an identity cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or folder cannot be read or written.
    #[error("{path}")]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// What the operating system reported.
        #[source]
        source: io::Error,
    },
    /// A file cannot be replaced or made.
    #[error(transparent)]
    Write(#[from] AtomicError),
    /// The Secret cannot be read or written, or has other content than expected.
    #[error("Secret {name}: {problem}")]
    Secret {
        /// Name of the Secret, in the namespace of the agents.
        name: String,
        /// What the apiserver answered, or what is wrong with the content.
        problem: String,
    },
    /// What is kept is not what must be there.
    #[error("{what} is missing or no text")]
    Missing {
        /// The missing key and the Secret that lacks it.
        what: String,
    },
    /// The stored certificate, key or dates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Where an identity is kept.
#[derive(Clone)]
pub enum Store {
    /// A folder of the local file system.
    Directory(PathBuf),
    /// A Secret in the namespace of the agents.
    Secret {
        /// The client for Secrets of the namespace.
        api: Box<Api<Secret>>,
        /// Name of the Secret.
        name: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Facts {
    not_before: String,
    not_after: String,
    received: String,
    principal_id: String,
    tenant_id: String,
}

impl Store {
    /// What is kept; `None` if nothing is.
    pub async fn load(&self) -> Result<Option<Stored>, StoreError> {
        match self {
            Self::Directory(dir) => load_directory(dir),
            Self::Secret { api, name } => match api.get_opt(name).await.map_err(|err| secret_error(name, &err))? {
                Some(secret) => of_secret(&secret).map(Some),
                None => Ok(None),
            },
        }
    }

    /// Keeps this one in place of what was there.
    pub async fn save(&self, stored: &Stored) -> Result<(), StoreError> {
        match self {
            Self::Directory(dir) => save_directory(dir, stored),
            Self::Secret { api, name } => save_secret(api, name, stored).await.map_err(|err| secret_error(name, &err)),
        }
    }

    /// Gives `merge` what is kept of issuers' keys (empty if nothing is), and keeps what it returns unless another
    /// process wrote meanwhile: then it is called again with that.
    ///
    /// # Errors
    /// When it cannot be read or written, or there is no Secret yet.
    pub async fn merge_issuer_keys(
        &self,
        merge: &(dyn Fn(&str) -> Option<String> + Send + Sync),
    ) -> Result<(), StoreError> {
        match self {
            Self::Directory(dir) => {
                let path = dir.join(ISSUER_KEYS);
                merge_file(&path, merge)
            }
            Self::Secret { api, name } => {
                for _ in 0..CONFLICTS {
                    match merge_secret(api, name, merge).await {
                        Err(kube::Error::Api(status)) if status.code == 409 => {}
                        other => return other.map_err(|err| secret_error(name, &err)),
                    }
                }
                let problem = format!("other processes changed it {CONFLICTS} times in a row");
                Err(StoreError::Secret { name: name.clone(), problem })
            }
        }
    }

    /// Follows what another process keeps there, until `each` says stop by returning false. What cannot be read is told
    /// to `failed` and asked for again when it has changed; an error ends the following.
    pub async fn follow(&self, mut each: impl FnMut(Result<Option<Stored>, StoreError>)) -> Result<(), StoreError> {
        match self {
            Self::Directory(dir) => {
                let mut seen = None;
                loop {
                    let at = [CERTIFICATE, ISSUER_KEYS]
                        .map(|name| std::fs::metadata(dir.join(name)).and_then(|facts| facts.modified()).ok());
                    if seen != Some(at) {
                        seen = Some(at);
                        each(load_directory(dir));
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
            Self::Secret { api, name } => {
                let params = WatchParams::default().fields(&format!("metadata.name={name}"));
                // From any state that the apiserver has: what is there comes first, as if it had just been made. So one
                // right, to watch this one name, is enough.
                let events = api.watch(&params, "0").await.map_err(|err| secret_error(name, &err))?;
                let mut events = events.boxed();
                while let Some(event) = events.try_next().await.map_err(|err| secret_error(name, &err))? {
                    match event {
                        WatchEvent::Added(secret) | WatchEvent::Modified(secret) => {
                            each(of_secret(&secret).map(Some));
                        }
                        WatchEvent::Deleted(_) => each(Ok(None)),
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(err) => {
                            return Err(StoreError::Secret { name: name.clone(), problem: err.to_string() });
                        }
                    }
                }
                Ok(())
            }
        }
    }
}

fn secret_error(name: &str, err: &kube::Error) -> StoreError {
    let problem = match err {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{}; the service account needs the Role that the chart makes", status.message)
        }
        other => crate::chain(other),
    };
    StoreError::Secret { name: name.to_owned(), problem }
}

fn of_secret(secret: &Secret) -> Result<Stored, StoreError> {
    let name = secret.metadata.name.clone().unwrap_or_default();
    let text = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok())
    };
    let must = |key: &str| text(key).ok_or_else(|| StoreError::Missing { what: format!("{key} of Secret {name}") });
    let note = |key: &str| secret.metadata.annotations.as_ref().and_then(|notes| notes.get(key)).cloned();
    let (certificate, key) = (must(CERTIFICATE)?, must(KEY)?);
    let stored = of_parts(certificate, key, text(ROOTS).unwrap_or_default(), &|fact| match fact {
        Fact::NotBefore => note(NOT_BEFORE),
        Fact::NotAfter => note(NOT_AFTER),
        Fact::Received => note(RECEIVED),
        Fact::Principal => note(PRINCIPAL),
        Fact::Tenant => note(TENANT),
    })?;
    Ok(Stored { issuer_keys: text(ISSUER_KEYS).unwrap_or_default(), ..stored })
}

/// Reads, merges and writes the issuers' keys of a Secret that exists; a conflict is an error with code 409.
async fn merge_secret(
    api: &Api<Secret>,
    name: &str,
    merge: &(dyn Fn(&str) -> Option<String> + Send + Sync),
) -> Result<(), kube::Error> {
    let secret = api.get(name).await?;
    let kept = secret.data.as_ref().and_then(|data| data.get(ISSUER_KEYS));
    let kept = kept.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default();
    let Some(text) = merge(&kept) else { return Ok(()) };
    let body = json!({
        "metadata": { "resourceVersion": secret.metadata.resource_version },
        "data": { ISSUER_KEYS: types::agent_api::encode(text.as_bytes()) },
    });
    let params = PatchParams { field_manager: Some(KEYS_MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(&body)).await.map(|_| ())
}

/// As [`merge_secret`] in a file, under a lock beside it.
fn merge_file(path: &Path, merge: &(dyn Fn(&str) -> Option<String> + Send + Sync)) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let mut options = std::fs::OpenOptions::new();
    let lock = options.create(true).truncate(false).write(true).mode(0o600).open(lock).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let kept = match read_bounded(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => String::new(),
        kept => kept.map_err(failed)?,
    };
    match merge(&kept) {
        Some(text) => Ok(atomic::replace(path, text.as_bytes(), atomic::PRIVATE)?),
        None => Ok(()),
    }
}

enum Fact {
    NotBefore,
    NotAfter,
    Received,
    Principal,
    Tenant,
}

/// Times that are not told beside the certificate are read from it.
fn of_parts(
    certificate: String,
    key: String,
    roots: String,
    fact: &dyn Fn(Fact) -> Option<String>,
) -> Result<Stored, StoreError> {
    let (begins, ends) = validity(&certificate);
    let time = |fact: Option<String>, otherwise: SystemTime| fact.as_deref().map_or(Ok(otherwise), parse);
    let not_before = time(fact(Fact::NotBefore), begins)?;
    Ok(Stored {
        not_before,
        not_after: time(fact(Fact::NotAfter), ends)?,
        received: time(fact(Fact::Received), not_before)?,
        principal_id: fact(Fact::Principal).unwrap_or_default(),
        tenant_id: fact(Fact::Tenant).unwrap_or_default(),
        certificate,
        key: key.into(),
        roots,
        issuer_keys: String::new(),
    })
}

/// When the first certificate of a PEM text begins and ends; the epoch if it cannot be read, which
/// [`super::Identity::new`] refuses.
fn validity(pem: &str) -> (SystemTime, SystemTime) {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let of = || {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
        let at = |time: i64| OffsetDateTime::from_unix_timestamp(time).ok().map(SystemTime::from);
        let validity = parsed.validity();
        at(validity.not_before.timestamp()).zip(at(validity.not_after.timestamp()))
    };
    of().unwrap_or((SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH))
}

async fn save_secret(api: &Api<Secret>, name: &str, stored: &Stored) -> Result<(), kube::Error> {
    let encoded = |text: &str| types::agent_api::encode(text.as_bytes());
    let mut body = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": { "app.kubernetes.io/part-of": "towline", "app.kubernetes.io/managed-by": MANAGER },
            "annotations": {
                NOT_BEFORE: spell(stored.not_before), NOT_AFTER: spell(stored.not_after),
                RECEIVED: spell(stored.received), PRINCIPAL: stored.principal_id, TENANT: stored.tenant_id,
            },
        },
        "data": {
            CERTIFICATE: encoded(&stored.certificate), KEY: encoded(stored.key.expose_secret()),
            ROOTS: encoded(&stored.roots),
        },
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(name, &params, &Patch::Merge(&body)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(|_| ()),
    }
    // Its type cannot be changed once it is there.
    body["type"] = json!("kubernetes.io/tls");
    let secret: Secret = serde_json::from_value(body.clone()).map_err(kube::Error::SerdeError)?;
    let create = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&create, &secret).await {
        // Somebody was faster: what is there is replaced.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            body["type"].take();
            api.patch(name, &params, &Patch::Merge(&body)).await.map(|_| ())
        }
        other => other.map(|_| ()),
    }
}

fn load_directory(dir: &Path) -> Result<Option<Stored>, StoreError> {
    let read = |name: &str| match read_bounded(&dir.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::File { path: dir.join(name), source }),
    };
    let (Some(certificate), Some(key)) = (read(CERTIFICATE)?, read(KEY)?) else { return Ok(None) };
    let facts: Option<Facts> = read(FACTS)?.and_then(|text| serde_json::from_str(&text).ok());
    let stored = of_parts(certificate, key, read(ROOTS)?.unwrap_or_default(), &|fact| {
        let facts = facts.as_ref()?;
        Some(match fact {
            Fact::NotBefore => facts.not_before.clone(),
            Fact::NotAfter => facts.not_after.clone(),
            Fact::Received => facts.received.clone(),
            Fact::Principal => facts.principal_id.clone(),
            Fact::Tenant => facts.tenant_id.clone(),
        })
    })?;
    Ok(Some(Stored { issuer_keys: read(ISSUER_KEYS)?.unwrap_or_default(), ..stored }))
}

fn save_directory(dir: &Path, stored: &Stored) -> Result<(), StoreError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::File { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
    let facts = Facts {
        not_before: spell(stored.not_before),
        not_after: spell(stored.not_after),
        received: spell(stored.received),
        principal_id: stored.principal_id.clone(),
        tenant_id: stored.tenant_id.clone(),
    };
    let facts = serde_json::to_string(&facts).unwrap_or_default();
    let old = std::fs::read_link(dir.join(CURRENT)).ok();
    // A name of its own each time: the folder that counts is never written to.
    let version = format!(
        "..{}",
        types::ids::RequestId::random().map_err(|_| StoreError::File {
            path: dir.to_owned(),
            source: io::Error::other("the operating system gives no random numbers"),
        })?
    );
    let folder = dir.join(&version);
    std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed(&folder))?;
    let files = [
        (CERTIFICATE, stored.certificate.as_str()),
        (KEY, stored.key.expose_secret()),
        (ROOTS, stored.roots.as_str()),
        (FACTS, facts.as_str()),
    ];
    for (name, text) in files {
        atomic::write_new(&folder.join(name), text.as_bytes(), atomic::PRIVATE)?;
    }
    // Their names are on the disk before the link that makes them count.
    atomic::sync_folder(&folder.join(CERTIFICATE))?;
    replace_link(&dir.join(CURRENT), Path::new(&version))?;
    for (name, _) in files {
        let (path, target) = (dir.join(name), Path::new(CURRENT).join(name));
        if std::fs::read_link(&path).ok().as_deref() != Some(&target) {
            replace_link(&path, &target)?;
        }
    }
    atomic::sync_folder(&dir.join(CURRENT))?;
    if let Some(old) = old.filter(|old| old.components().count() == 1 && old.as_path() != Path::new(&version)) {
        let _ = std::fs::remove_dir_all(dir.join(old));
    }
    Ok(())
}

/// Makes `path` a link to `target`, whatever it was.
fn replace_link(path: &Path, target: &Path) -> Result<(), StoreError> {
    let mut beside = path.to_owned().into_os_string();
    beside.push(".new");
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let _ = std::fs::remove_file(&beside);
    symlink(target, &beside).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}

/// Where an identity is kept, by the settings. A Secret is of the namespace of `kubernetes`.
pub fn open(store: &crate::config::IdentityStore, kubernetes: Option<&kube::Client>) -> Result<Store, StoreError> {
    match (store, kubernetes) {
        (crate::config::IdentityStore::Directory(dir), _) => Ok(Store::Directory(dir.clone())),
        (crate::config::IdentityStore::Secret(name), Some(client)) => {
            Ok(Store::Secret { api: Box::new(Api::default_namespaced(client.clone())), name: name.clone() })
        }
        (crate::config::IdentityStore::Secret(name), None) => {
            let problem = "there is no way to the apiserver".to_owned();
            Err(StoreError::Secret { name: name.clone(), problem })
        }
    }
}

/// For tests and tools: a key that does not print.
pub fn secret(text: &str) -> SecretString {
    SecretString::from(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn stored(certificate: &str) -> Stored {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Stored {
            certificate: certificate.to_owned(),
            key: secret("key"),
            roots: "roots".to_owned(),
            not_before: at,
            not_after: at + Duration::from_secs(90 * 86_400),
            received: at + Duration::from_secs(7),
            principal_id: "p".to_owned(),
            tenant_id: "t".to_owned(),
            issuer_keys: String::new(),
        }
    }

    #[tokio::test]
    async fn r7_a_folder_keeps_one_identity_whole_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::Directory(dir.path().join("identity"));
        assert!(store.load().await.unwrap().is_none());
        for certificate in ["one", "two", "three"] {
            store.save(&stored(certificate)).await.unwrap();
            let loaded = store.load().await.unwrap().unwrap();
            assert_eq!((loaded.certificate.as_str(), loaded.roots.as_str()), (certificate, "roots"));
            assert_eq!(loaded.received, stored("").received);
            assert_eq!(loaded.not_after, stored("").not_after);
        }
        let dir = dir.path().join("identity");
        assert_eq!(std::fs::metadata(dir.join(KEY)).unwrap().permissions().mode() & 0o777, 0o600);
        // Four links to files, one to the folder that counts, and that.
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 6);
    }

    #[tokio::test]
    async fn issuer_keys_survive_a_new_certificate_and_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::Directory(dir.path().to_owned());
        store.save(&stored("one")).await.unwrap();
        store.merge_issuer_keys(&|kept| Some(format!("{kept}a"))).await.unwrap();
        store.save(&stored("two")).await.unwrap();
        store.merge_issuer_keys(&|kept| Some(format!("{kept}b"))).await.unwrap();
        store.merge_issuer_keys(&|_| None).await.unwrap();
        let loaded = store.load().await.unwrap().unwrap();
        assert_eq!((loaded.certificate.as_str(), loaded.issuer_keys.as_str()), ("two", "ab"));
    }

    #[tokio::test]
    async fn plain_files_are_an_identity_too_and_give_way_to_a_newer_one() {
        let dir = tempfile::tempdir().unwrap();
        let authority = certs::Authority::create("test", certs::Validity::days(9)).unwrap();
        let issued = authority.issue_agent("/x", certs::Validity::days(1)).unwrap();
        issued.save(&dir.path().join(CERTIFICATE), &dir.path().join(KEY)).unwrap();
        let store = Store::Directory(dir.path().to_owned());
        let loaded = store.load().await.unwrap().unwrap();
        let life = loaded.not_after.duration_since(loaded.not_before).unwrap();
        assert!(life >= Duration::from_secs(86_400), "{life:?}");
        store.save(&stored("new")).await.unwrap();
        assert_eq!(store.load().await.unwrap().unwrap().certificate, "new");
    }
}
