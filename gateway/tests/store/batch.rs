//! A batch happens under one revision, or not at all.

use gateway::store::{
    batch::{Applied, AtMost, Batch, Ended, Expect, Refused},
    changes::Change,
    operations::{Operation, Status},
};
use serde_json::json;

use crate::place::{CLUSTERS, GROUP, Place, cluster, group, since};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        a_batch_happens_under_one_revision,
        a_batch_that_is_refused_has_done_nothing,
        a_batch_that_breaks_has_done_nothing,
        a_batch_puts_anew_what_it_deletes,
        an_empty_batch_is_nothing,
        what_changes_no_resource_takes_no_revision,
        what_an_operation_does_is_done_once,
        what_is_being_deleted_takes_nothing_new,
        what_decided_a_batch_is_as_it_was_read,
        a_parent_holds_no_more_than_it_may,
        who_watches_hears_of_each_commit,
    ]
}

pub fn operation(id: &str) -> Operation {
    Operation {
        id: id.to_owned(),
        resource: GROUP.to_owned(),
        status: Status::InProgress,
        begun_ms: 5,
        ended_ms: None,
        work: json!({"kind": "delete"}),
        due_ms: None,
        error: None,
    }
}

async fn a_batch_happens_under_one_revision(place: Place) {
    let store = place.open().await;
    let batch = Batch {
        // A parent before its child.
        puts: vec![(group("g"), Expect::Absent), (cluster("a"), Expect::Any), (cluster("b"), Expect::Absent)],
        begins: vec![operation("one")],
        ..Batch::default()
    };
    let applied = store.apply(&batch).await.unwrap().unwrap();
    assert_eq!(applied, Applied { revision: 1, deleted: 0 });
    assert!(since(&store, 0).await.iter().all(|change| change.revision() == 1));
    let end = Ended { id: "one".to_owned(), status: Status::Succeeded, error: None, now_ms: 9 };
    let batch = Batch {
        puts: vec![(cluster("b"), Expect::Revision(1))],
        deletes: vec![(cluster("a").key, Expect::Revision(1))],
        ends: vec![end],
        ..Batch::default()
    };
    let applied = store.apply(&batch).await.unwrap().unwrap();
    assert_eq!(applied, Applied { revision: 2, deleted: 1 });
    assert_eq!(store.get(&cluster("b").key).await.unwrap().unwrap().revision, 2);
    assert_eq!(store.operation("one").await.unwrap().unwrap().status, Status::Succeeded);
}

async fn a_batch_that_is_refused_has_done_nothing(place: Place) {
    let store = place.with_group().await;
    let there = store.put(&cluster("there"), Expect::Absent).await.unwrap().unwrap();
    let good = || Batch {
        puts: vec![(cluster("new"), Expect::Absent)],
        deletes: vec![(cluster("there").key, Expect::Any)],
        begins: vec![operation("one")],
        ..Batch::default()
    };
    let changed = |key: &str, found| Refused::Changed { key: key.to_owned(), found };
    let mut absent = good();
    absent.puts.push((group("g"), Expect::Absent));
    let mut older = good();
    older.deletes.push((GROUP.to_owned(), Expect::Revision(99)));
    let mut gone = good();
    gone.puts.push((cluster("there"), Expect::Revision(there)));
    let mut orphan = good();
    orphan.deletes.push((GROUP.to_owned(), Expect::Any));
    for (batch, refused) in [
        (absent, changed(GROUP, Some(1))),
        (older, changed(GROUP, Some(1))),
        (gone, changed(&cluster("there").key, None)),
        (orphan, Refused::NoParent { key: cluster("new").key }),
    ] {
        assert_eq!(store.apply(&batch).await.unwrap(), Err(refused));
        assert_eq!(store.revision().await.unwrap(), there);
        assert_eq!(store.page(CLUSTERS, "", "", 9).await.unwrap().len(), 1);
        assert_eq!(store.operation("one").await.unwrap(), None);
    }
    store.apply(&good()).await.unwrap().unwrap();
}

async fn a_batch_that_breaks_has_done_nothing(place: Place) {
    let store = place.with_group().await;
    let puts = vec![(cluster("a"), Expect::Absent)];
    let batch = Batch { puts, begins: vec![operation("one"), operation("one")], ..Batch::default() };
    assert!(store.apply(&batch).await.is_err(), "two of one name");
    assert_eq!(store.revision().await.unwrap(), 1);
    assert_eq!(store.get(&cluster("a").key).await.unwrap(), None);
    // And the connection is good for the next one.
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
}

