//! Migrations go forward only; what is not ours or newer than we are is left as it is, with a reason.

use gateway::store::{
    Store, StoreError,
    agents::Agent,
    batch::{Batch, Expect},
    changes::Changes,
    resources::Stored,
};
use serde_json::json;

use crate::{
    batch::operation,
    place::{GROUP, Place, cluster},
};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        a_newer_database_is_refused_and_untouched,
        a_changed_migration_is_refused,
        t12_who_only_reads_leaves_the_tables_of_an_older_program,
        t12_a_program_goes_on_when_a_newer_one_has_changed_the_tables,
        many_who_open_at_once_make_the_tables_once,
        an_address_of_no_database_says_so_and_no_password,
        clusters_of_a_database_of_version_1_get_their_rows,
    ]
}

async fn a_newer_database_is_refused_and_untouched(place: Place) {
    place.with_group().await.close().await;
    place
        .sql(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             SELECT 99, 'of the future', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1; \
             ALTER TABLE resources ADD COLUMN future TEXT;",
        )
        .await;
    let file = place.is_sqlite.then(|| gateway::store::sqlite_file(&place.url).unwrap());
    let before = file.as_ref().map(|file| std::fs::read(file).unwrap());
    let error = Store::open(&place.url).await.err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 99, known: 1.. }), "{error:?}");
    assert!(error.to_string().contains("newer"), "{error}");
    assert_eq!(before, file.as_ref().map(|file| std::fs::read(file).unwrap()));
    let rows = place.texts("SELECT resource_key FROM resources WHERE future IS NULL").await;
    assert_eq!(rows, [GROUP]);
    let last = place.texts("SELECT description FROM _sqlx_migrations ORDER BY version").await.pop();
    assert_eq!(last.as_deref(), Some("of the future"), "and nothing else was run");
}

async fn a_changed_migration_is_refused(place: Place) {
    place.open().await.close().await;
    place.sql("UPDATE _sqlx_migrations SET checksum = checksum || checksum").await;
    let error = Store::open(&place.url).await.err().unwrap();
    assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
}

/// Commands that show something run beside gateways of the version before.
async fn t12_who_only_reads_leaves_the_tables_of_an_older_program(place: Place) {
    place.with_group().await.close().await;
    for column in ["stale_ms", "stale_of", "settings", "settings_of"] {
        place.sql(&format!("ALTER TABLE replicas DROP COLUMN {column}")).await;
    }
    let later = "DELETE FROM _sqlx_migrations WHERE description IN ('replicas stale for', 'replicas settings')";
    place.sql(later).await;
    let run = "SELECT description FROM _sqlx_migrations ORDER BY version";
    let before = place.texts(run).await;
    let store = Store::open_to_read(&place.url).await.unwrap().unwrap();
    assert!(store.get(GROUP).await.unwrap().is_some());
    assert_eq!(store.replicas_overview(std::time::Duration::from_secs(10)).await.is_ok(), !place.is_sqlite);
    store.close().await;
    assert_eq!(place.texts(run).await, before, "nothing was run");
    place.open().await.close().await;
    assert_eq!(place.texts(run).await.len(), before.len() + 2, "a start runs them");
}

/// While replicas are upgraded one after the other, those of the version before go on with tables of the next one.
async fn t12_a_program_goes_on_when_a_newer_one_has_changed_the_tables(place: Place) {
    let store = place.with_group().await;
    place
        .sql(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             SELECT 99, 'of the future', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1; \
             ALTER TABLE resources ADD COLUMN future TEXT; ALTER TABLE operations ADD COLUMN future TEXT; \
             CREATE TABLE later (name TEXT);",
        )
        .await;
    let revision = store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    let begins = vec![operation("deletion")];
    store.apply(&Batch { begins, ..Batch::default() }).await.unwrap().unwrap();
    assert!(store.get(&cluster("a").key).await.unwrap().is_some());
    assert_eq!(store.operations_waiting("delete", 10, 10).await.unwrap().len(), 1);
    assert!(matches!(store.changes(revision - 1).await.unwrap(), Changes::Since(changes) if changes.len() == 1));
    assert!(matches!(Store::open_to_read(&place.url).await.err().unwrap(), StoreError::Newer { .. }));
}

