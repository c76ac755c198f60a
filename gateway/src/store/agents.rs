//! What is known of clusters' agents: when they were last seen, their certificate, what they told (docs/features.md
//! C1-C9, R4, R7, M1-M5). One row for each connected cluster, made when its resource is first written and deleted with
//! it, in the same batch. None of this is a change of a resource: it takes no revision, and nobody's snapshot is made
//! anew for it.

use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{
    Store, StoreError, Together, is_text,
    resources::{AT_ONCE_BYTES, Below, Beside, COLUMNS, Page, Stored, Window, below, each, single, stored},
};
use crate::aside::held;

/// The kind of resources that have such a row.
pub const KIND: &str = "microsoft.kubernetes/connectedclusters";
/// Keys that one statement names.
const KEYS_AT_ONCE: usize = 400;

/// The row of a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agent {
    /// The resource has no public key.
    pub agentless: bool,
    /// When its agent was first seen: milliseconds since 1970.
    pub first_seen_ms: Option<i64>,
    /// When it was last seen.
    pub last_seen_ms: Option<i64>,
    /// The newest certificate that was issued for it.
    pub certificate: Option<Certified>,
    /// UID of the namespace `kube-system` (R4).
    pub kube_system_uid: Option<String>,
    /// What the agent told last; null before that.
    pub facts: Value,
    /// Which authority the certificate is of that its agents showed last; nothing before the first heartbeat.
    pub authority: Option<String>,
    /// What events have told last of the version of its agents.
    pub told_version: Option<String>,
    /// The same of an upgrade of them: the version and the state.
    pub told_upgrade: Option<String>,
}

/// A certificate that was issued for a cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// When it begins: milliseconds since 1970.
    pub begins_ms: i64,
    /// When the certificate ends, in milliseconds since 1970.
    pub ends_ms: i64,
    /// Serial number of the certificate.
    pub serial: String,
    /// The fingerprint of the public key that it was issued for.
    pub key: String,
}

/// What became of something that is kept for a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// It was written.
    Done,
    /// The resource is gone.
    Gone,
    /// The Kubernetes cluster of that UID is another resource of the same claimant (R4); nothing was kept.
    Other {
        /// The id of that resource.
        id: String,
    },
}

const AGENT_COLUMNS: &str = "a.agentless, a.first_seen_ms, a.last_seen_ms, a.certificate_begins_ms, \
                             a.certificate_ends_ms, a.certificate_serial, a.certificate_key, a.kube_system_uid, a.facts, \
                             a.certificate_authority, a.told_version, a.told_upgrade";
pub(super) const ONE: &str = "FROM agents a WHERE a.resource_key = $1";
pub(super) const JOINED: &str = "LEFT JOIN agents a ON a.resource_key = r.resource_key";
pub(super) const JOINED_ONE: &str = "WHERE r.resource_key = $1";
pub(super) const JOINED_PAGE: &str =
    "WHERE r.kind = $1 AND r.resource_key > $2 AND r.resource_key <= $3 ORDER BY r.resource_key LIMIT $4";
pub(super) const DELETED_IDENTITIES: &str = "SELECT principal FROM deleted_identities \
                                             ORDER BY deleted_ms IS NOT NULL, deleted_ms DESC LIMIT $1";
pub(super) const OF_UID: &str = "SELECT r.id FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
                                 WHERE a.kube_system_uid = $1 AND a.resource_key <> $2";

pub(super) const CLAIMED: &str = "SELECT r.id FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
                                  WHERE a.kube_system_uid = $1 AND a.resource_key <> $2 \
                                  AND a.claimant = (SELECT b.claimant FROM agents b WHERE b.resource_key = $2)";
