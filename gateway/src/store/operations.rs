//! Long-running operations are rows: whoever polls gets an answer also after a restart, and what was under way goes
//! on. They begin and end in a [`super::batch`]; in between one process at a time has a **claim** to each, which ends
//! by itself, so that another goes on where that process was killed.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{
    Store, StoreError,
    events::{group_of, subscription_of},
    is_text,
    resources::{PAGE_ROWS, below},
};

/// How far an operation is (ARM's words).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It has begun and not ended; between two tries as well.
    InProgress,
    /// It ended without an error.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended because something newer took its place.
    Canceled,
}

impl Status {
    /// The status in ARM's spelling, which the store keeps too.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "InProgress",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::InProgress, Self::Succeeded, Self::Failed, Self::Canceled]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// An operation as kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Its name, a random UUID.
    pub id: String,
    /// The key of the resource that it is about.
    pub resource: String,
    /// How far it is.
    pub status: Status,
    /// Milliseconds since 1970.
    pub begun_ms: i64,
    /// The same, once it has ended.
    pub ended_ms: Option<i64>,
    /// What is to be done, so that a restart can go on with it. The word at `kind` says who knows how.
    pub work: Value,
    /// When it has failed if it has not ended by then; none: it waits for nobody.
    pub due_ms: Option<i64>,
    /// The error of a failed one, as ARM's error body.
    pub error: Option<Value>,
}

const COLUMNS: &str = "operation_id, resource_key, status, begun_ms, ended_ms, work, error, due_ms";
pub(super) const ONE: &str = "FROM operations WHERE operation_id = $1";
pub(super) const WAITING: &str = "FROM operations WHERE status = 'InProgress' AND work_kind = $1 AND next_ms <= $2 \
                                  ORDER BY next_ms, operation_id LIMIT $3";
/// When the first of a kind that is under way is due.
pub(super) const NEXT: &str =
    "SELECT min(next_ms) AS next_ms FROM operations WHERE status = 'InProgress' AND work_kind = ";
pub(super) const FORGET: &str = "DELETE FROM operations WHERE ended_ms < $1";
pub(super) const WAKE: &str = "UPDATE operations SET woken = 1, next_ms = CASE WHEN claimed_by IS NULL AND next_ms > $1 \
                               THEN $2 ELSE next_ms END WHERE status = 'InProgress' AND (resource_key = $3 \
                               OR (resource_key > $4 AND resource_key < $5))";

/// How many operations began at a place after an hour and before another one, and the first hour with some of them. What
/// a clock that was ahead has written does not count.
pub(super) const BEGUN: &str = "SELECT CAST(COALESCE(SUM(begun), 0) AS BIGINT), MIN(since_hour) FROM operations_begun \
                                WHERE place_key = $1 AND since_hour > $2 AND since_hour < $3";
pub(super) const FORGET_BEGUN: &str = "DELETE FROM operations_begun WHERE since_hour < $1";
/// What a clock that was ahead has written.
pub(super) const FORGET_BEGUN_LATER: &str = "DELETE FROM operations_begun WHERE since_hour > $1";
const HOUR_MS: i64 = 3600 * 1000;
/// Hours, the one that has just begun included, within which the operations that begin at a place are bounded.
const WITHIN_HOURS: i64 = 24;

/// A bound on the operations that begin at a place within 24 hours. It counts beginnings and not rows: that takes no
/// look at the rows, and as each operation is forgotten a day after its end, it bounds them too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginsAtMost {
    /// Key of a resource group or a subscription.
    pub place: String,
    /// How many operations may begin there within 24 hours.
    pub count: u64,
}

/// A statement that reads operations.
pub(super) fn selected(rest: &str) -> String {
    format!("SELECT {COLUMNS}, next_ms, tries {rest}")
}

/// The statement that asks when the first of several kinds is due.
pub(super) fn next(kinds: usize) -> String {
    let each: Vec<String> = (1..=kinds).map(|place| format!("{NEXT}${place}")).collect();
    format!("SELECT min(next_ms) FROM ({}) AS each_kind", each.join(" UNION ALL "))
}

/// An operation under way that nobody is at.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The operation, as the store has it.
    pub operation: Operation,
    /// How often it was tried since something last came of it.
    pub tries: u32,
    next_ms: i64,
}

