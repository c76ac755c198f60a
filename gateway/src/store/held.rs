//! Names that one of several gateways holds for a time: work that one does at a time, and challenges that were used. Times
//! are by the database's clock, so that clocks of machines do not count.
//!
//! Only in PostgreSQL. A SQLite store has one process, which knows itself what it does: nothing is written.

use std::time::Duration;

use super::{Backend, Store, StoreError, Together, pool::in_time};

/// Now, in milliseconds since 1970, by the clock of PostgreSQL.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The number of PostgreSQL's advisory lock of whoever writes roles or assignments, or takes owners away.
const RIGHTS: i64 = 0x746f_776c_6f77_6e72;

/// Of all processes on one store this one may write roles and assignments, and take owners away, until it is dropped. PostgreSQL ends it by itself if the
/// process is gone, or does nothing for half a minute.
#[must_use]
pub struct RightsTurn {
    _together: Option<Together>,
}

impl Store {
    /// Waits until no other process writes roles or assignments or takes owners away, for as long as one waits for a lock. Nothing is written with it.
    ///
    /// # Errors
    /// The database's; also that another process takes too long.
    pub async fn rights_turn(&self) -> Result<RightsTurn, StoreError> {
        if self.backend == Backend::Sqlite {
            return Ok(RightsTurn { _together: None });
        }
        in_time(async {
            let mut together = Together::begin(&self.writers, self.begin()).await?;
            let sql = "SELECT count(*) FROM pg_advisory_xact_lock($1)";
            sqlx::query(sql).bind(RIGHTS).execute(together.connection()).await?;
            Ok(RightsTurn { _together: Some(together) })
        })
        .await
    }

    /// Holds a name for a time from now on, or for longer if `holder` has it already. False while another holder has it.
    pub async fn hold(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        if self.backend == Backend::Sqlite {
            return Ok(true);
        }
        let sql = format!(
            "INSERT INTO held (name, holder, ends_ms) VALUES ($1, $2, {NOW} + $3) \
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, ends_ms = excluded.ends_ms \
             WHERE held.holder = excluded.holder OR held.ends_ms <= {NOW}"
        );
        let time_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2);
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name).bind(holder).bind(time_ms);
        Ok(query.execute(&self.writers).await?.rows_affected() == 1)
    }

    /// Gives back what `holder` holds.
    pub async fn let_go(&self, name: &str, holder: &str) -> Result<(), StoreError> {
        if self.backend == Backend::Postgres {
            let sql = "DELETE FROM held WHERE name = $1 AND holder = $2";
            sqlx::query(sql).bind(name).bind(holder).execute(&self.writers).await?;
        }
        Ok(())
    }

    /// Forgets what nobody holds any more.
    pub async fn forget_held(&self) -> Result<(), StoreError> {
        if self.backend == Backend::Postgres {
            let sql = format!("DELETE FROM held WHERE ends_ms <= {NOW}");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&self.writers).await?;
        }
        Ok(())
    }
}
