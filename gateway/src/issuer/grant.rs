//! The token endpoint: form -> user -> token (RFC 6749 section 4.3, the password grant for local users).

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Limited};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    Issuer, failures,
    respond::{Minted, Refusal},
    users::{self, PASSWORD_BYTES, User, Users},
};

/// Bytes of a form at most.
const FORM_BYTES: usize = 16 * 1024;
/// How long a form may take to arrive.
const FORM_DEADLINE: Duration = Duration::from_secs(10);
/// Passwords hashed at once: each takes a core for a good part of a second.
const CHECKS_AT_ONCE: usize = 2;
/// Sign-ins that may wait for that.
const CHECKS_WAITING: usize = 64;
/// A clock of another machine may be so far behind ours, in seconds.
const NOT_BEFORE_SLACK_SECONDS: u64 = 30;

/// Bounds what passwords may cost.
pub struct PasswordChecks {
    waiting: Semaphore,
    at_once: Arc<Semaphore>,
}

impl PasswordChecks {
    pub fn new() -> Self {
        Self { waiting: Semaphore::new(CHECKS_WAITING), at_once: Arc::new(Semaphore::new(CHECKS_AT_ONCE)) }
    }
}

/// What a client asks for.
struct Form {
    username: String,
    password: SecretString,
    audience: String,
    /// Seconds; our own addition, for a token shorter than the default.
    expires_in: Option<u64>,
}

impl Issuer {
    /// Serves one POST to the token endpoint.
    pub(super) async fn token<B>(&self, peer: IpAddr, request: Request<B>) -> Result<Minted, Refusal>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let form = parse(&read(request).await?)?;
        let audience = self.audience(&form.audience).ok_or(Refusal::Target)?;
        let user = self.sign_in(peer, form.username, form.password).await?;
        let life = form.expires_in.map_or(self.settings.ttl, Duration::from_secs).min(self.settings.ttl);
        self.mint(&user, &audience, life, SystemTime::now())
    }

    async fn sign_in(&self, peer: IpAddr, name: String, password: SecretString) -> Result<User, Refusal> {
        let later = Refusal::TryLater("too many sign-ins at once", Duration::from_secs(1));
        let Ok(_waiting) = self.checks.waiting.try_acquire() else { return Err(later) };
        let Ok(turn) = self.checks.at_once.clone().acquire_owned().await else { return Err(later) };
        // Asked only when it is our turn, so that many tries at once do not slip past the count.
        if self.failures.too_many(peer, &name) {
            tracing::warn!(peer = %peer, "too many failed sign-ins from this address");
            return Err(Refusal::TryLater("too many failed sign-ins", failures::WINDOW));
        }
        let users: Arc<Users> = self.users.current();
        let wanted = name.clone();
        let found = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let user = users.find(&wanted);
            users::check(user, password.expose_secret()).then(|| user.cloned()).flatten()
        });
        match found.await {
            Ok(Some(user)) => {
                self.failures.forgive(peer, &name);
                Ok(user)
            }
            Ok(None) => {
                self.failures.count(peer, &name);
                tracing::info!(peer = %peer, "a sign-in was refused");
                Err(Refusal::Grant)
            }
            Err(_) => Err(Refusal::Internal),
        }
    }

    /// Signs a token for `user`.
    fn mint(&self, user: &User, audience: &str, life: Duration, now: SystemTime) -> Result<Minted, Refusal> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| Refusal::Internal)?.as_secs();
        let mut jti = [0; 16];
        SystemRandom::new().fill(&mut jti).map_err(|_| Refusal::Internal)?;
        let claims = json!({
            "iss": self.settings.url,
            "sub": user.id,
            "aud": audience,
            "iat": now,
            "nbf": now.saturating_sub(NOT_BEFORE_SLACK_SECONDS),
            "exp": now + life.as_secs(),
            "jti": jti.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "groups": user.groups,
            "preferred_username": user.name,
        });
        let token = self.keys.current().sign("JWT", claims.to_string().as_bytes()).map_err(|_| Refusal::Internal)?;
        Ok(Minted { token, life })
    }
}

async fn read<B>(request: Request<B>) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Err(Refusal::Request("the body must be application/x-www-form-urlencoded"));
    }
    let body = std::pin::pin!(Limited::new(request.into_body(), FORM_BYTES).collect());
    match tokio::time::timeout(FORM_DEADLINE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Refusal::Request("the body broke off or is too long")),
        Err(_) => Err(Refusal::Request("the body did not arrive in time")),
    }
}

fn parse(body: &[u8]) -> Result<Form, Refusal> {
    let (mut grant_type, mut username, mut password, mut audience, mut expires_in) = (None, None, None, None, None);
    for (name, value) in url::form_urlencoded::parse(body) {
        let field = match name.as_ref() {
            "grant_type" => &mut grant_type,
            "username" => &mut username,
            "password" => &mut password,
            "audience" => &mut audience,
            "expires_in" => &mut expires_in,
            // RFC 6749 section 3.2: unrecognised parameters are ignored.
            _ => continue,
        };
        if field.replace(value.into_owned()).is_some() {
            return Err(Refusal::Request("a parameter is there twice"));
        }
    }
    if grant_type.ok_or(Refusal::Request("grant_type is missing"))? != "password" {
        return Err(Refusal::GrantType);
    }
    let password = password.ok_or(Refusal::Request("password is missing"))?;
    if password.len() > PASSWORD_BYTES {
        return Err(Refusal::Grant);
    }
    let expires_in = match expires_in.as_deref().map(str::parse) {
        None => None,
        Some(Ok(seconds)) if seconds > 0 => Some(seconds),
        Some(_) => return Err(Refusal::Request("expires_in must be a number of seconds above 0")),
    };
    Ok(Form {
        username: username.ok_or(Refusal::Request("username is missing"))?,
        password: password.into(),
        audience: audience.ok_or(Refusal::Request("audience is missing"))?,
        expires_in,
    })
}
