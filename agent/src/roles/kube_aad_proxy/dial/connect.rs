//! Dials the apiserver: the name, TCP, TLS, and HTTP/2 or HTTP/1.1 over it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use daemon::{TaskGroup, tcp::connect_host};
use http::{HeaderValue, Method, uri};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel::transport::{
    cork::{Turns, cork},
    dial::{DialOptions, Target, TcpIo, open_tcp},
};
use types::limits;

use super::{
    DialError,
    access::Access,
    body::RequestBody,
    long::LongLine,
    pool::{Driver, Http1Send, STREAMS_PER_CONNECTION},
    tasks::ConnectionTasks,
    unread::{Narrow, Sips, Width},
};
use crate::roles::{kube_aad_proxy::target::LongTarget, kubeconfig::Via};

/// Room for every stream's window, so that stalled readers never block others of the connection; several times that,
/// for h2 makes of half of it what small frames may cost it beside their bytes, over which it ends the connection:
/// enough for events of 28 bytes on average, which none has.
const CONNECTION_WINDOW: u32 = 256 * 1024 * 1024;
/// Buffer of an HTTP/1.1 connection: a whole head must fit.
const HTTP1_BUFFER_BYTES: usize = 512 * 1024;
/// Looking up the name, connecting and TLS, each.
const STEP_DEADLINE: Duration = Duration::from_secs(10);
/// The proxy of a kubeconfig: its name, TCP, its TLS, and until it has connected to the apiserver.
const PROXY_DEADLINE: Duration = Duration::from_secs(20);
/// How often a busy or idle HTTP/2 connection is probed, and how long the answer may take. Together as long as
/// client-go waits: hundreds of watches hang on one connection, and on a starved machine an answer may take ten
/// seconds.
const PING_PERIOD: Duration = Duration::from_secs(15);
const PING_DEADLINE: Duration = Duration::from_secs(30);
/// The log names the same failure once in this period.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// The same for HTTP/1.1, which cannot ask whether the apiserver is still there.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(PING_PERIOD).with_interval(Duration::from_secs(10)).with_retries(3);

/// Dials, and runs what it dialled.
pub(super) struct Connector {
    pub(super) access: Access,
    pub(super) authority: uri::Authority,
    /// The same, as HTTP/1.1 has it.
    pub(super) host: HeaderValue,
    /// Connections are tasks of it.
    pub(super) tasks: TaskGroup,
    pub(super) told: FailureLog,
}

/// What the log says of an apiserver that cannot be connected to: each new reason once, and again after [`TELL_AGAIN`].
#[derive(Default)]
pub(super) struct FailureLog(Mutex<Option<(String, Instant)>>);

impl FailureLog {
    fn note(&self, failure: Option<&DialError>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(failure) = failure else {
            if told.take().is_some() {
                tracing::info!("connected to the apiserver again");
            }
            return;
        };
        let why = crate::chain(failure);
        if told.as_ref().is_none_or(|(before, at)| *before != why || at.elapsed() >= TELL_AGAIN) {
            tracing::warn!(error = why, "cannot connect to the apiserver: users' requests fail");
            *told = Some((why, Instant::now()));
        }
    }
}

impl Connector {
    /// TLS, for HTTP/1.1 alone or for whichever the apiserver likes; `own` is whether it may show the agent's
    /// certificate.
    pub(super) async fn tls(&self, http1: bool, own: bool) -> Result<TlsStream<TcpIo>, DialError> {
        let dialled = self.dial(http1, own).await;
        self.told.note(dialled.as_ref().err());
        dialled
    }

    async fn dial(&self, http1: bool, own: bool) -> Result<TlsStream<TcpIo>, DialError> {
        let failed = |step| self.failed(step);
        let tcp = match self.access.via() {
            None => connect_host(self.access.host(), self.access.port(), STEP_DEADLINE)
                .await
                .map(TcpIo::Direct)
                .map_err(|err| failed(err.to_string()))?,
            Some(via) => tokio::time::timeout(PROXY_DEADLINE, self.through(via))
                .await
                .map_err(|_| failed(format!("the proxy took longer than {} s", PROXY_DEADLINE.as_secs())))?
                .map_err(|why| failed(format!("through the proxy: {why}")))?,
        };
        // A system that refuses it still works.
        let _ = SockRef::from(tcp.socket()).set_tcp_keepalive(&KEEPALIVE);
        let connector = TlsConnector::from(self.access.tls(http1, own));
        tokio::time::timeout(STEP_DEADLINE, connector.connect(self.access.server_name(), tcp))
            .await
            .map_err(|_| failed(format!("TLS took longer than {} s", STEP_DEADLINE.as_secs())))?
            .map_err(|err| failed(format!("TLS failed: {}", explain(&err))))
    }

    /// Through the kubeconfig's proxy, which looks up the apiserver's name.
    async fn through(&self, via: &Via) -> Result<TcpIo, String> {
        let target = |host: &str, port, proxy| Target {
            host: host.to_owned(),
            port,
            server_name: self.access.server_name(),
            tls: self.access.tls(true, false),
            proxy,
            aliases: Vec::new(),
        };
        let open =
            async |target: Target| open_tcp(&target, &DialOptions::default()).await.map_err(|err| crate::chain(&err));
        let (host, port) = (self.access.host(), self.access.port());
        match via {
            Via::Http(proxy) => open(target(host, port, Some(proxy.clone()))).await,
            Via::Socks5(socks) => {
                let mut io = open(target(&socks.host, socks.port, None)).await?;
                socks.ask(&mut io, host, port).await.map_err(|err| err.to_string())?;
                Ok(io)
            }
        }
    }

