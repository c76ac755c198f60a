//! What is new since a revision: how those who keep a snapshot follow the store.
//!
//! A follower loads everything ([`Store::revision`] first, then [`Store::page`] of each kind), then asks
//! [`Store::changes`] from that revision on: what it loaded may already be newer, and is then told again, never less.

use sqlx::{Row, any::AnyRow};
use types::api::{ResourceId, id::fold};

use super::{
    Backend, Store, StoreError, Together,
    pool::in_time,
    resources::{Stored, below, each, select, stored},
};

/// Changes that one question brings at most, of resources and as many of deletions; more only where one revision alone
/// has more, for a revision is told whole.
pub const CHANGES_AT_ONCE: u32 = 1000;
/// Bytes of resources that one question brings at most, but for a revision that alone has more.
const CHANGES_BYTES: i64 = 4 * 1024 * 1024;

/// The answer to what is new.
#[derive(Debug, Clone, PartialEq)]
pub enum Changes {
    /// These, oldest first, a deletion before what was put under the same revision. Ask again from the last one's
    /// revision until there are none. A resource that was changed twice is there once.
    Since(Vec<Change>),
    /// Nobody knows any more what was deleted since then ([`Store::forget_tombstones`]), or the revision is from the
    /// future of a database that was restored: everything must be loaded anew.
    TooOld,
}

/// Something that is new since a revision.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Made or changed.
    Put(Stored),
    /// The resource was deleted.
    Deleted {
        /// Key of the resource: its id in lower case.
        key: String,
        /// Full type of the resource, in lower case.
        kind: String,
        /// Revision under which it was deleted.
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

    /// The key of what has changed.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(stored) => &stored.key,
            Self::Deleted { key, .. } => key,
        }
    }
}

pub(super) const NTH_DELETED: &str =
    "SELECT revision FROM tombstones WHERE revision > $1 ORDER BY revision LIMIT 1 OFFSET $2";
pub(super) const PUT_SIZES: &str = "SELECT revision, CAST(octet_length(body) AS BIGINT) FROM resources \
                                    WHERE revision > $1 ORDER BY revision LIMIT $2";
pub(super) const DELETED: &str = "SELECT revision, resource_key, kind FROM tombstones \
                                  WHERE revision > $1 AND revision <= $2 ORDER BY revision, resource_key";
pub(super) const PUT: &str = "WHERE revision > $1 AND revision <= $2 ORDER BY revision, resource_key";

/// A page of what has changed at one parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// What was read is of this revision; ask again from it on.
    pub position: i64,
    /// Whether it is all that is there, from the beginning, and not what has changed.
    pub whole: bool,
    /// Whether there is more now.
    pub more: bool,
    /// Oldest first, a deletion before what was put under the same revision.
    pub changes: Vec<Change>,
}

pub(super) const CHILD_SIZES: &str = "SELECT revision, CAST(octet_length(body) AS BIGINT) FROM resources \
                                      WHERE parent_key = $1 AND kind = $2 AND revision > $3 ORDER BY revision LIMIT $4";
pub(super) const CHILDREN_PUT: &str =
    "WHERE parent_key = $1 AND kind = $2 AND revision > $3 AND revision <= $4 ORDER BY revision";
/// What was deleted of a kind between two revisions, below a parent (its key with `/`, and the first key behind all of its
/// own). Public for the test of its plan, as the next two are.
pub const CHILDREN_DELETED: &str = "SELECT revision, resource_key, kind FROM tombstones WHERE revision > $1 \
                                           AND revision <= $2 AND kind = $3 AND resource_key > $4 \
                                           AND resource_key < $5 ORDER BY revision, resource_key";
/// For who begins: the newest deletions that are remembered, of what is not there again.
pub const CHILDREN_GONE: &str = "SELECT revision, resource_key, kind FROM tombstones t WHERE revision > $1 \
                                        AND revision <= $2 AND kind = $3 AND resource_key > $4 AND resource_key < $5 \
                                        AND NOT EXISTS (SELECT 1 FROM resources r WHERE r.resource_key = t.resource_key) \
                                        ORDER BY revision DESC, resource_key DESC LIMIT 1000";
/// When the parent itself was deleted last: what went with it then was of another one of its name.
pub const PARENT_DELETED: &str = "SELECT revision FROM tombstones WHERE revision > $1 AND resource_key = $2 \
                                  AND kind = $3 ORDER BY revision DESC LIMIT 1";

/// Up to which revision there is room for what has changed, by the revisions and sizes of the next `rows` resources; none:
/// these are all.
fn room(sizes: &[AnyRow], rows: u32) -> Result<Option<i64>, StoreError> {
    let (mut bytes, mut last) = (0i64, None);
    for row in sizes {
        let (revision, size): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        bytes = bytes.saturating_add(size);
        if last.is_some() && bytes > CHANGES_BYTES {
            return Ok(last);
        }
        last = Some(revision);
    }
    Ok(last.filter(|_| sizes.len() >= rows as usize))
}

/// Rows of deletions and of puts as changes, oldest first.
async fn in_order(deleted: &[AnyRow], put: &[AnyRow]) -> Result<Vec<Change>, StoreError> {
    let mut changes = Vec::with_capacity(deleted.len() + put.len());
    for row in deleted {
        let (revision, key, kind) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        changes.push(Change::Deleted { key, kind, revision });
    }
    changes.extend(each(put, stored).await?.into_iter().map(Change::Put));
    // Stable: deletions of a revision stay before its puts.
    changes.sort_by_key(Change::revision);
    Ok(changes)
}

