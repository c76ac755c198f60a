//! The one way in which resources and operations change: a batch, all of it under one revision or nothing.

use std::borrow::Cow;

use serde_json::Value;
use sqlx::{AnyConnection, Row};

use types::api::id::fold;

use super::{
    Backend, Store, StoreError, Write, agents, events, is_text, logs,
    operations::{self, BeginsAtMost, Claim, Operation, Status},
    parts, replicas,
    resources::{AT_ONCE_BYTES, COUNT_CHILDREN, Stored, below, is_text_of_deleting, revision_of, revisions_of},
    statuses,
};
use crate::{
    answers,
    aside::{GaveWay, held, here},
    random,
};

/// Entries of a batch at most, all four kinds together.
pub const BATCH_ENTRIES: usize = 10_000;

/// Of how many that hold it, one in the other, it is asked whether they are being deleted: more than any id has.
const ANCESTORS: usize = 32;

/// Rows below a key that are read at once.
const ROWS_A_TURN: i64 = 4;
pub(super) const BELOW: &str = "SELECT resource_key, body, CASE WHEN protected IS NULL THEN 0 ELSE 1 END FROM resources \
                                WHERE resource_key > $1 AND resource_key < $2 ORDER BY resource_key LIMIT $3";

/// Member of a body that says at which revision the resource passed to others the last time. The store writes it:
/// replicas have clocks of their own, and it alone knows what was first.
pub const PASSED_AT: &str = "passedAt";

/// Types that exist inside a cluster and not here. What lies at one of them (a role assignment at
/// `<cluster>/namespaces/<name>`, feature Z6) is held by what holds that.
const ELSEWHERE: [&str; 1] = ["namespaces"];

/// Writes that happen together, under one revision, or not at all. Deletes come first, so that a batch can put anew
/// what it deletes; then puts in their order, so that it can put a parent before its child; then operations.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    /// Resources to write. Their `revision` is not looked at; of one that exists only body and protected are replaced.
    pub puts: Vec<(Stored, Expect)>,
    /// Keys to delete, each with everything below it.
    pub deletes: Vec<(String, Expect)>,
    /// Keys below which there must be nothing.
    pub empty: Vec<String>,
    /// Keys of what must be there and stay: what is being deleted does not.
    pub standing: Vec<String>,
    /// Keys of what is as it was read, with the revision that it had then; none: nothing was there. It decided what is
    /// written.
    pub as_read: Vec<(String, Option<i64>)>,
    /// Kinds, in small letters, of which there must be nothing anywhere below this key.
    pub without: Vec<(String, String)>,
    /// Bounds that must hold once all deletes and puts are done.
    pub at_most: Vec<AtMost>,
    /// Operations that begin.
    pub begins: Vec<Operation>,
    /// Bounds on how many operations begin, which must hold with those of this batch.
    pub begins_at_most: Vec<BeginsAtMost>,
    /// Operations that end.
    pub ends: Vec<Ended>,
    /// Until when the protected settings of what is put are kept, by its key; none: it has none any more.
    pub protected_until: Vec<(String, Option<i64>)>,
    /// Keys of what has passed to others: what is below gets identities with other object ids, and its protected settings
    /// go. Each is also put, with [`PASSED_AT`], and this is done last.
    pub renews: Vec<String>,
    /// All of it only while this is what operators have said of upgrades ([`Store::upgrades`]).
    pub said: Option<Option<Value>>,
    /// All of it only while this claim holds.
    pub claim: Option<Claim>,
}

/// A bound on the children of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtMost {
    /// The full type of the children, in small letters.
    pub kind: String,
    /// The key of their parent.
    pub parent: String,
    /// How many there may be.
    pub count: u64,
}

/// The end of an operation that is under way. The first end holds: a batch that would end one again does not happen, so
/// that of two who carry out the same operation only one does.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The operation's name.
    pub id: String,
    /// The status that the operation ended with.
    pub status: Status,
    /// ARM's error body, if it failed.
    pub error: Option<Value>,
    /// When: milliseconds since 1970.
    pub now_ms: i64,
}

