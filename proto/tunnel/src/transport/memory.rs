//! Tunnels in memory, for tests: the same session layer over [`carriers`] without sockets.

pub use super::carrier::memory::carriers;
use super::{
    CarrierKind, TunnelHandle,
    carrier::Carrier,
    session::{self, AgentSide, GatewaySide, SessionOptions},
};
use crate::wire::hello::Replica;

/// A tunnel's two ends: the gateway's, the agent's. Within a tokio runtime.
pub async fn pair() -> (TunnelHandle, TunnelHandle) {
    pair_with(SessionOptions::default()).await
}

/// As [`pair`], with other times.
pub async fn pair_with(options: SessionOptions) -> (TunnelHandle, TunnelHandle) {
    pair_as(CarrierKind::Memory, options).await
}

/// As [`pair`], in the place of another carrier.
pub async fn pair_as(kind: CarrierKind, options: SessionOptions) -> (TunnelHandle, TunnelHandle) {
    let (mut gateway, mut agent) = carriers();
    (gateway.facts.kind, agent.facts.kind) = (kind, kind);
    joined(gateway, agent, options).await
}

/// As [`pair_as`], to one of several replicas of a gateway.
pub async fn pair_at(kind: CarrierKind, replica: Replica) -> (TunnelHandle, TunnelHandle) {
    let (mut gateway, mut agent) = carriers();
    (gateway.facts.kind, agent.facts.kind) = (kind, kind);
    joined_at(gateway, agent, SessionOptions::default(), Some(replica)).await
}

/// The tunnel of two ends in one process, neither of which refuses the other.
pub(crate) async fn joined(gateway: Carrier, agent: Carrier, options: SessionOptions) -> (TunnelHandle, TunnelHandle) {
    joined_at(gateway, agent, options, None).await
}

async fn joined_at(
    gateway: Carrier,
    agent: Carrier,
    options: SessionOptions,
    replica: Option<Replica>,
) -> (TunnelHandle, TunnelHandle) {
    let gateway_side = GatewaySide {
        session: [7; 16],
        replica,
        authenticate: |_| async { Ok::<_, crate::wire::hello::Refuse>(()) },
        options: options.clone(),
    };
    let agent_side = AgentSide {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: [9; 16],
        features: types::version::Features::default(),
        held: Vec::new(),
        prove: Box::new(|_| Err("no proof in memory".to_owned())),
        options,
    };
    let (gateway, agent) = tokio::join!(session::accept(gateway, gateway_side), session::connect(agent, agent_side));
    // Both ends are of this build and nothing is in between that could fail: such a hello always succeeds.
    (gateway.expect("hello in memory").0, agent.expect("hello in memory"))
}
