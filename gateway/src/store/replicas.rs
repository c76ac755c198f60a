//! Rows of the gateways that share a PostgreSQL database: leases, and how many tunnels of which cluster each has
//! (docs/replicas.md). The database's clock alone decides whose lease has ended.
//!
//! Only a replica itself writes its rows, one statement after the other, and numbers their changes. Another replica
//! that has read up to a number asks for what is beyond it, and nothing is written while nothing changes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use sqlx::{AnyConnection, Connection as _, Row as _, any::AnyRow, postgres::PgListener};
use types::ids::ClusterKey;

use super::{Store, StoreError, address::Address, look};

/// How long one statement about leases may take. An answer that is later than this is of no use.
const STATEMENT: Duration = Duration::from_secs(4);
/// Rows of other replicas that are read at most.
const MOST_ROWS: i64 = 257;
/// Clusters whose tunnels are written, or read, at once.
pub const TUNNELS_AT_ONCE: u32 = 2000;
/// The first eight digits of a segment's name are its timeline.
const TIMELINE: &str = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)";
/// Told of a write: its revision.
const REVISIONS: &str = "towline_revisions";
/// Told of a change of documents that several gateways share.
const DOCUMENTS: &str = "towline_documents";
/// Told of a replica: its name, generation, change of tunnels and applied revision, with spaces between.
const REPLICAS: &str = "towline_replicas";

const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Whether the lease of a row `r` lasts; the place of its length among the statement's parameters. One of the future was
/// renewed by the clock of another server, before a failover: whoever is alive renews it by this one within moments.
fn lasts(lease: &str) -> String {
    format!("abs({NOW} - r.renewed_ms) < {lease}")
}

/// What the start that has a row `r` said of how long it goes on once its lease has ended; nothing, of an older program.
const STALE: &str = "CASE WHEN r.stale_of = r.generation THEN r.stale_ms END";

/// What the start that has a row `r` said of its settings; nothing, of an older program and in the tables of one.
const SETTINGS: &str = "CASE WHEN (to_jsonb(r) ->> 'settings_of')::bigint = r.generation \
                        THEN to_jsonb(r) ->> 'settings' END";

/// What is read of a row `r`, also where [`STALE`] cannot be: in the tables of an older program.
fn columns(lease: &str) -> String {
    let lasts = lasts(lease);
    format!(
        "r.name, r.generation, r.address, r.version, r.started_ms, r.renewed_ms, r.applied, r.changed, r.forgotten, \
         CASE WHEN {lasts} THEN 1 ELSE 0 END::bigint AS alive, {NOW} - r.renewed_ms AS age_ms, \
         {SETTINGS} AS settings"
    )
}

/// A row of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The replica's name, as `[replicas] name` sets it.
    pub name: String,
    /// Which of its starts.
    pub generation: i64,
    /// Host and port of its listener for other replicas.
    pub address: String,
    /// The version of its program.
    pub version: String,
    /// When it started, milliseconds since 1970.
    pub started_ms: i64,
    /// When it renewed its lease last, the same.
    pub renewed_ms: i64,
    /// Milliseconds since then, by the database's clock.
    pub age_ms: i64,
    /// The newest revision that its decisions know.
    pub applied: i64,
    /// The number of the last change of its tunnels.
    pub changed: i64,
    /// The last change of which no row may be left.
    pub forgotten: i64,
    /// Whether its lease lasts.
    pub alive: bool,
    /// How long it goes on once its lease has ended; `None` where it does not say, or was not asked.
    pub stale_for: Option<Duration>,
    /// What it wrote with [`Line::write_settings`]; `None` before that, and where its program is an older one.
    pub settings: Option<String>,
}

impl Row {
    /// The start of the replica that has this row.
    pub fn start(&self) -> Start<'_> {
        Start { name: &self.name, generation: self.generation }
    }
}

