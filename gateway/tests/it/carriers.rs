//! Agents on each carrier, as they dial for real.

use certs::{Validity, tls};
use proto::transport::CarrierKind;

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
        agent.tunnel.close(proto::wire::close::CloseCode::Shutdown, "");
        while world.gateway.core().metrics.tunnels_open() > 0 {
            tokio::task::yield_now().await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        world.quiet().await;
        assert_eq!(world.audit().await.last().unwrap()["carrier"], carrier.as_str());
    }
}

/// A user's credential opens no tunnel, and an agent's on the users' port opens nothing but a tunnel.
#[tokio::test]
async fn the_websocket_carrier_takes_agents_only() {
    let world = World::new().await;
    let handshake = |more: &str| {
        format!(
            "GET /.towline/tunnel HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
        )
    };
    let mut user = world.user().await;
    user.send(handshake("")).await;
    assert_eq!(user.answer().await.status, 400);
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
