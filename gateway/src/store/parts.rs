//! What clusters tell of the parts of what is wanted in them, such as the Kubernetes objects that a flux configuration has
//! applied (docs/features.md G6): of thousands those alone that have changed. A message names the one that it builds on;
//! where that is not the last one that was taken, all parts are asked for again. Deleted with their resource in the same
//! batch; none of this takes a revision.

use std::collections::HashMap;

use serde_json::Value;
use sqlx::{AnyConnection, Row};

use super::{
    Store, StoreError, Together, is_text,
    resources::{below, revision_of},
};

/// Rows that one statement writes or names, and resources of which one statement reads.
const AT_ONCE: usize = 100;
const READ_AT_ONCE: usize = 20;
/// Rows after which other tasks have their turn.
const A_TURN: usize = 500;

/// One part of what a cluster reports about a resource, such as a Kubernetes object.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Its name among the parts of its resource.
    pub name: String,
    /// Those with the lowest are shown first.
    pub rank: i64,
    /// What is told of it; none: it is there no more.
    pub told: Option<Value>,
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Parts at most.
    pub parts: i64,
    /// Bytes of all of them at most.
    pub bytes: i64,
}

/// What came of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It was taken, or had been before.
    Taken,
    /// It builds on another one than the last that was taken.
    Again,
    /// There is no such resource.
    Unknown,
}

pub(super) const OF: &str = "SELECT told FROM parts WHERE resource_key = $1 ORDER BY rank, name LIMIT $2";
pub(super) const LAST: &str = "SELECT told_position, parts, bytes FROM parts_told WHERE resource_key = $1";
pub(super) const OTHERS: &str = "SELECT CAST(COALESCE(SUM(parts), 0) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) \
                                 FROM parts_told WHERE resource_key > $1 AND resource_key < $2 AND resource_key <> $3";

/// How many parts there are of something, and how large they are.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    parts: i64,
    bytes: i64,
}

impl Sum {
    fn fits(self, room: Room) -> bool {
        self.parts <= room.parts && self.bytes <= room.bytes
    }

    fn plus(self, other: Self) -> Self {
        Self { parts: self.parts + other.parts, bytes: self.bytes + other.bytes }
    }
}

/// What a message tells of the parts of a resource.
#[derive(Clone, Copy)]
pub struct PartsTold<'a> {
    /// The resource's key.
    pub key: &'a str,
    /// The key of its cluster.
    pub cluster: &'a str,
    /// Number of the message on which this one builds; without it what was told before is forgotten.
    pub after: Option<u64>,
    /// Number of this message.
    pub position: u64,
    /// The parts that it tells of.
    pub parts: &'a [Part],
}

impl Store {
    /// Keeps what a message tells of the parts of a resource. What has no room in the resource or in its cluster is left
    /// out.
    pub async fn keep_parts(
        &self,
        told: PartsTold<'_>,
        of_resource: Room,
        of_cluster: Room,
    ) -> Result<Kept, StoreError> {
        if !is_text(told.key) {
            return Ok(Kept::Unknown);
        }
        repeated!(self.try_to_keep_parts(told, of_resource, of_cluster))
    }

    async fn try_to_keep_parts(
        &self,
        told: PartsTold<'_>,
        of_resource: Room,
        of_cluster: Room,
    ) -> Result<Kept, StoreError> {
        let PartsTold { key, cluster, after, position, parts } = told;
        // The numbers of messages are only ever compared: all 64 bits are kept.
        let (after, position) = (after.map(u64::cast_signed), position.cast_signed());
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        if revision_of(connection, key).await?.is_none() {
            together.roll_back().await?;
            return Ok(Kept::Unknown);
        }
        // Until this ends nobody else keeps parts of it.
        sqlx::query("UPDATE parts_told SET parts = parts WHERE resource_key = $1")
            .bind(key)
            .execute(&mut *connection)
            .await?;
        let last = sqlx::query(LAST).bind(key).fetch_optional(&mut *connection).await?;
        let known = last.as_ref().map(|row| row.try_get::<i64, _>(0)).transpose()?;
        let is_next = after.is_none() || after == known;
        if known == Some(position) || !is_next {
            together.roll_back().await?;
            return Ok(if known == Some(position) { Kept::Taken } else { Kept::Again });
        }
        let mut sum = match last.filter(|_| after.is_some()) {
            Some(row) => Sum { parts: row.try_get(1)?, bytes: row.try_get(2)? },
            None => {
                sqlx::query("DELETE FROM parts WHERE resource_key = $1").bind(key).execute(&mut *connection).await?;
                Sum::default()
            }
        };
        let (from, to) = below(cluster);
        let row = sqlx::query(OTHERS).bind(from).bind(to).bind(key).fetch_one(&mut *connection).await?;
        let others = Sum { parts: row.try_get(0)?, bytes: row.try_get(1)? };
        for parts in parts.chunks(AT_ONCE) {
            let sizes = sizes(connection, key, parts).await?;
            let (mut gone, mut kept) = (Vec::new(), Vec::new());
            for part in parts.iter().filter(|part| is_text(&part.name)) {
                let old = sizes.get(part.name.as_str()).copied();
                let without =
                    Sum { parts: sum.parts - i64::from(old.is_some()), bytes: sum.bytes - old.unwrap_or_default() };
                let text = part.told.as_ref().map(Value::to_string).filter(|text| is_text(text));
                let one =
                    text.as_ref().map_or(0, |text| i64::try_from(text.len() + part.name.len()).unwrap_or(i64::MAX));
                let with = without.plus(Sum { parts: 1, bytes: one });
                match text.filter(|_| with.fits(of_resource) && with.plus(others).fits(of_cluster)) {
                    Some(text) => {
                        kept.push((part, text, one));
                        sum = with;
                    }
                    None if old.is_some() => {
                        gone.push(part.name.as_str());
                        sum = without;
                    }
                    None => {}
                }
            }
            remove(connection, key, &gone).await?;
            write(connection, key, &kept).await?;
        }
        let sql = "INSERT INTO parts_told (resource_key, told_position, parts, bytes) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (resource_key) DO UPDATE SET told_position = excluded.told_position, \
                   parts = excluded.parts, bytes = excluded.bytes";
        let query = sqlx::query(sql).bind(key).bind(position).bind(sum.parts).bind(sum.bytes);
        query.execute(&mut *connection).await?;
        together.commit().await?;
        Ok(Kept::Taken)
    }

