//! What happens to clusters, as events: created, another status, deleted. They are numbered without a gap
//! in the order in which they become visible, and kept, so many at most; who follows asks for those behind a number.
//!
//! Each resource group keeps a share of them, so that clusters which come and go in one do not push out the events of
//! all others. What a group is over its share it loses of its own, the oldest first. Beyond all that are kept, the
//! subscription with most of them loses its oldest: one tenant may have many groups. How many there are of each is
//! counted, so that nobody looks through the events for that.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde_json::Value;
use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{Backend, Store, StoreError, Together, is_text, pool::in_time, resources::below};
use crate::store::agents::OFFLINE_AFTER_MS;

/// Events that are kept. Of more than that, the subscription with most of them loses its oldest.
pub const KEPT: i64 = 100_000;
/// Events that are kept of one resource group: ten thousand clusters that go away and come back are less.
pub const KEPT_OF_GROUP: i64 = KEPT / 4;
/// Events that one transaction tells at most, of each table.
const AT_ONCE: i64 = 500;

/// What has happened to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number, from 1.
    pub number: i64,
    /// The cluster's id in lower case.
    pub key: String,
    /// The cluster's id as it was created.
    pub id: String,
    /// What happened to the cluster.
    pub kind: Kind,
    /// When it was noticed: milliseconds since 1970.
    pub at_ms: i64,
    /// The status since then; none of one that was deleted, also before anybody was told that it was created.
    pub status: Option<String>,
    /// The status before; none of one that was created.
    pub before: Option<String>,
    /// What else is told, an object.
    pub detail: Option<Value>,
}

/// Statements about what was told last of a cluster's agents.
#[derive(Clone, Copy)]
struct LastTold {
    read: &'static str,
    keep: &'static str,
}

/// What is told of a cluster's agents.
#[derive(Debug, Clone)]
pub struct OfAgents<'a> {
    /// [`Kind::AgentVersion`] or [`Kind::AgentUpgrade`].
    pub kind: Kind,
    /// What is so now.
    pub status: &'a str,
    /// What is remembered as told: nothing is told again while it is the same.
    pub mark: &'a str,
    /// What else is told, an object.
    pub detail: Value,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The resource was created.
    Created,
    /// Its status is another one.
    Connectivity,
    /// The resource is gone.
    Deleted,
    /// The version of its agents fits the gateway otherwise than before.
    AgentVersion,
    /// An upgrade of its agents has come to another state.
    AgentUpgrade,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::Connectivity, Self::Deleted, Self::AgentVersion, Self::AgentUpgrade];

    /// The word in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Connectivity => "connectivity",
            Self::Deleted => "deleted",
            Self::AgentVersion => "agentversion",
            Self::AgentUpgrade => "agentupgrade",
        }
    }
}

/// `connectivity::Status::of`, of what is kept, at `$1`; `$2` is 15 minutes before that.
const STATUS: &str = "CASE WHEN a.certificate_ends_ms <= $1 THEN 'Expired' WHEN a.last_seen_ms > $2 THEN 'Connected' \
                      WHEN a.agentless = 1 THEN 'AgentNotInstalled' WHEN a.last_seen_ms IS NULL THEN 'Connecting' \
                      ELSE 'Offline' END";

/// What may have another status than was told: by time or by a write, for each status that was told. Each part has an
/// index, and together they leave nobody out; whether the status really is another one is then asked of these alone. Of
/// ten thousand clusters few change within two seconds.
const CANDIDATES: [&str; 13] = [
    "told_status IS NULL",
    "told_status = 'Expired' AND certificate_ends_ms > $1",
    "told_status = 'Expired' AND certificate_ends_ms IS NULL",
    "told_status = 'Connected' AND last_seen_ms <= $2",
    "told_status = 'Connected' AND last_seen_ms IS NULL",
    "told_status = 'Connecting' AND last_seen_ms > -1",
    "told_status = 'Connecting' AND agentless = 1",
    "told_status = 'Offline' AND last_seen_ms > $2",
    "told_status = 'Offline' AND last_seen_ms IS NULL",
    "told_status = 'Offline' AND agentless = 1",
    "told_status = 'AgentNotInstalled' AND last_seen_ms > $2",
    "told_status = 'AgentNotInstalled' AND agentless = 0",
    "told_status IN ('Connected', 'Connecting', 'Offline', 'AgentNotInstalled') AND certificate_ends_ms <= $1",
];

