//! Plain requests: what arrives, what comes back, what is refused with which words.

use std::time::{Instant, SystemTime};

use bytes::Bytes;
use certs::{Validity, tls};
use tokio::io::AsyncWriteExt;
use tunnel::wire::close::StreamCode;

use crate::world::{HEADER_LIST, LONG, World, at, cluster, get};

#[tokio::test]
async fn a_get_arrives_as_sent_and_its_answer_comes_back_as_given() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    let token = world.token("ann", "a");
    user.send(get(&at("a", "/api/v1/pods?limit=5"), &token, "Accept: application/json\r\n")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.head.role, "kube-aad-proxy");
    assert_eq!(arrived.head.method, "GET");
    assert_eq!(arrived.head.target, "/api/v1/pods?limit=5");
    assert_eq!(arrived.header("accept"), Some("application/json"));
    assert_eq!(arrived.header("authorization"), Some(format!("Bearer {token}").as_str()));
    arrived.answer(200, &[("warning", "299 - \"old\""), ("set-cookie", "a=b")], "{}").await;
    let answer = user.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    assert_eq!(answer.header("warning"), Some("299 - \"old\""));
    assert_eq!(answer.header("set-cookie"), None);
    world.quiet().await;
    let records = world.audit().await;
    let record = records.last().unwrap();
    for (key, value) in [
        ("user", "dev:ann"),
        ("issuer", "dev"),
        ("verb", "list"),
        ("resource", "pods"),
        ("path", "/api/v1/pods"),
        ("decision", "allow"),
        ("stage", "relay"),
        ("outcome", "complete"),
        ("carrier", "h2"),
        ("cluster", cluster("a").as_str()),
    ] {
        assert_eq!(record[key], value, "{record}");
    }
    assert_eq!((&record["status"], &record["bytes_down"]), (&200.into(), &2.into()));
}

#[tokio::test]
async fn bodies_flow_both_ways_and_an_early_answer_is_delivered() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let line = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
    user.send(format!("{line}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")).await;
    let mut arrived = agent.next().await;
    assert_eq!(arrived.stream.recv.recv().await.unwrap().unwrap(), "hello");
    assert_eq!(arrived.header("transfer-encoding"), None);
    arrived.answer_head(200, &[]).await;
    arrived.stream.send.send(Bytes::from_static(b"early")).await.unwrap();
    assert_eq!(user.head().await.status, 200);
    user.until(b"early").await;
    user.send("6\r\n world\r\n0\r\n\r\n").await;
    assert_eq!(arrived.body().await, b" world");
    arrived.stream.send.finish().unwrap();
    user.until(b"0\r\n\r\n").await;
    // The connection is good for the next request.
    user.send(get(&at("a", "/y"), &token, "")).await;
    agent.next().await.answer(200, &[], "y").await;
    assert_eq!(user.answer().await.text(), "y");
    world.quiet().await;
}

/// A proxy that gathers what comes holds back an event until the next, and `kubectl rollout status` hangs.
#[tokio::test]
async fn t9_each_event_of_a_watch_arrives_before_the_next_is_sent() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let watch = at("a", "/api/v1/pods?watch=1");
    let json = [("content-type", "application/json")];
    let event = |number: u32| format!("{{\"a\":{number}}}\n");
    let mut user = world.user().await;
    user.send(get(&watch, &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &json).await;
    assert_eq!(user.head().await.status, 200, "before the first event");
    for number in 0..3 {
        arrived.stream.send.send(Bytes::from(event(number))).await.unwrap();
        user.until(event(number).as_bytes()).await;
    }
    // Over HTTP/2 too.
    let stream = world.user_with("localhost", None, &[tls::ALPN_H2]).await.stream;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    let request = http::Request::get(format!("https://localhost{watch}"));
    let request = request.header("authorization", format!("Bearer {token}")).body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &json).await;
    let mut body = tokio::time::timeout(LONG, response).await.unwrap().unwrap().into_body();
    for number in 0..3 {
        arrived.stream.send.send(Bytes::from(event(number))).await.unwrap();
        let got = tokio::time::timeout(LONG, body.data()).await.expect("the event, before the next one");
        assert_eq!(got.unwrap().unwrap(), event(number));
    }
}

