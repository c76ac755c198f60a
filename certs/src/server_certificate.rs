//! The certificate that a listener shows, exchangeable while it runs: a renewed one is used from the next handshake on.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::credentials::Credentials;

/// A server's current certificate. Clones of the `Arc` given to [`crate::tls`] see a replacement.
#[derive(Debug)]
pub struct ServerCertificate {
    current: ArcSwap<CertifiedKey>,
}

impl ServerCertificate {
    /// Begins with these credentials.
    pub fn new(credentials: &Credentials) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::new(credentials.certified_key()) })
    }

    /// Shows these from the next handshake on; connections that exist keep what they have.
    pub fn replace(&self, credentials: &Credentials) {
        self.current.store(credentials.certified_key());
    }

    /// When the certificate shown now ends.
    pub fn not_after(&self) -> SystemTime {
        crate::facts::not_after(&self.current.load().cert)
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}