/// How the record of who created a cluster by an enrolment token begins.
pub const BY_TOKEN: &str = "enrolment token of ";
/// Silence after which a cluster is offline, in milliseconds.
pub const OFFLINE_AFTER_MS: i64 = 15 * 60 * 1000;
/// How long what was kept of an agent that stays is good enough. Two more tries of a minute each end long before the
/// agent is taken to be gone.
pub const SEEN_AGAIN_AFTER_MS: i64 = 4 * 60 * 1000;
/// Agents that are still there, of which one statement says so.
const SEEN_AGAIN_AT_ONCE: usize = 2000;

/// The statement that reads resources with their agents' rows.
pub(super) fn joined(rest: &str) -> String {
    let columns = COLUMNS.split(", ").map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", ");
    format!("SELECT {columns}, {AGENT_COLUMNS} FROM resources r {JOINED} {rest}")
}

/// The statement that reads one row.
pub(super) fn one() -> String {
    format!("SELECT {AGENT_COLUMNS} {ONE}")
}

impl Store {
    /// The row of a cluster; `None` if there is no such cluster.
    pub async fn agent(&self, key: &str) -> Result<Option<Agent>, StoreError> {
        if !is_text(key) {
            return Ok(None);
        }
        let row = sqlx::query(sqlx::AssertSqlSafe(one())).bind(key).fetch_optional(&self.readers).await?;
        Ok(row.as_ref().map(agent).transpose()?.flatten())
    }

    /// A resource and its agents' row, in one statement.
    pub async fn get_with_agent(&self, key: &str) -> Result<Option<(Stored, Option<Agent>)>, StoreError> {
        if !is_text(key) {
            return Ok(None);
        }
        let sql = sqlx::AssertSqlSafe(joined(JOINED_ONE));
        let row = sqlx::query(sql).bind(key).fetch_optional(&self.readers).await?;
        single(row.as_ref(), both).await
    }

    /// As [`Self::page`], each resource with its agents' row (C9).
    pub async fn page_with_agents(
        &self,
        kind: &str,
        within: &str,
        after: &str,
        rows: u32,
    ) -> Result<Page<(Stored, Option<Agent>)>, StoreError> {
        let window = self.window(kind, Below::Anywhere(within), Beside::Told, after, rows).await?;
        self.read_with_agents(window).await
    }

    /// Reads a window, each resource with its agents' row, in one statement.
    pub async fn read_with_agents(&self, window: Window) -> Result<Page<(Stored, Option<Agent>)>, StoreError> {
        let rows = self.rows_of(sqlx::AssertSqlSafe(joined(JOINED_PAGE)), &window).await?;
        Ok(window.page(each(&rows, both).await?, |(stored, _)| &stored.key))
    }

    /// The id of a resource other than `key` that the Kubernetes cluster of a UID is said to be, whoever claims it.
    pub async fn other_of_uid(&self, uid: &str, key: &str) -> Result<Option<String>, StoreError> {
        if !is_text(uid) || !is_text(key) {
            return Ok(None);
        }
        let row = sqlx::query(OF_UID).bind(uid).bind(key).fetch_optional(&self.readers).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    /// Keeps that a certificate was issued for a cluster's identity and, with a UID, that the cluster is this resource:
    /// both or nothing. Of two resources of one claimant that ask for one UID at once, one gets it. Without a UID the
    /// one that is kept stays. Nothing is kept where the cluster has another identity by now.
    pub async fn put_certificate(
        &self,
        key: &str,
        principal: Option<&str>,
        certified: &Certified,
        uid: Option<&str>,
    ) -> Result<Kept, StoreError> {
        let Certified { begins_ms, ends_ms, serial, key: of } = certified;
        let texts = [key, serial, of].into_iter().chain(uid).chain(principal);
        check(texts)?;
        let sql = "UPDATE agents SET certificate_begins_ms = $1, certificate_ends_ms = $2, certificate_serial = $3, \
                   certificate_key = $4, kube_system_uid = COALESCE($5, kube_system_uid) \
                   WHERE resource_key = $6 AND COALESCE($7, principal, '') = COALESCE(principal, '')";
        let update = || {
            let query = sqlx::query(sql).bind(begins_ms).bind(ends_ms).bind(serial).bind(of).bind(uid).bind(key);
            query.bind(principal)
        };
        self.claim(key, uid, update).await
    }

    /// Keeps what the agent of a cluster's identity told at an instant, which is also a sign of life; with a UID, and
    /// where the identity is another, as above.
    pub async fn put_facts(
        &self,
        key: &str,
        principal: Option<&str>,
        facts: &Value,
        uid: Option<&str>,
        now_ms: i64,
    ) -> Result<Kept, StoreError> {
        let facts = facts.to_string();
        check([key, &facts].into_iter().chain(uid).chain(principal))?;
        let sql = format!(
            "UPDATE agents SET facts = $2, kube_system_uid = COALESCE($3, kube_system_uid), {SEEN} \
             WHERE resource_key = $4 AND COALESCE($5, principal, '') = COALESCE(principal, '')"
        );
        let update = || {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).bind(now_ms).bind(&facts).bind(uid).bind(key);
            query.bind(principal)
        };
        self.claim(key, uid, update).await
    }

