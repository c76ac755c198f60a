//! The head of an exchange: request line or status, headers, and what travels beside them.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use types::{ids::RequestId, limits};

use super::{
    error::WireError,
    message::{LENGTH_BYTES, Reader, Writer, check_word, extension_u64, word},
};

/// Kind number of a [`RequestHead`].
pub const REQUEST: u8 = 16;
/// Kind number of a [`ResponseHead`].
pub const RESPONSE: u8 = 17;

const EXT_DEADLINE_MS: u64 = 2;
const EXT_TRACEPARENT: u64 = 4;
const EXT_USER_ADDRESS: u64 = 6;
const EXT_REFUSED_BY: u64 = 8;

/// The first bytes of an exchange, from its opener.
#[derive(Clone, PartialEq)]
pub struct RequestHead {
    /// The role at the other end that serves it: `kube-aad-proxy` for users' requests, `agent-api` and `egress` for agents'
    /// at the gateway, `echo` for probes. Text, so that a role is one file and one table line.
    pub role: String,
    /// Joins logs and audit records of both ends.
    pub request_id: RequestId,
    /// HTTP method of the request.
    pub method: Method,
    /// Raw path and query exactly as received.
    pub target: Bytes,
    /// Headers without hop-by-hop ones; an upgrade keeps `connection` and `upgrade`.
    pub headers: HeaderMap,
    /// Time left for an answer to begin, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// W3C trace context.
    pub traceparent: Option<Bytes>,
    /// The user's address as the gateway saw it, for the agent's audit log only.
    pub user_address: Option<Bytes>,
}

/// The first bytes of an answer.
#[derive(Clone, PartialEq)]
pub struct ResponseHead {
    /// The status; of 1xx only 101 crosses.
    pub status: StatusCode,
    /// Headers without hop-by-hop ones; a 101 keeps `connection` and `upgrade`.
    pub headers: HeaderMap,
    /// Set by the agent on answers that it made itself: the stage of its pipeline that refused. The apiserver's own
    /// answers have none, so the gateway tells the two apart without trusting a header.
    pub refused_by: Option<Bytes>,
}

impl RequestHead {
    /// Encodes with the length prefix. What the peer would not take is an error here: over a bound of [`limits`], which
    /// the error names, or with a hop-by-hop header.
    pub fn encode(&self) -> Result<BytesMut, WireError> {
        check_target(&self.target)?;
        check_word(self.role.as_bytes(), "role")?;
        check_word(self.method.as_str().as_bytes(), "method")?;
        for (value, name) in [(&self.traceparent, "trace context"), (&self.user_address, "user address")] {
            value.as_ref().map_or(Ok(()), |value| check_word(value, name))?;
        }
        let words = [Some(self.role.as_bytes()), self.traceparent.as_deref(), self.user_address.as_deref()];
        let words: usize = words.into_iter().flatten().map(<[u8]>::len).sum();
        let size = header_bytes(&self.headers)? + self.target.len() + words + FIXED_BYTES;
        let mut writer = Writer::begin(BytesMut::with_capacity(size), REQUEST);
        writer
            .bytes(self.role.as_bytes())
            .bytes(&self.request_id.0)
            .bytes(self.method.as_str().as_bytes())
            .bytes(&self.target);
        write_headers(&mut writer, &self.headers);
        if let Some(ms) = self.deadline_ms {
            writer.extension(EXT_DEADLINE_MS, &ms.to_be_bytes());
        }
        if let Some(value) = &self.traceparent {
            writer.extension(EXT_TRACEPARENT, value);
        }
        if let Some(value) = &self.user_address {
            writer.extension(EXT_USER_ADDRESS, value);
        }
        let long = self.target.len() > limits::PLAIN_TARGET_BYTES;
        bounded(writer.finish(), if long { limits::REQUEST_HEAD_BYTES } else { limits::HEAD_BYTES })
    }

    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, REQUEST)?;
        let role = word(reader.bytes("role")?, "role")?;
        let role = String::from_utf8(role.to_vec()).map_err(|_| WireError::Field("role"))?;
        let request_id = reader.bytes("request id")?;
        let request_id = RequestId(request_id.as_ref().try_into().map_err(|_| WireError::Field("request id"))?);
        let method = word(reader.bytes("method")?, "method")?;
        let method = Method::from_bytes(&method).map_err(|_| WireError::Field("method"))?;
        let target = reader.bytes("target")?;
        check_target(&target)?;
        if target.len() > limits::PLAIN_TARGET_BYTES {
            // Headers may be kept for longer than a long target, whose memory must not be kept with them.
            reader.detach();
        }
        let headers = read_headers(&mut reader)?;
        let (mut deadline_ms, mut traceparent, mut user_address) = (None, None, None);
        reader.extensions(|tag, value| {
            match tag {
                EXT_DEADLINE_MS => deadline_ms = Some(extension_u64(&value, "deadline")?),
                EXT_TRACEPARENT => traceparent = Some(word(value, "trace context")?),
                EXT_USER_ADDRESS => user_address = Some(word(value, "user address")?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { role, request_id, method, target, headers, deadline_ms, traceparent, user_address })
    }
}

impl ResponseHead {
    /// Encodes with the length prefix; errors as those of [`RequestHead::encode`].
    pub fn encode(&self) -> Result<BytesMut, WireError> {
        self.refused_by.as_ref().map_or(Ok(()), |stage| check_word(stage, "refused by"))?;
        let size = header_bytes(&self.headers)? + FIXED_BYTES + BODY_BYTES;
        let mut writer = Writer::begin(BytesMut::with_capacity(size), RESPONSE);
        writer.integer(u64::from(self.status.as_u16()));
        write_headers(&mut writer, &self.headers);
        if let Some(stage) = &self.refused_by {
            writer.extension(EXT_REFUSED_BY, stage);
        }
        bounded(writer.finish(), limits::HEAD_BYTES)
    }

    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, RESPONSE)?;
        let status = u16::try_from(reader.integer("status")?).map_err(|_| WireError::Field("status"))?;
        let status = StatusCode::from_u16(status).map_err(|_| WireError::Field("status"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(WireError::Field("status"));
        }
        let headers = read_headers(&mut reader)?;
        let mut refused_by = None;
        reader.extensions(|tag, value| {
            if tag == EXT_REFUSED_BY {
                refused_by = Some(word(value, "refused by")?);
            }
            Ok(tag == EXT_REFUSED_BY)
        })?;
        Ok(Self { status, headers, refused_by })
    }
}

