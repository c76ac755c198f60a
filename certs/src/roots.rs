//! The authorities that somebody trusts: several at once, so that one can be rolled over to the next.

use std::{fmt, path::Path, sync::Arc, time::SystemTime};

use aws_lc_rs::digest;
use rustls::{
    CertificateError, Error, RootCertStore, client::verify_server_cert_signed_by_trust_anchor,
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use types::ids::hex;

use crate::{
    credentials::Credentials,
    facts::last_second,
    file::{self, LoadError, Problem},
    provider::provider,
};

/// Trusted authorities; at least one.
#[derive(Clone)]
pub struct Roots {
    store: Arc<RootCertStore>,
}

impl Roots {
    /// Reads a PEM file of one or several authorities.
    ///
    /// # Errors
    /// [`LoadError`] says what is wrong and what to do; a certificate that is no authority is refused.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Self::build(file::certificates(Some(path), &file::read(path)?)?, Some(path))
    }

    /// Reads PEM text of one or several authorities.
    ///
    /// # Errors
    /// As [`Roots::load`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, LoadError> {
        Self::build(file::certificates(None, pem)?, None)
    }

    /// From DER.
    ///
    /// # Errors
    /// As [`Roots::load`].
    pub fn from_der(certificates: Vec<CertificateDer<'static>>) -> Result<Self, LoadError> {
        Self::build(certificates, None)
    }

    /// What the machine trusts, and, where it has no such list (an image from scratch), Mozilla's.
    pub fn public() -> Self {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if store.is_empty() {
            store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        Self { store: Arc::new(store) }
    }

    /// Whether they are the same set, not only an equal one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }

    /// What each of them is called in what is kept: the SHA-256 of its key, in lower-case hex.
    pub fn ids(&self) -> Vec<String> {
        self.store.roots.iter().map(id).collect()
    }

    /// Whether one of these signed a server's certificate, which may have ended.
    pub fn vouch_for_server(&self, credentials: &Credentials) -> bool {
        self.path_to_server(credentials, last_second(credentials.not_after())).is_ok()
    }

    /// Whether a server's certificate is of another authority: its chain leads to none of these, neither at `now` nor at
    /// the certificate's last second. False for a chain that is refused for another reason alone, such as a certificate
    /// that has expired or is for another purpose.
    pub fn are_strangers_to_server(&self, credentials: &Credentials, now: SystemTime) -> bool {
        let tried = [now, last_second(credentials.not_after())].map(|at| self.path_to_server(credentials, at));
        let leads_elsewhere = |tried: &Result<(), Error>| {
            matches!(
                tried,
                // The second: an authority of the same name with another key.
                Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature))
            )
        };
        tried.iter().all(Result::is_err) && tried.iter().any(leads_elsewhere)
    }

    /// Looks for a path from one of these to a server's certificate, whatever names it has.
    fn path_to_server(&self, credentials: &Credentials, at: SystemTime) -> Result<(), Error> {
        let chain = credentials.chain();
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let algorithms = provider().signature_verification_algorithms.all;
        let own = ParsedCertificate::try_from(&chain[0])?;
        verify_server_cert_signed_by_trust_anchor(&own, &self.store, &chain[1..], at, algorithms)
    }

    /// These and those of another set.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut store = (*self.store).clone();
        store.extend(other.store.roots.iter().cloned());
        Self { store: Arc::new(store) }
    }

    fn build(certificates: Vec<CertificateDer<'static>>, path: Option<&Path>) -> Result<Self, LoadError> {
        let mut store = RootCertStore::empty();
        for (at, certificate) in certificates.into_iter().enumerate() {
            let is_authority = match x509_parser::parse_x509_certificate(&certificate) {
                Ok((_, parsed)) => parsed.is_ca(),
                Err(_) => return Err(file::error(path, Problem::Certificate(at + 1))),
            };
            if !is_authority {
                return Err(file::error(path, Problem::NotAnAuthority(at + 1)));
            }
            store.add(certificate).map_err(|_| file::error(path, Problem::Certificate(at + 1)))?;
        }
        if store.is_empty() {
            return Err(file::error(path, Problem::NoCertificate));
        }
        Ok(Self { store: Arc::new(store) })
    }

    /// Each with its id, and alone.
    pub(crate) fn each(&self) -> impl ExactSizeIterator<Item = (String, Self)> {
        self.store.roots.iter().map(|root| {
            let mut store = RootCertStore::empty();
            store.roots.push(root.clone());
            (id(root), Self { store: Arc::new(store) })
        })
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        self.store.clone()
    }
}

fn id(root: &TrustAnchor<'_>) -> String {
    hex(digest::digest(&digest::SHA256, &root.subject_public_key_info).as_ref())
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").field("authorities", &self.store.len()).finish()
    }
}