#[tokio::test]
async fn expect_100_continue_is_answered_here_and_does_not_cross() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    let token = world.token("ann", "a");
    user.send(format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        at("a", "/x")
    ))
    .await;
    let mut arrived = agent.next().await;
    assert_eq!(arrived.header("expect"), None);
    assert_eq!(user.head().await.status, 100);
    user.send("ok").await;
    assert_eq!(arrived.body().await, b"ok");
    arrived.answer(201, &[], "").await;
    assert_eq!(user.answer().await.status, 201);
}

#[tokio::test]
async fn no_agent_is_503_at_once_with_a_status_that_says_so() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    // The first one also pays for reading the keys.
    for _ in 0..2 {
        let before = Instant::now();
        user.send(get(&at("a", "/api"), &token, "")).await;
        let answer = user.answer().await;
        assert_eq!(answer.status, 503);
        assert!(before.elapsed().as_secs() < 5, "{:?}", before.elapsed());
        assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
        let status = answer.json();
        assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"ServiceUnavailable".into()));
        assert!(status["message"].as_str().unwrap().contains("no agent"), "{status}");
        assert!(answer.text().contains("locate"), "{status}");
    }
}

#[tokio::test]
async fn a_broken_answer_never_ends_cleanly() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    // Without a length: the last chunk must not come.
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    arrived.stream.send.send(Bytes::from_static(b"half")).await.unwrap();
    user.head().await;
    user.until(b"half").await;
    arrived.stream.send.reset(StreamCode::Upstream);
    while user.more().await {}
    assert!(!user.buffer.ends_with(b"0\r\n\r\n"), "{:?}", user.buffer);
    // With a length: the connection ends before it is reached.
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[("content-length", "100")]).await;
    arrived.stream.send.send(Bytes::from_static(b"half")).await.unwrap();
    user.head().await;
    drop(arrived);
    while user.more().await {}
    assert!(user.buffer.len() < 100);
    // Ended cleanly and yet too short.
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[("content-length", "100")]).await;
    arrived.stream.send.send(Bytes::from_static(b"half")).await.unwrap();
    arrived.stream.send.finish().unwrap();
    // The break may overtake the head.
    while user.more().await {}
    assert!(!user.buffer.ends_with(b"\r\n\r\n") && user.buffer.len() < 300, "{:?}", user.buffer);
    // Before a head: 502.
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    agent.next().await.stream.send.reset(StreamCode::Upstream);
    let answer = user.answer().await;
    assert_eq!(answer.status, 502, "{answer:?}");
    world.quiet().await;
    let outcomes: Vec<_> = world.audit().await.iter().map(|r| r["outcome"].clone()).collect();
    assert_eq!(outcomes, ["broken_off", "broken_off", "broken_off", "refused"]);
}

#[tokio::test]
async fn a_user_who_goes_away_resets_the_stream_at_once() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for begun in [false, true] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/api/v1/pods?watch=1"), &token, "")).await;
        let mut arrived = agent.next().await;
        if begun {
            arrived.answer_head(200, &[]).await;
            user.head().await;
        }
        drop(user);
        let ended = tokio::time::timeout(crate::world::LONG, arrived.stream.send.stopped()).await;
        assert!(ended.is_ok(), "{begun}");
    }
    world.quiet().await;
    assert!(world.audit().await.iter().all(|record| record["outcome"] == "cancelled"));
}