async fn a_batch_puts_anew_what_it_deletes(place: Place) {
    let store = place.with_group().await;
    let first = store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    store.put(&cluster("b"), Expect::Absent).await.unwrap().unwrap();
    let batch = Batch {
        puts: vec![(group("G"), Expect::Absent), (cluster("A"), Expect::Absent)],
        deletes: vec![(GROUP.to_owned(), Expect::Any)],
        ..Batch::default()
    };
    let applied = store.apply(&batch).await.unwrap().unwrap();
    assert_eq!(applied.deleted, 3);
    assert!(store.get(&cluster("a").key).await.unwrap().unwrap().id.ends_with("/A"), "made anew");
    let changes = since(&store, first + 1).await;
    let is_put = |change: &Change| matches!(change, Change::Put(_));
    assert_eq!(changes.iter().map(is_put).collect::<Vec<_>>(), [false, false, false, true, true]);
}

/// Who waits until the changes up to a batch were seen would wait for ever.
async fn what_changes_no_resource_takes_no_revision(place: Place) {
    let store = place.with_group().await;
    let watch = store.watch();
    let end = |id: &str| Ended { id: id.to_owned(), status: Status::Succeeded, error: None, now_ms: 9 };
    for batch in [
        Batch { begins: vec![operation("one"), operation("two")], ..Batch::default() },
        Batch { deletes: vec![("/nothing".to_owned(), Expect::Absent)], ends: vec![end("one")], ..Batch::default() },
    ] {
        let applied = store.apply(&batch).await.unwrap().unwrap();
        assert_eq!(applied, Applied { revision: 1, deleted: 0 });
        assert_eq!((store.revision().await.unwrap(), watch.has_changed().unwrap()), (1, false));
    }
    assert_eq!(store.operation("one").await.unwrap().unwrap().status, Status::Succeeded);
    assert_eq!(store.put(&cluster("a"), Expect::Absent).await.unwrap(), Ok(2));
}

/// Two replicas that carry out the same deletion: the second would delete what was made anew meanwhile.
async fn what_an_operation_does_is_done_once(place: Place) {
    let store = place.with_group().await;
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    store.apply(&Batch { begins: vec![operation("delete")], ..Batch::default() }).await.unwrap().unwrap();
    let end = Ended { id: "delete".to_owned(), status: Status::Succeeded, error: None, now_ms: 9 };
    let batch = Batch { deletes: vec![(cluster("a").key, Expect::Any)], ends: vec![end], ..Batch::default() };
    assert_eq!(store.apply(&batch).await.unwrap().unwrap().deleted, 1);
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    let refused = Refused::Changed { key: "delete".to_owned(), found: None };
    assert_eq!(store.apply(&batch).await.unwrap(), Err(refused));
    assert!(store.get(&cluster("a").key).await.unwrap().is_some());
}

/// Who looked before its parent was marked writes after: it would be acknowledged, and deleted with the parent.
async fn what_is_being_deleted_takes_nothing_new(place: Place) {
    let store = place.with_group().await;
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    let mut going = group("g");
    going.body["properties"] = json!({"provisioningState": "Deleting"});
    let marked = store.put(&going, Expect::Any).await.unwrap().unwrap();
    let refused = Err(Refused::Changed { key: GROUP.to_owned(), found: Some(marked) });
    assert_eq!(store.put(&cluster("b"), Expect::Absent).await.unwrap(), refused, "a child");
    assert_eq!(store.put(&cluster("a"), Expect::Any).await.unwrap(), refused, "a change");
    let mut below = cluster("a");
    below.parent = cluster("a").key;
    below.key = format!("{}/providers/x/y/z", below.parent);
    below.kind = "x/y".to_owned();
    assert_eq!(store.put(&below, Expect::Absent).await.unwrap(), refused, "a child of a child");
    // To be deleted too, it may be marked; and what is elsewhere is as before.
    let mut too = cluster("a");
    too.body = json!({"properties": {"provisioningState": "Deleting"}});
    store.put(&too, Expect::Any).await.unwrap().unwrap();
    store.put(&group("h"), Expect::Absent).await.unwrap().unwrap();
    store.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    assert_eq!(
        store.put(&cluster("b"), Expect::Absent).await.unwrap(),
        Err(Refused::NoParent { key: cluster("b").key })
    );
    store.put(&group("g"), Expect::Absent).await.unwrap().unwrap();
    store.put(&cluster("b"), Expect::Absent).await.unwrap().unwrap();
}

