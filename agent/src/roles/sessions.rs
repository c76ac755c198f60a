//! How long a session lives at the agent, whatever the gateway says: until its token has expired for longer than
//! configured, unless a newer one of the same sign-in (`sid`) was shown since. A token of another
//! sign-in extends nothing, even of the same principal: else whoever holds a stolen token would stay for as long as its
//! owner works. Where the issuer names no sign-in, nothing extends a session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use auth::token::{Identity, SignIn};

/// Longest time between two looks at the clock, because it may be set while a session sleeps.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The open sessions by sign-in, which is a principal's at an issuer.
type Open = HashMap<SignIn, Weak<Entry>>;

/// The open sessions by sign-in. Bounded by the number of streams: an entry lives as long as a session of its owner.
#[derive(Debug)]
pub struct Sessions {
    outlive_token: Duration,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Entry {
    /// `None`: a session by itself.
    sign_in: Option<SignIn>,
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

    /// A verified token was shown: extends all sessions of its sign-in. Gives back how many sign-ins' entries that were
    /// (0 or 1).
    pub fn shown(&self, identity: &Identity) -> usize {
        identity.sign_in.map_or(0, |sign_in| self.extend(&sign_in, identity.expires))
    }

    fn extend(&self, sign_in: &SignIn, expires: SystemTime) -> usize {
        // Under the lock, so that a session's end does not count this clone as another session.
        let open = self.open();
        match open.get(sign_in).and_then(Weak::upgrade) {
            Some(entry) => {
                entry.extend(expires);
                drop(entry);
                1
            }
            None => 0,
        }
    }

    /// Opens a session for the sign-in of `identity`.
    pub fn begin(self: &Arc<Self>, identity: &Identity) -> Session {
        self.begin_for(identity.sign_in, identity.expires)
    }

    fn begin_for(self: &Arc<Self>, sign_in: Option<SignIn>, expires: SystemTime) -> Session {
        let new = || Arc::new(Entry { sign_in, expires: Mutex::new(expires) });
        let entry = match sign_in {
            None => new(),
            Some(sign_in) => {
                let mut open = self.open();
                open.get(&sign_in).and_then(Weak::upgrade).unwrap_or_else(|| {
                    let entry = new();
                    open.insert(sign_in, Arc::downgrade(&entry));
                    entry
                })
            }
        };
        entry.extend(expires);
        Session { entry: Some(entry), sessions: self.clone() }
    }

    /// Sign-ins with open sessions.
    pub fn sign_ins(&self) -> usize {
        self.open().len()
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
        if let Some(sign_in) = &entry.sign_in {
            open.remove(sign_in);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SignIn = [1; 16];
    const OTHER: SignIn = [2; 16];

    #[tokio::test]
    async fn a_session_ends_with_its_token_unless_a_newer_one_of_its_sign_in_is_shown() {
        let sessions = Sessions::new(Duration::ZERO);
        let now = SystemTime::now();
        let expired = sessions.begin_for(Some(ONE), now - Duration::from_secs(1));
        expired.ended().await;
        sessions.extend(&ONE, now + Duration::from_secs(3600));
        assert!(futures_util::FutureExt::now_or_never(expired.ended()).is_none());
        // A token of another sign-in extends nothing, an older one shortens nothing.
        let other = sessions.begin_for(Some(OTHER), now - Duration::from_secs(1));
        sessions.extend(&ONE, now - Duration::from_secs(9));
        other.ended().await;
        assert!(futures_util::FutureExt::now_or_never(expired.ended()).is_none());
        // Nor does one without, of which nobody knows whose it is.
        let alone = sessions.begin_for(None, now - Duration::from_secs(1));
        let _newer = sessions.begin_for(None, now + Duration::from_secs(3600));
        alone.ended().await;
    }

    #[tokio::test]
    async fn a_session_leaves_nothing_behind() {
        let sessions = Sessions::new(Duration::from_secs(8 * 3600));
        let first = sessions.begin_for(Some(ONE), SystemTime::now() - Duration::from_secs(3600));
        let second = sessions.begin_for(Some(ONE), SystemTime::now());
        assert!(futures_util::FutureExt::now_or_never(first.ended()).is_none());
        assert_eq!(sessions.sign_ins(), 1);
        drop(first);
        assert_eq!(sessions.sign_ins(), 1);
        let other = sessions.begin_for(Some(OTHER), SystemTime::now());
        let alone = sessions.begin_for(None, SystemTime::now());
        assert_eq!(sessions.sign_ins(), 2);
        drop((second, alone));
        assert_eq!(sessions.sign_ins(), 1);
        assert_eq!(sessions.extend(&ONE, SystemTime::now()), 0);
        assert_eq!(sessions.extend(&OTHER, SystemTime::now()), 1);
        drop(other);
        assert!(sessions.open().is_empty());
    }

    /// Each took the other for one that stays, and the entry was left for ever.
    #[test]
    fn two_sessions_that_end_at_once_leave_nothing_behind() {
        let (sessions, barrier) = (Sessions::new(Duration::ZERO), std::sync::Barrier::new(2));
        for _ in 0..300 {
            let both = [(); 2].map(|()| sessions.begin_for(Some(ONE), SystemTime::now()));
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
