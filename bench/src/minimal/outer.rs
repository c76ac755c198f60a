//! The hop of the minimal peer that users reach: it takes their requests over TLS, and sends them over the connection
//! that the site has dialled. It checks no token and keeps no records.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use daemon::TaskGroup;
use hyper::{client::conn::http2::SendRequest, service::service_fn};
use quinn::{Connection, Endpoint};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tunnel::transport::websocket;

use super::{Context, Incoming, Outer, Over, Request, Response, quic};
use crate::upstream;

/// What requests are addressed to between both hops.
const SITE: &str = "site";

/// Serves until it is killed.
pub async fn run(args: &Outer) -> anyhow::Result<()> {
    let acceptor = upstream::acceptor(&args.certificate, &args.key)?;
    let hop = Hop { acceptor, carrier: Arc::default(), tasks: TaskGroup::new("minimal") };
    let users = hop.each(listen(args.listen).await?, Hop::user);
    match args.over {
        Over::Http2 => tokio::try_join!(users, hop.each(listen(args.tunnel).await?, Hop::site))?,
        Over::Websocket => tokio::try_join!(users, hop.each(listen(args.tunnel).await?, Hop::site_in_messages))?,
        Over::Quic => tokio::try_join!(users, hop.sites_over_quic(quic::listen(args)?))?,
    };
    Ok(())
}

async fn listen(at: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"))
}

/// The connection to the site.
#[derive(Clone)]
enum Carrier {
    Http2(SendRequest<Incoming>),
    Quic(Connection),
}

#[derive(Clone)]
struct Hop {
    acceptor: TlsAcceptor,
    carrier: Arc<Mutex<Option<Carrier>>>,
    tasks: TaskGroup,
}

/// A peer that goes away ends its connection and nothing else.
impl Hop {
    /// Serves whoever comes in.
    async fn each<F>(&self, listener: TcpListener, serve: impl Fn(Self, TcpStream) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        loop {
            let (tcp, _) = listener.accept().await?;
            tcp.set_nodelay(true)?;
            let serving = serve(self.clone(), tcp);
            self.tasks.spawn("connection", async move {
                let _ = serving.await;
            });
        }
    }

    async fn user(self, tcp: TcpStream) -> anyhow::Result<()> {
        let tls = self.acceptor.accept(tcp).await?;
        let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        super::serve(tls, h2, service_fn(move |request| self.clone().send(request))).await
    }

    async fn send(self, mut request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
        let carrier = self.carrier().clone();
        match carrier.context("the site has not dialled in")? {
            Carrier::Http2(mut sender) => {
                super::readdress(&mut request, SITE)?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Carrier::Quic(connection) => {
                super::readdress_http1(&mut request, SITE)?;
                quic::ask(&connection, &self.tasks, request).await
            }
        }
    }

    /// Requests go to the site that has dialled last.
    async fn site(self, tcp: TcpStream) -> anyhow::Result<()> {
        let tls = self.acceptor.accept(tcp).await?;
        self.carry(tls).await
    }

    async fn site_in_messages(self, tcp: TcpStream) -> anyhow::Result<()> {
        let tls = self.acceptor.accept(tcp).await?;
        self.carry(websocket::bare(tls, false)).await
    }

    async fn carry(self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> anyhow::Result<()> {
        let (sender, connection) = super::ask(io).await?;
        *self.carrier() = Some(Carrier::Http2(sender));
        Ok(connection.await?)
    }

    /// Requests go to the first one that is still there: those after it are idle ones.
    async fn sites_over_quic(&self, endpoint: Endpoint) -> anyhow::Result<()> {
        let peers = quic::Peers::default();
        let told = peers.clone();
        self.tasks.spawn("tell", async move { told.tell().await });
        loop {
            let incoming = endpoint.accept().await.context("the endpoint has ended")?;
            let (hop, peers) = (self.clone(), peers.clone());
            self.tasks.spawn("site", async move {
                if let Ok(connection) = quic::accept(incoming).await {
                    hop.offer(&connection);
                    peers.add(connection);
                }
            });
        }
    }

    fn offer(&self, connection: &Connection) {
        let mut carrier = self.carrier();
        let there = matches!(&*carrier, Some(Carrier::Quic(first)) if first.close_reason().is_none());
        if !there {
            *carrier = Some(Carrier::Quic(connection.clone()));
        }
    }

    fn carrier(&self) -> MutexGuard<'_, Option<Carrier>> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
