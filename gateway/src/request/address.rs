//! Host and path to a cluster, and what Kubernetes makes of the rest. Parses, looks nothing up.
//!
//! What is routed, authorised, recorded and forwarded comes from the same bytes: [`ClusterAddress::target`] is the rest
//! of the target exactly as received, and [`RequestInfo`] is read from it as the apiserver reads it (from the
//! percent-decoded path, without cleaning). A target that some other reader could route elsewhere (`/./`, `%2e%2e`,
//! backslash, an encoded key) is refused as a whole (docs/threats.md).

use std::borrow::Cow;

use auth::kubernetes::RequestInfo;
use bytes::Bytes;
use certs::is_below;
use http::{HeaderMap, Method, Uri, Version, header};
use types::{agent_api::ENROLMENT_PREFIX, ids::ClusterKey};

use crate::{issuer::Issuer, named::Names};

/// What the TLS server name of a connection says. It holds for every request on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerName {
    /// Nothing of clusters: no name, or the gateway's.
    Gateway,
    /// A cluster's host name: other clusters are misdirected.
    Host(ClusterKey),
    /// A cluster's name below the suffix: the connection is that cluster's alone.
    Cluster(ClusterKey),
    /// Another name below the suffix: every request is misdirected.
    Nobody,
}

impl ServerName {
    /// Of the name that a client asked for. `suffix`: that of clusters' names, where the certificate for them was
    /// shown.
    pub fn of(name: Option<&str>, domain: Option<&str>, suffix: Option<&str>) -> Self {
        let Some(name) = name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()) else {
            return Self::Gateway;
        };
        if let Some(suffix) = suffix.filter(|suffix| is_below(&name, suffix)) {
            return host_key(&name, suffix).map_or(Self::Nobody, Self::Cluster);
        }
        domain.and_then(|domain| host_key(&name, domain)).map_or(Self::Gateway, Self::Host)
    }

    /// Whether the connection is for no more than one cluster, so that nothing of the gateway's own is reached on it.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::Cluster(_) | Self::Nobody)
    }
}

/// The path of the WebSocket carrier on the users' port.
pub const TUNNEL_PATH: &str = "/.towline/tunnel";

/// Where anybody learns how clusters are addressed at this gateway.
pub const ADDRESSES_PATH: &str = "/.towline/addresses";

/// First segments of the resource API's paths.
const API: [&str; 6] = ["subscriptions", "providers", "metadata", "tenants", "openapi.json", "v1.0"];

/// Whether a target, as it came, begins as the resource API's do: whoever sent it reads that API's errors, also of what
/// is refused before anything is made of it.
pub fn begins_as_api(target: &str) -> bool {
    let first = target.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
    API.iter().any(|known| known.eq_ignore_ascii_case(first))
}

/// Where a request wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A cluster, by its key.
    Cluster(Box<ClusterAddress>),
    /// An agent that wants a WebSocket tunnel.
    Tunnel,
    /// How clusters are addressed.
    Addresses,
    /// The built-in issuer.
    Issuer,
    /// What agents ask before they have a certificate.
    Agents,
    /// The resource API: the path, decoded once.
    Api(String),
    /// Nothing of ours.
    Nowhere,
}

/// The way into a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAddress {
    /// The cluster that the host name or the first path segment names, known or not.
    pub key: ClusterKey,
    /// Path and query behind the key, byte for byte, beginning with `/`.
    pub target: Bytes,
    /// What is asked for there.
    pub endpoint: Endpoint,
    /// How the user's own path relates to `target`.
    pub form: Form,
}

/// A whole target that is longer than the HTTP library takes, which sees its path alone.
#[derive(Debug, Clone)]
pub struct LongTarget(pub Bytes);

/// How the path that the user sent relates to [`ClusterAddress::target`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// They are the same: the cluster has a name of its own.
    Own,
    /// The user's path has the key in front.
    Path,
    /// The user's path is the key, without a slash behind it; the target is `/`.
    BarePath,
}

/// What is asked for below a cluster's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A request for the apiserver.
    Kubernetes(RequestInfo),
    /// What gateway and agent make of a token.
    WhoAmI,
    /// A newer token for open sessions.
    Refresh,
    /// Another path below `/.towline`, which Kubernetes does not have.
    Unknown,
}

