//! Agents that fall silent, that only look, and peers that prove nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use gateway::fleet::registry::Registry;
use tunnel::{
    transport::{CarrierKind, session::AgentSide, testing::UdpCable},
    wire::close::CloseCode,
};
use types::{limits, version::Features};

use crate::world::{LONG, World, agent_side, at, get};

async fn tunnels(world: &World, count: i64) {
    let metrics = &world.gateway.core().metrics;
    let all = async {
        while metrics.tunnels_open() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, all).await.unwrap_or_else(|_| panic!("{} tunnels", metrics.tunnels_open()));
}

/// Requests on a QUIC tunnel whose agent was killed, or whose UDP was dropped, hung for 20 s.
#[tokio::test]
async fn a_request_on_a_quic_tunnel_that_fell_silent_is_answered_within_seconds() {
    let world = World::new().await;
    let cable = UdpCable::to(world.addresses.tunnel).await.unwrap();
    let agent = world.agent_at(cable.address(), "a", CarrierKind::Quic, agent_side()).await;
    let token = world.token("ann", "a");
    let (mut open, mut new) = (world.user().await, world.user().await);
    open.send(get(&at("a", "/open"), &token, "")).await;
    let _arrived = agent.next().await;
    cable.lose(100, 100);
    let cut = Instant::now();
    new.send(get(&at("a", "/new"), &token, "")).await;
    for user in [&mut open, &mut new] {
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    }
    assert!(cut.elapsed() < limits::PROBE_DEADLINE, "{:?}", cut.elapsed());
    assert_eq!(agent.tunnel.closed().await.code, CloseCode::Dead);
    world.quiet().await;
}

/// Each idle tunnel's loss was looked at twice a minute, which was a fifth of what ten thousand cost. One that is used
/// has to be looked at again.
#[tokio::test]
async fn a_tunnel_that_nobody_uses_is_left_alone_until_somebody_does() {
    let world = World::new().await;
    let agent = world.agent_on("a", CarrierKind::Http2).await;
    tunnels(&world, 1).await;
    let live = world.gateway.core().tunnels.all().remove(0);
    // Beside the one whose own task waits until it is used.
    let (registry, named) = (Arc::new(Registry::default()), live.names.clone());
    let tunnel = registry.add(live.handle.clone(), live.cluster.clone(), named, None).tunnel.clone();
    assert!(tunnel.rest() && tunnel.used().now_or_never().is_none());
    tunnel.use_now();
    assert!(tunnel.used().now_or_never().is_some());
    // A second call wakes nobody: use is told once.
    tunnel.use_now();
    assert!(tunnel.used().now_or_never().is_none());

    assert!(live.rest());
    let (mut user, token) = (world.user().await, world.token("ann", "a"));
    user.send(get(&at("a", "/x"), &token, "")).await;
    let arrived = agent.next().await;
    assert!(!live.rest(), "a stream is open");
    arrived.answer(200, &[], "fine").await;
    assert_eq!(user.answer().await.status, 200);
}

/// The registry took the emptier tunnel, which the one that had just died often was.
#[tokio::test]
async fn new_requests_go_to_the_new_tunnel_at_once_and_the_old_one_is_probed() {
    let world = World::new().await;
    let cable = UdpCable::to(world.addresses.tunnel).await.unwrap();
    let old = world.agent_at(cable.address(), "a", CarrierKind::Quic, agent_side()).await;
    tunnels(&world, 1).await;
    cable.lose(100, 100);
    let new = world.agent_on("a", CarrierKind::Http2).await;
    tunnels(&world, 2).await;
    let token = world.token("ann", "a");
    let suspected = async {
        let suspect = || {
            let tunnels = world.gateway.core().tunnels.all();
            tunnels.iter().any(|tunnel| tunnel.handle.suspect()) || tunnels.len() == 1
        };
        while !suspect() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, suspected).await.unwrap();
    // One stream is open on the new tunnel and none on the old one.
    let mut users = vec![world.user().await, world.user().await];
    let mut held = Vec::new();
    for user in &mut users {
        user.send(get(&at("a", "/x"), &token, "")).await;
        held.push(new.next().await);
    }
    tunnels(&world, 1).await;
    assert_eq!(old.tunnel.closed().await.code, CloseCode::Dead);
    for (arrived, user) in held.into_iter().zip(&mut users) {
        arrived.answer(200, &[], "fine").await;
        assert_eq!(user.answer().await.status, 200);
    }
}

/// A request could be sent to the short tunnel of `towline-agent check`, which serves nothing.
#[tokio::test]
async fn a_tunnel_that_is_only_checked_gets_no_requests() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    for carrier in [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
        let side = AgentSide { features: Features::CHECK, ..agent_side() };
        let check = world.agent_at(world.addresses.public, "a", carrier, side).await;
        assert!(check.tunnel.info().features.contains(Features::CHECK));
        let mut user = world.user().await;
        user.send(get(&at("a", "/x"), &token, "")).await;
        assert_eq!(user.answer().await.status, 503, "{carrier}");
        check.tunnel.close(CloseCode::Shutdown, "a check");
        world.quiet().await;
        assert_eq!(world.gateway.core().metrics.tunnels_open(), 0);
    }
}

/// Handshakes counted for whatever address stood in a datagram: anybody could use up another's places.
#[tokio::test]
async fn a_spoofer_uses_up_no_places_of_another_address() {
    let world = World::with("[limits]\nhandshakes_per_address = 1").await;
    let spoofed = UdpCable::to(world.addresses.tunnel).await.unwrap();
    // What the gateway answers goes to the address that was spoofed, and not to the spoofer.
    spoofed.lose(0, 100);
    let spoofing = world.agent_at(spoofed.address(), "a", CarrierKind::Quic, agent_side());
    let mut spoofing = std::pin::pin!(spoofing);
    let begun = async {
        while world.gateway.core().metrics.handshakes.now() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = &mut spoofing => panic!("nothing came back, and yet a tunnel is up"),
        begun = tokio::time::timeout(LONG, begun) => begun.unwrap(),
    }
    // All are at one address here.
    for carrier in [CarrierKind::Quic, CarrierKind::Http2] {
        let agent = world.agent_on("a", carrier).await;
        drop(agent);
    }
}