/// One start of a replica. Statements about it change nothing once a later start has taken the replica's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start<'a> {
    /// The replica's name.
    pub name: &'a str,
    /// Which of its starts, as [`Line::join`] returned it.
    pub generation: i64,
}

impl Start<'_> {
    /// The text of a notification about this start, as [`Told::parse`] reads it.
    fn told(self, changed: i64, applied: i64) -> String {
        format!("{} {} {changed} {applied}", self.name, self.generation)
    }
}

/// What a renewal found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// Whether the lease was renewed: the row is there and of this start.
    pub renewed: bool,
    /// All rows, the own one as it was before.
    pub rows: Vec<Row>,
    /// The store's newest revision.
    pub revision: i64,
    /// The versions of all documents together, which rise with every change of one.
    pub documents: i64,
}

/// Tunnels of one cluster at one replica, as a row has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The cluster whose tunnels these are.
    pub key: ClusterKey,
    /// Tunnels that take users' requests.
    pub users: u16,
    /// Tunnels that take no users' requests.
    pub others: u16,
    /// The number of this change.
    pub changed: i64,
}

/// What the database tells at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A write, by any process.
    Revision(i64),
    /// Something new of a replica.
    Replica {
        /// The replica's name.
        name: String,
        /// Which of its starts.
        generation: i64,
        /// The number of the last change of its tunnels.
        changed: i64,
        /// The newest revision that its decisions know.
        applied: i64,
    },
    /// A change of documents, by any process.
    Documents,
    /// A replica has started or ended, or what was told was lost with a connection: look at all rows.
    Look,
}

impl Told {
    fn parse(channel: &str, text: &str) -> Self {
        let read = || {
            if channel == REVISIONS {
                return text.parse().ok().map(Self::Revision);
            }
            if channel == DOCUMENTS {
                return Some(Self::Documents);
            }
            let mut words = text.split(' ');
            let name = words.next()?.to_owned();
            let mut number = || words.next()?.parse().ok();
            Some(Self::Replica { name, generation: number()?, changed: number()?, applied: number()? })
        };
        read().unwrap_or(Self::Look)
    }
}

enum Bind<'a> {
    Text(&'a str),
    Number(i64),
}

/// A connection of its own, made again after every error: no statement of it waits behind one of the resource API.
pub struct Line {
    address: Address,
    connection: Option<AnyConnection>,
    /// The database's timeline, which a standby that is promoted begins anew; `None` where the database does not say.
    timeline: Option<String>,
    /// Whether that has changed.
    promoted: bool,
    /// Statements that were sent, for tests and figures.
    pub statements: Arc<AtomicU64>,
}

