//! Drain, removed clusters, limits on peers.

use std::time::Duration;

use bytes::Bytes;
use tunnel::wire::close::CloseCode;

use crate::world::{LONG, World, at, cluster, config, get};

#[tokio::test]
async fn a_drain_lets_accepted_requests_finish() {
    let mut world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    user.send(get(&at("a", "/slow"), &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[("content-length", "4")]).await;
    user.head().await;
    assert_eq!(world.admin("POST", "/drain", "").await.0, 202);
    let drain = tokio::time::timeout(LONG, agent.tunnel.draining()).await.unwrap();
    assert_eq!(drain.code, CloseCode::Shutdown);
    assert_eq!(world.admin("GET", "/readyz", "").await.0, 503);
    arrived.stream.send.send(Bytes::from_static(b"done")).await.unwrap();
    arrived.stream.send.finish().unwrap();
    user.until(b"done").await;
    user.closed().await;
    world.stop().await;
    let record = world.audit_text();
    assert!(record.contains("\"complete\""), "{record}");
}

#[tokio::test]
async fn the_grace_ends_what_does_not_finish() {
    let mut world = World::with("[limits]\ndrain_grace = \"200ms\"").await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/endless"), &world.token("ann", "a"), "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    user.head().await;
    world.stop().await;
    user.closed().await;
    assert!(world.audit_text().contains("\"ended\""), "{}", world.audit_text());
}

#[tokio::test]
async fn removing_a_cluster_closes_its_tunnels() {
    let world = World::new().await;
    let agent = world.agent("b").await;
    let text = config("").replace(&format!("[[clusters]]\n        id = \"{}\"", cluster("b")), "");
    world.reconfigure(&text).await.unwrap();
    let closed = tokio::time::timeout(LONG, agent.tunnel.closed()).await.unwrap();
    assert_eq!(closed.code, CloseCode::Unauthorised);
}

/// What changes nothing is answered so that clients repeat it (they repeat what has a `Retry-After`, whatever the
/// method), and nothing else is.
#[tokio::test]
async fn a_tunnel_that_dies_fails_its_requests_and_503_follows() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    let exec =
        get(&at("a", "/api/v1/namespaces/d/pods/p/exec"), &token, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n");
    let plain = get(&at("a", "/x"), &token, "");
    let post = plain.replacen("GET", "POST", 1).replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n");
    for (request, status, again) in [(&plain, 503, Some("1")), (&post, 502, None), (&exec, 502, None)] {
        let agent = world.agent("a").await;
        let mut user = world.user().await;
        user.send(request.clone()).await;
        let arrived = agent.next().await;
        agent.tunnel.close(CloseCode::Shutdown, "");
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, again), "{request}");
        drop(arrived);
        while world.gateway.core().metrics.tunnels_open() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut user = world.user().await;
        user.send(plain.clone()).await;
        assert_eq!(user.answer().await.status, 503);
    }
}

/// A drain waited its whole grace for open watches, which never end by themselves.
#[tokio::test]
async fn a_drain_ends_watches_early_between_two_messages_and_keeps_the_rest() {
    // Longer than anything in a test may take.
    let mut world = World::with("[limits]\ndrain_grace = \"24s\"").await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let json = [("content-type", "application/json")];
    let mut logs = world.user().await;
    logs.send(get(&at("a", "/api/v1/namespaces/n/pods/p/log?follow=true"), &token, "")).await;
    let mut following = agent.next().await;
    following.answer_head(200, &json).await;
    logs.head().await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/api/v1/pods?watch=true"), &token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &json).await;
    arrived.stream.send.send(Bytes::from_static(b"{\"a\":1}\n{\"b\"")).await.unwrap();
    user.until(b"{\"b\"").await;
    world.gateway.drain();
    tokio::time::timeout(LONG, agent.tunnel.draining()).await.unwrap();
    // Within a message it goes on.
    arrived.stream.send.send(Bytes::from_static(b":2}\n")).await.unwrap();
    user.until(b":2}\n\r\n").await;
    user.until(b"0\r\n\r\n").await;
    user.closed().await;
    arrived.stream.send.stopped().await;
    // What is no watch goes on to its own end.
    assert_eq!(world.gateway.core().metrics.requests.now(), 1);
    following.stream.send.send(Bytes::from_static(b"last line")).await.unwrap();
    following.stream.send.finish().unwrap();
    logs.until(b"last line\r\n0\r\n\r\n").await;
    world.stop().await;
    let records = world.audit_text();
    assert!(records.contains("between two messages") && records.contains("\"complete\""), "{records}");
}

#[tokio::test]
async fn an_agent_that_stops_is_left_by_its_watches() {
    let world = World::with("[limits]\ndrain_grace = \"400ms\"").await;
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/api/v1/pods?watch=true"), &world.token("ann", "a"), "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[("content-type", "application/vnd.kubernetes.protobuf;stream=watch")]).await;
    arrived.stream.send.send(Bytes::from_static(b"\0\0\0\x02ab")).await.unwrap();
    user.until(b"ab").await;
    agent.tunnel.drain(CloseCode::Shutdown, Duration::from_secs(1));
    user.until(b"0\r\n\r\n").await;
    arrived.stream.send.stopped().await;
    world.quiet().await;
    assert_eq!(world.audit().await[0]["outcome"], "ended");
}
