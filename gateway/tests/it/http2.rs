//! HTTP/2 from users: what HTTP/1.1 refuses is refused here too, and floods are bounded.

use std::time::Duration;

use bytes::Bytes;
use certs::tls;
use h2::{Reason, client::SendRequest};
use http::{Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{LONG, World, at};

async fn client(world: &World) -> SendRequest<Bytes> {
    let stream = world.user_with("localhost", None, &[tls::ALPN_H2]).await.stream;
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    sender
}

fn request(target: &str, token: &str) -> http::request::Builder {
    Request::get(format!("https://localhost{target}")).header("authorization", format!("Bearer {token}"))
}

async fn status(sender: &mut SendRequest<Bytes>, request: Request<()>) -> Result<StatusCode, h2::Error> {
    *sender = sender.clone().ready().await?;
    let (response, _) = sender.send_request(request, true)?;
    tokio::time::timeout(LONG, response).await.unwrap().map(|response| response.status())
}

#[tokio::test]
async fn what_http1_refuses_is_refused_over_http2() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut sender = client(&world).await;
    let target = at("a", "/x");
    for (builder, expected) in [
        (request(&target, &token).header("host", "elsewhere"), StatusCode::BAD_REQUEST),
        (request(&target, &token).header("impersonate_user", "admin"), StatusCode::BAD_REQUEST),
        (request(&target, &token).header("impersonate-surprise", "x"), StatusCode::FORBIDDEN),
        (request(&target, &token).header("authorization", "Bearer b"), StatusCode::UNAUTHORIZED),
        (request(&at("a", "/../b"), &token), StatusCode::BAD_REQUEST),
        (request(&at("a", "/%2e%2e/b"), &token), StatusCode::BAD_REQUEST),
        (request(&target, &token).method("TRACE"), StatusCode::METHOD_NOT_ALLOWED),
    ] {
        assert_eq!(status(&mut sender, builder.body(()).unwrap()).await.unwrap(), expected);
    }
    agent.nothing().await;
}

#[tokio::test]
async fn target_of_64_kilobytes_arrives_over_http2() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut sender = client(&world).await.ready().await.unwrap();
    let room = types::limits::PLAIN_TARGET_BYTES - at("a", "/x?a=").len() - "https://localhost".len();
    let target = format!("/x?a={}", "b".repeat(room));
    let (_response, _) = sender.send_request(request(&at("a", &target), &token).body(()).unwrap(), true).unwrap();
    assert!(agent.next().await.head.target == target.as_bytes());
}

#[tokio::test]
async fn names_of_any_alphabet_and_underscores_arrive_over_http2() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut sender = client(&world).await.ready().await.unwrap();
    let name = http::HeaderValue::from_bytes("j\u{f6}rg".as_bytes()).unwrap();
    let asked = request(&at("a", "/x"), &token).header("impersonate-user", name);
    let asked = asked.header("impersonate-extra-my_key", "v").header("x_custom", "1");
    let (_response, _) = sender.send_request(asked.body(()).unwrap(), true).unwrap();
    let headers = agent.next().await.head.headers;
    for (name, expected) in [("impersonate-user", "j\u{f6}rg"), ("impersonate-extra-my_key", "v"), ("x_custom", "1")] {
        assert_eq!(headers[name].as_bytes(), expected.as_bytes(), "{name}");
    }
}

/// What a client sends first: the preface and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GOAWAY: u8 = 7;

