//! Names that one of several gateways holds for a time: work that one does at a time, and challenges that were used. Times
//! are by the database's clock, so that clocks of machines do not count.
//!
//! Only in PostgreSQL. A SQLite store has one process, which knows itself what it does: nothing is written.

use std::time::Duration;

use super::{Backend, Store, StoreError};

/// Now, in milliseconds since 1970, by the clock of PostgreSQL.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

impl Store {
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
