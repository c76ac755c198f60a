use http::Method;
use secrecy::ExposeSecret as _;
use types::ids::RequestId;

use super::*;

fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> RequestHead {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([7; 16]),
        method: Method::from_bytes(method.as_bytes()).unwrap(),
        target: Bytes::copy_from_slice(target.as_bytes()),
        headers: map,
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    }
}

fn get(headers: &[(&str, &str)]) -> Result<Admitted, Refusal> {
    admit(head("GET", "/api", headers))
}

fn code(result: Result<Admitted, Refusal>) -> u16 {
    result.map(|_| 0).unwrap_or_else(|refusal| refusal.code.as_u16())
}

#[test]
fn raw_paths_are_kept_byte_for_byte() {
    for target in [
        "/api/v1/namespaces/n%2Fm/pods",
        "/apis//v1/",
        "/a;b=c/d?x=%2F&y=;&z",
        "/ü/%C3%BC?q=ü",
        "/a?",
        "/a??b",
        "/a?b#".trim_end_matches('#'),
        "//host/a",
        "/api/v1/namespaces/n/services/https:s:443/proxy/x?command=sh%0A-c",
        "/%c0%af",
        "/a|b^c",
    ] {
        let admitted = admit(head("GET", target, &[])).unwrap();
        assert!(matches!(&admitted.target, Target::Plain(admitted) if admitted == target), "{target}");
    }
}

#[test]
fn path_traps_are_refused() {
    for target in [
        "/a/../b",
        "/a/./b",
        "/..",
        "/.",
        "/a/%2e%2e/b",
        "/a/%2E./b",
        "/a/..%2fb",
        "/a%2f..%2Fb",
        "/a\\b",
        "/a/%5c..%5cb",
        "/a%00",
        "/a%0d%0aX: y",
        "/a#b",
        "http://other/x",
        "*",
        "",
        "/a b",
        "/a%7f",
    ] {
        assert_eq!(code(admit(head("GET", target, &[]))), 400, "{target}");
    }
}

#[test]
fn connect_and_trace_are_refused() {
    assert_eq!(code(admit(head("CONNECT", "/a", &[]))), 405);
    assert_eq!(code(admit(head("TRACE", "/a", &[]))), 405);
}

#[test]
fn attack_th2_hop_by_hop_headers_go_first() {
    let admitted = get(&[
        ("connection", "close, Impersonate-User"),
        ("connection", "X-Thing,Authorization"),
        ("impersonate-user", "admin"),
        ("authorization", "Bearer abc"),
        ("x-thing", "1"),
        ("te", "trailers"),
        ("keep-alive", "1"),
        ("transfer-encoding", "chunked"),
        ("accept", "*/*"),
    ])
    .unwrap();
    assert!(admitted.credential.is_none() && admitted.asked.is_none());
    assert_eq!(admitted.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
}

#[test]
fn attack_th3_unknown_impersonation_headers_are_refused() {
    for name in ["impersonate-scope", "impersonate-extra-", "impersonate-users", "impersonate", "impersonateuser"] {
        assert_eq!(code(get(&[(name, "x"), ("impersonate-user", "u")])), 400, "{name}");
    }
    assert_eq!(code(get(&[("impersonate-group", "g")])), 400, "a group alone");
    assert_eq!(code(get(&[("impersonate-user", "a"), ("impersonate-user", "b")])), 400, "two users");
    assert_eq!(code(get(&[("impersonate-user", "a"), ("impersonate-uid", "b"), ("impersonate-uid", "c")])), 400);
    assert_eq!(code(get(&[("impersonate-user", "")])), 400);
    assert_eq!(
        code(get(&[("impersonate-user", "a"), ("impersonate-extra-a%62", "1"), ("impersonate-extra-ab", "2")])),
        400
    );
}

#[test]
fn attack_th4_odd_header_names_are_refused() {
    for name in [
        "impersonate_user",
        "impersonate-extra_key",
        "impersonate.user",
        "x_remote_user",
        "x.remote.user",
        "x-forwarded_for",
        "transfer_encoding",
        "content_length",
        "sec_websocket_protocol",
        "proxy_authorization",
        "impersonate~user",
        "imp!ersonate-user",
        "a%2db",
    ] {
        assert_eq!(code(get(&[(name, "admin")])), 400, "{name}");
        assert_eq!(code(get(&[(name, "admin"), ("connection", name)])), 400, "{name}, which Connection names");
    }
}

#[test]
fn name_with_an_underscore_goes_on() {
    let admitted = get(&[("my_key", "1"), ("x_request_id", "2"), ("a.b_c", "3")]).unwrap();
    assert_eq!(
        admitted.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
        ["my_key", "x_request_id", "a.b_c"]
    );
}

/// `kubectl --as jörg --as-group Développeurs --as-user-extra my_key=v`: client-go sends values as UTF-8, and keys as
/// they are where a header name may have their characters.
#[test]
fn asked_names_of_any_alphabet_arrive() {
    let asked = get(&[
        ("impersonate-user", "j\u{f6}rg"),
        ("impersonate-group", "D\u{e9}veloppeurs"),
        ("impersonate-extra-my_key", "v"),
        ("impersonate-extra-a!b~c", "v"),
        ("impersonate-extra-%c3%84rger", "\u{df}"),
    ])
    .unwrap()
    .asked
    .unwrap();
    assert_eq!((asked.user.as_str(), asked.groups.as_slice()), ("j\u{f6}rg", &["D\u{e9}veloppeurs".to_owned()][..]));
    assert_eq!(asked.extra.keys().map(String::as_str).collect::<Vec<_>>(), ["a!b~c", "my_key", "\u{c4}rger"]);
}

#[test]
fn attack_th5_there_is_one_credential_or_none() {
    assert_eq!(code(get(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])), 401);
    for bad in ["Bearer a, Bearer b", "Bearer a b", "Bearer", "Bearer ", "Basic YTpi", "Bearer =", "a", "Bearer a,b"] {
        assert_eq!(code(get(&[("authorization", bad)])), 401, "{bad}");
    }
    // Whatever else is wrong.
    assert_eq!(code(get(&[("impersonate-user", ""), ("authorization", "Basic YTpi")])), 401);
    let protocols = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
    let admitted = get(&[("sec-websocket-protocol", protocols)]).unwrap();
    assert_eq!(admitted.credential.unwrap().token.expose_secret(), "abc");
    assert_eq!(admitted.headers["sec-websocket-protocol"], "v5.channel.k8s.io");
    assert_eq!(code(get(&[("sec-websocket-protocol", protocols), ("authorization", "Bearer abc")])), 401);
    assert_eq!(code(get(&[("sec-websocket-protocol", protocols), ("sec-websocket-protocol", protocols)])), 401);
    let upper = "BASE64URL.bearer.authorization.k8s.io.YWJj";
    assert!(get(&[("sec-websocket-protocol", upper)]).unwrap().headers.is_empty());
    let pop = get(&[("authorization", "pop abc.def.ghi")]).unwrap().credential.unwrap();
    assert_eq!(pop.scheme, Scheme::Pop);
}

