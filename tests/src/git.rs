//! Real Git servers, as a team's own are: `git http-backend` behind TLS and basic authentication, and `sshd`, which lets
//! the holder of a key do nothing but that.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::{
    programs::{Program, eventually, free_port, run},
    tls,
};

/// User name and password that it wants.
pub const CREDENTIALS: (&str, &str) = ("git-user", "git-pass-word-of-tests");
/// What is read of a request at most.
const BODY_MAX: u64 = 64 * 1024 * 1024;

/// A running server, until the process ends.
pub struct GitServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// PEM of its authority.
    pub ca: String,
    root: PathBuf,
    served: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl GitServer {
    /// Starts one with its repositories below `root`.
    pub fn start_at(ip: &str, root: &Path) -> anyhow::Result<Self> {
        crate::stack::note_secret(CREDENTIALS.1)?;
        let listener = TcpListener::bind((ip, 0))?;
        let address = listener.local_addr()?;
        let (ca, config) = tls::server(ip, "the Git server's own authority")?;
        let (served, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&served), Arc::clone(&refused));
        let folder = root.to_owned();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, folder, counts) = (Arc::clone(&config), folder.clone(), counts.clone());
                std::thread::spawn(move || {
                    // A client that goes away has gone away.
                    let _ = serve(socket, config, &folder, (&counts.0, &counts.1));
                });
            }
        });
        Ok(Self { address, ca, root: root.to_owned(), served, refused })
    }

    /// Requests with the right credentials so far.
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    /// Requests without them, or with others.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Makes a repository with the branch `main`.
    pub fn repository(&self, name: &str) -> anyhow::Result<Repository> {
        let bare = self.root.join(format!("{name}.git"));
        let work = self.root.join(format!("{name}-work"));
        git(&self.root, &["init", "--quiet", "--bare", "--initial-branch=main", &bare.display().to_string()])?;
        git(&self.root, &["init", "--quiet", "--initial-branch=main", &work.display().to_string()])?;
        git(&work, &["remote", "add", "origin", &bare.display().to_string()])?;
        Ok(Repository { url: format!("https://{}/{name}.git", self.address), work })
    }
}

/// A running `sshd` for the repositories of a [`GitServer`]; ended when dropped.
pub struct SshServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// The line of `known_hosts` that says who it is.
    pub known_hosts: String,
    /// PEM of a private key that it accepts.
    pub key: String,
    root: PathBuf,
    dir: PathBuf,
    program: Program,
}

impl SshServer {
    /// Starts one with its files in `dir`, which nobody else may write to.
    pub fn start_at(ip: &str, dir: &Path, server: &GitServer) -> anyhow::Result<Self> {
        let port = free_port(ip)?;
        let address: SocketAddr = (ip.parse::<std::net::IpAddr>()?, port).into();
        let path = |name: &str| dir.join(name).display().to_string();
        for key in ["host.key", "other-host.key", "user.key"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f", &path(key)]);
            run(&mut make, Duration::from_secs(30))?.ok()?;
        }
        let public = std::fs::read_to_string(dir.join("user.key.pub"))?;
        accept(dir, &public)?;
        // The key of the host is given when it is started.
        let settings = format!(
            "ListenAddress {ip}\nPort {port}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
            path("accepted")
        );
        std::fs::write(dir.join("sshd_config"), settings)?;
        // sshd wants it, and its package makes it only where sshd is a service.
        std::fs::create_dir_all("/run/sshd")?;
        let program = sshd(dir, address, "host.key")?;
        let host = std::fs::read_to_string(dir.join("host.key.pub"))?;
        let key = std::fs::read_to_string(dir.join("user.key"))?;
        crate::stack::note_secret(key.lines().nth(1).context("a private key has lines")?)?;
        Ok(Self {
            address,
            known_hosts: format!("[{ip}]:{port} {}", host.rsplit_once(' ').map_or(host.as_str(), |(key, _)| key)),
            key,
            root: server.root.clone(),
            dir: dir.to_owned(),
            program,
        })
    }

    /// Accepts this public key, too.
    pub fn accept(&self, public: &str) -> anyhow::Result<()> {
        accept(&self.dir, public)
    }

    /// Answers at the same address with another key from now on, or with the first one again.
    pub fn answer_with_other_key(&mut self, is_other: bool) -> anyhow::Result<()> {
        self.program.kill();
        self.program = sshd(&self.dir, self.address, if is_other { "other-host.key" } else { "host.key" })?;
        Ok(())
    }

