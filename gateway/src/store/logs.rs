//! What controllers in clusters logged of what is wanted there (docs/features.md D5): the newest lines of each resource.
//! A line is taken once, by its position among those of its source. Deleted with their resource in the same batch; none of
//! this takes a revision, so that nobody is woken by it.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{AnyConnection, Row};
use types::agent_api::{LOG_SOURCES, LogLevel, LogPosition, LogPositions};

use super::{Backend, Store, StoreError, Together, is_text, pool::in_time, resources::below};

/// Rows that one statement writes.
const AT_ONCE: usize = 100;
/// Lines after which those of a cluster are counted again: it reads a row of each.
const COUNTED_EVERY: i64 = 50;

/// A line that is to be kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The key of the resource that it is about.
    pub key: String,
    /// UID of the pod that logged it.
    pub source: String,
    /// Where it is among the lines of its source.
    pub position: LogPosition,
    /// How bad it is.
    pub level: LogLevel,
    /// What is shown of it.
    pub line: Value,
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bound of the lines of one resource.
    pub of_resource: Bound,
    /// Of all resources of a cluster. It may be a few lines more for a while.
    pub of_cluster: Bound,
}

/// The newest lines, as many as stay within both.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// Number of lines.
    pub lines: usize,
    /// The bytes of them all, as they are kept.
    pub bytes: i64,
}

/// Which lines of a resource are read.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Those behind this number.
    pub after: i64,
    /// Those that are as bad as this, or worse.
    pub level: LogLevel,
    /// The number of lines, of which the newest are read.
    pub newest: u32,
}

impl Part {
    /// All lines.
    pub const ALL: Self = Self { after: 0, level: LogLevel::Debug, newest: u32::MAX };
}

pub(super) const POSITIONS: &str = "SELECT last_number, positions FROM log_positions WHERE cluster_key = $1";
pub(super) const BEHIND: &str = "SELECT number, line FROM log_lines \
                                 WHERE resource_key = $1 AND number > $2 AND level >= $3 \
                                 ORDER BY number DESC LIMIT $4";
pub(super) const NEWEST: &str = "SELECT number FROM log_lines WHERE resource_key = $1 ORDER BY number DESC LIMIT 1";
pub(super) const SIZES: &str = "SELECT number, size FROM log_lines WHERE resource_key = $1 ORDER BY number DESC";
pub(super) const SIZES_OF_CLUSTER: &str =
    "SELECT number, size FROM log_lines WHERE cluster_key = $1 ORDER BY number DESC";

impl Store {
    /// Keeps the lines of a cluster that were not taken before, of resources that are there; the oldest go where there are
    /// more than `room` says. Whether there is such a cluster.
    pub async fn keep_lines(&self, cluster: &str, lines: &[Line], room: Room) -> Result<bool, StoreError> {
        if !is_text(cluster) {
            return Ok(false);
        }
        repeated!(self.try_to_keep_lines(cluster, lines, room))
    }

    async fn try_to_keep_lines(&self, cluster: &str, lines: &[Line], room: Room) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        // Before all else, as a deletion does it: whoever deletes one of them waits for this, and then finds its lines.
        if !self.stays(connection, cluster).await? {
            together.roll_back().await?;
            return Ok(false);
        }
        let mut there = BTreeSet::new();
        for key in lines.iter().map(|line| line.key.as_str()).collect::<BTreeSet<_>>() {
            if is_text(key) && self.stays(connection, key).await? {
                there.insert(key);
            }
        }
        // Until this ends nobody else keeps lines of this cluster.
        let sql = "INSERT INTO log_positions (cluster_key, last_number, positions) VALUES ($1, 0, '{}') \
                   ON CONFLICT (cluster_key) DO UPDATE SET last_number = log_positions.last_number";
        sqlx::query(sql).bind(cluster).execute(&mut *connection).await?;
        let (mut last, mut known) = positions(connection, cluster).await?;
        let first = last;
        let mut new = Vec::new();
        for line in lines {
            if known.sources.get(&line.source).is_some_and(|taken| *taken >= line.position) {
                continue;
            }
            known.sources.insert(line.source.clone(), line.position);
            let text = line.line.to_string();
            if there.contains(line.key.as_str()) && is_text(&text) {
                last += 1;
                new.push((last, line.key.as_str(), rank(line.level), text));
            }
        }
        write(connection, cluster, &new).await?;
        for key in new.iter().map(|(_, key, ..)| *key).collect::<BTreeSet<_>>() {
            cut(connection, SIZES, "resource_key", key, room.of_resource).await?;
        }
        if last / COUNTED_EVERY != first / COUNTED_EVERY {
            cut(connection, SIZES_OF_CLUSTER, "cluster_key", cluster, room.of_cluster).await?;
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
        in_time(async { Ok(positions(&mut *self.readers.acquire().await?, cluster).await?.1) }).await
    }