/// Why a target or host is refused with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No host, or more than one.
    #[error("a request needs exactly one Host header")]
    HostCount,
    /// A host with characters that no host has.
    #[error("the Host header is not a host name or address with an optional port")]
    HostSyntax,
    /// Target (or `:authority`) and `Host` differ.
    #[error("the Host header names another host than the request target")]
    HostMismatch,
    /// The target does not begin with `/`.
    #[error("the request target must be a path")]
    Target,
    /// Longer than [`types::limits::TARGET_BYTES`], or where only clusters take more than
    /// [`types::limits::PLAIN_TARGET_BYTES`].
    #[error(
        "the request target is longer than {} bytes, or its path, or anything over HTTP/2, than {}",
        types::limits::TARGET_BYTES,
        types::limits::PLAIN_TARGET_BYTES
    )]
    TooLong,
    /// As an apiserver takes no more, and each is looked at before anybody knows who asks.
    #[error("the query has more than {} parameters", auth::kubernetes::PARAMETERS_MAX)]
    Parameters,
    /// `.` or `..`, plain or encoded.
    #[error("the path has a segment . or .., possibly percent-encoded; clean the path before sending it")]
    DotSegment,
    /// Backslash, NUL or another control character, plain or encoded.
    #[error("the path has a backslash or control character, possibly percent-encoded")]
    Character,
    /// `%` without two hex digits, or an overlong encoding of a character.
    #[error("the path has a broken percent-encoding")]
    Encoding,
    /// A slash inside a segment of a resource's id, which would be read as one between two.
    #[error("the path has a percent-encoded slash; names in ids of resources have none")]
    Slash,
    /// The first segment is a cluster's key in another spelling.
    #[error("the cluster's key in the path must be 64 lower-case hex digits, not encoded, behind one slash")]
    KeySpelling,
    /// The host is not the connection's: 421 (RFC 9110 §15.5.20).
    #[error(
        "this connection is for the cluster of its TLS server name alone, or for none, and the request names another host or cluster; open another connection"
    )]
    Misdirected,
}

/// Reads where a request wants to go that came on a connection with this server name.
pub fn parse(
    version: Version,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    names: &Names,
    server_name: ServerName,
    long: Option<&LongTarget>,
) -> Result<Address, AddressError> {
    let host = host(version, uri, headers)?;
    let by_host = names.domain.as_deref().and_then(|domain| host_key(&host, domain));
    let bound = bound_to(&host, by_host, names, server_name)?;
    let target = match long {
        Some(LongTarget(long)) => std::str::from_utf8(long).map_err(|_| AddressError::Target)?,
        None => uri.path_and_query().map_or("/", |pq| pq.as_str()),
    };
    if target.len() > types::limits::TARGET_BYTES {
        return Err(AddressError::TooLong);
    }
    let target = if target.starts_with('?') { Cow::Owned(format!("/{target}")) } else { Cow::Borrowed(target) };
    if !target.starts_with('/') {
        return Err(AddressError::Target);
    }
    let (path, query) = target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
    if query.is_some_and(auth::kubernetes::has_too_many_parameters) {
        return Err(AddressError::Parameters);
    }
    let decoded = decode(path)?;

    // From here on, byte for byte; a long one is not copied.
    let target_from = |from: usize| match long {
        Some(LongTarget(long)) => long.slice(from..),
        None => Bytes::copy_from_slice(&target.as_bytes()[from..]),
    };
    if let Some(key) = bound.or(by_host) {
        let target = target_from(0);
        return Ok(Address::Cluster(Box::new(ClusterAddress {
            key,
            endpoint: endpoint(method, &decoded, query),
            target,
            form: Form::Own,
        })));
    }
    let first = path[1..].split('/').next().unwrap_or_default();
    if let Some(key) = ClusterKey::from_hex(first.as_bytes()) {
        if matches!(server_name, ServerName::Host(named) if named != key) {
            return Err(AddressError::Misdirected);
        }
        let rest = &target[1 + first.len()..];
        let (target, form) = if rest.starts_with('/') {
            (target_from(1 + first.len()), Form::Path)
        } else {
            (Bytes::from(format!("/{rest}")), Form::BarePath)
        };
        // The key has no `%`, so the decoded path has it in the same place.
        let inner = &decoded[1 + first.len()..];
        return Ok(Address::Cluster(Box::new(ClusterAddress {
            key,
            endpoint: endpoint(method, inner, query),
            target,
            form,
        })));
    }
    if long.is_some() {
        return Err(AddressError::TooLong);
    }
    let normal = decoded.trim_start_matches('/').split('/').next().unwrap_or_default().to_ascii_lowercase();
    if ClusterKey::from_hex(normal.as_bytes()).is_some() {
        return Err(AddressError::KeySpelling);
    }
    Ok(if path == TUNNEL_PATH {
        Address::Tunnel
    } else if path == ADDRESSES_PATH {
        Address::Addresses
    } else if path.strip_prefix(ENROLMENT_PREFIX).is_some_and(|rest| rest.starts_with('/')) {
        Address::Agents
    } else if Issuer::serves(path) {
        Address::Issuer
    } else if API.contains(&normal.as_str()) {
        // An id with what is no text in it would be one with many others.
        if decoded.contains(char::REPLACEMENT_CHARACTER) {
            return Err(AddressError::Encoding);
        }
        if path.to_ascii_lowercase().contains("%2f") {
            return Err(AddressError::Slash);
        }
        Address::Api(decoded.into_owned())
    } else {
        Address::Nowhere
    })
}

