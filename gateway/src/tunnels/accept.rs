//! The listeners: UDP for QUIC, and the shared TCP port's connections with ALPN `towline/1`.

use std::{net::SocketAddr, sync::Arc};

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tunnel::transport::{
    CarrierKind,
    carrier::{Carrier, CarrierError, Facts},
    http2,
    quic::{Connecting, Listener},
};
use types::{limits, version::Features};

use super::handshake;
use crate::{core::Core, metrics::labels::Cause};

/// Accepts QUIC connections until the gateway drains.
pub async fn quic(core: Arc<Core>, listener: Arc<Listener>) {
    loop {
        let connecting = tokio::select! {
            biased;
            () = core.shutdown.draining() => break,
            connecting = listener.accept() => connecting,
        };
        let Some(connecting) = connecting else { break };
        core.tasks.spawn("tunnel", quic_peer(Arc::clone(&core), connecting));
        // Behind the handshakes that have begun: what waits, waits with the system.
        core.pace.turn().await;
    }
    listener.stop_accepting();
}

/// An address counts only once it is proved (by a Retry, or by a handshake that came to its end): otherwise anybody
/// could use up the places of another. What is not proved is bounded by the listener, which asks for proof beyond that
/// ([`limits::QUIC_RETRY_ABOVE`]).
async fn quic_peer(core: Arc<Core>, connecting: Connecting) {
    let peer = connecting.peer();
    if connecting.address_is_proved() {
        return carry(core, peer, CarrierKind::Quic, connecting.establish()).await;
    }
    let established = {
        let _open = core.metrics.handshakes.enter();
        core.pace.steps(connecting.establish()).await
    };
    carry(core, peer, CarrierKind::Quic, std::future::ready(established)).await;
}

/// An agent's connection on the TCP port. It comes in a box: each step of its handshakes would have room for it, and
/// what they leave behind is where the tunnel's buffers come to lie, in memory that is resident though they hardly use
/// it.
pub async fn http2(
    core: Arc<Core>,
    stream: Box<TlsStream<TcpStream>>,
    peer: SocketAddr,
    certificates: Vec<CertificateDer<'static>>,
) {
    let (socket, session) = stream.get_ref();
    if session.protocol_version() != Some(rustls::ProtocolVersion::TLSv1_3) {
        return core.refusals.record(peer, Cause::Tls, "an agent's connection is not TLS 1.3");
    }
    http2::tune_tcp(socket);
    let facts = Facts { kind: CarrierKind::Http2, peer: Some(peer), certificates };
    carry(core, peer, CarrierKind::Http2, http2::client_side(stream, facts)).await;
}

/// From a connection to a tunnel that runs: the carrier's handshake and the hello, bounded in number and time.
pub async fn carry(
    core: Arc<Core>,
    peer: SocketAddr,
    kind: CarrierKind,
    establish: impl Future<Output = Result<Carrier, CarrierError>>,
) {
    let welcomed = {
        let Some(_handshake) = core.admissions.handshake(peer.ip().to_canonical(), &core.limits()) else {
            return core.refusals.record(
                peer,
                Cause::Handshakes,
                &format!("too many handshakes, for one over {kind} too"),
            );
        };
        let _open = core.metrics.handshakes.enter();
        let hello = core.pace.steps(async {
            let carrier = establish.await.map_err(|error| error.to_string())?;
            handshake::hello(&core, carrier).await.map_err(|error| error.to_string())
        });
        // Carrier and hello each have this deadline of their own; both together have twice that.
        let welcomed = tokio::time::timeout(limits::HELLO_DEADLINE * 2, hello)
            .await
            .unwrap_or_else(|_| Err("took too long".to_owned()));
        match welcomed {
            // It keeps the place of its handshake, and gets none among the tunnels.
            Ok(welcomed) if welcomed.handle.info().features.contains(Features::CHECK) => {
                return super::session::check(welcomed).await;
            }
            Ok(welcomed) => welcomed,
            Err(error) => return core.refusals.record(peer, Cause::Tunnel, &format!("no tunnel over {kind}: {error}")),
        }
    };
    // In a task of its own, and this one ends: its room is for the handshakes of all kinds of connections.
    core.tasks.clone().spawn("tunnel", super::session::run(core, welcomed));
}
