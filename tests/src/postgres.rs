//! A PostgreSQL server as an operator has it: over TCP, with TLS of an authority of its own, and a password. It ends
//! when dropped.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use certs::{Authority, Validity};

use crate::programs::{Program, eventually, run};

/// Where Debian has it, one folder a version.
const INSTALLED: &str = "/usr/lib/postgresql";

/// A running server.
pub struct Postgres {
    folder: tempfile::TempDir,
    server: Mutex<Program>,
    port: u16,
    address: String,
    log: PathBuf,
}

impl Postgres {
    /// Starts one. Its first user is `postgres`, whom it trusts at its socket.
    pub fn start(log: &Path) -> anyhow::Result<Self> {
        Self::start_at("127.0.0.1", log)
    }

    /// The same at another address of this machine, such as one that pods reach.
    pub fn start_at(address: &str, log: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (data, ca) = (folder.path().join("data"), folder.path().join("ca.crt"));
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let authority = Authority::create("PostgreSQL", Validity::days(1))?;
        authority.issue_server(&["localhost", address], Validity::days(1))?.save(&certificate, &key)?;
        std::fs::write(&ca, authority.certificate_pem())?;
        if is_root() {
            // The server refuses to run as root.
            run(Command::new("chown").args(["-R", "postgres"]).arg(folder.path()), Duration::from_secs(10))?.ok()?;
        }
        let mut initdb = program("initdb")?;
        initdb.args(["--auth-local=trust", "--auth-host=scram-sha-256", "--username=postgres", "--no-sync"]);
        run(initdb.args(["--encoding=UTF8", "--locale=C.UTF-8", "-D"]).arg(&data), Duration::from_secs(120))?.ok()?;
        // Free a moment ago; nobody else is told of it.
        let port = std::net::TcpListener::bind((address, 0))?.local_addr()?.port();
        let server = serve(folder.path(), address, port, log)?;
        let (address, log) = (address.to_owned(), log.to_owned());
        let this = Self { folder, server: Mutex::new(server), port, address, log };
        this.await_ready()?;
        Ok(this)
    }

    fn await_ready(&self) -> anyhow::Result<()> {
        eventually("PostgreSQL is ready", Duration::from_secs(60), || {
            let mut ready = program("pg_isready")?;
            ready.args(["-q", "-p", &self.port.to_string(), "-h"]).arg(self.folder.path());
            Ok(run(&mut ready, Duration::from_secs(10))?.code == Some(0))
        })
        .with_context(|| self.server().tail())?;
        Ok(())
    }

    fn server(&self) -> MutexGuard<'_, Program> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it at once, as a machine that fails does, so that connections break and what was under way is undone when it
    /// recovers.
    pub fn fail(&self) -> anyhow::Result<()> {
        let mut server = self.server();
        server.signal("QUIT")?;
        server.wait(Duration::from_secs(30)).map(drop)
    }

    /// Starts it again at the same address, with what was committed.
    pub fn start_again(&self) -> anyhow::Result<()> {
        *self.server() = serve(self.folder.path(), &self.address, self.port, &self.log)?;
        self.await_ready()
    }

    /// Runs a command as whoever keeps the server, who needs no password.
    pub fn administer(&self, shell: &str) -> anyhow::Result<String> {
        let mut command = Command::new("bash");
        command.args(["-euc", shell]).env("PGHOST", self.folder.path()).env("PGPORT", self.port.to_string());
        run(command.env("PGUSER", "postgres"), Duration::from_secs(60))?.ok()
    }

    /// The TCP port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whom to trust, PEM.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Lets users in with a password who do not come from this machine's loopback address.
    pub fn let_in(&self, network: &str) -> anyhow::Result<()> {
        let line = format!("hostssl all all {network} scram-sha-256");
        let file = self.folder.path().join("data/pg_hba.conf");
        let text = std::fs::read_to_string(&file)?;
        std::fs::write(&file, format!("{text}{line}\n"))?;
        self.administer("psql -qc 'SELECT pg_reload_conf()' postgres").map(drop)
    }

    /// Stops it as one that hangs: connections stay, and nobody answers, until it is resumed.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.tell_all("STOP")
    }

    /// Lets it go on.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.tell_all("CONT")
    }

    /// Sends a signal to the server and to each process that it has for a connection.
    fn tell_all(&self, signal: &str) -> anyhow::Result<()> {
        let server = self.server();
        let pid = server.pid().to_string();
        // setpriv has become the server: they are its children.
        let _ = run(Command::new("pkill").args([&format!("-{signal}"), "-P", &pid]), Duration::from_secs(10))?;
        server.signal(signal)
    }

    /// Address of a database, with a password and whom to trust.
    pub fn url(&self, user: &str, password: &str, database: &str) -> String {
        let ca = self.ca().display().to_string().replace('/', "%2F");
        format!("postgres://{user}:{password}@localhost:{}/{database}?sslmode=verify-full&sslrootcert={ca}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // So that it takes its processes and its shared memory with it.
        let _ = self.fail();
    }
}

/// The server's program on a folder that `start_at` made.
fn serve(folder: &Path, address: &str, port: u16, log: &Path) -> anyhow::Result<Program> {
    let mut command = program("postgres")?;
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-k"]).arg(folder);
    command.args(["-c", "fsync=off", "-c", "ssl=on", "-c"]).arg(format!("listen_addresses={address}"));
    for (setting, file) in [("ssl_cert_file", "tls.crt"), ("ssl_key_file", "tls.key")] {
        command.arg("-c").arg(format!("{setting}={}", folder.join(file).display()));
    }
    command.stdout(Stdio::null());
    Program::start("postgres", command, log)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// A program of the newest version, as the user who may run it.
fn program(name: &str) -> anyhow::Result<Command> {
    let mut versions: Vec<PathBuf> = std::fs::read_dir(INSTALLED)
        .context("PostgreSQL is not installed: apt-get install postgresql, which tests/run does")?
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    versions.sort();
    let path = versions.pop().context("PostgreSQL has no programs")?.join(name);
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL").current_dir("/");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg(path);
    Ok(command)
}
