//! HTTPS to a gateway or issuer, straight or through an HTTP proxy on the user's side (`HTTPS_PROXY`, `NO_PROXY`,
//! `--proxy-url`).

mod outbound;
mod trouble;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use certs::{Credentials, Roots};
use daemon::TaskGroup;
use http::{HeaderMap, Request, Response, header, response::Parts};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel::transport::dial::{DialOptions, Target, TcpIo, open_tcp};

pub use self::outbound::{Outbound, OutboundArgs};

/// How long one request of ours may take, from dialling to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long TLS with the gateway may take.
const TLS_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of an answer that is read whole.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// `https://host[:port]` with an optional path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// Port, 443 if not given.
    pub port: u16,
    /// Path without a slash at the end; empty for none.
    pub path: String,
}

impl Address {
    /// Reads a URL.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let rest =
            url.strip_prefix("https://").ok_or_else(|| anyhow!("{url}: the address must begin with https://"))?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if authority.contains('@') || path.contains(['?', '#']) {
            bail!("an address has no user name, query or fragment");
        }
        let (host, port) = split_host_port(authority, 443).with_context(|| format!("{url} is not an address"))?;
        Ok(Self { host, port, path: path.trim_end_matches('/').to_owned() })
    }

    /// `host:port` as the Host header has it; 443 is left out.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 443 { host } else { format!("{host}:{}", self.port) }
    }

    /// The whole URL.
    pub fn url(&self) -> String {
        format!("https://{}{}", self.authority(), self.path)
    }
}

/// Splits `host`, `host:port`, `[v6]` and `[v6]:port`.
fn split_host_port(authority: &str, default: u16) -> anyhow::Result<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').context("the bracket is not closed")?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")).context("expected a port")?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if host.is_empty() || port.contains(':') {
        bail!("expected host or host:port");
    }
    let port = if port.is_empty() { default } else { port.parse().context("the port is not a number up to 65535")? };
    Ok((host.to_owned(), port))
}

/// Reads `--ca`, or takes the system's authorities.
pub fn roots(ca: Option<&Path>) -> anyhow::Result<Roots> {
    match ca {
        Some(file) => Ok(Roots::load(file)?),
        None => Ok(Roots::public()),
    }
}

/// Dials one host again and again: where to, whom to trust, and how to get there.
#[derive(Clone)]
pub struct Client {
    address: Address,
    server_name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
    outbound: Outbound,
    tasks: TaskGroup,
}

impl Client {
    /// For the host of `address`. `credentials` is an access certificate, for service-account tokens.
    pub fn new(
        address: Address,
        roots: &Roots,
        credentials: Option<&Credentials>,
        outbound: Outbound,
    ) -> anyhow::Result<Self> {
        let server_name = ServerName::try_from(address.host.clone())
            .with_context(|| format!("{} is not a host name", address.host))?;
        let tls = match credentials {
            Some(own) => certs::tls::client_https_with(roots, own, &[certs::tls::ALPN_HTTP11])?,
            None => certs::tls::client_https(roots)?,
        };
        Ok(Self { address, server_name, tls: Arc::new(tls), outbound, tasks: TaskGroup::new("client") })
    }

    /// Where it goes.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The same trust and way out, to another address of the issuer's.
    pub fn at(&self, address: Address) -> anyhow::Result<Self> {
        let server_name = ServerName::try_from(address.host.clone())
            .with_context(|| format!("{} is not a host name", address.host))?;
        Ok(Self { address, server_name, ..self.clone() })
    }

    /// The same host, asked in TLS for another name.
    pub fn with_server_name(&self, name: &str) -> anyhow::Result<Self> {
        let server_name =
            ServerName::try_from(name.to_owned()).with_context(|| format!("{name} is not a host name"))?;
        Ok(Self { server_name, ..self.clone() })
    }

    /// The same with other protocols offered in TLS, the preferred one first.
    pub fn with_alpn(&self, alpn: &[&[u8]]) -> Self {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Self { tls: Arc::new(tls), ..self.clone() }
    }

    async fn tcp(&self) -> anyhow::Result<TcpIo> {
        let target = Target {
            host: self.address.host.clone(),
            port: self.address.port,
            server_name: self.server_name.clone(),
            tls: self.tls.clone(),
            proxy: self.outbound.proxy_for(&self.address.host, self.address.port),
            aliases: Vec::new(),
        };
        Ok(open_tcp(&target, &DialOptions::default()).await?)
    }

    /// An established TLS connection.
    pub async fn connect(&self) -> anyhow::Result<TlsStream<TcpIo>> {
        let tcp = self.tcp().await?;
        let tls = TlsConnector::from(self.tls.clone()).connect(self.server_name.clone(), tcp);
        match timeout(TLS_TIMEOUT, tls).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => {
                Err(anyhow::Error::new(error).context(format!("TLS with {} failed", self.address.authority())))
            }
            Err(_) => Err(late(format!("TLS with {} did not end within {TLS_TIMEOUT:?}", self.address.authority()))),
        }
    }

    /// Sends one request on a connection of its own and reads the answer whole. The path is used as it is.
    pub async fn request(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Bytes>> {
        let what = format!("{} {}{}", request.method(), self.address.authority(), request.uri().path());
        match timeout(REQUEST_TIMEOUT, self.exchange(request)).await {
            Ok(result) => result.with_context(|| format!("{what} failed")),
            Err(_) => Err(late(format!("{what} got no whole answer within {REQUEST_TIMEOUT:?}"))),
        }
    }

    /// As [`Self::request`], and where that fails with what to type next.
    pub async fn ask(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Bytes>> {
        match self.request(request).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(trouble::explain(self, error).await),
        }
    }

    /// Sends one request and hands over the answer as it comes, for as long as it takes.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(Parts, Live)> {
        match timeout(REQUEST_TIMEOUT, self.begin(request)).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(trouble::explain(self, error).await),
            Err(_) => Err(late(format!("{} did not answer within {REQUEST_TIMEOUT:?}", self.address.authority()))),
        }
    }

    async fn begin(&self, mut request: Request<Full<Bytes>>) -> anyhow::Result<(Parts, Live)> {
        request.headers_mut().insert(header::HOST, self.address.authority().parse()?);
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = self.tasks.spawn_task("connection", connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok((head, Live { body, _held: Box::new((sender, connection)) }))
    }

    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> anyhow::Result<Response<Bytes>> {
        request.headers_mut().insert(header::HOST, self.address.authority().parse()?);
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the connection, and that with `sender`.
        let _connection = self.tasks.spawn_task("connection", connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| anyhow!(error))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// How long a server asks to wait before the next request, in seconds (RFC 9110 section 10.2.3); none for a date.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// That something took too long, which callers tell by its kind.
fn late(text: String) -> anyhow::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, text).into()
}

/// An answer that is still coming.
pub struct Live {
    body: hyper::body::Incoming,
    /// The connection, which ends with this.
    _held: Box<dyn std::any::Any + Send>,
}

impl Live {
    /// The next part; none at its end, also where it broke off.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.body.frame().await?.ok()?.into_data() {
                Ok(data) => return Some(data),
                Err(_) => continue,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = Address::parse("https://gw.example/x/").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.path.as_str()), ("gw.example", 443, "/x"));
        assert_eq!(address.url(), "https://gw.example/x");
        let address = Address::parse("https://[::1]:8443").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 8443));
        assert_eq!(address.authority(), "[::1]:8443");
        for bad in ["http://x", "gw", "https://", "https://u:p@x", "https://x:99999", "https://a:b:c", "https://[::1"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
