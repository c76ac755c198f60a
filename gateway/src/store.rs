//! Where resources live: SQLite (one file, the default) or PostgreSQL, behind one set of statements (docs/identity.md).
//!
//! | module | what it holds |
//! |---|---|
//! | [`address`] | where the database is, and how new connections are made |
//! | [`schema`] | the tables, as migrations that only go forward |
//! | [`resources`] | resources of every kind, read by key and by page |
//! | [`with_child`] | resources by page, each with one child and what was told of it |
//! | [`batch`] | how they change: what happens together, or not at all |
//! | [`changes`] | what is new since a revision |
//! | [`agents`] | what is known of clusters' agents, without revisions |
//! | [`events`] | what has happened to clusters |
//! | [`operations`] | long-running operations, which survive a restart |
//! | [`documents`], [`tickets`] | what several gateways share of their own: documents, codes, counts |
//! | `pool` | connections, and how long a statement may take |
//! | [`protect`] | encryption of what must not be read from the database |
//! | [`key`] | that the key file is the one of this database |
//! | [`replicas`] | the gateways that share the database, and whose tunnels they have |
//! | [`look`] | whether a database can be used, without changing it |
//! | [`moving`] | from SQLite to PostgreSQL, once |
//!
//! Every write takes the next **revision**, a number that only grows and that is the resource's version (its ETag). Who
//! feeds a snapshot asks what has changed since the revision that it knows. No statement of the request path comes
//! here.
//!
//! What is asked for by name or order compares bytes, never by a collation: keys are lower-cased here, and text columns
//! of PostgreSQL are `COLLATE "C"`.

/// Does a transaction again that PostgreSQL gave up for the sake of others (a deadlock, a serialization failure): none of
/// it has happened.
macro_rules! repeated {
    ($once:expr) => {{
        let mut tries = 1;
        loop {
            match $crate::store::pool::written_in_time($once).await {
                Err(error) if error.is_conflict() && tries < $crate::store::TRIES => tries += 1,
                done => break done,
            }
        }
    }};
}

pub mod address;
pub mod agents;
pub mod batch;
pub mod changes;
pub mod documents;
pub mod events;
pub mod held;
pub mod key;
pub mod logs;
pub mod look;
pub mod moving;
pub mod operations;
pub mod parts;
mod pool;
pub mod protect;
pub mod replicas;
pub mod resources;
pub mod schema;
pub mod statuses;
pub mod tickets;
pub mod with_child;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use daemon::atomic;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use sqlx::{
    Any, AnyConnection, Connection, Row,
    any::{AnyConnectOptions, AnyPoolOptions},
    pool::PoolConnection,
};
use tokio::sync::{Notify, watch};

use self::{
    address::Address,
    pool::{Doubt, Pool},
};
use crate::aside::GaveWay;

/// Connections that read at once.
const READERS: u32 = 4;
/// Connections to PostgreSQL, which has many writers.
const POSTGRES_CONNECTIONS: u32 = 16;
/// How long a statement waits for a connection, and a SQLite writer for another process (the backup, a command).
const WAIT: Duration = Duration::from_secs(10);
/// How often a transaction is begun that PostgreSQL gives up for the sake of others, before that is said.
const TRIES: u32 = 4;
/// Before what SQLite refused at once, without waiting for its lock, is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// What every connection to SQLite begins with. `FULL`: an acknowledged write survives a power cut, not only the end of
/// the process.
const PRAGMAS: &str = "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                       PRAGMA foreign_keys = ON;";

