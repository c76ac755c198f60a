//! Checks that the key file belongs to the database. A file that was lost or exchanged would
//! otherwise be noticed when protected settings are needed, and by then others would be sealed with the wrong one.

use std::path::Path;

use sqlx::{Connection as _, Row as _};

use super::{
    Backend, Store, StoreError, Together,
    documents::SEALED_WITH,
    look,
    protect::{ProtectError, Protector},
    replicas,
};

/// What the key was used for that was noted.
const USED_LAST: &str = "sealed at the last start";
/// Which key sealed at the last start.
const LAST: &str = "SELECT key_id FROM protecting_key";
/// The ids of the keys that what is kept is sealed with: bytes 2 to 9 of each value.
const USED: &str = "SELECT DISTINCT substr(protected, 2, 8) AS key_id FROM resources WHERE protected IS NOT NULL";

impl Store {
    /// What speaks against a key file: that it has not the key of the last start, or one that something is sealed with.
    ///
    /// # Errors
    /// The database's.
    pub async fn exchanged(url: &str, protector: &Protector, path: &Path) -> Result<Option<ProtectError>, StoreError> {
        let mut connection = look::connect(url).await?;
        // A store of before this was noted has no such table.
        let noted = look::has_table(&mut connection, "protecting_key").await?;
        let last: Vec<String> =
            if noted { sqlx::query_scalar(LAST).fetch_all(&mut connection).await? } else { Vec::new() };
        let used = sqlx::query(USED).fetch_all(&mut connection).await?;
        let shared = look::has_table(&mut connection, "documents").await?;
        let shared = if shared { sqlx::query(SEALED_WITH).fetch_all(&mut connection).await? } else { Vec::new() };
        connection.close().await?;
        let mut wanted: Vec<(String, &'static str)> = last.into_iter().map(|id| (id, USED_LAST)).collect();
        for row in used {
            let id: Vec<u8> = row.try_get("key_id")?;
            wanted.push((types::ids::hex(&id), "protected settings are sealed with"));
        }
        for row in shared {
            let id: Vec<u8> = row.try_get("key_id")?;
            wanted.push((types::ids::hex(&id), "what the built-in issuer keeps is sealed with"));
        }
        let missing = wanted.into_iter().find(|(id, _)| !protector.has(id));
        Ok(missing.map(|(wanted, used)| ProtectError::Exchanged { path: path.to_owned(), wanted, used }))
    }

    /// Notes which key seals from now on, unless the key file is not the one that was noted: of several gateways that
    /// start at once beside nothing, each with a key that it has just made, the first says whose key it is. Returns
    /// what speaks against this one.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep_key(&self, protector: &Protector, path: &Path) -> Result<Option<ProtectError>, StoreError> {
        repeated!(self.try_to_keep_key(protector, path))
    }

    async fn try_to_keep_key(&self, protector: &Protector, path: &Path) -> Result<Option<ProtectError>, StoreError> {
        let newest = protector.newest();
        // No resource changes: this takes no revision.
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        if self.backend == Backend::Postgres {
            // It has many writers, each of which would find no key noted.
            sqlx::raw_sql("LOCK TABLE protecting_key IN EXCLUSIVE MODE").execute(together.connection()).await?;
        }
        let last: Vec<String> = sqlx::query_scalar(LAST).fetch_all(together.connection()).await?;
        if last == [newest.as_str()] {
            together.roll_back().await?;
            return Ok(None);
        }
        if let Some(wanted) = last.into_iter().find(|id| !protector.has(id)) {
            together.roll_back().await?;
            return Ok(Some(ProtectError::Exchanged { path: path.to_owned(), wanted, used: USED_LAST }));
        }
        sqlx::query("DELETE FROM protecting_key").execute(together.connection()).await?;
        sqlx::query("INSERT INTO protecting_key (key_id) VALUES ($1)")
            .bind(newest)
            .execute(together.connection())
            .await?;
        together.commit().await.map(|()| None)
    }

    /// Takes away all that is sealed, because its key is lost, shared documents and tickets too; how many resources had
    /// something.
    ///
    /// # Errors
    /// The database's.
    pub async fn forget_protected(&self) -> Result<u64, StoreError> {
        repeated!(self.try_to_forget_protected())
    }

    async fn try_to_forget_protected(&self) -> Result<u64, StoreError> {
        let mut write = self.write().await?;
        let revision = write.revision;
        let sql = "UPDATE resources SET protected = NULL, revision = $1 WHERE protected IS NOT NULL";
        let done = sqlx::query(sql).bind(revision).execute(write.together.connection()).await?;
        for sql in ["DELETE FROM protecting_key", "DELETE FROM documents", "DELETE FROM tickets"] {
            sqlx::query(sql).execute(write.together.connection()).await?;
        }
        if self.backend == Backend::Postgres {
            replicas::announce(write.together.connection(), revision).await?;
        }
        write.together.commit().await?;
        self.committed(revision);
        Ok(done.rows_affected())
    }
}
