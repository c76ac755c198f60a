//! How somebody signs in: client credentials (RFC 6749 section 4.4), device code (RFC 8628), a browser with PKCE (RFC
//! 7636, RFC 8252), and refresh tokens. At the gateway's own issuer, or at another one that its discovery document
//! describes.

pub mod browser;
pub mod device;
mod discovery;

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::Full;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

pub use self::discovery::{Endpoints, discover_gateway, discover_issuer};
use crate::{
    account::{Account, SignsIn},
    client::{Address, Client, Outbound, retry_after},
    terminal::line,
    token::{Token, claims},
};

/// How often a sign-in is tried that the issuer has no time for.
pub const TRIES: u32 = 4;
/// The longest that an issuer is waited for at once.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// An OAuth 2 error.
#[derive(Debug, thiserror::Error)]
#[error("{issuer} gave no token: {status}: {error}: {description}")]
pub struct Refused {
    /// The issuer that refused.
    pub issuer: String,
    /// HTTP status of the issuer's answer.
    pub status: StatusCode,
    /// The OAuth 2 parameter `error` of the answer.
    pub error: String,
    /// The OAuth 2 parameter `error_description` of the answer.
    pub description: String,
}

impl Refused {
    /// Whether what was shown is no good, now and later.
    pub fn is_over(&self) -> bool {
        matches!(
            self.error.as_str(),
            // The last two as OpenID Connect Core 3.1.2.6 has them: some issuers give them for a session that has
            // ended.
            "invalid_grant" | "invalid_client" | "unauthorized_client" | "interaction_required" | "login_required"
        )
    }
}

/// What is shown for a token.
pub enum Grant<'a> {
    /// A refresh token; none: the sign-in had none.
    Refresh {
        /// Client id of this program at the issuer.
        client_id: &'a str,
        /// The refresh token.
        token: Option<&'a str>,
        /// What another issuer is asked for instead of an audience.
        scope: Option<&'a str>,
    },
    /// A service principal's secret.
    ClientCredentials {
        /// Client id of the service principal.
        client_id: &'a str,
        /// Client secret of the service principal.
        secret: &'a str,
    },
    /// A device code.
    Device {
        /// Client id of this program at the issuer.
        client_id: &'a str,
        /// The device code (RFC 8628), which is not the code that the user types.
        code: &'a str,
    },
    /// An authorization code.
    Code {
        /// Client id of this program at the issuer.
        client_id: &'a str,
        /// The authorization code from the redirect.
        code: &'a str,
        /// Proves who asked for it.
        verifier: &'a str,
        /// Where it was sent.
        redirect_uri: &'a str,
    },
}

/// What a token is asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Client id of this program at the issuer.
    pub client_id: &'a str,
    /// The scopes, separated by spaces.
    pub scope: &'a str,
    /// Whom the token is for.
    pub audience: &'a str,
}

/// What a sign-in yields.
pub struct Answer {
    /// For the audience; of an external issuer for the gateway's API.
    pub token: Token,
    /// An external issuer's, for clusters.
    pub of_clusters: Option<Token>,
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
        let audience = if external { account.external_audience() } else { account.audience.clone() };
        Ok(Self { client, external, audience })
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
        let token = |text: &str| Token::new(text.to_owned().into(), obtained);
        let (access, id) = (text("access_token"), text("id_token").filter(|_| self.external));
        let (api, clusters) = chosen(access, id, &self.audience)
            .with_context(|| format!("{} answered without a token", self.client.address().authority()))?;
        Ok(Answer {
            token: token(api),
            of_clusters: self.external.then(|| token(clusters)),
            refresh_token: text("refresh_token").map(|token| token.to_owned().into()),
        })
    }
}

/// Which token is for the gateway's API, and which for clusters. An issuer that does not know the gateway gives access
/// tokens for itself; the ID token is then what says who it is. What is for the API is never shown to a cluster where
/// there is something else to show: who runs a cluster could use it.
fn chosen<'a>(access: Option<&'a str>, id: Option<&'a str>, audience: &str) -> Option<(&'a str, &'a str)> {
    let fits = |token: &str| {
        claims(token).is_some_and(|claims| match &claims["aud"] {
            Value::Array(list) => list.iter().any(|aud| aud.as_str() == Some(audience)),
            aud => aud.as_str() == Some(audience),
        })
    };
    match (access, id) {
        (Some(access), Some(id)) if fits(access) => Some((access, id)),
        (_, Some(id)) => Some((id, id)),
        (access, None) => access.map(|access| (access, access)),
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
    let text =
        |name: &str, other: &str| line(fields[name].as_str().unwrap_or(other)).chars().take(300).collect::<String>();
    if fields["error"].as_str().is_none() {
        return Err(anyhow!("{issuer} answered {} without an OAuth 2 error", head.status));
    }
    let error = text("error", "");
    let description = text("error_description", "no reason given");
    let after = busy_for(head.status, &head.headers);
    Ok(Err((Refused { issuer, status: head.status, error, description }, after)))
}

