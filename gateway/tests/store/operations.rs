//! Long-running operations survive a restart, end once, and are in the charge of one process at a time.

use gateway::store::{
    Store,
    batch::{Batch, Ended, Expect, Refused},
    operations::{BeginsAtMost, Operation, Status},
};
use serde_json::json;

use crate::{
    batch::operation,
    place::{GROUP, Place},
};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        an_operation_ends_once_and_survives_a_restart,
        operations_are_gone_on_with_in_their_order,
        one_process_has_the_claim_until_it_ends,
        work_of_another_kind_is_left_alone,
        a_clock_that_was_set_back_stops_no_operation,
        no_more_operations_begin_within_a_day_than_may,
        no_more_operations_begin_at_once_than_may,
    ]
}

/// Names of those that wait at an instant.
async fn waiting(store: &Store, now_ms: i64) -> Vec<String> {
    let found = store.operations_waiting("delete", now_ms, 10).await.unwrap();
    found.into_iter().map(|one| one.operation.id).collect()
}

async fn begin(store: &Store, begins: Vec<Operation>) {
    store.apply(&Batch { begins, ..Batch::default() }).await.unwrap().unwrap();
}

async fn an_operation_ends_once_and_survives_a_restart(place: Place) {
    let store = place.open().await;
    let begun = Operation { due_ms: Some(77), ..operation("o") };
    begin(&store, vec![begun.clone()]).await;
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.operation("o").await.unwrap().as_ref(), Some(&begun));
    assert_eq!(waiting(&store, 5).await, ["o"]);
    let error = json!({"code": "X"});
    for (status, error, now_ms, ended) in
        [(Status::Failed, Some(error.clone()), 7, true), (Status::Succeeded, None, 8, false)]
    {
        let ends = Batch { ends: vec![Ended { id: "o".to_owned(), status, error, now_ms }], ..Batch::default() };
        assert_eq!(store.apply(&ends).await.unwrap().is_ok(), ended);
    }
    let ended = Operation { status: Status::Failed, ended_ms: Some(7), error: Some(error), ..begun };
    assert_eq!(store.operation("o").await.unwrap(), Some(ended));
    assert_eq!(store.operation("other").await.unwrap(), None);
    assert!(waiting(&store, 5).await.is_empty());
    assert_eq!(store.forget_operations(7).await.unwrap(), 0);
    assert_eq!(store.forget_operations(8).await.unwrap(), 1);
}

async fn operations_are_gone_on_with_in_their_order(place: Place) {
    let store = place.open().await;
    let begins = [("b", 2), ("c", 1), ("a", 2)].map(|(id, begun_ms)| Operation { begun_ms, ..operation(id) });
    begin(&store, begins.into()).await;
    assert_eq!(waiting(&store, 0).await, [""; 0]);
    assert_eq!(waiting(&store, 1).await, ["c"]);
    assert_eq!(waiting(&store, 2).await, ["c", "a", "b"]);
    assert_eq!(store.operations_waiting("delete", 2, 2).await.unwrap().len(), 2);
    assert_eq!(store.forget_operations(i64::MAX).await.unwrap(), 0, "what is under way is not forgotten");
}

async fn one_process_has_the_claim_until_it_ends(place: Place) {
    let store = place.open().await;
    begin(&store, vec![operation("o")]).await;
    let found = store.operations_waiting("delete", 5, 1).await.unwrap().remove(0);
    let first = store.claim_operation(&found, "first", 60).await.unwrap().unwrap();
    assert_eq!(store.claim_operation(&found, "second", 60).await.unwrap(), None, "both have read it");
    assert_eq!(waiting(&store, 59).await, [""; 0]);
    // The first process was killed.
    let found = store.operations_waiting("delete", 60, 1).await.unwrap().remove(0);
    assert_eq!(found.tries, 1);
    let second = store.claim_operation(&found, "second", 120).await.unwrap().unwrap();
    assert!(!store.release_operation(&first, 0, 0, true).await.unwrap(), "it has no claim any more");
    assert!(store.release_operation(&second, 60, 70, false).await.unwrap());
    let found = store.operations_waiting("delete", 70, 1).await.unwrap().remove(0);
    assert_eq!(found.tries, 2, "nothing came of it");
    let third = store.claim_operation(&found, "second", 120).await.unwrap().unwrap();
    assert!(store.release_operation(&third, 70, 80, true).await.unwrap());
    let found = store.operations_waiting("delete", 80, 1).await.unwrap().remove(0);
    assert_eq!(found.tries, 0);
    // What was written on a claim that is another's by now does not happen.
    let fourth = store.claim_operation(&found, "third", 120).await.unwrap().unwrap();
    let late = Batch { claim: Some(second), deletes: vec![(GROUP.to_owned(), Expect::Any)], ..Batch::default() };
    assert!(store.apply(&late).await.unwrap().is_err());
    let fine = Batch { claim: Some(fourth), deletes: vec![(GROUP.to_owned(), Expect::Any)], ..Batch::default() };
    assert!(store.apply(&fine).await.unwrap().is_ok());
    let ended = Ended { id: "o".to_owned(), status: Status::Succeeded, error: None, now_ms: 9 };
    store.apply(&Batch { ends: vec![ended], ..Batch::default() }).await.unwrap().unwrap();
    assert_eq!(store.claim_operation(&found, "third", 200).await.unwrap(), None, "it has ended");
}