const COLUMNS: &str = "SELECT number, resource_key, id, kind, at_ms, status, before, detail FROM events";
pub(super) const BEHIND: &str = "WHERE number > $1 ORDER BY number LIMIT $2";
pub(super) const OF_CLUSTER: &str = "WHERE resource_key = $3 AND number > $1 ORDER BY number LIMIT $2";
pub(super) const OF_SUBSCRIPTION: &str = "WHERE subscription_key = $3 AND number > $1 ORDER BY number LIMIT $2";
pub(super) const OF_GROUP: &str = "WHERE group_key = $3 AND number > $1 ORDER BY number LIMIT $2";
/// The oldest event, and some of the oldest of a resource group and of a subscription.
pub(super) const OLDEST: &str = "SELECT number FROM events ORDER BY number LIMIT 1";
pub(super) const OLDEST_OF_GROUP: &str =
    "SELECT number, group_key FROM events WHERE group_key = $1 ORDER BY number LIMIT $2";
pub(super) const OLDEST_OF_SUBSCRIPTION: &str =
    "SELECT number, group_key FROM events WHERE subscription_key = $1 ORDER BY number LIMIT $2";
/// Those that a replica of the version before wrote, which knows of no subscriptions.
pub(super) const OF_NO_SUBSCRIPTION: &str = "SELECT number FROM events WHERE subscription_key = '' LIMIT 1";
/// What is counted of a resource group, and of a subscription.
pub(super) const COUNTED_OF_GROUP: &str = "SELECT kept, forgotten FROM event_groups WHERE group_key = $1";
pub(super) const COUNTED_OF_SUBSCRIPTION: &str =
    "SELECT kept, forgotten FROM event_subscriptions WHERE subscription_key = $1";
/// The number up to which events of some group of a subscription may have been forgotten for the group's share.
pub(super) const FORGOTTEN_OF_GROUPS: &str =
    "SELECT COALESCE(MAX(forgotten), 0) FROM event_groups WHERE group_key >= $1 AND group_key < $2";

/// What was told last of a cluster's agents. Nobody is told that a version fits before it did not.
pub(super) const TOLD_VERSION: &str = "SELECT r.id, COALESCE(a.told_version, 'Current') FROM agents a \
                                       JOIN resources r ON r.resource_key = a.resource_key WHERE a.resource_key = $1";
pub(super) const TOLD_UPGRADE: &str = "SELECT r.id, a.told_upgrade FROM agents a \
                                       JOIN resources r ON r.resource_key = a.resource_key WHERE a.resource_key = $1";