#[tokio::test]
async fn three_hundred_groups_fit_over_both_protocols() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let groups: Vec<String> = (0..300).map(|n| format!("{n:03}-{}", "g".repeat(96))).collect();
    let names: Vec<&str> = groups.iter().map(String::as_str).chain(["ops"]).collect();
    let token = world.issuer.token("otto", &names, &cluster("a").audience(), SystemTime::now());
    assert!(token.len() > 40_000);
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.header("authorization").unwrap().len(), "Bearer ".len() + token.len());
    arrived.answer(200, &[], "h1").await;
    assert_eq!(user.answer().await.text(), "h1");
    let (status, body) = {
        let stream = world.user_with("localhost", None, &[tls::ALPN_H2]).await.stream;
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        world.tasks.spawn("h2", async move { drop(connection.await) });
        let request = http::Request::get(format!("https://localhost{}", at("a", "/x")))
            .header("authorization", format!("Bearer {token}"))
            .body(())
            .unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        agent.next().await.answer(200, &[], "h2").await;
        let response = response.await.unwrap();
        let status = response.status();
        let mut body = response.into_body();
        (status, body.data().await.unwrap().unwrap())
    };
    assert_eq!((status.as_u16(), body.as_ref()), (200, b"h2".as_slice()));
}

#[tokio::test]
async fn t8_a_head_over_the_limit_is_431() {
    let world = World::new().await;
    let mut user = world.user().await;
    let token = world.token("ann", "a");
    let long = format!("X-Long: {}\r\n", "x".repeat(HEADER_LIST));
    user.send(get(&at("a", "/x"), &token, &long)).await;
    let named = |answer: crate::world::Answer| {
        assert_eq!(answer.status, 431, "{answer:?}");
        let status = answer.json();
        assert!(status["message"].as_str().unwrap().contains("limit header"), "{status}");
        assert_eq!(status["details"]["causes"][0]["message"], "accept");
    };
    named(user.answer().await);
    user.closed().await;
    for more in [
        (0..2000).map(|n| format!("X-{n}: 1\r\n")).collect::<String>(),
        format!("X-Long: {}\r\n", "x".repeat(2 * HEADER_LIST)),
    ] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, &more)).await;
        named(user.answer().await);
    }
    // Over HTTP/2 too.
    let stream = world.user_with("localhost", None, &[certs::tls::ALPN_H2]).await.stream;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    let request = http::Request::get(format!("https://localhost{}", at("a", "/x")));
    let request = (0..1100).fold(request, |request, n| request.header(format!("x-{n}"), "1")).body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 431);
    let body = response.into_body().data().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&body).contains("limit headers of"));
}

#[tokio::test]
async fn t8_streams_beyond_the_cap_of_a_user_are_429_with_a_time_to_ask_again() {
    let world = World::with("[limits]\nstreams_per_user = 2").await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, "")).await;
        waiting.push((user, agent.next().await));
    }
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    let answer = user.answer().await;
    assert_eq!(answer.status, 429);
    assert!(answer.text().contains("streams per user of 2"), "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    drop(waiting);
    world.quiet().await;
    user.send(get(&at("a", "/x"), &token, "")).await;
    agent.next().await.answer(200, &[], "").await;
    assert_eq!(user.answer().await.status, 200);
}

#[tokio::test]
async fn t8_one_reader_that_never_reads_delays_nobody() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut stalled = world.user().await;
    stalled.send(get(&at("a", "/logs"), &token, "")).await;
    let mut flood = agent.next().await;
    flood.answer_head(200, &[]).await;
    let flooding = world.tasks.spawn_task("flood", async move {
        while flood.stream.send.send(Bytes::from(vec![7; 64 * 1024])).await.is_ok() {}
    });
    for _ in 0..20 {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, "")).await;
        agent.next().await.answer(200, &[], "fine").await;
        assert_eq!(user.answer().await.text(), "fine");
    }
    drop(flooding);
}

#[tokio::test]
async fn a_second_tunnel_takes_over_when_the_first_is_gone() {
    let world = World::new().await;
    let first = world.agent("a").await;
    let second = world.agent("a").await;
    let token = world.token("ann", "a");
    second.tunnel.close(tunnel::wire::close::CloseCode::Shutdown, "");
    let mut user = world.user().await;
    for _ in 0..3 {
        user.send(get(&at("a", "/x"), &token, "")).await;
        first.next().await.answer(200, &[], "first").await;
        assert_eq!(user.answer().await.text(), "first");
    }
    let own = world.authority.issue_agent(cluster("a").as_str(), Validity::days(1)).unwrap();
    assert!(world.dial(own.credentials()).await.is_ok());
}

