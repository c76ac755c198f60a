//! Dialling: each hop that can fail says so by name.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tunnel::transport::{
    CarrierKind,
    dial::{DialError, DialOptions, Proxy, Target, dial},
    quic::{Listener, QuicOptions},
};

use crate::carriers::{Tls, read_head};

fn options() -> DialOptions {
    let short = Duration::from_millis(500);
    DialOptions {
        resolve: short,
        connect: short,
        proxy: short,
        handshake: short,
        upgrade: short,
        ..DialOptions::default()
    }
}

/// What a proxy does with the head of a `CONNECT` that it read.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Carries the connection if the credentials are right.
    Carry,
    Answer(&'static str),
    Hang,
    HangUp,
}

/// One connection through a scripted proxy; gives back the `CONNECT` head.
async fn proxy_one<T>(mut io: T, behaviour: Behaviour) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let head = read_head(&mut io).await;
    match behaviour {
        Behaviour::Carry => {
            let target = head.split(' ').nth(1).unwrap().to_owned();
            let mut far = TcpStream::connect(target).await.unwrap();
            io.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.unwrap();
            io.flush().await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut io, &mut far).await;
        }
        Behaviour::Answer(answer) => {
            io.write_all(answer.as_bytes()).await.unwrap();
            io.flush().await.unwrap();
            let _ = io.read(&mut [0; 1]).await;
        }
        Behaviour::Hang => {
            let _ = io.read(&mut [0; 1]).await;
        }
        Behaviour::HangUp => {}
    }
    head
}

struct Script {
    proxy: Proxy,
    task: tokio::task::JoinHandle<String>,
}

async fn plain_proxy(behaviour: Behaviour) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy {
        host: "proxy.test".to_owned(),
        port: listener.local_addr().unwrap().port(),
        tls: None,
        credentials: Some(("user".to_owned(), "pass:word".to_owned().into())),
    };
    let task = tokio::spawn(async move { proxy_one(listener.accept().await.unwrap().0, behaviour).await });
    Script { proxy, task }
}

/// A proxy over TLS with an authority of its own.
async fn tls_proxy(behaviour: Behaviour) -> (Script, Tls) {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy {
        host: "proxy.test".to_owned(),
        port: listener.local_addr().unwrap().port(),
        tls: Some((tls.client(), ServerName::try_from("gateway.test").unwrap())),
        credentials: None,
    };
    let acceptor = TlsAcceptor::from(tls.server(&[b"http/1.1"]));
    let task = tokio::spawn(async move {
        let socket = listener.accept().await.unwrap().0;
        match acceptor.accept(socket).await {
            Ok(io) => proxy_one(io, behaviour).await,
            Err(_) => String::new(),
        }
    });
    (Script { proxy, task }, tls)
}

fn through(tls: &Tls, address: SocketAddr, proxy: &Proxy) -> Target {
    let mut target = tls.target(address);
    target.proxy = Some(proxy.clone());
    target.aliases.push(("proxy.test".to_owned(), [127, 0, 0, 1].into()));
    target
}

async fn dials_through(script: Script, carrier: CarrierKind) -> String {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = through(&tls, listener.local_addr().unwrap(), &script.proxy);
    let dial_options = DialOptions::default();
    let (gateway, agent) = tokio::join!(tls.accept_tcp(&listener, carrier), dial(&target, carrier, &dial_options));
    let agent = agent.unwrap();
    assert_eq!(agent.facts().kind, carrier);
    assert!(!agent.facts().certificates.is_empty(), "the gateway's certificates, not the proxy's");
    drop((gateway, agent));
    script.task.await.unwrap()
}