async fn clusters_of_a_database_of_version_1_get_their_rows(place: Place) {
    let store = place.with_group().await;
    let keyed = |name, key| Stored { body: json!({"properties": {"agentPublicKeyCertificate": key}}), ..cluster(name) };
    for made in [keyed("with", "MII="), keyed("without", "")] {
        store.put(&made, Expect::Absent).await.unwrap().unwrap();
    }
    let begins = vec![operation("deletion")];
    store.apply(&Batch { begins, ..Batch::default() }).await.unwrap().unwrap();
    store.close().await;
    let undo = "DROP TABLE agents; DROP TABLE events; DROP TABLE event_numbers; DROP TABLE departed; \
                DROP TABLE webhooks; DROP TABLE deleted_identities; DROP TABLE protecting_key; DROP TABLE rows_named; \
                DROP TABLE statuses; DROP TABLE protected_until; DROP TABLE parts; DROP TABLE parts_told; DROP TABLE log_lines; DROP TABLE log_positions; DROP TABLE upgrades; DROP TABLE replicas; DROP TABLE tunnels; DROP TABLE held; DROP TABLE documents; DROP TABLE tickets; DROP TABLE counts; DROP TABLE operations_begun; DROP TABLE event_groups; DROP TABLE event_subscriptions; DROP INDEX operations_by_resource; DROP INDEX resources_by_change; DROP INDEX tombstones_by_kind; \
                DROP INDEX operations_by_work; ALTER TABLE operations DROP COLUMN work_kind; \
                ALTER TABLE operations DROP COLUMN next_ms; ALTER TABLE operations DROP COLUMN claimed_by; \
                ALTER TABLE operations DROP COLUMN tries; ALTER TABLE operations DROP COLUMN woken; ALTER TABLE operations DROP COLUMN due_ms; \
                DELETE FROM _sqlx_migrations WHERE version > 1;";
    place.sql(undo).await;
    let store = place.open().await;
    for (name, agentless) in [("with", false), ("without", true)] {
        let agent = store.agent(&cluster(name).key).await.unwrap();
        assert_eq!(agent, Some(Agent { agentless, ..Agent::default() }), "{name}");
    }
    assert_eq!(store.agent(GROUP).await.unwrap(), None);
    let waiting = store.operations_waiting("delete", 0, 10).await.unwrap();
    assert_eq!(waiting.iter().map(|one| one.operation.id.as_str()).collect::<Vec<_>>(), ["deletion"]);
}

async fn many_who_open_at_once_make_the_tables_once(place: Place) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = place.url.clone();
        tasks.spawn(async move { Store::open(&url).await.unwrap().revision().await.unwrap() });
    }
    assert_eq!(tasks.join_all().await, [0; 6]);
}

async fn an_address_of_no_database_says_so_and_no_password(place: Place) {
    drop(place);
    for url in ["mysql://u:hunter2@h/d", "hunter2", "sqlite::memory:", "sqlite:", "", "file:///tmp/hunter2"] {
        let error = Store::open(url).await.err().unwrap().to_string();
        assert!(error.contains("postgres://") && !error.contains("hunter2"), "{url}: {error}");
    }
    for (url, why) in [
        ("sqlite:/nonexistent/towline.db", "No such file"),
        ("postgres://u:hunter2@localhost:1/d", "refused"),
        ("postgres://u:hunter2@localhost/d?sslmode=perhaps", "perhaps"),
    ] {
        let error = Store::open(url).await.err().unwrap();
        let text = format!("{error} {error:?}");
        assert!(error.to_string().contains(why) && !text.contains("hunter2"), "{text}");
    }
}
