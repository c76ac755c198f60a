//! The agent's own last word on a request, before anybody's identity is known. It trusts nothing that the gateway did:
//! hop-by-hop headers go first, then what could name an identity is refused or taken out by prefix (docs/threats.md
//! TH3, TH4, TH6), exactly one credential remains (TH5), and of upgrades only Kubernetes' own pass.
//!
//! The one place that can be reached is the cluster's apiserver: the target is a path, never an address.

use std::collections::BTreeMap;

use auth::kubernetes::percent_decode;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use secrecy::SecretString;
use tunnel::{exchange, wire::head::RequestHead};
use types::{bearer::is_of_token_bytes, limits};

use super::{Refusal, target::Target};

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "admit";

/// Room for the headers of most identities, and what else is written behind a request's own.
const SUBJECT_LINES: usize = 8;
/// The most bytes of one name that a client asks to impersonate.
const NAME_BYTES: usize = 1024;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What the key of an extra stands behind (`kubectl --as-user-extra`).
const EXTRA: &str = "impersonate-extra-";

/// Names a subprotocol that carries a token (Kubernetes' way for browsers, which cannot set headers).
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Headers that proxies use among themselves, cookies, and what hyper writes itself. Never forwarded.
const REMOVED: [&str; 14] = [
    "host",
    "expect",
    "forwarded",
    "via",
    "cookie",
    "cookie2",
    "front-end-https",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "x-http-method-override",
    "x-rewrite-url",
    "http2-settings",
    "traceparent",
];

/// Prefixes of such headers, and of other proxies' identity headers (docs/threats.md TH6).
const REMOVED_PREFIXES: [&str; 8] =
    ["x-remote-", "x-forwarded-", "x-original-", "x-envoy-", "x-towline-", "x-ssl-", "x-client-cert", "proxy-"];

/// A request that may go on to authentication. What it holds names nobody.
#[derive(Debug)]
pub struct Admitted {
    /// HTTP method of the client's request.
    pub method: Method,
    /// Path and query, byte for byte as received.
    pub target: Target,
    /// Headers that may go to the apiserver: no credential, no identity, nothing hop-by-hop.
    pub headers: HeaderMap,
    /// `SPDY/3.1` or `websocket`, as written by the client.
    pub upgrade: Option<HeaderValue>,
    /// The declared length of the body.
    pub content_length: Option<u64>,
    /// The one credential.
    pub credential: Option<Credential>,
    /// Whom the client asks to impersonate (`kubectl --as`).
    pub asked: Option<Asked>,
}

/// What a client showed.
#[derive(Debug)]
pub struct Credential {
    /// How it is to be judged.
    pub scheme: Scheme,
    /// The token, nothing else.
    pub token: SecretString,
}

/// The scheme of an `Authorization` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `Bearer` (RFC 6750).
    Bearer,
    /// `PoP` (docs/features.md A5).
    Pop,
}

/// Whom a client asks to impersonate; well-formed and not yet allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Asked {
    /// The value of `Impersonate-User`.
    pub user: String,
    /// The value of `Impersonate-Uid`.
    pub uid: Option<String>,
    /// The values of all `Impersonate-Group` headers.
    pub groups: Vec<String>,
    /// `Impersonate-Extra-<key>`, keys decoded and in lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

fn refuse(message: impl Into<String>) -> Refusal {
    Refusal::bad_request(STAGE, message)
}

/// Judges the head of a request.
pub fn admit(head: RequestHead) -> Result<Admitted, Refusal> {
    let RequestHead { method, target, mut headers, traceparent, .. } = head;
    if method == Method::CONNECT || method == Method::TRACE {
        return Err(Refusal::new(
            STAGE,
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!("method {method} is not served"),
        ));
    }
    let target = admit_target(target)?;
    within_limits(&headers)?;
    let upgrade = admit_upgrade(&headers, &method)?;
    if headers.contains_key(header::CONNECTION) {
        // Those too that it takes out.
        headers.keys().try_for_each(|name| check_name(name.as_str()))?;
        exchange::strip_hop_by_hop(&mut headers, false);
    }
    let Sorted { mut headers, credentials, protocols, asked, lengths } = Sorted::of(headers)?;
    // The gateway's step of the trace takes the place of the user's.
    if let Some(value) = traceparent.and_then(|value| HeaderValue::from_maybe_shared(value).ok()) {
        headers.insert(TRACEPARENT, value);
    }
    let credential = admit_credential(&credentials, protocols, &mut headers)?;
    let asked = admit_asked(&asked)?;
    let content_length = admit_length(&lengths)?;
    if upgrade.is_some() && content_length.is_some_and(|length| length > 0) {
        return Err(refuse("an upgrade request has no body"));
    }
    Ok(Admitted { method, target, headers, upgrade, content_length, credential, asked })
}