/// A connection is good for the next request also where an answer came before the end of the request's body.
#[tokio::test]
async fn a_whole_answer_does_not_break_the_body_off() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let line = format!("POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n", at("a", "/x"));
    user.send(format!("{line}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(201, &[("content-length", "2")]).await;
    arrived.stream.send.send(Bytes::from_static(b"ok")).await.unwrap();
    assert_eq!(user.answer().await.text(), "ok");
    let _ = arrived.stream.send.finish();
    user.send("0\r\n\r\n").await;
    assert_eq!(arrived.body().await, b"{}");
    user.send(get(&at("a", "/y"), &token, "")).await;
    agent.next().await.answer(200, &[], "y").await;
    assert_eq!(user.answer().await.text(), "y");
}

#[tokio::test]
async fn answers_without_a_body_keep_their_headers() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &token, "").replacen("GET", "HEAD", 1)).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[("content-length", "1234"), ("content-type", "text/plain")]).await;
    let _ = arrived.stream.send.finish();
    let answer = user.head().await;
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("1234")));
    for status in [204, 304] {
        user.send(get(&at("a", "/x"), &token, "")).await;
        let mut arrived = agent.next().await;
        arrived.answer_head(status, &[("etag", "\"x\"")]).await;
        let _ = arrived.stream.send.finish();
        let answer = user.head().await;
        assert_eq!((answer.status, answer.header("etag")), (status, Some("\"x\"")));
    }
    world.quiet().await;
    assert!(world.audit().await.iter().all(|record| record["outcome"] == "complete"));
}

