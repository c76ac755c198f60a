//! Whether a database can be used, found out without changing it: for `check-config`, and before a start makes
//! anything.

use std::{path::Path, str::FromStr as _};

use sqlx::{AnyConnection, Connection as _, any::AnyConnectOptions};

use super::{Store, StoreError, WAIT, schema, sqlite_file, sqlite_url};

/// What there is at the address of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet: the first start makes it.
    Nothing,
    /// A store that was used before.
    Store,
}

impl Store {
    /// Whether `url` can be opened, and what is there.
    ///
    /// # Errors
    /// Why it cannot be opened: a folder that is missing or not writable, a file that is no database, a server that
    /// does not let us in, tables of a newer program.
    pub async fn found(url: &str) -> Result<Found, StoreError> {
        found(url, false).await
    }

    /// The same, where all of a SQLite file is read: a start and `check-config` do so, once.
    ///
    /// # Errors
    /// As [`Self::found`]; a file that is damaged anywhere.
    pub async fn look(url: &str) -> Result<Found, StoreError> {
        found(url, true).await
    }

    /// Opens a store that was used before; none is made where there is none, because the first start makes it together
    /// with its key.
    ///
    /// # Errors
    /// As [`Self::found`] and [`Self::open`].
    pub async fn open_used(url: &str) -> Result<Option<Self>, StoreError> {
        match Self::found(url).await? {
            Found::Nothing => Ok(None),
            Found::Store => Self::open(url).await.map(Some),
        }
    }

    /// The same for who only reads: tables of an older program, whose gateways may run, stay as they are. What is only in
    /// newer tables cannot be read then.
    ///
    /// # Errors
    /// As [`Self::found`] and [`Self::open`].
    pub async fn open_to_read(url: &str) -> Result<Option<Self>, StoreError> {
        match Self::found(url).await? {
            Found::Nothing => Ok(None),
            Found::Store => Self::connect(url).await.map(Some),
        }
    }
}

async fn found(url: &str, whole: bool) -> Result<Found, StoreError> {
    sqlx::any::install_default_drivers();
    match url.split_once(':') {
        Some(("sqlite", _)) => sqlite(url, whole).await,
        Some(("postgres" | "postgresql", _)) => postgres(url).await,
        other => Err(StoreError::Url(other.map(|(scheme, _)| scheme.to_owned()).unwrap_or_default())),
    }
}

async fn sqlite(url: &str, whole: bool) -> Result<Found, StoreError> {
    let path = sqlite_file(url).ok_or_else(|| StoreError::Url("sqlite::memory:".to_owned()))?;
    let fault = |source| StoreError::File { path: path.clone(), source };
    // SQLite makes files beside it.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    crate::files::writable_folder(folder).map_err(|source| StoreError::File { path: folder.to_owned(), source })?;
    match std::fs::File::options().read(true).append(true).open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(fault(error)),
        // A first start that was stopped at once has left it empty.
        Ok(file) if file.metadata().map_err(fault)?.len() == 0 => return Ok(Found::Nothing),
        Ok(_) => {}
    }
    let looking = async {
        let mut connection = connected(url).await?;
        let check = "PRAGMA quick_check(1)";
        let said: Option<String> =
            if whole { sqlx::query_scalar(check).fetch_optional(&mut connection).await? } else { None };
        let newest = newest(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>((said, newest))
    };
    let (said, newest) = looking.await.map_err(|error| StoreError::of_file(&path, error))?;
    match said {
        Some(reason) if reason != "ok" => Err(StoreError::Damaged { path, reason }),
        _ => known(newest),
    }
}

async fn postgres(url: &str) -> Result<Found, StoreError> {
    let mut connection = connect(url).await?;
    let newest = newest(&mut connection).await?;
    connection.close().await?;
    known(newest)
}

/// One connection that changes nothing: a SQLite file is neither made nor written.
pub(super) async fn connect(url: &str) -> Result<AnyConnection, StoreError> {
    connected(url).await.map_err(|error| match sqlite_file(url) {
        Some(path) => StoreError::of_file(&path, error),
        None => error.into(),
    })
}

async fn connected(url: &str) -> Result<AnyConnection, sqlx::Error> {
    sqlx::any::install_default_drivers();
    let options = match sqlite_file(url) {
        Some(path) => AnyConnectOptions::from_str(&format!("{}?mode=ro", sqlite_url(&path)))?,
        None => AnyConnectOptions::from_str(url)?,
    };
    let tried = tokio::time::timeout(WAIT, AnyConnection::connect_with(&options)).await;
    tried.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Whether a table is there.
pub(super) async fn has_table(connection: &mut AnyConnection, name: &str) -> Result<bool, sqlx::Error> {
    let sql = match connection.backend_name() {
        "SQLite" => "SELECT count(*) FROM sqlite_schema WHERE name = $1",
        _ => "SELECT count(*) FROM pg_class WHERE oid = to_regclass($1)",
    };
    let count: i64 = sqlx::query_scalar(sql).bind(name).fetch_one(connection).await?;
    Ok(count > 0)
}

/// The last migration that was run.
async fn newest(connection: &mut AnyConnection) -> Result<Option<i64>, sqlx::Error> {
    if !has_table(connection, "_sqlx_migrations").await? {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations").fetch_one(connection).await
}

fn known(newest: Option<i64>) -> Result<Found, StoreError> {
    match newest {
        None => Ok(Found::Nothing),
        Some(found) if usize::try_from(found).is_ok_and(|found| found <= schema::KNOWN) => Ok(Found::Store),
        Some(found) => Err(StoreError::Newer { found, known: schema::KNOWN }),
    }
}