/// The kind of database that the store is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// SQLite: one file, one replica.
    Sqlite,
    /// PostgreSQL: a server, which several replicas may share.
    Postgres,
}

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names no database of a known kind.
    #[error(
        "no database has an address that begins with {0:?}: expected sqlite:<file> or postgres://<user>@<host>/<database>"
    )]
    Url(String),
    /// The file of a SQLite database.
    #[error("the file {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What the operating system reported.
        source: std::io::Error,
    },
    /// A SQLite file that cannot be used.
    #[error("the file {path} is no SQLite database, or a damaged one ({reason}); put a backup in its place")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What SQLite reported.
        reason: String,
    },
    /// Only SQLite is copied from here.
    #[error("a backup of PostgreSQL is made with pg_dump")]
    NoBackup,
    /// A batch that no caller may ask for.
    #[error("{text}: {reason}")]
    Entry {
        /// Which text of it.
        text: String,
        /// What the text must be and is not.
        reason: &'static str,
    },
    /// The database was made by a newer program. Nothing of it was changed.
    #[error(
        "the database has tables of version {found} and this program knows {known}: a newer program made them; run that \
         version or a newer one, or restore a backup from before"
    )]
    Newer {
        /// The first version that this program does not know.
        found: i64,
        /// How many it knows.
        known: usize,
    },
    /// Its tables were changed by hand, or cannot be made.
    #[error("the database's tables are not as this program expects: {0}")]
    Schema(#[source] sqlx::migrate::MigrateError),
    /// What was to be read or written is long, and was not begun.
    #[error(transparent)]
    GaveWay(#[from] GaveWay),
    /// The database itself.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A row cannot be read.
    #[error("a row of {table} cannot be read: {reason}")]
    Row {
        /// Name of the table.
        table: &'static str,
        /// Which part of the row cannot be read, and why.
        reason: String,
    },
}

impl StoreError {
    /// Whether the database gave up what was asked because of others who wrote at the same time, so that the same may be
    /// asked again: a serialization failure or a deadlock.
    pub fn is_conflict(&self) -> bool {
        matches!(self.sql_state().as_deref(), Some("40001" | "40P01"))
    }

    /// Whether the database cannot be used for now, and the same may succeed later: it cannot be reached, starts,
    /// stops, was failed over, has no connection or room to spare, does not let the gateway in, or others hold what is
    /// asked for.
    pub fn is_unavailable(&self) -> bool {
        let Self::Database(error) = self else { return false };
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            // A balancer that has no server closes what it has accepted, in the middle of a greeting.
            | sqlx::Error::Protocol(_) => true,
            // Class 08: connections. 25006: a primary that has become a standby. 28: the password was changed. 53: no
            // room on its disk, no memory, too many connections. 55P03: a lock took too long. 57: an answer did, or the
            // server stops, starts, or cut it off. 58: its disk fails. SQLite's codes are shorter.
            _ => self.sql_state().is_some_and(|state| {
                let (classes, known) = (["08", "28", "53", "57", "58"], ["25006", "40001", "40P01", "55P03"]);
                let of_class = |class| state.len() == 5 && state.starts_with(class);
                classes.into_iter().any(of_class) || known.contains(&state.as_ref())
            }),
        }
    }

    /// The SQLSTATE that PostgreSQL gave (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
    fn sql_state(&self) -> Option<std::borrow::Cow<'_, str>> {
        match self {
            Self::Database(sqlx::Error::Database(said)) => said.code(),
            _ => None,
        }
    }

    /// What an error of SQLite says of its file: what is damaged, and what only cannot be used now.
    fn of_file(path: &Path, error: sqlx::Error) -> Self {
        use std::io::ErrorKind;
        let path = path.to_owned();
        let reason = error.to_string();
        let file = |kind| Self::File { path: path.clone(), source: std::io::Error::new(kind, reason.clone()) };
        match primary_code(&error) {
            Some(CORRUPT | NOTADB) => Self::Damaged { path, reason },
            Some(BUSY | LOCKED) => file(ErrorKind::TimedOut),
            Some(PERM | READONLY | AUTH) => file(ErrorKind::PermissionDenied),
            Some(FULL) => file(ErrorKind::StorageFull),
            Some(IOERR | CANTOPEN) => file(ErrorKind::Other),
            _ => Self::Database(error),
        }
    }
}

/// The primary result code of SQLite (<https://sqlite.org/rescode.html>): what is above the lowest byte tells more of
/// the same.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    match error {
        sqlx::Error::PoolTimedOut => Some(BUSY),
        sqlx::Error::Database(said) => said.code().and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff),
        _ => None,
    }
}

const PERM: u32 = 3;
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const READONLY: u32 = 8;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const AUTH: u32 = 23;
const NOTADB: u32 = 26;