/// Whose events are asked for.
#[derive(Debug, Clone, Copy)]
pub enum Of<'a> {
    /// Those of all clusters.
    All,
    /// Those of clusters in a subscription, by its key.
    Subscription(&'a str),
    /// Those of clusters in a resource group, by its key.
    Group(&'a str),
    /// Those of one cluster, by its key.
    Cluster(&'a str),
}

/// The statement that reads events.
pub(super) fn selected(rest: &str) -> String {
    format!("{COLUMNS} {rest}")
}

/// The statement that finds clusters whose status is another one than was told.
pub(super) fn untold(columns: &str, rest: &str) -> String {
    let candidates = CANDIDATES.map(|part| format!("SELECT resource_key FROM agents WHERE {part}")).join(" UNION ALL ");
    format!(
        "SELECT {columns} FROM agents a JOIN resources r ON r.resource_key = a.resource_key \
         WHERE a.resource_key IN ({candidates}) AND (a.told_status IS NULL OR a.told_status <> {STATUS}) {rest}"
    )
}

/// The statement that asks for the newest number, and whether there is something to tell.
fn is_untold() -> String {
    let status = untold("a.agentless", "");
    format!(
        "SELECT n.newest, CAST(CASE WHEN EXISTS (SELECT 1 FROM departed) \
         OR EXISTS ({OF_NO_SUBSCRIPTION}) OR EXISTS ({status}) THEN 1 ELSE 0 END AS BIGINT) \
         FROM event_numbers n"
    )
}

/// The table of what operators have said of upgrades.
pub(super) const UPGRADES: &str = "upgrades";

/// What operators have said of upgrades of the fleet's agents.
pub(super) async fn upgrades(connection: &mut AnyConnection) -> Result<Option<Value>, StoreError> {
    let row = sqlx::query("SELECT state FROM upgrades WHERE place = 1").fetch_optional(connection).await?;
    let text: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
    let wrong = |error| StoreError::Row { table: UPGRADES, reason: format!("the state: {error}") };
    text.map(|text| serde_json::from_str(&text).map_err(wrong)).transpose()
}

impl Store {
    /// Tells what has happened since it was told last, at an instant. How many events that are.
    pub async fn tell(&self, now_ms: i64) -> Result<usize, StoreError> {
        Ok(self.tell_all(now_ms).await?.0)
    }

    /// The same, with the number of the newest event then, whoever told it. One statement while nothing happens.
    pub async fn tell_all(&self, now_ms: i64) -> Result<(usize, i64), StoreError> {
        let mut told = 0;
        loop {
            let (is_untold, newest) = self.untold(now_ms).await?;
            let some = if is_untold { repeated!(self.tell_some(now_ms))? } else { 0 };
            told += some;
            if some == 0 {
                return Ok((told, newest));
            }
        }
    }

    /// Whether there is something to tell, for which no writer waits, and the number of the newest event.
    async fn untold(&self, now_ms: i64) -> Result<(bool, i64), StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(is_untold())).bind(now_ms).bind(now_ms - OFFLINE_AFTER_MS);
        let row = query.fetch_one(&self.readers).await?;
        Ok((row.try_get::<i64, _>(1)? == 1, row.try_get(0)?))
    }

    async fn tell_some(&self, now_ms: i64) -> Result<usize, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        let sql = "UPDATE event_numbers SET newest = newest RETURNING newest";
        let before: i64 = sqlx::query(sql).fetch_one(&mut *connection).await?.try_get(0)?;
        let (mut newest, mut told_of) = (before, BTreeMap::new());
        for mut event in departures(&mut *connection, now_ms).await? {
            newest += 1;
            event.number = newest;
            *told_of.entry(group_of(&event.key).to_owned()).or_default() += 1;
            put(&mut *connection, &event).await?;
        }
        let columns = format!("a.resource_key, r.id, a.told_status, {STATUS} AS status");
        let sql = untold(&columns, &format!("ORDER BY a.resource_key LIMIT {AT_ONCE}"));
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(now_ms)
            .bind(now_ms - OFFLINE_AFTER_MS)
            .fetch_all(&mut *connection)
            .await?;
        for row in &rows {
            newest += 1;
            let told: Option<String> = row.try_get("told_status")?;
            let status: String = row.try_get("status")?;
            let key: String = row.try_get("resource_key")?;
            let sql = "UPDATE agents SET told_status = $1, told_ms = $2 WHERE resource_key = $3";
            sqlx::query(sql).bind(&status).bind(now_ms).bind(&key).execute(&mut *connection).await?;
            let kind = if told.is_some() { Kind::Connectivity } else { Kind::Created };
            let id = row.try_get("id")?;
            *told_of.entry(group_of(&key).to_owned()).or_default() += 1;
            let event = Event {
                number: newest,
                key,
                id,
                kind,
                at_ms: now_ms,
                status: Some(status),
                before: told,
                detail: None,
            };
            put(&mut *connection, &event).await?;
        }
        sqlx::query("UPDATE event_numbers SET newest = $1").bind(newest).execute(&mut *connection).await?;
        self.keep_shares(&mut *connection, told_of, true).await?;
        together.commit().await?;
        usize::try_from(newest - before).map_err(|_| broken("the newest number"))
    }

    /// Tells something of a cluster's agents, unless it is what was told last. Whether it was told now.
    pub async fn tell_of_agents(&self, key: &str, told: &OfAgents<'_>, now_ms: i64) -> Result<bool, StoreError> {
        let last = match told.kind {
            Kind::AgentUpgrade => {
                LastTold { read: TOLD_UPGRADE, keep: "UPDATE agents SET told_upgrade = $1 WHERE resource_key = $2" }
            }
            _ => LastTold { read: TOLD_VERSION, keep: "UPDATE agents SET told_version = $1 WHERE resource_key = $2" },
        };
        if !is_text(key) || !is_text(told.mark) || !is_text(told.status) {
            return Err(broken("what is told of agents"));
        }
        // Most often nothing is to be told, for which no writer waits.
        let known = sqlx::query(last.read).bind(key).fetch_optional(&self.readers).await?;
        if known.is_none_or(|row| row.try_get::<Option<String>, _>(1).ok().flatten().as_deref() == Some(told.mark)) {
            return Ok(false);
        }
        repeated!(self.try_to_tell_of_agents(key, told, now_ms, last))
    }

    async fn try_to_tell_of_agents(
        &self,
        key: &str,
        told: &OfAgents<'_>,
        now_ms: i64,
        last: LastTold,
    ) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        let sql = "UPDATE event_numbers SET newest = newest RETURNING newest";
        let newest: i64 = sqlx::query(sql).fetch_one(&mut *connection).await?.try_get(0)?;
        let row = sqlx::query(last.read).bind(key).fetch_optional(&mut *connection).await?;
        let known: Option<(String, Option<String>)> =
            row.map(|row| Ok::<_, StoreError>((row.try_get(0)?, row.try_get(1)?))).transpose()?;
        let Some((id, before)) = known.filter(|(_, before)| before.as_deref() != Some(told.mark)) else {
            together.roll_back().await?;
            return Ok(false);
        };
        sqlx::query(last.keep).bind(told.mark).bind(key).execute(&mut *connection).await?;
        let number = newest + 1;
        // A mark of an upgrade begins with its version.
        let before = before.and_then(|mark| mark.split(' ').next_back().map(str::to_owned));
        let event = Event {
            number,
            key: key.to_owned(),
            id,
            kind: told.kind,
            at_ms: now_ms,
            status: Some(told.status.to_owned()),
            before,
            detail: Some(told.detail.clone()),
        };
        put(&mut *connection, &event).await?;
        sqlx::query("UPDATE event_numbers SET newest = $1").bind(number).execute(&mut *connection).await?;
        self.keep_shares(&mut *connection, BTreeMap::from([(group_of(key).to_owned(), 1)]), false).await?;
        together.commit().await?;
        Ok(true)
    }

    /// What operators have said of upgrades of the fleet's agents.
    pub async fn upgrades(&self) -> Result<Option<Value>, StoreError> {
        in_time(async { upgrades(&mut *self.readers.acquire().await?).await }).await
    }

    /// Keeps what operators have said of them, where it was `from` until now. False where somebody else has said something
    /// meanwhile. Every batch that is applied from here on sees it.
    pub async fn put_upgrades(&self, from: Option<&Value>, state: &Value) -> Result<bool, StoreError> {
        repeated!(self.try_to_put_upgrades(from, state))
    }

    async fn try_to_put_upgrades(&self, from: Option<&Value>, state: &Value) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        // Batches take the same lock: what one of them has read here stays so until its end.
        sqlx::query("UPDATE revisions SET revision = revision").execute(&mut *connection).await?;
        if upgrades(&mut *connection).await?.as_ref() != from {
            together.roll_back().await?;
            return Ok(false);
        }
        let sql = "INSERT INTO upgrades (place, state) VALUES (1, $1) \
                   ON CONFLICT (place) DO UPDATE SET state = excluded.state";
        sqlx::query(sql).bind(state.to_string()).execute(&mut *connection).await?;
        together.commit().await?;
        Ok(true)
    }

    /// Up to `rows` events behind a number, oldest first.
    pub async fn events(&self, of: Of<'_>, after: i64, rows: u32) -> Result<Vec<Event>, StoreError> {
        let (rest, key) = match of {
            Of::All => (BEHIND, None),
            Of::Subscription(key) => (OF_SUBSCRIPTION, Some(key)),
            Of::Group(key) => (OF_GROUP, Some(key)),
            Of::Cluster(key) => (OF_CLUSTER, Some(key)),
        };
        if key.is_some_and(|key| !is_text(key)) {
            return Ok(Vec::new());
        }
        let query = sqlx::query(sqlx::AssertSqlSafe(selected(rest))).bind(after).bind(i64::from(rows));
        let rows = key.into_iter().fold(query, |query, key| query.bind(key)).fetch_all(&self.readers).await?;
        rows.iter().map(event).collect()
    }

    /// The number of the newest event, 0 before the first.
    pub async fn newest_event(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query("SELECT newest FROM event_numbers").fetch_one(&self.readers).await?.try_get(0)?)
    }

    /// The number up to which events may have been forgotten, of a group also for its share and for that of its
    /// subscription, and of a subscription also for the shares of its groups.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn forgotten(&self, of: Of<'_>) -> Result<i64, StoreError> {
        let oldest = sqlx::query(OLDEST).fetch_optional(&self.readers).await?;
        let Some(oldest) = oldest else { return self.newest_event().await };
        let before_all = oldest.try_get::<i64, _>(0)? - 1;
        let (subscription, group) = match of {
            Of::All => return Ok(before_all),
            Of::Subscription(key) => (subscription_of(key), None),
            Of::Group(key) | Of::Cluster(key) => (subscription_of(key), Some(group_of(key))),
        };
        if !is_text(subscription) || group.is_some_and(|group| !is_text(group)) {
            return Ok(before_all);
        }
        let row = sqlx::query(COUNTED_OF_SUBSCRIPTION).bind(subscription).fetch_optional(&self.readers).await?;
        let of_subscription = row.map(|row| row.try_get("forgotten")).transpose()?.unwrap_or(0);
        let of_groups: i64 = match group {
            Some(group) => {
                let row = sqlx::query(COUNTED_OF_GROUP).bind(group).fetch_optional(&self.readers).await?;
                row.map(|row| row.try_get("forgotten")).transpose()?.unwrap_or(0)
            }
            None => {
                let (_, to) = below(subscription);
                let query = sqlx::query(FORGOTTEN_OF_GROUPS).bind(subscription).bind(to);
                query.fetch_one(&self.readers).await?.try_get(0)?
            }
        };
        Ok(before_all.max(of_subscription).max(of_groups))
    }

    /// Adds new events to the counts of their resource groups and subscriptions, then deletes the oldest events of
    /// those that exceed their shares. The caller has locked the row of `event_numbers`, so that only one process
    /// counts at a time.
    async fn keep_shares(
        &self,
        connection: &mut AnyConnection,
        told_of: BTreeMap<String, i64>,
        may_count_anew: bool,
    ) -> Result<(), StoreError> {
        let mut groups: BTreeSet<String> = told_of.keys().cloned().collect();
        if may_count_anew && sqlx::query(OF_NO_SUBSCRIPTION).fetch_optional(&mut *connection).await?.is_some() {
            // What a replica of the version before told, it did not count, and neither what it forgot. It is one look at
            // all events, so that agents that say something do not wait for it.
            sqlx::raw_sql(self.named()).execute(&mut *connection).await?;
            groups.extend(recount(connection).await?);
        } else {
            for (group, count) in told_of {
                let subscription = subscription_of(&group);
                sqlx::query(COUNT_GROUP).bind(&group).bind(count).execute(&mut *connection).await?;
                sqlx::query(COUNT_SUBSCRIPTION).bind(subscription).bind(count).execute(&mut *connection).await?;
            }
        }
        for group in &groups {
            forget_over_share(&mut *connection, group).await?;
        }
        forget_over_all(connection).await
    }

    /// The statement that gives events their group and subscription that have none.
    fn named(&self) -> &'static str {
        match self.backend {
            Backend::Sqlite => {
                "UPDATE events SET group_key = '', \
                 subscription_key = substr(resource_key, 1, 14 + instr(substr(resource_key, 16) || '/', '/')) \
                 WHERE subscription_key = ''; \
                 UPDATE events SET group_key = CASE \
                 WHEN substr(resource_key, length(subscription_key) + 1, 16) = '/resourcegroups/' \
                 THEN substr(resource_key, 1, length(subscription_key) + 15 \
                 + instr(substr(resource_key, length(subscription_key) + 17) || '/', '/')) \
                 ELSE subscription_key END WHERE group_key = ''"
            }
            Backend::Postgres => {
                "UPDATE events SET subscription_key = '/subscriptions/' || split_part(resource_key, '/', 3), \
                 group_key = '/subscriptions/' || split_part(resource_key, '/', 3) \
                 || CASE WHEN split_part(resource_key, '/', 4) = 'resourcegroups' \
                 THEN '/resourcegroups/' || split_part(resource_key, '/', 5) ELSE '' END \
                 WHERE subscription_key = ''"
            }
        }
    }

    /// Up to which event a webhook has been told. A new one begins with what happens from now on.
    pub async fn webhook(&self, webhook: &str) -> Result<i64, StoreError> {
        if !is_text(webhook) {
            return Err(broken("the name of a webhook"));
        }
        let sql = "INSERT INTO webhooks (webhook, number) SELECT $1, newest FROM event_numbers WHERE newest >= 0 \
                   ON CONFLICT (webhook) DO UPDATE SET number = webhooks.number RETURNING number";
        Ok(sqlx::query(sql).bind(webhook).fetch_one(&self.writers).await?.try_get(0)?)
    }

    /// A webhook has been told up to an event.
    pub async fn set_webhook(&self, webhook: &str, number: i64) -> Result<(), StoreError> {
        let sql = "UPDATE webhooks SET number = $1 WHERE webhook = $2 AND number < $1";
        sqlx::query(sql).bind(number).bind(webhook).execute(&self.writers).await?;
        Ok(())
    }
}