    /// Where a repository is fetched by ssh.
    pub fn url(&self, name: &str) -> String {
        format!("ssh://root@{}{}/{name}.git", self.address, self.root.display())
    }
}

/// Whoever has the private half of this key reads and writes repositories, and has no shell.
fn accept(dir: &Path, public: &str) -> anyhow::Result<()> {
    let line = format!("restrict,command=\"git-shell -c \\\"$SSH_ORIGINAL_COMMAND\\\"\" {}\n", public.trim());
    let mut accepted = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("accepted"))?;
    Ok(accepted.write_all(line.as_bytes())?)
}

/// Starts `sshd` with its files in `dir` and this key of the host.
fn sshd(dir: &Path, address: SocketAddr, key: &str) -> anyhow::Result<Program> {
    let mut sshd = Command::new("/usr/sbin/sshd");
    sshd.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config")).arg("-h").arg(dir.join(key));
    let program = Program::start("sshd", sshd, &dir.join("sshd.log"))?;
    eventually("sshd listens", Duration::from_secs(20), || Ok(TcpStream::connect(address).is_ok()))
        .with_context(|| program.tail())?;
    Ok(program)
}

/// A repository that is served, with a place to work on it.
pub struct Repository {
    /// Where others fetch it.
    pub url: String,
    /// The working tree.
    pub work: PathBuf,
}

impl Repository {
    /// Writes files (one without a text goes), commits and pushes; the new commit.
    pub fn push(&self, files: &[(&str, Option<&str>)]) -> anyhow::Result<String> {
        for (name, text) in files {
            let path = self.work.join(name);
            match text {
                Some(text) => {
                    std::fs::create_dir_all(path.parent().context("a file has a folder")?)?;
                    std::fs::write(&path, text)?;
                }
                None => std::fs::remove_file(&path)?,
            }
        }
        git(&self.work, &["add", "--all"])?;
        git(&self.work, &["commit", "--quiet", "--message", "a change"])?;
        git(&self.work, &["push", "--quiet", "origin", "HEAD:main"])?;
        Ok(git(&self.work, &["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// Runs git in the working tree.
    pub fn git(&self, args: &[&str]) -> anyhow::Result<String> {
        git(&self.work, args)
    }
}

/// Git as somebody, without this machine's settings.
fn git(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=tests", "-c", "user.email=tests@example.org"]).args(args).current_dir(folder);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_TERMINAL_PROMPT", "0");
    command.env_remove("GIT_SSL_CAINFO");
    run(&mut command, Duration::from_secs(60))?.ok().with_context(|| format!("git {}", args.join(" ")))
}

/// A server over TLS that sends every request to another one; until the process ends.
pub struct Redirector {
    /// Where it listens.
    pub address: SocketAddr,
    /// PEM of its authority.
    pub ca: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Redirector {
    /// Starts one that answers with a redirect to this origin, such as `https://192.0.2.1:8443`; without one it refuses.
    pub fn start_at(ip: &str, config: (String, Arc<ServerConfig>), to: Option<String>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((ip, 0))?;
        let address = listener.local_addr()?;
        let (seen, (ca, config)) = (Arc::<Mutex<Vec<String>>>::default(), config);
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                // A client that goes away has gone away.
                let _ = redirect(socket, Arc::clone(&config), to.as_deref(), &noted);
            }
        });
        Ok(Self { address, ca, seen })
    }

    /// The `Authorization` of each request that came, empty where there was none.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn redirect(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    to: Option<&str>,
    seen: &Mutex<Vec<String>>,
) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut io = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, socket));
    let request = read(&mut io)?;
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.header("authorization").to_owned());
    let head = match to {
        Some(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}{}?{}\r\n", request.path, request.query),
        None => "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\n".to_owned(),
    };
    let io = io.get_mut();
    io.write_all(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())?;
    io.conn.send_close_notify();
    Ok(io.flush()?)
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

fn serve(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    root: &Path,
    (served, refused): (&AtomicUsize, &AtomicUsize),
) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut io = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, socket));
    let request = read(&mut io)?;
    let expected = format!("Basic {}", BASE64.encode(format!("{}:{}", CREDENTIALS.0, CREDENTIALS.1)));
    let (head, body) = if request.header("authorization") == expected {
        served.fetch_add(1, Ordering::Relaxed);
        backend(root, &request)?
    } else {
        refused.fetch_add(1, Ordering::Relaxed);
        ("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\n".to_owned(), Vec::new())
    };
    let io = io.get_mut();
    io.write_all(format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len()).as_bytes())?;
    io.write_all(&body)?;
    io.conn.send_close_notify();
    Ok(io.flush()?)
}

