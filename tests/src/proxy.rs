//! A scripted HTTP proxy: CONNECT with the manners, good and bad, that corporate proxies have.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::Engine;
use rustls::{ServerConfig, ServerConnection};

use crate::tls;

/// What the proxy does with a CONNECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Connects, if the credentials are right.
    Good,
    /// Says 407 whatever it is given.
    Denies,
    /// Takes the request and says nothing.
    Hangs,
    /// Breaks the connection off.
    Resets,
    /// Connects, and closes after this time without a byte either way.
    ClosesWhenSilent(Duration),
}

/// A running proxy.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its own CA, when it is spoken to over TLS.
    pub ca: Option<PathBuf>,
    manner: Arc<Mutex<Manner>>,
    connects: Arc<AtomicUsize>,
}

/// User name and password of [`Proxy`].
pub const CREDENTIALS: (&str, &str) = ("proxy-user", "proxy-pass-word");

impl Proxy {
    /// Starts one; with TLS its CA goes to `dir`.
    pub fn start(dir: &Path, tls: bool, manner: Manner) -> anyhow::Result<Self> {
        Self::start_at("127.0.0.1", dir, tls, manner)
    }

    /// As [`Self::start`], at another address of this machine.
    pub fn start_at(ip: &str, dir: &Path, tls: bool, manner: Manner) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((ip, 0))?;
        let address = listener.local_addr()?;
        let mut config = None;
        let mut ca = None;
        if tls {
            let (authority, made) = tls::server(ip, "the proxy's own authority")?;
            let path = dir.join("proxy-ca.crt");
            std::fs::write(&path, authority)?;
            ca = Some(path);
            config = Some(made);
        }
        let manner = Arc::new(Mutex::new(manner));
        let connects = Arc::new(AtomicUsize::new(0));
        let (how, count) = (manner.clone(), connects.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, how, count) = (config.clone(), how.clone(), count.clone());
                std::thread::spawn(move || {
                    let _ = serve(socket, config, &how, &count);
                });
            }
        });
        Ok(Self { address, ca, manner, connects })
    }

    /// Changes its manner for connections to come.
    pub fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// CONNECT requests so far.
    pub fn connects(&self) -> usize {
        self.connects.load(Ordering::Relaxed)
    }

    /// Lines for an agent's configuration file that send it through this proxy.
    pub fn agent_config(&self, dir: &Path) -> anyhow::Result<String> {
        let (user, password) = (dir.join("proxy-user.key"), dir.join("proxy-password.key"));
        std::fs::write(&user, CREDENTIALS.0)?;
        std::fs::write(&password, CREDENTIALS.1)?;
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        let ca = self.ca.as_ref().map(|path| format!("ca_file = \"{}\"\n", path.display())).unwrap_or_default();
        Ok(format!(
            "\n[proxy]\nurl = \"{scheme}://{}\"\nusername_file = \"{}\"\npassword_file = \"{}\"\n{ca}",
            self.address,
            user.display(),
            password.display()
        ))
    }
}

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

fn serve(
    socket: TcpStream,
    config: Option<Arc<ServerConfig>>,
    manner: &Mutex<Manner>,
    connects: &AtomicUsize,
) -> anyhow::Result<()> {
    let clone = socket.try_clone()?;
    let mut io: Box<dyn Both> = match config {
        Some(config) => Box::new(rustls::StreamOwned::new(ServerConnection::new(config)?, socket)),
        None => Box::new(socket),
    };
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if io.read(&mut byte)? == 0 || head.len() > 16 * 1024 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    connects.fetch_add(1, Ordering::Relaxed);
    let head = String::from_utf8_lossy(&head).into_owned();
    let expected = base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", CREDENTIALS.0, CREDENTIALS.1));
    let known = head.to_lowercase().contains(&format!("proxy-authorization: basic {expected}").to_lowercase());
    let manner = *manner.lock().unwrap();
    match manner {
        Manner::Resets => return Ok(()),
        Manner::Hangs => {
            let _ = io.read(&mut byte);
            return Ok(());
        }
        Manner::Denies => return Ok(io.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"p\"\r\ncontent-length: 0\r\n\r\n")?),
        Manner::Good | Manner::ClosesWhenSilent(_) if !known => {
            return Ok(io.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"p\"\r\ncontent-length: 0\r\n\r\n")?);
        }
        Manner::Good | Manner::ClosesWhenSilent(_) => {}
    }
    let target = head.split_whitespace().nth(1).unwrap_or_default();
    let mut upstream = TcpStream::connect(target)?;
    io.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    io.flush()?;
    carry(&mut *io, &clone, &mut upstream, manner)
}

/// One thread for both ways: short read timeouts, because the TLS side cannot be split.
fn carry(io: &mut dyn Both, socket: &TcpStream, upstream: &mut TcpStream, manner: Manner) -> anyhow::Result<()> {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    let step = Duration::from_millis(2);
    socket.set_read_timeout(Some(step))?;
    upstream.set_read_timeout(Some(step))?;
    let mut buffer = vec![0; 64 * 1024];
    let mut silent_since = std::time::Instant::now();
    loop {
        let mut moved = false;
        match io.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                upstream.write_all(&buffer[..count])?;
                moved = true;
            }
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        match upstream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                io.write_all(&buffer[..count])?;
                io.flush()?;
                moved = true;
            }
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        if moved {
            silent_since = std::time::Instant::now();
        }
        if let Manner::ClosesWhenSilent(after) = manner
            && silent_since.elapsed() > after
        {
            return Ok(());
        }
    }
}
