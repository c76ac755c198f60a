//! What roles and assignments say of a call (feature Z9), where the cluster is told to ask them: the snapshot that
//! concerns it, signed by an issuer whose keys are pinned here, pulled by role
//! [`assignment_sync_agent`](crate::roles::assignment_sync_agent). Without one that holds nobody has anything by
//! assignments, and the cluster's own RBAC decides alone.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::{
    kubernetes::{RequestInfo, percent_decode},
    rbac::{
        Policy,
        call::{Asking, Verdict, is_safe},
        principal::principals,
        snapshot::{self, DOCUMENT_BYTES, Document, DocumentError, STATEMENT_TYPE, Signed},
    },
    token::{Identity, Statement, TokenError, Verifier},
};
use tokio::sync::watch;
use types::{ids::ClusterId, instants::timestamp};

use super::{
    admit::{Admitted, Asked},
    authenticate::Authenticator,
    impersonate::account_of,
};

/// Rights that are bounded in time are looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How long a statement holds at most, whatever end it names: as long as a gateway may be told that its own do.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Decides by the snapshot of now.
pub struct Authorizer {
    authenticator: Arc<Authenticator>,
    /// The issuer that states what is right; none: roles and assignments are not asked.
    issuer: Option<String>,
    known: watch::Sender<Option<Arc<Known>>>,
}

/// A snapshot that holds.
struct Known {
    policy: Policy,
    enabled: bool,
    revision: i64,
    /// SHA-256 of the document.
    digest: String,
    /// Who signed its statement, and by which key: a thumbprint.
    issuer: String,
    key: String,
    /// When its statement was made, seconds since 1970.
    issued: u64,
    ends: SystemTime,
    /// When assignments begin or end that are bounded in time, seconds since 1970; the earliest first.
    changes: Vec<i64>,
}

/// A snapshot whose statement was verified for this cluster. Only [`Authorizer::judge`] makes one.
#[derive(Clone)]
pub struct Judged(Arc<Known>);

impl Judged {
    /// The revision of what it says.
    pub fn revision(&self) -> i64 {
        self.0.revision
    }

    /// When its statement ends.
    pub fn ends(&self) -> SystemTime {
        self.0.ends
    }

    /// Whether nobody needs `other` where this one is: it says more, or the same in a statement that was made at most
    /// `within` before that one.
    pub fn stands_for(&self, other: &Self, within: Duration) -> bool {
        let (own, other) = (&self.0, &other.0);
        own.revision > other.revision
            || (own.revision == other.revision
                && own.digest == other.digest
                && own.issued.saturating_add(within.as_secs()) >= other.issued)
    }
}

/// Why a snapshot is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The cluster is not told to ask roles and assignments.
    #[error("azure_rbac is not configured in this cluster")]
    Off,
    /// Its statement does not hold.
    #[error("the statement that signs the snapshot of roles and assignments does not hold")]
    Statement(#[from] TokenError),
    /// The statement is of another document.
    #[error("the snapshot of roles is not the one that was signed")]
    Digest,
    /// Larger than [`DOCUMENT_BYTES`].
    #[error("the snapshot of roles has more than {DOCUMENT_BYTES} bytes")]
    TooLarge,
    /// No JSON of the right form.
    #[error("the snapshot of roles cannot be read: line {0} column {1}")]
    Json(usize, usize),
    /// A part of it.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Reading it was broken off.
    #[error("the snapshot of roles was not read to its end")]
    Unread,
    /// Older than the one that is known.
    #[error("the snapshot of roles is of revision {0}, older than {1}, which is known")]
    Older(i64, i64),
}

/// What an apiserver is told of a user's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reviewed {
    /// Roles and assignments are not asked in this cluster.
    Off,
    /// There is no snapshot, or its statement has expired.
    Unknown,
    /// Decided by the snapshot of `at`.
    Decided {
        /// Whether an assignment allows it.
        allowed: bool,
        /// The snapshot that the decision was made by.
        at: Edition,
        /// When the next assignment begins or ends, after which the answer may be another one.
        changes: Option<SystemTime>,
    },
}

/// Tells one snapshot from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edition {
    revision: i64,
    ends: SystemTime,
}

/// A right that a call was allowed by. It may be withdrawn while the call lasts.
pub struct Right {
    known: watch::Receiver<Option<Arc<Known>>>,
    verifier: Arc<Verifier>,
    principals: Vec<String>,
    cluster: ClusterId,
    of: Of,
}

/// What a right is to.
enum Of {
    /// The call itself, and the Kubernetes verbs that it is given for it.
    Call { info: RequestInfo, path: String, safe: bool, verbs: Vec<&'static str> },
    /// Going on as somebody else, whom the cluster's own RBAC then judges.
    Impersonation(Parts),
}

/// The kinds of what `kubectl --as` asks for: roles name kinds, and no names.
struct Parts {
    /// The namespace of a service account; none for a user.
    account: Option<String>,
    groups: bool,
    uid: bool,
    extra: bool,
}

impl Authorizer {
    /// Takes snapshots that `issuer` signed, by the keys that `authenticator` knows of it.
    pub fn new(authenticator: Arc<Authenticator>, issuer: Option<String>) -> Arc<Self> {
        Arc::new(Self { authenticator, issuer, known: watch::Sender::new(None) })
    }

