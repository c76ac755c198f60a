//! Who of the built-in issuer may act now. A token lives for an hour; whoever was deleted or disabled meanwhile, or has
//! another password or secret, reaches no cluster with it, and what they have open ends (docs/features.md K5, S1;
//! docs/identity.md). And with which keys their tokens are verified: those that the issuer has in this process, not those
//! that another gateway at its address may still publish.

use std::sync::Arc;

use auth::token::Verifier;

use crate::issuer::{InForce, Issuer, Keys};

/// The built-in issuer's accounts and keys of one moment.
pub struct Accounts {
    issuer: Arc<Issuer>,
    read: Arc<InForce>,
    keys: Arc<Keys>,
}

impl Accounts {
    /// As they are now.
    pub fn of(issuer: Arc<Issuer>) -> Self {
        let (read, keys) = (issuer.in_force(), issuer.keys());
        Self { issuer, read, keys }
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

    /// Gives the issuer's keys to a verifier.
    pub fn give_keys(&self, verifier: &Verifier) {
        if let Err(error) = verifier.take_keys(self.issuer_url(), &self.keys.key_set()) {
            tracing::error!(%error, "the built-in issuer's keys cannot be used to verify its tokens");
        }
    }

    /// Completes when the issuer's may have changed.
    pub async fn change(&self) {
        self.issuer.followed().await;
    }

    /// Whether they are still the issuer's.
    pub fn is_of_now(&self) -> bool {
        Arc::ptr_eq(&self.read, &self.issuer.in_force()) && Arc::ptr_eq(&self.keys, &self.issuer.keys())
    }
}
