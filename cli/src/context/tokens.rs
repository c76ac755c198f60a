//! Tokens of an account: kept while they are good for long enough, else obtained anew.

use std::time::{Duration, SystemTime};

use secrecy::ExposeSecret;
use types::instants::unix_seconds;

use crate::{
    account::{Account, Hidden, Kept, SignsIn},
    client::Outbound,
    oauth::{self, Grant, TokenEndpoint},
    token::Token,
};

/// A token is not used again when it ends within this time, or within half of its life if that is shorter.
const BEFORE_END: Duration = Duration::from_secs(300);
/// Tokens that an account keeps at most: one for each cluster that was lately used.
const KEPT: usize = 256;

/// The audience under which the token of an external issuer is kept that is for all clusters.
const CLUSTERS: &str = "*";

/// The audience under which a token is kept: an external issuer has one for the API, and one for all clusters.
pub fn place<'a>(account: &Account, audience: &'a str) -> &'a str {
    match account.signs_in {
        SignsIn::User { external: Some(_), .. } if audience != account.audience => CLUSTERS,
        _ => audience,
    }
}

/// A kept token that is good for long enough.
pub fn kept(account: &Account, audience: &str) -> Option<Token> {
    let kept = account.tokens.get(place(account, audience))?;
    let obtained = SystemTime::UNIX_EPOCH + Duration::from_secs(kept.obtained);
    let token = Token::new(kept.token.0.clone().into(), obtained);
    let end = token.expires?;
    let life = end.duration_since(obtained).unwrap_or_default();
    let left = end.duration_since(SystemTime::now()).ok()?;
    (left > BEFORE_END.min(life / 2)).then_some(token)
}

/// A new token, and what it leaves in the account: itself and the next refresh token.
pub async fn obtain(account: &mut Account, audience: &str, outbound: &Outbound) -> anyhow::Result<Token> {
    let endpoint = TokenEndpoint::of(account, outbound)?;
    let grant = match &account.signs_in {
        SignsIn::Nobody => Grant::Refresh { client_id: "", token: None, scope: None },
        SignsIn::User { client_id, refresh_token, external } => Grant::Refresh {
            client_id,
            token: refresh_token.as_ref().map(|token| token.0.as_str()),
            scope: external.as_ref().map(|issuer| issuer.scope.as_str()),
        },
        SignsIn::ServicePrincipal { client_id, client_secret } => {
            Grant::ClientCredentials { client_id, secret: &client_secret.0 }
        }
    };
    let answer = endpoint.redeem(&grant, audience).await?;
    Ok(keep(account, audience, answer))
}

/// Keeps what a sign-in yielded.
pub fn keep(account: &mut Account, audience: &str, answer: oauth::Answer) -> Token {
    if let (Some(fresh), SignsIn::User { refresh_token, .. }) = (answer.refresh_token, &mut account.signs_in) {
        *refresh_token = Some(Hidden(fresh.expose_secret().to_owned()));
    }
    let now = SystemTime::now();
    account.tokens.retain(|_, kept| Token::new(kept.token.0.clone().into(), now).expires.is_some_and(|end| end > now));
    while account.tokens.len() >= KEPT
        && let Some(oldest) = account.tokens.iter().min_by_key(|(_, kept)| kept.obtained).map(|(name, _)| name.clone())
    {
        account.tokens.remove(&oldest);
    }
    let kept = |token: &Token| Kept {
        token: Hidden(token.secret.expose_secret().to_owned()),
        obtained: unix_seconds(token.obtained),
    };
    let Some(of_clusters) = answer.of_clusters else {
        account.tokens.insert(audience.to_owned(), kept(&answer.token));
        return answer.token;
    };
    account.tokens.insert(account.audience.clone(), kept(&answer.token));
    account.tokens.insert(CLUSTERS.to_owned(), kept(&of_clusters));
    if audience == account.audience { answer.token } else { of_clusters }
}
