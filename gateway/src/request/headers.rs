//! What of a head may go on. Everything here looks at names and shapes; identity is not judged here.
//!
//! Requests: hop-by-hop headers go first, then those that claim an identity or a path behind a proxy
//! (docs/threats.md TH6).
//! Answers: what a cluster must not say to the gateway's web origin is taken out.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Version, header};
use hyper::body::Incoming;
use tunnel::exchange;
use types::limits;

use super::refusal::{Kind, Refusal};
use crate::metrics::labels::Stage;

/// Request headers that claim something which only the gateway or the agent may say.
const CLAIMS: &[&str] = &[
    "forwarded",
    "front-end-https",
    "cookie",
    "proxy-authorization",
    "x-real-ip",
    "x-client-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-ssl-client-cert",
    "ssl-client-cert",
    "client-cert",
    "client-cert-chain",
];
/// The same, by prefix.
const CLAIM_PREFIXES: &[&str] = &["x-remote-", "x-forwarded-", "x-envoy-", "x-ms-client-principal", "x-towline-"];
/// What the key of an extra stands behind (`kubectl --as-user-extra`).
const EXTRA: &str = "impersonate-extra-";
/// Headers of answers that would act on the gateway's origin, which all clusters with a path address share: what a
/// browser stores for it, where it reports on it, and what a cluster's scripts may do outside of the cluster's own
/// path.
const ORIGIN: &[&str] = &[
    "accept-ch",
    "alt-svc",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "nel",
    "origin-agent-cluster",
    "public-key-pins",
    "public-key-pins-report-only",
    "report-to",
    "reporting-endpoints",
    "sec-session-registration",
    "secure-session-registration",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "set-login",
    "strict-transport-security",
    "use-as-dictionary",
];

fn bad(why: &'static str) -> Refusal {
    Refusal::new(Stage::Address, Kind::BadRequest(why))
}

/// Refuses heads that readers disagree about or that are too large.
pub fn check(version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    let too_large = |name, value| Refusal::new(Stage::Accept, Kind::HeadTooLarge { name, value });
    if headers.len() > limits::HEADER_COUNT {
        return Err(too_large("headers", limits::HEADER_COUNT));
    }
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if size > limits::HEADER_LIST_BYTES {
        return Err(too_large("header bytes", limits::HEADER_LIST_BYTES));
    }
    if headers.keys().any(|name| is_disguised(name.as_str())) {
        return Err(bad("a header name is another spelling of one that proxies and servers act on"));
    }
    if headers.contains_key(header::TRANSFER_ENCODING) {
        if version != Version::HTTP_11 {
            return Err(bad("Transfer-Encoding is for HTTP/1.1 alone"));
        }
        if headers.contains_key(header::CONTENT_LENGTH) {
            return Err(bad("a request has Content-Length or Transfer-Encoding, not both"));
        }
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        let chunked = codings.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !chunked || codings.next().is_some() {
            return Err(bad("the only transfer coding taken is chunked, once"));
        }
    }
    if headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(bad("Content-Length is there twice"));
    }
    Ok(())
}

/// Whether some server behind us could take this name for one that is not the caller's to set: CGI and its successors
/// read `impersonate_user` as `impersonate-user`, and some read a dot in the same way. The apiserver takes such names,
/// as does what it proxies to, so all others go on. The key of an extra is the caller's, and keeps its characters.
fn is_disguised(name: &str) -> bool {
    if !name.contains(['_', '.']) || name.starts_with(EXTRA) {
        return false;
    }
    let dashed = name.replace(['_', '.'], "-");
    is_claim(&dashed)
        || dashed.starts_with("impersonate")
        || exchange::is_hop_by_hop(&dashed)
        || ["authorization", "host", "content-length", "expect"].contains(&&*dashed)
}

