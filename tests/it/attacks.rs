//! The catalogue of attacks, each one named test that looks at the raw bytes which the apiserver received.

use std::{
    io::{Read, Write},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::ensure;
use libtest_mimic::Trial;
use tests::{
    apiserver::{AGENT_TOKEN, Apiserver, Received, answer},
    case::{Needs, case},
    programs::scratch,
    raw::{Answer, Raw},
    stack::{Plan, Stack},
};

/// A stack in front of a scripted apiserver that all attacks share; SubjectAccessReviews say no.
struct Target {
    apiserver: Apiserver,
    stack: Stack,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let script = Arc::new(|request: &Received, connection: &mut tests::apiserver::Connection| {
            let target = String::from_utf8_lossy(request.target()).into_owned();
            if target.contains("/upgrade-refused-") {
                let code = target.rsplit('-').next().unwrap_or("400").to_owned();
                return answer(connection, &format!("{code} Refused"), b"{\"kind\":\"Status\",\"by\":\"apiserver\"}");
            }
            if target.contains("/switch-unasked") {
                connection.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nraw bytes")?;
                connection.flush()?;
                return Ok(false);
            }
            if target.contains("/glued") {
                connection.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\nglued to the head")?;
                connection.flush()?;
                let mut buffer = [0; 1024];
                let count = connection.read(&mut buffer)?;
                connection.write_all(&buffer[..count])?;
                connection.flush()?;
                return Ok(false);
            }
            if target.contains("/redirect") {
                connection.write_all(b"HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")?;
                connection.flush()?;
                return Ok(true);
            }
            if target.contains("/cookies") {
                connection.write_all(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nclear-site-data: \"*\"\r\ncontent-length: 0\r\n\r\n")?;
                connection.flush()?;
                return Ok(true);
            }
            answer(connection, "200 OK", b"{\"kind\":\"Scripted\"}")
        });
        let apiserver = Apiserver::start(&scratch("attacks-apiserver"), false, script).unwrap();
        let stack = Stack::start(&Plan::scripted("attacks", &apiserver)).unwrap();
        Target { apiserver, stack }
    })
}

impl Target {
    /// What arrived for a marker that only this test's requests carry.
    fn arrived(&self, marker: &str) -> Vec<Received> {
        self.apiserver.received().into_iter().filter(|request| request.text().contains(marker)).collect()
    }

    /// Sends a request of admin with extra header lines; the marker goes into the path.
    fn send(&self, marker: &str, lines: &str) -> anyhow::Result<Answer> {
        let (_, answer) = self.send_on(self.stack.raw()?, marker, lines)?;
        Ok(answer)
    }

    fn send_on(&self, mut raw: Raw, marker: &str, lines: &str) -> anyhow::Result<(Raw, Answer)> {
        let token = self.stack.token("admin")?;
        raw.send(
            format!(
                "GET /{}/api/{marker} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{lines}\r\n",
                self.stack.key(),
                self.stack.authority()
            )
            .as_bytes(),
        )?;
        let answer = raw.answer()?;
        Ok((raw, answer))
    }

    /// Sends bytes with `{key}`, `{host}` and `{token}` filled in.
    fn send_bytes(&self, bytes: &str) -> anyhow::Result<Raw> {
        let token = self.stack.token("admin")?;
        let mut raw = self.stack.raw()?;
        raw.send(
            bytes
                .replace("{key}", &self.stack.key())
                .replace("{host}", &self.stack.authority())
                .replace("{token}", &token)
                .as_bytes(),
        )?;
        Ok(raw)
    }
}

/// Every request that arrived was made for the user admin and by the agent's own credential, exactly once each.
fn as_admin_only(requests: &[Received]) -> anyhow::Result<()> {
    for request in requests {
        ensure!(request.headers("impersonate-user") == ["admin"], "{}", request.text());
        ensure!(request.headers("authorization") == [format!("Bearer {AGENT_TOKEN}")], "{}", request.text());
        ensure!(
            !request.headers("impersonate-group").iter().any(|group| group.starts_with("system:masters")),
            "{}",
            request.text()
        );
    }
    Ok(())
}

