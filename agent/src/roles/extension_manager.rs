//! Installs helm charts of the signed catalogue as extensions (docs/features.md E1).

use std::{path::PathBuf, sync::Arc};

use catalogue::key::{KeyError, PublicKey};
use daemon::Shutdown;
use futures_util::future::BoxFuture;

use super::{Entry, Role, health::Reporter};
use crate::config::{Deployment, Extensions};

/// This role's name.
pub const NAME: &str = Deployment::ExtensionManager.name();

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ExtensionManager],
    build: |parts| {
        let Some(settings) = &parts.config.extensions else { return Ok(None) };
        let keys = read_keys(settings)?;
        Ok(Some(Arc::new(ExtensionManager { keys, health: parts.health.of(NAME) })))
    },
};

/// Why the role cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A key's file cannot be read.
    #[error("the catalogue's key {}", .path.display())]
    KeyFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A key's file holds none.
    #[error("the catalogue's key {}", .path.display())]
    Key {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: KeyError,
    },
}

/// The role.
pub struct ExtensionManager {
    keys: Vec<PublicKey>,
    health: Reporter,
}

fn read_keys(settings: &Extensions) -> Result<Vec<PublicKey>, SetupError> {
    let mut keys = settings.keys.clone();
    for path in &settings.key_files {
        let pem = std::fs::read(path).map_err(|source| SetupError::KeyFile { path: path.clone(), source })?;
        keys.push(PublicKey::from_pem(&pem).map_err(|source| SetupError::Key { path: path.clone(), source })?);
    }
    Ok(keys)
}

impl Role for ExtensionManager {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.keys.is_empty() {
                self.health.failing("NoKey", "no key of a catalogue is pinned: set catalogue_keys in [extensions]");
            } else {
                self.health.running();
            }
            shutdown.draining().await;
        })
    }
}
