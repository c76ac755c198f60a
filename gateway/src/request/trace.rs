//! W3C Trace Context: the trace that a request belongs to. A valid `traceparent` of the user's is continued, anything
//! else begins a new trace; either way the agent is told, and the audit record names it.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use types::ids::{lower_hex, push_hex};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Length of version 00, in bytes: `00-<32 hex>-<16 hex>-<2 hex>`.
const BYTES: usize = 55;
/// The flags that this version knows: sampled, and random.
const FLAGS: u8 = 0b11;

/// Where in which trace a request is at the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    id: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

impl Trace {
    /// Takes the user's context out of `headers`. Where it is not valid, a trace begins whose id is `fresh_id`, and the
    /// vendors' part of the context (`tracestate`) goes too. `span` is the gateway's own step, not all 0.
    pub fn take(headers: &mut HeaderMap, fresh_id: [u8; 16], span: [u8; 8]) -> Self {
        let mut shown = headers.get_all(TRACEPARENT).iter();
        let continued = match (shown.next(), shown.next()) {
            (Some(one), None) => parse(one.as_bytes()),
            _ => None,
        };
        headers.remove(TRACEPARENT);
        match continued {
            Some((id, flags)) => Self { id, span, flags },
            None => {
                headers.remove(TRACESTATE);
                Self { id: fresh_id, span, flags: 0 }
            }
        }
    }

    /// The trace's id.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The value of `traceparent` for the next hop.
    pub fn parent(&self) -> Bytes {
        let mut text = String::with_capacity(BYTES);
        text.push_str("00");
        for part in [&self.id[..], &self.span, &[self.flags]] {
            text.push('-');
            push_hex(&mut text, part);
        }
        Bytes::from(text)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.parent()))
    }
}

/// Trace id and flags. A later version may have more behind its flags; `ff` is none.
fn parse(text: &[u8]) -> Option<([u8; 16], u8)> {
    let version = *lower_hex::<1>(text.get(..2)?)?.first()?;
    let known = match version {
        0 => text.len() == BYTES,
        255 => false,
        _ => text.len() == BYTES || text.get(BYTES) == Some(&b'-'),
    };
    let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
    if !known || !dashes {
        return None;
    }
    let (id, span, flags) =
        (lower_hex::<16>(&text[3..35])?, lower_hex::<8>(&text[36..52])?, lower_hex::<1>(&text[53..BYTES])?[0]);
    (id != [0; 16] && span != [0; 8]).then_some((id, flags & FLAGS))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const FRESH: [u8; 16] = [0xab; 16];
    const SPAN: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 7];

    fn take(values: &[&str]) -> (String, HeaderMap) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("traceparent", HeaderValue::from_str(value).unwrap());
        }
        headers.insert("tracestate", HeaderValue::from_static("vendor=1"));
        (Trace::take(&mut headers, FRESH, SPAN).to_string(), headers)
    }

    #[test]
    fn a_valid_context_is_continued() {
        for (shown, expected) in [
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01",
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fc",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-00",
            ),
            (
                "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01",
            ),
        ] {
            let (parent, headers) = take(&[shown]);
            assert_eq!(parent, expected);
            assert!(!headers.contains_key("traceparent") && headers["tracestate"] == "vendor=1");
        }
    }

    #[test]
    fn anything_else_begins_a_trace() {
        let fine = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for bad in [
            [].as_slice(),
            &[fine, fine],
            &[""],
            &["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
            &["00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-"],
            &["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
            &["cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"],
            &["0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"],
        ] {
            let (parent, headers) = take(bad);
            assert_eq!(parent, format!("00-{}-0000000000000007-00", "ab".repeat(16)), "{bad:?}");
            assert!(headers.is_empty(), "{bad:?}");
        }
    }
}
