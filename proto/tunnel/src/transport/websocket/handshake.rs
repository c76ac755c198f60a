//! The handshake of RFC 6455 section 4: what the agent asks by HTTP/1.1, and what the gateway answers.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use types::random;

use super::{super::carrier::CarrierError, io::WebSocketIo};

/// Where the gateway serves it: `GET` with `Upgrade: websocket`, ALPN `http/1.1`.
pub const PATH: &str = "/.towline/tunnel";
/// The subprotocol that both ends name in `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "towline.v1";

/// What is appended to the key (section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The head of an answer, in bytes.
const ANSWER_BYTES: usize = 16 * 1024;

/// The value of `Sec-WebSocket-Accept` for a request's `Sec-WebSocket-Key` (section 4.2.2). The gateway answers 101
/// with it, `Upgrade: websocket`, `Connection: Upgrade` and the subprotocol, then calls [`accept`](super::accept).
pub fn accept_key(key: &[u8]) -> String {
    // No secret: it only shows that whoever answers has read the request as a WebSocket's.
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat()))
}

/// Asks for a WebSocket at [`PATH`].
pub(super) async fn upgrade<T>(io: T, host: &str) -> Result<WebSocketIo<T>, CarrierError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let nonce = random::bytes::<16>().map_err(|_| CarrierError::Protocol("no randomness".to_owned()))?;
    let key = STANDARD.encode(nonce);
    let request = Request::get(PATH)
        .header(header::HOST, host)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, &key)
        .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        .body(Empty::<Bytes>::new())
        .map_err(|error| CarrierError::Protocol(format!("host {host:?}: {error}")))?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(ANSWER_BYTES)
        // For middleboxes that compare names as they are.
        .title_case_headers(true)
        .handshake(TokioIo::new(io))
        .await
        .map_err(failed)?;
    let upgraded = async move {
        let response = sender.send_request(request).await.map_err(failed)?;
        agrees(&response, &accept_key(key.as_bytes()))?;
        hyper::upgrade::on(response).await.map_err(failed)
    };
    let connection = connection.with_upgrades();
    tokio::pin!(upgraded, connection);
    let upgraded = tokio::select! {
        biased;
        upgraded = &mut upgraded => upgraded,
        // It ends when it has handed over its socket.
        _ = &mut connection => upgraded.await,
    }?;
    let parts = upgraded
        .downcast::<TokioIo<T>>()
        .map_err(|_| CarrierError::Protocol("the connection is not the one that was given".to_owned()))?;
    Ok(WebSocketIo::client(parts.io.into_inner(), parts.read_buf))
}

/// Whether an answer opens the WebSocket that was asked for (section 4.1).
fn agrees(response: &Response<Incoming>, accept: &str) -> Result<(), CarrierError> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(CarrierError::Upgrade(response.status().as_u16()));
    }
    let headers = response.headers();
    let why = if !is_upgrade(headers) {
        "without `Upgrade: websocket` and `Connection: Upgrade`"
    } else if only(headers, header::SEC_WEBSOCKET_ACCEPT) != Some(accept.as_bytes()) {
        "without the Sec-WebSocket-Accept of this request"
    } else if only(headers, header::SEC_WEBSOCKET_PROTOCOL) != Some(SUBPROTOCOL.as_bytes()) {
        "without the tunnel's Sec-WebSocket-Protocol"
    } else if headers.contains_key(header::SEC_WEBSOCKET_EXTENSIONS) {
        "with an extension that was not asked for"
    } else {
        return Ok(());
    };
    Err(CarrierError::Protocol(format!("the upgrade was answered {why}")))
}

/// Whether a request asks for a WebSocket, or an answer switches to one, by `Upgrade` and `Connection`.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    crate::headers::upgrade_of(headers).is_some_and(|upgrade| upgrade.eq_ignore_ascii_case(b"websocket"))
}

/// The value of a header that is there once.
pub fn only(headers: &HeaderMap, name: HeaderName) -> Option<&[u8]> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
}

fn failed(error: hyper::Error) -> CarrierError {
    if error.is_parse() {
        CarrierError::Protocol(format!("the upgrade was not answered in HTTP: {error}"))
    } else {
        CarrierError::Lost(error.to_string())
    }
}
