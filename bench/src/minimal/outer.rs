//! The hop that users reach.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::{client::conn::http2::SendRequest, service::service_fn};
use proto::process::TaskGroup;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{Context, Incoming, Outer, Request, Response};
use crate::upstream;

/// The connection that the site has opened last.
type Carrier = Arc<Mutex<Option<SendRequest<Incoming>>>>;

/// What requests are addressed to between both hops.
const SITE: &str = "site";

/// Serves until it is killed.
pub async fn run(args: &Outer) -> anyhow::Result<()> {
    let acceptor = upstream::acceptor(&args.certificate, &args.key)?;
    let listen = async |at| TcpListener::bind(at).await.with_context(|| format!("listen at {at}"));
    let (users, sites) = (listen(args.listen).await?, listen(args.tunnel).await?);
    let (tasks, carrier) = (TaskGroup::new("minimal"), Carrier::default());
    loop {
        let (acceptor, carrier) = (acceptor.clone(), Arc::clone(&carrier));
        // A peer that goes away ends its connection and nothing else.
        tokio::select! {
            accepted = users.accept() => {
                let (tcp, _) = accepted?;
                tasks.spawn("user", async move { let _ = user(tcp, &acceptor, carrier).await; });
            }
            accepted = sites.accept() => {
                let (tcp, _) = accepted?;
                tasks.spawn("site", async move { let _ = site(tcp, &acceptor, &carrier).await; });
            }
        }
    }
}

async fn user(tcp: TcpStream, acceptor: &TlsAcceptor, carrier: Carrier) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let tls = acceptor.accept(tcp).await?;
    let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    super::serve(tls, h2, service_fn(move |request| send(Arc::clone(&carrier), request))).await
}

async fn send(carrier: Carrier, mut request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
    super::readdress(&mut request, SITE)?;
    let sender = carrier.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut sender = sender.context("the site has not dialled in")?;
    sender.ready().await?;
    Ok(sender.send_request(request).await?)
}

async fn site(tcp: TcpStream, acceptor: &TlsAcceptor, carrier: &Carrier) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let (sender, connection) = super::ask(acceptor.accept(tcp).await?).await?;
    *carrier.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    Ok(connection.await?)
}