impl Line {
    /// Not yet connected.
    ///
    /// # Errors
    /// If the address is none of a database.
    pub fn new(address: &Address) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        address.options()?;
        let address = address.clone();
        Ok(Self { address, connection: None, timeline: None, promoted: false, statements: Arc::default() })
    }

    async fn connected(&mut self) -> Result<AnyConnection, StoreError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let mut connection = AnyConnection::connect_with(&self.address.options()?).await?;
        let settings = "SET lock_timeout = '3s'; SET statement_timeout = '4s'; \
                        SET idle_in_transaction_session_timeout = '5s';";
        sqlx::raw_sql(settings).execute(&mut connection).await?;
        // A standby that is promoted has none of the old connections, so that each new one is asked. A service that is not
        // plain PostgreSQL may refuse the question: then the timeline stays unknown.
        let timeline: Option<String> = sqlx::query_scalar(TIMELINE).fetch_one(&mut connection).await.ok();
        if timeline.is_some() {
            self.promoted |= self.timeline.is_some() && self.timeline != timeline;
            self.timeline = timeline;
        }
        Ok(connection)
    }

    /// Whether a standby was promoted since [`Self::caught_up`]: it may lack what was written last, and give the same
    /// revisions to other writes.
    pub fn was_promoted(&self) -> bool {
        self.promoted
    }

    /// What was known of the database before its promotion is forgotten.
    pub fn caught_up(&mut self) {
        self.promoted = false;
    }

    /// Sends one statement, and waits for its rows for a bounded time.
    async fn ask(&mut self, sql: &str, binds: &[Bind<'_>]) -> Result<Vec<AnyRow>, StoreError> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let work = async {
            let mut connection = self.connected().await?;
            let query = binds.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())), |query, bind| match bind {
                Bind::Text(text) => query.bind((*text).to_owned()),
                Bind::Number(number) => query.bind(*number),
            });
            let rows = query.fetch_all(&mut connection).await?;
            Ok((connection, rows))
        };
        match tokio::time::timeout(STATEMENT, work).await {
            Ok(Ok((connection, rows))) => {
                self.connection = Some(connection);
                Ok(rows)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    /// Takes the row of a name for a new start, which goes on for `stale_for` once its lease has ended. The generation of
    /// this start: higher than that of any before it. What the start before had is gone.
    ///
    /// # Errors
    /// When the database cannot be reached or written.
    pub async fn join(
        &mut self,
        name: &str,
        address: &str,
        version: &str,
        stale_for: Duration,
    ) -> Result<i64, StoreError> {
        // A statement of its own before the rows of the start before are deleted: from then on that start writes none.
        let sql = format!(
            "INSERT INTO replicas AS r \
             (name, generation, address, version, started_ms, renewed_ms, applied, changed, forgotten, stale_ms, stale_of) \
             SELECT $1::text, n.ms, $2::text, $3::text, n.ms, n.ms, 0, 0, 0, $4::bigint, n.ms FROM (SELECT {NOW} AS ms) AS n \
             ON CONFLICT (name) DO UPDATE \
             SET generation = greatest(r.generation + 1, excluded.generation), address = excluded.address, \
             version = excluded.version, started_ms = excluded.started_ms, renewed_ms = excluded.renewed_ms, \
             applied = 0, changed = 0, forgotten = 0, stale_ms = excluded.stale_ms, \
             stale_of = greatest(r.generation + 1, excluded.generation) RETURNING generation"
        );
        let stale = Bind::Number(milliseconds(stale_for));
        let rows = self.ask(&sql, &[Bind::Text(name), Bind::Text(address), Bind::Text(version), stale]).await?;
        let generation: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        let sql = "WITH gone AS (DELETE FROM tunnels WHERE replica = $1 AND EXISTS \
                   (SELECT 1 FROM replicas WHERE name = $1 AND generation = $2)) SELECT count(pg_notify($3, 'look'))";
        self.ask(sql, &[Bind::Text(name), Bind::Number(generation), Bind::Text(REPLICAS)]).await?;
        Ok(generation)
    }

    /// Writes what the others compare of this start's settings, and has them look at it.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn write_settings(&mut self, start: Start<'_>, settings: &str) -> Result<(), StoreError> {
        let sql = "WITH own AS (UPDATE replicas SET settings = $3, settings_of = generation \
                   WHERE name = $1 AND generation = $2 RETURNING name) SELECT count(pg_notify($4, 'look')) FROM own";
        let binds =
            [Bind::Text(start.name), Bind::Number(start.generation), Bind::Text(settings), Bind::Text(REPLICAS)];
        self.ask(sql, &binds).await.map(drop)
    }

    /// Renews a lease and reads all rows: one statement.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn renew(&mut self, start: Start<'_>, applied: i64, lease: Duration) -> Result<Renewal, StoreError> {
        let sql = format!(
            "WITH own AS (UPDATE replicas SET renewed_ms = {NOW}, applied = greatest(applied, $4) \
             WHERE name = $1 AND generation = $2 RETURNING name) \
             SELECT (SELECT count(*) FROM own) AS renewed, v.revision, \
             (SELECT coalesce(sum(version), 0)::bigint FROM documents) AS documents, {STALE} AS stale_ms, {} \
             FROM revisions v LEFT JOIN replicas r ON true ORDER BY r.name LIMIT $5",
            columns("$3")
        );
        let lease = milliseconds(lease);
        let binds = [
            Bind::Text(start.name),
            Bind::Number(start.generation),
            Bind::Number(lease),
            Bind::Number(applied),
            Bind::Number(MOST_ROWS),
        ];
        let found = self.ask(&sql, &binds).await?;
        let mut renewal = Renewal { renewed: false, rows: Vec::new(), revision: 0, documents: 0 };
        for row in &found {
            renewal.renewed = row.try_get::<i64, _>("renewed")? == 1;
            renewal.revision = row.try_get("revision")?;
            renewal.documents = row.try_get("documents")?;
            if row.try_get::<Option<String>, _>("name")?.is_some() {
                renewal.rows.push(self::row(row)?);
            }
        }
        Ok(renewal)
    }

    /// Notes what this start has applied, and tells the others at once.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn tell(&mut self, start: Start<'_>, changed: i64, applied: i64) -> Result<(), StoreError> {
        let told = start.told(changed, applied);
        let sql = "WITH own AS (UPDATE replicas SET applied = greatest(applied, $3) \
                   WHERE name = $1 AND generation = $2 RETURNING name) SELECT count(pg_notify($4, $5)) FROM own";
        let binds = [
            Bind::Text(start.name),
            Bind::Number(start.generation),
            Bind::Number(applied),
            Bind::Text(REPLICAS),
            Bind::Text(&told),
        ];
        self.ask(sql, &binds).await.map(drop)
    }

    /// Writes tunnels of clusters, each under the number that it has, and tells the others. Whether this start's row
    /// is still there.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn write_tunnels(
        &mut self,
        start: Start<'_>,
        applied: i64,
        tunnels: &[Held],
    ) -> Result<bool, StoreError> {
        let Some(last) = tunnels.last().map(|held| held.changed) else { return Ok(true) };
        let rows: Vec<_> = tunnels
            .iter()
            .map(|held| json!({"k": held.key.hex(), "u": held.users, "o": held.others, "c": held.changed}))
            .collect();
        let rows = serde_json::Value::from(rows).to_string();
        let told = start.told(last, applied);
        let sql = format!(
            "WITH own AS (UPDATE replicas SET changed = $3 WHERE name = $1 AND generation = $2 RETURNING name), \
             written AS (INSERT INTO tunnels (replica, cluster_key, takes_users, takes_none, changed, since_ms) \
             SELECT own.name, t.k, t.u, t.o, t.c, {NOW} \
             FROM own, json_to_recordset($4::text::json) AS t(k text, u bigint, o bigint, c bigint) \
             ON CONFLICT (replica, cluster_key) DO UPDATE SET takes_users = excluded.takes_users, \
             takes_none = excluded.takes_none, changed = excluded.changed) \
             SELECT count(pg_notify($5, $6)) FROM own"
        );
        let binds = [
            Bind::Text(start.name),
            Bind::Number(start.generation),
            Bind::Number(last),
            Bind::Text(&rows),
            Bind::Text(REPLICAS),
            Bind::Text(&told),
        ];
        let found = self.ask(&sql, &binds).await?;
        Ok(found.first().map(|row| row.try_get::<i64, _>(0)).transpose()? == Some(1))
    }

    /// Deletes rows of clusters without a tunnel that have changed up to a number.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn forget_tunnels(&mut self, start: Start<'_>, upto: i64) -> Result<(), StoreError> {
        let sql = "WITH own AS (UPDATE replicas SET forgotten = greatest(forgotten, $3) \
                   WHERE name = $1 AND generation = $2 RETURNING name) \
                   DELETE FROM tunnels WHERE replica IN (SELECT name FROM own) AND changed <= $3 \
                   AND takes_users = 0 AND takes_none = 0";
        self.ask(sql, &[Bind::Text(start.name), Bind::Number(start.generation), Bind::Number(upto)]).await.map(drop)
    }

    /// What of a start's tunnels has changed since a number, up to [`TUNNELS_AT_ONCE`] in the order of their numbers.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn tunnels(&mut self, start: Start<'_>, since: i64) -> Result<Vec<Held>, StoreError> {
        let sql = "SELECT t.cluster_key, t.takes_users, t.takes_none, t.changed FROM replicas r \
                   JOIN tunnels t ON t.replica = r.name WHERE r.name = $1 AND r.generation = $2 \
                   AND t.changed > $3 ORDER BY t.changed LIMIT $4";
        let most = i64::from(TUNNELS_AT_ONCE);
        let binds = [Bind::Text(start.name), Bind::Number(start.generation), Bind::Number(since), Bind::Number(most)];
        let held = |row: &AnyRow| {
            let key: String = row.try_get(0)?;
            let key = ClusterKey::from_hex(key.as_bytes())
                .ok_or_else(|| StoreError::Row { table: "tunnels", reason: format!("the key {key}") })?;
            let count = |at| Ok::<_, StoreError>(u16::try_from(row.try_get::<i64, _>(at)?).unwrap_or(u16::MAX));
            Ok(Held { key, users: count(1)?, others: count(2)?, changed: row.try_get(3)? })
        };
        self.ask(sql, &binds).await?.iter().map(held).collect()
    }

    /// Deletes rows that have not been renewed since they were found to be old, with all that belongs to them.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn sweep(&mut self, old: &[Unrenewed]) -> Result<(), StoreError> {
        if old.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> =
            old.iter().map(|row| json!({"n": row.name, "g": row.generation, "r": row.renewed_ms})).collect();
        let rows = serde_json::Value::from(rows).to_string();
        let sql = "WITH old AS (DELETE FROM replicas USING json_to_recordset($1::text::json) AS o(n text, g bigint, r bigint) \
                   WHERE name = o.n AND generation = o.g AND renewed_ms = o.r RETURNING name) \
                   DELETE FROM tunnels WHERE replica IN (SELECT name FROM old)";
        self.ask(sql, &[Bind::Text(&rows)]).await.map(drop)
    }

    /// Gives a lease back, with all that belongs to it.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub async fn leave(&mut self, start: Start<'_>) -> Result<(), StoreError> {
        let sql = "WITH own AS (DELETE FROM replicas WHERE name = $1 AND generation = $2 RETURNING name), \
                   gone AS (DELETE FROM tunnels WHERE replica IN (SELECT name FROM own)) \
                   SELECT count(pg_notify($3, 'look')) FROM own";
        self.ask(sql, &[Bind::Text(start.name), Bind::Number(start.generation), Bind::Text(REPLICAS)]).await.map(drop)
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn stale_for(milliseconds: Option<i64>) -> Option<Duration> {
    milliseconds.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}

