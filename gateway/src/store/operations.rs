//! Long-running operations are rows: whoever polls gets an answer also after a restart, and what was under way goes
//! on. They begin and end in a [`super::batch`].

use serde_json::Value;
use sqlx::{Row, any::AnyRow};

use super::{Store, StoreError, is_text, resources::PAGE_ROWS};

/// How far an operation is (ARM's words).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Under way.
    InProgress,
    /// Done.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended because something newer took its place.
    Canceled,
}

impl Status {
    /// ARM's word.
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
    /// What is to be done, so that a restart can go on with it.
    pub work: Value,
    /// The error of a failed one, as ARM's error body.
    pub error: Option<Value>,
}

pub(super) const ONE: &str = "SELECT operation_id, resource_key, status, begun_ms, ended_ms, work, error \
                              FROM operations WHERE operation_id = $1";
pub(super) const BEHIND: &str = "SELECT operation_id, resource_key, status, begun_ms, ended_ms, work, error \
                                 FROM operations WHERE status = 'InProgress' \
                                 AND (begun_ms > $2 OR (begun_ms = $2 AND operation_id > $3)) \
                                 ORDER BY begun_ms, operation_id LIMIT $1";
pub(super) const FORGET: &str = "DELETE FROM operations WHERE ended_ms < $1";

impl Store {
    /// The operation of a name.
    pub async fn operation(&self, id: &str) -> Result<Option<Operation>, StoreError> {
        if !is_text(id) {
            return Ok(None);
        }
        let row = sqlx::query(ONE).bind(id).fetch_optional(&self.readers).await?;
        row.as_ref().map(operation).transpose()
    }

    /// Up to `rows` operations ([`super::resources::PAGE_ROWS`] at most) under way, oldest first: what a start goes on with.
    pub async fn operations_under_way(&self, rows: u32) -> Result<Vec<Operation>, StoreError> {
        self.operations_behind((i64::MIN, ""), rows).await
    }

    /// The same behind one of them.
    pub async fn operations_behind(
        &self,
        (begun_ms, id): (i64, &str),
        rows: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        let query = sqlx::query(BEHIND).bind(i64::from(rows.min(PAGE_ROWS))).bind(begun_ms).bind(id);
        query.fetch_all(&self.readers).await?.iter().map(operation).collect()
    }

    /// Forgets operations that ended before an instant. How many.
    pub async fn forget_operations(&self, ended_before_ms: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query(FORGET).bind(ended_before_ms).execute(&self.writers).await?.rows_affected())
    }
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
        ended_ms: row.try_get("ended_ms")?,
        work: serde_json::from_str(&work).map_err(|_| broken("the work"))?,
        error: error.map(|error| serde_json::from_str(&error)).transpose().map_err(|_| broken("the error"))?,
        id,
    })
}
