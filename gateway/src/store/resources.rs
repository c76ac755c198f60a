//! Resources of every kind in one table: what a kind is stands in its plug-in, not here. Reading them; [`super::batch`]
//! writes.

use std::{borrow::Cow, collections::HashMap, ops::Deref};

use serde::Deserialize;
use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{Store, StoreError, is_text, pool::in_time};
use crate::aside::here;

/// Rows of a page at most,
pub const PAGE_ROWS: u32 = 1000;
/// and bytes of them, unless the first one alone has more: a body has up to 256 KiB, and a thousand of them were read for
/// each list that somebody asked for.
pub const PAGE_BYTES: u64 = 1024 * 1024;

/// Resources whose sizes are read at once.
pub const SIZES_AT_ONCE: usize = 10_000;
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

/// Rows in the order of their keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// The key behind which there may be more; none: these are all.
    pub next: Option<String>,
}

impl<T> Deref for Page<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Page<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        self.rows == other
    }
}

/// Whose rows a page has.
#[derive(Debug, Clone, Copy)]
pub enum Below<'a> {
    /// Of what is anywhere below a key; of everything where it is empty.
    Anywhere(&'a str),
    /// Of what has this parent itself.
    Parent(&'a str),
}

/// What a window weighs of each resource, beside its own row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// What agents tell of it.
    Told,
    /// The child whose key has this behind that of its parent, and what is told of it.
    Child(&'a str),
}

/// The rows of a page before they are read: as many as there is room for, whatever is in them.
#[derive(Debug, Clone)]
pub struct Window {
    pub(super) kind: String,
    pub(super) parent: Option<String>,
    /// Behind this key,
    pub(super) from: String,
    /// and up to this one with it.
    pub(super) upto: String,
    pub(super) rows: i64,
    /// Bytes of them together, and of what was asked for beside them.
    pub bytes: u64,
    next: Option<String>,
}

impl Window {
    /// The page of what was read. Rows that came in between have pushed others out of it.
    pub(super) fn page<T>(self, rows: Vec<T>, key: impl Fn(&T) -> &str) -> Page<T> {
        let last = rows.last().map(key).filter(|last| *last < self.upto.as_str());
        let next = match last {
            Some(last) if rows.len() as u64 == self.rows.unsigned_abs() => Some(last.to_owned()),
            _ => self.next,
        };
        Page { rows, next }
    }
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
    "WHERE kind = $1 AND resource_key > $2 AND resource_key <= $3 ORDER BY resource_key LIMIT $4";
pub(super) const CHILDREN: &str = "WHERE parent_key = $5 AND kind = $1 AND resource_key > $2 AND resource_key <= $3 \
                                   ORDER BY resource_key LIMIT $4";
/// The rows of a window, as [`weighed`] asks for them.
pub(super) const WINDOW: &str =
    "WHERE r.kind = $1 AND r.resource_key > $2 AND r.resource_key < $3 ORDER BY r.resource_key LIMIT $4";
pub(super) const WINDOW_OF_CHILDREN: &str = "WHERE r.parent_key = $5 AND r.kind = $1 AND r.resource_key > $2 \
                                             AND r.resource_key < $3 ORDER BY r.resource_key LIMIT $4";
pub(super) const COUNT_CHILDREN: &str = "SELECT COUNT(*) FROM resources WHERE parent_key = $1 AND kind = $2";
pub(super) const SIZES: &str = "SELECT resource_key, CAST(octet_length(body) + COALESCE(octet_length(protected), 0) \
                                AS BIGINT) FROM resources WHERE resource_key > $1 ORDER BY resource_key LIMIT $2";
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

    /// The revisions of those of these keys that exist. No bodies are read, of which each may have 256 KiB.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn revisions_of(&self, keys: &[String]) -> Result<HashMap<String, i64>, StoreError> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).filter(|key| is_text(key)).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        in_time(async { revisions_of(&mut *self.readers.acquire().await?, &keys).await }).await
    }

    /// Up to `rows` resources ([`PAGE_ROWS`] and [`PAGE_BYTES`] at most) of a kind anywhere below `within` (a key; empty:
    /// everywhere), in the order of their keys, from behind the key `after` (empty: from the first). A page stays right
    /// while rows change: it goes on where the last one ended, not at a count.
    pub async fn page(&self, kind: &str, within: &str, after: &str, rows: u32) -> Result<Page<Stored>, StoreError> {
        self.read(self.window(kind, Below::Anywhere(within), Beside::Nothing, after, rows).await?).await
    }

    /// The same of those whose parent is `parent` itself: role assignments exactly at one scope.
    pub async fn children(&self, kind: &str, parent: &str, after: &str, rows: u32) -> Result<Page<Stored>, StoreError> {
        self.read(self.window(kind, Below::Parent(parent), Beside::Nothing, after, rows).await?).await
    }

    /// All of those, page by page, at most `most`: where all of them together decide about something.
    pub async fn all_children(&self, kind: &str, parent: &str, most: u32) -> Result<Vec<Stored>, StoreError> {
        self.all_of(kind, Below::Parent(parent), most).await
    }

    /// The same of what is anywhere below a key.
    pub async fn all_below(&self, kind: &str, within: &str, most: u32) -> Result<Vec<Stored>, StoreError> {
        self.all_of(kind, Below::Anywhere(within), most).await
    }

    async fn all_of(&self, kind: &str, below: Below<'_>, most: u32) -> Result<Vec<Stored>, StoreError> {
        let (mut all, mut after, mut left) = (Vec::new(), String::new(), most);
        loop {
            let page = self.read(self.window(kind, below, Beside::Nothing, &after, left).await?).await?;
            left = left.saturating_sub(u32::try_from(page.rows.len()).unwrap_or(u32::MAX));
            all.extend(page.rows);
            match page.next {
                Some(next) if left > 0 => after = next,
                _ => return Ok(all),
            }
        }
    }

    /// How many there are of those.
    pub async fn count_children(&self, kind: &str, parent: &str) -> Result<u64, StoreError> {
        if !is_text(kind) || !is_text(parent) {
            return Ok(0);
        }
        let row = sqlx::query(COUNT_CHILDREN).bind(parent).bind(kind).fetch_one(&self.readers).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }

    /// What [`Self::page`] and [`Self::children`] would read, and how much that is: sizes alone are read.
    pub async fn window(
        &self,
        kind: &str,
        below: Below<'_>,
        beside: Beside<'_>,
        after: &str,
        rows: u32,
    ) -> Result<Window, StoreError> {
        let (Below::Anywhere(scope) | Below::Parent(scope)) = below;
        let (from, to) = self::below(scope);
        let from = if after > from.as_str() { after.to_owned() } else { from };
        let parent = matches!(below, Below::Parent(_)).then(|| scope.to_owned());
        let mut window =
            Window { kind: kind.to_owned(), parent, upto: from.clone(), from, rows: 0, bytes: 0, next: None };
        let child = if let Beside::Child(child) = beside { child } else { "" };
        if ![kind, scope, after, child].into_iter().all(is_text) {
            return Ok(window);
        }
        let statement = weighed(beside, if window.parent.is_some() { WINDOW_OF_CHILDREN } else { WINDOW });
        let most = i64::from(rows.min(PAGE_ROWS));
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(kind).bind(&window.from).bind(&to).bind(most);
        let query = match (&window.parent, beside) {
            (Some(parent), _) => query.bind(parent),
            (None, Beside::Child(child)) => query.bind(child),
            (None, _) => query,
        };
        let sizes = query.fetch_all(&self.readers).await?;
        for row in &sizes {
            let bytes = row.try_get::<i64, _>(1)?.unsigned_abs();
            if window.rows > 0 && window.bytes + bytes > PAGE_BYTES {
                break;
            }
            window.upto = row.try_get(0)?;
            window.rows += 1;
            window.bytes += bytes;
        }
        let is_full = i64::try_from(sizes.len()).is_ok_and(|found| found == most || found > window.rows);
        window.next = Some(window.upto.clone()).filter(|_| is_full && window.rows > 0);
        Ok(window)
    }

    /// The keys of the next resources behind a key, up to [`SIZES_AT_ONCE`], with the bytes of body and protected settings.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn sizes(&self, after: &str) -> Result<Vec<(String, u32)>, StoreError> {
        let query = sqlx::query(SIZES).bind(after).bind(i64::try_from(SIZES_AT_ONCE).unwrap_or(i64::MAX));
        let rows = query.fetch_all(&self.readers).await?;
        let size = |row: &AnyRow| Ok((row.try_get(0)?, u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX)));
        rows.iter().map(size).collect()
    }

    /// Reads a window.
    pub async fn read(&self, window: Window) -> Result<Page<Stored>, StoreError> {
        let rows = self.rows_of(select(if window.parent.is_some() { CHILDREN } else { PAGE }), &window).await?;
        Ok(window.page(each(&rows, stored).await?, |stored| &stored.key))
    }

    /// The rows of a window, by a statement that takes kind, both ends of the keys, their number, and the parent if the
    /// window has one.
    pub(super) async fn rows_of(
        &self,
        statement: impl sqlx::SqlSafeStr,
        window: &Window,
    ) -> Result<Vec<AnyRow>, StoreError> {
        if window.rows == 0 {
            return Ok(Vec::new());
        }
        let query = sqlx::query(statement).bind(&window.kind).bind(&window.from).bind(&window.upto).bind(window.rows);
        let query = window.parent.iter().fold(query, |query, parent| query.bind(parent));
        Ok(query.fetch_all(&self.readers).await?)
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
    of_keys(COLUMNS, keys)
}

