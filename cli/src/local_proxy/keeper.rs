//! Keeps a user's token fresh, in memory alone (docs/features.md K5).

use std::{
    sync::{Arc, RwLock},
    time::{Duration, Instant, SystemTime},
};

use anyhow::anyhow;
use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use types::instants::rfc3339_seconds;

use crate::{credential::Source, token::Token};

/// Time before its end at which a token is replaced, but not before half of its life is over.
const BEFORE_END: Duration = Duration::from_secs(300);
/// How often the clock is looked at: a machine that slept finds an old token at once. Also how often a file is read
/// again.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After a failure: quickly at first, then every half minute.
const RETRY: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(5),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(30),
    steady_after: Duration::ZERO,
};

/// `Authorization` with a token; never prints.
fn bearer(token: &SecretString) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()))
        .map_err(|_| anyhow!("the token has characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

struct Held {
    token: Token,
    header: HeaderValue,
    /// Why there is no newer one.
    trouble: Option<String>,
}

/// Holds the token of now.
pub struct Keeper {
    source: Source,
    held: RwLock<Held>,
    renewals: watch::Sender<u64>,
}

impl Keeper {
    /// Gets the first token.
    pub async fn start(source: Source) -> anyhow::Result<Arc<Self>> {
        let token = source.obtain().await?;
        let header = bearer(&token.secret)?;
        let held = RwLock::new(Held { token, header, trouble: None });
        Ok(Arc::new(Self { source, held, renewals: watch::Sender::new(0) }))
    }

    /// The header to send, or why there is none any more.
    pub fn authorization(&self) -> Result<HeaderValue, String> {
        let held = self.held();
        match held.token.expires {
            Some(end) if end <= SystemTime::now() => Err(format!(
                "the token of this towline proxy ended at {}; no newer one could be had: {}",
                rfc3339_seconds(end),
                held.trouble.as_deref().unwrap_or("it is being asked for")
            )),
            _ => Ok(held.header.clone()),
        }
    }

    fn held(&self) -> std::sync::RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn held_mut(&self) -> std::sync::RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes with each newer token.
    pub fn renewals(&self) -> watch::Receiver<u64> {
        self.renewals.subscribe()
    }

    /// Renews until told to stop.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let mut backoff = Backoff::new(RETRY);
        let mut wait = self.next_look();
        while shutdown.until_draining(tokio::time::sleep(wait)).await.is_some() {
            wait = if self.due() {
                match self.renew().await {
                    Ok(_) => {
                        backoff.reset();
                        self.next_look()
                    }
                    Err(error) => {
                        self.complain(&error);
                        backoff.failed(Instant::now(), random_unit()).max(Duration::from_millis(500))
                    }
                }
            } else {
                self.next_look()
            };
        }
    }

    fn due(&self) -> bool {
        matches!(self.source, Source::File(_)) || until_due(&self.held().token, SystemTime::now()).is_zero()
    }

    fn next_look(&self) -> Duration {
        until_due(&self.held().token, SystemTime::now()).clamp(Duration::from_secs(1), LOOK_EVERY)
    }

    /// Whether there was a newer one.
    async fn renew(&self) -> anyhow::Result<bool> {
        let token = self.source.obtain().await?;
        let now = SystemTime::now();
        if token.expires.is_some_and(|end| end <= now) {
            return Err(anyhow!("the token that was had has ended already"));
        }
        let header = bearer(&token.secret)?;
        let mut held = self.held_mut();
        let fresh = token.secret.expose_secret() != held.token.secret.expose_secret();
        held.trouble = None;
        if fresh {
            tracing::info!("the token was renewed");
            held.token = token;
            held.header = header;
            self.renewals.send_modify(|count| *count += 1);
        } else if matches!(self.source, Source::Fixed(_)) && until_due(&held.token, now).is_zero() {
            return Err(anyhow!("it was read from standard input and cannot be had again"));
        }
        Ok(fresh)
    }

    fn complain(&self, error: &anyhow::Error) {
        let mut held = self.held_mut();
        let end = held.token.expires;
        match end {
            Some(end) if end <= SystemTime::now() => {
                tracing::error!("the token has ended; requests get 401 until there is a newer one: {error:#}");
            }
            Some(end) => {
                let end = rfc3339_seconds(end);
                tracing::warn!("the token could not be renewed; it is good until {end}, trying again: {error:#}");
            }
            None => tracing::warn!("the token could not be read again: {error:#}"),
        }
        held.trouble = Some(format!("{error:#}"));
    }
}

/// How long until a token should be replaced.
fn until_due(token: &Token, now: SystemTime) -> Duration {
    let Some(end) = token.expires else { return LOOK_EVERY };
    let life = end.duration_since(token.obtained).unwrap_or_default();
    let due = end - BEFORE_END.min(life / 2);
    due.duration_since(now).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_replaced_five_minutes_before_it_ends_or_at_half_of_a_short_life() {
        let obtained = SystemTime::UNIX_EPOCH;
        let token =
            |seconds| Token { secret: "t".into(), expires: Some(obtained + Duration::from_secs(seconds)), obtained };
        assert_eq!(until_due(&token(3600), obtained), Duration::from_secs(3300));
        assert_eq!(until_due(&token(20), obtained), Duration::from_secs(10));
        assert_eq!(until_due(&token(20), obtained + Duration::from_secs(15)), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_a_failure_keeps_the_old_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "one").unwrap();
        let keeper = Keeper::start(Source::file(&file).unwrap()).await.unwrap();
        assert_eq!(keeper.authorization().unwrap(), "Bearer one");
        assert!(!format!("{:?}", keeper.authorization()).contains("one"));
        assert!(!keeper.renew().await.unwrap());
        std::fs::write(&file, "two").unwrap();
        assert!(keeper.renew().await.unwrap());
        assert_eq!(keeper.authorization().unwrap(), "Bearer two");
        std::fs::remove_file(&file).unwrap();
        let error = keeper.renew().await.unwrap_err();
        keeper.complain(&error);
        assert_eq!(keeper.authorization().unwrap(), "Bearer two");
    }

    #[tokio::test]
    async fn a_token_that_has_ended_is_not_sent_and_the_reason_is_told() {
        let claims = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, r#"{"exp":60}"#);
        let keeper = Keeper::start(Source::Fixed(format!("e30.{claims}.c2ln").into())).await.unwrap();
        keeper.complain(&anyhow!("issuer is down"));
        let error = keeper.authorization().unwrap_err();
        assert!(error.contains("1970-01-01T00:01:00Z") && error.contains("issuer is down"), "{error}");
    }
}
