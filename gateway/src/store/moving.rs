//! From SQLite to PostgreSQL, for who begins with one machine and goes on with several gateways: all rows of all tables
//! are copied in one transaction, and counted on both sides before it ends. The file stays as it was.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use futures_util::TryStreamExt as _;
use sqlx::{
    AnyConnection, AssertSqlSafe, Connection as _, Row as _,
    any::{AnyConnectOptions, AnyRow},
};

use super::{BUSY, Backend, LOCKED, Store, StoreError, Together, primary_code, sqlite_url};

/// Rows that one statement writes, and about how many bytes.
const ROWS: usize = 100;
const BYTES: usize = 1 << 20;
/// How long the file's lock is waited for: a gateway that runs keeps it.
const LOCK: &str = "PRAGMA busy_timeout = 1000";
/// What migrations and the first start put into an empty database. It is replaced.
const BEGUN: [&str; 3] = ["event_numbers", "revisions", "rows_named"];
/// Statements that find 0 where nothing was written yet.
const NUMBERS: [(&str, &str); 2] = [
    ("revisions", "SELECT CAST(sum(revision) AS BIGINT) FROM revisions"),
    ("event_numbers", "SELECT CAST(sum(newest) AS BIGINT) FROM event_numbers"),
];

/// Why nothing was moved. The PostgreSQL database is then as it was, but for empty tables.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// There is no SQLite database.
    #[error(
        "{0} is not a store yet: there is nothing to move; name postgres_url_file instead of store_file, and start"
    )]
    Nothing(PathBuf),
    /// Another process has the SQLite database open.
    #[error("{0} is in use: stop the gateway, and run this again")]
    InUse(PathBuf),
    /// The target is no PostgreSQL.
    #[error("rows are moved to PostgreSQL only: expected postgres://<user>@<host>/<database>")]
    Target,
    /// The target has data already.
    #[error(
        "the PostgreSQL database is not empty: its table {0} has rows; name an empty database (createdb), for nothing is \
         replaced or merged"
    )]
    NotEmpty(String),
    /// What arrived is not what was there.
    #[error("of {from} rows of the table {table} {to} arrived: nothing was moved; run this again")]
    Count {
        /// Name of the table.
        table: String,
        /// Rows of SQLite.
        from: i64,
        /// Rows of PostgreSQL.
        to: i64,
    },
    /// A column of a type that no migration gives.
    #[error("the column {column} of the table {table} has the type {found}, which is not known here")]
    Column {
        /// Name of the table.
        table: String,
        /// Name of the column.
        column: String,
        /// Its type in SQLite.
        found: String,
    },
    /// One of the databases.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for MoveError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// What a column holds.
#[derive(Clone, Copy)]
enum Holds {
    Number,
    Text,
    Bytes,
}

/// A table of SQLite.
struct Table {
    name: String,
    columns: Vec<(String, Holds)>,
}

/// Copies all that is in the SQLite database `from` into the empty PostgreSQL database at `to`; the number of rows of
/// each table. Both get the tables of this program first. No process may have `from` open.
///
/// # Errors
/// [`MoveError`].
pub async fn to_postgres(from: &Path, to: &str) -> Result<BTreeMap<String, i64>, MoveError> {
    if !matches!(to.split_once(':'), Some(("postgres" | "postgresql", _))) {
        return Err(MoveError::Target);
    }
    let url = sqlite_url(from);
    let Some(source) = Store::open_used(&url).await? else { return Err(MoveError::Nothing(from.to_owned())) };
    source.close().await;
    let mut source = alone(from, &url).await?;
    let target = Store::open(to).await?;
    let moved = copy(&mut source, &target).await;
    target.close().await;
    let _ = source.close().await;
    moved
}

/// The only connection to the file: nobody reads or writes it as long as it is there.
async fn alone(path: &Path, url: &str) -> Result<AnyConnection, MoveError> {
    let options: AnyConnectOptions = url.parse()?;
    let mut connection = AnyConnection::connect_with(&options).await?;
    let locked = async {
        sqlx::raw_sql(LOCK).execute(&mut connection).await?;
        // What makes a database leave its log for writes is refused while another connection is open.
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode = DELETE").fetch_one(&mut connection).await?;
        sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut connection).await?;
        Ok::<_, sqlx::Error>(mode)
    };
    match locked.await {
        Ok(mode) if mode.eq_ignore_ascii_case("delete") => Ok(connection),
        Ok(_) => Err(MoveError::InUse(path.to_owned())),
        Err(error) if matches!(primary_code(&error), Some(BUSY | LOCKED)) => Err(MoveError::InUse(path.to_owned())),
        Err(error) => Err(StoreError::of_file(path, error).into()),
    }
}