async fn an_empty_batch_is_nothing(place: Place) {
    let store = place.with_group().await;
    let applied = store.apply(&Batch::default()).await.unwrap().unwrap();
    assert_eq!(applied, Applied { revision: 1, deleted: 0 });
    assert_eq!(store.revision().await.unwrap(), 1);
}

async fn who_watches_hears_of_each_commit(place: Place) {
    let store = place.with_group().await;
    let mut watch = store.watch();
    assert_eq!(*watch.borrow_and_update(), 1);
    let refused = store.put(&group("g"), Expect::Absent).await.unwrap();
    assert!(refused.is_err() && !watch.has_changed().unwrap());
    let revision = store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    watch.changed().await.unwrap();
    assert_eq!(*watch.borrow_and_update(), revision);
    assert_eq!(*place.open().await.watch().borrow(), revision, "an opened store begins where it is");
}

async fn what_decided_a_batch_is_as_it_was_read(place: Place) {
    let store = place.with_group().await;
    let there = store.put(&cluster("there"), Expect::Absent).await.unwrap().unwrap();
    // More than one statement names, and nothing is at most of them.
    let key = |n: usize| cluster(&format!("n{n}")).key;
    let mut as_read: Vec<_> = (0..1000).map(|n| (key(n), None)).collect();
    as_read.push((cluster("there").key, Some(there)));
    let batch = Batch { puts: vec![(cluster("new"), Expect::Any)], as_read, ..Batch::default() };
    let apply = async || store.apply(&batch).await.unwrap().map(|applied| applied.revision);
    let changed = |key: &str, found| Err(Refused::Changed { key: key.to_owned(), found });
    assert_eq!(apply().await, Ok(there + 1));
    for n in [0, 500, 999] {
        let came = store.put(&cluster(&format!("n{n}")), Expect::Absent).await.unwrap().unwrap();
        assert_eq!(apply().await, changed(&key(n), Some(came)));
        assert_eq!(store.revision().await.unwrap(), came, "nothing is done");
        store.delete(&key(n), Expect::Any).await.unwrap().unwrap();
        assert!(apply().await.is_ok());
    }
    let again = store.put(&cluster("there"), Expect::Any).await.unwrap().unwrap();
    assert_eq!(apply().await, changed(&cluster("there").key, Some(again)));
    let mut keys: Vec<_> = (0..1000).map(key).collect();
    assert!(store.revisions_of(&keys).await.unwrap().is_empty());
    keys.extend([cluster("there").key, GROUP.to_owned(), "\0".to_owned()]);
    let found = store.revisions_of(&keys).await.unwrap();
    assert_eq!((found.len(), found[&cluster("there").key], found[GROUP]), (2, again, 1));
    store.delete(&cluster("there").key, Expect::Any).await.unwrap().unwrap();
    assert_eq!(apply().await, changed(&cluster("there").key, None));
}

async fn a_parent_holds_no_more_than_it_may(place: Place) {
    let store = place.with_group().await;
    store.put(&group("other"), Expect::Absent).await.unwrap().unwrap();
    let bound = |count| AtMost { kind: CLUSTERS.to_owned(), parent: GROUP.to_owned(), count };
    let put =
        |name: &str| Batch { puts: vec![(cluster(name), Expect::Any)], at_most: vec![bound(2)], ..Batch::default() };
    for name in ["a", "b"] {
        store.apply(&put(name)).await.unwrap().unwrap();
    }
    let full = Refused::Full { kind: CLUSTERS.to_owned(), parent: GROUP.to_owned() };
    assert_eq!(store.apply(&put("c")).await.unwrap(), Err(full.clone()));
    assert_eq!((store.revision().await.unwrap(), store.count(CLUSTERS, "").await.unwrap()), (4, 2));
    // What is there may change, and what goes makes room for another one in the same batch.
    store.apply(&put("a")).await.unwrap().unwrap();
    let exchanged = Batch { deletes: vec![(cluster("a").key, Expect::Any)], ..put("c") };
    store.apply(&exchanged).await.unwrap().unwrap();
    assert_eq!(store.apply(&put("a")).await.unwrap(), Err(full));
    let names = store.all_children(CLUSTERS, GROUP, 9).await.unwrap();
    assert_eq!(names.iter().map(crate::place::name).collect::<Vec<_>>(), ["b", "c"]);
}
