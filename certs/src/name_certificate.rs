//! Two certificates on one listener: one for server names below a suffix, another for every other name and for none.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{credentials::Credentials, server_certificate::ServerCertificate};

/// The certificates of a listener by server name. The one for names below the suffix is exchangeable while it runs.
#[derive(Debug)]
pub struct NameCertificate {
    suffix: String,
    below: ArcSwap<CertifiedKey>,
    other: Arc<ServerCertificate>,
}

impl NameCertificate {
    /// `suffix` without a dot in front: a name is below it if it ends with a dot and the suffix.
    pub fn new(suffix: &str, below: &Credentials, other: Arc<ServerCertificate>) -> Arc<Self> {
        Arc::new(Self { suffix: suffix.to_owned(), below: ArcSwap::new(below.certified_key()), other })
    }

    /// Shows this one for names below the suffix from the next handshake on.
    pub fn replace(&self, below: &Credentials) {
        self.below.store(below.certified_key());
    }

    /// When the certificate for names below the suffix ends.
    pub fn not_after(&self) -> SystemTime {
        crate::facts::not_after(&self.below.load().cert)
    }
}

impl ResolvesServerCert for NameCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.server_name() {
            Some(name) if is_below(name, &self.suffix) => Some(self.below.load_full()),
            _ => self.other.resolve(hello),
        }
    }
}

/// Whether a DNS name is below another, in any case, with or without a final dot.
pub fn is_below(name: &str, suffix: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).as_bytes();
    let label = name.len().checked_sub(suffix.len()).map(|at| name.split_at(at));
    label.is_some_and(|(label, end)| {
        label.len() > 1 && label.ends_with(b".") && end.eq_ignore_ascii_case(suffix.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_below_another_with_a_label_of_its_own() {
        for name in ["a.x.test", "A.X.Test.", "a.b.x.test"] {
            assert!(is_below(name, "x.test"), "{name}");
        }
        for name in ["x.test", ".x.test", "ax.test", "a.x.test.org", "a.x.test..", "", "test"] {
            assert!(!is_below(name, "x.test"), "{name}");
        }
    }
}