fn read(io: &mut impl BufRead) -> anyhow::Result<Request> {
    let mut line = String::new();
    io.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(io.read_line(&mut line)? > 0 && headers.len() < 100, "no request");
        let Some((key, value)) = line.split_once(':') else { break };
        headers.push((key.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request { method, path: path.to_owned(), query: query.to_owned(), headers, body: Vec::new() };
    if request.header("transfer-encoding").eq_ignore_ascii_case("chunked") {
        loop {
            let mut size = String::new();
            io.read_line(&mut size)?;
            let size = u64::from_str_radix(size.trim(), 16)?;
            io.by_ref().take(size).read_to_end(&mut request.body)?;
            io.read_line(&mut String::new())?;
            if size == 0 {
                break;
            }
        }
    } else {
        let length = request.header("content-length").parse().unwrap_or(0).min(BODY_MAX);
        io.by_ref().take(length).read_to_end(&mut request.body)?;
    }
    Ok(request)
}

/// The program that every Git has, by CGI: the head without what ends it, and the body.
fn backend(root: &Path, request: &Request) -> anyhow::Result<(String, Vec<u8>)> {
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for (name, value) in [
        ("REQUEST_METHOD", request.method.as_str()),
        ("PATH_INFO", &request.path),
        ("QUERY_STRING", &request.query),
        ("CONTENT_TYPE", request.header("content-type")),
        ("HTTP_CONTENT_ENCODING", request.header("content-encoding")),
        ("HTTP_GIT_PROTOCOL", request.header("git-protocol")),
        ("GIT_PROTOCOL", request.header("git-protocol")),
        ("REMOTE_USER", CREDENTIALS.0),
    ] {
        command.env(name, value);
    }
    let mut child = command
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("standard input is piped")?;
    let body = request.body.clone();
    let writing = std::thread::spawn(move || stdin.write_all(&body));
    let answer = child.wait_with_output()?.stdout;
    let _ = writing.join();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no end of the head")?;
    let (mut status, mut head) = ("200 OK".to_owned(), String::new());
    for line in String::from_utf8_lossy(&answer[..end]).split("\r\n") {
        match line.strip_prefix("Status: ") {
            Some(other) => status = other.to_owned(),
            None => head += &format!("{line}\r\n"),
        }
    }
    Ok((format!("HTTP/1.1 {status}\r\n{head}"), answer[end + 4..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_fetches_with_the_right_password_and_not_without() {
        let dir = tempfile::tempdir().unwrap();
        let server = GitServer::start_at("127.0.0.1", dir.path()).unwrap();
        let repository = server.repository("one").unwrap();
        let commit = repository.push(&[("a/b.yaml", Some("x: 1\n"))]).unwrap();
        let ca = dir.path().join("ca.crt");
        std::fs::write(&ca, &server.ca).unwrap();
        let trust = format!("http.sslCAInfo={}", ca.display());
        let with = |user: &str| {
            let url = repository.url.replace("https://", &format!("https://{user}"));
            git(dir.path(), &["-c", &trust, "ls-remote", &url, "main"])
        };
        let found = with(&format!("{}:{}@", CREDENTIALS.0, CREDENTIALS.1)).unwrap();
        assert!(found.starts_with(&commit), "{found}");
        let folder = tempfile::tempdir().unwrap();
        if Path::new("/usr/sbin/sshd").exists() {
            let ssh = SshServer::start_at("127.0.0.1", folder.path(), &server).unwrap();
            std::fs::write(folder.path().join("known"), &ssh.known_hosts).unwrap();
            let (known, key) = (folder.path().join("known"), folder.path().join("user.key"));
            let by = format!(
                "core.sshCommand=ssh -o BatchMode=yes -o UserKnownHostsFile={} -i {}",
                known.display(),
                key.display()
            );
            let found = git(dir.path(), &["-c", &by, "ls-remote", &ssh.url("one"), "main"]).unwrap();
            assert!(found.starts_with(&commit), "{found}");
        }
        assert!(with("").is_err() && with("git-user:wrong@").is_err());
        assert!(server.served() > 0 && server.refused() > 0);
    }
}