async fn copy(source: &mut AnyConnection, target: &Store) -> Result<BTreeMap<String, i64>, MoveError> {
    debug_assert_eq!(target.backend, Backend::Postgres);
    let tables = tables(source).await?;
    let mut together = Together::begin(&target.writers, target.begin()).await?;
    // The lock that every write takes: a gateway that is started here meanwhile writes after this, and then refuses.
    sqlx::raw_sql("LOCK TABLE revisions IN ACCESS EXCLUSIVE MODE").execute(together.connection()).await?;
    empty(together.connection(), &tables).await?;
    let mut counts = BTreeMap::new();
    for table in tables {
        let count = copy_table(source, together.connection(), &table).await?;
        counts.insert(table.name, count);
    }
    together.commit().await?;
    Ok(counts)
}

async fn tables(source: &mut AnyConnection) -> Result<Vec<Table>, MoveError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
               AND name <> '_sqlx_migrations' ORDER BY name";
    let names: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut *source).await?;
    let mut tables = Vec::new();
    for name in names {
        let sql = "SELECT CAST(name AS TEXT), CAST(type AS TEXT) FROM pragma_table_info($1)";
        let rows = sqlx::query(sql).bind(&name).fetch_all(&mut *source).await?;
        let mut columns = Vec::new();
        for row in rows {
            let (column, found): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let holds = match found.as_str() {
                "BIGINT" | "INTEGER" => Holds::Number,
                "TEXT" => Holds::Text,
                "BLOB" => Holds::Bytes,
                _ => return Err(MoveError::Column { table: name, column, found }),
            };
            columns.push((column, holds));
        }
        tables.push(Table { name, columns });
    }
    Ok(tables)
}

/// Refuses a database that was used.
async fn empty(target: &mut AnyConnection, tables: &[Table]) -> Result<(), MoveError> {
    for table in tables.iter().filter(|table| !BEGUN.contains(&table.name.as_str())) {
        if count(target, &table.name).await? > 0 {
            return Err(MoveError::NotEmpty(table.name.clone()));
        }
    }
    for (table, sql) in NUMBERS {
        let written: Option<i64> = sqlx::query_scalar(sql).fetch_one(&mut *target).await?;
        if written.unwrap_or(0) > 0 {
            return Err(MoveError::NotEmpty(table.to_owned()));
        }
    }
    Ok(())
}

/// Names of tables and columns are those of our migrations, never a caller's.
fn trusted(sql: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql)
}

async fn count(connection: &mut AnyConnection, table: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(trusted(format!("SELECT count(*) FROM {table}"))).fetch_one(connection).await
}

async fn copy_table(source: &mut AnyConnection, target: &mut AnyConnection, table: &Table) -> Result<i64, MoveError> {
    if BEGUN.contains(&table.name.as_str()) {
        sqlx::raw_sql(trusted(format!("DELETE FROM {}", table.name))).execute(&mut *target).await?;
    }
    let from = count(source, &table.name).await?;
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut all = sqlx::query(trusted(format!("SELECT {names} FROM {}", table.name))).fetch(source);
    while let Some(row) = all.try_next().await? {
        bytes += size(&row, table)?;
        rows.push(row);
        if rows.len() >= ROWS || bytes >= BYTES {
            insert(target, table, &names, &rows).await?;
            rows.clear();
            bytes = 0;
        }
    }
    drop(all);
    insert(target, table, &names, &rows).await?;
    let to = count(target, &table.name).await?;
    if from != to {
        return Err(MoveError::Count { table: table.name.clone(), from, to });
    }
    Ok(to)
}

/// About how many bytes a row has.
fn size(row: &AnyRow, table: &Table) -> Result<usize, sqlx::Error> {
    let mut bytes = 0;
    for (index, (_, holds)) in table.columns.iter().enumerate() {
        bytes += match holds {
            Holds::Number => size_of::<i64>(),
            Holds::Text => row.try_get::<Option<&str>, _>(index)?.map_or(0, str::len),
            Holds::Bytes => row.try_get::<Option<&[u8]>, _>(index)?.map_or(0, <[u8]>::len),
        };
    }
    Ok(bytes)
}

async fn insert(target: &mut AnyConnection, table: &Table, names: &str, rows: &[AnyRow]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let width = table.columns.len();
    let mut sql = format!("INSERT INTO {} ({names}) VALUES ", table.name);
    for place in 0..rows.len() {
        let parameters: Vec<String> = (1..=width).map(|index| format!("${}", place * width + index)).collect();
        sql += if place == 0 { "(" } else { ", (" };
        sql += &parameters.join(", ");
        sql += ")";
    }
    let mut query = sqlx::query(trusted(sql)).persistent(false);
    for row in rows {
        for (index, (_, holds)) in table.columns.iter().enumerate() {
            query = match holds {
                Holds::Number => query.bind(row.try_get::<Option<i64>, _>(index)?),
                Holds::Text => query.bind(row.try_get::<Option<String>, _>(index)?),
                Holds::Bytes => query.bind(row.try_get::<Option<Vec<u8>>, _>(index)?),
            };
        }
    }
    query.execute(target).await?;
    Ok(())
}