/// What a writer expects to find: who read before is told when somebody else wrote meanwhile, so that no update is
/// lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing of that key.
    Absent,
    /// The version that was read.
    Revision(i64),
    /// Whatever is there or is not.
    Any,
}

/// What a batch has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The revision of all of it; the newest there was if no resource changed. Who follows the changes up to it has
    /// seen it.
    pub revision: i64,
    /// How many resources went, with those that they held.
    pub deleted: u64,
}

/// Why a batch did not happen, though the database would have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not what was expected: read again. Also of an operation that has ended, or is forgotten.
    #[error("{key} was changed meanwhile")]
    Changed {
        /// Which: the key of a resource, or the name of an operation.
        key: String,
        /// The version there is now.
        found: Option<i64>,
    },
    /// The resource still holds others.
    #[error("{key} holds something")]
    NotEmpty {
        /// Key of the resource that was to be deleted.
        key: String,
    },
    /// With what was to be put its parent would hold more than it may ([`Batch::at_most`]).
    #[error("{parent} would hold too many {kind}")]
    Full {
        /// Full type of the children that are bounded, in small letters.
        kind: String,
        /// Key of the parent.
        parent: String,
    },
    /// With what was to begin, more operations would have begun at a place than may within 24 hours
    /// ([`Batch::begins_at_most`]).
    #[error("more than {most} operations would have begun within 24 hours at {place}")]
    TooManyOperations {
        /// Key of the resource group or the subscription.
        place: String,
        /// How many may begin there.
        most: u64,
        /// When some of those that have begun count no longer, milliseconds since 1970.
        room_ms: i64,
    },
    /// What would hold it does not exist (any more).
    #[error("what would hold {key} does not exist")]
    NoParent {
        /// Key of the resource that was to be written.
        key: String,
    },
}

/// A statement did its part, the batch cannot happen, or the database failed.
type Step<T> = Result<Result<T, Refused>, StoreError>;

impl Store {
    /// Does all of a batch, durably once this returns, or nothing. An empty one is nothing, at the newest revision.
    ///
    /// A caller that goes away while this runs does not learn whether it happened.
    pub async fn apply(&self, batch: &Batch) -> Result<Result<Applied, Refused>, StoreError> {
        check(batch)?;
        if batch.is_empty() {
            return Ok(Ok(Applied { revision: self.revision().await?, deleted: 0 }));
        }
        // Before others wait for the transaction.
        let bodies = batch.bodies().await?;
        repeated!(self.apply_once(batch, &bodies))
    }

    async fn apply_once(&self, batch: &Batch, bodies: &[String]) -> Result<Result<Applied, Refused>, StoreError> {
        let mut write = self.write().await?;
        match batch.steps(&mut write, bodies).await? {
            Ok(applied) => {
                if self.backend == Backend::Postgres && applied.revision == write.revision {
                    replicas::announce(write.together.connection(), applied.revision).await?;
                }
                write.together.commit().await?;
                self.committed(applied.revision);
                Ok(Ok(applied))
            }
            Err(refused) => {
                write.together.roll_back().await?;
                Ok(Err(refused))
            }
        }
    }

    /// Writes one resource. The new revision, or why not.
    pub async fn put(&self, resource: &Stored, expect: Expect) -> Result<Result<i64, Refused>, StoreError> {
        let batch = Batch { puts: vec![(resource.clone(), expect)], ..Batch::default() };
        Ok(self.apply(&batch).await?.map(|applied| applied.revision))
    }

    /// Deletes one resource and everything below it. How many went, or why not.
    pub async fn delete(&self, key: &str, expect: Expect) -> Result<Result<u64, Refused>, StoreError> {
        let batch = Batch { deletes: vec![(key.to_owned(), expect)], ..Batch::default() };
        Ok(self.apply(&batch).await?.map(|applied| applied.deleted))
    }
}

