//! What controllers in clusters logged of what is wanted there (docs/features.md D5): the newest lines of each resource.
//! A line is taken once, by its position among those of its source. Deleted with their resource in the same batch; none of
//! this takes a revision, so that nobody is woken by it.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{AnyConnection, Row};
use types::agent_api::{LOG_SOURCES, LogPosition, LogPositions};

use super::{
    Store, StoreError, Together, is_text,
    resources::{below, revision_of},
};

/// Rows that one statement writes.
const AT_ONCE: usize = 100;

/// A line that is to be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The key of the resource that it is about.
    pub key: String,
    /// Who logged it.
    pub source: String,
    /// Where it is among the lines of its source.
    pub position: LogPosition,
    /// What is shown of it.
    pub line: Value,
}

/// How many lines are kept.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Of one resource.
    pub of_resource: u32,
    /// Of all resources of a cluster.
    pub of_cluster: u32,
}

pub(super) const POSITIONS: &str = "SELECT last_number, positions FROM log_positions WHERE cluster_key = $1";
pub(super) const BEHIND: &str =
    "SELECT number, line FROM log_lines WHERE resource_key = $1 AND number > $2 ORDER BY number";
pub(super) const LAST_KEPT: &str =
    "SELECT number FROM log_lines WHERE resource_key = $1 ORDER BY number DESC LIMIT 1 OFFSET $2";
pub(super) const LAST_KEPT_OF_CLUSTER: &str =
    "SELECT number FROM log_lines WHERE cluster_key = $1 ORDER BY number DESC LIMIT 1 OFFSET $2";

impl Store {
    /// Keeps the lines of a cluster that were not taken before, of resources that are there; the oldest go where there are
    /// more than `room` says. Whether there is such a cluster.
    pub async fn keep_lines(&self, cluster: &str, lines: &[Line], room: Room) -> Result<bool, StoreError> {
        if !is_text(cluster) {
            return Ok(false);
        }
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        if revision_of(connection, cluster).await?.is_none() {
            together.roll_back().await?;
            return Ok(false);
        }
        // Until this ends nobody else keeps lines of this cluster.
        let sql = "INSERT INTO log_positions (cluster_key, last_number, positions) VALUES ($1, 0, '{}') \
                   ON CONFLICT (cluster_key) DO UPDATE SET last_number = log_positions.last_number";
        sqlx::query(sql).bind(cluster).execute(&mut *connection).await?;
        let (mut last, mut known) = positions(connection, cluster).await?;
        let mut there = BTreeSet::new();
        for key in lines.iter().map(|line| line.key.as_str()).collect::<BTreeSet<_>>() {
            if is_text(key) && revision_of(connection, key).await?.is_some() {
                there.insert(key);
            }
        }
        let mut new = Vec::new();
        for line in lines {
            if known.sources.get(&line.source).is_some_and(|taken| *taken >= line.position) {
                continue;
            }
            known.sources.insert(line.source.clone(), line.position);
            let text = line.line.to_string();
            if there.contains(line.key.as_str()) && is_text(&text) {
                last += 1;
                new.push((last, line.key.as_str(), text));
            }
        }
        write(connection, cluster, &new).await?;
        for key in new.iter().map(|(_, key, _)| *key).collect::<BTreeSet<_>>() {
            cut(connection, (LAST_KEPT, "resource_key"), key, room.of_resource).await?;
        }
        if !new.is_empty() {
            cut(connection, (LAST_KEPT_OF_CLUSTER, "cluster_key"), cluster, room.of_cluster).await?;
        }
        while known.sources.len() > LOG_SOURCES {
            let oldest = known.sources.iter().min_by_key(|(_, position)| **position).map(|(source, _)| source.clone());
            known.sources.remove(&oldest.unwrap_or_default());
        }
        let text = serde_json::to_string(&known).unwrap_or_default();
        let sql = "UPDATE log_positions SET last_number = $2, positions = $3 WHERE cluster_key = $1";
        sqlx::query(sql).bind(cluster).bind(last).bind(text).execute(&mut *connection).await?;
        together.commit().await?;
        Ok(true)
    }

    /// Up to where the lines of a cluster were taken.
    pub async fn log_positions(&self, cluster: &str) -> Result<LogPositions, StoreError> {
        Ok(positions(&mut *self.readers.acquire().await?, cluster).await?.1)
    }

    /// The lines of a resource behind a number, each with its number.
    pub async fn lines_of(&self, key: &str, after: i64) -> Result<Vec<(i64, Value)>, StoreError> {
        if !is_text(key) {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(BEHIND).bind(key).bind(after).fetch_all(&self.readers).await?;
        let read = |text: &str| serde_json::from_str(text).map_err(|_| broken(&format!("a line of {key}")));
        rows.iter().map(|row| Ok((row.try_get(0)?, read(&row.try_get::<String, _>(1)?)?))).collect()
    }
}

async fn positions(connection: &mut AnyConnection, cluster: &str) -> Result<(i64, LogPositions), StoreError> {
    if !is_text(cluster) {
        return Ok(Default::default());
    }
    let Some(row) = sqlx::query(POSITIONS).bind(cluster).fetch_optional(connection).await? else {
        return Ok(Default::default());
    };
    let text: String = row.try_get(1)?;
    let known = serde_json::from_str(&text).map_err(|_| broken(&format!("the positions of {cluster}")))?;
    Ok((row.try_get(0)?, known))
}

/// `new`: numbers, keys and texts.
async fn write(connection: &mut AnyConnection, cluster: &str, new: &[(i64, &str, String)]) -> Result<(), StoreError> {
    for new in new.chunks(AT_ONCE) {
        let row = |n: usize| format!("($1, ${}, ${}, ${})", 3 * n + 2, 3 * n + 3, 3 * n + 4);
        let rows = (0..new.len()).map(row).collect::<Vec<_>>().join(", ");
        let sql = format!("INSERT INTO log_lines (cluster_key, number, resource_key, line) VALUES {rows}");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(cluster);
        let query = new.iter().fold(query, |query, (number, key, text)| query.bind(*number).bind(*key).bind(text));
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Deletes all but the newest lines of what has this key in a column.
async fn cut(
    connection: &mut AnyConnection,
    (last, column): (&'static str, &str),
    key: &str,
    room: u32,
) -> Result<(), StoreError> {
    let row = sqlx::query(last).bind(key).bind(i64::from(room)).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(()) };
    let sql = format!("DELETE FROM log_lines WHERE {column} = $1 AND number <= $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(key).bind(row.try_get::<i64, _>(0)?);
    query.execute(connection).await?;
    Ok(())
}

/// Deletes the rows of a key and of all below it.
pub(super) async fn forget(connection: &mut AnyConnection, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    for sql in [
        "DELETE FROM log_lines WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
        "DELETE FROM log_positions WHERE cluster_key = $1 OR (cluster_key > $2 AND cluster_key < $3)",
    ] {
        sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    }
    Ok(())
}

fn broken(what: &str) -> StoreError {
    StoreError::Row { table: "log_lines", reason: what.to_owned() }
}