    /// Whether the cluster is told to ask roles and assignments.
    pub fn is_on(&self) -> bool {
        self.issuer.is_some()
    }

    /// Completes when a snapshot is known. Cancel-safe.
    pub async fn told(&self) {
        // The sender is this authorizer's own.
        let _ = self.known.subscribe().wait_for(Option::is_some).await;
    }

    /// The revision that is decided by; 0 without one.
    pub fn revision(&self) -> i64 {
        self.known().map_or(0, |known| known.revision)
    }

    /// The snapshot that holds; none where nothing can be decided.
    pub fn edition(&self, now: SystemTime) -> Option<Edition> {
        let known = self.known().filter(|known| known.holds(now))?;
        Some(Edition { revision: known.revision, ends: known.ends })
    }

    /// The snapshot that was taken last. What a key signed that is revoked since then is worth nothing: it may be a thief's.
    fn known(&self) -> Option<Arc<Known>> {
        self.known.borrow().clone().filter(|known| !known.is_revoked(self.authenticator.verifier()))
    }

    /// Decides what an apiserver asks about somebody ([`auth::rbac::call::Asking::review`]).
    pub fn review(&self, principals: &[String], info: &RequestInfo, path: &str, now: SystemTime) -> Reviewed {
        if self.issuer.is_none() {
            return Reviewed::Off;
        }
        let Some(known) = self.known().filter(|known| now < known.ends) else {
            return Reviewed::Unknown;
        };
        if !known.enabled {
            return Reviewed::Off;
        }
        let cluster = self.authenticator.cluster();
        let asking = Asking { policy: &known.policy, principals, cluster, now: timestamp(now) };
        let at = Edition { revision: known.revision, ends: known.ends };
        Reviewed::Decided { allowed: asking.review(info, path), at, changes: known.next_change(asking.now) }
    }

    /// Takes a snapshot in place of the one that is known, if it is signed, of this cluster and not older.
    pub async fn take(&self, signed: &Signed, at: SystemTime) -> Result<Judged, SnapshotError> {
        let judged = self.judge(signed, at).await?;
        let verifier = self.authenticator.verifier();
        let mut older = None;
        self.known.send_if_modified(|now| {
            // One whose time is over holds nobody back, for revisions begin anew with another store; nor does one of a key
            // that is revoked, whatever revision a thief gave it.
            let held = now.as_ref().filter(|held| at < held.ends && !held.is_revoked(verifier));
            older = held.map(|held| held.revision).filter(|revision| *revision > judged.0.revision);
            if older.is_none() {
                *now = Some(judged.0.clone());
            }
            older.is_none()
        });
        match older {
            Some(known) => Err(SnapshotError::Older(judged.0.revision, known)),
            None => Ok(judged),
        }
    }

    /// Takes what was kept of an earlier process, unless the gateway has told as much or more meanwhile.
    pub fn resume(&self, judged: &Judged, at: SystemTime) -> bool {
        let verifier = self.authenticator.verifier();
        self.known.send_if_modified(|now| {
            let gives_way =
                |held: &Arc<Known>| held.ends <= at || held.is_revoked(verifier) || held.revision < judged.0.revision;
            let takes = now.as_ref().is_none_or(gives_way);
            if takes {
                *now = Some(judged.0.clone());
            }
            takes
        })
    }

    /// Verifies a snapshot and changes nothing: that it is signed, in its time, and of this cluster.
    pub async fn judge(&self, signed: &Signed, at: SystemTime) -> Result<Judged, SnapshotError> {
        let issuer = self.issuer.as_deref().ok_or(SnapshotError::Off)?;
        if signed.document.len() > DOCUMENT_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        let cluster = self.authenticator.cluster();
        let audience = snapshot::audience(cluster);
        let stated = self.authenticator.statement(&signed.statement, issuer, STATEMENT_TYPE, &audience, at).await?;
        let Statement { claims: stated, key } = stated;
        let digest = stated.get("sha256").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
        let (text, cluster, expected) = (signed.document.clone(), cluster.clone(), digest.clone());
        // Some mebibytes at most, which take tens of milliseconds: streams of users go on meanwhile.
        let read = tokio::task::spawn_blocking(move || read(&text, &expected, &cluster));
        let (document, policy, changes) = read.await.map_err(|_| SnapshotError::Unread)??;
        let seconds = |claim: &str| stated.get(claim).and_then(serde_json::Value::as_u64).unwrap_or_default();
        let ends = (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds("exp"))).min(at + LONGEST);
        let Document { enabled, revision, .. } = document;
        let (issuer, issued) = (issuer.to_owned(), seconds("iat"));
        Ok(Judged(Arc::new(Known { policy, enabled, revision, digest, issuer, key, issued, ends, changes })))
    }