/// A length with a prefix of 7 bits (RFC 7541 section 5.1).
fn length(out: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else { return out.push(length as u8) };
    out.push(127);
    while rest >= 128 {
        out.push(128 | (rest % 128) as u8);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// A whole request with literal fields (RFC 7541 section 6.2.2) in frames of `size`: HEADERS with END_STREAM, and
/// CONTINUATION.
fn head_frames(stream: u32, size: usize, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut frames = Vec::new();
    let last = block.chunks(size).count() - 1;
    for (index, piece) in block.chunks(size).enumerate() {
        let (kind, end_stream) = if index == 0 { (1, 0x1) } else { (9, 0) };
        frames.extend_from_slice(&(piece.len() as u32).to_be_bytes()[1..]);
        frames.extend_from_slice(&[kind, end_stream | if index == last { 0x4 } else { 0 }]);
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(piece);
    }
    frames
}

fn headers_frame(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    head_frames(stream, 16 * 1024, fields)
}

/// The next frame: kind, stream, payload. `None`: the connection is closed.
async fn frame(user: &mut crate::world::User) -> Option<(u8, u32, Vec<u8>)> {
    while user.buffer.len() < 9 {
        if !user.more().await {
            return None;
        }
    }
    let length = u32::from_be_bytes([0, user.buffer[0], user.buffer[1], user.buffer[2]]) as usize;
    while user.buffer.len() < 9 + length {
        if !user.more().await {
            return None;
        }
    }
    let frame: Vec<u8> = user.buffer.drain(..9 + length).collect();
    Some((frame[3], u32::from_be_bytes(frame[5..9].try_into().unwrap()), frame[9..].to_vec()))
}

/// Heads over 112 KiB in frames of 16 KiB ended the connection, for the h2 crate allowed as many CONTINUATION frames as
/// the longest list takes in frames of 256 KiB. Now what is within the limits works, and what is over them is a 431 for
/// that request alone, which names the limit.
#[tokio::test]
async fn long_heads_in_small_frames_are_taken_or_431_and_the_connection_lives() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = format!("Bearer {}", world.token("ann", "a"));
    let mut user = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
    user.send(PREFACE).await;
    let whole = "x".repeat(types::limits::HEADER_LIST_BYTES - 2048);
    let group = "g".repeat(100);
    for (round, (filler, count, query, refused)) in [
        (whole.as_str(), 1, "", None),
        (&group, 300, "", None),
        (&group, 1000, "", None),
        ("y", 1, &*"q".repeat(30_000), None),
        (&"x".repeat(140_000), 1, "", Some("header bytes of 131072")),
        (&"x".repeat(300_000), 1, "", Some("header bytes of 131072")),
        (&group, 1025, "", Some("headers of 1024")),
        ("y", 1, "", None),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = 2 * round as u32 + 1;
        let path = at("a", &format!("/{round}?{query}"));
        let mut fields = vec![
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path.as_str()),
            ("authorization", token.as_str()),
        ];
        fields.extend(std::iter::repeat_n(("x-filler", filler), count));
        user.send(head_frames(stream, 16 * 1024, &fields)).await;
        if refused.is_none() {
            let arrived = agent.next().await;
            assert_eq!(arrived.head.target, format!("/{round}?{query}"));
            assert_eq!(arrived.head.headers.get_all("x-filler").iter().count(), count);
            arrived.answer(200, &[], "fine").await;
        }
        let mut body = Vec::new();
        while body.is_empty() || (refused.is_some() && !body.ends_with(b"}")) {
            let (kind, on, payload) = frame(&mut user).await.unwrap_or_else(|| panic!("{round}: closed"));
            assert!(kind != GOAWAY && kind != 3, "{round}: {kind} {payload:?}");
            if kind == 0 && on == stream {
                body.extend_from_slice(&payload);
            }
        }
        match refused {
            None => assert_eq!(body, b"fine"),
            Some(limit) => {
                let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &431.into()));
                assert!(status["message"].as_str().unwrap().contains(limit), "{status}");
            }
        }
    }
    agent.nothing().await;
}

/// docs/threats.md TH2 and TH19: connection-specific headers, upper-case names and contradicting lengths are a protocol
/// error of the stream (RFC 9113 sections 8.1.1 and 8.2).
#[tokio::test]
async fn malformed_heads_over_http2_are_a_protocol_error() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let target = at("a", "/x");
    for (name, value) in [
        ("connection", "impersonate-user"),
        ("upgrade", "websocket"),
        ("transfer-encoding", "chunked"),
        ("keep-alive", "1"),
        ("Impersonate-User", "admin"),
        ("content-length", "5"),
        ("a b", "c"),
        ("x", "a\r\nb: c"),
        (":surprise", "x"),
    ] {
        let mut user = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
        user.send(PREFACE).await;
        let pseudo =
            [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", target.as_str())];
        user.send(headers_frame(1, &[&pseudo[..], &[(name, value)]].concat())).await;
        let reset = loop {
            match frame(&mut user).await {
                None => panic!("{name}: closed without a frame"),
                Some((1, ..)) => panic!("{name}: answered"),
                Some((3, _, payload)) => break u32::from_be_bytes(payload[..4].try_into().unwrap()),
                Some((GOAWAY, _, payload)) => break u32::from_be_bytes(payload[4..8].try_into().unwrap()),
                Some(_) => {}
            }
        };
        assert_eq!(reset, u32::from(Reason::PROTOCOL_ERROR), "{name}");
    }
    agent.nothing().await;
}

#[tokio::test]
async fn a_broken_answer_over_http2_is_a_reset_stream_and_the_connection_lives() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut sender = client(&world).await;
    let (response, _) = sender.send_request(request(&at("a", "/x"), &token).body(()).unwrap(), true).unwrap();
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    arrived.stream.send.send(Bytes::from_static(b"half")).await.unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "half");
    drop(arrived);
    assert!(body.data().await.unwrap().is_err());
    let (response, _) = sender.send_request(request(&at("a", "/y"), &token).body(()).unwrap(), true).unwrap();
    agent.next().await.answer(200, &[], "y").await;
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
}

