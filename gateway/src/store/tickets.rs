//! Tickets: what somebody was given and may show again before it ends, such as a code; and counts of what happened
//! within a time. Several gateways share them. A ticket is read and changed by one at a time, so that of two gateways
//! that are shown the same one, one is the first.
//!
//! Each kind has a bound. Over it the owner with most tickets loses those of the lowest rank. Tickets of a kind are added
//! one after the other, so that the bounds hold for those who add at the same moment, too. The bound of counts may be
//! passed by as many as are counted at the same moment; the next one takes them away.

use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{Backend, Store, StoreError, Together, is_text};

pub(super) const BY_KEY: &str = "WHERE kind = $1 AND ticket_key = $2";
pub(super) const BY_ALIAS: &str = "WHERE kind = $1 AND alias = $2";
pub(super) const OF_PLACE: &str = "SELECT count(*) FROM tickets WHERE kind = $1 AND owner = $2 AND place = $3";
pub(super) const OF_OWNER: &str = "SELECT count(*) FROM tickets WHERE kind = $1 AND owner = $2";
/// The first number of PostgreSQL's advisory locks of whoever adds a ticket; the second one is of the kind.
const ADDING: i32 = 0x7469_636b;
const OF_KIND: &str = "SELECT count(*) FROM tickets WHERE kind = $1";
pub(super) const COUNTED: &str = "SELECT count FROM counts WHERE name = $1 AND ends > $2";

/// A row that proves something until it ends, such as a device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// What it is one of.
    pub kind: &'static str,
    /// Its name in its kind.
    pub key: String,
    /// Another name, which no other of its kind has.
    pub alias: Option<String>,
    /// Whoever has a share of the kind.
    pub owner: String,
    /// Where the owner was.
    pub place: String,
    /// Of one owner the lowest gives way first.
    pub rank: i64,
    /// From then on it may be deleted, in seconds since 1970.
    pub ends: i64,
    /// What it is worth, sealed.
    pub sealed: Vec<u8>,
}

/// How many tickets of a kind there may be.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Tickets of all owners.
    pub all: i64,
    /// Tickets of one owner.
    pub of_owner: i64,
    /// Of one place of an owner; over that none is added.
    pub of_place: i64,
}

/// How a ticket is found.
#[derive(Debug, Clone, Copy)]
pub enum By<'a> {
    /// By the ticket's key.
    Key(&'a str),
    /// By its other name.
    Alias(&'a str),
}

/// What becomes of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// It stays as it is.
    Stay,
    /// It is worth something else.
    Change {
        /// What it is worth, sealed.
        sealed: Vec<u8>,
        /// The new [`Ticket::rank`].
        rank: i64,
        /// The new [`Ticket::ends`], in seconds since 1970.
        ends: i64,
    },
    /// The ticket is deleted.
    Go,
}

impl By<'_> {
    fn sql(self) -> (&'static str, String) {
        match self {
            Self::Key(key) => (BY_KEY, key.to_owned()),
            Self::Alias(alias) => (BY_ALIAS, alias.to_owned()),
        }
    }
}

impl Store {
    /// Keeps a new ticket, and deletes those of its kind that have ended or have to give way. Whether it was kept: its
    /// place may have as many as it may, or its alias may be another's.
    ///
    /// # Errors
    /// The database's.
    pub async fn add_ticket(&self, ticket: &Ticket, most: Most, now: i64) -> Result<bool, StoreError> {
        repeated!(self.try_to_add(ticket, most, now))
    }

