//! The listener's certificate: kept where the next process finds it, published where clients read what to
//! trust, renewed without anybody's doing.

use std::{
    io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use certs::serving::{Serving, ShownNow};
use daemon::{
    Backoff,
    atomic::{self, PRIVATE, PUBLIC},
    random_unit,
    settings::read_bounded,
};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    chain,
    identity::clock::SharedClock,
    roles::{health::Reporter, kubernetes::problem},
    tunnel::api::AGAIN,
};

/// The Secret that keeps certificates and keys; the chart makes it, empty.
pub const SECRET: &str = "towline-serving-certificate";
/// The ConfigMap that says what to trust, in `ca.crt`; the chart makes it, empty, and lets every service account read
/// it.
pub const PUBLISHED: &str = "towline-serving-ca";
const CERTIFICATES: &str = "tls.crt";
const KEYS: &str = "tls.key";
const TRUST: &str = "ca.crt";
/// Who writes them, in their managed fields.
const MANAGER: &str = super::NAME;
/// How often the certificate is looked at.
const LOOK: Duration = Duration::from_secs(3600);

/// Where it is kept and published.
pub enum Store {
    /// In the pod's namespace.
    Cluster(Client),
    /// In a folder: `tls.crt`, `tls.key`, `ca.crt`.
    Directory(PathBuf),
}

/// Looks after it.
pub struct Keeper {
    /// What the listener shows.
    pub shown: ShownNow,
    /// The names of the listener.
    pub names: Vec<String>,
    /// Where it is kept.
    pub store: Store,
    /// The time of day.
    pub clock: SharedClock,
    /// What people are told.
    pub health: Reporter,
    /// What is in use; none before what is kept was read.
    pub current: Mutex<Option<Serving>>,
}

impl Keeper {
    /// Keeps it fresh, for ever.
    pub async fn keep(&self) {
        let mut backoff = Backoff::new(AGAIN);
        loop {
            let wait = match self.look().await {
                Ok(()) => {
                    backoff.reset();
                    self.health.running();
                    LOOK
                }
                Err(problem) => {
                    tracing::warn!(error = problem, "the certificate for other agents is not kept and published");
                    self.health.failing("CertificateNotKept", &problem);
                    backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Renews it if it is time, and sees that it is kept and published. What is kept is shown first: it is good whether
    /// or not it can be written again.
    pub async fn look(&self) -> Result<(), String> {
        let known = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut serving = match known {
            Some(serving) => serving,
            None => self.store.load().await?,
        };
        let (names, now) = (self.names.iter().map(String::as_str).collect::<Vec<_>>(), self.clock.now());
        if serving.is_due(&names, now) {
            serving.renew(&names, now).map_err(|err| chain(&err))?;
            tracing::info!("there is a new certificate for other agents of this cluster");
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving.clone());
        self.shown.replace(serving.clone());
        self.store.save(&serving).await
    }
}

impl Store {
    async fn load(&self) -> Result<Serving, String> {
        match self {
            Self::Cluster(client) => {
                let secret = Api::<Secret>::default_namespaced(client.clone()).get(SECRET).await;
                let data = secret.map_err(|err| problem(&format!("Secret {SECRET}"), &err))?.data.unwrap_or_default();
                let text = |key: &str| {
                    let bytes = data.get(key).map(|ByteString(bytes)| bytes.clone()).unwrap_or_default();
                    String::from_utf8(bytes).unwrap_or_default()
                };
                Ok(Serving::read(&text(CERTIFICATES), &text(KEYS)))
            }
            Self::Directory(dir) => {
                let text = |name: &str| match read_bounded(&dir.join(name)) {
                    Ok(text) => Ok(text),
                    Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(String::new()),
                    Err(err) => Err(format!("{}: {err}", dir.join(name).display())),
                };
                Ok(Serving::read(&text(CERTIFICATES)?, &text(KEYS)?))
            }
        }
    }

    /// Keeps it, then publishes it: what clients trust is never lost.
    async fn save(&self, serving: &Serving) -> Result<(), String> {
        let (certificates, keys) = (serving.certificates_pem(), serving.keys_pem());
        match self {
            Self::Cluster(client) => {
                let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                let encoded = |text: &str| types::agent_api::encode(text.as_bytes());
                let kept = json!({"data": {CERTIFICATES: encoded(&certificates), KEYS: encoded(&keys)}});
                let secrets = Api::<Secret>::default_namespaced(client.clone());
                let saved = secrets.patch(SECRET, &params, &Patch::Merge(&kept)).await;
                saved.map_err(|err| problem(&format!("Secret {SECRET}"), &err))?;
                let published = json!({"data": {TRUST: certificates}});
                let maps = Api::<ConfigMap>::default_namespaced(client.clone());
                let saved = maps.patch(PUBLISHED, &params, &Patch::Merge(&published)).await;
                saved.map(drop).map_err(|err| problem(&format!("ConfigMap {PUBLISHED}"), &err))
            }
            Self::Directory(dir) => {
                let files =
                    [(KEYS, &keys, PRIVATE), (CERTIFICATES, &certificates, PUBLIC), (TRUST, &certificates, PUBLIC)];
                let mut files = files.into_iter();
                files
                    .try_for_each(|(name, text, mode)| atomic::replace_in(dir, name, text.as_bytes(), mode))
                    .map_err(|err| chain(&err))
            }
        }
    }
}
