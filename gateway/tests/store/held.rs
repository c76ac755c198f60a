//! What one of several gateways holds, and work that one does at a time.

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use gateway::{
    control::alone::alone,
    store::{Backend, Store},
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::place::Place;

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        t7_one_of_two_gateways_holds_a_name,
        t7_work_goes_on_at_another_gateway,
        t7_sqlite_holds_without_a_write,
        t12_of_two_who_take_owners_away_one_waits_for_the_other,
    ]
}

const LONG: Duration = Duration::from_secs(60);

async fn t7_one_of_two_gateways_holds_a_name(place: Place) {
    let [a, b] = [place.open().await, place.open().await];
    if a.backend() == Backend::Sqlite {
        return;
    }
    assert!(a.hold("x", "a", LONG).await.unwrap());
    assert!(!b.hold("x", "b", LONG).await.unwrap(), "it is held");
    assert!(a.hold("x", "a", LONG).await.unwrap(), "it is renewed");
    assert!(b.hold("y", "b", LONG).await.unwrap(), "another name is free");
    b.let_go("x", "b").await.unwrap();
    assert!(!b.hold("x", "b", LONG).await.unwrap(), "another's is not given back");
    a.let_go("x", "a").await.unwrap();
    assert!(b.hold("x", "b", Duration::ZERO).await.unwrap());
    assert!(a.hold("x", "a", LONG).await.unwrap(), "the time of b is over");
    b.hold("z", "b", Duration::ZERO).await.unwrap();
    b.forget_held().await.unwrap();
    assert_eq!(place.texts("SELECT name FROM held ORDER BY name").await, ["x", "y"]);
    // Of many at once one wins.
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let store = [&a, &b][n % 2].clone();
        tasks.spawn(async move { store.hold("w", &n.to_string(), LONG).await.unwrap() });
    }
    assert_eq!(tasks.join_all().await.into_iter().filter(|won| *won).count(), 1);
}

/// Says who works, until it is dropped.
async fn work(name: &'static str, begun: mpsc::Sender<&'static str>) {
    begun.send(name).await.unwrap();
    std::future::pending::<()>().await;
}

async fn t7_work_goes_on_at_another_gateway(place: Place) {
    let [a, b] = [place.open().await, place.open().await];
    if a.backend() == Backend::Sqlite {
        return;
    }
    let (begun, mut says) = mpsc::channel(4);
    let mut tasks = JoinSet::new();
    let mut start = |name: &'static str, store: Store| {
        let (shutdown, begun) = (Shutdown::new(), begun.clone());
        let until = shutdown.clone();
        tasks.spawn(async move { alone(&store, "work", &until, || work(name, begun.clone())).await });
        shutdown
    };
    let first = start("a", a);
    assert_eq!(says.recv().await, Some("a"));
    let second = start("b", b.clone());
    // It is given back at the drain, and taken up at the other one, which did not work before.
    first.drain();
    assert_eq!(says.recv().await, Some("b"));
    assert!(!b.hold("work", "somebody", LONG).await.unwrap());
    second.drain();
    tasks.join_all().await;
    assert!(b.hold("work", "somebody", LONG).await.unwrap(), "given back");
    assert!(says.try_recv().is_err(), "nothing was done twice");
}

async fn t7_sqlite_holds_without_a_write(place: Place) {
    let store = Arc::new(place.open().await);
    if store.backend() == Backend::Postgres {
        return;
    }
    assert!(store.hold("x", "a", LONG).await.unwrap() && store.hold("x", "b", LONG).await.unwrap());
    assert!(place.texts("SELECT name FROM held").await.is_empty());
    let (begun, mut says) = mpsc::channel(1);
    alone(&store, "work", &Shutdown::new(), || async { begun.send("a").await.unwrap() }).await;
    assert_eq!(says.recv().await, Some("a"));
}

async fn t12_of_two_who_take_owners_away_one_waits_for_the_other(place: Place) {
    let [a, b] = [place.open().await, place.open().await];
    if a.backend() == Backend::Sqlite {
        return;
    }
    let first = a.rights_turn().await.unwrap();
    let (said, mut heard) = mpsc::channel(2);
    let second = tokio::spawn({
        let said = said.clone();
        async move {
            let turn = b.rights_turn().await.unwrap();
            said.send("the second has it").await.unwrap();
            drop(turn);
        }
    });
    let waits = "SELECT 'waits' FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    while place.texts(waits).await.is_empty() {}
    said.send("the first is done").await.unwrap();
    drop(first);
    second.await.unwrap();
    drop(said);
    assert_eq!([heard.recv().await.unwrap(), heard.recv().await.unwrap()], ["the first is done", "the second has it"]);
}
