//! What the tests of the command share: running it, and a small HTTPS gateway of our own with the built-in issuer.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)]

pub mod site;

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use certs::{Authority, Roots, ServerCertificate, Validity};
use gateway::issuer::{Issuer, IssuerSettings, MOUNT, USERS_FILE, Users};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use types::ids::ClusterId;

pub const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/edge";
pub const TENANT: &str = "a0000000-0000-4000-8000-00000000000a";
pub const PASSWORD: &str = "a-password-of-ann";

/// `towline <args>` with nothing of this machine's environment.
pub fn towline(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towline"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

/// Runs to the end.
pub fn run(args: &[&str]) -> Output {
    towline(args).output().unwrap()
}

/// Standard output of a success.
pub fn ok(args: &[&str]) -> String {
    let output = run(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Standard error of a failure with this exit code.
pub fn fails(code: i32, args: &[&str]) -> String {
    let output = run(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "nothing but results goes to standard output");
    error
}

/// A program that is killed when the test ends.
pub struct Running {
    pub child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The next line of standard output; at its end the program's errors tell why.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        if self.out.read_line(&mut line).unwrap() == 0 {
            let mut error = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("the program ended: {error}");
        }
        line.trim_end().to_owned()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the end and returns the exit code.
    pub fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the small gateway received.
#[derive(Debug, Clone)]
pub struct Received {
    pub method: String,
    pub target: String,
    pub version: http::Version,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

/// How an HTTP/2 connection ends on which one request has come whole, and no answer.
#[derive(Debug, Clone, Copy)]
pub enum Ending {
    /// With a GOAWAY: no stream was processed.
    GoAway,
    /// Without a word.
    Broken,
}

/// A gateway of our own: the issuer, and answers that repeat the request.
pub struct SmallGateway {
    pub address: SocketAddr,
    pub dir: tempfile::TempDir,
    pub received: Arc<Mutex<Vec<Received>>>,
    /// How the next HTTP/2 connections end; those behind them are served.
    pub endings: Arc<Mutex<VecDeque<Ending>>>,
    roots: Roots,
}

impl SmallGateway {
    /// `alpn` is what it offers.
    pub async fn start(alpn: &[&[u8]]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Validity::days(1)).unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        std::fs::write(dir.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        let own = authority.issue_server(&["127.0.0.1"], Validity::days(1)).unwrap();
        let mut tls = certs::tls::server_public(ServerCertificate::new(own.credentials()), None).unwrap();
        tls.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = dir.path().join("issuer");
        Users::edit(&state.join(USERS_FILE), |users| users.put("ann", &[], PASSWORD).map(|_| ())).unwrap();
        let settings = IssuerSettings {
            url: format!("https://{address}{MOUNT}"),
            state,
            ttl: Duration::from_secs(3600),
            tenant: TENANT.to_owned(),
            api_audience: format!("https://{address}"),
            audiences: Vec::new(),
            clients: Vec::new(),
        };
        let issuer = Arc::new(Issuer::open(settings).unwrap());
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let endings: Arc<Mutex<VecDeque<Ending>>> = Arc::default();
        let served = (received.clone(), endings.clone());
        tokio::task::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), issuer, served));
        Self { address, dir, received, endings, roots: authority.roots().unwrap() }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Options for a command that signs in as ann.
    pub fn options(&self) -> Vec<String> {
        let (ca, password) = (self.file("ca.crt"), self.file("password"));
        let url = self.url();
        ["--server", &url, "--cluster", CLUSTER, "--ca", &ca, "--user", "ann", "--password-file", &password]
            .map(str::to_owned)
            .into()
    }

    pub fn key(&self) -> String {
        CLUSTER.parse::<ClusterId>().unwrap().key().hex()
    }
}

type Served = (Arc<Mutex<Vec<Received>>>, Arc<Mutex<VecDeque<Ending>>>);

async fn accept(listener: TcpListener, tls: TlsAcceptor, issuer: Arc<Issuer>, (received, endings): Served) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, issuer, received) = (tls.clone(), issuer.clone(), received.clone());
        let endings = endings.clone();
        tokio::task::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let ending = if h2 { endings.lock().unwrap().pop_front() } else { None };
            if let Some(ending) = ending {
                // A client that is gone is none that waits.
                let _ = unanswered(stream, ending).await;
                return;
            }
            let service = service_fn(move |request| {
                let (issuer, received) = (issuer.clone(), received.clone());
                async move { Ok::<_, hyper::Error>(answer(request, &issuer, &received).await) }
            });
            let io = TokioIo::new(stream);
            if h2 {
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.max_header_list_size(types::limits::USER_HEADER_LIST_BYTES);
                let _ = builder.serve_connection(io, service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(io, service).with_upgrades().await;
            }
        });
    }
}

/// Reads one request, frame by frame (RFC 9113 section 4.1), and ends its connection.
async fn unanswered(mut stream: tokio_rustls::server::TlsStream<TcpStream>, ending: Ending) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    // SETTINGS with INITIAL_WINDOW_SIZE, and a WINDOW_UPDATE of the connection: room for any body.
    const BEGIN: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x01\0\0\0\0\0\x04\x08\0\0\0\0\0\x01\0\0\0";
    const SETTINGS_ACK: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";
    // The last stream that was processed is 0, and there was no error.
    const GOAWAY: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
    stream.read_exact(&mut [0; PREFACE]).await?;
    stream.write_all(BEGIN).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        let (kind, flags) = (head[3], head[4]);
        match (kind, flags & 1) {
            // DATA and HEADERS with END_STREAM.
            (0 | 1, 1) => break,
            (4, 0) => stream.write_all(SETTINGS_ACK).await?,
            _ => {}
        }
    }
    if matches!(ending, Ending::GoAway) {
        stream.write_all(GOAWAY).await?;
    }
    stream.shutdown().await
}

