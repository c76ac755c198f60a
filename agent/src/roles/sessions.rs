//! How long a session lives at the agent, whatever the gateway says: until its token has expired for longer than
//! configured, unless the same principal has shown a newer one since (DESIGN.md section 2).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use proto::token::Identity;

/// The clock is looked at again after at most so long, because it may be set while a session sleeps.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The open sessions by the issuer's name and the token's subject, who together are the principal. A map in a map, so that
/// a request looks its own up without a copy of the names.
type Open = HashMap<String, HashMap<String, Weak<Entry>>>;

/// The open sessions by principal. Bounded by the number of streams: an entry lives as long as a session of its owner.
#[derive(Debug)]
pub struct Sessions {
    outlive_token: Duration,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Entry {
    issuer: String,
    subject: String,
    /// Moves in one direction alone, so that who sleeps until then need not be woken for it.
    expires: Mutex<SystemTime>,
}

/// One open session. Dropping it ends the count of it.
#[derive(Debug)]
pub struct Session {
    /// There until the end.
    entry: Option<Arc<Entry>>,
    sessions: Arc<Sessions>,
}

impl Sessions {
    /// Sessions may outlive their token by `outlive_token`.
    pub fn new(outlive_token: Duration) -> Arc<Self> {
        Arc::new(Self { outlive_token, open: Mutex::default() })
    }

    /// A verified token was shown: extends all sessions of its principal. Gives back how many principals' entries that
    /// were (0 or 1).
    pub fn shown(&self, identity: &Identity) -> usize {
        self.extend(&identity.issuer, &identity.subject, identity.expires)
    }

    fn extend(&self, issuer: &str, subject: &str, expires: SystemTime) -> usize {
        // Under the lock, so that a session's end does not count this clone as another session.
        let open = self.open();
        match find(&open, issuer, subject) {
            Some(entry) => {
                entry.extend(expires);
                drop(entry);
                1
            }
            None => 0,
        }
    }

    /// Opens a session for the principal of `identity`.
    pub fn begin(self: &Arc<Self>, identity: &Identity) -> Session {
        self.begin_for(&identity.issuer, &identity.subject, identity.expires)
    }

    fn begin_for(self: &Arc<Self>, issuer: &str, subject: &str, expires: SystemTime) -> Session {
        let mut open = self.open();
        let entry = find(&open, issuer, subject).unwrap_or_else(|| {
            let (issuer, subject) = (issuer.to_owned(), subject.to_owned());
            let of_issuer = open.entry(issuer.clone()).or_default();
            let entry = Arc::new(Entry { issuer, subject: subject.clone(), expires: Mutex::new(expires) });
            of_issuer.insert(subject, Arc::downgrade(&entry));
            entry
        });
        drop(open);
        entry.extend(expires);
        Session { entry: Some(entry), sessions: self.clone() }
    }

    /// Principals with open sessions.
    pub fn principals(&self) -> usize {
        self.open().values().map(HashMap::len).sum()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn expires(&self) -> MutexGuard<'_, SystemTime> {
        self.expires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, expires: SystemTime) {
        let mut latest = self.expires();
        *latest = expires.max(*latest);
    }
}

fn find(open: &Open, issuer: &str, subject: &str) -> Option<Arc<Entry>> {
    open.get(issuer)?.get(subject)?.upgrade()
}

impl Session {
    /// Completes when the session must end. Cancel-safe.
    pub async fn ended(&self) {
        let Some(entry) = &self.entry else { return };
        loop {
            let expires = *entry.expires();
            let left = match (expires + self.sessions.outlive_token).duration_since(SystemTime::now()) {
                Ok(left) if !left.is_zero() => left,
                _ => return,
            };
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut open = self.sessions.open();
        // Given up under the lock: of two that end at once, each would take the other for one that stays.
        let Some(entry) = self.entry.take().and_then(Arc::into_inner) else { return };
        if let Some(of_issuer) = open.get_mut(&entry.issuer) {
            of_issuer.remove(&entry.subject);
            if of_issuer.is_empty() {
                open.remove(&entry.issuer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_ends_with_its_token_unless_a_newer_one_is_shown() {
        let sessions = Sessions::new(Duration::ZERO);
        let now = SystemTime::now();
        let expired = sessions.begin_for("test", "a", now - Duration::from_secs(1));
        expired.ended().await;
        sessions.extend("test", "a", now + Duration::from_secs(3600));
        assert!(futures_util::FutureExt::now_or_never(expired.ended()).is_none());
        // Somebody else's token extends nothing, an older one shortens nothing.
        let other = sessions.begin_for("test", "b", now - Duration::from_secs(1));
        sessions.extend("test", "a", now - Duration::from_secs(9));
        other.ended().await;
        assert!(futures_util::FutureExt::now_or_never(expired.ended()).is_none());
    }

    #[tokio::test]
    async fn a_session_leaves_nothing_behind() {
        let sessions = Sessions::new(Duration::from_secs(8 * 3600));
        let first = sessions.begin_for("test", "a", SystemTime::now() - Duration::from_secs(3600));
        let second = sessions.begin_for("test", "a", SystemTime::now());
        assert!(futures_util::FutureExt::now_or_never(first.ended()).is_none());
        assert_eq!(sessions.principals(), 1);
        drop(first);
        assert_eq!(sessions.principals(), 1);
        // The same subject of another issuer is somebody else.
        let other = sessions.begin_for("other", "a", SystemTime::now());
        assert_eq!(sessions.principals(), 2);
        drop(second);
        assert_eq!(sessions.principals(), 1);
        assert_eq!(sessions.extend("test", "a", SystemTime::now()), 0);
        assert_eq!(sessions.extend("other", "a", SystemTime::now()), 1);
        drop(other);
        assert_eq!(sessions.principals(), 0);
        assert!(sessions.open().is_empty());
    }

    /// Each took the other for one that stays, and the principal's entry was left for ever.
    #[test]
    fn two_sessions_that_end_at_once_leave_nothing_behind() {
        let (sessions, barrier) = (Sessions::new(Duration::ZERO), std::sync::Barrier::new(2));
        for _ in 0..300 {
            let both = [(); 2].map(|()| sessions.begin_for("test", "a", SystemTime::now()));
            std::thread::scope(|scope| {
                for session in both {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        drop(session);
                    });
                }
            });
            assert!(sessions.open().is_empty());
        }
    }
}