/// An open store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    address: Address,
    readers: Pool,
    writers: Pool,
    /// The newest revision that this process has committed.
    newest: Arc<watch::Sender<i64>>,
    /// Told when other processes have changed documents.
    documents: Arc<Notify>,
}

impl Store {
    /// Opens `url`, makes the file where there is none, and brings the tables up to date.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let store = Self::connect(url).await?;
        schema::migrate(&store).await?;
        store.name_rows().await?;
        store.committed(store.revision().await?);
        Ok(store)
    }

    /// Opens `url` with the tables as they are.
    async fn connect(url: &str) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        match url.split_once(':') {
            Some(("sqlite", _)) => Self::sqlite(url).await,
            Some(("postgres" | "postgresql", _)) => Self::postgres(url).await,
            // Not the rest of it: there may be a password.
            other => Err(StoreError::Url(other.map(|(scheme, _)| scheme.to_owned()).unwrap_or_default())),
        }
    }

    /// A SQLite file by its path, whatever characters are in it.
    pub async fn open_file(path: &Path) -> Result<Self, StoreError> {
        Self::open(&sqlite_url(path)).await
    }

    async fn sqlite(url: &str) -> Result<Self, StoreError> {
        let path = sqlite_file(url).ok_or_else(|| StoreError::Url("sqlite::memory:".to_owned()))?;
        private_file(&path)?;
        let options = address::options(url)?;
        // A pool tries again until its time is over, and then says only that it has waited.
        let first = async || {
            let mut connection = AnyConnection::connect_with(&options).await?;
            sqlx::raw_sql(PRAGMAS).execute(&mut connection).await?;
            connection.close().await
        };
        let begun = Instant::now();
        while let Err(error) = first().await {
            // Of two that turn a new file to WAL at the same time SQLite refuses one at once, without its busy timeout.
            if primary_code(&error) != Some(BUSY) || begun.elapsed() > WAIT {
                return Err(StoreError::of_file(&path, error));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let pool = |connections| {
            AnyPoolOptions::new().max_connections(connections).acquire_timeout(WAIT).after_connect(|connection, _| {
                Box::pin(async move { sqlx::raw_sql(PRAGMAS).execute(&mut *connection).await.map(drop) })
            })
        };
        // One writer: SQLite has one lock for all, and who waits here waits in order and without polling.
        let writers = Pool::of_file(pool(1).connect_with(options.clone()).await?);
        let readers = Pool::of_file(pool(READERS).connect_with(options).await?);
        Ok(Self {
            backend: Backend::Sqlite,
            address: Address::from(url),
            readers,
            writers,
            newest: Arc::new(watch::Sender::new(0)),
            documents: Arc::default(),
        })
    }

    async fn postgres(url: &str) -> Result<Self, StoreError> {
        let options = address::options(url)?;
        let connect = Doubt::default()
            .ask(AnyPoolOptions::new())
            .max_connections(POSTGRES_CONNECTIONS)
            .acquire_timeout(WAIT)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // A replica that hangs in a write, or whose network is gone, must not stop the others for hours.
                    let settings = "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s';";
                    sqlx::raw_sql(settings).execute(&mut *connection).await.map(drop)
                })
            })
            .connect_with(options.clone())
            .await;
        let pool = match connect {
            // It waits for a server that is starting, and then says only that it has waited.
            Err(sqlx::Error::PoolTimedOut) => return Err(why_not(&options).await.into()),
            connected => Pool::to_server(connected?),
        };
        let newest = Arc::new(watch::Sender::new(0));
        Ok(Self {
            backend: Backend::Postgres,
            address: Address::from(url),
            readers: pool.clone(),
            writers: pool,
            newest,
            documents: Arc::default(),
        })
    }

    /// Which database it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The newest revision: that of the last acknowledged write.
    pub async fn revision(&self) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT revision FROM revisions").fetch_one(&self.readers).await?;
        Ok(row.try_get(0)?)
    }

    /// The newest revision that this process has committed: who follows [`Self::changes`] wakes at once. What other
    /// replicas write is found by asking again after a time.
    pub fn watch(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }

    fn committed(&self, revision: i64) {
        self.newest.send_if_modified(|newest| {
            let newer = revision > *newest;
            *newest = revision.max(*newest);
            newer
        });
    }

    /// The database went back: what is newest is what it has now, and the next revision is news although its number is
    /// known.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn went_back(&self) -> Result<(), StoreError> {
        let newest = self.revision().await?;
        self.newest.send_replace(newest);
        Ok(())
    }

    /// Copies the whole database into a file that does not exist yet, while others read and write (SQLite only). The
    /// file is there when all of it is.
    pub async fn backup(&self, to: &Path) -> Result<(), StoreError> {
        if self.backend != Backend::Sqlite {
            return Err(StoreError::NoBackup);
        }
        let fault = |source| StoreError::File { path: to.to_owned(), source };
        let mut partial = to.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        // What an interrupted backup left.
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fault(error)),
            _ => private_file(&partial)?,
        }
        let name = partial.to_str().ok_or_else(|| fault(std::io::ErrorKind::InvalidFilename.into()))?;
        if let Err(error) = sqlx::query("VACUUM INTO $1").bind(name).execute(&self.readers).await {
            let _ = std::fs::remove_file(&partial);
            return Err(error.into());
        }
        let whole = || {
            std::fs::File::open(&partial)?.sync_all()?;
            // Not a rename, which would replace what is there.
            std::fs::hard_link(&partial, to)?;
            std::fs::remove_file(&partial)
        };
        whole().map_err(fault)?;
        atomic::sync_folder(to).map_err(|error| fault(error.source))
    }

    /// Waits for what is under way and closes all connections.
    pub async fn close(&self) {
        self.writers.close().await;
        self.readers.close().await;
    }

    /// The statement that begins a write.
    fn begin(&self) -> &'static str {
        match self.backend {
            Backend::Sqlite => "BEGIN IMMEDIATE",
            Backend::Postgres => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        }
    }

    /// Begins a write: all of it happens, with one revision, or nothing.
    async fn write(&self) -> Result<Write, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        // Also the lock that puts writers of PostgreSQL in one order: revisions become visible in the order of their
        // numbers, so that nobody who asks what is new since N misses one.
        let row = sqlx::query("UPDATE revisions SET revision = revision + 1 RETURNING revision")
            .fetch_one(together.connection())
            .await?;
        Ok(Write { revision: row.try_get(0)?, together })
    }
}