/// Only refusals named the request, in their bodies; whoever looked for a successful one in the logs had nothing to go
/// by.
#[tokio::test]
async fn d6_k11_every_answer_names_its_request_as_the_record_does() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let mut named = Vec::new();
    user.send(get(&at("a", "/x"), &token, "X-Towline-Request-Id: mine\r\n")).await;
    let arrived = agent.next().await;
    let (id, own) = (arrived.head.request_id.to_string(), "11111111-2222-3333-4444-555555555555");
    arrived.answer(200, &[("audit-id", own), ("x-request-id", "theirs"), ("x-towline-request-id", "no")], "{}").await;
    let answer = user.answer().await;
    assert_eq!(answer.head.to_ascii_lowercase().matches("x-towline-request-id").count(), 1, "{}", answer.head);
    assert_eq!(answer.header("x-towline-request-id"), Some(id.as_str()));
    assert_eq!((answer.header("audit-id"), answer.header("x-request-id")), (Some(own), Some("theirs")));
    named.push(answer);
    for request in [
        get(&at("a", "/x"), "wrong", ""),
        get("/nothing", &token, ""),
        get(&at("b", "/x"), &world.token("ann", "b"), ""),
        get(&at("a", "/.towline/unknown"), &token, ""),
        "GARBAGE\r\n\r\n".to_owned(),
    ] {
        user.send(request).await;
        named.push(user.answer().await);
    }
    let mut user = world.user().await;
    user.send(get(&at("a", "/exec"), &token, "Upgrade: websocket\r\nConnection: Upgrade\r\n")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(101, &[("upgrade", "websocket"), ("connection", "Upgrade")]).await;
    named.push(user.head().await);
    drop((user, arrived));
    world.quiet().await;
    let records = world.audit().await;
    assert_eq!(records.len(), named.len());
    for (answer, record) in named.iter().zip(&records) {
        let id = answer.header("x-towline-request-id").unwrap_or_else(|| panic!("{}", answer.head));
        assert_eq!(record["request_id"], id, "{record}");
        if !answer.body.is_empty() && answer.status != 200 {
            assert!(answer.text().contains(id), "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn the_agent_is_told_trace_and_deadline() {
    let world = World::with("[limits]\nrequest_timeout = \"90s\"").await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (path, shown, longest) in [
        ("/api/v1/pods", Some(theirs), 90),
        ("/api/v1/pods?watch=true", None, 3600),
        ("/api/v1/namespaces/n/pods/p/log?follow=true", Some("nonsense"), 3600),
        ("/.towline/refresh", None, 10),
    ] {
        let more = shown.map(|value| format!("Traceparent: {value}\r\nTracestate: v=1\r\n")).unwrap_or_default();
        user.send(get(&at("a", path), &token, &more)).await;
        let arrived = agent.next().await;
        let left = arrived.head.deadline_ms.unwrap();
        assert!(left <= longest * 1000 && left > longest * 500, "{path}: {left}");
        let parent = String::from_utf8(arrived.head.traceparent.clone().unwrap().to_vec()).unwrap();
        let (trace, continued) = (parent[3..35].to_owned(), shown == Some(theirs));
        let expected = if continued { theirs[3..35].to_owned() } else { arrived.head.request_id.to_string() };
        assert_eq!(trace, expected, "{path}");
        assert_eq!(
            (&parent[52..], parent.contains("00f067aa0ba902b7")),
            (if continued { "-01" } else { "-00" }, false)
        );
        assert_eq!(arrived.header("traceparent"), None);
        assert_eq!(arrived.header("tracestate"), continued.then_some("v=1"));
        arrived.answer(200, &[], "{}").await;
        assert_eq!(user.answer().await.status, 200);
        world.quiet().await;
        assert_eq!(world.audit().await.last().unwrap()["trace_id"], trace);
    }
}

/// An agent that did not answer at all was waited for without end.
#[tokio::test]
async fn an_answer_that_does_not_begin_in_time_is_504() {
    let world = World::with("[limits]\nrequest_timeout = \"100ms\"").await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/api/v1/pods"), &world.token("ann", "a"), "")).await;
    let mut arrived = agent.next().await;
    let answer = user.answer().await;
    assert_eq!((answer.status, &answer.json()["reason"]), (504, &"Timeout".into()));
    arrived.stream.send.stopped().await;
    world.quiet().await;
    assert_eq!(world.audit().await[0]["outcome"], "refused");
}

/// `kubectl exec` with an argument of 40 KB, `kubectl get -l` with 4,000 names, and as much as an apiserver takes.
#[tokio::test]
async fn target_of_a_mebibyte_arrives_and_a_longer_one_is_414() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let room = types::limits::TARGET_BYTES - at("a", "/x?a=").len();
    let mut user = world.user().await;
    for bytes in [40_000, 65_534 - 80, 65_534, 200_000, 1_000_000, room] {
        let target = format!("/x?a={}", "b%2C".repeat(bytes / 4));
        user.send(get(&at("a", &target), &token, "")).await;
        let arrived = agent.next().await;
        assert!(arrived.head.target == target.as_bytes(), "{bytes}");
        arrived.answer(200, &[], "").await;
        assert_eq!(user.answer().await.status, 200);
    }
    world.quiet().await;
    for record in world.audit().await {
        assert!(record["path"] == "/x" && record.to_string().len() < 4096, "no query in a record");
    }
    for target in [format!("/x?a={}", "b".repeat(1_100_000)), format!("/{}?a", "x".repeat(70_000))] {
        let mut user = world.user().await;
        user.send(get(&at("a", &target), &token, "")).await;
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.json()["reason"].as_str()), (414, Some("RequestURITooLong")));
        assert!(answer.text().contains("1048576 bytes"), "{}", answer.text());
    }
    agent.nothing().await;
}

/// What the gateway answers itself reads no target that the HTTP library does not take.
#[tokio::test]
async fn long_target_is_for_clusters_alone() {
    let world = World::new().await;
    for path in ["/", "/.towline/addresses", "/subscriptions/s", "/nowhere"] {
        let mut user = world.user().await;
        user.send(get(&format!("{path}?a={}", "b".repeat(100_000)), "x", "")).await;
        assert_eq!(user.answer().await.status, 414, "{path}");
    }
}