    async fn try_to_add(&self, ticket: &Ticket, most: Most, now: i64) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        if self.backend == Backend::Postgres {
            // One at a time of a kind, or those who add at once would each find room for one.
            let sql = "SELECT count(*) FROM pg_advisory_xact_lock($1, hashtext($2))";
            sqlx::query(sql).bind(ADDING).bind(ticket.kind).execute(&mut *connection).await?;
        }
        let sql = "DELETE FROM tickets WHERE kind = $1 AND ends <= $2";
        sqlx::query(sql).bind(ticket.kind).bind(now).execute(&mut *connection).await?;
        let of_place: i64 = sqlx::query_scalar(OF_PLACE)
            .bind(ticket.kind)
            .bind(&ticket.owner)
            .bind(&ticket.place)
            .fetch_one(&mut *connection)
            .await?;
        if of_place >= most.of_place {
            together.commit().await?;
            return Ok(false);
        }
        let of_owner: i64 =
            sqlx::query_scalar(OF_OWNER).bind(ticket.kind).bind(&ticket.owner).fetch_one(&mut *connection).await?;
        if of_owner >= most.of_owner {
            let sql = "DELETE FROM tickets WHERE kind = $1 AND ticket_key IN (SELECT ticket_key FROM tickets \
                       WHERE kind = $1 AND owner = $2 ORDER BY rank, ticket_key LIMIT $3)";
            let over = of_owner - most.of_owner + 1;
            sqlx::query(sql).bind(ticket.kind).bind(&ticket.owner).bind(over).execute(&mut *connection).await?;
        }
        let all: i64 = sqlx::query_scalar(OF_KIND).bind(ticket.kind).fetch_one(&mut *connection).await?;
        if all >= most.all {
            let sql = "DELETE FROM tickets WHERE kind = $1 AND ticket_key IN (SELECT ticket_key FROM tickets \
                       WHERE kind = $1 AND owner = (SELECT owner FROM tickets WHERE kind = $1 GROUP BY owner \
                       ORDER BY count(*) DESC, owner LIMIT 1) ORDER BY rank, ticket_key LIMIT $2)";
            sqlx::query(sql).bind(ticket.kind).bind(all - most.all + 1).execute(&mut *connection).await?;
        }
        let kept = insert(connection, ticket).await?;
        together.commit().await?;
        Ok(kept)
    }

    /// What a ticket is worth, sealed, with its key.
    ///
    /// # Errors
    /// The database's.
    pub async fn ticket(&self, kind: &str, by: By<'_>) -> Result<Option<(String, Vec<u8>)>, StoreError> {
        let (rest, name) = by.sql();
        let sql = sqlx::AssertSqlSafe(format!("SELECT ticket_key, sealed FROM tickets {rest}"));
        let row = sqlx::query(sql).bind(kind).bind(name).fetch_optional(&self.readers).await?;
        row.as_ref().map(worth).transpose()
    }

    /// Changes a ticket, or deletes it, as its key and what it is worth say; with none there is nothing to change.
    /// Nobody else changes it meanwhile.
    ///
    /// # Errors
    /// What `change` says, or the database's; then nothing has changed.
    pub async fn change_ticket<T, E: From<StoreError>>(
        &self,
        kind: &str,
        by: By<'_>,
        change: impl FnOnce(Option<(&str, &[u8])>) -> Result<(Then, T), E>,
    ) -> Result<T, E> {
        // What follows needs no lock that another may have.
        let (mut together, found) = repeated!(self.lock_ticket(kind, by))?;
        let Some((key, sealed)) = found else {
            together.roll_back().await?;
            return Ok(change(None)?.1);
        };
        let (then, value) = change(Some((&key, &sealed)))?;
        let done = match then {
            Then::Stay => {
                together.roll_back().await?;
                return Ok(value);
            }
            Then::Change { sealed, rank, ends } => {
                let sql = "UPDATE tickets SET sealed = $3, rank = $4, ends = $5 WHERE kind = $1 AND ticket_key = $2";
                let query = sqlx::query(sql).bind(kind).bind(&key).bind(sealed).bind(rank).bind(ends);
                query.execute(together.connection()).await
            }
            Then::Go => {
                let sql = "DELETE FROM tickets WHERE kind = $1 AND ticket_key = $2";
                sqlx::query(sql).bind(kind).bind(&key).execute(together.connection()).await
            }
        };
        done.map_err(StoreError::from)?;
        together.commit().await?;
        Ok(value)
    }

    /// A transaction that has a ticket, if it is there.
    async fn lock_ticket(&self, kind: &str, by: By<'_>) -> Result<(Together, Option<(String, Vec<u8>)>), StoreError> {
        let (rest, name) = by.sql();
        let lock = if self.backend == Backend::Postgres { " FOR UPDATE" } else { "" };
        let sql = sqlx::AssertSqlSafe(format!("SELECT ticket_key, sealed FROM tickets {rest}{lock}"));
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let row = sqlx::query(sql).bind(kind).bind(name).fetch_optional(together.connection()).await?;
        let found = row.as_ref().map(worth).transpose()?;
        Ok((together, found))
    }

    /// Deletes a ticket.
    ///
    /// # Errors
    /// The database's.
    pub async fn end_ticket(&self, kind: &str, key: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM tickets WHERE kind = $1 AND ticket_key = $2";
        sqlx::query(sql).bind(kind).bind(key).execute(&self.writers).await?;
        Ok(())
    }

    /// How many tickets of a kind there are.
    ///
    /// # Errors
    /// The database's.
    pub async fn tickets(&self, kind: &str) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(OF_KIND).bind(kind).fetch_one(&self.readers).await?)
    }

    /// Counts one for each of these names, from now until `ends` where none is counted now, and of `owner`. False if one of
    /// them has as many as stand with it: then nothing is counted. Of all who count at once no more are told that they may
    /// than there is room for. Of more than `most` counts those of the owner with most give way, the first to end before
    /// the others.
    ///
    /// # Errors
    /// The database's.
    pub async fn count_tries(
        &self,
        names: &[(String, i64)],
        owner: &str,
        now: i64,
        ends: i64,
        most: i64,
    ) -> Result<bool, StoreError> {
        repeated!(self.try_to_count_tries(names, owner, now, ends, most))
    }

    async fn try_to_count_tries(
        &self,
        names: &[(String, i64)],
        owner: &str,
        now: i64,
        ends: i64,
        most: i64,
    ) -> Result<bool, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        let connection = together.connection();
        sqlx::query("DELETE FROM counts WHERE ends <= $1").bind(now).execute(&mut *connection).await?;
        let mut may = true;
        for (name, room) in names {
            // The row stays locked until the end: whoever else counts for the name waits.
            let sql = "INSERT INTO counts (name, owner, count, ends) VALUES ($1, $2, 1, $3) \
                       ON CONFLICT (name) DO UPDATE SET count = counts.count + 1 RETURNING count";
            let query = sqlx::query_scalar(sql).bind(name).bind(owner).bind(ends);
            let counted: i64 = query.fetch_one(&mut *connection).await?;
            may &= counted <= *room;
        }
        if !may {
            together.roll_back().await?;
            return Ok(false);
        }
        let all: i64 = sqlx::query_scalar("SELECT count(*) FROM counts").fetch_one(&mut *connection).await?;
        if all > most {
            let sql = "DELETE FROM counts WHERE name IN (SELECT name FROM counts WHERE owner = (SELECT owner \
                       FROM counts GROUP BY owner ORDER BY count(*) DESC, owner LIMIT 1) ORDER BY ends, name LIMIT $1)";
            sqlx::query(sql).bind(all - most).execute(&mut *connection).await?;
        }
        together.commit().await?;
        Ok(true)
    }

    /// Takes back one that was counted for each of these names.
    ///
    /// # Errors
    /// The database's.
    pub async fn take_back(&self, names: &[String]) -> Result<(), StoreError> {
        repeated!(self.try_to_take_back(names))
    }

    async fn try_to_take_back(&self, names: &[String]) -> Result<(), StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        for name in names {
            let sql = "UPDATE counts SET count = count - 1 WHERE name = $1 AND count > 0";
            sqlx::query(sql).bind(name).execute(together.connection()).await?;
        }
        together.commit().await
    }

    /// How many are counted for a name now.
    ///
    /// # Errors
    /// The database's.
    pub async fn counted(&self, name: &str, now: i64) -> Result<i64, StoreError> {
        let count = sqlx::query_scalar(COUNTED).bind(name).bind(now).fetch_optional(&self.readers).await?;
        Ok(count.unwrap_or_default())
    }

    /// Forgets what was counted for a name.
    ///
    /// # Errors
    /// The database's.
    pub async fn uncount(&self, name: &str) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM counts WHERE name = $1").bind(name).execute(&self.writers).await?;
        Ok(())
    }
}

/// Whether it was kept: another of its kind may have its alias.
pub(super) async fn insert(connection: &mut AnyConnection, ticket: &Ticket) -> Result<bool, StoreError> {
    if !is_text(&ticket.key) {
        return Ok(false);
    }
    let sql = "INSERT INTO tickets (kind, ticket_key, alias, owner, place, rank, ends, sealed) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
    let query = sqlx::query(sql).bind(ticket.kind).bind(&ticket.key).bind(ticket.alias.as_deref());
    let query = query.bind(&ticket.owner).bind(&ticket.place).bind(ticket.rank).bind(ticket.ends);
    Ok(query.bind(ticket.sealed.as_slice()).execute(connection).await?.rows_affected() > 0)
}

fn worth(row: &AnyRow) -> Result<(String, Vec<u8>), StoreError> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}
