//! Resources of a kind in pages, each with the child that has a given name and with what was told of that child: the
//! clusters of a fleet assignment, and what it is about in them. One statement a page, however many children each
//! resource has, so that a page is of one moment; which rows it has is asked before, by their sizes.

use sqlx::{Row, any::AnyRow};

use super::{
    Store, StoreError,
    resources::{Below, Beside, COLUMNS, Page, Stored, each, stored},
    statuses::{self, ReportedStatus},
};

/// A child, without its protected settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The child itself.
    pub stored: Stored,
    /// What was told of it last.
    pub told: Option<ReportedStatus>,
}

pub(super) const PAGE: &str =
    "WHERE r.kind = $1 AND r.resource_key > $2 AND r.resource_key <= $3 ORDER BY r.resource_key LIMIT $4";

/// The statement that reads resources with one child each: `$5` is what a child's key has behind that of its parent.
pub(super) fn joined(rest: &str) -> String {
    let columns = COLUMNS.split(", ").map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT {columns}, c.resource_key AS child_key, c.kind AS child_kind, c.id AS child_id, \
         c.revision AS child_revision, c.body AS child_body, s.generation, s.told_ms, s.status \
         FROM resources r LEFT JOIN resources c ON c.resource_key = r.resource_key || $5 \
         LEFT JOIN statuses s ON s.resource_key = c.resource_key {rest}"
    )
}

impl Store {
    /// As [`Self::page`], each resource with its child. `child`: what the key of a child has behind that of its parent,
    /// such as `/providers/microsoft.kubernetesconfiguration/extensions/web`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn page_with_child(
        &self,
        kind: &str,
        child: &str,
        within: &str,
        after: &str,
        rows: u32,
    ) -> Result<Page<(Stored, Option<Child>)>, StoreError> {
        let window = self.window(kind, Below::Anywhere(within), Beside::Child(child), after, rows).await?;
        if window.rows == 0 {
            return Ok(window.page(Vec::new(), |(stored, _)| &stored.key));
        }
        let query = sqlx::query(sqlx::AssertSqlSafe(joined(PAGE))).bind(&window.kind).bind(&window.from);
        let query = query.bind(&window.upto).bind(window.rows).bind(child);
        let rows = query.fetch_all(&self.readers).await?;
        Ok(window.page(each(&rows, both).await?, |(stored, _)| &stored.key))
    }
}

fn both(row: &AnyRow) -> Result<(Stored, Option<Child>), StoreError> {
    let parent = stored(row)?;
    let Some(key) = row.try_get::<Option<String>, _>("child_key")? else { return Ok((parent, None)) };
    let body: String = row.try_get("child_body")?;
    let body = serde_json::from_str(&body)
        .map_err(|error| StoreError::Row { table: "resources", reason: format!("the body of {key}: {error}") })?;
    let told = match row.try_get::<Option<i64>, _>("generation")? {
        Some(generation) => Some(ReportedStatus {
            generation,
            told_ms: row.try_get("told_ms")?,
            status: statuses::status(&key, &row.try_get::<String, _>("status")?)?,
        }),
        None => None,
    };
    let stored = Stored {
        kind: row.try_get("child_kind")?,
        parent: parent.key.clone(),
        id: row.try_get("child_id")?,
        revision: row.try_get("child_revision")?,
        protected: None,
        body,
        key,
    };
    Ok((parent, Some(Child { stored, told })))
}