/// What a header is to the agent.
enum Fate {
    /// It goes to the apiserver.
    Passes,
    /// It ends here: hop-by-hop, or another proxy's.
    Ends,
    Credential,
    /// A subprotocol of WebSocket, perhaps with a credential.
    Protocol,
    Asked,
    Length,
}

impl Fate {
    fn of(name: &str) -> Result<Self, Refusal> {
        check_name(name)?;
        Ok(Self::of_plain(name))
    }

    fn of_plain(name: &str) -> Self {
        match name {
            "authorization" => Self::Credential,
            "sec-websocket-protocol" => Self::Protocol,
            "content-length" => Self::Length,
            _ if name.starts_with("impersonate") => Self::Asked,
            _ if REMOVED.contains(&name)
                || REMOVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                || exchange::is_hop_by_hop(name) =>
            {
                Self::Ends
            }
            _ => Self::Passes,
        }
    }
}

/// The headers by what they are, in one pass and onto a fresh map: a request that comes alone waits for each line of
/// code.
struct Sorted {
    headers: HeaderMap,
    credentials: Vec<HeaderValue>,
    protocols: Vec<HeaderValue>,
    asked: HeaderMap,
    lengths: Vec<HeaderValue>,
}

impl Sorted {
    fn of(received: HeaderMap) -> Result<Self, Refusal> {
        let room = (received.len() + SUBJECT_LINES).min(limits::HEADER_COUNT);
        let mut sorted = Self {
            headers: HeaderMap::with_capacity(room),
            credentials: Vec::new(),
            protocols: Vec::new(),
            asked: HeaderMap::new(),
            lengths: Vec::new(),
        };
        let mut header = None;
        for (name, value) in received {
            // Only the first of several values brings the name.
            if let Some(name) = name {
                header = Some((Fate::of(name.as_str())?, name));
            }
            match &header {
                Some((Fate::Passes, name)) => {
                    sorted.headers.append(name.clone(), value);
                }
                Some((Fate::Ends, _)) | None => {}
                Some((Fate::Credential, _)) => sorted.credentials.push(value),
                Some((Fate::Protocol, _)) => sorted.protocols.push(value),
                Some((Fate::Length, _)) => sorted.lengths.push(value),
                Some((Fate::Asked, name)) => {
                    sorted.asked.append(name.clone(), value);
                }
            }
        }
        Ok(sorted)
    }
}

/// Only a path and a query, in bytes that HTTP allows there. Dot segments, however spelled, are refused: a client never
/// sends them, and what authorises and what serves a request could read them differently.
fn admit_target(target: Bytes) -> Result<Target, Refusal> {
    let too_long = |what: &str, bytes: usize| {
        let message = format!("the request's {what} is longer than {bytes} bytes");
        Refusal::new(STAGE, StatusCode::URI_TOO_LONG, "RequestURITooLong", message)
    };
    if target.len() > limits::TARGET_BYTES {
        return Err(too_long("target", limits::TARGET_BYTES));
    }
    if target.first() != Some(&b'/') {
        return Err(refuse("the request target must be a path"));
    }
    if target.iter().any(|b| *b <= b' ' || *b == 0x7f || *b == b'#') {
        return Err(refuse("the request target has characters that are not allowed in it"));
    }
    let path_end = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
    let path = &target[..path_end];
    if path.len() > limits::PLAIN_TARGET_BYTES {
        return Err(too_long("path", limits::PLAIN_TARGET_BYTES));
    }
    if path.contains(&b'\\') {
        return Err(refuse("the path has a backslash"));
    }
    let decoded = percent_decode(path);
    if decoded.iter().any(|b| *b < b' ' || *b == 0x7f) {
        return Err(refuse("the path has an encoded control character"));
    }
    if decoded.split(|b| matches!(b, b'/' | b'\\')).any(|segment| segment == b"." || segment == b"..") {
        return Err(refuse("the path has a dot segment"));
    }
    Target::new(target).ok_or_else(|| refuse("the request target has characters that are not allowed in it"))
}

