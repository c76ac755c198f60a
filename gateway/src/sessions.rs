//! How long a request lives (docs/identity.md). Every request behind authorize is a session until its last byte; the
//! long ones are exec, attach, port-forward, watch and `logs -f`. They are looked at again every `reauthorise_every`
//! and at once when the snapshot changes: a withdrawn right, a disabled user or a revoked key ends them. A session may
//! outlive its credential by `outlive_token`. A newer valid token for the cluster extends it if both tokens came of the
//! same sign-in (`sid`). A token of another sign-in does not, even if it is the same user's: otherwise a thief's session
//! with a stolen token would stay open for as long as the user works. Where the issuer names no sign-in, and for an
//! access certificate, nothing extends a session.

pub mod cut;
pub mod slots;
pub mod told;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use auth::token::{Ends, SignIn, TokenEnd};
use bytes::Bytes;
use daemon::Shutdown;
use dashmap::DashMap;
use http::Method;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use types::{
    ids::{ClusterKey, RequestId},
    instants::unix_seconds,
};

use crate::{
    audit::TEXT_BYTES,
    cluster::ClusterRef,
    identity::Principal,
    metrics::{Metrics, OpenGuard},
    permit::{self, Permit},
    policy::DenialReason,
    snapshot::{Snapshot, Snapshots},
};

/// Why the gateway ended a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The right to reach the cluster was withdrawn.
    Withdrawn,
    /// The user was disabled.
    Disabled,
    /// The issuer's key that signed the tokens was revoked.
    KeyRevoked,
    /// The credential has ended, and so has what a session may outlive it.
    Expired,
    /// An operator ended it.
    Operator,
    /// The gateway stops and the grace is over.
    Shutdown,
    /// This replica cannot reach the store any more, and does not know whether the right still holds.
    Fenced,
    /// Another process has taken this replica's name.
    Superseded,
}

impl EndReason {
    /// The reason as text, for the user and for logs.
    pub fn text(self) -> &'static str {
        match self {
            Self::Withdrawn => "the right to reach this cluster was withdrawn",
            Self::Disabled => "the user was disabled",
            Self::KeyRevoked => "the key that signed the token was revoked; log in again",
            Self::Expired => "the token has expired; log in again",
            Self::Operator => "an operator ended the session",
            Self::Shutdown => "the gateway shuts down",
            Self::Fenced => "this gateway has lost its database, and cannot tell who may reach this cluster; try again",
            Self::Superseded => "another gateway has started with the name of this one; try again",
        }
    }
}

/// The end of a credential. An access certificate has no key of an issuer.
fn end_of(principal: &Principal) -> TokenEnd {
    let key = match principal {
        Principal::User(identity) => Some(Arc::clone(&identity.key)),
        Principal::ServiceAccount(_) => None,
    };
    TokenEnd { until: unix_seconds(principal.expires()), key }
}

/// The ends of tokens of a sign-in that were shown for a cluster.
#[derive(Debug)]
struct Shown(Mutex<Ends>);

impl Shown {
    fn new(end: TokenEnd) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Ends::new(end))))
    }

    fn ends(&self) -> std::sync::MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latest(&self) -> TokenEnd {
        self.ends().latest().clone()
    }

    fn until(&self) -> u64 {
        self.ends().latest().until
    }
}

/// A sign-in of somebody at a cluster.
type Key = (SignIn, ClusterKey);

/// By sign-in and cluster, with how many sessions look at it.
type ShownMap = HashMap<Key, (Arc<Shown>, usize)>;

/// By which newer tokens of the same sign-in are found; `None`: there are none.
fn key_of(principal: &Principal, cluster: &ClusterRef) -> Option<Key> {
    match principal {
        Principal::User(identity) => identity.sign_in.map(|sign_in| (sign_in, cluster.key)),
        Principal::ServiceAccount(_) => None,
    }
}

/// What a session is for. Spelled out when somebody asks, for hardly a request is there when anybody does.
#[derive(Debug)]
pub struct What {
    method: Method,
    path: Bytes,
}

