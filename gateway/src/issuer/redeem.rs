//! What users' sign-ins are exchanged for: authorization codes, device codes and refresh tokens -> tokens.

use std::{net::IpAddr, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde_json::json;
use types::instants::unix_seconds;

use super::{
    Issuer,
    flows::{Consent, Poll, Taken, Wish, random_code},
    form::Form,
    mint::Subject,
    principals::hash,
    respond::{Minted, Refusal},
    state::Wrong,
    users::User,
};

/// Characters of a PKCE verifier (RFC 7636 section 4.1).
const VERIFIER_LENGTH: std::ops::RangeInclusive<usize> = 43..=128;

/// Characters of a refresh token before the dot: the name of its family.
const FAMILY_LENGTH: usize = 43;

/// A sign-in that is worth tokens.
struct Worth {
    wish: Wish,
    consent: Consent,
    nonce: Option<String>,
    /// The family of its refresh tokens: its sign-in.
    family: String,
    refresh: Next,
}

/// The refresh token that goes with them.
enum Next {
    /// The first of the family, if the client wants one.
    Begin,
    /// As it came of the one before.
    Given(Option<String>),
}

impl Issuer {
    /// RFC 6749 section 4.1.3 with RFC 7636 section 4.6. A code is used up by whatever comes with it.
    pub(super) async fn redeem_code(&self, form: &Form) -> Result<Minted, Refusal> {
        let client = self.public_client(form)?;
        let text = form.get("code").ok_or(Refusal::Request("code is missing"))?;
        let code = match self.state.take(text, unix_seconds(self.now())).await? {
            Taken::Good(code) => code,
            Taken::Unknown => return Err(Refusal::Code("the code is unknown or its time is over")),
            Taken::Replayed(family) => {
                tracing::warn!(client = %client.id, "an authorization code came twice; what came of it ends");
                self.state.end_family(family).await?;
                return Err(Refusal::Code("the code was used before"));
            }
        };
        let verifier = form.get("code_verifier").filter(|verifier| VERIFIER_LENGTH.contains(&verifier.len()));
        let fits = verifier.is_some_and(|verifier| BASE64.encode(hash(&[], verifier)) == code.challenge);
        if code.wish.client != client.id || form.get("redirect_uri") != Some(code.redirect_uri.as_str()) || !fits {
            return Err(Refusal::Code("client_id, redirect_uri or code_verifier is not that of the code"));
        }
        let family = code.family.clone();
        let worth = Worth {
            wish: code.wish,
            consent: code.consent,
            nonce: code.nonce,
            family: code.family,
            refresh: Next::Begin,
        };
        let minted = self.worth(worth, form).await?;
        if self.state.was_replayed(text).await? {
            self.state.end_family(family).await?;
            return Err(Refusal::Code("the code was used before"));
        }
        Ok(minted)
    }

    /// RFC 8628 section 3.4.
    pub(super) async fn redeem_device(&self, form: &Form) -> Result<Minted, Refusal> {
        let client = self.public_client(form)?;
        let code = form.get("device_code").ok_or(Refusal::Request("device_code is missing"))?;
        match self.state.poll(code, &client.id, unix_seconds(self.now())).await? {
            Poll::Allowed(wish, consent) => {
                let family = random_code().map_err(|_| Refusal::Internal)?;
                self.worth(Worth { wish, consent, nonce: None, family, refresh: Next::Begin }, form).await
            }
            Poll::Pending => Err(Refusal::Pending),
            Poll::SlowDown => Err(Refusal::SlowDown),
            Poll::Denied => Err(Refusal::Denied),
            Poll::Expired => Err(Refusal::ExpiredCode),
            Poll::Unknown => Err(Refusal::Code("the device code is unknown or was used before")),
        }
    }

    /// RFC 6749 section 6. The user may be asked for another audience than at the sign-in: the same user at the same
    /// gateway, and each token is for one audience still.
    pub(super) async fn redeem_refresh(&self, peer: IpAddr, form: &Form) -> Result<Minted, Refusal> {
        let client = self.public_client(form)?;
        let token = form.get("refresh_token").ok_or(Refusal::Request("refresh_token is missing"))?.to_owned();
        let asked = self.wish(form, &client)?;
        let named = form.scope()?.audience.is_some() || form.get("audience").is_some();
        // Each one that is no good costs a reading of the file or of the store: who shows many is slowed down like a guesser.
        let name = format!("refresh:{}", token.get(..FAMILY_LENGTH).unwrap_or_default());
        let wrong = Wrong::Random(&name);
        self.not_guessing(peer, wrong).await?;
        let now = unix_seconds(self.now());
        let refreshed = self.state.rotate(token.clone(), client.id, now).await?;
        let Some(refreshed) = refreshed else {
            self.state.count(peer, &name);
            return Err(Refusal::Code("the refresh token has expired or was revoked: sign in again"));
        };
        let mut wish = refreshed.wish;
        if named {
            wish.audience = asked.audience;
        }
        let refresh = Next::Given(refreshed.next);
        let family = token.split('.').next().unwrap_or_default().to_owned();
        let worth = Worth { wish, consent: refreshed.consent, nonce: None, family, refresh };
        let minted = self.worth(worth, form).await;
        if matches!(minted, Err(Refusal::Code(_))) {
            self.state.end_family(token).await?;
        }
        minted
    }

    async fn worth(&self, worth: Worth, form: &Form) -> Result<Minted, Refusal> {
        let Worth { wish, consent, nonce, family, refresh } = worth;
        self.state.be_current().await?;
        let user = self.still(&consent).ok_or(Refusal::Code("the user may no longer sign in"))?;
        let now = self.now();
        let life = self.life(form)?;
        let id_token = match wish.openid {
            true => Some(self.mint_id(&user, &wish.client, nonce.as_deref(), consent.at, life, now)?),
            false => None,
        };
        // What clients of the Microsoft identity platform know an account by.
        let account = json!({ "uid": user.id, "utid": self.settings.tenant }).to_string();
        let client_info = (form.get("client_info") == Some("1")).then(|| BASE64.encode(account));
        let token = self.mint(&Subject::User(user), Some(&family), &wish.audience, life, now)?;
        let refresh_token = match refresh {
            Next::Given(next) => next,
            Next::Begin if wish.offline => {
                let now = unix_seconds(now);
                Some(self.state.begin_family(family, wish, consent, now).await?)
            }
            Next::Begin => None,
        };
        Ok(Minted { token, life, id_token, refresh_token, client_info })
    }

    /// The user, if nothing has happened since they agreed: not disabled, no new password.
    fn still(&self, consent: &Consent) -> Option<User> {
        let users = self.state.users();
        let fits = |user: &&User| user.id == consent.user && user.generation() == consent.generation && !user.disabled;
        users.iter().find(fits).cloned()
    }

    /// How long a token is to live.
    pub(super) fn life(&self, form: &Form) -> Result<Duration, Refusal> {
        Ok(form.life()?.map_or(self.settings.ttl, |life| life.min(self.settings.ttl)))
    }
}