#[test]
fn attack_th6_identity_headers_of_other_proxies_and_cookies_are_removed() {
    let admitted = get(&[
        ("x-remote-user", "admin"),
        ("x-remote-extra-a", "b"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-client-cert", "x"),
        ("forwarded", "for=1"),
        ("front-end-https", "on"),
        ("cookie", "a=b"),
        ("proxy-authorization", "x"),
        ("x-original-url", "/admin"),
        ("host", "other"),
        ("expect", "100-continue"),
        ("user-agent", "kubectl"),
    ])
    .unwrap();
    assert_eq!(admitted.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["user-agent"]);
}

#[test]
fn only_the_upgrades_of_kubernetes_pass() {
    let upgrade = |value: &str| get(&[("connection", "Upgrade"), ("upgrade", value)]);
    assert_eq!(upgrade("SPDY/3.1").unwrap().upgrade.unwrap(), "SPDY/3.1");
    assert_eq!(upgrade("websocket").unwrap().upgrade.unwrap(), "websocket");
    for bad in ["h2c", "TLS/1.0", "websocket, h2c", "spdy/3.0", ""] {
        assert_eq!(code(upgrade(bad)), 400, "{bad}");
    }
    assert_eq!(code(get(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")])), 400);
    let without = get(&[("upgrade", "websocket")]).unwrap();
    assert!(without.upgrade.is_none() && without.headers.is_empty());
    let body = [("connection", "upgrade"), ("upgrade", "websocket"), ("content-length", "3")];
    assert_eq!(code(get(&body)), 400);
}

#[test]
fn lengths_are_read_strictly() {
    assert_eq!(get(&[("content-length", "12")]).unwrap().content_length, Some(12));
    for bad in ["+1", "0x1", "1,1", "", "-1", "1 1", "99999999999999999999999"] {
        assert_eq!(code(get(&[("content-length", bad)])), 400, "{bad}");
    }
    assert_eq!(code(get(&[("content-length", "1"), ("content-length", "1")])), 400);
}

#[test]
fn limits_are_named() {
    let many: Vec<(String, &str)> = (0..1100).map(|n| (format!("x-{n}"), "v")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(code(get(&many)), 431);
    let long = "v".repeat(limits::HEADER_LIST_BYTES);
    assert_eq!(code(get(&[("x-long", &long)])), 431);
    assert_eq!(code(admit(head("GET", &format!("/{}", "a".repeat(limits::TARGET_BYTES)), &[]))), 414);
    assert_eq!(code(admit(head("GET", &format!("/{}", "a".repeat(limits::PLAIN_TARGET_BYTES)), &[]))), 414);
}

#[test]
fn asked_names_are_plain_text() {
    let asked = get(&[
        ("impersonate-user", "jane"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "u"),
        ("impersonate-extra-scopes%2fview", "x"),
    ])
    .unwrap()
    .asked
    .unwrap();
    assert_eq!((asked.user.as_str(), asked.groups.len()), ("jane", 2));
    assert_eq!(asked.extra["scopes/view"], ["x"]);
    for bad in [" jane", "jane ", "ja\tne", "\u{a0}jane"] {
        assert_eq!(code(get(&[("impersonate-user", bad)])), 400, "{bad:?}");
    }
}
