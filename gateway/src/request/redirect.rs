//! Answers in path form, where the cluster's paths lie below `/<key>` of an origin that all clusters and the gateway
//! share.
//!
//! A `Location` with an absolute path (`/proxy` without its final slash, `/dir`) would leave the key out. It becomes a
//! relative reference (RFC 3986 §4.2) that leads to the same place from wherever the request was sent: at the gateway,
//! through `towline proxy`, and behind `kubectl proxy --append-server-path`, whose clients see no key. Links within
//! HTML are not rewritten. A document of a cluster runs no scripts in path form: it would do so as the gateway's own
//! pages do, the sign-in pages among them.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tunnel::exchange;
use types::ids::ClusterKey;

use super::address::{ClusterAddress, Form};

/// Headers of answers that hold one URI reference.
const REFERENCES: [HeaderName; 2] = [header::LOCATION, header::CONTENT_LOCATION];
/// Headers of answers by which a cluster's page would act as one of the gateway's own origin: it leads elsewhere, has
/// other paths of the origin asked for, and lets pages of other origins read with what a browser knows of this one.
const AS_THE_GATEWAY: [&str; 4] =
    ["access-control-allow-credentials", "access-control-allow-origin", "refresh", "speculation-rules"];
/// Steps towards the root beyond which a reference stays as it is: it grows by three bytes with each.
const STEPS_MAX: usize = 128;
/// Media types that no browser shows as a document with scripts, whatever it guesses from the bytes (WHATWG MIME
/// Sniffing).
const DATA: [&str; 6] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/cbor",
    "application/yaml",
    "application/octet-stream",
    "text/plain",
];

/// Adapts the head of a cluster's answer to a request in path form; leaves it alone in any other form.
pub fn adapt(address: &ClusterAddress, headers: &mut HeaderMap) {
    let key = match address.form {
        Form::Own => return,
        Form::Path => None,
        Form::BarePath => Some(&address.key),
    };
    exchange::remove_where(headers, |name| AS_THE_GATEWAY.contains(&name));
    for name in &REFERENCES {
        let Some(value) = headers.get(name) else { continue };
        let relative = relative(&address.target, key, value.as_bytes());
        if let Some(relative) = relative.and_then(|relative| HeaderValue::from_bytes(&relative).ok()) {
            headers.insert(name, relative);
        }
    }
    // A browser takes one for the place of a document itself, whatever was asked for.
    if headers.get(header::CONTENT_LOCATION).is_some_and(|value| !is_below(value.as_bytes())) {
        headers.remove(header::CONTENT_LOCATION);
    }
    if !is_data(headers) {
        // Beside a policy of the cluster's own: a browser keeps to both.
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    }
}

/// Whether a reference has neither a host nor an absolute path, so that it stays with what it is in. A colon could end
/// a scheme.
fn is_below(reference: &[u8]) -> bool {
    let path = reference.split(|b| matches!(b, b'?' | b'#')).next().unwrap_or_default();
    let first = path.split(|b| *b == b'/').next().unwrap_or_default();
    !path.starts_with(b"/") && !first.contains(&b':') && !path.iter().any(|b| *b == b'\\' || b.is_ascii_control())
}

/// Whether the answer says of itself, in words that all readers understand alike, that it is data.
fn is_data(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else { return false };
    let Ok(value) = value.to_str() else { return false };
    // Of a list browsers take the last type.
    let essence = value.split(';').next().unwrap_or_default().trim();
    !value.contains(',') && DATA.iter().any(|known| known.eq_ignore_ascii_case(essence))
}

