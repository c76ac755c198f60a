//! docs/threats.md TH19: what two readers could frame differently is 400 and the connection closes; nothing reaches the
//! agent.

use tunnel::transport::CarrierKind;

use crate::world::{World, at, get};

async fn refused(world: &World, request: &[u8]) {
    let mut user = world.user().await;
    user.send(request).await;
    let answer = user.answer().await;
    let shown = String::from_utf8_lossy(request).chars().take(300).collect::<String>();
    assert!(matches!(answer.status, 400 | 405 | 414 | 431), "{shown:?}: {answer:?}");
    let status = answer.json();
    assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &answer.status.into()), "{shown:?}");
    // Whatever else was in the flight is never answered.
    while user.more().await {}
    let rest = String::from_utf8_lossy(&user.buffer);
    assert!(!rest.contains("HTTP/1.1 "), "{shown:?} was answered twice: {rest}");
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_closes() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let second = get(&at("a", "/smuggled"), &token, "");
    let with = |lines: &str, body: &str| {
        let head = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
        format!("{head}{lines}\r\n{body}").into_bytes()
    };
    let chunked = format!("0\r\n\r\n{second}");
    for (lines, body) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunked.as_str()),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", &chunked),
        ("Transfer-Encoding: xchunked\r\n", &chunked),
        ("Transfer-Encoding: chunked, identity\r\n", &chunked),
        ("Transfer-Encoding: identity\r\n", &chunked),
        ("Transfer-Encoding:\x0bchunked\r\n", &chunked),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &chunked),
        ("Transfer-Encoding : chunked\r\n", &chunked),
        ("Content-Length: +0\r\n", &second),
        ("Content-Length: 0x0\r\n", &second),
        ("Content-Length: 0\r\nContent-Length: 5\r\n", &second),
        ("Content-Length: 0\r\nContent-Length: 0\r\n", &second),
        ("Content-Length: 0, 0\r\n", &second),
        ("Content-Length: -1\r\n", &second),
        ("X: a\r\n folded\r\n", &second),
        ("X: a\nY: b\r\n", &second),
        ("X: a\rY: b\r\n", &second),
        ("X: a\0b\r\n", &second),
        ("X\x0b: a\r\n", &second),
        ("Host: elsewhere\r\n", &second),
        ("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n", &second),
        ("Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 5\r\n", &second),
        ("Upgrade: websocket\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\n", &chunked),
        ("Upgrade: websocket\r\n", &second),
        ("Impersonate_User: admin\r\n", &second),
    ] {
        refused(&world, &with(lines, body)).await;
    }
    agent.nothing().await;
    world.quiet().await;
}

#[tokio::test]
async fn strange_request_lines_and_hosts_are_refused() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let target = at("a", "/x");
    for head in [
        format!("GET {target}\r\n\r\n"),
        format!("GET {target} HTTP/0.9\r\nHost: localhost\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\nHost: user@localhost\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\nHost: localhost, elsewhere\r\n\r\n"),
        format!("GET http://elsewhere{target} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"),
        format!("TRACE {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\x16\x03\x01 garbage\r\n\r\n".to_owned(),
    ] {
        refused(&world, head.as_bytes()).await;
    }
    agent.nothing().await;
}

/// RFC 9110 section 15.5.6, which checkers of APIs look for.
#[tokio::test]
async fn a_method_that_goes_nowhere_is_refused_with_those_that_go() {
    let world = World::new().await;
    for target in [at("a", "/x"), "/subscriptions".to_owned()] {
        let mut user = world.user().await;
        user.send(format!("TRACE {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        let answer = user.answer().await;
        assert_eq!(answer.status, 405, "{target}");
        let allow = answer.header("allow").unwrap_or_default();
        assert!(allow.contains("GET") && !allow.contains("TRACE"), "{target}: {allow}");
    }
}

/// The server library answered garbage itself: no body, no record.
#[tokio::test]
async fn garbage_is_answered_with_a_status_and_recorded() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    let target = at("a", "/x");
    let long = format!("GET {} HTTP/1.1\r\n", at("a", &"x".repeat(70_000)));
    let many = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(2000));
    let large = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\na: {}", "b".repeat(250_000));
    let (strange, fragment) = (format!("{target}<b>"), format!("{target}#y"));
    let cases = [
        ("\x16\x03\x01\x02".to_owned(), 400, "", "HTTP/1.1"),
        ("hello?\n".to_owned(), 400, "", "HTTP/1.1"),
        (format!("SECRET {token}\r\n"), 400, "", "HTTP/1.1"),
        (format!("GET {strange} HTTP/1.1\r\n"), 400, &strange, "percent-encoded"),
        (format!("GET {fragment} HTTP/1.1\r\n"), 400, &fragment, "fragment"),
        (long.clone(), 414, &long[4..1028], "1048576"),
        (many, 431, &target, "headers of 1024"),
        (large, 431, &target, "header bytes of 131072"),
    ];
    for (bytes, code, path, message) in cases {
        let mut user = world.user().await;
        user.send(bytes).await;
        let answer = user.answer().await;
        let status = answer.json();
        assert_eq!((answer.status, &status["kind"]), (code, &"Status".into()), "{status}");
        assert!(status["message"].as_str().unwrap().contains(message), "{status}");
        user.closed().await;
        world.quiet().await;
        let record = world.audit().await.pop().unwrap();
        assert_eq!((&record["status"], &record["stage"]), (&code.into(), &"accept".into()), "{record}");
        assert_eq!(record["path"].as_str().unwrap().trim_end_matches('.'), path, "{record}");
        assert!(answer.text().contains(record["request_id"].as_str().unwrap()), "{status}");
    }
    assert!(!world.audit_text().contains(&token));
}

