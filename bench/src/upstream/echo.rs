//! Connections that become another protocol, as those of exec, attach and port-forward do: every byte comes back.

use daemon::TaskGroup;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Where to ask for one: what a port-forward asks, so that whoever judges requests judges it as that.
pub const PATH: &str = "/api/v1/namespaces/default/pods/echo/portforward";
/// By the name of what kubectl speaks there; nobody on the way looks into the bytes.
pub const PROTOCOL: HeaderValue = HeaderValue::from_static("SPDY/3.1");
/// What is read at once.
const CHUNK: usize = 64 << 10;

/// What says that a connection is to become this protocol, and that it does (RFC 9110 section 7.8).
pub fn change(protocol: HeaderValue) -> [(HeaderName, HeaderValue); 2] {
    [(header::CONNECTION, HeaderValue::from_static("Upgrade")), (header::UPGRADE, protocol)]
}

/// The change of protocol that a request asks for, if it does, and the protocol.
pub fn asked(request: &mut Request<Incoming>) -> Option<(OnUpgrade, HeaderValue)> {
    let protocol = request.headers().get(header::UPGRADE).filter(|_| request.uri().path() == PATH)?.clone();
    Some((hyper::upgrade::on(request), protocol))
}

/// The answer's head; the bytes that follow it go back by themselves.
pub fn switch<B>(
    (upgrade, protocol): (OnUpgrade, HeaderValue),
    tasks: &TaskGroup,
    mut response: Response<B>,
) -> Response<B> {
    tasks.spawn("echo", async move {
        // A peer that goes away ends its connection and nothing else.
        if let Ok(upgraded) = upgrade.await {
            let _ = echo(upgraded).await;
        }
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().extend(change(protocol));
    response
}

/// Until the peer ends its half.
async fn echo(upgraded: Upgraded) -> std::io::Result<()> {
    let (mut io, mut buffer) = (TokioIo::new(upgraded), vec![0; CHUNK]);
    loop {
        let read = io.read(&mut buffer).await?;
        if read == 0 {
            return io.shutdown().await;
        }
        io.write_all(&buffer[..read]).await?;
        io.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::{certificates, upstream};

    #[tokio::test]
    async fn what_follows_the_answer_comes_back_until_its_half_is_ended() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new("test"));
        let address = upstream::tests::start(dir.path(), &tasks).await;
        let roots = certificates::roots(&dir.path().join("ca.crt")).unwrap();
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tcp = TcpStream::connect(address).await.unwrap();
        let mut io = TlsConnector::from(std::sync::Arc::new(tls)).connect(name, tcp).await.unwrap();
        // What is sent before the answer is here counts too.
        let asked = format!("GET {PATH} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\nearly");
        io.write_all(asked.as_bytes()).await.unwrap();
        io.write_all(b" and late").await.unwrap();
        io.shutdown().await.unwrap();
        let mut seen = String::new();
        io.read_to_string(&mut seen).await.unwrap();
        let (head, bytes) = seen.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: spdy/3.1"), "{head}");
        assert_eq!(bytes, "early and late");
        tasks.abort();
    }
}
