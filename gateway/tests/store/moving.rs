//! From SQLite to PostgreSQL: everything arrives as it was, or nothing does.

use gateway::store::{
    Store,
    batch::{Batch, Expect},
    moving::{self, MoveError},
    sqlite_url,
};
use serde_json::json;

use crate::{
    batch::operation,
    place::{CLUSTERS, GROUP, Place, cluster, group},
};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        a_store_is_moved_from_sqlite_with_every_row,
        a_store_is_moved_into_an_empty_database_only,
        a_store_that_is_in_use_is_not_moved,
        only_a_store_is_moved_and_only_to_postgresql,
    ]
}

/// A SQLite store beside the PostgreSQL database of a test.
struct Beside {
    file: std::path::PathBuf,
    place: Place,
}

impl Beside {
    fn of(place: Place) -> Self {
        Self { file: place.folder.path().join("it's 100% a #file?.db"), place }
    }

    async fn filled(&self) -> Store {
        let store = Store::open_file(&self.file).await.unwrap();
        store.put(&group("g"), Expect::Absent).await.unwrap().unwrap();
        for n in 0..250 {
            let mut made = cluster(&format!("c{n}"));
            made.body = json!({"n": n, "text": "gr\u{fc}\u{df}e \u{1f980} \"quoted\" 'single' \\ $1 ?"});
            // Bytes of every value, and none.
            made.protected = (n % 2 == 0).then(|| (0..=255).collect());
            store.put(&made, Expect::Absent).await.unwrap().unwrap();
        }
        let begins = vec![operation("deletion")];
        store.apply(&Batch { begins, ..Batch::default() }).await.unwrap().unwrap();
        store.delete(&cluster("c7").key, Expect::Any).await.unwrap().unwrap();
        store
    }

    /// All that is in a table, each row as one text.
    async fn rows(&self, url: &str, table: &str) -> Vec<String> {
        let there =
            Place { url: url.to_owned(), folder: tempfile::tempdir().unwrap(), is_sqlite: url.starts_with("sqlite") };
        let bytes = if there.is_sqlite { "hex(protected)" } else { "upper(encode(protected, 'hex'))" };
        let sql = match table {
            "resources" => {
                format!("SELECT resource_key || '|' || kind || '|' || parent_key || '|' || id || '|' || revision || '|' || body || '|' || coalesce({bytes}, '') FROM resources ORDER BY 1")
            }
            "tombstones" => "SELECT resource_key || revision || kind FROM tombstones ORDER BY 1".to_owned(),
            "agents" => "SELECT resource_key || agentless || coalesce(told_status, '') FROM agents ORDER BY 1".to_owned(),
            "operations" => "SELECT operation_id || resource_key || status || begun_ms || coalesce(ended_ms, -1) || work FROM operations ORDER BY 1".to_owned(),
            _ => format!("SELECT CAST(count(*) AS TEXT) FROM {table}"),
        };
        there.texts(&sql).await
    }
}

async fn a_store_is_moved_from_sqlite_with_every_row(place: Place) {
    let beside = Beside::of(place);
    let store = beside.filled().await;
    let revision = store.revision().await.unwrap();
    store.close().await;
    let moved = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap();
    assert_eq!(moved["resources"], 250);
    let from = sqlite_url(&beside.file);
    for table in moved.keys() {
        assert_eq!(beside.rows(&from, table).await, beside.rows(&beside.place.url, table).await, "{table}");
    }
    // It goes on from there as the file would have.
    let there = beside.place.open().await;
    assert_eq!(there.revision().await.unwrap(), revision);
    assert_eq!(there.put(&cluster("later"), Expect::Absent).await.unwrap(), Ok(revision + 1));
    assert_eq!(there.page(CLUSTERS, GROUP, "", 1000).await.unwrap().len(), 250);
    // The file is as it was.
    let file = Store::open_file(&beside.file).await.unwrap();
    assert_eq!(file.revision().await.unwrap(), revision);
}

async fn a_store_is_moved_into_an_empty_database_only(place: Place) {
    let beside = Beside::of(place);
    beside.filled().await.close().await;
    let used = beside.place.with_group().await;
    let error = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap_err();
    assert!(matches!(error, MoveError::NotEmpty(_)), "{error}");
    assert_eq!(used.page(CLUSTERS, GROUP, "", 10).await.unwrap(), []);
    // One that was started and is empty is as good as a new one.
    used.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    let error = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap_err();
    assert!(matches!(error, MoveError::NotEmpty(_)), "revisions were told of: {error}");
}

async fn a_store_that_is_in_use_is_not_moved(place: Place) {
    let beside = Beside::of(place);
    let running = beside.filled().await;
    let error = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap_err();
    assert!(matches!(error, MoveError::InUse(_)), "{error}");
    // The gateway that runs is not disturbed.
    running.put(&cluster("later"), Expect::Absent).await.unwrap().unwrap();
    running.close().await;
    // What the refused attempt has made is no obstacle.
    let moved = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap();
    assert_eq!(moved["resources"], 251);
}

async fn only_a_store_is_moved_and_only_to_postgresql(place: Place) {
    let beside = Beside::of(place);
    let error = moving::to_postgres(&beside.file, &beside.place.url).await.unwrap_err();
    assert!(matches!(error, MoveError::Nothing(_)), "{error}");
    assert!(!beside.file.exists());
    beside.filled().await.close().await;
    let error = moving::to_postgres(&beside.file, "sqlite:/nowhere/else.db").await.unwrap_err();
    assert!(matches!(error, MoveError::Target), "{error}");
    let error = moving::to_postgres(&beside.file, "postgres://u:hunter2@localhost:1/d").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}
