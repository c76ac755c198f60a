//! Users' sessions as one replica tells another of them, for `towline sessions` and for ending one, which may be at any
//! replica. The messages are bounded in rows; those of the user who asks come first.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Session, Sessions};
use crate::identity::Principal;

/// Sessions that one replica tells another at most. Those of the one who asks are told first.
pub const MOST_ROWS: usize = 5_000;
/// Sessions that are looked at for one list.
pub const MOST_COUNTED: usize = 50_000;

/// What is told of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The request that it is, 32 hex digits.
    pub id: String,
    /// The issuer of the one whose it is, which access certificates have none of.
    pub issuer: Option<String>,
    /// What is unique there.
    pub subject: String,
    /// The same for people.
    pub user: String,
    /// The cluster's id.
    pub cluster: String,
    /// Method and path.
    pub what: String,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// When the newest token that was shown ends, in seconds since 1970.
    pub until: u64,
}

/// The sessions of one replica that another one asked for.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRows {
    /// The sessions, up to [`MOST_ROWS`].
    pub rows: Vec<Row>,
    /// Those that there is no room for.
    pub left_out: usize,
}

/// Which sessions are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// Those of this cluster alone, by its id in lower case.
    pub cluster: Option<&'a str>,
    /// Those of the user of this name alone.
    pub user: Option<&'a str>,
}

impl Wanted<'_> {
    /// Whether a session is one of them.
    pub fn has(&self, session: &Session) -> bool {
        self.takes(session.cluster.id.as_str(), session.principal.name())
    }

    /// Whether those of a user at a cluster are.
    pub fn takes(&self, cluster: &str, user: &str) -> bool {
        self.cluster.is_none_or(|wanted| wanted == cluster) && self.user.is_none_or(|wanted| wanted == user)
    }
}

impl Sessions {
    /// The sessions that are wanted, first those of the user with this issuer and subject.
    pub fn told(&self, wanted: &Wanted<'_>, issuer: &str, subject: &str) -> SessionRows {
        let all = self.matching(MOST_COUNTED, |session| wanted.has(session));
        let own = |session: &Session| match &session.principal {
            Principal::User(identity) => identity.issuer == issuer && identity.subject == subject,
            Principal::ServiceAccount(_) => false,
        };
        let (first, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|session| own(session));
        let left_out = (first.len() + others.len()).saturating_sub(MOST_ROWS);
        let rows = first.iter().chain(&others).take(MOST_ROWS).map(|session| session.row()).collect();
        SessionRows { rows, left_out }
    }
}

impl Session {
    /// What is told of it.
    pub fn row(&self) -> Row {
        let (issuer, subject) = match &self.principal {
            Principal::User(identity) => (Some(identity.issuer.clone()), identity.subject.clone()),
            Principal::ServiceAccount(access) => (None, access.name.clone()),
        };
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Row {
            id: self.id.to_string(),
            issuer,
            subject,
            user: self.principal.name().to_owned(),
            cluster: self.cluster.id.as_str().to_owned(),
            what: self.what(),
            started_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
            until: self.deadline(Duration::ZERO),
        }
    }
}
