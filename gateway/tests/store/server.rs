//! A database server that goes away, and other replicas that hang: what waits for them ends, and what comes later
//! works.

use std::time::Duration;

use gateway::store::{
    address::NewUrl,
    batch::Expect,
    replicas::{Ear, Line, Told},
};

use crate::place::{Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        connections_that_were_cut_are_made_again,
        new_connections_are_made_with_a_rotated_address,
        a_replica_that_hangs_holds_up_others_for_a_bounded_time,
    ]
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

/// The server trusts every user, so that another user stands for another password.
async fn new_connections_are_made_with_a_rotated_address(place: Place) {
    let store = place.with_group().await;
    let database = place.texts("SELECT current_database()::text").await.remove(0);
    let user = format!("rotated_{database}");
    place.sql(&format!("CREATE ROLE {user} LOGIN SUPERUSER")).await;
    let rotated = place.url.replace("//towline@", &format!("//{user}:hunter2@"));
    let users = "SELECT DISTINCT usename::text FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid() \
                 AND query NOT LIKE '%pg_stat_activity%'";
    let mut line = Line::new(store.address()).unwrap();
    let mut ear = Ear::open(store.address()).await.unwrap();
    line.join("a", "a:1", "1", Duration::ZERO).await.unwrap();
    while ear.hear().await.unwrap() != Told::Look {}

    assert_eq!(store.use_url(&place.url).unwrap(), NewUrl::Same);
    let other = rotated.replace(&format!("/{database}?"), "/other?");
    assert_eq!(store.use_url(&other).unwrap(), NewUrl::OtherDatabase);
    let unreadable = rotated.replace("sslmode=disable", "sslmode=perhaps");
    let error = store.use_url(&unreadable).unwrap_err().to_string();
    assert!(error.contains("perhaps") && !error.contains("hunter2"), "{error}");
    assert_eq!(store.use_url(&rotated).unwrap(), NewUrl::Taken);
    assert_eq!(store.use_url(&rotated).unwrap(), NewUrl::Same);
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(place.texts(users).await, ["towline"], "open connections go on");

    // Waits until they have ended.
    place.sql(&CUT.replace("(pid)", "(pid, 60000)")).await;
    while ear.hear().await.unwrap() != Told::Look {}
    store.put(&cluster("b"), Expect::Absent).await.unwrap().unwrap();
    assert!(store.get(&cluster("a").key).await.unwrap().is_some());
    line.join("a", "a:1", "1", Duration::ZERO).await.unwrap_err();
    line.join("a", "a:1", "1", Duration::ZERO).await.unwrap();
    assert_eq!(place.texts(users).await, [user]);
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
