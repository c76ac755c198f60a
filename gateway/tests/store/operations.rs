//! Long-running operations survive a restart and end once.

use gateway::store::{
    batch::{Batch, Ended},
    operations::{Operation, Status},
};
use serde_json::json;

use crate::{batch::operation, place::Place};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![an_operation_ends_once_and_survives_a_restart, operations_are_gone_on_with_in_their_order]
}

async fn an_operation_ends_once_and_survives_a_restart(place: Place) {
    let store = place.open().await;
    let begun = operation("o");
    store.apply(&Batch { begins: vec![begun.clone()], ..Batch::default() }).await.unwrap().unwrap();
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.operations_under_way(10).await.unwrap(), std::slice::from_ref(&begun));
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
    assert_eq!(store.operations_under_way(10).await.unwrap(), []);
    assert_eq!(store.forget_operations(7).await.unwrap(), 0);
    assert_eq!(store.forget_operations(8).await.unwrap(), 1);
}

async fn operations_are_gone_on_with_in_their_order(place: Place) {
    let store = place.open().await;
    let begins = [("b", 2), ("c", 1), ("a", 2)].map(|(id, begun_ms)| Operation { begun_ms, ..operation(id) });
    store.apply(&Batch { begins: begins.into(), ..Batch::default() }).await.unwrap().unwrap();
    let ids = |found: Vec<Operation>| found.into_iter().map(|operation| operation.id).collect::<Vec<_>>();
    assert_eq!(ids(store.operations_under_way(10).await.unwrap()), ["c", "a", "b"]);
    assert_eq!(ids(store.operations_under_way(2).await.unwrap()), ["c", "a"]);
    assert_eq!(ids(store.operations_behind((1, "c"), 1).await.unwrap()), ["a"]);
    assert_eq!(ids(store.operations_behind((2, "a"), 9).await.unwrap()), ["b"]);
    assert_eq!(store.operations_behind((2, "b"), 9).await.unwrap(), []);
    assert_eq!(store.forget_operations(i64::MAX).await.unwrap(), 0, "what is under way is not forgotten");
}