impl What {
    /// Of a request; the path is without its query and at most [`TEXT_BYTES`] long.
    pub fn new(method: &Method, target: &Bytes) -> Self {
        let path = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len()).min(TEXT_BYTES);
        // A long target is not kept for its beginning.
        let path =
            if target.len() > TEXT_BYTES { Bytes::copy_from_slice(&target[..path]) } else { target.slice(..path) };
        Self { method: method.clone(), path }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, String::from_utf8_lossy(&self.path))
    }
}

/// One open session.
pub struct Session {
    /// The request that it is.
    pub id: RequestId,
    /// Who opened the session.
    pub principal: Principal,
    /// The cluster that the session reaches.
    pub cluster: ClusterRef,
    what: What,
    /// When the session began.
    pub started: SystemTime,
    key: Option<Key>,
    shown: Arc<Shown>,
    ended: CancellationToken,
    why: OnceLock<EndReason>,
}

impl Session {
    /// Ends it; the first reason stays.
    pub fn end(&self, reason: EndReason) {
        let _ = self.why.set(reason);
        self.ended.cancel();
    }

    /// What is asked for, for those who list sessions: method and path.
    pub fn what(&self) -> String {
        self.what.to_string()
    }

    /// The sign-in and cluster whose newer tokens extend it, and the end of the newest that was shown; `None`: nothing
    /// extends it.
    pub fn newest(&self) -> Option<(SignIn, ClusterKey, TokenEnd)> {
        self.key.map(|(sign_in, cluster)| (sign_in, cluster, self.shown.latest()))
    }

    /// When it must end if nothing newer is shown, in seconds since 1970.
    pub fn deadline(&self, outlive: Duration) -> u64 {
        self.shown.until().saturating_add(outlive.as_secs())
    }
}

/// The open sessions.
pub struct Sessions {
    open: DashMap<[u8; 16], Arc<Session>>,
    shown: Mutex<ShownMap>,
    /// The next time the sweeper wakes, in seconds since 1970.
    wakes_at: AtomicU64,
    earlier: Notify,
    metrics: Arc<Metrics>,
}

/// Keeps a session in the registry.
pub struct SessionHandle {
    session: Arc<Session>,
    sessions: Arc<Sessions>,
    _open: OpenGuard,
}

impl SessionHandle {
    /// Completes when the gateway ends the session.
    pub fn ended(&self) -> impl Future<Output = EndReason> + Send + 'static {
        let session = Arc::clone(&self.session);
        async move {
            session.ended.cancelled().await;
            session.why.get().copied().unwrap_or(EndReason::Operator)
        }
    }

    /// The session that this handle keeps in the table.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        let session = &self.session;
        self.sessions.open.remove(&session.id.0);
        let Some(key) = &session.key else { return };
        let mut shown = self.sessions.shown();
        if let Some((_, users)) = shown.get_mut(key) {
            *users -= 1;
            if *users == 0 {
                shown.remove(key);
            }
        }
    }
}