    /// What is told of the parts of a resource, in order of their ranks and names, at most `most`.
    pub async fn parts_of(&self, key: &str, most: u32) -> Result<Vec<Value>, StoreError> {
        if !is_text(key) {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(OF).bind(key).bind(i64::from(most)).fetch_all(&self.readers).await?;
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks(A_TURN) {
            for row in rows {
                all.push(read(key, &row.try_get::<String, _>(0)?)?);
            }
            tokio::task::yield_now().await;
        }
        Ok(all)
    }

    /// The same of several resources, by their keys; `most`: of each.
    pub async fn parts_of_each(&self, keys: &[String], most: u32) -> Result<HashMap<String, Vec<Value>>, StoreError> {
        let mut all: HashMap<String, Vec<Value>> = HashMap::with_capacity(keys.len());
        for keys in keys.chunks(READ_AT_ONCE) {
            let one = |n: usize| {
                format!(
                    "SELECT resource_key, told, rank, name FROM (SELECT resource_key, told, rank, name FROM parts \
                     WHERE resource_key = ${n} ORDER BY rank, name LIMIT {most}) AS of_{n}"
                )
            };
            let each = (1..=keys.len()).map(one).collect::<Vec<_>>().join(" UNION ALL ");
            let sql = format!("{each} ORDER BY resource_key, rank, name");
            let query = keys.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)), |query, key| query.bind(key));
            for row in query.fetch_all(&self.readers).await? {
                let key: String = row.try_get(0)?;
                let told = read(&key, &row.try_get::<String, _>(1)?)?;
                all.entry(key).or_default().push(told);
            }
            tokio::task::yield_now().await;
        }
        Ok(all)
    }
}

/// The bytes of those of these parts that are kept.
async fn sizes(connection: &mut AnyConnection, key: &str, parts: &[Part]) -> Result<HashMap<String, i64>, StoreError> {
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).filter(|name| is_text(name)).collect();
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!("SELECT name, bytes FROM parts WHERE resource_key = $1 AND name IN ({})", places(2, names.len()));
    let query = names.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)).bind(key), |query, name| query.bind(*name));
    query.fetch_all(connection).await?.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

async fn remove(connection: &mut AnyConnection, key: &str, names: &[&str]) -> Result<(), StoreError> {
    if names.is_empty() {
        return Ok(());
    }
    let sql = format!("DELETE FROM parts WHERE resource_key = $1 AND name IN ({})", places(2, names.len()));
    let query = names.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)).bind(key), |query, name| query.bind(*name));
    query.execute(connection).await?;
    Ok(())
}

/// `kept`: parts with their texts and bytes.
async fn write(connection: &mut AnyConnection, key: &str, kept: &[(&Part, String, i64)]) -> Result<(), StoreError> {
    if kept.is_empty() {
        return Ok(());
    }
    let row = |n: usize| format!("($1, {})", places(2 + 4 * n, 4));
    let rows = (0..kept.len()).map(row).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "INSERT INTO parts (resource_key, name, rank, told, bytes) VALUES {rows} ON CONFLICT (resource_key, name) \
         DO UPDATE SET rank = excluded.rank, told = excluded.told, bytes = excluded.bytes"
    );
    let query = kept.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)).bind(key), |query, (part, text, bytes)| {
        query.bind(&part.name).bind(part.rank).bind(text).bind(*bytes)
    });
    query.execute(connection).await?;
    Ok(())
}

fn places(first: usize, count: usize) -> String {
    (first..first + count).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
}

/// Deletes the rows of a key and of all below it.
pub(super) async fn forget(connection: &mut AnyConnection, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    for sql in [
        "DELETE FROM parts WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
        "DELETE FROM parts_told WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)",
    ] {
        sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    }
    Ok(())
}

fn read(key: &str, text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Row { table: "parts", reason: format!("a part of {key}") })
}
