//! Who of the built-in issuer may act now. A token lives for an hour; whoever was deleted or disabled meanwhile, or has
//! another password or secret, reaches no cluster with it, and what they have open ends (docs/features.md K5, S1;
//! docs/identity.md).

use std::{collections::HashMap, sync::Arc};

use crate::{
    guid,
    issuer::{Issuer, Principals, Users},
};

/// The built-in issuer's accounts of one moment.
pub struct Accounts {
    issuer: Arc<Issuer>,
    read: (Arc<Users>, Arc<Principals>),
    /// What each may have signed in with.
    in_force: HashMap<String, Vec<String>>,
}

impl Accounts {
    /// As they are now.
    pub fn of(issuer: Arc<Issuer>) -> Self {
        let read = issuer.known();
        let in_force =
            Issuer::in_force(&read.0, &read.1).map(|(known, with)| (known.to_owned(), with.names())).collect();
        Self { issuer, read, in_force }
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

    /// Whether the account with this `sub` exists and is enabled, and what was signed in with still holds, where it is
    /// known. What was made a moment ago is looked up.
    pub fn has(&self, subject: &str, credential: Option<&str>) -> bool {
        let known = self.in_force.get(&guid::hyphenated(subject));
        let holds = |known: &Vec<String>| credential.is_none_or(|one| known.iter().any(|known| known == one));
        known.is_some_and(holds) || self.issuer.is_in_force(subject, credential)
    }

    /// Completes when the issuer's may have changed.
    pub async fn change(&self) {
        self.issuer.followed().await;
    }

    /// Whether they are still the issuer's.
    pub fn is_of_now(&self) -> bool {
        let (users, principals) = self.issuer.known();
        Arc::ptr_eq(&users, &self.read.0) && Arc::ptr_eq(&principals, &self.read.1)
    }
}