/// Neither the query, which may hold a credential, nor any header's value is for a log.
impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split(|b| *b == b'?').next().unwrap_or_default();
        f.debug_struct("RequestHead")
            .field("role", &self.role)
            .field("request_id", &self.request_id)
            .field("method", &self.method)
            .field("path", &String::from_utf8_lossy(path))
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("deadline_ms", &self.deadline_ms)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("refused_by", &self.refused_by)
            .finish()
    }
}

/// Room for what a head holds beside its texts: length, version, kind, id, method, counts, the extensions' tags and
/// lengths.
const FIXED_BYTES: usize = 96;

/// Room behind an answer's head: a small body leaves with it ([`crate::exchange::respond_encoded`]).
const BODY_BYTES: usize = 384;

/// The two length varints of a header: names are shorter than 64 KiB, values than 2 MiB.
const HEADER_OVERHEAD_BYTES: usize = 6;

/// Hop-by-hop headers have no place on the wire ([`crate::exchange::strip_hop_by_hop`]): the next hop would take them
/// for its own framing. `connection` and `upgrade` are there for upgrades.
static NOT_CARRIED: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// Values that must not be shown or kept in a compression table.
static SENSITIVE: [HeaderName; 4] =
    [header::AUTHORIZATION, header::COOKIE, header::SET_COOKIE, header::SEC_WEBSOCKET_PROTOCOL];

fn bounded(message: BytesMut, limit: usize) -> Result<BytesMut, WireError> {
    let got = message.len() - LENGTH_BYTES;
    if got > limit { Err(WireError::TooLong { got, limit }) } else { Ok(message) }
}

/// Origin form, as it goes into a request line. A `#` would be taken for the beginning of a fragment by some and for a
/// part of the path by others.
fn check_target(target: &[u8]) -> Result<(), WireError> {
    if target.len() > limits::TARGET_BYTES {
        let (got, limit) = (target.len(), limits::TARGET_BYTES);
        return Err(WireError::OverLimit { what: "bytes of the request target", got, limit });
    }
    let plain = target.first() == Some(&b'/') && !target.iter().any(|b| matches!(b, 0..=b' ' | 0x7f | b'#'));
    if plain { Ok(()) } else { Err(WireError::Field("target")) }
}

fn check_count(got: usize) -> Result<(), WireError> {
    let limit = limits::HEADER_COUNT;
    if got > limit { Err(WireError::OverLimit { what: "number of headers", got, limit }) } else { Ok(()) }
}

/// Bytes that `headers` take at most, known before they are allocated.
fn header_bytes(headers: &HeaderMap) -> Result<usize, WireError> {
    check_count(headers.len())?;
    if headers.keys().any(|name| NOT_CARRIED.contains(name)) {
        return Err(WireError::Field("hop-by-hop header"));
    }
    let size = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum();
    let limit = limits::HEAD_BYTES + limits::HEADER_COUNT * HEADER_OVERHEAD_BYTES;
    if size > limit { Err(WireError::TooLong { got: size, limit: limits::HEAD_BYTES }) } else { Ok(size) }
}

fn write_headers(writer: &mut Writer, headers: &HeaderMap) {
    writer.integer(headers.len() as u64);
    for (name, value) in headers {
        writer.bytes(name.as_str().as_bytes()).bytes(value.as_bytes());
    }
}

fn read_headers(reader: &mut Reader) -> Result<HeaderMap, WireError> {
    let count = usize::try_from(reader.integer("header count")?).unwrap_or(usize::MAX);
    check_count(count)?;
    // Two lengths each: fewer bytes than that, and the count is a lie for which nothing is allocated.
    if count > reader.left() / 2 {
        return Err(WireError::Truncated("headers"));
    }
    let mut headers = HeaderMap::with_capacity(count);
    for _ in 0..count {
        let name = reader.bytes("header name")?;
        // A name in upper case would be a second spelling of the same header.
        if name.iter().any(u8::is_ascii_uppercase) {
            return Err(WireError::Field("header name"));
        }
        let name = HeaderName::from_bytes(&name).map_err(|_| WireError::Field("header name"))?;
        if NOT_CARRIED.contains(&name) {
            return Err(WireError::Field("hop-by-hop header"));
        }
        let mut value = HeaderValue::from_maybe_shared(reader.bytes("header value")?)
            .map_err(|_| WireError::Field("header value"))?;
        value.set_sensitive(SENSITIVE.contains(&name));
        headers.append(name, value);
    }
    Ok(headers)
}