    /// Keeps which authority the certificate is of that a cluster's agents show.
    pub async fn put_authority(
        &self,
        key: &str,
        principal: Option<&str>,
        authority: Option<&str>,
    ) -> Result<(), StoreError> {
        check([key].into_iter().chain(authority).chain(principal))?;
        let sql = "UPDATE agents SET certificate_authority = $1 \
                   WHERE resource_key = $2 AND COALESCE($3, principal, '') = COALESCE(principal, '')";
        sqlx::query(sql).bind(authority).bind(key).bind(principal).execute(&self.writers).await?;
        Ok(())
    }

    /// Clusters whose certificate has not ended and is of another authority than this, or nobody knows of which: how
    /// many, and the ids of the first ones.
    pub async fn on_other_authorities(
        &self,
        authority: &str,
        now_ms: i64,
        most: u32,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let others = "FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
                      WHERE a.certificate_ends_ms > $1 AND COALESCE(a.certificate_authority, '') <> $2";
        let count = sqlx::AssertSqlSafe(format!("SELECT COUNT(*) {others}"));
        let count: i64 = sqlx::query(count).bind(now_ms).bind(authority).fetch_one(&self.readers).await?.try_get(0)?;
        let sql = sqlx::AssertSqlSafe(format!("SELECT r.id {others} ORDER BY r.resource_key LIMIT $3"));
        let rows = sqlx::query(sql).bind(now_ms).bind(authority).bind(i64::from(most)).fetch_all(&self.readers).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok((count.unsigned_abs(), ids))
    }

    /// An update of a row that may claim a UID.
    async fn claim<'q>(
        &self,
        key: &str,
        uid: Option<&str>,
        update: impl Fn() -> sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<Kept, StoreError> {
        repeated!(self.try_to_claim(key, uid, &update))
    }

