//! A PostgreSQL server of the tests, reached by a Unix socket. It ends with this process, however that ends.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use sqlx::{AnyConnection, Connection as _};

/// Where Debian has it, one folder a version.
const INSTALLED: &str = "/usr/lib/postgresql";

pub struct Postgres {
    folder: tempfile::TempDir,
    server: Child,
    databases: AtomicU32,
}

impl Postgres {
    /// Whether it is there. Root has no excuse: `tests/run` installs it.
    pub fn is_possible() -> bool {
        is_root() || bin().is_some()
    }

    /// Starts one, with the collation of a language, so that nothing of ours can lean on the server's. On the thread
    /// that outlives all others: the server ends with it.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        if is_root() {
            // The server refuses to run as root.
            assert!(Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap().success());
        }
        let made = program("initdb")
            .args(["--auth=trust", "--username=towline", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8"])
            .args(["--locale-provider=icu", "--icu-locale=en-US", "-D"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(made.success());
        let log = folder.path().join("log");
        let server = program("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200", "-k"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut this = Self { folder, server, databases: AtomicU32::new(0) };
        while !ready(this.folder.path()) {
            let ended = this.server.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&log).unwrap());
        }
        this
    }

    /// A new database.
    pub fn database(&self) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sqlx::any::install_default_drivers();
            let mut connection = AnyConnection::connect(&self.url("postgres")).await.unwrap();
            let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        });
        self.url(&name)
    }

    fn url(&self, database: &str) -> String {
        let folder = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://towline@localhost/{database}?host={folder}&sslmode=disable")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-QUIT", &self.server.id().to_string()]).status();
        let _ = self.server.wait();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn ready(folder: &Path) -> bool {
    program("pg_isready").arg("-q").arg("-h").arg(folder).status().unwrap().success()
}

/// The programs of the newest version.
fn bin() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = fs::read_dir(INSTALLED).ok()?.flatten().map(|entry| entry.path()).collect();
    versions.sort();
    Some(versions.pop()?.join("bin")).filter(|bin| bin.join("initdb").exists())
}

/// A program of it, as the user who may run it.
fn program(name: &str) -> Command {
    let path = bin().expect("PostgreSQL is installed: apt-get install postgresql, which tests/run does").join(name);
    // Not runuser, which would be the parent of what is to be signalled.
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL").current_dir("/");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg(path);
    command
}
