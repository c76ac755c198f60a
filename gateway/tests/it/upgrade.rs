//! Upgrades: byte-transparent both ways with half-close; anything but a 101 leaves the connection HTTP.

use bytes::Bytes;
use tokio::io::AsyncWriteExt;

use crate::world::{World, at, get};

const SPDY: &str = "Upgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";
const SWITCH: &[(&str, &str)] = &[("upgrade", "SPDY/3.1"), ("connection", "Upgrade")];

#[tokio::test]
async fn t9_upgraded_bytes_flow_both_ways_glued_and_half_closed() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    // The first bytes of the other protocol come with the head.
    user.send(format!("{}glued", get(&at("a", "/exec"), &token, SPDY))).await;
    let mut arrived = agent.next().await;
    assert_eq!(arrived.header("upgrade"), Some("SPDY/3.1"));
    assert!(arrived.header("connection").unwrap().eq_ignore_ascii_case("upgrade"));
    for name in ["content-length", "transfer-encoding"] {
        assert_eq!(arrived.header(name), None);
    }
    arrived.answer_head(101, SWITCH).await;
    arrived.stream.send.send(Bytes::from_static(b"first")).await.unwrap();
    let answer = user.head().await;
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("SPDY/3.1")));
    user.until(b"first").await;
    assert_eq!(arrived.stream.recv.recv().await.unwrap().unwrap(), "glued");
    // Bytes that look like a request are not one any more.
    user.send("GET / HTTP/1.1\r\nTransfer-Encoding: x\n\n").await;
    user.stream.shutdown().await.unwrap();
    assert_eq!(arrived.body().await, b"GET / HTTP/1.1\r\nTransfer-Encoding: x\n\n");
    // Our side has ended; the other still gives its last bytes.
    arrived.stream.send.send(Bytes::from_static(b"last")).await.unwrap();
    arrived.stream.send.finish().unwrap();
    user.until(b"last").await;
    user.closed().await;
    world.quiet().await;
    let record = world.audit().await.pop().unwrap();
    assert_eq!((&record["status"], &record["outcome"]), (&101.into(), &"complete".into()), "{record}");
    assert_eq!((&record["bytes_up"], &record["bytes_down"]), (&43.into(), &9.into()), "{record}");
}

/// CVE-2018-1002105: after a refused upgrade the next bytes are a new request, authenticated anew.
#[tokio::test]
async fn t9_after_a_refused_upgrade_the_next_request_is_authenticated_anew() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for status in [200, 400, 403, 501] {
        let mut user = world.user().await;
        let next = format!("GET {} HTTP/1.1\r\nHost: localhost\r\nX-Marker: smuggled\r\n\r\n", at("a", "/secret"));
        user.send(format!("{}{next}", get(&at("a", "/exec"), &token, SPDY))).await;
        let mut arrived = agent.next().await;
        arrived.answer_head(status, &[("content-length", "2"), ("x-from", "apiserver")]).await;
        arrived.stream.send.send(Bytes::from_static(b"no")).await.unwrap();
        // Nothing of the next request went to where the upgrade was asked.
        assert!(arrived.stream.recv.recv().await.unwrap_or(None).is_none());
        // Its announced bytes are there, so the reader may have stopped already.
        let _ = arrived.stream.send.finish();
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.text().as_str(), answer.header("x-from")), (status, "no", Some("apiserver")));
        assert_eq!(user.answer().await.status, 401);
        user.send(get(&at("a", "/fine"), &token, "")).await;
        agent.next().await.answer(200, &[], "fine").await;
        assert_eq!(user.answer().await.text(), "fine");
    }
    agent.nothing().await;
}

#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_502() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let other: &[(&str, &str)] = &[("upgrade", "websocket"), ("connection", "Upgrade")];
    for (asked, given) in [("", SWITCH), (SPDY, other), (SPDY, &[])] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, asked)).await;
        let mut arrived = agent.next().await;
        arrived.answer_head(101, given).await;
        assert_eq!(user.answer().await.status, 502, "{asked} {given:?}");
    }
    world.quiet().await;
}

#[tokio::test]
async fn an_upgraded_connection_that_breaks_resets_the_stream() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    user.send(get(&at("a", "/exec"), &token, SPDY)).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(101, SWITCH).await;
    user.head().await;
    agent.tunnel.close(tunnel::wire::close::CloseCode::Shutdown, "");
    user.closed().await;
    drop(arrived);
    world.quiet().await;
}