async fn answer(
    mut request: Request<Incoming>,
    issuer: &Issuer,
    received: &Mutex<Vec<Received>>,
) -> Response<Full<Bytes>> {
    if request.uri().path().starts_with(MOUNT) {
        return issuer.handle(IpAddr::V4(Ipv4Addr::LOCALHOST), request).await;
    }
    if request.uri().path() == gateway::request::address::ADDRESSES_PATH {
        return Response::builder().status(StatusCode::NOT_FOUND).body(Full::default()).unwrap();
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    received.lock().unwrap().push(Received {
        method: head.method.to_string(),
        target: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        version: head.version,
        headers: head.headers.clone(),
        body: body.clone(),
    });
    if head.headers.contains_key(header::UPGRADE) && head.uri.path().ends_with("/exec") {
        tokio::task::spawn(repeat_backwards(upgraded));
        return Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "SPDY/3.1")
            .body(Full::default())
            .unwrap();
    }
    let status = if head.headers.contains_key(header::UPGRADE) { StatusCode::FORBIDDEN } else { StatusCode::OK };
    Response::builder().status(status).header("warning", "299 - \"kept\"").body(Full::new(body)).unwrap()
}

/// Reads to the end of what the client sends, and only then answers with it backwards: without half-close no answer.
async fn repeat_backwards(upgraded: hyper::upgrade::OnUpgrade) {
    let mut io = TokioIo::new(upgraded.await.unwrap());
    let mut bytes = Vec::new();
    io.read_to_end(&mut bytes).await.unwrap();
    bytes.reverse();
    io.write_all(&bytes).await.unwrap();
    io.shutdown().await.unwrap();
}

/// What a kubeconfig of `towline proxy` says.
pub struct Local {
    pub port: u16,
    pub path: String,
    pub token: String,
    pub ca: Vec<u8>,
}

impl Local {
    pub fn read(file: &Path, context: usize) -> Self {
        use base64::Engine;
        let text = std::fs::read_to_string(file).unwrap();
        let value: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        let cluster = &value["clusters"][context]["cluster"];
        let server = cluster["server"].as_str().unwrap().strip_prefix("https://127.0.0.1:").unwrap();
        let (port, path) = server.split_at(server.find('/').unwrap());
        let ca = cluster["certificate-authority-data"].as_str().unwrap();
        Self {
            port: port.parse().unwrap(),
            path: path.to_owned(),
            token: value["users"][context]["user"]["token"].as_str().unwrap().to_owned(),
            ca: base64::engine::general_purpose::STANDARD.decode(ca).unwrap(),
        }
    }

    /// TLS with the proxy.
    pub async fn connect(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut tls = certs::tls::client_https(&Roots::from_pem(&self.ca).unwrap()).unwrap();
        tls.alpn_protocols = vec![alpn.to_vec()];
        let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.unwrap();
        let name = rustls::pki_types::ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.unwrap()
    }

    /// Sends raw bytes on a connection of its own and reads the answer to its end.
    pub async fn raw(&self, bytes: &str) -> String {
        let mut stream = self.connect(b"http/1.1").await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A close without a TLS goodbye is an end too.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A path as an option.
pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A file of the state.
pub fn in_state(state: &Path, name: &str) -> PathBuf {
    state.join(name)
}

/// A CONNECT proxy with basic authentication, over TLS if it has a certificate. Returns its port; what it was asked for
/// is sent to `asked`.
pub async fn connect_proxy(
    tls: Option<TlsAcceptor>,
    credentials: &'static str,
    asked: tokio::sync::mpsc::Sender<String>,
) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::task::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (tls, asked) = (tls.clone(), asked.clone());
            tokio::task::spawn(async move {
                match tls {
                    None => relay(stream, credentials, asked).await,
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        relay(stream, credentials, asked).await;
                    }
                }
            });
        }
    });
    port
}

async fn relay<T>(mut stream: T, credentials: &str, asked: tokio::sync::mpsc::Sender<String>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    use base64::Engine;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let wanted = base64::engine::general_purpose::STANDARD.encode(credentials);
    if !head.contains(&format!("Basic {wanted}")) {
        stream.write_all(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        return;
    }
    let target = head.split(' ').nth(1).unwrap().to_owned();
    asked.send(target.clone()).await.unwrap();
    let mut upstream = TcpStream::connect(target).await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
}

/// A TLS certificate for 127.0.0.1 and the PEM of its authority.
pub fn tls_of_its_own() -> (TlsAcceptor, String) {
    let authority = Authority::create("proxy", Validity::days(1)).unwrap();
    let own = authority.issue_server(&["127.0.0.1"], Validity::days(1)).unwrap();
    let mut tls = certs::tls::server_public(ServerCertificate::new(own.credentials()), None).unwrap();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    (TlsAcceptor::from(Arc::new(tls)), authority.certificate_pem().to_owned())
}