/// A write under way.
struct Write {
    revision: i64,
    together: Together,
}

/// A transaction. Dropped before its end, by an error or because the caller went away, it takes its connection with it:
/// SQLite ends a transaction by itself when the disk is full, sqlx then believes that it goes on, and the one writer
/// would refuse everybody from then on.
struct Together(Option<PoolConnection<Any>>);

impl Together {
    async fn begin(pool: &Pool, statement: &'static str) -> Result<Self, StoreError> {
        let mut this = Self(Some(pool.acquire().await?));
        sqlx::raw_sql(statement).execute(this.connection()).await?;
        Ok(this)
    }

    fn connection(&mut self) -> &mut AnyConnection {
        self.0.as_mut().expect("it is there until the end")
    }

    async fn commit(self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    async fn roll_back(self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), StoreError> {
        sqlx::raw_sql(statement).execute(self.connection()).await?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// Why a connection cannot be made.
async fn why_not(options: &AnyConnectOptions) -> sqlx::Error {
    let tried = tokio::time::timeout(WAIT, AnyConnection::connect_with(options)).await;
    tried.ok().and_then(Result::err).unwrap_or(sqlx::Error::PoolTimedOut)
}

/// Whether every database can keep it: PostgreSQL has no NUL in texts.
fn is_text(text: &str) -> bool {
    !text.contains('\0')
}

/// Makes a file that only its owner reads, unless it is there: what SQLite puts beside it has the same mode.
fn private_file(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    made.map(drop).map_err(|source| StoreError::File { path: path.to_owned(), source })
}

/// The address of a SQLite file.
pub fn sqlite_url(path: &Path) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    format!("sqlite:{}", percent_encoding::percent_encode(path.as_os_str().as_encoded_bytes(), ENCODED))
}

/// The file of a SQLite address.
pub fn sqlite_file(url: &str) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let path = rest.split('?').next().unwrap_or_default();
    let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    (!path.is_empty() && path != b":memory:").then(|| std::ffi::OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests;