/// Refused with a client error, and nothing arrived; or forwarded as admin and nobody else.
fn refused_or_harmless(marker: &str, answer: &Answer) -> anyhow::Result<()> {
    let arrived = target().arrived(marker);
    if answer.status >= 400 {
        ensure!(answer.status < 500, "{}", answer.head);
        ensure!(arrived.is_empty(), "refused, yet arrived: {arrived:?}");
    }
    as_admin_only(&arrived)
}

fn refused(marker: &str, answer: &Answer, codes: &[u16]) -> anyhow::Result<()> {
    ensure!(codes.contains(&answer.status), "{marker}: {}", answer.head);
    ensure!(target().arrived(marker).is_empty(), "refused, yet arrived");
    Ok(())
}

pub fn tests() -> Vec<Trial> {
    let mut trials = vec![
        case("attacks::attack_th1_client_impersonation_is_refused", Needs::Nothing, || {
            for (n, lines) in [
                "Impersonate-User: root\r\nImpersonate-Group: system:masters\r\n",
                "Impersonate-User: other\r\n",
                "Impersonate-Group: system:masters\r\n",
            ]
            .iter()
            .enumerate()
            {
                let marker = format!("i1-{n}-");
                refused(&marker, &target().send(&marker, lines)?, &[400, 403])?;
            }
            Ok(())
        }),
        case("attacks::attack_th2_hop_by_hop_cannot_remove_identity", Needs::Nothing, || {
            for (n, lines) in [
                "Connection: Impersonate-User, Impersonate-Group, Authorization, X-Remote-User\r\n",
                "Connection: close, Impersonate-User\r\n",
                "Connection: keep-alive\r\nConnection: Impersonate-User\r\n",
                "Connection: impersonate-uid, impersonate-extra-foo\r\n",
            ]
            .iter()
            .enumerate()
            {
                let marker = format!("i2-{n}-");
                refused_or_harmless(&marker, &target().send(&marker, lines)?)?;
            }
            Ok(())
        }),
        case("attacks::attack_th3_any_impersonate_header_is_refused", Needs::Nothing, || {
            for (n, lines) in [
                "Impersonate-Uid: 1\r\n",
                "Impersonate-Extra-Foo: x\r\n",
                "iMpErSoNaTe-Anything-New: x\r\n",
                "Impersonate-: x\r\n",
            ]
            .iter()
            .enumerate()
            {
                let marker = format!("i3-{n}-");
                refused(&marker, &target().send(&marker, lines)?, &[400, 403])?;
            }
            Ok(())
        }),
        case("attacks::attack_th4_spellings_of_identity_headers", Needs::Nothing, || {
            for (n, lines) in [
                "impersonate_user: root\r\n",
                "IMPERSONATE-USER: root\r\n",
                "Impersonate-User : root\r\n",
                "Impersonate-User\t: root\r\n",
                "X-A: b\r\n Impersonate-User: root\r\n",
                "\u{b}Impersonate-User: root\r\n",
                "Impersonate-Us\u{e9}r: root\r\n",
                "X_Remote_User: root\r\n",
            ]
            .iter()
            .enumerate()
            {
                let marker = format!("i4-{n}-");
                refused(&marker, &target().send(&marker, lines)?, &[400, 403])?;
            }
            Ok(())
        }),
        case("attacks::attack_th5_more_than_one_credential", Needs::Nothing, || {
            let key_host = "HTTP/1.1\r\nHost: {host}\r\n";
            for (n, request) in [
                format!("GET /{{key}}/api/i5-0- {key_host}Authorization: Bearer {{token}}\r\nAuthorization: Bearer {{token}}\r\n\r\n"),
                format!("GET /{{key}}/api/i5-1- {key_host}Authorization: Bearer {{token}}, Bearer {{token}}\r\n\r\n"),
                format!("GET /{{key}}/api/i5-2-?access_token={{token}} {key_host}\r\n"),
                format!("GET /{{key}}/api/i5-3- {key_host}Authorization: Basic YTpi\r\n\r\n"),
                format!("GET /{{key}}/api/i5-4- {key_host}Authorization: Bearer\r\n\r\n"),
            ]
            .iter()
            .enumerate()
            {
                let answer = target().send_bytes(request)?.answer()?;
                refused(&format!("i5-{n}-"), &answer, &[400, 401])?;
            }
            // A bearer in a WebSocket subprotocol beside the header never reaches the apiserver.
            let answer = target().send("i5-5-", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io\r\n")?;
            refused_or_harmless("i5-5-", &answer)?;
            for request in target().arrived("i5-5-") {
                ensure!(!request.text().contains("base64url.bearer"), "{}", request.text());
            }
            Ok(())
        }),
        case("attacks::attack_th6_other_identity_headers_are_removed", Needs::Nothing, || {
            let lines = "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\nX-Remote-Extra-Foo: x\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-User: root\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Client-Cert: x\r\nFront-End-Https: on\r\nCookie: a=b\r\nProxy-Authorization: Basic YTpi\r\nX-Kept: yes\r\n";
            let answer = target().send("i6-", lines)?;
            let arrived = target().arrived("i6-");
            as_admin_only(&arrived)?;
            if answer.status == 200 {
                ensure!(arrived.len() == 1 && arrived[0].headers("x-kept") == ["yes"]);
                for name in arrived[0].names() {
                    let name = name.to_ascii_lowercase();
                    ensure!(
                        !name.starts_with("x-remote-")
                            && !name.starts_with("x-forwarded-")
                            && !["forwarded", "cookie", "front-end-https", "proxy-authorization"]
                                .contains(&name.as_str()),
                        "{name} arrived"
                    );
                }
            }
            Ok(())
        }),
        case("attacks::every_request_is_impersonated_exactly_once", Needs::Nothing, || {
            let answer = target().send("once-", "")?;
            ensure!(answer.status == 200, "{}", answer.head);
            let arrived = target().arrived("once-");
            ensure!(arrived.len() == 1);
            as_admin_only(&arrived)?;
            ensure!(arrived[0].headers("impersonate-uid").len() == 1, "{}", arrived[0].text());
            Ok(())
        }),
        case("attacks::cve_2018_1002105_refused_upgrade_stays_http", Needs::Nothing, refused_upgrade),
        case("attacks::switching_protocols_unasked_is_a_gateway_error", Needs::Nothing, || {
            let answer = target().send("switch-unasked", "")?;
            ensure!(answer.status >= 500, "{}", answer.head);
            Ok(())
        }),
        case("attacks::bytes_glued_to_the_101_arrive", Needs::Nothing, || {
            let (mut raw, answer) =
                target().send_on(target().stack.raw()?, "glued", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n")?;
            ensure!(answer.status == 101, "{}", answer.head);
            ensure!(raw.exactly(17)? == b"glued to the head");
            raw.send(b"and back")?;
            ensure!(raw.exactly(8)? == b"and back");
            let arrived = target().arrived("glued");
            // Lesson 23: no body and no transfer-encoding on an upgrade.
            ensure!(arrived[0].headers("transfer-encoding").is_empty(), "{}", arrived[0].text());
            as_admin_only(&arrived)
        }),
        case("attacks::redirects_are_not_followed", Needs::Nothing, || {
            ensure!(target().send("redirect", "")?.status == 302);
            Ok(())
        }),
        case("attacks::cookies_of_a_cluster_do_not_reach_the_user", Needs::Nothing, || {
            let answer = target().send("cookies", "")?;
            ensure!(
                answer.header("set-cookie").is_none() && answer.header("clear-site-data").is_none(),
                "{}",
                answer.head
            );
            Ok(())
        }),
        case("attacks::paths_arrive_byte_for_byte", Needs::Nothing, paths_byte_for_byte),
        case("attacks::paths_with_two_readings_are_refused", Needs::Nothing, paths_refused),
    ];
    for (name, request) in smuggling() {
        trials.push(case(format!("attacks::smuggling_{name}"), Needs::Nothing, move || smuggle(name, &request)));
    }
    trials
}

fn refused_upgrade() -> anyhow::Result<()> {
    for code in ["400", "403", "501", "200"] {
        for upgrade in ["SPDY/3.1", "websocket"] {
            let marker = format!("upgrade-refused-{code}");
            let lines = format!(
                "Connection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            );
            let (mut raw, answer) = target().send_on(target().stack.raw()?, &marker, &lines)?;
            ensure!(answer.status.to_string() == code, "{}", answer.head);
            ensure!(
                answer.body == b"{\"kind\":\"Status\",\"by\":\"apiserver\"}",
                "changed: {}",
                String::from_utf8_lossy(&answer.body)
            );
            // What follows on the same connection is a new request, authenticated anew: refused without a token and
            // with an identity of its own, answered with a token.
            let (key, host) = (target().stack.key(), target().stack.authority());
            for (number, lines, status) in [
                (1, String::new(), 401),
                (2, "Authorization: Bearer x.y.z\r\n".to_owned(), 401),
                (3, format!("Authorization: Bearer {}\r\n", target().stack.token("admin")?), 200),
            ] {
                let after = format!("after-{code}-{}-{number}-", upgrade.len());
                raw.send(format!("GET /{key}/api/{after} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n").as_bytes())?;
                let answer = raw.answer()?;
                ensure!(answer.status == status, "{after}: {}", answer.head);
                let arrived = target().arrived(&after);
                ensure!(arrived.len() == usize::from(status == 200), "{after}: {arrived:?}");
                as_admin_only(&arrived)?;
            }
        }
    }
    Ok(())
}

fn paths_byte_for_byte() -> anyhow::Result<()> {
    let token = target().stack.token("admin")?;
    for tail in [
        &b"/apis/raw/a%2Fb"[..],
        b"/apis/raw//double//slash",
        b"/apis/raw/a;b=c",
        b"/apis/raw/\xc3\xa9t\xc3\xa9",
        b"/apis/raw/?x=%2F&y=a+b&&z",
        b"/apis/raw?",
        b"/apis/raw?a=?b",
        b"/apis/raw/%E2%82%AC%20x",
        b"/apis/raw/~user/'quoted'/(x)*,!$&=:@",
        b"//apis/raw/leading",
        b"/apis/raw/services/https:s:443/proxy/",
        b"/apis/raw/trailing/",
    ] {
        let mut raw = target().stack.raw()?;
        let key = target().stack.key();
        let rest =
            format!(" HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n", target().stack.authority());
        raw.send(&[b"GET /", key.as_bytes(), tail, rest.as_bytes()].concat())?;
        let answer = raw.answer()?;
        let shown = String::from_utf8_lossy(tail).into_owned();
        ensure!(answer.status == 200, "{shown}: {}", answer.head);
        ensure!(
            target().apiserver.received().iter().any(|request| request.target() == tail),
            "{shown} did not arrive byte for byte"
        );
    }
    Ok(())
}

fn paths_refused() -> anyhow::Result<()> {
    for tail in [
        "/api/x/../two-readings",
        "/api/./two-readings",
        "/api/%2e%2e/two-readings",
        "/api/%2E/two-readings",
        "/..%2ftwo-readings",
        "/api/a\\..\\two-readings",
        "/api/%00two-readings",
        "/api/%0d%0atwo-readings",
        "/api/two-readings#x",
    ] {
        let raw = target().send_bytes(&format!(
            "GET /{{key}}{tail} HTTP/1.1\r\nHost: {{host}}\r\nAuthorization: Bearer {{token}}\r\n\r\n"
        ));
        let answer = raw?.answer()?;
        ensure!(answer.status == 400, "{tail}: {}", answer.head);
    }
    ensure!(target().arrived("two-readings").is_empty());
    Ok(())
}

/// Name and bytes of requests that two parsers might read differently. The second request within each, `/api/smuggled`,
/// must never arrive with an identity of its own.
fn smuggling() -> Vec<(&'static str, String)> {
    let post = |lines: &str, body: &str| {
        format!(
            "POST /{{key}}/api/outer HTTP/1.1\r\nHost: {{host}}\r\nAuthorization: Bearer {{token}}\r\n{lines}\r\n{body}"
        )
    };
    let inner = "GET /{key}/api/smuggled HTTP/1.1\r\nHost: x\r\nImpersonate-User: root\r\n\r\n";
    vec![
        ("cl_te", post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{inner}"))),
        ("te_cl", post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", &format!("5c\r\n{inner}\r\n0\r\n\r\n"))),
        ("te_xchunked", post("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{inner}"))),
        ("te_chunked_identity", post("Transfer-Encoding: chunked, identity\r\n", &format!("0\r\n\r\n{inner}"))),
        ("te_tab", post("Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n", &format!("0\r\n\r\n{inner}"))),
        ("te_vertical_tab", post("Transfer-Encoding:\u{b}chunked\r\n", &format!("0\r\n\r\n{inner}"))),
        ("two_lengths", post("Content-Length: 0\r\nContent-Length: 5\r\n", inner)),
        ("length_plus", post("Content-Length: +5\r\n", inner)),
        ("length_hex", post("Content-Length: 0x5\r\n", inner)),
        ("length_list", post("Content-Length: 0, 5\r\n", inner)),
        ("chunk_size_overflow", post("Transfer-Encoding: chunked\r\n", &format!("ffffffffffffffff1\r\nx\r\n0\r\n\r\n{inner}"))),
        ("bare_cr", post("X-A: b\rImpersonate-User: root\r\n", "")),
        ("nul_in_header", post("X-A: b\0c\r\n", "")),
        ("obs_fold", post("X-A: b\r\n c\r\n", "")),
        ("h2c_upgrade", "GET /{key}/api/outer-h2c HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n".into()),
        ("absolute_form_other_host", "GET https://other.example/{key}/api/outer HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".into()),
        ("two_hosts", "GET /{key}/api/outer HTTP/1.1\r\nHost: {host}\r\nHost: other.example\r\nAuthorization: Bearer {token}\r\n\r\n".into()),
        ("connect", "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".into()),
        ("trace", "TRACE /{key}/api/outer HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".into()),
        ("http_0_9", "GET /{key}/api/outer\r\n\r\n".into()),
        ("garbage", "\u{1}\u{2}\u{3}garbage\r\n\r\n".into()),
        ("trailers", post("Transfer-Encoding: chunked\r\nTrailer: Impersonate-User\r\n", "0\r\nImpersonate-User: root\r\nAuthorization: Bearer x\r\n\r\n")),
        ("pipelined_after_upgrade", format!("GET /{{key}}/api/upgrade-refused-400 HTTP/1.1\r\nHost: {{host}}\r\nAuthorization: Bearer {{token}}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n{inner}")),
    ]
}

fn smuggle(name: &str, request: &str) -> anyhow::Result<()> {
    // Each has marks of its own, so that tests beside each other do not see each other's requests.
    let request =
        request.replace("/outer", &format!("/outer-{name}")).replace("/smuggled", &format!("/smuggled-{name}"));
    let mut raw = target().send_bytes(&request)?;
    raw.read_timeout(Duration::from_secs(3))?;
    let mut statuses = Vec::new();
    while let Ok(answer) = raw.answer() {
        statuses.push(answer.status);
        if statuses.len() > 4 {
            break;
        }
    }
    ensure!(
        target().arrived(&format!("smuggled-{name}")).is_empty(),
        "the inner request arrived; answers {statuses:?}"
    );
    let outer = target().arrived(&format!("outer-{name}"));
    as_admin_only(&outer)?;
    for request in &outer {
        let head = request.text().to_lowercase();
        ensure!(!(head.contains("content-length:") && head.contains("transfer-encoding:")), "{head}");
        ensure!(!head.contains("h2c") && !head.contains("http2-settings"), "{head}");
        ensure!(
            !String::from_utf8_lossy(&request.body).contains("Impersonate-User"),
            "trailers or smuggled bytes arrived: {:?}",
            request.body
        );
    }
    let only_refused = [
        "te_xchunked",
        "te_vertical_tab",
        "two_lengths",
        "length_plus",
        "length_hex",
        "bare_cr",
        "nul_in_header",
        "obs_fold",
        "absolute_form_other_host",
        "two_hosts",
        "connect",
        "trace",
        "garbage",
    ];
    if only_refused.contains(&name) {
        ensure!(outer.is_empty(), "arrived: {outer:?}");
        ensure!(statuses.iter().all(|status| (400..=501).contains(status)), "{statuses:?}");
    }
    Ok(())
}