/// The right of one process to go on with an operation, until an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub(super) id: String,
    pub(super) by: String,
}

impl Store {
    /// The operation of a name.
    pub async fn operation(&self, id: &str) -> Result<Option<Operation>, StoreError> {
        if !is_text(id) {
            return Ok(None);
        }
        let sql = sqlx::AssertSqlSafe(selected(ONE));
        let row = sqlx::query(sql).bind(id).fetch_optional(&self.readers).await?;
        row.as_ref().map(operation).transpose()
    }

    /// Up to `rows` operations ([`PAGE_ROWS`] at most) under way whose work is of a kind, which nobody has a claim to
    /// and which do not rest at an instant. Those that have waited longest come first.
    pub async fn operations_waiting(&self, kind: &str, now_ms: i64, rows: u32) -> Result<Vec<Waiting>, StoreError> {
        let sql = sqlx::AssertSqlSafe(selected(WAITING));
        let query = sqlx::query(sql).bind(kind).bind(now_ms).bind(i64::from(rows.min(PAGE_ROWS)));
        let waiting = |row: &AnyRow| {
            let tries: i64 = row.try_get("tries")?;
            let tries = u32::try_from(tries).unwrap_or(u32::MAX);
            Ok(Waiting { operation: operation(row)?, tries, next_ms: row.try_get("next_ms")? })
        };
        query.fetch_all(&self.readers).await?.iter().map(waiting).collect()
    }

    /// When the first operation under way of these kinds is to be looked at, milliseconds since 1970; that of a claim is
    /// its end. `None` where none is under way. One statement, so that who has nothing to do asks little.
    pub async fn next_operation(&self, kinds: &[&str]) -> Result<Option<i64>, StoreError> {
        if kinds.is_empty() {
            return Ok(None);
        }
        let query = sqlx::query(sqlx::AssertSqlSafe(next(kinds.len())));
        let query = kinds.iter().fold(query, |query, kind| query.bind((*kind).to_owned()));
        Ok(query.fetch_one(&self.readers).await?.try_get(0)?)
    }

    /// Claims an operation for a process of this name until an instant; `None` if it is no more as it was read: another
    /// process was faster, or it has ended.
    pub async fn claim_operation(
        &self,
        waiting: &Waiting,
        by: &str,
        until_ms: i64,
    ) -> Result<Option<Claim>, StoreError> {
        let sql = "UPDATE operations SET next_ms = $1, claimed_by = $2, tries = tries + 1, woken = 0 \
                   WHERE operation_id = $3 AND status = 'InProgress' AND next_ms = $4";
        let id = &waiting.operation.id;
        let query = sqlx::query(sql).bind(until_ms).bind(by).bind(id).bind(waiting.next_ms);
        let claimed = query.execute(&self.writers).await?.rows_affected() == 1;
        Ok(claimed.then(|| Claim { id: id.clone(), by: by.to_owned() }))
    }

    /// Gives a claim back: nobody looks at the operation again before an instant, or `now_ms` if it was woken meanwhile,
    /// so that it comes after those that have waited longer. With `came` something came of the work, and what is tried
    /// from then on is tried for the first time. Whether the claim still was one.
    pub async fn release_operation(
        &self,
        claim: &Claim,
        now_ms: i64,
        next_ms: i64,
        came: bool,
    ) -> Result<bool, StoreError> {
        let sql = "UPDATE operations SET next_ms = CASE WHEN woken = 1 THEN $1 ELSE $2 END, claimed_by = NULL, \
                   tries = CASE WHEN $3 = 1 THEN 0 ELSE tries END \
                   WHERE operation_id = $4 AND status = 'InProgress' AND claimed_by = $5";
        let query = sqlx::query(sql).bind(next_ms.min(now_ms)).bind(next_ms);
        let query = query.bind(i64::from(came)).bind(&claim.id).bind(&claim.by);
        Ok(query.execute(&self.writers).await?.rows_affected() == 1)
    }