impl Sessions {
    /// An empty table, which counts open sessions in these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            open: DashMap::new(),
            shown: Mutex::default(),
            wakes_at: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
            metrics,
        })
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, ShownMap> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session. Its token, which is valid, extends the other sessions of the same sign-in.
    pub fn open(self: &Arc<Self>, id: RequestId, permit: &Permit, what: What, outlive: Duration) -> SessionHandle {
        let (principal, cluster) = (permit.principal().clone(), permit.cluster().clone());
        let end = end_of(&principal);
        let key = key_of(&principal, &cluster);
        let shown = match key {
            None => Shown::new(end),
            Some(key) => match self.shown().entry(key) {
                Entry::Vacant(entry) => Arc::clone(&entry.insert((Shown::new(end), 1)).0),
                Entry::Occupied(mut entry) => {
                    let (shown, users) = entry.get_mut();
                    *users += 1;
                    shown.ends().add(end);
                    Arc::clone(shown)
                }
            },
        };
        let session = Arc::new(Session {
            id,
            principal,
            cluster,
            what,
            started: SystemTime::now(),
            key,
            shown,
            ended: CancellationToken::new(),
            why: OnceLock::new(),
        });
        self.open.insert(id.0, Arc::clone(&session));
        if session.deadline(outlive) < self.wakes_at.load(Ordering::Relaxed) {
            self.earlier.notify_one();
        }
        SessionHandle { session, sessions: Arc::clone(self), _open: self.metrics.sessions.enter() }
    }

    /// A token of a sign-in with this end was shown for a cluster at another replica: it extends the sessions here.
    pub fn extend(&self, sign_in: SignIn, cluster: ClusterKey, end: TokenEnd) {
        if let Some((shown, _)) = self.shown().get(&(sign_in, cluster)) {
            shown.ends().add(end);
        }
    }

    /// All of them, at most `limit`, for the admin.
    pub fn list(&self, limit: usize) -> Vec<Arc<Session>> {
        self.open.iter().take(limit).map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Those that are asked for, however many others there are; at most `limit`.
    pub fn matching(&self, limit: usize, wanted: impl FnMut(&Session) -> bool) -> Vec<Arc<Session>> {
        let mut wanted = wanted;
        let of_all = self.open.iter().filter(|entry| wanted(entry.value()));
        of_all.take(limit).map(|entry| Arc::clone(entry.value())).collect()
    }

    /// The one of this id.
    pub fn get(&self, id: RequestId) -> Option<Arc<Session>> {
        self.open.get(&id.0).map(|entry| Arc::clone(entry.value()))
    }

    /// Ends one. False: there is none of this id.
    pub fn end(&self, id: RequestId, reason: EndReason) -> bool {
        self.open.get(&id.0).map(|session| session.end(reason)).is_some()
    }

    /// Ends every session. A session that has already ended keeps its first reason.
    pub fn end_all(&self, reason: EndReason) {
        self.open.iter().for_each(|entry| entry.value().end(reason));
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// Looks at every session once and returns the earliest deadline of those that stay.
    fn sweep(&self, snapshot: &Snapshot, now: SystemTime) -> u64 {
        let now = unix_seconds(now);
        let outlive = snapshot.sessions.outlive_token;
        let mut earliest = u64::MAX;
        for entry in &self.open {
            let session = entry.value();
            match verdict(snapshot, session, now) {
                Some(reason) => {
                    tracing::info!(request.id = %session.id, cluster.id = %session.cluster.id, ?reason, "session ended");
                    session.end(reason);
                }
                None => earliest = earliest.min(session.deadline(outlive)),
            }
        }
        earliest
    }

    /// Sweeps until shut down.
    pub async fn run(self: Arc<Self>, snapshots: Arc<Snapshots>, shutdown: Shutdown) {
        let mut changes = snapshots.watch();
        loop {
            let snapshot = snapshots.load();
            let now = SystemTime::now();
            let earliest = self.sweep(&snapshot, now);
            let until_deadline = Duration::from_secs(earliest.saturating_sub(unix_seconds(now)).max(1));
            let pause = snapshot.sessions.reauthorise_every.min(until_deadline);
            self.wakes_at.store(unix_seconds(now + pause), Ordering::Relaxed);
            drop(snapshot);
            tokio::select! {
                biased;
                () = shutdown.closed() => return,
                _ = changes.changed() => {}
                () = self.earlier.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

fn verdict(snapshot: &Snapshot, session: &Session, now: u64) -> Option<EndReason> {
    // Such a session ends even if a token of another key extends it. A thief with the revoked key can open a session that
    // claims a user's sign-in, and the user's own tokens would then extend it.
    if let Principal::User(identity) = &session.principal {
        let is_good = |key: &str| !snapshot.verifier.has_revoked(&identity.issuer, key);
        if !is_good(&identity.key) || !session.shown.ends().keep(is_good) {
            return Some(EndReason::KeyRevoked);
        }
    }
    if session.deadline(snapshot.sessions.outlive_token) <= now {
        return Some(EndReason::Expired);
    }
    // Of an access certificate's holder it is asked below, with the right.
    if let Principal::User(identity) = &session.principal
        && !snapshot.has_issuer(&identity.issuer)
    {
        return Some(EndReason::Withdrawn);
    }
    let cluster = snapshot.cluster(&session.cluster.key);
    // Deleted and created again: the name is the same, the right was to another cluster.
    if cluster.is_some_and(|cluster| cluster.agents.principal() != session.cluster.agents.principal()) {
        return Some(EndReason::Withdrawn);
    }
    match permit::authorize(snapshot, &session.principal, cluster) {
        Ok(_) => None,
        Err(denial) if denial.0 == DenialReason::Disabled => Some(EndReason::Disabled),
        Err(_) => Some(EndReason::Withdrawn),
    }
}
