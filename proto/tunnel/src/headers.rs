//! Hop-by-hop headers (RFC 9110 section 7.6.1), which belong to one connection and must not reach the next hop. Gateway
//! and agent both remove them, before anything of their own is added: `Connection` could otherwise name a header of
//! theirs and have it removed.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
};

/// The hop-by-hop headers whether `Connection` names them or not (RFC 9110 section 7.6.1 and what is seen in the wild).
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The upgrade that a request or a 101 names: the one `upgrade` header, where `connection` says `upgrade`. Cleartext
/// HTTP/2 is none that we carry, nor is a choice of several.
pub fn upgrade_of(headers: &HeaderMap) -> Option<Bytes> {
    if !connection_options(headers).any(|option| option.eq_ignore_ascii_case(b"upgrade")) {
        return None;
    }
    let mut values = headers.get_all(UPGRADE).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let protocol = value.as_bytes();
    let plain = !protocol.is_empty() && !protocol.iter().any(|b| matches!(b, b',' | b' ' | b'\t'));
    (plain && !protocol.eq_ignore_ascii_case(b"h2c")).then(|| Bytes::copy_from_slice(protocol))
}

/// Removes hop-by-hop headers (RFC 9110 section 7.6.1): those that any `connection` header names, then the fixed list.
/// With `keep_upgrade`, what [`upgrade_of`] finds is put back as `connection: Upgrade` and `upgrade`. Done on the
/// client's own headers before anything of ours is added (docs/threats.md TH2: `Connection: Impersonate-User`).
pub fn strip_hop_by_hop(headers: &mut HeaderMap, keep_upgrade: bool) {
    let upgrade = if keep_upgrade { upgrade_of(headers) } else { None };
    let named: Vec<HeaderName> =
        connection_options(headers).filter_map(|option| HeaderName::from_bytes(option).ok()).collect();
    // One by one: a head may name tens of thousands here, and comparing each with each header would take its time.
    for name in named {
        headers.remove(name);
    }
    remove_where(headers, is_hop_by_hop);
    if let Some(value) = upgrade.and_then(|upgrade| HeaderValue::from_maybe_shared(upgrade).ok()) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, value);
    }
}

/// Whether a header of this name, in lower case, is one of the fixed list.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.contains(&name)
}

/// Removes the headers whose names, in lower case, are as `unwanted` says, which is asked once for each. A head has few
/// and our lists of what must not go on are long: each name that is there is looked up, rather than each that might be.
pub fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let found: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name.as_str())).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// The body length that the one `content-length` header announces, in bytes.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let digits = value.as_bytes();
    // `parse` alone would take a plus sign.
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn attack_th2_named_headers_are_removed_over_several_connection_headers() {
        let mut headers = map(&[
            ("connection", "close,Impersonate-User"),
            ("connection", " X-Remote-User ,, impersonate-group"),
            ("impersonate-user", "admin"),
            ("impersonate-group", "system:masters"),
            ("impersonate-group", "b"),
            ("x-remote-user", "admin"),
            ("accept", "a"),
        ]);
        strip_hop_by_hop(&mut headers, true);
        assert_eq!(headers, map(&[("accept", "a")]));
    }

    /// As many as fit into a head, all of them looked up by name: compared with each header they took a worker's time.
    #[test]
    fn as_many_named_headers_as_fit_are_removed() {
        let mut headers = HeaderMap::new();
        let name = |at: usize| HeaderName::from_bytes(format!("x{at}").as_bytes()).unwrap();
        for at in 0..types::limits::HEADER_COUNT - 1 {
            headers.insert(name(at), HeaderValue::from_static(""));
        }
        let kept = name(7);
        let named = (0..20_000).filter(|at| *at != 7).map(|at| format!("x{at}")).collect::<Vec<_>>().join(",");
        headers.insert(CONNECTION, HeaderValue::from_str(&named).unwrap());
        strip_hop_by_hop(&mut headers, false);
        assert_eq!(headers.keys().collect::<Vec<_>>(), [&kept]);
    }

    #[test]
    fn the_fixed_list_goes_also_when_not_named() {
        let mut headers = map(&[
            ("keep-alive", "1"),
            ("proxy-connection", "1"),
            ("proxy-authenticate", "1"),
            ("proxy-authorization", "1"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "SPDY/3.1"),
            ("content-length", "1"),
        ]);
        strip_hop_by_hop(&mut headers, true);
        assert_eq!(headers, map(&[("content-length", "1")]));
    }

    #[test]
    fn an_upgrade_is_put_back_exactly_and_only_when_kept() {
        let asked = map(&[("connection", "keep-alive, UPGRADE"), ("upgrade", "SPDY/3.1"), ("x", "y")]);
        assert_eq!(upgrade_of(&asked).as_deref(), Some(b"SPDY/3.1".as_slice()));
        let mut kept = asked.clone();
        strip_hop_by_hop(&mut kept, true);
        assert_eq!(kept, map(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("x", "y")]));
        let mut gone = asked;
        strip_hop_by_hop(&mut gone, false);
        assert_eq!(gone, map(&[("x", "y")]));
    }

    #[test]
    fn no_upgrade_without_connection_of_cleartext_http2_or_of_several() {
        for lines in [
            &[("upgrade", "websocket")][..],
            &[("connection", "upgrade")],
            &[("connection", "upgrade"), ("upgrade", "h2c")],
            &[("connection", "upgrade"), ("upgrade", "websocket, h2c")],
            &[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "SPDY/3.1")],
            &[("connection", "xupgrade"), ("upgrade", "websocket")],
            &[("connection", "upgrade"), ("upgrade", "")],
        ] {
            assert_eq!(upgrade_of(&map(lines)), None, "{lines:?}");
        }
    }

    #[test]
    fn only_one_plain_content_length_counts() {
        assert_eq!(content_length(&map(&[("content-length", "42")])), Some(42));
        for lines in [
            &[("content-length", "+42")][..],
            &[("content-length", "")],
            &[("content-length", "0x1")],
            &[("content-length", "99999999999999999999")],
            &[("content-length", "1"), ("content-length", "1")],
            &[],
        ] {
            assert_eq!(content_length(&map(lines)), None, "{lines:?}");
        }
    }
}