    async fn try_to_claim<'q>(
        &self,
        key: &str,
        uid: Option<&str>,
        update: &impl Fn() -> sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<Kept, StoreError> {
        loop {
            let mut together = Together::begin(&self.writers, self.begin()).await?;
            if let Some(uid) = uid {
                let other = sqlx::query(CLAIMED).bind(uid).bind(key).fetch_optional(together.connection()).await?;
                if let Some(other) = other {
                    let id = other.try_get(0)?;
                    together.roll_back().await?;
                    return Ok(Kept::Other { id });
                }
            }
            name(together.connection(), key, None).await?;
            match update().execute(together.connection()).await {
                Ok(done) => {
                    together.commit().await?;
                    return Ok(if done.rows_affected() == 1 { Kept::Done } else { Kept::Gone });
                }
                // Another one was faster (PostgreSQL has many writers): who it is can be read now.
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => together.roll_back().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes into rows of before identities and claimants were kept whose they are, in one transaction. A start that
    /// finds nothing to write notes so, and later ones do not look again: replicas of the version before may write such
    /// rows for as long as they run, which is before that.
    pub(super) async fn name_rows(&self) -> Result<(), StoreError> {
        for tries in (0..NAMING_TRIES).rev() {
            if self.are_rows_named().await? {
                return Ok(());
            }
            match repeated!(self.try_to_name_rows()) {
                // Another replica has let a cluster in meanwhile (PostgreSQL has many writers).
                Err(StoreError::Database(sqlx::Error::Database(error))) if error.is_unique_violation() && tries > 0 => {
                }
                done => return done,
            }
        }
        Ok(())
    }

    async fn are_rows_named(&self) -> Result<bool, StoreError> {
        let noted: i64 = sqlx::query_scalar("SELECT count(*) FROM rows_named").fetch_one(&self.readers).await?;
        Ok(noted > 0)
    }

    async fn try_to_name_rows(&self) -> Result<(), StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let mut wrote = 0;
        for (column, sql, named) in NAMINGS {
            let rows = sqlx::query(*sql).fetch_all(together.connection()).await?;
            for row in &rows {
                let (key, body): (String, String) = (row.try_get(0)?, row.try_get(1)?);
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                let Some(value) = column(&key, &body) else { continue };
                let done = sqlx::query(*named).bind(value).bind(key).execute(together.connection()).await?;
                wrote += done.rows_affected();
            }
        }
        if wrote == 0 {
            let sql = "INSERT INTO rows_named (at_start) VALUES (1) ON CONFLICT DO NOTHING";
            sqlx::query(sql).execute(together.connection()).await?;
        }
        together.commit().await
    }

    /// The newest identities whose clusters were deleted, at most `most`.
    pub async fn deleted_identities(&self, most: u32) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query(DELETED_IDENTITIES).bind(i64::from(most)).fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Notes when those that are new were deleted, and forgets those that were before an instant.
    pub async fn forget_deleted_identities(&self, now_ms: i64, before_ms: i64) -> Result<u64, StoreError> {
        let sql = "UPDATE deleted_identities SET deleted_ms = $1 WHERE deleted_ms IS NULL";
        sqlx::query(sql).bind(now_ms).execute(&self.writers).await?;
        let sql = "DELETE FROM deleted_identities WHERE deleted_ms < $1";
        Ok(sqlx::query(sql).bind(before_ms).execute(&self.writers).await?.rows_affected())
    }

    /// Takes back signs of life of the future, which were kept under a wrong clock: they would be younger than all to
    /// come.
    pub async fn forget_future(&self, now_ms: i64) -> Result<(), StoreError> {
        let sql = "UPDATE agents SET last_seen_ms = $1 WHERE last_seen_ms > $1 + 60000";
        sqlx::query(sql).bind(now_ms).execute(&self.writers).await?;
        Ok(())
    }

    /// Keeps that the agents of these clusters are seen at an instant: one transaction for all, however many. Keys of
    /// no cluster are passed over.
    pub async fn seen(&self, keys: &[String], now_ms: i64) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        check(keys.iter().map(String::as_str))?;
        // In one order, whoever writes.
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        repeated!(self.try_to_note_seen(&keys, now_ms))
    }

    /// The same of agents that are still there: what was kept less than [`SEEN_AGAIN_AFTER_MS`] ago stays as it is, by
    /// whichever replica it was. Each statement is a transaction of its own.
    pub async fn seen_again(&self, keys: &[String], now_ms: i64) -> Result<(), StoreError> {
        check(keys.iter().map(String::as_str))?;
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        for keys in keys.chunks(SEEN_AGAIN_AT_ONCE) {
            let sql = format!(
                "UPDATE agents SET {SEEN} WHERE resource_key IN ({}) AND (last_seen_ms IS NULL \
                 OR last_seen_ms <= $1 - {SEEN_AGAIN_AFTER_MS} OR last_seen_ms > $1 + 60000)",
                places(keys)
            );
            let noted = async || {
                let query = sqlx::query(sqlx::AssertSqlSafe(sql.as_str())).bind(now_ms);
                keys.iter().fold(query, |query, key| query.bind(*key)).execute(&self.writers).await?;
                Ok::<_, StoreError>(())
            };
            repeated!(noted())?;
        }
        Ok(())
    }

    async fn try_to_note_seen(&self, keys: &[&str], now_ms: i64) -> Result<(), StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let sql = format!("UPDATE agents SET {SEEN} WHERE resource_key IN ({})", places(keys));
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now_ms);
            keys.iter().fold(query, |query, key| query.bind(*key)).execute(together.connection()).await?;
        }
        together.commit().await
    }
}

