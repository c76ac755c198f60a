//! What is done when a key is lost for good, and with it what it protected: never by a start, and never without being
//! told.

use std::{
    io,
    path::{Path, PathBuf},
};

use daemon::atomic;
use serde_json::{Value, json};

use crate::{
    config::Config,
    issuer::{KEYS_FILE, KeptError, Keys, KeysError},
    issuer_state,
    replicas::LEASE,
    store::{
        Store, StoreError,
        look::Found,
        protect::{ProtectError, Protector},
    },
};

/// Why nothing was replaced.
#[derive(Debug, thiserror::Error)]
pub enum LostError {
    /// The configuration has no such thing.
    #[error("the configuration has no {0}: there is no such key")]
    NoSuch(&'static str),
    /// The file is there, so nothing is lost.
    #[error("{} is there and is the right one: nothing is lost, and nothing was changed", .0.display())]
    NotLost(PathBuf),
    /// Others have the key.
    #[error(
        "gateways run on this store and have its key: {}; nothing was changed. Copy the file of `[api] store_key_file` \
         from one of them to {}. If it is lost there too, stop all of them first; the lease of one that was killed lasts \
         {} seconds",
        .running.join(", "),
        .path.display(),
        LEASE.as_secs()
    )]
    Running {
        /// The names of their replicas.
        running: Vec<String>,
        /// The file that is missing here, or another one.
        path: PathBuf,
    },
    /// The old file cannot be put aside.
    #[error("{} cannot be put aside", .0.display())]
    Aside(PathBuf, #[source] io::Error),
    /// The new key.
    #[error("cannot make the new key of the store")]
    Protect(#[from] ProtectError),
    /// The new key.
    #[error("cannot make the issuer's new key")]
    Keys(#[from] KeysError),
    /// The new key, or what has the old one.
    #[error("cannot keep the issuer's new key")]
    Kept(#[from] KeptError),
    /// A key of the store that is there.
    #[error("the store has the issuer's signing key: nothing is lost, and nothing was changed")]
    NotLostThere,
    /// The store cannot be opened or changed.
    #[error("cannot open or change the store")]
    Store(#[from] StoreError),
}

/// Takes all protected settings out of the store, whose key is lost, and makes another key. No gateway of the
/// store may run: it has the key.
///
/// # Errors
/// [`LostError`]; stopped in between, it can be run again.
pub async fn store_key(config: &Config) -> Result<Value, LostError> {
    let api = config.api.as_ref().ok_or(LostError::NoSuch("[api]"))?;
    let (url, path) = (api.store.url(), &api.store_key_file);
    let found = Store::found(&url).await?;
    match Protector::open(path) {
        Ok(there) if found == Found::Nothing || Store::exchanged(&url, &there, path).await?.is_none() => {
            return Err(LostError::NotLost(path.clone()));
        }
        Ok(_) | Err(ProtectError::Lost { .. } | ProtectError::Content { .. }) => {}
        // A key that cannot be read is not lost: its file is to be put right.
        Err(error) => return Err(error.into()),
    }
    // What is kept belongs to them too, and nothing of it can be opened any more afterwards.
    let running = Store::running(&url, LEASE).await?;
    if !running.is_empty() {
        return Err(LostError::Running { running, path: path.clone() });
    }
    let kept = aside(path)?;
    let protector = Protector::open_or_create(path)?;
    let store = Store::open(&url).await?;
    let forgotten = store.forget_protected().await?;
    let exchanged = store.keep_key(&protector, path).await?;
    store.close().await;
    if let Some(exchanged) = exchanged {
        return Err(exchanged.into());
    }
    Ok(json!({
        "made": path,
        "put aside": kept,
        "resources without their protected settings": forgotten,
        "next": if issuer_state::shared(config).is_some() { NEXT_SHARED } else { NEXT_SETTINGS },
    }))
}

/// What is to be done once the store has another key.
const NEXT_SETTINGS: &str = "Start the gateway, and set the protected settings of clusters anew.";

/// The same where the store had the built-in issuer's accounts.
const NEXT_SHARED: &str = "The protected settings of clusters and all that the built-in issuer had are gone: its signing \
                           keys, users, service principals and sign-ins. Copy the new key to every gateway of this \
                           store. Then: `towline-gateway replace-lost issuer-key`; start the gateways; \
                           `towline-gateway recover-owner`; connect every cluster again (`towline connect`); make users \
                           and service principals and set protected settings anew.";

/// What is to be done once the built-in issuer has another key.
const NEXT: &str = "Start the gateway. Everybody signs in again. Clusters refuse the new key, which none that they know \
                    has signed: connect each of them again (`towline connect`).";

/// Makes another key for the built-in issuer, whose own is lost.
///
/// # Errors
/// [`LostError`].
pub async fn issuer_key(config: &Config) -> Result<Value, LostError> {
    let issuer = config.issuer.as_ref().ok_or(LostError::NoSuch("[issuer]"))?;
    if issuer_state::shared(config).is_some() {
        let documents = issuer_state::documents(config, issuer).await?;
        let made = documents.replace_lost_key().await;
        documents.close().await;
        let keys = made?.ok_or(LostError::NotLostThere)?;
        return Ok(json!({ "made": "in the store", "key": keys.newest(), "next": NEXT }));
    }
    let path = issuer.state_dir.join(KEYS_FILE);
    match Keys::load(&path) {
        Ok(_) => return Err(LostError::NotLost(path)),
        Err(KeysError::File(error)) if error.is_missing() || error.is_of_content() => {}
        // A key that cannot be read is not lost: its file is to be put right.
        Err(error) => return Err(error.into()),
    }
    let kept = aside(&path)?;
    let keys = Keys::load_or_create(&path)?;
    Ok(json!({
        "made": path,
        "key": keys.newest(),
        "put aside": kept,
        "next": NEXT,
    }))
}

/// Gives a file that is of no use another name, if it is there.
fn aside(path: &Path) -> Result<Option<PathBuf>, LostError> {
    let failed = |error| LostError::Aside(path.to_owned(), error);
    if !path.try_exists().map_err(failed)? {
        return Ok(None);
    }
    let named = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".unusable-{n}"));
        PathBuf::from(name)
    };
    let free = (1..).map(named).find(|to| !to.exists()).unwrap_or_default();
    atomic::rename(path, &free).map_err(|error| failed(error.source))?;
    Ok(Some(free))
}
