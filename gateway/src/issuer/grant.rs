//! The token endpoint: form -> who it is -> token. RFC 6749 section 4.3 (password, for local users) and 4.4 (client
//! credentials, for service principals), in the shapes of the Microsoft identity platform. What a sign-in by a page
//! yields is in `redeem`.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use daemon::shares::Queue;
use http::Request;
use secrecy::{ExposeSecret, SecretString};
use types::instants::unix_seconds;

use super::{
    Issuer, failures,
    form::{ClientSecret, Form},
    mint::Subject,
    principals::{Denied, Principal},
    respond::{Minted, Refusal},
    state::Wrong,
    users::{self, User, Users},
};
use crate::{guid, places::Places};

/// RFC 8628 section 3.4.
pub const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Passwords hashed at once: each takes a core for a good part of a second.
const CHECKS_AT_ONCE: usize = 2;
/// Sign-ins that may wait for that; of more the oldest gives way of the network that has most.
const CHECKS_WAITING: usize = 256;
/// The same from one address, so that a guesser, who is stopped only after some tries, does not keep everybody else
/// out.
const CHECKS_WAITING_PER_ADDRESS: u32 = 16;

/// Bounds what passwords may cost. Secrets of service principals cost nothing and do not wait here.
pub struct PasswordChecks {
    by_address: Places,
    turns: Queue,
}

impl PasswordChecks {
    pub fn new() -> Self {
        Self { by_address: Places::default(), turns: Queue::new(CHECKS_AT_ONCE, CHECKS_WAITING) }
    }
}

impl Issuer {
    /// Serves one POST to the token endpoint.
    pub(super) async fn token<B>(&self, peer: IpAddr, request: Request<B>) -> Result<Minted, Refusal>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let headers = request.headers().clone();
        let form = Form::read(request).await?;
        match form.get("grant_type").ok_or(Refusal::Request("grant_type is missing"))? {
            "password" => {
                let (life, audience) = self.asked(&form)?;
                let (name, password) = form.password()?;
                let user = self.sign_in(peer, name, password).await?;
                let now = self.now();
                // Who it says has signed in, to the client that asked: it opens nothing.
                let id_token = match (form.scope()?.openid, form.get("client_id")) {
                    (true, Some(client)) => {
                        Some(self.mint_id(&user, client, form.get("nonce"), unix_seconds(now), life, now)?)
                    }
                    _ => None,
                };
                let token = self.mint(&Subject::User(user), None, &audience, life, now)?;
                Ok(Minted { id_token, token, life, refresh_token: None, client_info: None })
            }
            "client_credentials" => {
                let client = ClientSecret::take(&headers, &form)?;
                let (life, audience) = self.asked(&form)?;
                let principal = self.sign_in_client(peer, &client).await?;
                // Tokens of one secret are of one sign-in: whoever has no more than one of its tokens cannot get
                // another.
                let sign_in = principal.secret_of(client.secret.expose_secret()).map(str::to_owned);
                let subject = Subject::Principal(principal);
                let token = self.mint(&subject, sign_in.as_deref(), &audience, life, self.now())?;
                Ok(Minted { id_token: None, token, life, refresh_token: None, client_info: None })
            }
            "authorization_code" => self.redeem_code(&form).await,
            "refresh_token" => self.redeem_refresh(peer, &form).await,
            DEVICE_GRANT => self.redeem_device(&form).await,
            _ => Err(Refusal::GrantType),
        }
    }

    /// For how long and for whom a token is asked.
    fn asked(&self, form: &Form) -> Result<(Duration, String), Refusal> {
        Ok((self.life(form)?, self.audience(form.audience()?).ok_or(Refusal::Target)?))
    }

    pub(super) async fn sign_in(&self, peer: IpAddr, name: String, password: SecretString) -> Result<User, Refusal> {
        let later = Refusal::TryLater("too many sign-ins at once", Duration::from_secs(1));
        let wrong = Wrong::Typed(&name);
        self.not_guessing(peer, wrong).await?;
        let place = self.checks.by_address.take(peer, u32::MAX, CHECKS_WAITING_PER_ADDRESS);
        let Some(_place) = place else { return Err(later) };
        let Some(turn) = self.checks.turns.turn(peer).await else { return Err(later) };
        self.state.be_current().await?;
        // Counted before it is known to fail: other tries of this moment, here and at other gateways, find it counted.
        self.one_try(peer, &name).await?;
        let users: Arc<Users> = self.state.users();
        let wanted = name.clone();
        let found = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            // A GUID is a service principal's name in a cluster; a file from before that rule may have such a user.
            let user = users.find(&wanted).filter(|user| !guid::is_guid(&user.name));
            users::check(user, password.expose_secret()).then(|| user.cloned()).flatten()
        });
        match found.await {
            Ok(Some(user)) => {
                self.state.take_back(peer, &name).await?;
                self.state.forgive(peer, wrong).await?;
                Ok(user)
            }
            Ok(None) => {
                tracing::info!(peer = %peer, "a sign-in was refused");
                Err(Refusal::Grant)
            }
            Err(_) => Err(Refusal::Internal),
        }
    }

    /// Proves which service principal it is. Never waits: any number of them at once is fine.
    async fn sign_in_client(&self, peer: IpAddr, client: &ClientSecret) -> Result<Principal, Refusal> {
        // No user is called so: names have no colon.
        let name = format!("client:{}", client.id.to_ascii_lowercase());
        let wrong = Wrong::Random(&name);
        self.not_guessing(peer, wrong).await?;
        self.state.be_current().await?;
        let principals = self.state.principals();
        match principals.check(&client.id, client.secret.expose_secret(), self.now()) {
            Ok(principal) => {
                self.state.forgive(peer, wrong).await?;
                Ok(principal.clone())
            }
            Err(denied) => {
                self.state.count(peer, &name);
                tracing::info!(peer = %peer, "a service principal's sign-in was refused");
                Err(match denied {
                    Denied::Expired => Refusal::Client { why: "the client secret has expired", basic: client.basic },
                    Denied::Wrong => Refusal::wrong_client(client.basic),
                })
            }
        }
    }

    pub(super) async fn not_guessing(&self, peer: IpAddr, wrong: Wrong<'_>) -> Result<(), Refusal> {
        match self.state.too_many(peer, wrong, unix_seconds(self.now())).await? {
            true => Err(guessing(peer)),
            false => Ok(()),
        }
    }

    /// Counts a try of what is typed, and refuses it after too many that failed. [`super::state::State::take_back`]
    /// takes it back if it does not fail.
    pub(super) async fn one_try(&self, peer: IpAddr, typed: &str) -> Result<(), Refusal> {
        match self.state.may_try(peer, typed, unix_seconds(self.now())).await? {
            true => Ok(()),
            false => Err(guessing(peer)),
        }
    }
}

fn guessing(peer: IpAddr) -> Refusal {
    tracing::warn!(peer = %peer, "too many failed sign-ins from this address");
    Refusal::TryLater("too many failed sign-ins", failures::WINDOW)
}
