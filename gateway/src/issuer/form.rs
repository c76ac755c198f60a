//! What a client of the token endpoint sends: a form, and perhaps an `Authorization: Basic` header (RFC 6749 sections
//! 2.3.1 and 3.2). Parses, judges nobody.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Limited};
use secrecy::{ExposeSecret, SecretString};

use super::{
    respond::Refusal,
    texts::{NAME_BYTES, PASSWORD_BYTES},
};

/// Bytes of a form at most.
const FORM_BYTES: usize = 16 * 1024;
/// Parameters of a form at most; no client sends a tenth of it.
const FORM_FIELDS: usize = 64;
/// How long a form may take to arrive.
const FORM_DEADLINE: Duration = Duration::from_secs(10);
/// Behind the audience in a scope (Microsoft identity platform v2: all that is granted there).
const DEFAULT_SCOPE: &str = "/.default";
/// Scopes that name no audience (OpenID Connect Core 1.0 sections 3.1.2.1, 5.4 and 11).
const OPENID_SCOPES: [&str; 4] = ["openid", "profile", "email", "offline_access"];

/// What `scope` asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The audience that is named, if one is.
    pub audience: Option<&'a str>,
    /// An ID token.
    pub openid: bool,
    /// A refresh token.
    pub offline: bool,
}

/// Parameters of a form, each at most once.
pub struct Form {
    fields: Vec<(String, SecretString)>,
}

impl Form {
    /// Reads the form of a request.
    pub async fn read<B>(request: Request<B>) -> Result<Self, Refusal>
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
            Ok(Ok(body)) => Self::parse(&body.to_bytes()),
            Ok(Err(_)) => Err(Refusal::Request("the body broke off or is too long")),
            Err(_) => Err(Refusal::Request("the body did not arrive in time")),
        }
    }

    /// RFC 6749 section 3.2: no parameter is there twice; one without a value is not there.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut fields: Vec<(String, SecretString)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(body) {
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(Refusal::Request("a parameter is there twice"));
            }
            if fields.len() >= FORM_FIELDS {
                return Err(Refusal::Request("there are more than 64 parameters"));
            }
            fields.push((name.into_owned(), value.into_owned().into()));
        }
        Ok(Self { fields })
    }

    /// A parameter that is no secret.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.secret(name).map(ExposeSecret::expose_secret)
    }

    /// A parameter that is one.
    pub fn secret(&self, name: &str) -> Option<&SecretString> {
        let found = self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        found.filter(|value| !value.expose_secret().is_empty())
    }

    /// Seconds of `expires_in`: our own addition, for a token shorter than the default.
    pub fn life(&self) -> Result<Option<Duration>, Refusal> {
        match self.get("expires_in").map(str::parse) {
            None => Ok(None),
            Some(Ok(seconds)) if seconds > 0 => Ok(Some(Duration::from_secs(seconds))),
            Some(_) => Err(Refusal::Request("expires_in must be a number of seconds above 0")),
        }
    }

    /// The audience that is asked for: `audience`, or the one in `scope`.
    pub fn audience(&self) -> Result<&str, Refusal> {
        match (self.get("audience"), self.scope()?.audience) {
            (Some(one), Some(other)) if one != other => {
                Err(Refusal::Request("audience and scope name different audiences"))
            }
            (Some(audience), _) | (None, Some(audience)) => Ok(audience),
            (None, None) => Err(Refusal::Request("audience is missing: audience, or scope with <audience>/.default")),
        }
    }

    /// What `scope` asks for.
    pub fn scope(&self) -> Result<Scope<'_>, Refusal> {
        self.get("scope").map_or(Ok(Scope::default()), scope)
    }

    /// User name and password.
    pub fn password(&self) -> Result<(String, SecretString), Refusal> {
        let password = self.secret("password").ok_or(Refusal::Request("password is missing"))?;
        let name = self.get("username").ok_or(Refusal::Request("username is missing"))?;
        // No user has such; what is counted of failed sign-ins must not take memory.
        if name.len() > NAME_BYTES || password.expose_secret().len() > PASSWORD_BYTES {
            return Err(Refusal::Grant);
        }
        Ok((name.to_owned(), password.clone()))
    }
}

/// The one audience that a scope names; scopes of OpenID Connect name none.
fn scope(scope: &str) -> Result<Scope<'_>, Refusal> {
    let has = |wanted: &str| scope.split(' ').any(|word| word == wanted);
    let mut asked = Scope { audience: None, openid: has("openid"), offline: has("offline_access") };
    let mut named = scope.split(' ').filter(|word| !word.is_empty() && !OPENID_SCOPES.contains(word));
    let Some(one) = named.next() else { return Ok(asked) };
    asked.audience = one.strip_suffix(DEFAULT_SCOPE).filter(|audience| !audience.is_empty());
    match (asked.audience, named.next()) {
        (Some(_), None) => Ok(asked),
        _ => Err(Refusal::Scope("scope must be <audience>/.default")),
    }
}

/// A client and its secret, as shown.
pub struct ClientSecret {
    /// The OAuth 2 parameter `client_id`.
    pub id: String,
    /// The OAuth 2 parameter `client_secret`.
    pub secret: SecretString,
    /// Whether they came as HTTP Basic authentication.
    pub basic: bool,
}

