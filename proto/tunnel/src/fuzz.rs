//! What the fuzz targets (`proto/tunnel/fuzz`) run, here so that plain tests run the same over the kept corpus and over
//! mutated golden messages. Each panics where a property does not hold.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use types::{
    ids::{ClusterId, ClusterKey, RequestId},
    limits,
};

use crate::{
    exchange, transport,
    wire::{
        control::Control,
        head::{RequestHead, ResponseHead},
        hello::{Answer, Challenge, Hello},
        hop::Hop,
        message::{self, LENGTH_BYTES},
        varint,
    },
};

/// One property over any bytes.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 5] =
    [("decode", decode), ("messages", messages), ("ids", ids), ("headers", headers), ("websocket", websocket)];

/// One message without its length prefix, by every decoder: what can be read says the same when written and read again.
pub fn decode(data: &[u8]) {
    if data.len() > limits::HEAD_BYTES {
        return;
    }
    let message = Bytes::copy_from_slice(data);
    let again = |bytes: bytes::BytesMut| bytes.freeze().slice(LENGTH_BYTES..);
    if let Ok(head) = RequestHead::decode(message.clone()) {
        let bytes = head.encode().expect("what was read can be written");
        assert_eq!(RequestHead::decode(again(bytes)).as_ref(), Ok(&head));
    }
    if let Ok(head) = ResponseHead::decode(message.clone()) {
        let bytes = head.encode().expect("what was read can be written");
        assert_eq!(ResponseHead::decode(again(bytes)).as_ref(), Ok(&head));
    }
    if let Ok(hop) = Hop::decode(message.clone()) {
        let bytes = hop.encode().expect("what was read can be written");
        assert_eq!(Hop::decode(again(bytes)).as_ref(), Ok(&hop));
        // What a replica opens on an agent's tunnel is one message, and a request's.
        let request = hop.into_request();
        assert_eq!(message::length(&request, limits::REQUEST_HEAD_BYTES), Ok(Some(request.len() - LENGTH_BYTES)));
        assert!(Hop::decode(request.slice(LENGTH_BYTES..)).is_err());
    }
    if let Ok(challenge) = Challenge::decode(message.clone()) {
        assert_eq!(Challenge::decode(again(challenge.encode())), Ok(challenge));
    }
    if let Ok(hello) = Hello::decode(message.clone()) {
        assert_eq!(Hello::decode(again(hello.encode())), Ok(hello));
    }
    match Answer::decode(message.clone()) {
        Ok(Answer::Welcome(welcome)) => {
            assert_eq!(Answer::decode(again(welcome.encode())), Ok(Answer::Welcome(welcome)));
        }
        Ok(Answer::Refuse(refuse)) => {
            assert_eq!(Answer::decode(again(refuse.encode())), Ok(Answer::Refuse(refuse)));
        }
        Err(_) => {}
    }
    if let Ok(control) = Control::decode(message) {
        assert_eq!(Control::decode(again(control.encode())), Ok(control));
    }
}

/// A control stream's bytes: a length that was accepted is within its limit, and the walk ends.
pub fn messages(data: &[u8]) {
    let mut rest = Bytes::copy_from_slice(data);
    while let Ok(Some(length)) = message::length(&rest, limits::CONTROL_BYTES) {
        assert!(length <= limits::CONTROL_BYTES);
        if rest.len() - LENGTH_BYTES < length {
            break;
        }
        let message = rest.split_to(LENGTH_BYTES + length).slice(LENGTH_BYTES..);
        let _ = Control::decode(message);
    }
    if let Ok(Some((value, taken))) = varint::take(data) {
        let mut bytes = Vec::new();
        varint::put(&mut bytes, value);
        assert_eq!(bytes, data[..taken], "one spelling");
    }
}

/// Ids: what is accepted prints what reads back as the same.
pub fn ids(data: &[u8]) {
    if let Some(key) = ClusterKey::from_hex(data) {
        assert_eq!(key.hex().as_bytes(), data, "one spelling");
    }
    if let Some(key) = ClusterKey::from_base32(data) {
        assert_eq!(key.base32().as_bytes(), data.to_ascii_lowercase(), "one spelling");
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<ClusterId>() {
        assert_eq!(id.as_str().parse().as_ref(), Ok(&id));
        assert!(!id.as_str().contains("..") || !id.as_str().split('/').any(|segment| segment == ".."));
    }
    if let Some(id) = RequestId::from_hex(text) {
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
    }
}

/// Header lines, `name:value`: after hop-by-hop headers are taken out, none named by `connection` is left.
pub fn headers(data: &[u8]) {
    let mut map = HeaderMap::new();
    for line in data.split(|b| *b == b'\n').take(limits::HEADER_COUNT) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&line[colon + 1..])) {
            map.append(name, value);
        }
    }
    let named: Vec<HeaderName> = map
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    for keep in [false, true] {
        let mut stripped = map.clone();
        let upgrade = exchange::upgrade_of(&stripped).filter(|_| keep);
        exchange::strip_hop_by_hop(&mut stripped, keep);
        assert_eq!(stripped.get(header::UPGRADE).map(HeaderValue::as_bytes), upgrade.as_deref());
        assert_eq!(stripped.contains_key(header::CONNECTION), upgrade.is_some());
        stripped.remove(header::UPGRADE);
        stripped.remove(header::CONNECTION);
        assert!(named.iter().all(|name| !stripped.contains_key(name)));
        assert!(!stripped.contains_key(header::TRANSFER_ENCODING));
    }
}

/// Frames of a WebSocket: what is read of them, and up to where, does not depend on the parts that they come in. The
/// first byte says whose they are, and how long the parts.
pub fn websocket(data: &[u8]) {
    let Some((first, frames)) = data.split_first() else { return };
    let (masked, cut) = (first & 1 != 0, first >> 1);
    let (whole, why) = transport::websocket::decode_in_parts(masked, frames, &[]);
    let (parts, why_parts) = transport::websocket::decode_in_parts(masked, frames, &[cut, 1, 7]);
    assert_eq!(why, why_parts);
    // What stands before what is wrong in the same part is lost with it.
    assert!(if why.is_none() { whole == parts } else { whole.is_empty() && whole.len() <= parts.len() });
    assert!(parts.len() <= frames.len());
}