/// CVE-2023-44487: requests that are reset at once. The connection may end; others go on and nothing stays open.
#[tokio::test]
async fn a_rapid_reset_flood_is_bounded() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let tunnel = agent.tunnel.clone();
    let sink = world.tasks.spawn_task("sink", async move { while tunnel.accept().await.is_ok() {} });
    let token = world.token("ann", "a");
    let mut sender = client(&world).await;
    for _ in 0..5_000 {
        let Ok(ready) = sender.clone().ready().await else { break };
        sender = ready;
        let request = request(&at("a", "/x"), &token).body(()).unwrap();
        let Ok((response, mut body)) = sender.send_request(request, true) else { break };
        body.send_reset(Reason::CANCEL);
        drop(response);
    }
    drop(sink);
    let mut other = client(&world).await;
    let (response, _) = other.send_request(request(&at("a", "/y"), &token).body(()).unwrap(), true).unwrap();
    loop {
        let arrived = agent.next().await;
        if arrived.head.target == "/y" {
            arrived.answer(200, &[], "").await;
            break;
        }
    }
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    drop(sender);
    world.quiet().await;
}

#[tokio::test]
async fn many_cancelled_requests_leave_nothing_open() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let tunnel = agent.tunnel.clone();
    let sink = world.tasks.spawn_task("sink", async move {
        let mut held = std::collections::VecDeque::new();
        while let Ok(incoming) = tunnel.accept().await {
            held.push_back(incoming);
            held.truncate(50);
        }
    });
    let token = world.token("ann", "a");
    for round in 0..10 {
        let mut sender = client(&world).await;
        let mut waiting = Vec::new();
        for _ in 0..100 {
            sender = sender.ready().await.unwrap();
            let request = request(&at("a", "/api/v1/pods?watch=1"), &token).body(()).unwrap();
            waiting.push(sender.send_request(request, true).unwrap().0);
        }
        if round % 2 == 0 {
            tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await.unwrap_err();
        }
    }
    world.quiet().await;
    drop(sink);
}

#[tokio::test]
async fn an_idle_connection_is_ended_and_one_with_a_watch_is_not() {
    let world = World::with("[limits]\nidle_timeout = \"100ms\"").await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut watching = client(&world).await;
    let (response, _) = watching.send_request(request(&at("a", "/w?watch=1"), &token).body(()).unwrap(), true).unwrap();
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    let mut events = response.await.unwrap().into_body();
    // A second connection that does nothing sees GOAWAY, and then its end.
    let mut idle = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
    idle.send(PREFACE).await;
    while idle.more().await {}
    arrived.stream.send.send(Bytes::from_static(b"event")).await.unwrap();
    assert_eq!(events.data().await.unwrap().unwrap(), "event");
}