/// The relative reference from `target`, a request's path and query behind the cluster's key, to `location`, an
/// absolute path of the same apiserver. `key`: the request's path was `/<key>` and no more, so that `/` is the key's
/// parent.
///
/// None for what stays as it is: relative references, other hosts (`https://...`, `//host`, and what browsers take for
/// that: `/\host`), and references that would be too long.
fn relative(target: &[u8], key: Option<&ClusterKey>, location: &[u8]) -> Option<Vec<u8>> {
    let end = location.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(location.len());
    let (path, rest) = location.split_at(end);
    let inner = path.strip_prefix(b"/")?;
    if inner.starts_with(b"/") || path.iter().any(|b| *b == b'\\' || b.is_ascii_control()) {
        return None;
    }
    let wanted = without_dots(inner);
    let mut found = Vec::with_capacity(location.len() + 32);
    let (folders, common) = match key {
        Some(key) => {
            found.extend_from_slice(key.hex().as_bytes());
            found.push(b'/');
            (0, 0)
        }
        None => {
            let path = target.split(|b| *b == b'?').next().unwrap_or_default();
            let segments = path.strip_prefix(b"/").unwrap_or(path).split(|b| *b == b'/');
            let folders: Vec<&[u8]> = segments.collect();
            let folders = folders.split_last().map_or(&[][..], |(_, folders)| folders);
            let last = wanted.len().saturating_sub(1);
            let common = folders.iter().zip(&wanted[..last]).take_while(|(one, other)| one == other).count();
            (folders.len(), common)
        }
    };
    let steps = folders - common;
    if steps > STEPS_MAX {
        return None;
    }
    for _ in 0..steps {
        found.extend_from_slice(b"../");
    }
    let first = wanted.get(common).copied().unwrap_or_default();
    // Nothing at all would be the request's own address, `//` a host, and a colon would end a scheme.
    if found.is_empty() && (first.is_empty() || first.contains(&b':')) {
        found.extend_from_slice(b"./");
    }
    found.extend_from_slice(&wanted[common..].join(&b'/'));
    found.extend_from_slice(rest);
    Some(found)
}

/// The segments of a path without `.` and `..`, which readers take out after they have resolved a reference (RFC 3986
/// §5.2.4; browsers read `%2e` as a dot).
fn without_dots(path: &[u8]) -> Vec<&[u8]> {
    let mut kept = Vec::new();
    let mut segments = path.split(|b| *b == b'/').peekable();
    while let Some(segment) = segments.next() {
        match dots(segment) {
            0 => kept.push(segment),
            dots => {
                if dots == 2 {
                    kept.pop();
                }
                if segments.peek().is_none() {
                    kept.push(b"");
                }
            }
        }
    }
    kept
}

