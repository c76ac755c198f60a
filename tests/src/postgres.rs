//! A PostgreSQL server as an operator has it: over TCP, with TLS of an authority of its own, and a password. It ends
//! when dropped.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use certs::{Authority, Validity};

use crate::programs::{Program, eventually, free_port, run};

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
        let port = free_port(address)?;
        let server = serve(folder.path(), address, port, log)?;
        let (address, log) = (address.to_owned(), log.to_owned());
        let this = Self { folder, server: Mutex::new(server), port, address, log };
        this.await_ready()?;
        Ok(this)
    }

    /// Starts a standby of it at the same address of the machine, which has each write before that is answered. It shows
    /// the same certificate.
    pub fn start_standby(&self, log: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let here = self.folder.path();
        let mut copy = Command::new("cp");
        copy.arg("-p").args(["ca.crt", "tls.crt", "tls.key"].map(|file| here.join(file))).arg(folder.path());
        run(&mut copy, Duration::from_secs(10))?.ok()?;
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()), Duration::from_secs(10))?.ok()?;
        }
        let mut backup = program("pg_basebackup")?;
        backup.args(["--username=postgres", "--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf"]);
        backup.args(["--no-sync", "-p", &self.port.to_string(), "-h"]).arg(here);
        backup.arg("-D").arg(folder.path().join("data"));
        run(&mut backup, Duration::from_secs(120))?.ok()?;
        let port = free_port(&self.address)?;
        let server = serve(folder.path(), &self.address, port, log)?;
        let standby =
            Self { folder, server: Mutex::new(server), port, address: self.address.clone(), log: log.to_owned() };
        standby.await_ready()?;
        self.administer(
            "psql -qc \"ALTER SYSTEM SET synchronous_standby_names = '*'\" postgres\n\
             psql -qc 'SELECT pg_reload_conf()' postgres",
        )?;
        eventually("the standby has what is written", Duration::from_secs(30), || {
            let said = self.administer("psql -Atc 'SELECT sync_state FROM pg_stat_replication' postgres")?;
            Ok(said.trim() == "sync")
        })?;
        Ok(standby)
    }

    /// Makes a standby the server that is written to.
    pub fn promote(&self) -> anyhow::Result<()> {
        self.administer("psql -qc 'SELECT pg_promote()' postgres").map(drop)
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
        self.url_at(self.port, user, password, database)
    }

    /// The same by way of another port of this machine, such as a [`Wire`]'s.
    pub fn url_at(&self, port: u16, user: &str, password: &str, database: &str) -> String {
        let ca = self.ca().display().to_string().replace('/', "%2F");
        format!("postgres://{user}:{password}@localhost:{port}/{database}?sslmode=verify-full&sslrootcert={ca}")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // So that it takes its processes and its shared memory with it.
        let _ = self.fail();
    }
}

/// An address of this machine that leads to a server, and later to another one, as an address that moves with the primary
/// does.
pub struct Wire {
    /// The port of the address.
    pub port: u16,
    /// The port that new connections lead to.
    to: Arc<AtomicU16>,
    made: Arc<AtomicUsize>,
    silent: Arc<Silent>,
}

/// Connections on which nothing comes through.
#[derive(Default)]
struct Silent {
    /// Those of earlier numbers are.
    first: AtomicUsize,
    /// Open until the wire is gone.
    kept: Mutex<Vec<TcpStream>>,
}

impl Wire {
    /// Leads to a port.
    pub fn to(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let this = Self {
            port: listener.local_addr()?.port(),
            to: Arc::new(AtomicU16::new(port)),
            made: Arc::default(),
            silent: Arc::default(),
        };
        let (to, made, silent) = (Arc::clone(&this.to), Arc::clone(&this.made), Arc::clone(&this.silent));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let number = made.fetch_add(1, Ordering::SeqCst);
                // Nobody is there: as a machine says whose server does not run.
                let Ok(server) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else { continue };
                let (Ok(back), Ok(forth)) = (socket.try_clone(), server.try_clone()) else { continue };
                for (from, into) in [(socket, server), (forth, back)] {
                    let silent = Arc::clone(&silent);
                    std::thread::spawn(move || carry(from, into, &silent, number));
                }
            }
        });
        Ok(this)
    }

    /// Lets new connections lead to another port.
    pub fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::SeqCst);
    }

    /// From now on nothing comes through on the connections that there are, not even their end, as where the machine at
    /// the other end has vanished.
    pub fn lose_all(&self) {
        self.silent.first.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// Carries bytes one way until the end, and nothing any more once it is silent.
fn carry(mut from: TcpStream, mut into: TcpStream, silent: &Silent, number: usize) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        if number < silent.first.load(Ordering::SeqCst) {
            // Whoever waits at the other end hears nothing, also not of this connection's end.
            silent.kept.lock().unwrap_or_else(PoisonError::into_inner).extend([from, into]);
            return;
        }
        if read == 0 || into.write_all(&buffer[..read]).is_err() {
            let _ = into.shutdown(Shutdown::Write);
            return;
        }
    }
}

/// The server's program on a folder that `start_at` made.
fn serve(folder: &Path, address: &str, port: u16, log: &Path) -> anyhow::Result<Program> {
    let mut command = program("postgres")?;
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-k"]).arg(folder);
    command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
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
