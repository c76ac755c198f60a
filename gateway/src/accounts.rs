//! Who of the built-in issuer may act now. A token lives for an hour; whoever was deleted or disabled meanwhile reaches
//! no cluster with it, and what they have open ends (docs/features.md K5, S1; docs/identity.md).

use std::{collections::HashSet, sync::Arc};

use crate::{
    guid,
    issuer::{Issuer, Principals, Users},
};

/// The built-in issuer's accounts of one moment.
pub struct Accounts {
    issuer: Arc<Issuer>,
    read: (Arc<Users>, Arc<Principals>),
    in_force: HashSet<String>,
}

impl Accounts {
    /// As they are now.
    pub fn of(issuer: Arc<Issuer>) -> Self {
        let read = issuer.known();
        let in_force = Issuer::subjects_in_force(&read.0, &read.1).map(str::to_owned).collect();
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

    /// Whether the account with this `sub` exists and is enabled. One that was made a moment ago is looked up.
    pub fn has(&self, subject: &str) -> bool {
        self.in_force.contains(&guid::hyphenated(subject)) || self.issuer.is_in_force(subject)
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
