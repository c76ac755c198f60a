//! Agents on each carrier, as they dial for real.

use certs::{Validity, tls};
use tunnel::transport::CarrierKind;

use crate::world::{World, at, cluster, get};

#[tokio::test]
async fn requests_reach_an_agent_on_every_carrier() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    for carrier in [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
        let agent = world.agent_on("a", carrier).await;
        let mut user = world.user().await;
        for body in ["1", "2", "3"] {
            user.send(get(&at("a", "/x"), &token, "")).await;
            agent.next().await.answer(200, &[], body).await;
            assert_eq!(user.answer().await.text(), body, "{carrier}");
        }
        agent.tunnel.close(tunnel::wire::close::CloseCode::Shutdown, "");
        while world.gateway.core().metrics.tunnels_open() > 0 {
            tokio::task::yield_now().await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        world.quiet().await;
        assert_eq!(world.audit().await.last().unwrap()["carrier"], carrier.as_str());
    }
}

/// They were in the log alone, one line for each, as many as anybody liked to provoke.
#[tokio::test]
async fn hellos_that_fail_are_counted_and_recorded() {
    let world = World::new().await;
    let stranger = world.authority.issue_agent(cluster("unknown").as_str(), Validity::days(1)).unwrap();
    assert!(world.dial(stranger.credentials()).await.is_err());
    world.quiet().await;
    let record = world.audit().await.pop().unwrap();
    assert_eq!((&record["event"], &record["cause"]), (&"connection".into(), &"tunnel".into()), "{record}");
    let why = record["reason"].as_str().unwrap();
    assert!(why.starts_with("no tunnel over h2: ") && why.contains("is not registered"), "{why}");
    let metrics = world.gateway.core().metrics.render();
    assert!(metrics.contains("gateway_connections_refused_total{cause=\"tunnel\"} 1"), "{metrics}");
}

/// The handshake of RFC 6455, with these headers besides.
fn handshake(more: &str) -> String {
    format!(
        "GET /.towline/tunnel HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

/// A user's credential opens no tunnel, and an agent's on the users' port opens nothing but a tunnel.
#[tokio::test]
async fn the_websocket_carrier_takes_agents_only() {
    let world = World::new().await;
    let mut user = world.user().await;
    user.send(handshake("")).await;
    assert_eq!(user.answer().await.status, 400);
    // A body, which no handshake has: the 101 was sent, and then nothing.
    for body in ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"] {
        let mut user = world.user().await;
        user.send(handshake(&format!("Sec-WebSocket-Protocol: towline.v1\r\n{body}"))).await;
        assert_eq!(user.answer().await.status, 400, "{body}");
    }
    // The hello inside needs an agent's certificate; a token is nothing there.
    let mut user = world.user().await;
    let token = world.token("ann", "a");
    user.send(handshake(&format!("Sec-WebSocket-Protocol: towline.v1\r\nAuthorization: Bearer {token}\r\n"))).await;
    let answer = user.head().await;
    assert_eq!((answer.status, answer.header("sec-websocket-protocol")), (101, Some("towline.v1")));
    assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    drop(user);
    world.quiet().await;
    assert_eq!(world.gateway.core().metrics.tunnels_open(), 0);
    // An agent's certificate and no token: a user without a credential.
    let agents = world.authority.issue_agent(cluster("a").as_str(), Validity::days(1)).unwrap();
    let mut user = world.user_with("localhost", Some(&agents), &[tls::ALPN_HTTP11]).await;
    user.send(format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", at("a", "/x"))).await;
    assert_eq!(user.answer().await.status, 401);
}

/// It is held back until the handshake is answered, outside of the HTTP library, and goes to the tunnel with the
/// socket.
#[tokio::test]
async fn what_comes_with_a_websockets_handshake_is_read() {
    let world = World::new().await;
    let mut user = world.user().await;
    let handshake = handshake("Sec-WebSocket-Protocol: towline.v1\r\n");
    // Pings, masked with zeros, of more than what is held back, and half of another one.
    let many = [[0x89, 0xfd].as_slice(), &[0; 4 + 125]].concat().repeat(700);
    let early = [many.as_slice(), b"\x89\x85\0\0\0\0early\x89\x85\0\0"].concat();
    user.send([handshake.as_bytes(), &early].concat()).await;
    assert_eq!(user.head().await.status, 101);
    user.until(b"\x8a\x05early").await;
    user.send(b"\0\0later").await;
    user.until(b"\x8a\x05later").await;
}

/// Who speaks the carrier's ALPN and shows no certificate. They were allowed 1.1 GB on each connection before the
/// hello.
#[tokio::test]
async fn before_the_hello_a_peer_may_send_next_to_nothing() {
    const WINDOW_UPDATE: u8 = 8;
    const DATA: u8 = 0;
    let world = World::new().await;
    let mut peer = world.user_with("localhost", None, &[tls::ALPN_TUNNEL]).await;
    // The gateway is the HTTP/2 client: its preface and frames, up to the challenge.
    peer.send([0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
    peer.until(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut allowed = 65_535u64;
    loop {
        while peer.buffer.len() < 9 {
            assert!(peer.more().await);
        }
        let frame: Vec<u8> = peer.buffer.drain(..9).collect();
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        while peer.buffer.len() < length {
            assert!(peer.more().await);
        }
        let payload: Vec<u8> = peer.buffer.drain(..length).collect();
        match (frame[3], &frame[5..]) {
            (WINDOW_UPDATE, [0, 0, 0, 0]) => allowed += u64::from(u32::from_be_bytes(payload.try_into().unwrap())),
            (DATA, _) => break,
            _ => {}
        }
    }
    assert_eq!(allowed, 65_535);
}
