//! One document from an issuer, with bounds: https, the issuer's own trust, no redirect, a size and a deadline.

use std::{fmt, future::Future, io, pin::Pin, sync::Arc};

use bytes::Bytes;
use daemon::tcp::connect_host;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::error::{DOCUMENT_BYTES, FETCH_DEADLINE, FetchError};

/// A future in a box.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Fetches documents. Tests bring their own.
pub trait Fetch: Send + Sync {
    /// The body of the answer to a GET; the caller sets the deadline.
    fn fetch(&self, url: &Url) -> Boxed<Result<Bytes, FetchError>>;
}

/// Bytes both ways.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Opens TCP connections to issuers: directly, or through a proxy, which is the program's business.
pub trait Connect: Send + Sync {
    /// A connection to a host name or address, before any TLS.
    fn connect(&self, host: String, port: u16) -> Boxed<io::Result<Box<dyn Socket>>>;
}

/// Connects to the host itself, without a proxy.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Connect for Direct {
    fn connect(&self, host: String, port: u16) -> Boxed<io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let stream = connect_host(&host, port, FETCH_DEADLINE).await?;
            Ok(Box::new(stream) as Box<dyn Socket>)
        })
    }
}

/// The real one: HTTP/1.1 over TLS with the issuer's trust.
#[derive(Clone)]
pub struct HttpsFetch {
    tls: Arc<ClientConfig>,
    connect: Arc<dyn Connect>,
}

impl fmt::Debug for HttpsFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsFetch").finish_non_exhaustive()
    }
}

impl HttpsFetch {
    /// `tls` as from [`certs::tls::client_https`].
    pub fn new(tls: Arc<ClientConfig>, connect: Arc<dyn Connect>) -> Self {
        Self { tls, connect }
    }

    async fn get(self, url: Url) -> Result<Bytes, FetchError> {
        let host = match url.host().ok_or(FetchError::Http)? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(ip) => ip.to_string(),
            Host::Ipv6(ip) => ip.to_string(),
        };
        let port = url.port_or_known_default().ok_or(FetchError::Http)?;
        let socket = self.connect.connect(host.clone(), port).await.map_err(|e| FetchError::Connect(e.to_string()))?;
        if url.scheme() == "http" {
            // Only what `acceptable_url` let through: loopback, and only when configured.
            return exchange(socket, &url).await;
        }
        let name = ServerName::try_from(host).map_err(|_| FetchError::Tls("no valid server name".to_owned()))?;
        let tls = TlsConnector::from(self.tls).connect(name, socket).await;
        exchange(tls.map_err(|e| FetchError::Tls(tls_reason(&e)))?, &url).await
    }
}

fn tls_reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or_else(|| error.kind().to_string(), ToString::to_string)
}

impl Fetch for HttpsFetch {
    fn fetch(&self, url: &Url) -> Boxed<Result<Bytes, FetchError>> {
        Box::pin(self.clone().get(url.clone()))
    }
}

async fn exchange(socket: impl Socket + 'static, url: &Url) -> Result<Bytes, FetchError> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(64)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(socket))
        .await
        .map_err(|_| FetchError::Http)?;
    let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let request = http::Request::get(&url[url::Position::BeforePath..url::Position::AfterQuery])
        .header(http::header::HOST, authority)
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::USER_AGENT, "towline")
        .header(http::header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|_| FetchError::Http)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|_| FetchError::Http)?;
        match response.status().as_u16() {
            200 => {}
            300..400 => return Err(FetchError::Redirect),
            status => return Err(FetchError::Status(status)),
        }
        let body = Limited::new(response.into_body(), DOCUMENT_BYTES).collect().await;
        body.map(|body| body.to_bytes()).map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() { FetchError::TooLarge } else { FetchError::Http }
        })
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end before the answer was taken: what it received is still there.
        _ = &mut connection => answer.await,
    }
}
