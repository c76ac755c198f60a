//! A database server that goes away, and other replicas that hang: what waits for them ends, and what comes later
//! works.

use gateway::store::batch::Expect;

use crate::place::{Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![connections_that_were_cut_are_made_again, a_replica_that_hangs_holds_up_others_for_a_bounded_time]
}

const CUT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";

async fn connections_that_were_cut_are_made_again(place: Place) {
    let store = place.with_group().await;
    for _ in 0..3 {
        place.sql(CUT).await;
        store.put(&cluster("a"), Expect::Any).await.unwrap().unwrap();
        place.sql(CUT).await;
        assert!(store.get(&cluster("a").key).await.unwrap().is_some());
    }
}

async fn a_replica_that_hangs_holds_up_others_for_a_bounded_time(place: Place) {
    let store = place.with_group().await;
    let mut hanging = place.connect().await;
    sqlx::raw_sql("BEGIN; UPDATE revisions SET revision = revision").execute(&mut hanging).await.unwrap();
    let error = store.put(&cluster("a"), Expect::Any).await.unwrap_err().to_string();
    assert!(error.contains("lock timeout"), "{error}");
    // Who only reads does not wait.
    assert_eq!(store.get(&cluster("a").key).await.unwrap(), None);
    place.sql(CUT).await;
    store.put(&cluster("a"), Expect::Any).await.unwrap().unwrap();
    // A replica of ours would have been cut by the server itself.
    drop(hanging);
}