    /// The right by which this call is allowed; `None`: the cluster's own RBAC decides.
    pub fn right(&self, identity: &Identity, admitted: &Admitted, now: SystemTime) -> Option<Box<Right>> {
        self.issuer.as_ref()?;
        let target = &admitted.target;
        // What is no text names nothing that a role knows.
        let path = String::from_utf8(percent_decode(target.path().as_bytes()).into_owned()).ok()?;
        let info = RequestInfo::parse(&admitted.method, &path, target.query());
        let safe = is_safe(&admitted.method, admitted.upgrade.is_some());
        let right = self.asked_by(identity, Of::Call { info, path, safe, verbs: Vec::new() });
        let verbs = right.decide(now)?;
        Some(Box::new(right.given(verbs)))
    }

    /// The right by which all that `kubectl --as` asks for may be impersonated; `None`: the cluster is asked.
    pub fn right_to_impersonate(&self, identity: &Identity, asked: &Asked, now: SystemTime) -> Option<Box<Right>> {
        self.issuer.as_ref()?;
        let right = self.asked_by(identity, Of::Impersonation(Parts::of(asked)));
        right.decide(now).map(|_| Box::new(right))
    }

    fn asked_by(&self, identity: &Identity, of: Of) -> Right {
        let (known, cluster) = (self.known.subscribe(), self.authenticator.cluster().clone());
        let verifier = Arc::clone(self.authenticator.verifier());
        Right { known, verifier, principals: principals(identity), cluster, of }
    }
}

impl Parts {
    fn of(asked: &Asked) -> Self {
        Self {
            account: account_of(&asked.user).map(|(namespace, _)| namespace.to_owned()),
            groups: !asked.groups.is_empty(),
            uid: asked.uid.is_some(),
            extra: !asked.extra.is_empty(),
        }
    }

    fn allowed(&self, asking: &Asking<'_>) -> bool {
        const AUTHENTICATION: &str = "authentication.k8s.io";
        let user = match &self.account {
            Some(namespace) => asking.impersonate("", "serviceaccounts", Some(namespace)),
            None => asking.impersonate("", "users", None),
        };
        user && (!self.groups || asking.impersonate("", "groups", None))
            && (!self.uid || asking.impersonate(AUTHENTICATION, "uids", None))
            && (!self.extra || asking.impersonate(AUTHENTICATION, "userextras", None))
    }
}

impl Known {
    fn is_revoked(&self, verifier: &Verifier) -> bool {
        verifier.has_revoked(&self.issuer, &self.key)
    }

    fn holds(&self, now: SystemTime) -> bool {
        self.enabled && now < self.ends
    }

    fn next_change(&self, now: i64) -> Option<SystemTime> {
        let next = *self.changes.get(self.changes.partition_point(|at| *at <= now))?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(next).ok()?))
    }
}

impl Right {
    /// The Kubernetes verbs that the call is given in the cluster; none to who goes on as somebody else.
    pub fn verbs(&self) -> &[&'static str] {
        match &self.of {
            Of::Call { verbs, .. } => verbs,
            Of::Impersonation(_) => &[],
        }
    }

    fn given(mut self, given: Vec<&'static str>) -> Self {
        if let Of::Call { verbs, .. } = &mut self.of {
            *verbs = given;
        }
        self
    }

    /// What is given now; `None`: nothing is.
    fn decide(&self, now: SystemTime) -> Option<Vec<&'static str>> {
        let holds = |known: &Arc<Known>| known.holds(now) && !known.is_revoked(&self.verifier);
        let known = self.known.borrow().clone().filter(holds)?;
        let asking =
            Asking { policy: &known.policy, principals: &self.principals, cluster: &self.cluster, now: timestamp(now) };
        match &self.of {
            Of::Call { info, path, safe, .. } => match asking.call(info, path, *safe) {
                Verdict::Allowed(verbs) => Some(verbs),
                Verdict::NoOpinion => None,
            },
            Of::Impersonation(parts) => parts.allowed(&asking).then(Vec::new),
        }
    }

    /// Completes when the call would not be allowed as it was any more. Cancel-safe.
    pub async fn withdrawn(&self) {
        let mut known = self.known.clone();
        loop {
            known.mark_unchanged();
            if self.decide(SystemTime::now()).as_deref() != Some(self.verbs()) {
                return;
            }
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }
}

/// What a document says, if it is the one that was signed, and when that changes by itself.
fn read(text: &str, digest: &str, cluster: &ClusterId) -> Result<(Document, Policy, Vec<i64>), SnapshotError> {
    if digest != snapshot::digest_of(text) {
        return Err(SnapshotError::Digest);
    }
    let document: Document =
        serde_json::from_str(text).map_err(|error| SnapshotError::Json(error.line(), error.column()))?;
    let policy = document.policy(cluster)?;
    let windows = policy.iter().map(|assignment| assignment.window);
    let mut changes: Vec<i64> = windows.flat_map(|window| [window.starts, window.ends]).flatten().collect();
    changes.sort_unstable();
    changes.dedup();
    Ok((document, policy, changes))
}

#[cfg(test)]
mod tests;