/// Takes those that were deleted and not told of, as events without numbers.
async fn departures(connection: &mut AnyConnection, now_ms: i64) -> Result<Vec<Event>, StoreError> {
    let sql = "SELECT revision, resource_key, id, told_status FROM departed ORDER BY revision, resource_key LIMIT $1";
    let rows = sqlx::query(sql).bind(AT_ONCE).fetch_all(&mut *connection).await?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        let (revision, key): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
        let sql = "DELETE FROM departed WHERE revision = $1 AND resource_key = $2";
        sqlx::query(sql).bind(revision).bind(&key).execute(&mut *connection).await?;
        let (id, before): (String, Option<String>) = (row.try_get(2)?, row.try_get(3)?);
        let gone = Event { number: 0, key, id, kind: Kind::Deleted, at_ms: now_ms, status: None, before, detail: None };
        // One that came and went between two looks came too.
        if gone.before.is_none() {
            events.push(Event { kind: Kind::Created, ..gone.clone() });
        }
        events.push(gone);
    }
    Ok(events)
}

const FORGET_OF_GROUP: &str = "DELETE FROM events WHERE group_key = $1 AND number <= $2";
const FORGET_OF_SUBSCRIPTION: &str = "DELETE FROM events WHERE subscription_key = $1 AND number <= $2";
/// One more row of what is counted, or more of one.
const COUNT_GROUP: &str = "INSERT INTO event_groups (group_key, kept, forgotten) VALUES ($1, $2, 0) \
                           ON CONFLICT (group_key) DO UPDATE SET kept = event_groups.kept + excluded.kept";
