//! Where a test has its database, and what tests put there.

use gateway::store::{
    Store,
    address::Address,
    batch::Expect,
    changes::{Change, Changes},
    resources::Stored,
    sqlite_url,
};
use serde_json::json;
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::postgres::Postgres;

pub const GROUP: &str = "/subscriptions/s/resourcegroups/g";
pub const GROUPS: &str = "microsoft.resources/resourcegroups";
pub const CLUSTERS: &str = "microsoft.kubernetes/connectedclusters";

/// An empty database.
pub struct Place {
    pub url: String,
    /// For files; gone with the test.
    pub folder: tempfile::TempDir,
    pub is_sqlite: bool,
}

impl Place {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = sqlite_url(&folder.path().join("it's 100% a #file?.db"));
        Self { url, folder, is_sqlite: true }
    }

    pub fn postgres(server: &Postgres) -> Self {
        Self { url: server.database(), folder: tempfile::tempdir().unwrap(), is_sqlite: false }
    }

    pub async fn open(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    pub fn address(&self) -> Address {
        Address::from(self.url.as_str())
    }

    /// With the group that tests put clusters into.
    pub async fn with_group(&self) -> Store {
        let store = self.open().await;
        store.put(&group("g"), Expect::Absent).await.unwrap().unwrap();
        store
    }

    /// Does something behind the store's back.
    pub async fn sql(&self, sql: &str) {
        let mut connection = self.connect().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// The first column of all rows, as texts.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let mut connection = self.connect().await;
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.try_get(0).unwrap()).collect()
    }

    pub async fn connect(&self) -> AnyConnection {
        sqlx::any::install_default_drivers();
        AnyConnection::connect(&self.url).await.unwrap()
    }
}

pub fn resource(kind: &str, parent: &str, id: &str) -> Stored {
    Stored {
        key: id.to_ascii_lowercase(),
        kind: kind.to_owned(),
        parent: parent.to_owned(),
        id: id.to_owned(),
        revision: 0,
        body: json!({"n": 0}),
        protected: None,
    }
}

pub fn group(name: &str) -> Stored {
    resource(GROUPS, "", &format!("/subscriptions/s/resourceGroups/{name}"))
}

pub fn cluster(name: &str) -> Stored {
    let id = format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}");
    resource(CLUSTERS, GROUP, &id)
}

/// The last name of an id.
pub fn name(stored: &Stored) -> String {
    stored.id.rsplit('/').next().unwrap().to_owned()
}

pub async fn since(store: &Store, revision: i64) -> Vec<Change> {
    match store.changes(revision).await.unwrap() {
        Changes::Since(changes) => changes,
        Changes::TooOld => panic!("{revision} is too old"),
    }
}