/// Places of keys among a statement's parameters, from the second one on.
fn places(keys: &[&str]) -> String {
    (2..keys.len() + 2).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
}

/// Sets when an agent was seen, to the instant `$1`. It never goes back, but for what was kept under a wrong clock: two
/// replicas' clocks differ by less than a minute.
const SEEN: &str = "first_seen_ms = COALESCE(first_seen_ms, $1), last_seen_ms = \
                    CASE WHEN last_seen_ms > $1 AND last_seen_ms <= $1 + 60000 THEN last_seen_ms ELSE $1 END";

/// Makes the row of a cluster that is written. One whose key is taken away is no longer seen: its agents were removed.
pub(super) async fn keep(connection: &mut AnyConnection, resource: &Stored) -> Result<(), StoreError> {
    if resource.kind != KIND {
        return Ok(());
    }
    let key = resource.body.get("properties").and_then(|properties| properties.get("agentPublicKeyCertificate"));
    let agentless = i64::from(key.and_then(Value::as_str).is_none_or(str::is_empty));
    let sql = "INSERT INTO agents (resource_key, agentless, principal, claimant) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (resource_key) DO UPDATE SET principal = excluded.principal, last_seen_ms = CASE WHEN agents.agentless < excluded.agentless THEN NULL ELSE agents.last_seen_ms END, \
               agentless = excluded.agentless";
    let query = sqlx::query(sql).bind(&resource.key).bind(agentless).bind(principal_of(&resource.body));
    query.bind(claimant_of(&resource.key, &resource.body)).execute(connection).await?;
    Ok(())
}

/// Who claims a Kubernetes cluster for the resource of this key: its resource group and its creator, as JSON. `None`
/// where it was created by an enrolment token.
fn claimant_of(key: &str, body: &Value) -> Option<String> {
    let said = |name: &str| body.get("systemData").and_then(|data| data.get(name)).and_then(Value::as_str);
    let (kind, name) = (said("createdByType"), said("createdBy"));
    if name.is_some_and(|name| name.starts_with(BY_TOKEN)) {
        return None;
    }
    let group = key.split("/providers/").next().unwrap_or_default();
    Some(serde_json::json!([group, kind, name]).to_string())
}

/// What is written into a column of a row, by the key and the body of its resource.
type Naming = fn(&str, &Value) -> Option<String>;

/// Which rows lack something, what it is, and how it is written. No two rows of one UID have one claimant: the second
/// one goes on without a claim.
const NAMINGS: &[(Naming, &str, &str)] = &[
    (
        |_, body| principal_of(body).map(str::to_owned),
        "SELECT a.resource_key, r.body FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
         WHERE a.principal IS NULL",
        "UPDATE agents SET principal = $1 WHERE resource_key = $2 AND principal IS NULL",
    ),
    (
        claimant_of,
        "SELECT a.resource_key, r.body FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
         WHERE a.claimant IS NULL AND a.kube_system_uid IS NOT NULL",
        "UPDATE agents SET claimant = $1 WHERE resource_key = $2 AND claimant IS NULL AND NOT EXISTS \
         (SELECT 1 FROM agents b WHERE b.kube_system_uid = agents.kube_system_uid AND b.claimant = $1)",
    ),
];
/// How often rows are named at most where other replicas write at the same time.
const NAMING_TRIES: u32 = 3;