impl Batch {
    fn entries(&self) -> usize {
        self.puts.len() + self.deletes.len() + self.begins.len() + self.ends.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// What is put, as it is kept; but for what passes to others without the revision of that, which is not known yet.
    async fn bodies(&self) -> Result<Vec<String>, GaveWay> {
        let mut bodies = Vec::with_capacity(self.puts.len());
        for (resource, _) in &self.puts {
            let write = || match resource.body.as_object() {
                Some(body) if body.contains_key(PASSED_AT) && self.renews.contains(&resource.key) => {
                    let mut body = body.clone();
                    body.remove(PASSED_AT);
                    Value::Object(body).to_string()
                }
                _ => resource.body.to_string(),
            };
            bodies.push(here(!answers::is_short(&resource.body), write).await?);
        }
        Ok(bodies)
    }

    async fn steps(&self, write: &mut Write, bodies: &[String]) -> Step<Applied> {
        let mut applied = Applied { revision: write.revision, deleted: 0 };
        let connection = write.together.connection();
        if let Some(claim) = &self.claim
            && !still(connection, claim).await?
        {
            return Ok(Err(Refused::Changed { key: claim.id.clone(), found: None }));
        }
        if let Some(said) = &self.said
            && events::upgrades(&mut *connection).await? != *said
        {
            return Ok(Err(Refused::Changed { key: events::UPGRADES.to_owned(), found: None }));
        }
        for key in &self.empty {
            if holds(connection, key).await? {
                return Ok(Err(Refused::NotEmpty { key: key.clone() }));
            }
        }
        for key in &self.standing {
            if let Err(refused) = stands(connection, key).await? {
                return Ok(Err(refused));
            }
        }
        if let Err(refused) = unchanged(connection, &self.as_read).await? {
            return Ok(Err(refused));
        }
        for (kind, above) in &self.without {
            if let Some(key) = one_below(connection, kind, above).await? {
                return Ok(Err(Refused::Changed { key, found: None }));
            }
        }
        for (key, expect) in &self.deletes {
            match delete(connection, applied.revision, key, *expect).await? {
                Ok(deleted) => applied.deleted += deleted,
                Err(refused) => return Ok(Err(refused)),
            }
        }
        for ((resource, expect), body) in self.puts.iter().zip(bodies) {
            let body = match self.renews.contains(&resource.key) {
                true => Cow::Owned(passed(body, applied.revision)),
                false => Cow::Borrowed(body.as_str()),
            };
            if let Err(refused) = put(connection, applied.revision, resource, &body, *expect).await? {
                return Ok(Err(refused));
            }
        }
        for bound in &self.at_most {
            if is_exceeded(connection, bound).await? {
                return Ok(Err(Refused::Full { kind: bound.kind.clone(), parent: bound.parent.clone() }));
            }
        }
        for (key, until) in &self.protected_until {
            statuses::keep_until(connection, key, *until).await?;
        }
        for key in &self.renews {
            renew(connection, applied.revision, key).await?;
        }
        if let Err(refused) = begin_all(connection, &self.begins, &self.begins_at_most).await? {
            return Ok(Err(refused));
        }
        for ended in &self.ends {
            if !end(connection, ended).await? {
                return Ok(Err(Refused::Changed { key: ended.id.clone(), found: None }));
            }
        }
        if self.puts.is_empty() && applied.deleted == 0 {
            // Nothing that a follower would ever be told of.
            applied.revision -= 1;
            sqlx::query("UPDATE revisions SET revision = $1").bind(applied.revision).execute(connection).await?;
        }
        Ok(Ok(applied))
    }
}

/// A body with the revision at which it passes to others; what is no object stays.
fn passed(body: &str, revision: i64) -> String {
    match body.strip_prefix('{') {
        Some("}") => format!("{{\"{PASSED_AT}\":{revision}}}"),
        Some(rest) => format!("{{\"{PASSED_AT}\":{revision},{rest}"),
        None => body.to_owned(),
    }
}

async fn put(connection: &mut AnyConnection, revision: i64, resource: &Stored, body: &str, expect: Expect) -> Step<()> {
    if let Err(refused) = expected(connection, &resource.key, expect).await? {
        return Ok(Err(refused));
    }
    let holder = holder(&resource.parent);
    if !holder.is_empty() && revision_of(connection, holder).await?.is_none() {
        return Ok(Err(Refused::NoParent { key: resource.key.clone() }));
    }
    // What is being deleted takes what is below it along: nothing may be acknowledged there and then be lost. Itself,
    // or to be deleted too, it may be written.
    if !resource.is_deleting()
        && let Some((key, found)) = going(connection, &resource.parent).await?
    {
        return Ok(Err(Refused::Changed { key, found: Some(found) }));
    }
    let sql = "INSERT INTO resources (resource_key, kind, parent_key, id, revision, body, protected) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) \
               ON CONFLICT (resource_key) DO UPDATE \
               SET revision = excluded.revision, body = excluded.body, protected = excluded.protected";
    sqlx::query(sql)
        .bind(&resource.key)
        .bind(&resource.kind)
        .bind(&resource.parent)
        .bind(&resource.id)
        .bind(revision)
        .bind(body)
        .bind(resource.protected.as_deref())
        .execute(&mut *connection)
        .await?;
    agents::keep(connection, resource).await?;
    Ok(Ok(()))
}

/// Gives what is below a key identities with other object ids, and takes its protected settings away. A few rows at a
/// time: there are hundreds below a cluster, of up to 256 KiB each.
async fn renew(connection: &mut AnyConnection, revision: i64, key: &str) -> Result<(), StoreError> {
    let (mut from, to) = below(key);
    loop {
        let rows = sqlx::query(BELOW).bind(&from).bind(&to).bind(ROWS_A_TURN).fetch_all(&mut *connection).await?;
        for row in &rows {
            let (key, text): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let has_secrets: i64 = row.try_get(2)?;
            let renewed = held(text.len() > AT_ONCE_BYTES, || {
                let mut body = serde_json::from_str(&text)?;
                let is_new = new_identity(&mut body) || has_secrets != 0;
                Ok(is_new.then(|| body.to_string()))
            });
            let renewed = renewed.map_err(|error: serde_json::Error| StoreError::Row {
                table: "resources",
                reason: format!("the body of {key}: {error}"),
            })?;
            if let Some(body) = renewed {
                let sql = "UPDATE resources SET revision = $1, body = $2, protected = NULL WHERE resource_key = $3";
                let query = sqlx::query(sql).bind(revision).bind(body).bind(&key);
                query.execute(&mut *connection).await?;
                statuses::keep_until(connection, &key, None).await?;
            }
            from = key;
        }
        if i64::try_from(rows.len()).is_ok_and(|count| count < ROWS_A_TURN) {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Gives the identity of a body, if it has one, another object id. Whether it has one.
fn new_identity(body: &mut Value) -> bool {
    let identity = body.get_mut("identity").and_then(Value::as_object_mut);
    let principal = identity.and_then(|identity| identity.get_mut("principalId"));
    principal.map(|principal| *principal = random::guid().into()).is_some()
}

/// The first of those that hold something, the key of whose parent is given, which is being deleted.
async fn going(connection: &mut AnyConnection, parent: &str) -> Result<Option<(String, i64)>, StoreError> {
    let above = parent.match_indices('/').skip(1).map(|(at, _)| &parent[..at]).chain([parent]);
    let keys: Vec<&str> = above.filter(|key| !key.is_empty()).take(ANCESTORS).collect();
    if keys.is_empty() {
        return Ok(None);
    }
    let places = (1..=keys.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "SELECT resource_key, revision, body FROM resources WHERE resource_key IN ({places}) ORDER BY resource_key"
    );
    let query = keys.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)), |query, key| query.bind(*key));
    for row in query.fetch_all(&mut *connection).await? {
        if is_text_of_deleting(row.try_get(2)?) {
            return Ok(Some((row.try_get(0)?, row.try_get(1)?)));
        }
    }
    Ok(None)
}

async fn delete(connection: &mut AnyConnection, revision: i64, key: &str, expect: Expect) -> Step<u64> {
    if let Err(refused) = expected(connection, key, expect).await? {
        return Ok(Err(refused));
    }
    let (from, to) = below(key);
    let sql = "INSERT INTO tombstones (revision, resource_key, kind) SELECT $1, resource_key, kind FROM resources \
               WHERE resource_key = $2 OR (resource_key > $3 AND resource_key < $4)";
    sqlx::query(sql).bind(revision).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?;
    events::depart(connection, revision, key).await?;
    agents::forget(connection, key).await?;
    statuses::forget(connection, key).await?;
    parts::forget(connection, key).await?;
    let sql = "DELETE FROM resources WHERE resource_key = $1 OR (resource_key > $2 AND resource_key < $3)";
    let deleted = sqlx::query(sql).bind(key).bind(&from).bind(&to).execute(&mut *connection).await?.rows_affected();
    // Whoever keeps lines holds the resources first.
    logs::forget(connection, key).await?;
    Ok(Ok(deleted))
}

async fn holds(connection: &mut AnyConnection, key: &str) -> Result<bool, StoreError> {
    let (from, to) = below(key);
    let sql = "SELECT revision FROM resources WHERE resource_key > $1 AND resource_key < $2 LIMIT 1";
    Ok(sqlx::query(sql).bind(from).bind(to).fetch_optional(connection).await?.is_some())
}

async fn stands(connection: &mut AnyConnection, key: &str) -> Step<()> {
    let sql = "SELECT revision, body FROM resources WHERE resource_key = $1";
    let Some(row) = sqlx::query(sql).bind(key).fetch_optional(connection).await? else {
        return Ok(Err(Refused::Changed { key: key.to_owned(), found: None }));
    };
    let (revision, body): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
    if is_text_of_deleting(body) {
        return Ok(Err(Refused::Changed { key: key.to_owned(), found: Some(revision) }));
    }
    Ok(Ok(()))
}

/// Refuses where one of these resources is not as it was read. Only one transaction writes at a time ([`Store::write`]
/// takes the lock), so that none of them changes before this one ends.
async fn unchanged(connection: &mut AnyConnection, as_read: &[(String, Option<i64>)]) -> Step<()> {
    let keys: Vec<&str> = as_read.iter().map(|(key, _)| key.as_str()).collect();
    let now = revisions_of(connection, &keys).await?;
    let mut read = as_read.iter().map(|(key, before)| (key, before, now.get(key).copied()));
    Ok(match read.find(|(_, before, found)| found != *before) {
        Some((key, _, found)) => Err(Refused::Changed { key: key.clone(), found }),
        None => Ok(()),
    })
}

async fn is_exceeded(connection: &mut AnyConnection, bound: &AtMost) -> Result<bool, StoreError> {
    let row = sqlx::query(COUNT_CHILDREN).bind(&bound.parent).bind(&bound.kind).fetch_one(connection).await?;
    Ok(row.try_get::<i64, _>(0)?.unsigned_abs() > bound.count)
}

/// One of a kind below a key.
async fn one_below(connection: &mut AnyConnection, kind: &str, key: &str) -> Result<Option<String>, StoreError> {
    let (from, to) = below(key);
    let sql = "SELECT resource_key FROM resources WHERE kind = $1 AND resource_key > $2 AND resource_key < $3 LIMIT 1";
    let row = sqlx::query(sql).bind(kind).bind(from).bind(to).fetch_optional(connection).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Begins operations, unless there would be too many.
async fn begin_all(connection: &mut AnyConnection, begins: &[Operation], at_most: &[BeginsAtMost]) -> Step<()> {
    let Some(now_ms) = begins.iter().map(|operation| operation.begun_ms).max() else { return Ok(Ok(())) };
    operations::count_begun(connection, begins).await?;
    for bound in at_most {
        if let Some(room_ms) = operations::full_until(connection, bound, now_ms).await? {
            let (place, most) = (bound.place.clone(), bound.count);
            return Ok(Err(Refused::TooManyOperations { place, most, room_ms }));
        }
    }
    for operation in begins {
        begin(connection, operation).await?;
    }
    Ok(Ok(()))
}

async fn begin(connection: &mut AnyConnection, operation: &Operation) -> Result<(), StoreError> {
    let sql = "INSERT INTO operations \
               (operation_id, resource_key, status, begun_ms, ended_ms, work, error, work_kind, due_ms, next_ms) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    sqlx::query(sql)
        .bind(&operation.id)
        .bind(&operation.resource)
        .bind(operation.status.as_str())
        .bind(operation.begun_ms)
        .bind(operation.ended_ms)
        .bind(operation.work.to_string())
        .bind(operation.error.as_ref().map(Value::to_string))
        .bind(operations::kind_of(&operation.work))
        .bind(operation.due_ms)
        // Whoever came first is looked at first.
        .bind(operation.begun_ms)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether a claim holds; until the batch ends nobody else gets it.
async fn still(connection: &mut AnyConnection, claim: &Claim) -> Result<bool, StoreError> {
    let sql = "UPDATE operations SET claimed_by = $1 \
               WHERE operation_id = $2 AND claimed_by = $3 AND status = 'InProgress'";
    let query = sqlx::query(sql).bind(&claim.by).bind(&claim.id).bind(&claim.by);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

async fn end(connection: &mut AnyConnection, ended: &Ended) -> Result<bool, StoreError> {
    let sql = "UPDATE operations SET status = $1, error = $2, ended_ms = $3 \
               WHERE operation_id = $4 AND status = 'InProgress'";
    let done = sqlx::query(sql)
        .bind(ended.status.as_str())
        .bind(ended.error.as_ref().map(Value::to_string))
        .bind(ended.now_ms)
        .bind(&ended.id)
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

async fn expected(connection: &mut AnyConnection, key: &str, expect: Expect) -> Step<()> {
    let found = match expect {
        Expect::Any => return Ok(Ok(())),
        Expect::Absent | Expect::Revision(_) => revision_of(connection, key).await?,
    };
    let fits = match expect {
        Expect::Any => true,
        Expect::Absent => found.is_none(),
        Expect::Revision(revision) => found == Some(revision),
    };
    Ok(if fits { Ok(()) } else { Err(Refused::Changed { key: key.to_owned(), found }) })
}

/// What must exist for something with this parent to exist.
fn holder(parent: &str) -> &str {
    let above = |text: &str| text.rfind('/').unwrap_or(0);
    let pair = &parent[..above(parent)];
    let kind = &pair[above(pair)..];
    if ELSEWHERE.iter().any(|elsewhere| kind.strip_prefix('/') == Some(elsewhere)) {
        &parent[..above(pair)]
    } else {
        parent
    }
}

/// What a caller of this module must not do, said before the database is asked.
fn check(batch: &Batch) -> Result<(), StoreError> {
    let fault = |text: &str, reason| Err(StoreError::Entry { text: text.escape_default().to_string(), reason });
    if batch.entries() > BATCH_ENTRIES {
        return fault("a batch", "it has too many entries");
    }
    for (resource, _) in &batch.puts {
        let Stored { key, kind, parent, id, .. } = resource;
        for text in [key, kind, parent, id] {
            if !is_text(text) {
                return fault(text, "it has a NUL character");
            }
        }
        if [key, kind, parent].into_iter().any(|text| fold(text) != *text) {
            return fault(key, "keys and kinds are in lower case");
        }
        if !key.strip_prefix(parent.as_str()).is_some_and(|rest| rest.starts_with('/')) {
            return fault(key, "a key is that of its parent, '/' and more");
        }
    }
    let operations = batch.begins.iter().flat_map(|operation| [&operation.id, &operation.resource]);
    let others = batch
        .deletes
        .iter()
        .map(|(key, _)| key)
        .chain(&batch.empty)
        .chain(&batch.renews)
        .chain(batch.as_read.iter().map(|(key, _)| key))
        .chain(batch.at_most.iter().flat_map(|bound| [&bound.kind, &bound.parent]))
        .chain(batch.begins_at_most.iter().map(|bound| &bound.place))
        .chain(batch.ends.iter().map(|ended| &ended.id));
    match operations.chain(others).find(|text| !is_text(text)) {
        Some(text) => fault(text, "it has a NUL character"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_that_passes_to_others_says_at_which_revision() {
        for (body, expected) in
            [(r#"{}"#, r#"{"passedAt":7}"#), (r#"{"a":{"b":1}}"#, r#"{"passedAt":7,"a":{"b":1}}"#), ("[1]", "[1]")]
        {
            assert_eq!(passed(body, 7), expected);
        }
        assert_eq!(PASSED_AT, "passedAt");
    }
}
