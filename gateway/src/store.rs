//! Where resources live: SQLite (one file, the default) or PostgreSQL, behind one set of statements (DESIGN.md section 4).
//!
//! | module | what it holds |
//! |---|---|
//! | [`schema`] | the tables, as migrations that only go forward |
//! | [`resources`] | resources of every kind: get, page, create, replace, delete with what they hold |
//! | [`operations`] | long-running operations, which survive a restart |
//!
//! Every write takes the next **revision**, a number that only grows and that is the resource's version (its ETag). Who
//! feeds a snapshot asks what has changed since the revision that it knows. No statement of the request path comes here.
//!
//! What is asked for by name or order compares bytes, never by a collation: keys are lower-cased here, and text columns of
//! PostgreSQL are `COLLATE "C"`.

pub mod operations;
pub mod resources;
pub mod schema;

use std::{path::PathBuf, str::FromStr, time::Duration};

use sqlx::{
    Any, AnyConnection, AnyPool, Row, Transaction,
    any::{AnyConnectOptions, AnyPoolOptions},
    pool::PoolConnection,
};

/// Connections that read at once.
const READERS: u32 = 4;
/// Connections to PostgreSQL, which has many writers.
const POSTGRES_CONNECTIONS: u32 = 16;
/// How long a statement waits for a connection, and a SQLite writer for another process (the backup, a command).
const WAIT: Duration = Duration::from_secs(10);

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// One file.
    Sqlite,
    /// A server.
    Postgres,
}

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names no database of a known kind.
    #[error("{0:?} is no database: expected sqlite:<file> or postgres://<user>@<host>/<database>")]
    Url(String),
    /// The database was made by a newer program, or changed by hand.
    #[error(
        "the database's tables are not as this program expects: {0}; run the version that wrote it, or a newer one"
    )]
    Schema(#[from] sqlx::migrate::MigrateError),
    /// The database itself.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A row cannot be read.
    #[error("a row of {table} cannot be read: {reason}")]
    Row {
        /// The table.
        table: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// An open store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    readers: AnyPool,
    writers: AnyPool,
}

impl Store {
    /// Opens `url`, makes the file where there is none, and brings the tables up to date.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let store = match url.split_once(':') {
            Some(("sqlite", _)) => Self::sqlite(url).await?,
            Some(("postgres" | "postgresql", _)) => Self::postgres(url).await?,
            _ => return Err(StoreError::Url(without_password(url))),
        };
        schema::migrate(&store).await?;
        Ok(store)
    }

    /// A file of its own, for `towline dev` and tests.
    pub async fn open_file(path: &std::path::Path) -> Result<Self, StoreError> {
        Self::open(&format!("sqlite:{}", path.display())).await
    }

    async fn sqlite(url: &str) -> Result<Self, StoreError> {
        let options = AnyConnectOptions::from_str(&with_parameter(url, "mode=rwc"))?;
        let pool = |connections| {
            AnyPoolOptions::new().max_connections(connections).acquire_timeout(WAIT).after_connect(|connection, _| {
                Box::pin(async move {
                    // FULL: an acknowledged write survives a power cut, not only the end of the process.
                    let pragmas = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
                                   PRAGMA busy_timeout = 10000;";
                    sqlx::raw_sql(pragmas).execute(&mut *connection).await.map(drop)
                })
            })
        };
        // One writer: SQLite has one lock for all, and who waits here waits in order and without polling.
        let writers = pool(1).connect_with(options.clone()).await?;
        let readers = pool(READERS).connect_with(options).await?;
        Ok(Self { backend: Backend::Sqlite, readers, writers })
    }

    async fn postgres(url: &str) -> Result<Self, StoreError> {
        let options = AnyConnectOptions::from_str(url)?;
        let pool = AnyPoolOptions::new()
            .max_connections(POSTGRES_CONNECTIONS)
            .acquire_timeout(WAIT)
            .connect_with(options)
            .await?;
        Ok(Self { backend: Backend::Postgres, readers: pool.clone(), writers: pool })
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

    /// Copies the whole database into a new file while others read and write (SQLite only).
    pub async fn backup(&self, to: &std::path::Path) -> Result<(), StoreError> {
        if self.backend != Backend::Sqlite {
            return Err(StoreError::Url("PostgreSQL is backed up with pg_dump; this".to_owned()));
        }
        let to = to.display().to_string();
        sqlx::query("VACUUM INTO $1").bind(to).execute(&self.readers).await?;
        Ok(())
    }

    /// Waits for what is under way and closes all connections.
    pub async fn close(&self) {
        self.writers.close().await;
        self.readers.close().await;
    }

    /// Begins a write: all of it happens, with one revision, or nothing.
    async fn write(&self) -> Result<Write, StoreError> {
        let statement = match self.backend {
            Backend::Sqlite => "BEGIN IMMEDIATE",
            Backend::Postgres => "BEGIN",
        };
        let mut transaction = self.writers.begin_with(statement).await?;
        // Also the lock that puts writers of PostgreSQL in one order: revisions become visible in the order of their
        // numbers, so that nobody who asks what is new since N misses one.
        let row = sqlx::query("UPDATE revisions SET revision = revision + 1 RETURNING revision")
            .fetch_one(&mut *transaction)
            .await?;
        Ok(Write { revision: row.try_get(0)?, transaction })
    }

    async fn read(&self) -> Result<PoolConnection<Any>, StoreError> {
        Ok(self.readers.acquire().await?)
    }
}

/// A write under way. Dropped without [`Self::commit`] it did not happen.
struct Write {
    revision: i64,
    transaction: Transaction<'static, Any>,
}

impl Write {
    fn connection(&mut self) -> &mut AnyConnection {
        &mut self.transaction
    }

    async fn commit(self) -> Result<i64, StoreError> {
        self.transaction.commit().await?;
        Ok(self.revision)
    }
}

fn with_parameter(url: &str, parameter: &str) -> String {
    format!("{url}{}{parameter}", if url.contains('?') { '&' } else { '?' })
}

/// The address as it may be shown.
fn without_password(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(mut parsed) if parsed.password().is_some() => {
            let _ = parsed.set_password(Some("***"));
            parsed.to_string()
        }
        _ => url.to_owned(),
    }
}

/// The file of a SQLite address.
pub fn sqlite_file(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    Some(PathBuf::from(rest.split('?').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests;