fn principal_of(body: &Value) -> Option<&str> {
    body.get("identity")?.get("principalId")?.as_str()
}

/// Writes into rows of a key, and of those between two others, whose they are: one that a replica of before identities
/// were kept has made says nothing of that.
async fn name(connection: &mut AnyConnection, key: &str, between: Option<(&str, &str)>) -> Result<(), StoreError> {
    let (from, to) = between.unwrap_or((key, key));
    let sql = "SELECT a.resource_key, r.body FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
               WHERE a.principal IS NULL \
               AND (a.resource_key = $1 OR (a.resource_key > $2 AND a.resource_key < $3))";
    let rows = sqlx::query(sql).bind(key).bind(from).bind(to).fetch_all(&mut *connection).await?;
    for row in &rows {
        let (key, body): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let is_long = body.len() > AT_ONCE_BYTES;
        let body: Value = held(is_long, || serde_json::from_str(&body).unwrap_or_default());
        let Some(principal) = principal_of(&body) else { continue };
        let sql = "UPDATE agents SET principal = $1 WHERE resource_key = $2 AND principal IS NULL";
        sqlx::query(sql).bind(principal).bind(key).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Deletes the rows of a key and of all below it, and remembers whose they were.
pub(super) async fn forget(connection: &mut AnyConnection, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    name(connection, key, Some((&from, &to))).await?;
    let sql = "INSERT INTO deleted_identities (principal, resource_key) SELECT principal, resource_key FROM agents \
               WHERE principal IS NOT NULL AND (resource_key = $1 OR (resource_key > $2 AND resource_key < $3)) \
               ON CONFLICT (principal) DO NOTHING";
    sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    let sql = "DELETE FROM agents WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)";
    sqlx::query(sql).bind(key).bind(from).bind(to).execute(connection).await?;
    Ok(())
}

fn check<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<(), StoreError> {
    match texts.into_iter().find(|text| !is_text(text)) {
        Some(text) => {
            let text = text.escape_default().to_string();
            Err(StoreError::Entry { text, reason: "it has a NUL character" })
        }
        None => Ok(()),
    }
}

fn both(row: &AnyRow) -> Result<(Stored, Option<Agent>), StoreError> {
    Ok((stored(row)?, agent(row)?))
}

/// The row's part of agents; `None` where there is none.
fn agent(row: &AnyRow) -> Result<Option<Agent>, StoreError> {
    let Some(agentless) = row.try_get::<Option<i64>, _>("agentless")? else { return Ok(None) };
    let facts: Option<String> = row.try_get("facts")?;
    let facts = facts.map_or(Ok(Value::Null), |facts| serde_json::from_str(&facts));
    let begins: Option<i64> = row.try_get("certificate_begins_ms")?;
    let ends: Option<i64> = row.try_get("certificate_ends_ms")?;
    let certificate = match (begins, ends) {
        (Some(begins_ms), Some(ends_ms)) => Some(Certified {
            begins_ms,
            ends_ms,
            serial: row.try_get::<Option<String>, _>("certificate_serial")?.unwrap_or_default(),
            key: row.try_get::<Option<String>, _>("certificate_key")?.unwrap_or_default(),
        }),
        _ => None,
    };
    Ok(Some(Agent {
        agentless: agentless != 0,
        first_seen_ms: row.try_get("first_seen_ms")?,
        last_seen_ms: row.try_get("last_seen_ms")?,
        certificate,
        kube_system_uid: row.try_get("kube_system_uid")?,
        authority: row.try_get("certificate_authority")?,
        told_version: row.try_get("told_version")?,
        told_upgrade: row.try_get("told_upgrade")?,
        facts: facts.map_err(|error| StoreError::Row { table: "agents", reason: format!("the facts: {error}") })?,
    }))
}