/// Each long target holds its place until its answer begins, whoever sent it.
#[tokio::test]
async fn long_targets_at_once_are_429_beyond_their_bound() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let long = get(&at("a", &format!("/x?a={}", "b".repeat(100_000))), &token, "");
    let (mut users, mut arrived) = (Vec::new(), Vec::new());
    let refused = loop {
        assert!(users.len() <= types::limits::LONG_TARGETS_PER_ADDRESS as usize, "they are bounded");
        let mut user = world.user().await;
        user.send(long.clone()).await;
        tokio::select! {
            request = agent.next() => arrived.push(request),
            answer = user.answer() => break answer,
        }
        users.push(user);
    };
    assert_eq!((refused.status, refused.json()["reason"].as_str()), (429, Some("TooManyRequests")));
    assert!(refused.text().contains("long request targets at once"), "{}", refused.text());
    let mut other = world.user().await;
    other.send(get(&at("a", "/short"), &token, "")).await;
    agent.next().await.answer(200, &[], "").await;
    assert_eq!(other.answer().await.status, 200, "others are not held up");
    arrived.pop().unwrap().answer(200, &[], "").await;
    assert_eq!(users.pop().unwrap().answer().await.status, 200);
    other.send(long).await;
    agent.next().await.answer(200, &[], "").await;
    assert_eq!(other.answer().await.status, 200, "a place was given back");
}

/// `printf 'GET ...' | nc -N` got no answer: the end of the user's side was taken for their going away.
#[tokio::test]
async fn a_user_who_half_closes_behind_a_request_gets_the_answer() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    user.send(get(&at("a", "/api/v1/pods"), &token, "")).await;
    user.stream.shutdown().await.unwrap();
    let mut arrived = agent.next().await;
    // Long enough for the end to arrive: another connection is opened, serves a request and ends.
    let mut other = world.user().await;
    other.send(get("/nothing", &token, "")).await;
    assert_eq!(other.answer().await.status, 404);
    arrived.answer_head(200, &[]).await;
    arrived.stream.send.send(Bytes::from_static(b"first")).await.unwrap();
    user.until(b"first").await;
    arrived.stream.send.send(Bytes::from_static(b"last")).await.unwrap();
    arrived.stream.send.finish().unwrap();
    user.until(b"last\r\n0\r\n\r\n").await;
    user.closed().await;
    // One of ours.
    let mut user = world.user().await;
    user.send(get("/nothing", &token, "")).await;
    user.stream.shutdown().await.unwrap();
    assert_eq!(user.answer().await.status, 404);
    user.closed().await;
    world.quiet().await;
    assert!(world.audit().await.iter().all(|record| record["outcome"] != "cancelled"));
}

#[tokio::test]
async fn a_user_who_ends_their_side_of_a_watch_is_gone_also_before_the_answer() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for begun in [false, true] {
        for path in ["/api/v1/pods?watch=1", "/api/v1/namespaces/n/pods/p/log?follow=1", "/exec"] {
            let upgrade = if path == "/exec" { "Upgrade: websocket\r\nConnection: Upgrade\r\n" } else { "" };
            if begun && path == "/exec" {
                // After a 101 the end of one side is a half-close, which is carried.
                continue;
            }
            let mut user = world.user().await;
            user.send(get(&at("a", path), &token, upgrade)).await;
            let mut arrived = agent.next().await;
            if begun {
                arrived.answer_head(200, &[]).await;
                assert_eq!(user.head().await.status, 200);
            }
            user.stream.shutdown().await.unwrap();
            let gone = arrived.stream.send.stopped();
            tokio::time::timeout(crate::world::LONG, gone).await.expect("the end is noticed");
            world.quiet().await;
        }
    }
    assert!(world.audit().await.iter().all(|record| record["outcome"] == "cancelled"));
}