/// How long an issuer asks to wait because it has no time; nothing where it said anything else.
pub fn busy_for(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    retry_after(headers).filter(|_| busy)
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
    certs::Roots::from_pem(pem.as_bytes()).with_context(|| format!("{option}: cannot use {}", file.display()))?;
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
    use serde_json::json;

    use super::*;

    #[test]
    fn n5_an_issuer_is_waited_for_as_long_as_it_says_where_it_has_no_time() {
        let after = |status: StatusCode, text: &'static str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, http::HeaderValue::from_static(text))]);
            busy_for(status, &headers)
        };
        for busy in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            assert_eq!(after(busy, "3"), Some(Duration::from_secs(3)));
            assert_eq!(busy_for(busy, &HeaderMap::new()), None);
        }
        assert_eq!(after(StatusCode::UNAUTHORIZED, "3"), None);
        assert_eq!(after(StatusCode::TOO_MANY_REQUESTS, "tomorrow"), None);
    }

    fn jwt(aud: &str) -> String {
        format!("e30.{}.c2ln", BASE64.encode(json!({"aud": aud}).to_string()))
    }

    /// A gateway that says that it is another service would be shown what the issuer gives for that.
    #[test]
    fn another_issuers_token_is_for_the_address_that_was_typed() {
        let signed_in = |says: &str| {
            let mut account = Account::at("https://Gateway.test:443/", None).unwrap();
            account.audience = says.to_owned();
            account.signs_in = SignsIn::User {
                client_id: "towline".to_owned(),
                refresh_token: None,
                external: Some(crate::account::IssuerAt {
                    url: "https://issuer.test".to_owned(),
                    token_endpoint: "https://issuer.test/token".to_owned(),
                    ca: None,
                    scope: "openid".to_owned(),
                }),
            };
            let tokens = TokenEndpoint::of(&account, &Outbound::new(&account.outbound()).unwrap()).unwrap();
            let given = |aud: &str| json!({"access_token": jwt(aud), "id_token": jwt("towline")});
            let shown = |aud: &str| {
                let answer = tokens.read(&given(aud), SystemTime::now()).unwrap();
                answer.token.secret.expose_secret() == jwt(aud)
            };
            ["https://vault.test", "https://gateway.test", "https://Gateway.test"].map(shown)
        };
        // The same address in other letters is the same address.
        assert_eq!(signed_in("https://gateway.test"), [false, true, false]);
        assert_eq!(signed_in("https://vault.test"), [false, false, true]);
        assert_eq!(signed_in("https://gateway.test.evil.test"), [false, false, true]);
    }

    #[test]
    fn a1_a_token_for_the_api_is_not_shown_to_clusters() {
        const GATEWAY: &str = "https://gateway.test";
        let jwt = |aud: Value| format!("e30.{}.c2ln", BASE64.encode(json!({"aud": aud}).to_string()));
        let (api, both, own, id) =
            (jwt(json!(GATEWAY)), jwt(json!(["x", GATEWAY])), jwt(json!("https://issuer.test")), jwt(json!("towline")));
        let chosen = |access: Option<&str>, id: Option<&str>| {
            chosen(access, id, GATEWAY).map(|(api, clusters)| (api.to_owned(), clusters.to_owned()))
        };
        assert_eq!(chosen(Some(&api), Some(&id)), Some((api.clone(), id.clone())));
        assert_eq!(chosen(Some(&both), Some(&id)), Some((both.clone(), id.clone())));
        // An access token of the issuer for itself, or one that is not to be read.
        assert_eq!(chosen(Some(&own), Some(&id)), Some((id.clone(), id.clone())));
        assert_eq!(chosen(Some("opaque"), Some(&id)), Some((id.clone(), id)));
        assert_eq!(chosen(Some(&api), None), Some((api.clone(), api)));
        assert_eq!(chosen(None, None), None);
    }
}
