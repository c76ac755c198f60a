//! How long a session lives at the agent, whatever the gateway says: until its token has expired for longer than
//! configured, unless a newer one of the same sign-in (`sid`) was shown since. A token of another
//! sign-in extends nothing, even of the same principal: else whoever holds a stolen token would stay for as long as its
//! owner works. Where the issuer names no sign-in, nothing extends a session.
//!
//! Once the agent knows that a key of the issuer is revoked, the sessions that tokens of the key opened end, and such
//! tokens count as no extension of others. The gateway ends them too, but may be older, or taken over.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use auth::token::{Ends, Identity, SignIn, TokenEnd, Verifier};
use types::instants::unix_seconds;

/// Longest time between two looks at the clock, because it may be set while a session sleeps, and at the issuers' keys.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The open sessions by sign-in, which is a principal's at an issuer.
type Open = HashMap<SignIn, Weak<Entry>>;

/// The open sessions by sign-in. Bounded by the number of streams: an entry lives as long as a session of its owner.
#[derive(Debug)]
pub struct Sessions {
    outlive_token: Duration,
    /// Knows which keys are revoked.
    verifier: Arc<Verifier>,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Entry {
    /// `None`: a session by itself.
    sign_in: Option<SignIn>,
    /// The issuer's name.
    issuer: Box<str>,
    /// The latest end becomes a later one, or, by a revoked key, an earlier one: a sleeping session sees it when it looks
    /// again.
    ends: Mutex<Ends>,
}

/// One open session. Dropping it ends the count of it.
#[derive(Debug)]
pub struct Session {
    /// There until the end.
    entry: Option<Arc<Entry>>,
    /// Boxed, so that the future of a request stays small.
    opened: Box<Opened>,
}

#[derive(Debug)]
struct Opened {
    /// Thumbprint of the issuer's key that signed the token.
    key: Arc<str>,
    sessions: Arc<Sessions>,
}

impl Sessions {
    /// Sessions may outlive their token by `outlive_token`. `verifier` is the one that verifies tokens.
    pub fn new(outlive_token: Duration, verifier: Arc<Verifier>) -> Arc<Self> {
        Arc::new(Self { outlive_token, verifier, open: Mutex::default() })
    }

    /// A verified token was shown: extends all sessions of its sign-in. Gives back how many sign-ins' entries that were
    /// (0 or 1).
    pub fn shown(&self, identity: &Identity) -> usize {
        identity.sign_in.map_or(0, |sign_in| self.extend(&sign_in, end_of(identity)))
    }

    fn extend(&self, sign_in: &SignIn, end: TokenEnd) -> usize {
        // Under the lock, so that a session's end does not count this clone as another session.
        let open = self.open();
        match open.get(sign_in).and_then(Weak::upgrade) {
            Some(entry) => {
                entry.ends().add(end);
                drop(entry);
                1
            }
            None => 0,
        }
    }

    /// Opens a session for the sign-in of `identity`.
    pub fn begin(self: &Arc<Self>, identity: &Identity) -> Session {
        self.begin_for(identity.sign_in, &identity.issuer, &identity.key, end_of(identity))
    }

    fn begin_for(self: &Arc<Self>, sign_in: Option<SignIn>, issuer: &str, key: &Arc<str>, end: TokenEnd) -> Session {
        let new = |end| Arc::new(Entry { sign_in, issuer: issuer.into(), ends: Mutex::new(Ends::new(end)) });
        let entry = match sign_in {
            None => new(end),
            Some(sign_in) => {
                let mut open = self.open();
                match open.get(&sign_in).and_then(Weak::upgrade) {
                    Some(entry) => {
                        entry.ends().add(end);
                        entry
                    }
                    None => {
                        let entry = new(end);
                        open.insert(sign_in, Arc::downgrade(&entry));
                        entry
                    }
                }
            }
        };
        let opened = Opened { key: key.clone(), sessions: self.clone() };
        Session { entry: Some(entry), opened: Box::new(opened) }
    }