fn row(row: &AnyRow) -> Result<Row, StoreError> {
    Ok(Row {
        name: row.try_get("name")?,
        generation: row.try_get("generation")?,
        address: row.try_get("address")?,
        version: row.try_get("version")?,
        started_ms: row.try_get("started_ms")?,
        renewed_ms: row.try_get("renewed_ms")?,
        applied: row.try_get("applied")?,
        changed: row.try_get("changed")?,
        forgotten: row.try_get("forgotten")?,
        alive: row.try_get::<i64, _>("alive")? == 1,
        age_ms: row.try_get("age_ms")?,
        stale_for: stale_for(row.try_get("stale_ms").unwrap_or(None)),
        settings: row.try_get("settings")?,
    })
}

/// Hears what the database tells. Reconnects by itself; [`Told::Look`] says that something may have been missed.
pub struct Ear {
    listener: PgListener,
    address: Address,
}

/// How long an ear that hears nothing waits before it makes sure that its connection is alive.
const SILENCE: Duration = Duration::from_secs(30);

impl Ear {
    /// Connects.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn open(address: &Address) -> Result<Self, StoreError> {
        let opened = async {
            let mut listener = PgListener::connect(&address.url()).await?;
            // It would connect anew with the password of now.
            listener.eager_reconnect(false);
            listener.listen_all([REVISIONS, DOCUMENTS, REPLICAS]).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match tokio::time::timeout(STATEMENT, opened).await {
            Ok(listener) => Ok(Self { listener: listener?, address: address.clone() }),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    /// The next that is told.
    ///
    /// # Errors
    /// When the connection is lost and cannot be made again at once: open another.
    pub async fn hear(&mut self) -> Result<Told, StoreError> {
        loop {
            match tokio::time::timeout(SILENCE, self.listener.try_recv()).await {
                Ok(Ok(Some(told))) => return Ok(Told::parse(told.channel(), told.payload())),
                Ok(Ok(None)) => {
                    *self = Self::open(&self.address).await?;
                    return Ok(Told::Look);
                }
                Ok(Err(error)) => return Err(error.into()),
                // A peer that is gone without a word is only noticed by asking it.
                Err(_) => {
                    let asked = sqlx::query("SELECT 1").execute(&mut self.listener);
                    match tokio::time::timeout(STATEMENT, asked).await {
                        Ok(done) => done.map(drop)?,
                        Err(_) => return Err(sqlx::Error::PoolTimedOut.into()),
                    }
                }
            }
        }
    }
}

/// What a replica has applied, and whether it may answer users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its name.
    pub name: String,
    /// Which of its starts.
    pub generation: i64,
    /// The newest revision that its decisions know.
    pub applied: i64,
    /// When it renewed its lease last, milliseconds since 1970 by the database's clock.
    pub renewed_ms: i64,
    /// Whether its lease lasts. It cannot read what is written where not.
    pub alive: bool,
    /// Whether that is so, or the lease ended so lately that it may go on with what it knows.
    pub serves: bool,
    /// How long it goes on once its lease has ended; `None` where it does not say.
    pub stale_for: Option<Duration>,
}

/// A row of a replica that is old, as it was when that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrenewed {
    /// The replica's name.
    pub name: String,
    /// Which of its starts.
    pub generation: i64,
    /// When its lease was renewed last.
    pub renewed_ms: i64,
}