impl ClientSecret {
    /// From the header or the form: RFC 6749 section 2.3 wants one way, not both.
    pub fn take(headers: &HeaderMap, form: &Form) -> Result<Self, Refusal> {
        let basic = basic(headers)?;
        let missing = |basic| Refusal::Client { why: "client_id and client_secret are missing", basic };
        let this = match (basic, form.secret("client_secret")) {
            (Some(_), Some(_)) => {
                return Err(Refusal::Request("client_secret and the Authorization header are there both"));
            }
            (Some(client), None) if form.get("client_id").is_some_and(|id| id != client.id) => {
                return Err(Refusal::Request("client_id and the Authorization header name different clients"));
            }
            (Some(client), None) => client,
            (None, Some(secret)) => {
                let id = form.get("client_id").ok_or(missing(false))?.to_owned();
                Self { id, secret: secret.clone(), basic: false }
            }
            (None, None) => return Err(missing(false)),
        };
        if this.id.len() > NAME_BYTES {
            return Err(Refusal::wrong_client(this.basic));
        }
        Ok(this)
    }
}

/// RFC 7617, whose two halves are form-encoded before (RFC 6749 section 2.3.1).
fn basic(headers: &HeaderMap) -> Result<Option<ClientSecret>, Refusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.as_bytes(),
        (Some(_), Some(_)) => return Err(Refusal::Request("there is more than one Authorization header")),
    };
    let wrong = || Refusal::Client { why: "the Authorization header is not that of HTTP Basic", basic: true };
    let (scheme, rest) = value.split_at_checked(6).ok_or_else(wrong)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return Err(wrong());
    }
    let text = STANDARD.decode(rest.trim_ascii()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text = SecretString::from(text.ok_or_else(wrong)?);
    let (id, secret) = text.expose_secret().split_once(':').ok_or_else(wrong)?;
    let (Some(id), Some(secret)) = (form_decoded(id), form_decoded(secret)) else { return Err(wrong()) };
    Ok(Some(ClientSecret { id, secret: secret.into(), basic: true }))
}

/// Undoes `application/x-www-form-urlencoded` of one value; `None` for what is broken or no text.
fn form_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit()?, digit()?);
                out.push((high << 4 | low) as u8);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn a_scope_names_one_audience() {
        for (text, audience) in [
            ("https://gw/.default", Some("https://gw")),
            ("https://gw//.default", Some("https://gw/")),
            ("openid  https://gw/.default offline_access profile", Some("https://gw")),
            ("openid", None),
            ("", None),
        ] {
            assert_eq!(scope(text).map(|asked| asked.audience), Ok(audience), "{text:?}");
        }
        let asked = scope("offline_access a/.default").unwrap();
        assert!(asked.offline && !asked.openid);
        for bad in ["https://gw", "/.default", "a/.default b/.default", "a/.default x"] {
            assert!(matches!(scope(bad), Err(Refusal::Scope(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_client_is_named_once() {
        let basic = format!("Basic {}", STANDARD.encode("a%2Fb:s+%3A"));
        let form = |text: &str| Form::parse(text.as_bytes()).unwrap();
        let client = ClientSecret::take(&with(&basic), &form("x=y")).ok().unwrap();
        assert_eq!((client.id.as_str(), client.secret.expose_secret(), client.basic), ("a/b", "s :", true));
        let client = ClientSecret::take(&HeaderMap::new(), &form("client_id=c&client_secret=s")).ok().unwrap();
        assert_eq!((client.id.as_str(), client.basic), ("c", false));
        assert!(ClientSecret::take(&with(&basic), &form("client_id=a/b")).is_ok());
        for (headers, body) in [
            (with(&basic), "client_secret=s"),
            (with(&basic), "client_id=c"),
            (HeaderMap::new(), "client_id=c"),
            (HeaderMap::new(), "client_secret=c"),
            (with("Bearer x"), ""),
            (with("Basic x"), ""),
            (with("Basic"), ""),
            (HeaderMap::from_iter([0; 2].map(|_| (header::AUTHORIZATION, basic.parse().unwrap()))), ""),
        ] {
            assert!(ClientSecret::take(&headers, &form(body)).is_err(), "{headers:?} {body}");
        }
    }

    #[test]
    fn a_parameter_is_there_once_or_not() {
        assert!(Form::parse(b"a=1&a=1").is_err() && Form::parse(b"a=&a=1").is_err());
        assert!(Form::parse(b"a=").unwrap().get("a").is_none());
        let many: String = (0..=FORM_FIELDS).map(|n| format!("{n}=&")).collect();
        assert!(Form::parse(many.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_what_is_read(id in "[^\0]{1,40}", secret in "[^\0]{0,40}") {
            let encode = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let header = format!("bAsIc {}", STANDARD.encode(format!("{}:{}", encode(&id), encode(&secret))));
            let client = basic(&with(&header)).ok().flatten().unwrap();
            prop_assert_eq!((&client.id, client.secret.expose_secret()), (&id, secret.as_str()));
            let body = format!("client_id={}&client_secret={}", encode(&id), encode(&secret));
            let form = Form::parse(body.as_bytes()).unwrap();
            prop_assert_eq!(form.get("client_id"), Some(id.as_str()));
            prop_assert_eq!(form.get("client_secret"), Some(secret.as_str()).filter(|text| !text.is_empty()));
        }

        #[test]
        fn nothing_that_comes_in_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in ".{0,60}") {
            if let Ok(form) = Form::parse(&bytes) {
                let _ = (form.audience(), form.life(), form.password().is_ok());
            }
            let mut headers = HeaderMap::new();
            for value in [&bytes[..], format!("Basic {}", STANDARD.encode(&bytes)).as_bytes()] {
                if let Ok(value) = http::HeaderValue::from_bytes(value) {
                    headers.insert(header::AUTHORIZATION, value);
                    let _ = basic(&headers);
                }
            }
            let _ = (scope(&text), form_decoded(&text));
        }
    }
}
