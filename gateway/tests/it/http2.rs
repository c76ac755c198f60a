//! HTTP/2 from users: what HTTP/1.1 refuses is refused here too, and floods are bounded.

use std::time::Duration;

use bytes::Bytes;
use certs::tls;
use h2::{Reason, client::SendRequest};
use http::{Request, StatusCode};

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

/// A HEADERS frame with literal fields (RFC 7541 section 6.2.2), the whole request.
fn headers_frame(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        assert!(name.len() < 127 && value.len() < 127);
        block.extend_from_slice(&[0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    let mut frame = (block.len() as u32).to_be_bytes()[1..].to_vec();
    // HEADERS with END_STREAM and END_HEADERS.
    frame.extend_from_slice(&[1, 0x5]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(&block);
    frame
}

/// Attack I2 and 4.3 over HTTP/2: connection-specific headers, upper-case names and contradicting lengths are a protocol
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
        user.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
        let pseudo =
            [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", target.as_str())];
        user.send(headers_frame(1, &[&pseudo[..], &[(name, value)]].concat())).await;
        let reset = loop {
            while user.buffer.len() < 9 {
                assert!(user.more().await, "{name}: closed without a frame");
            }
            let length = u32::from_be_bytes([0, user.buffer[0], user.buffer[1], user.buffer[2]]) as usize;
            while user.buffer.len() < 9 + length {
                assert!(user.more().await, "{name}: closed within a frame");
            }
            let frame: Vec<u8> = user.buffer.drain(..9 + length).collect();
            match frame[3] {
                1 => panic!("{name}: answered"),
                3 => break u32::from_be_bytes(frame[9..13].try_into().unwrap()),
                7 => break u32::from_be_bytes(frame[13..17].try_into().unwrap()),
                _ => {}
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
    idle.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    while idle.more().await {}
    arrived.stream.send.send(Bytes::from_static(b"event")).await.unwrap();
    assert_eq!(events.data().await.unwrap().unwrap(), "event");
}
