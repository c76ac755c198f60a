//! A `towline dev` with somebody who is signed in at it, and a browser for its pages.

use std::{
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::Arc,
};

use certs::Roots;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{Running, text, towline};

/// A gateway, and a folder of accounts.
pub struct Site {
    pub info: Value,
    pub dir: TempDir,
    pub running: Running,
}

impl Site {
    /// Starts a gateway; no user is signed in yet.
    pub fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = text(&dir.path().join("state"));
        let (running, info) = dev(&state, more);
        Self { info, dir, running }
    }

    /// Ends the gateway. It has the same address when it is [`Self::back`].
    pub fn away(&mut self) {
        self.running.signal("TERM");
        assert_eq!(self.running.code(), Some(0));
    }

    /// Starts the gateway again.
    pub fn back(&mut self, more: &[&str]) {
        let (running, info) = dev(&self.path("state"), more);
        assert_eq!(info["url"], self.info["url"]);
        self.running = running;
    }

    /// The same, with the owner of the subscription signed in.
    pub fn signed_in(more: &[&str]) -> Self {
        let site = Self::start(more);
        site.login_owner();
        site
    }

    pub fn login_owner(&self) {
        let secret = self.file("owner-secret", self.text("clientSecret"));
        let (url, ca, id) = (self.text("url"), self.text("ca"), self.text("clientId"));
        self.ok(&["login", url, "--ca", ca, "--service-principal", "-u", id, "--secret-file", &secret]);
    }

    pub fn text(&self, key: &str) -> &str {
        self.info[key].as_str().unwrap()
    }

    pub fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name))
    }

    pub fn file(&self, name: &str, content: &str) -> String {
        std::fs::write(self.dir.path().join(name), content).unwrap();
        self.path(name)
    }

    /// A command with this site's folder of accounts.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = towline(args);
        command.env("TOWLINE_CONFIG_DIR", self.path("config")).env("HOME", self.dir.path());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a success.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {} {}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    }

    /// A result as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    /// Standard error of a failure with this exit code.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        failed(code, self.run(args), args)
    }

    /// The password of a user of the state.
    pub fn password(&self, user: &str) -> String {
        let file = self.dir.path().join("state/users").join(format!("{user}.password"));
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    pub fn browser(&self) -> Browser {
        let ca = std::fs::read(self.text("ca")).unwrap();
        let port = self.text("url").rsplit(':').next().unwrap().parse().unwrap();
        Browser { port, roots: Roots::from_pem(&ca).unwrap(), cookie: None }
    }
}

fn dev(state: &str, more: &[&str]) -> (Running, Value) {
    let args = ["dev", "--state", state, "--json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let mut running = Running::start(towline(&[&args[..], more].concat()));
    let info = serde_json::from_str(&running.line()).unwrap();
    (running, info)
}

/// Standard error of a failure with this exit code, and nothing on standard output.
pub fn failed(code: i32, output: Output, args: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "nothing but results goes to standard output");
    error
}

/// A command whose standard error is read while it runs.
pub struct Talking {
    pub child: Child,
    err: BufReader<std::process::ChildStderr>,
}

impl Talking {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err }
    }

    /// The next line of standard error that has this in it.
    pub fn line_with(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.err.read_line(&mut line).unwrap() > 0, "no {wanted:?} in {all}");
            if line.contains(wanted) {
                return line.trim_end().to_owned();
            }
            all.push_str(&line);
        }
    }

    /// Exit code and the rest of both streams.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.err.read_to_string(&mut err).unwrap();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

/// A browser that keeps the one cookie of the issuer's pages.
pub struct Browser {
    port: u16,
    roots: Roots,
    cookie: Option<String>,
}

impl Browser {
    /// Head and body.
    pub async fn send(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> String {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let cookie = self.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{cookie}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let tls = certs::tls::client_https(&self.roots).unwrap();
        let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.unwrap();
        let name = rustls::pki_types::ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut stream = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let set = answer.lines().find(|line| line.to_lowercase().starts_with("set-cookie:"));
        if let Some(cookie) = set.and_then(|line| line.split_once(':')) {
            self.cookie = cookie.1.split(';').next().map(|cookie| cookie.trim().to_owned());
        }
        answer
    }

    /// Decides about the device with this code.
    pub async fn device(&mut self, code: &str, user: &str, password: &str, decision: &str) -> String {
        let path = "/.towline/issuer/device";
        let page = self.send("GET", path, &[]).await;
        let flow = hidden(&page, "flow");
        let page = self.send("POST", path, &[("flow", &flow), ("user_code", code)]).await;
        let flow = hidden(&page, "flow");
        let fields = [("flow", flow.as_str()), ("username", user), ("password", password), ("decision", decision)];
        self.send("POST", path, &fields).await
    }
}

/// A hidden field of a page.
pub fn hidden(page: &str, name: &str) -> String {
    let (_, rest) =
        page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("no {name}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// The permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
