//! Where tokens come from: signing in at an issuer, or a file.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::Full;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::{client::Client, context::Context, oauth, secret::read_secret, token::Token};

/// A sign-in at an issuer: RFC 6749 section 4.3.
pub struct SignIn {
    /// The issuer's host; the path is the issuer's.
    pub client: Client,
    /// The user's name at the issuer.
    pub user: String,
    /// The user's password, which only the issuer gets.
    pub password: SecretString,
    /// The token's audience.
    pub audience: String,
    /// How long it is to live, if not as long as the issuer gives.
    pub ttl: Option<Duration>,
}

/// Where tokens come from.
pub enum Source {
    /// A user's name and password at an issuer.
    SignIn(SignIn),
    /// A file that somebody else keeps fresh.
    File(PathBuf),
    /// A token that was given once.
    Fixed(SecretString),
    /// An account that is signed in.
    Account {
        /// The account that is signed in, and its gateway.
        context: Box<Context>,
        /// For whom the token is.
        audience: String,
    },
}

impl Source {
    /// From `--token-file`: `-` is read once, a file again each time.
    pub fn file(file: &Path) -> anyhow::Result<Self> {
        let secret = read_secret(file)?;
        Ok(if file == Path::new("-") { Self::Fixed(secret) } else { Self::File(file.to_owned()) })
    }

    /// Whose tokens they are, for people.
    pub fn who(&self) -> String {
        match self {
            Self::SignIn(sign_in) => sign_in.user.clone(),
            Self::Account { context, .. } => context.account().user.clone(),
            Self::File(_) | Self::Fixed(_) => "token".to_owned(),
        }
    }

    /// A token, the newest that there is.
    pub async fn obtain(&self) -> anyhow::Result<Token> {
        match self {
            Self::SignIn(sign_in) => sign_in.obtain().await,
            Self::File(file) => Ok(Token::new(read_secret(file)?, SystemTime::now())),
            Self::Account { context, audience } => context.token(audience).await,
            Self::Fixed(secret) => Ok(Token::new(secret.clone(), SystemTime::now())),
        }
    }
}

impl SignIn {
    async fn obtain(&self) -> anyhow::Result<Token> {
        let issuer = self.client.address().url();
        let (mut tries, mut obtained) = (0, SystemTime::now());
        let answer = loop {
            tries += 1;
            let reached = self.ask().await;
            let answer = reached.with_context(|| format!("the issuer at {issuer} was not reached: is it running?"))?;
            match oauth::busy_for(answer.status(), answer.headers()) {
                Some(after) if tries < oauth::TRIES && after <= oauth::PATIENCE => tokio::time::sleep(after).await,
                _ => break answer,
            }
            obtained = SystemTime::now();
        };
        let (status, body) = (answer.status(), answer.into_body());
        let fields: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !status.is_success() {
            let error = fields["error"].as_str().unwrap_or("no OAuth 2 error");
            let description = fields["error_description"].as_str().unwrap_or_default();
            bail!("{issuer} gave {} no token: {status}: {error}: {description}", self.user);
        }
        let token = fields["access_token"].as_str().with_context(|| format!("{issuer} answered without a token"))?;
        Ok(Token::new(token.to_owned().into(), obtained))
    }

    async fn ask(&self) -> anyhow::Result<Response<Bytes>> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/token", self.client.address().path))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(self.form())))?;
        self.client.request(request).await
    }

    fn form(&self) -> String {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "password")
            .append_pair("username", &self.user)
            .append_pair("password", self.password.expose_secret())
            .append_pair("audience", &self.audience);
        if let Some(ttl) = self.ttl {
            form.append_pair("expires_in", &ttl.as_secs().max(1).to_string());
        }
        form.finish()
    }
}
