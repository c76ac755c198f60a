//! The tables. A migration is never changed once it was released, and none goes back: an older program refuses the
//! database of a newer one and says so.

use std::borrow::Cow;

use sqlx::{
    AssertSqlSafe, SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::{Backend, Store, StoreError};

/// In order; the number of a migration is its place, from 1. `{text}` and `{bytes}` are the types of the database.
const MIGRATIONS: &[(&str, &str)] = &[("resources and operations", include_str!("schema/1_resources.sql"))];

pub(super) async fn migrate(store: &Store) -> Result<(), StoreError> {
    let (text, bytes) = match store.backend {
        Backend::Sqlite => ("TEXT", "BLOB"),
        Backend::Postgres => ("TEXT COLLATE \"C\"", "BYTEA"),
    };
    let migrations = MIGRATIONS.iter().zip(1..).map(|((description, sql), version)| {
        let sql = AssertSqlSafe(sql.replace("{text}", text).replace("{bytes}", bytes)).into_sql_str();
        Migration::new(version, Cow::Borrowed(*description), MigrationType::Simple, sql, false)
    });
    Ok(Migrator::with_migrations(migrations.collect()).run(&store.writers).await?)
}
