//! The identity of a caller: the credential that a request carries, and what a verified credential proves
//! ([`Principal`], [`Caller`], [`Access`]). Nothing here decides what a caller is allowed to do. Of this crate it uses
//! the store alone.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::SystemTime,
};

use auth::{
    rbac::principal::{group_key, principals, user_key},
    token::{Identity, TokenError, Verifier},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use certs::{Roots, is_still_of};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use types::{bearer::is_of_token_bytes, ids::ClusterId};

use crate::store::agents::BY_TOKEN;

/// Prefix of the WebSocket subprotocol in which browsers and some clients show a bearer token.
const SUBPROTOCOL_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// A caller whose credential was verified.
#[derive(Debug, Clone)]
pub enum Principal {
    /// A user with a verified token.
    User(Arc<Identity>),
    /// The holder of an access certificate, with a token that only the cluster can judge.
    ServiceAccount(Arc<Access>),
}

/// For whom the API issued an access certificate: the certificate holds as long as they have the right to reach the
/// cluster, which is asked at each request, as it is for a token. Kept in the certificate, so that every replica knows
/// it at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The configured name of the issuer of their token.
    pub issuer: String,
    /// The token's claim `sub`.
    pub subject: String,
    /// Their user name, as grants have it.
    pub username: String,
    /// What role assignments call them.
    pub principal: String,
    /// Those of their groups that give the right.
    pub groups: Vec<String>,
    /// The object id of the cluster's identity: one that was deleted and created again is another cluster.
    pub cluster: Option<String>,
    /// What they signed in with, as their token named it: the right ends when that is replaced. None: their issuer does not
    /// say, or the certificate was issued before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

impl Holder {
    /// What role assignments call them and their groups.
    pub fn principals(&self) -> Vec<String> {
        let groups = self.groups.iter().map(|group| group_key(group));
        std::iter::once(user_key(&self.principal)).chain(groups).collect()
    }

    /// As a certificate has it: no character of a name can be one that a certificate has not.
    pub fn to_text(&self) -> Option<String> {
        serde_json::to_vec(self).ok().map(|json| URL_SAFE_NO_PAD.encode(json))
    }

    /// Of such a text.
    pub fn of(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

/// A verified access certificate.
#[derive(Debug, Clone)]
pub struct Access {
    /// The cluster that it opens.
    pub cluster: ClusterId,
    /// For whom it was issued.
    pub name: String,
    /// Whose right it rests on; nobody's but its own if it was made by hand.
    pub holder: Option<Holder>,
    /// When the certificate ends.
    pub expires: SystemTime,
    /// What was shown; nothing where somebody's right alone is asked for.
    pub proof: Option<Proof>,
}

/// The certificates that an access rests on, and the authorities that vouched for them.
#[derive(Debug, Clone)]
pub struct Proof {
    /// As shown, the access certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Whom they were judged by.
    pub judged_by: Roots,
}

impl Access {
    /// Whether the authorities that are trusted now still vouch for it. Its end is asked elsewhere: a session may
    /// outlive it.
    pub fn is_of(&self, roots: &Roots) -> bool {
        let Some(Proof { chain, judged_by }) = &self.proof else { return true };
        judged_by.is(roots) || is_still_of(chain, roots, SystemTime::now())
    }
}

impl Principal {
    /// The name in policy and audit.
    pub fn name(&self) -> &str {
        match self {
            Self::User(identity) => &identity.username,
            Self::ServiceAccount(access) => &access.name,
        }
    }

    /// The issuer's configured name; access certificates come from the gateway's own authority.
    pub fn issuer(&self) -> &str {
        match self {
            Self::User(identity) => &identity.issuer,
            Self::ServiceAccount(_) => "access-certificate",
        }
    }

    /// The same for all tokens of the same person, and different for all others.
    pub fn key(&self) -> PrincipalKey {
        PrincipalKey(self.clone())
    }

    /// When the credential ends.
    pub fn expires(&self) -> SystemTime {
        match self {
            Self::User(identity) => identity.expires,
            Self::ServiceAccount(access) => access.expires,
        }
    }
}

/// Who a principal is, as a key of maps: without a text made of it, as each request asks several of them.
#[derive(Debug, Clone)]
pub struct PrincipalKey(Principal);

impl PrincipalKey {
    /// The issuer, which the names of access certificates have none of, and the name that is unique there.
    fn parts(&self) -> (Option<&str>, &str) {
        match &self.0 {
            Principal::User(identity) => (Some(&identity.issuer), &identity.subject),
            Principal::ServiceAccount(access) => (None, &access.name),
        }
    }
}

impl PartialEq for PrincipalKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for PrincipalKey {}

impl Hash for PrincipalKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// A caller of the resource API.
#[derive(Debug, Clone)]
pub struct Caller {
    name: String,
    object_id: String,
    principals: Vec<String>,
    application: bool,
    identity: Option<Arc<Identity>>,
}

impl Caller {
    /// Of a verified identity.
    pub fn of(identity: &Arc<Identity>) -> Self {
        Self {
            name: identity.username.clone(),
            object_id: identity.principal.clone(),
            principals: principals(identity),
            application: identity.application,
            identity: Some(Arc::clone(identity)),
        }
    }

    /// Whoever holds an enrolment token, by who made it. May nothing else.
    pub fn by_token_of(creator: &str) -> Self {
        Self {
            name: format!("{BY_TOKEN}{creator}"),
            object_id: String::new(),
            principals: Vec::new(),
            application: true,
            identity: None,
        }
    }

    /// The gateway itself, which does what a fleet assignment of this id says. May nothing by itself.
    pub fn by_assignment(id: &str) -> Self {
        Self {
            name: id.to_owned(),
            object_id: id.to_owned(),
            principals: Vec::new(),
            application: true,
            identity: None,
        }
    }

    /// Who they are; nobody has proved anything but an enrolment token without.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    /// The same, to be kept.
    pub fn shared_identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// The name in messages and records.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What role assignments call them.
    pub fn object_id(&self) -> &str {
        &self.object_id
    }

    /// What `systemData` calls their kind: `createdByType`, `lastModifiedByType`.
    pub fn kind(&self) -> &'static str {
        if self.application { "Application" } else { "User" }
    }

    /// What the policy calls them and their groups.
    pub fn principals(&self) -> &[String] {
        &self.principals
    }

    /// Whether a group is theirs.
    pub fn is_in_group(&self, group: &str) -> bool {
        self.principals.contains(&group_key(group))
    }
}

/// Why there is no principal. For logs and `towline whoami` only; holds no credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// Nothing was shown.
    #[error("no token was shown")]
    Missing,
    /// More than one credential was shown.
    #[error("more than one credential was shown")]
    Several,
    /// A token in the query is recorded in too many places.
    #[error("a token in the query is not taken; use the Authorization header")]
    InQuery,
    /// Neither `Bearer` nor `PoP`, or not one token.
    #[error("the Authorization header is not `Bearer` or `PoP` and one token")]
    Syntax,
    /// The token does not hold.
    #[error("the token is refused: {0}")]
    Token(#[from] TokenError),
    /// The token is of no configured issuer, and there is no access certificate for the cluster.
    #[error("the token is of no issuer of this gateway, and no access certificate for this cluster was shown")]
    NoAccess,
    /// The access certificate has ended.
    #[error("the access certificate has expired")]
    AccessExpired,
    /// The user or service principal is disabled, or deleted.
    #[error("the user or service principal is disabled or deleted")]
    Disabled,
}

/// The one credential of a request, not judged yet. Does not print.
pub struct Credential {
    token: Bytes,
    scheme: Scheme,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Bearer,
    Pop,
}

impl Credential {
    /// Takes the one credential out of a request's headers. The `Authorization` header stays, for the agent judges it
    /// again; one in a WebSocket subprotocol moves there, so that the apiserver never sees it.
    pub fn take(headers: &mut HeaderMap, query: Option<&str>) -> Result<Self, AuthenticateError> {
        // Decoded, for `%61ccess_token` is the same name to every reader of forms.
        let in_query = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .any(|(name, _)| name.eq_ignore_ascii_case("access_token"));
        if in_query {
            return Err(AuthenticateError::InQuery);
        }
        let from_subprotocol = take_subprotocol(headers)?;
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        match (values.next(), values.next(), from_subprotocol) {
            (None, None, None) => Err(AuthenticateError::Missing),
            (Some(value), None, None) => Self::parse(value.as_bytes()),
            (None, None, Some(token)) => {
                let this = Self { token: Bytes::from(token), scheme: Scheme::Bearer };
                let text = [b"Bearer ", this.token.as_ref()].concat();
                let value = HeaderValue::from_bytes(&text).map_err(|_| AuthenticateError::Syntax)?;
                headers.insert(header::AUTHORIZATION, value);
                Ok(this)
            }
            _ => Err(AuthenticateError::Several),
        }
    }

    fn parse(value: &[u8]) -> Result<Self, AuthenticateError> {
        let space = value.iter().position(|b| *b == b' ').ok_or(AuthenticateError::Syntax)?;
        let (scheme, token) = (&value[..space], value[space..].trim_ascii());
        let scheme = if scheme.eq_ignore_ascii_case(b"bearer") {
            Scheme::Bearer
        } else if scheme.eq_ignore_ascii_case(b"pop") {
            Scheme::Pop
        } else {
            return Err(AuthenticateError::Syntax);
        };
        if !is_of_token_bytes(token) {
            return Err(AuthenticateError::Syntax);
        }
        Ok(Self { token: Bytes::copy_from_slice(token), scheme })
    }

    /// Judges it for the resource API, whose tokens are of no use for a cluster, nor those of clusters for it.
    pub async fn verify_for_api(
        &self,
        verifier: &Verifier,
        audience: &str,
        now: SystemTime,
    ) -> Result<Arc<Identity>, AuthenticateError> {
        if self.scheme == Scheme::Pop {
            return Err(AuthenticateError::Syntax);
        }
        Ok(verifier.verify(self.text()?, audience, now).await?)
    }

    /// Whether it came as `Bearer`, the only scheme that clusters' own tokens have.
    pub fn is_bearer(&self) -> bool {
        self.scheme == Scheme::Bearer
    }

    /// The token's text.
    pub fn text(&self) -> Result<&str, AuthenticateError> {
        std::str::from_utf8(&self.token).map_err(|_| AuthenticateError::Syntax)
    }
}

/// Removes the token from `Sec-WebSocket-Protocol`, keeping the other protocols in order.
fn take_subprotocol(headers: &mut HeaderMap) -> Result<Option<Vec<u8>>, AuthenticateError> {
    const NAME: HeaderName = header::SEC_WEBSOCKET_PROTOCOL;
    let shows = |value: &HeaderValue| {
        let prefix = SUBPROTOCOL_TOKEN.as_bytes();
        value.as_bytes().windows(prefix.len()).any(|w| w.eq_ignore_ascii_case(prefix))
    };
    if !headers.get_all(NAME).iter().any(shows) {
        return Ok(None);
    }
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    for value in headers.get_all(NAME) {
        let text = value.to_str().map_err(|_| AuthenticateError::Syntax)?;
        for protocol in text.split(',').map(str::trim).filter(|protocol| !protocol.is_empty()) {
            match protocol.strip_prefix(SUBPROTOCOL_TOKEN) {
                Some(encoded) => tokens.push(encoded.to_owned()),
                None if protocol.to_ascii_lowercase().contains(SUBPROTOCOL_TOKEN) => {
                    return Err(AuthenticateError::Syntax);
                }
                None => others.push(protocol.to_owned()),
            }
        }
    }
    let [encoded] = tokens.as_slice() else { return Err(AuthenticateError::Several) };
    let token = URL_SAFE_NO_PAD
        .decode(encoded.trim_end_matches('='))
        .ok()
        .filter(|token| is_of_token_bytes(token))
        .ok_or(AuthenticateError::Syntax)?;
    headers.remove(NAME);
    if !others.is_empty() {
        let value = HeaderValue::from_str(&others.join(", ")).map_err(|_| AuthenticateError::Syntax)?;
        headers.insert(NAME, value);
    }
    Ok(Some(token))
}

impl AuthenticateError {
    /// Whether the fault is neither the credential's nor the user's: an issuer's keys could not be read.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Token(error) if error.is_unavailable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn taken(lines: &[(&'static str, &str)]) -> Result<String, AuthenticateError> {
        Credential::take(&mut headers(lines), None).map(|c| c.text().unwrap().to_owned())
    }

    #[test]
    fn exactly_one_credential_is_taken() {
        assert_eq!(taken(&[("authorization", "Bearer a.b-c_d")]).unwrap(), "a.b-c_d");
        assert_eq!(taken(&[("authorization", "bearer  x")]).unwrap(), "x");
        assert_eq!(taken(&[("authorization", "PoP x")]).unwrap(), "x");
        assert_eq!(taken(&[]), Err(AuthenticateError::Missing));
        let two = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
        assert_eq!(taken(&two), Err(AuthenticateError::Several));
        for bad in ["Bearer a, Bearer b", "Bearer", "Basic dTpw", "a", "Bearer a b", "Bearer \u{e4}", "Bearer\ta"] {
            assert_eq!(taken(&[("authorization", bad)]), Err(AuthenticateError::Syntax), "{bad}");
        }
    }

    #[test]
    fn a_token_in_the_query_is_refused_wherever_else_one_is() {
        for query in ["access_token=x", "a=b&Access_Token=x", "access_token", "%61ccess%5Ftoken=x"] {
            let result = Credential::take(&mut headers(&[("authorization", "Bearer a")]), Some(query));
            assert_eq!(result.err(), Some(AuthenticateError::InQuery));
        }
    }

    #[test]
    fn a_websocket_token_moves_to_the_header_and_the_other_protocols_stay() {
        let name = "sec-websocket-protocol";
        let shown = format!("v5.channel.k8s.io, {SUBPROTOCOL_TOKEN}YS5iLWM, v4.channel.k8s.io");
        let mut map = headers(&[(name, &shown)]);
        assert_eq!(Credential::take(&mut map, None).map(|c| c.text().unwrap().to_owned()), Ok("a.b-c".to_owned()));
        assert_eq!(map[name], "v5.channel.k8s.io, v4.channel.k8s.io");
        assert_eq!(map["authorization"], "Bearer a.b-c");
        let mut alone = headers(&[(name, &format!("{SUBPROTOCOL_TOKEN}YQ"))]);
        assert!(Credential::take(&mut alone, None).is_ok());
        assert!(!alone.contains_key(name));
        assert_eq!(taken(&[(name, &shown), ("authorization", "Bearer a")]), Err(AuthenticateError::Several));
        assert_eq!(taken(&[(name, &shown), (name, &shown)]), Err(AuthenticateError::Several));
        assert_eq!(taken(&[(name, &format!("{SUBPROTOCOL_TOKEN}%%"))]), Err(AuthenticateError::Syntax));
        let other_case = SUBPROTOCOL_TOKEN.to_uppercase();
        assert_eq!(taken(&[(name, &format!("{other_case}YQ"))]), Err(AuthenticateError::Syntax));
    }
}
