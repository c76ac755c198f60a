//! Resources of every kind in one table: what a kind is stands in its plug-in, not here. Reading them; [`super::batch`]
//! writes.

use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{Store, StoreError, is_text};

/// Rows of a page at most.
pub const PAGE_ROWS: u32 = 1000;

/// Rows that are read before other requests have their turn.
const ROWS_A_TURN: usize = 4;

/// A resource as kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its id in lower case.
    pub key: String,
    /// The full type in lower case, `microsoft.kubernetes/connectedclusters`.
    pub kind: String,
    /// The key of what holds it, with which its own begins; empty at the top.
    pub parent: String,
    /// Its id as it was created.
    pub id: String,
    /// The revision of its last change: its version.
    pub revision: i64,
    /// Everything that may be shown.
    pub body: Value,
    /// What may not, encrypted ([`super::protect`]).
    pub protected: Option<Vec<u8>>,
}

impl Stored {
    /// Whether its deletion has begun: from then on nobody reaches it, and nobody changes it.
    pub fn is_deleting(&self) -> bool {
        is_deleting(&self.body)
    }
}

/// Whether what has this body is being deleted.
pub(super) fn is_deleting(body: &Value) -> bool {
    let state = body.get("properties").and_then(|properties| properties.get("provisioningState"));
    state.is_some_and(|state| state == "Deleting")
}

pub(super) const COLUMNS: &str = "resource_key, kind, parent_key, id, revision, body, protected";
pub(super) const ONE: &str = "WHERE resource_key = $1";
pub(super) const PAGE: &str =
    "WHERE kind = $1 AND resource_key > $2 AND resource_key < $3 ORDER BY resource_key LIMIT $4";
pub(super) const CHILDREN: &str =
    "WHERE parent_key = $1 AND kind = $2 AND resource_key > $3 ORDER BY resource_key LIMIT $4";
pub(super) const COUNT: &str =
    "SELECT COUNT(*) FROM resources WHERE kind = $1 AND resource_key > $2 AND resource_key < $3";

impl Store {
    /// The resource of a key.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        if !is_text(key) {
            return Ok(None);
        }
        let row = sqlx::query(select(ONE)).bind(key).fetch_optional(&self.readers).await?;
        row.as_ref().map(stored).transpose()
    }

    /// Up to `rows` resources ([`PAGE_ROWS`] at most) of a kind anywhere below `within` (a key; empty: everywhere), in
    /// the order of their keys, from behind the key `after` (empty: from the first). A page stays right while rows
    /// change: it goes on where the last one ended, not at a count.
    pub async fn page(&self, kind: &str, within: &str, after: &str, rows: u32) -> Result<Vec<Stored>, StoreError> {
        let rows = self.page_rows(select(PAGE), kind, within, after, rows).await?;
        each(&rows, stored).await
    }

    /// The rows of a page, by a statement that takes kind, both ends of the keys, and their number.
    pub(super) async fn page_rows(
        &self,
        statement: impl sqlx::SqlSafeStr,
        kind: &str,
        within: &str,
        after: &str,
        rows: u32,
    ) -> Result<Vec<AnyRow>, StoreError> {
        if ![kind, within, after].into_iter().all(is_text) {
            return Ok(Vec::new());
        }
        let (from, to) = below(within);
        let from = if after > from.as_str() { after } else { &from };
        let rows = sqlx::query(statement)
            .bind(kind)
            .bind(from)
            .bind(to)
            .bind(i64::from(rows.min(PAGE_ROWS)))
            .fetch_all(&self.readers)
            .await?;
        Ok(rows)
    }

    /// The same of those whose parent is `parent` itself: role assignments exactly at one scope.
    pub async fn children(&self, kind: &str, parent: &str, after: &str, rows: u32) -> Result<Vec<Stored>, StoreError> {
        if ![kind, parent, after].into_iter().all(is_text) {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(select(CHILDREN))
            .bind(parent)
            .bind(kind)
            .bind(after)
            .bind(i64::from(rows.min(PAGE_ROWS)))
            .fetch_all(&self.readers)
            .await?;
        each(&rows, stored).await
    }

    /// How many resources of a kind there are anywhere below `within` (a key; empty: everywhere).
    pub async fn count(&self, kind: &str, within: &str) -> Result<u64, StoreError> {
        if !is_text(kind) || !is_text(within) {
            return Ok(0);
        }
        let (from, to) = below(within);
        let row = sqlx::query(COUNT).bind(kind).bind(from).bind(to).fetch_one(&self.readers).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }
}

/// The keys below `key`: from (exclusive) and to (exclusive).
pub(super) fn below(key: &str) -> (String, String) {
    // '0' is the character behind '/'.
    (format!("{key}/"), format!("{key}0"))
}

pub(super) fn select(rest: &'static str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM resources {rest}"))
}

/// The revision of a key, as a write sees it.
pub(super) async fn revision_of(connection: &mut AnyConnection, key: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT revision FROM resources WHERE resource_key = $1";
    let row = sqlx::query(sql).bind(key).fetch_optional(connection).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Reads rows, a few at a time: a body has up to 256 KiB, and a page a thousand of them.
pub(super) async fn each<T>(
    rows: &[AnyRow],
    read: impl Fn(&AnyRow) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut all = Vec::with_capacity(rows.len());
    for turn in rows.chunks(ROWS_A_TURN) {
        for row in turn {
            all.push(read(row)?);
        }
        tokio::task::yield_now().await;
    }
    Ok(all)
}

pub(super) fn stored(row: &AnyRow) -> Result<Stored, StoreError> {
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
