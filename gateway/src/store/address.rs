//! Where the database is, and with which password. An operator may rotate the password while a gateway runs: then new
//! connections are made with the next one, and those that are open go on.

use std::{str::FromStr as _, sync::Arc};

use arc_swap::ArcSwap;
use sqlx::{ConnectOptions as _, any::AnyConnectOptions, postgres::PgConnectOptions};

use super::{Backend, Store, StoreError};

/// The address of a database, which may contain a password. Everything that connects to the database has a clone, and a
/// change of the address reaches all clones.
#[derive(Clone)]
pub struct Address(Arc<ArcSwap<String>>);

impl From<&str> for Address {
    fn from(url: &str) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(url.to_owned())))
    }
}

impl Address {
    /// As it is now. Each new connection asks.
    pub(super) fn url(&self) -> Arc<String> {
        self.0.load_full()
    }

    /// How a connection is made now.
    pub(super) fn options(&self) -> Result<AnyConnectOptions, sqlx::Error> {
        options(&self.url())
    }
}

/// How a connection to a URL is made.
pub(super) fn options(url: &str) -> Result<AnyConnectOptions, sqlx::Error> {
    Ok(AnyConnectOptions::from_str(url)?.disable_statement_logging())
}

/// What became of a URL that an open store was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewUrl {
    /// It is the one in use.
    Same,
    /// New connections use it.
    Taken,
    /// It leads to another database, which a store is opened for. The one in use stays.
    OtherDatabase,
}

impl Store {
    /// The address of the database, as [`Self::use_url`] changes it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Makes new connections with another URL of the same database, such as one with another password or user. Open
    /// connections go on.
    ///
    /// # Errors
    /// When the URL cannot be read; the one in use stays.
    pub fn use_url(&self, url: &str) -> Result<NewUrl, StoreError> {
        let old = self.address.url();
        // A file has no password.
        if self.backend == Backend::Sqlite || *old == url {
            return Ok(NewUrl::Same);
        }
        let (from, to) = (PgConnectOptions::from_str(&old)?, PgConnectOptions::from_str(url)?);
        // Connections that are open would be to the one database, and new ones to the other.
        if !is_same_database(&from, &to) {
            return Ok(NewUrl::OtherDatabase);
        }
        let options = options(url)?;
        self.address.0.store(Arc::new(url.to_owned()));
        for pool in [&self.readers, &self.writers] {
            pool.connections().set_connect_options(options.clone());
        }
        Ok(NewUrl::Taken)
    }
}

fn is_same_database(one: &PgConnectOptions, other: &PgConnectOptions) -> bool {
    // PostgreSQL's rule: a database that is not named is called as the user is.
    let database = |of: &PgConnectOptions| of.get_database().unwrap_or(of.get_username()).to_owned();
    one.get_host() == other.get_host()
        && one.get_port() == other.get_port()
        && one.get_socket() == other.get_socket()
        && database(one) == database(other)
        // Such as a search path, which leads to other tables.
        && one.get_options() == other.get_options()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_of_another_url_is_told_from_another_password() {
        let same = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|url| PgConnectOptions::from_str(url).unwrap());
            is_same_database(&one, &other)
        };
        let url = "postgres://u:one@db.example.org/towline?sslmode=verify-full";
        for rotated in [
            "postgres://u:two@db.example.org/towline?sslmode=verify-full",
            "postgresql://other:t%2Fo@db.example.org:5432/towline?sslmode=disable",
            "postgres://db.example.org/?user=u&password=two&dbname=towline",
        ] {
            assert!(same(url, rotated), "{rotated}");
        }
        for elsewhere in [
            "postgres://u:one@db2.example.org/towline",
            "postgres://u:one@db.example.org:5433/towline",
            "postgres://u:one@db.example.org/other",
            "postgres://u:one@db.example.org/",
            "postgres://u:one@db.example.org/towline?host=/run/postgresql",
            "postgres://u:one@db.example.org/towline?options=-csearch_path%3Dother",
        ] {
            assert!(!same(url, elsewhere), "{elsewhere}");
        }
        assert!(!same("postgres://u:one@db.example.org", "postgres://v:one@db.example.org"));
    }
}