fn is_claim(name: &str) -> bool {
    CLAIMS.contains(&name) || CLAIM_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The protocol that the request wants to change to, if it does and may. The body of such a request must be empty.
pub fn upgrade(http: &http::Request<Incoming>) -> Result<Option<Bytes>, Refusal> {
    if !http.headers().contains_key(header::UPGRADE) {
        return Ok(None);
    }
    let Some(upgrade) = exchange::upgrade_of(http.headers()) else {
        return Err(bad("Upgrade needs one protocol and `Connection: Upgrade`"));
    };
    if http.version() != Version::HTTP_11 {
        return Err(bad("Upgrade is for HTTP/1.1 alone"));
    }
    let lower = upgrade.to_ascii_lowercase();
    // To another version of HTTP or to TLS would be a connection inside which nobody authenticates.
    if lower.starts_with(b"h2") || lower.starts_with(b"http") || lower.starts_with(b"tls") {
        return Err(bad("the protocol in Upgrade is not taken"));
    }
    if !http_body::Body::is_end_stream(http.body()) {
        return Err(bad("a request with Upgrade must not have a body"));
    }
    if *http.method() != Method::GET && *http.method() != Method::POST {
        return Err(bad("Upgrade is taken with GET and POST alone"));
    }
    Ok(Some(upgrade))
}

/// Takes out hop-by-hop headers, then claims. What remains is the user's own and goes on.
pub fn strip_request(headers: &mut HeaderMap, upgrade: bool) {
    // The one hop-by-hop name that an upgrade keeps; the client's other names in `Connection` do not count.
    exchange::strip_hop_by_hop(headers, upgrade);
    exchange::remove_where(headers, |name| {
        is_claim(name)
            // Answered here already, by the server library.
            || name == header::EXPECT.as_str()
            || (upgrade && name == header::CONTENT_LENGTH.as_str())
    });
}

/// Checks `Impersonate-*`: those of Kubernetes, well formed, go on to the agent, which asks the cluster whether the
/// real user may; any other is refused by prefix (docs/threats.md TH1, TH3). Gives the impersonated user's name.
pub fn impersonation(headers: &mut HeaderMap) -> Result<Option<HeaderValue>, Refusal> {
    let refuse = |why| Refusal::new(Stage::Authorize, Kind::Impersonation(why));
    let mut any = false;
    for (name, value) in headers.iter() {
        let name = name.as_str();
        if !name.starts_with("impersonate-") {
            continue;
        }
        any = true;
        let known = matches!(name, "impersonate-user" | "impersonate-group" | "impersonate-uid")
            || name.strip_prefix(EXTRA).is_some_and(|key| !key.is_empty());
        if !known {
            return Err(refuse("the request has an Impersonate- header that is not understood"));
        }
        // Clients send names as UTF-8, whatever their alphabet.
        let fine = !value.is_empty()
            && value.len() <= 1024
            && std::str::from_utf8(value.as_bytes())
                .is_ok_and(|text| text.trim() == text && !text.chars().any(char::is_control));
        if !fine {
            return Err(refuse("the request has an Impersonate- header with an empty or malformed value"));
        }
    }
    if !any {
        return Ok(None);
    }
    let mut users = headers.get_all("impersonate-user").iter();
    match (users.next(), users.next()) {
        (Some(user), None) => Ok(Some(user.clone())),
        (None, _) => Err(refuse("Impersonate-Group, -Uid and -Extra need Impersonate-User as well")),
        (Some(_), Some(_)) => Err(refuse("Impersonate-User is there twice")),
    }
}

/// What of an answer goes to the user.
pub fn strip_response(headers: &mut HeaderMap, switching: bool) {
    exchange::strip_hop_by_hop(headers, switching);
    exchange::remove_where(headers, |name| {
        ORIGIN.contains(&name)
            // Only the gateway says which request it was.
            || name == crate::answers::REQUEST_ID.as_str()
            // Trailers do not cross, and announcing them would be a promise.
            || name == header::TRAILER.as_str()
    });
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn impersonation_is_whole_or_refused() {
        let fine = [("impersonate-user", "a"), ("impersonate-group", "g"), ("impersonate-extra-x%2fy_z", "v")];
        assert_eq!(impersonation(&mut map(&fine)).unwrap().unwrap(), "a");
        assert!(impersonation(&mut map(&[])).unwrap().is_none());
        for bad in [
            [("impersonate-group", "system:masters")].as_slice(),
            &[("impersonate-user", "a"), ("impersonate-user", "b")],
            &[("impersonate-user", "a"), ("impersonate-surprise", "b")],
            &[("impersonate-user", "a"), ("impersonate-extra-", "b")],
            &[("impersonate-user", "")],
            &[("impersonate-user", "a"), ("impersonate-uid", " ")],
        ] {
            assert!(impersonation(&mut map(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn impersonated_name_of_any_alphabet_goes_on_and_other_bytes_do_not() {
        let user = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.append("impersonate-user", HeaderValue::from_bytes(value).unwrap());
            impersonation(&mut headers)
        };
        for fine in ["j\u{f6}rg", "D\u{e9}veloppeurs", "\u{5f20}\u{4e09}"] {
            assert_eq!(user(fine.as_bytes()).unwrap().unwrap().as_bytes(), fine.as_bytes());
        }
        for bad in [&b"j\xf6rg"[..], b"\xff", "\u{a0}jane".as_bytes(), "jane\u{3000}".as_bytes(), "a\u{85}b".as_bytes()]
        {
            assert!(user(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn name_with_an_underscore_goes_on_unless_it_disguises_another() {
        for fine in ["my_key", "x_request_id", "a__b", "x.y_z", "impersonate-extra-my_key", "impersonate-extra-a.b_c"] {
            assert!(check(Version::HTTP_11, &map(&[(fine, "v")])).is_ok(), "{fine}");
        }
        for bad in [
            "impersonate_user",
            "impersonate-extra_key",
            "impersonate_extra-key",
            "impersonate.user",
            "x_remote_user",
            "x-remote_extra-a",
            "x.remote.user",
            "x-forwarded_for",
            "x_ms_client_principal_name",
            "x-towline_request-id",
            "transfer_encoding",
            "content_length",
            "proxy_authorization",
            "front_end_https",
            "x_http_method_override",
        ] {
            assert!(check(Version::HTTP_11, &map(&[(bad, "v")])).is_err(), "{bad}");
        }
    }

    #[test]
    fn claims_of_identity_are_taken_out() {
        let mut headers = map(&[
            ("x-remote-user", "admin"),
            ("x-remote-extra-a", "b"),
            ("x-forwarded-for", "1"),
            ("x-forwarded-client-cert", "1"),
            ("forwarded", "1"),
            ("front-end-https", "on"),
            ("cookie", "a=b"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut headers, false);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn heads_that_readers_disagree_about_are_refused() {
        for bad in [
            [("transfer-encoding", "chunked"), ("content-length", "3")].as_slice(),
            &[("transfer-encoding", "xchunked")],
            &[("transfer-encoding", "chunked, identity")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("content-length", "3"), ("content-length", "3")],
            &[("impersonate_user", "a")],
        ] {
            assert!(check(Version::HTTP_11, &map(bad)).is_err(), "{bad:?}");
        }
        assert!(check(Version::HTTP_11, &map(&[("transfer-encoding", "Chunked")])).is_ok());
    }

    #[test]
    fn answers_cannot_act_on_the_gateways_origin() {
        let mut headers = map(&[
            ("set-cookie", "a=b"),
            ("clear-site-data", "*"),
            ("alt-svc", "h3"),
            ("strict-transport-security", "x"),
            ("service-worker-allowed", "/"),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("reporting-endpoints", "a=\"https://evil\""),
            ("critical-ch", "x"),
            ("secure-session-registration", "(ES256);path=\"/\""),
            ("use-as-dictionary", "match=\"/*\""),
            ("warning", "299 - \"x\""),
        ]);
        strip_response(&mut headers, false);
        assert_eq!(headers, map(&[("warning", "299 - \"x\"")]));
    }
}
