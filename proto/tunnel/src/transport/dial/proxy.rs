//! HTTP `CONNECT` (RFC 9110 section 9.3.6), with basic authentication, in the clear or over TLS.

use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{DialError, DialOptions, Proxy, Target, authority, tcp::TcpIo};
use crate::transport::http2::tune_tcp;

/// Bytes of the proxy's answer to `CONNECT`.
const ANSWER_BYTES: usize = 16 * 1024;

/// Opens a connection to the target through the proxy.
pub(super) async fn connect(proxy: &Proxy, target: &Target, options: &DialOptions) -> Result<TcpIo, DialError> {
    let socket = super::connect(&proxy.host, proxy.port, true, target, options).await?;
    tune_tcp(&socket);
    let name = authority(&proxy.host, proxy.port);
    let tunnel = async {
        match &proxy.tls {
            None => ask(TcpIo::Direct(socket), &name, proxy, target).await,
            Some((config, server_name)) => {
                let io = super::tls(socket, config, server_name, b"http/1.1")
                    .await
                    .map_err(|error| DialError::ProxyTls { proxy: name.clone(), reason: error.to_string() })?;
                ask(TcpIo::InTls(Box::new(io)), &name, proxy, target).await
            }
        }
    };
    match timeout(options.proxy, tunnel).await {
        Ok(result) => result,
        Err(_) => Err(DialError::ProxyBroken { proxy: name.clone(), reason: "no answer in time".to_owned() }),
    }
}

/// Sends `CONNECT` and reads the answer's head, not a byte more than came with it.
async fn ask<T>(mut io: T, name: &str, proxy: &Proxy, target: &Target) -> Result<T, DialError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let broken = |reason: String| DialError::ProxyBroken { proxy: name.to_owned(), reason };
    let request = request(proxy, target);
    io.write_all(request.as_bytes()).await.map_err(|error| broken(error.to_string()))?;
    io.flush().await.map_err(|error| broken(error.to_string()))?;
    let mut answer = Vec::new();
    let end = loop {
        if let Some(end) = head_end(&answer) {
            break end;
        }
        if answer.len() >= ANSWER_BYTES {
            return Err(broken("the answer's head is too long".to_owned()));
        }
        match io.read_buf(&mut answer).await {
            Ok(0) => return Err(broken("closed the connection instead of answering".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(broken(error.to_string())),
        }
    };
    match status(&answer) {
        None => Err(broken("the answer is not HTTP".to_owned())),
        Some(407) => Err(DialError::ProxyAuthentication {
            proxy: name.to_owned(),
            credentials_sent: proxy.credentials.is_some(),
        }),
        // TLS servers wait for the client: bytes behind the head are not the gateway's.
        Some(200..=299) if answer.len() > end => Err(broken("sent bytes behind its answer".to_owned())),
        Some(200..=299) => Ok(io),
        Some(status) => Err(DialError::ProxyRefused { proxy: name.to_owned(), status }),
    }
}

fn request(proxy: &Proxy, target: &Target) -> String {
    // The proxy does not know our aliases.
    let alias = target.aliases.iter().find(|(name, _)| name.eq_ignore_ascii_case(&target.host));
    let host = match alias {
        Some((_, address)) => authority(&address.to_string(), target.port),
        None => authority(&target.host, target.port),
    };
    let authorization = proxy.credentials.as_ref().map_or_else(String::new, |(user, password)| {
        let pair = STANDARD.encode(format!("{user}:{}", password.expose_secret()));
        format!("Proxy-Authorization: Basic {pair}\r\n")
    });
    format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{authorization}\r\n")
}

/// Where the head ends, once it is all there.
fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4)
}

/// The status of `HTTP/1.x nnn ...`.
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(1..5)?.strip_prefix(b" ")?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|status| (100..1000).contains(status))
}
