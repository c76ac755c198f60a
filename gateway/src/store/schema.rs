//! The tables. A migration is never changed once it was released, and none goes back: an older program refuses the
//! database of a newer one and says so.

use std::borrow::Cow;

use sqlx::{
    AssertSqlSafe, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

use super::{Backend, Store, StoreError};

/// In order; the number of a migration is its place, from 1. `{text}` and `{bytes}` are the types of the database, and
/// `{group_of_resource_key}` is its way to say which resource group's key a key begins with.
const MIGRATIONS: &[(&str, &str)] = &[
    ("resources and operations", include_str!("schema/1_resources.sql")),
    ("agents of clusters", include_str!("schema/2_agents.sql")),
    ("events", include_str!("schema/3_events.sql")),
    ("identities", include_str!("schema/4_identities.sql")),
    ("indexes", include_str!("schema/5_indexes.sql")),
    ("authorities", include_str!("schema/6_authorities.sql")),
    ("claims", include_str!("schema/7_claims.sql")),
    ("protecting key", include_str!("schema/8_protecting_key.sql")),
    ("rows named", include_str!("schema/9_rows_named.sql")),
    ("operation claims", include_str!("schema/10_operation_claims.sql")),
    ("statuses", include_str!("schema/11_statuses.sql")),
    ("parts", include_str!("schema/12_parts.sql")),
    ("log lines", include_str!("schema/13_log_lines.sql")),
    ("upgrades", include_str!("schema/14_upgrades.sql")),
    ("replicas", include_str!("schema/15_replicas.sql")),
    ("held", include_str!("schema/16_held.sql")),
    ("shared state", include_str!("schema/17_shared_state.sql")),
    ("tombstones by kind", include_str!("schema/18_tombstones_by_kind.sql")),
    ("replicas stale for", include_str!("schema/19_replicas_stale_for.sql")),
    ("replicas settings", include_str!("schema/20_replicas_settings.sql")),
    ("shares", include_str!("schema/21_shares.sql")),
];

/// How many this program knows.
pub(super) const KNOWN: usize = MIGRATIONS.len();

pub(super) async fn migrate(store: &Store) -> Result<(), StoreError> {
    let (text, bytes, group) = match store.backend {
        Backend::Sqlite => {
            ("TEXT", "BLOB", "substr(resource_key, 1, instr(resource_key || '/providers/', '/providers/') - 1)")
        }
        Backend::Postgres => ("TEXT COLLATE \"C\"", "BYTEA", "split_part(resource_key, '/providers/', 1)"),
    };
    let migrations = MIGRATIONS.iter().zip(1..).map(|((description, sql), version)| {
        let sql = AssertSqlSafe(
            sql.replace("{text}", text).replace("{bytes}", bytes).replace("{group_of_resource_key}", group),
        )
        .into_sql_str();
        Migration::new(version, Cow::Borrowed(*description), MigrationType::Simple, sql, false)
    });
    let migrator = Migrator::with_migrations(migrations.collect());
    let done = match store.backend {
        // Under the lock of the file, for another process may open it now.
        Backend::Sqlite => {
            let mut transaction = store.writers.connections().begin_with(store.begin()).await?;
            // Not `run`, whose future is not Send for any lifetime.
            let done = migrator.run_direct(None, &mut *transaction, false).await;
            match done {
                Ok(()) => transaction.commit().await?,
                Err(_) => transaction.rollback().await?,
            }
            done
        }
        // Under a lock of its own.
        Backend::Postgres => migrator.run_direct(None, &mut *store.writers.acquire().await?, false).await,
    };
    done.map_err(|error| match error {
        MigrateError::VersionMissing(found) => StoreError::Newer { found, known: MIGRATIONS.len() },
        other => StoreError::Schema(other),
    })
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest;

    use super::*;

    /// A migration that was released is never edited: databases remember what they ran. A new one gets a line here.
    const RELEASED: &[&str] = &[
        "799d2876270eb28fb248362bdee65ff2f095352a97054c8f51484f2a71bd1085",
        "5fd304fcb0d3b4a74489265d4c766ef17387c96753798dedb2de4419a213633e",
        "878aa8df51433f0d4ebe6ea3fbde3921c8e6a112f4b25b73f11f071b9f3b8f07",
        "fdaac8ad1268a5f1302193a40cd04cf783800abc36e2dba75f96a698918fb591",
        "9daa74defefae3d52cff371c492909d586c8f4794516d07537b0446e25060492",
        "9892416df84eb911e8bd5ff85ac85c1cfdb1c0531eaff8b8355472729db2439d",
        "76f6f70a5e9b713513a3b25afffb4d16a7f03eda86c727abcd3b19f45e3c1920",
        "bff6537272abcdff929c7dc3f1dca43db6ce9319dcab996d979cb36a542df35c",
        "2ea2194106675a3403ae65559354cb02da8761d980a15e73c679db967306e51f",
        "e9f73d4d4db90914b66fcb0d3488537eaee67d37c9960266ddc3bb6db02f34a3",
        "1680884c30f0fa6a44f39faa6fe4c0bf10b163bde82657ae41d9973da657c40f",
        "e5334f732693aebf1caeef36eaf1da0fb46934698be193121dcf929867fb1869",
        "33023e65a79f07d1a6f775e6c878509a0eb41e28881c0cb9de9f4e159c8246d6",
        "3f8ac3da4256264b5c3f5db9632bcf4983f4f809d0ec1c72593bbf9fc29272c0",
        "99b93aa0cbc9326985e90395aea34acfb6dcd5a03a123f13dfa4987381adb84b",
        "7c3c8b9b44dddfb6969947d0fe57925baa960c402060af305adbcd8555bd0fe0",
        "10b39d1f2ac97b00dc063ae778e6e95040fa7024391ae226181c5690b7e91219",
        "c43e9d71e48fa149ca31694e7b38b7c5a8e09bcc2a9772a55bfa2b3dee377cff",
        "c2dedd070246ae06aad4bdc525ad80982ad72539cdaa42fe18a3554bae390410",
        "1c393e64a866ca79f2f426eeac98bb1f0fc5b36ebdd3b7d41ca5cffce5f1b9e0",
        "3d996b4579472f526387516216d1042173cc2a114504c57059e10ff5f9ef95da",
    ];

    #[test]
    fn released_migrations_are_as_they_were() {
        let sums: Vec<String> = MIGRATIONS
            .iter()
            .map(|(_, sql)| digest::digest(&digest::SHA256, sql.as_bytes()))
            .map(|sum| types::ids::hex(sum.as_ref()))
            .collect();
        assert_eq!(sums, RELEASED, "write another migration instead");
    }

    /// Replicas of the previous version go on with the tables of this one (OPERATING.md): what they read and write stays,
    /// and a row that they insert is taken.
    #[test]
    fn migrations_only_add() {
        // Of before there were replicas.
        const BEFORE: usize = 9;
        for (name, sql) in &MIGRATIONS[BEFORE..] {
            let lines: Vec<&str> = sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
            let tables: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("CREATE TABLE ")).collect();
            let own = |table: &str| tables.iter().any(|made| made.split([' ', '(']).next() == Some(table));
            for statement in lines.join(" ").split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
                let words: Vec<&str> = statement.split([' ', '(', ',']).filter(|word| !word.is_empty()).collect();
                let fine = match words.as_slice() {
                    ["CREATE", "TABLE" | "INDEX", ..] => true,
                    ["ALTER", "TABLE", _, "ADD", "COLUMN", ..] => {
                        !statement.contains("NOT NULL") || statement.contains("DEFAULT")
                    }
                    // What only the new program knows.
                    ["INSERT", "INTO", table, ..] | ["CREATE", "UNIQUE", "INDEX", _, "ON", table, ..] => own(table),
                    _ => false,
                };
                assert!(fine, "{name}: {statement}: a replica of the previous version may fail");
            }
        }
    }

    #[test]
    fn every_migration_file_is_run() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/schema");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), MIGRATIONS.len());
    }
}
