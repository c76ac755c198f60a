//! Raw HTTP/1.1 over TLS: bytes as given, answers split no further than needed, for what client libraries would tidy
//! up.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::ServerName};

use crate::programs::{keep, scratch_root};

/// A TLS connection to a gateway.
pub struct Raw {
    io: StreamOwned<ClientConnection, TcpStream>,
    /// Bytes read and not yet taken.
    held: Vec<u8>,
}

/// One HTTP/1.1 answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The head as received, status line included.
    pub head: String,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header, in the case-insensitive sense.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// The body as JSON.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("body is no JSON: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// Root certificates of a PEM file.
pub fn roots(ca: &Path) -> anyhow::Result<RootCertStore> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

impl Raw {
    /// Connects with the given ALPN (empty: none).
    pub fn connect(address: &str, ca: &Path, alpn: &[&[u8]]) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(ca)?)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let host = address.rsplit_once(':').context("address without a port")?.0.trim_matches(['[', ']']);
        let socket = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        socket.set_nodelay(true)?;
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from(host.to_owned())?)?;
        Ok(Self { io: StreamOwned::new(connection, socket), held: Vec::new() })
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.io.write_all(bytes)?;
        self.io.flush()?;
        Ok(())
    }

    /// Bounds how long a read waits.
    pub fn read_timeout(&mut self, timeout: Duration) -> anyhow::Result<()> {
        Ok(self.io.sock.set_read_timeout(Some(timeout))?)
    }

    /// What comes next: some bytes, or none at the end.
    pub fn some(&mut self) -> anyhow::Result<Vec<u8>> {
        if !self.held.is_empty() {
            return Ok(std::mem::take(&mut self.held));
        }
        let mut buffer = vec![0; 64 * 1024];
        match self.io.read(&mut buffer) {
            Ok(count) => {
                buffer.truncate(count);
                Ok(buffer)
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn fill(&mut self) -> anyhow::Result<bool> {
        let held = std::mem::take(&mut self.held);
        let more = self.some()?;
        let any = !more.is_empty();
        self.held = [held, more].concat();
        Ok(any)
    }

    /// Reads a head up to its empty line.
    pub fn head(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(end) = self.held.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = self.held.split_off(end + 4);
                let head = std::mem::replace(&mut self.held, rest);
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            if !self.fill()? {
                bail!("connection ended within a head: {:?}", String::from_utf8_lossy(&self.held));
            }
        }
    }

    /// Takes exactly `count` bytes.
    pub fn exactly(&mut self, count: usize) -> anyhow::Result<Vec<u8>> {
        while self.held.len() < count {
            if !self.fill()? {
                bail!("connection ended {} bytes early", count - self.held.len());
            }
        }
        let rest = self.held.split_off(count);
        Ok(std::mem::replace(&mut self.held, rest))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|window| window == b"\r\n") {
                let line = self.exactly(end + 2)?;
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !self.fill()? {
                bail!("connection ended within a line");
            }
        }
    }

    /// Reads one answer whole; 1xx other than 101 are passed over. Errors are kept for the sweep for secrets.
    pub fn answer(&mut self) -> anyhow::Result<Answer> {
        let answer = self.any_answer()?;
        if answer.status >= 400 {
            keep(
                &scratch_root().join("error-answers"),
                &format!("{}{}", answer.head, String::from_utf8_lossy(&answer.body)),
            );
        }
        Ok(answer)
    }

    fn any_answer(&mut self) -> anyhow::Result<Answer> {
        loop {
            let head = self.head()?;
            let status: u16 = head.split_whitespace().nth(1).context("no status")?.parse()?;
            let mut answer = Answer { status, head, body: Vec::new() };
            if status == 101 {
                return Ok(answer);
            }
            if status < 200 {
                continue;
            }
            if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
                while let Some(chunk) = self.chunk()? {
                    answer.body.extend(chunk);
                }
                return Ok(answer);
            }
            match answer.header("content-length").map(str::parse) {
                Some(length) => answer.body = self.exactly(length?)?,
                None if matches!(status, 204 | 304) => {}
                None => while self.fill()? {},
            }
            if answer.body.is_empty() && answer.header("content-length").is_none() {
                answer.body = std::mem::take(&mut self.held);
            }
            return Ok(answer);
        }
    }

    /// The next chunk of a chunked body; none at its clean end.
    pub fn chunk(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let size = usize::from_str_radix(self.line()?.split(';').next().unwrap_or_default().trim(), 16)?;
        let chunk = self.exactly(size)?;
        self.line()?;
        Ok((size > 0).then_some(chunk))
    }

    /// Whether the peer has closed: no more bytes come.
    pub fn closed(&mut self) -> bool {
        matches!(self.some(), Ok(bytes) if bytes.is_empty())
            || self.io.sock.peek(&mut [0]).map_or(true, |count| count == 0)
    }
}