impl Store {
    /// What of a kind has changed at one parent since a revision, up to `rows` puts and all deletions between them, more
    /// only where one revision alone has more; everything where `since` is none, or nobody knows any more. What was deleted
    /// together with the parent is of another parent than the one that is there now, and on no page.
    pub async fn changes_at(
        &self,
        kind: &str,
        parent: &str,
        since: Option<i64>,
        rows: u32,
    ) -> Result<Page, StoreError> {
        in_time(self.view_of_changes_at(kind, parent, since, rows)).await
    }

    async fn view_of_changes_at(
        &self,
        kind: &str,
        parent: &str,
        since: Option<i64>,
        rows: u32,
    ) -> Result<Page, StoreError> {
        let mut view = Together::begin(&self.readers, self.view()).await?;
        let row = sqlx::query("SELECT revision, forgotten FROM revisions").fetch_one(view.connection()).await?;
        let (newest, forgotten): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let known = since.filter(|since| (forgotten..=newest).contains(since));
        let since = known.unwrap_or_default();
        let rows = rows.max(1);
        let query = sqlx::query(CHILD_SIZES).bind(parent).bind(kind).bind(since).bind(i64::from(rows));
        let upto = room(&query.fetch_all(view.connection()).await?, rows)?.unwrap_or(newest);
        let query = sqlx::query(select(CHILDREN_PUT)).bind(parent).bind(kind).bind(since).bind(upto);
        let put = query.fetch_all(view.connection()).await?;
        let (from, to) = below(parent);
        let kind_of_parent = ResourceId::parse(parent).map(|id| fold(id.kind())).unwrap_or_default();
        let query = sqlx::query(PARENT_DELETED).bind(since).bind(parent).bind(&kind_of_parent);
        let begin = match query.fetch_optional(view.connection()).await? {
            Some(row) => row.try_get(0)?,
            None => since,
        };
        let deletions = if known.is_some() { CHILDREN_DELETED } else { CHILDREN_GONE };
        let query = sqlx::query(deletions).bind(begin).bind(upto).bind(kind).bind(from).bind(to);
        let deleted = query.fetch_all(view.connection()).await?;
        view.roll_back().await?;
        let changes = in_order(&deleted, &put).await?;
        Ok(Page { position: upto, whole: known.is_none(), more: upto < newest, changes })
    }

    /// One view of all tables for several questions.
    fn view(&self) -> &'static str {
        match self.backend {
            Backend::Sqlite => "BEGIN",
            Backend::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        }
    }

    /// What is new since a revision.
    pub async fn changes(&self, since: i64) -> Result<Changes, StoreError> {
        // Most often there is nothing new, for which one question is enough.
        let row = sqlx::query("SELECT revision, forgotten FROM revisions").fetch_one(&self.readers).await?;
        let (newest, forgotten): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if since == newest && since >= forgotten {
            return Ok(Changes::Since(Vec::new()));
        }
        in_time(self.view_of_changes(since)).await
    }

    async fn view_of_changes(&self, since: i64) -> Result<Changes, StoreError> {
        // One view of all tables: a deletion between two questions would else be missed.
        let mut view = Together::begin(&self.readers, self.view()).await?;
        let row = sqlx::query("SELECT revision, forgotten FROM revisions").fetch_one(view.connection()).await?;
        let (newest, forgotten): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if since < forgotten || since > newest {
            view.roll_back().await?;
            return Ok(Changes::TooOld);
        }
        let mut upto = newest;
        let nth = i64::from(CHANGES_AT_ONCE) - 1;
        if let Some(row) = sqlx::query(NTH_DELETED).bind(since).bind(nth).fetch_optional(view.connection()).await? {
            upto = upto.min(row.try_get(0)?);
        }
        let query = sqlx::query(PUT_SIZES).bind(since).bind(i64::from(CHANGES_AT_ONCE));
        if let Some(put) = room(&query.fetch_all(view.connection()).await?, CHANGES_AT_ONCE)? {
            upto = upto.min(put);
        }
        let deleted = sqlx::query(DELETED).bind(since).bind(upto).fetch_all(view.connection()).await?;
        let put = sqlx::query(select(PUT)).bind(since).bind(upto).fetch_all(view.connection()).await?;
        view.roll_back().await?;
        Ok(Changes::Since(in_order(&deleted, &put).await?))
    }

    /// Forgets deletions older than a revision; who knows nothing newer than that gets [`Changes::TooOld`]. How many.
    pub async fn forget_tombstones(&self, before_revision: i64) -> Result<u64, StoreError> {
        repeated!(self.try_to_forget_tombstones(before_revision))
    }

    async fn try_to_forget_tombstones(&self, before_revision: i64) -> Result<u64, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        // Not further than what has happened, or nobody could follow any more.
        let sql = "UPDATE revisions SET forgotten = CASE WHEN $1 <= revision THEN $2 ELSE revision END \
                   WHERE forgotten < $3";
        sqlx::query(sql)
            .bind(before_revision)
            .bind(before_revision.saturating_sub(1))
            .bind(before_revision.saturating_sub(1))
            .execute(together.connection())
            .await?;
        let sql = "DELETE FROM tombstones WHERE revision < $1";
        let gone = sqlx::query(sql).bind(before_revision).execute(together.connection()).await?.rows_affected();
        together.commit().await?;
        Ok(gone)
    }
}
