//! RFC 8628: this program shows a code, the person types it into a page on any machine.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde_json::Value;

use super::{Answer, Asked, Grant, Refused, TokenEndpoint, post};
use crate::{
    client::{Address, Client},
    failure::{Failure, Outcome},
    terminal::{line, say},
};

/// Between polls where the issuer does not say, and what `slow_down` adds (section 3.5).
const INTERVAL: Duration = Duration::from_secs(5);
/// The longest pause between polls.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The longest life of a code.
const LIFE_MAX: Duration = Duration::from_secs(3600);

/// Signs in. `endpoint` is where a device begins; `page` is where the code is entered, if the answer is not to say so.
///
/// # Errors
/// When the person refuses, or the time is over.
pub async fn sign_in(
    client: &Client,
    endpoint: &str,
    page: Option<&str>,
    tokens: &TokenEndpoint,
    Asked { client_id, scope, audience }: Asked<'_>,
) -> Outcome<Answer> {
    let client = client.at(Address::parse(endpoint)?)?;
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("client_id", client_id).append_pair("scope", scope);
    let begun = post(&client, &form.finish()).await?.map_err(|(refused, _)| refused)?;
    let text = |name: &str| {
        let text = begun[name].as_str().or_else(|| begun[name.replace("uri", "url").as_str()].as_str());
        text.map(str::to_owned).with_context(|| format!("{} did not say its {name}", client.address().authority()))
    };
    let seconds = |name: &str| begun[name].as_u64().map(Duration::from_secs);
    let (code, user_code) = (text("device_code")?, line(&text("user_code")?));
    let (page, whole) = match page {
        Some(page) => {
            let query =
                url::form_urlencoded::Serializer::new(String::new()).append_pair("user_code", &user_code).finish();
            (page.to_owned(), Some(format!("{page}?{query}")))
        }
        None => {
            let whole = begun.get("verification_uri_complete").and_then(Value::as_str);
            (line(&text("verification_uri")?), whole.map(line))
        }
    };
    say(&format!("To sign in, open {page} in a browser and enter the code {user_code}"));
    if let Some(whole) = whole {
        say(&format!("or open {whole}"));
    }
    let end = Instant::now() + seconds("expires_in").unwrap_or(LIFE_MAX).min(LIFE_MAX);
    let mut interval = seconds("interval").unwrap_or(INTERVAL).min(INTERVAL_MAX);
    loop {
        tokio::time::sleep(interval).await;
        let error = match tokens.redeem(&Grant::Device { client_id, code: &code }, audience).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let over = || {
            Failure::from(anyhow!("the code {user_code} was not entered in time")).hint("run the same command again")
        };
        match error.downcast_ref::<Refused>().map(|refused| refused.error.as_str()) {
            Some("authorization_pending") if Instant::now() < end => {}
            Some("slow_down") if Instant::now() < end => interval = (interval + INTERVAL).min(INTERVAL_MAX),
            Some("authorization_pending" | "slow_down" | "expired_token") => return Err(over()),
            Some("access_denied") => return Err(anyhow!("the sign-in was refused on the page").into()),
            _ => return Err(error.into()),
        }
    }
}
