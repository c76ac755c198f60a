//! Resources of every kind in one table: what a kind is stands in its plug-in, not here.

use serde_json::Value;
use sqlx::{Any, AnyConnection, Row, any::AnyRow};

use super::{Store, StoreError, Write};

/// Rows of a page at most.
pub const PAGE_ROWS: u32 = 1000;
/// Changes that one question brings at most.
pub const CHANGES_AT_ONCE: u32 = 1000;

/// A resource as kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its id in lower case.
    pub key: String,
    /// The full type in lower case, `microsoft.kubernetes/connectedclusters`.
    pub kind: String,
    /// The key of what holds it, empty at the top.
    pub parent: String,
    /// Its id as it was created.
    pub id: String,
    /// The revision of its last change: its version.
    pub revision: i64,
    /// Everything that may be shown.
    pub body: Value,
    /// What may not, encrypted.
    pub protected: Option<Vec<u8>>,
}

/// What a writer expects to find: who read before is told when somebody else wrote meanwhile, so that no update is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing of that key.
    Absent,
    /// The version that was read.
    Revision(i64),
}

/// Why a write did not happen, though the database would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not what was expected: read again. `Some` is the version there is now.
    #[error("changed meanwhile")]
    Changed(Option<i64>),
    /// What would hold it does not exist (any more).
    #[error("its parent does not exist")]
    NoParent,
}

/// Something that is new since a revision.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Made or changed.
    Put(Stored),
    /// Gone.
    Deleted {
        /// Its key.
        key: String,
        /// Its kind.
        kind: String,
        /// When.
        revision: i64,
    },
}

impl Change {
    /// The revision that made it.
    pub fn revision(&self) -> i64 {
        match self {
            Self::Put(stored) => stored.revision,
            Self::Deleted { revision, .. } => *revision,
        }
    }
}

const COLUMNS: &str = "resource_key, kind, parent_key, id, revision, body, protected";