async fn work_of_another_kind_is_left_alone(place: Place) {
    let store = place.open().await;
    let newer = Operation { work: json!({"kind": "install"}), ..operation("newer") };
    begin(&store, vec![newer.clone(), operation("o")]).await;
    assert_eq!(waiting(&store, i64::MAX).await, ["o"]);
    assert_eq!(store.operation("newer").await.unwrap(), Some(newer));
}

async fn a_clock_that_was_set_back_stops_no_operation(place: Place) {
    let store = place.open().await;
    let begins =
        ["far", "near"].map(|id| Operation { begun_ms: if id == "far" { 9_000 } else { 50 }, ..operation(id) });
    begin(&store, begins.into()).await;
    assert_eq!(waiting(&store, 10).await, [""; 0]);
    assert_eq!(store.wake_operations(10, 1_000, false).await.unwrap(), 1);
    assert_eq!(waiting(&store, 10).await, ["far"]);
    assert_eq!(store.wake_operations(10, 1_000, true).await.unwrap(), 1, "one rests");
    assert_eq!(waiting(&store, 10).await, ["far", "near"]);
    // A claim is left alone for as long as claims hold.
    let found = store.operations_waiting("delete", 10, 1).await.unwrap().remove(0);
    assert!(store.claim_operation(&found, "p", 70).await.unwrap().is_some());
    assert_eq!(store.wake_operations(10, 1_000, true).await.unwrap(), 0);
}

/// Rows of operations had no bound but time.
async fn no_more_operations_begin_within_a_day_than_may(place: Place) {
    const HOUR: i64 = 3600 * 1000;
    let store = place.open().await;
    let bound = |place: &str, count| BeginsAtMost { place: place.to_owned(), count };
    let apply = async |id: &str, resource: &str, hour: i64| {
        let begun = Operation { resource: resource.to_owned(), begun_ms: hour * HOUR + 7, ..operation(id) };
        let begins_at_most = vec![bound("/subscriptions/s", 3), bound(GROUP, 2)];
        store.apply(&Batch { begins: vec![begun], begins_at_most, ..Batch::default() }).await.unwrap()
    };
    let in_group = format!("{GROUP}/providers/p/t/n");
    let full = |place: &str, most, hour: i64| {
        Err(Refused::TooManyOperations { place: place.to_owned(), most, room_ms: hour * HOUR })
    };
    for (n, hour) in [100, 101].into_iter().enumerate() {
        apply(&format!("a{n}"), &in_group, hour).await.unwrap();
    }
    for _ in 0..3 {
        assert_eq!(apply("b", &in_group, 110).await, full(GROUP, 2, 124), "what is refused counts for nothing");
    }
    assert_eq!(store.operation("b").await.unwrap(), None);
    // Others of the subscription have its room, until it is full too.
    let other = format!("{GROUP}2/providers/p/t/n");
    let elsewhere = async |id: &str| {
        let begun = Operation { resource: other.clone(), begun_ms: 110 * HOUR, ..operation(id) };
        let begins_at_most = vec![bound("/subscriptions/s", 3)];
        store.apply(&Batch { begins: vec![begun], begins_at_most, ..Batch::default() }).await.unwrap()
    };
    elsewhere("c").await.unwrap();
    assert_eq!(elsewhere("d").await, full("/subscriptions/s", 3, 124));
    // A day after the first one there is room for one more.
    assert_eq!(apply("e", &in_group, 123).await, full("/subscriptions/s", 3, 124));
    apply("e", &in_group, 124).await.unwrap();
    assert_eq!(apply("f", &in_group, 124).await, full("/subscriptions/s", 3, 125));
    // What counts no longer is forgotten.
    store.forget_operations(110 * HOUR).await.unwrap();
    let kept = place.texts("SELECT place_key || since_hour FROM operations_begun ORDER BY place_key, since_hour").await;
    let expected = "/subscriptions/s110 /subscriptions/s124 GROUP124 GROUP2110".replace("GROUP", GROUP);
    assert_eq!(kept.join(" "), expected);
    assert_eq!(apply("f", &in_group, 150).await.map(drop), Ok(()));
    // What a clock that was ahead has written counts for nothing, and does not stay.
    let later = format!("{GROUP}3/providers/p/t/n");
    let at = async |id: &str, hour: i64| {
        let begun = Operation { resource: later.clone(), begun_ms: hour * HOUR, ..operation(id) };
        let begins_at_most = vec![bound(&format!("{GROUP}3"), 1)];
        store.apply(&Batch { begins: vec![begun], begins_at_most, ..Batch::default() }).await.unwrap().map(drop)
    };
    at("g", 9000).await.unwrap();
    at("h", 200).await.unwrap();
    assert!(at("i", 200).await.is_err());
    store.forget_operations(176 * HOUR).await.unwrap();
    let kept = place.texts("SELECT CAST(MAX(since_hour) AS TEXT) FROM operations_begun").await;
    assert_eq!(kept, ["200"]);
}

/// The bound is judged in the transaction: two gateways do not both take the last place.
async fn no_more_operations_begin_at_once_than_may(place: Place) {
    let (one, two) = (place.open().await, place.open().await);
    let begins =
        (0..12).map(|n| {
            let store = if n % 2 == 0 { &one } else { &two };
            let begun = Operation { resource: format!("{GROUP}/providers/p/t/n"), ..operation(&format!("o{n}")) };
            let begins_at_most = vec![BeginsAtMost { place: GROUP.to_owned(), count: 5 }];
            async move {
                store.apply(&Batch { begins: vec![begun], begins_at_most, ..Batch::default() }).await.unwrap().is_ok()
            }
        });
    let begun = futures_util::future::join_all(begins).await;
    assert_eq!(begun.iter().filter(|begun| **begun).count(), 5);
}
