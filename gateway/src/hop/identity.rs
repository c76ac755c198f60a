//! The certificate by which other replicas know this one. The replica issues it to itself with the authority of agents'
//! certificates, which all replicas have; its key is never written.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use certs::{Authority, AuthorityError, Credentials, Roots, Validity, replica, tls::TlsError};

use tokio::sync::watch;

use crate::trust::Trust;

/// How long a certificate is good for. It is renewed from half of that on.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// Who this replica is to others.
pub struct Identity {
    name: String,
    trust: Arc<Trust>,
    current: Mutex<Option<Arc<Shown>>>,
}

/// A certificate, and whom its holder trusts.
pub struct Shown {
    /// The certificate and its key.
    pub credentials: Credentials,
    /// The authorities of other replicas' certificates.
    pub roots: Roots,
    /// From when on another one is shown.
    pub renew_at: SystemTime,
    /// TLS settings of the listener for other replicas.
    pub server: Arc<rustls::ServerConfig>,
    authority: Arc<Authority>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Nothing to issue it with.
    #[error("[replicas] needs [agents] authority_dir, the same at all replicas: their certificates are issued with it")]
    NoAuthority,
    /// It was not issued.
    #[error("the replica's own certificate cannot be issued")]
    Issue(#[from] AuthorityError),
    /// rustls refuses it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Identity {
    /// Of the replica of this name.
    pub fn new(name: String, trust: Arc<Trust>) -> Self {
        Self { name, trust, current: Mutex::new(None) }
    }

    /// The replica's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The authorities of replicas' certificates.
    pub fn roots(&self) -> Roots {
        self.trust.roots()
    }

    /// Changes when other authorities are trusted than before.
    pub fn authorities(&self) -> watch::Receiver<u64> {
        self.trust.authorities()
    }

    /// What to show now. Another certificate is issued where the last one is in the second half of its life, or where
    /// its authority or the trusted ones have changed.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn shown(&self, now: SystemTime) -> Result<Arc<Shown>, IdentityError> {
        let authority = self.trust.authority().ok_or(IdentityError::NoAuthority)?;
        let roots = self.trust.roots();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = &*current
            && now < shown.renew_at
            && shown.roots.is(&roots)
            && authority.certificate() == shown.authority.certificate()
        {
            return Ok(Arc::clone(shown));
        }
        let issued = authority.issue_gateway(&self.name, Validity::at(now, LIFE, 2 * LIFE))?;
        let credentials = issued.credentials().clone();
        let ends = credentials.not_after();
        let renew_at = now + ends.duration_since(now).unwrap_or_default() / 2;
        let server = Arc::new(replica::server(&credentials, &roots)?);
        let shown = Arc::new(Shown { credentials, roots, renew_at, server, authority });
        *current = Some(Arc::clone(&shown));
        Ok(shown)
    }
}