impl Store {
    /// The resource of a key.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        get(&mut *self.read().await?, key).await
    }

    /// Up to `rows` resources of a kind below `within` (a key; empty: everywhere), in the order of their keys, from
    /// behind `after`. A page stays right while rows change: it goes on where the last one ended, not at a count.
    pub async fn page(&self, kind: &str, within: &str, after: &str, rows: u32) -> Result<Vec<Stored>, StoreError> {
        let (from, to) = below(within);
        let from = if after > from.as_str() { after } else { &from };
        let sql =
            const_str("WHERE kind = $1 AND resource_key > $2 AND resource_key < $3 ORDER BY resource_key LIMIT $4");
        let rows = sqlx::query(sql)
            .bind(kind)
            .bind(from)
            .bind(to)
            .bind(i64::from(rows.min(PAGE_ROWS)))
            .fetch_all(&mut *self.read().await?)
            .await?;
        rows.iter().map(stored).collect()
    }

    /// Writes a resource (its `revision` is not looked at). The new revision, or why not.
    pub async fn put(&self, resource: &Stored, expect: Expect) -> Result<Result<i64, Refused>, StoreError> {
        let mut write = self.write().await?;
        if let Err(refused) = expected(&mut write, &resource.key, expect).await? {
            return Ok(Err(refused));
        }
        if !resource.parent.is_empty() && get(write.connection(), &resource.parent).await?.is_none() {
            return Ok(Err(Refused::NoParent));
        }
        let sql = "INSERT INTO resources (resource_key, kind, parent_key, id, revision, body, protected) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7) \
                   ON CONFLICT (resource_key) DO UPDATE \
                   SET revision = excluded.revision, body = excluded.body, protected = excluded.protected";
        sqlx::query(sql)
            .bind(&resource.key)
            .bind(&resource.kind)
            .bind(&resource.parent)
            .bind(&resource.id)
            .bind(write.revision)
            .bind(resource.body.to_string())
            .bind(resource.protected.as_deref())
            .execute(write.connection())
            .await?;
        Ok(Ok(write.commit().await?))
    }

    /// Deletes a resource and everything below it. How many went, or why not.
    pub async fn delete(&self, key: &str, expect: Expect) -> Result<Result<u64, Refused>, StoreError> {
        let mut write = self.write().await?;
        if let Err(refused) = expected(&mut write, key, expect).await? {
            return Ok(Err(refused));
        }
        let (from, to) = below(key);
        let revision = write.revision;
        let of_them = "WHERE resource_key = $2 OR (resource_key > $3 AND resource_key < $4)";
        let sql = format!(
            "INSERT INTO tombstones (revision, resource_key, kind) SELECT $1, resource_key, kind FROM resources {of_them}"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(revision)
            .bind(key)
            .bind(&from)
            .bind(&to)
            .execute(write.connection())
            .await?;
        let sql = "DELETE FROM resources WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)";
        let gone = sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(write.connection()).await?;
        write.commit().await?;
        Ok(Ok(gone.rows_affected()))
    }

    /// What is new since a revision, oldest first, [`CHANGES_AT_ONCE`] resources and as many deletions at most; ask again
    /// from the last one's revision until there is none. A resource that was changed twice is there once; one that was
    /// deleted and made again is there as both.
    pub async fn changes(&self, since: i64) -> Result<Vec<Change>, StoreError> {
        let mut connection = self.read().await?;
        let limit = i64::from(CHANGES_AT_ONCE);
        let deleted =
            "SELECT revision, resource_key, kind FROM tombstones WHERE revision > $1 ORDER BY revision LIMIT $2";
        let deleted = sqlx::query(deleted).bind(since).bind(limit).fetch_all(&mut *connection).await?;
        let put = const_str("WHERE revision > $1 ORDER BY revision LIMIT $2");
        let put = sqlx::query(put).bind(since).bind(limit).fetch_all(&mut *connection).await?;
        let mut changes = Vec::with_capacity(deleted.len() + put.len());
        for row in &deleted {
            let (revision, key, kind) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            changes.push(Change::Deleted { key, kind, revision });
        }
        for row in &put {
            changes.push(Change::Put(stored(row)?));
        }
        changes.sort_by_key(Change::revision);
        // One of the two lists may have been cut: nothing behind its end is known to be complete.
        let cut = [&deleted, &put].iter().filter(|rows| rows.len() as u32 == CHANGES_AT_ONCE).filter_map(|rows| {
            let last = rows.last()?;
            last.try_get::<i64, _>("revision").ok()
        });
        if let Some(end) = cut.min() {
            changes.retain(|change| change.revision() <= end);
        }
        Ok(changes)
    }
}

/// The keys below `key`: from (exclusive) and to (exclusive).
fn below(key: &str) -> (String, String) {
    // '0' is the character behind '/'.
    (format!("{key}/"), format!("{key}0"))
}

fn const_str(rest: &'static str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM resources {rest}"))
}

async fn get(connection: &mut AnyConnection, key: &str) -> Result<Option<Stored>, StoreError> {
    let row = sqlx::query(const_str("WHERE resource_key = $1")).bind(key).fetch_optional(connection).await?;
    row.as_ref().map(stored).transpose()
}

async fn expected(write: &mut Write, key: &str, expect: Expect) -> Result<Result<(), Refused>, StoreError> {
    let row = sqlx::query::<Any>("SELECT revision FROM resources WHERE resource_key = $1")
        .bind(key)
        .fetch_optional(write.connection())
        .await?;
    let found: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
    let fits = match expect {
        Expect::Absent => found.is_none(),
        Expect::Revision(revision) => found == Some(revision),
    };
    Ok(if fits { Ok(()) } else { Err(Refused::Changed(found)) })
}

fn stored(row: &AnyRow) -> Result<Stored, StoreError> {
    let body: String = row.try_get("body")?;
    let key: String = row.try_get("resource_key")?;
    let body = serde_json::from_str(&body)
        .map_err(|error| StoreError::Row { table: "resources", reason: format!("the body of {key}: {error}") })?;
    Ok(Stored {
        kind: row.try_get("kind")?,
        parent: row.try_get("parent_key")?,
        id: row.try_get("id")?,
        revision: row.try_get("revision")?,
        protected: row.try_get("protected")?,
        body,
        key,
    })
}
