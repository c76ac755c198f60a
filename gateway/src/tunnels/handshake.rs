//! The hello: the agent's identity from its certificate, the cluster from the identity.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use certs::{Peer, PeerError, Roots};
use rustls::pki_types::CertificateDer;
use tunnel::{
    transport::{
        TunnelHandle,
        carrier::Carrier,
        session::{self, GatewaySide, HelloError, Presented},
    },
    wire::{
        close::CloseCode,
        hello::{Refuse, Replica},
    },
};
use types::{
    agent_api::{CONNECT_AGAIN, codes},
    ids::ClusterId,
};

use crate::{
    cluster::{ClusterRef, Named},
    control::tell,
    core::Core,
    random,
    replicas::Replicas,
    skew,
};

/// Tunnels of one cluster at once, at all replicas together: several agents, each with a few connections.
pub const TUNNELS_PER_CLUSTER: usize = 64;
/// What an agent reads that dialled a second tunnel to the same replica.
const ALREADY_HERE: &str = "this agent has a tunnel to this replica already:";
/// When a refused agent should try again.
const RETRY: Duration = Duration::from_secs(30);
/// The same, where the gateway is only too busy.
const RETRY_BUSY: Duration = Duration::from_secs(2);
/// The same, where the agent's version is too old: only other agents help.
const RETRY_OUTDATED: Duration = Duration::from_secs(300);

/// A tunnel that is up, and what is known of its agent.
pub struct Welcomed {
    /// Opens streams to the agent, and drains or closes the tunnel.
    pub handle: TunnelHandle,
    /// The cluster that the tunnel leads to.
    pub cluster: ClusterRef,
    /// What the agent's certificate names beside the cluster.
    pub names: Named,
    /// What the agent showed.
    pub chain: Vec<CertificateDer<'static>>,
    /// The authorities by which that was judged.
    pub judged_by: Roots,
    /// When the agent's certificate ends.
    pub certificate_ends: SystemTime,
}

/// The gateway's end of the hello.
pub async fn hello(core: &Core, carrier: Carrier) -> Result<Welcomed, HelloError> {
    let peer = carrier.facts().peer;
    let gateway = GatewaySide {
        session: random::bytes(),
        replica: core
            .replicas
            .as_deref()
            .map(|replicas| Replica { name: Bytes::copy_from_slice(replicas.name().as_bytes()), of: replicas.count() }),
        authenticate: |presented: Presented| async move {
            let result = authenticate(core, &presented).await;
            if let Err(refuse) = &result {
                tracing::warn!(peer = peer.map(tracing::field::display), code = %refuse.code, message = refuse.message, "agent refused");
            }
            result
        },
        options: session::SessionOptions::default(),
    };
    let (handle, (cluster, peer, chain, judged_by)) = session::accept(carrier, gateway).await?;
    Ok(Welcomed { handle, cluster, names: Named::from(&peer), chain, judged_by, certificate_ends: peer.not_after })
}

async fn authenticate(
    core: &Core,
    presented: &Presented,
) -> Result<(ClusterRef, Peer, Vec<CertificateDer<'static>>, Roots), Refuse> {
    let refuse = |code, message: String, retry: Duration| Refuse {
        code,
        message,
        retry_after_ms: u64::try_from(retry.as_millis()).ok(),
        replicas: core.replicas.as_deref().map(Replicas::count),
    };
    if !core.admits() {
        let message = match core.is_starting() {
            true => "this gateway is starting, and does not know yet which clusters there are",
            false => "this gateway has lost its database, and cannot tell which clusters there are",
        };
        return Err(refuse(CloseCode::Overloaded, message.to_owned(), RETRY_BUSY));
    }
    let unauthorised = |message: String| refuse(CloseCode::Unauthorised, message, RETRY);
    let roots = core.roots();
    let peer = Peer::verify(&presented.chain, &roots, SystemTime::now()).map_err(|error| match error {
        PeerError::Expired => {
            unauthorised(format!("{}: {error}; if it cannot be renewed, {CONNECT_AGAIN}", codes::CERTIFICATE_EXPIRED))
        }
        error => unauthorised(error.to_string()),
    })?;
    let id = peer.identity.agent().map_err(|error| unauthorised(error.to_string()))?;
    let id: ClusterId = id.parse().map_err(|_| unauthorised("the certificate names no cluster".to_owned()))?;
    let snapshot = core.snapshots.load();
    let cluster = snapshot
        .serves(&id, &Named::from(&peer))
        .cloned()
        .map_err(|gone| refuse(gone.code(), gone.to_string(), RETRY))?;
    let skew = skew::judge(&presented.agent_version);
    core.metrics.hello(skew);
    if let Some(code) = skew.refused() {
        if let Some(control) = &core.control {
            tell::of_version(control, &cluster.id, &presented.agent_version).await;
        }
        let message = format!("{code}: {}", skew::refusal(&presented.agent_version));
        return Err(refuse(CloseCode::Outdated, message, RETRY_OUTDATED));
    }
    if let Some(replicas) = &core.replicas
        && presented.held.iter().any(|held| held == replicas.name().as_bytes())
    {
        let message = format!("{ALREADY_HERE} {}", replicas.name());
        return Err(Refuse { retry_after_ms: None, ..refuse(CloseCode::Elsewhere, message, RETRY) });
    }
    // Replicas hear of one another's tunnels within a moment: of agents that dial at the same time some more come in.
    let elsewhere = core.replicas.as_deref().map_or(0, |replicas| replicas.tunnels_elsewhere(&cluster.key));
    if core.tunnels.count_of(&cluster.key) + elsewhere >= TUNNELS_PER_CLUSTER {
        let message = format!("cluster {id} has {TUNNELS_PER_CLUSTER} tunnels, the limit");
        return Err(refuse(CloseCode::Overloaded, message, RETRY_BUSY));
    }
    Ok((cluster, peer, presented.chain.clone(), roots))
}
