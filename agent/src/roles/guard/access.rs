//! What somebody may do, as an apiserver asks it: in the order of Arc's guard and with its reasons, decided by the
//! snapshot of roles and assignments that requests through the tunnel are decided by.
//!
//! | who asks for what | answer |
//! |---|---|
//! | users and service accounts of Kubernetes (`system:`), users in `skip_users`, users whose token guard has not judged | no opinion |
//! | what was decided before, while that is cached | the same |
//! | discovery | allowed |
//! | to impersonate a name that the tunnel lets nobody ask for | denied |
//! | what an assignment allows | allowed |
//! | what none allows | denied |
//! | without a snapshot, or after it has expired | denied, with an error: not cached |

use std::{collections::HashSet, sync::Arc, time::SystemTime};

use auth::{
    kubernetes::RequestInfo,
    rbac::{kubernetes::is_discovery, principal::principals_of},
    token::ObjectId,
};
use serde_json::{Value, json};

use super::{
    cache::{Cache, Digest},
    review::Question,
};
use crate::{
    config::{DecisionCache, Owner},
    roles::kube_aad_proxy::{
        authorize::{Authorizer, Reviewed},
        impersonate::{ISSUER, Names},
    },
};

/// The reasons of Arc's guard, word by word.
const ALLOWED: &str = "Access allowed by Azure RBAC";
const NOT_ALLOWED: &str = "User does not have access to the resource in Azure. Update role assignment to allow access.";
/// By this one is told who is asked.
pub const NO_OPINION: &str = "Azure does not have opinion for this user.";
const FAILED: &str = "Access denied due to Azure RBAC check failure. Please retry later.";

/// The decision about one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// An assignment allows it.
    Allowed,
    /// No assignment allows it.
    Denied,
    /// Somebody else decides.
    NoOpinion,
    /// Nothing is known of assignments: nobody of the gateway's issuers may anything by them.
    Failed,
}

impl Decision {
    fn of(allowed: bool) -> Self {
        if allowed { Self::Allowed } else { Self::Denied }
    }

    /// As a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NoOpinion => "no_opinion",
            Self::Failed => "error",
        }
    }

    /// The status of the review.
    pub fn status(self) -> Value {
        match self {
            Self::Allowed => json!({"allowed": true, "reason": ALLOWED}),
            Self::Denied => json!({"allowed": false, "denied": true, "reason": NOT_ALLOWED}),
            Self::NoOpinion => json!({"allowed": false, "reason": NO_OPINION}),
            Self::Failed => json!({
                "allowed": false, "denied": true, "reason": FAILED,
                "evaluationError": "the roles and assignments of this cluster are not known: the gateway has not told them, or what it told has expired",
            }),
        }
    }
}

/// Decides reviews of rights, and caches decisions.
pub struct Access {
    authorizer: Arc<Authorizer>,
    /// The longest prefix first.
    owners: Vec<Owner>,
    names: Names,
    skipped: HashSet<String>,
    cache: Cache,
}

impl Access {
    /// For the users of `owners`, but for those in `skipped`; `names` is whom they may impersonate, if a role says so.
    /// Decisions are cached within `bounds`.
    pub fn new(
        authorizer: Arc<Authorizer>,
        owners: Vec<Owner>,
        names: Names,
        skipped: &[String],
        bounds: DecisionCache,
    ) -> Self {
        let skipped = skipped.iter().cloned().collect();
        Self { authorizer, owners, names, skipped, cache: Cache::new(bounds) }
    }

    /// Decides a question, of which `digest` is one of everything in it.
    pub fn decide(&self, question: &Question, digest: Digest, now: SystemTime) -> Decision {
        let Some(object_id) = self.object_id(question) else { return Decision::NoOpinion };
        if let Some(allowed) = self.cache.get(&digest, self.authorizer.edition(now), now) {
            return Decision::of(allowed);
        }
        let principals = principals_of(&object_id, question.groups.iter().map(String::as_str));
        let reviewed = self.authorizer.review(&principals, &question.info, &question.path, now);
        let discovers = !question.info.is_resource && is_discovery(&question.info.verb, &question.path);
        match reviewed {
            Reviewed::Off => Decision::NoOpinion,
            _ if discovers => Decision::Allowed,
            Reviewed::Unknown => Decision::Failed,
            Reviewed::Decided { allowed, at, changes } => {
                let allowed = allowed && self.may_be_named(&question.info);
                self.cache.keep(digest, allowed, at, changes, now);
                Decision::of(allowed)
            }
        }
    }

    /// Whether the name in a question about impersonation may be asked for. Roles name kinds and no names, so that
    /// without this the right to impersonate groups would be the right to be one of `system:masters`, whom the apiserver
    /// asks nobody about. The verbs of constrained impersonation (KEP-5284) are none of the tunnel's: denied, they
    /// leave an apiserver with the verb `impersonate`.
    fn may_be_named(&self, asked: &RequestInfo) -> bool {
        match &*asked.verb {
            "impersonate" => self.names.may_be_reviewed(asked),
            // Everything that can be done with users and groups is being any of them.
            "*" => !["users", "groups", "serviceaccounts", "uids", "userextras"].contains(&&*asked.resource),
            verb => !asked.is_resource || !["impersonate:", "impersonate-on:"].iter().any(|of| verb.starts_with(of)),
        }
    }

    /// What assignments call this user, if guard has said of their token whose it is. A name and an id are no sign of
    /// that: client certificates of the cluster's own may have both.
    fn object_id(&self, question: &Question) -> Option<String> {
        const SYSTEM: &str = "system:";
        let user = question.user.as_str();
        let is_system = user.get(..SYSTEM.len()).is_some_and(|front| front.eq_ignore_ascii_case(SYSTEM));
        if user.is_empty() || is_system || self.skipped.contains(user) {
            return None;
        }
        let owner = self.owners.iter().find(|owner| user.starts_with(&owner.prefix))?;
        if !matches!(question.extra.get(ISSUER).map(Vec::as_slice), Some([issuer]) if *issuer == owner.issuer) {
            return None;
        }
        let id = match &owner.object_id {
            ObjectId::Uid => question.uid.as_str(),
            ObjectId::Extra(key) => match question.extra.get(key).map(Vec::as_slice) {
                Some([id]) => id.as_str(),
                _ => "",
            },
        };
        let whole = [&owner.prefix, id].concat();
        // As when the token was verified: no issuer gives the ids of another one.
        let others =
            self.owners.iter().any(|other| other.prefix.len() > owner.prefix.len() && whole.starts_with(&other.prefix));
        (!id.is_empty() && !others).then_some(whole)
    }
}