/// What of the rows an operator is shown: the rows, the newest revision, and tunnels by replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// All replicas whose rows are there.
    pub rows: Vec<Row>,
    /// The store's newest revision.
    pub revision: i64,
    /// Names of replicas, and how many tunnels and clusters with tunnels each has.
    pub tunnels: Vec<(String, i64, i64)>,
}

impl Store {
    /// Names of the replicas whose leases last, by the database's clock. Opens no store and changes nothing; of a file
    /// none, which has no leases.
    ///
    /// # Errors
    /// When the database cannot be reached or read.
    pub async fn running(url: &str, lease: Duration) -> Result<Vec<String>, StoreError> {
        let mut running = Vec::new();
        // It may not be there yet.
        if url.starts_with("sqlite:") {
            return Ok(running);
        }
        let mut connection = look::connect(url).await?;
        if look::has_table(&mut connection, "replicas").await? {
            let sql = format!("SELECT name FROM replicas r WHERE {} ORDER BY name LIMIT $2", lasts("$1"));
            let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(lease).bind(MOST_ROWS);
            running = query.fetch_all(&mut connection).await?;
        }
        connection.close().await?;
        Ok(running)
    }

    /// What all replicas have applied whose rows are there, and which of them may answer users by the database's clock:
    /// those whose leases last, and those whose leases ended so lately that they go on with what they know. `stale`: how
    /// long one does that which does not say.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn applied_by_replicas(&self, lease: Duration, stale: Duration) -> Result<Vec<Applied>, StoreError> {
        let (alive, serves) = (lasts("$1"), lasts(&format!("$1 + coalesce({STALE}, $2)")));
        let sql = format!(
            "SELECT name, generation, applied, renewed_ms, CASE WHEN {alive} THEN 1 ELSE 0 END::bigint, \
             CASE WHEN {serves} THEN 1 ELSE 0 END::bigint, {STALE} FROM replicas r ORDER BY name LIMIT $3"
        );
        let query =
            sqlx::query(sqlx::AssertSqlSafe(sql)).bind(milliseconds(lease)).bind(milliseconds(stale)).bind(MOST_ROWS);
        let applied = |row: &AnyRow| {
            Ok(Applied {
                name: row.try_get(0)?,
                generation: row.try_get(1)?,
                applied: row.try_get(2)?,
                renewed_ms: row.try_get(3)?,
                alive: row.try_get::<i64, _>(4)? == 1,
                serves: row.try_get::<i64, _>(5)? == 1,
                stale_for: stale_for(row.try_get(6)?),
            })
        };
        query.fetch_all(&self.readers).await?.iter().map(applied).collect()
    }

    /// All replicas, for operators.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn replicas_overview(&self, lease: Duration) -> Result<Overview, StoreError> {
        let mut overview = Overview { rows: Vec::new(), revision: self.revision().await?, tunnels: Vec::new() };
        let sql = format!("SELECT {} FROM replicas r ORDER BY r.name", columns("$1"));
        let lease = milliseconds(lease);
        for found in sqlx::query(sqlx::AssertSqlSafe(sql)).bind(lease).fetch_all(&self.readers).await? {
            overview.rows.push(row(&found)?);
        }
        let sql = "SELECT replica, sum(takes_users + takes_none)::bigint, count(*)::bigint FROM tunnels \
                   WHERE takes_users + takes_none > 0 GROUP BY replica ORDER BY replica";
        for found in sqlx::query(sql).fetch_all(&self.readers).await? {
            overview.tunnels.push((found.try_get(0)?, found.try_get(1)?, found.try_get(2)?));
        }
        Ok(overview)
    }

    /// Tells this process's follower of documents that they were changed.
    pub fn documents_changed(&self) {
        self.documents.notify_one();
    }

    /// Completes when documents were changed since the last time. For one who follows them, and looks from time to time
    /// all the same: it is only told where what the database tells is heard.
    pub async fn documents_change(&self) {
        self.documents.notified().await;
    }

    /// Tells this process's followers of a revision that another process wrote.
    pub fn written_elsewhere(&self, revision: i64) {
        self.committed(revision);
    }
}

