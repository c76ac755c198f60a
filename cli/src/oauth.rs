//! How somebody signs in: client credentials (RFC 6749 section 4.4), device code (RFC 8628), a browser with PKCE (RFC 7636,
//! RFC 8252), and refresh tokens. At the gateway's own issuer, or at another one that its discovery document describes.

pub mod browser;
pub mod device;
mod discovery;

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

pub use self::discovery::{Endpoints, discover_gateway, discover_issuer};
use crate::{
    client::{Address, Client, Outbound},
    context::{Account, SignsIn},
    credential::{Token, claims},
};

/// How often a sign-in is tried that the issuer has no time for.
const TRIES: u32 = 4;
/// The longest that an issuer is waited for at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// An OAuth 2 error.
#[derive(Debug, thiserror::Error)]
#[error("{issuer} gave no token: {status}: {error}: {description}")]
pub struct Refused {
    /// Who.
    pub issuer: String,
    /// HTTP's word.
    pub status: StatusCode,
    /// `error`.
    pub error: String,
    /// `error_description`.
    pub description: String,
}

impl Refused {
    /// Whether what was shown is no good, now and later.
    pub fn is_over(&self) -> bool {
        matches!(self.error.as_str(), "invalid_grant" | "invalid_client" | "unauthorized_client")
    }
}

/// What is shown for a token.
pub enum Grant<'a> {
    /// A refresh token; none: the sign-in had none.
    Refresh {
        /// This program.
        client_id: &'a str,
        /// The token.
        token: Option<&'a str>,
        /// What another issuer is asked for instead of an audience.
        scope: Option<&'a str>,
    },
    /// A service principal's secret.
    ClientCredentials {
        /// Who.
        client_id: &'a str,
        /// The secret.
        secret: &'a str,
    },
    /// A device code.
    Device {
        /// This program.
        client_id: &'a str,
        /// The code.
        code: &'a str,
    },
    /// An authorization code.
    Code {
        /// This program.
        client_id: &'a str,
        /// The code.
        code: &'a str,
        /// Proves who asked for it.
        verifier: &'a str,
        /// Where it was sent.
        redirect_uri: &'a str,
    },
}

/// What a sign-in yields.
pub struct Answer {
    /// For the audience.
    pub token: Token,
    /// For the next one.
    pub refresh_token: Option<SecretString>,
}

/// Where tokens are given.
pub struct TokenEndpoint {
    client: Client,
    /// Another issuer than the gateway's own knows no audiences of clusters.
    external: bool,
    audience: String,
}

impl TokenEndpoint {
    /// Of an account.
    pub fn of(account: &Account, outbound: &Outbound) -> anyhow::Result<Self> {
        let (url, ca, external) = match &account.signs_in {
            SignsIn::User { external: Some(issuer), .. } => (issuer.token_endpoint.clone(), issuer.ca.as_ref(), true),
            _ => (format!("{}{}/token", account.gateway, gateway::issuer::MOUNT), None, false),
        };
        let roots = match ca {
            Some(pem) => certs::Roots::from_pem(pem.as_bytes())?,
            None => account.roots()?,
        };
        let client = Client::new(Address::parse(&url)?, &roots, None, outbound.clone())?;
        Ok(Self { client, external, audience: account.audience.clone() })
    }

