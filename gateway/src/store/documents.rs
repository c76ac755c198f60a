//! Documents that several gateways share: changed as a whole, by one at a time, so that no change is lost. Few and
//! small; whoever follows them asks for their versions. They take no revision. What they hold is sealed by whoever
//! keeps them ([`super::protect`]).

use sqlx::{AnyConnection, Row, any::AnyRow};

use super::{
    Backend, Store, StoreError, Together, look, replicas,
    tickets::{Ticket, insert},
};

/// Tables of this module and of [`super::tickets`] whose values are sealed; bytes 2 to 9 name the key.
pub(super) const SEALED_WITH: &str = "SELECT substr(sealed, 2, 8) AS key_id FROM documents \
                                      UNION SELECT substr(sealed, 2, 8) AS key_id FROM tickets";
const ONE: &str = "SELECT name, version, sealed FROM documents WHERE name = $1";
const ALL: &str = "SELECT name, version, sealed FROM documents ORDER BY name";
const VERSIONS: &str = "SELECT name, version FROM documents ORDER BY name";

/// A document as kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// The document's name, which is unique in the store.
    pub name: String,
    /// Rises with every change.
    pub version: i64,
    /// The content, sealed with the store's key.
    pub sealed: Vec<u8>,
}

impl Store {
    /// The names and versions of all documents.
    ///
    /// # Errors
    /// The database's.
    pub async fn document_versions(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query(VERSIONS).fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// A document.
    ///
    /// # Errors
    /// The database's.
    pub async fn document(&self, name: &str) -> Result<Option<Document>, StoreError> {
        let row = sqlx::query(ONE).bind(name).fetch_optional(&self.readers).await?;
        row.as_ref().map(document).transpose()
    }

    /// All documents of the store at `url`, which is not changed; none where there is no table of them yet.
    ///
    /// # Errors
    /// The database's.
    pub async fn documents_at(url: &str) -> Result<Vec<Document>, StoreError> {
        use sqlx::Connection as _;
        let mut connection = look::connect(url).await?;
        let there = look::has_table(&mut connection, "documents").await?;
        let rows = if there { sqlx::query(ALL).fetch_all(&mut connection).await? } else { Vec::new() };
        connection.close().await?;
        rows.iter().map(document).collect()
    }

    /// Changes a document. `change` gets what is sealed there, and says what is to be there instead; none: it stays.
    /// Nobody else changes any document meanwhile. Returns the version that is there then.
    ///
    /// # Errors
    /// What `change` says, or the database's; then nothing has changed.
    pub async fn change_document<T, E: From<StoreError>>(
        &self,
        name: &str,
        change: impl FnOnce(Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), E>,
    ) -> Result<(i64, T), E> {
        let mut together = self.alone_with_documents().await?;
        let row = sqlx::query(ONE).bind(name).fetch_optional(together.connection()).await;
        let old = row.map_err(StoreError::from)?.as_ref().map(document).transpose()?;
        let version = old.as_ref().map_or(0, |old| old.version);
        let (new, value) = change(old.as_ref().map(|old| old.sealed.as_slice()))?;
        let Some(sealed) = new else {
            together.roll_back().await?;
            return Ok((version, value));
        };
        put(together.connection(), name, version + 1, sealed).await?;
        if self.backend == Backend::Postgres {
            replicas::announce_documents(together.connection()).await?;
        }
        together.commit().await?;
        Ok((version + 1, value))
    }

    /// Keeps the first documents, with the tickets that belong to them, unless there are some already: of several that
    /// try at once one does. Whether it was this one.
    ///
    /// # Errors
    /// The database's.
    pub async fn begin_documents(
        &self,
        documents: Vec<(&str, Vec<u8>)>,
        tickets: Vec<Ticket>,
    ) -> Result<bool, StoreError> {
        let mut together = self.alone_with_documents().await?;
        if !sqlx::query(VERSIONS).fetch_all(together.connection()).await?.is_empty() {
            together.roll_back().await?;
            return Ok(false);
        }
        for (name, sealed) in documents {
            put(together.connection(), name, 1, sealed).await?;
        }
        for ticket in &tickets {
            insert(together.connection(), ticket).await?;
        }
        together.commit().await?;
        Ok(true)
    }

    /// Who has this lock needs no other one that somebody may have: what follows is not given up.
    async fn alone_with_documents(&self) -> Result<Together, StoreError> {
        repeated!(self.try_to_be_alone())
    }

    async fn try_to_be_alone(&self) -> Result<Together, StoreError> {
        let mut together = Together::begin(&self.writers, self.begin()).await?;
        if self.backend == Backend::Postgres {
            // It has many writers; readers go on.
            sqlx::raw_sql("LOCK TABLE documents IN EXCLUSIVE MODE").execute(together.connection()).await?;
        }
        Ok(together)
    }
}

async fn put(connection: &mut AnyConnection, name: &str, version: i64, sealed: Vec<u8>) -> Result<(), StoreError> {
    let sql = "INSERT INTO documents (name, version, sealed) VALUES ($1, $2, $3) \
               ON CONFLICT (name) DO UPDATE SET version = excluded.version, sealed = excluded.sealed";
    sqlx::query(sql).bind(name).bind(version).bind(sealed).execute(connection).await?;
    Ok(())
}

fn document(row: &AnyRow) -> Result<Document, StoreError> {
    Ok(Document { name: row.try_get("name")?, version: row.try_get("version")?, sealed: row.try_get("sealed")? })
}
