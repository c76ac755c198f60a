//! The WebSocket carrier on the users' port: `GET /.towline/tunnel`. Not a user's request: no credential of a user
//! counts here, and none of an agent counts anywhere else.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::{body::Incoming, upgrade::Upgraded};
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tunnel::transport::{
    CarrierKind,
    carrier::Facts,
    http2,
    websocket::{self, SUBPROTOCOL},
};

use crate::{core::Core, metrics::labels::Cause};

/// Why there is no WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoUpgrade {
    /// The gateway drains.
    Draining,
    /// The handshake is not one: why.
    Malformed(&'static str),
}

/// Takes back the bare connection under an upgraded one, and what was read of it already; `None`: it is not one of
/// HTTP/1.1.
pub type IntoStream = fn(Upgraded) -> Option<(Box<TlsStream<TcpStream>>, Bytes)>;

/// Answers the WebSocket handshake of somebody at an address, who showed these certificates; the tunnel's hello follows
/// inside.
pub fn upgrade(
    core: &Arc<Core>,
    peer: SocketAddr,
    certificates: &[CertificateDer<'static>],
    mut http: http::Request<Incoming>,
    into_stream: IntoStream,
) -> Result<Response<()>, NoUpgrade> {
    let refuse = NoUpgrade::Malformed;
    if core.shutdown.phase() != daemon::Phase::Ready {
        return Err(NoUpgrade::Draining);
    }
    if http.method() != Method::GET || http.version() != Version::HTTP_11 {
        return Err(refuse("the tunnel is a WebSocket: GET over HTTP/1.1"));
    }
    // Behind a body the connection is not handed over, and both ends would wait for each other.
    if !http_body::Body::is_end_stream(http.body()) {
        return Err(refuse("a request with Upgrade must not have a body"));
    }
    let key = handshake_key(http.headers()).map_err(refuse)?;
    let accept =
        HeaderValue::from_str(&websocket::accept_key(&key)).map_err(|_| refuse("Sec-WebSocket-Key cannot be read"))?;
    let on_upgrade = hyper::upgrade::on(&mut http);
    let facts = Facts { kind: CarrierKind::WebSocket, peer: Some(peer), certificates: certificates.to_vec() };
    let core = Arc::clone(core);
    core.tasks.clone().spawn("tunnel", async move {
        match on_upgrade.await {
            Ok(upgraded) => {
                let Some((stream, early)) = into_stream(upgraded) else {
                    return core.refusals.record(peer, Cause::Tunnel, "a WebSocket that is not over HTTP/1.1");
                };
                http2::tune_tcp(stream.get_ref().0);
                let establish = websocket::accept(stream, early, facts);
                super::accept::carry(core, peer, CarrierKind::WebSocket, establish).await;
            }
            Err(error) => tracing::debug!(%peer, %error, "an agent went away before its WebSocket was up"),
        }
    });
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    Ok(response)
}

fn handshake_key(headers: &HeaderMap) -> Result<Vec<u8>, &'static str> {
    if !websocket::is_upgrade(headers) {
        return Err("the tunnel needs `Upgrade: websocket` and `Connection: Upgrade`");
    }
    if websocket::only(headers, header::SEC_WEBSOCKET_VERSION) != Some(b"13") {
        return Err("the tunnel needs Sec-WebSocket-Version 13");
    }
    if websocket::only(headers, header::SEC_WEBSOCKET_PROTOCOL) != Some(SUBPROTOCOL.as_bytes()) {
        return Err("the tunnel needs its own Sec-WebSocket-Protocol");
    }
    match websocket::only(headers, header::SEC_WEBSOCKET_KEY) {
        Some(key) if key.len() == 24 => Ok(key.to_vec()),
        _ => Err("Sec-WebSocket-Key cannot be read"),
    }
}
