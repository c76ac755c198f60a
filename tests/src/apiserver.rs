//! A scripted apiserver: TLS, HTTP/1.1, records the raw bytes that it received, answers what it is told. HTTP libraries
//! normalise, so tests of attacks look at these bytes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context;
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// Request line and headers, with their line ends.
    pub head: Vec<u8>,
    /// What was read of the body.
    pub body: Vec<u8>,
    /// Which connection it came on.
    pub connection: usize,
}

impl Received {
    /// The head as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// The request target, as bytes.
    pub fn target(&self) -> &[u8] {
        self.head.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
    }

    /// All values of a header; names in any case.
    pub fn headers(&self, name: &str) -> Vec<String> {
        self.text()
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':').map(|(key, value)| (key.to_owned(), value.trim().to_owned())))
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }

    /// Names of all headers, as spelled.
    pub fn names(&self) -> Vec<String> {
        self.text().lines().skip(1).filter_map(|line| line.split_once(':')).map(|(key, _)| key.to_owned()).collect()
    }
}

/// A connection in the hands of a script.
pub type Connection = StreamOwned<ServerConnection, TcpStream>;

/// What to do with a request: write any bytes; `true` keeps the connection for a next request.
pub type Script = dyn Fn(&Received, &mut Connection) -> anyhow::Result<bool> + Send + Sync;

/// The scripted apiserver.
pub struct Apiserver {
    /// Where it listens.
    pub address: SocketAddr,
    /// A kubeconfig that points at it, with a bearer token for the agent.
    pub kubeconfig: PathBuf,
    received: Arc<Mutex<Vec<Received>>>,
}

/// The token with which the agent authenticates at a scripted apiserver.
pub const AGENT_TOKEN: &str = "scripted-agent-credential";

impl Apiserver {
    /// Starts one whose files go to `dir`. SubjectAccessReviews are answered by `allow_as`.
    pub fn start(dir: &Path, allow_as: bool, script: Arc<Script>) -> anyhow::Result<Self> {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])?;
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let kubeconfig = dir.join("scripted.kubeconfig");
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(certified.cert.pem());
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{}", address.port()), "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": AGENT_TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        let received = Arc::new(Mutex::new(Vec::new()));
        let (config, log) = (Arc::new(config), received.clone());
        std::thread::spawn(move || {
            for (number, socket) in listener.incoming().flatten().enumerate() {
                let (config, log, script) = (config.clone(), log.clone(), script.clone());
                std::thread::spawn(move || {
                    let _ = serve(number, socket, config, &log, allow_as, &*script);
                });
            }
        });
        Ok(Self { address, kubeconfig, received })
    }

    /// One that answers every request with 200 and a small JSON body.
    pub fn plain(dir: &Path) -> anyhow::Result<Self> {
        Self::start(dir, false, Arc::new(|_, connection| answer(connection, "200 OK", b"{\"kind\":\"Scripted\"}")))
    }

    /// What arrived so far, access reviews left out.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().iter().filter(|request| !is_review(request)).cloned().collect()
    }

    /// Forgets what arrived so far.
    pub fn forget(&self) {
        self.received.lock().unwrap().clear();
    }

    /// The access reviews that arrived so far, as JSON.
    pub fn reviews(&self) -> Vec<serde_json::Value> {
        self.received
            .lock()
            .unwrap()
            .iter()
            .filter(|request| is_review(request))
            .filter_map(|request| serde_json::from_slice(&request.body).ok())
            .collect()
    }
}

fn is_review(request: &Received) -> bool {
    request.target().starts_with(b"/apis/authorization.k8s.io/v1/subjectaccessreviews")
}

/// Writes an answer with a length.
pub fn answer(connection: &mut Connection, status: &str, body: &[u8]) -> anyhow::Result<bool> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(&[head.as_bytes(), body].concat())?;
    connection.flush()?;
    Ok(true)
}

fn serve(
    number: usize,
    socket: TcpStream,
    config: Arc<ServerConfig>,
    log: &Mutex<Vec<Received>>,
    allow_as: bool,
    script: &Script,
) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(120)))?;
    socket.set_nodelay(true)?;
    let mut connection = StreamOwned::new(ServerConnection::new(config)?, socket);
    let mut held = Vec::new();
    loop {
        let mut buffer = [0; 16 * 1024];
        let end = loop {
            if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match connection.read(&mut buffer)? {
                0 => return Ok(()),
                count => held.extend_from_slice(&buffer[..count]),
            }
        };
        let rest = held.split_off(end);
        let mut request = Received { head: std::mem::replace(&mut held, rest), body: Vec::new(), connection: number };
        read_body(&mut request, &mut held, &mut connection)?;
        log.lock().unwrap().push(request.clone());
        let keep = if is_review(&request) {
            let mut review: serde_json::Value = serde_json::from_slice(&request.body).context("access review")?;
            review["status"] = serde_json::json!({ "allowed": allow_as });
            answer(&mut connection, "201 Created", review.to_string().as_bytes())?
        } else {
            script(&request, &mut connection)?
        };
        if !keep {
            return Ok(());
        }
    }
}

fn read_body(request: &mut Received, held: &mut Vec<u8>, connection: &mut Connection) -> anyhow::Result<()> {
    let mut buffer = [0; 16 * 1024];
    if let Some(length) = request.headers("content-length").first() {
        let length: usize = length.parse()?;
        while held.len() < length {
            let count = connection.read(&mut buffer)?;
            anyhow::ensure!(count > 0, "body ended early");
            held.extend_from_slice(&buffer[..count]);
        }
        let rest = held.split_off(length);
        request.body = std::mem::replace(held, rest);
    } else if request.headers("transfer-encoding").iter().any(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            if let Some(end) = held.windows(5).position(|window| window == b"0\r\n\r\n") {
                let rest = held.split_off(end + 5);
                request.body = std::mem::replace(held, rest);
                return Ok(());
            }
            let count = connection.read(&mut buffer)?;
            anyhow::ensure!(count > 0, "body ended early");
            held.extend_from_slice(&buffer[..count]);
        }
    }
    Ok(())
}