    /// HTTP/1.1 for answers in drops.
    pub(super) async fn http1_for_drops(&self, own: bool) -> Result<Http1Send, DialError> {
        self.http1(self.tls_for_reads(own).await?).await
    }

    /// HTTP/1.1 for brief answers, of at most a hundred headers: hyper has room for as many at hand, and allocates it
    /// for each answer where they may be more. `held` is dropped when the connection ends.
    pub(super) async fn http1_for_brief(
        &self,
        own: bool,
        held: impl Send + 'static,
    ) -> Result<(Http1Send, Driver), DialError> {
        let tls = self.tls_for_reads(own).await?;
        let (send, connection) = self.handshake(&mut http1::Builder::new(), tls).await?;
        let driver = Box::pin(async move {
            let _held = held;
            said(connection.await);
        });
        Ok((send, driver))
    }

    /// For requests without a body, which the apiserver takes at once or not at all.
    async fn tls_for_reads(&self, own: bool) -> Result<TlsStream<TcpIo>, DialError> {
        let tls = self.tls(true, own).await?;
        // Keep-alive says nothing while a request waits to be acknowledged.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(tls.get_ref().0.socket()).set_tcp_user_timeout(Some(PING_PERIOD + PING_DEADLINE));
        Ok(tls)
    }

    /// HTTP/2, with how many streams the apiserver allows, and what is told of each request. `ended` is called when
    /// no further request can be sent on the connection.
    pub(super) async fn http2(
        &self,
        tls: TlsStream<TcpIo>,
        width: Width,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(http2::SendRequest<RequestBody>, Arc<AtomicUsize>, Turns), DialError> {
        let header_bytes = u32::try_from(limits::HEADER_LIST_BYTES).unwrap_or(u32::MAX);
        let (io, cork) = cork(tls);
        let (turns, tasks) = (cork.turns(), ConnectionTasks::new(self.tasks.clone()));
        let (send, connection) = http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(width.window())
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(width.frame())
            .max_header_list_size(header_bytes)
            .max_send_buf_size(width.send_buffer())
            .max_concurrent_reset_streams(limits::RESET_STREAMS)
            .max_local_error_reset_streams(limits::RESET_STREAMS)
            .reset_stream_duration(limits::RESET_REMEMBERED)
            .keep_alive_interval(PING_PERIOD)
            .keep_alive_timeout(PING_DEADLINE)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|err| self.failed(format!("HTTP/2: {err}")))?;
        let allowed = Arc::new(AtomicUsize::new(STREAMS_PER_CONNECTION));
        let allows = allowed.clone();
        let mut connection = Box::pin(connection);
        let run = std::future::poll_fn(move |cx| {
            let ended = connection.as_mut().poll(cx);
            allows.store(connection.current_max_send_streams(), Ordering::Relaxed);
            ended
        });
        let run = async move {
            said(run.await);
            ended();
        };
        self.tasks.spawn("apiserver connection", cork.drive(tasks.beside_socket(run)));
        Ok((send, allowed, turns))
    }

    /// Opens a connection that speaks HTTP/1.1.
    pub(super) async fn http1(&self, tls: TlsStream<TcpIo>) -> Result<Http1Send, DialError> {
        let (send, connection) = self.handshake(http1::Builder::new().max_headers(limits::HEADER_COUNT), tls).await?;
        self.tasks.spawn("apiserver connection", async move { said(connection.with_upgrades().await) });
        Ok(send)
    }

    /// HTTP/1.1 for one request with a long target, to which the library is told [`STAND_IN`].
    ///
    /// [`STAND_IN`]: super::long::STAND_IN
    pub(super) async fn http1_long(
        &self,
        tls: TlsStream<TcpIo>,
        method: &Method,
        target: LongTarget,
    ) -> Result<http1::SendRequest<RequestBody>, DialError> {
        let io = LongLine::new(tls, method, target.into_bytes());
        let ((send, _), connection) =
            self.handshake(http1::Builder::new().max_headers(limits::HEADER_COUNT), io).await?;
        self.tasks.spawn("apiserver connection", async move { said(connection.with_upgrades().await) });
        Ok(send)
    }

    async fn handshake<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        builder: &mut http1::Builder,
        tls: T,
    ) -> Result<(Http1Send, Http1Connection<T>), DialError> {
        let narrow = Narrow::default();
        let io = TokioIo::new(Sips::new(tls, narrow.clone()));
        let (send, connection) = builder
            .max_buf_size(HTTP1_BUFFER_BYTES)
            .handshake(io)
            .await
            .map_err(|err| self.failed(format!("HTTP/1.1: {err}")))?;
        Ok(((send, narrow), connection))
    }

    /// No request was sent.
    fn failed(&self, step: String) -> DialError {
        DialError::Connect { address: self.authority.to_string(), step }
    }
}

type Http1Connection<T> = http1::Connection<TokioIo<Sips<T>>, RequestBody>;

/// What the TLS library says, and what to do where its words do not tell.
fn explain(error: &std::io::Error) -> String {
    let said = error.to_string();
    if !said.contains("CaUsedAsEndEntity") {
        return said;
    }
    format!(
        "{said}: the apiserver's certificate is that of an authority (CA:TRUE); issue one that is not, or name exactly this \
         certificate as the authority (certificate-authority-data)"
    )
}

/// How a connection ended.
fn said(ended: hyper::Result<()>) {
    if let Err(err) = ended {
        tracing::debug!(error = %err, "connection to the apiserver ended");
    }
}