/// A client that opens no window made the gateway hold thousands of refusals on each connection, without a credential:
/// 15 MB a connection. Over the bound they come without their body, which needs no window.
#[tokio::test]
async fn answers_that_a_client_never_takes_are_bounded() {
    let world = World::new().await;
    let stream = world.user_with("localhost", None, &[tls::ALPN_H2]).await.stream;
    let (sender, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    let mut held = Vec::new();
    // Fewer than after which a connection of nobody is ended.
    for _ in 0..200 {
        let mut sender = sender.clone().ready().await.unwrap();
        let request = Request::get(format!("https://localhost{}", at("a", "/x"))).body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let response = tokio::time::timeout(LONG, response).await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        held.push(response);
    }
    let with_body = held.iter().filter(|response| !response.body().is_end_stream()).count();
    assert_eq!(with_body, 128);
    // What was taken makes room again.
    drop(held);
    world.quiet().await;
}

/// What the library refuses by frame left no trace anywhere.
#[tokio::test]
async fn connections_that_the_library_ends_are_counted_and_recorded_at_a_bounded_rate() {
    use gateway::audit::sampled::RECORDS;
    let world = World::new().await;
    // DATA on stream 0 is a connection error (RFC 9113 section 6.1).
    let faulty = [PREFACE, b"\0\0\x01\0\0\0\0\0\0x"].concat();
    let count = 2 * RECORDS;
    for _ in 0..count {
        let mut user = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
        user.send(&faulty).await;
        while let Some((kind, _, payload)) = frame(&mut user).await {
            if kind == GOAWAY {
                assert_eq!(payload[7], 1, "PROTOCOL_ERROR");
            }
        }
    }
    let counted = format!("gateway_connections_refused_total{{cause=\"http2\"}} {count}");
    let all = async {
        while !world.gateway.core().metrics.render().contains(&counted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("all are counted");
    let records = world.audit().await;
    assert!(!records.is_empty(), "none recorded");
    for record in &records {
        assert_eq!((&record["event"], &record["outcome"]), (&"connection".into(), &"refused".into()), "{record}");
        assert_eq!((&record["stage"], &record["cause"]), (&"accept".into(), &"http2".into()), "{record}");
        assert!(record["reason"].as_str().unwrap().contains("detected"), "{record}");
        assert!(record["user_address"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
    }
    // However long it took, the lines that were left out are told.
    let unrecorded: u64 = records.iter().map(|record| record["unrecorded"].as_u64().unwrap()).sum();
    assert!(records.len() as u64 + unrecorded <= u64::from(count));
}

/// No client may send it, and the library cuts it off without a word: what is left is all that is judged and forwarded.
#[tokio::test]
async fn of_a_path_with_a_fragment_only_what_stands_before_it_counts() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = format!("Bearer {}", world.token("ann", "a"));
    let mut user = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
    user.send(PREFACE).await;
    let path = at("a", "/api/v1/pods#/../secrets?watch=1");
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", &path),
        ("authorization", &token),
    ];
    user.send(headers_frame(1, &fields)).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.head.target, "/api/v1/pods");
    arrived.answer(200, &[], "{}").await;
    world.quiet().await;
    let record = &world.audit().await[0];
    assert_eq!((&record["path"], &record["verb"]), (&"/api/v1/pods".into(), &"list".into()), "{record}");
}

/// Frames that cost the sender nothing and us a turn each were taken without any bound.
#[tokio::test]
async fn floods_of_frames_that_ask_for_nothing_end_the_connection() {
    let world = World::new().await;
    let (ping, settings, priority) = (
        b"\0\0\x08\x06\0\0\0\0\0abcdefgh".as_slice(),
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xff\xff".as_slice(),
        b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10".as_slice(),
    );
    for one in [ping, settings, priority] {
        let mut user = world.user_with("localhost", None, &[tls::ALPN_H2]).await;
        user.send(PREFACE).await;
        let flood = async {
            let (mut reading, mut writing) = tokio::io::split(&mut user.stream);
            let read = async { while reading.read(&mut [0; 65536]).await.is_ok_and(|read| read > 0) {} };
            let write = async {
                let many = one.repeat(1000);
                while writing.write_all(&many).await.is_ok() {}
            };
            tokio::join!(read, write);
        };
        tokio::time::timeout(LONG, flood).await.unwrap_or_else(|_| panic!("{one:?} goes on for ever"));
    }
    world.quiet().await;
    // They were counted as HTTP/1.1.
    let metrics = world.gateway.core().metrics.render();
    let refused: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("gateway_connections_refused_total")).collect();
    assert_eq!(refused, ["gateway_connections_refused_total{cause=\"http2\"} 3"]);
}

/// Requests with a token that does not hold, one after the other, until the connection takes no more.
async fn refused_until_it_ends(world: &World) -> usize {
    let mut sender = client(world).await;
    for refused in 0..10_000 {
        match status(&mut sender, request(&at("a", "/api"), "nobody's").body(()).unwrap()).await {
            Ok(code) => assert_eq!(code, StatusCode::UNAUTHORIZED),
            Err(_) => return refused,
        }
    }
    panic!("it goes on for ever");
}

#[tokio::test]
async fn a_connection_that_is_refused_again_and_again_ends_and_no_other_one_does() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut good = client(&world).await;
    let first = refused_until_it_ends(&world).await;
    // As many, and one for each second that it took.
    assert!(first > gateway::admission::unproven::REFUSED as usize, "{first}");
    let second = refused_until_it_ends(&world).await;
    assert!(second < first, "{first}, and {second} on the next connection of this address");
    // Who has a token that holds is served at the same address, on a connection that was there and on a new one.
    for sender in [&mut good, &mut client(&world).await] {
        *sender = sender.clone().ready().await.unwrap();
        let (response, _) = sender.send_request(request(&at("a", "/api"), &token).body(()).unwrap(), true).unwrap();
        agent.next().await.answer(200, &[], "").await;
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_connection_may_have_many_watches_open_beside_many_refused_requests() {
    const WATCHES: usize = 500;
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut sender = client(&world).await;
    let (mut watches, mut refused) = (Vec::new(), Vec::new());
    let target = at("a", "/api/v1/pods?watch=1");
    for n in 0..WATCHES {
        sender = sender.ready().await.unwrap();
        watches.push(sender.send_request(request(&target, &token).body(()).unwrap(), true).unwrap().0);
        if n % 10 == 0 {
            refused.push(sender.send_request(request(&target, "nobody's").body(()).unwrap(), true).unwrap().0);
        }
    }
    let mut arrived = Vec::new();
    for _ in 0..WATCHES {
        arrived.push(agent.next().await);
    }
    for response in refused {
        assert_eq!(response.await.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
    for watch in &mut arrived {
        watch.answer_head(200, &[]).await;
    }
    for watch in watches {
        assert_eq!(watch.await.unwrap().status(), StatusCode::OK);
    }
}