fn within_limits(headers: &HeaderMap) -> Result<(), Refusal> {
    let too_large = |message: String| {
        Refusal::new(STAGE, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "RequestHeaderFieldsTooLarge", message)
    };
    if headers.len() > limits::HEADER_COUNT {
        return Err(too_large(format!("more than {} headers", limits::HEADER_COUNT)));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > limits::HEADER_LIST_BYTES {
        return Err(too_large(format!("headers of more than {} bytes", limits::HEADER_LIST_BYTES)));
    }
    Ok(())
}

/// Letters, digits, `-`, `.` and `_` go on. Some servers read `Impersonate_User` as `Impersonate-User`, and some read a
/// dot in the same way, so no name may become one that is more than the caller's own by that. The key of an extra is
/// the caller's own, in any character of a header name: clients encode no others.
fn check_name(name: &str) -> Result<(), Refusal> {
    if name.starts_with(EXTRA) {
        return Ok(());
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if !name.bytes().all(fine) {
        return Err(refuse("a header's name has a character that is not served"));
    }
    let disguised =
        name.contains(['_', '.']) && !matches!(Fate::of_plain(&name.replace(['_', '.'], "-")), Fate::Passes);
    if disguised { Err(refuse("a header's name is another spelling of one that servers act on")) } else { Ok(()) }
}

/// Of upgrades only those of Kubernetes: `SPDY/3.1` and `websocket`. Anything else (`h2c`) is refused, because behind
/// it bytes would flow that nobody has judged.
fn admit_upgrade(headers: &HeaderMap, method: &Method) -> Result<Option<HeaderValue>, Refusal> {
    let asks = headers.get_all(header::CONNECTION).iter().any(|value| {
        value.as_bytes().split(|b| *b == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let mut values = headers.get_all(header::UPGRADE).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) if asks => value,
        (Some(_), Some(_)) if asks => return Err(refuse("more than one upgrade is asked for")),
        // Without `Connection: upgrade` it goes the way of all hop-by-hop headers.
        _ => return Ok(None),
    };
    let known = [&b"spdy/3.1"[..], b"websocket"];
    if !known.iter().any(|known| value.as_bytes().eq_ignore_ascii_case(known)) {
        return Err(refuse("only upgrades to SPDY/3.1 and websocket are served"));
    }
    if method != Method::GET && method != Method::POST {
        return Err(refuse("an upgrade is asked for with GET or POST"));
    }
    Ok(Some(value.clone()))
}

/// Exactly one credential, from `Authorization` or from a WebSocket subprotocol. The subprotocol that carried it is not
/// forwarded: next to impersonation headers the apiserver must see the agent's credential alone (docs/threats.md TH5).
fn admit_credential(
    shown: &[HeaderValue],
    protocols: Vec<HeaderValue>,
    headers: &mut HeaderMap,
) -> Result<Option<Credential>, Refusal> {
    let unauthorized = |detail| Refusal::unauthorized(STAGE, detail);
    let (mut found, mut several) = (None, false);
    for value in shown {
        let text = value.to_str().map_err(|_| unauthorized("the Authorization header is not text"))?;
        let (scheme, token) =
            text.split_once(' ').ok_or_else(|| unauthorized("the Authorization header has no token"))?;
        let scheme = match scheme {
            scheme if scheme.eq_ignore_ascii_case("bearer") => Scheme::Bearer,
            scheme if scheme.eq_ignore_ascii_case("pop") => Scheme::Pop,
            _ => return Err(unauthorized("the Authorization scheme is neither Bearer nor PoP")),
        };
        several |= found.replace(Credential { scheme, token: checked_token(token.trim_matches(' '))? }).is_some();
    }
    if let Some(token) = admit_protocols(protocols, headers)? {
        several |= found.replace(Credential { scheme: Scheme::Bearer, token }).is_some();
    }
    if several { Err(unauthorized("more than one credential")) } else { Ok(found) }
}

/// `b64token` of RFC 6750, which no list, space or control character fits in.
fn checked_token(token: &str) -> Result<SecretString, Refusal> {
    let body = token.trim_end_matches('=');
    if body.contains('=') || !is_of_token_bytes(body.as_bytes()) {
        return Err(Refusal::unauthorized(STAGE, "the token has characters that no token has"));
    }
    Ok(SecretString::from(token.to_owned()))
}

/// Writes the subprotocols that go on; gives the token that one of the others carries.
fn admit_protocols(values: Vec<HeaderValue>, headers: &mut HeaderMap) -> Result<Option<SecretString>, Refusal> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let unauthorized = |detail| Refusal::unauthorized(STAGE, detail);
    let name = header::SEC_WEBSOCKET_PROTOCOL;
    let offers = |value: &HeaderValue| {
        value
            .as_bytes()
            .to_ascii_lowercase()
            .windows(BEARER_PROTOCOL.len())
            .any(|part| part == BEARER_PROTOCOL.as_bytes())
    };
    if !values.iter().any(offers) {
        for value in values {
            headers.append(name.clone(), value);
        }
        return Ok(None);
    }
    let mut token = None;
    let mut kept = Vec::new();
    for value in &values {
        let text = value.to_str().map_err(|_| unauthorized("the subprotocols are not text"))?;
        for protocol in text.split(',').map(|protocol| protocol.trim_matches([' ', '\t'])) {
            let front = protocol.get(..BEARER_PROTOCOL.len()).unwrap_or_default();
            if !front.eq_ignore_ascii_case(BEARER_PROTOCOL) {
                kept.push(protocol.to_owned());
                continue;
            }
            let encoded = protocol[BEARER_PROTOCOL.len()..].trim_end_matches('=');
            let decoded = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let decoded = decoded.ok_or_else(|| unauthorized("the subprotocol's token cannot be decoded"))?;
            if token.replace(checked_token(&decoded)?).is_some() {
                return Err(unauthorized("more than one credential"));
            }
        }
    }
    if !kept.is_empty() {
        let kept = HeaderValue::try_from(kept.join(", ")).map_err(|_| unauthorized("the subprotocols are not text"))?;
        headers.insert(name, kept);
    }
    Ok(token)
}

/// Every `Impersonate-*` header. One that is unknown or malformed is refused, never forwarded (docs/threats.md TH1,
/// TH3).
fn admit_asked(headers: &HeaderMap) -> Result<Option<Asked>, Refusal> {
    if headers.is_empty() {
        return Ok(None);
    }
    let (mut users, mut uids, mut asked) = (Vec::new(), Vec::new(), Asked::default());
    for name in headers.keys() {
        let values = headers.get_all(name).iter().map(admit_text).collect::<Result<Vec<_>, _>>()?;
        match name.as_str() {
            "impersonate-user" => users = values,
            "impersonate-uid" => uids = values,
            "impersonate-group" => asked.groups = values,
            other => {
                let key = other
                    .strip_prefix(EXTRA)
                    .filter(|key| !key.is_empty())
                    .ok_or_else(|| refuse("an Impersonate-* header is not known"))?;
                // In lower case as far as a header's name is: Kubernetes lowers before it decodes.
                let key = String::from_utf8(percent_decode(key.as_bytes()).into_owned())
                    .ok()
                    .map(|key| key.to_ascii_lowercase());
                let key = key
                    .filter(|key| !key.is_empty() && key.len() <= NAME_BYTES && !key.chars().any(char::is_control))
                    .ok_or_else(|| refuse("an Impersonate-Extra-* header's key cannot be decoded"))?;
                if asked.extra.insert(key, values).is_some() {
                    return Err(refuse("two Impersonate-Extra-* headers have the same key"));
                }
            }
        }
    }
    if users.len() != 1 || uids.len() > 1 {
        return Err(refuse("impersonation names exactly one user and at most one uid"));
    }
    asked.user = users.remove(0);
    asked.uid = uids.pop();
    Ok(Some(asked))
}

fn admit_text(value: &HeaderValue) -> Result<String, Refusal> {
    let text = std::str::from_utf8(value.as_bytes()).ok().filter(|text| is_plain_name(text));
    text.map(str::to_owned).ok_or_else(|| refuse("an Impersonate-* header is empty, too long or not plain text"))
}

/// A name that reads the same everywhere: not empty, bounded, no control characters, and no white space at its ends
/// (HTTP trims it: ` system:masters` would become `system:masters`).
pub(super) fn is_plain_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES && text.trim() == text && !text.chars().any(char::is_control)
}

/// One well-formed `Content-Length` or none; hyper writes it again from the parsed number.
fn admit_length(values: &[HeaderValue]) -> Result<Option<u64>, Refusal> {
    let value = match values {
        [] => return Ok(None),
        [value] => value,
        _ => return Err(refuse("more than one Content-Length")),
    };
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refuse("Content-Length is not a number"));
    }
    let length = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| refuse("Content-Length is not a number"))
}

#[cfg(test)]
mod tests;
