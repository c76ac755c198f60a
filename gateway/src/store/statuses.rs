//! What clusters tell of what is wanted in them (docs/features.md E1, E9, D4). One row for each resource of which
//! something was told, deleted with it in the same batch. None of this is a change of a resource: it takes no revision,
//! and nobody's snapshot is made anew for it.

use std::collections::HashMap;

use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{
    Store, StoreError, Together, is_text,
    resources::{below, revision_of},
};

/// Keys that one statement names.
const KEYS_AT_ONCE: usize = 400;

/// What was told last of a resource.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportedStatus {
    /// About which generation of what is wanted.
    pub generation: i64,
    /// When: milliseconds since 1970.
    pub told_ms: i64,
    /// The reported status.
    pub status: Value,
}

pub(super) const ONE: &str = "SELECT resource_key, generation, told_ms, status FROM statuses WHERE resource_key = $1";
pub(super) const EVENTS: &str = "SELECT events FROM statuses WHERE resource_key = $1";
pub(super) const ENDED: &str =
    "SELECT resource_key FROM protected_until WHERE until_ms <= $1 ORDER BY until_ms LIMIT $2";

impl Store {
    /// What was told of a resource.
    pub async fn told(&self, key: &str) -> Result<Option<ReportedStatus>, StoreError> {
        if !is_text(key) {
            return Ok(None);
        }
        let row = sqlx::query(ONE).bind(key).fetch_optional(&self.readers).await?;
        row.as_ref().map(|row| told(row).map(|(_, told)| told)).transpose()
    }

    /// What was told of these resources, by their keys.
    pub async fn told_of(&self, keys: &[String]) -> Result<HashMap<String, ReportedStatus>, StoreError> {
        let mut all = HashMap::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let places = (1..=keys.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
            let sql = format!(
                "SELECT resource_key, generation, told_ms, status FROM statuses WHERE resource_key IN ({places})"
            );
            let query = keys.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)), |query, key| query.bind(key));
            for row in query.fetch_all(&self.readers).await? {
                all.extend([told(&row)?]);
            }
            tokio::task::yield_now().await;
        }
        Ok(all)
    }

    /// The events that were told of a resource, the oldest first.
    pub async fn events_told(&self, key: &str) -> Result<Vec<Value>, StoreError> {
        if !is_text(key) {
            return Ok(Vec::new());
        }
        let row = sqlx::query(EVENTS).bind(key).fetch_optional(&self.readers).await?;
        row.map_or(Ok(Vec::new()), |row| events(key, &row.try_get::<String, _>(0)?))
    }

    /// Keeps what is told of a resource, and its events as `with` makes them of those that are kept. Of an older
    /// generation than what was told already only the events are kept. Whether there is such a resource.
    pub async fn keep_told(
        &self,
        key: &str,
        new: &ReportedStatus,
        with: impl Fn(Vec<Value>) -> Vec<Value>,
    ) -> Result<bool, StoreError> {
        let text = new.status.to_string();
        if !is_text(key) || !is_text(&text) {
            return Ok(false);
        }
        repeated!(self.try_to_keep_told(key, new, &text, &with))
    }

    async fn try_to_keep_told(
        &self,
        key: &str,
        new: &ReportedStatus,
        text: &str,
        with: &impl Fn(Vec<Value>) -> Vec<Value>,
    ) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        if revision_of(together.connection(), key).await?.is_none() {
            together.roll_back().await?;
            return Ok(false);
        }
        let sql = "SELECT resource_key, generation, told_ms, status, events FROM statuses WHERE resource_key = $1";
        let row = sqlx::query(sql).bind(key).fetch_optional(together.connection()).await?;
        let old = row.as_ref().map(told).transpose()?.map(|(_, told)| told);
        let kept = row.map_or(Ok(Vec::new()), |row| events(key, &row.try_get::<String, _>("events")?))?;
        let kept = Value::Array(with(kept)).to_string();
        let newer = old.as_ref().is_none_or(|old| old.generation <= new.generation);
        let sql = if newer {
            "INSERT INTO statuses (resource_key, generation, told_ms, status, events) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (resource_key) DO UPDATE SET generation = excluded.generation, told_ms = excluded.told_ms, \
             status = excluded.status, events = excluded.events"
        } else {
            "INSERT INTO statuses (resource_key, generation, told_ms, status, events) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (resource_key) DO UPDATE SET events = excluded.events"
        };
        let query = sqlx::query(sql).bind(key).bind(new.generation).bind(new.told_ms).bind(text).bind(&kept);
        query.execute(together.connection()).await?;
        together.commit().await?;
        Ok(true)
    }

    /// Keys of resources whose protected settings were to be kept until an instant that has passed, at most `most`.
    pub async fn protected_too_long(&self, now_ms: i64, most: u32) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query(ENDED).bind(now_ms).bind(i64::from(most)).fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}

/// Notes until when the protected settings of a resource are kept; `None`: it has none.
pub(super) async fn keep_until(
    connection: &mut AnyConnection,
    key: &str,
    until: Option<i64>,
) -> Result<(), StoreError> {
    match until {
        Some(until) => {
            let sql = "INSERT INTO protected_until (resource_key, until_ms) VALUES ($1, $2) \
                       ON CONFLICT (resource_key) DO UPDATE SET until_ms = excluded.until_ms";
            sqlx::query(sql).bind(key).bind(until).execute(connection).await?;
        }
        None => {
            sqlx::query("DELETE FROM protected_until WHERE resource_key = $1").bind(key).execute(connection).await?;
        }
    }
    Ok(())
}

/// Deletes the rows of a key and of all below it.
pub(super) async fn forget(connection: &mut AnyConnection, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    for sql in [
        "DELETE FROM statuses WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
        "DELETE FROM protected_until WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
    ] {
        sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    }
    Ok(())
}

fn told(row: &AnyRow) -> Result<(String, ReportedStatus), StoreError> {
    let (key, status): (String, String) = (row.try_get("resource_key")?, row.try_get("status")?);
    let status = self::status(&key, &status)?;
    Ok((key, ReportedStatus { generation: row.try_get("generation")?, told_ms: row.try_get("told_ms")?, status }))
}

/// The reported status of a resource, as it is kept.
pub(super) fn status(key: &str, text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|_| broken("what was told", key))
}

fn events(key: &str, text: &str) -> Result<Vec<Value>, StoreError> {
    serde_json::from_str(text).map_err(|_| broken("the events", key))
}

fn broken(what: &str, key: &str) -> StoreError {
    StoreError::Row { table: "statuses", reason: format!("{what} of {key}") }
}