const COUNT_SUBSCRIPTION: &str = "INSERT INTO event_subscriptions (subscription_key, kept, forgotten) \
                                  VALUES ($1, $2, 0) ON CONFLICT (subscription_key) \
                                  DO UPDATE SET kept = event_subscriptions.kept + excluded.kept";

/// Counts all events anew. Returns the resource groups that have more than their share.
async fn recount(connection: &mut AnyConnection) -> Result<Vec<String>, StoreError> {
    let cleared = "DELETE FROM event_groups; UPDATE event_subscriptions SET kept = 0";
    sqlx::raw_sql(cleared).execute(&mut *connection).await?;
    // Of a group that has as many as it keeps nobody knows whether it had more.
    let sql = "INSERT INTO event_groups (group_key, kept, forgotten) \
               SELECT group_key, COUNT(*), CASE WHEN COUNT(*) < $1 THEN 0 ELSE MIN(number) - 1 END FROM events \
               GROUP BY group_key";
    sqlx::query(sql).bind(KEPT_OF_GROUP).execute(&mut *connection).await?;
    let sql = "INSERT INTO event_subscriptions (subscription_key, kept, forgotten) \
               SELECT subscription_key, COUNT(*), 0 FROM events WHERE subscription_key <> '' GROUP BY subscription_key \
               ON CONFLICT (subscription_key) DO UPDATE SET kept = excluded.kept";
    sqlx::query(sql).execute(&mut *connection).await?;
    let sql = "SELECT group_key FROM event_groups WHERE kept > $1";
    let rows = sqlx::query(sql).bind(KEPT_OF_GROUP).fetch_all(&mut *connection).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Forgets the oldest events of a resource group that has more than its share.
async fn forget_over_share(connection: &mut AnyConnection, group: &str) -> Result<(), StoreError> {
    let row = sqlx::query(COUNTED_OF_GROUP).bind(group).fetch_optional(&mut *connection).await?;
    let kept: i64 = row.map(|row| row.try_get("kept")).transpose()?.unwrap_or_default();
    if kept <= KEPT_OF_GROUP {
        return Ok(());
    }
    let oldest =
        sqlx::query(OLDEST_OF_GROUP).bind(group).bind(kept - KEPT_OF_GROUP).fetch_all(&mut *connection).await?;
    let Some(last) = forget(connection, FORGET_OF_GROUP, group, &oldest).await? else { return Ok(()) };
    let sql = "UPDATE event_groups SET forgotten = $1 WHERE group_key = $2";
    sqlx::query(sql).bind(last).bind(group).execute(connection).await?;
    Ok(())
}

/// Forgets the oldest events of the subscriptions that have most, if there are more events than are kept.
async fn forget_over_all(connection: &mut AnyConnection) -> Result<(), StoreError> {
    let rows =
        sqlx::query("SELECT subscription_key, kept FROM event_subscriptions").fetch_all(&mut *connection).await?;
    let counted = rows.iter().map(|row| Ok::<(i64, String), StoreError>((row.try_get(1)?, row.try_get(0)?)));
    let counted = counted.collect::<Result<_, _>>()?;
    for (subscription, over) in over_all(counted) {
        let query = sqlx::query(OLDEST_OF_SUBSCRIPTION).bind(&subscription).bind(over);
        let oldest = query.fetch_all(&mut *connection).await?;
        let Some(last) = forget(connection, FORGET_OF_SUBSCRIPTION, &subscription, &oldest).await? else { continue };
        let sql = "UPDATE event_subscriptions SET forgotten = $1 WHERE subscription_key = $2";
        sqlx::query(sql).bind(last).bind(&subscription).execute(&mut *connection).await?;
    }
    Ok(())
}

/// How many events each subscription loses, so that [`KEPT`] remain in all. One at a time is taken from the
/// subscription that then has the most.
fn over_all(counted: Vec<(i64, String)>) -> BTreeMap<String, i64> {
    let all: i64 = counted.iter().map(|(kept, _)| kept).sum();
    let (mut heaviest, mut over) = (BinaryHeap::from(counted), BTreeMap::new());
    for _ in KEPT..all {
        let Some((kept, subscription)) = heaviest.pop() else { break };
        *over.entry(subscription.clone()).or_default() += 1;
        heaviest.push((kept - 1, subscription));
    }
    over
}

/// Forgets the oldest events of a place, which were read with their groups, by a statement with the place's key. The
/// number of the last one.
async fn forget(
    connection: &mut AnyConnection,
    sql: &'static str,
    key: &str,
    oldest: &[AnyRow],
) -> Result<Option<i64>, StoreError> {
    let Some(last) = oldest.last() else { return Ok(None) };
    let last: i64 = last.try_get(0)?;
    sqlx::query(sql).bind(key).bind(last).execute(&mut *connection).await?;
    let mut of_groups = BTreeMap::<String, i64>::new();
    for row in oldest {
        *of_groups.entry(row.try_get(1)?).or_default() += 1;
    }
    for (group, count) in of_groups {
        let subscription = subscription_of(&group);
        sqlx::query(COUNT_GROUP).bind(&group).bind(-count).execute(&mut *connection).await?;
        sqlx::query(COUNT_SUBSCRIPTION).bind(subscription).bind(-count).execute(&mut *connection).await?;
        // What the last one of a group was lost with, its subscription remembers.
        let sql = "DELETE FROM event_groups WHERE group_key = $1 AND kept <= 0";
        sqlx::query(sql).bind(&group).execute(&mut *connection).await?;
    }
    Ok(Some(last))
}

/// The key of the resource group that what has this key is in, or of its subscription if it is in none.
pub(super) fn group_of(key: &str) -> &str {
    let mut slashes = key.match_indices('/').map(|(at, _)| at).skip(2);
    let (third, fourth, fifth) = (slashes.next(), slashes.next(), slashes.next());
    let is_in_group = third.zip(fourth).is_some_and(|(from, to)| &key[from..to] == "/resourcegroups");
    let end = if is_in_group { fifth } else { third };
    end.map_or(key, |end| &key[..end])
}

/// The key of the subscription that what has this key is in.
pub(super) fn subscription_of(key: &str) -> &str {
    key.match_indices('/').nth(2).map_or(key, |(end, _)| &key[..end])
}

/// Notes that clusters go, in the batch in which they do.
pub(super) async fn depart(connection: &mut AnyConnection, revision: i64, key: &str) -> Result<(), StoreError> {
    let (from, to) = below(key);
    let sql = "INSERT INTO departed (revision, resource_key, id, told_status) \
               SELECT $1, a.resource_key, r.id, a.told_status FROM agents a \
               JOIN resources r ON r.resource_key = a.resource_key \
               WHERE a.resource_key = $2 OR (a.resource_key > $3 AND a.resource_key < $4)";
    sqlx::query(sql).bind(revision).bind(key).bind(from).bind(to).execute(connection).await?;
    Ok(())
}

async fn put(connection: &mut AnyConnection, event: &Event) -> Result<(), StoreError> {
    let sql = "INSERT INTO events \
               (number, resource_key, id, kind, at_ms, status, before, group_key, detail, subscription_key) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    sqlx::query(sql)
        .bind(event.number)
        .bind(&event.key)
        .bind(&event.id)
        .bind(event.kind.as_str())
        .bind(event.at_ms)
        .bind(event.status.as_deref())
        .bind(event.before.as_deref())
        .bind(group_of(&event.key))
        .bind(event.detail.as_ref().map(Value::to_string))
        .bind(subscription_of(&event.key))
        .execute(connection)
        .await?;
    Ok(())
}

fn broken(what: &str) -> StoreError {
    StoreError::Row { table: "events", reason: what.to_owned() }
}

fn event(row: &AnyRow) -> Result<Event, StoreError> {
    let kind: String = row.try_get("kind")?;
    Ok(Event {
        number: row.try_get("number")?,
        key: row.try_get("resource_key")?,
        id: row.try_get("id")?,
        kind: Kind::ALL.into_iter().find(|known| known.as_str() == kind).ok_or_else(|| broken("the kind"))?,
        at_ms: row.try_get("at_ms")?,
        status: row.try_get("status")?,
        before: row.try_get("before")?,
        detail: row.try_get::<Option<String>, _>("detail")?.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// The word for a kind, in CloudEvents and in the configuration.
pub fn type_of(kind: Kind) -> String {
    format!("io.towline.cluster.{}", kind.as_str())
}
