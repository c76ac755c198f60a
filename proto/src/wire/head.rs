//! The head of an exchange: request line or status, headers, and what travels beside them.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::{
    error::WireError,
    message::{LENGTH_BYTES, Reader, Writer},
};
use crate::{ids::RequestId, limits};

/// Kind number of a [`RequestHead`].
pub const REQUEST: u8 = 16;
/// Kind number of a [`ResponseHead`].
pub const RESPONSE: u8 = 17;

const EXT_DEADLINE_MS: u64 = 2;
const EXT_TRACEPARENT: u64 = 4;
const EXT_USER_ADDRESS: u64 = 6;
const EXT_REFUSED_BY: u64 = 8;

/// The first bytes of an exchange, from its opener.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHead {
    /// The role at the other end that serves it: `kube-aad-proxy` for users' requests, `agent-api` for agents' at the
    /// gateway, `echo` for probes. Text, so that a role is one file and one table line.
    pub role: String,
    /// Joins logs and audit records of both ends.
    pub request_id: RequestId,
    /// The method.
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
#[derive(Clone, Debug, PartialEq)]
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
    /// Encodes with the length prefix. Over [`limits::HEAD_BYTES`] is an error that names the limit.
    pub fn encode(&self) -> Result<BytesMut, WireError> {
        let mut writer = Writer::begin(BytesMut::with_capacity(256 + self.target.len()), REQUEST);
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
        bounded(writer.finish())
    }

    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, REQUEST)?;
        let role = reader.text("role")?;
        let request_id = reader.bytes("request id")?;
        let request_id = RequestId(request_id.as_ref().try_into().map_err(|_| WireError::Field("request id"))?);
        let method = Method::from_bytes(&reader.bytes("method")?).map_err(|_| WireError::Field("method"))?;
        let target = reader.bytes("target")?;
        if target.len() > limits::TARGET_BYTES
            || !target.starts_with(b"/")
            || target.iter().any(|b| *b <= b' ' || *b == 0x7f)
        {
            return Err(WireError::Field("target"));
        }
        let headers = read_headers(&mut reader)?;
        let (mut deadline_ms, mut traceparent, mut user_address) = (None, None, None);
        reader.extensions(|tag, value| {
            match tag {
                EXT_DEADLINE_MS => {
                    deadline_ms =
                        Some(u64::from_be_bytes(value.as_ref().try_into().map_err(|_| WireError::Field("deadline"))?));
                }
                EXT_TRACEPARENT => traceparent = Some(value),
                EXT_USER_ADDRESS => user_address = Some(value),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { role, request_id, method, target, headers, deadline_ms, traceparent, user_address })
    }
}

impl ResponseHead {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> Result<BytesMut, WireError> {
        let mut writer = Writer::begin(BytesMut::with_capacity(256), RESPONSE);
        writer.integer(u64::from(self.status.as_u16()));
        write_headers(&mut writer, &self.headers);
        if let Some(stage) = &self.refused_by {
            writer.extension(EXT_REFUSED_BY, stage);
        }
        bounded(writer.finish())
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
                refused_by = Some(value);
            }
            Ok(tag == EXT_REFUSED_BY)
        })?;
        Ok(Self { status, headers, refused_by })
    }
}

fn bounded(message: BytesMut) -> Result<BytesMut, WireError> {
    let got = message.len() - LENGTH_BYTES;
    if got > limits::HEAD_BYTES { Err(WireError::TooLong { got, limit: limits::HEAD_BYTES }) } else { Ok(message) }
}

fn write_headers(writer: &mut Writer, headers: &HeaderMap) {
    writer.integer(headers.len() as u64);
    for (name, value) in headers {
        writer.bytes(name.as_str().as_bytes()).bytes(value.as_bytes());
    }
}

fn read_headers(reader: &mut Reader) -> Result<HeaderMap, WireError> {
    let count = reader.integer("header count")?;
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= limits::HEADER_COUNT)
        .ok_or(WireError::Field("header count"))?;
    let mut headers = HeaderMap::with_capacity(count);
    for _ in 0..count {
        let name = reader.bytes("header name")?;
        // A name in upper case would be a second spelling of the same header.
        if name.iter().any(u8::is_ascii_uppercase) {
            return Err(WireError::Field("header name"));
        }
        let name = HeaderName::from_bytes(&name).map_err(|_| WireError::Field("header name"))?;
        let value = HeaderValue::from_maybe_shared(reader.bytes("header value")?)
            .map_err(|_| WireError::Field("header value"))?;
        headers.append(name, value);
    }
    Ok(headers)
}
