//! Resources of every kind in one table: what a kind is stands in its plug-in, not here. Reading them; [`super::batch`]
//! writes.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{Store, StoreError, is_text};
use crate::aside::here;

/// Rows of a page at most.
pub const PAGE_ROWS: u32 = 1000;

/// Keys that one statement names at most.
const KEYS_AT_ONCE: usize = 400;

/// Rows that are read before other requests have their turn.
const ROWS_A_TURN: usize = 4;

/// Bytes of bodies that are read in one go where their request is served: 4 ms if they are all small values.
pub(super) const AT_ONCE_BYTES: usize = 32 * 1024;

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
    state.is_some_and(|state| state == DELETING)
}

const DELETING: &str = "Deleting";

/// The same of a body as it is kept, of which nothing else is taken in.
pub(super) fn is_text_of_deleting(body: &str) -> bool {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow, default)]
        properties: Properties<'a>,
    }
    #[derive(Deserialize, Default)]
    struct Properties<'a> {
        #[serde(borrow, default, rename = "provisioningState")]
        state: Cow<'a, str>,
    }
    serde_json::from_str::<Outline<'_>>(body).is_ok_and(|body| body.properties.state == DELETING)
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
        single(row.as_ref(), stored).await
    }

    /// The resources of these keys, as far as they are there, in no order.
    pub async fn get_each(&self, keys: &[String]) -> Result<Vec<Stored>, StoreError> {
        let (mut all, keys) = (Vec::new(), keys.iter().filter(|key| is_text(key)).collect::<Vec<_>>());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let query = sqlx::query(sqlx::AssertSqlSafe(each_of(keys.len())));
            let rows = keys.iter().fold(query, |query, key| query.bind(key)).fetch_all(&self.readers).await?;
            all.extend(each(&rows, stored).await?);
        }
        Ok(all)
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

/// The statement that reads the resources of so many keys.
pub(super) fn each_of(keys: usize) -> String {
    let places = (1..=keys).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    format!("SELECT {COLUMNS} FROM resources WHERE resource_key IN ({places})")
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

/// Bytes of the body in a row.
fn length(row: &AnyRow) -> usize {
    row.try_get::<&str, _>("body").map_or(0, str::len)
}

/// Reads a row, a long one beside the thread that serves its request.
pub(super) async fn single<T>(
    row: Option<&AnyRow>,
    read: impl FnOnce(&AnyRow) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let Some(row) = row else { return Ok(None) };
    here(length(row) > AT_ONCE_BYTES, || read(row)).await.map(Some)
}

/// Reads rows, a few at a time, as [`single`]: a body has up to 256 KiB, and a page a thousand of them.
pub(super) async fn each<T>(
    rows: &[AnyRow],
    read: impl Fn(&AnyRow) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut all = Vec::with_capacity(rows.len());
    for turn in rows.chunks(ROWS_A_TURN) {
        let is_long = turn.iter().map(length).sum::<usize>() > AT_ONCE_BYTES;
        let read = || turn.iter().map(&read).collect::<Result<Vec<T>, StoreError>>();
        all.extend(here(is_long, read).await?);
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use serde_json::json;

    use super::*;
    use crate::store::batch::Expect;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A row of 256 KiB took 29 ms of a thread that serves others, a page of them minutes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_row_is_read_beside_the_thread_that_serves_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
        let of = |name: &str, length: usize| Stored {
            key: format!("/subscriptions/{name}"),
            kind: "k".to_owned(),
            parent: String::new(),
            id: format!("/subscriptions/{name}"),
            revision: 0,
            body: json!({"name": name, "text": "x".repeat(length)}),
            protected: None,
        };
        for stored in [of("a", AT_ONCE_BYTES), of("b", 8), of("c", AT_ONCE_BYTES / 2), of("d", AT_ONCE_BYTES / 2)] {
            store.put(&stored, Expect::Absent).await.unwrap().unwrap();
        }
        // The task that it waits for runs on the only thread there is.
        let reads_while_others_run = |rows: Vec<AnyRow>| {
            tokio::spawn(async move {
                let wait = |row: &AnyRow| {
                    let (tell, told) = mpsc::channel();
                    tokio::spawn(async move { tell.send(()) });
                    told.recv_timeout(PATIENCE)
                        .map_err(|_| StoreError::Row { table: "resources", reason: String::new() })?;
                    stored(row)
                };
                if rows.len() > 1 {
                    return each(&rows, wait).await.map(|all| all.len());
                }
                single(rows.first(), wait).await.map(|found| usize::from(found.is_some()))
            })
        };
        let rows = async |after: &str, rows| store.page_rows(select(PAGE), "k", "", after, rows).await.unwrap();
        assert_eq!(reads_while_others_run(rows("", 1).await).await.unwrap().unwrap(), 1, "one long row");
        assert_eq!(reads_while_others_run(rows("", 2).await).await.unwrap().unwrap(), 2, "a long one on a page");
        let others = rows("/subscriptions/a", 9).await;
        assert_eq!(reads_while_others_run(others).await.unwrap().unwrap(), 3, "short ones that are long together");
    }

    #[test]
    fn text_tells_of_a_deletion_what_the_body_tells() {
        for body in [
            json!({"properties": {"provisioningState": "Deleting", "x": [1, {"y": null}]}}),
            json!({"properties": {"provisioningState": "Succeeded"}}),
            json!({"properties": {"provisioningState": 7}}),
            json!({"properties": {}}),
            json!({"properties": null}),
            json!({"properties": [], "provisioningState": "Deleting"}),
            json!({"x": 1}),
            json!([]),
        ] {
            assert_eq!(is_text_of_deleting(&body.to_string()), is_deleting(&body), "{body}");
        }
        assert!(is_text_of_deleting(r#"{"properties": {"provisioningState": "Delet\u0069ng"}}"#));
        assert!(!is_text_of_deleting("no JSON"));
    }
}