/// The library takes what ends in the middle of nothing for a user who left: no answer, no record, no count.
#[tokio::test]
async fn a_head_that_comes_too_slowly_is_answered_and_recorded() {
    let world = World::with("[limits]\nheader_timeout = \"100ms\"\n").await;
    let target = at("a", "/x");
    let mut user = world.user().await;
    user.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nA: b")).await;
    let answer = user.answer().await;
    let status = answer.json();
    assert_eq!((answer.status, &status["kind"], &status["reason"]), (408, &"Status".into(), &"Timeout".into()));
    user.closed().await;
    world.quiet().await;
    let record = world.audit().await.pop().unwrap();
    assert_eq!((&record["status"], &record["stage"]), (&408.into(), &"accept".into()), "{record}");
    assert_eq!(record["path"], target, "{record}");
}

#[tokio::test]
async fn broken_chunks_never_become_a_whole_body() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for chunk in
        ["+5\r\nhello\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "fffffffffffffffff\r\nhello", "5\r\nhelloX0\r\n\r\n"]
    {
        let mut user = world.user().await;
        let head = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
        user.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}")).await;
        let mut arrived = agent.next().await;
        let mut result = Ok(Some(bytes::Bytes::new()));
        while let Ok(Some(_)) = result {
            result = arrived.stream.recv.recv().await;
        }
        assert!(result.is_err(), "{chunk:?} ended cleanly");
        // It was the user's fault, not the cluster's: they were told 502.
        assert_eq!(user.answer().await.status, 400, "{chunk:?}");
        user.closed().await;
    }
    world.quiet().await;
}

/// The stream is reset for it, and the answer's half ended with it: one in eight was told 502.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_body_is_the_users_fault_also_when_the_tunnel_is_quick() {
    let world = World::new().await;
    let agent = world.agent_on("a", CarrierKind::Quic).await;
    let tunnel = agent.tunnel.clone();
    let token = world.token("ann", "a");
    let agent = world.tasks.spawn_task("agent", async move {
        // What is broken off is broken off the other way too, at once.
        while let Ok(mut incoming) = tunnel.accept().await {
            while let Ok(Some(_)) = incoming.stream.recv.recv().await {}
        }
    });
    for _ in 0..100 {
        let mut user = world.user().await;
        let head = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
        user.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n")).await;
        assert_eq!(user.answer().await.status, 400);
    }
    drop(agent);
}

#[tokio::test]
async fn trailers_do_not_cross() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let head = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
    user.send(format!("{head}Trailer: Impersonate-User\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nImpersonate-User: admin\r\n\r\n"))
        .await;
    let mut arrived = agent.next().await;
    assert_eq!(arrived.body().await, b"ab");
    for name in ["impersonate-user", "trailer", "te", "transfer-encoding"] {
        assert_eq!(arrived.header(name), None);
    }
}

#[tokio::test]
async fn requests_in_one_flight_are_each_judged() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let (first, second) = (get(&at("a", "/1"), &token, ""), get(&at("a", "/2"), "nonsense", ""));
    user.send(format!("{first}{second}")).await;
    agent.next().await.answer(200, &[], "1").await;
    assert_eq!(user.answer().await.text(), "1");
    assert_eq!(user.answer().await.status, 401);
    agent.nothing().await;
}