    /// Has operations looked at again at an instant that would be looked at later than `most_ms`: a clock was set back
    /// since; with `resting` also those that rest. How many.
    pub async fn wake_operations(&self, now_ms: i64, most_ms: i64, resting: bool) -> Result<u64, StoreError> {
        let sql = "UPDATE operations SET next_ms = $1, claimed_by = NULL WHERE status = 'InProgress' \
                   AND next_ms > $2 AND (next_ms > $3 OR (claimed_by IS NULL AND $4 = 1))";
        let query = sqlx::query(sql).bind(now_ms).bind(now_ms).bind(most_ms).bind(i64::from(resting));
        Ok(query.execute(&self.writers).await?.rows_affected())
    }

    /// Has operations about a resource, and about what is below it, looked at again at an instant; one that a process
    /// has, as soon as that gives its claim back. How many.
    pub async fn wake_operations_of(&self, resource: &str, now_ms: i64) -> Result<u64, StoreError> {
        let (from, to) = below(resource);
        let query = sqlx::query(WAKE).bind(now_ms).bind(now_ms).bind(resource).bind(from).bind(to);
        Ok(query.execute(&self.writers).await?.rows_affected())
    }

    /// Forgets operations that ended before an instant, and how many had begun a day and more before it. How many
    /// operations.
    pub async fn forget_operations(&self, ended_before_ms: i64) -> Result<u64, StoreError> {
        let hour = ended_before_ms.div_euclid(HOUR_MS);
        sqlx::query(FORGET_BEGUN).bind(hour).execute(&self.writers).await?;
        // Two hours beyond the day that is kept.
        sqlx::query(FORGET_BEGUN_LATER).bind(hour + WITHIN_HOURS + 2).execute(&self.writers).await?;
        Ok(sqlx::query(FORGET).bind(ended_before_ms).execute(&self.writers).await?.rows_affected())
    }
}

/// Counts operations that begin, at their resource groups and subscriptions.
pub(super) async fn count_begun(connection: &mut AnyConnection, begins: &[Operation]) -> Result<(), StoreError> {
    let mut begun: BTreeMap<(&str, i64), i64> = BTreeMap::new();
    for operation in begins {
        let (key, hour) = (&operation.resource, operation.begun_ms.div_euclid(HOUR_MS));
        let (group, subscription) = (group_of(key), subscription_of(key));
        *begun.entry((subscription, hour)).or_default() += 1;
        if group != subscription {
            *begun.entry((group, hour)).or_default() += 1;
        }
    }
    let sql = "INSERT INTO operations_begun (place_key, since_hour, begun) VALUES ($1, $2, $3) \
               ON CONFLICT (place_key, since_hour) DO UPDATE SET begun = operations_begun.begun + excluded.begun";
    for ((place, hour), count) in begun {
        sqlx::query(sql).bind(place).bind(hour).bind(count).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Where more have begun at a place within the last 24 hours than may: when there is room again, milliseconds since
/// 1970.
pub(super) async fn full_until(
    connection: &mut AnyConnection,
    bound: &BeginsAtMost,
    now_ms: i64,
) -> Result<Option<i64>, StoreError> {
    let hour = now_ms.div_euclid(HOUR_MS);
    // Clocks of replicas differ a little.
    let query = sqlx::query(BEGUN).bind(&bound.place).bind(hour - WITHIN_HOURS).bind(hour + 2);
    let row = query.fetch_one(connection).await?;
    let (begun, first): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let is_full = begun.unsigned_abs() > bound.count;
    Ok(is_full.then(|| (first.unwrap_or(hour) + WITHIN_HOURS) * HOUR_MS))
}

/// The word that says of what kind an operation's work is.
pub(super) fn kind_of(work: &Value) -> &str {
    work.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn operation(row: &AnyRow) -> Result<Operation, StoreError> {
    let id: String = row.try_get("operation_id")?;
    let broken = |what: &str| StoreError::Row { table: "operations", reason: format!("{what} of {id}") };
    let (status, work): (String, String) = (row.try_get("status")?, row.try_get("work")?);
    let error: Option<String> = row.try_get("error")?;
    Ok(Operation {
        status: Status::parse(&status).ok_or_else(|| broken("the status"))?,
        resource: row.try_get("resource_key")?,
        begun_ms: row.try_get("begun_ms")?,
        due_ms: row.try_get("due_ms")?,
        ended_ms: row.try_get("ended_ms")?,
        work: serde_json::from_str(&work).map_err(|_| broken("the work"))?,
        error: error.map(|error| serde_json::from_str(&error)).transpose().map_err(|_| broken("the error"))?,
        id,
    })
}