    /// Exchanges it for a token.
    ///
    /// # Errors
    /// [`Refused`], or why the issuer was not reached.
    pub async fn redeem(&self, grant: &Grant<'_>, audience: &str) -> anyhow::Result<Answer> {
        let form = self.form(grant, audience)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let obtained = SystemTime::now();
            let answer = post(&self.client, &form).await?;
            match (answer, tries < TRIES) {
                (Err((_, Some(after))), true) if after <= PATIENCE => tokio::time::sleep(after).await,
                (Err((refused, _)), _) => return Err(refused.into()),
                (Ok(fields), _) => return self.read(&fields, obtained),
            }
        }
    }

    fn form(&self, grant: &Grant<'_>, audience: &str) -> anyhow::Result<String> {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        match grant {
            Grant::Refresh { client_id, token, scope } => {
                let token = token.ok_or_else(|| Refused {
                    issuer: self.client.address().authority(),
                    status: StatusCode::UNAUTHORIZED,
                    error: "invalid_grant".to_owned(),
                    description: "the token has ended, and the sign-in gave no refresh token".to_owned(),
                })?;
                form.append_pair("grant_type", "refresh_token").append_pair("client_id", client_id);
                form.append_pair("refresh_token", token);
                scope.map(|scope| form.append_pair("scope", scope));
            }
            Grant::ClientCredentials { client_id, secret } => {
                form.append_pair("grant_type", "client_credentials").append_pair("client_id", client_id);
                form.append_pair("client_secret", secret);
            }
            Grant::Device { client_id, code } => {
                form.append_pair("grant_type", "urn:ietf:params:oauth:grant-type:device_code");
                form.append_pair("client_id", client_id).append_pair("device_code", code);
                return Ok(form.finish());
            }
            Grant::Code { client_id, code, verifier, redirect_uri } => {
                form.append_pair("grant_type", "authorization_code").append_pair("client_id", client_id);
                form.append_pair("code", code).append_pair("code_verifier", verifier);
                form.append_pair("redirect_uri", redirect_uri);
                return Ok(form.finish());
            }
        }
        if !self.external {
            form.append_pair("audience", audience);
        }
        Ok(form.finish())
    }

    fn read(&self, fields: &Value, obtained: SystemTime) -> anyhow::Result<Answer> {
        let text = |name: &str| fields[name].as_str().filter(|text| !text.is_empty());
        let access = text("access_token");
        // An issuer that does not know the gateway gives access tokens for itself; the ID token is then what says who it is.
        let fits = |token: &str| {
            claims(token).is_some_and(|claims| match &claims["aud"] {
                Value::Array(list) => list.iter().any(|aud| aud.as_str() == Some(self.audience.as_str())),
                aud => aud.as_str() == Some(self.audience.as_str()),
            })
        };
        let token = match text("id_token") {
            Some(id) if self.external && !access.is_some_and(fits) => Some(id),
            _ => access,
        };
        let token = token.with_context(|| format!("{} answered without a token", self.client.address().authority()))?;
        Ok(Answer {
            token: Token::new(token.to_owned().into(), obtained),
            refresh_token: text("refresh_token").map(|token| token.to_owned().into()),
        })
    }
}

/// Posts a form to the path of the client's address. An OAuth 2 error comes with how long to wait, if it says so.
async fn post(client: &Client, form: &str) -> anyhow::Result<Result<Value, (Refused, Option<Duration>)>> {
    let issuer = client.address().authority();
    let request = Request::post(client.address().path.as_str())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json")
        .body(Full::new(Bytes::from(form.to_owned())))?;
    let (head, body) = client.ask(request).await?.into_parts();
    let fields: Value = serde_json::from_slice(&body).unwrap_or_default();
    if head.status.is_success() {
        return Ok(Ok(fields));
    }
    let text = |name: &str, other: &str| {
        let text: String =
            fields[name].as_str().unwrap_or(other).chars().filter(|c| !c.is_control()).take(300).collect();
        text
    };
    if fields["error"].as_str().is_none() {
        return Err(anyhow!("{issuer} answered {} without an OAuth 2 error", head.status));
    }
    let error = text("error", "");
    let description = text("error_description", "no reason given");
    let after = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let busy = matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let refused = Refused { issuer, status: head.status, error, description };
    Ok(Err((refused, after.map(Duration::from_secs).filter(|_| busy))))
}

/// What a token says of its holder: name, and object id. Not verified: for people alone.
pub fn holder(token: &Token) -> (Option<String>, String) {
    let claims = claims(token.secret.expose_secret()).unwrap_or_default();
    let text = |names: &[&str]| names.iter().find_map(|name| claims[*name].as_str()).map(str::to_owned);
    let name = text(&["preferred_username", "upn", "email", "name", "sub"]);
    (name, text(&["oid", "sub"]).unwrap_or_default())
}

/// Reads PEM of authorities.
pub fn read_ca(option: &str, file: &Path) -> anyhow::Result<String> {
    let pem = std::fs::read_to_string(file).with_context(|| format!("{option}: cannot read {}", file.display()))?;
    certs::Roots::from_pem(pem.as_bytes()).with_context(|| format!("{option} {}", file.display()))?;
    Ok(pem)
}
