//! Who of the built-in issuer may act now. A token lives for an hour; whoever was deleted or disabled meanwhile, or has
//! another password or secret, reaches no cluster with it, and what they have open ends (docs/features.md K5, S1;
//! docs/identity.md).

use std::sync::Arc;

use crate::issuer::{InForce, Issuer};

/// The built-in issuer's accounts of one moment.
pub struct Accounts {
    issuer: Arc<Issuer>,
    read: Arc<InForce>,
}

impl Accounts {
    /// As they are now.
    pub fn of(issuer: Arc<Issuer>) -> Self {
        let read = issuer.in_force();
        Self { issuer, read }
    }

    /// Those of the same issuer as they are now.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self::of(Arc::clone(&self.issuer))
    }

    /// The issuer's `iss`.
    pub fn issuer_url(&self) -> &str {
        &self.issuer.settings().url
    }

    /// As [`InForce::has`], of the moment; what was made a moment ago is looked up.
    pub fn has(&self, subject: &str, credential: Option<&str>) -> bool {
        self.read.has(subject, credential) || self.issuer.is_in_force(subject, credential)
    }

    /// Completes when the issuer's may have changed.
    pub async fn change(&self) {
        self.issuer.followed().await;
    }

    /// Whether they are still the issuer's.
    pub fn is_of_now(&self) -> bool {
        Arc::ptr_eq(&self.read, &self.issuer.in_force())
    }
}