/// 1 for `.`, 2 for `..`, 0 for any other segment.
fn dots(segment: &[u8]) -> usize {
    let mut rest = segment;
    let mut count = 0;
    while !rest.is_empty() {
        rest = match rest {
            [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] => rest,
            _ => return 0,
        };
        count += 1;
    }
    if count > 2 { 0 } else { count }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use types::ids::ClusterId;
    use url::Url;

    use super::*;

    fn key() -> ClusterKey {
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/a"
            .parse::<ClusterId>()
            .unwrap()
            .key()
    }

    fn from(target: &str, location: &str) -> Option<String> {
        relative(target.as_bytes(), None, location.as_bytes()).map(|found| String::from_utf8(found).unwrap())
    }

    #[test]
    fn absolute_paths_become_relative_references() {
        let service = "/api/v1/namespaces/n/services/http:s:80/proxy";
        for (target, location, expected) in [
            (service, format!("{service}/"), "proxy/"),
            ("/a/b/c?x=/y/z", "/a/b/c/?x=/y/z#f/g".to_owned(), "c/?x=/y/z#f/g"),
            ("/a/b", "/".to_owned(), "../"),
            ("/a", "/".to_owned(), "./"),
            ("/", "/".to_owned(), "./"),
            ("/", "/?q".to_owned(), "./?q"),
            ("/a/b", "/a/b".to_owned(), "b"),
            ("/a/b/", "/a/b".to_owned(), "../b"),
            ("/a/b", "/c/d".to_owned(), "../c/d"),
            ("/a/x", "/a/b:c".to_owned(), "./b:c"),
            ("/a/x", "/a//b".to_owned(), ".//b"),
            ("/a/x", "/a/../../b/./c/..".to_owned(), "../b/"),
            ("/a/x", "/%2e%2E/b".to_owned(), "../b"),
        ] {
            assert_eq!(from(target, &location).as_deref(), Some(expected), "{target} to {location}");
        }
    }

    #[test]
    fn references_that_leave_the_apiserver_stay() {
        for location in ["https://other.example/a", "//other.example/a", "/\\other", "/\t/other", "a/b", "?q", "#f", ""]
        {
            assert_eq!(from("/a/b", location), None, "{location:?}");
        }
        let deep = "/a".repeat(STEPS_MAX + 2);
        assert_eq!(from(&deep, "/b"), None);
        assert!(from(&deep, &format!("{deep}/")).is_some());
    }

    #[test]
    fn a_key_without_a_slash_is_part_of_the_reference() {
        let found = relative(b"/", Some(&key()), b"/api?x").unwrap();
        assert_eq!(found, format!("{}/api?x", key()).as_bytes());
        let base = Url::parse(&format!("https://gw/{}", key())).unwrap();
        let found = base.join(std::str::from_utf8(&found).unwrap()).unwrap();
        assert_eq!(found.path(), format!("/{}/api", key()));
    }

    proptest! {
        /// At the gateway, and without the key as clients of `kubectl proxy --append-server-path` have it, the
        /// reference leads where the absolute path would have led at the apiserver itself. No segment is a letter and a
        /// colon: the url crate takes that for a Windows drive, which no `..` leaves, in every scheme and not only in
        /// `file:`.
        #[test]
        fn a_reference_leads_to_the_same_place_behind_any_prefix(
            target in "(/(|:|a|b|ab|::|a:b|ba:)){1,6}(\\?[ab/]{0,3})?",
            location in "(/(|a|b|a:b|\\.|\\.\\.|%2e|c)){1,6}(\\?[ab/]{0,3})?(#x)?",
        ) {
            prop_assume!(!location.starts_with("//"));
            let found = from(&target, &location).unwrap();
            let direct = Url::parse(&format!("https://gw{target}")).unwrap().join(&location).unwrap();
            for prefix in ["", "/k", "/k/l"] {
                let base = Url::parse(&format!("https://gw{prefix}{target}")).unwrap();
                let reached = base.join(&found).unwrap();
                prop_assert_eq!(reached.path(), format!("{prefix}{}", direct.path()));
                prop_assert_eq!((reached.query(), reached.fragment()), (direct.query(), direct.fragment()));
                prop_assert_eq!(reached.host_str(), Some("gw"));
            }
        }
    }

    fn adapted(form: Form, lines: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let endpoint = super::super::address::Endpoint::Unknown;
        adapt(&ClusterAddress { key: key(), target: "/a/b".into(), endpoint, form }, &mut headers);
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    #[test]
    fn documents_in_path_form_are_sandboxed_and_data_is_not() {
        let policy = |lines: &[(&'static str, &'static str)]| -> Vec<String> {
            let found = adapted(Form::Path, lines);
            found.into_iter().filter(|(name, _)| name == "content-security-policy").map(|(_, value)| value).collect()
        };
        let none: Vec<String> = Vec::new();
        for data in ["application/json", "Text/Plain; charset=utf-8", "application/json;stream=watch"] {
            assert_eq!(policy(&[("content-type", data)]), none, "{data}");
        }
        for document in
            ["text/html", "image/svg+xml", "text/xml", "text/plain, text/html", "application/json,text/html", ""]
        {
            assert_eq!(policy(&[("content-type", document)]), ["sandbox"], "{document}");
        }
        assert_eq!(policy(&[]), ["sandbox"], "a type that browsers guess");
        assert_eq!(policy(&[("content-type", "text/plain"), ("content-type", "text/html")]), ["sandbox"]);
        let own = [("content-type", "text/html"), ("content-security-policy", "sandbox allow-scripts")];
        assert_eq!(policy(&own), ["sandbox allow-scripts", "sandbox"]);
    }

    #[test]
    fn other_forms_change_nothing() {
        let lines = [("location", "/x"), ("content-type", "text/html")];
        let same: Vec<_> = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(adapted(Form::Own, &lines), same);
        assert_eq!(
            adapted(Form::Path, &[("location", "/x"), ("content-location", "/a/c"), ("content-type", "text/plain")])
                [..2],
            [("location".to_owned(), "../x".to_owned()), ("content-location".to_owned(), "c".to_owned())]
        );
    }

    /// A page of a cluster in path form is one of the gateway's origin.
    #[test]
    fn a_page_in_path_form_cannot_act_for_the_origin() {
        let lines = [
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-origin", "https://evil.example"),
            ("content-location", "https://evil.example/"),
            ("content-type", "text/plain"),
            ("refresh", "0; url=https://evil.example"),
            ("speculation-rules", "\"/rules.json\""),
        ];
        assert_eq!(adapted(Form::Path, &lines), [("content-type".to_owned(), "text/plain".to_owned())]);
        assert_eq!(adapted(Form::BarePath, &lines), adapted(Form::Path, &lines));
        assert_eq!(adapted(Form::Own, &lines).len(), lines.len(), "an origin of its own is the cluster's");
        for other in ["//evil.example/", "/\\evil.example", "\\evil", "data:x"] {
            assert!(!is_below(other.as_bytes()), "{other}");
        }
        for own in ["x", "../x:y", "?a:b", "./a:b", ""] {
            assert!(is_below(own.as_bytes()), "{own}");
        }
    }
}