async fn fails_with(script: &Script) -> DialError {
    let tls = Tls::new();
    let target = through(&tls, ([127, 0, 0, 1], 1).into(), &script.proxy);
    dial(&target, CarrierKind::Http2, &options()).await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn both_tcp_carriers_go_through_a_proxy_with_basic_authentication() {
    for carrier in [CarrierKind::Http2, CarrierKind::WebSocket] {
        let head = dials_through(plain_proxy(Behaviour::Carry).await, carrier).await;
        // The base64 text is `user:pass:word`.
        assert!(head.contains("Proxy-Authorization: Basic dXNlcjpwYXNzOndvcmQ=\r\n"), "{head}");
        assert!(head.starts_with("CONNECT 127.0.0.1:"), "an alias is ours, the proxy gets the address: {head}");
    }
}

#[tokio::test]
async fn a_proxy_over_tls_has_its_own_trust() {
    let (script, _) = tls_proxy(Behaviour::Carry).await;
    dials_through(script, CarrierKind::Http2).await;
    let (mut script, _) = tls_proxy(Behaviour::Carry).await;
    let stranger = Tls::new();
    script.proxy.tls = Some((stranger.client(), ServerName::try_from("gateway.test").unwrap()));
    assert!(matches!(fails_with(&script).await, DialError::ProxyTls { .. }));
}

#[tokio::test]
async fn a_proxys_refusals_are_told_apart() {
    let with = async |behaviour| fails_with(&plain_proxy(behaviour).await).await;
    let answer = Behaviour::Answer("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n");
    assert!(matches!(with(answer).await, DialError::ProxyAuthentication { credentials_sent: true, .. }));
    let answer = Behaviour::Answer("HTTP/1.0 403 Forbidden\r\n\r\n<html>no</html>");
    assert!(matches!(with(answer).await, DialError::ProxyRefused { status: 403, .. }));
    let answer = Behaviour::Answer("SSH-2.0-OpenSSH_9\r\n\r\n");
    assert!(matches!(with(answer).await, DialError::ProxyBroken { .. }));
    let answer = Behaviour::Answer("HTTP/1.1 200 OK\r\n\r\nsurprise");
    assert!(matches!(with(answer).await, DialError::ProxyBroken { .. }));
    assert!(matches!(with(Behaviour::Hang).await, DialError::ProxyBroken { .. }));
    assert!(matches!(with(Behaviour::HangUp).await, DialError::ProxyBroken { .. }));
}

#[tokio::test]
async fn the_proxys_password_is_in_no_error_and_no_debug_text() {
    let script = plain_proxy(Behaviour::HangUp).await;
    let error = fails_with(&script).await;
    let text = format!("{error} {error:?} {:?}", script.proxy);
    assert!(!text.contains("pass:word") && !text.contains("dXNlcj"), "{text}");
}

#[tokio::test]
async fn each_hop_of_a_direct_dial_fails_by_name() {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let target = tls.target(address);
    let go = async |target: &Target, carrier| dial(target, carrier, &options()).await.map(|_| ()).unwrap_err();
    // A name that does not exist.
    let nowhere = Target { host: "gateway.invalid".to_owned(), aliases: Vec::new(), ..target.clone() };
    assert!(matches!(go(&nowhere, CarrierKind::Http2).await, DialError::Resolve { .. }));
    // A port where nobody listens.
    let refused = Target { port: 1, ..target.clone() };
    assert!(matches!(go(&refused, CarrierKind::Http2).await, DialError::Connect { proxy: false, .. }));
    // A listener that never speaks TLS.
    assert!(matches!(go(&target, CarrierKind::Http2).await, DialError::Tls { .. }));
    // Nobody on UDP.
    assert!(matches!(go(&target, CarrierKind::Quic).await, DialError::Quic { .. }));
    // QUIC and a proxy.
    let script = plain_proxy(Behaviour::Hang).await;
    let proxied = through(&tls, address, &script.proxy);
    assert!(matches!(go(&proxied, CarrierKind::Quic).await, DialError::QuicThroughProxy));
    script.task.abort();
}

#[tokio::test]
async fn a_gateway_of_another_authority_or_another_protocol_is_told_apart() {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async |config: Arc<rustls::ServerConfig>| {
        let socket = listener.accept().await.unwrap().0;
        if let Ok(mut io) = TlsAcceptor::from(config).accept(socket).await {
            let _ = read_head(&mut io).await;
            let _ = io.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
            let _ = io.flush().await;
        }
    };
    let stranger = Tls::new();
    let dial_options = options();
    let dialled = |carrier| {
        let target = tls.target(address);
        let dial_options = dial_options.clone();
        async move { dial(&target, carrier, &dial_options).await.map(|_| ()).unwrap_err() }
    };
    let (error, ()) = tokio::join!(dialled(CarrierKind::Http2), serve(stranger.server(&[b"towline/1"])));
    assert!(matches!(error, DialError::Tls { .. }), "{error}");
    let (error, ()) = tokio::join!(dialled(CarrierKind::Http2), serve(tls.server(&[b"h2", b"http/1.1"])));
    assert!(matches!(error, DialError::NotOffered { carrier: CarrierKind::Http2, .. }), "{error}");
    let (error, ()) = tokio::join!(dialled(CarrierKind::WebSocket), serve(tls.server(&[b"http/1.1"])));
    assert!(matches!(error, DialError::WebSocket { status: Some(404), .. }), "{error}");
}

/// Whoever comes while many shake hands has its address proved before anything is kept for it.
#[tokio::test]
async fn beyond_a_number_of_handshakes_quic_peers_prove_their_address_first() {
    let tls = Tls::new();
    for (retry_above, proved) in [(0, true), (1, false)] {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = QuicOptions { retry_above, ..QuicOptions::default() };
        let listener = Listener::bind(socket, tls.server(&[]), options).unwrap();
        let target = tls.target(listener.local_addr().unwrap());
        let accept = async {
            let connecting = listener.accept().await.unwrap();
            assert_eq!(connecting.address_is_proved(), proved);
            connecting.establish().await.unwrap()
        };
        let options = DialOptions::default();
        let (_gateway, agent) = tokio::join!(accept, dial(&target, CarrierKind::Quic, &options));
        agent.unwrap();
    }
}