/// The same that reads revisions alone.
pub(super) fn revision_of_each(keys: usize) -> String {
    of_keys("resource_key, revision", keys)
}

fn of_keys(columns: &str, keys: usize) -> String {
    let places = (1..=keys).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM resources WHERE resource_key IN ({places})")
}

/// The statement that reads keys and sizes: a database knows the size of a value without reading it.
pub(super) fn weighed(beside: Beside<'_>, rest: &str) -> String {
    const OWN: &str = "octet_length(r.body) + COALESCE(octet_length(r.protected), 0)";
    let (more, joined) = match beside {
        Beside::Nothing => ("", ""),
        Beside::Told => (
            " + COALESCE(octet_length(a.facts), 0) + COALESCE(octet_length(s.status), 0) + COALESCE(p.bytes, 0)",
            " LEFT JOIN agents a ON a.resource_key = r.resource_key LEFT JOIN statuses s ON s.resource_key = \
             r.resource_key LEFT JOIN parts_told p ON p.resource_key = r.resource_key",
        ),
        Beside::Child(_) => (
            " + COALESCE(octet_length(c.body), 0) + COALESCE(octet_length(s.status), 0)",
            " LEFT JOIN resources c ON c.resource_key = r.resource_key || $5 LEFT JOIN statuses s ON s.resource_key = \
             c.resource_key",
        ),
    };
    format!("SELECT r.resource_key, CAST({OWN}{more} AS BIGINT) FROM resources r{joined} {rest}")
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

/// The revisions of those of these keys that exist, as a write sees them.
pub(super) async fn revisions_of(
    connection: &mut AnyConnection,
    keys: &[&str],
) -> Result<HashMap<String, i64>, StoreError> {
    let mut all = HashMap::new();
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let query = sqlx::query(sqlx::AssertSqlSafe(revision_of_each(keys.len())));
        let query = keys.iter().fold(query, |query, key| query.bind(*key));
        for row in query.fetch_all(&mut *connection).await? {
            all.insert(row.try_get(0)?, row.try_get(1)?);
        }
    }
    Ok(all)
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
    here(length(row) > AT_ONCE_BYTES, || read(row)).await?.map(Some)
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
        all.extend(here(is_long, read).await??);
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
    use crate::store::{
        batch::Expect,
        changes::{Change, Changes},
    };

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
        let rows = async |after: &str, rows| {
            let window = store.window("k", Below::Anywhere(""), Beside::Nothing, after, rows).await.unwrap();
            store.rows_of(select(PAGE), &window).await.unwrap()
        };
        assert_eq!(reads_while_others_run(rows("", 1).await).await.unwrap().unwrap(), 1, "one long row");
        assert_eq!(reads_while_others_run(rows("", 2).await).await.unwrap().unwrap(), 2, "a long one on a page");
        let others = rows("/subscriptions/a", 9).await;
        assert_eq!(reads_while_others_run(others).await.unwrap().unwrap(), 3, "short ones that are long together");
    }

    /// A page had up to 1,000 rows of 256 KiB. It goes on where it ended, whatever its bounds were.
    #[tokio::test]
    async fn pages_and_changes_are_bounded_in_bytes_and_miss_nothing() {
        const MANY: usize = 50;
        const LARGE: usize = 200_000;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
        let of = |key: String, parent: &str, length: usize| Stored {
            id: key.clone(),
            key,
            kind: if parent.is_empty() { "g" } else { "k" }.to_owned(),
            parent: parent.to_owned(),
            revision: 0,
            body: json!({"text": "x".repeat(length)}),
            protected: None,
        };
        let key = |n: usize| format!("/g/c{n:02}");
        store.put(&of("/g".to_owned(), "", 1), Expect::Absent).await.unwrap().unwrap();
        for n in 0..MANY {
            // One alone has more than a page.
            let length = if n == 7 { 2_000_000 } else { n % 2 * LARGE };
            store.put(&of(key(n), "/g", length), Expect::Absent).await.unwrap().unwrap();
        }
        let bytes = |rows: &[Stored]| rows.iter().map(|one| one.body.to_string().len() as u64).sum::<u64>();
        for (rows, below) in
            [1, 3, 7, 1000].into_iter().flat_map(|n| [(n, Below::Parent("/g")), (n, Below::Anywhere(""))])
        {
            let (mut all, mut after) = (Vec::new(), String::new());
            loop {
                let window = store.window("k", below, Beside::Told, &after, rows).await.unwrap();
                let weighed = window.bytes;
                let page = store.read(window).await.unwrap();
                assert!(page.len() <= rows as usize && bytes(&page) == weighed);
                assert!(weighed <= PAGE_BYTES || page.len() == 1, "{weighed} bytes");
                all.extend(page.rows.into_iter().map(|one| one.key));
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(all, (0..MANY).map(key).collect::<Vec<_>>(), "{rows} rows");
        }
        assert_eq!(store.all_children("k", "/g", 100).await.unwrap().len(), MANY);
        assert_eq!(store.all_below("k", "/g", 9).await.unwrap().len(), 9);
        assert_eq!(store.count_children("k", "/g").await.unwrap(), MANY as u64);
        // What comes in between is there, and pushes another one to the next page.
        let window = store.window("k", Below::Anywhere(""), Beside::Nothing, "", 4).await.unwrap();
        store.put(&of("/g/c00a".to_owned(), "/g", 1), Expect::Absent).await.unwrap().unwrap();
        let page = store.read(window).await.unwrap();
        assert_eq!((page.len(), page.next.as_deref()), (4, Some("/g/c02")));
        let (mut since, mut seen) = (0, 0);
        loop {
            let Changes::Since(changes) = store.changes(since).await.unwrap() else { panic!("nothing is forgotten") };
            let Some(last) = changes.last() else { break };
            since = last.revision();
            seen += changes.len();
            let puts = changes.into_iter().filter_map(|change| match change {
                Change::Put(stored) => Some(stored),
                Change::Deleted { .. } => None,
            });
            assert!(bytes(&puts.collect::<Vec<_>>()) <= 4 * 1024 * 1024);
        }
        assert_eq!(seen, MANY + 2);
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