    /// Sign-ins with open sessions.
    pub fn sign_ins(&self) -> usize {
        self.open().len()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end_of(identity: &Identity) -> TokenEnd {
    TokenEnd { until: unix_seconds(identity.expires), key: Some(identity.key.clone()) }
}

impl Entry {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Completes when the session must end. Cancel-safe.
    pub async fn ended(&self) {
        loop {
            let left = self.left(SystemTime::now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    /// For how long it may go on; zero: it must end.
    fn left(&self, now: SystemTime) -> Duration {
        let Some(entry) = &self.entry else { return Duration::ZERO };
        let Sessions { outlive_token, verifier, .. } = &*self.opened.sessions;
        let is_good = |key: &str| !verifier.has_revoked(&entry.issuer, key);
        // It ends even if a token of another key extends it: a thief with the revoked key can open a session that claims
        // a user's sign-in, and the user's own tokens would then extend it.
        if !is_good(&self.opened.key) {
            return Duration::ZERO;
        }
        let mut ends = entry.ends();
        if !ends.keep(is_good) {
            return Duration::ZERO;
        }
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(ends.latest().until) + *outlive_token;
        until.duration_since(now).unwrap_or_default()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut open = self.opened.sessions.open();
        // Given up under the lock: of two that end at once, each would take the other for one that stays.
        let Some(entry) = self.entry.take().and_then(Arc::into_inner) else { return };
        if let Some(sign_in) = &entry.sign_in {
            open.remove(sign_in);
        }
    }
}

#[cfg(test)]
mod tests {
    use auth::token::{
        Fetch, Issuer, RawIssuer,
        testing::{MemoryFetch, TestIssuer, TestKey},
    };
    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;

    const ONE: SignIn = [1; 16];
    const OTHER: SignIn = [2; 16];
    const URL: &str = "https://issuer.test";

    fn sessions(outlive_token: Duration) -> Arc<Sessions> {
        Sessions::new(outlive_token, Arc::new(TestIssuer::new(URL).verifier()))
    }

    /// The end of a token of the key `key`, so many seconds from now.
    fn end(key: &str, seconds: i64) -> TokenEnd {
        TokenEnd { until: unix_seconds(SystemTime::now()).saturating_add_signed(seconds), key: Some(key.into()) }
    }

    /// A session by a token of the key `key` that expires so many seconds from now.
    fn begin(sessions: &Arc<Sessions>, sign_in: Option<SignIn>, key: &str, seconds: i64) -> Session {
        sessions.begin_for(sign_in, "test", &key.into(), end(key, seconds))
    }

    fn goes_on(session: &Session) -> bool {
        session.ended().now_or_never().is_none()
    }

    #[tokio::test]
    async fn a_session_ends_with_its_token_unless_a_newer_one_of_its_sign_in_is_shown() {
        let sessions = sessions(Duration::ZERO);
        let expired = begin(&sessions, Some(ONE), "k", -1);
        expired.ended().await;
        sessions.extend(&ONE, end("k", 3600));
        assert!(goes_on(&expired));
        // A token of another sign-in extends nothing, an older one shortens nothing.
        let other = begin(&sessions, Some(OTHER), "k", -1);
        sessions.extend(&ONE, end("k", -9));
        other.ended().await;
        assert!(goes_on(&expired));
        // Nor does one without, of which nobody knows whose it is.
        let alone = begin(&sessions, None, "k", -1);
        let _newer = begin(&sessions, None, "k", 3600);
        alone.ended().await;
    }

    #[tokio::test]
    async fn a_session_leaves_nothing_behind() {
        let sessions = sessions(Duration::from_secs(8 * 3600));
        let first = begin(&sessions, Some(ONE), "k", -3600);
        let second = begin(&sessions, Some(ONE), "k", 0);
        assert!(goes_on(&first));
        assert_eq!(sessions.sign_ins(), 1);
        drop(first);
        assert_eq!(sessions.sign_ins(), 1);
        let other = begin(&sessions, Some(OTHER), "k", 0);
        let alone = begin(&sessions, None, "k", 0);
        assert_eq!(sessions.sign_ins(), 2);
        drop((second, alone));
        assert_eq!(sessions.sign_ins(), 1);
        assert_eq!(sessions.extend(&ONE, end("k", 0)), 0);
        assert_eq!(sessions.extend(&OTHER, end("k", 0)), 1);
        drop(other);
        assert!(sessions.open().is_empty());
    }

    /// Each took the other for one that stays, and the entry was left for ever.
    #[test]
    fn two_sessions_that_end_at_once_leave_nothing_behind() {
        let (sessions, barrier) = (sessions(Duration::ZERO), std::sync::Barrier::new(2));
        for _ in 0..300 {
            let both = [(); 2].map(|()| begin(&sessions, Some(ONE), "k", 0));
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

    /// What was open went on to the end of its token, and for `outlive_token` more, unless the gateway ended it.
    #[tokio::test(start_paused = true)]
    async fn a_revoked_key_ends_what_it_opened_and_extends_nothing_whatever_the_gateway_does() {
        let [stolen, next] = ["k1", "k2"].map(TestKey::es256);
        let issuer = Issuer::all(vec![RawIssuer::new("test", URL)]).unwrap();
        let nothing: Arc<dyn Fetch> = MemoryFetch::new();
        let verifier = Arc::new(Verifier::with_fetch(issuer, &nothing));
        let sessions = Sessions::new(Duration::ZERO, verifier.clone());
        let (old, new) = (stolen.thumbprint(), next.thumbprint());
        let opened = begin(&sessions, Some(ONE), &old, 3600);
        let other = begin(&sessions, Some(ONE), &new, 3600);
        let alone = begin(&sessions, None, &old, 3600);
        // Its own token expires; what keeps it is one of the key that is to be revoked.
        let extended = begin(&sessions, Some(OTHER), &new, -1);
        sessions.extend(&OTHER, end(&old, 3600));
        let elsewhere = sessions.begin_for(None, "another issuer", &old.as_str().into(), end(&old, 3600));
        let mut waiting = Box::pin(opened.ended());
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!([&other, &alone, &extended].into_iter().all(goes_on));

        let mut newest = next.jwk();
        newest["towline_attestation"] = json!(stolen.attest(&next));
        let published = json!({"keys": [newest, stolen.jwk()], "towline_ended": [next.end(&stolen, 0)]});
        verifier.take_keys(URL, &published).unwrap();
        // Also one that sleeps and hears of nothing.
        tokio::time::timeout(LOOK_AGAIN, waiting).await.expect("it looks again in time");
        assert!(!goes_on(&alone) && !goes_on(&extended));
        assert!(goes_on(&other), "of the same sign-in, but opened with a good key");
        assert!(goes_on(&elsewhere));
    }
}