/// Tells other processes of a write, when it is committed.
pub(super) async fn announce(connection: &mut AnyConnection, revision: i64) -> Result<(), StoreError> {
    let sql = "SELECT count(pg_notify($1, $2))";
    sqlx::query(sql).bind(REVISIONS).bind(revision.to_string()).execute(connection).await?;
    Ok(())
}

/// Tells other processes that documents have changed, when it is committed.
pub(super) async fn announce_documents(connection: &mut AnyConnection) -> Result<(), StoreError> {
    sqlx::query("SELECT count(pg_notify($1, ''))").bind(DOCUMENTS).execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_what_is_told_is_read_and_anything_else_makes_one_look() {
        assert_eq!(Told::parse(REVISIONS, "17"), Told::Revision(17));
        assert_eq!(Told::parse(DOCUMENTS, ""), Told::Documents);
        let told = Told::Replica { name: "a".to_owned(), generation: 3, changed: 4, applied: 5 };
        assert_eq!(Told::parse(REPLICAS, "a 3 4 5"), told);
        for odd in ["look", "", "a 3 4", "a x 4 5"] {
            assert_eq!(Told::parse(REPLICAS, odd), Told::Look, "{odd:?}");
        }
        assert_eq!(Told::parse(REVISIONS, "x"), Told::Look);
    }
}