    /// Lines of a resource, the oldest first, each with its number.
    pub async fn lines_of(&self, key: &str, part: Part) -> Result<Vec<(i64, Value)>, StoreError> {
        if !is_text(key) {
            return Ok(Vec::new());
        }
        let query = sqlx::query(BEHIND).bind(key).bind(part.after).bind(rank(part.level)).bind(i64::from(part.newest));
        let rows = query.fetch_all(&self.readers).await?;
        let read = |text: &str| serde_json::from_str(text).map_err(|_| broken(&format!("a line of {key}")));
        rows.iter().rev().map(|row| Ok((row.try_get(0)?, read(&row.try_get::<String, _>(1)?)?))).collect()
    }

    /// The number of the newest line of a resource; 0: it has none.
    pub async fn newest_line(&self, key: &str) -> Result<i64, StoreError> {
        if !is_text(key) {
            return Ok(0);
        }
        let row = sqlx::query(NEWEST).bind(key).fetch_optional(&self.readers).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?.unwrap_or_default())
    }

    /// Whether there is such a resource, which nobody deletes until this transaction ends.
    async fn stays(&self, connection: &mut AnyConnection, key: &str) -> Result<bool, StoreError> {
        let sql = match self.backend {
            // There is one writer at a time.
            Backend::Sqlite => "SELECT revision FROM resources WHERE resource_key = $1",
            Backend::Postgres => "SELECT revision FROM resources WHERE resource_key = $1 FOR SHARE",
        };
        Ok(sqlx::query(sql).bind(key).fetch_optional(connection).await?.is_some())
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

/// A level as the store compares it.
fn rank(level: LogLevel) -> i64 {
    match level {
        LogLevel::Debug => 0,
        LogLevel::Info => 1,
        LogLevel::Error => 2,
    }
}

fn size(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// `new`: numbers, keys, ranks and texts.
async fn write(
    connection: &mut AnyConnection,
    cluster: &str,
    new: &[(i64, &str, i64, String)],
) -> Result<(), StoreError> {
    for new in new.chunks(AT_ONCE) {
        let row = |n: usize| {
            let places = (2..7).map(|place| format!("${}", 5 * n + place)).collect::<Vec<_>>().join(", ");
            format!("($1, {places})")
        };
        let rows = (0..new.len()).map(row).collect::<Vec<_>>().join(", ");
        let sql = format!("INSERT INTO log_lines (cluster_key, number, resource_key, level, size, line) VALUES {rows}");
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(cluster);
        for (number, key, rank, text) in new {
            query = query.bind(*number).bind(*key).bind(*rank).bind(size(text)).bind(text);
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Deletes all but the newest lines of what has this key in a column.
async fn cut(
    connection: &mut AnyConnection,
    sizes: &'static str,
    column: &str,
    key: &str,
    room: Bound,
) -> Result<(), StoreError> {
    let (mut bytes, mut last) = (0i64, None);
    for (nth, row) in sqlx::query(sizes).bind(key).fetch_all(&mut *connection).await?.iter().enumerate() {
        bytes = bytes.saturating_add(row.try_get(1)?);
        if nth >= room.lines || bytes > room.bytes {
            last = Some(row.try_get::<i64, _>(0)?);
            break;
        }
    }
    let Some(last) = last else { return Ok(()) };
    let sql = format!("DELETE FROM log_lines WHERE {column} = $1 AND number <= $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(key).bind(last);
    query.execute(connection).await?;
    Ok(())
}

/// Deletes the rows of a key and of all below it, in the order in which [`Store::keep_lines`] takes them: PostgreSQL ends
/// one of two that wait for each other.
pub(super) async fn forget(connection: &mut AnyConnection, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    for sql in [
        "DELETE FROM log_positions WHERE cluster_key = $1 OR (cluster_key > $2 AND cluster_key < $3)",
        "DELETE FROM log_lines WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
    ] {
        sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    }
    Ok(())
}

fn broken(what: &str) -> StoreError {
    StoreError::Row { table: "log_lines", reason: what.to_owned() }
}