/// The cluster that the connection is bound to, if it is. A connection for several names, of which a client could take
/// one for another's (RFC 9113 §9.1.1), has the host of another cluster: that is refused, and so is a cluster's server
/// name as a mere host, for it would be no more than a claim.
fn bound_to(
    host: &str,
    by_host: Option<ClusterKey>,
    names: &Names,
    server_name: ServerName,
) -> Result<Option<ClusterKey>, AddressError> {
    let suffix = names.suffix.as_deref().filter(|suffix| host == *suffix || is_below(host, suffix));
    let claimed = match (suffix, by_host) {
        (Some(suffix), _) => Some(host_key(host, suffix)),
        (None, Some(key)) => Some(Some(key)),
        (None, None) => None,
    };
    match server_name {
        ServerName::Cluster(key) if claimed.is_none_or(|claimed| claimed == Some(key)) => Ok(Some(key)),
        ServerName::Host(key) if suffix.is_none() && by_host.is_none_or(|claimed| claimed == key) => Ok(None),
        ServerName::Gateway if suffix.is_none() => Ok(None),
        _ => Err(AddressError::Misdirected),
    }
}

/// The host, in lower case, without port and final dot.
fn host(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<String, AddressError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let from_header = match (hosts.next(), hosts.next()) {
        (one, None) => one.map(|value| value.to_str().map_err(|_| AddressError::HostSyntax)).transpose()?,
        _ => return Err(AddressError::HostCount),
    };
    let from_target = uri.authority().map(|authority| authority.as_str());
    let host = match (from_target, from_header) {
        (Some(target), Some(header)) if !target.eq_ignore_ascii_case(header) => {
            return Err(AddressError::HostMismatch);
        }
        (Some(host), _) if version >= Version::HTTP_2 => host,
        (_, Some(host)) => host,
        // HTTP/1.0 may leave it out; HTTP/1.1 may not, not even beside an absolute target.
        (_, None) if version < Version::HTTP_11 => "",
        (_, None) => return Err(AddressError::HostCount),
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let valid = match literal {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.bytes().all(fine) && (!name.is_empty() || host.is_empty()),
    };
    if !valid || (host.is_empty() && from_header.is_some()) {
        return Err(AddressError::HostSyntax);
    }
    Ok(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}

/// The key in `<base32>.<domain>`.
pub fn host_key(host: &str, domain: &str) -> Option<ClusterKey> {
    let label = host.strip_suffix(domain)?.strip_suffix('.')?;
    ClusterKey::from_base32(label.as_bytes())
}

/// Decodes a path once, as the apiserver does, and refuses what readers disagree about. What is not UTF-8 after
/// decoding becomes the replacement character here; the forwarded bytes stay as they are.
fn decode(path: &str) -> Result<Cow<'_, str>, AddressError> {
    let decoded = if path.contains('%') { Cow::Owned(unescape(path)?) } else { Cow::Borrowed(path.as_bytes()) };
    if decoded.iter().any(|b| *b < b' ' || *b == 0x7f || *b == b'\\') {
        return Err(AddressError::Character);
    }
    // A parameter behind a dot segment (`..;x`) is cut off by some readers before they clean the path.
    let dots = |segment: &[u8]| matches!(segment.split(|b| *b == b';').next(), Some(b"." | b".."));
    if decoded.split(|b| *b == b'/').any(dots) {
        return Err(AddressError::DotSegment);
    }
    Ok(match decoded {
        Cow::Borrowed(_) => Cow::Borrowed(path),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    })
}

/// Decodes `%XX` in a path. A bad escape or an overlong UTF-8 sequence is an error.
fn unescape(path: &str) -> Result<Vec<u8>, AddressError> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16)).ok_or(AddressError::Encoding);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        out.push((high << 4 | low) as u8);
    }
    let overlong = |pair: &[u8]| matches!(pair, [0xc0 | 0xc1, _] | [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]);
    if out.windows(2).any(overlong) { Err(AddressError::Encoding) } else { Ok(out) }
}

fn endpoint(method: &Method, path: &str, query: Option<&str>) -> Endpoint {
    match path.trim_start_matches('/') {
        ".towline/whoami" => Endpoint::WhoAmI,
        ".towline/refresh" => Endpoint::Refresh,
        other if other == ".towline" || other.starts_with(".towline/") => Endpoint::Unknown,
        _ => Endpoint::Kubernetes(RequestInfo::parse(method, path, query)),
    }
}

#[cfg(test)]
mod tests;
