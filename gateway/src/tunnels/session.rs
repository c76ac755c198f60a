//! The owner of one tunnel, from welcome to close: keeps it in the registry, answers what the agent opens, drains and
//! closes it, and ends it when its cluster is no longer registered.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use certs::{Peer, Roots};
use rustls::pki_types::CertificateDer;
use tunnel::{transport::loss::Loss, wire::close::CloseCode};

use super::handshake::{TUNNELS_PER_CLUSTER, Welcomed};
use crate::{core::Core, fleet::registry::LiveTunnel, skew};

/// Agents dial elsewhere within this when the gateway drains.
const RECONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How often the loss of a tunnel in use is looked at, and one's that has sent fewer packets than this since the last
/// look: there is nothing to judge. One that nobody uses is not looked at: of what ten thousand idle tunnels cost that
/// was a fifth.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_IDLE: Duration = Duration::from_secs(30);
const FEW_PACKETS: u64 = 10;
/// A certificate that ends later than this is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// How long an agent may look at a tunnel that it only checks.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);

/// A tunnel of `towline-agent check`: no request may be sent there, for it is gone in a moment and serves nothing.
pub async fn check(welcomed: Welcomed) {
    let Welcomed { handle, cluster, .. } = welcomed;
    let info = handle.info();
    tracing::info!(
        cluster.id = %cluster.id,
        carrier = %info.carrier,
        peer = info.peer.map(tracing::field::display),
        "an agent checks whether a tunnel comes up"
    );
    if tokio::time::timeout(CHECK_DEADLINE, handle.closed()).await.is_err() {
        handle.close(CloseCode::Timeout, "a check is short");
        handle.closed().await;
    }
}

/// Runs until the tunnel is closed.
pub async fn run(core: Arc<Core>, welcomed: Welcomed) {
    let Welcomed { handle, cluster, names, chain, judged_by, certificate_ends } = welcomed;
    let _open = core.metrics.tunnels(handle.info().carrier).enter();
    let _of_version = core.metrics.tunnels_of(skew::judge(&handle.info().agent_version)).enter();
    let authority = core.roots().signer_of(&chain, SystemTime::now());
    let registered = core.tunnels.add(Arc::clone(&handle), cluster, names, authority);
    let tunnel = &registered.tunnel;
    if core.tunnels.count_of(&tunnel.cluster.key) > TUNNELS_PER_CLUSTER {
        // Hellos that were judged at the same time all saw the last place free.
        handle.close(CloseCode::Overloaded, "the cluster has too many tunnels");
        let _ = handle.closed().await;
        return;
    }
    core.tunnels.doubt_older(tunnel);
    let info = handle.info();
    tracing::info!(
        cluster.id = %tunnel.cluster.id,
        carrier = %info.carrier,
        tunnel = tunnel.id(),
        peer = info.peer.map(tracing::field::display),
        agent.version = info.agent_version,
        "tunnel up"
    );
    let streams = (core.agent_streams)(&core.agents, &tunnel.cluster.key);
    let mut changes = core.snapshots.watch();
    // What has changed since the hello was judged is looked at too.
    changes.mark_changed();
    let mut authorities = core.trust.authorities();
    authorities.mark_changed();
    let mut drained = false;
    let mut loss = Loss::new(Instant::now());
    let after = |wait| tokio::time::Instant::now() + wait;
    let (mut look_at, mut sent) = (after(LOOK), 0);
    // Other carriers than QUIC count no packets.
    let counts = handle.packets().is_some();
    let mut lossy = false;
    let mut resting = tunnel.rest();
    loop {
        let left = certificate_ends.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::select! {
            biased;
            closed = handle.closed() => {
                tracing::info!(cluster.id = %tunnel.cluster.id, tunnel = tunnel.id(), %closed, "tunnel down");
                return;
            }
            () = core.shutdown.closed() => {
                handle.close(CloseCode::Shutdown, "the gateway stops");
                let _ = handle.closed().await;
                return;
            }
            () = core.shutdown.draining(), if !drained => {
                drained = true;
                handle.drain(CloseCode::Shutdown, RECONNECT_WITHIN);
            }
            drain = handle.draining(), if !tunnel.is_draining() => {
                tracing::info!(cluster.id = %tunnel.cluster.id, tunnel = tunnel.id(), code = %drain.code, "agent drains its tunnel");
                tunnel.set_draining();
            }
            () = tunnel.used(), if resting => (resting, look_at) = (false, after(LOOK)),
            () = tokio::time::sleep_until(look_at), if counts && !(lossy || drained || resting) => {
                let packets = handle.packets().unwrap_or_default();
                let few = packets.sent.saturating_sub(sent) < FEW_PACKETS;
                look_at = after(if few { LOOK_IDLE } else { LOOK });
                resting = few && tunnel.rest();
                sent = packets.sent;
                lossy = loss.look(packets, Instant::now());
                if lossy {
                    tracing::warn!(cluster.id = %tunnel.cluster.id, tunnel = tunnel.id(), "a great part of the packets to the agent is lost: it is asked to leave this carrier");
                    handle.drain(CloseCode::Carrier, Duration::ZERO);
                }
            }
            _ = changes.changed() => end_if_gone(&core, tunnel),
            _ = authorities.changed() => end_if_untrusted(&core, tunnel, &chain, &judged_by),
            () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => {
                if certificate_ends <= SystemTime::now() {
                    handle.close(CloseCode::Unauthorised, "the agent's certificate has expired");
                    let _ = handle.closed().await;
                    return;
                }
            }
            incoming = handle.accept() => if let Ok(incoming) = incoming {
                tunnel.use_now();
                streams.start(&core, tunnel, incoming);
            },
        }
    }
}

/// A cluster that is deleted, or has another identity or key, takes its tunnels with it.
fn end_if_gone(core: &Core, tunnel: &LiveTunnel) {
    if let Err(gone) = core.snapshots.load().serves(&tunnel.cluster.id, &tunnel.names) {
        tunnel.handle.close(gone.code(), &gone.to_string());
    }
}

/// So does an authority that is trusted no more.
fn end_if_untrusted(core: &Core, tunnel: &LiveTunnel, chain: &[CertificateDer<'static>], judged_by: &Roots) {
    let roots = core.roots();
    // The same authorities would say the same; when the certificate ends is another's to watch.
    if roots.is(judged_by) {
        return;
    }
    if let Err(error) = Peer::verify(chain, &roots, SystemTime::now()) {
        tunnel.handle.close(
            CloseCode::Unauthorised,
            &format!("the agent's certificate has expired or is no longer trusted: {error}"),
        );
    }
}
