//! Who of the issuer's users and service principals may act, at one moment: the one place that says whether somebody is
//! disabled or deleted, or has replaced what they signed in with.

use std::{collections::HashMap, sync::Arc};

use super::{Principals, Users};
use crate::guid;

/// The accounts of one moment that are enabled, by their `sub`.
pub struct InForce {
    users: Arc<Users>,
    principals: Arc<Principals>,
    by_subject: HashMap<String, Credentials>,
}

/// What somebody may have signed in with.
enum Credentials {
    /// A user's password, or a later one.
    Password {
        /// The generation of the user's sign-ins.
        generation: u64,
    },
    /// A service principal's secrets, by their ids.
    Secrets(Vec<String>),
}

impl InForce {
    pub(super) fn of(users: Arc<Users>, principals: Arc<Principals>) -> Self {
        let of_users = users.iter().filter(|user| !user.disabled);
        let of_users = of_users.map(|user| (user.id.clone(), Credentials::Password { generation: user.generation() }));
        let ids = |secrets: &[super::Secret]| secrets.iter().map(|secret| secret.id.clone()).collect();
        let of_principals = principals.iter().filter(|known| !known.disabled);
        let of_principals =
            of_principals.map(|known| (known.object_id.clone(), Credentials::Secrets(ids(&known.secrets))));
        let by_subject = of_users.chain(of_principals).collect();
        Self { users, principals, by_subject }
    }

    pub(super) fn is_of(&self, users: &Arc<Users>, principals: &Arc<Principals>) -> bool {
        Arc::ptr_eq(&self.users, users) && Arc::ptr_eq(&self.principals, principals)
    }

    /// Whether the user or service principal with this `sub` exists and is enabled, and what they signed in with still
    /// holds, where it is known: a password that was not replaced, a secret that was not taken away.
    pub fn has(&self, subject: &str, credential: Option<&str>) -> bool {
        // Tokens and enrolment tokens from before name users without hyphens.
        let known = self.by_subject.get(&guid::hyphenated(subject));
        known.is_some_and(|known| credential.is_none_or(|one| known.holds(one)))
    }
}

impl Credentials {
    fn holds(&self, credential: &str) -> bool {
        match self {
            // Of a later password this replica may not know yet; the gateway has signed that there is one.
            Self::Password { generation } => credential.parse::<u64>().is_ok_and(|of| of >= *generation),
            Self::Secrets(ids) => ids.iter().any(|id| id == credential),
        }
    }
}
