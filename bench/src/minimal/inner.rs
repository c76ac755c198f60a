//! The hop at the site of the minimal peer, which dials the outer hop and serves what comes over that connection: it
//! forwards each request to the upstream. It is the least that a reverse tunnel can do, and what Towline's figures are
//! compared with.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, ready},
    time::Duration,
};

use anyhow::bail;
use daemon::TaskGroup;
use hyper::{
    body::{Frame, SizeHint},
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tunnel::transport::websocket;

use super::{Body, Bytes, Context, Incoming, Inner, Over, Request, Response, quic};

/// Between two attempts to dial.
const AGAIN: Duration = Duration::from_millis(100);

/// Serves until it is killed.
pub async fn run(args: Inner) -> anyhow::Result<()> {
    let tasks = TaskGroup::new("minimal");
    let upstream = Arc::new(Upstream { kept: Mutex::default(), one: tokio::sync::Mutex::default(), tasks, args });
    loop {
        // The first hop may not listen yet.
        let _ = carry(&upstream).await;
        tokio::time::sleep(AGAIN).await;
    }
}

async fn carry(upstream: &Arc<Upstream>) -> anyhow::Result<()> {
    let Inner { connect, ca, over, .. } = &upstream.args;
    let service = {
        let upstream = Arc::clone(upstream);
        service_fn(move |request| send(Arc::clone(&upstream), request))
    };
    if *over == Over::Quic {
        let (_endpoint, connection) = quic::dial(connect, &quic::tls(ca)?).await?;
        return quic::carry(&connection, &upstream.tasks, service).await;
    }
    let (host, _) = connect.rsplit_once(':').context("host:port")?;
    let tls = super::dial(connect, host, ca, b"h2").await?;
    match over {
        Over::Websocket => super::serve(websocket::bare(tls, true), true, service).await,
        _ => super::serve(tls, true, service).await,
    }
}

/// What answers, and connections to it.
struct Upstream {
    args: Inner,
    /// Of HTTP/1.1, of which each has one request at a time.
    kept: Mutex<Vec<http1::SendRequest<Incoming>>>,
    /// The one connection of HTTP/2, which carries all requests.
    one: tokio::sync::Mutex<Option<http2::SendRequest<Incoming>>>,
    tasks: TaskGroup,
}

async fn send(upstream: Arc<Upstream>, mut request: Request<Incoming>) -> anyhow::Result<Response<Answer>> {
    if upstream.args.h2 {
        super::readdress(&mut request, &upstream.args.upstream)?;
        let mut sender = upstream.http2().await?;
        sender.ready().await?;
        return Ok(sender.send_request(request).await?.map(|body| Answer { body, back: None }));
    }
    super::readdress_http1(&mut request, &upstream.args.upstream)?;
    let mut sender = upstream.http1().await?;
    let answer = sender.send_request(request).await?;
    Ok(answer.map(|body| Answer { body, back: Some((sender, upstream)) }))
}

impl Upstream {
    async fn http1(&self) -> anyhow::Result<http1::SendRequest<Incoming>> {
        while let Some(mut sender) = self.idle() {
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.dial(b"http/1.1").await?)).await?;
        self.tasks.spawn("connection", async move {
            // Its requests tell how it ended.
            let _ = connection.await;
        });
        sender.ready().await?;
        Ok(sender)
    }

    fn idle(&self) -> Option<http1::SendRequest<Incoming>> {
        self.kept().pop()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<http1::SendRequest<Incoming>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn http2(&self) -> anyhow::Result<http2::SendRequest<Incoming>> {
        let mut one = self.one.lock().await;
        if let Some(sender) = one.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let (sender, connection) = super::ask(self.dial(b"h2").await?).await?;
        self.tasks.spawn("connection", async move {
            let _ = connection.await;
        });
        *one = Some(sender.clone());
        Ok(sender)
    }

    async fn dial(&self, protocol: &[u8]) -> anyhow::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        let Inner { upstream, upstream_name, upstream_ca, .. } = &self.args;
        let tls = super::dial(upstream, upstream_name, upstream_ca, protocol).await?;
        if tls.get_ref().1.alpn_protocol() != Some(protocol) {
            bail!("the upstream does not speak {}", String::from_utf8_lossy(protocol));
        }
        Ok(tls)
    }
}

/// The body of an answer; at its end the connection that it came over can be used again.
struct Answer {
    body: Incoming,
    back: Option<(http1::SendRequest<Incoming>, Arc<Upstream>)>,
}

impl Answer {
    fn give_back(&mut self) {
        if let Some((sender, upstream)) = self.back.take() {
            upstream.kept().push(sender);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
