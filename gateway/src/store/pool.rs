//! Connections to the database, and how long it may take to answer.
//!
//! A server whose machine vanished, or whose packets are dropped, never answers, and the operating system notices only
//! after a quarter of an hour. So each statement to a server has a time. A connection that was waited for in vain is
//! closed, and the next one leads to whoever has the server's address by then.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use sqlx::{
    Any, AnyConnection, AnyPool, Connection as _, Either, Execute, Executor, SqlStr,
    any::{AnyPoolOptions, AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
    pool::PoolConnection,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::StoreError;

/// How long one statement to a server may take.
const STATEMENT: Duration = Duration::from_secs(30);
/// How long all statements of a view of several tables may take together.
const VIEW: Duration = Duration::from_secs(60);
/// The same of a write, which may be of 10,000 resources on a machine that has much else to do.
const WRITE: Duration = Duration::from_secs(300);
/// How long a connection may take to say that it is good. One that is given back in the middle of a statement says so
/// when that has ended.
const GOOD: Duration = Duration::from_secs(4);

/// Connections of one kind. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pool {
    connections: AnyPool,
    /// `None`: a file, which answers or fails.
    within: Option<Duration>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address, in which there may be a password.
        f.debug_struct("Pool").field("within", &self.within).finish_non_exhaustive()
    }
}

impl Pool {
    /// Of a file.
    pub fn of_file(connections: AnyPool) -> Self {
        Self { connections, within: None }
    }

    /// To a server.
    pub fn to_server(connections: AnyPool) -> Self {
        Self { connections, within: Some(STATEMENT) }
    }

    /// A connection for several statements, whose time is whoever's who takes it.
    pub async fn acquire(&self) -> Result<PoolConnection<Any>, sqlx::Error> {
        self.connections.acquire().await
    }

    /// The connections, without a time.
    pub fn connections(&self) -> &AnyPool {
        &self.connections
    }

    /// Closes all, once they are given back.
    pub async fn close(&self) {
        self.connections.close().await;
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        match self.within {
            Some(within) => timeout(within, work).await.unwrap_or(Err(sqlx::Error::PoolTimedOut)),
            None => work.await,
        }
    }
}

/// When a connection did not answer: those that are older lead to the same place, and are not waited for one by one.
#[derive(Clone, Default)]
pub(super) struct Doubt(Arc<Mutex<Option<Instant>>>);

impl Doubt {
    /// Has connections asked in a bounded time whether they are good, when they are taken and when they are given back.
    pub fn ask(&self, options: AnyPoolOptions) -> AnyPoolOptions {
        let (taken, given) = (self.clone(), self.clone());
        options
            .test_before_acquire(false)
            .before_acquire(move |connection, about| Box::pin(taken.clone().good(connection, about.age)))
            .after_release(move |connection, about| Box::pin(given.clone().good(connection, about.age)))
    }

    async fn good(self, connection: &mut AnyConnection, age: Duration) -> Result<bool, sqlx::Error> {
        if self.is_of(age) {
            return Err(sqlx::Error::PoolTimedOut);
        }
        match timeout(GOOD, connection.ping()).await {
            Ok(said) => said.map(|()| true),
            Err(_) => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Err(sqlx::Error::PoolTimedOut)
            }
        }
    }

    fn is_of(&self, age: Duration) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() < age)
    }
}

/// Reads by several statements, for a bounded time.
pub(super) async fn in_time<T, E: From<StoreError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(VIEW, work).await.unwrap_or_else(|_| Err(given_up()))
}

/// Writes, for a bounded time. A write that takes longer is given up with its connection, and nobody knows whether its last
/// statement was carried out.
pub(super) async fn written_in_time<T, E: From<StoreError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(WRITE, work).await.unwrap_or_else(|_| Err(given_up()))
}

fn given_up<E: From<StoreError>>() -> E {
    StoreError::Database(sqlx::Error::PoolTimedOut).into()
}

impl<'p> Executor<'p> for &'_ Pool {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let Some(within) = self.within else { return self.connections.fetch_many(query) };
        let until = Instant::now() + within;
        let rows = self.connections.fetch_many(query);
        futures_util::stream::unfold(Some(rows), move |rows| async move {
            let mut rows = rows?;
            match timeout_at(until, rows.next()).await {
                Ok(next) => next.map(|next| (next, Some(rows))),
                Err(_) => Some((Err(sqlx::Error::PoolTimedOut), None)),
            }
        })
        .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let this = self.clone();
        let row = self.connections.fetch_optional(query);
        Box::pin(async move { this.bounded(row).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        let this = self.clone();
        let statement = self.connections.prepare_with(sql, parameters);
        Box::pin(async move { this.bounded(statement).await })
    }
}
